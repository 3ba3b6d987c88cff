"""What a schedule runs on: the servers of a world, and the clients that lead to them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AsyncExitStack
from functools import cache
from typing import Any, Protocol

from redis.asyncio import Redis, RedisCluster
from redis.asyncio.cluster import ClusterNode
from redis.asyncio.connection import Connection

from .cluster import SHARDS, Cluster
from .kinds import Kind
from .node import Node
from .replicas import Losses
from .world import World

_LAGS = (0.001, 0.02, 0.3)
"""Seconds that a change takes to a replica at most, one for each schedule."""


class Topology(Protocol):
    """Servers that belong together.

    Attributes:
        servers: All of them, by their names.
    """

    servers: dict[str, Node]

    def clients(self, wakeup: str, stack: AsyncExitStack) -> Iterable[Any]:
        """The clients of one process, one for each session; the stack closes what they leave open."""
        ...


class Own(Connection):
    """As users write them: nothing that can be taken over, so that the plain transport serves."""

    async def _connect(self) -> None:
        await super()._connect()


class Independent:
    """Servers that do not know of each other; a session for each."""

    def __init__(self, world: World, kind: Kind, lose: Callable[[str], None]) -> None:
        self.servers = {host: world.node(host) for host in kind.hosts}

    def clients(self, wakeup: str, stack: AsyncExitStack) -> Iterable[Redis]:
        return [_client_of(host, wakeup) for host in self.servers]


class Clustered:
    """A cluster, and a client of it."""

    def __init__(self, world: World, kind: Kind, lose: Callable[[str], None]) -> None:
        lag = world.clockwork.part("lag").choice(_LAGS)
        self.cluster = Cluster(world, Losses(lose, strict=bool(kind.replicas)), lag=lag)
        self.servers = self.cluster.nodes

    def clients(self, wakeup: str, stack: AsyncExitStack) -> Iterable[RedisCluster]:
        client = RedisCluster(startup_nodes=[ClusterNode(name, 6379) for name, _ in SHARDS], **_older(wakeup))
        if wakeup == "plain":
            manager = client.nodes_manager
            for node in manager.startup_nodes.values():
                node.connection_class = Own
            manager.connection_kwargs["connection_class"] = Own
        stack.push_async_callback(client.aclose)
        return [client]


TOPOLOGIES: dict[str, Callable[[World, Kind, Callable[[str], None]], Topology]] = {
    "one": Independent,
    "masters": Independent,
    "cluster": Clustered,
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
