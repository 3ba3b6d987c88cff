"""A range lock of which many intervals are held."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

from aiolocks import RangeLock, Session

from ..crew import Job
from ..desk import Desk
from .crowd import TTL, Acquire, AmongHolders, Crowd, hold

_PLACES = 50


class WriterAmongIntervals(AmongHolders):
    """A writer on an interval between two of those that are held.

    The others hold [0, 1), [2, 3), [4, 5) and so on, readers and writers by turns; what is left between them
    is free. The writer has to know of both, and finds them on either side, wherever it is.
    """

    name = "range"
    work = (
        "one task, 500 times acquire and release of a writer on a free interval, at 50 places amid the "
        "intervals that the others hold, half of them as readers, half as writers"
    )
    keys = ("aiolocks:rangelock.ends:{{{}}}",)

    @property
    def job(self) -> Job:
        """An interval each."""
        return hold_intervals

    def free(self, session: Session, crowd: Crowd) -> Sequence[AbstractAsyncContextManager[Any]]:
        """Writers anywhere."""
        lock = _lock(session, crowd)
        gaps = random.choices(range(max(1, crowd.others)), k=_PLACES)
        return [lock.writer(2 * gap + 1, 2 * gap + 2) for gap in gaps]


async def hold_intervals(desk: Desk, crowds: Iterable[dict[str, Any]]) -> None:
    """Holds an interval for each of the others."""
    await hold(desk, crowds, _intervals)


def _intervals(session: Session, crowd: Crowd) -> Iterator[Acquire]:
    lock = _lock(session, crowd)
    for number in range(crowd.others):
        mode = lock.writer if number % 2 else lock.reader
        yield mode(2 * number, 2 * number + 1).acquire


def _lock(session: Session, crowd: Crowd) -> RangeLock:
    return RangeLock(session, crowd.name, ttl=TTL, auto_renew=False)
