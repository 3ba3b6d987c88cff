"""The cost of a lock, for each kind: requests, time of the processor, memory."""

from __future__ import annotations

import asyncio
import gc
import itertools
import statistics
import tracemalloc
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from redis.asyncio import Redis

from aiolocks import (
    FairLock,
    Leadership,
    Limits,
    Lock,
    MultiLock,
    RangeLock,
    Redlock,
    ReentrantLock,
    RWLock,
    Semaphore,
    Session,
)

from ..model import Figure, Sample
from ..monitored import counting
from ..settings import Address
from ..spent import spending
from .base import Measure, Workload
from .drain import once

MASTERS = 3
HOLD = 0.02
"""Seconds: shorter than the time after which a session begins to listen for the loss of a lease."""
TTL = 0.9
"""Seconds, of leases whose renewals are counted."""
_RENEWALS = 2
_TOGETHER = 100
_BATCHES = 5
_names = itertools.count()

Make = Callable[..., Any]
"""Describes a lock, given a session or sessions, a name and `ttl=`."""


@dataclass(frozen=True, slots=True)
class _Kind:
    make: Make
    other: Make | None = None
    """The lock that keeps it out, where that is another one; then tasks of one process do not take turns."""
    masters: int = 1


def _several(source: Any, name: str, **common: Any) -> Any:
    return MultiLock(source, [f"{name}:{number}" for number in range(3)], **common)


def _limits(source: Any, name: str, **common: Any) -> Any:
    return Limits(source, name, {"all": 2, "tenant": 1}, **common)


def _mode(mode: str) -> Make:
    return lambda source, name, **common: getattr(RWLock(source, name, **common), mode)


def _range(source: Any, name: str, **common: Any) -> Any:
    return RangeLock(source, name, **common).writer(0, 10)


KINDS = {
    "`Lock`": _Kind(Lock),
    "`ReentrantLock`": _Kind(ReentrantLock),
    "`FairLock`": _Kind(FairLock),
    "`MultiLock` of 3 names": _Kind(_several),
    "`Semaphore`": _Kind(partial(Semaphore, value=1)),
    "fair `Semaphore`": _Kind(partial(Semaphore, value=1, fair=True)),
    "`Limits` of 2 keys": _Kind(_limits),
    "`RWLock.writer`": _Kind(_mode("writer")),
    "`RWLock.reader`": _Kind(_mode("reader"), other=_mode("writer")),
    "`RangeLock.writer`": _Kind(_range),
    "`Leadership`": _Kind(Leadership),
    f"`Redlock` of {MASTERS} masters": _Kind(Redlock, masters=MASTERS),
}


class Costs(Workload):
    """A table: a row for each kind."""

    name = "costs"
    work = (
        "requests as the servers were sent them (MONITOR); CPU of acquire and release by one task; memory of "
        "1 000 leases, with their lock objects"
    )
    figures = (
        Figure("cycle", "requests: acquire and release", 1),
        Figure("wait", "requests: added by a wait for another process", 1),
        Figure("handover", "requests: after a task of the same process", 1),
        Figure("renewal", "requests: a renewal", 1),
        Figure("renewals", f"requests: a renewal, of {_TOGETHER} leases", 2),
        Figure("client", "client: µs of CPU a cycle"),
        Figure("server", "server: µs of CPU a cycle"),
        Figure("memory", "client: KiB a lease", 1),
        Figure("stored", "server: KiB a lease", 1),
    )
    targets = ()
    once = True  # counts are steady, and each cost of time is the median of some batches

    @property
    def contenders(self) -> Sequence[str]:
        """The kinds."""
        return tuple(KINDS)

    @asynccontextmanager
    async def stage(self, address: Address) -> AsyncGenerator[Measure]:
        """Masters of its own for the kind that has several."""
        async with AsyncExitStack() as stack:
            masters = [await stack.enter_async_context(self.settings.embedded()) for _ in range(MASTERS)]

            async def measure(contender: str) -> Sample:
                kind = KINDS[contender]
                servers = [address] if kind.masters == 1 else [*map(Address.of, masters)]
                async with AsyncExitStack() as connections:
                    return Sample(await self._figures(kind, servers, connections))

            yield measure

    async def _figures(self, kind: _Kind, servers: list[Address], stack: AsyncExitStack) -> dict[str, float]:
        size, renewed = self.settings.size, Renewed()
        here = await sessions(servers, stack, listeners=(renewed,))
        there = await sessions(servers, stack)
        name = f"costs:{next(_names)}"
        own = kind.make(here, name, ttl=30)
        other = (kind.other or kind.make)(there, name, ttl=30)
        for lock in (own, other):
            await _cycles(lock, 2)
        async with counting(servers) as counted:
            await _cycles(own, 10)
        cycle = counted.number / 10
        figures = {"cycle": cycle, "wait": await _wait(own, other, servers) - 2 * cycle}
        if kind.other is None:
            tasks = size(50, 5)
            async with counting(servers) as counted:
                await asyncio.gather(*(once(own) for _ in range(tasks)))
            figures["handover"] = counted.number / tasks
        for key, leases in (("renewal", 1), ("renewals", size(_TOGETHER, 5))):
            names = [f"{name}:{key}:{number}" for number in range(leases)]
            held = [await kind.make(here, one, ttl=TTL).acquire() for one in names]
            await renewed.times(leases)
            async with counting(servers) as counted:
                await renewed.times(_RENEWALS * leases)
            figures[key] = counted.number / _RENEWALS / leases
            for lease in held:
                await lease.release()
        return (
            figures
            | await _processor(own, servers, size(250, 5))
            | await _memory(partial(kind.make, here, ttl=30), servers, size(1000, 20))
        )


