"""The keys with which it is tried out whether a node of a cluster tells of bells."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, final

from .. import faults
from ..requests.calls import Call
from ..requests.keys import slot_of, tag_of
from ..wire.multiplexed import Multiplexed
from .backlogs import Backlogs
from .connections import NodeConnections
from .redirects import slot_of_call
from .slots import Slots


@final
class Probes:
    """A probe is a key in a slot of the node that is tried out: it turns all others away.

    Which slots it has may have changed a moment ago. And in a slot that is being moved away, it has no new
    key. So the first probe is in the slot of a request that waits for this node, which may be one that the
    node is only being given; where that is turned away, another slot is tried.

    Args:
        send: Sends a request to the node of its slot.
        moved: Told of a slot that another node serves than was known.
    """

    __slots__ = ("_backlogs", "_moved", "_nodes", "_send", "_slots")

    def __init__(
        self,
        slots: Slots,
        nodes: NodeConnections,
        backlogs: Backlogs,
        *,
        send: Callable[[Call[Any]], None],
        moved: Callable[[int], None],
    ) -> None:
        self._slots = slots
        self._nodes = nodes
        self._backlogs = backlogs
        self._send = send
        self._moved = moved

    def key(self, node: Multiplexed, name: bytes, turned_away: Collection[bytes]) -> bytes | None:
        """One that begins with this name, in another slot than those; None if the node has no other."""
        beside = {slot_of(bell) for bell in turned_away}
        waiting = (call for call in node.waiting() if call.command.keys and slot_of_call(call) not in beside)
        tags = (tag_of(call.command.keys[0]) for call in waiting)
        tag = next((tag for tag in tags if tag is not None), None)
        if tag is None and node in self._nodes:  # else it is being left
            tag = self._slots.tag(self._nodes.address_of(node), beside=beside)
        return None if tag is None else name + tag

    def turned_away(self, node: Multiplexed, bell: bytes, redirect: faults.Redirect) -> None:
        """If another node has the slot of that bell, the requests in it that wait for this node go there."""
        if redirect.to is None or redirect.once or node not in self._nodes:
            return  # the slot is still here, or the node is being left
        slot = slot_of(bell)
        news = self._slots.move(slot, self._slots.address(*redirect.to, self._nodes.address_of(node)))
        pause = self._backlogs.pause(slot)
        for call in node.take_back(lambda call: slot_of_call(call) == slot):
            if pause:
                self._backlogs.hold(slot, call, pause=pause)
            else:
                self._send(call)
        if news:
            self._moved(slot)
