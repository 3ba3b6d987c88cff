"""The rules that must hold in every schedule, looked at whenever somebody asks, gets in, lets go or gives
up."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from tests.support.history import Hold, Violation, Wait, fencing, fifo, phases

from . import limited
from .clockwork import Clockwork
from .excuses import Excused, Excuses
from .kinds import Kind, Want
from .thefts import Thefts

if TYPE_CHECKING:
    from .schedule import Crew

LATE = 0.02
"""Seconds by which a wait may outlast its time-out."""


@dataclass(eq=False)
class Attempt:
    """One call of acquire, and what became of it; times of the world.

    Attributes:
        owner: The owner, whose holdings do not exclude each other.
        limit: When it must have ended.
        idle: Seconds for which it may wait for something that is free.
        hold: The holdings, once granted.
        firm: Whether it could rely on that when it was told of it.
        hit: Whether it came without a request, for its session had kept the lease.
        written: Whether its block has ended without the answer to the release.
    """

    who: str
    want: Want
    invoked: float
    owner: str | None = None
    limit: float = math.inf
    idle: float = math.inf
    single: bool = False
    steals: bool = False
    lease: Any = None
    token: str = ""
    hold: Hold | None = None
    firm: bool = False
    hit: bool = False
    written: bool = False
    ended: float = math.inf
    free_since: float | None = None
    idle_told: bool = False
    refused: bool = False
    before: list[Hold] = field(default_factory=list)  # its holding before it was changed into less

    @property
    def session(self) -> str:
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
        self.excuses = Excuses()
        self.lost: list[tuple[float, str]] = []  # until then holders need not know
        self.renewed_within = 0.0  # seconds: so often a lease is renewed
        self._began: dict[str, float] = {}  # when each token was granted first: several may have it in turn
        self.thefts = Thefts()
        self.told_of: dict[Attempt, tuple[float, Crew]] = {}  # losses that the server tells of, and when
        self.known_after: list[tuple[Crew, float]] = []  # how long that took, to the end of the body
        self.overlaps: list[str] = []  # two holders of which one's lease was lost

    @property
    def now(self) -> float:
        return self._clockwork.now

    def tell(self, who: str, what: str) -> None:
        """Puts it into the trace."""
        self._told(who, what)

    def later(self, at: float, look: Callable[..., None], *what: Any) -> None:
        """Looks again at that time."""
        self._clockwork.at(at, look, *what)

    def wrong(self, what: str) -> None:
        self._told("REFEREE", what)
        self.violations.append(what)

    # -- what happens

    def asks(self, attempt: Attempt) -> None:
        self._told(attempt.who, f"asks for {attempt.want}")
        if not attempt.single:
            self.waiting[attempt] = None
            self._look()

    def gave_up(self, attempt: Attempt, how: str) -> None:
        self._told(attempt.who, how)
        attempt.ended = self.now
        attempt.refused = how.startswith("LockTimeoutError")
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
            session=attempt.session,
        )
        self._told(attempt.who, f"has {want}, fencing token {lease.fencing_token}")
        self._ended_in_time(attempt)
        self.waiting.pop(attempt, None)
        attempt.firm = attempt.relied_on
        attempt.hit = self._kind.cached and lease._possession.cached
        self._began.setdefault(lease.token, now)
        if attempt.hit:
            self._passes_nobody_by(attempt)
        if attempt.steals and not self.excuses.any:
            self._tells_its_own(attempt)
        if attempt.hit and not attempt.relied_on:
            self.wrong(f"{attempt.who} was given a lease that was over")
        self._exclude(attempt)
        self.holding[attempt] = None
        self.ended.append(attempt)
        if self._kind.strict or self._kind.limited:
            for waiter in self.waiting:  # one gets in after the other, each when it has heard or polled
                waiter.free_since = None
        self._look()

    def _passes_nobody_by(self, hit: Attempt) -> None:
        """Who waits is heard, at the latest when what is kept is renewed: nobody gets in by it after that."""
        for waiter in self.waiting:
            if waiter.session == hit.session or not _share(waiter, hit):
                continue
            since = max(waiter.invoked, self._began[hit.token])  # one that polls may have no seat by then
            heard = max(since + waiter.idle, self.excuses.until(Excused.IDLE, waiter.who))
            if self.now > heard + (self.renewed_within if self.excuses.any else 0.0):
                self.wrong(f"{hit.who} was given what {hit.session} keeps while {waiter.who} waits")

    def _tells_its_own(self, thief: Attempt) -> None:
        """A session knows at once what one of its tasks has taken from another one."""
        for other in self.holding:
            theft = self.thefts.of(other) if other.session == thief.session else None
            if theft and theft.fencing_token == thief.lease.fencing_token and other.relied_on:
                self.wrong(f"{other.who} relies on what its own session has taken from it")

    def weakened(self, attempt: Attempt, want: Want) -> None:
        """It is about to be less: from now on it may be relied on for that only."""
        assert attempt.hold is not None
        self._told(attempt.who, f"makes it {want}")
        before, after = attempt.hold.changed(self.now, math.inf, mode=want.mode, low=want.low, high=want.high)
        attempt.before.append(before)
        attempt.hold = after

    def was_weakened(self, attempt: Attempt) -> None:
        """It is less for certain."""
        attempt.before = [replace(hold, confirmed=min(hold.confirmed, self.now)) for hold in attempt.before]

    def lets_go(self, attempt: Attempt) -> None:
        assert attempt.hold is not None
        if attempt.hold.released < math.inf:
            return  # it has ended under another lease, that adopted it
        self._told(attempt.who, "lets go")
        if attempt in self.told_of and not attempt.relied_on:
            since, crew = self.told_of.pop(attempt)
            self.known_after.append((crew, self.now - since))
        end = self.now if attempt.relied_on else min(self.now, attempt.hold.deadline)
        attempt.hold = replace(attempt.hold, released=end)
        attempt.lease = None

    def left(self, attempt: Attempt) -> None:
        """It has let go for certain."""
        if attempt.hold is not None and attempt.hold.confirmed == math.inf:
            attempt.hold = replace(attempt.hold, confirmed=self.now)
        self.was_weakened(attempt)
        attempt.lease = None
        self.holding.pop(attempt, None)
        self._look()

    def expires(self, attempt: Attempt, at: float, *, found: float) -> None:
        """It ends by itself then, which nobody is told: the poll finds it, after `found` seconds at the
        latest."""

        def expired() -> None:
            self.excuses.give(Excused.IDLE, None, at, at + found)
            self.left(attempt)

        self._clockwork.at(at, expired)

    def died(self, attempt: Attempt, ttl: float) -> None:
        """Its process is gone: what it has ends by itself."""
        self.waiting.pop(attempt, None)
        if attempt in self.holding:
            self.lets_go(attempt)
            self.expires(attempt, self.now + ttl, found=ttl)

    # -- exclusion

    def exclude(self) -> None:
        """Looks at all holders."""
        for attempt in self.holding:
            self._exclude(attempt)

    def _exclude(self, attempt: Attempt) -> None:
        if not attempt.relied_on:
            return
        others = [other for other in self.holding if other is not attempt and other.relied_on]
        void = {one for one in (attempt, *others) if self._void(one)}
        if void:
            self.overlaps += [
                f"{other.who} and {attempt.who}"
                for other in others
                if void & {attempt, other} and self._conflict(attempt, other)
            ]
            if attempt in void:
                return
            others = [other for other in others if other not in void]
        if self._kind.limited:
            if wrong := limited.too_many(one.want.keys for one in (attempt, *others) if _share(attempt, one)):
                self.wrong(wrong)
            return
        if self._kind.capacity > 1:
            out = attempt.want.permits + sum(other.want.permits for other in others if _share(attempt, other))
            if out > self._kind.capacity:
                self.wrong(f"{out} permits out of {self._kind.capacity}")
            return
        for other in others:
            if self._conflict(attempt, other):
                self.wrong(f"two holders: {other.who} and {attempt.who}")

    def _void(self, attempt: Attempt) -> bool:
        """Whether a server has lost it, and its holder need not know yet."""
        if self.thefts.excuses(attempt, self.now):
            return True
        tokens = {attempt.token, attempt.lease.token}
        return any(
            self.now < until and any(token in stored for token in tokens) for until, stored in self.lost
        )

    def _conflict(self, one: Attempt, other: Attempt) -> bool:
        if not _share(one, other):
            return False
        if self._kind.limited:
            return not set(one.want.keys).isdisjoint(other.want.keys)
        return _as_hold(one).conflicts_with(_as_hold(other))

    # -- nothing lies idle

    def _free_for(self, waiter: Attempt) -> bool:
        """Whether nothing is in the way of this waiter, and of nobody before it."""
        if self._kind.limited:
            inside = [holder.want.keys for holder in self.holding if _share(waiter, holder)]
            return not limited.too_many((waiter.want.keys, *inside))
        if self._kind.capacity > 1:
            # Out of order, no waiter keeps permits back that are too few for it.
            out = sum(holder.want.permits for holder in self.holding if _share(waiter, holder))
            before = self.waiting if self._kind.strict else [waiter]
            wanted = max(other.want.permits for other in before if _share(waiter, other))
            return self._kind.capacity - out >= wanted
        if any(self._conflict(waiter, holder) for holder in self.holding):
            return False
        # Over several slots, a waiter that lacks one name has the others for a moment with each of its tries.
        if not (self._kind.spans or self._kind.stepwise) or not self.holding:
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
        since = max(waiter.free_since, self.excuses.until(Excused.IDLE, waiter.who))
        if self.now - since < waiter.idle - 1e-6:
            self._clockwork.at(since + waiter.idle, self._look_again, waiter)
            return
        waiter.idle_told = True
        self.wrong(f"free for {self.now - since:.3f} s while {waiter.who} waits")

    # -- time

    def _ended_in_time(self, attempt: Attempt) -> None:
        late = self.now - max(attempt.limit, self.excuses.until(Excused.LATE, attempt.who))
        if late > LATE:
            self.wrong(f"{attempt.who} waited for {late:.3f} s more than it may")

    # -- at the end

    def judge(
        self,
        seen: dict[str, float],
        readers: list[tuple[str, str, float]],
        turns: limited.Turns,
    ) -> None:
        """Rules that only the whole history shows.

        Args:
            seen: When a server first executed something for a token.
            readers: Token and process of each reader that a server let in, also for such a task, and when.
            turns: Of the lines of limits, as the server saw them.
        """
        holds = [hold for attempt in self.ended for hold in self._as_granted(attempt, seen)]
        kind = self._kind
        found = fencing(holds)
        if kind.cached and kind.topology in ("cluster", "sentinel"):
            found = [one for one in found if not self._of_two_masters(one)]
        if kind.limited:
            found += self._limited(seen, turns)
        any_order = kind.capacity > 1 or kind.limited or kind.spans or kind.nests or kind.steals
        if not (any_order or self.lost):
            firm = [attempt for attempt in self.ended if attempt.firm]
            found += _rising([hold for attempt in firm for hold in self._as_granted(attempt, seen)])
        if kind.strict:
            found += fifo(holds)
        if kind.phased:
            had = {attempt.token for attempt in self.ended}
            in_vain = [(process, when) for token, process, when in readers if token not in had]
            in_turn = [one for one in phases(holds) if not _turn_was_used(one, in_vain)]
            found += [one for one in in_turn if not any(map(self._was_displaced, one.evidence))]
        for violation in found:
            who = " and ".join(evidence.who for evidence in violation.evidence)
            self.wrong(f"{violation.what}: {who}")

    def _limited(self, seen: dict[str, float], turns: limited.Turns) -> list[Violation]:
        """The order within lines that can have one holder, and that between lines."""
        lines: dict[tuple[str, ...], list[Hold]] = {}
        for attempt in self.ended:
            for hold in self._as_granted(attempt, seen):
                lines.setdefault((hold.name, *attempt.want.keys), []).append(hold)
        found = [
            violation
            for line, holds in lines.items()
            if any(limited.CAPS[one] == 1 for one in line[1:])
            for violation in fifo(holds)
        ]
        tokens = {hold: attempt.token for attempt in self.ended for hold in self._as_granted(attempt, seen)}
        for name in {line[0] for line in lines}:
            wanted = {hold: line for line, holds in lines.items() if line[0] == name for hold in holds}
            found += [
                violation
                for violation in limited.turns(wanted, tokens, seen, turns)
                if not self._kept_for_others(violation.evidence[-1])
            ]
        return found

    def _of_two_masters(self, violation: Violation) -> bool:
        """Whether a hit has a number of a tenure that began before a grant of the other master.

        While a demoted master does not know of that, both grant, by their clocks. What a session keeps on
        one of them goes on from the number of its own grant.
        """
        before, later = ({one for one in self.ended if one.who == of.who} for of in violation.evidence)
        lost = any(one.token in stored for one in before | later for _, stored in self.lost)
        return lost and all(one.hit for one in later)

    def _kept_for_others(self, hold: Hold | Wait) -> bool:
        """Whether a waiter that heard nothing may have been called: permits are kept for it for a while."""
        assert isinstance(hold, Hold)
        return self.excuses.explain_any(Excused.PLACE, hold.invoked, hold.granted)

    def _was_displaced(self, hold: Hold | Wait) -> bool:
        """Whether a fault may have taken its place away while it waited, or what it had while it held it."""
        end = hold.ended if isinstance(hold, Wait) else min(hold.confirmed, hold.deadline)
        sorts = (Excused.PLACE, Excused.LEASE)
        return any(self.excuses.explain(sort, hold.who, hold.invoked, end) for sort in sorts)

    def _as_granted(self, attempt: Attempt, seen: dict[str, float]) -> list[Hold]:
        """The grant, for each name; not the later changes."""
        first = [*attempt.before, attempt.hold][0]
        assert first is not None
        # A single try passes nobody either, and has no place that it could lose.
        queued = attempt.ended if attempt.single else seen.get(attempt.token[:16])
        displaced = attempt.steals or self.thefts.befell(attempt)
        if displaced or self.excuses.explain(Excused.PLACE, attempt.who, attempt.invoked, first.granted):
            queued = None
        return [replace(first, name=name, queued=queued) for name in attempt.want.names]


def _rising(holds: list[Hold]) -> list[Violation]:
    """Where each excludes the next, the order in which they were had is that of their fencing tokens."""
    last: dict[str, Hold] = {}
    found = []
    for hold in sorted(holds, key=lambda hold: hold.granted):
        before = last.get(hold.name)
        if before is not None and before.fencing_token >= hold.fencing_token:  # type: ignore[operator]
            found.append(Violation("the later lease has no larger fencing token", (before, hold)))
        last[hold.name] = hold
    return found


def _turn_was_used(violation: Violation, in_vain: list[tuple[str, float]]) -> bool:
    """Whether the turn of its process went to another reader there, which had given up by then."""
    first, _, reader = violation.evidence
    return any(
        process == reader.session and first.released <= when <= reader.granted for process, when in in_vain
    )


def _share(one: Attempt, other: Attempt) -> bool:
    """Whether they want a name that both have."""
    return not set(one.want.names).isdisjoint(other.want.names)


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
