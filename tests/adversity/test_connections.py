"""Connections that break: what is still on its way on them, and what others keep.

T-N-6 to T-N-8 of `tests/FAULTS.md`, and T-H-7 as far as it is about connections.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError

from aiolocks import Backoff, LeaseState, Lock, LockTimeoutError, Session
from aiolocks.testing import EmbeddedServer
from tests.adversity.tools import (
    ACQUIRE,
    RENEW,
    SLACK,
    Formed,
    Keys,
    Witness,
    elapsed,
    hold_once,
    look_at,
    rejected,
    renewed,
    repeating,
    strangers,
    warm,
    with_own_connections,
)
from tests.conftest import Connect, OwnServer
from tests.support.history import Hold, exclusion, fencing
from tests.support.processes import Workers, tell
from tests.support.proxy import Proxy, Request
from tests.support.servers import Server
from tests.support.waiting import eventually

OpenProxy = Callable[[Server], Any]


# -- bytes that arrive late ----------------------------------------------------------------------------------


async def stranded_acquire(client: Redis, through: Proxy, *, cancel: str) -> None:
    """Cut the connection with an acquire on it, which arrives when all is over."""
    lock = Lock(client, "a", ttl=5)
    sent = through.count(ACQUIRE)
    through.hold_requests = True
    acquiring = asyncio.create_task(lock.acquire())
    await through.saw(ACQUIRE, count=sent + 1)
    if cancel == "before":
        acquiring.cancel()
        await asyncio.wait([acquiring])
    through.strand()
    if cancel == "after":
        await asyncio.sleep(0)
        acquiring.cancel()
    if cancel == "never":
        lease = await acquiring
        await lease.release()
    else:
        await asyncio.wait([acquiring])
        assert acquiring.cancelled()
        await eventually(lambda: through.open_connections == 1)
        assert not await lock.locked()
    await through.deliver()


@pytest.mark.parametrize("cancel", ["never", "before", "after"])
async def test_t_n_6_acquire_that_arrives_late_holds_nothing(
    connect: Connect, through: Proxy, keys: Keys, cancel: str
) -> None:
    client = connect(through)
    await warm(client)
    for _ in range(50):
        await stranded_acquire(client, through, cancel=cancel)
        assert keys() == []


async def test_t_n_6_first_acquire_of_a_session_that_arrives_late_holds_nothing(
    connect: Connect, through: Proxy, redis: Redis, keys: Keys
) -> None:
    """Though nothing is known yet of the connection that it was sent on."""
    await warm(redis)  # the scripts are known

    def hold_it_here(request: Request) -> None:
        if ACQUIRE(request):
            through.hold_requests = True

    for _ in range(20):
        client = connect(through)
        look_at(through, hold_it_here)
        acquiring = asyncio.create_task(Lock(client, "a", ttl=5).acquire())
        await eventually(lambda: through.hold_requests)
        through._traps.clear()
        through.strand()
        lease = await acquiring
        await lease.release()
        await through.deliver()
        left = keys()
        await redis.delete(*left or ["none"])
        assert left == []


async def test_t_n_6_connection_that_breaks_while_the_old_one_is_to_be_dropped(
    connect: Connect, through: Proxy, redis: Redis, keys: Keys
) -> None:
    """The network flaps: what was to drop the old connection is lost itself."""
    client = connect(through)
    await warm(client)
    lock = Lock(client, "a", ttl=5)

    through.hold_requests = True
    acquiring = asyncio.create_task(lock.acquire())
    await through.saw(ACQUIRE, count=2)
    through.strand()

    def hold_it_here(request: Request) -> None:
        if request[:2] == [b"CLIENT", b"KILL"]:
            through.hold_requests = True

    look_at(through, hold_it_here)
    await eventually(lambda: through.hold_requests)
    through._traps.clear()
    for link in [link for link in through._links if not link.stranded]:
        link.cut()  # with the CLIENT KILL on it
    through.hold_requests = False

    lease = await acquiring
    await lease.release()
    await through.deliver()
    left = keys()
    await redis.delete(*left or ["none"])
    assert left == []


async def test_t_n_6_release_that_arrives_late_harms_nobody(
    connect: Connect, through: Proxy, redis: Redis
) -> None:
    client = connect(through)
    await warm(client)
    lease = await Lock(client, "a", ttl=5).acquire()
    through.hold_requests = True
    releasing = asyncio.create_task(lease.release())
    await asyncio.sleep(0.01)
    through.strand()
    await releasing
    async with Lock(redis, "a") as other:
        await through.deliver()
        assert await other.owned()


async def test_t_h_7_renewal_that_arrives_late_prolongs_nothing(
    connect: Connect, through: Proxy, redis: Redis, keys: Keys
) -> None:
    client = connect(through)
    await warm(client)
    lease = await Lock(client, "a", ttl=1.5).acquire()
    through.hold_requests = True
    await through.saw(RENEW, count=2)
    renewal = next(request for request in reversed(through.requests) if RENEW(request))
    through.strand()
    await lease.release()
    async with Lock(redis, "a", ttl=5, auto_renew=False):
        (key,) = keys()
        before = await redis.pttl(key)
        await through.deliver()
        assert await redis.execute_command(*renewal) == 0
        assert await redis.pttl(key) <= before


@pytest.mark.leaves_keys
async def test_t_n_6_where_the_old_connection_cannot_be_dropped_nothing_lasts_longer_than_a_ttl(
    connect: Connect, through: Proxy, redis: Redis, keys: Keys, caplog: pytest.LogCaptureFixture
) -> None:
    await redis.acl_setuser(
        "modest", enabled=True, nopass=True, keys=["*"], commands=["+@all", "-client|kill"], reset=True
    )
    caplog.set_level(logging.INFO, logger="aiolocks")
    client = connect(through, username="modest", password="any")
    await warm(client)
    lock = Lock(client, "a", ttl=1)
    through.hold_requests = True
    acquiring = asyncio.create_task(lock.acquire())
    await through.saw(ACQUIRE, count=2)
    through.strand()
    await (await acquiring).release()
    await through.deliver()
    await eventually(lambda: keys() == [], within=1 + SLACK)
    assert "CLIENT KILL is denied" in caplog.text
    async with lock.acquire(blocking_timeout=5):
        pass
    await redis.acl_deluser("modest")


@pytest.mark.leaves_keys
async def test_t_n_6_over_the_plain_transport_nothing_lasts_longer_than_a_ttl(
    connect: Connect, through: Proxy, keys: Keys
) -> None:
    client = connect(Formed(through, "own connections"))
    await warm(client)
    lock = Lock(client, "a", ttl=1)
    for cancel in (False, True):
        sent = through.count(ACQUIRE)
        through.hold_requests = True
        acquiring = asyncio.create_task(lock.acquire())
        await through.saw(ACQUIRE, count=sent + 1)
        through.strand()
        if cancel:
            acquiring.cancel()
            await asyncio.wait([acquiring])
        else:
            await (await acquiring).release()
        await through.deliver()
        await eventually(lambda: keys() == [], within=1 + SLACK)


async def test_t_n_6_strangers_connection_is_never_dropped(
    own_server: OwnServer, connect: Connect, proxy: OpenProxy, keys: Keys
) -> None:
    """A restarted server counts its connections from the start: our old number is somebody else's."""
    server = await own_server()
    through = await proxy(server)
    client = connect(through, client_name="ours")
    await warm(client)
    lock = Lock(client, "a", ttl=5)
    for _ in range(3):
        ours = await _number_of("ours", server)
        through.hold_requests = True
        sent = through.count(ACQUIRE)
        acquiring = asyncio.create_task(lock.acquire())
        await through.saw(ACQUIRE, count=sent + 1)
        through.refuse = True
        through.strand()
        await server.restart()
        async with strangers(server, ours + 10) as others:
            numbers = [int((await other.ask("CLIENT", "ID")).strip(b":\r\n")) for other in others]
            assert min(numbers) <= ours <= max(numbers)
            through.refuse = False
            lease = await acquiring
            assert [await other.ask("PING") for other in others] == [b"+PONG\r\n"] * len(others)
            await lease.release()
        await through.deliver()
        assert keys(server) == []


