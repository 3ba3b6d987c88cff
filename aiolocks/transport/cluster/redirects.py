"""How requests go on that a node of a cluster has turned away: at another node, or at the same one later."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from functools import partial
from typing import Any, Final, final

from .. import faults
from ..connection import Multiplexed
from ..driver import Address
from ..faults import Redirect
from ..hearing import ASKING
from ..keys import slot_of
from ..request import Request, ignore
from .backlogs import PAUSE_FIRST, Backlogs
from .connections import NodeConnections
from .slots import Slots

_CLEARED_WITHIN: Final = 1.0
"""Seconds for which a node that owes replies of a slot it has lost holds up later requests of the slot."""


@final
class Redirects:
    """The answers `MOVED`, `ASK`, `TRYAGAIN` and `CLUSTERDOWN` of the nodes of a cluster.

    Args:
        pass_on: Sends a request to the node of its slot.
        moved: Told of a slot that another node serves than was known.
        lost: Called when a node does not know which one serves a slot.
    """

    __slots__ = ("_backlogs", "_loop", "_lost", "_nodes", "_on_moved", "_pass_on", "_slots")

    def __init__(
        self,
        slots: Slots,
        nodes: NodeConnections,
        backlogs: Backlogs,
        loop: asyncio.AbstractEventLoop,
        *,
        pass_on: Callable[..., None],
        moved: Callable[[int], None],
        lost: Callable[[], None],
    ) -> None:
        self._slots = slots
        self._nodes = nodes
        self._backlogs = backlogs
        self._loop = loop
        self._pass_on = pass_on
        self._on_moved = moved
        self._lost = lost

    def follow(self, node: Multiplexed, call: Request[Any], error: Exception) -> bool:
        """Has the call go on at another node, or later; False if the error is none of these answers."""
        redirect = faults.redirect(error)
        if redirect is None:
            return False
        call.written = call.elsewhere = False
        call.unconfirmed = call.unconfirmed or redirect.begun
        slot = slot_of_call(call)
        was_mid_move, call.mid_move = call.mid_move, redirect.mid_move and self._has_mid_move(slot, call)
        if call.mid_move and not was_mid_move:
            # As where a script is unknown: what was sent after it may be executed before it.
            call.spell_out()
            if call.undoes:
                call.on_reply = partial(self._undo_the_rest, slot, call, call.on_reply)
            self._pass_on(slot, call, at_once=True)
            return True
        if redirect.to is None:
            call.mid_move = False
            fault = faults.nameless() if redirect.nameless else faults.refused(error, call.keys)
            self._backlogs.hold(slot, call, why=fault, pause=PAUSE_FIRST)
            if redirect.lost:
                node.tell_state(call, fault)
                self._lost()
            return True
        to = self._slots.address(*redirect.to, self._nodes.address_of(node))
        if redirect.once:
            self._ask(slot, call, to, error)
        else:
            self._moved(slot, call, to, node)
        return True

    def follow_trial(self, node: Multiplexed, slot: int, redirect: Redirect) -> None:
        """If another node has that slot, requests in it that wait for a connection to this one go there."""
        if redirect.to is None or redirect.once:
            return
        news = self._slots.move(slot, self._slots.address(*redirect.to, self._nodes.address_of(node)))
        pause = self._backlogs.pause(slot)
        for call in node.take_back(lambda call: slot_of_call(call) == slot):
            if pause or slot in self._backlogs:
                self._backlogs.hold(slot, call, pause=pause)
            else:
                self._pass_on(slot, call)
        if news:
            self._on_moved(slot)

    def _undo_the_rest(self, slot: int, call: Request[Any], told: Callable[[Any], None], result: Any) -> None:
        """The form for a slot that moves passes over the queue, and what a waiter has left there."""
        told(result)
        # Its caller has had the one answer that it expects: it is told only which waiters the rest wakes.
        late: Callable[[Any], Any] = call.on_late or ignore
        rest = call.again().ask(late, ignore, until=math.inf, undoes=True, as_eval=True, on_late=late)
        if not self._backlogs.closed:
            self._backlogs.hold(slot, rest, pause=PAUSE_FIRST)

    def _has_mid_move(self, slot: int, call: Request[Any]) -> bool:
        script = call.script
        return (
            script is not None
            and script.mid_move is not None
            and not self._backlogs.has_lane(slot, call.lane)
        )

    def _ask(self, slot: int, call: Request[Any], to: Address, error: Exception) -> None:
        if (slot in self._backlogs and not call.mid_move) or call.bells:
            # A bell is hung up where the queue is, which is not among its keys.
            self._backlogs.hold(slot, call, why=faults.refused(error, call.keys), pause=PAUSE_FIRST)
            return
        call.elsewhere = True
        call.spell_out()  # if the node did not know the script, it would have forgotten the ASKING
        node = self._nodes.to(to)
        node.send(_asking(call.until), corked=True)
        node.send(call, at_once=True)
        if not node.ready:
            self._nodes.look_after()

    def _moved(self, slot: int, call: Request[Any], to: Address, node: Multiplexed) -> None:
        news = self._slots.move(slot, to)
        if slot in self._backlogs:
            self._backlogs.hold(slot, call)
        elif (pause := self._backlogs.pause(slot)) or any(
            slot_of_call(other) == slot for other in node.awaited()
        ):
            self._backlogs.hold(slot, call, pause=pause)
            self.clear(slot, node)
        else:
            self._pass_on(slot, call, at_once=True)
        if news:
            self._on_moved(slot)

    def clear(self, slot: int, node: Multiplexed) -> None:
        """The backlog waits until the node has answered whatever of the slot was sent to it before."""
        cleared = self._backlogs.hold_up(slot)
        until = self._loop.time() + _CLEARED_WITHIN
        node.send(Request(None, (), ("PING",), ignore).ask(cleared, cleared, until=until))


def slot_of_call(call: Request[Any]) -> int:
    return slot_of(call.keys[0])


def _asking(until: float) -> Request[Any]:
    return Request(None, (), ASKING, ignore).ask(ignore, ignore, until=until)
