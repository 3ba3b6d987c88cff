"""Possession as a state machine: from the grant to its end, whichever it is.

```
HELD ⇄ UNKNOWN        a renewal went unanswered, and time is left / it was answered after all
HELD, UNKNOWN → LOST, RELEASED, DETACHED
```

It may be relied on until its local deadline: the time right before the request that the server confirmed
last, plus the ttl, less a drift of 1 % and 2 ms. When Redis is silent, this clock alone decides.

With a `grace`, the body is told to stop that long before the deadline, and unwinds while the lease is still
held. The lease is renewed meanwhile if the server answers, which does not call the body back.

Everything but `let_go`, `extend` and `annotate` is synchronous: replies and timers drive it.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, final

from .._transport import Call, Command, Fault, Kept, Stolen, clocks
from ..errors import LockError, LockLostError, LockNotOwnedError
from .clock import milliseconds
from .process import current_pid
from .releasing import Releasing
from .shield import LONGEST_DELAY, wait_shielded
from .term import NEVER, Term

if TYPE_CHECKING:
    from .._holders import HolderInfo
    from .claim import Claim
    from .convoys import Convoy
    from .engine import Engine
    from .scope import LossScope
    from .waiting.gate import Gate
    from .watchdog import Watch

_SUSPENDED: Final = 0.05
"""Seconds between the loop's clock and the one that goes on, after which the machine counts as suspended."""
_ARMED_AFTER: Final = 0.05
"""Seconds after the grant at which the server is asked to tell of a loss: a shorter hold costs no request."""
_PATIENCE: Final = 1.0
"""Seconds after which an unanswered renewal makes it UNKNOWN; less for a short ttl."""


class LeaseState(enum.Enum):
    """The state of a lease, as far as it is known.

    `HELD`: it may be relied on. `UNKNOWN`: it may be relied on for the time that is left, but the last
    renewal has not been answered. `LOST`: it can no longer be relied on. `RELEASED`: let go. `DETACHED`:
    handed over by `detach()`.
    """

    HELD = "held"
    UNKNOWN = "unknown"
    LOST = "lost"
    RELEASED = "released"
    DETACHED = "detached"


