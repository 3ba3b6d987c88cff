"""A readers-writer lock with many readers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

from aiolocks import RWLock, Session

from ..crew import Job
from ..desk import Desk
from .crowd import TTL, Acquire, AmongHolders, Crowd, hold


class ReaderAmongReaders(AmongHolders):
    """One more reader."""

    name = "rw"
    work = "one task, 500 times acquire and release of a reader, while the others are readers too"
    keys = ("aiolocks:rwlock.ends:{{{}}}",)

    @property
    def job(self) -> Job:
        """Readers."""
        return hold_readers

    def free(self, session: Session, crowd: Crowd) -> Sequence[AbstractAsyncContextManager[Any]]:
        """A reader."""
        return [_lock(session, crowd).reader]


async def hold_readers(desk: Desk, crowds: Iterable[dict[str, Any]]) -> None:
    """Reads once for each of the others."""
    await hold(desk, crowds, _readers)


def _readers(session: Session, crowd: Crowd) -> Iterable[Acquire]:
    return [_lock(session, crowd).reader.acquire] * crowd.others


def _lock(session: Session, crowd: Crowd) -> RWLock:
    return RWLock(session, crowd.name, ttl=TTL, auto_renew=False)
