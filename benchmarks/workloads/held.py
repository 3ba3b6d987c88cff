"""Many leases that are held for long: what keeping them costs."""

from __future__ import annotations

import asyncio
import gc
import secrets
import tracemalloc
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

from redis.asyncio import Redis

from aiolocks import Lock, Session

from ..crew import Crew
from ..desk import Desk
from ..model import Figure, Sample
from ..settings import Address
from ..targets import at_most
from ..usage import load, resident
from .base import Measure, Workload

_TTL = 10
_BASELINE = 3.0
"""Seconds for which the process is watched while it holds nothing."""


class Held(Workload):
    """Leases that are renewed. One round: its 20 s are many renewals already."""

    name = "held"
    work = "10 000 leases held, ttl 10 s, for 20 s; each renewed every third of its ttl"
    figures = (
        Figure("cpu", "% of one core, above an idle session", 1),
        Figure("traced", "KiB a lease, allocated (tracemalloc)", 2),
        Figure("resident", "KiB a lease, resident (RSS)", 2),
        Figure("tasks", "tasks more than none"),
    )
    patience = 180.0
    once = True  # its processes are fresh

    targets = (
        at_most(2.5, "cpu", "≤ 2.5 % of one core"),
        at_most(2.5, "traced", "≤ 2.5 KiB a lease, allocated"),
        at_most(2.5, "resident", "≤ 2.5 KiB a lease, resident"),
        at_most(3, "tasks", "≤ 3 tasks"),
    )

    @property
    def contenders(self) -> Sequence[str]:
        """Ours alone: no peer renews by itself."""
        return ("aiolocks",)

    @asynccontextmanager
    async def stage(self, address: Address) -> AsyncGenerator[Measure]:
        """One process that is watched for long, one in which memory is traced, which slows it."""
        leases = self.settings.size(10_000, 100)

        async def measure(_: str) -> Sample:
            async with Crew(address, 2, loop=self.settings.loop) as crew:
                seconds = self.settings.size(20, 2)
                watched = await crew[0].do(hold_and_watch, leases=leases, seconds=seconds)
                traced = await crew[1].do(hold_and_trace, leases=leases)
            return Sample({**watched, "traced": traced})

        yield measure


async def hold_and_watch(desk: Desk, leases: int, seconds: float) -> dict[str, float]:
    """Time of the processor, resident memory, tasks."""
    tasks = len(asyncio.all_tasks())
    async with _session(desk) as session:
        idle = await load(_BASELINE)
        gc.collect()
        before = resident()
        async with _held(session, leases):
            gc.collect()
            return {
                "resident": (resident() - before) / leases / 1024,
                "cpu": (await load(seconds) - idle) * 100,
                "tasks": len(asyncio.all_tasks()) - tasks,
            }


async def hold_and_trace(desk: Desk, leases: int) -> float:
    """KiB a lease, by tracemalloc."""
    async with _session(desk) as session:
        gc.collect()
        tracemalloc.start()
        async with _held(session, leases):
            gc.collect()
            allocated, _ = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            return allocated / leases / 1024


@asynccontextmanager
async def _session(desk: Desk) -> AsyncGenerator[Session]:
    async with Redis(**desk.address.client_arguments) as client, Session(client) as session:
        async with _held(session, 1):
            pass  # connected, imported, warm
        yield session


@asynccontextmanager
async def _held(session: Session, leases: int) -> AsyncGenerator[None]:
    prefix = secrets.token_hex(4)  # the two processes hold their own
    held = [await Lock(session, f"{prefix}:{number}", ttl=_TTL).acquire() for number in range(leases)]
    yield
    for lease in held:
        await lease.release()
