"""The part that a single try and a wait share: requests for one claim, and how they end.

All that happens between is decided in synchronous steps (replies, timers, the gate's turns); the task
that waits has one single point at which it can be cancelled, and is woken once.
"""

from __future__ import annotations

import asyncio
import functools
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..._transport import BEHIND, OWING, Call, Granted
from ...errors import BackendError, DeadlockError, LockError, LockTimeoutError
from ..clock import dependable
from ..notes import note
from .obstacles import holders, own_in_the_way
from .replicas import Acknowledgement
from .stages import Grant, Stage

if TYPE_CHECKING:
    from ..._holders import HolderInfo
    from ..._transport import Answer, Fault, Refused
    from ..claim import Claim
    from ..entered import Inside
    from ..possession import Possession
    from ..target import Target
    from .replicas import Outcome


class Acquiring(ABC):
    """One acquire: a request at a time, and whatever must be undone behind it.

    Invariants:
    - while it asks, exactly one request is under way, or one grant waits for replicas; else there is neither;
    - once it has ended without a grant that was handed over, the server has been told to undo whatever
      it may have granted, in order behind the request;
    - `done` is resolved exactly once, at the end: with a grant, an error, or neither, which means: refused.

    Args:
        blocking_timeout: Seconds after which its caller gives up, as messages tell; None: it does not.
    """

    __slots__ = (
        "_acknowledgement",
        "_call",
        "_engine",
        "_gate",
        "_inside",
        "_maybe_executed",
        "_refusal",
        "_standing",
        "_timeout",
        "_ttl",
        "answered_at",
        "claim",
        "done",
        "error",
        "grant",
        "stage",
        "started",
        "target",
    )

    def __init__(self, target: Target, claim: Claim, blocking_timeout: float | None) -> None:
        self._engine = engine = target.engine
        self._gate = target.gate
        self._ttl = target.options.first_ttl
        self._timeout = blocking_timeout
        self._call: Call[Answer] | None = None
        self._acknowledgement: Acknowledgement | None = None
        self._standing = 0  # of the request under way, or of the last one
        self._maybe_executed = False  # a send ended in silence: whether it was executed, nobody knows
        self._refusal: Refused | None = None  # the last one of its own
        self._inside: Inside = ()  # the leases that the waiting task has entered
        self.claim = claim
        self.stage = Stage.QUEUED
        self.started = engine.now()
        self.target = target
        self.answered_at = float("-inf")
        self.done: asyncio.Future[None] = engine.loop.create_future()
        self.grant: Grant | None = None
        self.error: LockError | None = None  # how it ended without a grant; None then means: refused

    @property
    def inside(self) -> Inside:
        """The leases that the waiting task has entered."""
        return self._inside

    # -- steps from outside

    def start(self) -> None:
        """Begins, for the task that runs now."""
        self._engine.waiting[self] = None
        self._inside = self._engine.entered.by(asyncio.current_task(self._engine.loop))

    def leave(self) -> None:
        """The task does not wait any more: nothing may stay held. Synchronous, no cancel can come between."""
        if self.stage is not Stage.ENDED:
            self._withdraw()
        elif self.grant is not None:
            self.grant = None
            self._engine.undo(self.claim, self._ttl)
            self._gate.vacated(self.claim)

    def end_with(self, error: LockError) -> None:
        """The session: this wait is over."""
        if self.stage is not Stage.ENDED:
            self._give_up(error)

    # -- asking

    @abstractmethod
    def _ask(self) -> None:
        """Sends a request, with how this one stands to others."""

    @abstractmethod
    def _ask_until(self) -> float:
        """Loop time at which nobody wants the answer any more."""

    def _send(self, standing: int, *, patient: bool) -> None:
        assert self._call is None, "a request is under way"
        assert self._acknowledgement is None, "a grant waits for replicas"
        self.stage = Stage.ASKING
        self._standing = standing
        self._call = Call(
            self.claim.acquire(self.target.options.first_ttl_ms, standing),
            self._answered,
            self._failed,
            until=self._ask_until(),
            patient=patient,
            on_late=self._engine.wake_own,
        )
        self._call.alone = standing & BEHIND != 0  # a lease that is let go of is for those before it
        self._engine.send(self._call)

    def _answered(self, answer: Answer) -> None:
        call, self._call = self._call, None
        assert call is not None
        now = self._engine.now()
        self.answered_at = now
        self._maybe_executed = False
        self._gate.answered(now)
        if not isinstance(answer, Granted):
            self._refused(answer, call, now)
            return
        if answer.rung:
            self._tell_rung(answer.rung)
        self._let_in(call)
        grant = Grant(answer, call.sent, call.sent_steady)
        if now >= self._engine.moment(call.sent, call.sent_steady) + dependable(self._ttl):
            # Its time was over before the reply was here: given back.
            self._engine.undo(self.claim, self._ttl)
            self._came_late(call, now)
        elif self.target.options.replicas:
            self._await_replicas(grant, elsewhere=call.elsewhere)
        else:
            self._have(grant, now)

    def _failed(self, fault: Fault) -> None:
        call, self._call = self._call, None
        assert call is not None
        # A foreign value may have stopped the script in the midst of its work.
        if call.unconfirmed or (fault.unknown and call.written) or fault.foreign:
            self._maybe_executed = True
        self._has_failed(fault)

    @abstractmethod
    def _refused(self, refusal: Refused, call: Call[Answer], now: float) -> None:
        """It cannot be had now, as the server says to this request."""

    def _let_in(self, call: Call[Answer]) -> None:  # noqa: B027 - a single try need not know
        """The server has granted it by this request."""

    @abstractmethod
    def _came_late(self, call: Call[Answer], now: float) -> None:
        """A grant was over when it came, and is given back."""

    @abstractmethod
    def _has_failed(self, fault: Fault) -> None:
        """A request has ended without an answer."""

    def _tell_rung(self, bells: Sequence[bytes]) -> None:
        if bells:
            self._engine.loop.call_soon(self._engine.bells.rung, "local", bells)

    # -- a grant

    def _have(self, grant: Grant, now: float) -> None:
        self.grant = grant
        self._end()
        # Whether its request has told others of what somebody here has let go of.
        carried = self._standing & OWING != 0
        self._gate.granted(self.claim, grant.answer, now, carried=carried)

    def _await_replicas(self, grant: Grant, *, elsewhere: bool) -> None:
        """A grant of the master counts when enough replicas have it too."""
        self._maybe_executed = True
        patience = self._engine.now() + self._engine.settings.command_timeout
        self._acknowledgement = Acknowledgement(
            self._engine,
            self.claim,
            self.target.options.replicas,
            what=str(self.target),
            sent=grant.sent,
            elsewhere=elsewhere,
            until=min(self._ask_until(), patience, grant.sent + dependable(self._ttl)),
            on_end=functools.partial(self._acknowledged, grant),
        )

    def _acknowledged(self, grant: Grant, outcome: Outcome) -> None:
        self._acknowledgement = None
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
        return own_in_the_way(self.claim, self._gate, self._inside, self._refusal, lasting=lasting)

    def _holders(self, now: float) -> tuple[HolderInfo, ...]:
        return holders(self.target.kind, self.claim, self._gate, self._refusal, now)

    def _deadlock(self) -> DeadlockError | None:
        """If the waiting task itself holds what is in the way, and for as long as it waits."""
        own = self._own_in_the_way(lasting=True)
        if own is None:
            return None
        return DeadlockError(self.target.label, self.target.name, held=f"{own.label} {own.name!r}")

    def timed_out(self, blocking_timeout: float) -> LockTimeoutError:
        """Tells of it, and names the holders."""
        now = self._engine.now()
        self._engine.events.timed_out(self.target.kind, self.target.name, now - self.started)
        refusal = self._refusal or self._gate.refusal
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
            kept=refusal is not None and self.claim.commands.kept(refusal),
        )

    def _endless(self) -> str:
        """That what is in the way has lost its ttl, and what frees it; empty where it has not."""
        return self.claim.endless(self._refusal or self._gate.refusal, self._engine.settings.prefix)

    # -- the end

    def _give_up(self, error: LockError) -> None:
        if isinstance(error, BackendError):
            note(error, f"aiolocks: {self.target} was not acquired")
        self.error = error
        self._withdraw()

    def _withdraw(self) -> None:
        """Ends it without a grant; undoes a request that may have been executed, after all that was sent."""
        if self._end_unanswered():
            self._engine.undo(self.claim, self._ttl)

    def _end_unanswered(self) -> bool:
        """Ends it; whether the server may execute, or may have executed, a request without an answer."""
        self._forget()
        self._end()
        return self._maybe_executed

    def _forget(self) -> None:
        """Nobody wants the answer to the request under way, if there is one."""
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
        if not self.done.done():
            self.done.set_result(None)
