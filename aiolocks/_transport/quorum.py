"""The transport to several independent masters: what is sent is put to all of them, and a majority decides.

Each master has a transport of its own, with its own connection. What comes of their answers is decided by the
ballot that a command brings along; here stands only who is asked when, and for how long is waited.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any, Final, final

import redis.exceptions as driver

from . import faults
from .ballots import UNDO, VOTE, Ballot, Errand
from .calls import Call, Command, Transport
from .commands.redlock import Motion
from .electorate import Electorate, Master
from .faults import Fault
from .undoing import take_back

_FIRST_CONTACT: Final = 1.0
"""Seconds that a master has which has never answered: its connection is yet to be made."""
_SUSPECT: Final = 0.2
"""The part of its time that a master has which did not answer the last time."""


@final
class Quorum:
    """A transport over those of N masters.

    Calls of one lane reach each master in the order in which they were sent; only what a ballot sends by
    itself comes later, and not at all once another call of its lane was sent.

    Args:
        masters: The masters' transports, with their labels.
        identify: Whether masters have to show, before they first vote, that they are servers of their own.
    """

    __slots__ = ("closed", "electorate", "labels", "loop", "masters", "rounds", "tails")

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
        self.electorate = Electorate(self.masters, loop) if identify else None
        self.rounds: dict[Call[Any], _Round] = {}  # undecided
        self.tails: dict[str, _Round] = {}  # by lane: decided, and may have more to send
        self.closed = False

    @property
    def hears(self) -> bool:
        """Whether a majority tells of bells."""
        return sum(master.transport.hears for master in self.masters) > len(self.masters) // 2

    @property
    def ordered(self) -> bool:
        return all(master.transport.ordered for master in self.masters)

    @property
    def connections(self) -> int:
        """How many connections have been made so far to all of them."""
        return sum(master.transport.connections for master in self.masters)

    @property
    def commands_sent(self) -> int:
        return sum(master.transport.commands_sent for master in self.masters)

    def send(self, call: Call[Any], *, at_once: bool = False, more: bool = False) -> None:
        if self.closed:
            call.fault(faults.unreachable(driver.ConnectionError("the session was closed")))
            return
        motion = call.as_of_now()
        assert isinstance(motion, Motion)
        if (tail := self.tails.pop(motion.lane, None)) is not None:
            tail.stop()  # what it would send by now might undo this
        call.sent = self.loop.time()
        call.written = True
        _Round(self, call, motion).begin(at_once=at_once, more=more)

    def forget(self, call: Call[Any]) -> bool:
        call.done = True
        if (round_ := self.rounds.get(call)) is not None:
            return round_.abandon()
        return call.written

    def ignore_bell(self, bell: bytes) -> None:
        for master in self.masters:
            master.transport.ignore_bell(bell)

    async def aclose(self, grace: float) -> None:
        self.closed = True
        try:
            await asyncio.gather(*(master.transport.aclose(grace) for master in self.masters))
        finally:
            if self.electorate is not None:
                self.electorate.close()


@final
class _Round:
    """One call under way.

    Invariant: from its beginning to its end it is in the quorum's `rounds` (while undecided) or in its
    `tails` (if it has a lane, and nobody came after it there).
    """

    __slots__ = (
        "_applied",
        "_ballot",
        "_call",
        "_calls",
        "_in_full",
        "_motion",
        "_quorum",
        "_stopped",
        "_until",
        "_votes",
    )

    def __init__(self, quorum: Quorum, call: Call[Any], motion: Motion[Any]) -> None:
        self._quorum = quorum
        self._call = call
        self._motion = motion
        self._in_full = call.in_full
        self._until = call.until
        self._ballot: Ballot[Any] = motion.put(quorum.labels)
        self._applied: dict[Errand, asyncio.TimerHandle] = {}  # not sent: may that master vote?
        self._votes: dict[int, Call[Any]] = {}
        self._calls: dict[Errand, Call[Any]] = {}  # sent, and not answered
        self._stopped = False

    def begin(self, *, at_once: bool, more: bool) -> None:
        self._quorum.rounds[self._call] = self
        electorate = self._quorum.electorate if self._motion.elects else None
        for errand in self._ballot.open():
            master = self._quorum.masters[errand.master]
            if electorate is None or master.admitted:
                self._send(errand, at_once=at_once, more=more)
            else:
                loop, patience_ends = self._quorum.loop, self._quorum.loop.time() + self._patience(master)
                until = min(self._until, patience_ends)
                # The question itself has more time, and is everybody's.
                self._applied[errand] = loop.call_at(
                    until, self._admitted, errand, faults.unanswered(None), patience_ends <= self._until
                )
                electorate.ask(
                    master,
                    partial(self._admitted, errand),
                    until=until,
                    patience=self._motion.node_timeout or 0.0,
                )

    def stop(self) -> None:
        """Nothing more is sent for it, nor again by a transport whose server did not know the script."""
        self._stopped = True
        for timer in self._applied.values():
            timer.cancel()
        self._applied.clear()
        for errand, call in self._calls.items():
            self._quorum.masters[errand.master].transport.forget(call)

    def abandon(self) -> bool:
        """Nobody waits for it any more: whether any master may have seen it, or may see it yet."""
        self.stop()
        del self._quorum.rounds[self._call]
        seen = [self._quorum.masters[master].transport.forget(vote) for master, vote in self._votes.items()]
        return any(seen)

    # -- sending

    def _patience(self, master: Master) -> float:
        """Seconds that it has to answer."""
        patience = self._motion.node_timeout
        if patience is None:
            return float("inf")
        if master.suspect and self._motion.elects:
            return patience * _SUSPECT
        return patience if master.met else max(patience, _FIRST_CONTACT)

    def _admitted(self, errand: Errand, fault: Fault | None, in_its_time: bool = True) -> None:  # noqa: FBT001, FBT002 - a callback
        """The electorate: it may vote, or why it may not."""
        timer = self._applied.pop(errand, None)
        if timer is None:
            return
        timer.cancel()
        if fault is not None:
            self._failed(errand, in_its_time, fault)
            return
        if not self._stopped:
            self._go_on([] if self._ballot.decided else [errand])

    def _send(self, errand: Errand, *, at_once: bool = False, more: bool = False) -> None:
        quorum, master = self._quorum, self._quorum.masters[errand.master]
        if errand.phase == UNDO:
            self._undo(errand, master)
            return
        patience_ends = quorum.loop.time() + self._patience(master)
        call = Call(
            errand.command,
            partial(self._replied, errand, master),
            partial(self._failed, errand, patience_ends <= self._until),
            until=min(self._until, patience_ends),
            undoes=self._call.undoes,
            patient=self._call.patient,
            in_full=self._in_full or errand.command.script not in master.known,
        )
        self._calls[errand] = call
        if errand.phase == VOTE:
            self._votes[errand.master] = call
        master.transport.send(call, at_once=at_once, more=more)

    def _undo(self, errand: Errand, master: Master) -> None:
        """Behind the vote, if that was ever written: what a master has not seen needs no undoing."""
        vote = self._votes.get(errand.master)
        if vote is None:
            return
        self._calls = {sent: call for sent, call in self._calls.items() if call is not vote}
        if not master.transport.forget(vote):
            return
        self._take_back(errand.command, master, self._motion.lasts)  # then the ttl has done it

    def _take_back(self, command: Command[Any], master: Master, seconds: float) -> None:
        met = partial(_met, master)
        send, loop = master.transport.send, self._quorum.loop
        take_back(command, send=send, loop=loop, seconds=seconds, told=met, at_once=False)

    # -- what comes back

    def _replied(self, errand: Errand, master: Master, reply: Any) -> None:
        del self._calls[errand]
        master.answered()
        if errand.command.script is not None:
            master.known.add(errand.command.script)
        if not self._stopped:
            self._go_on(self._ballot.replied(errand.master, errand.phase, reply))

    def _failed(self, errand: Errand, in_its_time: bool, fault: Fault) -> None:  # noqa: FBT001 - a callback
        self._calls.pop(errand, None)
        master = self._quorum.masters[errand.master]
        if fault.unknown and in_its_time:  # and not only because the caller had less
            master.silent()
        if fault.unknown and self._ballot.frees:
            # The lease has ended. But a master that hangs may execute its vote for it when it goes on.
            self._take_back(errand.command, master, 0.0)
        if not self._stopped:
            self._go_on(self._ballot.failed(errand.master, errand.phase, fault))

    def _go_on(self, errands: Sequence[Errand]) -> None:
        # Before the caller is told: what it sends then is to go behind this.
        for errand in errands:
            self._send(errand)
        quorum, call, lane = self._quorum, self._call, self._motion.lane
        if call in quorum.rounds and self._ballot.decided:
            del quorum.rounds[call]
            if lane:
                quorum.tails[lane] = self
            self._tell(self._ballot.outcome)
        if not (self._calls or self._applied) and quorum.tails.get(lane) is self:
            del quorum.tails[lane]

    def _tell(self, outcome: Any) -> None:
        # Some may have waited for their connection, but none was sent before this.
        self._call.sent = min(
            (vote.sent for vote in self._votes.values() if vote.written), default=self._call.sent
        )
        if isinstance(outcome, Fault):
            self._call.unconfirmed = self._call.unconfirmed or self._ballot.executed
            self._call.fault(outcome)
        else:
            self._call.reply(outcome)


def _met(master: Master, _: object) -> None:
    master.answered()
