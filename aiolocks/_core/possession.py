"""Possession as a state machine: from the grant to its end, whichever it is.

Its states are those of `LeaseState`. It may be relied on until its local deadline: the time right before the
request that the server confirmed last, plus the ttl, less a drift of 1 % and 2 ms. When Redis is silent, this
clock alone decides.

With a `grace`, the body is told to stop that long before the deadline, and unwinds while the lease is still
held. The lease is renewed meanwhile if the server answers, which does not call the body back.

All of it is synchronous but for waiting for the end: replies and timers drive it.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, final

from .._transport import Kept, Stolen, clocks
from ..errors import LockLostError, LockNotOwnedError
from .process import current_pid
from .states import DETACHED, RELEASED, End, LeaseState
from .term import Term

if TYPE_CHECKING:
    from .._holders import HolderInfo
    from .claim import Claim
    from .renewal import Watch
    from .scope import BodyScope
    from .target import Target

_ARMED_AFTER: Final = 0.05
"""Seconds after the grant at which the server is asked to tell of a loss: a shorter hold costs no request."""


@final
class Possession:
    """The state machine of one grant, from the grant to its end.

    Invariants:
    - it ends once, and only through `_end`;
    - the deadline is never later than the end of the lease on the server, if both clocks run alike;
    - the body is told to stop at most once, and, with a `grace`, never later than that before the deadline,
      unless the event loop did not run or the lease was lost at once;
    - it has a watch until it ends or a release is sent, and is renewed only by that.

    Args:
        sent: Loop time right before the granted request was sent, as `Engine.moment` counts it.

    Attributes:
        end: How it has ended.
        scope: The body that has entered it.
        stop_reason: Why the body was told to stop before the end.
        watch: The watchdog's.
    """

    __slots__ = (
        "__weakref__",
        "_lost",
        "_over",
        "claim",
        "end",
        "engine",
        "fencing_token",
        "gate",
        "granted_at",
        "label",
        "name",
        "scope",
        "stop_reason",
        "term",
        "watch",
    )

    def __init__(
        self,
        target: Target,
        claim: Claim,
        fencing_token: int,
        sent: float,
    ) -> None:
        engine, options = target.engine, target.options
        self._lost: asyncio.Event | None = None
        self._over: asyncio.Event | None = None
        self.claim = claim
        self.end: End | None = None
        self.engine = engine
        self.fencing_token = fencing_token
        self.gate = target.gate
        self.granted_at = sent
        self.label = target.label
        self.name = target.name
        self.term = Term(
            sent,
            ttl=options.ttl,
            max_hold=options.max_hold,
            auto_renew=options.auto_renew,
            grace=options.grace,
            ahead=clocks.steady() - engine.now(),
        )
        if engine.hears:
            self.term.ask_by(sent + _ARMED_AFTER)
        self.scope: BodyScope | None = None
        self.stop_reason = ""
        self.watch: Watch | None = None

    # -- what may be said of it

    @property
    def live(self) -> bool:
        """Whether it has not ended, as far as anybody was told."""
        return self.end is None

    @property
    def lost(self) -> bool:
        """Whether it has ended so."""
        return self.end is not None and self.end.state is LeaseState.LOST

    @property
    def overdue(self) -> bool:
        """Whether its deadline has passed, and nobody was told yet."""
        term = self.term
        return self.end is None and term.moment(self.engine.now(), clocks.steady()) >= term.deadline

    @property
    def state(self) -> LeaseState:
        """LOST as soon as the deadline has passed, even before anybody was told."""
        if self.end is not None:
            return self.end.state
        if self.overdue:
            return LeaseState.LOST
        return LeaseState.UNKNOWN if self.term.doubted else LeaseState.HELD

    @property
    def holds(self) -> bool:
        """Whether it is held, for all that is known here, and nobody lets go of it."""
        return not self.term.doubted and self.remaining() > 0.0

    @property
    def kind(self) -> str:
        return self.label.lower()

    def remaining(self) -> float:
        """Seconds that the holder may still rely on."""
        if self.watch is None or self.engine.pid != current_pid():
            return 0.0
        term = self.term
        return max(0.0, term.deadline - term.moment(self.engine.now(), clocks.steady()))

    def ensure_held(self) -> None:
        """Raises `LockLostError` unless it may be relied on now."""
        if self.remaining() <= 0.0:
            # Not lost, but used in a fork, or after its holder has let go of it.
            lost = self.state is LeaseState.LOST
            raise self.loss(self._why_not_held(), lost=lost)

    def loss(self, reason: str, *, lost: bool = True) -> LockLostError:
        """The error for a lease that cannot be relied on."""
        thief = None if self.end is None else self.end.stolen_by
        return LockLostError(self.label, self.name, reason, lost=lost, stolen_by=thief)

    def not_owned(self) -> LockNotOwnedError:
        """The error for a lease that has ended, and cannot be let go of."""
        assert self.end is not None, "it can be let go of"
        return LockNotOwnedError(self.label, self.name, self.end.reason, stolen_by=self.end.stolen_by)

    def ensure_this_process(self) -> None:
        """Raises in a fork of the holder."""
        if self.engine.pid != current_pid():
            raise LockNotOwnedError(self.label, self.name, self._why_not_held())

    def ensure_here(self) -> None:
        """Raises unless this is the process and the event loop of the holder."""
        self.ensure_this_process()
        if asyncio.get_running_loop() is not self.engine.loop:
            raise RuntimeError(f"this lease of {self.label} {self.name!r} belongs to another event loop")

    def _why_not_held(self) -> str:
        if self.engine.pid != current_pid():
            return "it belongs to the process that forked this one"
        if self.end is not None:
            return self.end.reason
        return "it is being released" if self.watch is None else self.why_over()

    def why_over(self) -> str:
        """The reason when the deadline has passed."""
        # A renewal that is in doubt was sent: then the server was silent, whatever the loop did after that.
        now, term = self.engine.now(), self.term
        stalled = 0.0 if term.doubted else self.engine.watchdog.stalled(term.deadline)
        return term.why_over(stalled=stalled, suspended=term.moment(now, clocks.steady()) - now)

    async def wait_lost(self) -> None:
        if self.lost:
            return
        if self._lost is None:
            self._lost = asyncio.Event()
        await self._lost.wait()

    async def wait_over(self) -> None:
        """Returns when it has ended, in whichever way."""
        if self._over is None:
            self._over = asyncio.Event()
        if self.end is None:
            await self._over.wait()

    # -- while it is held

    def doubt(self, reason: str) -> None:
        """A renewal was not answered, or by an error."""
        if not self.term.doubted:
            self.term.doubted = True
            self.engine.events.doubted(self, reason)

    def begin_grace(self, left: float) -> None:
        """Its body is to stop now, while there is that time left."""
        reason = self.term.why_grace(left)
        self.engine.events.stopping(self, reason)
        self.stop(reason)

    def stop(self, reason: str) -> None:
        """Its body is to end while the lease is still held: the body is told, once."""
        if self.end is not None or self.term.stopping:
            return
        self.term.stopping = True
        self.stop_reason = reason
        if self.scope is not None:
            self.scope.cancel(f"{self.label} {self.name!r}: {reason}")

    def become(self, label: str) -> None:
        """Is less than it was, in place."""
        was, self.label = self.kind, label
        if self.watch is not None:
            self.watch.label = label
        if self.kind != was:
            self.engine.events.downgraded(self, self.engine.now() - self.granted_at, was)

    # -- the end

    def taken_away(self, answer: Kept) -> None:
        """The server does not have it as the holder."""
        if not (isinstance(answer, Stolen) and self.lost_to(answer.thief)):
            self.lose("the server no longer has it as the holder")

    def lost_to(self, lease: bytes) -> bool:
        """Whether the holder of that lease has taken it by force, and so it is lost."""
        from .stealing import lost_to  # noqa: PLC0415 - of few losses, and an import takes its time

        return lost_to(self, lease)

    def lose(self, reason: str, thief: HolderInfo | None = None) -> None:
        """Can no longer be relied on: each task that relies on it is told, once."""
        if self.end is not None:
            return
        self._end(End(LeaseState.LOST, reason, thief))
        if self._lost is not None:
            self._lost.set()
        if self.scope is not None:
            if self.term.stopping and self.scope.unwinding:
                self.engine.events.outlasted(self)
            self.scope.cancel(f"{self.label} {self.name!r} was lost: {reason}")
        self.engine.events.lost(self, self.engine.now() - self.granted_at, reason)

    def released(self) -> None:
        """The server has freed it."""
        self._end(RELEASED)
        self.engine.events.released(self, self.engine.now() - self.granted_at)

    def detach(self) -> None:
        """Ends the watch here: nobody looks after the lease any more, and the ttl runs."""
        self.ensure_held()
        self.engine.settle(self.claim)
        self._end(DETACHED)
        self.engine.events.detached(self, self.engine.now() - self.granted_at)

    def _end(self, end: End) -> None:
        if self.end is not None:
            raise RuntimeError(f"a lease that is {self.end.state.name} cannot become {end.state.name}")
        self.end = end
        if self._over is not None:
            self._over.set()
        self.leave_watch()
        self.gate.vacated(self.claim)

    def leave_watch(self) -> None:
        """Nothing more is sent for the lease, nor heard of it."""
        watch, self.watch = self.watch, None
        if watch is not None:
            watch.end(self.engine)
