"""One connection to each node of a cluster, for a whole session.

Each node has its `Multiplexed`, with its own wakeups: requests of one turn of the loop leave in one write a
node. This is what stands before them: it knows which slot is whose, and what becomes of a request that a node
does not execute.

Invariants:
- what was sent to one slot reaches it in the order of its sending, also while the slot moves: requests that a
  node has turned away wait in one line (`_Line`) for all of the slot, behind which later ones queue, and the
  line goes on only when the node that the slot has left owes no reply of the slot any more;
- a request whose caller has left is never sent again, wherever it was turned away: so an undo, sent behind
  it, is the last word;
- while a request waits for a table or a node, the table is learned again and again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final, final

import redis.exceptions as driver

from . import faults
from .calls import Call, Command, ignore
from .courses import Course, Several
from .driver import Address
from .faults import Fault
from .multiplexed import Multiplexed
from .slots import Slots, slot_of
from .wakeups import OnRung

log = logging.getLogger("aiolocks.transport")

_PAUSE_FIRST: Final = 0.002
_PAUSE_MAXIMUM: Final = 0.05
"""Seconds that a line waits before its requests are tried again: doubled from the first each time."""
_CALM: Final = 1.0
"""Seconds without trouble after which a slot's pauses begin anew."""
_LEARN_EVERY: Final = 0.1
_LEARN_MAXIMUM: Final = 0.5
"""Seconds between two times that the table is learned."""
_STUCK: Final = 0.1
"""Seconds that requests wait for a connection before it is asked whether another node serves them by now."""
_SETTLING: Final = 1.0
"""Seconds that the last requests to a node have when the session ends."""


