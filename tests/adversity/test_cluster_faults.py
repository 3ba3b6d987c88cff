"""The faults of a cluster while locks are used: slots move, nodes die, scripts are forgotten."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest
from redis.asyncio import RedisCluster

from aiolocks import (
    BackendError,
    Combiner,
    Lease,
    LeaseState,
    Lock,
    LockLostError,
    LockNotOwnedError,
    LockTimeoutError,
    Session,
    SessionClosedError,
)
from aiolocks.transport.connection import bare
from aiolocks.transport.keys import key
from aiolocks.transport.request import ignore
from tests.adversity.tools import SLACK, Witness
from tests.conformance.conftest import KINDS, Kind
from tests.conftest import PREFIX, Surroundings, clustered
from tests.support.clusters import Cluster
from tests.support.history import Hold, exclusion, fencing
from tests.support.servers import ServerKind
from tests.support.thinning import only
from tests.support.waiting import eventually

CONTRACT = (LockTimeoutError, BackendError, LockLostError, LockNotOwnedError)
"""The errors with which a lock may end, in any fault of the server."""

NAMES = [f"order:{number}" for number in range(50)]
CYCLES = 600


def slot_of(cluster: Cluster, name: str) -> int:
    return cluster.slot(key(PREFIX, "lock", name))  # and of whatever else is called so


@contextmanager
def migration(
    cluster: Cluster, names: list[str], *, dwell: float = 0.0, pause: float = 0.0
) -> Iterator[list[int]]:
    """Moves the slots of these names from node to node, again and again; those moved so far."""
    moved: list[int] = []
    over = threading.Event()
    failed: list[BaseException] = []

    def migrate() -> None:
        try:
            while not over.is_set():
                for name in names:
                    slot = slot_of(cluster, name)
                    cluster.move(slot, cluster.another(cluster.settle(slot)), dwell=dwell)
                    moved.append(slot)
                    if over.wait(pause):
                        return
        except BaseException as error:  # told below
            failed.append(error)

    thread = threading.Thread(target=migrate)
    thread.start()
    try:
        yield moved
    finally:
        over.set()
        thread.join()
    assert not failed, [str(error) for error in failed]


async def cycle(
    session: Session, name: str, who: str, holds: list[Hold], errors: list[BaseException], *, patience: float
) -> None:
    """Takes it, keeps it for a moment, lets it go: noted down, and so is what went wrong."""
    now = time.monotonic
    invoked = now()
    try:
        async with Lock(session, name, ttl=5, blocking_timeout=patience) as lease:
            granted = now()
            assert granted - invoked < patience + 1, "it took longer than its blocking_timeout"
            await asyncio.sleep(0.01)
            released = now()
            deadline = released + lease.remaining()
    except CONTRACT as error:
        assert now() - invoked < patience + 5 + 1, "it hung"
        errors.append(error)
        return
    holds.append(
        Hold(
            who=who,
            name=name,
            invoked=invoked,
            granted=granted,
            released=released,
            confirmed=now(),
            deadline=deadline,
            fencing_token=lease.fencing_token,
        )
    )


async def cycles(
    sessions: list[Session], number: int, *, patience: float
) -> tuple[list[Hold], list[BaseException]]:
    """`number` of them, over all the names, by 20 tasks at a time."""
    holds: list[Hold] = []
    errors: list[BaseException] = []
    left = iter(range(number))

    async def worker(who: int) -> None:
        for turn in left:
            session = sessions[who % len(sessions)]
            # Two of the tasks, of two sessions, want the same one.
            name = NAMES[(turn // 2) % len(NAMES)]
            await cycle(session, name, f"task {who}", holds, errors, patience=patience)

    async with asyncio.TaskGroup() as group:
        for who in range(20):
            group.create_task(worker(who))
    return holds, errors


async def test_t_f_7_exclusion_holds_while_slots_move(cluster: Cluster, sessions: list[Session]) -> None:
    with migration(cluster, NAMES) as moved:
        holds, errors = await cycles(sessions, CYCLES, patience=10)

    assert len(moved) > 5
    assert not errors
    assert len(holds) == CYCLES
    assert not exclusion(holds)
    assert not fencing(holds)


async def test_t_f_7_nothing_is_lost_while_slots_move(cluster: Cluster, surroundings: Surroundings) -> None:
    """Their keys are for some time here and there."""
    witness = Witness()
    names = NAMES[:20]
    async with Session(clustered(surroundings, cluster), listeners=[witness]) as session:

        async def hold(name: str) -> None:
            for _ in range(2):
                async with Lock(session, name, ttl=3) as lease:
                    await asyncio.sleep(1.2)
                    assert lease.state is LeaseState.HELD

        with migration(cluster, names, dwell=0.01) as moved:
            async with asyncio.TaskGroup() as group:
                for name in names:
                    group.create_task(hold(name))

    assert len(moved) > 5
    assert witness.lost == []
    assert len(witness.renewed) >= 40


THERE = [kind for kind in KINDS if kind.masters == 1]


@pytest.mark.parametrize("kind", only(THERE, THERE[0], THERE[2], THERE[7]), ids=str)
async def test_every_kind_lives_through_it(cluster: Cluster, sessions: list[Session], kind: Kind) -> None:
    """While keys go one by one: those of one name are then on two nodes."""
    inside: set[str] = set()

    async def worker(who: int) -> None:
        for turn in range(4):
            name = NAMES[(who + turn) % 3]
            async with kind.make(sessions[who % 2], name, ttl=5, blocking_timeout=20):
                assert name not in inside
                inside.add(name)
                await asyncio.sleep(0.005)
                inside.discard(name)

    with migration(cluster, NAMES[:3], dwell=0.002) as moved:
        async with asyncio.TaskGroup() as group:
            for who in range(8):
                group.create_task(worker(who))
    assert moved
    await eventually(lambda: cluster.keys() == [], within=10)


async def test_a_waiter_is_woken_where_the_slot_went(cluster: Cluster, sessions: list[Session]) -> None:
    one, two = sessions
    slot = slot_of(cluster, "a")
    for _ in range(3):
        holder = await Lock(one, "a").acquire()
        waiting = asyncio.create_task(Lock(two, "a").acquire())
        await eventually(lambda: two.statistics().waiters == 1)
        await asyncio.sleep(0.05)
        await asyncio.to_thread(cluster.move, slot, cluster.another(cluster.owner(slot)))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        await holder.release()
        await (await asyncio.wait_for(waiting, 2)).release()


async def test_who_waits_while_the_slot_moves_is_told_in_time(
    cluster: Cluster, sessions: list[Session]
) -> None:
    """A slot that does not come to rest has nobody who could grant anything in it."""
    slot = slot_of(cluster, "a")
    source = cluster.owner(slot)
    to = cluster.another(source)
    cluster.begin_move(slot, source, to)
    try:
        began = time.monotonic()
        with pytest.raises(BackendError, match=r"the slot is being moved|did not answer in time"):
            await Lock(sessions[0], "a").acquire(blocking_timeout=0.3)
        assert time.monotonic() - began < 0.5 + SLACK

        waiting = asyncio.create_task(Lock(sessions[0], "a").acquire(blocking_timeout=10))
        await asyncio.sleep(0.2)
        assert not waiting.done()
    finally:
        for node in (to, source):
            node.do("CLUSTER", "SETSLOT", slot, "NODE", to.id)
    await (await waiting).release()


@contextmanager
def standing_open(cluster: Cluster, slot: int) -> Iterator[None]:
    """The slot begins to move, and stays where it is: none of its keys is carried."""
    source = cluster.settle(slot)
    to = cluster.another(source)
    cluster.begin_move(slot, source, to)
    try:
        yield
    finally:
        for node in (source, to):
            node.do("CLUSTER", "SETSLOT", slot, "STABLE")


@pytest.mark.more  # as locks while slots move
@pytest.mark.leaves_keys
async def test_items_that_were_run_are_told_so_while_their_slot_begins_to_move(
    cluster: Cluster, sessions: list[Session]
) -> None:
    ran: list[tuple[int, int]] = []

    async def run(batch: Any) -> None:
        ran.extend(tuple(item) for item in batch.items)
        await asyncio.sleep(0.03)

    async def call(caller: int) -> None:
        for number in range(5):
            await Combiner(sessions[caller % 2], "a").submit((caller, number), run)

    calling = asyncio.gather(*map(call, range(3)))
    slot = cluster.slot(key(PREFIX, "combiner", "a"))
    while not calling.done():
        with standing_open(cluster, slot):
            await asyncio.sleep(0.05)
        await asyncio.sleep(0.02)
    await calling
    assert sorted(ran) == [(caller, number) for caller in range(3) for number in range(5)]


async def test_what_is_cancelled_while_the_slot_moves_leaves_nothing(
    cluster: Cluster, sessions: list[Session]
) -> None:
    async def enter(session: Session) -> None:
        async with Lock(session, "a", ttl=3):
            await asyncio.sleep(0.001)

    with migration(cluster, ["a"]) as moved:
        for turn in range(80):
            task = asyncio.create_task(enter(sessions[turn % 2]))
            await asyncio.sleep(0.0003 * (turn % 20))
            task.cancel()
            await asyncio.wait([task], timeout=10)
            assert task.done()
    assert moved
    await eventually(lambda: cluster.keys() == [], within=10)


async def test_one_node_forgets_its_scripts(cluster: Cluster, sessions: list[Session]) -> None:
    for number, node in enumerate(cluster.masters):
        await cycles(sessions, 50, patience=5)
        node.do("SCRIPT", "FLUSH")
        holds, errors = await cycles(sessions, 50, patience=5)
        assert (len(holds), errors) == (50, []), number


async def test_a_close_that_is_cut_off_leaves_no_connection(
    cluster: Cluster, surroundings: Surroundings
) -> None:
    def connected() -> list[set[str]]:
        return [{one["id"] for one in node.admin.client_list()} for node in cluster.masters]

    client = clustered(surroundings, cluster)
    await client.ping(target_nodes="all")
    before = connected()
    session = Session(client)
    for name in NAMES:
        async with Lock(session, name):
            pass
    of_session = [now - then for now, then in zip(connected(), before, strict=True)]
    assert all(of_session)
    silent = cluster.owner_of(key(PREFIX, "lock", "a"))
    silent.do("CLIENT", "PAUSE", 300, "ALL")
    asking = asyncio.create_task(Lock(session, "a").locked())
    await asyncio.sleep(0.01)
    closing = asyncio.create_task(session.aclose())
    await asyncio.sleep(0.05)
    for task in asyncio.all_tasks():  # as asyncio.run() does at its end
        if task.get_name() == "aiolocks-close":
            task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    with pytest.raises(SessionClosedError):
        await asking
    await eventually(lambda: not any(now & ours for now, ours in zip(connected(), of_session, strict=True)))


async def test_a_client_that_is_closed_or_never_used_is_left_alone(cluster: Cluster) -> None:
    """The table is the session's own: the client's connections are the user's."""
    client: RedisCluster = cluster.client()
    async with Session(client) as session:
        async with Lock(session, "a"):
            pass
        assert client.get_nodes() == []
        await client.aclose()
        async with Lock(session, "a"):
            pass


