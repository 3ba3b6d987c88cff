"""One connection to each node of a cluster, for a whole session.

Each node has its `Multiplexed`, with its own wakeups: requests of one turn of the loop leave in one write a
node. This object stands before them: it knows the node of each slot, and the fate of a request that a node
does not execute.

Invariants:
- requests to one slot reach it in the order of their sending, also while the slot moves: requests that a node
  has turned away wait in one line (`Lines`) for all of the slot, later ones queue after them, and the line
  goes on only when the node that the slot has left owes no reply of the slot any more;
- while a slot moves, the steps of holders pass the line, in the form that declares one key
  (`Script.mid_move`), unless a request of the same lane waits in it: no lease is lost because others cannot
  acquire. An undo in this form is sent again when the slot has moved: then it takes the waiter out of the
  queue as well;
- a request whose caller has left is never sent again, wherever it was turned away: so an undo, sent after it,
  is the last word;
- while a request waits for a table or a node, the table is learned again and again.
"""

from __future__ import annotations

import asyncio
import math
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any, Final, final

from .. import faults
from ..client.driver import Address
from ..requests.calls import Call, Command, ignore
from ..requests.courses import Courses, Several
from ..requests.keys import slot_of
from ..requests.transport import Proof
from ..wire.multiplexed import Multiplexed
from ..wire.wakeups import OnRung
from .learning import Learner
from .lines import PAUSE_FIRST, Lines
from .scanning import cursor_behind, position
from .slots import Slots

_STUCK: Final = 0.1
_STUCK_MAXIMUM: Final = 0.5
"""Seconds that requests wait for a connection before it is asked whether another node serves them by now."""
_ROLL_CALL: Final = 30.0
"""Seconds between two questions for the nodes of the cluster."""
_CLEARED_WITHIN: Final = 1.0
"""Seconds for which a node that owes replies of a slot that it has lost holds up what comes later."""


