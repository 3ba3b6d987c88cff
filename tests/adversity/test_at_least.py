"""A name that stays taken for some time at least: replicas that start a job together, clocks, losses, deaths.

Each process has a clock of its own, and its own idea of when the night begins: here they start one by one.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from itertools import pairwise
from typing import Any

import pytest
from redis.asyncio import Redis

from aiolocks import (
    BackendError,
    FairLock,
    Lease,
    LeaseState,
    Lock,
    LockLostError,
    LockNotOwnedError,
    MultiLock,
    ReentrantLock,
    Session,
)
from tests.adversity.tools import RELEASE, begin, in_within, waiter
from tests.conftest import Connect, OwnServer
from tests.support.processes import Workers, tell
from tests.support.proxy import Proxy
from tests.support.servers import Server
from tests.support.skew import SkewedServer
from tests.support.thinning import only
from tests.support.waiting import eventually, sleeps

pytestmark = pytest.mark.leaves_keys

KINDS = {"Lock": Lock, "FairLock": FairLock}
LONG, SHORT = 20.0, 0.4
NIGHT = 300.0
"""Seconds; longer than a busy machine takes to start all the processes of a test."""
LATE = 2.0
"""Seconds after which somebody is in at the latest, on a busy machine."""

each_kind = pytest.mark.parametrize("kind", KINDS)


async def released(lock: Any) -> Lease:
    lease: Lease = await lock.acquire()
    await lease.release()
    return lease


def minted(*leases: Lease) -> list[float]:
    """When they were granted, by the server's clock."""
    return [lease.fencing_token / 1e6 for lease in leases]


# -- replicas ------------------------------------------------------------------------------------------------


async def replica(url: str, kind: str, at_least: float, seconds: float, *, wait: bool = False) -> None:
    """In a process of its own: it is three o'clock now, by the clock of this machine."""
    async with Redis.from_url(url) as redis:
        await redis.ping()
        tell("ready")
        while not await redis.exists("three o'clock"):
            await asyncio.sleep(0.005)
        lock = KINDS[kind](redis, "nightly", ttl=NIGHT, at_least=at_least)
        lease = await (lock.acquire() if wait else lock.try_acquire())
        if lease is None:
            tell("another one does it")
            return
        async with lease:
            await redis.rpush("runs", lease.fencing_token)
            await redis.expire("runs", 300)
            tell("runs")
            await asyncio.sleep(seconds)
        tell("ran")


@each_kind
async def test_replicas_that_start_within_that_time_of_one_another_run_it_once(
    server: Server, workers: Workers, redis: Redis, kind: str
) -> None:
    """The job is shorter than the difference of their clocks: the last begins when the others have ended."""
    crew = await workers.start_many(3, replica, url=server.url, kind=kind, at_least=NIGHT, seconds=0)
    for worker in crew:
        await worker.told("ready")
    await redis.set("three o'clock", "now", px=300_000)
    ended = [(await worker.finish())[-1]["event"] for worker in crew]
    late = await workers.start(replica, url=server.url, kind=kind, at_least=NIGHT, seconds=0)
    ended.append((await late.finish())[-1]["event"])
    assert sorted(ended) == ["another one does it"] * 3 + ["ran"]
    assert await redis.llen("runs") == 1


async def test_without_that_time_they_run_it_once_each(
    server: Server, workers: Workers, redis: Redis
) -> None:
    """The same with 0, for comparison."""
    await redis.set("three o'clock", "now", px=300_000)
    for _ in range(2):
        late = await workers.start(replica, url=server.url, kind="Lock", at_least=0, seconds=0)
        await late.finish()
    assert await redis.llen("runs") == 2


@pytest.mark.long
@pytest.mark.parametrize("kind", only(KINDS, "FairLock"))
async def test_replicas_that_wait_run_it_one_by_one_never_sooner(
    server: Server, workers: Workers, redis: Redis, kind: str
) -> None:
    crew = await workers.start_many(
        3, replica, url=server.url, kind=kind, at_least=SHORT, seconds=0, wait=True
    )
    for worker in crew:
        await worker.told("ready")
    await redis.set("three o'clock", "now", px=300_000)
    for worker in crew:
        await worker.finish()
    runs = sorted(int(token) / 1e6 for token in await redis.lrange("runs", 0, -1))
    gaps = [later - earlier for earlier, later in pairwise(runs)]
    assert len(gaps) == 2
    assert SHORT <= min(gaps) <= max(gaps) < SHORT + LATE


