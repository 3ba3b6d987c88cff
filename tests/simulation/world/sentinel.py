"""A master with a replica, and the sentinels that watch them.

A master that the sentinels cannot reach for `DOWN_AFTER` is replaced by its replica, and each sentinel names
the new one a moment later. The old one goes on as the master, for whoever is still connected to it, until the
sentinels reach it and make it the replica; then its clients are disconnected, or are told with each write.
"""

from __future__ import annotations

from .node import Node
from .replicas import Losses, Pair, server_of
from .server.replication import Replicated
from .server.sentinel import Belief
from .world import World

SERVERS = ("m0", "m1")
SENTINELS = ("s0", "s1", "s2")
NODES = (*SERVERS, *SENTINELS)
DOWN_AFTER = 0.5
ELECTION = 0.5
"""Seconds from when the master counts as away to when the replica takes over, at most."""
TOLD = 0.5
"""Seconds until each sentinel names the new master, at most."""
DEMOTION = 3.0
"""Seconds from when an old master can be reached to when it is made a replica, at most."""
_TICK = 0.1
_QUORUM = 2


class Watched:
    """The servers and the sentinels.

    Args:
        lag: Seconds that a change takes to the replica, at most.
    """

    def __init__(self, world: World, losses: Losses, *, lag: float) -> None:
        self._world = world
        self._clockwork = world.clockwork
        self._random = world.clockwork.part("sentinel")
        self._losses = losses
        self.nodes: dict[str, Node] = {name: world.node(name, make=Replicated) for name in SERVERS}
        self.nodes |= {name: world.node(name) for name in SENTINELS}
        first, second = (self.nodes[name] for name in SERVERS)
        second.set_clock(ahead=(first.clock() - second.clock()) / 1e6)
        for name in SENTINELS:
            self.nodes[name].server.sentinel = Belief(*SERVERS, others=len(SENTINELS) - 1)
        self.pair = Pair(self._clockwork, first, second, losses, lag=lag)
        self._cut_off: dict[str, float] = {}
        self._heard = 0.0  # when the sentinels heard of the master last
        self._electing = self._demoting = False
        self._clockwork.after(_TICK, self._tick)

    def pair_of(self, name: str) -> Pair:
        return self.pair

    def _beliefs(self) -> list[Belief]:
        living = (self.nodes[name] for name in SENTINELS if self._reaches(name))
        return [node.server.sentinel for node in living if node.server.sentinel is not None]

    def _reaches(self, name: str) -> bool:
        node = self.nodes[name]
        return not (node.down or node.frozen or self._clockwork.now < self._cut_off.get(name, 0.0))

    def _tick(self) -> None:
        now, beliefs = self._clockwork.now, self._beliefs()
        if self._reaches(self.pair.master.name) or len(beliefs) < _QUORUM:
            self._heard = now
        away = now - self._heard > DOWN_AFTER
        for belief in beliefs:
            belief.away = away and belief.master == self.pair.master.name
        if away and not self._electing:
            self._electing = True
            self._clockwork.after(ELECTION * self._random.random(), self._elect)
        if not self.pair.following and not self._demoting and self._reaches(self.pair.replica.name):
            self._demoting = True
            self._clockwork.after(DEMOTION * self._random.random(), self._demote)
        self._clockwork.after(_TICK, self._tick)

    def _elect(self) -> None:
        self._electing = False
        if not self._reaches(self.pair.master.name) and len(self._beliefs()) >= _QUORUM:
            self._take_over()

    def _take_over(self) -> None:
        pair = self.pair
        if not (pair.following and self._reaches(pair.replica.name)):
            return
        self._world.trace.happened(pair.replica.name, f"takes the place of {pair.master.name}")
        pair.promote()
        server_of(pair.master).hang_up_on_clients()
        self._heard = self._clockwork.now
        for name in SENTINELS:
            self._tell(name, pair.master.name, pair.replica.name)

    def _tell(self, name: str, master: str, replica: str) -> None:
        """The sentinel learns of it, once it can."""

        def told() -> None:
            if not self._reaches(name):
                self._clockwork.after(_TICK, told)
            elif self.pair.master.name == master:
                belief = self.nodes[name].server.sentinel
                assert belief is not None
                belief.master, belief.replica, belief.away = master, replica, False
                self._world.trace.happened(name, f"names {master}")

        self._clockwork.after(TOLD * self._random.random(), told)

    def _demote(self) -> None:
        self._demoting = False
        pair = self.pair
        if not pair.following and self._reaches(pair.replica.name) and self._reaches(pair.master.name):
            self._world.trace.happened(pair.replica.name, "is a replica from now on")
            pair.demote()
            if self._random.random() < 0.5:  # Sentinel does; a service that fails over by itself may not
                server_of(pair.replica).hang_up_on_clients()

    # -- what befalls it

    def stop(self, name: str) -> None:
        self.nodes[name].stop()
        if name in SERVERS:
            self.pair.stopped(self.nodes[name])

    def start(self, name: str, *, keep: bool) -> None:
        node = self.nodes[name]
        if not keep and node is self.pair.master:
            self._losses.all_of(server_of(node))
        node.start(keep=keep)
        if name in SERVERS:
            self.pair.started(node)

    def cut_off(self, name: str, seconds: float) -> None:
        """The sentinels do not hear of it, nor it of its replica or its master; clients reach it."""
        self._world.trace.happened(name, "is cut off from the others")
        self._cut_off[name] = self._clockwork.now + seconds
        if name in SERVERS:
            self.pair.stalled_until = max(self.pair.stalled_until, self._cut_off[name])

    def fail_over(self, name: str) -> None:
        """Somebody has the sentinels replace the master, which lives on, and goes on for a moment."""
        if self._reaches(self.pair.master.name) and self._beliefs():
            self._take_over()
