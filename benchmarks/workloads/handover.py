"""From one process to another: how long a free lock stays unused."""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from abc import abstractmethod
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

from ..contenders import CONTENDERS
from ..contenders.least import LEAST
from ..crew import Crew
from ..desk import Desk
from ..model import BARE, FLOOR, Figure, Sample
from ..settings import Address, Settings
from ..targets import at_most
from ..wire import Line, open_line
from .base import NOTIFIED, POLLED, Measure, Workload

_HOLD = 0.012


class _Handover(Workload):
    name = "handover"
    floor = "two round trips by the driver, each after 12 ms of idling"
    figures = (Figure("p50", "ms, median", 2), Figure("p90", "ms, 90 % of all", 2))

    few = ("redis-py", "redis-py, 10 ms")

    at_once: int
    """How many locks are handed over at the same time."""
    times: int
    """How often in one round."""

    @property
    def warm_up(self) -> bool:
        """Whether the first of the hand-overs of a round is slower makes no difference to a median."""
        return False

    @abstractmethod
    def hold(self, contender: str, phase: float) -> float:
        """For how many seconds it is held; over a round, the phases go evenly from 0 to 1."""

    @asynccontextmanager
    async def stage(self, address: Address) -> AsyncGenerator[Measure]:
        """Two processes."""
        async with Crew(address, 2, loop=self.settings.loop) as crew:

            async def measure(contender: str) -> Sample:
                if contender in (FLOOR, BARE):
                    times = self.times * self.at_once
                    waits = await crew[1].do(idle_round_trips, floor=contender, times=times)
                else:
                    waits = await self._round(crew, contender)
                nine_tenths = statistics.quantiles(waits, n=10, method="inclusive")[-1]
                return Sample(
                    {"p50": statistics.median(waits) * 1000, "p90": nine_tenths * 1000}, latencies=waits
                )

            yield measure

    async def _round(self, crew: Crew, contender: str) -> list[float]:
        count = self.times * self.at_once
        phases = [(number + 0.5) / count for number in range(count)]
        random.shuffle(phases)
        waits: list[float] = []
        for start in range(0, count, self.at_once):
            waits += await self._hand_over(crew, contender, phases[start : start + self.at_once])
        return waits

    async def _hand_over(self, crew: Crew, contender: str, phases: Sequence[float]) -> list[float]:
        holds = {f"handover:{number}": self.hold(contender, phase) for number, phase in enumerate(phases)}
        async with crew.renewed_on_failure():
            holder, waiter = crew[0], crew[1]
            holder.begin(hold, contender=contender, holds=holds)
            await holder.hear()
            waiter.begin(wait, contender=contender, names=list(holds))
            released, entered = await crew.hear()
        return [after - before for before, after in zip(released, entered, strict=True)]


class Handover(_Handover):
    """After a short hold."""

    work = (
        "two processes; A holds 12 ms, B waits; from A's release to B inside (for those who poll at a fixed "
        "interval, A holds up to one interval longer: B is met at any moment of it)"
    )

    targets = (
        at_most(1.8, "p50", "≤ 1.8 × floor", of=FLOOR, contenders=NOTIFIED),
        at_most(1 / 50, "p50", "≤ 1/50 of redis-py", of="redis-py", contenders=NOTIFIED),
        at_most(15, "p50", "≤ 15 ms", contenders=POLLED),
    )

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.at_once, self.times = 1, settings.size(16, 3)

    @property
    def contenders(self) -> Sequence[str]:
        """Ours by way of waking up, and the peers."""
        peers = ("redis-py", "redis-py, 10 ms", "python-redis-lock")
        return (FLOOR, BARE, LEAST, *self.by_wakeup(), *peers)

    def hold(self, contender: str, phase: float) -> float:
        """12 ms, or with those who poll at an interval, up to one interval more."""
        return _HOLD + phase * CONTENDERS[contender].poll


class LongHandover(_Handover):
    """After a hold so long that backing off has gone to its end."""

    case = "after 0.6 s"
    work = "the same, but A holds 0.6 s and up to 0.1 s more; 8 locks at once"
    targets = (at_most(1.0, "p50", "no slower than redis-py", of="redis-py", contenders=POLLED),)
    one_server = "the waiters ask by a clock"

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.at_once, self.times = 8, settings.size(2, 1)

    @property
    def contenders(self) -> Sequence[str]:
        """Those who poll: nobody else backs off."""
        return (FLOOR, BARE, *POLLED, "redis-py")

    def hold(self, contender: str, phase: float) -> float:
        """The same for all."""
        return 0.6 + 0.1 * phase


async def hold(desk: Desk, contender: str, holds: dict[str, float]) -> list[float]:
    """A: says when it holds all; returns when it began to release each."""
    locks = await desk.locks(contender)
    inside = 0

    async def one(name: str, seconds: float) -> float:
        nonlocal inside
        async with locks.lock(name):
            inside += 1
            if inside == len(holds):
                desk.say("held")
            await asyncio.sleep(seconds)
            return time.monotonic()

    return await asyncio.gather(*(one(name, seconds) for name, seconds in holds.items()))


async def wait(desk: Desk, contender: str, names: list[str]) -> list[float]:
    """B: returns when it was inside each."""
    locks = await desk.locks(contender)

    async def one(name: str) -> float:
        async with locks.lock(name):
            return time.monotonic()

    return await asyncio.gather(*(one(name) for name in names))


async def idle_round_trips(desk: Desk, floor: str, times: int) -> list[float]:
    """The floor: what leaves A has to reach the server, and what leaves the server has to reach B."""
    async with open_line(floor, desk.address) as line:
        return [await _idle_round_trip(line) + await _idle_round_trip(line) for _ in range(times)]


async def _idle_round_trip(line: Line) -> float:
    await asyncio.sleep(_HOLD)
    began = time.monotonic()
    await line.request((b"PING",))
    return time.monotonic() - began
