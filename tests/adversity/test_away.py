"""Servers that are not there: who is told at once, who goes on trying, and what the log says of it."""

from __future__ import annotations

import asyncio
import logging
import re
import traceback
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Any

import pytest
from redis.asyncio import Redis, RedisCluster
from redis.asyncio.cluster import ClusterNode
from redis.exceptions import ConnectionError as RedisConnectionError

from aiolocks import (
    BackendError,
    Backoff,
    FencedRegister,
    Lock,
    Redlock,
    Semaphore,
    Session,
    Turnstile,
    UniqueJob,
)
from aiolocks.contrib.redis_py import Lock as RedisPyLock
from aiolocks.transport.keys import key
from tests.adversity.tools import (
    ACQUIRE,
    SLACK,
    deafen,
    elapsed,
    rejected,
    warm,
    with_own_connections,
)
from tests.conftest import PREFIX, Connect, OwnServer, Surroundings, clustered
from tests.support.clusters import Cluster
from tests.support.proxy import Proxy
from tests.support.servers import ServerKind
from tests.support.thinning import only
from tests.support.waiting import eventually

AT_ONCE = 2 * SLACK
"""Seconds: far less than `command_timeout`."""

SINGLE: dict[str, Callable[[Session], Awaitable[Any]]] = {
    "try_acquire": lambda session: Lock(session, "a").try_acquire(),
    "acquire": lambda session: Lock(session, "a").acquire(blocking_timeout=0),
    "locked": lambda session: Lock(session, "a").locked(),
    "inspect": lambda session: session.inspect(),
    "force_release": lambda session: session.force_release("a"),
    "available": lambda session: Semaphore(session, "a", 3).available(),
    "resize": lambda session: Semaphore(session, "a", 3).resize(4),
    "enqueue": lambda session: UniqueJob(session, "a").enqueue("until_executed"),
    "enter": lambda session: Turnstile(session, "a").enter(),
    "read": lambda session: FencedRegister(session, "a").read(),
}


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Of the transport, so far."""
    return [
        record.getMessage()
        for record in caplog.records
        if record.name == "aiolocks.transport" and record.levelno >= logging.WARNING
    ]


def attempts(caplog: pytest.LogCaptureFixture) -> int:
    """Attempts to connect that have failed so far."""
    return sum(record.getMessage().startswith("connecting:") for record in caplog.records)


# -- who is told at once -------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("connected", only([True, False], False), ids=["connected before", "never connected"])
async def test_single_requests_are_told_at_once(
    own_server: OwnServer, connect: Connect, form: str, connected: bool
) -> None:
    server = await own_server()
    client = connect(server)
    if form == "own connections":
        with_own_connections(client)
    async with Session(client) as session:
        if connected:
            lease = await Lock(session, "held").acquire()
        server.kill()
        for _ in range(2):
            for name, ask in SINGLE.items():
                with elapsed() as took:
                    error = await rejected(ask(session))
                assert took.seconds < AT_ONCE, name
                assert "cannot be reached" in str(error)
        if connected:
            with elapsed() as took:
                await rejected(lease.owned())
            assert took.seconds < AT_ONCE


async def test_a_single_try_with_the_interface_of_redis_py_is_told_at_once(
    own_server: OwnServer, connect: Connect
) -> None:
    server = await own_server()
    client = connect(server)
    await client.ping()
    server.kill()
    for ask in (
        lambda: RedisPyLock(client, "a").acquire(blocking=False),
        lambda: RedisPyLock(client, "a", blocking=False).acquire(),
    ):
        with elapsed() as took, pytest.raises(RedisConnectionError):
            await ask()
        assert took.seconds < AT_ONCE


async def test_a_single_try_whose_connection_breaks_tries_to_connect_again(
    connect: Connect, through: Proxy, form: str
) -> None:
    """That its connection broke does not say that the server is away."""
    client = connect(through)
    if form == "own connections":
        with_own_connections(client)
    await warm(client)
    lost = through.reset_after(ACQUIRE)
    async with Lock(client, "a").try_acquire() as lease:
        assert lost.is_set()
        assert lease is not None


@pytest.mark.more  # as an outage, counted
async def test_a_server_that_was_away_a_moment_ago_is_asked_twenty_times_a_second_at_most(
    own_server: OwnServer, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, logger="aiolocks.transport")
    server = await own_server()
    async with Session(connect(server)) as session:
        await warm(session)
        server.kill()
        waiting = asyncio.create_task(Lock(session, "b").acquire(blocking_timeout=30))
        await eventually(lambda: attempts(caplog) >= 7)  # half a second apart by now
        before = attempts(caplog)
        with elapsed() as took:
            for _ in range(10):
                await asyncio.gather(*(rejected(Lock(session, "a").try_acquire()) for _ in range(20)))
        assert 10 <= attempts(caplog) - before <= took.seconds / 0.05 + 2
        await server.start()
        await (await waiting).release()
        assert await Lock(session, "a").locked() is False


@pytest.mark.more  # as a single request to one server
async def test_a_single_try_at_a_node_that_is_away_is_told_at_once(
    surroundings: Surroundings, server_kind: ServerKind
) -> None:
    if server_kind.executable is None:
        pytest.skip(f"not with {server_kind}: it kills its servers")
    with Cluster(server_kind.executable) as cluster:
        dead = cluster.masters[1]
        names = [f"a{number}" for number in range(30)]
        there = [name for name in names if cluster.owner_of(key(PREFIX, "lock", name)) is dead]
        async with Session(clustered(surroundings, cluster)) as session:
            for name in names:
                await (await Lock(session, name).acquire()).release()
            dead.server.kill()
            for name in there[:3]:  # before the others take the whole cluster for down
                await _told_at_once(session, name)
            for node in (cluster.masters[0], cluster.masters[2]):
                node.server.kill()
            for name in names[:3]:
                await _told_at_once(session, name)
        async with Session(clustered(surroundings, cluster)) as session:  # which has no table
            await _told_at_once(session, "a")


async def _told_at_once(session: Session, name: str) -> None:
    """After an attempt to connect, and after the table of the cluster was asked for."""
    with elapsed() as took:
        error = await rejected(Lock(session, name).try_acquire())
    assert took.seconds < 1.0 + AT_ONCE
    assert "cannot be reached" in str(error)


async def test_a_single_try_without_a_majority_is_told_at_once(own_server: OwnServer) -> None:
    servers = [await own_server() for _ in range(3)]
    lock = Redlock([server.client() for server in servers], "a")
    await (await lock.acquire()).release()
    for server in servers[:2]:
        server.kill()
    for _ in range(3):
        with elapsed() as took:
            error = await rejected(lock.try_acquire())
        assert took.seconds < AT_ONCE
        assert str(error).count("unreachable") == 2
    for server in servers[:2]:
        await server.start()
    await eventually(lambda: _can_be_had(lock))
    await Session.of(lock._sources[0]).aclose()


async def _can_be_had(lock: Redlock) -> bool:
    try:
        async with lock.try_acquire() as lease:
            return lease is not None
    except Exception:
        return False


# -- who goes on trying --------------------------------------------------------------------------------------


async def test_what_is_held_and_who_waits_goes_on_trying(own_server: OwnServer, connect: Connect) -> None:
    server = await own_server(arguments=("--appendonly", "yes", "--appendfsync", "always"))
    async with Session(connect(server), backoff=Backoff(maximum=0.02)) as session:
        lock = Lock(session, "a", ttl=10)
        lease, other = await lock.acquire(), await Lock(session, "b", ttl=10).acquire()
        handle = other.detach()
        server.kill()
        going_on = [
            asyncio.create_task(lease.extend(20)),
            asyncio.create_task(Lock(session, "b").adopt(handle)),
            asyncio.create_task(Lock(session, "c").acquire(blocking_timeout=5)),
        ]
        await asyncio.sleep(0.3)
        await rejected(Lock(session, "c").try_acquire())
        assert not any(task.done() for task in going_on)
        await server.start()
        _, adopted, third = await asyncio.gather(*going_on)
        assert lease.remaining() > 15
        for held in (lease, adopted, third):
            await held.release()


# -- what the log says ---------------------------------------------------------------------------------------


async def test_an_outage_is_two_warnings(
    own_server: OwnServer, connect: Connect, form: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, logger="aiolocks.transport")
    server = await own_server(port=0)
    client = connect(server)
    if form == "own connections":
        with_own_connections(client)
    async with Session(client) as session:
        await warm(session)
        assert warnings(caplog) == []
        server.kill()
        waiting = [asyncio.create_task(Lock(session, f"a{number}").acquire()) for number in range(5)]
        await asyncio.sleep(1.0)
        for _ in range(5):
            await rejected(Lock(session, "b").try_acquire())
        (away,) = warnings(caplog)
        address = rf"Redis at 127\.0\.0\.1:{server.port}"
        assert re.fullmatch(
            rf"{address} is away since \d\d(:\d\d)+: .*connect.*\. Until it is back, .*", away
        )
        if form != "own connections":
            assert attempts(caplog) >= 5
        await server.start()
        for lease in await asyncio.gather(*waiting):
            await lease.release()
        _, back = warnings(caplog)
        lasted = re.fullmatch(rf"Redis at 127\.0\.0\.1:{server.port} is back after (\d+\.\d) s", back)
        assert lasted is not None
        assert 0.9 <= float(lasted[1]) < 5


async def test_a_server_that_never_was_there_is_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    async with Redis(host="127.0.0.1", port=1, password="secret") as client, Session(client) as session:
        for _ in range(5):
            await rejected(Lock(session, "a").try_acquire())
        await rejected(Lock(session, "a").acquire(blocking_timeout=0.3))
    (away,) = warnings(caplog)
    assert away.startswith("Redis at 127.0.0.1:1 is away since ")


async def test_a_connection_that_is_made_again_at_once_is_no_outage(
    connect: Connect, through: Proxy, caplog: pytest.LogCaptureFixture
) -> None:
    client = connect(through)
    await warm(client)
    for _ in range(5):
        through.cut()
        async with Lock(client, "a"):
            pass
    assert warnings(caplog) == []


@pytest.mark.more  # as a server that is killed
async def test_a_silence_is_an_outage(
    connect: Connect, through: Proxy, caplog: pytest.LogCaptureFixture
) -> None:
    """After 2 s without any reply, although the next connection is made at the first attempt."""
    client = connect(through)
    await warm(client)
    deafen(through)
    async with Lock(client, "a").acquire(blocking_timeout=10):
        pass
    away, back = warnings(caplog)
    assert re.search(
        r"is away since \d\d:\d\d:\d\d: no reply for 2 s or more\. Until it is back, waiters wait", away
    )
    assert re.search(r"is back after 2\.\d s$", back)


@pytest.mark.more  # as an outage of one server
async def test_all_nodes_of_a_cluster_have_two_warnings(
    cluster: Cluster, surroundings: Surroundings, caplog: pytest.LogCaptureFixture
) -> None:
    """All are silent; the further ones are told at INFO."""
    caplog.set_level(logging.INFO, logger="aiolocks.transport")
    async with Session(clustered(surroundings, cluster)) as session:
        locks = [Lock(session, f"a{number}") for number in range(30)]
        await asyncio.gather(*(lock.locked() for lock in locks))
        for node in cluster.masters:
            node.do("CLIENT", "PAUSE", 3500)
        for lease in await asyncio.gather(*(lock.acquire(blocking_timeout=20) for lock in locks)):
            await lease.release()
        away, back = warnings(caplog)
        assert "is away since" in away
        assert away.startswith("Redis at 127.0.0.1:")
        assert re.match(r"all servers answer again after [2-6]\.\d s: Redis at 127\.0\.0\.1:", back)
        for node in cluster.masters:
            assert f":{node.port}" in back
        told = [record.getMessage() for record in caplog.records if record.levelno == logging.INFO]
        assert sum("is away since" in one for one in told) == 2


@pytest.mark.more  # as an outage of one server
async def test_a_cluster_that_never_was_there_is_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    client = RedisCluster(startup_nodes=[ClusterNode("127.0.0.1", 1)])
    async with aclosing(client), Session(client) as session:  # entered, the client would connect itself
        for _ in range(5):
            await rejected(Lock(session, "a").acquire(blocking_timeout=0.3))
    (away,) = warnings(caplog)
    assert away.startswith("the cluster is away since ")


@pytest.mark.more  # as an outage of one server
async def test_each_master_has_its_own_outage(
    own_server: OwnServer, caplog: pytest.LogCaptureFixture
) -> None:
    servers = [await own_server(port=0) for _ in range(3)]
    lock = Redlock([server.client() for server in servers], "a", ttl=5)
    await (await lock.acquire()).release()
    servers[1].kill()
    for _ in range(3):
        await (await lock.acquire()).release()
    (away,) = warnings(caplog)
    assert f"127.0.0.1:{servers[1].port} is away" in away
    await Session.of(lock._sources[0]).aclose()


async def test_a_refused_connection_is_one_traceback() -> None:
    async with Redis(port=1) as redis:
        with pytest.raises(BackendError, match="cannot be reached") as caught:
            await Lock(redis, "a").try_acquire()
    printed = "".join(traceback.format_exception(caught.value))
    assert printed.count("Traceback (most recent call last)") == 1
    assert isinstance(caught.value.__cause__, RedisConnectionError)
    assert "Connect call failed" in printed.splitlines()[0], "the error of the client stands above it"
