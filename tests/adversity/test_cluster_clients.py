"""The arguments of a cluster's clients, and the facts that the cluster tells of itself."""

from __future__ import annotations

import asyncio
import gc
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from redis.asyncio import Redis, RedisCluster
from redis.exceptions import ResponseError

from aiolocks import BackendError, ConfigurationError, KeyspaceWakeup, Lock, MultiLock, Semaphore, Session
from aiolocks.contrib.redis_py import Lock as RedisPyLock
from aiolocks.testing import EmbeddedServer
from aiolocks.transport.keys import key
from tests.adversity.tools import PATIENT, SLACK, asleep, begin, elapsed
from tests.conformance.conftest import OwnTcp
from tests.conftest import PREFIX, Surroundings, clustered
from tests.lua.test_acl import COMMANDS, KEYS, TRACKING
from tests.support.clusters import Cluster
from tests.support.processes import Workers, tell
from tests.support.waiting import eventually

ON_A_CLUSTER = ["cluster|slots"]
WHILE_SLOTS_MOVE = ["asking"]


async def use(session: Session) -> None:
    for number in range(5):
        async with Lock(session, f"name {number}", ttl=5) as lease:
            assert await lease.owned()
    async with MultiLock(session, ["a", "b", "c"]), Semaphore(session, "s", 2):
        pass


async def hand_over(one: Session, two: Session, name: str) -> None:
    """From session to session; who is not woken sleeps for seconds."""
    holder = await Lock(one, name).acquire()
    waiting = begin(Lock(two, name).acquire())
    await eventually(lambda: asleep(two) and all(one._gate._answered for one in two._engine.waiting))
    await holder.release()
    await (await asyncio.wait_for(waiting, 4)).release()


@pytest.mark.parametrize("wakeup", ["tracking", KeyspaceWakeup(configure=True)], ids=str)
async def test_is_woken_on_every_node(cluster: Cluster, surroundings: Surroundings, wakeup: Any) -> None:
    names = [next(f"n{i}" for i in range(100) if owns(node, cluster, f"n{i}")) for node in cluster.masters]
    async with (
        Session(clustered(surroundings, cluster), wakeup=wakeup, backoff=PATIENT) as one,
        Session(clustered(surroundings, cluster), wakeup=wakeup, backoff=PATIENT) as two,
    ):
        for name in names:
            await hand_over(one, two, name)
        way = "tracking" if wakeup == "tracking" else "keyspace"
        assert two.statistics().wakeups[way] >= len(names)
        async with MultiLock(one, ["a", "b", "c"]):
            waiting = asyncio.create_task(MultiLock(two, ["b", "c", "d"]).acquire())
            await asyncio.sleep(0.1)
        await (await asyncio.wait_for(waiting, 2)).release()
    await eventually(lambda: all(node.do("PUBSUB", "NUMPAT") == 0 for node in cluster.masters))


def owns(node: Any, cluster: Cluster, name: str) -> bool:
    return cluster.owner_of(key(PREFIX, "lock", name)) is node


async def test_keyspace_by_name_where_it_is_off(cluster: Cluster, surroundings: Surroundings) -> None:
    async with Session(clustered(surroundings, cluster), wakeup="keyspace") as session:
        with pytest.raises(ConfigurationError, match="notify-keyspace-events must have at least 'Kg'"):
            await Lock(session, "a").acquire()


async def test_nodes_that_do_not_say_where_they_are(cluster: Cluster, surroundings: Surroundings) -> None:
    """They are where the one is that was asked: at one host, behind several ports."""
    setting = "cluster-preferred-endpoint-type"
    if not cluster.masters[0].do("CONFIG", "GET", setting):
        pytest.skip("this server always says it")
    for node in cluster.masters:
        node.do("CONFIG", "SET", setting, "unknown-endpoint")
    try:
        async with Session(clustered(surroundings, cluster)) as session:
            await use(session)
            slot = cluster.slot(key(PREFIX, "lock", "name 1"))
            await asyncio.to_thread(cluster.move, slot, cluster.another(cluster.owner(slot)))
            await use(session)  # MOVED says no host either
    finally:
        for node in cluster.masters:
            node.do("CONFIG", "SET", setting, "ip")


