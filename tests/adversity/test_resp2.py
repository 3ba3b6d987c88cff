"""Servers and proxies without RESP3, whatever they say to a client that asks for it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from typing import Any

import pytest
from redis.asyncio import Redis
from redis.asyncio.sentinel import Sentinel
from redis.exceptions import ResponseError
from valkey.asyncio import Valkey

from aiolocks import (
    BackendError,
    Backoff,
    ConfigurationError,
    FairLock,
    KeyspaceWakeup,
    Latch,
    Leadership,
    Lock,
    MultiLock,
    Redlock,
    RWLock,
    Schedule,
    Semaphore,
    Session,
    Tick,
)
from aiolocks.contrib.redis_py import Lock as RedisPyLock
from aiolocks.lock import wakeups
from aiolocks.testing import EmbeddedServer
from aiolocks.transport import dialect
from aiolocks.transport.hearing import Ear
from tests.adversity.tools import PATIENT, in_within, renewed, warm
from tests.conftest import Connect, OwnServer, Surroundings, clustered
from tests.support.clients import with_own_connections
from tests.support.clusters import Cluster
from tests.support.links import CLOSED, Request
from tests.support.proxy import SILENT, Proxy
from tests.support.servers import Server, ServerKind
from tests.support.thinning import only
from tests.support.waiting import eventually, sleeps

NO = {
    "noproto": b"-NOPROTO unsupported protocol version\r\n",
    "unsupported": b"-ERR unsupported command\r\n",
    "unknown": b"-ERR unknown command `HELLO`, with args beginning with: `3`, `AUTH`, `u`, `secret`, \r\n",
    "syntax": b"-ERR syntax error\r\n",
    "denied": b"-NOPERM this user has no permissions to run the 'hello' command\r\n",
    "another code": b"-UNSUPPORTED\r\n",
    "yes, but": b"+OK\r\n",
    "in RESP2": b"*4\r\n$6\r\nserver\r\n$5\r\nredis\r\n$5\r\nproto\r\n:2\r\n",
    "garbage": b"HTTP/1.1 400 Bad Request\r\n\r\n",
    "closed": CLOSED,
    "silent": SILENT,
}
"""The ways of saying no to `HELLO 3`."""
OpenProxy = Callable[[Server], Awaitable[Proxy]]
OpenSession = Callable[..., Session]
QUICK = Backoff(initial=0.02, maximum=0.05)


@pytest.fixture(params=NO)
def resp2(request: pytest.FixtureRequest, through: Proxy) -> Proxy:
    """The way to a server without RESP3."""
    through.hello = NO[request.param]
    return through


@pytest.fixture
async def open_session(connect: Connect, redis: Redis) -> AsyncIterator[Callable[..., Session]]:
    await redis.config_set("notify-keyspace-events", "")  # another test may have left them on
    async with AsyncExitStack() as sessions:

        def open_session(to: Any, **options: Any) -> Session:
            session = Session(connect(to), **{"backoff": QUICK, **options})
            sessions.push_async_callback(session.aclose)
            return session

        yield open_session


def hellos(proxy: Proxy) -> int:
    return proxy.count(lambda request: request[0] == b"HELLO" and request[1:2] == [b"3"])


def said(caplog: pytest.LogCaptureFixture, word: str, *, level: int = logging.INFO) -> list[str]:
    return [
        record.getMessage()
        for record in caplog.records
        if record.name == "aiolocks.transport" and record.levelno >= level and word in record.getMessage()
    ]


@pytest.mark.parametrize("resp2", only(NO, "unknown"), indirect=True)
async def test_a_lock_is_held_waited_for_and_handed_over(
    resp2: Proxy, open_session: OpenSession, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "aiolocks")
    one, other = open_session(resp2), open_session(resp2)
    began = time.monotonic()
    lease = await in_within(4, asyncio.create_task(Lock(one, "a", ttl=3).acquire()))
    assert time.monotonic() - began < 3
    waiting = asyncio.create_task(Lock(other, "a").acquire())
    await eventually(lambda: sleeps(other), within=5)
    await renewed(lease)
    await lease.release()
    second = await in_within(5, waiting)
    assert second.fencing_token > lease.fencing_token
    await second.release()
    assert one.statistics().wakeups["tracking"] == 0


async def test_it_is_remembered_for_the_life_of_the_session_and_said_once(
    resp2: Proxy, open_session: OpenSession, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "aiolocks")
    session = open_session(resp2)
    await warm(session)
    asked = hellos(resp2)
    assert 1 <= asked <= 2
    for _ in range(3):
        resp2.cut()
        began = time.monotonic()
        await warm(session)
        assert time.monotonic() - began < 2
    assert hellos(resp2) == asked
    assert len(said(caplog, "does not speak RESP3")) == 1
    (warning,) = said(caplog, "", level=logging.WARNING)
    assert "poll serves this session" in warning
    assert "RESP2" in warning
    assert not said(caplog, "secret")


@pytest.mark.parametrize("way", NO)
async def test_with_credentials(
    own_server: OwnServer, connect: Connect, proxy: OpenProxy, way: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "aiolocks")
    through = await proxy(await own_server(arguments=("--requirepass", "secret")))
    through.hello = NO[way]
    async with Session(connect(through, password="secret")) as session:
        await warm(session)
    assert said(caplog, "does not speak RESP3")
    assert not said(caplog, "secret")


async def test_a_proxy_that_takes_credentials_by_auth_alone(
    own_server: OwnServer, connect: Connect, proxy: OpenProxy
) -> None:
    """To all else it says NOAUTH, whatever there is in it."""
    through = await proxy(await own_server(arguments=("--requirepass", "secret")))
    through.hello = b"-NOAUTH Authentication required.\r\n"
    async with Session(connect(through, password="secret")) as session:
        await warm(session)
    async with Session(connect(through)) as session:
        with pytest.raises(BackendError, match="wants a password"):
            await Lock(session, "a").acquire()


@pytest.mark.parametrize("way", ["answered", "unknown", "closed"])
async def test_a_wrong_password_stays_one(
    own_server: OwnServer, connect: Connect, proxy: OpenProxy, way: str
) -> None:
    through = await proxy(await own_server(arguments=("--requirepass", "secret")))
    through.hello = NO.get(way)
    async with Session(connect(through, password="wrong")) as session:
        for _ in range(2):
            with pytest.raises(BackendError, match="password is wrong"):
                await Lock(session, "a").acquire()
    assert hellos(through) == 2
    assert through.count(b"AUTH") == (2 if way == "answered" else 4)


# -- what is no answer to the question -----------------------------------------------------------------------


def for_a_while(proxy: Proxy, hello: bytes, *, times: int = 1) -> None:
    """So many times `HELLO 3` fails so; then the server answers it."""
    proxy.hello = hello
    left = times

    def count(request: Request) -> bool:
        nonlocal left
        if request[0] == b"HELLO":
            left -= 1
            if left < 0:
                proxy.hello = None
        return False

    proxy.reset_after(count)


async def hears(session: Session) -> bool:
    await warm(session)
    return session._engine is not None and session._engine.hears


@pytest.mark.parametrize("way", ["closed", "silent", "garbage"])
async def test_what_fails_once_and_then_not_is_an_outage(
    through: Proxy, open_session: OpenSession, way: str
) -> None:
    """A server that dies at this moment, a proxy that finds another one, a reply that was lost."""
    session = open_session(through)
    for_a_while(through, NO[way])
    assert await hears(session)
    for_a_while(through, NO[way])
    through.cut()
    assert await hears(session)


async def test_a_server_that_is_far_away_is_believed_too(
    through: Proxy, open_session: OpenSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A round trip takes longer than the answer to HELLO 3 may take: RESP2 has answered in that time."""
    monkeypatch.setattr(dialect, "HELLO_TIMEOUT", 0.05)
    through.delay = 0.06
    session = open_session(through)
    async with Lock(session, "a", blocking_timeout=5):
        pass
    assert session._dialect.why


