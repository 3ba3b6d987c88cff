"""Every sort of client, and what becomes of locks when clients and sessions are closed.

T-N-10 and T-C-13 of `tests/FAULTS.md`.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import trustme
from redis import CredentialProvider
from redis.asyncio import BlockingConnectionPool, ConnectionPool, Redis, RedisCluster
from redis.asyncio.connection import SSLConnection
from redis.asyncio.sentinel import Sentinel

from aiolocks import (
    FencedRegister,
    Leadership,
    Lease,
    LeaseState,
    Lock,
    LockError,
    LockLostError,
    LockNotOwnedError,
    LockTimeoutError,
    Session,
    SessionClosedError,
    Term,
)
from aiolocks.testing import EmbeddedServer
from tests.adversity.tools import (
    SLACK,
    Formed,
    Keys,
    elapsed,
    rejected,
    renewed,
    warm,
    with_own_connections,
)
from tests.conftest import Connect, OwnServer
from tests.support.clusters import Cluster
from tests.support.proxy import Proxy
from tests.support.servers import Server
from tests.support.waiting import eventually

LIFE = 1.5
"""Seconds of a ttl, in which a busy machine connects, with all handshakes, and has an answer."""


async def live(client: Redis, name: str = "a") -> None:
    """Everything that a lock can do, between two sessions of one client."""
    async with Session(client) as elsewhere:
        lock = Lock(client, name, ttl=LIFE)
        other = Lock(elsewhere, name, ttl=LIFE)
        async with lock as lease:
            assert await lock.locked()
            assert await lease.owned()
            assert await other.try_acquire() is None
            with pytest.raises(LockTimeoutError):
                await other.acquire(blocking_timeout=0.2)
            waiting = asyncio.create_task(other.acquire(blocking_timeout=20))
            await renewed(lease)
            assert lease.state is LeaseState.HELD
            await lease.extend(1)
        next_lease = await waiting
        assert next_lease.fencing_token > lease.fencing_token
        adopted = await lock.adopt(next_lease.detach())
        assert adopted.fencing_token == next_lease.fencing_token
        await adopted.release()
        assert not await other.locked()


@asynccontextmanager
async def closed_at_the_end(client: Redis) -> AsyncIterator[Redis]:
    try:
        yield client
    finally:
        await Session.of(client).aclose()
        await client.aclose()


# -- ways to make a client -----------------------------------------------------------------------------------

MAKERS: dict[str, Callable[[EmbeddedServer], Redis]] = {
    "bare": lambda server: Redis(host="127.0.0.1", port=server.port),
    "url": lambda server: Redis.from_url(server.url),
    "unix socket": lambda server: Redis(unix_socket_path=str(server.path)),
    "unix url": lambda server: Redis.from_url(f"unix://{server.path}"),
    "pool": lambda server: Redis.from_pool(ConnectionPool.from_url(server.url)),
    "pool of one": lambda server: Redis.from_pool(ConnectionPool.from_url(server.url, max_connections=1)),
    "blocking pool of one": lambda server: Redis.from_pool(
        BlockingConnectionPool.from_url(server.url, max_connections=1, timeout=5)
    ),
    "own connection": lambda server: Redis.from_url(server.url, single_connection_client=True),
    "database 3": lambda server: Redis(host="127.0.0.1", port=server.port, db=3),
    "named": lambda server: Redis.from_url(server.url, client_name="ours"),
    "health checks": lambda server: Redis.from_url(server.url, health_check_interval=1),
    "latin": lambda server: Redis.from_url(server.url, encoding="latin-1", decode_responses=True),
    "keepalive": lambda server: Redis.from_url(server.url, socket_keepalive=True),
    "legacy resp2": lambda server: Redis.from_url(server.url, protocol=2),
    "without names": lambda server: Redis.from_url(server.url, lib_name=None, lib_version=None),
    "own connection class": lambda server: with_own_connections(Redis.from_url(server.url)),
    "own connection class, blocking pool of one": lambda server: with_own_connections(
        Redis.from_pool(BlockingConnectionPool.from_url(server.url, max_connections=1, timeout=5))
    ),
    "own connection class, database 3": lambda server: with_own_connections(
        Redis(host="127.0.0.1", port=server.port, db=3, decode_responses=True, protocol=3)
    ),
}


@pytest.mark.filterwarnings("ignore:.*lib_(name|version).*:DeprecationWarning")
@pytest.mark.parametrize("transport", ["multiplexed", "plain"])
async def test_t_n_10_client_of_any_sort(own_server: OwnServer, keys: Keys, transport: str) -> None:
    server = await own_server(port=0)

    async def use(maker: str) -> None:
        async with closed_at_the_end(MAKERS[maker](server)) as client:
            await live(client, maker)
            async with Lock(client, maker), server.client(db=3 if "database 3" in maker else 0) as looking:
                found = await looking.keys(f"*{{{maker}}}")  # and the card of a waiter, for 2 s
                assert len([key for key in found if b".card:" not in key]) == 2
                if maker == "named":
                    names = [one["name"] for one in await looking.client_list()]
                    assert "ours" in names

    makers = [maker for maker in MAKERS if ("own connection class" in maker) == (transport == "plain")]
    await asyncio.gather(*map(use, makers))
    assert keys(server) == []


async def test_t_n_10_sessions_speak_resp3_whatever_the_client_speaks(
    own_server: OwnServer, connect: Connect
) -> None:
    server = await own_server()
    client = connect(server, protocol=2, client_name="ours")
    await warm(client)
    ours = [one for one in await connect(server).client_list() if one["name"] == "ours"]
    assert [one.get("resp", "3") for one in ours] == ["3"]  # 6.2 does not tell


@pytest.mark.more  # as a client of any sort
async def test_t_n_10_pool_of_the_users_own_class(own_server: OwnServer) -> None:
    server = await own_server(port=0)

    class Pool(ConnectionPool):
        async def get_connection(self, *args: Any, **kwargs: Any) -> Any:
            raise AssertionError("the user's connections are the user's")

    async with closed_at_the_end(Redis.from_pool(Pool.from_url(server.url))) as client:
        await live(client)


async def test_t_n_10_many_tasks_share_a_small_pool_over_the_plain_transport(
    own_server: OwnServer, keys: Keys
) -> None:
    server = await own_server()
    made = Redis.from_pool(ConnectionPool.from_url(server.url, max_connections=2))
    async with closed_at_the_end(with_own_connections(made)) as client:

        async def work(number: int) -> None:
            for _ in range(5):
                async with Lock(client, f"a{number}", ttl=5, blocking_timeout=5):
                    pass

        await asyncio.gather(*map(work, range(20)))
    assert keys(server) == []


async def test_t_n_10_connection_set_up_by_the_user(connect: Connect, redis: Redis) -> None:
    """A `redis_connect_func` is called for the session's connection as for every other."""
    calls = 0

    async def set_up(connection: Any) -> None:
        nonlocal calls
        calls += 1
        await connection.on_connect()

    client = connect(redis_connect_func=set_up)
    async with Lock(client, "a"):
        assert calls == 1


