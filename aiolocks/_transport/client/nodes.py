"""Single commands of a cluster's client, and its SCAN over all nodes as one scan."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import redis.exceptions as driver
from redis.asyncio.cluster import ClusterNode, RedisCluster

from .driver import MakeWords, NotConnectedError
from .libraries import REDIS, library_of


def over_nodes(client: RedisCluster) -> Callable[[MakeWords], Awaitable[Any]]:
    """A function that executes a request to a cluster, once, where a SCAN goes from one master to the next.

    redis-py sends a command again by itself when its connection breaks, unless it is told the node.

    The cursor of a SCAN says where it has come to: `host:port@cursor`. Nothing is kept here in between. A key
    that moves from node to node meanwhile may be missed, or come twice.
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
        if node is None:  # not a master any more: what it has not told, the others have
            return [_behind(nodes, at), []]
        cursors, keys = await client.execute_command("SCAN", cursor, *words[2:], target_nodes=node)
        there = cursors[node.name]
        return [b"%b@%d" % (node.name.encode(), there) if there else _behind(nodes, node.name), keys]

    return execute


def _serving(client: RedisCluster, key: Any) -> ClusterNode | None:
    """The node with this key; where none is known, any: it says where the key is, or that nobody knows."""
    try:
        with (library_of(type(client)) or REDIS).errors():
            return client.get_node_from_key(key)
    except driver.SlotNotCoveredError:
        return client.get_default_node()


def _behind(nodes: list[ClusterNode], name: str) -> bytes:
    """Where the scan of the next node begins; `0` after the last one."""
    following = next((node for node in nodes if node.name > name), None)
    return b"0" if following is None else following.name.encode() + b"@0"