async def test_two_outages_in_a_row_are_no_answer(through: Proxy, open_session: OpenSession) -> None:
    """The second one ends the connection with RESP2 as well, which a server without RESP3 would keep."""
    session = open_session(through)
    through.hello = SILENT
    hearing = asyncio.create_task(hears(session))
    await eventually(lambda: hellos(through) == 2, within=5)
    through.hello = None
    through.cut()
    assert await in_within(5, hearing)


@pytest.mark.parametrize(
    "answer",
    [
        b"-LOADING Redis is loading the dataset in memory\r\n",
        b"-ERR max number of clients reached\r\n",
        b"-ERR max number of clients + cluster connections reached\r\n",
        b"-MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.\r\n",
    ],
)
async def test_a_server_that_is_not_ready_is_asked_again(
    through: Proxy, open_session: OpenSession, answer: bytes
) -> None:
    session = open_session(through)
    for_a_while(through, answer, times=2)
    assert await hears(session)
    assert hellos(through) >= 3


@pytest.mark.more  # as an outage
async def test_a_server_that_hangs_for_more_than_a_second_is_asked_again(
    own_server: OwnServer, open_session: OpenSession
) -> None:
    server = await own_server()
    server.pause()
    session = open_session(server)
    warming = asyncio.create_task(warm(session))
    await asyncio.sleep(1.3)
    server.resume()
    await warming
    assert await hears(session)


