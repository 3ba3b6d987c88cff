"""Jobs of a kind with a limit: never more at once, never one lost, and no ticket beside itself, whoever
dies."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from aiolocks import LockLostError, Session, UniqueJob
from tests.adversity.tools import begin, waiter, wakeup
from tests.conftest import Connect
from tests.support.cancel import sweep
from tests.support.history import exclusion, held_for, note, noted, semaphore
from tests.support.processes import Workers, tell
from tests.support.servers import Server
from tests.support.waiting import eventually

KEY = "a"
LIMIT = 3
TTL = 1.0
SOON = 10.0
"""Seconds that what happens at once may take on a machine that is busy with other things."""
pytestmark = pytest.mark.leaves_keys(
    *(f"aiolocks:uniquejob.{role}:*" for role in ("about", "before", "over", "owner"))
)


async def work(url: str, way: str, times: int, history: str, seed: int, *, replaces: bool) -> None:
    """In a process of its own: run the job in one form or the other, `times` times, and note it down."""
    chance = random.Random(seed)
    async with Redis.from_url(url) as redis, Session(redis, wakeup=wakeup(way)) as session:
        job = UniqueJob(session, KEY, ttl=TTL, limit=LIMIT)
        with Path(history).open("w") as file:  # noqa: ASYNC230 - no more than a moment

            async def noting(pending: Any, number: int, ticket: str = "") -> None:
                pause, who = chance.choice([0, 0.001, 0.003]), f"{os.getpid()}.{number}"
                hold = await held_for(pause, pending, name=KEY, who=who)
                if hold is not None:
                    for one in (hold, replace(hold, name=ticket)) if ticket else (hold,):
                        note(file, one)

            async def one(number: int) -> None:
                for _ in range(times):
                    form = chance.choice(["run", "try_run", "until_and_while_executing", "until_executed"])
                    if form == "run":
                        await noting(job.run(waiting=None), number)
                    elif form == "try_run":
                        await noting(job.try_run(waiting=2), number)
                    else:
                        ticket = await job.enqueue(form, on_conflict="replace" if replaces else "skip")
                        if ticket is None:
                            continue
                        twice = (noting(job.try_perform(ticket), number, ticket) for _ in range(2))
                        await asyncio.gather(*twice)

            tell("begun")
            await asyncio.gather(*(one(number) for number in range(6)))
        tell("done")


@pytest.mark.more  # as a semaphore
@pytest.mark.leaves_keys
@pytest.mark.timeout(90)
async def test_never_more_than_the_limit_run_and_no_ticket_beside_itself_while_processes_die(
    server: Server, workers: Workers, tmp_path: Path, session: Session
) -> None:
    crew = [
        await workers.start(
            work,
            url=server.url,
            way="tracking",
            times=10 if seed > 1 else 1000,
            history=str(tmp_path / f"{seed}"),
            seed=seed,
            replaces=seed > 1,  # so that the last ticket of those that are not killed is run
        )
        for seed in range(4)
    ]
    for worker in crew:
        await worker.told("begun")
    await asyncio.sleep(0.3)
    for worker in crew[:2]:
        worker.kill()
        await asyncio.sleep(0.3)
    for worker in crew[2:]:
        await worker.told("done")
    holds = noted(tmp_path)
    runs = [hold for hold in holds if hold.name == KEY]
    of_tickets = [hold for hold in holds if hold.name != KEY]
    assert runs
    assert of_tickets
    assert semaphore(runs, value=LIMIT) == []
    assert exclusion(of_tickets) == []
    async with full(UniqueJob(session, KEY, limit=LIMIT)):  # none has been lost
        pass


@asynccontextmanager
async def full(job: UniqueJob) -> AsyncIterator[None]:
    """All slots, each of which is had without any long wait."""
    async with asyncio.timeout(2 * TTL + SOON):
        leases = [await job.run(waiting=None) for _ in range(job.limit)]
    yield
    for lease in leases:
        await lease.release()


async def hold_for_ever(url: str) -> None:
    """In a process of its own."""
    async with Redis.from_url(url) as redis:
        async with UniqueJob(redis, KEY, ttl=2 * TTL, limit=2).run():
            tell("runs")
            await asyncio.sleep(60)


async def test_the_slot_of_a_worker_that_was_killed_is_free_when_its_lease_has_ended(
    server: Server, workers: Workers, session: Session
) -> None:
    job = UniqueJob(session, KEY, ttl=TTL, limit=2)
    process = await workers.start(hold_for_ever, url=server.url)
    await process.told("runs")
    async with job.run():
        waiting = await waiter(session, job.run())
        process.kill()
        await (await asyncio.wait_for(waiting, 2 * TTL + SOON)).release()


async def test_who_is_freed_by_force_leaves_a_slot_and_who_waits_begins(
    session: Session, connect: Connect
) -> None:
    there = Session.of(connect())
    job, other = UniqueJob(session, KEY, ttl=TTL, limit=2), UniqueJob(there, KEY, limit=2)
    running = [begin(for_ever(job)) for _ in range(2)]
    await eventually(lambda: session.statistics().leases_held == 2, within=SOON)
    waiting = [await waiter(there, other.run(waiting=2)) for _ in range(2)]
    await session.force_release(KEY)
    for lease in await asyncio.wait_for(asyncio.gather(*waiting), SOON):
        await lease.release()
    ended = await asyncio.wait_for(asyncio.gather(*running, return_exceptions=True), SOON)
    assert [type(end) for end in ended] == [LockLostError] * 2


async def for_ever(job: UniqueJob) -> None:
    async with job.run():
        await asyncio.sleep(60)


@pytest.mark.parametrize("waiting", [1, None])
async def test_cancelled_anywhere_it_leaves_its_slot_and_its_place(
    session: Session, connect: Connect, waiting: int | None
) -> None:
    job, other = UniqueJob(session, KEY, limit=2), UniqueJob(connect(), KEY, limit=2)

    async def use() -> None:
        async with job.run(waiting=waiting):
            await asyncio.sleep(0)

    async def free(_: Any) -> None:
        async with asyncio.timeout(SOON), other.run(waiting=waiting):
            pass

    async with job.run():
        await sweep(use, after=free)
    async with full(other):
        pass
