"""Where the requests of a slot wait, in their order, while no node of the cluster will have them."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Any, Final, final

from .. import faults
from ..faults import Fault
from ..requests.calls import Call

PAUSE_FIRST: Final = 0.002
_PAUSE_MAXIMUM: Final = 0.05
"""Seconds that a line waits before its requests are tried again: doubled from the first each time."""
_CALM: Final = 1.0
"""Seconds without trouble after which a slot's pauses start from the shortest again."""


@final
class _Line:
    """The requests of one slot that wait.

    Attributes:
        due: Loop time at which it goes on, unless it is held up or nobody is known to serve the slot.
        held_up: So many nodes that the slot has left still owe replies.
        why: The fault that a node named; None: no node is known.
    """

    __slots__ = ("calls", "due", "held_up", "timer", "why")

    def __init__(self, due: float) -> None:
        self.calls: list[Call[Any]] = []
        self.due = due
        self.held_up = 0
        self.timer: asyncio.TimerHandle | None = None
        self.why: Fault | None = None


@final
class Lines:
    """One line for each slot of which a request was turned away and has not been tried again yet.

    Invariant: the timer of a line comes no later than when the time of one of its requests is over and, where
    the line may go on, than when it is due.

    Args:
        send: Takes a request that goes on.
        served: Whether any node is known to serve a slot.
        trouble: Why none is.
    """

    __slots__ = ("_closed", "_lines", "_loop", "_pauses", "_send", "_served", "_trouble")

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        send: Callable[[Call[Any]], None],
        *,
        served: Callable[[int], bool],
        trouble: Callable[[], BaseException | None],
    ) -> None:
        self._loop = loop
        self._send = send
        self._served = served
        self._lines: dict[int, _Line] = {}
        self._pauses: dict[int, tuple[float, float]] = {}  # by slot: the next pause, and when it was set
        self._trouble = trouble
        self._closed = False

    def __contains__(self, slot: int) -> bool:
        return slot in self._lines

    def has_lane(self, slot: int, lane: str) -> bool:
        """Whether a request of that lane waits in the slot's line."""
        line = self._lines.get(slot)
        return line is not None and any(call.command.lane == lane for call in line.calls if not call.done)

    @property
    def busy(self) -> bool:
        """Whether anybody waits."""
        return any(not call.done for line in self._lines.values() for call in line.calls)

    @property
    def unserved(self) -> bool:
        """Whether anybody waits for a slot that nobody is known to serve."""
        return any(
            any(not call.done for call in line.calls)
            for slot, line in self._lines.items()
            if not self._served(slot)
        )

    def hold(self, slot: int, call: Call[Any], *, why: Fault | None = None, pause: float = 0.0) -> None:
        """It waits, after the others of its slot, for `pause` seconds at least if it is the first."""
        line = self._lines.get(slot)
        if line is None:
            line = self._lines[slot] = _Line(self._loop.time() + max(pause, self.pause(slot)))
        line.why = why or line.why
        line.calls.append(call)
        self._set_timer(slot, line)

    def pause(self, slot: int) -> float:
        """Seconds to wait now, this time: none at first, and longer each time that it goes wrong again."""
        now = self._loop.time()
        pause, since = self._pauses.get(slot, (0.0, now))
        if now - since > _CALM:
            pause = 0.0
        self._pauses[slot] = (min(max(2 * pause, PAUSE_FIRST), _PAUSE_MAXIMUM), now)
        return pause

    def hold_up(self, slot: int) -> Callable[[object], None]:
        """Nobody of the slot goes on before what is returned has been called."""
        line = self._lines.get(slot)
        if line is None:
            line = self._lines[slot] = _Line(self._loop.time())
        line.held_up += 1

        def let_go(_: object) -> None:
            line.held_up -= 1
            if self._lines.get(slot) is line:
                self._set_timer(slot, line)

        return let_go

    def look_again(self) -> None:
        """Other nodes may be known to serve the slots."""
        for slot, line in tuple(self._lines.items()):
            self._set_timer(slot, line)

    def fail(self, fault: Fault) -> None:
        """Nobody serves those slots of which nobody is known to, and that is how it stays."""
        for slot, line in tuple(self._lines.items()):
            if not self._served(slot):
                self._end(slot, line, fault)

    def tell_impatient(self, fault: Fault) -> None:
        """No node is known to serve those slots: calls that are not patient do not wait for one."""
        for slot, line in tuple(self._lines.items()):
            if not self._served(slot):
                for call in tuple(line.calls):
                    if not call.patient:
                        call.fault(fault)

    def close(self) -> None:
        self._closed = True
        for slot, line in tuple(self._lines.items()):
            self._end(slot, line, faults.session_closed())

    def _end(self, slot: int, line: _Line, fault: Fault) -> None:
        self._remove(slot, line)
        for call in line.calls:
            call.fault(fault)

    def _remove(self, slot: int, line: _Line) -> None:
        del self._lines[slot]
        if line.timer is not None:
            line.timer.cancel()

    def _set_timer(self, slot: int, line: _Line) -> None:
        if line.timer is not None:
            line.timer.cancel()
            line.timer = None
        if self._closed:
            return
        when = min((call.until for call in line.calls if not call.done), default=math.inf)
        if not line.held_up and (self._served(slot) or not line.calls):
            when = min(when, line.due)
        if when < math.inf:  # or else somebody who holds it up will say so
            line.timer = self._loop.call_at(when, self._go_on, slot, line)

    def _go_on(self, slot: int, line: _Line) -> None:
        line.timer = None
        now = self._loop.time()
        for call in line.calls:
            if call.until <= now:
                call.fault(line.why or faults.unanswered(self._trouble()))
        line.calls = [call for call in line.calls if not call.done]
        if line.held_up or (line.calls and (line.due > now or not self._served(slot))):
            self._set_timer(slot, line)
            return
        self._remove(slot, line)  # a caller that was told that its time is over may have sent an undo into it
        for call in line.calls:
            self._send(call)
