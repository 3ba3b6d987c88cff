"""Bells that are not heard: what wakes waiters may be off, deaf, late, refused or taken away.

T-W-1 to T-W-7 of `tests/FAULTS.md`, and T-S-4 and T-S-5 as far as they are about waiters.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from typing import Any, Protocol

import hiredis
import pytest
from redis.asyncio import Redis

from aiolocks import Backoff, ConfigurationError, KeyspaceWakeup, Lease, Lock, Session
from tests.adversity.tools import (
    AT_ONCE,
    LISTEN,
    PATIENT,
    SLACK,
    UNTOLD,
    WAYS,
    ByHand,
    allowing_debug,
    asleep,
    in_within,
    rings,
    wakeup,
    warm,
)
from tests.conftest import Connect, OwnServer
from tests.support.links import Link
from tests.support.proxy import Proxy
from tests.support.servers import Server, ServerKind
from tests.support.thinning import only
from tests.support.waiting import eventually, sleeps

NOTIFICATIONS = "notify-keyspace-events"
HEARTBEAT = 0.6
"""Seconds after which a session notices at the latest that its connection is gone, if bells hang there."""
STALL = 2.0
"""Seconds after which a connection that says nothing counts as dead."""


class Start(Protocol):
    """Makes one more session of the test's: `start(wakeup=…, backoff=…, to=…, **of the client)`."""

    def __call__(
        self, *, wakeup: Any = "auto", backoff: Backoff = PATIENT, to: Any = None, **kwargs: Any
    ) -> Session: ...


@pytest.fixture
async def start(connect: Connect) -> AsyncIterator[Start]:
    async with AsyncExitStack() as sessions:

        def start(
            *, wakeup: Any = "auto", backoff: Backoff = PATIENT, to: Any = None, **kwargs: Any
        ) -> Session:
            session = Session(connect(to, **kwargs), wakeup=wakeup, backoff=backoff)
            sessions.push_async_callback(session.aclose)
            return session

        yield start


@pytest.fixture
def hands() -> Iterator[Callable[[Any], ByHand]]:
    """Makes a holder by hand at a server of the test's own."""
    made: list[ByHand] = []

    def at(server: Any) -> ByHand:
        made.append(ByHand(server))
        return made[-1]

    yield at
    for holder in made:
        holder.close()


async def wait_asleep(session: Session, name: str = "a") -> asyncio.Task[Lease]:
    """A task that waits for the lock, and sleeps."""
    waiting = asyncio.create_task(Lock(session, name).acquire())  # type: ignore[arg-type]
    await eventually(lambda: waiting.done() or asleep(session), within=5)
    assert not waiting.done(), waiting
    return waiting


async def wake(session: Session, by_hand: ByHand, name: str = "a") -> dict[str, int]:
    """Have it wait once and be let in; by what it was woken."""
    for _ in range(5):
        by_hand.acquire(name)
        waiting = await wait_asleep(session, name)
        before = session.statistics().wakeups
        by_hand.release(name)
        lease = await in_within(AT_ONCE, waiting)
        after = session.statistics().wakeups
        await lease.release()
        woken = {way: after[way] - before[way] for way in after if after[way] > before[way]}
        if woken != {"poll": 1}:  # which may happen to come at the same moment, unless it is patient
            break
    return woken


async def polled(session: Session, by_hand: ByHand) -> None:
    """Have it wait and be let in, without being told."""
    before = session.statistics().wakeups
    by_hand.acquire("a")
    waiting = asyncio.create_task(Lock(session, "a").acquire())  # type: ignore[arg-type]
    await eventually(lambda: sleeps(session))
    by_hand.release("a")
    await (await in_within(UNTOLD + SLACK, waiting)).release()
    after = session.statistics().wakeups
    assert (after["tracking"], after["keyspace"]) == (before["tracking"], before["keyspace"])


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        record.getMessage()
        for record in caplog.records
        if record.name == "aiolocks.transport" and record.levelno >= logging.WARNING
    ]


async def get(admin: Redis) -> str:
    value: str = (await admin.config_get(NOTIFICATIONS))[NOTIFICATIONS]
    return value


# -- notifications that are off ------------------------------------------------------------------------------


