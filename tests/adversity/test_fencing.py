"""Fencing tokens rise through the loss of everything: T-F-1 of `tests/FAULTS.md`.

T-F-2, about clocks, is in `test_clock.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from redis.asyncio import Redis

from aiolocks import Lock, LockError, Session
from aiolocks.testing import EmbeddedServer
from tests.adversity.tools import Keys, with_own_connections
from tests.conftest import Connect, OwnServer
from tests.support.history import Hold, exclusion, fencing
from tests.support.servers import Server
from tests.support.thinning import only
from tests.support.waiting import eventually

PERSISTENCE = {"none": (), "aof": ("--appendonly", "yes", "--appendfsync", "always")}


async def lose_everything(server: EmbeddedServer, _: Redis) -> None:
    await server.restart()


async def flush(_: EmbeddedServer, redis: Redis) -> None:
    await redis.flushall()


async def lose_the_fence(_: EmbeddedServer, redis: Redis) -> None:
    """As an eviction does."""
    await redis.delete("aiolocks:lock.fence:{a}")


async def crash_twice(server: EmbeddedServer, _: Redis) -> None:
    await server.restart()
    await server.restart()


LOSSES: dict[str, Callable[[EmbeddedServer, Redis], Awaitable[None]]] = {
    "restart": lose_everything,
    "restart, restart": crash_twice,
    "FLUSHALL": flush,
    "fence evicted": lose_the_fence,
}


@pytest.mark.parametrize("persistence", PERSISTENCE)
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.thin
@pytest.mark.parametrize("transport", ["multiplexed", "plain"])
async def test_t_f_1_fencing_tokens_rise_through_a_loss(
    own_server: OwnServer, connect: Connect, persistence: str, loss: str, transport: str
) -> None:
    server = await own_server(arguments=PERSISTENCE[persistence])
    client, admin = connect(server), connect(server)
    if transport == "plain":
        with_own_connections(client)
    tokens = []
    for number in range(4):
        for _ in range(3):
            async with Lock(client, "a", ttl=5) as lease:
                tokens.append(lease.fencing_token)
        if number == 3:
            break
        await LOSSES[loss](server, admin)
    assert tokens == sorted(set(tokens))
    assert max(tokens) < 2**53


@pytest.mark.parametrize("persistence", only(PERSISTENCE, "none"))
async def test_t_f_1_lost_with_its_holder_inside(
    own_server: OwnServer, connect: Connect, persistence: str
) -> None:
    """The next one's token is larger in any case, however it came to be the next one."""
    server = await own_server(arguments=PERSISTENCE[persistence])
    client, elsewhere = connect(server), connect(server)
    tokens = []
    for _ in range(2):
        lease = await Lock(client, "a", ttl=1.5, auto_renew=False).acquire()
        tokens.append(lease.fencing_token)
        await server.restart()
        other = await Lock(elsewhere, "a", ttl=20).acquire()
        tokens.append(other.fencing_token)
        await other.release()
        with pytest.raises(LockError):
            await lease.release()
    assert tokens == sorted(set(tokens))


@pytest.mark.parametrize("persistence", only(PERSISTENCE, "aof"))
async def test_t_f_1_history_of_tasks_on_a_server_that_keeps_crashing(
    own_server: OwnServer, connect: Connect, keys: Keys, persistence: str
) -> None:
    """With its data kept nobody is ever inside with somebody else; without, the tokens tell them apart."""
    server = await own_server(arguments=PERSISTENCE[persistence])
    sessions = [Session(connect(server)) for _ in range(3)]
    loop = asyncio.get_running_loop()
    holds: list[Hold] = []
    over = False

    async def work(number: int) -> None:
        lock = Lock(sessions[number % 3], "a", ttl=3)
        while not over:
            invoked = loop.time()
            lease = await lock.acquire()
            granted = loop.time()
            await asyncio.sleep(0.002)
            released = loop.time()
            deadline = released + lease.remaining()
            try:
                await lease.release()
            except LockError:
                assert persistence == "none"
            holds.append(
                Hold(
                    who=f"task {number}",
                    invoked=invoked,
                    granted=granted,
                    released=released,
                    deadline=deadline,
                    fencing_token=lease.fencing_token,
                )
            )

    working = [asyncio.create_task(work(number)) for number in range(6)]
    for _ in range(5):
        so_far = len(holds)
        await eventually(lambda so_far=so_far: len(holds) >= so_far + 10)
        await server.restart()
    so_far = len(holds)
    await eventually(lambda: len(holds) >= so_far + 10)
    over = True
    await asyncio.gather(*working)
    for session in sessions:
        await session.aclose()
    assert fencing(holds) == []
    if persistence == "aof":
        assert exclusion(holds) == []
    assert keys(server) == []


@pytest.mark.parametrize(("retention", "kept"), [(0.5, 600), (900, 900)])
async def test_the_fence_is_kept_for_ten_times_the_ttl_that_was_asked_for_last(
    connect: Connect, server: Server, retention: float, kept: float
) -> None:
    """Also where that is not the ttl of the lock; and a release does not make it less."""
    redis = connect()

    async def is_kept() -> float:
        return round(await redis.pttl("aiolocks:lock.fence:{a}") / 1000, -1)

    async with Session(redis, fence_retention=retention) as session:
        lease = await Lock(session, "a", ttl=5).acquire()
        await lease.extend(60)
        assert await is_kept() == kept
        await lease.release()
        assert await is_kept() == kept
