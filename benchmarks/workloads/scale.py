"""Very many processes that want one lock, in the simulated world; very many waiters of one real process."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import sys
import tracemalloc
from asyncio.subprocess import PIPE
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from redis.asyncio import Redis

from aiolocks import Lock, Session

from ..crew import Crew
from ..desk import Desk
from ..model import FLOOR, Figure, Sample
from ..settings import Address
from ..targets import at_least, at_most
from ..usage import load, resident
from .base import Measure, Workload
from .crowd import AT_ONCE, TTL

_EACH = 10
"""Waiters of one name."""


class _Scale(Workload):
    name = "scale"
    patience = limit = 1800.0
    one_server = "the world has a server of its own, and in the other case it is the client that is looked at"
    once = True  # the world has a seed, memory is steady, and processes are fresh


class Throng(_Scale):
    """Time is that of the simulated world, in which computing takes none: no other work gets into it."""

    case = "1 000 processes"
    work = (
        "simulated: 1 000 processes × 10 tasks, in a loop for 200 s on one lock, 1 ms inside; bytes take "
        "0.05 to 0.4 ms, computing takes no time"
    )
    figures = (
        Figure("requests", "requests an acquisition", 2),
        Figure("scripts", "of these, scripts", 2),
        Figure("slowest", "slowest process ÷ fastest", 2),
        Figure("throughput", "acquisitions/s"),
    )
    targets = (
        at_most(4, "requests", "≤ 4 requests an acquisition"),
        at_least(0.8, "slowest", "slowest ≥ 0.8 × fastest"),
    )

    @property
    def contenders(self) -> Sequence[str]:
        """Ours alone: nobody else runs there."""
        return ("aiolocks",)

    @asynccontextmanager
    async def stage(self, address: Address) -> AsyncGenerator[Measure]:
        """A process of its own: there, each source of time and of randomness is replaced."""
        sizes = {"processes": self.settings.size(1000, 20), "seconds": self.settings.size(200, 2)}

        async def measure(_: str) -> Sample:
            words = [f"--{name}={size}" for name, size in sizes.items()]
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "tests.simulation.world.scale", "--json", *words,
                env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}, stdout=PIPE,
            )  # fmt: skip
            try:
                said, _nothing = await process.communicate()
            finally:
                if process.returncode is None:
                    process.kill()
                    await process.wait()
            found = json.loads(said)
            return Sample({figure.key: found[figure.key] for figure in self.figures})

        yield measure


class Waiters(_Scale):
    """Tasks that wait, each with a lock object of its own."""

    case = "100 000 waiters"
    work = "one process with 100 000 tasks that wait for 10 000 names, which another process holds; for 5 s"
    floor = "as many tasks that wait for `asyncio.Lock` objects, one for each name"
    figures = (
        Figure("resident", "KiB a waiter, resident (RSS), with its task", 2),
        Figure("traced", "KiB a waiter, allocated (tracemalloc), with its task", 2),
        Figure("cpu", "% of one core, while they wait", 1),
    )
    targets = (at_most(4, "resident", "≤ 4 KiB a waiter"),)

    @property
    def contenders(self) -> Sequence[str]:
        """Ours alone: with each peer, every waiter polls or has a thread."""
        return (FLOOR, "aiolocks")

    @asynccontextmanager
    async def stage(self, address: Address) -> AsyncGenerator[Measure]:
        """One process holds; others wait, a tenth of them again with memory traced, which slows it."""
        names, seconds = self.settings.size(10_000, 50), self.settings.size(5, 1)

        async def measure(contender: str) -> Sample:
            async with Crew(address, 3, loop=self.settings.loop) as crew:
                if contender != FLOOR:
                    crew[0].begin(hold, names=names)
                    await crew[0].hear()
                arguments: dict[str, object] = {"contender": contender, "names": names}
                figures = await crew[1].do(wait, seconds=seconds, **arguments)
                traced = await crew[2].do(wait_traced, contender=contender, names=names // 10)
            return Sample({**figures, "traced": traced})

        yield measure


async def hold(desk: Desk, names: int) -> None:
    """Holds all names until its process is ended."""
    async with Redis(**desk.address.client_arguments) as client, Session(client) as session:
        for first in range(0, names, AT_ONCE):
            batch = range(first, min(first + AT_ONCE, names))
            await asyncio.gather(*(Lock(session, f"scale:{name}", ttl=TTL).acquire() for name in batch))
        desk.say("held")
        await desk.hear()


async def wait(desk: Desk, contender: str, names: int, seconds: float) -> dict[str, float]:
    """Resident memory, and time of the processor once all wait."""
    async with _made(desk, contender, names) as made:
        gc.collect()
        before = resident()
        async with _waiting(made, names):
            gc.collect()
            kept = (resident() - before) / names / _EACH / 1024
            return {"resident": kept, "cpu": await load(seconds) * 100}


async def wait_traced(desk: Desk, contender: str, names: int) -> float:
    """KiB a waiter, by tracemalloc."""
    async with _made(desk, contender, names) as made:
        gc.collect()
        tracemalloc.start()
        async with _waiting(made, names):
            gc.collect()
            allocated, _ = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            return allocated / names / _EACH / 1024


_Made = Callable[[int], AbstractAsyncContextManager[Any]]


@asynccontextmanager
async def _made(desk: Desk, contender: str, names: int) -> AsyncGenerator[_Made]:
    """A maker of locks, by their number."""
    if contender == FLOOR:
        locks = [asyncio.Lock() for _ in range(names)]
        for lock in locks:
            await lock.acquire()
        yield locks.__getitem__
        return
    async with Redis(**desk.address.client_arguments) as client, Session(client) as session:
        async with Lock(session, "scale:warm-up"):
            pass
        yield lambda name: Lock(session, f"scale:{name}")


@asynccontextmanager
async def _waiting(made: _Made, names: int) -> AsyncGenerator[None]:
    """All tasks, once each of them has been refused."""

    async def one(name: int) -> None:
        async with made(name):
            pass

    tasks = []
    for name in range(names):
        tasks += [asyncio.create_task(one(name)) for _ in range(_EACH)]
        if name % AT_ONCE == 0:
            await asyncio.sleep(0.01)
    await asyncio.sleep(2)
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(*tasks, return_exceptions=True)
