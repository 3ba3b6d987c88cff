"""Many schedules in one process: what keeping them costs between their ticks, and what their ticks cost."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

from redis.asyncio import Redis

from aiolocks import Schedule, Session, Tick

from ..crew import Crew
from ..desk import Desk
from ..model import Figure, Sample
from ..settings import Address
from ..targets import at_most
from ..usage import load, resident
from .base import Measure, Workload

_DAY = 86_400.0
_QUIET = 1.0
"""Seconds without a request, after which all schedules have had their first answers."""


class Schedules(Workload):
    """10 000 schedules. One round: it is long."""

    name = "schedules"
    work = (
        "10 000 schedules in one process: 8 s between two ticks; and 2 500 for 15 s with every=15, "
        "jitter=7.5, a job that does nothing"
    )
    figures = (
        Figure("cpu", "% of one core, idle", 2),
        Figure("requests", "requests a second, idle", 2),
        Figure("resident", "KiB a schedule, resident (RSS)", 2),
        Figure("ticking", "% of one core, 167 ticks a second", 1),
        Figure("each", "requests a tick", 2),
    )
    targets = (
        at_most(1, "requests", "≤ 1 request a second, idle"),
        at_most(2, "cpu", "≤ 2 % of one core, idle"),
        at_most(12, "resident", "≤ 12 KiB a schedule, resident"),
        at_most(3, "each", "≤ 3 requests a tick"),
    )
    patience = 180.0
    one_server = "the process of the schedules is looked at"
    once = True  # its processes are fresh

    @property
    def contenders(self) -> Sequence[str]:
        """Ours alone."""
        return ("aiolocks",)

    @asynccontextmanager
    async def stage(self, address: Address) -> AsyncGenerator[Measure]:
        """One process that is idle, one whose schedules tick."""
        number = self.settings.size(10_000, 50)

        async def measure(_: str) -> Sample:
            async with Crew(address, 2, loop=self.settings.loop) as crew:
                idle = await crew[0].do(keep_idle, number=number, seconds=self.settings.size(8, 1))
                ticking = await crew[1].do(keep_ticking, number=number // 4, period=self.settings.size(15, 1))
            return Sample({**idle, **ticking})

        yield measure


async def keep_idle(desk: Desk, number: int, seconds: float) -> dict[str, float]:
    """Between two ticks."""
    async with Redis(**desk.address.client_arguments) as client, Session(client) as session:
        async with _kept(session, "warm", 1, every=_DAY):
            await asyncio.sleep(0.1)  # connected, imported, warm
        gc.collect()
        before = resident()
        async with _kept(session, "idle", number, every=_DAY):
            await _quiet(session)
            gc.collect()
            each = (resident() - before) / number / 1024
            sent, share = session.statistics().commands_sent, await load(seconds)
            requests = (session.statistics().commands_sent - sent) / seconds
    return {"resident": each, "cpu": share * 100, "requests": requests}


async def keep_ticking(desk: Desk, number: int, period: float) -> dict[str, float]:
    """Each has one tick in the period."""
    ran: list[Tick] = []
    async with (
        Redis(**desk.address.client_arguments) as client,
        Session(client) as session,
        _kept(session, "ticking", number, ran, every=period, jitter=period / 2),
    ):
        await asyncio.sleep(period / 2)  # all have had their first answers
        sent, began = session.statistics().commands_sent, len(ran)
        share = await load(period)
        requests = session.statistics().commands_sent - sent
    return {"ticking": share * 100, "each": requests / max(1, len(ran) - began)}


@asynccontextmanager
async def _kept(
    session: Session, prefix: str, number: int, ran: list[Tick] | None = None, **arguments: float
) -> AsyncGenerator[None]:
    async with AsyncExitStack() as stack:
        for one in range(number):
            schedule = Schedule(session, f"{prefix}:{one}", **arguments)  # type: ignore[arg-type]

            @schedule
            async def job(tick: Tick) -> None:
                if ran is not None:
                    ran.append(tick)

            await stack.enter_async_context(schedule)
        yield


async def _quiet(session: Session) -> None:
    sent = -1
    while sent < session.statistics().commands_sent:
        sent = session.statistics().commands_sent
        await asyncio.sleep(_QUIET)