async def test_t_n_10_fakeredis(caplog: pytest.LogCaptureFixture) -> None:
    """Not supported, but the serial transport serves it: its connections have no stream to be driven."""
    fakeredis = pytest.importorskip("fakeredis")

    async def use(**settings: Any) -> None:
        async with closed_at_the_end(fakeredis.FakeAsyncRedis(**settings)) as client:
            await live(client)
            names = map(_bytes, await client.keys())
            assert [name for name in names if b"fence" not in name and b".card:" not in name] == []

    await asyncio.gather(use(), use(decode_responses=True), use(version=6))
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def _bytes(value: bytes | str) -> bytes:
    return value if isinstance(value, bytes) else value.encode()


# -- credentials ---------------------------------------------------------------------------------------------


async def test_t_n_10_password_and_user(own_server: OwnServer, connect: Connect, form: str) -> None:
    server = await own_server(arguments=("--requirepass", "secret"))
    admin = connect(server, password="secret")
    await admin.acl_setuser(
        "worker", enabled=True, passwords=["+word"], commands=["+@all"], keys=["*"], channels=["*"]
    )
    clients = [
        connect(server, protocol=protocol, **credentials)
        for credentials in ({"password": "secret"}, {"username": "worker", "password": "word"})
        for protocol in (2, 3)
    ]
    if form == "own connections":
        clients = [with_own_connections(client) for client in clients]
    await asyncio.gather(*(live(client, f"a{number}") for number, client in enumerate(clients)))


