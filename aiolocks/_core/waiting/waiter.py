"""A wait, from the call to the grant or to giving up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from ..._transport import BEHIND, IN_TURN, PASSING, SEATED, STAYING, TOLD, WAITING, Call, ignore
from ...errors import LockTimeoutError, SessionClosedError
from ..clock import seconds
from ..entered import TURNS_TO_CLOSE
from .patience import Patient
from .stages import Grant, Stage

if TYPE_CHECKING:
    from ..._transport import Answer, Fault, Refused
    from ..claim import Claim
    from ..target import Target

_ENDS: Final[dict[type, str]] = {
    type(None): "cancelled",
    LockTimeoutError: "timeout",
    SessionClosedError: "closed",
}
"""How a wait ended without a grant, by its error, as listeners are told."""


@final
class Waiter(Patient):
    """An acquire that waits: it asks when it is its turn here, and sleeps until it is woken.

    | from | to | when |
    |---|---|---|
    | `QUEUED`, as it is made | `ASKING` | its gate lets it ask, or take a seat behind others |
    | `ASKING` | `SLEEPING` | refused as the head of its gate, or not answered |
    | `ASKING` | `QUEUED` | refused, and another waiter is the head |
    | `ASKING` | `ASKING` | woken while it asked; or replicas cannot say whether they have it |
    | `SLEEPING` | `ASKING` | woken, or its nap is over |
    | `QUEUED`, `ASKING`, `SLEEPING` | `ENDED` | granted; or its task, its patience or the session has ended |

    Invariant: in a stage other than `ASKING` it has no request under way whose answer it waits for.
    """

    __slots__ = ("_ask_again", "_needless", "_sitting_down", "_suspected", "_told", "_warned", "seated")

    def __init__(self, target: Target, claim: Claim, blocking_timeout: float | None) -> None:
        super().__init__(target, claim, blocking_timeout)
        self._needless = False  # there is nothing to wait for, as the server says
        self._sitting_down: Call[Answer] | None = None  # the request for a seat behind which it has asked
        self.seated = False  # it may have a seat of its own, where each waiter has one
        self._ask_again = False
        self._suspected = False  # its own task seems to be in the way
        self._told = False
        self._warned = False  # of a refusal that no release ends

    # -- steps from outside

    def start(self) -> None:
        super().start()
        if self._deadline is not None:
            self._deadline_timer = self._engine.loop.call_at(self._deadline, self._out_of_time)
        self._gate.enter(self)
        if self.stage is Stage.QUEUED:
            self._wait_behind()
        elif self._gate.is_behind(self):
            self.suspect()

    def _wait_behind(self) -> None:
        """Somebody else asks for it."""
        assert self._call is None, "a request is under way"
        self.stage = Stage.QUEUED
        if self._deadline is not None and self._engine.now() >= self._deadline:
            self._out_of_time()  # its timer did nothing: the question that was refused now was under way
            return
        self._behind = self._behind or self._gate.here.held
        self._tell_waiting()
        if self._inside and self._deadline is None:
            self._gate.watch_for_itself(self)
            self.suspect()
        self._listen_on()

    def take_turn(self, *, woken: bool, in_turn: bool) -> None:
        """The gate: you are the head, at once or after having waited; behind other processes if `in_turn`."""
        if woken:
            self._gate.watch_no_more(self)
            self._engine.events.counters.wakeups["local"] += 1
        if self._call is not None:
            self._go_on_sitting_down(self._call)
        self._ask(in_turn=in_turn, passing=woken)

    def _go_on_sitting_down(self, call: Call[Answer]) -> None:
        """It asks right behind its request for a seat, which must come before those of later waiters."""
        call.on_reply, call.on_fault = self._engine.wake_own, ignore
        self._sitting_down, self._call = call, None
        self._maybe_executed = True

    def sit_down(self) -> None:
        """The gate: take a seat, or show that you have one; behind others of here, if they go first."""
        if self.stage is Stage.ASKING:
            self._ask_again = True
        elif not self.over:
            self._ask()

    def prompt(self, way: str, *, in_turn: bool) -> None:
        """The gate: it may be free now; `way` is how we know."""
        if self.stage is Stage.SLEEPING:
            self._engine.events.counters.wakeups[way] += 1
            self._ask(in_turn=in_turn, passing=True)
        elif self.stage is Stage.ASKING:
            self._ask_again = True  # a refusal under way may have been decided before

    # -- asking

    def _ask(self, *, in_turn: bool = False, passing: bool = False) -> None:
        """Tries; the refusal seats it, and what is let go of after that wakes us."""
        if self._sleep_timer is not None:
            self._cancel_sleep()
        self._ask_again = False
        standing = self._gate.asks(self) | WAITING
        if not standing & BEHIND:
            standing |= TOLD
        if in_turn:
            standing |= IN_TURN
        if passing:
            standing |= PASSING
        self._send(standing, patient=True)

    def _let_in(self, call: Call[Answer]) -> None:
        self._fault = None
        self._settle_place()
        if call.unconfirmed and not self._standing & SEATED:
            self._gate.take_place()  # its first request may have been refused

    def _came_late(self, call: Call[Answer], now: float) -> None:
        self._be_seated()
        self._go_on(call, now, until=now)

    def _refused(self, refusal: Refused, call: Call[Answer], now: float) -> None:
        self._fault = None
        # Its own bell was put back by the refusal, and the session must listen for it again.
        self._tell_rung(self._gate.not_ours(refusal.rung, self))
        if refusal.error is not None:
            self._settle_place()
            self.error = refusal.error
            self._needless = True
            self._end()
            self._gate.leave(self)
            return
        until = None if refusal.remaining_ms is None else now + seconds(refusal.remaining_ms)
        self._be_seated()
        if not self._gate.is_behind(self):  # else it has asked for a seat, and for nothing else
            self._refusal = refusal
            self._gate.refused_with(refusal, until)
        self._log_long_wait(now)
        if refusal.lasting and not self._warned:
            self._warned = True
            self._engine.events.stuck(self.target.kind, self.target.name, refusal.detail)
        self.suspect()
        self._go_on(call, now, until=until)
        if refusal.first:
            self._gate.goes_first(refusal.first)

    def _be_seated(self) -> None:
        """The refusal has seated it. Any end of its wait from now on gives that up."""
        self._gate.take_place()
        self.seated = True

    def _go_on(self, call: Call[Answer], now: float, *, until: float | None) -> None:
        """Refused: until then, as far as is known."""
        self._naps.round_trip = now - call.sent
        self._naps.refused_until = self._gate.refused_until = until
        if self._ask_again:
            self._ask(passing=True)
        elif not self._gate.refused(self):
            self._wait_behind()
        else:
            self._gate.listen(self)
            self._sleep()

    # -- who is in the way

    def suspect(self) -> None:
        """Ends a wait that would never end by itself, because the waiting task itself is in the way.

        A few turns of the loop later: it may have left a generator that holds it, which the loop closes.
        """
        if self._deadline is None and not self._suspected and self._deadlock() is not None:
            self._suspected = True
            self._engine.loop.call_soon(self._look_again, TURNS_TO_CLOSE)

    def _look_again(self, turns: int) -> None:
        deadlock = None if self.over else self._deadlock()
        if deadlock is None:
            self._suspected = False
        elif turns:
            self._engine.loop.call_soon(self._look_again, turns - 1)
        else:
            self._give_up(deadlock)

    def _have(self, grant: Grant, now: float) -> None:
        self._gate.gone(self)
        super()._have(grant, now)

    def _settle_place(self) -> None:
        """A waiter that gets in has left the queue."""
        if self._standing & (SEATED | STAYING) == SEATED:
            self._gate.left_by(self)

    def _has_failed(self, fault: Fault) -> None:
        if self._fault is None or self._fault.unknown or not fault.unknown:
            self._fault = fault  # an answer of the server weighs more than its silence now
        if self._maybe_executed:
            self._gate.take_place()
        if fault.passing:
            self._sleep()
        else:
            self._give_up(fault.error)

    def _tell_waiting(self) -> None:
        if not self._told:
            self._told = True
            self._engine.events.waiting(self.target.kind, self.target.name)
            if self._inside:
                self._engine.entangled(self)

    def _tell_waited(self) -> None:
        if self._needless:
            how = "needless"
        else:
            how = "granted" if self.grant is not None else _ENDS.get(type(self.error), "failed")
        seconds = self._engine.now() - self.started
        self._engine.events.waited(self.target.kind, self.target.name, seconds, how)

    # -- the end

    def _withdraw(self) -> None:
        """Ends it without a grant: in order behind what was sent, and before the next one here asks."""
        gate = self._gate
        executed = self._end_unanswered()
        if executed:
            gate.take_place()  # it may have been refused
        last = gate.must_tell_others and not gate.others_wait(self)
        own_seat = gate.manner.strict and self.seated  # which goes in any case
        if executed or last or own_seat:
            of_use = gate.place_of_use(self._ttl) if last else self._ttl
            self._engine.undo(self.claim, of_use, leave=last, leaves_late=gate.leaves_late())
        if last:
            gate.settled()
        gate.leave(self)

    def _end(self) -> None:
        super()._end()
        if self._sitting_down is not None:
            self._engine.forget(self._sitting_down)
        if self._sleep_timer is not None:
            self._cancel_sleep()
        if self._deadline_timer is not None:
            self._deadline_timer.cancel()
            self._deadline_timer = None
        if self._told:
            self._gate.watch_no_more(self)
            if self._engine.detector is not None:
                self._engine.detector.discard(self)
            self._tell_waited()

    def __repr__(self) -> str:
        return f"<Waiter for {self.target} {self.stage.name} naps={self._naps.taken}>"
