"""`await client.aclose()` closes the connection of the default session, too, once it serves nobody."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from redis.asyncio import Redis
from valkey.asyncio import Valkey

from aiolocks import LeaseState, Lock, Redlock, Session
from aiolocks.testing import EmbeddedServer
from tests.conftest import Connect, OwnServer, Surroundings, clustered
from tests.support.clients import with_own_connections
from tests.support.clusters import Cluster
from tests.support.waiting import eventually

NAME = "the-client"
MAKERS: dict[str, Callable[[EmbeddedServer], Any]] = {
    "redis-py": lambda server: Redis.from_url(server.url, client_name=NAME),
    "redis-py, resp3": lambda server: Redis.from_url(server.url, client_name=NAME, protocol=3),
    "own connections": lambda server: with_own_connections(Redis.from_url(server.url, client_name=NAME)),
    "valkey-py": lambda server: Valkey.from_url(server.url, client_name=NAME),
}
LASTS = 1.2
"""Seconds: two looks whether a connection may be closed."""


@pytest.fixture
async def server(own_server: OwnServer) -> EmbeddedServer:
    return await own_server(port=0)


async def connections(redis: Redis) -> int:
    """Those of the client, and of its session, to the server that this one leads to."""
    return sum(one["name"] == NAME for one in await redis.client_list())


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
async def test_it_goes_with_the_client_and_comes_again(
    server: EmbeddedServer, connect: Connect, make: Callable[[EmbeddedServer], Any]
) -> None:
    watcher, client = connect(server), make(server)
    session = Session.of(client)
    try:
        for _ in range(3):
            async with Lock(client, "a"):
                await client.ping()
                assert await connections(watcher) >= 2
            await client.aclose()
            assert await gone(watcher)
        assert Session.of(client) is session
        async with client:
            await Lock(session, "a").locked()
        assert await gone(watcher)
    finally:
        await session.aclose()
        await client.aclose()


async def gone(redis: Redis) -> bool:
    async def none() -> bool:
        return await connections(redis) == 0

    return await eventually(none)


@pytest.mark.more  # as a later use, which keeps it
async def test_it_stays_for_what_is_held_until_that_is_released(
    server: EmbeddedServer, connect: Connect
) -> None:
    watcher, client = connect(server), connect(server, client_name=NAME)
    lease = await Lock(client, "a", ttl=0.3).acquire()
    await client.aclose()
    await client.aclose()
    await asyncio.sleep(LASTS)
    assert await connections(watcher) == 1
    assert lease.state is LeaseState.HELD
    assert await lease.owned()

    await lease.release()
    assert await gone(watcher)


@pytest.mark.more  # as one that something is held of
async def test_it_stays_for_who_waits_and_who_waits_is_woken(
    server: EmbeddedServer, connect: Connect
) -> None:
    watcher, holder, client = connect(server), connect(server), connect(server, client_name=NAME)
    lease = await Lock(holder, "a").acquire()
    waiting = asyncio.create_task(Lock(client, "a").acquire())
    await eventually(lambda: Session.of(client).statistics().waiters == 1)
    await client.aclose()
    await asyncio.sleep(LASTS)
    await lease.release()
    await (await asyncio.wait_for(waiting, 5)).release()
    await holder.aclose()
    assert await gone(watcher)


@pytest.mark.more  # as a session that something is held of
async def test_a_session_of_the_users_own_stays(server: EmbeddedServer, connect: Connect) -> None:
    """Its owner closes it."""
    watcher, client = connect(server), connect(server, client_name=NAME)
    async with Session(client) as session:
        async with Lock(session, "a"), Lock(client, "b"):
            pass
        await client.aclose()
        await asyncio.sleep(LASTS)
        assert await connections(watcher) == 1
    assert await gone(watcher)


async def test_a_later_use_keeps_its_connection(server: EmbeddedServer, connect: Connect) -> None:
    """Until the next `aclose`."""
    watcher, client = connect(server), connect(server, client_name=NAME)
    async with Lock(client, "a"):
        pass
    await client.aclose()
    assert await gone(watcher)
    assert not await Lock(client, "a").locked()
    await asyncio.sleep(LASTS)
    assert await connections(watcher) == 1


async def test_the_clients_own_aclose_is_called_as_it_was(server: EmbeddedServer, connect: Connect) -> None:
    class Own(Redis):
        closed: tuple[Any, ...] = ()

        async def aclose(self, *args: Any, **options: Any) -> None:
            self.closed = (args, options)
            await super().aclose(*args, **options)
            raise OSError("by the client")

    watcher, client = connect(server), Own.from_url(server.url, client_name=NAME)
    async with Lock(client, "a"):
        pass
    with pytest.raises(OSError, match="by the client"):
        await client.aclose(close_connection_pool=True)
    assert client.closed == ((), {"close_connection_pool": True})
    assert await gone(watcher)
    await Session.of(client).aclose()


async def test_of_a_redlock_it_goes_too(own_server: OwnServer, connect: Connect) -> None:
    servers = [await own_server(port=0) for _ in range(3)]
    clients = [connect(server, client_name=NAME) for server in servers]
    watchers = [connect(server) for server in servers]
    async with Redlock(clients, "a"):
        pass
    for client in clients:
        await client.aclose()
    for watcher in watchers:
        assert await gone(watcher)
    async with Redlock(clients, "a"):
        pass


async def test_of_a_cluster_it_goes_from_each_node(cluster: Cluster, surroundings: Surroundings) -> None:
    def there() -> int:
        """Connections that are used by scripts."""
        listed = [str(node.do("CLIENT", "LIST")) for node in cluster.masters]
        return sum(text.count("cmd=evalsha") + text.count("cmd=eval ") for text in listed)

    client = clustered(surroundings, cluster)
    for _ in range(2):
        for number in range(12):
            async with Lock(client, f"n{number}"):
                pass
        assert there() >= 3
        await client.aclose()
        await eventually(lambda: there() == 0)