async def test_t_w_1_switched_off_in_the_middle_of_a_wait(
    own_server: OwnServer, start: Start, hands: Callable[..., ByHand]
) -> None:
    server = await own_server()
    by_hand = hands(server)
    session = start(wakeup=KeyspaceWakeup(configure=True), backoff=Backoff(), to=server)
    by_hand.acquire("a")
    waiting = await wait_asleep(session)
    by_hand.redis.config_set(NOTIFICATIONS, "")
    by_hand.release("a")
    lease = await in_within(UNTOLD + SLACK, waiting)
    assert session.statistics().wakeups["keyspace"] == 0
    await lease.release()


async def test_t_w_1_off_from_the_start_by_name(own_server: OwnServer, connect: Connect) -> None:
    server = await own_server()
    async with Session(connect(server), wakeup="keyspace") as session:
        with pytest.raises(ConfigurationError) as caught:
            await Lock(session, "a").acquire()
    for word in (NOTIFICATIONS, "'Kg'", "CONFIG SET", "KeyspaceWakeup(configure=True)"):
        assert word in str(caught.value)
    assert await get(connect(server)) == ""


async def test_t_s_8_a_connection_that_is_made_without_memory_is_told_as_any_other(
    own_server: OwnServer, start: Start, hands: Callable[..., ByHand]
) -> None:
    server = await own_server()
    by_hand = hands(server)
    by_hand.redis.config_set(NOTIFICATIONS, "Kg")
    by_hand.redis.config_set("maxmemory", 1)
    session = start(wakeup="keyspace", to=server)
    assert await Lock(session, "a").locked() is False
    by_hand.redis.config_set("maxmemory", 0)
    assert await wake(session, by_hand) == {"keyspace": 1}


async def restricted(admin: Redis, *denied: str) -> dict[str, str]:
    """Credentials of a user who may do anything but this."""
    rules = ["reset", "on", ">secret", "~*", "&*", "+@all"]
    for command in denied:
        rules += [f"-{command}"]
        if command == "client":  # all of it, but for what a session needs to know itself
            rules += ["+client|info", "+client|kill", "+client|setname"]
    await admin.execute_command("ACL", "SETUSER", "locks", *rules)
    return {"username": "locks", "password": "secret"}


@pytest.mark.thin
@pytest.mark.parametrize("denied", [(), ("client",), ("config",), ("client", "config"), ("subscribe",)])
@pytest.mark.parametrize("flags", ["", "KA"])
async def test_t_w_1_auto_takes_what_there_is_and_says_so_once(
    own_server: OwnServer,
    connect: Connect,
    start: Start,
    hands: Callable[..., ByHand],
    caplog: pytest.LogCaptureFixture,
    denied: tuple[str, ...],
    flags: str,
) -> None:
    server = await own_server()
    admin = connect(server)
    await admin.config_set(NOTIFICATIONS, flags)
    user = await restricted(admin, *denied)
    expected = "tracking" if "client" not in denied else "keyspace" if flags else "poll"

    session = start(to=server, backoff=Backoff() if expected == "poll" else PATIENT, **user)
    by_hand = hands(server)
    if expected == "poll":
        await polled(session, by_hand)
    else:
        assert await wake(session, by_hand) == {expected: 1}
    await connect(server).client_kill_filter(_type="normal", skipme=True)
    await warm(session)  # connected again, and nothing more to say

    said = warnings(caplog)
    assert len(said) == (expected != "tracking"), said
    for text in said:
        assert f"{expected} serves this session" in text
        assert "CLIENT TRACKING" in text
    assert await get(admin) == (hands(server).redis.config_get(NOTIFICATIONS)[NOTIFICATIONS])
    assert (await get(admin) == "") == (flags == "")


