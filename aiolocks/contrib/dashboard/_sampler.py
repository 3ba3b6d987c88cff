"""The one that looks, for all viewers: it begins with the first, and ends soon after the last has left."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager, suppress
from typing import Any, Final, NamedTuple, final

from ..._infos import KindAndName, LockInfo
from ..._logs import get_logger
from ..._tasks import empty_context, spawn
from ...errors import BackendError, SessionClosedError
from ...inspect.census import Census, Reading
from ...inspect.looking import look
from ...lock.engine import Engine
from ._heat import Heat
from ._history import Histories
from ._pages import Chosen, lock_rows, overview_sections, page_sections, rank
from ._rows import Found, Row, deadlock_row, moment_of
from ._searching import Search
from ._terms import Terms
from ._views import Query, View, Viewer

log = get_logger("aiolocks.dashboard")

_EVERY: Final = 0.5
"""Seconds between two looks at the names that are shown."""
_OTHERS_EVERY: Final = 1.0
"""Seconds between two looks at other names, unless there are few."""
_SHARE: Final = 25
"""A look at other names that costs much time of this thread is the last for this many times as long."""
_LONGEST: Final = 10.0
_ALL_EVERY: Final = 2.0
"""Seconds between two choices of the names that are shown."""
_FEW: Final = 500
"""Names of which the choice is made at each look."""
_CATCHING_UP: Final = 2
"""How much faster names are read until all have been."""
_LINGERS: Final = 3.0
"""Seconds for which it looks on when no viewer does: a user that goes from page to page comes back."""
_WAITERS: Final = 20
"""Waiters of a name that are described on the overview, and on its own page:"""
_WAITERS_ON_PAGE: Final = 100
_AGAIN: Final = 2.0
"""Seconds until it tries again where the server refuses or is away."""
_MOST_ENDS: Final = 10_000
_MOST_VIEWERS: Final = 200


@final
class Sampler:
    """Reads what stands on the server, little by little, and publishes it to all views.

    Invariants:
    - one task of it runs at most, and none while no viewer looks, but for a moment;
    - one look costs no more however many viewers there are, and hardly more however many names.

    Args:
        engine: Gives the engine, at each look: the session may have been closed.
        facts: Gives further facts for each page.
        audit: Rows of what was released by force.
    """

    def __init__(
        self,
        engine: Callable[[], Engine],
        *,
        facts: Callable[[], dict[str, Any]],
        audit: Callable[[], Iterable[Row]],
    ) -> None:
        self._engine = engine
        self._more_facts = facts
        self._audit = audit
        self._views: dict[Query, View] = {}
        self._task: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._heat = Heat()
        self._histories = Histories()
        self._ends: dict[str, float] = {}
        self._offset = 0.0  # of the server's clock from that of this process
        self._trouble = ""
        self._begin()

    def _begin(self) -> None:
        self._census: Census | None = None
        self._chosen: Chosen | None = None
        self._chosen_at = self._others_at = 0.0
        self._page_infos: dict[KindAndName, LockInfo | None] = {}
        self._terms = Terms()
        self._search = Search()

    @property
    def runs(self) -> bool:
        """Whether it looks now."""
        return self._task is not None and not self._task.done()

    @contextmanager
    def looking(self, query: Query) -> Generator[Viewer]:
        """A viewer looks at a page. Where there are too many viewers, the stream of another one ends."""
        if self.viewers >= _MOST_VIEWERS:
            self._drop_the_idlest()
        view = self._views.get(query)
        if view is None:
            view = self._views[query] = View()
        viewer = Viewer()
        view.viewers.add(viewer)
        view.greet(viewer)
        if not self.runs:
            self._task = spawn(
                asyncio.get_running_loop(),
                self._run(),
                name="aiolocks-dashboard",
                context=empty_context(),
            )
        self._wake.set()
        try:
            yield viewer
        finally:
            self._leave(query, view, viewer)

    @property
    def viewers(self) -> int:
        """How many look."""
        return sum(len(view.viewers) for view in self._views.values())

    def _drop_the_idlest(self) -> None:
        """Ends the stream that has been stuck for longest; viewers that read take something every 10 s."""
        looking = ((query, view, one) for query, view in self._views.items() for one in view.viewers)
        query, view, viewer = min(looking, key=lambda one: one[2].took_at)
        self._leave(query, view, viewer)
        viewer.end()

    def _leave(self, query: Query, view: View, viewer: Viewer) -> None:
        view.viewers.discard(viewer)
        if not view.viewers and self._views.get(query) is view:
            del self._views[query]

    def soon(self) -> None:
        """Something has changed: the next look is now."""
        self._wake.set()

    async def aclose(self) -> None:
        """Ends all streams, and looks no more."""
        self._end_streams()
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    def _end_streams(self) -> None:
        for view in self._views.values():
            for viewer in view.viewers:
                viewer.end()

    # -- looking

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        left_at = loop.time()
        try:
            while self._views or loop.time() - left_at < _LINGERS:
                if self._views:
                    left_at = loop.time()
                pause = await self._look()
                self._wake.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        await self._wake.wait()
        except SessionClosedError:
            self._end_streams()
        except Exception:
            log.exception("the dashboard cannot look any more; it begins again with the next viewer")
            self._end_streams()
        finally:
            await self._search.aclose()
            self._begin()

    async def _look(self) -> float:
        """One look, and what it has found to all who look on; how long to pause."""
        try:
            engine = self._engine()
            await self._read(engine)
        except BackendError as error:
            self._trouble, pause = str(error), _AGAIN
        else:
            self._trouble, pause = "", _EVERY
        self._publish()
        return pause

    async def _read(self, engine: Engine) -> None:
        if self._census is None:
            self._census = Census(engine, "*", waiters=_WAITERS, rank=rank)
        census = self._census
        readings = await census.glance(self._chosen.shown()) if self._chosen is not None else []
        readings += await self._read_others(engine, census)
        on_pages = [query.place for query in self._views if query.place is not None]
        self._page_infos = {place: self._page_infos.get(place) for place in on_pages}
        pages = await self._read_pages(engine, on_pages)
        self._hear([*readings, *pages])
        await self._terms.look(engine, census, on_pages, self.now)
        self._search.go_on(engine)
        moment = engine.now()
        queries = [query for query in self._views if query.place is None]
        chosen = self._chosen
        if (
            chosen is None
            or census.names <= _FEW
            or moment - self._chosen_at >= _ALL_EVERY
            or any(query not in chosen.matches for query in queries)
        ):
            self._chosen, self._chosen_at = Chosen(census, queries), moment

    async def _read_others(self, engine: Engine, census: Census) -> list[Reading]:
        """All names if they are few, and otherwise some, now and then: as many as may cost their share."""
        begun, spent = engine.now(), time.thread_time()
        if not census.complete and begun < self._others_at:
            return []
        readings = await census.look(_OTHERS_EVERY, (), new_names=_CATCHING_UP)
        cost = time.thread_time() - spent
        self._others_at = begun + max(_OTHERS_EVERY, min(_LONGEST, _SHARE * cost))
        return readings

    async def _read_pages(self, engine: Engine, places: list[KindAndName]) -> list[Reading]:
        """The names that have a page of their own, with more of their waiters."""
        if not places:
            return []
        found = await look(engine, places, waiters=_WAITERS_ON_PAGE)
        infos = {(info.kind, info.name): info for info in found}
        readings = [Reading(place, self._page_infos[place], infos.get(place)) for place in places]
        self._page_infos = {place: infos.get(place) for place in places}
        return readings

    def _hear(self, readings: list[Reading]) -> None:
        """Takes down the facts that were read: how long each waits, and which holds have ended."""
        moments = [moment for one in readings if one.now is not None and (moment := moment_of(one.now))]
        if moments:
            self._offset = max(moments) - time.time()
        now = self.now
        self._heat.look(now)
        if len(self._ends) > _MOST_ENDS:
            self._ends.clear()
        for reading in readings:
            moment = now if reading.now is None else moment_of(reading.now) or now
            self._heat.add(reading, moment)
            for holder in reading.gone:
                charged = self._heat.charge_of(reading.place, holder.lease_id)
                self._histories.add(reading.place, holder, moment, charged)

    @property
    def now(self) -> float:
        """The server's time, about: seconds since 1970."""
        return time.time() + self._offset

    # -- telling

    def _publish(self) -> None:
        told = _Told(
            {**self._more_facts(), "trouble": self._trouble},
            Found(self._heat, self._ends),
            list(self._audit()),
            self.now,
        )
        overview: dict[str, list[Row]] | None = None
        for query, view in tuple(self._views.items()):
            if query.place is not None:
                self._publish_page(view, query.place, told)
            elif self._census is None or self._chosen is None:
                view.publish({**told.facts, "totals": None}, {}, told.now)
            elif (match := self._chosen.matches.get(query)) is not None:
                overview = overview or self._overview(self._census, self._chosen, told)
                facts = {**told.facts, "totals": self._chosen.totals._asdict(), "matching": match.number}
                locks = lock_rows(match.places, self._census, told.found)
                view.publish(facts, {"locks": locks, **overview}, told.now)

    def _overview(self, census: Census, chosen: Chosen, told: _Told) -> dict[str, list[Row]]:
        """The sections that are the same for each query."""
        return {
            **overview_sections(census, chosen, told.found),
            "deadlocks": [deadlock_row(one, told.now) for one in self._search.found],
            "leaders": self._terms.leaders(census),
            "schedules": self._terms.schedules(told.now),
            "audit": told.audit,
        }

    def _publish_page(self, view: View, place: KindAndName, told: _Told) -> None:
        info = self._page_infos.get(place) or LockInfo(kind=place[0], name=place[1])
        row, sections = page_sections(info, self._histories.of(place), told.found)
        sections |= {
            "terms": self._terms.terms_of(place),
            "ticks": self._terms.ticks_of(place),
            "audit": [one for one in told.audit if (one["kind"], one["name"]) == place],
        }
        row |= self._terms.next_of(place, told.now)
        view.publish({**told.facts, "lock": row}, sections, told.now)


class _Told(NamedTuple):
    """All that is the same on all pages at one look."""

    facts: dict[str, Any]
    found: Found
    audit: list[Row]
    now: float
