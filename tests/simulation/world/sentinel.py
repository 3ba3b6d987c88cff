"""A master with a replica, and the sentinels that watch them.

A master that the sentinels cannot reach for `DOWN_AFTER`, or that is to be replaced, is replaced by its
replica, and each sentinel names and tells the new one a moment later. The old one goes on as the master, for
whoever is still connected to it, until the sentinels reach it and make it the replica: later, where it was
well. Then its clients are disconnected, or are told with each write.
"""

from __future__ import annotations

from .group import Group
from .replicas import Losses, Pair, server_of
from .server.replication import Replicated
from .server.sentinel import Belief, learn
from .world import World

SERVERS = ("m0", "m1")
SENTINELS = ("s0", "s1", "s2")
NODES = (*SERVERS, *SENTINELS)
DOWN_AFTER = 0.5
ELECTION = 0.5
"""Seconds from when the master counts as away to when the replica takes over, at most."""
TOLD = 0.5
"""Seconds until each sentinel names the new master, at most."""
HEARD = 0.3
"""Seconds from then to when a session that hears any sentinel has left the old master, and the journeys."""
DEMOTION = 3.0
"""Seconds from when an old master can be reached to when it is made a replica, at most."""
PLANNED_DEMOTION = 10.0
"""The same where it was replaced although it was well."""
_TICK = 0.1
_QUORUM = 2


class Watched(Group):
    """The servers and the sentinels.

    Args:
        lag: Seconds that a change takes to the replica, at most.
    """

    def __init__(self, world: World, losses: Losses, *, lag: float) -> None:
        super().__init__(world, losses, name="sentinel")
        self.nodes |= {name: world.node(name, make=Replicated) for name in SERVERS}
        self.nodes |= {name: world.node(name) for name in SENTINELS}
        first, second = (self.nodes[name] for name in SERVERS)
        second.set_clock(ahead=(first.clock() - second.clock()) / 1e6)
        for name in SENTINELS:
            self.nodes[name].server.sentinel = Belief(*SERVERS, others=len(SENTINELS) - 1)
        self.pair = Pair(self._clockwork, first, second, losses, lag=lag)
        self._heard = 0.0  # when the sentinels heard of the master last
        self._electing = self._demoting = False
        self.left_by = 0.0  # when the last sessions have heard that the old master is to be left
        self._demotion = DEMOTION
        self._epoch = 1
        self._clockwork.every(_TICK, self._tick)

    def pair_of(self, name: str) -> Pair:
        return self.pair

    def _beliefs(self) -> list[Belief]:
        living = (self.nodes[name] for name in SENTINELS if self._reaches(name))
        return [node.server.sentinel for node in living if node.server.sentinel is not None]

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
            self._clockwork.after(self._demotion * self._random.random(), self._demote)

    def _elect(self) -> None:
        self._electing = False
        if not self._reaches(self.pair.master.name) and len(self._beliefs()) >= _QUORUM:
            self._take_over()

    def _take_over(self) -> None:
        pair = self.pair
        if not (pair.following and self._reaches(pair.replica.name)):
            return
        self._happened(pair.replica.name, f"takes the place of {pair.master.name}")
        told = [TOLD * self._random.random() for _ in SENTINELS]
        self.left_by = self._clockwork.now + min(told) + HEARD
        pair.promote()
        server_of(pair.master).hang_up_on_clients()
        self._heard = self._clockwork.now
        self._epoch += 1
        self._demotion = DEMOTION
        for name, after in zip(SENTINELS, told, strict=True):
            self._clockwork.after(after, self._tell, name, pair.master.name, pair.replica.name, self._epoch)

    def _tell(self, name: str, master: str, replica: str, epoch: int) -> None:
        """The sentinel learns of it, once it can."""
        if not self._reaches(name):
            self._clockwork.after(_TICK, self._tell, name, master, replica, epoch)
        elif self.pair.master.name == master:
            self._happened(name, f"names {master}")
            learn(self.nodes[name].server, master, replica, epoch)

    def _demote(self) -> None:
        self._demoting = False
        pair = self.pair
        if not pair.following and self._reaches(pair.replica.name) and self._reaches(pair.master.name):
            self._happened(pair.replica.name, "is a replica from now on")
            pair.demote()
            if self._random.random() < 0.5:  # Sentinel does; a service that fails over by itself may not
                server_of(pair.replica).hang_up_on_clients()

    # -- what befalls it

    def fail_over(self, name: str) -> None:
        """Somebody has the sentinels replace the master, which lives on, and goes on for a moment."""
        if self._reaches(self.pair.master.name) and self._beliefs():
            self._take_over()
            self._demotion = PLANNED_DEMOTION
