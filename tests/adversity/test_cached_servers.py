"""Leases that stay with their session between uses, where servers change: failovers, slots, permissions."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from redis.asyncio import Redis

from aiolocks import ConfigurationError, Lock, LockError, Session
from aiolocks.transport.keys import key
from tests.conftest import PREFIX, Connect, OwnServer, Surroundings, clustered
from tests.support.clusters import Cluster
from tests.support.history import Hold, exclusion, fencing
from tests.support.sentinels import Watched
from tests.support.servers import ServerKind
from tests.support.thinning import only
from tests.support.waiting import eventually

TTL = 60.0
"""Seconds: whoever waits for it has waited for longer than any test may take."""
CACHE = 20.0
"""The same of a lease that nobody uses."""
FAILOVER = 10.0
"""Seconds that it may take, on a busy machine; about two on an idle one."""


async def kept(session: Session, name: str = "a") -> int:
    """Uses the lock so often that its session keeps it; the last fencing token."""
    lock, before = Lock(session, name, ttl=TTL, cache=CACHE), session.statistics().cached
    for _ in range(3):
        async with lock as lease:
            pass
    assert session.statistics().cached == before + 1
    return lease.fencing_token


class Uses:
    """Tasks of several sessions that take one lock again and again, and what they have seen."""

    def __init__(self, *sessions: Session, ttl: float, cache: float) -> None:
        self._sessions = sessions
        self._options = {"ttl": ttl, "cache": cache}
        self.holds: list[Hold] = []
        self.errors: list[BaseException] = []
        self.over = False

    async def run(self, name: str) -> None:
        """Until it is over; each session uses it some times in a row, and then leaves it to the other one."""
        async with asyncio.TaskGroup() as group:
            for number, session in enumerate(self._sessions):
                group.create_task(self._use(session, name, number))

    async def _use(self, session: Session, name: str, number: int) -> None:
        lock = Lock(session, name, blocking_timeout=2 * FAILOVER, on_lost="ignore", **self._options)
        while not self.over:
            for _ in range(8):
                await self._once(lock, name, f"session {number}")
            await asyncio.sleep(0.01 * (number + 1))

    async def _once(self, lock: Lock, name: str, who: str) -> None:
        invoked = time.monotonic()
        try:
            async with lock as lease:
                granted = time.monotonic()
                await asyncio.sleep(0.001)
                released = time.monotonic()
                deadline = released + lease.remaining()
        except LockError as error:
            self.errors.append(error)
            await asyncio.sleep(0.02)
            return
        self.holds.append(
            Hold(
                who=f"{who} {lease.fencing_token}",
                name=name,
                invoked=invoked,
                granted=granted,
                released=released,
                confirmed=time.monotonic(),
                deadline=deadline,
                fencing_token=lease.fencing_token,
            )
        )


# -- Sentinel


@pytest.fixture
async def watched(tmp_path: Path) -> AsyncIterator[Watched]:
    async with Watched(tmp_path) as watched:
        yield watched


@pytest.mark.leaves_keys
@pytest.mark.parametrize(
    "known", only([True, False], False), ids=["the replica has it", "the replica does not"]
)
async def test_a_master_dies_while_it_is_kept(watched: Watched, *, known: bool) -> None:
    """Who waits has it when the new master serves, and not after its ttl; the owner has no hit by it."""
    async with Session(watched.client()) as here, Session(watched.client()) as elsewhere:
        for session in (here, elsewhere):
            await (await Lock(session, "warm up").acquire()).release()
        if not known:
            await watched.cut_off_replica()
        token = await kept(here)
        if known:
            assert await watched.master.client().wait(1, 1000) == 1
        watched.master.kill()
        if not known:
            watched.replica.resume()
        await eventually(lambda: here.statistics().cached == 0)
        hits = here.statistics().cache_hits
        async with asyncio.timeout(3 * FAILOVER):
            async with Lock(elsewhere, "a", ttl=TTL).acquire() as lease:
                assert lease.fencing_token > token
                waiting = asyncio.create_task(Lock(here, "a", ttl=TTL, cache=CACHE).acquire())
                await eventually(lambda: here.statistics().waiters == 1)
            async with await waiting as later:
                assert later.fencing_token > lease.fencing_token
        assert here.statistics().cache_hits == hits


@pytest.mark.more  # as one that dies
@pytest.mark.leaves_keys
async def test_a_master_is_demoted_while_it_is_kept(watched: Watched) -> None:
    """It lives on, and its clients are told of nothing but that they may not write."""
    async with Session(watched.client()) as here, Session(watched.client()) as elsewhere:
        token = await kept(here)
        assert await watched.master.client().wait(1, 1000) == 1
        old = watched.master.client()
        await watched.promote()
        await old.execute_command("REPLICAOF", "127.0.0.1", watched.replica.port)
        async with asyncio.timeout(2 * FAILOVER):
            async with Lock(elsewhere, "a", ttl=TTL).acquire() as lease:
                assert lease.fencing_token > token
            async with Lock(here, "a", ttl=TTL, cache=CACHE).acquire() as later:
                assert later.fencing_token > lease.fencing_token


@pytest.mark.more  # as a master that dies
@pytest.mark.leaves_keys
async def test_two_sessions_that_keep_it_go_on_after_a_failover(watched: Watched) -> None:
    async with Session(watched.client()) as here, Session(watched.client()) as elsewhere:
        uses = Uses(here, elsewhere, ttl=TTL, cache=CACHE)
        using = asyncio.create_task(uses.run("a"))
        await eventually(lambda: len(uses.holds) > 100)
        assert await watched.master.client().wait(1, 1000) == 1
        watched.master.kill()
        before = len(uses.holds)
        await eventually(watched.failed_over, within=FAILOVER)
        await eventually(lambda: len(uses.holds) > before + 100, within=2 * FAILOVER)
        uses.over = True
        await asyncio.wait_for(using, 3 * FAILOVER)
    # A master that died may have granted what its replica has not heard of: those two are before its death.
    assert exclusion(uses.holds) == []
    assert fencing(uses.holds) == []


# -- a cluster


@pytest.fixture
def cluster(surroundings: Surroundings, shared_cluster: Cluster) -> Cluster:
    shared_cluster.begin(surroundings)
    return shared_cluster


@pytest.fixture
async def sessions(surroundings: Surroundings, cluster: Cluster) -> AsyncIterator[list[Session]]:
    async with (
        Session(clustered(surroundings, cluster)) as one,
        Session(clustered(surroundings, cluster)) as two,
    ):
        yield [one, two]


async def test_its_slot_moves_while_it_is_kept(cluster: Cluster, sessions: list[Session]) -> None:
    """The deletion on the old node is a recall, and the release finds the lease on the new one."""
    here, elsewhere = sessions
    token = await kept(here)
    slot = cluster.slot(key(PREFIX, "lock", "a"))
    source = cluster.settle(slot)
    await asyncio.to_thread(cluster.move, slot, cluster.another(source))
    async with asyncio.timeout(FAILOVER):
        async with Lock(elsewhere, "a", ttl=TTL).acquire() as lease:
            assert lease.fencing_token > token
        async with Lock(here, "a", ttl=TTL, cache=CACHE).acquire() as later:
            assert later.fencing_token > lease.fencing_token


async def test_another_session_asks_while_its_slot_moves(cluster: Cluster, sessions: list[Session]) -> None:
    """First its keys are on the old node, then on the new one; the move itself has no end."""
    here, elsewhere = sessions
    token = await kept(here)
    slot = cluster.slot(key(PREFIX, "lock", "a"))
    source = cluster.settle(slot)
    to = cluster.another(source)
    cluster.begin_move(slot, source, to)
    try:
        keys = source.do("CLUSTER", "GETKEYSINSLOT", slot, 100)
        waiting = asyncio.create_task(Lock(elsewhere, "a", ttl=TTL).acquire())
        await asyncio.sleep(0.2)
        await asyncio.to_thread(cluster.carry, keys, source, to)
        await eventually(lambda: here.statistics().cached == 0)
    finally:
        while left := source.do("CLUSTER", "GETKEYSINSLOT", slot, 100):
            cluster.carry(left, source, to)
        cluster.end_move(slot, source, to)
    async with await asyncio.wait_for(waiting, FAILOVER) as lease:
        assert lease.fencing_token > token


async def test_two_sessions_keep_it_in_turn_while_its_slot_moves(
    cluster: Cluster, sessions: list[Session]
) -> None:
    uses = Uses(*sessions, ttl=5.0, cache=0.5)
    using = asyncio.create_task(uses.run("a"))
    slot = cluster.slot(key(PREFIX, "lock", "a"))
    for _ in range(6):
        await asyncio.sleep(0.1)
        before = len(uses.holds)
        source = await asyncio.to_thread(cluster.settle, slot)
        await asyncio.to_thread(cluster.move, slot, cluster.another(source), dwell=0.01)
        await eventually(lambda: len(uses.holds) > before, within=FAILOVER)  # noqa: B023 - it is awaited
    uses.over = True
    await asyncio.wait_for(using, FAILOVER)
    assert uses.errors == []
    assert exclusion(uses.holds) == []
    assert fencing(uses.holds) == []


@pytest.mark.more  # as a master that dies behind Sentinel
@pytest.mark.leaves_keys
async def test_its_node_dies_while_it_is_kept(server_kind: ServerKind) -> None:
    if server_kind.executable is None:
        pytest.skip(f"not with {server_kind}: it kills its servers")
    with Cluster(server_kind.executable, replicas=3) as cluster:
        one, two = cluster.client(), cluster.client()
        async with Session(one) as here, Session(two) as elsewhere:
            async with Lock(elsewhere, "a"):
                pass
            token = await kept(here)
            owner = cluster.owner_of(key(PREFIX, "lock", "a"))
            owner.do("WAIT", 1, 1000)
            owner.server.kill()
            await eventually(lambda: here.statistics().cached == 0)
            lease = await Lock(elsewhere, "a", ttl=TTL).acquire(blocking_timeout=3 * FAILOVER)
            assert lease.fencing_token > token
            await lease.release()
        await one.aclose()
        await two.aclose()


# -- permissions


async def modest(admin: Redis, *denied: str) -> dict[str, str]:
    """Credentials of a user who may do anything but this."""
    rules = ["reset", "on", ">secret", "~*", "&*", "+@all", *(f"-{command}" for command in denied)]
    await admin.execute_command("ACL", "SETUSER", "modest", *rules)
    return {"username": "modest", "password": "secret"}


@pytest.mark.parametrize(
    "denied", [("client|tracking",), ("client|caching",), ("client|tracking", "subscribe")]
)
async def test_where_tracking_is_denied_it_is_a_lock_as_without_a_cache(
    own_server: OwnServer, connect: Connect, caplog: pytest.LogCaptureFixture, denied: tuple[str, ...]
) -> None:
    server = await own_server()
    redis = connect(server)
    user = await modest(redis, *denied)
    async with Session(connect(server, **user)) as here, Session(connect(server)) as elsewhere:
        lock = Lock(here, "a", ttl=TTL, cache=CACHE)
        for _ in range(4):
            async with lock:
                assert await Lock(elsewhere, "a").try_acquire() is None
            assert not await redis.exists("aiolocks:lock:{a}")
        async with Lock(elsewhere, "a", ttl=TTL).acquire(blocking_timeout=2):
            assert await lock.try_acquire() is None
        counts = here.statistics()
        assert (counts.cache_hits, counts.cached) == (0, 0)
    warnings = [one.getMessage() for one in caplog.records if one.levelno == logging.WARNING]
    for said in (
        "the server refuses CLIENT TRACKING or CLIENT CACHING",
        "with a cache= are released at once",
    ):
        assert len([one for one in warnings if said in one]) == 1


async def test_where_tracking_is_denied_and_asked_for_by_name_nothing_is_had(
    own_server: OwnServer, connect: Connect
) -> None:
    server = await own_server()
    user = await modest(connect(server), "client|tracking")
    async with Session(connect(server, **user), wakeup="tracking") as session:
        with pytest.raises(ConfigurationError, match="CLIENT TRACKING"):
            async with Lock(session, "a", cache=1):
                pass


async def test_who_may_not_track_gets_what_another_session_keeps(
    own_server: OwnServer, connect: Connect
) -> None:
    server = await own_server()
    user = await modest(connect(server), "client|tracking", "subscribe")
    async with Session(connect(server)) as here, Session(connect(server, **user)) as elsewhere:
        token = await kept(here)
        async with Lock(elsewhere, "a").acquire(blocking_timeout=2) as lease:
            assert lease.fencing_token > token
        lease = await Lock(elsewhere, "a").acquire()
        await lease.release()


async def test_tracking_that_is_denied_from_now_on_ends_it_with_the_connection(
    own_server: OwnServer, connect: Connect
) -> None:
    server = await own_server()
    admin = connect(server)
    user = await modest(admin)
    async with Session(connect(server, **user)) as here, Session(connect(server)) as elsewhere:
        token = await kept(here)
        await modest(admin, "client|tracking")
        await admin.execute_command("CLIENT", "KILL", "USER", "modest")
        async with Lock(elsewhere, "a", ttl=TTL).acquire(blocking_timeout=5) as lease:
            assert lease.fencing_token > token
        for _ in range(3):
            async with Lock(here, "a", ttl=TTL, cache=CACHE):
                pass
        assert here.statistics().cached == 0


async def test_without_a_push_it_is_kept_for_its_time_and_no_longer(
    own_server: OwnServer, connect: Connect
) -> None:
    """The right to be told of keys is taken away while a session lives: the grant is tracked by nobody."""
    server = await own_server()
    admin = connect(server)
    user = await modest(admin)
    async with Session(connect(server, **user)) as here, Session(connect(server)) as elsewhere:
        async with Lock(here, "a", ttl=TTL):
            pass
        await modest(admin, "client|caching")
        lock, cache = Lock(here, "a", ttl=TTL, cache=0.5), 0.5
        for _ in range(3):
            async with lock as lease:
                pass
        began = time.monotonic()
        async with Lock(elsewhere, "a", ttl=TTL).acquire(blocking_timeout=5) as later:
            assert time.monotonic() - began < cache + 1
            assert later.fencing_token > lease.fencing_token
