"""Limits with a noisy tenant: how long a quiet one waits beside it."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

from redis.asyncio import Redis

from aiolocks import Limits, Session

from ..crew import Crew
from ..desk import Desk
from ..model import Figure, Sample
from ..settings import Address
from ..targets import at_most
from .base import Measure, Workload

_HOLD = 0.001


class NoisyTenant(Workload):
    """One tenant with 1 000 waiters, and another that comes now and then."""

    name = "limits"
    work = (
        "a total of 1: a session with 1 000 tasks of one tenant, in a loop, 1 ms inside; another session "
        "with one task of another tenant, 100 times"
    )
    figures = (
        Figure("turns", "grants of the noisy tenant while the quiet one waits, most", 0),
        Figure("wait", "ms that the quiet one waits, median", 2),
        Figure("throughput", "acquisitions/s of the noisy one", 0),
    )
    targets = (at_most(2, "turns", "≤ 2: the one that is inside or was called, and one turn"),)
    once = True  # it is long, and its processes are fresh and warm up by themselves

    @property
    def contenders(self) -> Sequence[str]:
        """Ours alone."""
        return ("aiolocks",)

    @asynccontextmanager
    async def stage(self, address: Address) -> AsyncGenerator[Measure]:
        """One process with two sessions, so that grants can be counted."""
        number, times = self.settings.size(1000, 20), self.settings.size(100, 5)

        async def measure(_: str) -> Sample:
            async with Crew(address, 1, loop=self.settings.loop) as crew:
                return Sample(await crew[0].do(beside_noise, number=number, times=times))

        yield measure


async def beside_noise(desk: Desk, number: int, times: int) -> dict[str, float]:
    """The quiet tenant's waits."""
    granted = 0
    async with (
        Redis(**desk.address.client_arguments) as one,
        Redis(**desk.address.client_arguments) as other,
        Session(one) as noisy,
        Session(other) as quiet,
    ):

        async def loop() -> None:
            nonlocal granted
            limits = Limits(noisy, "limits", {"all": 1, "tenant:noisy": 1})
            while True:
                async with limits:
                    granted += 1
                    await asyncio.sleep(_HOLD)

        tasks = [asyncio.create_task(loop()) for _ in range(number)]
        limits = Limits(quiet, "limits", {"all": 1, "tenant:quiet": 1})
        async with limits:
            await asyncio.sleep(1)  # all of them wait
        turns, waits, began, before = [], [], time.monotonic(), granted
        for _ in range(times):
            asked, seen = time.monotonic(), granted
            async with limits:
                waits.append(time.monotonic() - asked)
                turns.append(granted - seen)
            await asyncio.sleep(5 * _HOLD)
        seconds = time.monotonic() - began
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    return {
        "turns": max(turns),
        "wait": statistics.median(waits) * 1000,
        "throughput": (granted - before) / seconds,
    }
