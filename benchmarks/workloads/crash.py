"""A holder that is killed: how long after its lease has ended somebody else is inside."""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

from redis.asyncio import Redis

from ..contenders import CONTENDERS
from ..crew import Crew
from ..desk import Desk
from ..model import FLOOR, Figure, Sample
from ..settings import Address, Settings
from ..targets import at_most
from .base import Measure, Workload

_TTL = 1


class Crash(Workload):
    """Holder killed with SIGKILL."""

    name = "crash"
    usual_rounds = 3  # few: each has five names
    floor = "ttl"
    figures = (
        Figure("after", "ms after the ttl", 1),
        Figure("worst", "ms, worst of the round", 1),
        Figure("inside", "s until inside", 4),
    )
    targets = (at_most(15, "after", "≤ 15 ms after the ttl"),)

    def __init__(self, settings: Settings, *, others: int) -> None:
        super().__init__(settings)
        self._others = min(others, settings.size(others, 1000))
        self.case = f"{others:,} other keys".replace(",", " ") if others else ""
        self.work = "holder killed with SIGKILL, ttl 1 s; until the waiter is inside; 5 locks at once" + (
            f"; {others:,} other volatile keys on the server".replace(",", " ") if others else ""
        )

    @property
    def warm_up(self) -> bool:
        """The process that waits is warm; that those who die are not makes no difference."""
        return False

    @property
    def contenders(self) -> Sequence[str]:
        """Ours, and what most use."""
        return (FLOOR, "aiolocks", "redis-py")

    @asynccontextmanager
    async def stage(self, address: Address) -> AsyncGenerator[Measure]:
        """A process that waits; those that are killed come and go."""
        names = [f"crash:{number}" for number in range(5)]
        async with (
            Redis(**address.client_arguments) as client,
            Crew(address, 1, loop=self.settings.loop, ttl=_TTL) as waiting,
        ):
            await self._crowd(client)

            async def measure(contender: str) -> Sample:
                if contender == FLOOR:
                    return Sample({"inside": _TTL})
                await waiting[0].do(connect, contender=contender)
                async with Crew(address, 1, loop=self.settings.loop, ttl=_TTL) as holding:
                    await holding[0].do(hold, contender=contender, names=names)
                    await holding[0].kill()
                    ends = await _ends(client, [CONTENDERS[contender].key(name) for name in names])
                    entered = await waiting[0].do(wait, contender=contender, names=names)
                late = [after - end for end, after in zip(ends, entered, strict=True)]
                typical = statistics.median(late)
                return Sample({"after": typical * 1000, "worst": max(late) * 1000, "inside": _TTL + typical})

            yield measure

    async def _crowd(self, client: Redis) -> None:
        for start in range(0, self._others, 10_000):
            async with client.pipeline(transaction=False) as pipeline:
                for number in range(start, min(start + 10_000, self._others)):
                    pipeline.set(f"other:{number}", b"x" * 20, px=random.randrange(60_000, 3_600_000))
                await pipeline.execute()


async def _ends(client: Redis, keys: Sequence[str]) -> list[float]:
    """When the server ends the leases, by its own account; nobody renews them any more."""
    ends: list[float] = []
    for key in keys:
        remaining = await client.pttl(key)
        if remaining < 0:
            raise RuntimeError(f"{key} is not held")
        ends.append(time.monotonic() + remaining / 1000)
    return ends


async def connect(desk: Desk, contender: str) -> None:
    """Is connected, so that the wait is nothing but waiting."""
    async with (await desk.locks(contender)).lock("crash:warm-up"):
        pass


async def hold(desk: Desk, contender: str, names: list[str]) -> None:
    """Holds them, until the process is killed."""
    locks = await desk.locks(contender)
    for name in names:
        await locks.lock(name).__aenter__()


async def wait(desk: Desk, contender: str, names: list[str]) -> list[float]:
    """When it was inside each."""
    locks = await desk.locks(contender)

    async def one(name: str) -> float:
        await asyncio.sleep(random.uniform(0, 0.2))  # a contender that polls does so at any moment
        async with locks.lock(name):
            return time.monotonic()

    return await asyncio.gather(*(one(name) for name in names))