# -- nodes that die


@pytest.fixture
def replicated(surroundings: Surroundings, server_kind: ServerKind) -> Iterator[Cluster]:
    """Three masters with a replica each, the test's alone."""
    if server_kind.executable is None:
        pytest.skip(f"not with {server_kind}: it kills its servers")
    with Cluster(server_kind.executable, replicas=3) as cluster:
        yield cluster


@pytest.mark.more  # as replicas of a single master
@pytest.mark.leaves_keys
async def test_replicas_are_those_of_the_slots_master(replicated: Cluster) -> None:
    cluster = replicated
    master = cluster.owner_of(key(PREFIX, "lock", "a"))
    there = next(name for name in NAMES if cluster.owner_of(key(PREFIX, "lock", name)) is not master)
    replica = cluster.replicas[cluster.masters.index(master)]
    client = cluster.client()
    async with Session(client) as session:
        async with Lock(session, "a", replicas=1) as lease:
            assert replica.do("CLUSTER", "COUNTKEYSINSLOT", slot_of(cluster, "a")) == 2  # it has them by now
            assert await lease.owned()
        replica.server.pause()
        with pytest.raises(BackendError, match="0 of 1 replicas"):
            await Lock(session, "a", replicas=1).acquire(blocking_timeout=0.4)
        async with Lock(session, there, replicas=1):
            pass
        replica.server.resume()
        async with Lock(session, "a", replicas=1, blocking_timeout=10):
            pass
    await client.aclose()


