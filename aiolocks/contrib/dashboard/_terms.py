"""Leaders and schedules: what the server remembers of them by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from datetime import UTC
from typing import Any, Final, NamedTuple, TypeVar, final

from ..._infos import KindAndName
from ..._tasks import spawn
from ...inspect.census import Census
from ...kinds.leadership import KIND as LEADERSHIP
from ...kinds.leadership import Observing, TermFound
from ...kinds.schedule.run import TickRecord, Times, history, reading, times
from ...lock.engine import Engine
from ._rows import Row, leader_row, schedule_row, term_row, tick_row

T = TypeVar("T")

SCHEDULE: Final = "schedule"
_EVERY: Final = 2.0
"""Seconds between two looks at the same."""
_AT_ONCE: Final = 10
"""Schedules that are read in one look; of more, each has its turn."""
_MOST: Final = 50
"""Schedules, and leaderships, that are shown."""
_TICKS: Final = 20
_TICKS_ON_PAGE: Final = 100
_SINCE_EVER: Final = 0


class Schedule(NamedTuple):
    """What the server knows of a schedule.

    Attributes:
        ticks: The last runs, the latest first.
        times: Of processes that ask for ticks, or have asked; more than one while a change is rolled out.
    """

    ticks: Sequence[TickRecord] = ()
    times: Sequence[Times] = ()

    def next(self, now: float) -> float | None:
        """When the next tick will be claimed, seconds since 1970; None if no process keeps the schedule."""
        kept = (one for one in self.times if now * 1000 <= one.expected)
        return min((one.next / 1000 for one in kept if one.next is not None), default=None)

    def kept(self, now: float) -> bool:
        """Whether a process keeps it."""
        return any(now * 1000 <= one.expected for one in self.times)


_UNKNOWN: Final = Schedule()


@final
class Terms:
    """The ticks of schedules and the terms of leaderships, read now and then."""

    def __init__(self) -> None:
        self._schedules: dict[str, Schedule] = {}  # by name, of the overview
        self._turns: list[str] = []
        self._of_pages: dict[KindAndName, Schedule | Sequence[TermFound]] = {}
        self._next = 0.0

    async def look(self, engine: Engine, census: Census, on_pages: Sequence[KindAndName], now: float) -> None:
        """Reads some of them, if the last time is long enough ago, or there is a page that knows nothing.

        Raises:
            BackendError: As `Session.inspect`.
        """
        pages = [place for place in dict.fromkeys(on_pages) if place[0] in (LEADERSHIP, SCHEDULE)]
        if engine.now() < self._next and all(place in self._of_pages for place in pages):
            return
        self._next = engine.now() + _EVERY
        names = sorted(name for kind, name in census.lasting if kind == SCHEDULE)[:_MOST]
        self._schedules = {name: self._schedules.get(name, _UNKNOWN) for name in names}
        self._turns = [name for name in self._turns if name in self._schedules] or names
        some, self._turns = self._turns[:_AT_ONCE], self._turns[_AT_ONCE:]
        read = await _each(engine, [_schedule(engine, name, _TICKS) for name in some])
        self._schedules |= zip(some, read, strict=True)
        found = await _each(engine, [_of_page(engine, place) for place in pages])
        self._of_pages = dict(zip(pages, found, strict=True))

    def leaders(self, census: Census) -> list[Row]:
        """The leaderships."""
        places = sorted(place for place in census.lasting if place[0] == LEADERSHIP)[:_MOST]
        return [leader_row(place, census.get(place)) for place in places]

    def schedules(self, now: float) -> list[Row]:
        """The schedules that have run, or are kept."""
        return [
            schedule_row(name, one.ticks, one.next(now), kept=one.kept(now))
            for name, one in self._schedules.items()
            if one.ticks or one.times
        ]

    def terms_of(self, place: KindAndName) -> list[Row]:
        """The terms of a leadership, the latest first."""
        found = self._of_pages.get(place, ())
        return [] if isinstance(found, Schedule) else [term_row(one) for one in reversed(found)]

    def ticks_of(self, place: KindAndName) -> list[Row]:
        """The runs of a schedule, the latest first."""
        found = self._of_pages.get(place)
        return [tick_row(one) for one in found.ticks] if isinstance(found, Schedule) else []

    def next_of(self, place: KindAndName, now: float) -> Row:
        """When the next tick of a schedule is due, and whether a process keeps it; empty for other kinds."""
        found = self._of_pages.get(place)
        return {"next": found.next(now), "asked": found.kept(now)} if isinstance(found, Schedule) else {}


async def _each(engine: Engine, works: Sequence[Coroutine[Any, Any, T]]) -> Sequence[T]:
    tasks = [spawn(engine.loop, work, name="aiolocks-dashboard-look", context=None) for work in works]
    return await asyncio.gather(*tasks)


async def _of_page(engine: Engine, place: KindAndName) -> Schedule | Sequence[TermFound]:
    kind, name = place
    if kind == SCHEDULE:
        return await _schedule(engine, name, _TICKS_ON_PAGE)
    look = await engine.ask(Observing(engine.settings.prefix, name).look(_SINCE_EVER))
    return look.since


async def _schedule(engine: Engine, name: str, number: int) -> Schedule:
    prefix = engine.settings.prefix
    read, kept = await asyncio.gather(
        engine.ask(reading(prefix, name, records=number)), engine.ask(times(prefix, name))
    )
    try:
        return Schedule(history(read, None, UTC)[:number], kept)
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError):
        return Schedule(times=kept)  # another program has written there