@final
class Possession:
    """The state machine of one grant, from the grant to its end.

    Invariants:
    - the state leaves HELD / UNKNOWN once, and only through `_end`;
    - the deadline is never later than the end of the lease on the server, if both clocks run alike;
    - the body is told to stop at most once, and, with a `grace`, never later than that before the deadline,
      unless the event loop did not run or the lease was lost at once;
    - at most one renewal is under way, alone or in a convoy, and none once a release was sent.

    Args:
        ttl: Seconds that each renewal asks for.
        max_hold: Seconds after which it is lost whatever renewals could do.
        grace: Seconds before the deadline at which the body is to stop.
        sent: Loop time right before the granted request was sent, as `Engine.moment` counts it.
    """

    __slots__ = (
        "__weakref__",
        "_ahead",
        "_asked_ttl",
        "_engine",
        "_extending",
        "_given_back",
        "_lost",
        "_over",
        "_pushed",
        "_releasing",
        "_state",
        "claim",
        "fencing_token",
        "gate",
        "granted_at",
        "label",
        "live",
        "name",
        "reason",
        "renewal",
        "scope",
        "stolen_by",
        "stop_reason",
        "term",
        "watch",
        "watched",
    )

    def __init__(
        self,
        engine: Engine,
        gate: Gate,
        claim: Claim,
        *,
        label: str,
        name: str,
        fencing_token: int,
        ttl: float,
        max_hold: float | None,
        auto_renew: bool,
        sent: float,
        grace: float = 0.0,
    ) -> None:
        self._engine = engine
        self._state = LeaseState.HELD
        self.live = True  # HELD or UNKNOWN
        self._lost: asyncio.Event | None = None
        self._over: asyncio.Event | None = None
        self._releasing: Releasing | None = None
        self._given_back = False
        self.renewal: Call[Any] | Convoy | None = None  # or another question whether it is held
        self._pushed = False  # it must be asked for, as the server has told of a change
        self.watched: tuple[bytes, ...] = ()  # its keys, once the server was asked to tell of them
        self._asked_ttl = ttl  # by the last renewal that was made
        self._extending: asyncio.Lock | None = None
        self.claim = claim
        self.fencing_token = fencing_token
        self.gate = gate
        self.granted_at = sent
        self.label = label  # how messages call it
        self.name = name
        self.term = Term(sent, ttl=ttl, max_hold=max_hold, auto_renew=auto_renew, grace=grace)
        if engine.hears:
            self.term.ask_by(sent + _ARMED_AFTER)
        self._ahead = clocks.steady() - engine.now()
        self.reason = ""  # why it has ended
        self.stolen_by: HolderInfo | None = None
        self.stop_reason = ""  # why the body was told to stop before that
        self.scope: LossScope | None = None  # the body that has entered it
        self.watch: Watch | None = None  # the watchdog's

    # -- what may be said of it

    @property
    def state(self) -> LeaseState:
        """LOST as soon as the deadline has passed, even before anybody was told."""
        if self.live and self._now() >= self.term.deadline:
            return LeaseState.LOST
        return self._state

    def _now(self) -> float:
        """Loop time, had the loop's clock gone on while the machine was suspended.

        `_ahead` is by how much that clock was behind when the deadline was set.
        """
        now, steady = self._engine.now(), clocks.steady() - self._ahead
        return steady if steady > now else now  # noqa: FURB136 - asked often, and `max` takes longer

    @property
    def holds(self) -> bool:
        """Whether it is held, for all that is known here, and nobody lets go of it."""
        return self._state is LeaseState.HELD and self.remaining() > 0.0

    @property
    def kind(self) -> str:
        return self.label.lower()

    def remaining(self) -> float:
        """Seconds that the holder may still rely on."""
        if not self.live or self._releasing is not None or self._engine.pid != current_pid():
            return 0.0
        return max(0.0, self.term.deadline - self._now())

    def ensure_held(self) -> None:
        """Raises `LockLostError` unless it may be relied on now."""
        if self.remaining() <= 0.0:
            # Not lost, but used in a fork, or after its holder has let go of it.
            lost = self.state is LeaseState.LOST
            raise self.loss(self._why_not_held(), lost=lost)

    def loss(self, reason: str, *, lost: bool = True) -> LockLostError:
        """The error for a lease that cannot be relied on."""
        return LockLostError(self.label, self.name, reason, lost=lost, stolen_by=self.stolen_by)

    def ensure_this_process(self) -> None:
        """Raises in a fork of the holder."""
        if self._engine.pid != current_pid():
            raise LockNotOwnedError(self.label, self.name, self._why_not_held())

    def ensure_here(self) -> None:
        """Raises unless this is the process and the event loop of the holder."""
        self.ensure_this_process()
        if asyncio.get_running_loop() is not self._engine.loop:
            raise RuntimeError(f"this lease of {self.label} {self.name!r} belongs to another event loop")

    def _why_not_held(self) -> str:
        if self._engine.pid != current_pid():
            return "it belongs to the process that forked this one"
        if not self.live:
            return self.reason
        return "it is being released" if self._releasing else self.why_over()

    def why_over(self) -> str:
        """The reason when the deadline has passed."""
        # A renewal that is in doubt was sent: then the server was silent, whatever the loop did after that.
        doubted = self._state is LeaseState.UNKNOWN
        stalled = 0.0 if doubted else self._engine.watchdog.stalled(self.term.deadline)
        suspended = self._now() - self._engine.now()
        return self.term.why_over(stalled=stalled, suspended=suspended if suspended > _SUSPENDED else 0.0)

    async def wait_lost(self) -> None:
        if self._state is LeaseState.LOST:
            return
        if self._lost is None:
            self._lost = asyncio.Event()
        await self._lost.wait()

    async def wait_over(self) -> None:
        """Returns when it has ended, in whichever way."""
        if self._over is None:
            self._over = asyncio.Event()
        if self.live:
            await self._over.wait()

    # -- renewing

    def tend(self, now: float, steady: float) -> float:
        """The watchdog: does what is due, and says when to look again.

        `steady`: what the clock says that goes on while the machine is suspended.

        Infinity: never, or when the convoy that it is renewed with is looked at.
        """
        term = self.term
        moment = max(now, steady - self._ahead)
        if moment >= term.deadline:
            self.lose(self.why_over())
            return NEVER
        if moment >= term.next_end:
            reason = term.why_grace(term.deadline - moment)
            self._engine.events.stopping(self, reason)
            self.stop(reason)
        if self.renewal is not None:
            if term.renews:
                self._doubt("its renewal was not answered yet")
            return term.next_end
        if now < term.renewal_due:
            return term.due
        if not term.renews:  # it ends by itself, and may be lost before that
            term.renewal_due = NEVER
            owned = self.claim.owned(watch=self._watches(hears=self._engine.convoys.hears))
            self._question(Call(owned, self._told_owned, self._not_told, until=term.deadline))
        else:
            convoys = self._engine.convoys
            if not (self._pushed or term.limited) and convoys.take(self):
                return NEVER
            self.renew_alone(self.renewal_now(hears=convoys.hears))
        return self.next_look(now)

    def next_look(self, asked: float) -> float:
        """When to look again at a renewal that was sent then, unless it is answered before."""
        return min(asked + min(_PATIENCE, self.term.ttl / 6), self.term.next_end)

    def renew_alone(self, renewal: Command[Kept]) -> Call[Kept]:
        """Sends this renewal by itself."""
        make = self._renew_now if self.term.limited else None
        until = self.term.deadline
        call = Call(renewal, self._renewed, self.not_renewed, until=until, make=make)
        self._question(call)
        return call

    def _question(self, question: Call[Any]) -> None:
        self.renewal = question
        self._engine.send(question)

    def ask(self, *, changed: bool) -> None:
        """Asks whether it is still held: its key may have been `changed`, or the connection has ended."""
        if not self.live or self._releasing is not None:
            return
        self._drop_renewal()  # it may have been answered before the change
        self._pushed = changed
        self.term.renewal_due = self._engine.now()
        self._engine.watchdog.watch(self)

    def _watches(self, *, hears: bool) -> bool:
        """Whether the server, where it tells of changes, is to do so after the next request.

        Not after one that a change has caused: where the server remembers few keys, one would cause the next.
        """
        return not self._pushed and (hears or bool(self.watched))

    def _arm(self, keys: tuple[bytes, ...]) -> None:
        self._pushed = False
        if keys and self.watch is not None:
            self.watched = keys
            self._engine.tracked.arm(self.watch, keys)

    def _watched_by(self, call: Call[Any]) -> tuple[bytes, ...]:
        """The keys of whose changes the server tells, since that was answered."""
        return call.command.watched if self._engine.hears else ()

    def _told_owned(self, held: bool) -> None:  # noqa: FBT001 - a callback
        call, self.renewal = self.renewal, None
        assert isinstance(call, Call)
        if not held:
            self.taken_away(held)
            return
        self._arm(self._watched_by(call))
        self._engine.watchdog.watch(self)

    def _not_told(self, fault: Fault) -> None:
        self.renewal = None
        if fault.foreign:
            self.lose(str(fault.error))
        else:
            self._engine.watchdog.watch(self)

    def count_suspension(self) -> None:
        """The watchdog: the machine was suspended, so the lease is lost, or has that much less time."""
        if self._now() >= self.term.deadline:
            self.lose(self.why_over())
        else:
            suspended = self._now() - self._engine.now()
            self._ahead += suspended
            self.term.move(suspended)
            self._engine.watchdog.watch(self)

    def _renewed(self, held: Kept) -> None:
        call, self.renewal = self.renewal, None
        assert isinstance(call, Call)
        if not held:
            self.taken_away(held)
            return
        self._confirmed(call)
        self._engine.events.renewed((self,))

    def taken_away(self, answer: Kept) -> None:
        """The server does not have it as the holder."""
        if not (isinstance(answer, Stolen) and self._lost_to(answer.thief)):
            self.lose("the server no longer has it as the holder")

    def _lost_to(self, lease: bytes) -> bool:
        """Whether it was lost to the holder of that lease, which has taken its place by force."""
        from .stealing import holder_in  # noqa: PLC0415 - of few losses, and an import takes its time

        thief = holder_in(lease)
        # An owner that took it again may find the mark of an earlier loss.
        if thief is None or (thief.fencing_token or 0) <= self.fencing_token:
            return False
        self.lose_to(thief)
        return True

    def not_renewed(self, fault: Fault) -> None:
        """An error is not a loss: until the deadline it tries again, soon at first."""
        self.renewal = None
        if fault.foreign:
            self.lose(str(fault.error))
            return
        self._doubt(str(fault.error))
        self.term.retry(self._engine.now())
        self._engine.watchdog.watch(self)

    def _drop_renewal(self) -> None:
        renewal, self.renewal = self.renewal, None
        if isinstance(renewal, Call):
            self._engine.forget(renewal)
        elif renewal is not None:
            renewal.left()

    def _doubt(self, reason: str) -> None:
        if self._state is LeaseState.HELD:
            self._state = LeaseState.UNKNOWN
            self._engine.events.doubted(self, reason)

    def _confirmed(self, call: Call[Any]) -> None:
        """The server has it, by the renewal that was made last."""
        if not self.live:
            return
        sent = self._engine.moment(call.sent, call.sent_steady)
        self.confirmed(sent, clocks.steady() - self._engine.now(), self._watched_by(call))
        self._engine.watchdog.watch(self)

    def confirmed(self, sent: float, ahead: float, watched: tuple[bytes, ...]) -> None:
        """The server has had it since then for the ttl that was asked for last.

        Args:
            sent: Loop time right before that was sent.
            ahead: Seconds by which the loop's clock is behind the one that goes on.
            watched: Keys of whose changes the server tells from now on.
        """
        self._state = LeaseState.HELD
        self.term.confirmed(sent, self._asked_ttl)
        self._ahead = ahead
        self._arm(watched)

    def confirmed_with(self, other: Possession, watched: tuple[bytes, ...]) -> None:
        """As `confirmed`, by the request that has confirmed the other one, for the same ttl."""
        self._state = LeaseState.HELD
        self.term.confirmed_with(other.term)
        self._ahead = other._ahead
        self._arm(watched)

    def _renew_now(self) -> Command[Kept]:
        """A renewal as of now: its ttl must not reach past `max_hold`, however long it has waited."""
        return self.renewal_now(hears=self._engine.hears)

    def renewal_now(self, *, hears: bool) -> Command[Kept]:
        """A renewal; `hears`: whether the server tells of changes, which costs something to ask for each."""
        term = self.term
        self._asked_ttl = ttl = term.ttl_at(self._engine.now()) if term.limited else term.ttl
        return self.claim.renew(milliseconds(ttl), watch=self._watches(hears=hears))

    async def extend(self, ttl: float) -> None:
        """Sets another ttl from now on. See `Lease.extend`."""
        self.ensure_here()
        if self._extending is None:
            self._extending = asyncio.Lock()
        async with self._extending:  # the answer to an older one must not count behind a newer one
            self.ensure_held()
            await self._extend(ttl)

    async def _extend(self, ttl: float) -> None:
        engine, now, until = self._engine, self._engine.now(), self.term.deadline
        self.term.change(now, ttl)
        # A renewal under way asked for the ttl of before: its answer must not count any more.
        self._drop_renewal()
        watch = engine.watchdog.watch(self)
        if engine.ward is not None:
            engine.ward.again(watch)
        make = self._renew_now if self.term.limited else None
        call = await self._ask(self._renew_now(), until=until, make=make)
        if call is not None and self._releasing is None:
            self._confirmed(call)
        self.ensure_held()

    async def annotate(self, fields: Mapping[str, Any]) -> None:
        """Changes these fields of what stands beside it. See `Lease.annotate`."""
        self.ensure_here()
        self.ensure_held()
        await self._ask(self.claim.annotate(fields), until=self.term.deadline)
        self.ensure_held()

    async def _ask(
        self, command: Command[Any], *, until: float, make: Callable[[], Command[Any]] | None = None
    ) -> Call[Any] | None:
        """The call, if the server has it as the holder; if not, None, and it is lost."""
        engine = self._engine
        until = min(until, engine.now() + engine.settings.command_timeout)
        call, answered = engine.start(command, until=until, make=make, patient=True)
        try:
            held = await answered
        except LockError:
            if call.ended_by is not None and call.ended_by.foreign:
                self.lose(str(call.ended_by.error))
            self._ensure_not_lost()
            raise
        finally:
            engine.forget(call)
        if held:
            return call
        if self._releasing is None and self.live:
            self.taken_away(held)
        return None

    def _ensure_not_lost(self) -> None:
        if self.state is LeaseState.LOST:
            self.ensure_held()

    # -- the end

    def stop(self, reason: str) -> None:
        """Its body is to end while the lease is still held: the body is told, once."""
        if not self.live or self.term.stopping:
            return
        self.term.stopping = True
        self.stop_reason = reason
        if self.scope is not None:
            self.scope.cancel()

    def lose_to(self, thief: HolderInfo) -> None:
        """The lease was taken by force, by that holder."""
        from .._holders import in_words  # noqa: PLC0415 - as in `taken_away`

        if self.live:
            self.stolen_by = thief
            self.lose(f"it was stolen {in_words((thief,))}")

    def lose(self, reason: str) -> None:
        """Can no longer be relied on: each task that relies on it is told, once."""
        if not self.live:
            return
        self._end(LeaseState.LOST, reason)
        if self._lost is not None:
            self._lost.set()
        if self.scope is not None:
            if self.term.stopping and self.scope.unwinding:
                self._engine.events.outlasted(self)
            self.scope.cancel()
        self._engine.events.lost(self, self._engine.now() - self.granted_at, reason)

    def detach(self) -> None:
        """Ends the watch here: nobody looks after the lease any more, and the ttl runs."""
        self.ensure_held()
        self._engine.settle(self.claim)
        self._end(LeaseState.DETACHED, "it was detached")
        self._engine.events.detached(self, self._engine.now() - self.granted_at)

    def become(self, label: str) -> None:
        """Is less than it was, in place."""
        was, self.label = self.kind, label
        if self.watch is not None:
            self.watch.label = label
        if self.kind != was:
            self._engine.events.downgraded(self, self._engine.now() - self.granted_at, was)

    async def let_go(self, *, cancelled_by: asyncio.CancelledError | None) -> LockError | None:
        """Releases, and says what stood in the way. Goes on by itself behind a caller who is cancelled."""
        if self._releasing is None and self.live and self._now() >= self.term.deadline:
            self.lose(self.why_over())
        if not self.live:
            if self._state is LeaseState.LOST:
                self._give_back()
            if self._state is LeaseState.RELEASED:
                return None
            return self._not_owned()
        if self._releasing is None:
            # The order matters: no renewal may be sent after the release, and the next local waiter's try
            # must be sent right after it.
            self._forget()
            ring, ordered = self.gate.letting_go(self.claim), self._engine.ordered
            self._releasing = Releasing(
                self._engine,
                self.claim.end(ring=ring),
                until=self.term.deadline,
                on_end=self._let_gone,
                more=ordered and self.gate.awaited,
            )
            if ordered:
                self.gate.vacated(self.claim)
        releasing = self._releasing
        await wait_shielded(releasing.ended, cancelled_by=cancelled_by)
        if releasing.fault is not None:
            return releasing.fault.error
        return self._not_owned() if self._state is LeaseState.LOST else None

    def _not_owned(self) -> LockNotOwnedError:
        return LockNotOwnedError(self.label, self.name, self.reason, stolen_by=self.stolen_by)

    def _give_back(self) -> None:
        """The server may still have a lease that was lost by the local clock, or with the session.

        Or may have again: a server that hangs may execute the last renewal when it goes on.
        """
        if not self._given_back:
            self._given_back = True
            self._engine.take_back(self.claim.end(), LONGEST_DELAY, told=self._engine.wake_own)

    def _let_gone(self, releasing: Releasing) -> None:
        if self.live:
            self._end_with(releasing)
        self.gate.let_go(releasing.rung, overtaken=releasing.overtaken)

    def _end_with(self, releasing: Releasing) -> None:
        if releasing.fault is not None:
            self.lose("its release was not confirmed in time; the ttl frees it")
            self._give_back()
        elif releasing.thief and self._lost_to(releasing.thief):
            pass
        elif releasing.freed:
            self._end(LeaseState.RELEASED, "it was released")
            self._engine.events.released(self, self._engine.now() - self.granted_at)
        else:
            self.lose("the server no longer had it as the holder when it was released")

    def _end(self, state: LeaseState, reason: str) -> None:
        if not self.live:
            raise RuntimeError(f"a lease that is {self._state.name} cannot become {state.name}")
        self._state = state
        self.live = False
        self.reason = reason
        if self._over is not None:
            self._over.set()
        self._forget()
        self.gate.vacated(self.claim)

    def _forget(self) -> None:
        """Forgets it: nothing more is sent for the lease, nor heard of it."""
        if self.watch is not None:
            if self.watched:
                self._engine.tracked.disarm(self.watch, self.watched)
            self._engine.watchdog.forget(self)
        if self.renewal is not None:
            self._drop_renewal()
