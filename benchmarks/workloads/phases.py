"""Readers, planners and one plain writer: what each of them costs the others."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import statistics
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from redis.asyncio import Redis

from ..model import FLOOR, Figure, Sample
from ..settings import Address
from ..targets import at_least
from .base import Measure, Workload

_READERS = 8
_PLANNERS = 2
_HOLD = 0.005
_PLAN = 0.1
_READERS_PAUSE = 0.01
_WRITERS_PAUSE = 0.05
_PUBLISHED = "published rule"
_numbers = itertools.count()


class Phases(Workload):
    """One plain writer beside planners that read for long and write for a moment.

    The plain writer waits for the planners. With the published rule of three phases it takes its mark back
    when it is refused, and tries again after a random pause: so it hinders no reader, and seldom gets in.
    """

    name = "phases"
    one_server = "what tasks do while they hold takes longer than any request"
    usual_rounds = 2  # few: each is some seconds of many tasks
    work = (
        "an `RWLock`, three sessions: 8 readers (5 ms, and a pause of 10 ms), 2 planners (upgradable; plan "
        "for 100 ms, upgrade, write for 5 ms) and one plain writer (5 ms, and a pause of 50 ms)"
    )
    floor = "the same without the plain writer"
    figures = (
        Figure("reads", "reads/s", 0),
        Figure("reader", "reader waits, ms, 99 %", 1),
        Figure("plans", "plans/s", 1),
        Figure("planner", "planner waits, ms, 99 %", 0),
        Figure("writes", "plain writes/s", 2),
        Figure("writer", "plain writer waits, ms, longest", 0),
    )
    targets = (
        at_least(0.93, "reads", "readers get 0.93 of what they get without the plain writer", of=FLOOR),
        at_least(0.95, "reads", "and 0.95 of what they get with the published rule", of=_PUBLISHED),
    )

    @property
    def warm_up(self) -> bool:
        """A round is so long that its first moments make no difference."""
        return False

    @property
    def contenders(self) -> Sequence[str]:
        """Those that ours is compared with go first."""
        return (FLOOR, _PUBLISHED, "aiolocks")

    @asynccontextmanager
    async def stage(self, address: Address) -> AsyncGenerator[Measure]:
        """Three sessions, each with a connection of its own."""
        from aiolocks import Session  # noqa: PLC0415 - as with every contender

        seconds = 0.5 if self.settings.quick else 4.0
        async with contextlib.AsyncExitStack() as stack:
            client = await stack.enter_async_context(Redis(**address.client_arguments))
            sessions = [await stack.enter_async_context(Session(client)) for _ in range(3)]

            async def measure(contender: str) -> Sample:
                writes = {FLOOR: None, _PUBLISHED: _enter_as_published, "aiolocks": _enter}[contender]
                return await _Scene(sessions, seconds).played(writes)

            yield measure


Enter = Callable[[Any, float], Awaitable[Any]]


async def _enter(lock: Any, _: float) -> Any:
    return await lock.acquire()


async def _enter_as_published(lock: Any, until: float) -> Any:
    while time.perf_counter() < until:
        lease = await lock.try_acquire()
        if lease is not None:
            return lease
        await asyncio.sleep(random.uniform(0, 0.01))
    return None


class _Scene:
    """All of them at work for some seconds."""

    def __init__(self, sessions: Sequence[Any], seconds: float) -> None:
        from aiolocks import RWLock  # noqa: PLC0415 - as with every contender

        name = f"phases:{next(_numbers)}"
        self._reader, self._upgradable, self._writer = (
            getattr(RWLock(session, name), mode)
            for session, mode in zip(sessions, ("reader", "upgradable", "writer"), strict=True)
        )
        self._seconds = seconds
        self._until = 0.0
        self._waits: dict[str, list[float]] = {"reader": [], "planner": [], "writer": []}

    async def played(self, enters: Enter | None) -> Sample:
        """With a plain writer that enters in that way, or with none."""
        self._until = time.perf_counter() + self._seconds
        tasks = [self._reads() for _ in range(_READERS)] + [self._plans() for _ in range(_PLANNERS)]
        if enters is not None:
            tasks.append(self._writes(enters))
        await asyncio.gather(*tasks)
        found: dict[str, float] = {}
        for who, what in (("reader", "reads"), ("planner", "plans"), ("writer", "writes")):
            waits = self._waits[who]
            found[what] = len(waits) / self._seconds
            most = max(waits, default=0.0)
            if who != "writer" and len(waits) > 1:
                most = statistics.quantiles(waits, n=100, method="inclusive")[-1]
            found[who] = most * 1000
        return Sample(found)

    async def _has(self, who: str, lock: Any, enters: Enter = _enter) -> Any:
        began = time.perf_counter()
        lease = await enters(lock, self._until)
        if lease is not None:
            self._waits[who].append(time.perf_counter() - began)
        return lease

    async def _reads(self) -> None:
        while time.perf_counter() < self._until:
            async with await self._has("reader", self._reader):
                await asyncio.sleep(_HOLD)
            await asyncio.sleep(_READERS_PAUSE)

    async def _plans(self) -> None:
        while time.perf_counter() < self._until:
            async with await self._has("planner", self._upgradable) as lease:
                await asyncio.sleep(_PLAN)
                async with lease.upgrade():
                    await asyncio.sleep(_HOLD)

    async def _writes(self, enters: Enter) -> None:
        while time.perf_counter() < self._until:
            lease = await self._has("writer", self._writer, enters)
            if lease is not None:
                async with lease:
                    await asyncio.sleep(_HOLD)
            await asyncio.sleep(_WRITERS_PAUSE)