async def _number_of(name: str, server: EmbeddedServer) -> int:
    async with server.client() as looking:
        (number,) = [int(one["id"]) for one in await looking.client_list() if one["name"] == name]
        return number


# -- killed connections --------------------------------------------------------------------------------------


@pytest.mark.parametrize("seconds", [1, pytest.param(20, marks=pytest.mark.soak)])
async def test_t_n_7_all_connections_killed_all_the_time(
    own_server: OwnServer, connect: Connect, keys: Keys, seconds: int
) -> None:
    server = await own_server()
    sessions = [Session(connect(server), backoff=Backoff(maximum=0.008)) for _ in range(3)]
    plain = with_own_connections(connect(server, retry=Retry(NoBackoff(), 0)))
    sessions.append(Session(plain, backoff=Backoff(maximum=0.008)))
    admin = connect(server)
    holds: list[Hold] = []
    until = asyncio.get_running_loop().time() + seconds
    cycles: Counter[int] = Counter()

    def enough() -> bool:
        """However long a busy machine takes for it."""
        return len(cycles) == 8 and cycles.total() > 50 * seconds

    async def work(number: int) -> None:
        lock = Lock(sessions[number % len(sessions)], f"a{number % 2}", ttl=10)
        while asyncio.get_running_loop().time() < until or not enough():
            await hold_once(lock, holds, f"task {number}")
            cycles[number] += 1

    async def kill() -> None:
        await admin.execute_command("CLIENT", "KILL", "TYPE", "normal")

    async with repeating(kill, every=0.05):
        await asyncio.gather(*map(work, range(8)))

    assert exclusion(holds) == []
    assert fencing(holds) == []
    for session in sessions:
        assert session.statistics().losses == 0
        await session.aclose()
    assert keys(server) == []


