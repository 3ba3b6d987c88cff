"""The connections of a session to the nodes of a cluster: made when needed, left when not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final, final

from ..._tasks import empty_context
from ..closed_loops import background, call_later
from ..connection import Multiplexed, bare
from ..driver import Address
from ..request import Request, ignore

_STUCK: Final = 0.1
_STUCK_MAXIMUM: Final = 0.5
"""Seconds that requests wait for a connection before the nodes are asked which one serves them by now."""
_AWAY: Final = 1.5
"""Seconds, where no request waits, from such a question to a try to connect, and from that to the next."""
_TRIED: Final = 0.5
"""Seconds in which a node that is away may be connected to, where no request waits."""
_ROLL_CALL: Final = 30.0
"""Seconds between two questions for the nodes of the cluster."""


@final
class NodeConnections:
    """One transport to each node that this session has talked to, and has not left since.

    Args:
        open_node: Makes the transport to one node; it connects when first needed.
        stuck: Called while requests wait for a connection that cannot be made: another node may serve them.
        learn_members: Reads the answer to `CLUSTER SLOTS`, for which one node is asked now and then.

    Attributes:
        by_address: The transports.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        open_node: Callable[[Address], Multiplexed],
        *,
        stuck: Callable[[], None],
        learn_members: Callable[[Any], Any],
    ) -> None:
        self._loop = loop
        self._open_node = open_node
        self._stuck = stuck
        self._learn_members = learn_members
        self.by_address: dict[Address, Multiplexed] = {}
        self._watch: asyncio.TimerHandle | None = None
        self._roll_call: asyncio.TimerHandle | None = None
        self._patience = _STUCK
        self._leaving: set[asyncio.Task[None]] = set()  # connections to former nodes, being closed
        self._former_commands = 0  # sent by nodes that are there no more

    def __contains__(self, node: Multiplexed) -> bool:
        return node in self.by_address.values()

    @property
    def busy(self) -> bool:
        """Whether any has requests that are not answered."""
        return any(node.busy for node in self.by_address.values())

    @property
    def commands_sent(self) -> int:
        return self._former_commands + sum(node.commands_sent for node in self.by_address.values())

    def to(self, address: Address) -> Multiplexed:
        node = self.by_address.get(address)
        if node is None:
            node = self.by_address[address] = self._open_node(address)
            if self._roll_call is None:
                self._call_roll_later()
        return node

    def address_of(self, node: Multiplexed) -> Address:
        return next(address for address, other in self.by_address.items() if other is node)

    def leave(self, address: Address) -> None:
        """Closes one that is not needed; it is made again when it is."""
        node = self.by_address.pop(address)
        self._former_commands += node.commands_sent
        closing = background(self._loop, node.aclose(0.0), name="aiolocks-leave")
        self._leaving.add(closing)
        closing.add_done_callback(self._leaving.discard, context=empty_context())

    # -- nodes that cannot be reached

    def look_after(self) -> None:
        """Sees to it that requests which wait for a connection do not wait for a node that serves no more.

        A node that is away is looked after, if seldom, also when no request waits for it any more: while it
        counts as a node of the cluster, all waiters poll. So it is tried whether it is back.
        """
        if self._watch is not None:
            if self._watch.when() <= self._loop.time() + self._patience:
                return
            self._watch.cancel()
        self._watch = call_later(self._loop, self._patience, self._look)

    def _look(self) -> None:
        self._watch = None
        nodes = self.by_address.values()
        if any(node.stuck for node in nodes):
            self._stuck()
            self._patience = min(2 * self._patience, _STUCK_MAXIMUM)
            self.look_after()
            return
        self._patience = _STUCK
        if any(node.outage.lasts for node in nodes):
            self._stuck()
            self._watch = call_later(self._loop, _AWAY, self._try)

    def _try(self) -> None:
        """Nodes that are away may be back. Not beside the question: a node that owes a reply is not left."""
        self._watch = call_later(self._loop, _AWAY, self._look)
        for node in self.by_address.values():
            if node.outage.lasts:
                node.send(bare(("PING",)).ask(ignore, ignore, until=self._loop.time() + _TRIED))

    # -- the nodes of the cluster

    def _call_roll_later(self) -> None:
        self._roll_call = call_later(self._loop, _ROLL_CALL, self._call_roll)

    def _call_roll(self) -> None:
        """Asks one node for the nodes of the cluster: all may be other ones by the time a table is needed."""
        self._roll_call = None
        node = next((node for node in self.by_address.values() if node.ready and node.driven), None)
        if node is not None:
            command = Request(None, (), ("CLUSTER", "SLOTS"), self._learn_members)
            node.send(command.again().ask(ignore, ignore, until=self._loop.time() + _ROLL_CALL))
        if self.by_address:
            self._call_roll_later()

    # -- closing

    def stop(self) -> None:
        """Asks nothing any more by itself."""
        for timer in (self._watch, self._roll_call):
            if timer is not None:
                timer.cancel()

    async def aclose(self, grace: float) -> None:
        closing = [
            background(self._loop, node.aclose(grace), name="aiolocks-leave")
            for node in self.by_address.values()
        ]
        if ending := {*closing, *self._leaving}:
            await asyncio.wait(ending)

    def close(self) -> None:
        """Closes without waiting."""
        for node in self.by_address.values():
            node.close()