@pytest.mark.parametrize(
    ("denied", "wanted", "why"),
    [
        (("client",), "tracking", "CLIENT TRACKING"),
        (("config",), "keyspace", "CONFIG is refused"),
        (("config",), KeyspaceWakeup(configure=True), "CONFIG is refused"),
        (("subscribe",), "keyspace", "SUBSCRIBE"),
    ],
)
async def test_t_w_1_refused_by_acl_and_asked_for_by_name(
    own_server: OwnServer, connect: Connect, denied: tuple[str, ...], wanted: Any, why: str
) -> None:
    server = await own_server()
    user = await restricted(connect(server), *denied)
    async with Session(connect(server, **user), wakeup=wanted) as session:
        for _ in range(2):  # it stays so
            with pytest.raises(ConfigurationError, match=why):
                await Lock(session, "a").acquire()


async def test_t_w_1_keyspace_needs_no_config(
    own_server: OwnServer, connect: Connect, start: Start, hands: Callable[..., ByHand]
) -> None:
    """Where it may not be asked, hearing a key end is proof enough."""
    server = await own_server()
    await connect(server).config_set(NOTIFICATIONS, "Kg")
    user = await restricted(connect(server), "config")
    assert await wake(start(wakeup="keyspace", to=server, **user), hands(server)) == {"keyspace": 1}


@pytest.mark.parametrize("flags", ["", "Ex", "K", "Kg", "KA", "E$", "AKE"])
async def test_t_w_1_configured_only_when_asked_to_and_only_what_is_missing(
    own_server: OwnServer, connect: Connect, start: Start, hands: Callable[..., ByHand], flags: str
) -> None:
    server = await own_server()
    admin = connect(server)
    await admin.config_set(NOTIFICATIONS, flags)
    before = await get(admin)
    by_hand = hands(server)

    await wake(start(wakeup="auto", to=server), by_hand)
    assert await get(admin) == before

    assert await wake(start(wakeup=KeyspaceWakeup(configure=True), to=server), by_hand) == {"keyspace": 1}
    after = await get(admin)
    assert set(before) <= set(after)
    assert "K" in after
    assert "g" in after or "A" in after
    if "K" in before and ("g" in before or "A" in before):  # enough already
        assert after == before
    else:
        assert "x" in after or "A" in after


@pytest.fixture
def resp2_alone(through: Proxy, monkeypatch: pytest.MonkeyPatch) -> Proxy:
    """The way to a server that knows no HELLO."""
    came, went = Link.requests_came, Link.replies_came
    monkeypatch.setattr(
        Link, "requests_came", lambda link, data: came(link, data.replace(b"HELLO", b"HELLx"))
    )
    monkeypatch.setattr(Link, "replies_came", lambda link, data: went(link, data.replace(b"HELLx", b"HELLO")))
    return through


async def test_t_w_1_resp2_alone_is_left_to_the_poll(
    resp2_alone: Proxy, start: Start, by_hand: ByHand, caplog: pytest.LogCaptureFixture
) -> None:
    by_hand.redis.config_set(NOTIFICATIONS, "")  # another test may have left them on
    session = start(backoff=Backoff(), to=resp2_alone)
    await polled(session, by_hand)
    assert [("poll serves" in text, "RESP2" in text) for text in warnings(caplog)] == [(True, True)]


@pytest.mark.parametrize(("wanted", "why"), [("tracking", "RESP2"), ("keyspace", NOTIFICATIONS)])
async def test_t_w_1_resp2_alone_and_asked_for_by_name(
    resp2_alone: Proxy, start: Start, by_hand: ByHand, wanted: Any, why: str
) -> None:
    by_hand.redis.config_set(NOTIFICATIONS, "")  # as above
    session = start(wakeup=wanted, to=resp2_alone)
    with pytest.raises(ConfigurationError, match=why):
        await Lock(session, "a").acquire()


# -- connections that die ------------------------------------------------------------------------------------

# How, and on which ways: all from the one connection of somebody else.
KILLS: dict[str, Callable[[ByHand, int], object]] = {
    "its id": lambda by_hand, client: by_hand.redis.client_kill_filter(_id=str(client)),
    "normal": lambda by_hand, _: by_hand.redis.client_kill_filter(_type="normal", skipme=True),
    "pubsub": lambda by_hand, _: by_hand.redis.client_kill_filter(_type="pubsub", skipme=True),
}


def number_of(by_hand: ByHand, name: str) -> int:
    (found,) = [int(one["id"]) for one in by_hand.redis.client_list() if one["name"] == name]
    return found


