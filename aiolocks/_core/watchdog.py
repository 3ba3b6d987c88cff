"""Renewals of a whole session, from one timer.

No task a lease, and none for all of them either: requests that are due are sent from a timer's callback, so
that a program that cancels every task of the loop (as `asyncio.run` does at its end) does not stop the
renewal of leases whose bodies still unwind.
"""

from __future__ import annotations

import asyncio
import heapq
import warnings
import weakref
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, final

from .._transport import clocks
from .convoys import Company
from .process import current_pid
from .term import NEVER
from .watch import Watch

if TYPE_CHECKING:
    from .._transport import Command
    from .convoys import Convoy, Convoys
    from .events import Events
    from .possession import Possession
    from .renewal import Renewal
    from .resumption import Resumption

_AT_ONCE: Final = 200
_ANSWERED_WITHIN: Final = 0.03
"""Seconds in which most renewals are answered, which then says when the next is due. Only what has not been
by then needs to be looked at sooner: an entry for each would make the heap, and the work, twice as large."""
_BREATH: Final = 0.001
"""Seconds between two runs: 200 000 leases a second can be renewed."""
_LATE: Final = 0.05
"""Seconds by which a busy event loop may run a timer too late; after more it counts as stalled."""
_SLACK: Final = 64
"""Stale entries that the heap may hold beside as many as it has live ones."""