@pytest.mark.parametrize("kind", only(KINDS, "Lock"))
async def test_a_runner_that_dies_keeps_the_name_for_its_ttl(
    server: Server, workers: Workers, redis: Redis, kind: str
) -> None:
    await redis.set("three o'clock", "now", px=300_000)
    worker = await workers.start(replica, url=server.url, kind=kind, at_least=SHORT, seconds=60)
    await worker.told("runs")
    worker.kill()
    await worker.finish(status=-9)
    await asyncio.sleep(2 * SHORT)  # its `at_least` is over
    lock = KINDS[kind](redis, "nightly", ttl=NIGHT, at_least=SHORT)
    assert await lock.try_acquire() is None
    (info,) = await Session.of(redis).inspect("nightly")
    assert len(info.holders) == 1
    assert (info.holders[0].remaining or 0) > NIGHT / 2


# -- waiting -------------------------------------------------------------------------------------------------


async def test_a_fair_queue_keeps_its_order_over_that_time(connect: Connect) -> None:
    async with AsyncExitStack() as stack:
        one, two = [await stack.enter_async_context(Session(connect())) for _ in range(2)]
        first = await FairLock(one, "a", at_least=SHORT).acquire()
        waiting = [await waiter(session, FairLock(session, "a").acquire()) for session in (two, one, two)]
        await first.release()
        leases = []
        for task in waiting:
            leases.append(await task)
            assert not any(later.done() for later in waiting[len(leases) :])
            await leases[-1].release()
    times = minted(first, *leases)
    assert times == sorted(times)
    assert SHORT <= times[1] - times[0] < SHORT + LATE
    assert times[-1] - times[1] < LATE


@each_kind
@pytest.mark.parametrize("way", ["tracking", "poll"])
async def test_a_release_that_keeps_the_name_rings_nobody(
    server: Server, connect: Connect, kind: str, way: str
) -> None:
    """Not even where the waiter sleeps: its own timer wakes it."""
    async with Session(connect(), wakeup=way) as here, Session(connect(), wakeup=way) as there:
        first = await KINDS[kind](here, "a", at_least=SHORT).acquire()
        waiting = begin(KINDS[kind](there, "a").acquire())
        await eventually(lambda: sleeps(there))
        rung = there.statistics().wakeups["tracking"]
        await first.release()
        second = await waiting
        assert there.statistics().wakeups["tracking"] == rung
        assert SHORT <= minted(second)[0] - minted(first)[0] < SHORT + LATE
        await second.release()


@each_kind
async def test_a_waiter_that_leaves_while_nobody_holds_it_passes_its_place_on(
    connect: Connect, kind: str
) -> None:
    """Cancelled heads, here and there: the last waiter gets in right after that time."""
    async with Session(connect()) as here, Session(connect()) as there:
        first = await KINDS[kind](here, "a", at_least=SHORT).acquire()
        waiting = [
            await waiter(session, KINDS[kind](session, "a").acquire())
            for session in (here, there, here, there)
        ]
        await first.release()
        for task in waiting[:3]:
            task.cancel()
        await asyncio.wait(waiting[:3])
        second = await in_within(SHORT + LATE, waiting[3])
        assert minted(second)[0] - minted(first)[0] >= SHORT
        await second.release()


async def test_a_release_whose_script_the_server_does_not_know_is_overtaken_by_nobody(
    own_server: OwnServer, connect: Connect
) -> None:
    """The try of the next here leaves with it, and comes before it: it is refused twice, and waits."""
    own = await own_server()
    client = connect(own)
    for kind in KINDS.values():
        first = await kind(client, "a", at_least=SHORT).acquire()
        waiting = await waiter(Session.of(client), kind(client, "a").acquire())
        await client.script_flush()
        await first.release()
        second = await in_within(SHORT + LATE, waiting)
        assert minted(second)[0] - minted(first)[0] >= SHORT
        await second.release()


async def test_kinds_of_the_same_name_are_kept_out_until_then(redis: Redis) -> None:
    first = await released(Lock(redis, "a", at_least=SHORT))
    others = [ReentrantLock(redis, "a"), MultiLock(redis, ["a", "b"]), Lock(redis, "a")]
    for other in others:
        assert await other.locked()
        assert await other.try_acquire() is None
    for other in others:
        async with other.acquire(blocking_timeout=SHORT + LATE) as later:
            assert minted(later)[0] - minted(first)[0] >= SHORT


# -- faults --------------------------------------------------------------------------------------------------


