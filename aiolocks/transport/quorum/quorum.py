"""The transport to several independent masters: what is sent is put to all of them, and a majority decides.

Each master has a transport of its own, with its own connection. Each command has a round of its own
(`rounds`); the operation that the command brings along decides what comes of the answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, final

from .. import clocks, faults
from ..request import Call, Proof, Transport
from .quorum_commands import QuorumCommand, Settling
from .rounds import Round, Sent
from .voters import Master, Voters


@final
class Quorum:
    """A transport over those of N masters.

    Calls of one lane reach each master in the order in which they were sent; only what an operation sends by
    itself comes later, and once another call of its lane was sent, no more of it than leaves a queue.

    Args:
        masters: The masters' transports, with their labels.
        identify: Whether masters have to show, before they first vote, that they are servers of their own.
    """

    __slots__ = ("closed", "labels", "lanes", "loop", "masters", "rounds", "voters")

    by_slot = False

    def __init__(
        self,
        masters: Sequence[tuple[str, Transport]],
        loop: asyncio.AbstractEventLoop,
        *,
        identify: bool = True,
    ) -> None:
        self.loop = loop
        self.labels = tuple(label for label, _ in masters)
        self.masters = [Master(label, transport) for label, transport in masters]
        self.voters = Voters(self.masters, loop) if identify else None
        self.rounds: dict[Call[Any], Round] = {}  # undecided
        self.lanes: dict[str, Round] = {}  # the one that was sent last, while it may have more to send
        self.closed = False

    @property
    def hears(self) -> bool:
        """Whether a majority tells of bells."""
        return sum(master.transport.hears for master in self.masters) > len(self.masters) // 2

    @property
    def ordered(self) -> bool:
        return all(master.transport.ordered for master in self.masters)

    @property
    def outage_told(self) -> bool:
        return any(master.transport.outage_told for master in self.masters)

    @property
    def commands_sent(self) -> int:
        return sum(master.transport.commands_sent for master in self.masters)

    def send(self, call: Call[Any], *, at_once: bool = False, corked: bool = False) -> None:
        if self.closed:
            call.fault(faults.session_closed())
            return
        command = call.as_of_now()
        if isinstance(command, Settling):
            self._settle(command)
            call.reply(None)
            return
        assert isinstance(command, QuorumCommand)
        creating: Sequence[Sent] = ()
        if (former := self.lanes.get(command.lane)) is not None:
            creating = former.creating()
            former.pass_on()  # a message that it would send by now might undo this
        call.sent_steady, call.sent = clocks.steady(), self.loop.time()
        call.written = True
        Round(self, call, command, creating).begin(at_once=at_once, corked=corked)

    def _settle(self, settling: Settling) -> None:
        for round_ in dict.fromkeys((*self.lanes.values(), *self.rounds.values())):
            if round_.lane == settling.lane:
                round_.settle(settling)

    def forget(self, call: Call[Any]) -> bool:
        call.done = True
        if (round_ := self.rounds.get(call)) is not None:
            return round_.abandon()
        return call.written

    def prove(self, proof: Proof) -> None:
        raise NotImplementedError("independent masters have no replicas of each other")

    def ignore_bell(self, bell: bytes) -> None:
        for master in self.masters:
            master.transport.ignore_bell(bell)

    def rest(self) -> bool:
        return not self.rounds and all(master.transport.rest() for master in self.masters)

    async def aclose(self, grace: float) -> None:
        self.closed = True
        try:
            await asyncio.gather(*(master.transport.aclose(grace) for master in self.masters))
        finally:
            if self.voters is not None:
                self.voters.close()