async def test_a_server_that_is_started_again_is_asked_again(
    own_server: OwnServer, proxy: OpenProxy, open_session: OpenSession
) -> None:
    """While it is away, the proxy takes connections and closes them."""
    server = await own_server()
    through = await proxy(server)
    session = open_session(through)
    assert await hears(session)
    server.kill()
    through.cut()
    warming = asyncio.create_task(warm(session))
    await asyncio.sleep(0.3)
    await server.restart()
    await warming
    assert await hears(session)


@pytest.mark.more  # as an outage
async def test_where_resp2_serves_no_better_resp3_is_asked_for_again(
    through: Proxy, open_session: OpenSession
) -> None:
    through.hello = SILENT
    through.drop_replies = True
    session = open_session(through)
    warming = asyncio.create_task(warm(session))
    await through.saw(b"SETINFO")
    through.hello, through.drop_replies = None, False
    through.cut()
    await warming
    assert await hears(session)


# -- keyspace notifications, on a second connection ----------------------------------------------------------


@pytest.fixture
async def notifying(own_server: OwnServer, proxy: OpenProxy) -> Proxy:
    """The way to a server without RESP3 that tells of its keys."""
    through = await proxy(await own_server(arguments=("--notify-keyspace-events", "Kgx")))
    through.hello = NO["unsupported"]
    return through


async def woken(one: Session, other: Session) -> str:
    """How a waiter of the other session was woken, who would sleep for long otherwise."""
    for _ in range(5):  # a heartbeat may come first
        before = other.statistics().wakeups
        lease = await Lock(one, "a").acquire()
        waiting = asyncio.create_task(Lock(other, "a").acquire())
        await eventually(lambda: sleeps(other), within=5)
        await asyncio.sleep(0.05)
        await lease.release()
        await (await in_within(2, waiting)).release()
        after = other.statistics().wakeups
        (way,) = [way for way in after if after[way] > before[way]]
        if way != "poll":
            break
    return way


@pytest.mark.parametrize("wanted", ["auto", "keyspace", KeyspaceWakeup(configure=True)])
async def test_waiters_hear_by_keyspace_notifications(
    notifying: Proxy, open_session: OpenSession, caplog: pytest.LogCaptureFixture, wanted: Any
) -> None:
    one, other = (open_session(notifying, wakeup=wanted, backoff=PATIENT) for _ in range(2))
    assert await woken(one, other) == "keyspace"
    assert len(said(caplog, "keyspace serves", level=logging.WARNING)) == (2 if wanted == "auto" else 0)
    for _ in range(2):  # both connections are made again
        notifying.cut()
        assert await woken(one, other) == "keyspace"


async def test_where_the_second_connection_ends_both_are_made_again(
    own_server: OwnServer, open_session: OpenSession
) -> None:
    server = await own_server(arguments=("--notify-keyspace-events", "Kgx"))
    one, other = (open_session(server, protocol=2, wakeup="keyspace", backoff=PATIENT) for _ in range(2))
    assert await woken(one, other) == "keyspace"
    async with server.client() as admin:
        await admin.client_kill_filter(_type="pubsub")
    assert await woken(one, other) == "keyspace"


async def waits_for_a_lock(one: Session, other: Session) -> None:
    lease = await Lock(one, "a").acquire()
    waiting = asyncio.create_task(Lock(other, "a").acquire())
    await asyncio.sleep(0.05)
    await lease.release()
    await (await waiting).release()


