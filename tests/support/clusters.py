"""Clusters of our own: of one node, of three, and of three with a replica each."""

from __future__ import annotations

import random
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from redis import Redis as BlockingRedis
from redis.asyncio import RedisCluster
from redis.backoff import NoBackoff
from redis.crc import key_slot
from redis.exceptions import RedisError
from redis.retry import Retry

from aiolocks.testing import EmbeddedServer, ServerState
from tests.support.clients import cluster_client
from tests.support.hygiene import Inspector

if TYPE_CHECKING:
    from tests.conftest import Surroundings

_BUS = 10_000
"""By how much the port of a node's bus lies above its own; before 7.0 that is not for us to choose."""

CLUSTER: Sequence[str] = ("--cluster-enabled", "yes")
"""Arguments of a server that is a node."""

_NODE_TIMEOUT = 1000
"""Milliseconds after which the others take a silent node for failed."""


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
    _until(lambda: _is_ok(node), "the cluster does not become ready")


class Node:
    """One node, with a client for looking at it from outside."""

    def __init__(self, server: EmbeddedServer, admin: BlockingRedis) -> None:
        assert server.port is not None
        self.server = server
        self.admin = admin
        self.port: int = server.port
        self.url = f"redis://127.0.0.1:{self.port}"
        self.id = ""
        self.inspector = Inspector(admin)

    @property
    def state(self) -> ServerState:
        return self.server.state

    @property
    def alive(self) -> bool:
        return self.state is ServerState.RUNNING

    def do(self, *words: Any) -> Any:
        return self.admin.execute_command(*words)

    def __repr__(self) -> str:
        return f"<Node {self.port}>"