@pytest.mark.thin
@pytest.mark.parametrize("kill", KILLS)
@pytest.mark.parametrize(
    ("backoff", "within"), [(Backoff(), UNTOLD), (PATIENT, HEARTBEAT)], ids=["default", "patient"]
)
async def test_t_w_2_killed_connection(
    by_hand: ByHand, start: Start, way: str, kill: str, backoff: Backoff, within: float
) -> None:
    """The release falls in between: nobody tells a new connection of it, and nobody waits for long."""
    session = start(wakeup=wakeup(way), backoff=backoff, client_name="waiter")
    by_hand.acquire("a")
    waiting = await wait_asleep(session)
    before = number_of(by_hand, "waiter")
    KILLS[kill](by_hand, before)
    killed = "waiter" not in [one["name"] for one in by_hand.redis.client_list()]
    assert killed == (kill == "its id" or (kill == "pubsub") == (way == "keyspace"))
    by_hand.release("a")
    await (await in_within(within + SLACK, waiting)).release()

    assert (number_of(by_hand, "waiter") != before) == killed
    assert await wake(session, by_hand) == {way: 1}
    assert await wake(session, by_hand, "b") == {way: 1}


async def test_t_w_2_killed_again_and_again(by_hand: ByHand, start: Start, way: str) -> None:
    session = start(wakeup=wakeup(way), backoff=Backoff(), client_name="waiter")
    for _ in range(3):
        by_hand.acquire("a")
        waiting = await wait_asleep(session)
        KILLS["its id"](by_hand, number_of(by_hand, "waiter"))
        by_hand.release("a")
        await (await in_within(UNTOLD + SLACK, waiting)).release()
    assert await wake(session, by_hand) == {way: 1}


async def test_t_w_3_half_open_connection(by_hand: ByHand, start: Start, through: Proxy, way: str) -> None:
    session = start(wakeup=wakeup(way), backoff=Backoff(), to=through)
    by_hand.acquire("a")
    waiting = await wait_asleep(session)
    through.deafen()
    by_hand.release("a")
    await (await in_within(STALL + UNTOLD + SLACK, waiting)).release()
    assert through.connections == 2
    assert await wake(session, by_hand) == {way: 1}


async def test_t_w_4_cut_off_by_the_limit_of_the_output_buffer(
    own_server: OwnServer, start: Start, hands: Callable[..., ByHand]
) -> None:
    server = await own_server()
    by_hand = hands(server)
    session = start(wakeup=wakeup("keyspace"), backoff=Backoff(), to=server, client_name="waiter")
    by_hand.acquire("a")
    waiting = await wait_asleep(session)
    before = number_of(by_hand, "waiter")
    (bell,) = by_hand.redis.scan_iter(match="*.bell.*")

    by_hand.redis.config_set("client-output-buffer-limit", "pubsub 100kb 0 0")
    flood = "for i = 1, 1000 do redis.call('PUBLISH', '__keyspace@0__:' .. ARGV[1], ('x'):rep(1000)) end"
    by_hand.redis.eval(flood, 0, bell)
    by_hand.release("a")
    await (await in_within(UNTOLD + SLACK, waiting)).release()
    assert number_of(by_hand, "waiter") != before
    assert await wake(session, by_hand) == {"keyspace": 1}


async def test_t_w_4_server_restarted_while_somebody_waits(
    own_server: OwnServer, start: Start, hands: Callable[..., ByHand], way: str
) -> None:
    """It comes back empty, with its notifications off."""
    server = await own_server()
    session = start(wakeup=wakeup(way), backoff=Backoff(), to=server)
    hands(server).acquire("a")
    waiting = await wait_asleep(session)
    await server.restart()
    await (await in_within(1.0 + SLACK, waiting)).release()  # it connects again at least every half second
    assert await wake(session, hands(server)) == {way: 1}


async def test_t_w_4_notifications_that_a_restart_has_switched_off(
    own_server: OwnServer, start: Start, hands: Callable[..., ByHand], caplog: pytest.LogCaptureFixture
) -> None:
    """Asked for by name, they were there when the session began: now the poll serves, and the log says so."""
    server = await own_server()
    hands(server).redis.config_set(NOTIFICATIONS, "Kg")
    session = start(wakeup="keyspace", backoff=Backoff(), to=server)
    assert await wake(session, hands(server)) == {"keyspace": 1}
    await server.restart()
    await polled(session, hands(server))
    assert [NOTIFICATIONS in text and "poll serves" in text for text in warnings(caplog)] == [True]


