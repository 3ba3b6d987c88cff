"""A wait, from the call to the grant or to giving up; and a single try.

All that happens between is decided in synchronous steps (replies, timers, the gate's turns); the task
that waits has one single point at which it can be cancelled, and is woken once.
"""

from __future__ import annotations

import asyncio
import enum
import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, Literal, final

from .._tasks import empty_context
from ..errors import BackendError, DeadlockError, LockError, LockTimeoutError
from ..transport import (
    BEHIND,
    BRIEF,
    IN_TURN,
    OWING,
    PASSING,
    SEATED,
    SILENCE,
    STAYING,
    TOLD,
    Fault,
    Granted,
    Proof,
    Request,
    ignore,
    too_soon,
)
from ..transport.request import IMPATIENT
from .backoff import Backoff
from .blocks import TURNS_TO_CLOSE, held
from .clock import seconds
from .events import how_it_ended
from .notes import note

if TYPE_CHECKING:
    from .._holders import HolderInfo
    from ..transport import Answer, Refused
    from .blocks import Inside
    from .engine import Engine
    from .lease import Claim, Possession
    from .queue import Gate


# -- Whether replicas have a grant: it is waited for until enough of them do, or there is no time left.

Outcome = Literal[True] | LockError | None
"""True: enough have it. None: it cannot be said over the present connections. Or what went wrong."""

_PAUSE: Final = 0.01
"""Seconds after which a grant is asked for again of which it could not be said."""


@final
class Acknowledgement:
    """Waits for the proof that enough replicas have a grant.

    Args:
        replicas: How many must have it.
        what: The grant for which replicas are asked.
        sent: Loop time at which the request for it was sent.
        elsewhere: It was executed by another node than the one that can be asked.
        until: Loop time after which it is too late.
        waits: It waits for replicas that are not connected to the server.
        on_end: Told how it ended, in a later step of the loop.
    """

    __slots__ = ("_engine", "_on_end", "_proof", "_replicas", "_sent", "_timer", "_until", "_what")

    def __init__(
        self,
        engine: Engine,
        lease: Possession,
        replicas: int,
        *,
        what: str,
        sent: float,
        elsewhere: bool,
        until: float,
        waits: bool,
        on_end: Callable[[Outcome], None],
    ) -> None:
        self._engine = engine
        self._replicas = replicas
        self._what = what
        self._sent = sent
        self._until = until
        self._on_end = on_end
        too_few = None if waits else self._too_few
        self._proof = Proof(lease.owned(), replicas, self._proved, self._failed, too_few)
        self._timer: asyncio.TimerHandle = engine.loop.call_at(until, self._too_late, context=empty_context())
        if elsewhere:
            self._cannot_say()
        else:
            engine.prove(self._proof)

    def _proved(self, has: bool) -> None:  # noqa: FBT001 - a reply
        if has:
            self._end(True)  # noqa: FBT003 - an outcome, not a switch
        else:  # another master has taken over, and does not know of it
            self._cannot_say()

    def _failed(self, fault: Fault) -> None:
        if fault.passing:
            self._cannot_say()
        else:
            self._end_soon(fault.error)

    def _too_few(self, connected: int) -> None:
        self._end_soon(
            BackendError(
                f"{self._what} was acquired, but {connected} of {self._replicas} replicas are connected to "
                "the server: it was given back"
            )
        )

    def _end_soon(self, error: LockError) -> None:
        self._timer.cancel()
        self._timer = self._engine.loop.call_later(0, self._end, error, context=empty_context())

    def _cannot_say(self) -> None:
        """It is acquired again: from another server, if that is the master now."""
        pause = self._engine.now() + _PAUSE
        if pause < self._until:
            self._timer.cancel()
            self._timer = self._engine.loop.call_at(pause, self._end, None, context=empty_context())

    def _too_late(self) -> None:
        self._proof.done = True
        self._end(self.unproved)

    @property
    def unproved(self) -> BackendError:
        """Tells how many replicas had it so far."""
        return BackendError(
            f"{self._what} was acquired, but {self._proof.seen} of {self._replicas} replicas had it "
            f"within {self._engine.now() - self._sent:.3g} s: it was given back"
        )

    def _end(self, outcome: Outcome) -> None:
        self._timer.cancel()
        self._on_end(outcome)

    def cancel(self) -> None:
        """No acquire waits for the outcome any more."""
        self._proof.done = True
        self._timer.cancel()


