"""From one leader to the next: after a planned end, and after a crash."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from redis.asyncio import Redis

from ..contenders.ours import OurLocks
from ..crew import Crew
from ..desk import Desk
from ..model import FLOOR, Figure, Sample
from ..settings import Address, Settings
from ..targets import at_most
from .base import Measure, Workload
from .handover import idle_round_trips

_TERM = 0.012
_TTL = 1
_NAMES = 5


class LeadershipHandover(Workload):
    """A term that its leader ends."""

    name = "leadership"
    usual_rounds = 3  # few: each waits for its own
    floor = "two round trips by the driver, each after 12 ms of idling"
    work = "two processes; A leads for 12 ms, B is a candidate; from the end of A's body to the start of B's"
    figures = (Figure("p50", "ms, median", 2), Figure("p90", "ms, 90 % of all", 2))
    targets = (at_most(1.8, "p50", "≤ 1.8 × floor", of=FLOOR),)

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self._times = settings.size(16, 3)

    @property
    def contenders(self) -> Sequence[str]:
        """Ours alone."""
        return (FLOOR, "aiolocks")

    @asynccontextmanager
    async def stage(self, address: Address) -> AsyncGenerator[Measure]:
        """Two processes."""
        async with Crew(address, 2, loop=self.settings.loop) as crew:

            async def measure(contender: str) -> Sample:
                if contender == FLOOR:
                    waits = await crew[1].do(idle_round_trips, floor=contender, times=self._times)
                else:
                    waits = []
                    for _ in range(self._times):
                        crew[0].begin(lead, seconds=_TERM)
                        await crew[0].hear()
                        crew[1].begin(follow)
                        ended, elected = await crew.hear()
                        waits.append(elected - ended)
                nine_tenths = statistics.quantiles(waits, n=10, method="inclusive")[-1]
                return Sample(
                    {"p50": statistics.median(waits) * 1000, "p90": nine_tenths * 1000}, latencies=waits
                )

            yield measure


class LeadershipCrash(Workload):
    """A leader that is killed."""

    name = "leadership"
    usual_rounds = 3  # few: each waits for its own
    case = "leader killed"
    one_server = "the candidate asks by a clock"
    work = f"leader killed with SIGKILL, ttl {_TTL} s; until the next leader's body starts; 5 names at once"
    figures = (Figure("after", "ms after the ttl", 1), Figure("worst", "ms, worst of the round", 1))
    targets = (at_most(15, "after", "≤ 15 ms after the ttl"),)

    @property
    def contenders(self) -> Sequence[str]:
        """Ours alone."""
        return ("aiolocks",)

    @asynccontextmanager
    async def stage(self, address: Address) -> AsyncGenerator[Measure]:
        """A candidate that stays; the leaders come and are killed."""
        names = [f"leaders:{number}" for number in range(_NAMES)]
        async with (
            Redis(**address.client_arguments) as client,
            Crew(address, 1, loop=self.settings.loop, ttl=_TTL) as waiting,
        ):

            async def measure(_: str) -> Sample:
                async with Crew(address, 1, loop=self.settings.loop, ttl=_TTL) as leading:
                    await leading[0].do(keep_leading, names=names)
                    await leading[0].kill()
                    ends = [await _end(client, name) for name in names]
                    elected = await waiting[0].do(follow_all, names=names)
                late = [after - end for end, after in zip(ends, elected, strict=True)]
                return Sample({"after": statistics.median(late) * 1000, "worst": max(late) * 1000})

            yield measure


async def _end(client: Redis, name: str) -> float:
    """When the server ends the term, by its own account; nobody renews it any more."""
    found: Any = await client.zrange(f"aiolocks:leadership:{{{name}}}", 0, 0, withscores=True)
    clock: Any = await client.time()
    ((_, deadline),), (seconds, micros) = found, clock
    left: float = deadline / 1000 - (seconds + micros / 1_000_000)
    return time.monotonic() + left


async def _leadership(desk: Desk, name: str = "leaders") -> AbstractAsyncContextManager[Any]:
    locks = await desk.locks("aiolocks")
    assert isinstance(locks, OurLocks)
    return locks.leadership(name)


async def lead(desk: Desk, seconds: float) -> float:
    """A: says when it leads; returns when its body ended."""
    async with await _leadership(desk):
        desk.say("leads")
        await asyncio.sleep(seconds)
        return time.monotonic()


async def follow(desk: Desk) -> float:
    """B: returns when its body started."""
    async with await _leadership(desk):
        return time.monotonic()


async def keep_leading(desk: Desk, names: list[str]) -> None:
    """Leads under all of them, until the process is killed."""
    for name in names:
        await (await _leadership(desk, name)).__aenter__()


async def follow_all(desk: Desk, names: list[str]) -> list[float]:
    """When the body of each started."""

    async def one(name: str) -> float:
        async with await _leadership(desk, name):
            return time.monotonic()

    return await asyncio.gather(*map(one, names))
