"""Tasks that change one value: the optimistic way, which tries again, against a lock, which waits."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from itertools import pairwise
from typing import Any

from redis.asyncio import Redis

from ..contenders import Arena
from ..contenders.base import CONNECTIONS
from ..model import FLOOR, Figure, Sample
from ..settings import Address, Settings
from .base import Measure, Workload

WATCH = "WATCH"
_TASKS = (1, 2, 3, 5, 10, 50)
_MOST = _TASKS[-1]
_VALUE = "lock-or-watch"

Change = Callable[[], Awaitable[None]]


class LockOrWatch(Workload):
    """GET, some work, SET, by more and more tasks; a figure, and no target: where the crossing is.

    A task that watches needs a round trip less than one that locks, and no ttl. But of all who have read the
    same value only one can write it, and what the others have read and sent was for nothing: the more they
    are, the less they get done. A task that locks waits instead, so that the number of tasks makes no
    difference.

    No other lock takes part: what it costs to wait for one is measured in `drain`.
    """

    name = "lock-or-watch"
    one_server = "what counts is the number of round trips"
    usual_rounds = 3  # few: they are long with those who try again
    core_apart = True
    figures = (
        *(Figure(str(tasks), f"changes/s, {tasks} task{'s' if tasks > 1 else ''}") for tasks in _TASKS[::-1]),
        Figure("tries", f"tries per change, {_MOST} tasks", 1),
        Figure("crossing", f"tasks from which it is ahead of {WATCH}", 1),
    )
    targets = ()

    def __init__(self, settings: Settings, *, inside: int) -> None:
        super().__init__(settings)
        self._inside = inside / 1000
        self.case = f"{inside} ms inside"
        steps = between(inside)
        self.work = (
            f"up to {_MOST} tasks change one value ({steps}), 100 changes in all: WATCH, MULTI and EXEC, "
            "again until nobody else was faster, or a lock"
        )
        self.floor = f"{steps} by the driver, by one task that nobody else is in the way of"
        if inside:
            self.work, self.floor = f"the same, with {steps}", "the same"

    @property
    def contenders(self) -> Sequence[str]:
        """A contender that watches goes before those that are compared with it."""
        return (FLOOR, WATCH, "aiolocks")

    @asynccontextmanager
    async def stage(self, address: Address) -> AsyncGenerator[Measure]:
        """As many connections as each takes."""
        changes = self.settings.size(100, 10)
        watched: dict[str, float] = {}
        async with (
            Redis(max_connections=CONNECTIONS, **address.client_arguments) as client,
            Arena(address) as arena,
        ):
            value = Value(client, self._inside)

            async def measure(contender: str) -> Sample:
                if contender == FLOOR:
                    rate = await value.changed(value.change, changes, tasks=1)
                    return Sample({str(tasks): rate for tasks in _TASKS})
                if contender == WATCH:
                    watched.update(await _rates(value, value.watch_and_change, changes))
                    return Sample({**watched, "tries": value.tries / changes})
                locks = await arena.locks(contender)
                change = value.guarded_by(locks.lock(_VALUE))
                rates = await _rates(value, change, changes)
                return Sample({**rates, "crossing": crossing(rates, watched, _TASKS)} if watched else rates)

            yield measure


def between(inside: int) -> str:
    """What one change does, with so many ms of work inside, in words."""
    return f"GET, {inside} ms, SET" if inside else "GET, SET"


class Value:
    """The value that is changed, and the ways to do it."""

    def __init__(self, client: Any, inside: float) -> None:
        self._client = client
        self._inside = inside
        self.tries = 0

    async def changed(self, change: Change, times: int, *, tasks: int) -> float:
        """Has tasks change it `times` times in all; changes per second."""
        await self._client.set(_VALUE, 0)
        await asyncio.gather(*(self._client.ping() for _ in range(tasks)))  # connected
        left = iter(range(times))

        async def one() -> None:
            for _ in left:
                await change()

        self.tries = 0
        began = time.perf_counter()
        await asyncio.gather(*(one() for _ in range(tasks)))
        rate = times / (time.perf_counter() - began)
        if int(await self._client.get(_VALUE)) != times:
            raise RuntimeError("a change was lost")
        return rate

    async def prepare(self) -> None:
        """There is a value, and a connection."""
        await self._client.set(_VALUE, 0)

    async def change(self) -> None:
        """As if nobody else did."""
        read = int(await self._client.get(_VALUE))
        await self._work()
        await self._client.set(_VALUE, read + 1)

    async def watch_and_change(self) -> None:
        """As redis-py's `transaction` does it: tries again at once."""
        await self._client.transaction(self._try_to_change, _VALUE)

    def guarded_by(self, lock: AbstractAsyncContextManager[Any]) -> Change:
        """Under a lock that tasks can share."""

        async def change() -> None:
            async with lock:
                await self.change()

        return change

    async def _try_to_change(self, pipeline: Any) -> None:
        self.tries += 1
        read = int(await pipeline.get(_VALUE))
        await self._work()
        pipeline.multi()
        pipeline.set(_VALUE, read + 1)

    async def _work(self) -> None:
        if self._inside:
            await asyncio.sleep(self._inside)


async def _rates(value: Value, change: Change, times: int) -> dict[str, float]:
    return {str(tasks): await value.changed(change, times, tasks=tasks) for tasks in _TASKS}


def crossing(ours: Mapping[str, float], theirs: Mapping[str, float], numbers: Sequence[int]) -> float:
    """The number of tasks or processes, between two that were measured, at which both are as fast."""
    leads = [(math.log(number), math.log(ours[str(number)] / theirs[str(number)])) for number in numbers]
    if leads[0][1] >= 0:
        return numbers[0]
    for (before, behind), (after, ahead) in pairwise(leads):
        if ahead >= 0:
            return math.exp(before + (after - before) * behind / (behind - ahead))
    return math.inf
