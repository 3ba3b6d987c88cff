"""SCAN over all nodes of a cluster, as one scan.

Its cursor says where it has come to: `host:port@cursor`. Nothing is kept here in between. What is moved from
node to node meanwhile may be missed, or come twice.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final

from redis.asyncio.cluster import RedisCluster

from .calls import Argument

_BEGIN: Final = b"0"


def is_scan(words: tuple[Argument, ...]) -> bool:
    return words[0] == "SCAN"


def place(cursor: Argument, nodes: Iterable[str]) -> tuple[str, str] | None:
    """At which node a scan goes on, and with which cursor there; None when that is a node no more."""
    at, _, there = _text(cursor).rpartition("@")
    ordered = sorted(nodes)
    if not at:
        return ordered[0], there
    return (at, there) if at in ordered else None


def onward(at: str, there: Argument, nodes: Iterable[str]) -> bytes:
    """The cursor of the whole scan, when that of one node is `there`; `0` behind the last one."""
    if _text(there) != "0":
        return f"{at}@{_text(there)}".encode()
    following = next((node for node in sorted(nodes) if node > at), None)
    return _BEGIN if following is None else f"{following}@0".encode()


def skipped(cursor: Argument, nodes: Iterable[str]) -> list[Any]:
    """The answer of a node that is one no more: what it has not told, the others have."""
    at, _, _ = _text(cursor).rpartition("@")
    return [onward(at, "0", nodes), []]


def over_nodes(client: RedisCluster) -> Callable[..., Awaitable[Any]]:
    """What executes a command of a cluster over the client's own connections."""

    async def execute(*words: Any) -> Any:
        if not is_scan(words):
            return await client.execute_command(*words)
        await client.initialize()
        nodes = {node.name: node for node in client.get_primaries()}
        found = place(words[1], nodes)
        if found is None:
            return skipped(words[1], nodes)
        at, there = found
        cursors, keys = await client.execute_command("SCAN", there, *words[2:], target_nodes=nodes[at])
        return [onward(at, cursors[at], nodes), keys]

    return execute


def _text(cursor: Argument) -> str:
    return cursor.decode() if isinstance(cursor, bytes) else str(cursor)
