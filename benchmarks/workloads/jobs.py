"""One run for many: those who share its result, and updates of one key."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import statistics
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

from redis.asyncio import Redis

from ..crew import Crew
from ..desk import Desk
from ..model import FLOOR, Figure, Sample
from ..settings import Address
from ..targets import at_most
from .base import Measure, Workload
from .handover import idle_round_trips

_PROCESSES = 4
_CALLERS = 50
_RUN = 0.01
_UPDATES = 1000
_numbers = itertools.count()


class SharedRun(Workload):
    """200 callers in four processes want what one run gives."""

    name = "jobs"
    one_server = "runs and timers take longer than any request"
    usual_rounds = 3  # few: what is measured are runs and timers
    case = "200 callers"
    work = "4 processes × 50 callers of one `SingleFlight`; a run of 10 ms; until the last one is served"
    floor = "the run and three round trips by the driver"
    figures = (Figure("ms", "ms", 2), Figure("runs", "runs", 1))
    targets = (
        at_most(1.0, "ms", "all served within the run and 3 round trips", of=FLOOR),
        at_most(1, "runs", "one run"),
    )

    @property
    def contenders(self) -> Sequence[str]:
        """Ours alone."""
        return (FLOOR, "aiolocks")

    @asynccontextmanager
    async def stage(self, address: Address) -> AsyncGenerator[Measure]:
        """Four processes."""
        callers = self.settings.size(_CALLERS, 3)
        async with Crew(address, _PROCESSES, loop=self.settings.loop) as crew:

            async def measure(contender: str) -> Sample:
                if contender == FLOOR:
                    trips = await crew[0].do(idle_round_trips, floor=contender, times=3)
                    return Sample({"ms": (_RUN + 1.5 * sum(trips) / len(trips)) * 1000, "runs": 1})
                name = f"jobs:{next(_numbers)}"
                arguments: dict[str, object] = {"name": name, "callers": callers}
                ended = await crew.together(share, [arguments] * _PROCESSES)
                seconds, runs = zip(*ended, strict=True)
                return Sample({"ms": max(seconds) * 1000, "runs": sum(runs)})

            yield measure


class Updates(Workload):
    """Updates of one key that come while a run goes on: neither lost nor done one by one."""

    name = "jobs"
    one_server = "runs and timers take longer than any request"
    usual_rounds = 3  # few: what is measured are runs and timers
    case = "1 000 updates"
    work = "1 000 updates of one key, one each 0.5 ms, with `UniqueJob`; a run of 10 ms sees all before it"
    figures = (Figure("runs", "runs"), Figure("seconds", "s", 3))
    targets = ()

    @property
    def contenders(self) -> Sequence[str]:
        """Ours alone."""
        return ("aiolocks",)

    @asynccontextmanager
    async def stage(self, address: Address) -> AsyncGenerator[Measure]:
        """One process; each update is an attempt of its own."""
        from aiolocks import DuplicateJobError, Session, UniqueJob  # noqa: PLC0415 - as with every contender

        updates = self.settings.size(_UPDATES, 20)
        async with Redis(**address.client_arguments) as client, Session(client) as session:

            async def measure(_: str) -> Sample:
                job = UniqueJob(session, f"updates:{next(_numbers)}")
                runs, seen, newest = 0, 0, 0

                async def update(number: int) -> None:
                    nonlocal runs, seen, newest
                    await asyncio.sleep(number * 0.0005)
                    newest = number
                    with contextlib.suppress(DuplicateJobError):  # one that waits will see it
                        async with job.run(waiting=1):
                            runs, seen = runs + 1, newest
                            await asyncio.sleep(_RUN)

                began = time.perf_counter()
                await asyncio.gather(*(update(number) for number in range(1, updates + 1)))
                assert seen == updates, "an update was lost"
                return Sample({"runs": runs, "seconds": time.perf_counter() - began})

            yield measure


class OtherJobs(Workload):
    """What duplicates of one job do to the other jobs of the same workers."""

    name = "jobs"
    one_server = "runs and timers take longer than any request"
    usual_rounds = 3  # few: what is measured are runs and timers
    case = "the other jobs"
    work = (
        "4 workers, one queue: 400 deliveries of one job of 10 ms, and after each 20 of them another job of "
        "2 ms; how long these take from the beginning, with `UniqueJob.run(waiting=1)` and without"
    )
    figures = (Figure("ms", "ms, median of the other jobs", 0), Figure("runs", "runs of the job"))
    targets = (at_most(0.5, "ms", "the others wait half as long at most", of="no uniqueness"),)

    @property
    def contenders(self) -> Sequence[str]:
        """The one without goes first."""
        return ("no uniqueness", "aiolocks")

    @asynccontextmanager
    async def stage(self, address: Address) -> AsyncGenerator[Measure]:
        """One process; each worker does one delivery at a time."""
        from aiolocks import DuplicateJobError, Session, UniqueJob  # noqa: PLC0415 - as with every contender

        deliveries = self.settings.size(400, 40)
        async with Redis(**address.client_arguments) as client, Session(client) as session:

            async def measure(contender: str) -> Sample:
                job = UniqueJob(session, f"others:{next(_numbers)}")
                runs, latencies = 0, list[float]()
                queue = iter(range(deliveries + deliveries // 20))

                async def report() -> None:
                    nonlocal runs
                    runs += 1
                    await asyncio.sleep(_RUN)

                async def deliver(number: int) -> None:
                    if number % 21 == 20:
                        await asyncio.sleep(0.002)
                        latencies.append(time.perf_counter() - began)
                    elif contender == "aiolocks":
                        with contextlib.suppress(DuplicateJobError):
                            async with job.run(waiting=1):
                                await report()
                    else:
                        await report()

                async def worker() -> None:
                    for number in queue:
                        await deliver(number)

                began = time.perf_counter()
                await asyncio.gather(*(worker() for _ in range(_PROCESSES)))
                return Sample({"ms": statistics.median(latencies) * 1000, "runs": runs})

            yield measure


async def share(desk: Desk, name: str, callers: int) -> tuple[float, int]:
    """One process's callers; seconds from the common start until the last one is served, and its own runs."""
    from aiolocks import Session, SingleFlight  # noqa: PLC0415 - as with every contender

    runs = 0

    async def run() -> str:
        nonlocal runs
        runs += 1
        await asyncio.sleep(_RUN)
        return "done"

    async with Redis(**desk.address.client_arguments) as client, Session(client) as session:
        flight = SingleFlight(session)
        await flight.do(f"{name}:warm:{os.getpid()}", run)
        runs = 0
        began = await desk.start_together()
        await asyncio.gather(*(flight.do(name, run) for _ in range(callers)))
        return time.monotonic() - began, runs
