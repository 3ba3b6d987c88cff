"""`MultiLock` over several slots of a cluster: all or none, without one script that could reach them all."""

from __future__ import annotations

import asyncio
import random
import time

import pytest

from aiolocks import (
    BackendError,
    Lock,
    LockLostError,
    LockNotOwnedError,
    LockTimeoutError,
    MultiLock,
    Session,
)
from aiolocks.transport.keys import key
from tests.adversity.test_cluster_faults import migration
from tests.conftest import PREFIX
from tests.support.clusters import Cluster
from tests.support.history import Hold, exclusion, fencing
from tests.support.waiting import eventually

NAMES = ["a", "b", "c", "d"]


def in_order(cluster: Cluster, names: list[str] = NAMES) -> list[str]:
    """The names, by the numbers of their slots: as they are taken."""
    return sorted(names, key=lambda name: cluster.slot(key(PREFIX, "lock", name)))


async def test_holds_all_of_them_on_all_nodes(cluster: Cluster, sessions: list[Session]) -> None:
    one, two = sessions
    assert len({cluster.owner_of(key(PREFIX, "lock", name)) for name in NAMES}) > 1
    async with MultiLock(one, NAMES, ttl=5) as lease:
        assert await lease.owned()
        for name in NAMES:
            assert await Lock(two, name).try_acquire() is None
        assert await MultiLock(two, NAMES[2:]).try_acquire() is None
        await lease.extend(20)
        assert lease.remaining() > 15
    assert cluster.keys() == []


async def test_one_that_is_held_refuses_all_and_nothing_stays(
    cluster: Cluster, sessions: list[Session]
) -> None:
    one, two = sessions
    for name in NAMES:
        async with Lock(one, name, ttl=20):
            assert await MultiLock(two, NAMES).try_acquire() is None
            await eventually(lambda held=name: all(f"{{{held}}}" in key for key in cluster.keys()))  # noqa: SIM118
            with pytest.raises(LockTimeoutError) as caught:
                await MultiLock(two, NAMES).acquire(blocking_timeout=0.2)
            assert 10 < (caught.value.remaining or 0) <= 20
        await eventually(lambda: cluster.keys() == [])


async def test_fencing_tokens_rise_for_each_name(sessions: list[Session]) -> None:
    one, two = sessions
    last: dict[str, int] = {}
    for names in ["ab", "bcd", "a", "abcd", "d", "cd", "b", "abc", "c", "ad"]:
        session = random.choice([one, two])
        async with MultiLock(session, list(names)) if len(names) > 1 else Lock(session, names) as lease:
            for name in names:
                assert lease.fencing_token > last.get(name, 0)
                last[name] = lease.fencing_token


async def test_the_largest_token_of_any_slot_is_that_of_all(
    cluster: Cluster, sessions: list[Session]
) -> None:
    """Also where the clock of one of the nodes had been far ahead."""
    far = in_order(cluster)[1]
    ahead = 9_000_000_000_000_000
    node = cluster.owner_of(key(PREFIX, "lock", far))
    node.do("SET", key(PREFIX, "lock", far, "fence"), ahead, "PX", 60_000)

    async with MultiLock(sessions[0], NAMES) as lease:
        assert lease.fencing_token == ahead + 1
    for name in NAMES:
        async with Lock(sessions[1], name) as alone:
            assert alone.fencing_token == ahead + 2


async def test_no_set_is_held_up_for_ever_by_another(sessions: list[Session]) -> None:
    """For any order of the names, and any order of the waiters."""
    sets = [["a", "b", "c"], ["c", "b"], ["d", "a"], ["b", "d"], ["a"], ["c", "d"]]
    holds: list[Hold] = []

    async def worker(who: int) -> None:
        names = sets[who % len(sets)]
        for _ in range(5):
            invoked = time.monotonic()
            async with MultiLock(sessions[who % 2], names, blocking_timeout=20) as lease:
                granted = time.monotonic()
                await asyncio.sleep(0.001)
                released = time.monotonic()
            holds.extend(
                Hold(
                    who=f"{who}",
                    name=name,
                    invoked=invoked,
                    granted=granted,
                    released=released,
                    confirmed=time.monotonic(),
                    fencing_token=lease.fencing_token,
                )
                for name in names
            )

    async with asyncio.TaskGroup() as group:
        for who in range(2 * len(sets)):
            group.create_task(worker(who))
    assert not exclusion(holds)
    assert not fencing(holds)


