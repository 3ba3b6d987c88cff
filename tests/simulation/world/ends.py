"""Sessions that end while they hold leases without a body: what no code works under is given back at once,
and nobody gets in beside a task that still works."""

from __future__ import annotations

import asyncio
import functools
import random
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Any, Final

from aiolocks import FairLock, Lease, LeaseState, Lock, ReentrantLock, RWLock, Semaphore, Session

from .checkers import Referee
from .excuses import Excused
from .schedule import Round

WAYS: Final = ("mine", "done", "works", "works", "body")
"""Who acquires: the task that closes; one that is done then; one that works on; one that has a body."""
KINDS: Final[tuple[Callable[..., Any], ...]] = (
    lambda session, **how: Lock(session, "x", **how),
    lambda session, **how: FairLock(session, "x", **how),
    lambda session, **how: ReentrantLock(session, "x", **how),
    lambda session, **how: Semaphore(session, "x", 1, **how),
    lambda session, **how: RWLock(session, "x", **how).writer,
)
SKEW: Final = 0.99
"""The part of a lease's time that has passed for the world, whatever the clock of its process says."""


@dataclass(eq=False)
class Working:
    """Code that works under a lease; times of the world.

    Attributes:
        until: When its lease ends, as was known last: beyond that, others may get in.
    """

    who: str
    began: float
    over: float = inf
    until: float = inf


class Ends:
    """All that has worked in one schedule."""

    def __init__(self, referee: Referee, rng: random.Random) -> None:
        self._referee = referee
        self._rng = rng
        self._working: list[Working] = []

    @functools.cached_property
    def _kind(self) -> Callable[..., Any]:
        """Drawn in schedules of this sort only: the others draw from the same source."""
        return self._rng.choice(KINDS)

    async def end(self, session: Session, one: Round, ttl: float, patience: float) -> None:
        """A session of its own, closed while a lease of it is held."""
        rng = random.Random(f"{one.part} {one.hold}")
        own = Session(
            session._client, wakeup=session._wakeup, command_timeout=session._settings.command_timeout
        )
        lock = self._kind(own, ttl=ttl, blocking_timeout=one.timeout)
        way, works = rng.choice(WAYS), rng.uniform(0.0, 1.5) * ttl
        got: asyncio.Future[Lease] = asyncio.get_running_loop().create_future()
        child = None if way == "mine" else asyncio.create_task(self._child(way, lock, one, got, works))
        try:
            if child is None:
                lease, working = await lock.acquire(), self._enter(one.part)
            else:
                await asyncio.wait((child, got), return_when="FIRST_COMPLETED")
                if not got.done():
                    child.result()  # raises
                lease, working = got.result(), self._working[-1]
            await asyncio.sleep(one.hold)
            if way in ("mine", "done"):
                working.over = self._referee.now
            working.until = self._referee.now + SKEW * lease.remaining()
            await own.aclose()
            self._given_back(one, working, lease, way)
            if child is not None:
                await asyncio.wait((child,))
        finally:
            await self._leave(own, child, one, patience)

    async def _child(self, way: str, lock: Any, one: Round, got: asyncio.Future[Lease], works: float) -> None:
        if way == "body":
            async with lock.acquire() as lease:
                await self._work(one, got, lease, works)
            return
        lease = await lock.acquire()
        if way == "works":
            await self._work(one, got, lease, works)
        else:
            self._enter(one.part)
            got.set_result(lease)

    async def _work(self, one: Round, got: asyncio.Future[Lease], lease: Lease, works: float) -> None:
        working = self._enter(one.part)
        got.set_result(lease)
        try:
            await asyncio.sleep(one.hold + works)
        finally:
            working.over = self._referee.now
            self._referee.tell(one.part, "has ended its work")

    async def _leave(
        self, own: Session, child: asyncio.Task[None] | None, one: Round, patience: float
    ) -> None:
        """Also of a task that was cancelled: nothing of it stays behind."""
        now = self._referee.now
        longest = 2 * own._settings.command_timeout + patience
        self._referee.excuses.give(Excused.LATE, one.part.partition(".")[0], now, now + longest)
        try:
            if child is not None:
                child.add_done_callback(_told)
                child.cancel()
                await asyncio.wait((child,))
        finally:
            for working in self._working:
                if working.who == one.part:
                    working.over = min(working.over, self._referee.now)
            await own.aclose()

    def _enter(self, who: str) -> Working:
        now = self._referee.now
        for other in self._working:
            if other.over == inf and now < other.until and not self._explained(Excused.LEASE, other):
                self._referee.wrong(f"{who} enters while {other.who} still works")
        working = Working(who, now)
        self._working.append(working)
        self._referee.tell(who, "enters")
        return working

    def _given_back(self, one: Round, working: Working, lease: Lease, way: str) -> None:
        self._referee.tell(
            one.part, f"has closed its session: its lease of a task ({way}) is {lease.state.name}"
        )
        explained = self._explained(Excused.ERROR, working) or self._explained(Excused.UNANSWERED, working)
        if way in ("mine", "done") and lease.state is not LeaseState.RELEASED and not explained:
            self._referee.wrong(f"{one.part}: its session has closed, and its lease was not given back")
        if lease.remaining() > 0.0:
            self._referee.wrong(f"{one.part}: its session has closed, and its lease is held")

    def died(self, process: str) -> None:
        """Its tasks go on no more."""
        for working in self._working:
            if working.who.partition(".")[0] == process:
                working.over = min(working.over, self._referee.now)

    def _explained(self, sort: Excused, working: Working) -> bool:
        return self._referee.excuses.explain(sort, working.who, working.began, self._referee.now)


def _told(child: asyncio.Task[None]) -> None:
    """Its error is known: of a body, that its lease was lost."""
    if not child.cancelled():
        child.exception()
