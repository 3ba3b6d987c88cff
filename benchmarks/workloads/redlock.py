"""One Redlock that several processes want all the time, with healthy masters and with one that hangs."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import chain

from redis.asyncio import Redis

from aiolocks import Redlock
from aiolocks.testing import EmbeddedServer

from ..crew import Crew
from ..desk import Desk
from ..model import FLOOR, Figure, Sample
from ..settings import Address
from ..targets import at_least, at_most
from .base import Measure, Workload

_MASTERS = 3
_PROCESSES = 4
_TASKS = 5
_HUNG = "aiolocks, one master hangs"


class ContendedRedlock(Workload):
    """In a loop for 10 s; the master is stopped before the round begins, and nobody is told."""

    name = "redlock"
    work = (
        f"{_PROCESSES} processes × {_TASKS} tasks, in a loop for 10 s on one Redlock of three masters, 1 ms "
        "inside; one of the masters is stopped (SIGSTOP) right before"
    )
    floor = "the same with three healthy masters"
    figures = (
        Figure("throughput", "acquisitions/s"),
        Figure("p99", "ms of waiting, 99 % of all", 1),
        Figure("longest", "ms of waiting, at most"),
    )
    targets = (
        at_least(0.5, "throughput", "≥ 0.5 × healthy", of=FLOOR, contenders=(_HUNG,)),
        at_most(4, "p99", "≤ 4 × healthy", of=FLOOR, contenders=(_HUNG,)),
    )

    @property
    def contenders(self) -> Sequence[str]:
        """Ours alone: no peer queues for a majority."""
        return (FLOOR, _HUNG)

    @asynccontextmanager
    async def stage(self, address: Address) -> AsyncGenerator[Measure]:
        """Masters of its own, and four processes."""
        seconds = self.settings.size(10, 1)
        async with AsyncExitStack() as stack:
            servers = [await stack.enter_async_context(EmbeddedServer()) for _ in range(_MASTERS)]
            crew = await stack.enter_async_context(Crew(address, _PROCESSES, loop=self.settings.loop))
            arguments: dict[str, object] = {
                "masters": [str(server.path) for server in servers],
                "seconds": seconds,
            }

            async def contended(*, hung: bool) -> list[list[float]]:
                async with crew.renewed_on_failure():
                    for number in range(_PROCESSES):
                        crew[number].begin(contend, **arguments)
                    await crew.hear()
                    if hung:
                        servers[-1].pause()
                    at = time.monotonic() + 0.02
                    for number in range(_PROCESSES):
                        crew[number].tell(at)
                    return await crew.hear()

            async def measure(contender: str) -> Sample:
                hung = contender == _HUNG
                try:
                    shares = await contended(hung=hung)
                finally:
                    if hung:
                        servers[-1].resume()
                waits = list(chain.from_iterable(shares))
                return Sample(
                    {
                        "throughput": len(waits) / seconds,
                        "p99": statistics.quantiles(waits, n=100, method="inclusive")[-1] * 1000,
                        "longest": max(waits) * 1000,
                    }
                )

            yield measure


async def contend(desk: Desk, masters: list[str], seconds: float) -> list[float]:
    """One process: how long it waited each time."""
    clients = [Redis(unix_socket_path=path) for path in masters]
    lock = Redlock(clients, "redlock")
    waits: list[float] = []
    async with Redlock(clients, "redlock:warm-up"):
        pass
    began = await desk.start_together()

    async def one() -> None:
        while (asked := time.monotonic()) - began < seconds:
            async with lock:
                if time.monotonic() - began < seconds:
                    waits.append(time.monotonic() - asked)
                await asyncio.sleep(0.001)

    await asyncio.gather(*(one() for _ in range(_TASKS)))
    for client in clients:
        await client.aclose()
    return waits
