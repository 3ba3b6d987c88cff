"""One attempt to acquire, from the call to the grant or to giving up.

All that happens between is decided in synchronous steps (replies, timers, the gate's turns); the task
that waits has one single point at which it can be cancelled, and is woken once.

```
          start           take_turn            refused
  (new) ───────► QUEUED ◄───────────► ASKING ◄─────────► SLEEPING
                    │                   │  granted           │
                    └───────────────────┴──────► ENDED ◄─────┘   leave · deadline · fault · close
```
"""

from __future__ import annotations

import asyncio
import enum
import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, final

from .._transport import IN_TURN, OWING, PASSING, QUEUED, STAYING, TOLD, WAITING, Call, Granted
from ..errors import BackendError, DeadlockError, LockError, LockTimeoutError, SessionClosedError
from .acknowledgement import Acknowledgement
from .clock import dependable, seconds
from .naps import Naps
from .obstacles import holders, own_in_the_way

if TYPE_CHECKING:
    from .._holders import HolderInfo
    from .._transport import Answer, Fault, Refused
    from .acknowledgement import Outcome
    from .arguments import Options
    from .claim import Claim
    from .engine import Engine
    from .entered import Inside
    from .gate import Gate
    from .possession import Possession

_SILENCE: Final = 0.1
"""Seconds without an answer that are no silence yet."""
_LONG: Final = 10.0
"""Seconds after which a wait is logged."""


class Stage(enum.Enum):
    QUEUED = enum.auto()
    ASKING = enum.auto()
    SLEEPING = enum.auto()
    ENDED = enum.auto()


