"""Possession as a state machine: from the grant to its end, whichever it is.

```
HELD ⇄ UNKNOWN        a renewal went unanswered, and time is left / it was answered after all
HELD, UNKNOWN → LOST, RELEASED, DETACHED
```

It may be relied on until its local deadline: the time right before the request that the server confirmed
last, plus the ttl, less a drift of 1 % and 2 ms. When Redis is silent, this clock alone decides.

Everything but `let_go` and `extend` is synchronous: replies and timers drive it.
"""

from __future__ import annotations

import asyncio
import enum
import os
from typing import TYPE_CHECKING, Final, final

from .._transport import Call, Fault
from ..errors import BackendError, LockLostError, LockNotOwnedError
from .clock import dependable, milliseconds
from .releasing import Releasing
from .shield import outlast

if TYPE_CHECKING:
    from .claim import Claim
    from .gate import Gate
    from .scope import LossScope
    from .session import Session
    from .watchdog import Watch

_RENEWALS_PER_TTL: Final = 3
_GRID: Final = 32
"""Renewals fall on a grid of ttl / 32, so that those of many leases leave in one write."""
_PATIENCE: Final = 1.0
"""Seconds after which an unanswered renewal makes it UNKNOWN; less for a short ttl."""
_RETRY: Final = 0.02
"""Seconds before a failed renewal is tried again; doubled each time, up to ttl / 12."""
_NEVER: Final = float("inf")


