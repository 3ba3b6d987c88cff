"""A wait, from the call to the grant or to giving up.

```
          start           take_turn            refused
  (new) ───────► QUEUED ◄───────────► ASKING ◄─────────► SLEEPING
                    │                   │  granted           │
                    └───────────────────┴──────► ENDED ◄─────┘   leave · deadline · fault · close
```
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, final

from ..._transport import IN_TURN, PASSING, SEATED, STAYING, TOLD, WAITING, Call
from ...errors import BackendError, LockTimeoutError, SessionClosedError
from ..clock import seconds
from .acquiring import Acquiring, Grant, Stage
from .naps import Naps

if TYPE_CHECKING:
    from ..._transport import Answer, Fault, Refused
    from ..claim import Claim
    from ..engine import Engine
    from ..options import Options
    from .gate import Gate

_SILENCE: Final = 0.1
"""Seconds without an answer that are no silence yet."""
_LONG: Final = 10.0
"""Seconds after which a wait is logged."""


@final
class Waiter(Acquiring):
    """An acquire that waits: it asks when it is its turn here, and sleeps until it is woken.

    Invariants:
    - in a stage other than `ASKING` it has no request under way but those for its seat;
    - `armings` holds each of those that is under way, also one that a later one followed because the bell was
      lost meanwhile: sent again to a server that does not know its script, any of them could come after the
      undo, and leave a seat of nobody.
    """

    __slots__ = (
        "_ask_again",
        "_behind",
        "_deadline",
        "_deadline_timer",
        "_fault",
        "_kept_before",
        "_logged",
        "_naps",
        "_needless",
        "_sleep_timer",
        "_told",
        "_warned",
        "armings",
        "seated",
    )

    def __init__(
        self,
        engine: Engine,
        gate: Gate,
        claim: Claim,
        *,
        label: str,
        name: str,
        options: Options,
        blocking_timeout: float | None,
    ) -> None:
        super().__init__(
            engine, gate, claim, label=label, name=name, options=options, blocking_timeout=blocking_timeout
        )
        self._naps = Naps()
        self._needless = False  # there is nothing to wait for, as the server says
        self.armings: tuple[Call[int], ...] = ()  # of a seat of its own
        self._kept_before = 0  # undos that had left the place to others when it asked
        self.seated = False  # it may have a seat of its own, where each waiter has one
        self._ask_again = False
        self._told = False
        self._logged = False
        self._behind = False  # it began to wait while somebody here held it
        self._warned = False  # of a refusal that no release ends
        self._fault: Fault | None = None
        self._sleep_timer: asyncio.TimerHandle | None = None
        self._deadline_timer: asyncio.TimerHandle | None = None
        self._deadline = None if blocking_timeout is None else self.started + blocking_timeout

    @property
    def asleep(self) -> bool:
        """Whether no request is under way."""
        return self.stage is Stage.SLEEPING

    @property
    def over(self) -> bool:
        """Whether it has ended, by any way."""
        return self.stage is Stage.ENDED

    @property
    def unanswered(self) -> bool:
        """Whether its last question has had no answer yet, or only a failure."""
        return self._call is not None or self._fault is not None

    # -- steps from outside

    def start(self) -> None:
        super().start()
        if self._deadline is not None:
            self._deadline_timer = self._engine.loop.call_at(self._deadline, self._out_of_time)
        self._gate.enter(self)
        if self.stage is Stage.QUEUED:
            self._wait_behind()

    def _wait_behind(self) -> None:
        """Somebody else asks for it."""
        self.stage = Stage.QUEUED
        if self._deadline is not None and self._engine.now() >= self._deadline:
            self._out_of_time()  # its timer did nothing: the question that was refused now was under way
            return
        self._behind = self._behind or self._gate.held_here
        self._tell_waiting()
        if self._inside and self._deadline is None:
            self._gate.watch_for_itself(self)
            if self.suspect():
                return
        self._listen_on()

    def _listen_on(self) -> None:
        """Until there may be something to say: of a long wait, or of a silence that ends it."""
        long = self.started + _LONG
        looks = [] if self._logged or (self._deadline is not None and self._deadline <= long) else [long]
        if self._deadline is None:
            looks.append(self._silence_ends())
        if looks:
            self._sleep_timer = self._engine.loop.call_at(min(looks), self._listen)

    def take_turn(self, *, woken: bool, in_turn: bool) -> None:
        """The gate: you are the head, at once or after having waited; behind other processes if `in_turn`."""
        if woken:
            self._gate.watch_no_more(self)
            self._engine.events.counters.wakeups["local"] += 1
        self._ask(in_turn=in_turn, passing=woken)

    def prompt(self, way: str, *, in_turn: bool) -> None:
        """The gate: it may be free now; `way` is how we know."""
        if self.stage is Stage.SLEEPING:
            self._engine.events.counters.wakeups[way] += 1
            self._ask(in_turn=in_turn, passing=True)
        elif self.stage is Stage.ASKING:
            self._ask_again = True  # a refusal under way may have been decided before

    def _listen(self) -> None:
        """Queued: those in front may be willing to wait for longer than we are."""
        now = self._engine.now()
        self._log_long_wait(now)
        if self._deadline is None and self._gate.silent_since is not None and now >= self._silence_ends():
            self._give_up(BackendError(f"Redis did not answer for {self._options.ttl:g} s"))
        else:
            self._listen_on()

    # -- asking

    def _ask(self, *, in_turn: bool = False, passing: bool = False) -> None:
        """Tries; the refusal seats it, and what is let go of after that wakes us."""
        if self._sleep_timer is not None:
            self._cancel_sleep()
        self._ask_again = False
        standing = self._gate.asks(self) | WAITING | TOLD
        if in_turn:
            standing |= IN_TURN
        if passing:
            standing |= PASSING
        self._kept_before = self._gate.place.kept
        self._send(standing, patient=True)

    def _ask_until(self) -> float:
        return self._silence_ends() if self._deadline is None else self._deadline

    def _silence_ends(self) -> float:
        """When the server will have said neither yes nor no for a ttl, to us or to who asked before us."""
        since = self._gate.silent_since
        if since is None:
            since = self._engine.now()
        return max(self.started, since) + self._options.ttl

    def _wait_ends(self) -> float | None:
        """When to give up, as things stand; None while there is no reason to."""
        if self._deadline is None and self._fault is not None:
            return self._silence_ends()
        return self._deadline

    def _let_in(self, call: Call[Answer]) -> None:
        self._fault = None
        self._settle_place()
        if call.unconfirmed and not self._standing & SEATED:
            self._gate.take_place()  # its first request may have been refused

    def _came_late(self, call: Call[Answer], now: float) -> None:
        self._go_on(call, now, until=now)

    def _refused(self, refusal: Refused, call: Call[Answer], now: float) -> None:
        self._fault = None
        # Its own bell was put back by the refusal, and the session must listen for it again.
        self._tell_rung(self._gate.not_ours(refusal.rung))
        if refusal.error is not None:
            self._settle_place()
            self.error = refusal.error
            self._needless = True
            self._end()
            self._gate.leave(self)
            return
        until = None if refusal.remaining_ms is None else now + seconds(refusal.remaining_ms)
        self._refusal = refusal
        self._be_seated()
        self._gate.refused_with(refusal, until)
        self._log_long_wait(now)
        if refusal.lasting and not self._warned:
            self._warned = True
            self._engine.events.stuck(self.kind, self.name, refusal.detail)
        if not self.suspect():
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
        self._be_seated()
        if self._ask_again:
            self._ask(passing=True)
        elif not self._gate.refused(self):
            self._wait_behind()
        else:
            self._gate.listen(self)
            self._sleep()

    @property
    def _arming_pends(self) -> bool:
        """Whether a request for its seat may come behind what it asks."""
        return any(not arming.done for arming in self.armings)

    # -- who is in the way

    def suspect(self) -> bool:
        """Ends a wait that would never end by itself, because the waiting task itself is in the way."""
        if self.stage is Stage.ENDED or self._deadline is not None:
            return self.stage is Stage.ENDED
        deadlock = self._deadlock()
        if deadlock is not None:
            self._give_up(deadlock)
        return deadlock is not None

    def _log_long_wait(self, now: float) -> None:
        if not self._logged and now >= self.started + _LONG:
            self._logged = True
            self._engine.events.waits_long(self.kind, self.name, now - self.started, self._holders(now))

    def _have(self, grant: Grant, now: float) -> None:
        self._gate.gone(self)
        super()._have(grant, now)

    def _settle_place(self) -> None:
        """A waiter that gets in has left the queue."""
        if self.armings and self._arming_pends:
            # The server did not know its script, and so it came behind the try that left the queue.
            self._gate.give_up_seat(self)
        elif self._standing & (SEATED | STAYING) == SEATED and self._kept_before == self._gate.place.kept:
            # Else what such an undo takes back may have been executed after this one, and seated again.
            self._gate.left()

    def _has_failed(self, fault: Fault) -> None:
        if self._fault is None or self._fault.unknown or not fault.unknown:
            self._fault = fault  # an answer of the server weighs more than its silence now
        if self._unsettled:
            self._gate.take_place()
        if fault.transient:
            self._sleep()
        else:
            self._give_up(fault.error)

    def _sleep(self) -> None:
        """Backs off, never past the end of the holder's lease, and not quite to the end of the wait."""
        self._tell_waiting()
        self.stage = Stage.SLEEPING
        now, end = self._engine.now(), self._wait_ends()
        if end is not None and now >= end:
            self._out_of_time()
            return
        wake = self._naps.next(
            now,
            self._engine.settings.backoff,
            heard=self._gate.place.heard,
            yielding_until=self._gate.yielding_until,
            end=end,
            silence=self._gate.manner.silence,
        )
        self._sleep_until(wake, end)

    def need_not_ask(self, until: float | None) -> None:
        """The gate: before that time, nothing that the server knows of comes to its end."""
        self._naps.refused_until = until
        now, end = self._engine.now(), self._wait_ends()
        self._log_long_wait(now)
        if self.stage is Stage.SLEEPING:
            wake = self._naps.again(now, yielding_until=self._gate.yielding_until, end=end)
            self._sleep_until(wake, end)

    def sleep_unheard(self) -> None:
        """The gate: nobody will tell it when to ask."""
        if self.stage is Stage.SLEEPING:
            now, end, backoff = self._engine.now(), self._wait_ends(), self._engine.settings.backoff
            wake = self._naps.unheard(now, backoff, yielding_until=self._gate.yielding_until, end=end)
            self._sleep_until(wake, end)

    def _sleep_until(self, wake: float | None, end: float | None) -> None:
        self._cancel_sleep()
        if wake is None:
            assert end is not None
            self._sleep_timer = self._engine.loop.call_at(end, self._out_of_time)
        else:
            self._sleep_timer = self._engine.loop.call_at(wake, self._slept)

    def _slept(self) -> None:
        self._sleep_timer = None
        self._engine.events.counters.wakeups["poll"] += 1
        self._ask(in_turn=self._gate.yielding)

    def _tell_waiting(self) -> None:
        if not self._told:
            self._told = True
            self._engine.events.waiting(self.kind, self.name)
            if self._inside:
                self._engine.entangled(self)

    def _tell_waited(self) -> None:
        if self.grant is not None:
            how = "granted"
        elif self.error is None:
            how = "cancelled"
        elif isinstance(self.error, LockTimeoutError):
            how = "timeout"
        elif self._needless:
            how = "needless"
        else:
            how = "closed" if isinstance(self.error, SessionClosedError) else "failed"
        seconds = self._engine.now() - self.started
        self._engine.events.waited(self.kind, self.name, seconds, how)

    # -- the end

    def _out_of_time(self) -> None:
        if self.stage is Stage.ENDED or self._call is not None or self._acknowledgement is not None:
            return  # a call under way ends at the same time, and knows why it was not answered
        refused = self.answered_at > float("-inf")
        # Where no question has been open for long, what was known last still stands.
        since, now = self._gate.silent_since, self._engine.now()
        silent = since is not None and now - since >= _SILENCE
        held_until = self._gate.refused_until  # as the head was told, which has not asked since
        held = held_until is not None and now < held_until
        known = self._gate.answered_at > float("-inf") if self._fault is None else self._behind or held
        said = self._fault is not None and not self._fault.unknown
        refused_before_us = (
            self._gate.held_here
            or self._gate.answered_at >= self.started
            or (known and not silent and not said)
        )
        if self._timeout is not None and (refused or refused_before_us):
            self._give_up(self.timed_out(self._timeout))
        elif self._fault is not None:
            self._give_up(self._fault.error)
        else:  # queued behind somebody who has had no answer either
            self._give_up(BackendError(f"Redis did not answer within {self._timeout:g} s"))

    def _withdraw(self) -> None:
        """Ends it without a grant: in order behind what was sent, and before the next one here asks."""
        gate = self._gate
        if self.armings and self._arming_pends:
            # If the server does not know their script, they must not be sent again, after the undo.
            for arming in self.armings:
                self._engine.forget(arming)
            gate.not_armed()
        executed = self._end_unsettled()
        if executed:
            gate.take_place()  # it may have been refused
        last = gate.unsettled and gate.is_last(self)
        own_seat = gate.manner.strict and self.seated  # which goes in any case
        # Where requests overtake each other, this one may be seated after others of this session have come or
        # gone.
        late = executed and not (self._engine.ordered or gate.manner.strict)
        if executed or last or own_seat:
            of_use = gate.place.given_up_within(self._ttl) if last else self._ttl
            leaves_late = gate.leaves_late() if late else None
            self._engine.undo(self.claim, of_use, leave=last, leaves_late=leaves_late)
        if last:
            gate.settled()
        gate.leave(self)

    def _end(self) -> None:
        super()._end()
        self.armings = ()
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

    def _cancel_sleep(self) -> None:
        if self._sleep_timer is not None:
            self._sleep_timer.cancel()
            self._sleep_timer = None

    def __repr__(self) -> str:
        return f"<Waiter for {self.label} {self.name!r} {self.stage.name} naps={self._naps.taken}>"