# -- releases that fall in between ---------------------------------------------------------------------------


class OneByOne:
    """The transport of a session, on which each request is executed before the next one is written.

    Attributes:
        requests: The requests that were written since.
        after: Called behind each with their number.
    """

    def __init__(self, session: Session, after: Callable[[int], object]) -> None:
        link = session._engine._transport._raw
        self.requests: list[list[bytes]] = []
        self._after = after
        self._beneath = link.transport
        self._reader = hiredis.Reader()
        link.transport = self

    def write(self, data: bytes) -> None:
        self._reader.feed(data)
        while (request := self._reader.gets()) is not False:
            self._beneath.write(hiredis.pack_command(tuple(request)))
            self.requests.append(request)
            time.sleep(0.003)
            self._after(len(self.requests))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._beneath, name)


@pytest.mark.thin
@pytest.mark.parametrize("again", [False, True], ids=["first wait", "next wait"])
@pytest.mark.parametrize("known", [True, False], ids=["known scripts", "unknown scripts"])
async def test_t_w_5_released_behind_any_request_of_a_waiter(
    by_hand: ByHand, start: Start, way: str, known: bool, again: bool
) -> None:
    """Behind the try that is refused, and how it listens: the poll is never what finds it.

    With tracking it reads its bell. Where the last acquire of a lock was refused, the next one does so in one
    write with the try, which here comes piece by piece.
    """
    sessions = start(wakeup=wakeup(way))
    await warm(sessions)
    await wake(sessions, by_hand)
    behind, late = 0, []
    while True:
        behind += 1
        released = False

        def release(number: int, behind: int = behind) -> None:
            nonlocal released
            if number == behind:
                by_hand.release("a")
                released = True

        session = start(wakeup=wakeup(way))
        async with Lock(session, "other"):
            pass
        lock = Lock(session, "a")
        if again:
            by_hand.acquire("a")
            before = asyncio.create_task(lock.acquire())  # type: ignore[arg-type]
            await eventually(lambda: asleep(session) and not inflight(session))  # noqa: B023
            by_hand.release("a")
            await (await in_within(AT_ONCE, before)).release()
        written = OneByOne(session, release)
        if not known:
            by_hand.redis.script_flush()
        by_hand.acquire("a")
        waiting = asyncio.create_task(lock.acquire())  # type: ignore[arg-type]
        await eventually(lambda: released or (asleep(session) and not inflight(session)))  # noqa: B023
        if not released:
            break
        try:
            await (await in_within(AT_ONCE, waiting)).release()
        except AssertionError:
            late.append((behind, written.requests[:behind]))
    by_hand.release("a")
    await (await in_within(AT_ONCE, waiting)).release()
    assert behind > (
        2 if again else 3
    )  # the try, what goes before it listens if it did not yet, how it listens
    assert any(request[0] == b"GET" for request in written.requests) is (way == "tracking")
    assert not late, [(k, [LISTEN(request) for request in requests]) for k, requests in late]


