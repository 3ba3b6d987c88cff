"""The ground of a schedule: the servers of a world, and the clients that lead to them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AsyncExitStack
from functools import cache
from typing import Any, Protocol

from redis.asyncio import Redis, RedisCluster
from redis.asyncio.cluster import ClusterNode
from redis.asyncio.connection import Connection
from redis.asyncio.sentinel import Sentinel, SentinelManagedConnection

from .cluster import SHARDS, Cluster
from .group import Group
from .node import Node
from .replicas import Losses
from .schedule import Schedule
from .sentinel import SENTINELS, Watched
from .server.sentinel import SERVICE
from .world import World

_LAGS = (0.001, 0.02, 0.3)
"""Seconds that a change takes to a replica at most, one for each schedule."""


class Topology(Protocol):
    """Servers that belong together.

    Attributes:
        servers: All of them, by their names.
        distance: How many times as long as with one server it takes to find the right one.
        proof: Seconds that it takes until replicas have a lease and have said so, at most.
    """

    servers: dict[str, Node]
    distance: int
    proof: float

    def clients(self, wakeup: str, stack: AsyncExitStack) -> Iterable[Any]:
        """The clients of one process, one for each session; the stack closes what they leave open."""
        ...


class Own(Connection):
    """As users write them: nothing that can be taken over, so that the serial transport serves."""

    async def _connect(self) -> None:
        await super()._connect()


class Independent:
    """Servers that do not know of each other; a session for each."""

    distance = 1
    proof = 0.0

    def __init__(self, world: World, schedule: Schedule, lose: Callable[[str], None]) -> None:
        hosts = schedule.kind.hosts
        clocks = schedule.clocks or [None] * len(hosts)
        self.servers = {
            host: world.node(host, clock=clock) for host, clock in zip(hosts, clocks, strict=True)
        }

    def clients(self, wakeup: str, stack: AsyncExitStack) -> Iterable[Redis]:
        return [_client_of(host, wakeup) for host in self.servers]


class Grouped:
    """Servers that know of each other, with masters and replicas."""

    def __init__(self, world: World, schedule: Schedule, lose: Callable[[str], None]) -> None:
        kind = schedule.kind
        self.distance = 4 if kind.replicas else 2  # to ask replicas takes one more connection
        lag = world.clockwork.part("lag").choice(_LAGS)
        self.group = self._form(world, Losses(lose, strict=bool(kind.replicas)), lag)
        self.servers = self.group.nodes
        self.proof = (
            4 * lag if kind.replicas else 0.0
        )  # each takes two lags, behind those of one round before

    def _form(self, world: World, losses: Losses, lag: float) -> Group:
        raise NotImplementedError


class Clustered(Grouped):
    """A cluster, and a client of it."""

    def _form(self, world: World, losses: Losses, lag: float) -> Group:
        return Cluster(world, losses, lag=lag)

    def clients(self, wakeup: str, stack: AsyncExitStack) -> Iterable[RedisCluster]:
        client = RedisCluster(startup_nodes=[ClusterNode(name, 6379) for name, _ in SHARDS], **_older(wakeup))
        if wakeup == "plain":
            manager = client.nodes_manager
            for node in manager.startup_nodes.values():
                node.connection_class = Own
            manager.connection_kwargs["connection_class"] = Own
        stack.push_async_callback(_close, client)
        return [client]


async def _close(client: RedisCluster) -> None:
    """Closes all connections of the client.

    After a CLUSTERDOWN or a broken connection, redis-py waits for the next command to learn the slots again.
    Until then its `aclose` does nothing, although other commands may have connected meanwhile, or still be
    connected. Sessions leave the client as it is, and their own connections are not among those of its nodes.
    """
    await client.aclose()
    for node in (*client.get_nodes(), *client.nodes_manager.startup_nodes.values()):
        await node.disconnect()


class _OwnManaged(SentinelManagedConnection):
    """The same behind Sentinel."""

    async def _connect(self) -> None:
        await super()._connect()


class BehindSentinel(Grouped):
    """A master with a replica, and a client that asks the sentinels which it is."""

    watched: Watched

    def _form(self, world: World, losses: Losses, lag: float) -> Group:
        self.watched = Watched(world, losses, lag=lag)
        return self.watched

    def clients(self, wakeup: str, stack: AsyncExitStack) -> Iterable[Redis]:
        sentinel = Sentinel([(name, 6379) for name in SENTINELS])
        own = {"connection_class": _OwnManaged} if wakeup == "plain" else {}
        client: Redis = sentinel.master_for(SERVICE.decode(), **_older(wakeup), **own)
        # Not `sentinel.aclose`: its list loses one of them where two connections ask for the master at once.
        for asked in sentinel.sentinels:
            stack.push_async_callback(asked.aclose)
        stack.push_async_callback(client.aclose)
        return [client]


TOPOLOGIES: dict[str, Callable[[World, Schedule, Callable[[str], None]], Topology]] = {
    "one": Independent,
    "masters": Independent,
    "cluster": Clustered,
    "sentinel": BehindSentinel,
}


@cache
def _client_of(host: str, wakeup: str) -> Redis:
    """A client; it has nothing of its own that a session would change."""
    client = Redis(host=host, port=6379, **_older(wakeup))
    if wakeup == "plain":
        client.connection_pool.connection_class = Own
    return client


def _older(wakeup: str) -> dict[str, Any]:
    return {"protocol": 2} if wakeup == "resp2" else {}