class Renewed:
    """A listener: the renewals of a session.

    Attributes:
        number: How many there were.
    """

    def __init__(self) -> None:
        self.number = 0
        self._left = 0
        self._reached = asyncio.Event()

    def on_renewed(self, *_: object) -> None:
        """One more."""
        self.number += 1
        self._left -= 1
        if self._left == 0:
            self._reached.set()

    async def times(self, number: int) -> None:
        """Returns after that many more."""
        self._left = number
        self._reached.clear()
        await self._reached.wait()


async def sessions(servers: Sequence[Address], stack: AsyncExitStack, **settings: Any) -> Any:
    """A session, or of several masters one each."""
    made = [
        await stack.enter_async_context(
            Session(await stack.enter_async_context(Redis(**server.client_arguments)), **settings)
        )
        for server in servers
    ]
    return made if len(made) > 1 else made[0]


async def _cycles(lock: Any, number: int) -> None:
    for _ in range(number):
        async with lock:
            pass


async def _wait(own: Any, other: Any, servers: Sequence[Address]) -> float:
    """Requests of both, where one is inside while the other asks; several times, for the scripts' sake."""
    found: list[int] = []
    for _ in range(5):
        inside = asyncio.Event()

        async def hold(inside: asyncio.Event = inside) -> None:
            async with other:
                inside.set()
                await asyncio.sleep(HOLD)

        async with counting(servers) as counted:
            holding = asyncio.create_task(hold())
            await inside.wait()
            await _cycles(own, 1)
            await holding
        found.append(counted.number)
    return statistics.median(found)


async def _processor(lock: Any, servers: Sequence[Address], cycles: int) -> dict[str, float]:
    async with AsyncExitStack() as stack:
        admins = [await stack.enter_async_context(server.client()) for server in servers]
        batches: list[dict[str, float]] = []
        for _ in range(_BATCHES):
            async with AsyncExitStack() as counts:
                spent = [await counts.enter_async_context(spending(admin)) for admin in admins]
                await _cycles(lock, cycles)
            batches.append({"client": spent[-1].client, "server": sum(one.server for one in spent)})
    return {key: statistics.median(each[key] for each in batches) / cycles * 1e6 for key in batches[0]}


async def _memory(make: Make, servers: Sequence[Address], leases: int) -> dict[str, float]:
    name = f"costs:{next(_names)}"
    gc.collect()
    stored = await _stored(servers)
    tracemalloc.start()
    held = [await make(name=f"{name}:{number}").acquire() for number in range(leases)]
    gc.collect()
    allocated, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    stored = await _stored(servers) - stored
    for lease in held:
        await lease.release()
    return {"memory": allocated / leases / 1024, "stored": stored / leases / 1024}


async def _stored(servers: Sequence[Address]) -> float:
    used = 0.0
    for server in servers:
        async with Redis(**server.client_arguments) as admin:
            used += (await admin.info("memory"))["used_memory"]
    return used