async def test_t_w_5_released_and_taken_between_refusal_and_listening_again_and_again(
    by_hand: ByHand, start: Start, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A quick task elsewhere rings the bell ten times before it is heard, and then lets go for good.

    Without a heartbeat, a waiter that polls would find that after 5 s.
    """
    monkeypatch.setattr("aiolocks.lock.wakeups._LISTENS_EVERY", 60.0)
    sessions = start(wakeup=wakeup(way))
    await warm(sessions)
    await wake(sessions, by_hand)
    asked = 0

    def between(_: int) -> None:
        nonlocal asked
        if not any(b".fence:" in word for word in written.requests[-1]):
            return
        asked += 1
        if asked <= 10:
            by_hand.release("a")
        if asked < 10:
            by_hand.acquire("a")

    session = start(wakeup=wakeup(way))
    async with Lock(session, "other"):
        pass
    written = OneByOne(session, between)
    by_hand.acquire("a")

    lease = await in_within(4.0, asyncio.create_task(Lock(session, "a").acquire()))  # type: ignore[arg-type]

    assert asked == 11
    await lease.release()


async def test_t_w_5_a_server_that_takes_no_writes_is_polled(
    own_server: OwnServer, hands: Callable[[Any], ByHand], start: Start
) -> None:
    """No bell can hang there, so its waiters do not ask and listen in turn without a pause."""
    own = await own_server()
    holder = hands(own)
    session = start(wakeup="tracking", backoff=Backoff(initial=0.1, maximum=0.1, jitter=0), to=own)
    holder.acquire("a")
    waiting = asyncio.create_task(Lock(session, "a").acquire())  # type: ignore[arg-type]
    await eventually(lambda: asleep(session))
    holder.redis.execute_command("REPLICAOF", "127.0.0.1", "1")
    await asyncio.sleep(2.5)  # a bell ends after 2 s

    before = session.statistics().commands_sent
    await asyncio.sleep(1.0)
    sent = session.statistics().commands_sent - before

    holder.redis.execute_command("REPLICAOF", "NO", "ONE")
    holder.release("a")
    await (await in_within(AT_ONCE + UNTOLD, waiting)).release()
    assert 5 <= sent < 60, "ten asks of three requests at most, and a few when it listens"


def inflight(session: Session) -> int:
    transport = session._engine._transport
    return len(transport._inflight) + len(transport._queue)


async def test_t_w_5_released_at_any_time_over_a_slow_link(
    by_hand: ByHand, start: Start, through: Proxy, way: str
) -> None:
    """Sixty waiters, and a release each, a little later for each: over two round trips and more."""
    session = start(wakeup=wakeup(way), to=through)
    await warm(session)
    await wake(session, by_hand)
    through.delay = 0.04
    late: list[tuple[int, float]] = []

    async def one(number: int) -> None:
        name = f"a{number}"
        by_hand.acquire(name)
        waiting = asyncio.create_task(Lock(session, name).acquire())  # type: ignore[arg-type]
        await asyncio.sleep(number * 0.0025)
        by_hand.release(name)
        released = time.monotonic()
        lease = await waiting
        if (took := time.monotonic() - released) > AT_ONCE:
            late.append((number, took))
        await lease.release()

    await asyncio.gather(*map(one, range(60)))
    assert late == []


# -- names, databases, clients -------------------------------------------------------------------------------

NAMES = [
    "lock[1]", "a*", "a?", "*", "[a-z]", "\\", "\\*", "two\nlines", "\r\n", "n\0ul", "{", "}{", "{}",
    "user:{42}:cart", "a:b", "%7B", "🔒", " ", "ä" * 512,
]  # fmt: skip


@pytest.mark.parametrize("database", [0, 3])
@pytest.mark.parametrize("protocol", [2, 3])
@pytest.mark.parametrize("decode", [False, True], ids=["bytes", "str"])
async def test_t_w_6_any_name_is_heard(
    connect: Connect, start: Start, way: str, database: int, protocol: int, decode: bool
) -> None:
    client: dict[str, Any] = {"db": database, "protocol": protocol, "decode_responses": decode}
    holder, waiter = start(**client), start(wakeup=wakeup(way), **client)
    neighbours = ("lock1", "ab", "two", "n")  # and a waiter that patterns would take for some of them
    others = [await Lock(holder, name).acquire() for name in neighbours]
    leases = [await Lock(holder, name).acquire() for name in NAMES]
    waiting = [asyncio.create_task(Lock(waiter, name).acquire()) for name in NAMES]
    await eventually(lambda: asleep(waiter, number=len(NAMES)), within=5)

    for lease in others:
        await lease.release()
    for lease, task in zip(leases, waiting, strict=True):
        assert not task.done()
        await lease.release()
        got = await in_within(AT_ONCE, task)
        assert got.name == lease.name
        await got.release()
    expected = {"local": 0, "tracking": 0, "keyspace": 0, "poll": 0, way: len(NAMES)}
    assert dict(waiter.statistics().wakeups) == expected


# -- many waiters --------------------------------------------------------------------------------------------


def executed(by_hand: ByHand) -> int:
    """How many commands the server has executed, without those of this question."""
    stats = by_hand.redis.info("commandstats")
    return sum(
        stats.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in ("eval", "evalsha", "subscribe")
    )


async def test_t_w_7_one_release_wakes_one_of_500(by_hand: ByHand, start: Start, way: str) -> None:
    sessions = [start(wakeup=wakeup(way)) for _ in range(5)]
    by_hand.acquire("a")
    waiting = [
        asyncio.create_task(Lock(session, "a").acquire())  # type: ignore[arg-type]
        for session in sessions
        for _ in range(100)
    ]
    await eventually(lambda: all(map(asleep, sessions)), within=5)
    before, heard = executed(by_hand), [rings(session) for session in sessions]
    by_hand.release("a")
    done, others = await asyncio.wait(waiting, timeout=AT_ONCE, return_when=asyncio.FIRST_COMPLETED)
    await asyncio.sleep(0.2)

    assert len(done) == 1
    assert sorted(len(ring) for ring in heard) == [0, 0, 0, 0, 1]
    wakeups = [session.statistics().wakeups for session in sessions]
    assert sum(sum(woken.values()) for woken in wakeups) == sum(woken[way] for woken in wakeups) == 1
    # The release, the try of who was woken, its next in line, and a heartbeat of each.
    assert executed(by_hand) - before <= 2 * len(sessions)

    for task in others:
        task.cancel()
    await asyncio.wait(others)
    await done.pop().result().release()


async def test_t_w_7_renewals_and_local_hand_overs_wake_nobody_else(
    server: Server, start: Start, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aiolocks.lock.queue._RUN_SECONDS", 60)  # as if what follows took no time
    holder = start(wakeup=wakeup(way))
    sessions = [start(wakeup=wakeup(way)) for _ in range(3)]
    lease = await Lock(holder, "a").acquire()
    waiting = [await wait_asleep(session) for session in sessions]
    heard = [rings(session) for session in sessions]

    for _ in range(20):
        await lease.extend()
    for _ in range(10):  # in a row: it would be somebody else's turn after 16
        following = asyncio.create_task(Lock(holder, "a").acquire())  # type: ignore[arg-type]
        await asyncio.sleep(0)
        await lease.release()
        lease = await in_within(AT_ONCE, following)
    assert heard == [[], [], []]
    assert [sum(session.statistics().wakeups.values()) for session in sessions] == [0, 0, 0]

    await lease.release()
    for session, task in zip(sessions, waiting, strict=True):
        await (await in_within(AT_ONCE, task)).release()
        assert session.statistics().wakeups[way] == 1


# -- what others do to keys ----------------------------------------------------------------------------------


def of_queue(by_hand: ByHand, role: str) -> bytes:
    (key,) = by_hand.redis.scan_iter(match=f"aiolocks:lock.{role}*")
    return bytes(key)


DEEDS: dict[str, Callable[[ByHand], object]] = {
    "FLUSHALL": lambda by_hand: by_hand.redis.flushall(),
    "FLUSHDB": lambda by_hand: by_hand.redis.flushdb(),
    "FLUSHALL ASYNC": lambda by_hand: by_hand.redis.flushall(asynchronous=True),
    "SWAPDB": lambda by_hand: by_hand.redis.swapdb(0, 1),
    "DEBUG RELOAD": lambda by_hand: by_hand.redis.execute_command("DEBUG", "RELOAD"),
    "RENAME of the bell": lambda by_hand: by_hand.redis.rename(of_queue(by_hand, "bell"), "x"),
    "DEL of the bell": lambda by_hand: by_hand.redis.delete(of_queue(by_hand, "bell")),
    "UNLINK of the bell": lambda by_hand: by_hand.redis.unlink(of_queue(by_hand, "bell")),
    "EXPIRE of the bell": lambda by_hand: by_hand.redis.pexpire(of_queue(by_hand, "bell"), 20),
    "PERSIST of the bell": lambda by_hand: by_hand.redis.persist(of_queue(by_hand, "bell")),
    "SET of the bell": lambda by_hand: by_hand.redis.set(of_queue(by_hand, "bell"), "x", px=5000),
    "DEL of the queue": lambda by_hand: by_hand.redis.delete(of_queue(by_hand, "queue")),
    "RENAME of the queue": lambda by_hand: by_hand.redis.rename(of_queue(by_hand, "queue"), "x"),
    "DEL of bell and queue": lambda by_hand: by_hand.redis.delete(
        of_queue(by_hand, "bell"), of_queue(by_hand, "queue")
    ),
    "DEL of the lock": lambda by_hand: by_hand.redis.delete("aiolocks:lock:{a}"),
    "SCRIPT FLUSH": lambda by_hand: by_hand.redis.script_flush(),
}


@pytest.mark.thin
@pytest.mark.leaves_keys
@pytest.mark.parametrize("first", [True, False], ids=["before", "right before"])
@pytest.mark.parametrize(
    "deed",
    only(
        DEEDS,
        *(
            "FLUSHALL",
            "SWAPDB",
            "DEBUG RELOAD",
            "RENAME of the bell",
            "DEL of the bell",
            "PERSIST of the bell",
        ),
        *("SET of the bell", "DEL of bell and queue", "DEL of the lock", "SCRIPT FLUSH"),
    ),
)
async def test_t_s_5_whatever_is_done_to_the_keys_the_poll_finds_it_free(
    own_server: OwnServer,
    server_kind: ServerKind,
    start: Start,
    hands: Callable[..., ByHand],
    way: str,
    deed: str,
    first: bool,
) -> None:
    server = await own_server(arguments=allowing_debug(server_kind))
    by_hand = hands(server)
    session = start(wakeup=wakeup(way), backoff=Backoff(), to=server)
    by_hand.acquire("a")
    waiting = await wait_asleep(session)
    DEEDS[deed](by_hand)
    if first:
        await asyncio.sleep(0.1)
    by_hand.release("a")
    await (await in_within(UNTOLD + SLACK, waiting)).release()
    by_hand.redis.flushall()
    assert await wake(session, by_hand) == {way: 1}


@pytest.mark.parametrize("way", [*WAYS, "poll"])
async def test_t_s_4_keys_that_expire_late(
    own_server: OwnServer,
    server_kind: ServerKind,
    connect: Connect,
    start: Start,
    hands: Callable[..., ByHand],
    way: str,
) -> None:
    """Nothing expires by itself, in a crowd of other keys: nobody tells that a dead holder's time is up."""
    server = await own_server(arguments=allowing_debug(server_kind))
    by_hand = hands(server)
    by_hand.redis.execute_command("DEBUG", "SET-ACTIVE-EXPIRE", "0")
    fill = "for i = 1, 100000 do redis.call('SET', 'other' .. i, '', 'PX', 1 + i % 5000) end"
    by_hand.redis.eval(fill, 0)
    session = start(wakeup=wakeup(way), backoff=PATIENT, to=server)
    by_hand.acquire("a", ttl=0.4)
    waiting = asyncio.create_task(Lock(session, "a").acquire())  # type: ignore[arg-type]
    await (await in_within(0.4 + SLACK, waiting)).release()
    by_hand.redis.flushall()


async def test_t_s_1_scripts_forgotten_between_arming_and_release(
    by_hand: ByHand, start: Start, way: str
) -> None:
    session = start(wakeup=wakeup(way))
    by_hand.acquire("a")
    waiting = await wait_asleep(session)
    by_hand.redis.script_flush()
    by_hand.release("a")
    await (await in_within(AT_ONCE, waiting)).release()


async def test_t_w_heartbeat_keeps_a_bell_and_its_ear(by_hand: ByHand, start: Start, way: str) -> None:
    """Longer than a bell lasts by itself: it still hangs, and is still heard."""
    session = start(wakeup=wakeup(way))
    await wake(session, by_hand)
    before = session.statistics().wakeups
    by_hand.acquire("a")
    waiting = await wait_asleep(session)
    await asyncio.sleep(2.5)
    assert session.statistics().wakeups == before
    by_hand.release("a")
    await (await in_within(AT_ONCE, waiting)).release()
    assert session.statistics().wakeups == {**before, way: before[way] + 1}
