"""`acquire(steal=True)`: a lock that is taken from its holder, and all who learn of it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable
from typing import Any

import pytest
from redis.asyncio import Redis

from aiolocks import (
    FairLock,
    Leadership,
    LeaseState,
    Lock,
    LockEvent,
    LockLostError,
    LockNotOwnedError,
    MultiLock,
    Redlock,
    ReentrantLock,
    Semaphore,
    Session,
)
from tests.conftest import Connect
from tests.support.cancel import Shot, sweep
from tests.support.waiting import eventually

pytestmark = pytest.mark.leaves_keys("aiolocks:*.stolen:*", "aiolocks:leadership.terms:*")

KINDS = [Lock, FairLock, ReentrantLock, Leadership]
TTL = 0.6


def others_lock(kind: Any, client: Any, owner: str = "another", **common: Any) -> Any:
    """The same lock as seen by another owner."""
    return kind(client, "a", **({"owner": owner} if kind is ReentrantLock else {}), **common)


@pytest.mark.parametrize("kind", KINDS)
async def test_it_is_taken_from_its_holder_before_those_who_wait(
    kind: Any, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[LockEvent] = []

    class Listener:
        def on_stolen(self, event: LockEvent) -> None:
            told.append(event)

    async with (
        Session(connect()) as victims,
        Session(connect()) as waiters,
        Session(connect(), listeners=[Listener()]) as thieves,
    ):
        held = asyncio.get_running_loop().create_future()

        async def hold() -> None:
            async with kind(victims, "a", ttl=TTL, metadata={"order": 17}) as lease:
                held.set_result(lease)
                await asyncio.sleep(10)

        holder = asyncio.create_task(hold(), name="victim")
        lease = await held
        waiter = asyncio.create_task(others_lock(kind, waiters).acquire())
        await eventually(lambda: waiters.statistics().waiters == 1)

        async with others_lock(kind, thieves, "thief", metadata={"by": "hand"}).acquire(steal=True) as stolen:
            assert stolen.fencing_token > lease.fencing_token
            with pytest.raises(LockLostError, match=r"it was stolen by \S+ pid") as caught:
                await asyncio.wait_for(holder, TTL)
            thief = caught.value.stolen_by
            assert thief is not None
            assert (thief.pid, thief.metadata) == (os.getpid(), {"by": "hand"})
            assert thief.fencing_token == stolen.fencing_token
            assert lease.state is LeaseState.LOST
            with pytest.raises(LockNotOwnedError):
                await lease.release()
            assert not waiter.done()
        await (await asyncio.wait_for(waiter, 5)).release()

    (event,) = told
    assert (event.name, event.fencing_token) == ("a", stolen.fencing_token)
    assert "task 'victim' {'order': 17}" in event.reason
    (line,) = (record for record in caplog.records if "was taken by force" in record.message)
    assert line.levelno == logging.WARNING
    assert "task 'victim' {'order': 17}" in line.message


@pytest.mark.parametrize("kind", [*KINDS, MultiLock])
@pytest.mark.parametrize("how", ["at its end", "by a release", "by a renewal"])
async def test_a_holder_that_is_told_nothing_learns_of_the_thief_when_it_asks(
    kind: Any, how: str, connect: Connect
) -> None:
    """And one of several locks, of which one was taken."""
    async with Session(connect(), wakeup="poll") as victims, Session(connect()) as thieves:
        one = Lock if kind is MultiLock else kind
        lock = MultiLock(victims, ["b", "a"], ttl=TTL) if kind is MultiLock else kind(victims, "a", ttl=TTL)
        with pytest.raises((LockLostError, LockNotOwnedError), match=r"it was stolen by \S+ pid") as caught:
            if how == "by a release":
                lease = await lock.acquire()
                thief = await others_lock(one, thieves).acquire(steal=True)
                await lease.release()
            async with lock:
                thief = await others_lock(one, thieves).acquire(steal=True)
                await asyncio.sleep(10 if how == "by a renewal" else 0)
        assert caught.type is (LockNotOwnedError if how == "by a release" else LockLostError)
        assert caught.value.stolen_by is not None
        assert caught.value.stolen_by.fencing_token == thief.fencing_token
        await thief.release()


@pytest.mark.parametrize("kind", KINDS)
async def test_one_of_the_same_session_learns_of_it_in_that_step(kind: Any, redis: Redis) -> None:
    async with Session(redis) as session:
        lease = await others_lock(kind, session).acquire()
        waiter = asyncio.create_task(kind(session, "a").acquire())
        await eventually(lambda: session.statistics().waiters == 1)

        stolen = await kind(session, "a").acquire(steal=True)

        assert lease.state is LeaseState.LOST
        with pytest.raises(LockLostError) as caught:
            lease.ensure_held()
        assert caught.value.stolen_by is not None
        assert caught.value.stolen_by.fencing_token == stolen.fencing_token
        assert stolen.state is LeaseState.HELD
        assert await stolen.owned()
        await stolen.release()
        await (await asyncio.wait_for(waiter, 5)).release()


async def test_one_that_was_granted_in_the_same_turn_learns_of_it_too(redis: Redis) -> None:
    async with Session(redis, wakeup="poll") as session:
        lock = Lock(session, "a")
        victim, thief = await asyncio.gather(lock.acquire(), lock.acquire(steal=True))
        assert (victim.state, thief.state) == (LeaseState.LOST, LeaseState.HELD)
        await thief.release()


async def test_kinds_of_one_name_space_take_it_from_each_other(redis: Redis) -> None:
    async with Session(redis) as session:
        first = await Lock(session, "a", at_least=5).acquire()
        await first.release()  # kept, by nobody
        simple = await Lock(session, "a").acquire(steal=True)
        several = await MultiLock(session, ["b", "c"]).acquire()
        nested = ReentrantLock(session, "a")
        outer = await nested.acquire(steal=True)
        inner = await nested.acquire(steal=True)  # from itself, it takes it once more
        of_several = await Lock(session, "c").acquire(steal=True)
        assert [one.state is LeaseState.LOST for one in (simple, several)] == [True, True]
        assert (inner.depth, inner.fencing_token) == (2, outer.fencing_token)
        last = await Lock(session, "a").acquire(steal=True)
        assert [one.state is LeaseState.LOST for one in (outer, inner)] == [True, True]
        for lease in (last, of_several, several):
            with contextlib.suppress(LockNotOwnedError):
                await lease.release()
        await session.force_release("b")


async def test_what_cannot_be_stolen_says_so(redis: Redis) -> None:
    masters = [Redis(port=port) for port in (1, 2, 3)]
    for lock in (Semaphore(redis, "a", 1), MultiLock(redis, ["a", "b"]), Redlock(masters, "a")):
        with pytest.raises(TypeError, match=r"cannot be stolen: a Lock, FairLock.*force_release"):
            lock.acquire(steal=True)
    with pytest.raises(ValueError, match="leave blocking_timeout out"):
        Lock(redis, "a").acquire(steal=True, blocking_timeout=1)
    with pytest.raises(TypeError, match="steal must be True or False"):
        Lock(redis, "a").acquire(steal=1)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", KINDS)
async def test_a_theft_that_is_cancelled_leaves_nothing_held(
    kind: Any, redis: Redis, keys: Callable[..., list[str]]
) -> None:
    async with Session(redis) as session:
        lock, victims = others_lock(kind, session), list[Any]()

        async def steal() -> None:
            async with lock.acquire(steal=True):
                await asyncio.sleep(0.001)

        async def nothing_left(_: Shot) -> None:
            with contextlib.suppress(LockNotOwnedError):  # one that was cancelled in time has taken nothing
                await victims[-1].release()
            victims.append(await kind(session, "a").acquire(blocking_timeout=5))

        victims.append(await kind(session, "a").acquire())
        await sweep(steal, after=nothing_left)
        with pytest.raises(LockNotOwnedError):  # the last one was not cancelled
            await victims[-1].release()
        await eventually(lambda: not any("stolen" not in key and "terms" not in key for key in keys()))