async def waits_for_a_latch(one: Session, other: Session) -> None:
    waiting = asyncio.create_task(Latch(other, "a", 1).wait())
    await asyncio.sleep(0.05)
    await Latch(one, "a", 1).count_down()
    await waiting


async def waits_for_a_leader(one: Session, other: Session) -> None:
    changes = Leadership(other, "a").observe()
    assert await anext(changes) is None
    waiting = asyncio.create_task(anext(changes))
    await asyncio.sleep(0.05)
    term = await Leadership(one, "a").acquire()
    assert await waiting is not None
    await changes.aclose()
    await term.release()


@pytest.mark.leaves_keys
@pytest.mark.parametrize(
    "wait", only([waits_for_a_lock, waits_for_a_latch, waits_for_a_leader], waits_for_a_leader)
)
async def test_a_change_before_the_second_connection_hears_is_not_missed(
    own_server: OwnServer, open_session: OpenSession, monkeypatch: pytest.MonkeyPatch, wait: Any
) -> None:
    """SUBSCRIBE takes 0.1 s: a change meanwhile was heard of at the next heartbeat."""
    monkeypatch.setattr(wakeups, "_LISTENS_EVERY", 1.9)
    server = await own_server(arguments=("--notify-keyspace-events", "Kgx$"))
    ask = Ear.ask

    def later(self: Ear, *words: Any) -> asyncio.Future[Any]:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Any] = loop.create_future()
        loop.call_later(0.1, lambda: ask(self, *words).add_done_callback(lambda _: answer.set_result(None)))
        return answer

    monkeypatch.setattr(Ear, "ask", later)
    one = open_session(server)
    other = open_session(server, protocol=2, wakeup="keyspace", backoff=PATIENT)
    await warm(other)
    began = time.monotonic()
    await asyncio.wait_for(wait(one, other), 5)
    assert time.monotonic() - began < 1.7


async def test_notifications_that_are_not_heard(
    own_server: OwnServer, proxy: OpenProxy, open_session: OpenSession
) -> None:
    through = await proxy(await own_server())
    session = open_session(through, protocol=2, wakeup="keyspace")
    with pytest.raises(ConfigurationError, match="notify-keyspace-events must have at least 'Kg'"):
        await Lock(session, "a").acquire()
    session = open_session(through, protocol=2, wakeup=KeyspaceWakeup(configure=True))
    assert await hears(session)
    await eventually(lambda: through.open_connections == 2)


HIDDEN = {b"new": "n", b"overwritten": "o", b"type_changed": "c"}
"""The events whose flags `CONFIG GET` does not show beside `A`."""


@pytest.mark.more  # as flags that stand there already
@pytest.mark.parametrize("protocol", [2, 3])
async def test_events_that_the_server_hides_stay_on(
    own_server: OwnServer, open_session: OpenSession, protocol: int
) -> None:
    server = await own_server()
    admin = server.client()
    known = ""
    for flag in HIDDEN.values():  # Redis 6.2 knows none of them, Valkey and Redis 7 only the first
        with suppress(ResponseError):
            await admin.config_set("notify-keyspace-events", f"AE{flag}")
            known += flag

    async def heard() -> set[str]:
        async with admin.pubsub() as events:
            await events.subscribe(*(b"__keyevent@0__:" + event for event in HIDDEN))
            await asyncio.sleep(0.05)
            for words in ("SET a 1", "SET a 2", "DEL a", "ZADD a 0 a", "SET a 1", "DEL a"):
                await admin.execute_command(*words.split())
            found = set()
            while message := await events.get_message(timeout=0.5):
                if message["type"] == "message":
                    found.add(HIDDEN[message["channel"].rpartition(b":")[2]])
        return found

    for flags in {known, known[1:], ""}:
        await admin.config_set("notify-keyspace-events", f"AE{flags}")
        session = open_session(server, protocol=protocol, wakeup=KeyspaceWakeup(configure=True))
        assert await hears(session)
        assert "K" in (await admin.config_get("notify-keyspace-events"))["notify-keyspace-events"]
        assert await heard() == set(flags)
        await session.aclose()
    await admin.aclose()


