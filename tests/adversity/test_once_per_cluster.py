"""Promises of the recipes to machines that start the same job, each by its own clock: a table of the how-to.

Three sessions stand for three machines. A lease that lasts for a `NIGHT` ends in no test by itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack

import pytest
from redis.asyncio import Redis

from aiolocks import Lock, Session, SingleFlight, Turnstile, UniqueJob
from tests.adversity.tools import begin
from tests.conftest import Connect
from tests.support.processes import Workers, tell
from tests.support.skew import SkewedServer
from tests.support.waiting import eventually, sleeps

pytestmark = pytest.mark.leaves_keys

NIGHT = 300.0
MACHINES = 3
LATE = 5.0
"""Seconds after which a step that is due has happened, on a busy machine."""

Job = Callable[[], Awaitable[None]]
Recipe = Callable[[Session, Job], Awaitable[None]]


async def lock(session: Session, job: Job) -> None:
    async with Lock(session, "lock", ttl=NIGHT).try_acquire() as lease:
        if lease is not None:
            await job()


async def at_least(session: Session, job: Job) -> None:
    async with Lock(session, "at least", ttl=NIGHT, at_least=NIGHT).try_acquire() as lease:
        if lease is not None:
            await job()


async def at_least_waiting(session: Session, job: Job) -> None:
    async with Lock(session, "at least waiting", ttl=NIGHT, at_least=0.1):
        await job()


async def try_run_0(session: Session, job: Job) -> None:
    async with UniqueJob(session, "try run 0", ttl=NIGHT).try_run(waiting=0) as lease:
        if lease is not None:
            await job()


async def try_run_1(session: Session, job: Job) -> None:
    async with UniqueJob(session, "try run 1", ttl=NIGHT).try_run() as lease:
        if lease is not None:
            await job()


async def until_expired(session: Session, job: Job) -> None:
    unique = UniqueJob(session, "until expired", ttl=NIGHT)
    ticket = await unique.enqueue("until_expired", ttl=NIGHT, on_conflict="skip")
    if ticket is not None:
        async with unique.perform(ticket):
            await job()


async def turnstile_block(session: Session, job: Job) -> None:
    async with Turnstile(session, "turnstile block", window=NIGHT) as number:
        if number == 1:
            await job()


async def turnstile_enter(session: Session, job: Job) -> None:
    if await Turnstile(session, "turnstile enter", window=NIGHT).enter() == 1:
        await job()


async def single_flight(session: Session, job: Job) -> None:
    await SingleFlight(session, ttl=NIGHT, keep=NIGHT).do("single flight", job)


RECIPES: dict[str, Recipe] = {
    recipe.__name__.replace("_", " "): recipe
    for recipe in (
        at_least, at_least_waiting, lock, try_run_0, try_run_1, until_expired, turnstile_block,
        turnstile_enter, single_flight,
    )
}  # fmt: skip
"""By the names that the table of the how-to has for them."""
ONE_AFTER_ANOTHER = {
    "at least": 1, "at least waiting": 3, "lock": 3, "try run 0": 3, "try run 1": 3,
    "until expired": 1, "turnstile block": 3, "turnstile enter": 1, "single flight": 1,
}  # fmt: skip
AT_ONCE = dict.fromkeys(RECIPES, 1) | {"at least waiting": 3, "try run 1": 2}
WAIT = {"at least waiting": 2, "try run 1": 1, "single flight": 2}
"""The number of three machines that wait for the end of the run, when all start at once."""

each_recipe = pytest.mark.parametrize("name", RECIPES)


@pytest.fixture
async def machines(connect: Connect) -> AsyncIterator[list[Session]]:
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(Session(connect())) for _ in range(MACHINES)]


@each_recipe
async def test_clocks_that_differ_by_more_than_the_job_takes(name: str, machines: list[Session]) -> None:
    runs = 0

    async def job() -> None:
        nonlocal runs
        runs += 1

    for machine in machines:
        await RECIPES[name](machine, job)
    assert runs == ONE_AFTER_ANOTHER[name]


@each_recipe
async def test_clocks_that_are_alike(name: str, machines: list[Session]) -> None:
    """A job that takes a while is run once, except where a machine waits to run it again."""
    runs, over = 0, asyncio.Event()

    async def job() -> None:
        nonlocal runs
        runs += 1
        await over.wait()

    starts = [begin(RECIPES[name](machine, job)) for machine in machines]
    in_vain = MACHINES - 1 - WAIT.get(name, 0)
    await eventually(lambda: runs == 1 and sum(start.done() for start in starts) == in_vain, within=LATE)
    await eventually(lambda: all(machine.statistics().commands_sent for machine in machines))
    over.set()
    await asyncio.gather(*starts)
    assert runs == AT_ONCE[name]


async def run_all(url: str) -> None:
    """In a process of its own: the machine that dies."""
    async with Redis.from_url(url) as redis, Session(redis) as session:
        inside: list[str] = []

        async def run(name: str) -> None:
            async def job() -> None:
                inside.append(name)
                await asyncio.sleep(NIGHT)

            await RECIPES[name](session, job)

        running = [asyncio.ensure_future(run(name)) for name in RECIPES]
        await eventually(lambda: len(inside) == len(RECIPES), within=LATE)
        tell("runs")
        await asyncio.gather(*running)


async def test_the_machine_dies_that_runs_it(
    workers: Workers, skewed_server: SkewedServer, connect: Connect
) -> None:
    """While its lease lasts, no machine runs the job; one that starts later, or has waited, does."""
    runs: list[str] = []

    async def start(session: Session, name: str) -> None:
        async def job() -> None:
            runs.append(name)

        await RECIPES[name](session, job)

    machine = await workers.start(run_all, url=skewed_server.server.url)
    await machine.told("runs")
    machine.kill()
    await machine.finish(status=-9)
    async with Session(connect(skewed_server.server)) as session:
        waiting = [begin(start(session, name)) for name in WAIT]
        for name in RECIPES:
            if name not in WAIT:
                await start(session, name)
        await eventually(lambda: sleeps(session))
        assert runs == []
        assert not any(start.done() for start in waiting)
        await skewed_server.advance(NIGHT + 1)
        async with asyncio.timeout(LATE):
            await asyncio.gather(*waiting)
        assert sorted(runs) == sorted(WAIT)
        for name in RECIPES:
            if name not in WAIT:
                await start(session, name)
    assert sorted(runs) == sorted(RECIPES)
