"""Tasks that take locks in one order, for minutes: no deadlock is ever told of: `pytest -m soak`.

``AIOLOCKS_SOAK_SECONDS`` says for how long (300 by default).
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import time
from contextlib import suppress
from typing import Any

import pytest
from redis.asyncio import Redis

from aiolocks import (
    FairLock,
    Lock,
    LockError,
    LockEvent,
    MultiLock,
    RangeLock,
    ReentrantLock,
    RWLock,
    Semaphore,
    Session,
)
from tests.support.processes import Worker, Workers, tell
from tests.support.servers import Server

SECONDS = float(os.environ.get("AIOLOCKS_SOAK_SECONDS", "300"))
PROCESSES, TASKS, TTL = 4, 8, 2.0
LONG = 0.4
"""Seconds after which a session tells others of a wait."""
log = logging.getLogger(__name__)


def wanted(session: Session, rng: random.Random) -> list[Any]:
    """Two to four locks, in the one order in which each task takes them."""
    low = rng.randrange(5)
    span = RangeLock(session, "intervals", ttl=TTL).reader(low, low + rng.randrange(1, 6))
    rwlock = RWLock(session, "record", ttl=TTL)
    ranked = [
        Lock(session, "a", ttl=TTL),
        rwlock.writer if rng.random() < 0.3 else rwlock.reader,
        Semaphore(session, "pool", 3, ttl=TTL),
        FairLock(session, "b", ttl=TTL),
        span if rng.random() < 0.7 else RangeLock(session, "intervals", ttl=TTL).writer(low, low + 2),
        ReentrantLock(session, "c", ttl=TTL),
        MultiLock(session, ["d", "e"], ttl=TTL),
    ]
    return [ranked[at] for at in sorted(rng.sample(range(len(ranked)), rng.randint(2, 4)))]


async def one_after_the_other(url: str, seed: int) -> None:
    """In a process of its own, for ever: some tasks, of which each gives up now and then."""
    rng, entered, long_waits = random.Random(seed), 0, 0

    class Telling:
        def on_deadlock(self, event: LockEvent) -> None:
            tell("deadlock", reason=event.reason)

    async def take(locks: list[Any]) -> None:
        nonlocal entered, long_waits
        if not locks:
            return
        began = time.monotonic()
        async with locks[0]:
            entered += 1
            long_waits += time.monotonic() - began > LONG
            await asyncio.sleep(rng.uniform(0.0, 0.3))
            await take(locks[1:])

    async def task(session: Session) -> None:
        while True:
            with suppress(TimeoutError, LockError):  # a process that was stopped has lost what it held
                async with asyncio.timeout(rng.uniform(0.2, 8.0)):
                    await take(wanted(session, rng))

    async with Redis.from_url(url) as redis, Session(redis, listeners=[Telling()]) as session:
        async with asyncio.TaskGroup() as group:
            for _ in range(TASKS):
                group.create_task(task(session))
            while True:
                await asyncio.sleep(1.0)
                tell("goes on", entered=entered, long_waits=long_waits)


@pytest.mark.soak
@pytest.mark.leaves_keys
@pytest.mark.timeout(SECONDS + 120)
async def test_soak_of_locks_in_one_order(server: Server, workers: Workers) -> None:
    """Processes are killed and stopped meanwhile: what they leave behind is part of no ring."""
    rng, end = random.Random(), time.monotonic() + SECONDS
    reports: list[dict[str, Any]] = []

    async def process() -> None:
        while time.monotonic() < end:
            worker = await workers.start(one_after_the_other, url=server.url, seed=rng.randrange(1 << 30))
            await worker.told("goes on")
            await asyncio.sleep(rng.uniform(5.0, 60.0))
            if rng.random() < 0.5:
                worker.stop()
                await asyncio.sleep(rng.uniform(0.1, 3 * TTL))
                worker.cont()
            reports.extend(await ended(worker))

    await asyncio.gather(*(process() for _ in range(PROCESSES)))
    log.info(
        "%d entered, %d of them after a long wait",
        sum(report.get("entered", 0) for report in reports),
        sum(report.get("long_waits", 0) for report in reports),
    )
    assert [report for report in reports if report["event"] == "deadlock"] == []
    assert sum(report.get("long_waits", 0) for report in reports) > SECONDS


async def ended(worker: Worker) -> list[dict[str, Any]]:
    """All that it told of deadlocks, and its last figures."""
    worker.kill()
    reports = await worker.finish(status=-9)
    return [one for one in reports if one["event"] == "deadlock"] + reports[-1:]
