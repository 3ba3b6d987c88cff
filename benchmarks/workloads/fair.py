"""A fair lock with many in its queue."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from redis.asyncio import Redis

from aiolocks import FairLock, Session

from ..crew import Job, Worker
from ..desk import Desk
from ..settings import Address
from .crowd import AT_ONCE, Crowd, Crowded, Cycles


class Fair(Crowded):
    """Those who wait are the others, and the first of them is who acquires.

    Others who hold locks of other names would show nothing, for locks of two names share no key; and nobody
    can pass those who wait for the same name. So it is the queue itself that moves on: its head is let in,
    lets go, and takes a place at the end, so that the queue stays as long as it is. With none waiting, one
    task does the same by itself.
    """

    name = "fair"
    work = (
        "500 times in a row: the holder releases and goes to the end of the queue, the first of the others "
        "in it acquires"
    )
    keys = ("aiolocks:fairlock.queue:{{{}}}",)

    @property
    def job(self) -> Job:
        """The queues."""
        return wait

    @asynccontextmanager
    async def timed(self, address: Address, others: Worker) -> AsyncGenerator[Cycles]:
        """Those who wait, for it is they who acquire."""

        async def cycles(crowd: Crowd) -> float:
            others.tell([crowd.name, self.cycles])
            seconds: float = await others.hear()
            return seconds

        yield cycles


class _Queue:
    """One who holds, and those who wait; each goes to the end after its turn."""

    def __init__(self, session: Session, name: str) -> None:
        self._lock = FairLock(session, name)
        self._cycles = 0
        self._go = asyncio.Event()
        self._halted = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    async def fill(self, others: int) -> None:
        """They come a few at a time: whoever keeps the loop busy for 2 s is taken for dead."""
        while (missing := 1 + others - len(self._tasks)) > 0:
            self._tasks += [asyncio.create_task(self._stand()) for _ in range(min(missing, AT_ONCE))]
            await asyncio.sleep(0)
            await self._lock.locked()  # sent behind all that they have sent

    async def move(self, cycles: int) -> float:
        """Lets in `cycles` waiters, one after the other; seconds."""
        self._cycles = cycles
        self._halted.clear()
        began = time.perf_counter()
        self._go.set()
        await self._halted.wait()
        return time.perf_counter() - began

    async def _stand(self) -> None:
        while True:
            async with self._lock:
                if self._cycles == 0:
                    self._go.clear()
                    self._halted.set()
                    await self._go.wait()
                self._cycles -= 1


async def wait(desk: Desk, crowds: Sequence[dict[str, Any]]) -> None:
    """Waits once for each of the others, until the process is killed; moves on when told to."""
    async with Redis(**desk.address.client_arguments) as client, Session(client) as session:
        queues: dict[str, _Queue] = {}
        for crowd in crowds:
            queue = queues[crowd["name"]] = _Queue(session, crowd["name"])
            await queue.fill(crowd["others"])
        gc.freeze()
        desk.say("waiting")
        while True:
            name, cycles = await desk.hear()
            desk.say(await queues[name].move(cycles))
