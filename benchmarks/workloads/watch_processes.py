"""Processes that change one value: the optimistic way against a lock, where each process has one task."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

from redis.asyncio import Redis

from ..crew import Crew
from ..desk import Desk
from ..model import FLOOR, Figure, Sample
from ..settings import Address, Settings
from .base import Measure, Workload
from .lock_or_watch import WATCH, Value, between, crossing

_PROCESSES = (2, 4, 8, 16, 32)
_TTL = 30


class LockOrWatchByProcesses(Workload):
    """As `LockOrWatch`, with one task in each process: each hand-over of the lock wakes another process."""

    name = "lock-or-watch"
    one_server = "what counts is the number of round trips"
    usual_rounds = 2  # few: they are long
    figures = (
        *(Figure(str(number), f"changes/s, {number} processes") for number in _PROCESSES[::-1]),
        Figure("crossing", f"processes from which it is ahead of {WATCH}", 1),
    )
    targets = ()

    def __init__(self, settings: Settings, *, inside: int) -> None:
        super().__init__(settings)
        self._inside = inside / 1000
        self.case = f"{inside} ms inside, by processes"
        steps = between(inside)
        self.work = (
            f"2 to {_PROCESSES[-1]} processes of one task each change one value ({steps}), 160 changes in "
            "all: WATCH, MULTI and EXEC, again until nobody else was faster, or a lock"
        )
        self.floor = f"{steps} by the driver, by one task that nobody else is in the way of"
        if inside:
            self.work, self.floor = f"the same, with {steps}", "the same"

    @property
    def warm_up(self) -> bool:
        """Each process warms up by itself."""
        return False

    @property
    def contenders(self) -> Sequence[str]:
        """A contender that watches goes before those that are compared with it."""
        return (FLOOR, WATCH, "aiolocks")

    @asynccontextmanager
    async def stage(self, address: Address) -> AsyncGenerator[Measure]:
        """As many processes as there are in the largest group."""
        processes = _PROCESSES[:2] if self.settings.quick else _PROCESSES
        changes = 5 * processes[-1]
        watched: dict[str, float] = {}
        async with Crew(address, processes[-1], loop=self.settings.loop) as crew:

            async def measure(contender: str) -> Sample:
                groups = (1,) if contender == FLOOR else processes
                rates: dict[str, float] = {}
                for number in groups:
                    each = changes // number if contender != FLOOR else changes // 8
                    arguments: list[dict[str, object]] = [
                        {
                            "contender": contender,
                            "changes": each if place < number else 0,
                            "inside": self._inside,
                        }
                        for place in range(processes[-1])
                    ]
                    ended = await crew.together(change, arguments)
                    rates[str(number)] = number * each / max(ended)
                if contender == FLOOR:
                    return Sample({str(number): rates["1"] for number in processes})
                if contender == WATCH:
                    watched.update(rates)
                    return Sample(dict(rates))
                return Sample(
                    {**rates, "crossing": crossing(rates, watched, processes)} if watched else rates
                )

            yield measure


async def change(desk: Desk, contender: str, changes: int, inside: float) -> float:
    """One process's changes; seconds from the common start until its last one."""
    from aiolocks import Lock, Session  # noqa: PLC0415 - as with every contender

    async with Redis(**desk.address.client_arguments) as client, Session(client) as session:
        value = Value(client, inside)
        one = {
            FLOOR: value.change,
            WATCH: value.watch_and_change,
            "aiolocks": value.guarded_by(Lock(session, "watch-processes", ttl=_TTL)),
        }[contender]
        await value.prepare()
        await one()
        await value.prepare()
        began = await desk.start_together()
        for _ in range(changes):
            await one()
        await asyncio.sleep(0)
        return time.monotonic() - began