@pytest.mark.parametrize("how", only([CLOSED, SILENT, b"-ERR unknown command 'SUBSCRIBE'\r\n"], CLOSED))
async def test_a_proxy_without_subscriptions_is_left_to_the_poll(
    own_server: OwnServer, proxy: OpenProxy, open_session: OpenSession, how: bytes
) -> None:
    through = await proxy(await own_server(arguments=("--notify-keyspace-events", "Kgx")))
    through.subscribe = how
    session = open_session(through, protocol=2)
    assert not await hears(session)
    await eventually(lambda: through.open_connections == 1)
    assert through.count(b"SUBSCRIBE") == (1 if how.startswith(b"-") else 2)


# -- the version that was asked for --------------------------------------------------------------------------


async def test_protocol_2_never_asks(through: Proxy, open_session: OpenSession) -> None:
    session = open_session(through, protocol=2)
    assert not await hears(session)
    through.cut()
    await warm(session)
    assert through.count(b"HELLO") == 0
    with pytest.raises(ConfigurationError, match=r"wakeup='tracking' is not available.*protocol=2"):
        await Lock(open_session(through, protocol=2, wakeup="tracking"), "a").acquire()


@pytest.mark.parametrize("resp2", only(NO, "noproto", "closed", "garbage"), indirect=True)
async def test_protocol_3_insists(resp2: Proxy, open_session: OpenSession) -> None:
    session = open_session(resp2, protocol=3)
    for _ in range(2):
        with pytest.raises(ConfigurationError, match=r"not speak RESP3 \(the server .*leave out protocol=3"):
            await Lock(session, "a").acquire()
    resp2.hello = None
    assert await hears(session)


async def test_protocol_3_and_a_server_that_is_away(through: Proxy, open_session: OpenSession) -> None:
    session = open_session(through, protocol=3)
    through.refuse = True
    with pytest.raises(BackendError) as caught:
        await Lock(session, "a", blocking_timeout=0).acquire()
    assert not isinstance(caught.value, ConfigurationError)
    through.refuse = False
    assert await hears(session)


async def test_protocol_3_needs_connections_of_its_own(connect: Connect) -> None:
    with pytest.raises(ConfigurationError, match="protocol=3 is not available"):
        await Lock(Session(with_own_connections(connect()), protocol=3), "a").acquire()


@pytest.mark.parametrize("wrong", [0, 1, 4, "3", 2.0, True, b"2"])
def test_another_version_is_refused(wrong: Any) -> None:
    with pytest.raises(ValueError, match="protocol must be 2, 3 or None"):
        Session(Redis(), protocol=wrong)


# -- everywhere ----------------------------------------------------------------------------------------------

WORDS_OR_NOT = pytest.mark.parametrize("way", ["unsupported", "closed", "silent"])


async def test_a_unix_socket(server_kind: ServerKind) -> None:
    """Over which redis-py makes a connection error of whatever is raised while it connects."""
    if server_kind.executable is None or server_kind.is_simulated:
        pytest.skip(f"not with {server_kind}: it starts a server of its own")
    # Not `own_server`, whose keys are looked at with RESP3.
    arguments = ("--rename-command", "HELLO", "")
    async with (
        EmbeddedServer(executable=server_kind.executable, arguments=arguments) as server,
        server.client() as client,
    ):
        assert "path" in client.connection_pool.connection_kwargs
        async with Session(client) as session:
            await warm(session)
        async with Session(client, protocol=3) as session:
            with pytest.raises(ConfigurationError, match=r"refuses HELLO 3: .*leave out protocol=3"):
                await Lock(session, "a").acquire()


@WORDS_OR_NOT
@pytest.mark.leaves_keys("*:schedule*")
async def test_kinds(through: Proxy, open_session: OpenSession, way: str) -> None:
    through.hello = NO[way]
    one, other = open_session(through), open_session(through)
    made: list[Callable[[Session], Any]] = [
        lambda session: FairLock(session, "f"),
        lambda session: Semaphore(session, "s", 1),
        lambda session: RWLock(session, "r").writer,
        lambda session: MultiLock(session, ["m", "n"]),
    ]
    for make in made:
        lease = await make(one).acquire()
        waiting = asyncio.create_task(make(other).acquire())
        await eventually(lambda: sleeps(other), within=5)
        await lease.release()
        await (await in_within(2, waiting)).release()
    ticked = asyncio.Event()
    schedule = Schedule(one, "every", every=0.2)

    @schedule
    async def tick(_: Tick) -> None:
        ticked.set()

    running = asyncio.create_task(schedule.run())
    await asyncio.wait_for(ticked.wait(), 5)
    running.cancel()
    await asyncio.wait((running,))


