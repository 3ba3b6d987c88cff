"""Several processes that all want one lock all the time: who gets it how often."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import TypedDict

from ..crew import Crew
from ..desk import Desk
from ..model import BARE, FLOOR, Figure, Hold, Sample
from ..settings import Address, Settings
from ..targets import at_least
from ..wire import open_line, sleep_and_ping
from .base import NOTIFIED, Measure, Workload

_PROCESSES = 4
_SECONDS = 3
_STRIP = (0.5, 0.8)
"""Seconds after the start between which it is kept who held the lock."""


class _Share(TypedDict):
    counts: list[int]
    holds: list[tuple[float, float]]


class Fairness(Workload):
    """In a loop, for as long as each task is inside a hundred times."""

    name = "fairness"
    usual_rounds = 2  # few: each has thousands of turns
    floor = "1 / (1 ms timer + one round trip by the driver)"
    figures = (Figure("evenness", "slowest task / fastest", 2), Figure("throughput", "acquisitions/s"))

    def __init__(self, settings: Settings, *, tasks: int) -> None:
        super().__init__(settings)
        self._tasks = tasks
        if tasks == 1:
            self.one_server = "the first case shows what differs"
        even = 0.95 if tasks > 1 else 0.9
        self.targets = [at_least(even, "evenness", f"slowest ≥ {even} × fastest", contenders=NOTIFIED)]
        if tasks > 1:
            text = "≥ 0.9 × redis-py, which is not fair"
            self.targets.append(at_least(0.9, "throughput", text, of="redis-py", contenders=NOTIFIED))
        self.case = f"{_PROCESSES} × {tasks}"
        plural = "s" if tasks > 1 else ""
        self.work = (
            f"{_PROCESSES} processes × {tasks} task{plural}, in a loop for {_SECONDS} s on one lock, 1 ms "
            "inside"
        )

    @property
    def warm_up(self) -> bool:
        """A whole round would be long; every process warms up by itself."""
        return False

    @property
    def contenders(self) -> Sequence[str]:
        """Ours by way of waking up; and, where there are many tasks, what most use."""
        peers = ("redis-py",) if self._tasks > 1 else ()
        return (FLOOR, BARE, *self.by_wakeup(), *peers)

    @asynccontextmanager
    async def stage(self, address: Address) -> AsyncGenerator[Measure]:
        """Four processes."""
        seconds = self.settings.size(_SECONDS, 1)
        async with Crew(address, _PROCESSES, loop=self.settings.loop) as crew:

            async def measure(contender: str) -> Sample:
                if contender in (FLOOR, BARE):
                    times = self.settings.size(500, 20)
                    return Sample({"throughput": await crew[0].do(by_hand, floor=contender, times=times)})
                arguments: dict[str, object] = {
                    "contender": contender,
                    "tasks": self._tasks,
                    "seconds": seconds,
                }
                return _sample(await crew.together(loop, [arguments] * _PROCESSES), seconds)

            yield measure


def _sample(shares: Sequence[_Share], seconds: float) -> Sample:
    counts = [count for share in shares for count in share["counts"]]
    holds: list[Hold] = [
        (process, since, until) for process, share in enumerate(shares) for since, until in share["holds"]
    ]
    figures = {"evenness": min(counts) / max(counts), "throughput": sum(counts) / seconds}
    return Sample(figures, holds=sorted(holds, key=lambda hold: hold[1]))


async def loop(desk: Desk, contender: str, tasks: int, seconds: float) -> _Share:
    """One process: how often each task was inside in time, and when they were."""
    locks = await desk.locks(contender)
    async with locks.lock("fairness:warm-up"):
        pass
    share = _Share(counts=[0] * tasks, holds=[])
    began = await desk.start_together()

    async def one(task: int) -> None:
        made = locks.lock("fairness") if locks.again else None
        # A task that still waits at the end is let in once more, uncounted: nobody is cut off in a request.
        while time.monotonic() - began < seconds:
            async with made or locks.lock("fairness"):
                since = time.monotonic() - began
                await asyncio.sleep(0.001)
                share["counts"][task] += since < seconds
                if _STRIP[0] <= since < _STRIP[1]:
                    share["holds"].append((since, time.monotonic() - began))

    await asyncio.gather(*(one(task) for task in range(tasks)))
    return share


async def by_hand(desk: Desk, floor: str, times: int) -> float:
    """The floor, in a process like those of the contenders."""
    async with open_line(floor, desk.address) as line:
        began = time.monotonic()
        await sleep_and_ping(line, times)
        return times / (time.monotonic() - began)
