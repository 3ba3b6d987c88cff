"""Losing a lease: whoever relies on it is told, once, and in the right order of precedence."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import anyio
import pytest
from redis.asyncio import Redis
from redis.exceptions import ResponseError

from aiolocks import LeaseState, Lock, LockLostError, LockNotOwnedError, Session
from tests.conformance.conftest import SHORT, Kind, nothing_left, server_remaining, stall
from tests.conftest import blocking
from tests.support.clusters import Cluster
from tests.support.servers import Server
from tests.support.spoiling import cancelling, spoil
from tests.support.waiting import eventually

Keys = Callable[..., list[str]]
TTL = 3.0


@pytest.mark.timed
async def test_body_is_cancelled(
    kind: Kind, client: Redis, keys: Keys, caplog: pytest.LogCaptureFixture
) -> None:
    unwound = False
    with pytest.raises(LockLostError, match="'a' was lost: the server no longer has it") as caught:
        async with kind.make(client, "a", ttl=TTL) as lease:
            try:
                await client.delete(*keys())
                await asyncio.sleep(5)
            finally:
                unwound = True
    assert unwound
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__
    assert lease.state is LeaseState.LOST
    assert Session.of(client).statistics().losses == 1
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    assert [record.levelno for record in caplog.records if "lost" in record.message] == [logging.WARNING]


@pytest.mark.timed
async def test_children_are_ended_by_the_bodys_unwinding(kind: Kind, client: Redis, keys: Keys) -> None:
    ended = 0

    async def child() -> None:
        nonlocal ended
        try:
            await asyncio.sleep(5)
        finally:
            ended += 1

    for group in ("asyncio", "anyio"):
        with pytest.raises(LockLostError):
            async with kind.make(client, "a", ttl=TTL):
                # The session may hear of it before the answer.
                if group == "asyncio":
                    async with asyncio.TaskGroup() as tasks:
                        tasks.create_task(child())
                        tasks.create_task(child())
                        await client.delete(*keys())
                else:
                    async with anyio.create_task_group() as children:
                        children.start_soon(child)
                        children.start_soon(child)
                        await client.delete(*keys())
    assert ended == 4


@pytest.mark.timed
async def test_body_in_which_a_task_group_has_failed_is_told(kind: Kind, client: Redis, keys: Keys) -> None:
    with pytest.raises(LockLostError):
        async with kind.make(client, "a", ttl=TTL):
            await spoil()
            left = cancelling()
            await client.delete(*keys())
            await asyncio.sleep(5)
    assert cancelling() == left


async def test_bodys_own_exception_wins(
    kind: Kind, client: Redis, keys: Keys, server: Server, cluster: Cluster | None
) -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        async with kind.make(client, "a"):
            delete_at_once(keys(), urls_of(server, cluster))
            _ = 1 / 0
    assert any("was lost" in note for note in caught.value.__notes__)


@pytest.mark.timed
async def test_exception_raised_while_unwinding_wins(kind: Kind, client: Redis, keys: Keys) -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        async with kind.make(client, "a", ttl=TTL):
            try:
                await client.delete(*keys())  # of which the session may hear before the answer
                await asyncio.sleep(5)
            finally:
                _ = 1 / 0
    assert any("was lost" in note for note in caught.value.__notes__)


@pytest.mark.timed
async def test_cancellation_from_outside_wins(kind: Kind, client: Redis, keys: Keys) -> None:
    async def hold() -> None:
        async with kind.make(client, "a", ttl=TTL):
            try:
                await client.delete(*keys())  # of which the session may hear before the answer
                await asyncio.sleep(5)
            finally:
                task.cancel()  # from outside, while the loss is being unwound
                await asyncio.sleep(0)

    task = asyncio.create_task(hold())
    with pytest.raises(asyncio.CancelledError) as caught:
        await task
    assert any("was lost" in note for note in caught.value.__notes__)


def urls_of(server: Server, cluster: Cluster | None) -> list[str]:
    return [server.url] if cluster is None else [node.url for node in cluster.masters]


def delete_at_once(keys: list[str], urls: list[str]) -> None:
    """Without a turn of the loop in which the session could hear of it."""
    for url in urls:
        with blocking(url) as client:
            for key in keys:
                with suppress(ResponseError):  # it is on another node
                    client.delete(key)


async def test_timeout_around_the_body_wins(
    kind: Kind, client: Redis, keys: Keys, server: Server, cluster: Cluster | None
) -> None:
    """The deadline comes first, and the loss shows at the end of the block."""
    with pytest.raises(TimeoutError) as caught:
        async with asyncio.timeout(None) as deadline, kind.make(client, "a"):
            delete_at_once(keys(), urls_of(server, cluster))
            deadline.reschedule(asyncio.get_running_loop().time())
            await asyncio.sleep(5)
    assert not isinstance(caught.value, LockLostError)


async def test_loss_that_shows_only_at_the_end(kind: Kind, client: Redis, keys: Keys) -> None:
    with pytest.raises(LockLostError):
        async with kind.make(client, "a"):
            await client.delete(*keys())
    lease = await kind.make(client, "a").acquire()
    await client.delete(*keys())
    with pytest.raises(LockNotOwnedError):
        await lease.release()
    with pytest.raises(LockNotOwnedError):
        await lease.release()


@pytest.mark.timed
async def test_body_that_swallows_the_cancel_is_told_at_the_end(
    kind: Kind, client: Redis, keys: Keys
) -> None:
    with pytest.raises(LockLostError):
        async with kind.make(client, "a", ttl=TTL):
            with pytest.raises(asyncio.CancelledError):
                await client.delete(*keys())
                await asyncio.sleep(5)
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


@pytest.mark.timed
async def test_nested_leases_lost_at_once(kind: Kind, client: Redis, keys: Keys) -> None:
    with pytest.raises(LockLostError):
        async with kind.make(client, "a", ttl=TTL), kind.make(client, "b", ttl=TTL):
            await client.delete(*keys())
            await asyncio.sleep(5)
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


@pytest.mark.timed
async def test_on_lost_ignore(kind: Kind, client: Redis, keys: Keys) -> None:
    async with kind.make(client, "a", ttl=TTL, on_lost="ignore") as lease:
        await client.delete(*keys())
        await lease.wait_lost()
        assert lease.state is LeaseState.LOST
        await asyncio.sleep(0.01)  # the body goes on


@pytest.mark.timed
async def test_not_entered_is_told_by_its_state(kind: Kind, client: Redis, keys: Keys) -> None:
    lease = await kind.make(client, "a", ttl=TTL).acquire()
    waiting = asyncio.create_task(lease.wait_lost())
    await client.delete(*keys())
    await asyncio.wait_for(waiting, TTL + stall())
    await lease.wait_lost()
    with pytest.raises(LockLostError):
        lease.ensure_held()
    assert lease.remaining() == 0.0
    assert not await lease.owned()


async def test_what_somebody_else_holds_by_now_is_left_alone(kind: Kind, client: Redis, keys: Keys) -> None:
    lease = await kind.make(client, "a", ttl=60).acquire()
    await client.delete(*keys())
    async with kind.make(client, "a").try_acquire() as other:
        assert other is not None
        with pytest.raises(LockNotOwnedError):
            await lease.release()
        assert await other.owned()
        assert other.fencing_token > lease.fencing_token


@pytest.mark.timed
async def test_without_renewal_it_ends_with_its_ttl(kind: Kind, client: Redis) -> None:
    loop = asyncio.get_running_loop()
    began = loop.time()
    with pytest.raises(LockLostError, match="auto_renew is off"):
        async with kind.make(client, "a", ttl=TTL, auto_renew=False):
            await asyncio.sleep(5)
    assert TTL * 0.9 < loop.time() - began < TTL + 0.4 + stall()  # it counts from when there is a connection


@pytest.mark.timed
async def test_max_hold(kind: Kind, client: Redis, join: Callable[..., Redis]) -> None:
    loop = asyncio.get_running_loop()
    began = 0.0
    with pytest.raises(LockLostError, match="max_hold has passed"):
        async with kind.make(client, "a", ttl=SHORT, max_hold=2 * SHORT):
            began = loop.time()
            while True:
                asked = loop.time()
                left = await server_remaining(kind, client)
                # The server's ttl never reaches past it.
                assert asked + left <= began + 2 * SHORT + 0.02
                await asyncio.sleep(0.1)
    assert SHORT < loop.time() - began < 2 * SHORT + 1 + stall()  # it counts from before the request


@pytest.mark.timed
async def test_grace(kind: Kind, client: Redis, keys: Keys) -> None:
    """The body ends while the lock is still held, and nothing is left of it."""
    left = 0.0
    lease = await kind.make(client, "a", ttl=TTL, max_hold=TTL, grace=TTL / 2).acquire()
    with pytest.raises(LockLostError, match="`grace` began: max_hold passes"):
        async with lease:
            try:
                await asyncio.sleep(5)
            finally:
                left = lease.remaining()
                assert await lease.owned()
    assert TTL / 4 - stall() < left <= TTL / 2 + 1e-9
    await nothing_left(kind, keys)


@pytest.mark.timed
async def test_a_collected_lease_is_let_run_out(kind: Kind, client: Redis, keys: Keys) -> None:
    ttl = SHORT
    lock = kind.make(client, "a", ttl=ttl)
    lease = await lock.acquire()
    with pytest.warns(ResourceWarning, match="'a' was never released"):
        del lease
        gc.collect(1)  # the young: all of them would take as long as the ttl
    assert keys()
    # Some kinds keep their keys for a second longer, to see what has come to its end.
    await eventually(lambda: not keys(), within=ttl + 1.2 + stall())
    async with lock.acquire(blocking_timeout=0.5 + stall()):  # nobody here is thought to hold it
        pass


@pytest.mark.timed
async def test_waiter_behind_a_collected_lease_gets_in(kind: Kind, client: Redis) -> None:
    ttl = 1.5 * SHORT
    lock = kind.make(client, "a", ttl=ttl)
    lease = await lock.acquire()
    waiter = asyncio.create_task(lock.acquire())
    await eventually(lambda: Session.of(client).statistics().waiters == 1)
    with pytest.warns(ResourceWarning):
        del lease
        gc.collect()
    await (await asyncio.wait_for(waiter, ttl + 1.5 + stall())).release()


@pytest.mark.timed
async def test_t_c_7_no_renewal_behind_a_release(kind: Kind, client: Redis, keys: Keys) -> None:
    """Dozens of short holds, then silence: nothing comes back to life, nothing more is sent."""
    lock = kind.make(client, "a", ttl=SHORT)
    for _ in range(60):
        async with lock:
            pass
    await nothing_left(kind, keys)  # of several masters, the last one may still be told to let go
    sent = Session.of(client).statistics().commands_sent
    await asyncio.sleep(SHORT)
    await nothing_left(kind, keys)
    assert sent <= Session.of(client).statistics().commands_sent <= sent + stall()


@pytest.mark.parametrize(
    "number_of", [2_000, pytest.param(10_000, marks=[pytest.mark.more, pytest.mark.timeout(120)])]
)
async def test_thousands_of_leases_need_no_task_each(redis: Redis, number_of: int) -> None:
    await no_task_each(lambda name: Lock(redis, name, ttl=12), number_of, at_once=500, until=4.5, most=3)


@pytest.mark.timed
async def test_many_leases_need_no_task_each(kind: Kind, client: Redis, transport: str) -> None:
    at_once = 60 if kind.masters == 1 else 50  # each of several masters has to answer within ttl / 20
    most = 16 if transport == "plain" else 3  # it takes a few tasks to call the client, which has some itself
    await no_task_each(lambda name: kind.make(client, name, ttl=6), 60, at_once=at_once, until=2.4, most=most)


async def no_task_each(
    make: Callable[[str], Any], number_of: int, *, at_once: int, until: float, most: int
) -> None:
    """At most so many are there when all are held, and when they have been renewed."""
    before = asyncio.all_tasks()
    leases = []
    for start in range(0, number_of, at_once):
        names = [f"a{number}" for number in range(start, min(start + at_once, number_of))]
        leases += await asyncio.gather(*(make(name).acquire() for name in names))
    # While a connection is being made, for a slot that is new, there may be some more.
    await eventually(lambda: len(asyncio.all_tasks() - before) <= most, within=1 + stall())
    await asyncio.sleep(until)
    await eventually(lambda: len(asyncio.all_tasks() - before) <= most, within=1 + stall())
    assert {lease.state for lease in leases} == {LeaseState.HELD}
    await asyncio.gather(*(lease.release() for lease in leases))
