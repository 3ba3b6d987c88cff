"""What must hold in every schedule, looked at whenever somebody asks, gets in, lets go or gives up."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from tests.support.history import Hold, Wait, fencing, fifo, phases, reservations

from .clockwork import Clockwork
from .faults import Strike
from .kinds import Kind, Want

LATE = 0.02
"""Seconds by which a wait may outlast its time-out."""


@dataclass(eq=False)
class Attempt:
    """One call of acquire, and what became of it; times of the world.

    Attributes:
        owner: Whose holdings do not exclude each other.
        limit: When it must have ended.
        idle: Seconds for which it may wait for something that is free.
        hold: What it has, once granted.
    """

    who: str
    want: Want
    invoked: float
    owner: str | None = None
    limit: float = math.inf
    idle: float = math.inf
    single: bool = False
    lease: Any = None
    token: str = ""
    hold: Hold | None = None
    ended: float = math.inf
    free_since: float | None = None
    idle_told: bool = False
    before: list[Hold] = field(default_factory=list)  # what it had before it was changed into less

    @property
    def process(self) -> str:
        return self.who.partition(".")[0]

    @property
    def relied_on(self) -> bool:
        """Whether its holder may rely on it now."""
        return self.lease is not None and self.lease.remaining() > 0.0


class Referee:
    """Watches everybody who wants the same thing."""

    def __init__(self, clockwork: Clockwork, kind: Kind, told: Callable[[str, str], None]) -> None:
        self._clockwork = clockwork
        self._kind = kind
        self._told = told
        self.waiting: dict[Attempt, None] = {}
        self.holding: dict[Attempt, None] = {}
        self.ended: list[Attempt] = []
        self.violations: list[str] = []
        self.slow_until = 0.0  # what lies idle or comes late before then is explained, whoever waits
        self.strikes: list[Strike] = []
        self.void_below = 0  # what has a smaller fencing token, the server has lost
        self.void_until = 0.0  # until when its holder need not know
        self.excused_until = 0.0  # errors before then, the faults explain

    @property
    def now(self) -> float:
        return self._clockwork.now

    def tell(self, who: str, what: str) -> None:
        """Puts it into the trace."""
        self._told(who, what)

    def wrong(self, what: str) -> None:
        self._told("REFEREE", what)
        self.violations.append(what)

    def struck(self, *targets: str, since: float = -math.inf, until: float = math.inf) -> bool:
        """Whether a fault of one of these may be noticed in that time."""
        return any(
            strike.target in targets and strike.at <= until and since <= strike.until
            for strike in self.strikes
        )

    def _slow_until(self, attempt: Attempt) -> float:
        own = [strike.until for strike in self.strikes if strike.target == attempt.process]
        return max([self.slow_until, *own])

    # -- what happens

    def asks(self, attempt: Attempt) -> None:
        self._told(attempt.who, f"asks for {attempt.want}")
        if not attempt.single:
            self.waiting[attempt] = None
            self._look()

    def gave_up(self, attempt: Attempt, how: str) -> None:
        self._told(attempt.who, how)
        attempt.ended = self.now
        self._ended_in_time(attempt)
        self.waiting.pop(attempt, None)
        self._look()

    def granted(self, attempt: Attempt, lease: Any) -> None:
        want, now = attempt.want, self.now
        attempt.ended = now
        attempt.lease = lease
        attempt.token = lease.token
        attempt.hold = Hold(
            who=attempt.who,
            invoked=attempt.invoked,
            granted=now,
            mode=want.mode,
            low=want.low,
            high=want.high,
            owner=attempt.owner,
            permits=want.permits,
            fencing_token=lease.fencing_token,
        )
        self._told(attempt.who, f"has {want}, fencing token {lease.fencing_token}")
        self._ended_in_time(attempt)
        self.waiting.pop(attempt, None)
        self._exclude(attempt)
        self.holding[attempt] = None
        self.ended.append(attempt)
        if self._kind.strict:
            for waiter in self.waiting:  # one gets in after the other, each when it has heard or polled
                waiter.free_since = None
        self._look()

    def weakened(self, attempt: Attempt, want: Want) -> None:
        """It is about to be less: from now on it may be relied on for that only."""
        assert attempt.hold is not None
        self._told(attempt.who, f"makes it {want}")
        before, after = attempt.hold.changed(self.now, self.now, mode=want.mode, low=want.low, high=want.high)
        attempt.before.append(before)
        attempt.hold = after

    def lets_go(self, attempt: Attempt) -> None:
        assert attempt.hold is not None
        self._told(attempt.who, "lets go")
        end = self.now if attempt.relied_on else min(self.now, attempt.hold.deadline)
        attempt.hold = replace(attempt.hold, released=end)
        attempt.lease = None

    def left(self, attempt: Attempt) -> None:
        """It has let go for certain."""
        if attempt.hold is not None and attempt.hold.confirmed == math.inf:
            attempt.hold = replace(attempt.hold, confirmed=self.now)
        attempt.lease = None
        self.holding.pop(attempt, None)
        self._look()

    def expires(self, attempt: Attempt, at: float, *, found: float) -> None:
        """It ends by itself then, which nobody is told: the poll finds it, after `found` seconds at the
        latest."""

        def expired() -> None:
            self.slow_until = max(self.slow_until, self.now + found)
            self.left(attempt)

        self._clockwork.at(at, expired)

    def died(self, attempt: Attempt, ttl: float) -> None:
        """Its process is gone: what it has ends by itself."""
        self.waiting.pop(attempt, None)
        if attempt in self.holding:
            self.lets_go(attempt)
            self.expires(attempt, self.now + ttl, found=ttl)

    # -- exclusion

    def _exclude(self, attempt: Attempt) -> None:
        if not attempt.relied_on or self._void(attempt):
            return
        others = [
            other
            for other in self.holding
            if other is not attempt and other.relied_on and not self._void(other)
        ]
        if self._kind.capacity > 1:
            out = attempt.want.permits + sum(other.want.permits for other in others)
            if out > self._kind.capacity:
                self.wrong(f"{out} permits out of {self._kind.capacity}")
            return
        for other in others:
            if self._conflict(attempt, other):
                self.wrong(f"two holders: {other.who} and {attempt.who}")

    def _void(self, attempt: Attempt) -> bool:
        return self.now < self.void_until and attempt.lease.fencing_token < self.void_below

    def _conflict(self, one: Attempt, other: Attempt) -> bool:
        if not set(one.want.names) & set(other.want.names):
            return False
        return _as_hold(one).conflicts_with(_as_hold(other))

    # -- nothing lies idle

    def _free_for(self, waiter: Attempt) -> bool:
        """Whether nothing is in the way of this waiter, and of nobody before it."""
        if self._kind.capacity > 1:
            free = self._kind.capacity - sum(holder.want.permits for holder in self.holding)
            return free >= max(waiting.want.permits for waiting in self.waiting)
        if any(self._conflict(waiter, holder) for holder in self.holding):
            return False
        if not self._kind.spans or not self.holding:
            return True
        return not any(self._conflict(waiter, other) for other in self.waiting if other is not waiter)

    def _look(self) -> None:
        for waiter in self.waiting:
            if not self._free_for(waiter):
                waiter.free_since = None
            elif waiter.free_since is None:
                waiter.free_since = self.now
                self._clockwork.after(waiter.idle, self._look_again, waiter)

    def _look_again(self, waiter: Attempt) -> None:
        if waiter not in self.waiting or waiter.free_since is None or waiter.idle_told:
            return
        since = max(waiter.free_since, self._slow_until(waiter))
        if self.now - since < waiter.idle - 1e-6:
            self._clockwork.at(since + waiter.idle, self._look_again, waiter)
            return
        waiter.idle_told = True
        self.wrong(f"free for {self.now - since:.3f} s while {waiter.who} waits")

    # -- time

    def _ended_in_time(self, attempt: Attempt) -> None:
        late = self.now - max(attempt.limit, self._slow_until(attempt))
        if late > LATE:
            self.wrong(f"{attempt.who} waited for {late:.3f} s more than it may")

    # -- at the end

    def judge(self, seen: dict[str, float]) -> None:
        """What only the whole history shows; `seen` is when a server first executed something for a token."""
        holds = [hold for attempt in self.ended for hold in self._as_granted(attempt, seen)]
        found = fencing(holds)
        if self._kind.strict:
            found += [violation for violation in fifo(holds) if not self._place_lost(violation.evidence[0])]
        # Of intervals, not every writer that waits reserves.
        if self._kind.name == "rwlock" and not self.excused_until:
            found += reservations(holds) + phases(holds)
        for violation in found:
            who = " and ".join(evidence.who for evidence in violation.evidence)
            self.wrong(f"{violation.what}: {who}")

    def _place_lost(self, hold: Hold | Wait) -> bool:
        """Whether a fault of its own process, or of the server, may have cost this waiter its place."""
        assert isinstance(hold, Hold)
        assert hold.queued is not None
        targets = (hold.who.partition(".")[0], *self._kind.hosts)
        return self.struck(*targets, since=hold.queued, until=hold.granted)

    def _as_granted(self, attempt: Attempt, seen: dict[str, float]) -> list[Hold]:
        """What it got, for each name; not what it became later."""
        first = [*attempt.before, attempt.hold][0]
        assert first is not None
        # A single try passes nobody either, and has no place that it could lose.
        queued = attempt.ended if attempt.single else seen.get(attempt.token[:16])
        return [replace(first, name=name, queued=queued) for name in attempt.want.names]


def _as_hold(attempt: Attempt) -> Hold:
    if attempt.hold is not None:
        return attempt.hold
    want = attempt.want
    return Hold(
        who=attempt.who,
        invoked=attempt.invoked,
        granted=0.0,
        mode=want.mode,
        low=want.low,
        high=want.high,
        owner=attempt.owner,
    )