@final
class Watchdog:
    """Calls `Watch.tend` when it is due.

    Invariants:
    - a watched possession has exactly one entry in the heap that counts, or has been tended a moment ago and
      will have one; all others are stale;
    - a forgotten possession is never tended again, whatever entries it has left.

    Attributes:
        watches: The possessions that are looked after.
    """

    convoys: Convoys

    def __init__(self, loop: asyncio.AbstractEventLoop, events: Events, resumption: Resumption) -> None:
        self._ahead = clocks.steady() - loop.time()  # when it was looked at last
        self._loop = loop
        self._events = events
        self._pid = current_pid()
        self._resumption: Resumption | None = resumption  # None: told to call back
        self._heap: list[tuple[float, int, Watch | list[Watch]]] = []
        self._entered = 0  # how often watches stand in it
        self.watches: set[Watch] = set()
        self._turn = 0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = NEVER
        self._look_back_at = NEVER  # the next time that `_look_back` is due
        self._stall = (0.0, 0.0)  # the last stall of the loop that was noticed: from when to when

    def __len__(self) -> int:
        return len(self.watches)

    def possessions(self) -> list[Possession]:
        return [possession for watch in self.watches if (possession := watch()) is not None]

    def stalled(self, moment: float) -> float:
        """Seconds for which the event loop did not run around that moment, as far as its timers tell."""
        overdue = min(self._timer_at, self._look_back_at)
        began, ended = (overdue, self._loop.time()) if overdue <= moment else self._stall
        return ended - began if began <= moment <= ended and ended - began > _LATE else 0.0

    def look_at_clocks(self) -> None:
        """Counts in the time for which the machine was suspended, of which the loop's timers know nothing."""
        if self._pid != current_pid():
            return
        before, self._ahead = self._ahead, clocks.steady() - self._loop.time()
        if self._ahead - before > _LATE:
            for possession in self.possessions():
                if possession.watch is not None:
                    possession.watch.count_suspension(possession)

    def _ran(self, due: float) -> None:
        """A timer that was due then runs now."""
        now = self._loop.time()
        if now - due > _LATE:
            began, ended = self._stall
            self._stall = (min(began, due) if ended >= due else due, now)

    def watch(self, possession: Possession) -> Watch:
        """Looks after it from now on, or looks again at when it is due."""
        watch = possession.watch
        if watch is None:
            watch = possession.watch = Watch(possession, _collected)  # a method would be one more object each
            watch.begin(self, possession)
            self.watches.add(watch)
        self._push(watch, possession.term.due)
        return watch

    def forget(self, watch: Watch) -> None:
        """Synchronous: nothing is sent for it any more."""
        watch.turn = 0
        self.watches.discard(watch)
        if not self.watches:
            self._heap.clear()  # but the timer stays: the next lease is about to need one
            self._entered = 0

    def collected(self, watch: Watch) -> None:
        """Nobody has its lease any more."""
        if watch not in self.watches:
            return
        # May run in any thread: only the loop's own changes the session.
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._abandon, watch)
        what = f"a lease of {watch.label} {watch.name!r} was never released"
        warnings.warn(what, ResourceWarning, stacklevel=3)

    def _abandon(self, watch: Watch) -> None:
        if watch in self.watches:
            self.forget(watch)
            watch.gate.vacated(watch.claim)
            self._events.abandoned(watch.label.lower(), watch.name)

    def watch_all(
        self, possessions: Iterable[Possession], *, again: Command[list[Any]] | None, hears: bool
    ) -> None:
        """As `watch`, of many that were confirmed together: those that are due together are one entry.

        `again`: the request that has renewed all of them, which may do so again while the server tells of
        changes, or does not, as now.
        """
        due: dict[float, list[Watch]] = {}
        for possession in possessions:
            if (watch := possession.watch) is not None:
                due.setdefault(possession.term.due, []).append(watch)
        for moment, watches in due.items():
            self._turn += 1
            for watch in watches:
                watch.turn = self._turn
            entry = watches
            if again is not None and len(due) == 1:
                entry = Company(watches)
                entry.renewal, entry.hears = again, hears
            self._enter(moment, entry, len(watches))

    def _push(self, watch: Watch, due: float) -> None:
        self._turn += 1
        watch.turn = self._turn
        self._enter(due, watch, 1)

    def _enter(self, due: float, entry: Watch | list[Watch], number: int) -> None:
        heapq.heappush(self._heap, (due, self._turn, entry))
        self._entered += number
        if due < self._timer_at:
            self._wake_by(due)
        if self._entered > 2 * len(self.watches) + _SLACK:
            self._heap, heap, self._entered = [], self._heap, 0
            for moment, turn, stale in heap:
                if watches := [watch for watch in _watches_of(stale) if watch.turn == turn]:
                    self._heap.append((moment, turn, watches))
                    self._entered += len(watches)
            heapq.heapify(self._heap)

    def _wake_by(self, due: float) -> None:
        if due < self._timer_at:
            self._stop()
            self._timer_at = due
            self._timer = self._loop.call_at(due, self._run)
            if self._resumption is not None:
                self._resumption.listen(self.look_at_clocks)
                self._resumption = None

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._timer_at = NEVER

    def _run(self) -> None:
        """Tends all that are due, in one go: their requests leave in one write.

        Of very many, some at a time: what is allocated for all at once would set off the garbage collector,
        and that costs as much as the renewals themselves.
        """
        self._timer = None
        due, self._timer_at = self._timer_at, NEVER
        if current_pid() != self._pid:
            return  # forked: the parent renews
        self._ran(due)
        self.look_at_clocks()
        now = self._loop.time()
        self.convoys.begin()
        asked = self._tend_due(now)
        convoys = self.convoys.send()
        if asked or convoys:
            look_back_at = now + _ANSWERED_WITHIN
            self._look_back_at = min(self._look_back_at, look_back_at)
            self._loop.call_at(look_back_at, self._look_back, look_back_at, asked, convoys)
        if self._heap:
            self._wake_by(max(self._heap[0][0], now + _BREATH))

    def _tend_due(self, now: float) -> list[tuple[float, int, Watch]]:
        """Those that wait for an answer of their own: when to look again, and the turn of that entry."""
        left, soon, steady = _AT_ONCE, now + _ANSWERED_WITHIN, clocks.steady()
        asked: list[tuple[float, int, Watch]] = []
        while self._heap and self._heap[0][0] <= now and left > 0:
            _, turn, entry = heapq.heappop(self._heap)
            watches = _watches_of(entry)
            if isinstance(entry, Company):
                self.convoys.companies[entry[0]] = entry
            left -= len(watches)
            self._entered -= len(watches)
            for watch in watches:
                if watch.turn != turn or (possession := watch()) is None:
                    continue
                again = watch.tend(possession, now, steady)
                if again > soon:
                    if again < NEVER:
                        asked.append((again, turn, watch))
                elif watch.turn == turn:
                    self._push(watch, again)
        return asked

    def _look_back(
        self, due: float, asked: list[tuple[float, int, Watch]], convoys: list[Convoy | Renewal]
    ) -> None:
        """A renewal that has neither been answered nor forgotten meanwhile must be looked at again."""
        self._ran(due)
        self._look_back_at = NEVER
        for again, turn, watch in asked:
            if watch.turn == turn:
                self._push(watch, again)
        for convoy in convoys:
            for possession in convoy.unanswered():
                if possession.watch is not None:
                    self._push(possession.watch, possession.term.next_look(due - _ANSWERED_WITHIN))


def _watches_of(entry: Watch | list[Watch]) -> Sequence[Watch]:
    return entry if isinstance(entry, list) else (entry,)


def _collected(watch: weakref.ref[Possession]) -> None:
    assert isinstance(watch, Watch)
    watch.watchdog.collected(watch)
