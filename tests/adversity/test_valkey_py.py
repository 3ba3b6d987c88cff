"""Clients of valkey-py serve as those of redis-py do, and their users find its errors."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest
from valkey.asyncio import BlockingConnectionPool, ConnectionPool, Valkey, ValkeyCluster
from valkey.exceptions import AuthenticationError, NoPermissionError
from valkey.exceptions import ConnectionError as ValkeyConnectionError

from aiolocks import (
    BackendError,
    FairLock,
    FencedRegister,
    Leadership,
    Limits,
    Lock,
    MultiLock,
    RangeLock,
    Redlock,
    ReentrantLock,
    RWLock,
    Schedule,
    Semaphore,
    Session,
    SingleFlight,
    Turnstile,
    UniqueJob,
)
from aiolocks.testing import EmbeddedServer
from tests.adversity.test_clients import live
from tests.conftest import OwnServer, Surroundings
from tests.support.clients import own_class, with_own_connections
from tests.support.clusters import Cluster
from tests.support.servers import Server
from tests.support.thinning import only

MAKERS: dict[str, Callable[[EmbeddedServer], Any]] = {
    "bare": lambda server: Valkey(host="127.0.0.1", port=server.port),
    "unix socket": lambda server: Valkey(unix_socket_path=str(server.path)),
    "pool of one": lambda server: Valkey.from_pool(ConnectionPool.from_url(server.url, max_connections=1)),
    "blocking pool": lambda server: Valkey.from_pool(BlockingConnectionPool.from_url(server.url)),
    "text, resp3": lambda server: Valkey.from_url(server.url, decode_responses=True, protocol=3),
    "with a cache": lambda server: Valkey.from_url(server.url, protocol=3, cache_enabled=True),
    "own connections": lambda server: with_own_connections(Valkey.from_url(server.url)),
}


@pytest.fixture
def use(surroundings: Surroundings) -> Callable[[Any], Any]:
    """Closes a client behind the test, and its default session before it."""

    def use(client: Any) -> Any:
        async def close() -> None:
            await Session.of(client).aclose()
            await client.aclose()

        surroundings.resources.push_async_callback(close)
        return client

    return use


@pytest.mark.more  # as those of redis-py, with the transport of valkey-py
async def test_clients_of_any_sort(own_server: OwnServer, use: Any) -> None:
    server = await own_server(port=0)
    await asyncio.gather(*(live(use(make(server)), name) for name, make in MAKERS.items()))


async def every_kind(client: Any) -> None:
    async with Session(client) as session:
        locks: list[Any] = [
            Lock(session, "a"),
            FairLock(session, "b"),
            ReentrantLock(session, "c"),
            MultiLock(session, ["d", "e"]),
            Semaphore(session, "f", 2),
            Limits(session, "g", {"all": 2, "one": 1}),
            RWLock(session, "h").reader,
            RangeLock(session, "i").writer(1, 2),
        ]
        for lock in locks:
            async with lock as lease:
                assert await lease.owned()
                await lease.extend(5)
        assert await SingleFlight(session).do("j", answer) == 42
        async with UniqueJob(session, "k").run():
            pass
        assert await Turnstile(session, "l", window=0.05).enter() == 1
        register = FencedRegister(session, "m")
        await register.write("value", 7)
        async with Leadership(session, "n") as term:
            assert term.fencing_token
        assert await Schedule(session, "o", every=3600).history() == []
        async with Lock(session, "p"):
            assert "p" in {info.name for info in await session.inspect()}
        assert not await Lock(session, "p").locked()


async def answer() -> int:
    return 42


@pytest.mark.leaves_keys("aiolocks:fenced*", "*")
async def test_every_kind(server: Server, use: Any) -> None:
    await every_kind(use(Valkey.from_url(server.url)))


@pytest.mark.leaves_keys("aiolocks:fenced*", "*")
async def test_every_kind_on_a_cluster(cluster: Cluster, use: Any) -> None:
    node = cluster.masters[0]
    await every_kind(use(ValkeyCluster(host="127.0.0.1", port=node.port)))


async def test_a_cluster_over_connections_of_the_users_own(cluster: Cluster, use: Any) -> None:
    client = use(ValkeyCluster(host="127.0.0.1", port=cluster.masters[0].port))
    await client.initialize()
    for node in client.get_nodes():
        node.connection_class = own_class(node.connection_class)
    async with Lock(client, "a") as lease, Lock(client, "b"):
        assert await lease.owned()
        assert {info.name for info in await Session.of(client).inspect()} == {"a", "b"}


async def test_several_masters(use: Any, own_server: OwnServer) -> None:
    servers = [await own_server(port=0) for _ in range(3)]
    clients = [use(Valkey.from_url(server.url)) for server in servers]
    async with AsyncExitStack() as stack:
        sessions = [await stack.enter_async_context(Session(client)) for client in clients]
        async with Redlock(sessions, "a") as lease:
            assert await lease.owned()


@pytest.mark.parametrize("own", only([False, True], False), ids=["driven", "own connections"])
async def test_the_cause_is_an_error_of_valkey_py(use: Any, own_server: OwnServer, own: bool) -> None:
    server = await own_server(port=0, arguments=("--requirepass", "right"))

    def client(**kwargs: Any) -> Any:
        made = use(Valkey(host="127.0.0.1", port=server.port, **kwargs))
        return with_own_connections(made) if own else made

    async def cause(client: Any) -> BaseException | None:
        with pytest.raises(BackendError) as caught:
            await Lock(client, "a").acquire(blocking_timeout=2)
        return caught.value.__cause__

    admin = client(password="right")
    await admin.execute_command("ACL", "SETUSER", "reader", "on", ">pass", "~*", "&*", "+@all", "-evalsha")
    refusal = await cause(client())
    if "unauthenticated multibulk length" not in str(refusal):  # as Redis 7.0 answers long requests
        assert isinstance(refusal, AuthenticationError)
    assert isinstance(await cause(client(password="wrong")), AuthenticationError)
    assert isinstance(await cause(client(username="reader", password="pass")), NoPermissionError)
    async with Lock(admin, "a"):
        pass
    server.kill()
    with pytest.raises(BackendError) as caught:
        await Lock(admin, "a").try_acquire()
    assert isinstance(caught.value.__cause__, ValkeyConnectionError)
