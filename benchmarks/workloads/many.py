"""Many tasks, none in another's way: what one process gets through."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

from redis.asyncio import Redis

from ..contenders import Arena, Locks
from ..model import FLOOR, Figure, Sample
from ..requests import Words, requests_for
from ..settings import Address
from ..targets import at_least
from ..wire import Wire, open_wire
from .base import Measure, Workload

_TASKS = 200


class Many(Workload):
    """200 tasks, each with a name and a lock object of its own."""

    name = "many"
    work = "200 tasks × 60 cycles, each its own name"
    floor = "pipelined EVALSHA by hand, in batches of 200"
    figures = (Figure("throughput", "cycles/s"),)
    targets = (at_least(6.0, "throughput", "≥ 6 × redis-py", of="redis-py"),)

    @property
    def contenders(self) -> Sequence[str]:
        """Those whose clients are asynchronous."""
        return (FLOOR, "aiolocks", "redis-py", "coredis, 10 ms")

    @asynccontextmanager
    async def stage(self, address: Address) -> AsyncGenerator[Measure]:
        """As many connections as each takes."""
        names = [f"many:{number}" for number in range(_TASKS)]
        cycles = self.settings.size(60, 2)
        async with Arena(address) as arena, open_wire(address) as wire:
            async with Redis(**address.client_arguments) as client:
                requests = await requests_for(client, names)

            async def measure(contender: str) -> Sample:
                locks = None if contender == FLOOR else await arena.locks(contender)
                began = time.perf_counter()
                if locks is None:
                    await _by_hand(wire, requests, cycles)
                else:
                    await asyncio.gather(*(_one(locks, name, cycles) for name in names))
                return Sample({"throughput": _TASKS * cycles / (time.perf_counter() - began)})

            yield measure


async def _one(locks: Locks, name: str, cycles: int) -> None:
    lock = locks.lock(name)
    for _ in range(cycles):
        async with lock:
            pass


async def _by_hand(wire: Wire, requests: Sequence[tuple[Words, Words]], cycles: int) -> None:
    acquires = [acquire for acquire, _ in requests]
    releases = [release for _, release in requests]
    for _ in range(cycles):
        await wire.pipeline(acquires)
        await wire.pipeline(releases)
