"""From a loss on the server to the end of the body: of one lease among many, and of all at once."""

from __future__ import annotations

import asyncio
import logging
import statistics
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress

from redis.asyncio import Redis

from aiolocks import LockLostError

from ..crew import Crew
from ..desk import Desk
from ..model import FLOOR, Figure, Sample
from ..settings import Address, Settings
from ..targets import above, at_least
from .base import NOTIFIED, Measure, Workload
from .handover import idle_round_trips

_ARMED = 0.3
"""Seconds after which the server has been asked to tell of each lease."""
_PATIENCE = 5.0
"""Seconds, within which no lease is renewed by itself; a loss that is not known by then counts as unknown."""
_APART = 0.012


class Loss(Workload):
    """One lease among many is deleted, and then the next."""

    name = "loss"
    usual_rounds = 3  # few: the leases of each are many
    case = "one deleted"
    floor = "one and a half round trips by the driver, each after 12 ms of idling"
    figures = (Figure("p50", "ms, median", 2), Figure("p99", "ms, 99 % of all", 2))
    targets = (above(1.0, "p50", "≤ floor + 1 ms", of=FLOOR, contenders=NOTIFIED),)

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self._leases = settings.size(1000, 20)
        self._times = settings.size(60, 5)
        self.work = (
            f"{self._leases} leases in one process, ttl 30 s; another one deletes one key after the other; "
            "from DEL to the first line of the body's finally"
        )

    @property
    def contenders(self) -> Sequence[str]:
        """Ours alone: no peer learns of a loss."""
        return (FLOOR, *(name for name in self.by_wakeup() if name in NOTIFIED))

    @asynccontextmanager
    async def stage(self, address: Address) -> AsyncGenerator[Measure]:
        """A process that holds, and a client that deletes."""
        async with (
            Redis(**address.client_arguments) as client,
            Crew(address, 1, loop=self.settings.loop) as crew,
        ):

            async def measure(contender: str) -> Sample:
                if contender == FLOOR:
                    trips = await crew[0].do(idle_round_trips, floor=contender, times=self._times)
                    waits = [0.75 * two for two in trips]
                else:
                    waits = await self._lose(client, crew, contender)
                nearly_all = statistics.quantiles(waits, n=100, method="inclusive")[-1]
                return Sample(
                    {"p50": statistics.median(waits) * 1000, "p99": nearly_all * 1000}, latencies=waits
                )

            yield measure

    async def _lose(self, client: Redis, crew: Crew, contender: str) -> list[float]:
        waits: list[float] = []
        async with holding(crew, contender, self._leases):
            for number in range(self._times):
                await asyncio.sleep(_APART)
                began = time.monotonic()
                await client.delete(f"aiolocks:lock:{{held:{number}}}")
                crew[0].tell([number])
                (ended,) = await crew[0].hear()
                waits.append((ended or time.monotonic()) - began)
        return waits


class Flush(Workload):
    """All leases are lost at once."""

    name = "loss"
    usual_rounds = 3  # few: the leases of each are many
    case = "all flushed"
    figures = (
        Figure("told", "% of the bodies, within 5 s", 0),
        Figure("p50", "ms, median", 1),
        Figure("last", "ms, the last one", 1),
    )
    targets = (at_least(100, "told", "all of them", contenders=("aiolocks tracking",)),)

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self._leases = settings.size(1000, 20)
        self.work = (
            f"{self._leases} leases in one process, ttl 30 s; from FLUSHALL to the first line of each body's "
            "finally"
        )

    @property
    def contenders(self) -> Sequence[str]:
        """Keyspace notifications do not tell of it."""
        return ("aiolocks tracking",)

    @asynccontextmanager
    async def stage(self, address: Address) -> AsyncGenerator[Measure]:
        """A process that holds, and a client that flushes."""
        async with (
            Redis(**address.client_arguments) as client,
            Crew(address, 1, loop=self.settings.loop) as crew,
        ):

            async def measure(contender: str) -> Sample:
                async with holding(crew, contender, self._leases):
                    began = time.monotonic()
                    await client.flushall()
                    crew[0].tell(list(range(self._leases)))
                    ends = await crew[0].hear()
                waits = [ended - began for ended in ends if ended is not None]
                return Sample(
                    {
                        "told": 100 * len(waits) / self._leases,
                        "p50": statistics.median(waits) * 1000,
                        "last": max(waits) * 1000,
                    }
                )

            yield measure


@asynccontextmanager
async def holding(crew: Crew, contender: str, leases: int) -> AsyncGenerator[None]:
    """Inside, the process holds that number of leases, and the server was asked to tell of each."""
    crew[0].begin(hold, contender=contender, leases=leases)
    await crew[0].hear()
    yield
    crew[0].tell(None)
    await crew[0].hear()


async def hold(desk: Desk, contender: str, leases: int) -> None:
    """Holds them until it is told None; says when the bodies of those numbers have ended that it is told."""
    logging.getLogger("aiolocks").setLevel(logging.ERROR)  # it would tell of each loss
    locks = await desk.locks(contender)
    loop = asyncio.get_running_loop()
    ends: list[asyncio.Future[float]] = [loop.create_future() for _ in range(leases)]
    inside = asyncio.Semaphore(0)

    async def one(number: int) -> None:
        with suppress(LockLostError):
            async with locks.lock(f"held:{number}"):
                inside.release()
                try:
                    await asyncio.sleep(3600)
                finally:
                    ends[number].set_result(time.monotonic())

    tasks = [asyncio.create_task(one(number)) for number in range(leases)]
    for _ in range(leases):
        await inside.acquire()
    await asyncio.sleep(_ARMED)
    desk.say("holds")
    while (numbers := await desk.hear()) is not None:
        asked = [ends[number] for number in numbers]
        await asyncio.wait(asked, timeout=_PATIENCE)
        desk.say([one.result() if one.done() else None for one in asked])
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
