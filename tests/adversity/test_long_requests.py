"""One request that a server or the way to it does not take harms no other lease of the session."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from redis.asyncio import Redis

from aiolocks import (
    BackendError,
    FairLock,
    FencedRegister,
    Lease,
    LeaseState,
    Lock,
    LockError,
    ResultNotKeptError,
    Session,
    SingleFlight,
)
from aiolocks.transport import connection
from tests.adversity.tools import (
    ACQUIRE,
    Keys,
    begin,
    elapsed,
    look_at,
    rejected,
    renewed,
    with_own_connections,
)
from tests.conftest import Connect, OwnServer
from tests.support.clusters import Cluster
from tests.support.proxy import Proxy, Request
from tests.support.thinning import only
from tests.support.waiting import eventually

pytestmark = pytest.mark.leaves_keys("aiolocks:fencedregister:*")

OpenProxy = Callable[[Any], Any]
TTL = 3.0
LARGE = b"x" * 3_000_000


@asynccontextmanager
async def five_leases(session: Session) -> AsyncIterator[list[Lease]]:
    """Held by the session for the length of the block, and renewed behind it."""
    leases = [await Lock(session, f"held {number}", ttl=TTL).acquire() for number in range(5)]
    yield leases
    await renewed(*leases)
    assert [lease.state for lease in leases] == [LeaseState.HELD] * 5
    for lease in leases:
        await lease.release()


@pytest.fixture
async def modest(own_server: OwnServer, connect: Connect, proxy: OpenProxy) -> Proxy:
    """A proxy to a server that closes a connection as soon as a request has more than 1 MiB."""
    server = await own_server()
    await connect(server).config_set("client-query-buffer-limit", 1024 * 1024)
    through: Proxy = await proxy(server)
    return through


def roomy(client: Redis) -> Session:
    return Session(client, largest_metadata=10_000_000, largest_value=10_000_000)


@pytest.mark.parametrize("plain", [False, True], ids=["multiplexed", "plain"])
async def test_a_value_that_the_server_does_not_read_is_refused_and_the_leases_of_the_session_live(
    modest: Proxy, connect: Connect, plain: bool
) -> None:
    client = connect(modest)
    async with roomy(with_own_connections(client) if plain else client) as session, five_leases(session):
        with elapsed() as took:
            error = await rejected(FencedRegister(session, "a").write(LARGE, 1))
        assert "closed 2 connections in a row" in str(error)
        assert "3000" in str(error)
        assert took.seconds < TTL
        for _ in range(3):
            await rejected(FencedRegister(session, "a").write(LARGE, 1))
        assert plain or modest.connections <= 1 + 4 * 2


@pytest.mark.more  # as a value
async def test_a_result_that_the_server_does_not_read_is_made_once_and_the_leases_of_the_session_live(
    modest: Proxy, connect: Connect
) -> None:
    made = 0

    async def make() -> str:
        nonlocal made
        made += 1
        return LARGE.decode()

    async with roomy(connect(modest)) as session, five_leases(session):
        flight = SingleFlight(session, ttl=5, keep=60)
        for here in (True, False):
            with pytest.raises(ResultNotKeptError) as caught:
                await flight.do("k", make)
            assert caught.value.here is here
        assert made == 1


@pytest.mark.parametrize("kind", only([Lock, FairLock], FairLock))
async def test_metadata_that_the_server_does_not_read_are_refused_and_the_leases_of_the_session_live(
    modest: Proxy, connect: Connect, keys: Keys, kind: Any
) -> None:
    async with roomy(connect(modest)) as session, five_leases(session):
        large = {"a": LARGE.decode()}
        with elapsed() as took:
            await rejected(kind(session, "a", metadata=large).acquire(blocking_timeout=TTL / 2))
        assert took.seconds < TTL
        async with kind(session, "a", blocking_timeout=TTL):
            pass


async def test_a_short_request_that_ends_connections_is_told_from_the_others(
    connect: Connect, through: Proxy
) -> None:
    """As by a firewall that does not like what is in it."""
    async with Session(connect(through)) as session, five_leases(session):
        cuts = 0

        def cut(request: Request) -> None:
            nonlocal cuts
            if ACQUIRE(request) and any(b"not liked" in word for word in request):
                cuts += 1
                through.cut()

        look_at(through, cut)
        error = await rejected(Lock(session, "not liked").acquire(blocking_timeout=5))
        assert "closed 2 connections in a row while only this request" in str(error)
        # One that had served, two new ones, and then two on which nothing else was on its way.
        assert cuts >= 5
        through._traps.clear()


@pytest.mark.more  # as what a server does not read
async def test_a_long_request_on_a_slow_line_is_sent_once_and_holds_up_no_renewal(
    connect: Connect, through: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So short a patience with a silent server that the request takes several times as long."""
    monkeypatch.setattr(connection, "STALL", 0.4)
    async with roomy(connect(through)) as session, five_leases(session) as leases:
        through.rate = 2_000_000.0
        register, value = FencedRegister(session, "a"), LARGE[:2_000_000]
        writing = begin(register.write(value, 1))
        await renewed(*leases)
        assert not writing.done()
        await writing
        assert through.connections == 2
        through.rate = None
        assert await register.read() == value