@final
class _Line:
    """The requests of one slot that wait, in their order.

    Attributes:
        due: Loop time at which it goes on, unless `held_up`.
        held_up: The node that the slot has left still owes replies.
        why: What a node said of them; None: no node is known.
    """

    __slots__ = ("calls", "due", "held_up", "timer", "why")

    def __init__(self, due: float) -> None:
        self.calls: list[Call[Any]] = []
        self.due = due
        self.held_up = False
        self.timer: asyncio.TimerHandle | None = None
        self.why: Fault | None = None


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
        self._lines: dict[int, _Line] = {}
        self._pauses: dict[int, tuple[float, float]] = {}  # by slot: the next pause, and when it was set
        self._bells: set[bytes] = set()  # hung up, and not ignored since
        self._courses: dict[Call[Any], Course] = {}  # of calls that take several commands
        self._stale = False  # the table is to be learned
        self._learner: asyncio.Task[None] | None = None
        self._learned_at = float("-inf")
        self._trouble: BaseException | None = None  # why the table could not be learned
        self._watch: asyncio.TimerHandle | None = None
        self._leaving: set[asyncio.Task[None]] = set()  # connections to former nodes, being closed
        self._closed = False
        self._commands = 0  # by nodes that are there no more

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
            call.fault(faults.unreachable(driver.ConnectionError("the session was closed")))
            return
        if isinstance(call.command, Several):
            self._begin(call, at_once=at_once)
            return
        if call.command.bell:
            self._bells.add(call.command.bell)
        slot = _slot(call)
        if (line := self._lines.get(slot)) is not None:
            self._queue_up(slot, line, call)
        else:
            self._pass_on(slot, call, at_once=at_once, more=more)

    def _begin(self, call: Call[Any], *, at_once: bool) -> None:
        course = self._courses[call] = Course(
            call,
            send=self.send,
            on_rung=lambda bells: self._on_rung("local", bells),
            now=self._loop.time,
            on_end=self._courses.pop,
            at_once=at_once,
        )
        course.begin()

    def forget(self, call: Call[Any]) -> bool:
        if (course := self._courses.pop(call, None)) is not None and not call.done:
            course.abandon()
        call.done = True
        return call.written or call.unconfirmed

    def ignore_bell(self, bell: bytes) -> None:
        self._bells.discard(bell)
        for node in self._nodes.values():
            node.ignore_bell(bell)

    def _pass_on(self, slot: int, call: Call[Any], *, at_once: bool = False, more: bool = False) -> None:
        owner = self._slots.owner(slot)
        if owner is None:
            self._hold(slot, call)
            self._learn()
            return
        node = self._node(owner)
        node.send(call, at_once=at_once, more=more)
        if self._watch is None and not node.ready:
            self._look_after()

    def _node(self, address: Address) -> Multiplexed:
        node = self._nodes.get(address)
        if node is None:
            node = self._nodes[address] = self._open_node(address, self)
        return node

    def _address(self, node: Multiplexed) -> Address:
        return next(address for address, other in self._nodes.items() if other is node)

    # -- turned away

    def redirected(self, node: Multiplexed, call: Call[Any], error: Exception) -> bool:
        """A node has turned it away: whether it goes on from here."""
        detour = faults.detour(error)
        if detour is None or self._closed or node not in self._nodes.values():
            return False
        call.written = False
        call.unconfirmed = call.unconfirmed or detour.begun
        slot = _slot(call)
        if detour.to is None:
            self._hold(slot, call, why=faults.refused(error, call.command.keys), pause=_PAUSE_FIRST)
            if detour.lost:
                self._learn()
            return True
        to = self._slots.address(*detour.to, self._address(node))
        if detour.once:
            self._ask(slot, call, to, error)
        else:
            self._moved(slot, call, to, node)
        return True

    def _ask(self, slot: int, call: Call[Any], to: Address, error: Exception) -> None:
        if slot in self._lines or call.command.bell:
            # A bell is hung up where the queue is, which is not among its keys.
            self._hold(slot, call, why=faults.refused(error, call.command.keys), pause=_PAUSE_FIRST)
            return
        call.in_full = True  # if it did not know the script, it would have forgotten the asking
        node = self._node(to)
        node.send(_asking(call.until), more=True)
        node.send(call, at_once=True)
        if not node.ready:
            self._look_after()

    def _moved(self, slot: int, call: Call[Any], to: Address, node: Multiplexed) -> None:
        news = self._slots.move(slot, to)
        if slot in self._lines:
            self._queue_up(slot, self._lines[slot], call)
        elif (pause := self._pause(slot)) or node.awaits(lambda other: _slot(other) == slot):
            self._hold(slot, call, pause=pause)
            self._clear_behind(slot, node)
        else:
            self._pass_on(slot, call, at_once=True)
        if news:
            self._rehang({slot})
            self._learn()

    def _clear_behind(self, slot: int, node: Multiplexed) -> None:
        """Holds up the line until the node has answered whatever of the slot was sent to it before."""
        line = self._lines[slot]
        line.held_up = True

        def cleared(_: object) -> None:
            line.held_up = False
            self._set_timer(slot, line)

        node.send(Call(Command(None, (), ("PING",), ignore), cleared, cleared, until=self._loop.time() + _CALM))

    def _rehang(self, slots: set[int]) -> None:
        """Whoever has hung a bell in these slots is to look: it may have been rung, and hangs nowhere now."""
        if bells := [bell for bell in self._bells if slot_of(bell) in slots]:
            way = next((node.way for node in self._nodes.values() if node.way), "poll")
            self._on_rung(way, bells)

    # -- lines

    def _hold(self, slot: int, call: Call[Any], *, why: Fault | None = None, pause: float = 0.0) -> None:
        line = self._lines.get(slot)
        if line is None:
            pause = max(pause, self._pause(slot))
            line = self._lines[slot] = _Line(self._loop.time() + pause)
        line.why = why or line.why
        self._queue_up(slot, line, call)

    def _pause(self, slot: int) -> float:
        """Seconds to wait now, this time: none at first, and longer each time that it goes wrong again."""
        now = self._loop.time()
        pause, since = self._pauses.get(slot, (0.0, now))
        if now - since > _CALM:
            pause = 0.0
        self._pauses[slot] = (min(max(2 * pause, _PAUSE_FIRST), _PAUSE_MAXIMUM), now)
        return pause

    def _queue_up(self, slot: int, line: _Line, call: Call[Any]) -> None:
        line.calls.append(call)
        self._set_timer(slot, line)

    def _set_timer(self, slot: int, line: _Line) -> None:
        if self._closed or self._lines.get(slot) is not line:
            return
        if line.timer is not None:
            line.timer.cancel()
        when = min((call.until for call in line.calls if not call.done), default=line.due)
        if self._ready(slot, line):
            when = min(when, line.due)
        line.timer = self._loop.call_at(when, self._go_on, slot, line)

    def _ready(self, slot: int, line: _Line) -> bool:
        return not line.held_up and self._slots.owner(slot) is not None

    def _go_on(self, slot: int, line: _Line) -> None:
        line.timer = None
        now = self._loop.time()
        calls = line.calls
        for call in calls:
            if call.until <= now:
                call.fault(line.why or faults.unanswered(self._trouble))
        calls = line.calls = [call for call in calls if not call.done]
        if calls and (line.due > now or not self._ready(slot, line)):
            self._set_timer(slot, line)
            return
        del self._lines[slot]
        for call in calls:
            self.send(call)

    # -- the table

    def _learn(self) -> None:
        """It is out of date."""
        self._stale = True
        if self._learner is None and not self._closed and not self._loop.is_closed():
            self._learner = self._loop.create_task(self._learn_slots(), name="aiolocks-cluster")
            self._learner.add_done_callback(self._ended)

    def _ended(self, learner: asyncio.Task[None]) -> None:
        self._learner = None
        if not learner.cancelled() and (error := learner.exception()) is not None:
            self._fail(faults.of_driver(error))
        elif self._stale or self._in_need:  # killed from outside, as when the loop ends
            self._learn()

    @property
    def _in_need(self) -> bool:
        """Whether requests wait for the table to say something else."""
        return any(
            any(not call.done for call in line.calls)
            for slot, line in self._lines.items()
            if self._slots.owner(slot) is None
        )

    async def _learn_slots(self) -> None:
        pause = _LEARN_EVERY
        while self._stale and not self._closed:
            await asyncio.sleep(max(0.0, self._learned_at + pause - self._loop.time()))
            self._stale = False
            try:
                changed = await self._slots.learn()
            except (driver.RedisError, OSError, TimeoutError) as error:
                self._trouble = error
                if not self._slots.known and faults.is_final(error):
                    raise
                log.debug("learning the slots: %s", error)
                self._stale = self._stale or self._in_need
            else:
                self._trouble = None
                self._apply(changed)
                self._stale = self._stale or self._in_need
            self._learned_at = self._loop.time()
            pause = min(2 * pause, _LEARN_MAXIMUM)

    def _apply(self, changed: set[int]) -> None:
        for address, node in tuple(self._nodes.items()):
            if node.stuck:
                for call in node.take_back(lambda call, at=address: self._slots.owner(_slot(call)) != at):
                    call.written = False
                    self.send(call)
        for slot, line in tuple(self._lines.items()):
            self._set_timer(slot, line)  # its owner may be known now
        owners = self._slots.owners()
        for address, node in tuple(self._nodes.items()):
            if address not in owners and not node.busy:
                self._leave(address, node)
        if changed:
            self._rehang(changed)

    def _fail(self, fault: Fault) -> None:
        """There is no table, and there will be none."""
        for slot, line in tuple(self._lines.items()):
            if self._slots.owner(slot) is None:
                del self._lines[slot]
                if line.timer is not None:
                    line.timer.cancel()
                for call in line.calls:
                    call.fault(fault)

    # -- nodes that are away

    def broken(self, node: Multiplexed) -> None:
        """It has no connection any more; what waits for its reply is sent again, to whoever serves it then."""
        if self._closed or node not in self._nodes.values():
            return
        address = self._address(node)
        if node.stuck:
            self._learn()
            self._look_after()
        else:
            self._leave(address, node)
        self._rehang({slot for bell in self._bells if self._slots.owner(slot := slot_of(bell)) == address})

    def _look_after(self) -> None:
        if self._watch is None:
            self._watch = self._loop.call_later(_STUCK, self._look)

    def _look(self) -> None:
        self._watch = None
        if any(node.stuck for node in self._nodes.values()):
            self._learn()
            self._look_after()

    def _leave(self, address: Address, node: Multiplexed) -> None:
        del self._nodes[address]
        self._commands += node.commands_sent
        closing = self._loop.create_task(node.aclose(0.0), name="aiolocks-leave")
        self._leaving.add(closing)
        closing.add_done_callback(self._leaving.discard)

    def probe(self, node: Multiplexed, name: bytes) -> bytes:
        """A key beside those that wait for this node: it is to be in a slot that the node has, or is given."""
        keys = next((call.command.keys for call in node.waiting() if call.command.keys), (b"{}",))
        tag = keys[0][keys[0].index(b"{") :]
        return name + tag[: tag.index(b"}") + 1]

    # -- closing

    async def aclose(self, grace: float) -> None:
        deadline = self._loop.time() + grace
        try:
            # Here, and not each node by itself: what one turns away another is to have.
            while self._loop.time() < deadline and self._busy:
                await asyncio.sleep(0.001)
        finally:
            self._closed = True
            self._end()
        left = max(0.05, min(_SETTLING, deadline - self._loop.time()))
        closing = [self._loop.create_task(node.aclose(left)) for node in self._nodes.values()]
        learner = [] if self._learner is None else [self._learner]
        if ending := {*closing, *learner, *self._leaving}:
            await asyncio.wait(ending)

    @property
    def _busy(self) -> bool:
        return any(not call.done for line in self._lines.values() for call in line.calls) or any(
            node.busy for node in self._nodes.values()
        )

    def _end(self) -> None:
        if self._learner is not None:
            self._learner.cancel()
        if self._watch is not None:
            self._watch.cancel()
        lines, self._lines = self._lines, {}
        for line in lines.values():
            if line.timer is not None:
                line.timer.cancel()
            for call in line.calls:
                call.fault(faults.unreachable(driver.ConnectionError("the session was closed")))


def _slot(call: Call[Any]) -> int:
    return slot_of(call.command.keys[0])


def _asking(until: float) -> Call[Any]:
    return Call(Command(None, (), ("ASKING",), ignore), ignore, ignore, until=until)