async def test_t_n_10_credentials_that_rotate(own_server: OwnServer, connect: Connect) -> None:
    """A provider is asked again for each connection."""
    server = await own_server(arguments=("--requirepass", "first"))

    class Rotating(CredentialProvider):
        password = "first"

        def get_credentials(self) -> tuple[str]:
            return (self.password,)

    rotating = Rotating()
    client = connect(server, credential_provider=rotating)
    async with Lock(client, "a", ttl=2) as lease:
        async with server.client(password="first") as admin:
            await admin.config_set("requirepass", "second")
            rotating.password = "second"
            await admin.execute_command("CLIENT", "KILL", "TYPE", "normal")
            await admin.config_set("requirepass", "first")  # for the look around behind the test
            rotating.password = "first"
        await renewed(lease)
        assert lease.state is LeaseState.HELD


MINIMAL = (
    "on >word ~aiolocks:* -@all +evalsha +eval +get +set +del +exists +pexpire +pttl +time "
    "+zadd +zcard +zrange +zrem +client|tracking +client|caching"
)


@pytest.mark.parametrize("protocol", [2, 3])
async def test_t_n_10_user_with_the_minimal_permissions(
    connect: Connect, redis: Redis, form: str, server: Server, protocol: int, caplog: pytest.LogCaptureFixture
) -> None:
    await redis.execute_command("ACL", "SETUSER", "modest", "reset", *MINIMAL.split())
    client = connect(username="modest", password="word", protocol=protocol)
    if form == "own connections":
        with_own_connections(client)
    await live(client)
    await redis.script_flush()
    await warm(client)
    await redis.execute_command("CLIENT", "KILL", "USER", "modest")
    await warm(client)
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
    await Session.of(client).aclose()
    await redis.acl_deluser("modest")


# -- TLS -----------------------------------------------------------------------------------------------------


class OwnTls(SSLConnection):
    async def _connect(self) -> None:
        await super()._connect()