@pytest.mark.soak
async def test_thirty_megabytes_on_a_line_of_five_a_second(connect: Connect, through: Proxy) -> None:
    session = Session(connect(through), largest_value=50_000_000, command_timeout=20)
    async with session, five_leases(session):
        through.rate = 5_000_000.0
        await FencedRegister(session, "a").write(10 * LARGE, 1)
        assert through.connections == 2


async def test_what_follows_a_long_request_of_its_name_comes_behind_it(
    connect: Connect, through: Proxy, keys: Keys
) -> None:
    """An acquire that is cancelled while it is being sent, and its undo."""
    metadata = {"a": "x" * 400_000}
    async with roomy(connect(through)) as session:
        lock = Lock(session, "a", ttl=20, metadata=metadata)
        for share in (0.1, 0.5, 0.9):
            through.rate = 2_000_000.0
            acquiring = asyncio.create_task(lock.acquire())
            await asyncio.sleep(0.2 * share)
            acquiring.cancel()
            await asyncio.wait([acquiring])
            if not acquiring.cancelled():  # on a machine that stood still, it was through before
                await acquiring.result().release()
            through.rate = None
            async with Lock(session, "other"):
                pass
            await eventually(lambda: keys() == [], within=5)


async def test_long_requests_keep_their_order_with_others_of_their_name(
    connect: Connect, through: Proxy
) -> None:
    async with roomy(connect(through)) as session:
        register = FencedRegister(session, "a")
        for token in itertools.islice(itertools.count(1, 3), 5):
            small, large = f"{token}", f"{token}" * 300_000
            writes = [register.write(value, token) for value in (small, large, small + "!")]
            await asyncio.gather(*writes)
            assert await register.read() == small + "!"


async def test_the_connection_of_long_requests_is_closed_when_it_has_nothing_to_do(
    connect: Connect, through: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "_IDLE", 0.2)
    async with Session(connect(through)) as session:
        register = FencedRegister(session, "a")
        for _ in range(2):
            await register.write(b"x" * 500_000, 1)
            assert through.open_connections == 2
            await eventually(lambda: through.open_connections == 1, within=3)
        assert through.connections == 3


async def test_a_session_that_is_closed_while_a_long_request_is_being_sent(
    connect: Connect, through: Proxy
) -> None:
    session = roomy(connect(through))
    await FencedRegister(session, "a").write("small", 1)
    through.rate = 1_000_000.0
    writing = asyncio.create_task(FencedRegister(session, "a").write(LARGE, 1))
    await eventually(lambda: through.connections == 2)
    with elapsed() as took:
        await session.aclose()
    assert took.seconds < 3
    outcome = (await asyncio.gather(writing, return_exceptions=True))[0]
    assert outcome is None or isinstance(outcome, Exception)
    assert not isinstance(outcome, BackendError) or "answer" not in str(outcome)
    through.rate = None


async def test_long_requests_find_the_node_that_their_slot_has_moved_to(
    cluster: Cluster, sessions: list[Session]
) -> None:
    session, other = sessions
    register, value = FencedRegister(session, "a"), "x" * 300_000
    async with Lock(session, "a"):
        await register.write(value, 1)
        slot = cluster.slot(b"aiolocks:fencedregister:{a}")
        for token in (2, 3):
            await asyncio.to_thread(cluster.move, slot, cluster.another(cluster.settle(slot)))
            writes = [register.write(f"{value}{number}", token) for number in range(2)]
            await asyncio.gather(*writes, register.write("last", token))
            assert await FencedRegister(other, "a").read() == "last"


async def test_a_session_that_is_closed_while_a_long_request_waits_for_another(
    connect: Connect, through: Proxy
) -> None:
    session = roomy(connect(through))
    register = FencedRegister(session, "a")
    await register.write("first", 1)
    through.drop_replies = True
    writing = [asyncio.create_task(register.write(value, 1)) for value in ("second", LARGE)]
    await through.saw(b"second")
    closing = asyncio.create_task(session.aclose())
    await asyncio.sleep(0.2)
    through.refuse = True
    through.cut()
    await asyncio.wait_for(closing, 3)
    outcomes = await asyncio.gather(*writing, return_exceptions=True)
    assert all(isinstance(outcome, LockError) for outcome in outcomes)
    assert through.connections == 1


async def test_a_long_request_that_waits_for_another_says_why_that_has_no_answer(
    connect: Connect, through: Proxy
) -> None:
    async with Session(connect(through), command_timeout=1.5) as session:
        register = FencedRegister(session, "a")
        await register.write("first", 1)
        through.drop_replies = True
        writing = [asyncio.create_task(register.write(value, 1)) for value in ("second", LARGE[:500_000])]
        await through.saw(b"second")
        through.refuse = True
        through.cut()
        outcomes = await asyncio.gather(*writing, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [BackendError, BackendError]
        assert "cannot be reached" in str(outcomes[1])
        through.refuse = through.drop_replies = False
