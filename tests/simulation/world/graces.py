"""Locks with a `grace`, and servers that fall silent: bodies are told in time, and are alone to their end."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Any, Final

from aiolocks import FairLock, LeaseState, Lock, LockLostError, ReentrantLock, Semaphore, Session

from .checkers import Referee
from .excuses import Excused
from .schedule import Round

SHARES: Final = (0.1, 0.25, 0.5)
"""Of the ttl, that the grace lasts."""
RENEWED: Final = 1 / 3
"""The part of the ttl after which a renewal is sent, at the latest."""
ROUND_TRIP: Final = 0.1
"""The part of a session's patience in which a request is answered, where it is connected."""
CONNECTING: Final = 0.6
"""The same, where redis-py connects first: that is one round trip, and its four questions are one each."""
SLACK: Final = 0.1
"""Seconds by which a body may be told late: some turns of its loop."""
KINDS: Final[tuple[Callable[..., Any], ...]] = (
    lambda session, **how: Lock(session, "x", **how),
    lambda session, **how: FairLock(session, "x", **how),
    lambda session, **how: ReentrantLock(session, "x", **how),
    lambda session, **how: Semaphore(session, "x", 1, **how),
)


@dataclass(eq=False)
class Body:
    """One body that has entered; times of the world.

    Attributes:
        outlasts: It was told to stop, and unwinds for longer than its grace.
    """

    who: str
    began: float
    over: float = inf
    outlasts: bool = False


class Graces:
    """All bodies of one schedule.

    Args:
        serial: Processes whose client makes each request, over a connection that may have to be made.

    Attributes:
        told: Bodies that were told to stop.
    """

    def __init__(self, referee: Referee, rng: random.Random, *, serial: frozenset[str]) -> None:
        self._referee = referee
        self._serial = serial
        self._kind = rng.choice(KINDS)
        self._share = rng.choice(SHARES)
        self._bodies: list[Body] = []
        self.told = 0

    async def hold(self, session: Session, one: Round, ttl: float, patience: float) -> None:
        """A body that unwinds when it is told to: most often within its grace.

        Where the time between a renewal and the grace is less than its answer may take, a grace may begin
        although nothing has failed, as the docs say of an outage.
        """
        rng, grace = random.Random(f"{one.part} {one.hold}"), self._share * ttl
        unwinds = grace * (rng.uniform(1.2, 2.0) if rng.random() < 0.15 else rng.uniform(0.0, 0.9))
        holds = one.hold + rng.choice((0.0, rng.uniform(0, 3) * ttl))  # some outlast an outage
        lock, body = self._kind(session, ttl=ttl, grace=grace), None
        try:
            async with lock.acquire(blocking_timeout=one.timeout) as lease:
                body = self._enter(one.part)
                due = min(grace, lease.remaining()) - SLACK
                try:
                    await asyncio.sleep(holds)
                    self._in_time(body, lease, due)
                except asyncio.CancelledError:
                    self._in_time(body, lease, due)
                    await self._unwind(body, lease, unwinds, outlasts=unwinds > grace)
                    raise
                finally:
                    body.over = self._referee.now
                    self._referee.tell(one.part, "has unwound")
        except LockLostError as error:
            if body is not None and "`grace` began" not in error.reason and not self._stood_still(body):
                self._referee.wrong(f"{one.part} was not told to stop before its lease ended: {error.reason}")
            answered = CONNECTING if one.part.partition(".")[0] in self._serial else ROUND_TRIP
            hasty = ttl - RENEWED * ttl - grace < answered * patience
            if not (hasty and "its last renewal was not confirmed" in error.reason):
                raise

    def died(self, process: str) -> None:
        """Its bodies go on no more."""
        for body in self._bodies:
            if body.who.partition(".")[0] == process:
                body.over = min(body.over, self._referee.now)

    def _enter(self, who: str) -> Body:
        for body in self._bodies:
            if body.over == inf and not body.outlasts and not self._stood_still(body):
                self._referee.wrong(f"{who} enters before {body.who} has unwound")
        body = Body(who, self._referee.now)
        self._bodies.append(body)
        self._referee.tell(who, "enters")
        return body

    async def _unwind(self, body: Body, lease: Any, seconds: float, *, outlasts: bool) -> None:
        now, left = self._referee.now, lease.remaining()
        self._referee.tell(body.who, f"is told to stop, with {left:.3f} s left")
        self.told += 1
        body.outlasts = outlasts
        self._referee.excuses.give(Excused.LATE, body.who.partition(".")[0], now, now + seconds)
        await asyncio.sleep(seconds)

    def _in_time(self, body: Body, lease: Any, due: float) -> None:
        """A body that ends, or is told to stop, has as much time left as its grace."""
        left = lease.remaining()
        if left < due and lease.state is not LeaseState.LOST and not self._stood_still(body):
            self._referee.wrong(
                f"{body.who} has {left:.3f} s left, and must be told {due:.3f} s before the end"
            )

    def _stood_still(self, body: Body) -> bool:
        """Whether its process did, or its server has lost what it had: nobody could tell it in time."""
        return self._referee.excuses.explain(Excused.LEASE, body.who, body.began, self._referee.now)