@asynccontextmanager
async def tls_front(
    server: EmbeddedServer,
    authority: trustme.CA,
    name: str,
    *,
    port: int = 0,
    until: datetime | None = None,
    rate: float | None = None,
    seen: list[int] | None = None,
) -> AsyncIterator[int]:
    """A port that speaks TLS, with a certificate for that name, and leads to the server.

    `rate`: bytes a second that it takes from each client. `seen`: how many it has taken, for each connection.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(name, not_after=until).configure_cert(context)
    pumping: set[asyncio.Task[None]] = set()
    writers: list[asyncio.StreamWriter] = []

    async def pump(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int | None = None
    ) -> None:
        with suppress(OSError, ssl.SSLError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
                if number is not None and seen is not None:
                    seen[number] += len(data)
                if number is not None and rate is not None:
                    await asyncio.sleep(len(data) / rate)
        writer.close()
        with suppress(OSError, ssl.SSLError):
            await writer.wait_closed()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there_reader, there_writer = await asyncio.open_unix_connection(str(server.path))
        writers.extend((writer, there_writer))
        number = 0 if seen is None else len(seen)
        if seen is not None:
            seen.append(0)
        for pumped in (pump(reader, there_writer, number), pump(there_reader, writer)):
            task = asyncio.create_task(pumped)
            pumping.add(task)
            task.add_done_callback(pumping.discard)

    front = await asyncio.start_server(accept, "127.0.0.1", port, ssl=context)
    try:
        yield front.sockets[0].getsockname()[1]
    finally:
        front.close()
        for task in pumping:
            task.cancel()
        for writer in writers:
            writer.transport.abort()
        if pumping:
            await asyncio.wait(pumping)


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def trusted(authority: trustme.CA, tmp_path: Path) -> str:
    path = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(str(path))
    return str(path)


@pytest.mark.parametrize("transport", ["multiplexed", "plain"])
async def test_t_n_10_tls(
    own_server: OwnServer, authority: trustme.CA, trusted: str, keys: Keys, transport: str
) -> None:
    server = await own_server()
    async with (
        tls_front(server, authority, "127.0.0.1") as port,
        closed_at_the_end(
            Redis(host="127.0.0.1", port=port, ssl=True, ssl_ca_certs=trusted, ssl_check_hostname=True)
        ) as client,
    ):
        if transport == "plain":
            client.connection_pool.connection_class = OwnTls
        await live(client)

        async def cycle(number: int) -> None:
            async with Lock(client, f"a{number}", ttl=20) as lease:
                assert await lease.owned()

        await asyncio.gather(*map(cycle, range(20)))  # without pipelining, each has a handshake of its own
        # A connection that breaks is made again, with all its handshakes.
        async with server.client() as admin, Lock(client, "b", ttl=10) as lease:
            await admin.execute_command("CLIENT", "KILL", "TYPE", "normal")
            assert await lease.owned()
    assert keys(server) == []


@pytest.mark.parametrize("transport", ["multiplexed", "plain"])
@pytest.mark.parametrize("wrong", ["authority", "host"])
async def test_t_n_10_tls_that_cannot_be_trusted_is_told_promptly(
    own_server: OwnServer, authority: trustme.CA, trusted: str, wrong: str, transport: str
) -> None:
    server = await own_server()
    signing = trustme.CA() if wrong == "authority" else authority
    name = "127.0.0.1" if wrong == "authority" else "elsewhere.example"
    async with (
        tls_front(server, signing, name) as port,
        closed_at_the_end(
            Redis(host="127.0.0.1", port=port, ssl=True, ssl_ca_certs=trusted, ssl_check_hostname=True)
        ) as client,
    ):
        if transport == "plain":
            client.connection_pool.connection_class = OwnTls
        for ask in (Lock(client, "a", blocking_timeout=20).acquire, Lock(client, "a").try_acquire):
            with elapsed() as took:
                error = await rejected(ask())
            assert (
                took.seconds < 4
            )  # nobody waits for another certificate; a busy machine computes for a while
            assert "certificate verify failed" in str(error).lower()
            assert ("mismatch" in str(error).lower()) == (wrong == "host")
            assert isinstance(error.__cause__, Exception)


async def test_t_n_10_a_certificate_that_expires_while_it_runs(
    own_server: OwnServer, authority: trustme.CA, trusted: str, keys: Keys
) -> None:
    """A waiter is told at once that a person must act; what goes on by itself goes on."""
    server, yesterday = await own_server(), datetime.now(UTC) - timedelta(days=1)
    led = asyncio.Event()

    async def main(_: Term) -> None:
        led.set()
        await asyncio.sleep(60)

    async with AsyncExitStack() as stack:
        valid = await stack.enter_async_context(AsyncExitStack())
        port = await valid.enter_async_context(tls_front(server, authority, "127.0.0.1"))
        client = await stack.enter_async_context(
            closed_at_the_end(Redis(host="127.0.0.1", port=port, ssl=True, ssl_ca_certs=trusted))
        )
        session = await stack.enter_async_context(Session(client))
        assert await session.healthy()
        admin = await stack.enter_async_context(server.client())
        elsewhere = await stack.enter_async_context(Session(admin))
        running = asyncio.create_task(Leadership(elsewhere, "n", ttl=2).run(main))
        await asyncio.wait_for(led.wait(), 5)
        led.clear()
        candidate = asyncio.create_task(Leadership(session, "n", ttl=2).run(main))
        async with Lock(elsewhere, "b", ttl=60):
            waiting = asyncio.create_task(Lock(session, "b").acquire())
            await eventually(lambda: session.statistics().waiters == 2, within=5)
            await valid.aclose()
            async with tls_front(server, authority, "127.0.0.1", port=port, until=yesterday):
                with elapsed() as took:
                    error = await rejected(waiting)
                assert took.seconds < 4
                assert "certificate has expired" in str(error)
                assert error.transient is False
                assert (await rejected(Lock(session, "c").try_acquire())).transient is False
        async with tls_front(server, authority, "127.0.0.1", port=port):
            running.cancel()
            await asyncio.wait_for(led.wait(), 10)
            candidate.cancel()
            await asyncio.wait([running, candidate])
            await session.aclose()
    assert keys(server) == []


@pytest.mark.more  # as in a cluster
@pytest.mark.parametrize("transport", ["multiplexed", "plain"])
async def test_t_n_10_tls_on_one_side_only_is_told_at_once(
    own_server: OwnServer, authority: trustme.CA, trusted: str, transport: str
) -> None:
    server = await own_server(port=0)
    async with (
        tls_front(server, authority, "127.0.0.1") as port,
        closed_at_the_end(Redis(host="127.0.0.1", port=port)) as plain,
        closed_at_the_end(
            Redis(host="127.0.0.1", port=server.port, ssl=True, ssl_ca_certs=trusted)
        ) as encrypted,
    ):
        if transport == "plain":
            with_own_connections(plain)
            encrypted.connection_pool.connection_class = OwnTls
        for client, said in (
            (plain, f"127.0.0.1:{port} speaks TLS, and this client does not: use rediss:// or ssl=True"),
            (encrypted, f"127.0.0.1:{server.port} does not speak TLS, and this client does: use redis://"),
        ):
            lock = Lock(client, "a")
            for ask in (lock.try_acquire, lock.locked, lambda lock=lock: lock.acquire(blocking_timeout=20)):
                with elapsed() as took:
                    error = await rejected(ask())
                assert took.seconds < 1.0 + SLACK
                assert said in str(error)


async def test_t_n_10_tls_on_one_side_only_in_a_cluster(
    authority: trustme.CA, trusted: str, shared_cluster: Cluster
) -> None:
    port = shared_cluster.masters[0].port
    cluster = RedisCluster(host="127.0.0.1", port=port, ssl=True, ssl_ca_certs=trusted)
    async with Session(cluster) as session:
        error = await rejected(Lock(session, "a").try_acquire())
    assert f"127.0.0.1:{port} does not speak TLS" in str(error)
    await cluster.aclose()


async def test_t_n_10_a_server_that_resets_connections_is_not_taken_for_one_with_tls(
    connect: Connect, through: Proxy
) -> None:
    through.refuse = True
    error = await rejected(Lock(connect(through), "a").try_acquire())
    assert "TLS" not in str(error)


@pytest.mark.more  # as TLS and servers that are far away
async def test_t_n_10_tls_that_is_slow_is_waited_for(
    own_server: OwnServer, authority: trustme.CA, trusted: str
) -> None:
    """A client that asks it in plain text meanwhile gets no answer."""
    server = await own_server()
    async with (
        tls_front(server, authority, "127.0.0.1") as port,
        closed_at_the_end(Redis(host="127.0.0.1", port=port, ssl=True, ssl_ca_certs=trusted)) as client,
    ):
        server.pause()
        acquiring = asyncio.create_task(Lock(client, "a").acquire())
        await asyncio.sleep(1.0)
        server.resume()
        await (await acquiring).release()


@pytest.mark.leaves_keys("aiolocks:fencedregister:*")
async def test_t_n_10_tls_that_takes_a_request_in_parts(
    own_server: OwnServer, authority: trustme.CA, trusted: str
) -> None:
    """Its peer reads more slowly than a request is written: what no buffer takes waits, and nothing is sent
    twice, or in another order."""
    server, seen = await own_server(), list[int]()
    value = bytes(range(256)) * 50_000  # more than the buffers of the system take
    async with (
        tls_front(server, authority, "127.0.0.1", rate=20_000_000, seen=seen) as port,
        closed_at_the_end(Redis(host="127.0.0.1", port=port, ssl=True, ssl_ca_certs=trusted)) as client,
        Session(client, largest_value=20_000_000, largest_metadata=1_000_000, command_timeout=60) as session,
        Lock(session, "beside", ttl=20) as lease,
    ):
        register = FencedRegister(session, "a")
        await register.write("small", 1)  # the server knows the script from now on
        writing = asyncio.create_task(register.write(value, 1))
        await eventually(lambda: sum(seen) > 1_000_000)
        many = [
            asyncio.create_task(Lock(session, f"a{number}", ttl=20, metadata={"a": "x" * 50_000}).acquire())
            for number in range(40)
        ]  # each a part of a write that is under way
        for one in many:
            await (await one).release()
        await writing
        assert await register.read() == value
        lease.ensure_held()
        assert len(value) < sum(seen) < 2 * len(value), "once"


# -- addresses that lead nowhere, or elsewhere ---------------------------------------------------------------


@pytest.mark.parametrize(
    "address",
    [{"host": "127.0.0.1", "port": 1}, {"unix_socket_path": "/nonexistent/socket"}],
    ids=["port", "socket"],
)
async def test_t_n_10_nobody_there(address: dict[str, Any]) -> None:
    async with closed_at_the_end(Redis(**address)) as client:

        async def wait(lock: Lock) -> None:
            with elapsed() as took:
                error = await rejected(lock.acquire())
            assert 0.3 <= took.seconds < 0.3 + SLACK
            assert "connect" in str(error).lower()
            assert isinstance(error.__cause__, Exception)

        await asyncio.gather(wait(Lock(client, "a", blocking_timeout=0.3)), wait(Lock(client, "b", ttl=0.3)))


@pytest.mark.more  # as in `test_sentinel.py`
async def test_t_n_10_sentinel_leads_to_the_next_master(own_server: OwnServer, keys: Keys) -> None:
    """Also a session that is in the middle of a hold or a wait when its master becomes a replica, or dies."""
    first, second = await own_server(port=0), await own_server(port=0)

    class Deciding(Sentinel):
        master = first

        async def discover_master(self, service_name: str) -> tuple[str, int]:
            assert self.master.port is not None
            return "127.0.0.1", self.master.port

    sentinel = Deciding([])
    async with closed_at_the_end(sentinel.master_for("ours")) as client:
        await live(client)
        lease = await Lock(client, "a", ttl=2).acquire()
        async with first.client() as admin:
            await admin.execute_command("REPLICAOF", "127.0.0.1", str(second.port))
        sentinel.master = second
        async with Lock(client, "b", ttl=5).acquire(blocking_timeout=10) as other:
            async with second.client() as looking:
                assert await looking.keys("*{b}")
            assert await other.owned()
        # The second server never heard of the first lease: nothing had been replicated.
        await asyncio.wait_for(lease.wait_lost(), 2 + SLACK)
        async with first.client() as admin:
            await admin.execute_command("REPLICAOF", "NO", "ONE")
        stranded = await Lock(client, "c", ttl=5).acquire()
        sentinel.master = first
        second.kill()
        async with Lock(client, "d", ttl=5).acquire(blocking_timeout=2):
            pass
        for lost in (lease, stranded):
            with pytest.raises(LockNotOwnedError):
                await lost.release()


# -- closing -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["aclose", "disconnect"])
async def test_t_c_13_client_closed_while_held_and_while_waited_for(
    connect: Connect, redis: Redis, form: str, how: str, through: Proxy
) -> None:
    """The session's connection is its own: it goes on, and so do holders and waiters."""
    client = connect(Formed(through, form))
    await warm(client)
    lease = await Lock(client, "a", ttl=0.4).acquire()
    foreign = await Lock(redis, "b", ttl=5).acquire()
    waiting = [asyncio.create_task(Lock(client, name).acquire(blocking_timeout=3)) for name in "ab"]
    await asyncio.sleep(0.05)
    if how == "aclose":
        await client.aclose()
    else:
        await client.connection_pool.disconnect()
    await asyncio.sleep(0.5)
    assert lease.state is LeaseState.HELD
    await lease.release()
    await foreign.release()
    for lease in await asyncio.gather(*waiting):
        assert await lease.owned()
        await lease.release()