async def test_the_minimal_acl(cluster: Cluster, surroundings: Surroundings) -> None:
    words = [*COMMANDS, *TRACKING, *ON_A_CLUSTER, *WHILE_SLOTS_MOVE]
    words += ["zrank", "zscore"]  # those of MultiLock

    def allow(words: list[str]) -> None:
        rules = [*(f"+{word}" for word in words), *(f"~{pattern}" for pattern in KEYS)]
        for node in cluster.masters:
            node.do("ACL", "SETUSER", "locks", "reset", "on", ">secret", "resetchannels", "-@all", *rules)

    try:
        allow(words)
        user = {"username": "locks", "password": "secret"}
        async with (
            Session(clustered(surroundings, cluster, **user), wakeup="tracking", backoff=PATIENT) as one,
            Session(clustered(surroundings, cluster, **user), wakeup="tracking", backoff=PATIENT) as two,
        ):
            for name in ("a", "b", "c", "d"):
                await hand_over(one, two, name)
            async with MultiLock(one, ["a", "b", "c"]) as lease:
                assert await lease.owned()
            slot = cluster.slot(key(PREFIX, "lock", "a"))
            await asyncio.to_thread(cluster.move, slot, cluster.another(cluster.owner(slot)))
            await hand_over(one, two, "a")
        allow([word for word in words if word not in ON_A_CLUSTER])
        async with Session(clustered(surroundings, cluster, **user)) as session:
            with pytest.raises(BackendError, match="minimal ACL"):
                await Lock(session, "a").acquire()
    finally:
        for node in cluster.masters:
            node.do("ACL", "DELUSER", "locks")


@pytest.mark.parametrize("name", ["mylock", "a{}b", "{a}b"])
async def test_redis_pys_lock_of_any_name_is_had_where_keyspace_notifications_serve(
    cluster: Cluster, surroundings: Surroundings, name: str
) -> None:
    """Its key is the bare name; a new connection is tried out in the slot of what waits for it."""
    rules = ["on", ">secret", "~*", "&*", "+@all", "-client", "+client|info", "+client|kill"]
    try:
        for node in cluster.masters:
            node.do("CONFIG", "SET", "notify-keyspace-events", "KA")
            node.do("ACL", "SETUSER", "untracked", "reset", *rules)
        client = clustered(surroundings, cluster, username="untracked", password="secret")
        async with asyncio.timeout(5), RedisPyLock(client, name, timeout=5) as lock:
            assert await lock.owned()
    finally:
        for node in cluster.masters:
            node.do("ACL", "DELUSER", "untracked")


async def test_a_wrong_password_is_told_at_once(cluster: Cluster, surroundings: Surroundings) -> None:
    client = clustered(surroundings, cluster, username="nobody", password="wrong")
    async with Session(client) as session:
        with elapsed() as took, pytest.raises(BackendError, match="password is wrong"):
            await Lock(session, "a").acquire(blocking_timeout=20)
    assert took.seconds < 5


async def test_a_server_that_is_no_cluster(cluster: Cluster) -> None:
    with EmbeddedServer(port=0, password=False) as server:
        client = RedisCluster(host="127.0.0.1", port=server.port)
        async with Session(client) as session:
            with pytest.raises(BackendError, match=r"give a redis\.asyncio\.Redis, not"):
                await Lock(session, "a").acquire(blocking_timeout=20)
        await client.aclose()


@pytest.mark.parametrize("names", [["a"], ["a", "b"]], ids=["elsewhere", "in several slots"])
async def test_a_client_of_one_node_is_told_which_one_to_take(cluster: Cluster, names: list[str]) -> None:
    other = cluster.another(cluster.owner(cluster.slot(key(PREFIX, "lock", "a"))))
    async with Redis(port=other.port) as client, Session(client, prefix=PREFIX) as session:
        with pytest.raises(BackendError, match=r"it is a node of a cluster: give a redis\.asyncio\.RedisC"):
            await MultiLock(session, names).acquire(blocking_timeout=20)


async def test_nobody_answers() -> None:
    client = RedisCluster(host="127.0.0.1", port=9)
    async with Session(client) as session:
        with elapsed() as took, pytest.raises(BackendError, match="did not answer in time"):
            await Lock(session, "a").acquire(blocking_timeout=0.3)
        assert took.seconds < 0.3 + SLACK
    await client.aclose()


async def test_connections_of_the_users_own_class(cluster: Cluster, surroundings: Surroundings) -> None:
    """They cannot be driven: the client's own methods serve, and nobody is woken."""
    client = clustered(surroundings, cluster)
    client.nodes_manager.connection_kwargs["connection_class"] = OwnTcp
    for node in client.nodes_manager.startup_nodes.values():
        node.connection_class = OwnTcp
    async with Session(client) as session:
        for number in range(5):
            async with Lock(session, f"name {number}"):
                pass
        async with MultiLock(session, ["a", "b", "c"], ttl=5) as lease:  # in several slots
            assert await lease.owned()
            assert await Lock(session, "b").try_acquire() is None
        assert cluster.keys() == []
    with pytest.raises(ConfigurationError, match="cannot be driven"):
        await Lock(Session(client, wakeup="tracking"), "a").acquire()


