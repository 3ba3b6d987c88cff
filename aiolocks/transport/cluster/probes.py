"""The keys with which it is tried out whether a node of a cluster tells of bells."""

from __future__ import annotations

from collections.abc import Collection
from typing import final

from ..connection import Multiplexed
from ..keys import slot_of, tag_of
from .connections import NodeConnections
from .redirects import slot_of_call
from .slots import Slots


@final
class Probes:
    """A probe is a key in a slot of the node that is tried out: the node turns all other keys away.

    Which slots it has may have changed a moment ago. And in a slot that is being moved away, it takes no new
    key. So the first probe is in the slot of a request that waits for this node, which may be one that the
    node is only being given; where that is turned away, another slot is tried.
    """

    __slots__ = ("_nodes", "_slots")

    def __init__(self, slots: Slots, nodes: NodeConnections) -> None:
        self._slots = slots
        self._nodes = nodes

    def key(self, node: Multiplexed, name: bytes, turned_away: Collection[bytes]) -> bytes | None:
        """A key that begins with this name, in no slot of `turned_away`; None if there is no such slot."""
        beside = {slot_of(bell) for bell in turned_away}
        waiting = (call for call in node.waiting() if call.keys and slot_of_call(call) not in beside)
        tags = (tag_of(call.keys[0]) for call in waiting)
        tag = next((tag for tag in tags if tag is not None), None)
        if tag is None and node in self._nodes:  # else it is being left
            tag = self._slots.tag(self._nodes.address_of(node), beside=beside)
        return None if tag is None else name + tag
