"""A queue before one lock, in one process: how long until everybody has been inside."""

from __future__ import annotations

import asyncio
import gc
import os
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from ..contenders import Arena, Locks
from ..model import BARE, FLOOR, Figure, Sample
from ..settings import Address
from ..targets import at_most, faster
from ..wire import open_line, sleep_and_ping
from .base import Measure, Workload


class Drain(Workload):
    """200 tasks that each need one lock once."""

    name = "drain"
    usual_rounds = 7  # many of those that are near the floor
    work = "200 tasks in one process, one lock, once each, 1 ms inside"
    floor = "200 × (sleep of 1 ms + one round trip by the driver), in sequence"
    figures = (
        Figure("seconds", "s", 3),
        Figure("commands", "commands per acquisition", 2),
        Figure("client", "client, µs of CPU an acquisition", 1),
    )
    targets = (
        at_most(1.05, "seconds", "≤ 1.05 × floor", of=FLOOR),
        faster(20, "seconds", "≥ 20 × faster than redis-py", than="redis-py"),
        at_most(1.1, "commands", "one command a local hand-over"),
    )

    few = ("redis-py", "redis-py, 10 ms", "pottery")

    @property
    def warm_up(self) -> bool:
        """Each round has its own: a whole one would be long with those who poll."""
        return False

    @property
    def contenders(self) -> Sequence[str]:
        """Those who are made for waiting."""
        peers = ("redis-py", "redis-py, 10 ms", "pottery", "python-redis-lock")
        return (FLOOR, BARE, "aiolocks", *peers)

    @asynccontextmanager
    async def stage(self, address: Address) -> AsyncGenerator[Measure]:
        """As many connections as each takes."""
        tasks = self.settings.size(200, 10)
        async with Arena(address) as arena:

            async def measure(contender: str) -> Sample:
                if contender in (FLOOR, BARE):
                    async with open_line(contender, address) as line:
                        began = time.perf_counter()
                        await sleep_and_ping(line, tasks)
                        return Sample({"seconds": time.perf_counter() - began})
                return await _drain(await arena.locks(contender), tasks)

            yield measure


async def _drain(locks: Locks, tasks: int) -> Sample:
    await warm(locks, tasks)
    sent = locks.commands_sent()
    gc.collect()
    made = [locks.lock("drain") for _ in range(tasks)]  # not every peer's can be shared by tasks
    began, used = time.perf_counter(), time.process_time()
    await asyncio.gather(*map(once, made))
    figures = {
        "seconds": time.perf_counter() - began,
        "client": (time.process_time() - used) / tasks * 1e6,
    }
    after = locks.commands_sent()
    if sent is not None and after is not None:
        figures["commands"] = (after - sent) / tasks
    return Sample(figures)


async def warm(locks: Locks, tasks: int) -> None:
    """Has as many connections opened as the work will take; nobody waits for anybody."""
    await asyncio.gather(*(once(locks.lock(f"warm-up:{os.getpid()}:{task}")) for task in range(tasks)))


async def once(lock: AbstractAsyncContextManager[Any]) -> None:
    """Is inside for 1 ms."""
    async with lock:
        await asyncio.sleep(0.001)
