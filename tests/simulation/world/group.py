"""The part that all servers share that know of each other: who hears whom, deaths and returns."""

from __future__ import annotations

from .node import Node
from .replicas import Losses, Pair, server_of
from .world import World


class Group:
    """Nodes of which some are pairs of a master and a replica.

    Args:
        name: The name of its randomness.
    """

    def __init__(self, world: World, losses: Losses, *, name: str) -> None:
        self._world = world
        self._clockwork = world.clockwork
        self._random = world.clockwork.part(name)
        self._losses = losses
        self.nodes: dict[str, Node] = {}
        self._cut_off: dict[str, float] = {}  # until when nobody hears of a node

    def pair_of(self, name: str) -> Pair:
        """The master and the replica that a fault of this node is about."""
        raise NotImplementedError

    def _is_in_a_pair(self, name: str) -> bool:
        """Whether the node is a master or a replica."""
        return self.nodes[name] in (self.pair_of(name).master, self.pair_of(name).replica)

    def _reaches(self, name: str) -> bool:
        node = self.nodes[name]
        return not (node.down or node.frozen or self._clockwork.now < self._cut_off.get(name, 0.0))

    def _happened(self, name: str, what: str) -> None:
        self._world.trace.happened(name, what)

    # -- what befalls it

    def cut_off(self, name: str, seconds: float) -> None:
        """The others do not hear of it, nor it of them; clients reach it."""
        self._happened(name, "is cut off from the others")
        self._cut_off[name] = self._clockwork.now + seconds
        if self._is_in_a_pair(name):
            pair = self.pair_of(name)
            pair.stalled_until = max(pair.stalled_until, self._cut_off[name])

    def stop(self, name: str) -> None:
        """It dies."""
        self.nodes[name].stop()
        if self._is_in_a_pair(name):
            self.pair_of(name).stopped(self.nodes[name])

    def start(self, name: str, *, keep: bool) -> None:
        """It comes back, with its data or without."""
        node, pair = self.nodes[name], self.pair_of(name)
        if not keep and node is pair.master:
            self._losses.all_of(server_of(node))
        node.start(keep=keep)
        if self._is_in_a_pair(name):
            pair.started(node)

    def fail_over(self, name: str) -> None:
        """Somebody has the replica take the master's place, which lives on."""
        raise NotImplementedError
