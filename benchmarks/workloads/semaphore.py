"""A semaphore of which many permits are taken."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

from aiolocks import Semaphore, Session

from ..crew import Job
from ..desk import Desk
from .crowd import TTL, Acquire, AmongHolders, Crowd, hold

_LEFT = 100
"""Permits that are never taken by the others."""


class SemaphoreAmongHolders(AmongHolders):
    """One permit of those that are left."""

    name = "semaphore"
    work = "one task, 500 times acquire and release of a permit, while the others hold one each"
    keys = ("aiolocks:semaphore:{{{}}}",)

    @property
    def job(self) -> Job:
        """A permit each."""
        return hold_permits

    def free(self, session: Session, crowd: Crowd) -> Sequence[AbstractAsyncContextManager[Any]]:
        """The semaphore itself."""
        return [_semaphore(session, crowd)]


async def hold_permits(desk: Desk, crowds: Iterable[dict[str, Any]]) -> None:
    """Holds one permit for each of the others."""
    await hold(desk, crowds, _permits)


def _permits(session: Session, crowd: Crowd) -> Iterable[Acquire]:
    return [_semaphore(session, crowd).acquire] * crowd.others


def _semaphore(session: Session, crowd: Crowd) -> Semaphore:
    return Semaphore(session, crowd.name, crowd.others + _LEFT, ttl=TTL, auto_renew=False)
