"""A SCAN over all nodes of a cluster as one scan: its cursor says where it has come to."""

from __future__ import annotations

from collections.abc import Sequence


def position(cursor: object, nodes: Sequence[tuple[str, int]]) -> tuple[int, bytes]:
    """Where in these nodes a scan goes on, and with which cursor there."""
    at, _, there = (
        bytes(cursor if isinstance(cursor, bytes) else str(cursor).encode()).decode().rpartition("@")
    )
    if not at:
        return 0, b"0"
    host, _, port = at.rpartition(":")
    # A node that serves nothing any more: the keys that it has not told, other nodes have.
    following = [number for number, node in enumerate(nodes) if node >= (host, int(port))]
    number = following[0] if following else len(nodes) - 1
    return number, there.encode() if nodes[number] == (host, int(port)) else b"0"


def cursor_behind(nodes: Sequence[tuple[str, int]], at: int, there: bytes) -> bytes:
    """Where the scan goes on after the answer of one of the nodes; `0` after the last one."""
    if int(there) == 0:
        at, there = at + 1, b"0"
    return b"0" if at == len(nodes) else b"%b:%d@%b" % (nodes[at][0].encode(), nodes[at][1], there)
