"""Redlock over five masters: one task that nobody is in the way of, and a name that many tasks want."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from itertools import chain
from typing import Any

from redis.asyncio import Redis

from aiolocks import Lock, Redlock
from aiolocks.testing import EmbeddedServer

from ..crew import Crew
from ..desk import Desk
from ..distance import far_away
from ..model import FLOOR, Figure, Sample
from ..settings import Address, Settings
from ..targets import at_least, at_most, faster
from .base import Measure, Workload

_MASTERS = 5
_PROCESSES = 4
_TASKS = 5
_TTL = 30
_HUNG = "aiolocks, one master hangs"
_PEER = {0: "≥ 1.4 × as fast as pottery", 1: "as fast as pottery"}
"""Targets, by the milliseconds of delay."""


@asynccontextmanager
async def _five_masters(settings: Settings) -> AsyncGenerator[list[EmbeddedServer]]:
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(settings.embedded()) for _ in range(_MASTERS)]


class RedlockAlone(Workload):
    """One task, one lock after the other.

    Args:
        away: Milliseconds by which each answer comes later, through a proxy in the same process.
    """

    name = "redlock"
    floor = "`Lock` on one of the masters"
    figures = (Figure("cycle", "µs per cycle"), Figure("client", "client, µs of CPU a cycle", 1))

    def __init__(self, settings: Settings, *, away: int) -> None:
        super().__init__(settings)
        self._away = away
        cycles = 200 if away else 500
        self._cycles = settings.size(cycles, 10)
        self.case = f"{away} ms away" if away else "alone"
        far = f"; each answer comes {away} ms later, through a proxy in the same process" if away else ""
        self.work = f"one task, {cycles} times acquire and release, over {_MASTERS} masters, on 50 names{far}"
        self.targets = [faster(1.0 if away else 1.4, "cycle", _PEER[away], than="pottery")]
        if away:
            self.targets.append(at_most(1.3, "cycle", "≤ 1.3 × one master", of=FLOOR))

    @property
    def contenders(self) -> Sequence[str]:
        """Those that have a majority of several masters decide."""
        return (FLOOR, "aiolocks", "pottery")

    @asynccontextmanager
    async def stage(self, address: Address) -> AsyncGenerator[Measure]:
        """Masters of its own, and a connection to each."""
        cycles = self._cycles
        names = [f"redlock:{number}" for number in range(50)]
        async with _five_masters(self.settings) as servers, AsyncExitStack() as stack:
            masters = [Address.of(server) for server in servers]
            if self._away:
                masters = [
                    await stack.enter_async_context(far_away(master, self._away / 1000)) for master in masters
                ]
            clients = [await stack.enter_async_context(master.client()) for master in masters]

            def locking(contender: str, name: str) -> AbstractAsyncContextManager[Any]:
                if contender == "pottery":
                    from pottery import AIORedlock  # noqa: PLC0415 - it may not be installed

                    lock: AbstractAsyncContextManager[Any]
                    lock = AIORedlock(key=name, masters=set(clients), auto_release_time=_TTL)
                    return lock
                if contender == FLOOR:
                    return Lock(clients[0], name, ttl=_TTL)
                return Redlock(clients, name, ttl=_TTL)

            async def measure(contender: str) -> Sample:
                began, spent = time.perf_counter(), time.process_time()
                for number in range(cycles):
                    async with locking(contender, names[number % len(names)]):
                        pass
                seconds, client = time.perf_counter() - began, time.process_time() - spent
                return Sample({"cycle": seconds / cycles * 1e6, "client": client / cycles * 1e6})

            yield measure


class ContendedRedlock(Workload):
    """In a loop; the master that hangs is stopped before the round begins, and nobody is told."""

    name = "redlock"
    case = "contended"
    work = (
        f"{_PROCESSES} processes × {_TASKS} tasks, in a loop for 4 s on one Redlock of {_MASTERS} masters, "
        "1 ms inside; also with one of the masters stopped (SIGSTOP) right before"
    )
    floor = "the same with a `Lock` on one of the masters"
    usual_rounds = 3  # few: each task has hundreds of turns
    one_server = "four processes and five masters share two cores, whatever the server"
    figures = (
        Figure("throughput", "acquisitions/s"),
        Figure("slowest", "slowest ÷ fastest task", 2),
        Figure("p99", "ms of waiting, 99 % of all", 1),
        Figure("longest", "ms of waiting, at most"),
    )
    targets = (
        at_least(0.6, "throughput", "≥ 0.6 × one master", of=FLOOR),
        at_least(0.7, "slowest", "slowest ≥ 0.7 × fastest"),
        at_least(0.9, "throughput", "≥ 0.9 × healthy", of="aiolocks", contenders=(_HUNG,)),
        at_most(4, "p99", "≤ 4 × healthy", of="aiolocks", contenders=(_HUNG,)),
    )

    @property
    def warm_up(self) -> bool:
        """Each process warms up by itself."""
        return False

    @property
    def contenders(self) -> Sequence[str]:
        """Ours alone: no peer queues for a majority."""
        return (FLOOR, "aiolocks", _HUNG)

    @asynccontextmanager
    async def stage(self, address: Address) -> AsyncGenerator[Measure]:
        """Masters of its own, and four processes."""
        seconds = self.settings.size(4, 1)
        async with (
            _five_masters(self.settings) as servers,
            Crew(address, _PROCESSES, loop=self.settings.loop) as crew,
        ):

            async def contended(contender: str) -> list[list[list[float]]]:
                masters = servers[:1] if contender == FLOOR else servers
                arguments = {"masters": [str(server.path) for server in masters], "seconds": seconds}
                async with crew.renewed_on_failure():
                    for number in range(_PROCESSES):
                        crew[number].begin(contend, **arguments)
                    await crew.hear()
                    if contender == _HUNG:
                        servers[-1].pause()
                    at = time.monotonic() + 0.02
                    for number in range(_PROCESSES):
                        crew[number].tell(at)
                    return await crew.hear()

            async def measure(contender: str) -> Sample:
                try:
                    tasks = list(chain.from_iterable(await contended(contender)))
                finally:
                    if contender == _HUNG:
                        servers[-1].resume()
                waits = list(chain.from_iterable(tasks))
                shares = [len(task) for task in tasks]
                return Sample(
                    {
                        "throughput": len(waits) / seconds,
                        "slowest": min(shares) / max(*shares, 1),
                        "p99": statistics.quantiles(waits or [seconds, seconds], n=100, method="inclusive")[
                            -1
                        ]
                        * 1000,
                        "longest": max(waits, default=seconds) * 1000,
                    }
                )

            yield measure


async def contend(desk: Desk, masters: list[str], seconds: float) -> list[list[float]]:
    """One process: how long each of its tasks waited each time."""
    clients = [Redis(unix_socket_path=path) for path in masters]

    def lock(name: str) -> Lock | Redlock:
        return Redlock(clients, name) if len(clients) > 1 else Lock(clients[0], name)

    async with lock("redlock:warm-up"):
        pass
    wanted = lock("redlock")
    began = await desk.start_together()

    async def one() -> list[float]:
        waits: list[float] = []
        while (asked := time.monotonic()) - began < seconds:
            async with wanted:
                if time.monotonic() - began < seconds:
                    waits.append(time.monotonic() - asked)
                await asyncio.sleep(0.001)
        return waits

    waits = await asyncio.gather(*(one() for _ in range(_TASKS)))
    for client in clients:
        await client.aclose()
    return waits