async def test_t_n_7_connection_killed_between_two_requests_is_not_noticed(
    connect: Connect, redis: Redis
) -> None:
    client = connect()
    lock = Lock(client, "a", ttl=2)
    for _ in range(5):
        async with lock as lease:
            await redis.execute_command("CLIENT", "KILL", "TYPE", "normal")
            assert await lease.owned()
        assert lease.state is LeaseState.RELEASED


# -- many processes ------------------------------------------------------------------------------------------


async def count_up(locks: str, data: str, times: int) -> None:
    """Read, pause, write: right only if nobody else does so at the same time."""
    holds = []
    async with Redis.from_url(locks) as lock_client, Redis.from_url(data) as data_client:
        session = Session(lock_client, backoff=Backoff(initial=0.001, maximum=0.008))
        async with session:
            lock = Lock(session, "counter", ttl=20)  # which a busy machine does not outlast
            for _ in range(times):
                async with lock as lease:
                    value = int(await data_client.get("value") or 0)
                    await asyncio.sleep(random.uniform(0, 0.0005))
                    await data_client.set("value", value + 1)
                    holds.append([value, lease.fencing_token])
            assert session.statistics().losses == 0
    tell("counted", holds=holds)


@pytest.mark.more  # as connections that are killed
async def test_t_n_7_exactly_a_thousand_through_a_network_that_keeps_breaking(
    connect: Connect, through: Proxy, server: Server, workers: Workers, keys: Keys
) -> None:
    """Four processes, 250 unprotected read-modify-writes each, with all connections cut at random."""
    redis = connect()
    processes = await workers.start_many(4, count_up, locks=through.url, data=server.url, times=250)
    await through.saw(ACQUIRE)
    cuts = 0
    chance = random.Random(7)
    while any(process.returncode is None for process in processes) and cuts < 2000:
        await asyncio.sleep(chance.uniform(0.005, 0.06))
        through.cut()
        cuts += 1
        if int(await redis.get("value") or 0) >= 1000:
            break
    reports = [(await process.finish())[-1] for process in processes]

    assert int(await redis.getdel("value")) == 1000
    assert cuts > 20
    in_order = sorted(tuple(hold) for report in reports for hold in report["holds"])
    assert [value for value, _ in in_order] == list(range(1000))
    tokens = [token for _, token in in_order]
    assert tokens == sorted(set(tokens))
    assert keys() == []


