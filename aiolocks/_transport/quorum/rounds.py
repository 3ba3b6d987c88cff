"""One command on its way to several masters: which are asked, how long each has, what follows an answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, final

from .. import faults
from ..faults import Fault
from ..requests.calls import Call, Command, ignore
from ..requests.undoing import take_back
from .ballots import LEAVE, TAKE, UNDO, VOTE, Ballot, Errand
from .electorate import Master
from .motions import Motion, Settling

if TYPE_CHECKING:
    from .quorum import Quorum

_FIRST_CONTACT: Final = 1.0
"""Seconds that a master has which has never answered: its connection is yet to be made."""
_SUSPECT: Final = 0.2
"""The part of its time that a master has which has been silent for longer, and which a majority needs."""

Sent = tuple[Master, Call[Any]]
"""A request to one master."""


@final
class Round:
    """One call under way.

    Invariant: from its beginning to its end it is in the quorum's `rounds` (while undecided) or in its
    `tails` (if it has a lane, and nobody came after it there).
    """

    __slots__ = (
        "_applied",
        "_ballot",
        "_call",
        "_calls",
        "_creating",
        "_in_full",
        "_motion",
        "_quorum",
        "_stopped",
        "_until",
        "_votes",
    )

    def __init__(
        self, quorum: Quorum, call: Call[Any], motion: Motion[Any], creating: Sequence[Sent]
    ) -> None:
        self._quorum = quorum
        self._call = call
        self._motion = motion
        self._in_full = call.in_full
        self._until = call.until
        self._ballot: Ballot[Any] = motion.put(quorum.labels)
        self._applied: dict[Errand, asyncio.TimerHandle] = {}  # not sent: may that master vote?
        self._votes: dict[int, Call[Any]] = {}
        self._calls: dict[Errand, Call[Any]] = {}  # sent, and not answered
        self._creating = creating  # unanswered when its lane went on
        self._stopped = False

    @property
    def lane(self) -> str:
        return self._motion.lane

    def begin(self, *, at_once: bool, more: bool) -> None:
        self._quorum.rounds[self._call] = self
        electorate = self._quorum.electorate if self._motion.elects else None
        passed_over = self._silent() if electorate is not None else ()
        for errand in self._ballot.open():
            master = self._quorum.masters[errand.master]
            if electorate is not None and self._ballot.decided:
                break  # by those that are known to be away: nobody would undo a vote that is cast now
            if electorate is not None and master in passed_over:
                master.silent()
                electorate.seek(master, self._full_patience(master))
                self._go_on(self._ballot.failed(errand.master, errand.phase, faults.unanswered(None)))
            elif electorate is None or master.admitted:
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

    def settle(self, settling: Settling) -> None:
        """The lease is handed over. A master that gets it for the old token after the adoption loses it.

        Nobody would look after it there until its ttl has passed. A master that gets it before the adoption
        keeps it for the heir. So each master that has not answered yet is asked, after that request, whether
        it carries the lease; and if it does, another master is asked whether it still carries it, too.
        """
        creating = self.creating()
        self.stop()
        # Those that may have seen it.
        late = {master: None for master, call in creating if master.transport.forget(call)}
        others = [master for master in self._quorum.masters if master not in late]
        others.sort(key=lambda master: master.unanswered_since is not None)
        for master in late:

            def elsewhere(held: bool, master: Master = master) -> None:  # noqa: FBT001 - a callback
                if not held:
                    self._take_back(settling.undo, master, settling.lasts)

            def here(held: bool, then: Callable[[bool], None] = elsewhere) -> None:  # noqa: FBT001 - as above
                if held and others:
                    self._ask(others[0], settling, then)

            self._ask(master, settling, here)

    def _ask(self, master: Master, settling: Settling, told: Callable[[bool], None]) -> None:
        until = self._quorum.loop.time() + settling.lasts
        master.transport.send(Call(settling.owned, told, ignore, until=until, in_full=True, on_late=told))

    def creating(self) -> list[Sent]:
        """The messages that put the lease to a master and are not known to have been answered."""
        return [
            *self._creating,
            *(
                (self._quorum.masters[errand.master], call)
                for errand, call in self._calls.items()
                if errand.phase == TAKE or (errand.phase == VOTE and self._motion.elects)
            ),
        ]

    def abandon(self) -> bool:
        """Nobody waits for it any more: whether any master may have seen it, or may see it yet."""
        self.stop()
        del self._quorum.rounds[self._call]
        seen = [self._quorum.masters[master].transport.forget(vote) for master, vote in self._votes.items()]
        return any(seen)

    # -- sending

    def _silent(self) -> Sequence[Master]:
        """The masters that have been silent for all of their time: the others decide, where they are enough.

        So a master that hangs costs its time once, and not each time that a contender needs its vote because
        the other masters do not agree.
        """
        now, masters = self._quorum.loop.time(), self._quorum.masters
        silent = [master for master in masters if master.silent_for(self._full_patience(master), now)]
        return silent if len(masters) - len(silent) >= self._ballot.majority else ()

    def _full_patience(self, master: Master) -> float:
        """Seconds that it has to answer, if it has always answered so far."""
        patience = self._motion.node_timeout
        if patience is None:
            return float("inf")
        return patience if master.met else max(patience, _FIRST_CONTACT)

    def _patience(self, master: Master) -> float:
        """Seconds that it has to answer."""
        patience = self._full_patience(master)
        if self._motion.elects and master.silent_for(patience, self._quorum.loop.time()):
            return patience * _SUSPECT
        return patience

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
        if errand.phase == LEAVE:  # also after this round was stopped
            self._take_back(errand.command, master, self._motion.lasts)
            return
        now = quorum.loop.time()
        patience_ends = now + self._patience(master)
        call = Call(
            errand.command,
            partial(self._replied, errand, master),
            partial(self._failed, errand, patience_ends <= self._until),
            until=min(self._until, patience_ends),
            undoes=self._call.undoes,
            patient=self._call.patient,
            in_full=self._in_full or errand.command.script not in master.known,
            on_late=master.answered,
        )
        master.asked(now)
        self._calls[errand] = call
        if errand.phase == VOTE:
            self._votes[errand.master] = call
        master.transport.send(call, at_once=at_once, more=more)

    def _undo(self, errand: Errand, master: Master) -> None:
        """After the vote, if that was ever written: a request that a master has not seen needs no undoing."""
        vote = self._votes.get(errand.master)
        if vote is None:
            return
        self._calls = {sent: call for sent, call in self._calls.items() if call is not vote}
        if not master.transport.forget(vote):
            return
        self._take_back(errand.command, master, self._motion.lasts)  # then the ttl has done it

    def _take_back(self, command: Command[Any], master: Master, seconds: float) -> None:
        loop = self._quorum.loop

        def send(undo: Call[Any], *, at_once: bool) -> None:
            master.asked(loop.time())
            master.transport.send(undo, at_once=at_once)

        take_back(command, send=send, loop=loop, seconds=seconds, told=master.answered, at_once=False)

    # -- what comes back

    def _replied(self, errand: Errand, master: Master, reply: Any) -> None:
        call = self._calls.pop(errand)
        master.answered()
        if errand.command.script is not None:
            master.known.add(errand.command.script)
        if not self._stopped:
            if call.unconfirmed and errand.phase == VOTE:
                self._ballot.repeated(errand.master)
            self._go_on(self._ballot.replied(errand.master, errand.phase, reply))

    def _failed(self, errand: Errand, in_its_time: bool, fault: Fault) -> None:  # noqa: FBT001 - a callback
        self._calls.pop(errand, None)
        master = self._quorum.masters[errand.master]
        if not fault.unknown:
            master.answered()
        elif in_its_time:  # and not only because the caller had less
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
        written = [vote for vote in self._votes.values() if vote.written]
        if written:
            self._call.sent = min(vote.sent for vote in written)
            self._call.sent_steady = min(vote.sent_steady for vote in written)
        if isinstance(outcome, Fault):
            self._call.unconfirmed = self._call.unconfirmed or self._ballot.executed
            self._call.fault(outcome)
        else:
            self._call.reply(outcome)
