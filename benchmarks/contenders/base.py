"""A contender: something that makes, for a name, an async context manager."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from ..settings import Address

TTL = 30
"""Seconds: the lease of every lock that is not about its end."""

CONNECTIONS = 1000
"""Places in a peer's pool. redis-py's default of 100 raises as soon as more tasks wait."""


class Locks(Protocol):
    """Locks on one server, over what the contender shares between them."""

    @property
    def again(self) -> bool:
        """Whether what `lock` gives can be entered again and again; else it is for one `async with`."""
        ...

    def lock(self, name: str) -> AbstractAsyncContextManager[Any]:
        """The lock of this name."""
        ...

    def commands_sent(self) -> int | None:
        """Requests sent so far; None when the contender does not count them."""
        ...


@dataclass(frozen=True, slots=True)
class Uncounted:
    """Locks that are made by a function."""

    lock: Callable[[str], AbstractAsyncContextManager[Any]]
    again: bool = True

    def commands_sent(self) -> None:
        """Not counted."""


@dataclass(frozen=True, slots=True)
class Contender:
    """One way to lock.

    Attributes:
        name: Its row in the tables.
        connect: Given the server and a ttl in seconds, gives its locks for as long as it is entered. The
            modules that it needs are imported there.
        poll: Seconds of the fixed interval at which it looks again; 0 when there is none.
        key: The key of a lock on the server.
    """

    name: str
    connect: Callable[[Address, int], AbstractAsyncContextManager[Locks]]
    poll: float = 0.0
    key: Callable[[str], str] = str
