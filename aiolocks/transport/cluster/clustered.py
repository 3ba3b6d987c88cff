"""One connection to each node of a cluster, for a whole session.

Each node has its `Multiplexed`, with its own wakeups: requests of one turn of the loop leave in one write a
node. This object stands before them: it knows the node of each slot, and the fate of a request that a node
does not execute.

Invariants:
- requests to one slot reach it in the order of their sending, also while the slot moves: requests that a node
  has turned away wait in one backlog (`Backlogs`) for all of the slot, later ones queue after them, and the
  backlog goes on only when the node that the slot has left owes no reply of the slot any more;
- while a slot moves, the steps of holders pass the backlog, in the form that declares one key
  (`Script.mid_move`), unless a request of the same lane waits in it: no lease is lost because waiters cannot
  acquire. An undo in this form is sent again when the slot has moved: then it takes the waiter out of the
  queue as well;
- a request whose caller has left is never sent again, wherever it was turned away: so an undo, sent after it,
  is the last word;
- while a request waits for a table or a node, the table is learned again and again;
- a release that a former master of its slot has confirmed is sent again to the present one (`Releases`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, final

from .. import faults
from ..connection import Multiplexed
from ..driver import Address
from ..hearing import OnRung
from ..keys import slot_of
from ..outages import Outage
from ..releases import Releases
from ..request import Proof, Request
from .backlogs import Backlogs
from .connections import NodeConnections
from .probes import Probes
from .redirects import Redirects, slot_of_call
from .refreshing import TopologyRefresher
from .sagas import SagaCommand, Sagas
from .scanning import cursor_behind, position
from .slots import Slots


@final
class Clustered:
    """The transport over the nodes of a cluster.

    Args:
        slots: Which node serves which slot.
        open_node: Makes the transport to one node; it connects when first needed.
        on_rung: Told of bells that may have been rung because their slot was moved.

    Attributes:
        probes: The keys with which it is tried out whether a node tells of bells.
    """

    by_slot = True

    def __init__(
        self,
        slots: Slots,
        open_node: Callable[[Address, Clustered], Multiplexed],
        on_rung: OnRung,
        loop: asyncio.AbstractEventLoop,
        *,
        outage: Outage,
    ) -> None:
        self._outage = outage
        self._slots = slots
        self._on_rung = on_rung
        self._loop = loop
        self._backlogs = Backlogs(
            loop,
            self.send,
            served=lambda slot: slots.owner(slot) is not None,
            trouble=lambda: self._refresher.trouble or slots.gap,
        )
        self._bells: dict[bytes, None] = {}  # hung up, and not ignored since
        self._releases = Releases(loop, self.send, slots.owner, slots.owners, partial(on_rung, "local"))
        self._sagas = Sagas(self.send, partial(on_rung, "local"), loop)
        self._refresher = TopologyRefresher(
            loop,
            slots,
            needed=lambda: self._backlogs.unserved,
            outage=outage,
            learned=self._learned,
            failed=self._not_learned,
            gave_up=self._no_table,
        )
        self._nodes = NodeConnections(
            loop,
            lambda address: open_node(address, self),
            stuck=self._refresher.start,
            learn_members=slots.members.learn,
        )
        self._redirects = Redirects(
            slots,
            self._nodes,
            self._backlogs,
            loop,
            pass_on=self._pass_on,
            moved=self._moved,
            lost=self._refresher.start,
        )
        self.probes = Probes(slots, self._nodes)
        self._closed = False

    @property
    def hears(self) -> bool:
        """Whether all nodes that this session has talked to, and not lost, tell of bells.

        A node that is away, or is only being connected, makes all waiters poll, whichever bells it would have
        told of.
        """
        return bool(self._nodes.by_address) and all(node.hears for node in self._nodes.by_address.values())

    @property
    def way(self) -> str:
        """How bells are heard; nodes differ only while one is asked first."""
        return next((node.way for node in self._nodes.by_address.values() if node.way), "")

    @property
    def outage_told(self) -> bool:
        return self._outage.told

    @property
    def commands_sent(self) -> int:
        return self._nodes.commands_sent

    # -- sending

    def send(self, call: Request[Any], *, at_once: bool = False, corked: bool = False) -> None:
        if self._closed:
            call.fault(faults.session_closed())
            return
        if isinstance(call, SagaCommand):
            self._sagas.begin(call, at_once=at_once)
            return
        if not call.keys:
            self._scan(call)
            return
        for bell in call.bells:
            self._bells[bell] = None
        slot = slot_of_call(call)
        if slot in self._backlogs:
            self._backlogs.hold(slot, call)
        else:
            self._pass_on(slot, call, at_once=at_once, corked=corked)

    def _scan(self, call: Request[Any]) -> None:
        """A `SCAN` goes from one node to the next; its cursor says where it has come to."""
        if not self._slots.known:
            self._backlogs.hold(0, call)
            self._refresher.start()
            return
        nodes = sorted(self._slots.owners())
        at, cursor = position(call.args[1], nodes)

        def page(raw: Any) -> list[Any]:
            return [cursor_behind(nodes, at, raw[0]), raw[1]]

        command = Request(None, (), ("SCAN", cursor, *call.args[2:]), page)
        one = command.again().ask(call.reply, call.fault, until=call.until, patient=call.patient)
        node = self._nodes.to(nodes[at])
        node.send(one)
        if not node.ready:
            self._nodes.look_after()

    def forget(self, call: Request[Any]) -> bool:
        self._sagas.forget(call)
        call.done = True
        return call.written or call.unconfirmed

    def prove(self, proof: Proof) -> None:
        slot = slot_of(proof.owned.keys[0])
        owner = self._slots.owner(slot)
        if owner is None or slot in self._backlogs or self._closed:
            # It is acquired again, where it is served.
            proof.fault(faults.unanswered(self._refresher.trouble))
        else:
            self._nodes.to(owner).prove(proof)

    def arm(self, bell: bytes) -> asyncio.Future[Any] | None:
        owner = self._slots.owner(slot_of(bell))
        node = None if owner is None else self._nodes.by_address.get(owner)
        return None if node is None else node.arm(bell)

    def ignore_bell(self, bell: bytes) -> None:
        self._bells.pop(bell, None)
        for node in self._nodes.by_address.values():
            node.ignore_bell(bell)

    def _pass_on(self, slot: int, call: Request[Any], *, at_once: bool = False, corked: bool = False) -> None:
        owner = self._slots.owner(slot)
        if owner is None:
            self._backlogs.hold(slot, call)
            self._refresher.start()
            return
        node = self._nodes.to(owner)
        self._releases.follow(call, owner)
        call.guarded, call.plain = True, False
        node.send(call, at_once=at_once, corked=corked)
        if not node.ready:
            self._nodes.look_after()

    # -- turned away

    def redirected(self, node: Multiplexed, call: Request[Any], error: Exception) -> bool:
        """A node has turned the call away. Whether the call goes on at another node, or later."""
        return not self._closed and node in self._nodes and self._redirects.follow(node, call, error)

    def trial_redirected(self, node: Multiplexed, bell: bytes, redirect: faults.Redirect) -> None:
        """A node has turned away the trial of its notifications; it is not connected yet."""
        if not self._closed and node in self._nodes:
            self._redirects.follow_trial(node, slot_of(bell), redirect)

    def _moved(self, slot: int) -> None:
        """Another node serves the slot than was known."""
        self._rehang({slot})
        self._refresher.start()

    def _rehang(self, slots: set[int]) -> None:
        """Waiters with bells in these slots must look: a bell may have been rung, and hang nowhere."""
        if bells := [bell for bell in self._bells if slot_of(bell) in slots]:
            way = self.way or "poll"
            self._on_rung(way, bells)

    # -- the table

    def _learned(self, changed: set[int]) -> None:
        for address, node in tuple(self._nodes.by_address.items()):
            if node.stuck:
                for call in node.take_back(self._served_elsewhere(address)):
                    self.send(call)
            elif changed:
                for slot in {
                    slot_of_call(call) for call in node.awaited() if self._served_elsewhere(address)(call)
                }:
                    self._redirects.clear(slot, node)
        self._backlogs.look_again()
        owners = self._slots.owners()
        for address, node in tuple(self._nodes.by_address.items()):
            if address not in owners and not node.busy:
                node.outage.left()
                self._nodes.leave(address)
        self._releases.look()  # a node may have said MOVED before
        if changed:
            self._rehang(changed)
        self._tell_impatient()

    def _not_learned(self, error: BaseException) -> None:
        self._backlogs.tell_impatient(error)
        self._tell_impatient()

    def _tell_impatient(self) -> None:
        """By the newest table, no other node serves what waits for one that cannot be reached."""
        for node in tuple(self._nodes.by_address.values()):
            node.tell_impatient()

    def _served_elsewhere(self, address: Address) -> Callable[[Request[Any]], bool]:
        return lambda call: self._slots.owner(slot_of_call(call)) != address

    def _no_table(self, error: BaseException) -> None:
        self._backlogs.fail(error)

    # -- nodes that are away

    def broken(self, node: Multiplexed) -> None:
        """It has no connection any more; requests without a reply are sent again, to the right node.

        The network may have broken connections to other nodes, too: the idle ones are tried.
        """
        if self._closed or node not in self._nodes:
            return
        address = self._nodes.address_of(node)
        if node.stuck or node.outage.lasts:  # its end is told when the table is known
            self._refresher.start()
            self._nodes.look_after()
        else:
            self._nodes.leave(address)
        self._rehang({slot for bell in self._bells if self._slots.owner(slot := slot_of(bell)) == address})
        for other in self._nodes.by_address.values():
            other.check()

    def away(self, node: Multiplexed) -> None:
        """It cannot be reached: the table may tell of another node by now."""
        if not self._closed and node in self._nodes:
            self._refresher.start()

    # -- closing

    def rest(self) -> bool:
        if self._backlogs.busy or any(node.busy or node.stuck for node in self._nodes.by_address.values()):
            return False
        for address, node in tuple(self._nodes.by_address.items()):
            node.outage.over("is not needed any more,")
            self._nodes.leave(address)
        return True

    async def aclose(self, grace: float) -> None:
        deadline = self._loop.time() + grace
        try:
            # For all nodes at once: what one node turns away another is to have. Polled, as a request tells
            # its end to its caller alone.
            while self._loop.time() < deadline and (self._backlogs.busy or self._nodes.busy):  # noqa: ASYNC110
                await asyncio.sleep(0.001)
            self._end()
            await self._refresher.aclose()
            await self._nodes.aclose(max(0.05, deadline - self._loop.time()))
        finally:
            self._end()
            self._nodes.close()  # if the loop ends meanwhile, no other code does

    def _end(self) -> None:
        self._closed = True
        self._nodes.stop()
        self._backlogs.close()
