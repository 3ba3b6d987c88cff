"""`RedisCluster`: every key of a name lies in one slot, and every command finds its node."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest
from redis.asyncio import RedisCluster

from aiolocks import (
    Batch,
    Combiner,
    ConfigurationError,
    FencedRegister,
    Lease,
    LeaseState,
    Lock,
    LockNotOwnedError,
    RateLimit,
    Session,
    StaleFenceError,
    Turnstile,
)
from aiolocks.contrib.redis_py import Lock as RedisPyLock
from aiolocks.testing import EmbeddedServer
from tests.adversity.tools import (
    Keys,
    renewed,
)
from tests.conftest import Surroundings, blocking
from tests.support.clusters import CLUSTER, node_port, take_all_slots
from tests.support.hygiene import Inspector
from tests.support.servers import ServerKind
from tests.support.waiting import eventually

NAMES = ["plain", "user:{42}:cart", "{}", "{a", "ü { }"]
"""With a hash tag of their own, or what looks like one."""


@pytest.fixture(scope="module")
def _shared_cluster(server_kind: ServerKind) -> Iterator[tuple[EmbeddedServer, Inspector]]:
    if server_kind.executable is None:
        pytest.skip(f"not with {server_kind}: it configures its server")
    with (
        EmbeddedServer(
            executable=server_kind.executable, port=node_port(), password=False, arguments=CLUSTER
        ) as node,
        blocking(f"unix://{node.path}") as admin,
    ):
        take_all_slots(admin)
        yield node, Inspector(admin)


@pytest.fixture
def cluster(surroundings: Surroundings, _shared_cluster: tuple[EmbeddedServer, Inspector]) -> EmbeddedServer:
    """A cluster of one node, empty: one for all tests here, for it takes two seconds to be ready."""
    node, inspector = _shared_cluster
    surroundings.begin(node, inspector)
    return node


@pytest.fixture
async def clustered(cluster: EmbeddedServer) -> AsyncIterator[RedisCluster]:
    """A client of the cluster."""
    client = RedisCluster(host="127.0.0.1", port=cluster.port)
    try:
        yield client
    finally:
        await Session.of(client).aclose()
        await client.aclose()


@pytest.mark.parametrize("decode_responses", [False, True])
async def test_every_step_works(cluster: EmbeddedServer, keys: Keys, decode_responses: bool) -> None:
    client = RedisCluster(host="127.0.0.1", port=cluster.port, decode_responses=decode_responses)
    try:
        async with Session(client) as session:
            for name in NAMES:
                await every_step(session, name)
                assert keys(cluster) == []
    finally:
        await client.aclose()


async def every_step(session: Session, name: str) -> None:
    lock = Lock(session, name, ttl=5)
    assert not await lock.locked()
    async with lock as lease:
        assert await lock.locked()
        assert await lease.owned()
        assert await Lock(session, name).try_acquire() is None

        await lease.extend(60)
        assert 55 < lease.remaining() < 60

        handle = lease.detach()
        adopted = await lock.adopt(handle)
        with pytest.raises(LockNotOwnedError):
            await lock.adopt(handle)
        assert adopted.fencing_token == lease.fencing_token
        assert await adopted.owned()
        assert not await lease.owned()
        await adopted.release()
    assert not await lock.locked()

    async with lock as again:
        assert again.fencing_token > lease.fencing_token


async def test_is_handed_on_and_renewed(cluster: EmbeddedServer, clustered: RedisCluster, keys: Keys) -> None:
    """Between two sessions, so that only the server knows of both."""
    async with Session(clustered) as other:
        lease = await Lock(clustered, "a", ttl=1.5).acquire()
        waiting = asyncio.create_task(Lock(other, "a").acquire())
        await renewed(lease)
        assert lease.state is LeaseState.HELD
        assert not waiting.done()

        await lease.release()

        await (await asyncio.wait_for(waiting, 10)).release()
    assert keys(cluster) == []


async def test_a_cancelled_acquire_leaves_nothing(
    cluster: EmbeddedServer, clustered: RedisCluster, keys: Keys
) -> None:
    lock = Lock(clustered, "a")
    async with lock:
        pass
    for turns in range(40):
        task: asyncio.Task[Lease] = asyncio.create_task(lock.acquire())
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        if not task.cancelled():  # it was too late
            await task.result().release()
    await eventually(lambda: keys(cluster) == [])

    holder = await lock.acquire()
    async with Session(clustered) as other:
        task = asyncio.create_task(Lock(other, "a").acquire())
        await asyncio.sleep(0.05)
        task.cancel()
        await asyncio.wait([task])
    await holder.release()
    assert keys(cluster) == []


@pytest.mark.leaves_keys("*combiner*")
@pytest.mark.parametrize("name", ["a", "b", "user:{42}:sync"])
async def test_a_combiner_has_all_keys_of_a_name_in_one_slot(
    clustered: RedisCluster, keys: Keys, cluster: EmbeddedServer, name: str
) -> None:
    batches: list[int] = []

    async def run(batch: Batch) -> list[int]:
        batches.append(len(batch))
        await asyncio.sleep(0.02)
        return batch.items

    async with Session(clustered) as other:
        text = name.replace("{", "{{").replace("}", "}}")
        combiners = [Combiner(one, text) for one in (clustered, other)]
        answers = await asyncio.gather(*(combiners[n % 2].submit(n, run) for n in range(40)))
        assert all(n in answer for n, answer in enumerate(answers))
        assert (await combiners[0].leave(1)).pressure == 1
        assert sum(batches) == 40
    left = keys(cluster)
    assert left
    assert all(key.endswith(("{a}", "{b}", ":#user%3A{42}:sync")) for key in left)


@pytest.mark.leaves_keys("*combiner*")
@pytest.mark.parametrize("name", ["a", "user:{42}:sync"])
async def test_a_combiner_is_shown_on_its_node(
    clustered: RedisCluster, keys: Keys, cluster: EmbeddedServer, name: str
) -> None:
    text = name.replace("{", "{{").replace("}", "}}")
    await Combiner(clustered, text).leave(1)
    infos = await Session.of(clustered).inspect(name)
    assert [(info.kind, info.value) for info in infos] == [("combiner", 1)]
    assert keys(cluster)


@pytest.mark.leaves_keys("*fencedregister*")
@pytest.mark.parametrize("name", NAMES)
async def test_turnstile_register_and_redis_pys_lock_find_their_node(
    clustered: RedisCluster, keys: Keys, cluster: EmbeddedServer, name: str
) -> None:
    async with Turnstile(clustered, name, window=60) as n:
        assert (n, await Turnstile(clustered, name).enter()) == (1, 2)
    register = FencedRegister(clustered, name)
    await register.write({"a": 1}, 7)
    assert await register.read() == {"a": 1}
    with pytest.raises(StaleFenceError):
        await register.write(2, 6)

    ours, theirs = clustered.lock(name, timeout=20, lock_class=RedisPyLock), clustered.lock(name, timeout=20)
    async with ours:
        assert not await theirs.acquire(blocking=False)
        assert await ours.extend(5)
    async with theirs:
        assert not await ours.acquire(blocking=False)
    assert [key for key in keys(cluster) if "fencedregister" not in key] == []


@pytest.mark.leaves_keys("aiolocks:ratelimit.*")
async def test_in_a_cluster_the_names_share_a_slot(clustered: RedisCluster) -> None:
    apart = RateLimit.all_of(RateLimit(clustered, "a", 1, per=1), RateLimit(clustered, "b", 1, per=1))
    with pytest.raises(ConfigurationError, match="same hash tag"):
        await apart.try_acquire()
    together = RateLimit.all_of(
        RateLimit(clustered, "{a}1", 1, per=60), RateLimit(clustered, "{a}2", 1, per=60)
    )
    assert await together.try_acquire()
    assert not await together.try_acquire()