async def test_is_woken_by_the_release_of_any_slot(cluster: Cluster, sessions: list[Session]) -> None:
    one, two = sessions
    before = two.statistics().wakeups["tracking"]
    for name in NAMES:
        holder = await Lock(one, name).acquire()
        waiting = asyncio.create_task(MultiLock(two, NAMES).acquire())
        await asyncio.sleep(0.15)
        await holder.release()
        await (await asyncio.wait_for(waiting, 2)).release()
    assert two.statistics().wakeups["tracking"] > before
    await eventually(lambda: cluster.keys() == [])


async def test_what_is_lost_in_one_slot_is_lost(cluster: Cluster, sessions: list[Session]) -> None:
    last = in_order(cluster)[-1]
    with pytest.raises(LockLostError):
        async with MultiLock(sessions[0], NAMES, ttl=0.6):
            cluster.owner_of(key(PREFIX, "lock", last)).do("DEL", key(PREFIX, "lock", last))
            await asyncio.sleep(5)
    await eventually(lambda: cluster.keys() == [])


async def test_is_adopted_as_a_whole_or_not_at_all(cluster: Cluster, sessions: list[Session]) -> None:
    one, two = sessions
    lock = MultiLock(two, NAMES, ttl=5)
    lease = await MultiLock(one, NAMES, ttl=5).acquire()
    handle = lease.detach()
    adopted = await lock.adopt(handle)
    assert adopted.fencing_token == lease.fencing_token
    assert await adopted.owned()
    with pytest.raises(LockNotOwnedError):
        await lock.adopt(handle)
    handle = adopted.detach()
    last = in_order(cluster)[-1]
    cluster.owner_of(key(PREFIX, "lock", last)).do("DEL", key(PREFIX, "lock", last))
    with pytest.raises(LockNotOwnedError):
        await lock.adopt(handle)
    assert await Lock(one, in_order(cluster)[0]).try_acquire() is None  # given back to the handle
    for name in NAMES:
        cluster.owner_of(key(PREFIX, "lock", name)).do("DEL", key(PREFIX, "lock", name))


async def test_a_node_that_is_silent_leaves_nothing_on_the_others(
    cluster: Cluster, sessions: list[Session]
) -> None:
    async with MultiLock(sessions[0], NAMES):
        pass
    order = in_order(cluster)
    silent = cluster.owner_of(key(PREFIX, "lock", order[-1]))
    silent.do("CLIENT", "PAUSE", 2000, "ALL")
    speaking = asyncio.create_task(asyncio.to_thread(silent.do, "PING"))
    with pytest.raises(BackendError):
        await MultiLock(sessions[0], NAMES, ttl=30).acquire(blocking_timeout=0.2)
    assert not speaking.done()
    await speaking
    await eventually(lambda: cluster.keys() == [], within=3)


async def test_in_one_slot_it_is_one_script(sessions: list[Session]) -> None:
    names = ["{same}1", "{same}2", "{same}3"]
    async with MultiLock(sessions[0], names):
        pass
    sent = sessions[0].statistics().commands_sent
    async with MultiLock(sessions[0], names):
        pass
    assert sessions[0].statistics().commands_sent == sent + 2


async def test_holds_while_slots_move(cluster: Cluster, sessions: list[Session]) -> None:
    async def worker(who: int) -> None:
        for _ in range(10):
            async with MultiLock(sessions[who % 2], random.sample(NAMES, 3), ttl=5, blocking_timeout=20):
                assert who not in inside
                inside.add(who)  # of four names, any two sets of three have one in common
                assert len(inside) == 1
                await asyncio.sleep(0)
                inside.discard(who)

    inside: set[int] = set()
    with migration(cluster, NAMES, pause=0.05) as moved:
        async with asyncio.TaskGroup() as group:
            for who in range(6):
                group.create_task(worker(who))
    assert moved
    await eventually(lambda: cluster.keys() == [], within=3)
