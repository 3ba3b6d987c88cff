"""Waiting while nothing happens: what it costs the server."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

from redis.asyncio import Redis

from ..crew import Crew
from ..desk import Desk
from ..model import Figure, Sample
from ..settings import Address, Settings
from ..targets import at_most
from .base import NOTIFIED, Measure, Workload

_HOUR = 3600
_SCRIPTS = ("evalsha", "eval")
_SETTLED = 2.0
"""Seconds after which all wait as they will go on waiting."""


class Idle(Workload):
    """One process waits for names that another one holds.

    Args:
        names: How many.
    """

    name = "idle"
    one_server = "the waiters ask by a clock"
    once = True  # a count of some seconds is steady, and it has a start of its own, which is not counted
    figures = (
        Figure("requests", "requests a second", 1),
        Figure("scripts", "of these, scripts", 2),
    )

    def __init__(self, settings: Settings, names: int) -> None:
        super().__init__(settings)
        self.names = names
        self.case = f"{names} name{'s' if names > 1 else ''}"
        self.seconds = settings.size(5, 1)
        self.work = f"one process waits for {self.case} that another one holds for an hour; {self.seconds} s"
        most = 2 if names == 1 else 15
        self.targets = (at_most(most, "scripts", f"≤ {most} scripts a second", contenders=NOTIFIED),)

    @property
    def contenders(self) -> Sequence[str]:
        """Ours by way of waking up; and redis-py, whose pool would be too small for many."""
        return (*self.by_wakeup(), *(("redis-py",) if self.names == 1 else ()))

    @asynccontextmanager
    async def stage(self, address: Address) -> AsyncGenerator[Measure]:
        """Two processes."""
        async with (
            Crew(address, 2, loop=self.settings.loop, ttl=_HOUR) as crew,
            Redis(**address.client_arguments) as admin,
        ):

            async def measure(contender: str) -> Sample:
                names = [f"idle:{number}" for number in range(self.names)]
                async with crew.renewed_on_failure():
                    crew[0].begin(hold, contender=contender, names=names)
                    await crew[0].hear()
                    crew[1].begin(wait, contender=contender, names=names)
                    await crew[1].hear()
                    await asyncio.sleep(_SETTLED)
                    words = ("set",) if contender == "redis-py" else (*_SCRIPTS, "client|caching")
                    before = await _sent(admin, words), await _sent(admin, _SCRIPTS)
                    await asyncio.sleep(self.seconds)
                    after = await _sent(admin, words), await _sent(admin, _SCRIPTS)
                    for worker in (crew[1], crew[0]):
                        worker.tell("enough")
                        await worker.hear()
                requests, scripts = (
                    (now - then) / self.seconds for now, then in zip(after, before, strict=True)
                )
                return Sample({"requests": requests, "scripts": scripts})

            yield measure


async def _sent(admin: Redis, words: Sequence[str]) -> int:
    """The number of these commands that the server has executed."""
    stats = await admin.info("commandstats")
    return sum(stats[f"cmdstat_{word}"]["calls"] for word in words if f"cmdstat_{word}" in stats)


async def hold(desk: Desk, contender: str, names: list[str]) -> None:
    """Holds all until it is told that that is enough."""
    locks = await desk.locks(contender)
    async with contextlib.AsyncExitStack() as stack:
        for name in names:
            await stack.enter_async_context(locks.lock(name))
        desk.say("held")
        await desk.hear()


async def wait(desk: Desk, contender: str, names: list[str]) -> None:
    """Waits for all until it is told that that is enough."""
    locks = await desk.locks(contender)

    async def one(name: str) -> None:
        async with locks.lock(name):
            pass

    waiting = [asyncio.create_task(one(name)) for name in names]
    desk.say("waiting")
    await desk.hear()
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