async def test_t_c_13_session_closed_while_held_and_while_waited_for(
    connect: Connect, redis: Redis, form: str, through: Proxy, keys: Keys
) -> None:
    client = connect(Formed(through, form))
    session = Session(client)
    foreign = await Lock(redis, "foreign", ttl=5).acquire()
    unwound, waiters_are_told = 0, asyncio.Event()

    async def hold(name: str) -> None:
        nonlocal unwound
        async with Lock(session, name, ttl=5):
            try:
                await asyncio.sleep(10)
            finally:
                await waiters_are_told.wait()
                unwound += 1

    holding = [asyncio.create_task(hold(f"a{number}")) for number in range(5)]
    waiting = [
        asyncio.create_task(Lock(session, name, blocking_timeout=blocking_timeout).acquire())
        for name in ("a0", "a0", "foreign", "foreign")  # behind a local holder, behind one elsewhere
        for blocking_timeout in (None, 20)
    ]
    await eventually(lambda: session.statistics().leases_held == 5 and session.statistics().waiters == 8)

    with elapsed() as took:
        closing = asyncio.create_task(session.aclose())
        for error in await asyncio.gather(*waiting, return_exceptions=True):
            assert isinstance(error, SessionClosedError)
        assert not closing.done()
        waiters_are_told.set()
        for error in await asyncio.gather(*holding, return_exceptions=True):
            assert isinstance(error, LockLostError)
            assert "session was closed" in str(error)
        await closing
    assert unwound == 5
    assert took.seconds < 0.5 + SLACK
    assert [key for key in keys() if "foreign" not in key] == []
    assert await foreign.owned()
    await session.aclose()
    for ask in (
        Lock(session, "a").acquire,
        Lock(session, "a").try_acquire,
        Lock(session, "a").locked,
        lambda: Lock(session, "a").acquire(blocking_timeout=1),
    ):
        with pytest.raises(SessionClosedError):
            await ask()
    await foreign.release()