class Cluster:
    """A cluster that lives as long as its `with`.

    Args:
        executable: Of the server.
        masters: That many, which share the slots.
        replicas: The number of all nodes, of the first masters one each.
    """

    def __init__(self, executable: Path | None, *, masters: int = 3, replicas: int = 0) -> None:
        self._executable = executable
        self._masters = masters
        self._replicas = replicas
        self._stack = ExitStack()
        self.nodes: list[Node] = []

    @property
    def masters(self) -> list[Node]:
        """Those that were the masters at first."""
        return self.nodes[: self._masters]

    @property
    def replicas(self) -> list[Node]:
        return self.nodes[self._masters :]

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            for _ in range(self._masters + self._replicas):
                self.nodes.append(self._start(stack))
            self._form()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _start(self, stack: ExitStack) -> Node:
        options = ("--cluster-node-timeout", str(_NODE_TIMEOUT), "--repl-diskless-sync-delay", "0")
        options += ("--repl-diskless-load", "swapdb")  # else Valkey 9 looks once a second for what it loads
        server = EmbeddedServer(
            executable=self._executable,
            port=node_port(),
            password=False,
            arguments=(*CLUSTER, *options),
        )
        stack.enter_context(server)
        admin = BlockingRedis.from_url(f"unix://{server.path}", socket_timeout=5, retry=Retry(NoBackoff(), 1))
        stack.callback(admin.close)
        return Node(server, admin)

    def _form(self) -> None:
        for number, node in enumerate(self.nodes):
            node.do("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
            node.id = _text(node.do("CLUSTER", "MYID"))
        for number, node in enumerate(self.masters):
            first, last = 16_384 * number // self._masters, 16_384 * (number + 1) // self._masters
            node.do("CLUSTER", "ADDSLOTS", *range(first, last))
        for one in self.nodes:
            for other in self.nodes:
                if one is not other:
                    one.do("CLUSTER", "MEET", "127.0.0.1", other.port)
        _until(self._all_know_all, "the nodes do not meet")
        for replica, master in zip(self.replicas, self.masters, strict=False):
            replica.do("CLUSTER", "REPLICATE", master.id)
        _until(lambda: all(_is_ok(node.admin) for node in self.nodes), "the cluster does not become ready")
        _until(self._all_replicate, "the replicas do not")

    def _all_know_all(self) -> bool:
        return all(
            int(node.do("CLUSTER INFO")["cluster_known_nodes"]) == len(self.nodes)
            and "handshake" not in str(node.do("CLUSTER NODES"))
            for node in self.nodes
        )

    def _all_replicate(self) -> bool:
        linked = all(node.admin.info("replication")["master_link_status"] == "up" for node in self.replicas)
        # All have to know who is whose replica, or else none is promoted.
        known = [len(row) - 3 for node in self.nodes for row in node.do("CLUSTER SLOTS")]
        return linked and sum(known) == self._replicas * len(self.nodes)

    def add_replica(self) -> Node:
        """Start one more node, a replica of the first master."""
        node, master = self._start(self._stack), self.masters[0]
        node.id = _text(node.do("CLUSTER", "MYID"))
        node.do("CLUSTER", "MEET", "127.0.0.1", master.port)
        self.nodes.append(node)
        self._replicas += 1
        _until(self._all_know_all, "the nodes do not meet")
        node.do("CLUSTER", "REPLICATE", master.id)
        _until(self._all_replicate, "the replica does not")
        return node

    # -- using it

    def begin(self, surroundings: Surroundings) -> None:
        """From now on it is this test's, empty, and looked at behind it."""
        for node in self.masters:
            surroundings.begin(node, node.inspector)

    def keys(self) -> list[str]:
        """All keys, but those of fencing tokens."""
        return sorted(key for node in self.masters if node.alive for key in node.inspector.keys())  # noqa: SIM118 - no dict

    def client(self, **kwargs: Any) -> RedisCluster:
        """A client; its caller closes it."""
        client: RedisCluster = cluster_client("127.0.0.1", self.masters[0].port, **kwargs)
        return client

    def owner(self, slot: int) -> Node:
        """The node that serves it, as the first living node says."""
        living = next(node for node in self.nodes if node.alive)
        port = self._owner(living, slot)
        return next(node for node in self.nodes if node.port == port)

    def _owners(self, slot: int) -> set[int | None]:
        return {self._owner(node, slot) for node in self.nodes if node.alive}

    def _owner(self, said_by: Node, slot: int) -> int | None:
        rows = said_by.do("CLUSTER SLOTS")
        return next((master[1] for first, last, master, *_ in rows if first <= slot <= last), None)

    def move(self, slot: int, to: Node, *, dwell: float = 0.0) -> None:
        """Give a slot to another node, key by key, as the tools do; `dwell` seconds at each step."""
        source = self.settle(slot)
        if source is to:
            return
        self.begin_move(slot, source, to)
        time.sleep(dwell)
        while keys := source.do("CLUSTER", "GETKEYSINSLOT", slot, 1):
            self.carry(keys, source, to)
            time.sleep(dwell)
        self.end_move(slot, source, to)

    def can_move_at_once(self) -> bool:
        """Whether its server, as Valkey 9 and later, moves a slot with all its keys in one step."""
        return any("migrateslots" in str(word).lower() for word in self.nodes[0].do("CLUSTER", "HELP"))

    def move_at_once(self, slots: Sequence[int], source: Node, to: Node) -> None:
        """Give all these slots of one node to another, in one step for each slot."""
        ranges = [word for slot in slots for word in (slot, slot)]
        source.do("CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", *ranges, "NODE", to.id)
        for slot in slots:
            self.settle_on(slot, to)

    def begin_move(self, slot: int, source: Node, to: Node) -> None:
        """From now on the slot is being moved; its keys are where they were."""
        to.do("CLUSTER", "SETSLOT", slot, "IMPORTING", source.id)
        source.do("CLUSTER", "SETSLOT", slot, "MIGRATING", to.id)

    def carry(self, keys: Sequence[bytes], source: Node, to: Node) -> None:
        """Move these keys."""
        if keys:
            source.do("MIGRATE", "127.0.0.1", to.port, "", 0, 5000, "KEYS", *keys)

    def end_move(self, slot: int, source: Node, to: Node) -> None:
        """The slot has moved; its keys have to be there."""
        for node in (to, source, *self.masters):
            if node.alive:
                node.do("CLUSTER", "SETSLOT", slot, "NODE", to.id)

    def settle(self, slot: int) -> Node:
        """The node that serves it, once all agree: word of before may still be on its way between them."""
        for _ in range(3):
            _until(lambda: len(self._owners(slot)) == 1, "the nodes do not agree")
            time.sleep(0.005)
        return self.owner(slot)

    def settle_on(self, slot: int, node: Node) -> None:
        """Wait until all agree that this node serves it."""
        _until(lambda: self._owners(slot) == {node.port}, "the slot does not get there")

    def another(self, node: Node) -> Node:
        """The master after this one."""
        return self.masters[(self.masters.index(node) + 1) % len(self.masters)]

    def slot(self, key: bytes) -> int:
        return key_slot(key)

    def owner_of(self, key: bytes) -> Node:
        return self.owner(self.slot(key))


def _is_ok(node: BlockingRedis) -> bool:
    with suppress(RedisError):
        return bool(node.execute_command("CLUSTER INFO")["cluster_state"] == "ok")
    return False


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _until(true: Callable[[], bool], otherwise: str, *, within: float = 20) -> None:
    deadline = time.monotonic() + within
    while not true():
        if time.monotonic() > deadline:
            raise TimeoutError(otherwise)
        time.sleep(0.02)