@final
class Stage(enum.Enum):
    """Where an acquire stands.

    `QUEUED`: other tasks of its session ask. `ASKING`: a request of its own is under way, or its grant is on
    the way to replicas. `SLEEPING`: it was refused, and asks again when it is woken. `ENDED`: it was granted,
    or has given up.
    """

    QUEUED = enum.auto()
    ASKING = enum.auto()
    SLEEPING = enum.auto()
    ENDED = enum.auto()


LAST_TRY: Final = 0.005
"""Seconds before the deadline at which a sleeper tries once more, at the latest."""
BEYOND: Final = 0.001
"""Seconds that a sleeper waits past the end of the holder's lease: the server counts whole milliseconds."""


@final
class Naps:
    """The sleeps of one wait; times are of the loop's clock.

    Invariant: none lasts past the end of the lease that was in the way, as the server told it, nor so long
    that there is no time for a last try.

    Attributes:
        taken: How many there were.
        refused_until: When the lease ends that was in the way last; None when it has no end, or when
            waiters that go first were in the way.
        round_trip: Seconds that the last answer took.
    """

    __slots__ = ("_poll_at", "refused_until", "round_trip", "taken")

    def __init__(self) -> None:
        self.taken = 0
        self._poll_at = 0.0
        self.refused_until: float | None = None
        self.round_trip = 0.0

    def begin(self, now: float, backoff: Backoff, silence: float | None) -> None:
        """The next one: of `silence` for a sleeper that is told when it may be free; else None: it polls."""
        self._poll_at = now + (backoff.delay(self.taken) if silence is None else silence)
        self.taken += 1

    def unheard(self, now: float, backoff: Backoff) -> None:
        """The sleeper is not told any more: this nap ends as if it polled.

        It ends no later than it would have: a nap that began again each time this is said would have no end.
        """
        self._poll_at = min(self._poll_at, now + backoff.delay(self.taken))

    def wake_at(self, now: float, *, yielding_until: float, end: float | None) -> float | None:
        """When to wake up from this nap, by what is known now; None: there is only the end to wait for.

        Until `yielding_until`, waiters of other processes go first, which may not be able to use it (0: none
        goes first). `end` is the end of the wait, if it has one.
        """
        wake = self._poll_at
        if self.refused_until is None:
            if yielding_until:  # we are not told if they cannot use it; it may be over before we were told
                wake = min(wake, max(now, yielding_until) + BEYOND)
        elif self.refused_until + BEYOND > now:
            wake = min(wake, self.refused_until + BEYOND)
        if end is not None and wake >= end:
            # Before giving up, once more, if there is time for an answer.
            wake = end - max(2 * self.round_trip, LAST_TRY)
            if wake <= now:
                return None
        return wake


def own_in_the_way(
    lease: Possession, gate: Gate, inside: Inside[Possession], refusal: Refused | None, *, lasting: bool
) -> Possession | None:
    """A possession of the waiting task itself that excludes the lease, or None.

    `inside`: the leases that the task has entered; with `lasting`, a lease that ends by itself does not
    count. `refusal` is the last one of the claim itself; that of its gate is as good, and may be newer.
    """
    own = [one for one in held(inside, lasting=lasting) if one.claim.owner != lease.owner]
    for possession in own:
        if gate.here.closed and possession.claim.token in gate.here:
            return possession
    newest = gate.refusal or refusal
    if newest is None or not lease.excluded_by([possession.claim for possession in own], newest):
        return None
    return own[-1]


def holders(
    kind: str, lease: Possession, gate: Gate, refusal: Refused | None, now: float
) -> tuple[HolderInfo, ...]:
    """The holders that the lease waits for: a task of this session, or the last refusal's holders."""
    from .holders import held_here, told_by  # noqa: PLC0415 - only where a wait is long or fails

    here, newest = gate.here, gate.refusal or refusal
    if here.closed and (holder := here.lease) is not None:
        return (held_here(holder, now),)
    return () if newest is None else told_by(kind, lease, newest, now)


