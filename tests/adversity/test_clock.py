"""A server whose wall clock steps: T-S-9, T-S-10 and T-F-2 of `tests/FAULTS.md`.

No lock can do anything about a clock that jumps ahead of all leases. Its holders find out, and their fencing
tokens tell who came later.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from redis.asyncio import Redis

from aiolocks import (
    FairLock,
    Lease,
    LeaseState,
    Limits,
    Lock,
    LockLostError,
    LockNotOwnedError,
    LockTimeoutError,
    MultiLock,
    RangeLock,
    ReentrantLock,
    RWLock,
    Semaphore,
    Session,
    UniqueJob,
)
from tests.adversity.tools import SLACK, Keys, asleep, begin, elapsed, with_own_connections
from tests.conftest import Connect
from tests.support.skew import SkewedServer
from tests.support.waiting import eventually

POLL = 0.064
"""Seconds that a waiter sleeps at the most."""
HOUR = 3600.0


@pytest.fixture(params=["multiplexed", "plain"])
def skewed_client(request: pytest.FixtureRequest, connect: Connect, skewed_server: SkewedServer) -> Redis:
    client = connect(skewed_server.server)
    return with_own_connections(client) if request.param == "plain" else client


async def _until_lost(lease: Lease) -> None:
    async with lease:
        await asyncio.sleep(60)


async def test_t_s_9_clock_jumps_ahead_of_a_lease(
    skewed_server: SkewedServer, skewed_client: Redis, connect: Connect
) -> None:
    """The lock is free at once. Its holder is told by its next renewal, and has the smaller fencing token."""
    elsewhere = connect(skewed_server.server)
    lease = await Lock(skewed_client, "a", ttl=6).acquire()
    holding = asyncio.create_task(_until_lost(lease))
    waiting = asyncio.create_task(Lock(elsewhere, "a", ttl=5).acquire())
    await eventually(Lock(elsewhere, "a").locked)
    await skewed_server.advance(60)
    other = await waiting  # or never: its holder would renew it
    assert other.fencing_token > lease.fencing_token
    with pytest.raises(LockLostError, match="no longer has it"):
        await holding
    assert await other.owned()
    await other.release()


@pytest.mark.parametrize("seconds", [60, HOUR])
async def test_t_s_10_clock_steps_back_while_it_is_held(
    skewed_server: SkewedServer, skewed_client: Redis, connect: Connect, keys: Keys, seconds: float
) -> None:
    """The lease would last an hour; its next renewal gives it its ttl again."""
    looking = connect(skewed_server.server)
    async with Lock(skewed_client, "a", ttl=2.4) as lease:
        (key,) = keys(skewed_server.server)

        async def is_far_away() -> bool:
            """A renewal between the two would hide it."""
            await skewed_server.advance(-seconds)
            return await looking.pttl(key) > (seconds - 1) * 1000

        await eventually(is_far_away)
        await eventually(lambda: _ends_soon(looking, key), within=0.8 + SLACK)
        assert lease.state is LeaseState.HELD
        assert lease.remaining() <= 2.4
    assert keys(skewed_server.server) == []


async def _ends_soon(redis: Redis, key: str) -> bool:
    return await redis.pttl(key) <= 2400


async def test_t_s_10_clock_stepped_back_under_a_dead_holder(
    skewed_server: SkewedServer, skewed_client: Redis, connect: Connect, keys: Keys
) -> None:
    """It lives on for as long as the step; who waits looks again as often as ever, and is told the truth."""
    dead = connect(skewed_server.server)
    lease = await Lock(dead, "a", ttl=0.3, auto_renew=False).acquire()
    await skewed_server.advance(-60)
    with pytest.raises(LockTimeoutError) as caught:
        await Lock(skewed_client, "a", ttl=0.3).acquire(blocking_timeout=0.5)
    assert caught.value.remaining is not None
    assert 58 < caught.value.remaining < 61
    waiting = asyncio.create_task(Lock(skewed_client, "a", ttl=0.3).acquire())
    await asyncio.sleep(0.5)
    with elapsed() as took:
        await dead.delete(*keys(skewed_server.server))
        other = await waiting
    assert took.seconds < POLL + SLACK
    assert other.fencing_token > lease.fencing_token
    await other.release()
    with pytest.raises(LockNotOwnedError):
        await lease.release()


async def test_t_s_10_clock_steps_back_between_grant_and_release(
    skewed_server: SkewedServer, skewed_client: Redis, keys: Keys
) -> None:
    async with Lock(skewed_client, "a", ttl=5):
        await skewed_server.advance(-HOUR)
    assert keys(skewed_server.server) == []


QUEUES: dict[str, Callable[[Session], Any]] = {
    "Lock": lambda session: Lock(session, "a").acquire(),
    "FairLock": lambda session: FairLock(session, "a").acquire(),
    "ReentrantLock": lambda session: ReentrantLock(session, "a").acquire(),
    "MultiLock": lambda session: MultiLock(session, ["{a}1", "{a}2"]).acquire(),
    "Semaphore": lambda session: Semaphore(session, "a", value=1, fair=True).acquire(),
    "Limits": lambda session: Limits(session, "a", {"all": 1}).acquire(),
    "RWLock": lambda session: RWLock(session, "a").writer.acquire(),
    "RangeLock": lambda session: RangeLock(session, "a").writer(0, 1).acquire(),
    "UniqueJob": lambda session: UniqueJob(session, "a").run(waiting=None),
}
"""How each kind that has a queue is acquired."""


@pytest.mark.leaves_keys("*:uniquejob.*", "*:semaphore.value:*")
@pytest.mark.parametrize("kind", QUEUES)
async def test_t_s_10_who_waits_when_the_clock_steps_back_is_not_overtaken(
    skewed_server: SkewedServer, connect: Connect, kind: str
) -> None:
    """Else whoever comes later would go first, for as long as the step."""
    acquire, entered = QUEUES[kind], []

    async def enter(who: str, session: Session) -> None:
        async with acquire(session):
            entered.append(who)

    async with (
        Session(connect(skewed_server.server)) as holder,
        Session(connect(skewed_server.server)) as here,
        Session(connect(skewed_server.server)) as there,
    ):
        held = await acquire(holder)
        waiting = begin(enter("the first", here))
        await eventually(lambda: asleep(here))
        await skewed_server.advance(-60)
        coming = begin(enter("the next", there))
        await eventually(lambda: asleep(there))
        await held.release()
        await asyncio.wait_for(asyncio.gather(waiting, coming), 5)
    assert entered == ["the first", "the next"]


async def test_t_f_2_fencing_tokens_rise_through_every_step_while_the_fence_is_kept(
    skewed_server: SkewedServer, skewed_client: Redis
) -> None:
    tokens = []
    for step in (0, -HOUR, 2 * HOUR, -HOUR, -24 * HOUR, 60, -60, 400, 0):
        await skewed_server.advance(step)
        for _ in range(3):
            async with Lock(skewed_client, "a", ttl=5) as lease:
                tokens.append(lease.fencing_token)
    assert tokens == sorted(set(tokens))
    assert max(tokens) < 2**53


async def test_t_f_2_after_a_loss_they_rise_above_all_that_were_granted_by_a_sane_clock(
    skewed_server: SkewedServer, skewed_client: Redis, connect: Connect
) -> None:
    """Though the clock was behind when the data were lost, or had been, and the tokens with it."""
    admin = connect(skewed_server.server)
    tokens = []

    async def grant() -> None:
        async with Lock(skewed_client, "a", ttl=5) as lease:
            tokens.append(lease.fencing_token)

    await grant()
    await skewed_server.set_offset(-HOUR)
    await grant()
    await admin.flushall()
    await skewed_server.set_offset(0)
    await grant()
    assert tokens == sorted(set(tokens))


async def test_t_f_2_fence_outlasts_the_step_that_ended_the_lock(
    skewed_server: SkewedServer, skewed_client: Redis, connect: Connect
) -> None:
    """A jump ahead that ends a lock leaves its fence, which is kept far longer."""
    lock, elsewhere = Lock(skewed_client, "a", ttl=5), Lock(connect(skewed_server.server), "a", ttl=5)
    first = await lock.acquire()
    await skewed_server.advance(60)
    async with elsewhere as second:
        await skewed_server.advance(-60)
    async with elsewhere as third:
        assert first.fencing_token < second.fencing_token < third.fencing_token
    with pytest.raises(LockNotOwnedError):
        await first.release()
