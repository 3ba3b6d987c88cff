"""Leaders and schedules: what the server remembers of them by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC
from typing import Final, final

from ..._infos import KindAndName
from ...inspect.census import Census
from ...kinds.leadership import KIND as LEADERSHIP
from ...kinds.leadership import Observing, TermFound
from ...kinds.schedule.steps import reading
from ...kinds.schedule.ticks import TickRecord, history
from ...lock.context import Context
from ._rows import Row, leader_row, schedule_row, term_row, tick_row

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


@final
class Terms:
    """The ticks of schedules and the terms of leaderships, read now and then."""

    def __init__(self) -> None:
        self._ticks: dict[str, Sequence[TickRecord]] = {}  # by schedule, of the overview
        self._turns: list[str] = []
        self._of_pages: dict[KindAndName, Sequence[TickRecord] | Sequence[TermFound]] = {}
        self._next = 0.0

    async def look(
        self, engine: Context, census: Census, on_pages: Sequence[KindAndName], now: float
    ) -> None:
        """Reads some of them, if the last time is long enough ago, or there is a page that knows nothing.

        Raises:
            BackendError: As `Session.inspect`.
        """
        pages = [place for place in dict.fromkeys(on_pages) if place[0] in (LEADERSHIP, SCHEDULE)]
        if engine.now() < self._next and all(place in self._of_pages for place in pages):
            return
        self._next = engine.now() + _EVERY
        names = sorted(name for kind, name in census.lasting if kind == SCHEDULE)[:_MOST]
        self._ticks = {name: self._ticks.get(name, ()) for name in names}
        self._turns = [name for name in self._turns if name in self._ticks] or names
        some, self._turns = self._turns[:_AT_ONCE], self._turns[_AT_ONCE:]
        read = await asyncio.gather(*(_ticks(engine, name, _TICKS) for name in some))
        self._ticks |= zip(some, read, strict=True)
        found = await asyncio.gather(*(_of_page(engine, place) for place in pages))
        self._of_pages = dict(zip(pages, found, strict=True))

    def leaders(self, census: Census) -> list[Row]:
        """The leaderships."""
        places = sorted(place for place in census.lasting if place[0] == LEADERSHIP)[:_MOST]
        return [leader_row(place, census.get(place)) for place in places]

    def schedules(self) -> list[Row]:
        """The schedules that have ever run."""
        return [schedule_row(name, ticks) for name, ticks in self._ticks.items() if ticks]

    def terms_of(self, place: KindAndName) -> list[Row]:
        """The terms of a leadership, the latest first."""
        found = self._of_pages.get(place, ())
        return [term_row(one) for one in reversed(found) if isinstance(one, TermFound)]

    def ticks_of(self, place: KindAndName) -> list[Row]:
        """The runs of a schedule, the latest first."""
        found = self._of_pages.get(place, ())
        return [tick_row(one) for one in found if isinstance(one, TickRecord)]


async def _of_page(engine: Context, place: KindAndName) -> Sequence[TickRecord] | Sequence[TermFound]:
    kind, name = place
    if kind == SCHEDULE:
        return await _ticks(engine, name, _TICKS_ON_PAGE)
    look = await engine.ask(Observing(engine.settings.prefix, name).look(_SINCE_EVER))
    return look.since


async def _ticks(engine: Context, name: str, number: int) -> Sequence[TickRecord]:
    read = await engine.ask(reading(engine.settings.prefix, name, records=number))
    try:
        return history(read, None, UTC)[:number]
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError):
        return ()  # somebody else has written there