@pytest.mark.more  # as after one that succeeds
@pytest.mark.leaves_keys
async def test_replicas_are_asked_again_after_a_move_that_came_to_nothing(replicated: Cluster) -> None:
    client = replicated.client()
    async with Session(client) as session:
        with (
            standing_open(replicated, slot_of(replicated, "a")),
            pytest.raises(BackendError, match="moved"),
        ):
            await Lock(session, "a", replicas=1).acquire(blocking_timeout=1)
        async with Lock(session, "a", replicas=1, blocking_timeout=10):
            pass
    await client.aclose()


@pytest.mark.leaves_keys
async def test_t_f_8_a_failover_is_followed(
    replicated: Cluster, surroundings: Surroundings, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = replicated
    dead = cluster.masters[1]
    theirs = {name for name in NAMES if cluster.owner_of(key(PREFIX, "lock", name)) is dead}
    assert 5 < len(theirs) < 45
    listener = Witness()
    async with (
        Session(cluster_client := cluster.client(), listeners=[listener]) as one,
        Session(other_client := cluster.client(), listeners=[listener]) as two,
    ):
        elsewhere: list[Lease] = [await Lock(one, f"held {name}", ttl=5).acquire() for name in NAMES[:5]]
        running = asyncio.create_task(cycles([one, two], CYCLES, patience=10))
        await asyncio.sleep(0.2)
        dead.server.kill()
        holds, errors = await running

        # By those who outlived it, and by who took its place.
        await eventually(lambda: cluster.owner_of(key(PREFIX, "lock", min(theirs))) is not dead, within=10)
        after, late = await cycles([one, two], 100, patience=10)
        assert (len(after), late) == (100, [])
        # One outage for each session, which is over when another node serves the slots.
        node = f"Redis at 127.0.0.1:{dead.port}"
        told = [record.getMessage() for record in caplog.records if node in record.getMessage()]
        assert sum(message.startswith(f"{node} is away since ") for message in told) == 2
        # By itself, or with others that were away: nodes without a majority refuse for a moment.
        ends = (f"{node} serves no slots any more, after", "all servers answer again after")
        await eventually(lambda: sum(map(caplog.text.count, ends)) >= 2, within=8)
        for lease in elsewhere:
            if lease.state is LeaseState.HELD:
                await lease.release()

    assert len(holds) + len(errors) == CYCLES
    assert len(errors) < 40  # at most what was under way
    kept = [hold for hold in holds if hold.name not in theirs]
    assert not exclusion(kept)
    assert not fencing(holds + after)
    await cluster_client.aclose()
    await other_client.aclose()


@asynccontextmanager
async def connected_to_all(cluster: Cluster) -> AsyncIterator[tuple[Session, Any]]:
    """A session that hears of bells from each master, and its transport."""
    client = cluster.client()
    async with Session(client) as session:
        for name in NAMES:
            async with Lock(session, name):
                pass
        assert session._engine is not None
        transport: Any = session._engine._transport
        assert transport.hears
        yield session, transport
    await client.aclose()


@pytest.mark.more  # as a failover that is followed
@pytest.mark.leaves_keys
async def test_a_dead_node_is_left_though_the_session_itself_asks_it_something(
    replicated: Cluster, surroundings: Surroundings
) -> None:
    """While it is taken for a node of the cluster, everybody polls."""
    cluster, dead = replicated, replicated.masters[1]
    theirs = next(name for name in NAMES if cluster.owner_of(key(PREFIX, "lock", name)) is dead)
    async with connected_to_all(cluster) as (_, engine):
        dead.server.kill()
        async with asyncio.timeout(10):
            while cluster.owner_of(key(PREFIX, "lock", theirs)) is dead:
                node = engine._nodes.to(("127.0.0.1", dead.port))
                node.send(bare(("PING",)).ask(ignore, ignore, until=time.monotonic() + 1))
                engine._nodes.look_after()
                await asyncio.sleep(0.1)
        assert not engine.hears
        await eventually(lambda: engine.hears, within=8)


@pytest.mark.more  # as a failover
@pytest.mark.leaves_keys
async def test_a_node_that_comes_back_is_noticed_though_nobody_wants_its_slots_any_more(
    replicated: Cluster, surroundings: Surroundings
) -> None:
    cluster = replicated
    for replica in cluster.replicas:
        replica.server.kill()  # nobody takes the place of a master
    dead = cluster.masters[1]
    theirs = next(name for name in NAMES if cluster.owner_of(key(PREFIX, "lock", name)) is dead)
    async with connected_to_all(cluster) as (session, engine):
        dead.server.kill()
        with pytest.raises(BackendError) as told:
            await Lock(session, theirs).locked()
        assert len(told.value.__notes__) == 1
        assert not engine.hears
        await asyncio.sleep(1)
        await dead.server.start()
        await eventually(lambda: engine.hears, within=8)
