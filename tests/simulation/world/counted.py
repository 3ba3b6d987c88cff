"""Rate limits and latches: what all processes of a schedule were admitted to, counted and waited for."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING

from aiolocks import Latch, LockTimeoutError, RateLimit, Session

from .excuses import Excused
from .schedule import Round

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .checkers import Referee

LIMIT, PER, BURST = 20, 0.4, 3
"""One in 20 ms, in the long run."""
STEPS = 2
PATIENCE = 1.5
"""Seconds that a task waits for a latch: less than after which it looks by itself."""
SLACK = 0.02
"""Seconds for the work of loops."""


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
    """

    def __init__(self, referee: Referee, *, travel: float) -> None:
        self._referee = referee
        self._late = travel + SLACK
        self._admitted: list[tuple[float, int, str]] = []
        self._latches: dict[str, _Latch] = {}

    def _explained(self, since: float, who: Iterable[str], *sorts: Excused) -> bool:
        """Whether anything in this time explains what one of these has done."""
        referee = self._referee
        return any(referee.excuses.explain(sort, one, since, referee.now) for one in who for sort in sorts)

    # -- rate limits

    async def admit(self, limit: RateLimit, one: Round) -> None:
        """A task that does something as often as it may."""
        n = one.want.permits
        if one.timeout == 0:
            if not await limit.try_acquire(n):
                return
        else:
            await limit.acquire(n, blocking_timeout=one.timeout)
        self._referee.tell(one.part, f"is admitted with {n}")
        self._admitted.append((self._referee.now, n, one.part))
        self._look_at_windows()

    def _look_at_windows(self) -> None:
        """By brute force: in each time that ends now there are no more than the bucket had, and got."""
        now, total = self._referee.now, 0
        within: set[str] = set()
        for since, n, who in reversed(self._admitted):
            total += n
            within.add(who)
            most = BURST + (now - since + self._late) * LIMIT / PER
            # A bucket that was lost is full again, and a task that stood still came later than its moment.
            if total > most and not self._explained(since - PER, within, Excused.RESULT, Excused.LATE):
                self._referee.wrong(f"{total} were admitted in {now - since:.4f} s, since {who}")
                return

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
