"""Many tasks, none in another's way: the cycles that one process gets through."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from redis.asyncio import Redis

from ..contenders import Arena, Locks
from ..model import FLOOR, Figure, Sample
from ..requests import Words, requests_for
from ..settings import Address
from ..spent import FIGURES, spending
from ..targets import at_most
from ..wire import Wire, open_wire
from .base import Measure, Workload

_TASKS = 200
_CYCLES = {"redis-py": 30, "coredis, 10 ms": 10}


class Many(Workload):
    """200 tasks, each with a name and a lock object of its own."""

    name = "many"
    work = "200 tasks × 60 cycles (redis-py: 30, coredis: 10), each its own name"
    floor = "pipelined EVALSHA by hand, in batches of 200"
    figures = (Figure("throughput", "cycles/s"), *FIGURES)
    targets = (at_most(1 / 6.5, "client", "≤ 1/6.5 of redis-py's CPU", of="redis-py"),)

    @property
    def contenders(self) -> Sequence[str]:
        """Those whose clients are asynchronous."""
        return (FLOOR, "aiolocks", "redis-py", "coredis, 10 ms")

    @asynccontextmanager
    async def stage(self, address: Address) -> AsyncGenerator[Measure]:
        """As many connections as each takes."""
        names = [f"many:{number}" for number in range(_TASKS)]
        async with (
            Arena(address) as arena,
            open_wire(address) as wire,
            address.client() as admin,
        ):
            requests: list[tuple[Words, Words]] = []

            async def measure(contender: str) -> Sample:
                cycles = self.settings.size(_CYCLES.get(contender, 60), 2)
                locks = None if contender == FLOOR else await arena.locks(contender)
                if locks is None and not requests:
                    requests.extend(await requests_for(admin, names))
                async with spending(admin) as spent:
                    began = time.perf_counter()
                    if locks is None:
                        await _by_hand(wire, requests, cycles)
                    else:
                        await asyncio.gather(*(_one(kept(locks, name), cycles) for name in names))
                    seconds = time.perf_counter() - began
                return Sample({"throughput": _TASKS * cycles / seconds, **spent.each(_TASKS * cycles)})

            yield measure


class ManyNew(Workload):
    """The same, as most people write it: with a lock that is made where it is entered."""

    name = "many-new"
    work = "200 tasks × 60 cycles (redis-py: 20), each its own name, and a new lock object for each cycle"
    figures = (
        Figure("throughput", "cycles/s"),
        *FIGURES,
        Figure("share", "% of the cycle's CPU for a new object", 1),
    )
    targets = (at_most(1 / 5.5, "client", "≤ 1/5.5 of redis-py's CPU", of="redis-py"),)

    @property
    def contenders(self) -> Sequence[str]:
        """Ours, and redis-py."""
        return ("aiolocks", "redis-py")

    @asynccontextmanager
    async def stage(self, address: Address) -> AsyncGenerator[Measure]:
        """As with `many`. New and kept objects take turns, so that a slow moment of the host meets both."""
        names = [f"many-new:{number}" for number in range(_TASKS)]
        cycles = self.settings.size(10, 2)
        async with Arena(address) as arena, Redis(**address.client_arguments) as admin:

            async def measure(contender: str) -> Sample:
                locks = await arena.locks(contender)
                ours = contender == "aiolocks"
                turns = self.settings.size(6 if ours else 2, 1)
                totals = dict.fromkeys((fresh, kept) if ours else (fresh,), 0.0)
                seconds, used = 0.0, {"client": 0.0, "server": 0.0}
                for _ in range(turns):
                    for made in totals:
                        async with spending(admin) as spent:
                            began = time.perf_counter()
                            await asyncio.gather(*(_one(made(locks, name), cycles) for name in names))
                            took = time.perf_counter() - began
                        totals[made] += spent.client
                        if made is fresh:
                            seconds += took
                            used = {key: used[key] + more for key, more in spent.each(1).items()}
                number = _TASKS * cycles * turns
                figures = {key: micros / number for key, micros in used.items()}
                if ours:
                    figures["share"] = (totals[fresh] - totals[kept]) / totals[fresh] * 100
                return Sample({"throughput": number / seconds, **figures})

            yield measure


Made = Callable[[], AbstractAsyncContextManager[Any]]


def fresh(locks: Locks, name: str) -> Made:
    """A new lock for each cycle."""
    return lambda: locks.lock(name)


def kept(locks: Locks, name: str) -> Made:
    """One lock for all cycles."""
    lock = locks.lock(name)
    return lambda: lock


async def _one(lock: Made, cycles: int) -> None:
    for _ in range(cycles):
        async with lock():
            pass


async def _by_hand(wire: Wire, requests: Sequence[tuple[Words, Words]], cycles: int) -> None:
    acquires = [acquire for acquire, _ in requests]
    releases = [release for _, release in requests]
    for _ in range(cycles):
        await wire.pipeline(acquires)
        await wire.pipeline(releases)
