"""The reentrant lock: whose it is, how deep, and what its end is in the midst of it.

T-P-12 of `tests/FAULTS.md`.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from typing import Any

import pytest
from redis.asyncio import Redis

from aiolocks import (
    Backoff,
    LeaseState,
    Lock,
    LockLostError,
    LockNotOwnedError,
    ReentrantLock,
    Session,
)
from tests.adversity.tools import AT_ONCE, SLACK, ByHand, Start, begin, in_within, waiter
from tests.support.history import Hold, exclusion, nesting
from tests.support.processes import Workers, tell
from tests.support.servers import Server
from tests.support.waiting import eventually

KEY = "aiolocks:lock:{a}"


def server_ttl(by_hand: ByHand) -> float:
    return float(by_hand.redis.pttl(KEY)) / 1000


async def test_t_p_12_nested_and_released_in_any_order(start: Start, keys: Callable[..., list[str]]) -> None:
    """It is free with the last, and not before; one token, depth by depth."""
    here, elsewhere = start(), start()
    chance = random.Random()
    lock = ReentrantLock(here, "a")
    for _ in range(10):
        leases = [await ReentrantLock(here, "a").acquire() for _ in range(5)]
        assert [lease.depth for lease in leases] == [1, 2, 3, 4, 5]
        assert len({lease.fencing_token for lease in leases}) == 1
        waiting = await waiter(elsewhere, Lock(elsewhere, "a").acquire())
        chance.shuffle(leases)
        for lease in leases[:-1]:
            await lease.release()
            await lease.release()  # idempotent: it lets go of no other
            assert await elsewhere_refused(elsewhere)
        assert not waiting.done()
        another = await lock.try_acquire()  # a waiter keeps the owner out as little
        assert another is not None
        assert await leases[-1].owned()
        await leases[-1].release()
        assert await elsewhere_refused(elsewhere)
        await another.release()
        await (await in_within(AT_ONCE, waiting)).release()
    assert keys() == []


async def elsewhere_refused(session: Session) -> bool:
    return await Lock(session, "a").try_acquire() is None


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.leaves_keys("aiolocks:lock.nest:*")
async def test_t_p_12_lost_in_the_midst_of_nesting(start: Start, by_hand: ByHand, depth: int) -> None:
    """Each body that unwinds leaves with the loss once; what caught it does not hear of it again."""
    session = start()
    told: list[str] = []

    class Listener:
        def on_lost(self, event: Any) -> None:
            told.append(event.reason)

    inside = asyncio.Event()

    async def nest(level: int) -> None:
        async with ReentrantLock(session, "a", ttl=0.3):
            if level > 1:
                await nest(level - 1)
            else:
                inside.set()
                await asyncio.sleep(60)

    task = begin(nest(depth))
    await inside.wait()
    by_hand.redis.delete(KEY)
    began = time.monotonic()
    with pytest.raises(LockLostError) as caught:
        await asyncio.wait_for(task, 2)
    assert time.monotonic() - began < 0.3 + SLACK
    assert not isinstance(caught.value.__context__, LockNotOwnedError)
    assert task.cancelling() == 0
    async with Lock(session, "a").acquire(blocking_timeout=AT_ONCE):  # nothing stays in the way
        pass


@pytest.mark.leaves_keys("aiolocks:lock.nest:*")
async def test_t_p_12_lost_and_taken_by_another_in_the_midst(start: Start, by_hand: ByHand) -> None:
    """The other's lease is not touched by the exits, and an inner acquire waits for it as anybody."""
    session = start()
    with pytest.raises(LockLostError):
        async with ReentrantLock(session, "a", on_lost="cancel") as outer:
            inner = await ReentrantLock(session, "a").acquire()
            by_hand.redis.delete(KEY)
            by_hand.acquire("a")
            assert not await outer.owned()
            assert not await inner.owned()
            assert await ReentrantLock(session, "a").try_acquire() is None
            with pytest.raises(LockNotOwnedError):
                await inner.release()
    assert by_hand.redis.exists(KEY)
    by_hand.release("a")


async def test_t_p_12_a_nest_that_outlives_its_lock_counts_for_nothing(start: Start, by_hand: ByHand) -> None:
    """The lock was taken again by the same owner: leases of before are no part of it."""
    here, elsewhere = start(), start()
    old = await ReentrantLock(here, "a", owner="one", on_lost="ignore").acquire()
    by_hand.redis.delete(KEY)
    fresh = await ReentrantLock(elsewhere, "a", owner="one").acquire()
    assert fresh.depth == 1
    assert fresh.fencing_token > old.fencing_token
    assert not await old.owned()
    with pytest.raises(LockNotOwnedError):
        await old.release()
    assert await fresh.owned()
    await fresh.release()


async def nest_elsewhere(url: str) -> None:
    """In a process of its own: the same owner, on top of who holds it already."""
    async with Redis.from_url(url) as redis:
        lease = await ReentrantLock(redis, "a", owner="job 17", ttl=1).acquire(blocking_timeout=5)
        tell("inside", depth=lease.depth, fencing_token=lease.fencing_token)
        await asyncio.sleep(60)


@pytest.mark.leaves_keys
@pytest.mark.parametrize("way", ["tracking"])
async def test_t_p_12_an_owner_over_processes(server: Server, workers: Workers, start: Start) -> None:
    """It nests over there; when that process dies, its part ends with its ttl, and the outer one stays."""
    here, other = start(backoff=Backoff()), start(backoff=Backoff())
    outer = await ReentrantLock(here, "a", owner="job 17", ttl=0.3).acquire()
    assert await ReentrantLock(here, "a", owner="job 18").try_acquire() is None
    worker = await workers.start(nest_elsewhere, url=server.url)
    inside = await worker.told("inside")
    assert (inside["depth"], inside["fencing_token"]) == (2, outer.fencing_token)
    waiting = await waiter(other, ReentrantLock(other, "a", owner="job 18").acquire())
    worker.kill()
    killed = time.monotonic()
    await asyncio.sleep(0.4)
    outer.ensure_held()
    await outer.release()
    lease = await in_within(1 + SLACK, waiting)
    assert 0.5 < time.monotonic() - killed <= 1 + 0.1
    assert lease.fencing_token > outer.fencing_token
    await lease.release()


