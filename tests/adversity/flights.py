"""The part that the tests of the single flight share."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from aiolocks import Session, SingleFlight
from tests.adversity.tools import asleep, begin
from tests.support.waiting import eventually, sleeps

TRACKING = pytest.mark.parametrize("way", ["tracking"])


class Work:
    """A function to be called once: it ends when it is told to, and notes what becomes of it.

    Args:
        outlived_by: Where it is cancelled, its clean-up lasts until this has come.
    """

    def __init__(self, value: Any = "made", *, outlived_by: asyncio.Event | None = None) -> None:
        self.begun = 0
        self.cancelled = 0
        self.end = asyncio.Event()
        self._value = value
        self._outlived_by = outlived_by

    async def __call__(self) -> Any:
        self.begun += 1
        try:
            await self.end.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            if self._outlived_by is not None:
                await self._outlived_by.wait()
            raise
        if isinstance(self._value, BaseException):
            raise self._value
        return self._value


async def running(work: Work, session: Session, *, number: int = 1) -> None:
    await eventually(lambda: work.begun == number and session.statistics().leases_held == 1, within=5)


async def joined(session: Session, flight: SingleFlight, key: str, work: Any, **options: Any) -> Any:
    """A task of a call of another session, once that waits for the run elsewhere."""
    task = begin(flight.do(key, work, **options))
    await eventually(lambda: task.done() or asleep(session), within=5)
    assert not task.done(), task
    return task


async def within(seconds: float, *tasks: Any) -> list[Any]:
    return await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), seconds)


async def turned(flight: SingleFlight, end: asyncio.Event, error: Exception | None = None) -> bool:
    async with flight.turn("t") as turn:
        if turn.first:
            await end.wait()
            if error is not None:
                raise error
        return turn.first


async def turned_first(session: Session, work: Work) -> Any:
    """The value of the one that had the turn, or that it is old: another has had it."""
    async with SingleFlight(session).turn("k") as turn:
        return await work() if turn.first else "old"


def any_asleep(session: Session) -> bool:
    return sleeps(session)