class Acquiring(ABC):
    """One acquire: a request at a time, and whatever must be undone behind it.

    Invariants:
    - while it asks, exactly one request is under way, or one grant waits for replicas; else there is neither;
    - once it has ended without a grant that was handed over, the server has been told to undo whatever
      it may have granted, in order behind the request;
    - the `done` of its lease is resolved exactly once, at the end: with a grant, an error, or neither, which
      means: refused.

    Args:
        lease: For which it asks.
        blocking_timeout: Seconds after which its caller gives up, as messages tell; None: it does not.
    """

    # Most acquires never change these values: so the class has them, and not each acquire.
    _acknowledgement: Acknowledgement | None = None
    _call: Request[Answer] | None = None
    _fault: Fault | None = None  # of the last question of a waiter, if that was not answered
    _inside: Inside[Possession] = ()  # the leases that the waiting task has entered
    _maybe_executed = False  # a send ended in silence: it may have been executed, or not
    _refusal: Refused | None = None  # the last one of its own
    _timeout: float | None
    _unproved: BackendError | None = None  # it had a grant of which replicas could not say that they have it
    _waits = True  # for replicas that are not connected
    _standing = 0  # of the request under way, or of the last one
    answered_at = float("-inf")
    error: LockError | None = None  # how it ended without a grant; None then means: refused
    grant: Granted | None = None
    holders: tuple[HolderInfo, ...] = ()  # in the way when the wait began, if a listener wants them
    needless = False  # there is nothing to acquire, as the server says
    stage = Stage.QUEUED

    def __init__(self, lease: Possession, blocking_timeout: float | None) -> None:
        self.target = target = lease.target
        self._engine = target.engine
        self._gate = target.gate
        self._timeout = blocking_timeout
        self._done = lease.done
        self.lease = lease
        self.context = lease.context
        self.started = lease.started

    @property
    def inside(self) -> Inside[Possession]:
        """The leases that the waiting task has entered."""
        return self._inside

    # -- steps from outside

    def start(self) -> None:
        """Begins, for the task that runs now."""
        self._engine.waiting[self] = None
        self._inside = self._engine.entered.by(id(asyncio.current_task(self._engine.loop)))

    def leave(self) -> None:
        """The task does not wait any more: nothing may stay held. Synchronous, no cancel can come between."""
        if self.stage is not Stage.ENDED:
            self._withdraw()
        elif self.grant is not None:
            self.grant = None
            self.lease.undo()

    def end_with(self, error: LockError) -> None:
        """The session: this wait is over."""
        if self.stage is not Stage.ENDED:
            self._give_up(error)

    # -- asking

    @abstractmethod
    def _ask(self) -> None:
        """Sends a request, with how this acquire stands to other ones."""

    @abstractmethod
    def _ask_until(self) -> float:
        """Loop time from which on the acquire does not want the answer any more."""

    def _send(self, standing: int, *, patient: bool) -> None:
        assert self._call is None, "a request is under way"
        assert self._acknowledgement is None, "a grant waits for replicas"
        engine = self._engine
        self.stage = Stage.ASKING
        self._standing = standing
        self._call = call = self.lease.acquire(self.target.options.first_ttl_ms, standing)
        # As `Request.ask`.
        call.on_reply = self._answered
        call.on_fault = self._failed
        call.until = self._ask_until()
        call.on_late = engine.wake_own
        if not patient:
            call.rare |= IMPATIENT
        if standing & BEHIND:
            call.alone = True  # a lease that is let go of is for the waiters before it
        engine.send(call)

    def _answered(self, answer: Answer) -> None:
        call, self._call = self._call, None
        assert call is not None
        call.on_reply = call.on_fault = ignore  # a round of a quorum knows it for longer
        engine, gate, options = self._engine, self._gate, self.target.options
        self.answered_at = gate.answered_at = now = engine.now()
        gate.silent_since = None
        self._maybe_executed = False
        if not isinstance(answer, Granted):
            answer.heard = now
            self._unproved = None
            self._refused(answer, call, now)
            return
        if answer.rung:
            self._tell_rung(answer.rung)
        self._let_in(call)
        answer.sent, answer.ahead = engine.timed(call.sent, call.sent_steady)
        grant = answer
        if now - answer.sent >= options.dependable:
            # Its time was over before the reply arrived: given back.
            engine.undo(self.lease, options.first_ttl)
            self._came_late(call, now)
        elif options.replicas:
            self._await_replicas(grant, elsewhere=call.elsewhere)
        else:
            self._have(grant, now)

    def _failed(self, fault: Fault) -> None:
        call, self._call = self._call, None
        assert call is not None
        call.on_reply = call.on_fault = ignore  # as above
        # A foreign value may have stopped the script in the midst of its work.
        if call.unconfirmed or (fault.unknown and call.written) or fault.foreign:
            self._maybe_executed = True
        self._has_failed(fault)

    @abstractmethod
    def _refused(self, refusal: Refused, call: Request[Answer], now: float) -> None:
        """It cannot be had now, as the server says to this request."""

    def _let_in(self, call: Request[Answer]) -> None:  # noqa: B027 - a single try need not know
        """The server has granted it by this request."""

    @abstractmethod
    def _came_late(self, call: Request[Answer], now: float) -> None:
        """A grant was over when it came, and is given back."""

    @abstractmethod
    def _has_failed(self, fault: Fault) -> None:
        """A request has ended without an answer."""

    def _tell_rung(self, bells: Sequence[bytes]) -> None:
        if bells:
            self._engine.loop.call_soon(self._engine.bells.rung, "local", bells, context=empty_context())

    # -- a grant

    def _have(self, grant: Granted, now: float) -> None:
        self.grant = grant
        self._end()
        # Whether its request has told other processes of what a task of this session has let go of.
        carried = self._standing & OWING != 0
        self._gate.granted(self.lease, grant, now, carried=carried)

    def _await_replicas(self, grant: Granted, *, elsewhere: bool) -> None:
        """A grant of the master counts when enough replicas have it too."""
        self._maybe_executed = True
        patience = self._engine.now() + self._engine.settings.command_timeout
        self._acknowledgement = Acknowledgement(
            self._engine,
            self.lease,
            self.target.options.replicas,
            what=str(self.target),
            sent=grant.sent,
            elsewhere=elsewhere,
            until=min(self._ask_until(), patience, grant.sent + self.target.options.dependable),
            waits=self._waits,
            on_end=functools.partial(self._acknowledged, grant),
        )

    def _acknowledged(self, grant: Granted, outcome: Outcome) -> None:
        acknowledgement, self._acknowledgement = self._acknowledgement, None
        assert acknowledgement is not None
        self._unproved = acknowledgement.unproved if outcome is None else None
        if outcome is True:
            self._maybe_executed = False
            self._have(grant, self._engine.now())
        elif outcome is None:
            self._ask()  # on another connection: what the last one has written is written again
        else:
            self._give_up(outcome)

    # -- who is in the way

    def _own_in_the_way(self, *, lasting: bool = False) -> Possession | None:
        if not self._inside:
            return None
        return own_in_the_way(self.lease, self._gate, self._inside, self._refusal, lasting=lasting)

    def _holders(self, now: float) -> tuple[HolderInfo, ...]:
        return holders(self.target.kind, self.lease, self._gate, self._refusal, now)

    def _deadlock(self) -> DeadlockError | None:
        """If the waiting task itself holds what is in the way, and for as long as it waits."""
        own = self._own_in_the_way(lasting=True)
        if own is None:
            return None
        return DeadlockError(self.target.label, self.target.name, held=f"{own.label} {own.name!r}")

    def timed_out(self, blocking_timeout: float) -> LockTimeoutError:
        """Tells of it, and names the holders."""
        now = self._engine.now()
        self._engine.events.timed_out(
            self.target.kind, self.target.name, now - self.started, context=self.context
        )
        refusal, since = self._refusal or self._gate.refusal, self._gate.silent_since
        silent = 0.0 if since is None or self._gate.here.closed else now - since
        return LockTimeoutError(
            self.target.label,
            self.target.name,
            blocking_timeout=blocking_timeout,
            remaining=self._gate.remaining(now),
            detail="" if refusal is None else refusal.detail,
            full=None if refusal is None or refusal.full is None else refusal.full[0],
            holders=self._holders(now),
            by_itself=self._own_in_the_way() is not None,
            endless=self._endless(),
            kept=refusal is not None and self.lease.steps.kept(refusal),
            silent=silent if silent >= SILENCE else 0.0,
        )

    def _endless(self) -> str:
        """That what is in the way has lost its ttl, and what frees it; empty where it has not."""
        return self.lease.endless(self._refusal or self._gate.refusal, self._engine.settings.prefix)

    # -- the end

    def _give_up(self, error: LockError) -> None:
        if isinstance(error, BackendError):
            note(error, f"aiolocks: {self.target} was not acquired")
        self.error = error
        self._fault = self._unproved = None  # they may have this error, whose traceback will know this object
        self._withdraw()

    def _withdraw(self) -> None:
        """Ends it without a grant; undoes a request that may have been executed, after all that was sent."""
        if self._end_unanswered():
            self._engine.undo(self.lease, self.target.options.first_ttl)

    def _end_unanswered(self) -> bool:
        """Ends it; whether the server may execute, or may have executed, a request without an answer."""
        self._forget()
        self._end()
        return self._maybe_executed

    def _forget(self) -> None:
        """The acquire does not want the answer to the request under way any more, if there is one."""
        call, self._call = self._call, None
        if call is not None and self._engine.forget(call):
            self._maybe_executed = True

    def _end(self) -> None:
        assert self.stage is not Stage.ENDED, "an acquire ends once"
        assert self._call is None, "a request is under way"
        self.stage = Stage.ENDED
        if self._acknowledgement is not None:
            self._acknowledgement.cancel()
            self._acknowledgement = None
        self._engine.waiting.pop(self, None)
        if not self._done.done():
            self._done.set_result(None)