async def test_t_p_12_release_by_another_task(start: Start) -> None:
    """The lease is what owns: any task may release it; and nobody's own lease goes with it."""
    here = start()
    lock = ReentrantLock(here, "a")
    outer, inner = await lock.acquire(), await lock.acquire()

    async def elsewhere() -> None:
        assert await lock.try_acquire() is None  # another task is another owner
        await inner.release()
        assert await lock.try_acquire() is None
        with pytest.raises(RuntimeError):
            await lock.__aexit__(None, None, None)

    await asyncio.create_task(elsewhere())
    assert inner.state is LeaseState.RELEASED
    assert await outer.owned()
    await asyncio.create_task(outer.release())  # type: ignore[arg-type]
    assert outer.state is LeaseState.RELEASED
    with pytest.raises(RuntimeError):
        await lock.__aexit__(None, None, None)  # never entered

    async def get_in() -> None:
        async with lock.acquire(blocking_timeout=AT_ONCE) as lease:
            assert lease.depth == 1

    await asyncio.create_task(get_in())


async def test_t_p_12_a_child_waits_for_its_parent(start: Start) -> None:
    lock = ReentrantLock(start(), "a")
    async with lock, lock:
        child_of_call = asyncio.create_task(lock.acquire())  # type: ignore[arg-type] # the caller owns it: the parent
        assert (await in_within(AT_ONCE, child_of_call)).depth == 3
        await child_of_call.result().release()

        async def in_a_task_of_its_own() -> None:
            async with lock:
                pass

        task = begin(in_a_task_of_its_own())
        await asyncio.sleep(0.02)
        assert not task.done()
    await asyncio.wait_for(task, AT_ONCE)


async def test_t_p_12_nested_ttl_never_shortens(start: Start, by_hand: ByHand) -> None:
    session = start()
    lock = ReentrantLock(session, "a", owner="one", ttl=20, auto_renew=False)
    short = ReentrantLock(session, "a", owner="one", ttl=0.2)
    outer = await lock.acquire()
    inner = await short.acquire()
    assert server_ttl(by_hand) > 19
    await inner.extend(0.1)
    assert server_ttl(by_hand) > 19
    await inner.extend()
    adopted = await short.adopt(inner.detach())
    assert server_ttl(by_hand) > 19
    await asyncio.sleep(0.25)  # renewed meanwhile
    assert await adopted.owned()
    await adopted.release()
    assert server_ttl(by_hand) > 19
    assert outer.remaining() > 19
    brief = await ReentrantLock(
        session, "a", owner="one", ttl=0.1, auto_renew=False, on_lost="ignore"
    ).acquire()
    await asyncio.sleep(0.15)
    assert brief.state is LeaseState.LOST
    assert await outer.owned()
    assert server_ttl(by_hand) > 19
    # The longer one ended: what is left is the time of the shorter, and no more.
    inner = await short.acquire()
    await outer.release()
    assert 0 < server_ttl(by_hand) <= 0.2
    await inner.release()
    assert not by_hand.redis.exists(KEY)


async def test_t_p_12_owners_at_random(start: Start) -> None:
    """Three owners, each of several tasks over two sessions, that nest: one owner at a time is inside."""
    chance = random.Random()
    sessions = [start(backoff=Backoff()) for _ in range(2)]
    holds: list[Hold] = []
    now = time.monotonic
    end = now() + 1.0

    async def one(owner: str, session: Session, depth: int) -> None:
        lock = ReentrantLock(session, "a", owner=owner)
        while now() < end:
            await nest(lock, owner, depth)
            await asyncio.sleep(chance.choice([0, 0.002]))

    async def nest(lock: ReentrantLock, owner: str, depth: int) -> None:
        invoked = now()
        lease = await lock.acquire()
        granted = now()
        if depth > 1:
            await nest(lock, owner, depth - 1)
        await asyncio.sleep(chance.choice([0, 0.001]))
        released = now()
        await lease.release()
        holds.append(
            Hold(
                who=owner,
                owner=owner,
                invoked=invoked,
                granted=granted,
                released=released,
                confirmed=now(),
                fencing_token=lease.fencing_token,
            )
        )

    async with asyncio.timeout(40), asyncio.TaskGroup() as group:
        for owner in "ABC":
            for session in sessions:
                group.create_task(one(owner, session, 2))
    assert len(holds) > 30  # a busy machine has few
    assert {hold.who for hold in holds} == set("ABC")
    assert exclusion(holds) == []
    assert nesting(holds) == []
    await eventually(lambda: all(session.statistics().leases_held == 0 for session in sessions))


async def test_an_owner_nests_beside_one_whose_lock_the_server_has_lost(redis: Redis) -> None:
    """For a while, both of one session take themselves for the holder."""
    lock = ReentrantLock(redis, "a")

    async def take_it_twice() -> None:
        async with asyncio.timeout(SLACK), await lock.try_acquire() as outer:
            assert outer is not None
            await (await lock.acquire()).release()

    lost = await lock.acquire()
    await redis.delete("aiolocks:lock:{a}", "aiolocks:lock.nest:{a}")
    await asyncio.create_task(take_it_twice())
    with pytest.raises(LockNotOwnedError):
        await lost.release()
