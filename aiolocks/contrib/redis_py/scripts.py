"""redis-py's own scripts, for subclasses that call them."""

from __future__ import annotations

from typing import Any, final


@final
class Registered:
    """An attribute that is a script, on the client of the lock that is asked.

    redis-py keeps one for the class, of the first client of all. It can be set, on a lock and on a class, as
    there.

    Args:
        source: The attribute with its text.
    """

    __slots__ = ("_source",)

    def __init__(self, source: str) -> None:
        self._source = source

    def __get__(self, lock: Any, owner: object = None) -> Any:
        return self if lock is None else lock.redis.register_script(getattr(lock, self._source))