@final
class Attempt(Acquiring):
    """Asks a single time. It has no seat, no bell and no timer.

    It names the holders if there is a `blocking_timeout`, which then is 0.

    Attributes:
        owner_asked: A session keeps it between its uses, and was asked to let go of it.
    """

    owner_asked = False
    _asked_again = False
    _waits = False

    def start(self) -> None:
        super().start()
        self._gate.pass_by(self.lease)
        self._ask()

    def _ask(self) -> None:
        in_turn = IN_TURN if self._gate.policy.strict else 0
        self._send(in_turn | (0 if self._timeout is None else TOLD), patient=False)

    def _ask_until(self) -> float:
        return self.started + self._engine.settings.command_timeout

    def _refused(self, refusal: Refused, call: Request[Answer], now: float) -> None:
        self._tell_rung(refusal.rung)
        unconfirmed = self._engine.unconfirmed
        if (
            unconfirmed
            and refusal.error is None
            and not self._asked_again
            and any(one.gate is self._gate for one in unconfirmed)
        ):
            # A release of this session was sent before, and is to be executed yet: the server did not know
            # its script, or its slot has moved. The second request goes behind it.
            self._asked_again = True
            self._ask()
            return
        if refusal.error is None:
            self._refusal = refusal
            until = None if refusal.remaining_ms is None else now + seconds(refusal.remaining_ms)
            self._gate.refused_with(refusal, until)
            # Where a task of this session is inside, its answer was overtaken: the server lacked the script.
            self.owner_asked = refusal.asked and not self._gate.here.closed
        else:
            self.error = refusal.error
            self.needless = True
        self._end()

    def _came_late(self, call: Request[Answer], now: float) -> None:
        self._end()

    def _has_failed(self, fault: Fault) -> None:
        self._give_up(fault.error)

    def __repr__(self) -> str:
        return f"<Attempt at {self.target} {self.stage.name}>"


