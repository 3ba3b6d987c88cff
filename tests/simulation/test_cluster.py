"""The simulated cluster beside a real one: what a slot that leaves in one step tells to whom."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Protocol, cast

import hiredis
import pytest

from tests.simulation.world.cluster import Cluster as SimulatedCluster
from tests.simulation.world.randomness import Source
from tests.simulation.world.replicas import Losses
from tests.simulation.world.world import World
from tests.support.clusters import Cluster

KEY = b"{x}bell"
CHANNEL = b"__keyspace@0__:" + KEY
SHARD = b"{x}"
Words = tuple[bytes, ...]

SETTING_UP: dict[str, tuple[Words, ...]] = {
    "tracks": ((b"CLIENT", b"TRACKING", b"ON"), (b"GET", KEY)),
    "listens": ((b"SUBSCRIBE", CHANNEL), (b"SSUBSCRIBE", SHARD)),
}
TOLD: dict[str, list[list[Any]]] = {
    "tracks": [[b"invalidate", [KEY]]],
    "listens": [[b"sunsubscribe", SHARD, 0]],
    "at the new node": [[b"message", CHANNEL, b"set"], [b"message", CHANNEL, b"expire"]],
}
"""What each connection is told: the last one has subscribed to the channel on the node that gets the slot."""


class Ask(Protocol):
    """Gives all that was said on a connection since the last time, behind a request if there is one."""

    def __call__(self, *words: bytes) -> list[Any]: ...


def scenario(old: Callable[[], Ask], new: Callable[[], Ask], move: Callable[[], None]) -> None:
    old()(b"SET", KEY, b"", b"PX", b"100000")
    asks = {name: old() for name in SETTING_UP}
    for name, requests in SETTING_UP.items():
        for words in requests:
            asks[name](*words)
    asks["at the new node"] = new()
    asks["at the new node"](b"SUBSCRIBE", CHANNEL)
    (refused,) = asks["at the new node"](b"SSUBSCRIBE", SHARD)
    assert str(refused).startswith("MOVED")
    move()
    for name, told in TOLD.items():
        assert asks[name]() == told, name
    (refused,) = asks["listens"](b"SUNSUBSCRIBE", SHARD)
    assert str(refused).startswith("MOVED")
    assert asks["at the new node"](b"SSUBSCRIBE", SHARD) == [[b"ssubscribe", SHARD, 1]]


def test_a_simulated_slot() -> None:
    world = World(1, Source())
    cluster = SimulatedCluster(world, Losses(lambda _: None, strict=False), lag=0.001)
    for node in cluster.nodes.values():
        node.server.configure("notify-keyspace-events", "KA")

    def connected(name: str) -> Ask:
        reader, node = hiredis.Reader(), cluster.nodes[name]
        server, wire = node.server, SimpleNamespace(name="a test")
        client = server.connect(reader.feed, lambda: None, name)
        node.accepted(client, cast("Any", wire))

        def ask(*words: bytes) -> list[Any]:
            if words:
                server.feed(client, hiredis.pack_command(words))
            said: list[Any] = []
            while (reply := reader.gets()) is not False:
                said.append(reply)
            return said

        ask(b"HELLO", b"3")
        return ask

    def move() -> None:
        writer, reader = connected("c0"), connected("c0")
        cluster.move_at_once(16287, 0.1, cancelled=False)
        world.pass_until(0.05)
        assert writer(b"SET", KEY, b"late") == []  # writes pause
        assert len(reader(b"EXISTS", KEY)) == 1
        world.pass_until(0.2)
        (refused,) = writer()
        assert str(refused).startswith("MOVED 16287 a0")

    scenario(lambda: connected("c0"), lambda: connected("a0"), move)
    world.dispose()


def test_a_simulated_slot_whose_move_is_cancelled_stays() -> None:
    world = World(1, Source())
    cluster = SimulatedCluster(world, Losses(lambda _: None, strict=False), lag=0.001)
    before = cluster.slots("c0").view.copy()
    cluster.move_at_once(16287, 0.1, cancelled=True)
    world.pass_until(0.3)
    assert cluster.slots("a0").view == cluster.slots("c0").view == before
    world.dispose()


def test_a_real_slot(shared_cluster: Cluster) -> None:
    if not shared_cluster.can_move_at_once():
        pytest.skip("not with this server: it moves slots key by key")
    slot = shared_cluster.slot(KEY)
    source = shared_cluster.settle(slot)
    to = shared_cluster.another(source)
    opened: list[socket.socket] = []

    def connected(port: int) -> Ask:
        connection, reader = socket.create_connection(("127.0.0.1", port)), hiredis.Reader()
        connection.settimeout(0.1)
        opened.append(connection)

        def ask(*words: bytes) -> list[Any]:
            if words:
                connection.sendall(hiredis.pack_command(words))
            said: list[Any] = []
            until = time.monotonic() + 5
            while time.monotonic() < until:
                try:
                    reader.feed(connection.recv(65536))
                except TimeoutError:
                    if said or not words:
                        break
                while (reply := reader.gets()) is not False:
                    said.append(reply)
            return said

        ask(b"HELLO", b"3")
        return ask

    for node in shared_cluster.masters:
        node.do("CONFIG", "SET", "notify-keyspace-events", "KA")
    try:
        scenario(
            lambda: connected(source.port),
            lambda: connected(to.port),
            lambda: shared_cluster.move_at_once([slot], source, to),
        )
    finally:
        for connection in opened:
            connection.close()
        for node in shared_cluster.masters:
            node.do("CONFIG", "SET", "notify-keyspace-events", "")
        to.do("DEL", KEY)