class LeaseState(enum.Enum):
    """What may be said of a lease.

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
    """What one grant has become.

    Invariants:
    - the state leaves HELD / UNKNOWN once, and only through `_end`;
    - the deadline is never later than the end of the lease on the server, if both clocks run alike;
    - at most one renewal is under way, and none once a release was sent.

    Args:
        ttl: Seconds that each renewal asks for.
        max_hold: Seconds after which it is lost whatever renewals could do.
        sent: Loop time right before the granted request was sent.
    """

    __slots__ = (
        "__weakref__",
        "_at_limit",
        "_auto_renew",
        "_hold_end",
        "_lost",
        "_pid",
        "_releasing",
        "_renewal",
        "_renewal_due",
        "_renewal_ttl",
        "_retries",
        "_session",
        "_state",
        "claim",
        "deadline",
        "fencing_token",
        "gate",
        "granted_at",
        "kind",
        "name",
        "reason",
        "scope",
        "ttl",
        "watch",
    )

    def __init__(
        self,
        session: Session,
        gate: Gate,
        claim: Claim,
        *,
        kind: str,
        name: str,
        fencing_token: int,
        ttl: float,
        max_hold: float | None,
        auto_renew: bool,
        sent: float,
    ) -> None:
        self._session = session
        self._auto_renew = auto_renew
        self._hold_end = None if max_hold is None else sent + max_hold
        self._state = LeaseState.HELD
        self._lost: asyncio.Event | None = None
        self._releasing: Releasing | None = None
        self._renewal: Call[bool] | None = None
        self._renewal_due = 0.0
        self._renewal_ttl = ttl  # what the renewal under way asks for
        self._retries = 0
        self._at_limit = False  # what the server has reaches to the end of max_hold
        self._pid = os.getpid()
        self.claim = claim
        self.fencing_token = fencing_token
        self.gate = gate
        self.granted_at = sent
        self.kind = kind
        self.name = name
        self.ttl = ttl
        self.deadline = 0.0
        self.reason = ""  # why it has ended
        self.scope: LossScope | None = None  # the body that has entered it
        self.watch: Watch | None = None  # the watchdog's
        self._confirmed(sent, self._ttl_at(sent))

    # -- what may be said of it

    @property
    def live(self) -> bool:
        return self._state is LeaseState.HELD or self._state is LeaseState.UNKNOWN

    @property
    def state(self) -> LeaseState:
        """LOST as soon as the deadline has passed, even before anybody was told."""
        if self.live and self._session.now() >= self.deadline:
            return LeaseState.LOST
        return self._state

    @property
    def label(self) -> str:
        """How messages call it."""
        return self.kind.capitalize()

    @property
    def due(self) -> float:
        """Loop time at which `tend` has something to do next."""
        return min(self._renewal_due, self.deadline)

    def remaining(self) -> float:
        """Seconds that the holder may still rely on."""
        if not self.live or self._releasing is not None or self._pid != os.getpid():
            return 0.0
        return max(0.0, self.deadline - self._session.now())

    def ensure_held(self) -> None:
        """Raises `LockLostError` unless it may be relied on now."""
        if self.remaining() <= 0.0:
            raise LockLostError(self.label, self.name, self._why_not_held())

    def ensure_this_process(self) -> None:
        """Raises `LockNotOwnedError` in a process that was forked from the holder."""
        if self._pid != os.getpid():
            raise LockNotOwnedError(self.label, self.name, self._why_not_held())

    def _why_not_held(self) -> str:
        if self._pid != os.getpid():
            return "it belongs to the process that forked this one"
        if not self.live:
            return self.reason
        return "it is being released" if self._releasing else self._too_late()

    def _too_late(self) -> str:
        if self._at_limit:
            return "max_hold has passed"
        if not self._auto_renew:
            return "its ttl passed, and auto_renew is off"
        return "its ttl passed without a confirmed renewal"

    async def wait_lost(self) -> None:
        if self._state is LeaseState.LOST:
            return
        if self._lost is None:
            self._lost = asyncio.Event()
        await self._lost.wait()

    # -- renewing

    def tend(self, now: float) -> float:
        """The watchdog: does what is due, and says when to look again (infinity: never)."""
        if now >= self.deadline:
            self.lose(self._too_late())
            return _NEVER
        if self._renewal is not None:
            self._doubt("its renewal was not answered yet")
            return self.deadline
        if now < self._renewal_due:
            return self.due
        self._renewal_ttl = ttl = self._ttl_at(now)
        renew = self.claim.renew(milliseconds(ttl))
        self._renewal = Call(renew, self._renewed, self._not_renewed, until=self.deadline)
        self._session.send(self._renewal)
        return min(now + min(_PATIENCE, self.ttl / 6), self.deadline)

    def _renewed(self, held: bool) -> None:  # noqa: FBT001 - a callback
        call, self._renewal = self._renewal, None
        assert call is not None
        if not held:
            self.lose("the server no longer has it as the holder")
            return
        self._retries = 0
        self._confirmed(call.sent, self._renewal_ttl)
        self._session.watchdog.watch(self)
        self._session.events.renewed(self)

    def _not_renewed(self, fault: Fault) -> None:
        """An error is not a loss: until the deadline it tries again, soon at first."""
        self._renewal = None
        if fault.foreign:
            self.lose(str(fault.error))
            return
        self._doubt(str(fault.error))
        self._renewal_due = self._session.now() + min(_RETRY * 2**self._retries, self.ttl / 12)
        self._retries = min(self._retries + 1, 16)
        self._session.watchdog.watch(self)

    def _drop_renewal(self) -> None:
        if self._renewal is not None:
            self._session.forget(self._renewal)
            self._renewal = None

    def _doubt(self, reason: str) -> None:
        if self._state is LeaseState.HELD:
            self._state = LeaseState.UNKNOWN
            self._session.events.doubted(self, reason)

    def _ttl_at(self, sent: float) -> float:
        """The ttl to ask for at that time: never past `max_hold`."""
        if self._hold_end is None:
            return self.ttl
        return max(0.001, min(self.ttl, self._hold_end - sent))

    def _confirmed(self, sent: float, ttl: float) -> None:
        """The server has it for `ttl` seconds, counted from before the request was sent."""
        self._state = LeaseState.HELD
        self.deadline = sent + dependable(ttl)
        self._at_limit = self._hold_end is not None and sent + ttl >= self._hold_end - 0.001
        if self._at_limit or not self._auto_renew:
            self._renewal_due = _NEVER
            return
        grid = self.ttl / _GRID
        self._renewal_due = (sent + self.ttl / _RENEWALS_PER_TTL) // grid * grid

    async def extend(self, ttl: float) -> None:
        """Sets another ttl from now on. See `Lease.extend`."""
        self.ensure_this_process()
        self.ensure_held()
        session, now = self._session, self._session.now()
        self.ttl = ttl
        granted = self._ttl_at(now)
        # Until the answer is here, the shorter of both times counts. A renewal under way asked for the ttl
        # of before: its answer must not count any more.
        until, self.deadline = self.deadline, min(self.deadline, now + dependable(granted))
        self._drop_renewal()
        session.watchdog.watch(self)
        call, renewed = session.start(
            self.claim.renew(milliseconds(granted)), until=min(until, now + session.command_timeout)
        )
        try:
            held = await renewed
        except BackendError:
            if self._releasing is None:
                self.ensure_held()
            raise
        finally:
            session.forget(call)
        if not held:
            self.lose("the server no longer has it as the holder")
        elif self.live and self._releasing is None:
            self._confirmed(call.sent, granted)
            session.watchdog.watch(self)
        self.ensure_held()

    # -- the end

    def lose(self, reason: str) -> None:
        """Can no longer be relied on: whoever relies on it is told, once."""
        if not self.live:
            return
        self._end(LeaseState.LOST, reason)
        if self._lost is not None:
            self._lost.set()
        if self.scope is not None:
            self.scope.cancel()
        self._session.events.lost(self, self._session.now() - self.granted_at, reason)

    def detach(self) -> None:
        """Nobody here looks after it any more; the ttl runs."""
        self.ensure_held()
        self._end(LeaseState.DETACHED, "it was detached")

    async def let_go(self, *, hurried: bool) -> BackendError | LockNotOwnedError | None:
        """Releases, and says what stood in the way. Goes on by itself behind a caller who is cancelled."""
        if self._releasing is None and self.live and self._session.now() >= self.deadline:
            self.lose(self._too_late())
        if not self.live:
            if self._state is LeaseState.LOST and self._releasing is None:
                await self._give_back()
            if self._state is LeaseState.RELEASED:
                return None
            return LockNotOwnedError(self.label, self.name, self.reason)
        if self._releasing is None:
            # In this order: no renewal may be sent behind the release, and the next local waiter's try is to
            # be sent right behind it.
            self._session.watchdog.forget(self)
            self._drop_renewal()
            self._releasing = Releasing(
                self._session, self.claim.release(), until=self.deadline, on_end=self._let_gone
            )
            self.gate.vacated(self.claim)
        releasing = self._releasing
        await outlast(releasing.ended, hurried=hurried)
        if releasing.fault is not None:
            return releasing.fault.error
        if self._state is LeaseState.LOST:
            return LockNotOwnedError(self.label, self.name, self.reason)
        return None

    async def _give_back(self) -> None:
        """What was lost by our clock, or with the session, the server may still have."""
        self._releasing = Releasing(self._session, self.claim.release(), until=None)
        if self._session.closing:
            await outlast(self._releasing.ended, hurried=True)

    def _let_gone(self, releasing: Releasing) -> None:
        if releasing.fault is not None:
            self.lose("its release was not confirmed in time; the ttl frees it")
        elif releasing.freed:
            self._end(LeaseState.RELEASED, "it was released")
            self._session.events.released(self, self._session.now() - self.granted_at)
        else:
            self.lose("the server no longer had it as the holder when it was released")

    def _end(self, state: LeaseState, reason: str) -> None:
        if not self.live:
            raise RuntimeError(f"a lease that is {self._state.name} cannot become {state.name}")
        self._state = state
        self.reason = reason
        self._session.watchdog.forget(self)
        self._drop_renewal()
        self.gate.vacated(self.claim)