@final
class Acquisition:
    """The state machine of one acquire.

    Invariants:
    - in ASKING exactly one call is under way, and none otherwise;
    - once it has ended without a grant that was handed over, the server has been told to undo whatever
      it may have granted, in order behind the request;
    - `done` is resolved exactly once, at the end.

    Args:
        once: Ask a single time, beside the queue, and never wait for it to be free.
    """

    __slots__ = (
        "_acknowledgement",
        "_ask_again",
        "_behind",
        "_call",
        "_deadline",
        "_deadline_timer",
        "_engine",
        "_fault",
        "_gate",
        "_inside",
        "_kept_before",
        "_label",
        "_logged",
        "_name",
        "_naps",
        "_needless",
        "_once",
        "_options",
        "_queued",
        "_refusal",
        "_sleep_timer",
        "_stage",
        "_staying",
        "_timeout",
        "_told",
        "_ttl",
        "_unsettled",
        "_warned",
        "answered_at",
        "arming",
        "carried",
        "claim",
        "done",
        "error",
        "grant",
        "granted",
        "seated",
        "sent",
        "sent_steady",
        "started",
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
        once: bool,
    ) -> None:
        self._engine = engine
        self._gate = gate
        self.claim = claim
        self._label = label
        self._name = name
        self._options = options
        self._ttl = options.first_ttl
        self._timeout = blocking_timeout
        self._once = once
        self._stage = Stage.QUEUED
        self._call: Call[Answer] | None = None
        self._acknowledgement: Acknowledgement | None = None
        self._naps = Naps()
        self._needless = False  # there is nothing to wait for, as the server says
        self.arming: Call[int] | None = None  # of a seat of its own
        self._queued = False  # the call under way leaves the queue when it gets in
        self._staying = False  # but for the place, which others here need
        self._kept_before = 0  # undos that had left the place to others when it asked
        self.seated = False  # it may have a seat of its own, where each waiter has one
        self.carried = False  # it tells others of what somebody here has let go of
        self._ask_again = False
        self._told = False
        self._logged = False
        self._refusal: Refused | None = None  # the last one of its own
        self._behind = False  # it began to wait while somebody here held it
        self._inside: Inside = ()  # the leases that the waiting task has entered
        self._warned = False  # of a refusal that no release ends
        self.answered_at = float("-inf")
        self._fault: Fault | None = None
        self._unsettled = False  # a send ended in silence: whether it was executed, nobody knows
        self._sleep_timer: asyncio.TimerHandle | None = None
        self._deadline_timer: asyncio.TimerHandle | None = None
        self.started = engine.now()
        self._deadline = None if once or blocking_timeout is None else self.started + blocking_timeout
        self.done: asyncio.Future[None] = engine.loop.create_future()
        self.granted = False
        self.grant: Granted | None = None
        self.sent = 0.0
        self.sent_steady = 0.0
        self.error: LockError | None = None  # how it ended without a grant; None then means: refused

    @property
    def label(self) -> str:
        """What messages call the kind of lock."""
        return self._label

    @property
    def kind(self) -> str:
        return self._label.lower()

    @property
    def name(self) -> str:
        return self._name

    @property
    def inside(self) -> Inside:
        """The leases that the waiting task has entered."""
        return self._inside

    @property
    def asleep(self) -> bool:
        """Whether no request is under way."""
        return self._stage is Stage.SLEEPING

    @property
    def over(self) -> bool:
        """Whether it has ended, by any way."""
        return self._stage is Stage.ENDED

    @property
    def unanswered(self) -> bool:
        """Whether its last question has had no answer yet, or only a failure."""
        return self._call is not None or self._fault is not None

    # -- steps from outside

    def start(self) -> None:
        self._engine.waiting[self] = None
        self._inside = self._engine.entered.by(asyncio.current_task(self._engine.loop))
        if self._once:
            self._gate.try_beside(self)
            self._ask()
            return
        if self._deadline is not None:
            self._deadline_timer = self._engine.loop.call_at(self._deadline, self._out_of_time)
        self._gate.enter(self)
        if self._stage is Stage.QUEUED:
            self._wait_behind()

    def _wait_behind(self) -> None:
        """Somebody else asks for it."""
        self._stage = Stage.QUEUED
        if self._deadline is not None and self._engine.now() >= self._deadline:
            self._out_of_time()  # its timer did nothing: the question that was refused now was under way
            return
        self._behind = self._behind or self._gate.held_here
        self._tell_waiting()
        if self._inside and self._deadline is None:
            self._gate.suspects[self] = None
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
        self._gate.suspects.pop(self, None)
        if woken:
            self._engine.events.tally.wakeups["local"] += 1
        self._ask(in_turn=in_turn, passing=woken)

    def prompt(self, way: str, *, in_turn: bool) -> None:
        """The gate: it may be free now; `way` is how we know."""
        if self._stage is Stage.SLEEPING:
            self._engine.events.tally.wakeups[way] += 1
            self._ask(in_turn=in_turn, passing=True)
        elif self._stage is Stage.ASKING:
            self._ask_again = True  # a refusal under way may have been decided before

    def leave(self) -> None:
        """The task does not wait any more: nothing may stay held. Synchronous, no cancel can come between."""
        if self._stage is not Stage.ENDED:
            self._withdraw()
        elif self.granted:
            self.granted = False
            self._engine.undo(self.claim, self._ttl)
            self._gate.vacated(self.claim)

    def end_with(self, error: LockError) -> None:
        """The session: this wait is over."""
        if self._stage is not Stage.ENDED:
            self._give_up(error)

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
        self._cancel_sleep()
        self._stage = Stage.ASKING
        self._ask_again = False
        if self._gate.silent_since is None:
            self._gate.silent_since = self._engine.now()
        self._queued = self._gate.place.taken and not self._once
        self._staying = self._gate.keeps_place(self)
        self._kept_before = self._gate.place.kept
        self.carried = not self._once and self._gate.owing
        standing = (
            (QUEUED if self._queued else 0)
            | (IN_TURN if in_turn or self._gate.manner.strict else 0)
            | (PASSING if passing else 0)
            | (OWING if self.carried else 0)
            | (STAYING if self._staying else 0)
            | (0 if self._once else WAITING)
            | (0 if self._once and self._timeout is None else TOLD)
        )
        command = self.claim.acquire(self._options.first_ttl_ms, standing)
        wake_own = self._engine.wake_own
        self._call = Call(
            command,
            self._answered,
            self._failed,
            until=self._ask_until(),
            patient=not self._once,
            on_late=wake_own,
        )
        self._engine.send(self._call)

    def _ask_until(self) -> float:
        if self._once:
            return self.started + self._engine.settings.command_timeout
        return self._silence_ends() if self._deadline is None else self._deadline

    def _silence_ends(self) -> float:
        """When the server will have said neither yes nor no for a ttl, to us or to who asked before us."""
        since = self._gate.silent_since
        return max(self.started, self._engine.now() if since is None else since) + self._options.ttl

    def _wait_ends(self) -> float | None:
        """When to give up, as things stand; None while there is no reason to."""
        if self._deadline is None and self._fault is not None:
            return self._silence_ends()
        return self._deadline

    def _answered(self, answer: Answer) -> None:
        call, self._call = self._call, None
        assert call is not None
        now = self._engine.now()
        self.answered_at = self._gate.answered_at = now
        self._gate.silent_since = None
        self._naps.round_trip = now - call.sent
        self._fault = None
        self._unsettled = False
        if not isinstance(answer, Granted):
            # Its own bell was put back by the refusal, and is to be listened for anew.
            rung = answer.rung if self._once else self._gate.not_ours(answer.rung)
            self._tell_rung(rung)
            self._refused(answer, now)
            return
        self._tell_rung(answer.rung)
        self._settle_place()
        if call.unconfirmed and not self._queued:
            self._gate.take_place()  # its first request may have been refused
        if now >= self._engine.moment(call.sent, call.sent_steady) + dependable(self._ttl):
            # Its time was over before the reply was here: given back, and tried again.
            self._engine.undo(self.claim, self._ttl)
            self._go_on(until=now)
        elif self._options.replicas:
            self._await_replicas(answer, call)
        else:
            self._have(answer, call.sent, call.sent_steady)

    def _tell_rung(self, bells: Sequence[bytes]) -> None:
        if bells:
            self._engine.loop.call_soon(self._engine.bells.rung, "local", bells)

    def _refused(self, answer: Refused, now: float) -> None:
        if answer.error is None:
            until = None if answer.remaining_ms is None else now + seconds(answer.remaining_ms)
            self._refusal = answer
            self._be_seated()
            self._gate.refused_with(answer, until)
            self._log_long_wait(now)
            if answer.lasting and not self._once and not self._warned:
                self._warned = True
                self._engine.events.stuck(self._label.lower(), self._name, answer.detail)
            if not self.suspect():
                self._go_on(until=until)
                if answer.first:
                    self._gate.goes_first(answer.first)
            return
        self._settle_place()
        self.error = answer.error
        self._needless = True
        self._end()
        self._gate.leave(self)

    def _be_seated(self) -> None:
        """The refusal has seated it. Whatever ends its wait from now on gives that up."""
        if not self._once:
            self._gate.take_place()
            self.seated = True

    def _go_on(self, *, until: float | None) -> None:
        """Refused: until then, as far as is known."""
        self._naps.refused_until = self._gate.refused_until = until
        if self._once:
            self._end()
            self._gate.leave(self)
            return
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
        """Whether the request for its seat may come behind what it asks."""
        return self.arming is not None and not self.arming.done

    # -- who is in the way

    def suspect(self) -> bool:
        """Ends a wait that would never end by itself, because the waiting task itself is in the way."""
        if self._stage is Stage.ENDED or self._once or self._deadline is not None:
            return self._stage is Stage.ENDED
        own = self._own_in_the_way(lasting=True)
        if own is not None:
            self._give_up(DeadlockError(self._label, self._name, held=f"{own.label} {own.name!r}"))
        return own is not None

    def _own_in_the_way(self, *, lasting: bool = False) -> Possession | None:
        if not self._inside:
            return None
        return own_in_the_way(self.claim, self._gate, self._inside, self._refusal, lasting=lasting)

    def _holders(self, now: float) -> tuple[HolderInfo, ...]:
        return holders(self._label.lower(), self.claim, self._gate, self._refusal, now)

    def _log_long_wait(self, now: float) -> None:
        if not self._logged and now >= self.started + _LONG and not self._once:
            self._logged = True
            self._engine.events.waits_long(
                self._label.lower(), self._name, now - self.started, self._holders(now)
            )

    def _have(self, grant: Granted, sent: float, steady: float) -> None:
        self.granted = True
        self.grant = grant
        self.sent, self.sent_steady = sent, steady
        self._end()
        self._gate.granted(self, grant, self._engine.now())

    def _await_replicas(self, grant: Granted, call: Call[Answer]) -> None:
        """What the master has granted counts when enough replicas have it too."""
        self._unsettled = True
        sent = call.sent
        patience = self._engine.now() + self._engine.settings.command_timeout
        self._acknowledgement = Acknowledgement(
            self._engine,
            self.claim,
            self._options.replicas,
            what=f"{self._label} {self._name!r}",
            sent=sent,
            elsewhere=call.elsewhere,
            until=min(self._ask_until(), patience, sent + dependable(self._ttl)),
            on_end=functools.partial(self._acknowledged, grant, sent, call.sent_steady),
        )

    def _acknowledged(self, grant: Granted, sent: float, steady: float, outcome: Outcome) -> None:
        self._acknowledgement = None
        if outcome is True:
            self._unsettled = False
            self._have(grant, sent, steady)
        elif outcome is None:
            self._ask()  # on another connection: what the last one has written is written again
        else:
            self._give_up(outcome)

    def _settle_place(self) -> None:
        """Who gets in has left the queue."""
        if self._arming_pends:
            # The server did not know its script, and so it came behind the try that left the queue.
            self._gate.give_up_seat(self)
        elif self._queued and not self._staying and self._kept_before == self._gate.place.kept:
            # Else what such an undo takes back may have been executed after this one, and seated again.
            self._gate.left()

    def _failed(self, fault: Fault) -> None:
        call, self._call = self._call, None
        assert call is not None
        if self._fault is None or self._fault.unknown or not fault.unknown:
            self._fault = fault  # what the server has said is more than that it is silent now
        if call.unconfirmed or (fault.unknown and call.written):
            self._unsettled = True
        elif fault.foreign:
            self._unsettled = True  # what stood there may have stopped a step in the midst of it
        if self._unsettled and not self._once:
            self._gate.take_place()
        if self._once or not fault.transient:
            self._give_up(fault.error)
        else:
            self._sleep()

    def _sleep(self) -> None:
        """Backs off, never past the end of the holder's lease, and not quite to the end of the wait."""
        self._tell_waiting()
        self._stage = Stage.SLEEPING
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
        )
        self._sleep_until(wake, end)

    def need_not_ask(self, until: float | None) -> None:
        """The gate: before that time, nothing that the server knows of comes to its end."""
        self._naps.refused_until = until
        now, end = self._engine.now(), self._wait_ends()
        self._log_long_wait(now)
        if self._stage is Stage.SLEEPING:
            wake = self._naps.again(now, yielding_until=self._gate.yielding_until, end=end)
            self._sleep_until(wake, end)

    def sleep_unheard(self) -> None:
        """The gate: nobody will tell it when to ask."""
        if self._stage is Stage.SLEEPING:
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
        self._engine.events.tally.wakeups["poll"] += 1
        self._ask(in_turn=self._gate.yielding)

    def _tell_waiting(self) -> None:
        if not self._told:
            self._told = True
            self._engine.events.waiting(self._label.lower(), self._name)
            if self._inside and not self._once:
                self._engine.entangled(self)

    def _tell_waited(self) -> None:
        if self.granted:
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
        self._engine.events.waited(self._label.lower(), self._name, seconds, how)

    # -- the end

    def _out_of_time(self) -> None:
        if self._stage is Stage.ENDED or self._call is not None or self._acknowledgement is not None:
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

    def timed_out(self, blocking_timeout: float) -> LockTimeoutError:
        """Tells of it, and names the holders."""
        now = self._engine.now()
        self._engine.events.timed_out(self._label.lower(), self._name, now - self.started)
        refusal = self._refusal or self._gate.refusal
        return LockTimeoutError(
            self._label,
            self._name,
            blocking_timeout=blocking_timeout,
            remaining=self._gate.remaining(now),
            detail="" if refusal is None else refusal.detail,
            full=None if refusal is None or refusal.full is None else refusal.full[0],
            holders=self._holders(now),
            by_itself=self._own_in_the_way() is not None,
        )

    def _give_up(self, error: LockError) -> None:
        self.error = error
        self._withdraw()

    def _withdraw(self) -> None:
        """Ends it without a grant: in order behind what was sent, and before the next one here asks."""
        gate = self._gate
        if self.arming is not None and self._arming_pends:
            # If the server does not know its script, it must not be sent again, after the undo.
            self._engine.forget(self.arming)
            gate.not_armed()
        self._end()
        call, self._call = self._call, None
        executed = (call is not None and self._engine.forget(call)) or self._unsettled
        if executed and not self._once:
            gate.take_place()  # it may have been refused
        last = gate.unsettled and gate.is_last(self)
        own_seat = gate.manner.strict and self.seated  # which goes in any case
        # Where requests overtake each other, this one may be seated after others of this session have come or
        # gone.
        late = executed and not (self._once or self._engine.ordered or gate.manner.strict)
        if executed or last or own_seat:
            of_use = gate.place.given_up_within(self._ttl) if last else self._ttl
            leaves_late = gate.leaves_late() if late else None
            self._engine.undo(self.claim, of_use, leave=last, leaves_late=leaves_late)
        if last:
            gate.settled()
        gate.leave(self)

    def _end(self) -> None:
        self._stage = Stage.ENDED
        self.arming = None
        if self._acknowledgement is not None:
            self._acknowledgement.cancel()
            self._acknowledgement = None
        self._cancel_sleep()
        if self._deadline_timer is not None:
            self._deadline_timer.cancel()
            self._deadline_timer = None
        self._engine.waiting.pop(self, None)
        self._gate.suspects.pop(self, None)
        if self._told:
            if self._engine.detector is not None:
                self._engine.detector.discard(self)
            self._tell_waited()
        if not self.done.done():
            self.done.set_result(None)

    def _cancel_sleep(self) -> None:
        if self._sleep_timer is not None:
            self._sleep_timer.cancel()
            self._sleep_timer = None

    def __repr__(self) -> str:
        return f"<Acquisition of {self._label} {self._name!r} {self._stage.name} naps={self._naps.taken}>"
