"""Leases whose slot is being moved from one node to another, for longer than they last."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from aiolocks import (
    BackendError,
    KeyspaceWakeup,
    Lease,
    LeaseState,
    Lock,
    LockError,
    LockTimeoutError,
    RateLimit,
    ReentrantLock,
    RWLock,
    Semaphore,
    Session,
    SingleFlight,
    UniqueJob,
)
from aiolocks.transport.keys import key
from tests.adversity.tools import renewed
from tests.conformance.conftest import KINDS as ALL_KINDS
from tests.conformance.conftest import Kind
from tests.conftest import PREFIX, Surroundings, clustered
from tests.support.clusters import Cluster, Node
from tests.support.waiting import eventually, sleeps

KINDS = [kind for kind in ALL_KINDS if kind.masters == 1] + [
    Kind("rwlock.reader", lambda client, name, **common: RWLock(client, name, **common).reader, ()),
    Kind("two permits", lambda client, name, **common: Semaphore(client, name, 5, **common), ()),
    Kind(
        "own reentrant", lambda client, name, **common: ReentrantLock(client, name, owner="me", **common), ()
    ),
]
TAG = "{moving}"
FREE = f"{TAG}:nobody's"
TTL = 2.4


def slot_of(cluster: Cluster) -> int:
    return cluster.slot(key(PREFIX, "lock", TAG))


class Move:
    """A move of the tests' slot that goes no further by itself."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.slot = slot_of(cluster)
        self.source: Node = cluster.settle(self.slot)
        self.to: Node = cluster.another(self.source)

    def left(self) -> list[bytes]:
        """The keys that have not moved."""
        keys: list[bytes] = self.source.do("CLUSTER", "GETKEYSINSLOT", self.slot, 1000)
        return keys

    def carry(self, keys: Sequence[bytes]) -> None:
        self.cluster.carry(keys, self.source, self.to)

    def finish(self) -> None:
        while keys := self.left():
            self.carry(keys)
        self.cluster.end_move(self.slot, self.source, self.to)


@contextmanager
def moving(cluster: Cluster) -> Iterator[Move]:
    """The slot is being moved until the end."""
    move = Move(cluster)
    cluster.begin_move(move.slot, move.source, move.to)
    try:
        yield move
    finally:
        move.finish()


async def hold(session: Session, **common: Any) -> dict[str, Lease]:
    """One lease of each kind, all in one slot."""
    return {
        str(kind): await kind.make(session, f"{TAG}:{kind}", **common).acquire(blocking_timeout=5)
        for kind in KINDS
    }


def states(leases: dict[str, Lease]) -> dict[str, LeaseState]:
    return {kind: lease.state for kind, lease in leases.items()}


def all_are(state: LeaseState) -> dict[str, LeaseState]:
    return dict.fromkeys(map(str, KINDS), state)


@pytest.mark.more  # as leases that go on through an atomic move
@pytest.mark.parametrize("seconds", [0, pytest.param(30, marks=(pytest.mark.soak, pytest.mark.timeout(150)))])
async def test_leases_outlast_a_move_that_is_longer_than_they_are(
    cluster: Cluster, sessions: list[Session], seconds: float
) -> None:
    """They are renewed while none of their keys has moved, and while all have. A waiter asks in vain."""
    async with Lock(sessions[0], FREE):
        pass
    leases = await hold(sessions[0], ttl=TTL)
    with moving(cluster) as move:
        # Without any answer, a wait ends after its ttl.
        waiting = asyncio.create_task(Lock(sessions[0], FREE, ttl=300).acquire())
        await asyncio.sleep(seconds)
        await renewed(*leases.values())
        assert states(leases) == all_are(LeaseState.HELD)
        assert all([await lease.owned() for lease in leases.values()])

        # The fence that stays keeps the waiter on this node, in the line before the renewals.
        move.carry([name for name in move.left() if FREE.encode() not in name])
        await asyncio.sleep(seconds)
        await renewed(*leases.values())
        assert states(leases) == all_are(LeaseState.HELD)
        assert all([await lease.owned() for lease in leases.values()])
        assert not waiting.done()
    await (await asyncio.wait_for(waiting, 5)).release()
    assert all([await lease.owned() for lease in leases.values()])
    for lease in leases.values():
        await lease.release()
    await eventually(lambda: cluster.keys() == [], within=5)