async def test_a_release_whose_reply_was_lost_is_repeated_and_keeps_the_name(
    through: Proxy, client: Redis, redis: Redis
) -> None:
    lease = await Lock(client, "a", at_least=LONG).acquire()
    lost = through.reset_after(RELEASE)
    await lease.release()
    assert lost.is_set()
    assert lease.state is LeaseState.RELEASED
    (info,) = await Session.of(redis).inspect("a")
    assert info.holders == ()
    assert info.kept_for == pytest.approx(LONG, abs=5)


@pytest.mark.more  # as a release that is unknown to the server
async def test_a_release_that_is_not_confirmed_leaves_it_to_the_ttl(
    through: Proxy, client: Redis, redis: Redis
) -> None:
    lease = await Lock(client, "a", ttl=1, at_least=1).acquire()
    through.drop_requests = True
    with pytest.raises(BackendError):
        await lease.release()
    through.drop_requests = False
    async with Lock(redis, "a", blocking_timeout=LATE) as later:
        assert minted(later)[0] - minted(lease)[0] >= 1


@each_kind
async def test_a_name_is_kept_after_the_end_of_its_session_too(
    connect: Connect, redis: Redis, kind: str
) -> None:
    async def run() -> None:
        async with KINDS[kind](session, "a", at_least=LONG):
            inside.set()
            await asyncio.sleep(60)

    inside = asyncio.Event()
    async with Session(connect()) as session:
        running = asyncio.create_task(run())
        await inside.wait()
    with pytest.raises(LockLostError):
        await running
    (info,) = await Session.of(redis).inspect("a")
    assert info.holders == ()
    assert info.kept_until is not None


async def test_a_server_that_has_lost_its_data_keeps_nothing(redis: Redis) -> None:
    lease = await Lock(redis, "a", at_least=LONG).acquire()
    await redis.flushall()
    with pytest.raises(LockNotOwnedError):
        await lease.release()
    await (await Lock(redis, "a", blocking_timeout=0).acquire()).release()


async def test_fakeredis_keeps_it_too() -> None:
    fakeredis = pytest.importorskip("fakeredis")
    async with fakeredis.FakeAsyncRedis() as client, Session(client) as session:
        for kind in KINDS.values():
            await released(kind(session, "kept", at_least=LONG))
            assert await kind(session, "kept").try_acquire() is None
            first = await released(kind(session, "a", at_least=SHORT))
            async with kind(session, "a", blocking_timeout=SHORT + LATE) as later:
                assert minted(later)[0] - minted(first)[0] >= SHORT / 2  # its clock is not exact


# -- the server's clock --------------------------------------------------------------------------------------


@each_kind
async def test_the_servers_clock_ends_that_time(
    skewed_server: SkewedServer, connect: Connect, kind: str
) -> None:
    """Not one of the clients': here none of them goes on by a minute."""
    client = connect(skewed_server.server)
    began = time.monotonic()
    lock = KINDS[kind](client, "a", ttl=60, at_least=60)
    await released(lock)
    await skewed_server.advance(50)
    assert await lock.try_acquire() is None
    await skewed_server.advance(11)
    async with lock.acquire(blocking_timeout=LATE):
        assert time.monotonic() - began < 30


@each_kind
async def test_that_time_counts_while_the_body_runs(
    skewed_server: SkewedServer, connect: Connect, kind: str
) -> None:
    client = connect(skewed_server.server)
    lock = KINDS[kind](client, "a", ttl=300, at_least=60)
    async with lock:
        await skewed_server.advance(50)
    (info,) = await Session.of(client).inspect("a")
    assert info.kept_for == pytest.approx(10, abs=5)
    await skewed_server.advance(11)
    async with lock.acquire(blocking_timeout=LATE):
        await skewed_server.advance(61)
    assert not await lock.locked()


@each_kind
async def test_a_clock_that_was_set_back_does_not_lengthen_it(
    skewed_server: SkewedServer, connect: Connect, kind: str
) -> None:
    """The grant seems to be of the future: so the time counts from the release."""
    client = connect(skewed_server.server)
    async with KINDS[kind](client, "a", ttl=60, at_least=60):
        await skewed_server.advance(-3600)
    (info,) = await Session.of(client).inspect("a")
    assert info.holders == ()
    assert info.kept_for == pytest.approx(60, abs=5)
    (freed,) = await Session.of(client).force_release("a")
    assert freed.kept_until is not None
    assert not await KINDS[kind](client, "a").locked()
