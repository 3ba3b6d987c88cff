"""How connections to the nodes of a cluster are made, from the client of that cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final, final

import redis.exceptions as driver
from redis.asyncio.cluster import ClusterNode, RedisCluster

from .answers import fields
from .driver import (
    CONNECT_TIMEOUT,
    Address,
    MakeWords,
    NotConnectedError,
    arguments_of,
    close_now,
    cluster_slots,
    drivable_class,
    library_behind,
)
from .libraries import REDIS, library_of
from .request import UNREADABLE
from .tls import connected

# -- Single commands of a cluster's client, and its SCAN over all nodes as one scan.


def over_nodes(client: RedisCluster) -> Callable[[MakeWords], Awaitable[Any]]:
    """A function that executes a request to a cluster, once, where a SCAN goes from one master to the next.

    redis-py sends a command again by itself when its connection breaks, unless it is told the node.

    The cursor of a SCAN says where it has come to: `host:port@cursor`. The function keeps nothing in between.
    A key that moves from node to node meanwhile may be missed, or come twice.
    """
    library = library_of(type(client)) or REDIS

    async def execute(make: MakeWords) -> Any:
        with library.errors():
            return await run(make)

    async def run(make: MakeWords) -> Any:
        try:
            await library.attempt(client.initialize())
        except (driver.RedisError, driver.RedisClusterException, OSError, TimeoutError) as error:
            raise NotConnectedError(error) from error
        words: Any = make()  # the library connects to the node when it has them
        if words[0] != "SCAN":
            return await client.execute_command(*words, target_nodes=_serving(client, words[3]))
        nodes = sorted(client.get_primaries(), key=lambda node: node.name)
        at, _, cursor = bytes(words[1]).decode().rpartition("@")
        node = next((node for node in nodes if node.name == at), None) if at else nodes[0]
        if node is None:  # not a master any more: the keys that it has not told, other masters have
            return [_behind(nodes, at), []]
        cursors, keys = await client.execute_command("SCAN", cursor, *words[2:], target_nodes=node)
        there = cursors[node.name]
        return [b"%b@%d" % (node.name.encode(), there) if there else _behind(nodes, node.name), keys]

    return execute


def _serving(client: RedisCluster, key: Any) -> ClusterNode | None:
    """The node with this key; where none is known, any: it says where the key is, or that no node has it."""
    try:
        with (library_of(type(client)) or REDIS).errors():
            return client.get_node_from_key(key)
    except driver.SlotNotCoveredError:
        return client.get_default_node()


def _behind(nodes: list[ClusterNode], name: str) -> bytes:
    """Where the scan of the next node begins; `0` after the last one."""
    following = next((node for node in nodes if node.name > name), None)
    return b"0" if following is None else following.name.encode() + b"@0"


# Of a cluster's client; what refers back to it must not keep it alive.
_CLUSTER_MATTERS: Final = (
    "himport_registry",
    "oss_cluster_maint_notifications_handler",
    "redis_connect_func",
    "valkey_connect_func",
)


@final
class NodeConnector:
    """How connections to one node of a cluster are made."""

    __slots__ = ("cluster", "connection_class", "connection_kwargs")

    def __init__(
        self, cluster: NodeConnectors, connection_class: Any, connection_kwargs: dict[str, Any]
    ) -> None:
        self.cluster = cluster
        self.connection_class = connection_class
        self.connection_kwargs = connection_kwargs

    async def cluster_table(self) -> tuple[Any, int | None]:
        """The slots and their nodes as this node knows them, over a connection for just this question.

        Returns: The rows of `CLUSTER SLOTS`, and the cluster's epoch, which each change of a slot's node
            makes larger; None where the user may not ask for that.
        """
        arguments = arguments_of(self)
        arguments.update(protocol=2, decode_responses=False)
        connection: Any = self.connection_class(**arguments)
        try:
            with library_behind(self).errors():
                async with asyncio.timeout(CONNECT_TIMEOUT):
                    await connected(self, connection.connect())
                    return await cluster_slots(connection), await _cluster_epoch(connection)
        finally:
            close_now(connection)


async def _cluster_epoch(connection: Any) -> int | None:
    await connection.send_command("CLUSTER", "INFO")
    try:
        with (library_of(type(connection)) or REDIS).errors():
            info: bytes = await connection.read_response(disable_decoding=True, disconnect_on_error=False)
        return int(fields(info)[b"cluster_current_epoch"])
    except (driver.ResponseError, *UNREADABLE):
        return None


@final
class NodeConnectors:
    """How the connections of a cluster's client are made: to any node, with what the client was given.

    The settings that it needs are copied: it neither keeps the client alive nor disturbs it. The client's own
    table is not used, for each time that redis-py learns it again all the connections of the user's commands
    are closed.

    Attributes:
        seeds: The nodes that the client knows by now.
        drivable: Whether its connections can be expected to carry the multiplexed protocol.
    """

    __slots__ = ("__weakref__", "_arguments", "_class", "_remap", "drivable", "seeds")

    def __init__(self, client: RedisCluster) -> None:
        manager = client.nodes_manager
        nodes = [*client.get_nodes(), *manager.startup_nodes.values()]
        self._class = nodes[0].connection_class
        arguments = nodes[0].connection_kwargs
        self._arguments = {name: arguments[name] for name in arguments if name not in _CLUSTER_MATTERS}
        self._remap: Callable[[Address], Address] | None = manager.address_remap
        self.seeds: tuple[Address, ...] = tuple(dict.fromkeys((node.host, int(node.port)) for node in nodes))
        self.drivable = drivable_class(self._class)

    def address(self, host: str, port: int) -> Address:
        """Where the client finds a node that the cluster knows by this address."""
        if self._remap is None:
            return host, port
        host, port = self._remap((host, port))
        return host, int(port)

    def connector(self, address: Address) -> NodeConnector:
        host, port = address
        return NodeConnector(self, self._class, {**self._arguments, "host": host, "port": port})
