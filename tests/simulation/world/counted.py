"""Rate limits and latches: what all processes of a schedule were admitted to, counted and waited for."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING

from aiolocks import Latch, LockTimeoutError, RateLimit, Session

from .excuses import Excused
from .schedule import DRIFT, Round

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .checkers import Referee

DRAWN = {"x": (20, 0.4, 3), "{x}y": (4, 0.4, 1)}
"""Limit, seconds and burst: one in 20 ms in the long run; and some requests want a second one: one in 100 ms,
and one at once, whatever they take of the first."""
PLANTED = {"quick": (20, 0.4, 3), "slow": (1, 60.0, 3)}
"""Those of schedules that say what they want."""
DEAD = 3.0
"""Seconds after which a killed process holds up no other one."""
STANDS_STILL = 0.5
"""Seconds for which a limit admits no waiter at most: less than after which a waiter asks by itself."""
STEPS = 2
PATIENCE = 1.5
"""Seconds that a task waits for a latch: less than after which it looks by itself."""
ROUNDING = 1e-6
SLACK = 0.02
"""Seconds for the work of loops."""


@dataclass
class _Admitted:
    """Permits that were taken; times of the world.

    Attributes:
        n: How many are used at least.
        most: The most that may have been in the bucket for it at any time.
    """

    at: float
    n: int
    who: str
    most: int


@dataclass(eq=False)
class _Waiter:
    """A request under way; times of the world.

    Attributes:
        passed_at: When one that came later took a permit that it waited for.
    """

    who: str
    amounts: dict[str, int]
    began: float
    passed_at: float = inf
    passed_by: str = ""


@dataclass
class _Limit:
    """What was admitted by one limit, and when a task gave up that waited for it."""

    limit: int
    per: float
    burst: int
    admitted: list[_Admitted] = field(default_factory=list)
    left_at: float = -inf

    def admits(self, n: int) -> float:
        """When the next waiter of so many is admitted, at the latest."""
        last = self.admitted[-1].at if self.admitted else -inf
        room = self._full_at([each.most for each in self.admitted]) - (self.burst - n) * self.per / self.limit
        return max(last, self.left_at, room)

    def lacks(self, n: int, at: float) -> bool:
        """Whether there were fewer than so many then, at the most."""
        left = max(0.0, self._full_at([each.n for each in self.admitted]) - at)
        return left + (n - self.burst) * self.per / self.limit > ROUNDING

    def _full_at(self, permits: list[int]) -> float:
        full_at = -inf
        for each, n in zip(self.admitted, permits, strict=True):
            full_at = max(full_at, each.at) + n * self.per / self.limit
        return full_at


@dataclass
class _Latch:
    """The steps of one latch; times of the world."""

    begun: list[float] = field(default_factory=list)
    done: list[float] = field(default_factory=list)
    unsure: bool = False

    @property
    def open_since(self) -> float:
        return sorted(self.done)[STEPS - 1] if len(self.done) >= STEPS else inf


class Counts:
    """The ledger of both.

    Args:
        travel: Seconds in which a request of the slowest process was executed.
        trip: Seconds in which one that is connected knows the answer, too.
    """

    def __init__(self, referee: Referee, *, travel: float, trip: float) -> None:
        self._referee = referee
        self._late = travel + SLACK
        self._trip = trip
        self._limits = {name: _Limit(*figures) for name, figures in (DRAWN | PLANTED).items()}
        self._waiters: list[_Waiter] = []
        self._latches: dict[str, _Latch] = {}

    def _explained(self, since: float, who: Iterable[str], *sorts: Excused) -> bool:
        """Whether anything in this time explains what one of these has done."""
        referee = self._referee
        return any(referee.excuses.explain(sort, one, since, referee.now) for one in who for sort in sorts)

    # -- rate limits

    async def admit(self, session: Session, one: Round) -> None:
        """Does something as often as one limit or two admit it; it may have used less or more then."""
        n, rng = one.want.permits, random.Random(one.part)
        names, drawn = one.want.names, one.want.names[0] not in PLANTED
        if drawn:
            names = ("x", "{x}y") if rng.random() < 0.4 else ("x",)
        amounts = dict(zip(names, (n, 1), strict=False))
        kept = [self._limits[name] for name in names]
        limits = [
            RateLimit(session, name, each.limit, per=each.per, burst=each.burst)
            for name, each in zip(names, kept, strict=True)
        ]
        limit = limits[0] if len(limits) == 1 else RateLimit.all_of(*limits)
        waiter = _Waiter(one.part, amounts, self._referee.now)
        self._waiters.append(waiter)
        try:
            if one.timeout == 0:
                decision = await limit.try_acquire(amounts)
            else:
                decision = await limit.acquire(amounts, blocking_timeout=one.timeout)
        except BaseException:
            for each in kept:
                each.left_at = self._referee.now
            raise
        finally:
            self._waiters.remove(waiter)
        if not decision:
            return
        if one.timeout != 0:
            self._must_be_in_turn(waiter)
        self._passes(waiter)
        self._referee.tell(one.part, f"is admitted with {n} by {' and '.join(names)}")
        taken = [_Admitted(self._referee.now, amounts[name], one.part, amounts[name]) for name in names]
        for each, admitted in zip(kept, taken, strict=True):
            each.admitted.append(admitted)
            self._look_at_windows(each)
        if one.doing == "settle":
            await asyncio.sleep(one.hold)
            actual = dict.fromkeys(names, 0)
        elif drawn and rng.random() < 0.3:
            await asyncio.sleep(rng.random() * 0.1)
            actual = {name: rng.randint(0, amount + 1) for name, amount in amounts.items()}
        else:
            return
        self._referee.tell(one.part, f"has used {actual}")
        for name, admitted in zip(names, taken, strict=True):
            admitted.n = min(admitted.n, actual[name])
            admitted.most = max(admitted.most, actual[name])
        await decision.settle(actual)

    def _look_at_windows(self, limit: _Limit) -> None:
        """By brute force: in each time that ends now there are no more than the bucket had, and got."""
        now, total = self._referee.now, 0
        within: set[str] = set()
        for each in reversed(limit.admitted):
            total += each.n
            within.add(each.who)
            lasted = (now - each.at) * (1 + DRIFT) + self._trip
            most = limit.burst + lasted * limit.limit / limit.per
            # A bucket that was lost is full again, and a task that stood still came later than its moment.
            since = each.at - limit.per
            if total > most and not self._explained(since, within, Excused.RESULT, Excused.LATE):
                self._referee.wrong(f"{total} were admitted in {now - each.at:.4f} s, since {each.who}")
                return

    def _must_be_in_turn(self, one: _Waiter) -> None:
        """Whoever has left or died before, a waiter is admitted as soon as others have what they took, and
        before those that came later."""
        now = self._referee.now
        since = max(self._limits[name].admits(n) for name, n in one.amounts.items())
        since = max(since, one.began + self._late)
        if now - since > STANDS_STILL + 4 * self._trip and not self._explained_by_any(since):
            names = " and ".join(one.amounts)
            self._referee.wrong(f"{one.who} was admitted {now - since:.3f} s after {names} had its permits")
        passed_at = one.passed_at
        if now - passed_at > self._trip and not self._explained_by_any(passed_at):
            self._referee.wrong(f"{one.passed_by} passed {one.who}, which came {now - passed_at:.3f} s later")

    def _passes(self, one: _Waiter) -> None:
        """A waiter whose turn has come, and that only has to ask, may be passed, but not at its cost."""
        now = self._referee.now
        for other in self._waiters:
            name, *more = other.amounts
            # One of several limits keeps none waiting while another of them holds it up.
            if more or name not in one.amounts or other.began + self._late >= one.began or other.passed_by:
                continue
            if self._limits[name].lacks(other.amounts[name] + one.amounts[name], now + self._trip):
                other.passed_at, other.passed_by = now, one.who

    def _explained_by_any(self, since: float) -> bool:
        referee = self._referee
        sorts = (
            Excused.IDLE,
            Excused.ERROR,
            Excused.UNANSWERED,
            Excused.LATE,
            Excused.RESULT,
            Excused.PLACE,
        )
        return any(referee.excuses.explain_any(sort, since - DEAD, referee.now) for sort in sorts)

    # -- latches

    async def meet(self, latch: Latch, one: Round, session: Session) -> None:
        """A task that does a step, and waits for those of others."""
        name, began = latch.name, self._referee.now
        here = self._latches.setdefault(name, _Latch())
        if random.Random(one.part).random() < 0.6:
            await self._count(latch, here, one, began)
        waits = self._referee.now
        timeout = PATIENCE if one.timeout is None else one.timeout
        try:
            await latch.wait(blocking_timeout=timeout)
        except LockTimeoutError:
            self._must_be_closed(session, here, one, waits)
        else:
            self._referee.tell(one.part, f"goes through {name}")
            if len(here.begun) < STEPS:
                self._referee.wrong(f"{one.part} went through {name} after {len(here.begun)} steps")

    async def _count(self, latch: Latch, here: _Latch, one: Round, began: float) -> None:
        sure = len(here.done)
        here.begun.append(began)
        try:
            left = await latch.count_down()
        except BaseException:
            here.unsure = True
            raise
        self._referee.tell(one.part, f"does a step of {latch.name}, and {left} are left")
        here.done.append(self._referee.now)
        least, most = max(0, STEPS - len(here.begun)), max(0, STEPS - 1 - sure)
        if not least <= left <= most and not self._explained(0.0, (one.part,), Excused.RESULT):
            self._referee.wrong(f"{one.part}: {left} steps of {latch.name} are left, not {least} to {most}")

    def _must_be_closed(self, session: Session, here: _Latch, one: Round, waits: float) -> None:
        """It opens at once for all who wait, and hear."""
        now = self._referee.now
        engine = session._engine
        since = max(here.open_since, waits)
        late = now - since > 3 * self._late + 0.1 and engine is not None and engine.hears
        excused = (Excused.RESULT, Excused.IDLE, Excused.UNANSWERED, Excused.ERROR)
        if late and not self._explained(0.0, (one.part,), *excused):
            self._referee.wrong(f"{one.part} still waits, {now - since:.3f} s after the latch was opened")