@pytest.mark.leaves_keys
async def test_t_c_13_body_that_does_not_end_keeps_its_key_until_the_ttl(
    connect: Connect, form: str, through: Proxy, redis: Redis, keys: Keys
) -> None:
    """For it still does what the lock is there for."""
    session = Session(connect(Formed(through, form)))
    inside = asyncio.Event()
    over = asyncio.Event()

    async def hold() -> None:
        async with Lock(session, "a", ttl=1.5):
            inside.set()
            while not over.is_set():
                with suppress(asyncio.CancelledError):
                    await over.wait()

    holding = asyncio.create_task(hold())
    await inside.wait()
    with elapsed() as took:
        await session.aclose()
    assert 0.9 < took.seconds < 1 + 2 * SLACK
    (key,) = keys()
    assert 0 < await redis.pttl(key) <= 1500
    assert await Lock(redis, "a").try_acquire() is None
    async with Lock(redis, "a").acquire(blocking_timeout=2):
        assert took.seconds < 1 + 2 * SLACK
    over.set()
    with pytest.raises(LockLostError):
        await holding


@pytest.mark.leaves_keys
async def test_t_c_13_lease_that_was_never_entered_keeps_its_key_until_the_ttl(
    connect: Connect, redis: Redis, keys: Keys
) -> None:
    """Where no lease is to be released. What it says of itself is that it is lost."""
    session = Session(connect())
    lease = await Lock(session, "a", ttl=30).acquire()
    await session.aclose(release="none")
    assert lease.state is LeaseState.LOST
    with pytest.raises(LockError):
        await lease.release()
    (key,) = keys()  # it is not released
    assert 0 < await redis.pttl(key) <= 30_000
    await redis.delete(key)


