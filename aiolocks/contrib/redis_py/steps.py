"""The steps of a lock that is redis-py's on the server: one key, whose value is the token."""

from __future__ import annotations

from typing import Any, Final, final

from ...transport.answers import Released, truth
from ...transport.request import Request, Script

_ACQUIRE: Final = Script("redis_py_acquire")
_EXTEND: Final = Script("redis_py_extend")
_HOLDER: Final = Script("redis_py_holder")
_REACQUIRE: Final = Script("redis_py_reacquire")
_RELEASE: Final = Script("redis_py_release", frees=True)


@final
class RedisPySteps:
    """The steps of one lock, whose key is its name."""

    __slots__ = ("_keys",)

    def __init__(self, key: bytes) -> None:
        self._keys = (key,)

    def acquire(
        self, token: bytes, timeout_ms: int | None, *, again: bool, listen: bool = False
    ) -> Request[bool]:
        """Takes it if it is free; `again` if the same request may have been executed before.

        `listen` to be told of the next change of the key, from when this was executed on.
        """
        args = (token, "" if timeout_ms is None else timeout_ms, int(again))
        bells = self._keys if listen else ()
        return Request(_ACQUIRE, self._keys, args, truth, lane=_lane(token), bells=bells)

    def release(self, token: bytes) -> Request[Released]:
        """Lets go, if the token holds it."""
        return Request(_RELEASE, self._keys, (token,), _released, lane=_lane(token))

    def extend(self, token: bytes, time_ms: int, *, replace: bool) -> Request[bool]:
        """Adds to its ttl, or replaces it. Sent again, it adds again."""
        return Request(_EXTEND, self._keys, (token, time_ms, int(replace)), truth, lane=_lane(token))

    def reacquire(self, token: bytes, timeout_ms: int, *, shorten: bool = True) -> Request[bool]:
        """Sets its ttl to the timeout again."""
        args = (token, timeout_ms, int(not shorten))
        return Request(_REACQUIRE, self._keys, args, truth, lane=_lane(token))

    def holder(self) -> Request[bytes | None]:
        """The token of its holder."""
        return Request(_HOLDER, self._keys, (), lambda raw: raw)


def _lane(token: bytes) -> str:
    return token.decode("latin-1")


def _released(raw: Any) -> Released:
    return Released(freed=bool(raw), rung=())