@pytest.mark.more  # as one old server
@WORDS_OR_NOT
async def test_one_old_master_of_three(
    own_server: OwnServer, proxy: OpenProxy, connect: Connect, way: str
) -> None:
    """The others tell of what is released; the one that cannot is asked with RESP2."""
    old = await proxy(await own_server())
    old.hello = NO[way]
    masters = [old, await own_server(), await own_server()]
    clients = [connect(master) for master in masters]
    others = [connect(master) for master in masters]
    one, other = Redlock(clients, "a", ttl=5), Redlock(others, "a", ttl=5)

    async def serves() -> bool:
        """Without it, a majority is granted meanwhile."""
        await (await one.acquire()).release()
        return old.count(b"EVAL") > 0

    await eventually(serves, within=5)
    lease = await one.acquire()
    waiting = asyncio.create_task(other.acquire())
    await asyncio.sleep(0.3)
    await lease.release()
    await (await in_within(4, waiting)).release()


async def test_each_master_of_a_redlock_has_the_version_of_its_session(
    own_server: OwnServer, proxy: OpenProxy, open_session: OpenSession
) -> None:
    through = [await proxy(await own_server()) for _ in range(3)]
    versions = (2, None, None)
    sessions = [open_session(to, protocol=one) for to, one in zip(through, versions, strict=True)]
    async with Redlock(sessions, "a", ttl=5):
        pass
    assert [hellos(one) > 0 for one in through] == [False, True, True]


@WORDS_OR_NOT
@pytest.mark.parametrize("wakeups", [False, True])
async def test_the_lock_in_the_place_of_redis_pys(
    through: Proxy, connect: Connect, way: str, wakeups: bool
) -> None:
    through.hello = NO[way]
    client = connect(through)
    lock = RedisPyLock(client, "a", timeout=5, sleep=0.05, wakeups=wakeups)
    other = RedisPyLock(connect(through), "a", timeout=5, sleep=0.05, wakeups=wakeups)
    assert await lock.acquire()
    waiting = asyncio.create_task(other.acquire())
    await asyncio.sleep(0.2)
    await lock.release()
    assert await in_within(4, waiting)
    await other.release()


@WORDS_OR_NOT
async def test_valkey_py(through: Proxy, way: str) -> None:
    through.hello = NO[way]
    client = Valkey(host="127.0.0.1", port=through.port)
    try:
        async with Session(client) as session:
            await warm(session)
        async with Session(client, protocol=3) as session:
            with pytest.raises(ConfigurationError, match="does not speak RESP3"):
                await Lock(session, "a").acquire()
    finally:
        await client.aclose()


@WORDS_OR_NOT
async def test_behind_sentinel(through: Proxy, way: str) -> None:
    class Known(Sentinel):  # type: ignore[misc]
        async def discover_master(self, service_name: str) -> tuple[str, int]:
            return "127.0.0.1", through.port

    through.hello = NO[way]
    client = Known([]).master_for("locks")
    try:
        async with Session(client) as session:
            await warm(session)
            through.cut()
            await warm(session)
    finally:
        await client.aclose()


@WORDS_OR_NOT
async def test_a_cluster(
    shared_cluster: Cluster, surroundings: Surroundings, proxy: OpenProxy, way: str
) -> None:
    shared_cluster.begin(surroundings)
    through = {node.port: await proxy(node) for node in shared_cluster.masters}
    for one in through.values():
        one.hello = NO[way]
    client = clustered(
        surroundings, shared_cluster, address_remap=lambda address: (address[0], through[address[1]].port)
    )
    async with Session(client) as session, Session(client) as other:
        for name in "abc":
            lease = await Lock(session, name).acquire()
            waiting = asyncio.create_task(Lock(other, name).acquire())
            await eventually(lambda: sleeps(other), within=5)
            await lease.release()
            await (await in_within(4, waiting)).release()
    async with Session(client, protocol=3) as session:
        with pytest.raises(ConfigurationError, match="does not speak RESP3"):
            await Lock(session, "a").acquire()
