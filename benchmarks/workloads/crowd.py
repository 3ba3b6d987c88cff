"""Acquire and release with many others present: what the workloads that measure it have in common."""

from __future__ import annotations

import asyncio
import gc
import time
from abc import abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any, ClassVar

from redis.asyncio import Redis

from aiolocks import Session

from ..crew import Crew, Job, Worker
from ..desk import Desk
from ..model import FLOOR, Figure, Sample
from ..settings import Address, Settings
from ..targets import at_most
from .base import Measure, Workload

TTL = 3600
"""Seconds: longer than a run, so that no renewal gets into the figures."""

_SIZES = (100, 1_000, 10_000, 100_000)
AT_ONCE = 500
"""How many come at the same time."""

Acquire = Callable[[], Awaitable[object]]
Cycles = Callable[["Crowd"], Awaitable[float]]
"""Seconds that the cycles took among these others."""


@dataclass(frozen=True, slots=True)
class Crowd:
    """A number of other tasks at one name."""

    name: str
    others: int


def _row(others: int) -> str:
    return f"aiolocks, {f'{others:,}'.replace(',', ' ')} others"


class Crowded(Workload):
    """With none, and with more and more.

    The others are in a process of their own, those of all sizes at once, each under a name of its own; they
    are there before the first round and after the last, which is counted on the server.

    No peer has what would be measured: redis-py, pottery, coredis, python-redis-lock and cashews have locks
    for one holder, and none promises first come, first served.

    Attributes:
        keys: The sorted sets that have one member for each of the others, once `format` has put the name in.
    """

    floor = "the same with none"
    core_apart = True
    usual_rounds = 3  # few: to make the others takes long
    one_server = "on each, a step takes the logarithm of the number of members of a sorted set"
    figures = (Figure("cycle", "µs per cycle"),)
    targets = (at_most(1.5, "cycle", "≤ 1.5 × with 100", of=_row(_SIZES[0]), contenders=(_row(_SIZES[-1]),)),)
    keys: ClassVar[Sequence[str]]

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.cycles = settings.size(500, 50)
        sizes = {FLOOR: 0} | {_row(others): settings.size(others, others // 100) for others in _SIZES}
        self._crowds = {row: Crowd(f"{self.name}:{others}", others) for row, others in sizes.items()}

    @property
    def contenders(self) -> Sequence[str]:
        """Ours alone, by how many others there are."""
        return tuple(self._crowds)

    @property
    @abstractmethod
    def job(self) -> Job:
        """Of the process of the others: says something when all of them are there."""

    @abstractmethod
    def timed(self, address: Address, others: Worker) -> AbstractAsyncContextManager[Cycles]:
        """The context that measures."""

    @asynccontextmanager
    async def stage(self, address: Address) -> AsyncGenerator[Measure]:
        """All the others."""
        async with (
            Redis(**address.client_arguments) as client,
            Crew(address, 1, loop=self.settings.loop) as crew,
        ):
            crew[0].begin(self.job, crowds=[asdict(crowd) for crowd in self._crowds.values()])
            await crew[0].hear()
            await self._count(client)
            async with self.timed(address, crew[0]) as cycles:

                async def measure(contender: str) -> Sample:
                    seconds = await cycles(self._crowds[contender])
                    return Sample({"cycle": seconds / self.cycles * 1e6})

                yield measure
            await self._count(client)

    async def _count(self, client: Redis) -> None:
        for crowd in self._crowds.values():
            present = sum([await client.zcard(key.format(crowd.name)) for key in self.keys])
            if present != crowd.others:
                raise RuntimeError(f"{crowd.name} has {present} others instead of {crowd.others}")


class AmongHolders(Crowded):
    """The others hold, and are in nobody's way."""

    @abstractmethod
    def free(self, session: Session, crowd: Crowd) -> Sequence[AbstractAsyncContextManager[Any]]:
        """The locks that are acquired and released, in turn."""

    @asynccontextmanager
    async def timed(self, address: Address, others: Worker) -> AsyncGenerator[Cycles]:
        """One task in this process."""
        async with Redis(**address.client_arguments) as client, Session(client) as session:

            async def cycles(crowd: Crowd) -> float:
                made = self.free(session, crowd)
                began = time.perf_counter()
                for number in range(self.cycles):
                    async with made[number % len(made)]:
                        pass
                return time.perf_counter() - began

            yield cycles


async def hold(
    desk: Desk, crowds: Iterable[dict[str, Any]], holding: Callable[[Session, Crowd], Iterable[Acquire]]
) -> None:
    """The job of others that hold, until the process is killed."""
    leases: list[object] = []
    async with Redis(**desk.address.client_arguments) as client, Session(client) as session:
        for crowd in crowds:
            acquires = iter(holding(session, Crowd(**crowd)))
            while batch := list(islice(acquires, AT_ONCE)):
                leases += await asyncio.gather(*(acquire() for acquire in batch))
        gc.freeze()
        desk.say("held")
        await desk.hear()
