"""Addresses of a cluster's nodes that belong to another cluster by now, or that no node has any more."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, asynccontextmanager

import pytest
from redis.asyncio import RedisCluster
from redis.asyncio.cluster import ClusterNode

from aiolocks import BackendError, LeaseState, Lock, Session
from aiolocks.testing import EmbeddedServer
from aiolocks.transport.cluster import connections
from aiolocks.transport.cluster_client import NodeConnectors
from tests.adversity.tools import SLACK
from tests.conftest import Surroundings, blocking
from tests.support.clusters import CLUSTER, Cluster, node_port, take_all_slots
from tests.support.hygiene import Inspector
from tests.support.proxy import Proxy
from tests.support.servers import ServerKind
from tests.support.waiting import eventually

HERE = "127.0.0.1"


class Lone:
    """A cluster of one node, which has all slots."""

    def __init__(self, server: EmbeddedServer, inspector: Inspector) -> None:
        assert server.port is not None
        self.server = server
        self.inspector = inspector
        self.port: int = server.port
        self.url = f"redis://{HERE}:{server.port}"

    def keys(self) -> list[str]:
        return self.inspector.keys()


@pytest.fixture(scope="module")
def _two_clusters(server_kind: ServerKind) -> Iterator[tuple[Lone, Lone]]:
    if server_kind.executable is None or server_kind.is_simulated:
        pytest.skip(f"not with {server_kind}: it starts clusters of its own")
    with ExitStack() as stack:

        def start(_: int) -> Lone:
            server = EmbeddedServer(
                executable=server_kind.executable, port=node_port(), password=False, arguments=CLUSTER
            )
            stack.enter_context(server)
            admin = stack.enter_context(blocking(f"unix://{server.path}"))
            take_all_slots(admin)
            return Lone(server, Inspector(admin))

        with ThreadPoolExecutor() as threads:
            ours, strange = threads.map(start, range(2))
        yield ours, strange


@pytest.fixture
def ours(surroundings: Surroundings, _two_clusters: tuple[Lone, Lone]) -> Lone:
    """The cluster that the sessions begin with."""
    for cluster in _two_clusters:
        surroundings.begin(cluster.server, cluster.inspector)
    return _two_clusters[0]


@pytest.fixture
def strange(ours: Lone, _two_clusters: tuple[Lone, Lone]) -> Lone:
    """Another cluster, which takes the same credentials and has the same slots."""
    return _two_clusters[1]


@asynccontextmanager
async def reached(at: dict[int, Proxy], *seeds: Proxy) -> AsyncIterator[RedisCluster]:
    """A client that finds each node, by its own port, behind one of the proxies."""
    client = RedisCluster(
        startup_nodes=[ClusterNode(HERE, seed.port) for seed in seeds],
        address_remap=lambda address: (address[0], at[address[1]].port),
    )
    try:
        yield client
    finally:
        await client.aclose()


@pytest.mark.leaves_keys("*.fence:*")
async def test_a_node_whose_address_is_a_strangers_by_now_is_not_used(ours: Lone, strange: Lone) -> None:
    async with (
        Proxy(ours.url) as node,
        reached({ours.port: node, strange.port: node}, node) as client,
        Session(client) as session,
    ):
        lease = await Lock(session, "a", ttl=20).acquire()
        node.lead_to(strange.url)
        node.cut()
        began = time.monotonic()
        with pytest.raises(BackendError, match=r"belongs to another cluster .* open a new Session"):
            await Lock(session, "b").acquire(blocking_timeout=0.5)
        assert time.monotonic() - began < 0.5 + SLACK
        assert lease.state is LeaseState.HELD
        assert strange.keys() == []

        async with reached({strange.port: node}, node) as another, Session(another) as fresh:
            assert await (await Lock(fresh, "a").acquire()).release() is None

        node.lead_to(ours.url)
        node.cut()
        async with Lock(session, "b", blocking_timeout=5):
            assert await lease.owned()
        await lease.release()


@pytest.mark.more  # as a node that is a stranger's by now
@pytest.mark.leaves_keys("*.fence:*")
async def test_a_strangers_table_is_not_believed_while_our_nodes_are_away(ours: Lone, strange: Lone) -> None:
    """A node left the cluster, and its address is among those that the client was given."""
    async with (
        Proxy(ours.url) as node,
        Proxy(strange.url) as former,
        reached({ours.port: node, strange.port: former}, node, former) as client,
    ):
        former.refuse = True
        async with Session(client) as session:
            async with Lock(session, "a"):
                pass
            former.refuse = False
            node.refuse = True
            node.cut()
            with pytest.raises(BackendError):
                await Lock(session, "a").acquire(blocking_timeout=1)
            assert former.count(b"CLUSTER") > 0
            assert former.count(b"EVALSHA") == former.count(b"EVAL") == 0
            assert strange.keys() == []
            node.refuse = False
            async with Lock(session, "a", blocking_timeout=5):
                assert ours.keys() != []


async def test_the_epoch_is_learned_with_the_table_where_the_user_may_ask_for_it(ours: Lone) -> None:
    async with Proxy(ours.url) as node, reached({ours.port: node}, node) as client:
        await client.initialize()
        connector = NodeConnectors(client).connector((HERE, node.port))
        _, epoch = await connector.cluster_table()
        told = await client.execute_command("CLUSTER INFO", target_nodes=RedisCluster.RANDOM)
        assert epoch == int(told["cluster_current_epoch"])
        connector.connection_kwargs = {**connector.connection_kwargs, "username": "humble", "password": "x"}
        rights = ("on", ">x", "+@all", "-cluster", "+cluster|slots")
        await client.execute_command("ACL SETUSER", "humble", *rights, target_nodes=RedisCluster.RANDOM)
        rows, epoch = await connector.cluster_table()
        await client.execute_command("ACL DELUSER", "humble", target_nodes=RedisCluster.RANDOM)
        assert rows
        assert epoch is None


@pytest.mark.more  # as nodes replaced one by one
@pytest.mark.leaves_keys("*.fence:*")
async def test_all_nodes_back_on_new_ports_at_once_are_found_by_a_new_session(
    ours: Lone,
) -> None:
    """Nobody is left who could tell the session where they are."""
    async with Proxy(ours.url) as before, Proxy(ours.url) as after:
        at = {ours.port: before}
        async with reached(at, before) as client, Session(client) as session:
            lease = await Lock(session, "a", ttl=1).acquire()
            at[ours.port] = after
            before.refuse = True
            before.cut()
            began = time.monotonic()
            with pytest.raises(BackendError, match=r"cannot be reached|did not answer"):
                await Lock(session, "b").acquire(blocking_timeout=0.5)
            assert time.monotonic() - began < 0.5 + SLACK
            await asyncio.wait_for(lease.wait_lost(), 5)
        async with reached(at, after) as another, Session(another) as fresh:
            async with Lock(fresh, "b", blocking_timeout=5):
                pass
        await eventually(lambda: ours.keys() == [], within=3)


@pytest.mark.more  # as one node that is a stranger's by now
async def test_a_cluster_whose_nodes_were_all_replaced_is_followed(
    surroundings: Surroundings, server_kind: ServerKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One by one, while the session needed no table: it asks for the nodes from time to time all the same."""
    if server_kind.executable is None or server_kind.is_simulated:
        pytest.skip(f"not with {server_kind}: it starts clusters of its own")
    monkeypatch.setattr(connections, "_ROLL_CALL", 0.05)
    with Cluster(server_kind.executable, masters=1) as cluster:
        first = cluster.masters[0]
        # The user's address for the cluster, as a name that always leads to one of its nodes.
        async with Proxy(first.url) as anyone:
            client = RedisCluster(host=HERE, port=anyone.port)
            async with Session(client) as session:
                async with Lock(session, "a"):
                    pass
                second = await asyncio.to_thread(cluster.add_replica)
                await asyncio.sleep(0.3)
                first.server.kill()
                second.do("CLUSTER", "FAILOVER", "TAKEOVER")
                second.do("CLUSTER", "FORGET", first.id)
                anyone.lead_to(second.url)
                async with Lock(session, "a", blocking_timeout=10):
                    assert second.inspector.keys() != []
            await client.aclose()
