"""A lease that is lost on the server is known to be lost after a push and one question."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from redis.asyncio import Redis

from aiolocks import (
    FairLock,
    KeyspaceWakeup,
    Lease,
    Lock,
    LockLostError,
    MultiLock,
    ReentrantLock,
    RWLock,
    Semaphore,
    Session,
)
from tests.adversity.tools import renewed
from tests.conftest import Connect, OwnServer
from tests.support.waiting import eventually

log = logging.getLogger(__name__)

ARMED = 0.15
"""Seconds after which the server was asked to tell."""
SOON = 2.0
"""Seconds that a loaded machine may take; the next renewal is 10 s away."""
TTL = 30

KINDS: dict[str, Callable[..., Any]] = {
    "lock": lambda session, **how: Lock(session, "a", **how),
    "ends by itself": lambda session, **how: Lock(session, "a", auto_renew=False, **how),
    "with a limit": lambda session, **how: Lock(session, "a", max_hold=20, **how),
    "fair": lambda session, **how: FairLock(session, "a", **how),
    "reentrant": lambda session, **how: ReentrantLock(session, "a", **how),
    "several": lambda session, **how: MultiLock(session, ["a", "b"], **how),
    "semaphore": lambda session, **how: Semaphore(session, "a", 2, **how),
    "writer": lambda session, **how: RWLock(session, "a", **how).writer,
}


async def deleted(redis: Redis) -> None:
    await redis.delete(*[key for key in await redis.keys("aiolocks:*{a}*") if b"fence" not in key])


async def flushed(redis: Redis) -> None:
    await redis.flushall()


async def forced(redis: Redis) -> None:
    async with Session(redis) as operator:
        await operator.force_release("a")


@contextlib.asynccontextmanager
async def held(session: Session, kind: str = "lock") -> AsyncIterator[Any]:
    """A body that will be lost inside, and has been armed."""
    loop = asyncio.get_running_loop()
    with pytest.raises(LockLostError):
        async with KINDS[kind](session, ttl=TTL) as lease:
            await asyncio.sleep(ARMED)
            began = loop.time()
            yield lease
            await asyncio.sleep(SOON)
    assert loop.time() - began < SOON


@pytest.mark.thin
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("lose", [deleted, flushed, forced])
async def test_each_way_to_lose_it_is_known_at_once(
    connect: Connect, kind: str, lose: Callable[[Redis], Awaitable[None]]
) -> None:
    redis = connect()
    async with Session(connect(), wakeup="tracking") as session:
        async with held(session, kind):
            await lose(redis)
        await redis.flushall()


async def test_an_early_end_is_put_right_by_the_question(connect: Connect) -> None:
    redis = connect()
    async with Session(connect(), wakeup="tracking") as session, Lock(session, "a", ttl=TTL) as lease:
        await asyncio.sleep(ARMED)
        await redis.pexpire("aiolocks:lock:{a}", 100)
        await asyncio.sleep(0.3)
        assert await lease.owned()
        assert await redis.pttl("aiolocks:lock:{a}") > 20_000


async def test_by_keyspace_notifications(connect: Connect) -> None:
    async with Session(connect(), wakeup=KeyspaceWakeup(configure=True)) as session, held(session):
        await deleted(connect())


@pytest.mark.leaves_keys("aiolocks:lock.stolen:*")
async def test_a_thief_is_known_at_once(connect: Connect) -> None:
    async with Session(connect()) as session, Session(connect()) as thieves:
        async with held(session):
            thief = await Lock(thieves, "a").acquire(steal=True)
        await thief.release()


async def test_a_new_connection_asks_at_once(connect: Connect) -> None:
    redis = connect()
    async with Session(connect()) as session, held(session):
        connections = [one for one in await redis.client_list() if "t" in one["flags"]]
        async with redis.pipeline(transaction=True) as pipeline:
            for one in connections:
                pipeline.client_kill_filter(_id=one["id"])
            pipeline.delete("aiolocks:lock:{a}")
            await pipeline.execute()


async def test_a_short_hold_costs_no_command_more(connect: Connect) -> None:
    async with Session(connect()) as session:
        async with Lock(session, "a"):
            pass
        before = session.statistics().commands_sent
        for _ in range(20):
            async with Lock(session, "a"):
                pass
        assert session.statistics().commands_sent - before == 40


async def test_a_push_that_says_nothing_is_one_question(connect: Connect) -> None:
    """A write of another client there is none of a loss: the lease goes on."""
    redis = connect()
    async with Session(connect()) as session, Lock(session, "a", ttl=TTL) as lease:
        await asyncio.sleep(ARMED)
        before = session.statistics().commands_sent
        for _ in range(50):
            await redis.pexpire("aiolocks:lock:{a}", 20_000)
        await eventually(lambda: session.statistics().commands_sent > before)
        await asyncio.sleep(0.2)
        assert session.statistics().commands_sent - before == 1
        lease.ensure_held()


async def requests_a_second(session: Session, leases: int, *, ttl: float, seconds: float) -> float:
    """Of a session that holds that number of leases, and loses none."""
    locks = [Lock(session, f"n{number}", ttl=ttl) for number in range(leases)]
    held = [lease for some in batched(locks) for lease in await asyncio.gather(*map(Lock.acquire, some))]
    await asyncio.sleep(ttl / 5)
    before = session.statistics().commands_sent
    await asyncio.sleep(seconds)
    sent = session.statistics().commands_sent - before
    for lease in held:
        lease.ensure_held()
    for some in batched(held):
        await asyncio.gather(*map(Lease.release, some))
    return sent / seconds


def batched(several: list[Any]) -> list[list[Any]]:
    return [several[at : at + 200] for at in range(0, len(several), 200)]


async def test_a_table_that_is_too_small_is_no_loop(own_server: OwnServer, connect: Connect) -> None:
    """Where the server forgets what it was to remember, it says that this has changed."""
    server = await own_server(arguments=("--tracking-table-max-keys", "20"))
    async with Session(connect(server), wakeup="tracking") as session:
        rate = await requests_a_second(session, 60, ttl=3, seconds=1.2)
    # Each is renewed at most twice in that time: tracked, asked about, and no more.
    assert rate < 60 * 3 * 3 / 1.2


@pytest.mark.soak
@pytest.mark.timeout(600)
async def test_what_a_table_that_is_too_small_costs(own_server: OwnServer, connect: Connect) -> None:
    """At most one question more for each renewal."""
    rates: list[float] = []
    for keys in (1_000_000, 1000):
        server = await own_server(arguments=("--tracking-table-max-keys", str(keys)))
        async with Session(connect(server), wakeup="tracking") as session:
            rates.append(await requests_a_second(session, 10_000, ttl=60, seconds=50))
    log.warning("requests a second of 10 000 leases: %.0f, with a full table %.0f", *rates)
    assert rates[1] < 2.2 * rates[0]


async def test_holders_of_one_key_do_not_keep_each_other_busy(connect: Connect) -> None:
    async with Session(connect()) as one, Session(connect()) as other:
        leases = [await Semaphore(session, "a", 8, ttl=3).acquire() for session in (one, other) * 4]
        await asyncio.sleep(0.3)
        before = one.statistics().commands_sent + other.statistics().commands_sent
        await renewed(*leases)
        assert one.statistics().commands_sent + other.statistics().commands_sent - before < 8 * 3 * 3
        for lease in leases:
            await lease.release()