@final
class Clustered:
    """The transport over the nodes of a cluster.

    Args:
        slots: Which node serves which slot.
        open_node: Makes the transport to one node; it connects when first needed.
        on_rung: Told of bells that may have been rung because their slot was moved.
    """

    by_slot = True

    def __init__(
        self,
        slots: Slots,
        open_node: Callable[[Address, Clustered], Multiplexed],
        on_rung: OnRung,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._slots = slots
        self._open_node = open_node
        self._on_rung = on_rung
        self._loop = loop
        self._nodes: dict[Address, Multiplexed] = {}
        self._lines = Lines(
            loop,
            self.send,
            served=lambda slot: slots.owner(slot) is not None,
            trouble=lambda: self._learner.trouble,
        )
        self._bells: dict[bytes, None] = {}  # hung up, and not ignored since
        self._courses = Courses(self.send, partial(on_rung, "local"), loop)
        self._learner = Learner(
            loop,
            slots,
            needed=lambda: self._lines.unserved,
            learned=self._learned,
            failed=self._not_learned,
            gave_up=self._no_table,
        )
        self._watch: asyncio.TimerHandle | None = None
        self._roll_call: asyncio.TimerHandle | None = None
        self._patience = _STUCK
        self._leaving: set[asyncio.Task[None]] = set()  # connections to former nodes, being closed
        self._closed = False
        self._commands = 0  # sent by nodes that are there no more

    @property
    def ordered(self) -> bool:
        return all(node.ordered for node in self._nodes.values())

    @property
    def hears(self) -> bool:
        """Whether all nodes that this session has talked to, and not lost, tell of bells.

        One that is away, or is only being connected, makes everybody poll: of which bells it would have told
        is not asked here.
        """
        return bool(self._nodes) and all(node.hears for node in self._nodes.values())

    @property
    def commands_sent(self) -> int:
        return self._commands + sum(node.commands_sent for node in self._nodes.values())

    # -- sending

    def send(self, call: Call[Any], *, at_once: bool = False, more: bool = False) -> None:
        if self._closed:
            call.fault(faults.session_closed())
            return
        if isinstance(call.command, Several):
            self._courses.begin(call, at_once=at_once)
            return
        if not call.command.keys:
            self._scan(call)
            return
        for bell in call.command.bells:
            self._bells[bell] = None
        slot = _slot(call)
        if slot in self._lines:
            self._lines.hold(slot, call)
        else:
            self._pass_on(slot, call, at_once=at_once, more=more)

    def _scan(self, call: Call[Any]) -> None:
        """A `SCAN` goes from one node to the next; its cursor says where it has come to."""
        if not self._slots.known:
            self._lines.hold(0, call)
            self._learner.start()
            return
        nodes = sorted(self._slots.owners())
        at, cursor = position(call.command.args[1], nodes)

        def page(raw: Any) -> list[Any]:
            return [cursor_behind(nodes, at, raw[0]), raw[1]]

        command = Command(None, (), ("SCAN", cursor, *call.command.args[2:]), page)
        one = Call(command, call.reply, call.fault, until=call.until, patient=call.patient)
        self._node(nodes[at]).send(one)
        if not self._nodes[nodes[at]].ready:
            self._look_after()

    def forget(self, call: Call[Any]) -> bool:
        self._courses.forget(call)
        call.done = True
        return call.written or call.unconfirmed

    def prove(self, proof: Proof) -> None:
        slot = slot_of(proof.owned.keys[0])
        owner = self._slots.owner(slot)
        if owner is None or slot in self._lines or self._closed:
            proof.fault(faults.unanswered(self._learner.trouble))  # it is acquired again, where it is served
        else:
            self._node(owner).prove(proof)

    def ignore_bell(self, bell: bytes) -> None:
        self._bells.pop(bell, None)
        for node in self._nodes.values():
            node.ignore_bell(bell)

    def _pass_on(self, slot: int, call: Call[Any], *, at_once: bool = False, more: bool = False) -> None:
        owner = self._slots.owner(slot)
        if owner is None:
            self._lines.hold(slot, call)
            self._learner.start()
            return
        node = self._node(owner)
        node.send(call, at_once=at_once, more=more)
        if self._watch is None and not node.ready:
            self._look_after()

    def _node(self, address: Address) -> Multiplexed:
        node = self._nodes.get(address)
        if node is None:
            node = self._nodes[address] = self._open_node(address, self)
            if self._roll_call is None:
                self._call_roll_later()
        return node

    def _address(self, node: Multiplexed) -> Address:
        return next(address for address, other in self._nodes.items() if other is node)

    # -- turned away

    def redirected(self, node: Multiplexed, call: Call[Any], error: Exception) -> bool:
        """A node has turned it away: whether it goes on from here."""
        detour = faults.detour(error)
        if detour is None or self._closed or node not in self._nodes.values():
            return False
        call.written = call.elsewhere = False
        call.unconfirmed = call.unconfirmed or detour.begun
        slot = _slot(call)
        was_mid_move, call.mid_move = call.mid_move, detour.mid_move and self._has_mid_move(slot, call)
        if call.mid_move and not was_mid_move:
            # As where a script is unknown: what was sent after it may be executed before it.
            call.in_full = True
            if call.undoes:
                call.on_reply = partial(self._undo_the_rest, slot, call, call.on_reply)
            self._pass_on(slot, call, at_once=True)
            return True
        if detour.to is None:
            call.mid_move = False
            self._lines.hold(slot, call, why=faults.refused(error, call.command.keys), pause=PAUSE_FIRST)
            if detour.lost:
                self._learner.start()
            return True
        to = self._slots.address(*detour.to, self._address(node))
        if detour.once:
            self._ask(slot, call, to, error)
        else:
            self._moved(slot, call, to, node)
        return True

    def _undo_the_rest(self, slot: int, call: Call[Any], told: Callable[[Any], None], result: Any) -> None:
        """The form for a slot that moves passes over the queue, and what a waiter has left there."""
        told(result)
        # Its caller has had its answer, and counts on one: it is told only the waiters that the rest wakes.
        late: Callable[[Any], Any] = call.on_late or ignore
        rest = Call(call.command, late, ignore, until=math.inf, undoes=True, in_full=True, on_late=late)
        if not self._closed:
            self._lines.hold(slot, rest, pause=PAUSE_FIRST)

    def _has_mid_move(self, slot: int, call: Call[Any]) -> bool:
        script = call.command.script
        return (
            script is not None
            and script.mid_move is not None
            and not self._lines.has_lane(slot, call.command.lane)
        )

    def _ask(self, slot: int, call: Call[Any], to: Address, error: Exception) -> None:
        if (slot in self._lines and not call.mid_move) or call.command.bells:
            # A bell is hung up where the queue is, which is not among its keys.
            self._lines.hold(slot, call, why=faults.refused(error, call.command.keys), pause=PAUSE_FIRST)
            return
        call.elsewhere = True
        call.in_full = True  # if it did not know the script, it would have forgotten the asking
        node = self._node(to)
        node.send(_asking(call.until), more=True)
        node.send(call, at_once=True)
        if not node.ready:
            self._look_after()

    def _moved(self, slot: int, call: Call[Any], to: Address, node: Multiplexed) -> None:
        news = self._slots.move(slot, to)
        if slot in self._lines:
            self._lines.hold(slot, call)
        elif (pause := self._lines.pause(slot)) or any(_slot(other) == slot for other in node.awaited()):
            self._lines.hold(slot, call, pause=pause)
            self._clear_behind(slot, node)
        else:
            self._pass_on(slot, call, at_once=True)
        if news:
            self._rehang({slot})
            self._learner.start()

    def _clear_behind(self, slot: int, node: Multiplexed) -> None:
        """The line waits until the node has answered whatever of the slot was sent to it before."""
        cleared = self._lines.hold_up(slot)
        until = self._loop.time() + _CLEARED_WITHIN
        node.send(Call(Command(None, (), ("PING",), ignore), cleared, cleared, until=until))

    def _rehang(self, slots: set[int]) -> None:
        """Waiters with bells in these slots must look: a bell may have been rung, and hang nowhere."""
        if bells := [bell for bell in self._bells if slot_of(bell) in slots]:
            way = next((node.way for node in self._nodes.values() if node.way), "poll")
            self._on_rung(way, bells)

    # -- the table

    def _learned(self, changed: set[int]) -> None:
        for address, node in tuple(self._nodes.items()):
            if node.stuck:
                for call in node.take_back(self._served_elsewhere(address)):
                    self.send(call)
            elif changed:
                for slot in {_slot(call) for call in node.awaited() if self._served_elsewhere(address)(call)}:
                    self._clear_behind(slot, node)
        self._lines.look_again()
        owners = self._slots.owners()
        for address, node in tuple(self._nodes.items()):
            if address not in owners and not node.busy:
                node.outage.over("serves no slots any more,")
                self._leave(address, node)
        if changed:
            self._rehang(changed)
        self._tell_impatient()

    def _not_learned(self, error: BaseException) -> None:
        self._lines.tell_impatient(faults.of_driver(error))
        self._tell_impatient()

    def _tell_impatient(self) -> None:
        """By the newest table, no other node serves what waits for one that cannot be reached."""
        for node in tuple(self._nodes.values()):
            node.tell_impatient()

    def _served_elsewhere(self, address: Address) -> Callable[[Call[Any]], bool]:
        return lambda call: self._slots.owner(_slot(call)) != address

    def _no_table(self, error: BaseException) -> None:
        self._lines.fail(faults.of_driver(error))

    def _call_roll_later(self) -> None:
        here = weakref.WeakMethod(self._call_roll)  # the loop must not keep alive a session that nobody uses

        def call() -> None:
            if (call_roll := here()) is not None:
                call_roll()

        self._roll_call = self._loop.call_later(_ROLL_CALL, call)

    def _call_roll(self) -> None:
        """Asks one node for those of the cluster, of which all may be others until a table is needed."""
        self._roll_call = None
        node = next((node for node in self._nodes.values() if node.ready and node.ordered), None)
        if node is not None:
            command = Command(None, (), ("CLUSTER", "SLOTS"), self._slots.members.learn)
            node.send(Call(command, ignore, ignore, until=self._loop.time() + _ROLL_CALL))
        if self._nodes:
            self._call_roll_later()

    # -- nodes that are away

    def broken(self, node: Multiplexed) -> None:
        """It has no connection any more; requests without a reply are sent again, to the right node."""
        if self._closed or node not in self._nodes.values():
            return
        address = self._address(node)
        if node.stuck:
            self._learner.start()
            self._look_after()
        else:
            self._leave(address, node)
        self._rehang({slot for bell in self._bells if self._slots.owner(slot := slot_of(bell)) == address})

    def away(self, node: Multiplexed) -> None:
        """It cannot be reached: the table may tell of another node by now."""
        if not self._closed and node in self._nodes.values():
            self._learner.start()

    def _look_after(self) -> None:
        if self._watch is None:
            self._watch = self._loop.call_later(self._patience, self._look)

    def _look(self) -> None:
        self._watch = None
        if any(node.stuck for node in self._nodes.values()):
            self._learner.start()
            self._patience = min(2 * self._patience, _STUCK_MAXIMUM)
            self._look_after()
        else:
            self._patience = _STUCK

    def _leave(self, address: Address, node: Multiplexed) -> None:
        del self._nodes[address]
        self._commands += node.commands_sent
        closing = self._loop.create_task(node.aclose(0.0), name="aiolocks-leave")
        self._leaving.add(closing)
        closing.add_done_callback(self._leaving.discard)

    def probe(self, node: Multiplexed, name: bytes) -> bytes:
        """A key beside those that wait for this node: in a slot that it has, or is being given."""
        keys = next((call.command.keys for call in node.waiting() if call.command.keys), (b"{}",))
        tag = keys[0][keys[0].index(b"{") :]
        return name + tag[: tag.index(b"}") + 1]

    # -- closing

    async def aclose(self, grace: float) -> None:
        deadline = self._loop.time() + grace
        try:
            # Here, and not each node by itself: what one turns away another is to have. Polled, as its end is
            # nobody else's business.
            while self._loop.time() < deadline and self._busy:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
            self._end()
            await self._learner.aclose()
            left = max(0.05, deadline - self._loop.time())
            closing = [self._loop.create_task(node.aclose(left)) for node in self._nodes.values()]
            if ending := {*closing, *self._leaving}:
                await asyncio.wait(ending)
        finally:
            self._end()
            for node in self._nodes.values():
                node.close()  # if the loop ends meanwhile, nobody else does

    def _end(self) -> None:
        self._closed = True
        for timer in (self._watch, self._roll_call):
            if timer is not None:
                timer.cancel()
        self._lines.close()

    @property
    def _busy(self) -> bool:
        return self._lines.busy or any(node.busy for node in self._nodes.values())


def _slot(call: Call[Any]) -> int:
    return slot_of(call.command.keys[0])


def _asking(until: float) -> Call[Any]:
    return Call(Command(None, (), ("ASKING",), ignore), ignore, ignore, until=until)