_ANSWERED_WITHIN: Final = 0.1
"""Seconds for which a single try waits for the answer of a session that keeps the lock between its uses."""
_LONG: Final = 10.0
"""Seconds after which a wait is logged."""


@final
class Waiter(Acquiring):
    """An acquire that waits: it asks when it is its turn in its session, and sleeps until it is woken.

    It has a deadline or none, and gives up on a server that is silent.

    | from | to | when |
    |---|---|---|
    | `QUEUED`, as it is made | `ASKING` | its gate lets it ask, or take a seat behind other waiters |
    | `ASKING` | `SLEEPING` | refused as the head of its gate, or not answered |
    | `ASKING` | `QUEUED` | refused, and another waiter is the head |
    | `ASKING` | `ASKING` | woken while it asked; or replicas cannot say whether they have it |
    | `SLEEPING` | `ASKING` | woken, or its nap is over |
    | `QUEUED`, `ASKING`, `SLEEPING` | `ENDED` | granted; or its task, its patience or the session has ended |

    Invariants:
    - in a stage other than `ASKING` it has no request under way whose answer it waits for;
    - a timer ends each sleep, and each wait behind other waiters that may have to be told of or given up;
    - with a deadline, only the deadline ends the wait; without one, a silence of a ttl does, counted from the
      first question of its gate that was not answered.
    """

    _ask_again = False
    _brief = False  # a single try: it waits until the session that keeps it has answered
    _behind = False  # it began to wait while a task of its session held it
    _deadline: float | None = None
    _deadline_timer: asyncio.TimerHandle | None = None
    _logged = False
    _sitting_down: Request[Answer] | None = None  # the request for a seat behind which it has asked
    _sleep_timer: asyncio.TimerHandle | None = None
    _suspected = False  # its own task seems to be in the way
    _told = False
    _warned = False  # of a refusal that no release ends
    seated = False  # it may have a seat of its own, where each waiter has one

    @functools.cached_property
    def _naps(self) -> Naps:
        return Naps()

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
        self._limit()
        self._gate.enter(self)
        if self.stage is Stage.QUEUED:
            self._wait_behind()
        elif self._gate.is_behind(self):
            self.suspect()

    def start_briefly(self) -> None:
        """Begins, for a single try: it has the answer of the session that keeps the lock, or none in time."""
        self._brief = True
        self._timeout = _ANSWERED_WITHIN
        self.start()

    def given(self, answer: Granted, claim: Claim) -> None:
        """The gate: it has the lease that its session keeps, without a request."""
        now, steady = self._engine.mark()
        self.lease.had(claim)
        self.answered_at = now
        answer.sent, answer.ahead = now, steady - now
        self._have(answer, now)

    def _limit(self) -> None:
        if self._timeout is not None:
            self._deadline = self.started + self._timeout
            self._deadline_timer = self._engine.loop.call_at(
                self._deadline, self._out_of_time, context=empty_context()
            )

    def take_over(self, lease: Possession) -> None:
        """Goes on with the first request of a lease, which was asked for without a waiter so far."""
        call, self._standing, self._timeout, self._inside = lease.promoted()
        self._call, self.stage = call, Stage.ASKING
        call.on_reply, call.on_fault = self._answered, self._failed
        self._engine.waiting[self] = None
        self._limit()

    def _wait_behind(self) -> None:
        """Another waiter of its session asks."""
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

    def _go_on_sitting_down(self, call: Request[Answer]) -> None:
        """It asks right behind its request for a seat, which must come before requests of later waiters."""
        call.on_reply, call.on_fault = self._engine.wake_own, ignore
        self._sitting_down, self._call = call, None
        self._maybe_executed = True

    def sit_down(self) -> None:
        """The gate: take a seat, or show that you have one; behind other waiters, if they go first."""
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
        standing = self._gate.asks(self)
        if self._brief:
            standing |= BRIEF
        if in_turn:
            standing |= IN_TURN
        if passing:
            standing |= PASSING
        self._send(standing, patient=True)

    def _let_in(self, call: Request[Answer]) -> None:
        self._fault = None
        if self._standing & (SEATED | STAYING) == SEATED:
            self._gate.waiter_got_in(self)  # a waiter that gets in has left the queue
        if call.unconfirmed and not self._standing & SEATED:
            self._gate.take_place()  # its first request may have been refused

    def _came_late(self, call: Request[Answer], now: float) -> None:
        self._be_seated()
        self._go_on(call, now, until=now)

    def _refused(self, refusal: Refused, call: Request[Answer], now: float) -> None:
        gate = self._gate
        self._fault = None
        if refusal.rung:
            # Its own bell was put back by the refusal, and the session must listen for it again.
            self._tell_rung(gate.not_ours(refusal.rung, self))
        if refusal.error is not None:
            if self._standing & (SEATED | STAYING) == SEATED:
                gate.waiter_got_in(self)
            self.error = refusal.error
            self.needless = True
            self._end()
            gate.waiter_left(self)
            return
        until = None if refusal.remaining_ms is None else now + seconds(refusal.remaining_ms)
        self._be_seated()
        if self._brief and not refusal.asked:
            self._refusal = refusal
            self._withdraw()
            return
        if not gate.is_behind(self):  # else it has asked for a seat, and for nothing else
            self._refusal = refusal
            gate.refused_with(refusal, until)
            gate.seated = refusal.seated
        if now >= self.started + _LONG:
            self._log_long_wait(now)
        if refusal.lasting and not self._warned:
            self._warned = True
            self._engine.events.stuck(
                self.target.kind, self.target.name, refusal.detail, context=self.context
            )
        if self._inside:
            self.suspect()
        self._go_on(call, now, until=until)
        if refusal.first:
            gate.goes_first(refusal.first)

    def _be_seated(self) -> None:
        """The refusal has seated it. Any end of its wait from now on gives that up."""
        self._gate.take_place()
        self.seated = True

    def _go_on(self, call: Request[Answer], now: float, *, until: float | None) -> None:
        """Refused: until then, as far as is known."""
        naps, gate = self._naps, self._gate
        naps.round_trip = now - call.sent
        naps.refused_until = gate.refused_until = until
        if self._ask_again:
            self._ask(passing=True)
        elif not gate.refused(self):
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
            self._engine.loop.call_soon(self._look_again, TURNS_TO_CLOSE, context=empty_context())

    def _look_again(self, turns: int) -> None:
        deadlock = None if self.over else self._deadlock()
        if deadlock is None:
            self._suspected = False
        elif turns:
            self._engine.loop.call_soon(self._look_again, turns - 1, context=empty_context())
        else:
            self._give_up(deadlock)

    def _have(self, grant: Granted, now: float) -> None:
        self._gate.waiter_ended(self)
        super()._have(grant, now)

    def _has_failed(self, fault: Fault) -> None:
        if self._fault is None or self._fault.unknown or not fault.unknown:
            self._fault = fault  # an answer of the server weighs more than its silence now
        if self._maybe_executed:
            self._gate.take_place()
        if fault.passing and self.lease.steps.hasty is None:
            self._sleep()
        else:
            self._give_up(fault.error)

    def _tell_waiting(self) -> None:
        if not self._told and not self._brief:
            self._told = True
            target, events = self.target, self._engine.events
            if events.wants_holders:
                self._note_holders()
            events.waiting(target.kind, target.name, self.holders, context=self.context)
            if self._inside:
                self._engine.entangled(self)

    def _note_holders(self) -> None:
        if not self.holders:
            self.holders = self._holders(self._engine.now())

    def _tell_waited(self) -> None:
        if self._engine.events.wants_holders:
            self._note_holders()  # a waiter that began behind tasks of its session may know only now
        if self.needless:
            how = "needless"
        else:
            # Without a grant or an error its task has left.
            how = how_it_ended(None if self.grant is not None else self.error or asyncio.CancelledError())
        seconds = self._engine.now() - self.started
        self._engine.events.tell(
            "on_waited", self.target.kind, self.target.name, seconds=seconds, reason=how, context=self.context
        )

    # -- the end

    def _withdraw(self) -> None:
        """Ends it without a grant: in order behind what was sent, and before the next waiter asks."""
        gate = self._gate
        executed = self._end_unanswered()
        if executed:
            gate.take_place()  # it may have been refused
        last = gate.must_tell_others and not gate.others_wait(self)
        own_seat = gate.policy.strict and self.seated  # which goes in any case
        if executed or last or own_seat:
            ttl = self.target.options.first_ttl
            of_use = gate.place_of_use(ttl) if last else ttl
            self._engine.undo(self.lease, of_use, leave=last)
        if last:
            gate.others_told()
        gate.waiter_left(self)

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
            if self._engine.events.tells_waited:
                self._tell_waited()

    # -- the end of its patience

    def _ask_until(self) -> float:
        until, hasty = self._deadline, self.lease.steps.hasty
        if hasty is not None:
            soon = self._engine.now() + hasty
            return soon if until is None else min(soon, until)
        return self._silence_ends() if until is None else until

    def _silence_ends(self) -> float:
        """When the server will have said neither yes nor no for a ttl, to us or to a waiter before us."""
        since = self._gate.silent_since
        if since is None:
            since = self._engine.now()
        return max(self.started, since) + self.target.options.ttl

    def _wait_ends(self) -> float | None:
        """When to give up, as things stand; None while there is no reason to."""
        if self._deadline is None and self._fault is not None:
            return self._silence_ends()
        return self._deadline

    def _out_of_time(self) -> None:
        if self.stage is Stage.ENDED or self._call is not None or self._acknowledgement is not None:
            return  # a call under way ends at the same time, and knows why it was not answered
        if self._brief:
            self._withdraw()
            return
        if self._unproved is not None:
            self._give_up(self._unproved)
            return
        refused = self.answered_at > float("-inf")
        # Where no question has been open for long, what was known last still stands.
        since, now = self._gate.silent_since, self._engine.now()
        silent = since is not None and now - since >= SILENCE
        held_until = self._gate.refused_until  # as the head was told, which has not asked since
        held = held_until is not None and now < held_until
        known = self._gate.answered_at > float("-inf") if self._fault is None else self._behind or held
        said = self._fault is not None and not self._fault.unknown
        refused_before_us = (
            self._gate.here.held
            or self._gate.answered_at >= self.started
            or (known and not silent and not said)
        )
        error = self._fault.error if self._fault is not None else None
        too_short = self._timeout is not None and (
            self._timeout < SILENCE if error is None else too_soon(error, self._timeout)
        )
        if self._timeout is not None and (refused or refused_before_us or too_short):
            self._give_up(self.timed_out(self._timeout))
        elif self._fault is not None:
            self._give_up(self._fault.error)
        else:  # queued behind a waiter that has had no answer either
            self._give_up(BackendError(f"Redis did not answer within {self._timeout:g} s"))

    # -- behind other waiters

    def _listen_on(self) -> None:
        """Until there may be something to say: of a long wait, or of a silence that ends it."""
        long = self.started + _LONG
        looks = [] if self._logged or (self._deadline is not None and self._deadline <= long) else [long]
        if self._deadline is None:
            looks.append(self._silence_ends())
        if looks:
            self._sleep_timer = self._engine.loop.call_at(min(looks), self._listen, context=empty_context())

    def _listen(self) -> None:
        """Queued: the waiters in front may be willing to wait for longer than this one."""
        now = self._engine.now()
        self._log_long_wait(now)
        if self._deadline is None and self._gate.silent_since is not None and now >= self._silence_ends():
            self._give_up(BackendError(f"Redis did not answer for {self.target.options.ttl:g} s"))
        else:
            self._listen_on()

    def _log_long_wait(self, now: float) -> None:
        if not self._logged and now >= self.started + _LONG:
            self._logged = True
            from .._holders import in_words  # noqa: PLC0415 - of long waits only

            holders = self._holders(now)
            self._engine.events.waits_long(
                self.target.kind,
                self.target.name,
                now - self.started,
                in_words(holders) if holders else "",
                self._endless(),
                context=self.context,
                more=len(self._engine.waiting) > 1,
            )

    # -- sleeping

    def _sleep(self) -> None:
        """Backs off, never past the end of the holder's lease, and not quite to the end of the wait."""
        assert self.stage is Stage.ASKING, "only a waiter that has asked goes to sleep"
        assert self._call is None, "a request is under way"
        if not self._told:
            self._tell_waiting()
        self.stage = Stage.SLEEPING
        now, end = self._engine.now(), self._wait_ends()
        if end is not None and now >= end:
            self._out_of_time()
            return
        told = self._gate.heard or self._gate.is_behind(self)
        silence = self._gate.policy.silence if told else None
        self._naps.begin(now, self._engine.settings.backoff, silence)
        self._set_alarm(now, end)

    def need_not_ask(self, until: float | None) -> None:
        """The gate: before that time, nothing that the server knows of comes to its end."""
        self._naps.refused_until = until
        self._log_long_wait(self._engine.now())
        if self.asleep:
            self._set_alarm(self._engine.now(), self._wait_ends())

    def sleep_unheard(self) -> None:
        """The gate: it will not be told when to ask."""
        if self.asleep:
            now = self._engine.now()
            self._naps.unheard(now, self._engine.settings.backoff)
            self._set_alarm(now, self._wait_ends())

    def _set_alarm(self, now: float, end: float | None) -> None:
        """For the end of this nap, as far as it is known now; `end` is that of the wait."""
        wake = self._naps.wake_at(now, yielding_until=self._gate.yielding_until, end=end)
        if self._sleep_timer is not None:
            self._cancel_sleep()
        if wake is None:
            assert end is not None
            self._sleep_timer = self._engine.loop.call_at(end, self._out_of_time, context=empty_context())
        else:
            self._sleep_timer = self._engine.loop.call_at(wake, self._slept, context=empty_context())

    def _slept(self) -> None:
        assert self.stage is Stage.SLEEPING, "a nap ends only a sleep"
        self._sleep_timer = None
        gate, naps = self._gate, self._naps
        in_turn = gate.yielding
        if naps.refused_until is None and not in_turn:
            now, end = self._engine.now(), self._wait_ends()
            wake = naps.wake_at(now, yielding_until=0.0, end=end)
            if wake is not None and wake > now and gate.listens_on(self):
                self._set_alarm(now, end)
                return
        self._engine.events.counters.wakeups["poll"] += 1
        self._ask(in_turn=in_turn)

    def _cancel_sleep(self) -> None:
        if self._sleep_timer is not None:
            self._sleep_timer.cancel()
            self._sleep_timer = None

    def __repr__(self) -> str:
        return f"<Waiter for {self.target} {self.stage.name} naps={self._naps.taken}>"
