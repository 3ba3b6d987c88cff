"""A Redlock with a master that does not answer: it costs a contender its time once, and votes again later."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator

import pytest
from redis.asyncio import Redis

from aiolocks import LockTimeoutError, Redlock
from aiolocks.testing import EmbeddedServer
from tests.conftest import Connect, OwnServer
from tests.support.waiting import eventually

KEY = "aiolocks:redlock:{a}"
NODE_TIMEOUT = 1.0


@pytest.fixture
async def three(own_server: OwnServer) -> AsyncIterator[list[EmbeddedServer]]:
    """Three masters; the last one hangs from when its test says so."""
    servers = [await own_server() for _ in range(3)]
    yield servers
    servers[2].resume()


async def warm(clients: list[Redis]) -> Redlock:
    lock = Redlock(clients, "a", ttl=20, node_timeout=NODE_TIMEOUT)
    for _ in range(2):
        async with lock:
            pass
    return lock


async def split(servers: list[EmbeddedServer]) -> None:
    """The votes of two masters are split: another contender has that of the first."""
    async with servers[0].client() as client:
        await client.set(KEY, "{}:1:{{}}".format("f" * 32), px=60_000)


async def refused(lock: Redlock, times: int) -> float:
    """Seconds that that many tries took, none of which got in."""
    began = time.monotonic()
    for _ in range(times):
        assert await lock.try_acquire() is None
    return time.monotonic() - began


@pytest.mark.more  # as a majority that was silent
@pytest.mark.leaves_keys
async def test_it_is_waited_for_once(three: list[EmbeddedServer], connect: Connect) -> None:
    lock = await warm([connect(server) for server in three])
    await split(three)
    three[2].pause()
    assert await refused(lock, 1) > NODE_TIMEOUT - 0.05
    assert await refused(lock, 20) < NODE_TIMEOUT


@pytest.mark.more  # as one that is waited for once
@pytest.mark.leaves_keys
async def test_one_that_nobody_had_to_wait_for_is_not_waited_for_later(
    three: list[EmbeddedServer], connect: Connect
) -> None:
    """Its silence is known from what the other masters decided without it."""
    lock = await warm([connect(server) for server in three])
    three[2].pause()
    began = time.monotonic()
    while time.monotonic() < began + NODE_TIMEOUT + 0.1:
        async with lock:
            pass
    await split(three)
    assert await refused(lock, 5) < NODE_TIMEOUT


@pytest.mark.more  # as a majority that was silent
@pytest.mark.leaves_keys
async def test_it_votes_again_once_it_answers(three: list[EmbeddedServer], connect: Connect) -> None:
    lock = await warm([connect(server) for server in three])
    await split(three)
    three[2].pause()
    await refused(lock, 3)
    three[2].resume()

    async def gets_in() -> bool:
        lease = await lock.try_acquire()  # by the votes of the second and the third
        if lease is not None:
            await lease.release()
        return lease is not None

    await eventually(gets_in, within=3)


async def test_a_majority_that_was_silent_is_asked_all_the_same(
    three: list[EmbeddedServer], connect: Connect
) -> None:
    lock = await warm([connect(server) for server in three])
    for server in three[1:]:
        server.pause()
    with pytest.raises(Exception, match="no majority"):
        await lock.acquire(blocking_timeout=1.5 * NODE_TIMEOUT)
    three[1].resume()
    async with lock.acquire(blocking_timeout=10):
        with pytest.raises(LockTimeoutError):
            await lock.acquire(blocking_timeout=0.2)
