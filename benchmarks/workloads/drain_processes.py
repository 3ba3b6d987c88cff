"""A queue before one lock, from four processes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

from ..crew import Crew
from ..desk import Desk
from ..model import BARE, FLOOR, Figure, Sample
from ..settings import Address
from ..targets import at_most, faster
from ..wire import open_line, sleep_and_ping
from .base import Measure, Workload
from .drain import once, warm

_PROCESSES = 4


class DrainProcesses(Workload):
    """4 × 50 tasks that each need one lock once."""

    name = "drain-processes"
    work = "4 processes × 50 tasks, one lock, once each, 1 ms inside"
    floor = "200 × (sleep of 1 ms + one round trip by the driver), in sequence"
    figures = (Figure("seconds", "s", 3),)
    targets = (
        at_most(1.1, "seconds", "≤ 1.1 × floor", of=FLOOR),
        faster(15, "seconds", "≥ 15 × faster than redis-py", than="redis-py"),
    )

    few = ("redis-py", "redis-py, 10 ms", "pottery")

    @property
    def warm_up(self) -> bool:
        """As with `drain`."""
        return False

    @property
    def contenders(self) -> Sequence[str]:
        """Those who do best in one process, and redis-py as it comes."""
        return (FLOOR, BARE, "aiolocks", "redis-py", "redis-py, 10 ms", "pottery", "python-redis-lock")

    @asynccontextmanager
    async def stage(self, address: Address) -> AsyncGenerator[Measure]:
        """Four processes."""
        tasks = self.settings.size(50, 3)
        async with Crew(address, _PROCESSES, loop=self.settings.loop) as crew:

            async def measure(contender: str) -> Sample:
                if contender in (FLOOR, BARE):
                    times = _PROCESSES * tasks
                    return Sample({"seconds": await crew[0].do(by_hand, floor=contender, times=times)})
                arguments: dict[str, object] = {"contender": contender, "tasks": tasks}
                return Sample({"seconds": max(await crew.together(drain, [arguments] * _PROCESSES))})

            yield measure


async def drain(desk: Desk, contender: str, tasks: int) -> float:
    """One process's share; seconds from the common start to its end."""
    locks = await desk.locks(contender)
    await warm(locks, tasks)
    made = [locks.lock("drain-processes") for _ in range(tasks)]
    began = await desk.start_together()
    await asyncio.gather(*map(once, made))
    return time.monotonic() - began


async def by_hand(desk: Desk, floor: str, times: int) -> float:
    """The floor, in a process like those of the contenders."""
    async with open_line(floor, desk.address) as line:
        began = time.monotonic()
        await sleep_and_ping(line, times)
        return time.monotonic() - began
