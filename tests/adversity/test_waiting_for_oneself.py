"""A task that waits for what it holds itself: told where the wait can never end, and nowhere else.

The common part of all kinds is in `tests/conformance/test_in_the_way.py`; this is what differs from kind to
kind.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from redis.asyncio import Redis

from aiolocks import (
    DeadlockError,
    DuplicateJobError,
    Lock,
    LockTimeoutError,
    MultiLock,
    RangeLock,
    ReentrantLock,
    RWLock,
    Semaphore,
    Session,
    SingleFlight,
    UniqueJob,
)
from tests.conftest import Connect
from tests.support.waiting import eventually, sleeps

Make = Callable[[Any], Any]


@pytest.fixture
def redis_(connect: Connect) -> Redis:
    return connect()


@pytest.fixture
def elsewhere(connect: Connect) -> Redis:
    return connect()


async def dead(pending: Any) -> str:
    with pytest.raises(DeadlockError) as caught:
        async with asyncio.timeout(5), pending:
            pytest.fail("entered")
    return caught.value.held


async def waits(pending: Any, seconds: float = 0.1) -> None:
    """It is neither had nor given up within that time."""
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(seconds), pending:
            pytest.fail("entered")


async def hold(lock: Any) -> None:
    async with lock:
        pass


# -- kinds of one name space


PAIRS: dict[str, tuple[Make, Make]] = {
    "a ReentrantLock in a Lock": (lambda redis: Lock(redis, "a"), lambda redis: ReentrantLock(redis, "a")),
    "another owner in a Lock": (
        lambda redis: Lock(redis, "a"),
        lambda redis: ReentrantLock(redis, "a", owner="x"),
    ),
    "a MultiLock in a Lock": (lambda redis: Lock(redis, "a"), lambda redis: MultiLock(redis, ["b", "a"])),
    "a Lock in a ReentrantLock": (lambda redis: ReentrantLock(redis, "a"), lambda redis: Lock(redis, "a")),
    "another owner in a ReentrantLock": (
        lambda redis: ReentrantLock(redis, "a"),
        lambda redis: ReentrantLock(redis, "a", owner="x"),
    ),
    "a Lock in a MultiLock": (lambda redis: MultiLock(redis, ["a", "b"]), lambda redis: Lock(redis, "b")),
    "a MultiLock in a MultiLock": (
        lambda redis: MultiLock(redis, ["a", "b"]),
        lambda redis: MultiLock(redis, ["b", "c"]),
    ),
}


@pytest.mark.parametrize("pair", PAIRS)
async def test_of_another_kind(redis_: Redis, pair: str) -> None:
    outer, inner = (make(redis_) for make in PAIRS[pair])
    async with outer:
        assert await dead(inner) == f"{type(outer).__name__} {outer.name!r}"
        with pytest.raises(LockTimeoutError, match="held by this task itself"):
            await inner.acquire(blocking_timeout=0.05)


async def test_a_reentrant_lock_lets_its_owner_in_again(redis_: Redis) -> None:
    async with ReentrantLock(redis_, "a"), ReentrantLock(redis_, "a"), MultiLock(redis_, ["b"]):
        pass


async def test_behind_another_waiter_whose_turn_is_first(redis_: Redis) -> None:
    """The gate lets one ask; what that one is told holds for all behind it."""
    async with MultiLock(redis_, ["a", "b"]):
        first = asyncio.create_task(hold(Lock(redis_, "a")))
        await eventually(lambda: Session.of(redis_).statistics().waiters == 1)
        assert await dead(Lock(redis_, "a")) == "MultiLock 'a, b'"
        assert not first.done()
    await asyncio.wait_for(first, 5)


# -- semaphores


async def test_permits_that_can_never_be_enough(redis_: Redis, elsewhere: Redis) -> None:
    permits = Semaphore(redis_, "a", 3)
    async with permits.acquire(2):
        theirs = await Semaphore(elsewhere, "a", 3).acquire()
        await waits(permits)  # as soon as they give it back
        await dead(permits.acquire(2))  # not even then
        await theirs.release()
        async with permits:
            await dead(permits)


async def test_a_semaphore_that_was_made_larger(redis_: Redis, elsewhere: Redis) -> None:
    permits = Semaphore(redis_, "a", 1)
    async with permits:
        await permits.resize(2)
        async with Semaphore(elsewhere, "a", 1):
            await waits(permits)
        async with permits:
            await dead(permits)


async def test_permits_among_very_many(redis_: Redis, elsewhere: Redis) -> None:
    """More than a refusal tells of."""
    permits = Semaphore(redis_, "a", 12)
    others = [await Semaphore(elsewhere, "a", 12, ttl=10).acquire() for _ in range(10)]
    async with permits, permits:
        await waits(permits)
        await dead(permits.acquire(11))
    for lease in others:
        await lease.release()


@pytest.mark.leaves_keys
async def test_permits_that_were_lost_are_in_nobodys_way(redis_: Redis, elsewhere: Redis) -> None:
    permits = Semaphore(redis_, "a", 1, on_lost="ignore")
    async with permits:
        await Session.of(elsewhere).force_release("a")
        async with Semaphore(elsewhere, "a", 1):
            await waits(permits)
            with pytest.raises(LockTimeoutError) as caught:
                await permits.acquire(blocking_timeout=0)
            assert "this task itself" not in str(caught.value)


# -- readers and writers


@pytest.mark.parametrize("outer", ["reader", "upgradable", "writer"])
@pytest.mark.parametrize("inner", ["reader", "upgradable", "writer"])
async def test_modes(redis_: Redis, outer: str, inner: str) -> None:
    lock = RWLock(redis_, "a")
    shared = {outer, inner} <= {"reader", "upgradable"} and (outer, inner) != ("upgradable", "upgradable")
    async with getattr(lock, outer):
        if shared:
            await asyncio.wait_for(hold(getattr(lock, inner)), 5)
        else:
            assert await dead(getattr(lock, inner)) == f"RWLock.{outer} 'a'"


@pytest.mark.parametrize("inner", ["reader", "upgradable"])
async def test_a_reader_in_a_reader_for_whom_a_writer_waits(
    redis_: Redis, elsewhere: Redis, inner: str
) -> None:
    lock = RWLock(redis_, "a")
    async with lock.reader:
        writer = asyncio.create_task(hold(RWLock(elsewhere, "a").writer))
        await eventually(lambda: sleeps(Session.of(elsewhere)))
        assert await dead(getattr(lock, inner)) == "RWLock.reader 'a'"
        with pytest.raises(LockTimeoutError, match="held by this task itself"):
            await getattr(lock, inner).acquire(blocking_timeout=0.05)
    await asyncio.wait_for(writer, 5)


async def test_an_upgrade_waits_for_others_and_not_for_its_own_task(redis_: Redis, elsewhere: Redis) -> None:
    lock = RWLock(redis_, "a")
    async with lock.upgradable as lease:
        async with RWLock(elsewhere, "a").reader:
            await waits(lease.upgrade())
        async with lease.upgrade():
            await dead(lock.reader)
        async with lock.reader:
            assert await dead(lease.upgrade()) == "RWLock.reader 'a'"


async def test_intervals(redis_: Redis, elsewhere: Redis) -> None:
    ranges = RangeLock(redis_, "a")
    async with ranges.writer(0, 10):
        async with ranges.writer(10, 20), ranges.reader(20, 30):
            pass
        await dead(ranges.reader(9, 11))
        async with RangeLock(elsewhere, "a").reader(10, 20):
            await waits(ranges.writer(10, 11))
    async with ranges.reader(0, 10):
        # A writer who waits elsewhere, but not for what is held here: it goes away, and the wait ends.
        async with RangeLock(elsewhere, "a").reader(15, 16):
            writer = asyncio.create_task(hold(RangeLock(elsewhere, "a").writer(15, 16)))
            await eventually(lambda: Session.of(elsewhere).statistics().waiters == 1)
            await asyncio.sleep(0.05)
            await waits(ranges.reader(5, 20))
        await asyncio.wait_for(writer, 5)


# -- what is built with locks


@pytest.mark.parametrize("waiting", [1, None])
async def test_a_job_in_itself(redis_: Redis, waiting: int | None) -> None:
    job = UniqueJob(redis_, "a")
    async with job.run(waiting=waiting):
        assert await dead(job.run(waiting=waiting)) == "UniqueJob 'a'"
        assert await dead(job.try_run(waiting=waiting)) == "UniqueJob 'a'"
        with pytest.raises(DuplicateJobError):
            await job.run(waiting=0)


async def test_a_turn_in_itself(redis_: Redis) -> None:
    flight = SingleFlight(redis_)
    async with flight.turn("a") as turn:
        assert turn.first
        assert await dead(flight.turn("a")) == "that turn itself"
        async with flight.turn("b") as other:
            assert other.first


# -- leases that are not left


async def test_a_session_forgets_what_was_left(redis_: Redis) -> None:
    entered = Session.of(redis_)._usable_engine().entered
    async with Lock(redis_, "a"), Lock(redis_, "b"):
        assert len(entered._of) == 1
    lease = await Lock(redis_, "a").acquire()
    with pytest.raises(ZeroDivisionError):
        async with lease:
            await lease.release()
            raise ZeroDivisionError
    assert entered._of == {}