# -- connections are scarce ----------------------------------------------------------------------------------


@pytest.mark.more  # as T-N-8 of a thousand waiters
async def test_t_n_8_three_hundred_waiters_take_none_of_the_users_connections(
    connect: Connect, redis: Redis
) -> None:
    client = connect()
    pool = client.connection_pool
    witness = Witness()
    async with Session(client, listeners=[witness]) as session:
        lock = Lock(client, "a", ttl=5)
        elsewhere = Lock(session, "a", ttl=5)
        holder = Lock(redis, "a", ttl=2)
        lease = await holder.acquire()
        entered = 0

        async def enter(which: Lock) -> None:
            nonlocal entered
            async with which:
                entered += 1

        waiting = [asyncio.create_task(enter((lock, elsewhere)[number % 2])) for number in range(300)]
        for _ in range(10):
            await asyncio.sleep(0.1)
            assert lease.state is LeaseState.HELD
            assert not pool._in_use_connections
            assert not pool._available_connections
        assert Session.of(client).statistics().waiters == session.statistics().waiters == 150
        # One in each session asks; nobody spins.
        assert session.statistics().commands_sent < 1.0 / 0.032 * 2
        await lease.release()
        await asyncio.wait_for(asyncio.gather(*waiting), 30)
        assert entered == 300
        assert witness.lost == []


async def test_t_n_8_a_pool_of_one_that_is_taken(connect: Connect, form: str) -> None:
    """The user's only connection is in use: neither acquiring nor renewing nor releasing waits for it."""
    client = connect(max_connections=1)
    if form == "own connections":
        client = with_own_connections(client)
    async with client.pipeline() as pipeline:
        await pipeline.watch("data")  # takes the connection
        async with Lock(client, "a", ttl=1.5) as lease:
            await renewed(lease)
            assert lease.state is LeaseState.HELD


@pytest.mark.more  # as `maxclients` among the troubles
async def test_t_n_8_server_that_admits_no_more_connections(
    own_server: OwnServer, connect: Connect, keys: Keys
) -> None:
    server = await own_server(arguments=("--maxclients", "5"))
    client = connect(server)
    lock = Lock(client, "a", ttl=3)
    async with lock as lease:
        # The inspector, our session, and these.
        async with strangers(server, 3):
            newcomer = connect(server)
            errors = []
            while len(errors) < 10 or (len(errors) < 60 and not any("max number" in str(e) for e in errors)):
                with elapsed() as took:
                    errors.append(await rejected(Lock(newcomer, "b").acquire(blocking_timeout=0.1)))
                assert took.seconds < 0.1 + SLACK
                assert isinstance(errors[-1].__cause__, RedisConnectionError)
            # Now and then the server closes the socket before the client has written to it.
            assert any("max number of clients reached" in str(error) for error in errors)
            waiting = asyncio.create_task(Lock(newcomer, "b").acquire(blocking_timeout=20))
            await renewed(lease)
            assert lease.state is LeaseState.HELD
            assert not waiting.done()
        # Now that there is room again, who still has time gets in.
        await (await waiting).release()
    assert keys(server) == []
    with pytest.raises(LockTimeoutError):
        async with lock:
            await Lock(client, "a").acquire(blocking_timeout=0.01)