@pytest.mark.parametrize("wakeup", ["auto", KeyspaceWakeup(configure=True)], ids=["tracking", "keyspace"])
async def test_a_holder_connects_again_while_the_slot_moves(
    cluster: Cluster, surroundings: Surroundings, wakeup: Any
) -> None:
    """The new connection tries its hearing out, which cannot be done with a key in that slot."""
    async with Session(clustered(surroundings, cluster), wakeup=wakeup) as session:
        leases = await hold(session, ttl=TTL)
        with moving(cluster) as move:
            for node in cluster.nodes:
                node.do("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
                node.do("CLIENT", "KILL", "TYPE", "pubsub")
            await renewed(*leases.values())
            assert all([await lease.owned() for lease in leases.values()])
            assert states(leases) == all_are(LeaseState.HELD)
            assert move.left() != []
        for lease in leases.values():
            await lease.release()
    await eventually(lambda: cluster.keys() == [], within=5)


@pytest.mark.parametrize("moved", [False, True], ids=["before its keys", "with its keys"])
async def test_whatever_a_holder_does_works_while_the_slot_moves(
    cluster: Cluster, sessions: list[Session], moved: bool
) -> None:
    session = sessions[0]
    leases = await hold(session, ttl=10)

    async def use(kind: Kind, lease: Lease) -> None:
        await lease.extend(20)
        assert lease.remaining() > 15
        await lease.annotate({"done": 7})
        if kind.name != "reentrant":  # of which each acquisition has an owner of its own
            adopted = await kind.make(session, lease.name, ttl=10).adopt(lease.detach())
            assert adopted.fencing_token == lease.fencing_token
            assert not await lease.owned()
            lease = adopted
        assert await lease.owned()
        await lease.release()
        assert not await lease.owned()

    with moving(cluster) as move:
        if moved:
            move.carry(move.left())
        waiting = asyncio.create_task(Lock(session, FREE).acquire())
        async with asyncio.timeout(8), asyncio.TaskGroup() as group:
            for kind, lease in zip(KINDS, leases.values(), strict=True):
                group.create_task(use(kind, lease))
        assert not waiting.done()
    await (await asyncio.wait_for(waiting, 5)).release()
    await eventually(lambda: cluster.keys() == [], within=5)


async def test_nobody_else_gets_in_while_the_keys_of_a_name_are_on_two_nodes(
    cluster: Cluster, sessions: list[Session]
) -> None:
    """Nor is anything renewed there; once they are together again, the holders have what they had."""
    holder, other = sessions
    leases = await hold(holder, ttl=4)

    async def intrude(kind: Kind) -> None:
        with pytest.raises(LockError):
            await kind.make(other, f"{TAG}:{kind}", ttl=4).acquire(blocking_timeout=0.3)

    keys = Move(cluster).left()
    with moving(cluster) as move:
        for half in (keys[::3], keys[1::3]):
            move.carry(half)
            async with asyncio.TaskGroup() as group:
                for kind in KINDS:
                    if kind.name not in ("rwlock.reader", "two permits"):
                        group.create_task(intrude(kind))
        assert states(leases) != all_are(LeaseState.LOST)
    async with asyncio.timeout(5):
        for lease in leases.values():
            await lease.extend()
            assert await lease.owned()
    assert states(leases) == all_are(LeaseState.HELD)
    for lease in leases.values():
        await lease.release()
    await eventually(lambda: cluster.keys() == [], within=5)


PARTS = [
    *((f"semaphore {role}", "semaphore", role) for role in ("", "leases")),
    *((f"fair {role}", "fairlock", role) for role in ("", "leases")),
    *((f"own reentrant {role}", "lock", role) for role in ("", "nest")),
    *((f"rwlock.writer {role}", "rwlock", role) for role in ("", "ends", "writers.a", "writers.b")),
    *((f"rwlock.reader {role}", "rwlock", role) for role in ("", "ends", "readers.a", "readers.b")),
    ("multi ", "lock", ""),
]
"""Names, whose kind comes first, and the one key of each that has moved: a lease needs others beside it."""


async def test_between_two_nodes_nothing_changes(cluster: Cluster, surroundings: Surroundings) -> None:
    """An entry that stands in one of its two keys only would be taken for lost."""
    kinds = {str(kind): kind for kind in KINDS}
    async with Session(clustered(surroundings, cluster), command_timeout=0.4) as session:

        async def taken(name: str) -> Lease:
            lock = kinds[name.rpartition(" ")[0]].make(session, f"{TAG}:{name}", ttl=10)
            return await lock.acquire()

        leases = [await taken(name) for name, _, _ in PARTS]
        with moving(cluster) as move:
            move.carry([key(PREFIX, kind, f"{TAG}:{name}", role) for name, kind, role in PARTS])
            results = await asyncio.gather(*(lease.extend(20) for lease in leases), return_exceptions=True)
            told = {name: type(result) for (name, _, _), result in zip(PARTS, results, strict=True)}
            assert told == dict.fromkeys(told, BackendError)  # and not that it is lost
            assert all(lease.remaining() < 10 for lease in leases)
            releasing = [asyncio.create_task(lease.release()) for lease in leases[::2]]
            await asyncio.sleep(0.2)
            assert not any(task.done() for task in releasing)
        async with asyncio.timeout(5):
            await asyncio.gather(*releasing)
            for lease in leases[1::2]:
                await lease.extend(20)
                await lease.release()
    await eventually(lambda: cluster.keys() == [], within=5)


@pytest.mark.parametrize("moved", [False, True], ids=["before its keys", "with its keys"])
async def test_jobs_and_flights_go_on_while_the_slot_moves(
    cluster: Cluster, sessions: list[Session], moved: bool
) -> None:
    ended = asyncio.Event()

    async def fly() -> str:
        await ended.wait()
        return "value"

    flight = asyncio.create_task(SingleFlight(sessions[0], ttl=TTL).do(TAG, fly))
    async with UniqueJob(sessions[0], TAG, ttl=TTL).run() as lease:
        with moving(cluster) as move:
            if moved:
                move.carry(move.left())
            await renewed(lease)
            assert lease.state is LeaseState.HELD
            assert await lease.owned()
        ended.set()
        assert await flight == "value"


@pytest.mark.more  # as without a cluster
async def test_a_time_out_says_that_the_server_has_not_answered(
    cluster: Cluster, sessions: list[Session]
) -> None:
    holder, other = sessions
    async with Lock(holder, FREE, ttl=30):
        waiting = asyncio.create_task(Lock(other, FREE).acquire(blocking_timeout=3))
        await eventually(lambda: sleeps(other), within=3)
        with moving(cluster):
            with pytest.raises(LockTimeoutError, match=r"; Redis has not answered for \d\.\d s") as caught:
                await waiting
            assert (caught.value.holders[0].held_for or 0.0) > 0.5


async def test_leases_go_on_through_an_atomic_move(cluster: Cluster, sessions: list[Session]) -> None:
    """Valkey 9 moves a slot with all its keys in one step."""
    if not cluster.can_move_at_once():
        pytest.skip("not with this server: it moves slots key by key")
    leases = await hold(sessions[0], ttl=TTL)
    slot = slot_of(cluster)
    for _ in range(2):
        source = cluster.settle(slot)
        await asyncio.to_thread(cluster.move_at_once, [slot], source, cluster.another(source))
        await renewed(*leases.values())
        assert states(leases) == all_are(LeaseState.HELD)
    for lease in leases.values():
        assert await lease.owned()
        await lease.release()
    await eventually(lambda: cluster.keys() == [], within=5)


@pytest.mark.more  # as the waiters of locks
@pytest.mark.leaves_keys("aiolocks:ratelimit.*")
async def test_a_waiter_of_a_rate_limit_is_admitted_while_the_slot_moves(
    cluster: Cluster, sessions: list[Session]
) -> None:
    """All its keys are on the node: nothing stops its step half way."""
    limit = RateLimit(sessions[0], f"{TAG}:limit", 1, per=1)
    await limit.acquire()
    waiting = asyncio.create_task(limit.acquire())
    await eventually(lambda: "ratelimit.queue" in " ".join(cluster.keys()), within=10)
    with moving(cluster):
        decision = await asyncio.wait_for(waiting, 20)
    await decision.settle(0)
    assert (await limit.peek()).allowed