async def test_t_c_13_closed_from_inside_a_body(connect: Connect, keys: Keys) -> None:
    session = Session(connect())
    with pytest.raises(LockLostError, match="session was closed"):
        async with Lock(session, "a", ttl=5):
            await session.aclose()
            await asyncio.sleep(5)
    await session.aclose()
    assert keys() == []


async def test_t_c_13_closed_by_many_at_once(connect: Connect, keys: Keys) -> None:
    session = Session(connect())

    async def acquired() -> Lease:
        """By a task that has ended: what it has left is released."""
        return await Lock(session, "a", ttl=30).acquire()

    lease = await asyncio.create_task(acquired())
    cancelled = asyncio.create_task(session.aclose())
    await asyncio.sleep(0)
    cancelled.cancel()
    await asyncio.gather(*(session.aclose() for _ in range(5)))
    await asyncio.wait([cancelled])
    assert lease.state is LeaseState.RELEASED
    assert keys() == []


@pytest.mark.more  # as in `test_closed_sessions.py`
async def test_t_c_13_closed_while_the_server_is_silent(own_server: OwnServer, connect: Connect) -> None:
    server = await own_server()
    session = Session(connect(server))

    async def hold() -> None:
        async with Lock(session, "a", ttl=1):
            await asyncio.sleep(10)

    holding = [asyncio.create_task(hold()), asyncio.create_task(Lock(session, "a").acquire())]
    await eventually(lambda: session.statistics().leases_held == 1 and session.statistics().waiters == 1)
    server.pause()
    with elapsed() as took:
        await session.aclose()
    assert took.seconds < 2.2
    lost, closed = await asyncio.gather(*holding, return_exceptions=True)
    assert isinstance(lost, LockLostError)
    assert isinstance(closed, SessionClosedError)
    server.resume()
    await asyncio.sleep(1.1)  # the ttl frees what could not be released
