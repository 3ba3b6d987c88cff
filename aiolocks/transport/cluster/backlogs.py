"""Where the requests of a slot wait, in their order, while no node of the cluster will have them."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, final

from ..._tasks import empty_context
from .. import faults
from ..faults import Fault
from ..request import Request

PAUSE_FIRST: Final = 0.002
_PAUSE_MAXIMUM: Final = 0.05
"""Seconds that a backlog waits before its requests are tried again: doubled from the first each time."""
_CALM: Final = 1.0
"""Seconds without trouble after which a slot's pauses start from the shortest again."""


@final
@dataclass(slots=True, eq=False)
class _Backlog:
    """The requests of one slot that wait.

    Attributes:
        due: Loop time at which it goes on, unless it is held up or no node is known to serve the slot.
        held_up: Number of nodes that the slot has left and that still owe replies.
        why: The fault that a node named; None: no node is known.
    """

    due: float
    calls: list[Request[Any]] = field(default_factory=list)
    held_up: int = 0
    timer: asyncio.TimerHandle | None = None
    why: Fault | None = None


@final
class Backlogs:
    """One backlog for each slot of which a request was turned away and has not been tried again yet.

    Invariant: the timer of a backlog comes no later than when the time of one of its requests is over and,
    where the backlog may go on, than when it is due.

    Args:
        send: Takes a request that goes on.
        served: Whether any node is known to serve a slot.
        trouble: Why none is.
    """

    __slots__ = ("_backlogs", "_loop", "_pauses", "_send", "_served", "_trouble", "closed")

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        send: Callable[[Request[Any]], None],
        *,
        served: Callable[[int], bool],
        trouble: Callable[[], BaseException | None],
    ) -> None:
        self._loop = loop
        self._send = send
        self._served = served
        self._backlogs: dict[int, _Backlog] = {}
        self._pauses: dict[int, tuple[float, float]] = {}  # by slot: the next pause, and when it was set
        self._trouble = trouble
        self.closed = False

    def __contains__(self, slot: int) -> bool:
        return slot in self._backlogs

    def has_lane(self, slot: int, lane: str) -> bool:
        """Whether a request of that lane waits in the slot's backlog."""
        backlog = self._backlogs.get(slot)
        return backlog is not None and any(call.lane == lane for call in backlog.calls if not call.done)

    @property
    def busy(self) -> bool:
        """Whether a request waits."""
        return any(not call.done for backlog in self._backlogs.values() for call in backlog.calls)

    @property
    def unserved(self) -> bool:
        """Whether a request waits for a slot that no node is known to serve."""
        return any(
            any(not call.done for call in backlog.calls)
            for slot, backlog in self._backlogs.items()
            if not self._served(slot)
        )

    def hold(self, slot: int, call: Request[Any], *, why: Fault | None = None, pause: float = 0.0) -> None:
        """It waits, behind the earlier requests of its slot; if it is the first, `pause` seconds at least."""
        backlog = self._backlogs.get(slot)
        if backlog is None:
            backlog = self._backlogs[slot] = _Backlog(self._loop.time() + max(pause, self.pause(slot)))
        backlog.why = why or backlog.why
        backlog.calls.append(call)
        self._set_timer(slot, backlog)

    def pause(self, slot: int) -> float:
        """Seconds to wait now, this time: none at first, and longer each time that it goes wrong again."""
        now = self._loop.time()
        pause, since = self._pauses.get(slot, (0.0, now))
        if now - since > _CALM:
            pause = 0.0
        self._pauses[slot] = (min(max(2 * pause, PAUSE_FIRST), _PAUSE_MAXIMUM), now)
        return pause

    def hold_up(self, slot: int) -> Callable[[object], None]:
        """No request of the slot goes on before the returned function has been called."""
        backlog = self._backlogs.get(slot)
        if backlog is None:
            backlog = self._backlogs[slot] = _Backlog(self._loop.time())
        backlog.held_up += 1

        def let_go(_: object) -> None:
            backlog.held_up -= 1
            if self._backlogs.get(slot) is backlog:
                self._set_timer(slot, backlog)

        return let_go

    def look_again(self) -> None:
        """Other nodes may be known to serve the slots."""
        for slot, backlog in tuple(self._backlogs.items()):
            self._set_timer(slot, backlog)

    def fail(self, error: BaseException) -> None:
        """Ends the requests for slots that no node is known to serve: no node will be known."""
        for slot, backlog in tuple(self._backlogs.items()):
            if not self._served(slot):
                self._end(slot, backlog, lambda call: faults.of_driver(error, call.keys))

    def tell_impatient(self, error: BaseException) -> None:
        """Ends the calls that are not patient and wait for a slot that no node is known to serve."""
        for slot, backlog in tuple(self._backlogs.items()):
            if not self._served(slot):
                for call in tuple(backlog.calls):
                    if not call.patient:
                        call.fault(faults.of_driver(error, call.keys))

    def close(self) -> None:
        self.closed = True
        for slot, backlog in tuple(self._backlogs.items()):
            self._end(slot, backlog, lambda _: faults.session_closed())

    def _end(self, slot: int, backlog: _Backlog, fault: Callable[[Request[Any]], Fault]) -> None:
        self._remove(slot, backlog)
        for call in backlog.calls:
            call.fault(fault(call))

    def _remove(self, slot: int, backlog: _Backlog) -> None:
        del self._backlogs[slot]
        if backlog.timer is not None:
            backlog.timer.cancel()

    def _set_timer(self, slot: int, backlog: _Backlog) -> None:
        if backlog.timer is not None:
            backlog.timer.cancel()
            backlog.timer = None
        if self.closed:
            return
        when = min((call.until for call in backlog.calls if not call.done), default=math.inf)
        if not backlog.held_up and (self._served(slot) or not backlog.calls):
            when = min(when, backlog.due)
        if when < math.inf:  # else `let_go` or `look_again` sets the timer
            backlog.timer = self._loop.call_at(when, self._go_on, slot, backlog, context=empty_context())

    def _go_on(self, slot: int, backlog: _Backlog) -> None:
        backlog.timer = None
        now = self._loop.time()
        for call in backlog.calls:
            if call.until <= now:
                why = backlog.why
                call.fault(faults.unanswered(self._trouble()) if why is None else faults.again(why))
        backlog.calls = [call for call in backlog.calls if not call.done]
        if backlog.held_up or (backlog.calls and (backlog.due > now or not self._served(slot))):
            self._set_timer(slot, backlog)
            return
        # A caller that was told that its time is over may have sent an undo into it.
        self._remove(slot, backlog)
        for call in backlog.calls:
            self._send(call)
