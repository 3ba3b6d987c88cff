"""The limits of a lock: the lines of the page on known limits that no other test shows."""

from __future__ import annotations

import asyncio
from typing import Any

from redis.asyncio import Redis

from aiolocks import Lease, Lock, MultiLock, Semaphore
from tests.conftest import Connect
from tests.support.servers import Server

TIMES = 20


async def test_a_multilock_waits_while_its_names_are_never_free_together(
    redis: Redis, server: Server, connect: Connect
) -> None:
    elsewhere = connect(server)
    names = [Lock(elsewhere, "a"), Lock(elsewhere, "b")]
    held = await names[0].acquire()
    waiting = asyncio.create_task(MultiLock(redis, ["a", "b"]).acquire())
    for number in range(TIMES):
        following = await names[(number + 1) % 2].acquire(blocking_timeout=5)
        await asyncio.sleep(0.01)
        await held.release()
        await asyncio.sleep(0.01)
        assert not waiting.done()
        held = following
    await held.release()
    await (await asyncio.wait_for(waiting, 5)).release()


async def one_after_the_other(
    semaphore: Semaphore, elsewhere: Semaphore
) -> tuple[asyncio.Task[Lease], Lease | None]:
    """A request for both permits while others hold one of them at any moment; with the lease of the last one.

    The others ask for so long as they get in at once.
    """
    held: Any = await elsewhere.acquire()
    waiting = asyncio.create_task(semaphore.acquire(2))
    await asyncio.sleep(0.05)
    for _ in range(TIMES):
        following = await elsewhere.try_acquire()
        if following is None:
            break
        await asyncio.sleep(0.01)
        await held.release()
        await asyncio.sleep(0.01)
        assert not waiting.done()
        held = following
    else:
        return waiting, held
    await held.release()
    return waiting, None


async def test_a_large_request_waits_while_smaller_ones_come(
    redis: Redis, server: Server, connect: Connect
) -> None:
    elsewhere = connect(server)
    waiting, held = await one_after_the_other(Semaphore(redis, "a", 2), Semaphore(elsewhere, "a", 2))
    assert held is not None
    await held.release()
    await (await asyncio.wait_for(waiting, 5)).release()


async def test_a_large_request_for_a_fair_semaphore_is_next(
    redis: Redis, server: Server, connect: Connect
) -> None:
    semaphores = [Semaphore(client, "a", 2, fair=True) for client in (redis, connect(server))]
    waiting, held = await one_after_the_other(*semaphores)
    assert held is None
    await (await asyncio.wait_for(waiting, 5)).release()
