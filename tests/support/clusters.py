"""A cluster of one node: all that a cluster asks of its clients, in no more processes than one server."""

from __future__ import annotations

import random
import socket
import time
from collections.abc import Sequence
from contextlib import suppress

from redis import Redis as BlockingRedis

_BUS = 10_000
"""By how much the port of a node's bus lies above its own; before 7.0 that is not for us to choose."""

CLUSTER: Sequence[str] = ("--cluster-enabled", "yes")
"""Arguments of a server that is a node."""


def node_port() -> int:
    """A port that is free, and so is the one of the bus; below those that the system hands out."""
    for _ in range(1000):
        port = random.randint(12_000, 22_000)
        with suppress(OSError), socket.socket() as node, socket.socket() as bus:
            node.bind(("127.0.0.1", port))
            bus.bind(("127.0.0.1", port + _BUS))
            return port
    raise RuntimeError("no free port for a node of a cluster")


def take_all_slots(node: BlockingRedis) -> None:
    """Make a lone node the whole cluster, and wait until it believes it.

    Raises:
        TimeoutError: It does not.
    """
    node.execute_command("CLUSTER", "ADDSLOTS", *range(16_384))
    deadline = time.monotonic() + 10
    while node.execute_command("CLUSTER INFO")["cluster_state"] != "ok":
        if time.monotonic() > deadline:
            raise TimeoutError("the cluster does not become ready")
        time.sleep(0.02)