async def test_a_session_ends_with_its_client(cluster: Cluster) -> None:
    client: RedisCluster | None = cluster.client()
    async with Lock(client, "a"):
        pass
    gone = weakref.ref(client)
    transport = weakref.ref(Session.of(client)._engine._transport)  # type: ignore[union-attr]
    client = None

    def collected() -> bool:
        gc.collect()
        return gone() is None and transport() is None

    await eventually(collected, within=3)


# -- between processes ---------------------------------------------------------------------------------------


async def hold_in_turn(port: int, names: list[str]) -> None:
    """In a process of its own: gets each of them when it is let go, and says when that was."""
    client = RedisCluster(host="127.0.0.1", port=port)
    async with Session(client, wakeup="tracking", backoff=PATIENT) as session:
        for name in names:
            async with Lock(session, name):
                tell("got", at=time.monotonic())
    await client.aclose()


async def test_hands_over_to_another_process_without_a_poll(
    cluster: Cluster, surroundings: Surroundings, workers: Workers
) -> None:
    names = [f"name {number}" for number in range(20)]
    took: list[float] = []
    async with Session(clustered(surroundings, cluster)) as session:
        held = [await Lock(session, name).acquire() for name in names]
        worker = await workers.start(hold_in_turn, port=cluster.masters[0].port, names=names)
        for lease in held:
            queue = key(PREFIX, "lock", lease.name, "queue")
            node = cluster.owner_of(queue)
            await eventually(lambda queue=queue, node=node: node.do("ZCARD", queue), within=10)  # type: ignore[misc]
            await asyncio.sleep(0.02)
            released = time.monotonic()
            await lease.release()
            took.append((await worker.told("got"))["at"] - released)
        await worker.finish()
    assert sorted(took)[len(took) // 2] < 0.05  # 1 ms, where there is time; who polls sleeps for 5 s


# -- nodes without names -------------------------------------------------------------------------------------


@pytest.fixture
def reached_by(shared_cluster: Cluster, surroundings: Surroundings) -> Iterator[Callable[[str], None]]:
    """Sets by what the nodes are to be reached, as they tell clients."""
    shared_cluster.begin(surroundings)

    def reached_by(what: str) -> None:
        for node in shared_cluster.masters:
            try:
                node.do("CONFIG", "SET", "cluster-preferred-endpoint-type", what)
            except ResponseError:
                pytest.skip("a server that knows only addresses")

    yield reached_by
    with suppress(ResponseError):
        for node in shared_cluster.masters:
            node.do("CONFIG", "SET", "cluster-preferred-endpoint-type", "ip")


async def test_nodes_that_have_no_names_yet(
    shared_cluster: Cluster,
    surroundings: Surroundings,
    reached_by: Callable[[str], None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    reached_by("hostname")
    async with Session(clustered(surroundings, shared_cluster)) as session:
        for impatient in (True, False):
            with pytest.raises(BackendError, match="the nodes of the cluster have no names yet: set"):
                if impatient:
                    await Lock(session, "a").locked()
                else:
                    await Lock(session, "a", blocking_timeout=0.5).acquire()
        said = [text.partition(":")[0] for text in caplog.messages if "no names yet" in text]
        assert [text.partition(" since")[0] for text in said] == [
            "some slots have no node that can be reached",
            "the cluster is away",
        ]
        waiting = asyncio.create_task(Lock(session, "a").acquire())
        await asyncio.sleep(0.1)
        reached_by("ip")
        await (await asyncio.wait_for(waiting, 5)).release()


async def test_a_slot_that_goes_to_a_node_without_a_name(
    shared_cluster: Cluster, surroundings: Surroundings, reached_by: Callable[[str], None]
) -> None:
    """The node that has lost it can only say `?`, and so can the table."""
    key = b"aiolocks:lock:{a}"
    source, slot = shared_cluster.owner_of(key), shared_cluster.slot(key)
    async with Session(clustered(surroundings, shared_cluster)) as session:
        await (await Lock(session, "a").acquire()).release()
        reached_by("hostname")
        await asyncio.to_thread(shared_cluster.move, slot, shared_cluster.another(source))
        try:
            with pytest.raises(BackendError, match="the nodes of the cluster have no names yet"):
                await Lock(session, "a", blocking_timeout=0.5).acquire()
            waiting = asyncio.create_task(Lock(session, "a").acquire())
            reached_by("ip")
            await (await asyncio.wait_for(waiting, 5)).release()
        finally:
            await asyncio.to_thread(shared_cluster.move, slot, source)


async def test_a_node_without_an_address_is_where_it_was_asked(
    shared_cluster: Cluster, surroundings: Surroundings, reached_by: Callable[[str], None]
) -> None:
    reached_by("unknown-endpoint")
    async with Session(clustered(surroundings, shared_cluster)) as session:
        for name in "abcdef":
            await (await Lock(session, name).acquire()).release()
