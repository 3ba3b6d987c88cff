"""The transport to several independent masters: what is sent is put to all of them, and a majority decides.

Each master has a transport of its own, with its own connection. Each command has a round of its own
(`rounds`); the operation that the command brings along decides what comes of the answers.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from typing import Any, Final, final

from ..._tasks import empty_context
from .. import clocks, faults
from ..answers import Vote
from ..closed_loops import background
from ..driver import pack
from ..faults import Fault
from ..request import IMPATIENT, UNDOES, Proof, Request, Transport, ignore, take_back
from .operations import LEAVE, TAKE, UNDECIDED, UNDO, VOTE, MasterRequest, QuorumOperation
from .quorum_commands import QuorumCommand, Settling
from .voters import Master, Voters

# -- One command on its way to several masters: which are asked, how long each has, what follows an answer.

_FIRST_CONTACT: Final = 1.0
"""Seconds that a master has which has never answered: its connection is yet to be made."""
_SLOWEST: Final = 0.98e6
"""Microseconds by which a master's clock goes on at least while one second passes in this process."""
_SUSPECT: Final = 0.2
"""The part of its time that a master has which has been silent for longer, and which a majority needs."""

Sent = tuple[Master, Request[Any]]
"""A request to one master."""


@final
class Round:
    """One call under way.

    Invariants:
    - while undecided, it is in the quorum's `rounds`; from its beginning to its end, in `lanes`, if it has a
      lane and no other round came after it there;
    - once another round came after it in its lane, which may let the lease go, it puts the lease to no master
      any more.
    """

    __slots__ = (
        "_applied",
        "_call",
        "_calls",
        "_command",
        "_creating",
        "_operation",
        "_passed_on",
        "_quorum",
        "_stopped",
        "_votes",
    )

    def __init__(
        self, quorum: Quorum, call: Request[Any], command: QuorumCommand[Any], creating: Sequence[Sent]
    ) -> None:
        self._quorum = quorum
        self._call = call
        self._command = command
        self._operation: QuorumOperation[Any] = (
            command.put(quorum.labels, quorum.time()) if command.elects else command.put(quorum.labels)
        )
        self._applied: dict[MasterRequest, asyncio.TimerHandle] = {}  # not sent: may that master vote?
        self._votes: dict[int, Request[Any]] = {}
        self._calls: dict[MasterRequest, Request[Any]] = {}  # sent, and not answered
        self._creating = creating  # unanswered when its lane went on
        self._passed_on = False  # another one came after it in its lane
        self._stopped = False

    @property
    def lane(self) -> str:
        return self._command.lane

    def begin(self, seats: AbstractSet[int], *, at_once: bool, corked: bool) -> None:
        """Sends the first requests. `seats`: the masters in whose queues its caller may stand."""
        self._quorum.rounds[self._call] = self
        if self.lane:
            self._quorum.lanes[self.lane] = self
        voters = self._quorum.voters if self._command.elects else None
        passed_over = self._silent() if voters is not None else ()
        for request in self._operation.open():
            master = self._quorum.masters[request.master]
            if request.master in seats and self._command.leaving is not None:
                leaving = MasterRequest(request.master, self._command.leaving())
                self._send(leaving, at_once=at_once, corked=corked)
                continue
            if voters is not None and self._operation.decided:
                break  # by masters that are known to be away: no request would undo a vote that is cast now
            if voters is not None and master in passed_over:
                master.silent()
                voters.seek(master, self._full_patience(master))
                self._go_on(self._operation.failed(request.master, request.phase, faults.unanswered(None)))
            elif voters is None or master.admitted:
                self._send(request, at_once=at_once, corked=corked)
            else:
                loop, patience_ends = self._quorum.loop, self._quorum.loop.time() + self._patience(master)
                until = min(self._call.until, patience_ends)
                # The question itself has more time, and serves all rounds.
                self._applied[request] = loop.call_at(
                    until,
                    self._admitted,
                    request,
                    faults.unanswered(None),
                    patience_ends <= self._call.until,
                    context=empty_context(),
                )
                voters.ask(
                    master,
                    partial(self._admitted, request),
                    until=until,
                    patience=self._command.node_timeout or 0.0,
                )

    def pass_on(self, *, leaves: bool) -> AbstractSet[int]:
        """Another round comes after it in its lane. Its caller still hears what is decided; that is all.

        Args:
            leaves: The other one leaves the queues in which this one may stand.

        Returns:
            The masters that have these queues.
        """
        self._passed_on = True
        seats = frozenset(self._operation.seats())
        if seats and not leaves:
            for request in self._operation.leave(sorted(seats)):
                self._send(request)
        if self._operation.decided:
            self.stop()
        return seats

    def stop(self) -> None:
        """Only what is still due is sent for it, also by a transport whose server did not know the script."""
        self._stopped = True
        for timer in self._applied.values():
            timer.cancel()
        self._applied.clear()
        kept: dict[MasterRequest, Request[Any]] = {}
        for request, call in self._calls.items():
            if self._operation.still_due(request.phase):
                kept[request] = call
            else:
                self._quorum.masters[request.master].transport.forget(call)
        self._calls = kept
        if self._operation.decided and not kept:
            self._votes.clear()  # they refer to this round
        if self._quorum.lanes.get(self.lane) is self:
            del self._quorum.lanes[self.lane]

    def settle(self, settling: Settling) -> None:
        """The lease is handed over. A master that gets it for the old token after the adoption loses it.

        No session would look after it there until its ttl has passed. A master that gets it before the
        adoption keeps it for the heir. So each master that has not answered yet is asked, after that request,
        whether it carries the lease. If it does, another master is asked whether it still carries it, too.
        """
        creating = self.creating()
        self.pass_on(leaves=False)
        self.stop()
        # The masters that may have seen it.
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
        master.transport.send(
            settling.owned.again().ask(told, ignore, until=until, as_eval=True, on_late=told)
        )

    def creating(self) -> list[Sent]:
        """The messages that put the lease to a master and are not known to have been answered."""
        return [
            *self._creating,
            *(
                (self._quorum.masters[request.master], call)
                for request, call in self._calls.items()
                if request.phase == TAKE or (request.phase == VOTE and self._command.elects)
            ),
        ]

    def abandon(self) -> bool:
        """The caller has left. Whether any master may have seen the request, or may see it yet."""
        seen = [self._quorum.masters[master].transport.forget(vote) for master, vote in self._votes.items()]
        self.stop()
        del self._quorum.rounds[self._call]
        return any(seen)

    # -- sending

    def _silent(self) -> Sequence[Master]:
        """The masters that have been silent for all of their time, if the other masters are a majority.

        So a master that hangs costs its time once, and not each time that a contender needs its vote because
        the other masters do not agree.
        """
        now, masters = self._quorum.loop.time(), self._quorum.masters
        silent = [master for master in masters if master.silent_for(self._full_patience(master), now)]
        return silent if len(masters) - len(silent) >= self._operation.majority else ()

    def _full_patience(self, master: Master) -> float:
        """Seconds that it has to answer, if it has always answered so far."""
        patience = self._command.node_timeout
        if patience is None:
            return float("inf")
        return patience if master.met else max(patience, _FIRST_CONTACT)

    def _patience(self, master: Master) -> float:
        """Seconds that it has to answer."""
        patience = self._full_patience(master)
        if self._command.elects and master.silent_for(patience, self._quorum.loop.time()):
            return patience * _SUSPECT
        return patience

    def _admitted(self, request: MasterRequest, fault: Fault | None, in_its_time: bool = True) -> None:  # noqa: FBT001, FBT002 - a callback
        """The voters: it may vote, or why it may not."""
        timer = self._applied.pop(request, None)
        if timer is None:
            return
        timer.cancel()
        if fault is not None:
            self._failed(request, in_its_time, fault)
            return
        if not self._stopped:
            self._go_on([] if self._operation.decided else [request])

    def _send(self, request: MasterRequest, *, at_once: bool = False, corked: bool = False) -> None:
        quorum, master = self._quorum, self._quorum.masters[request.master]
        if request.phase == UNDO:
            self._undo(request, master)
            return
        if request.phase == LEAVE:  # also after this round was stopped
            self._take_back(request.command, master, self._command.lasts)
            return
        command = request.command
        if command.packed is None and command.plain and command.script is not None:
            # Once for all masters; its `head`, once for the name.
            command.packed = (
                pack(command.words(as_eval=False))
                if command.head is None
                else command.head + pack(command.args)[4:]
            )
        now = quorum.loop.time()
        if master.met and master.unanswered_since is None:
            patience = self._command.node_timeout  # as `_patience` says it, for a call more would show
            patience_ends = math.inf if patience is None else now + patience
        else:
            patience_ends = now + self._patience(master)
        call = command.again().ask(
            partial(self._replied, request, master),
            partial(self._failed, request, patience_ends <= self._call.until),
            until=min(self._call.until, patience_ends),
            undoes=self._call.rare & UNDOES != 0,
            patient=not self._call.rare & IMPATIENT,
            as_eval=self._call.as_eval or request.command.script not in master.known,
            on_late=master.answered,
        )
        master.asked(now)
        self._calls[request] = call
        if request.phase == VOTE:
            self._votes[request.master] = call
        master.transport.send(call, at_once=at_once, corked=corked)

    def _undo(self, request: MasterRequest, master: Master) -> None:
        """After the vote, if that was ever written: a request that a master has not seen needs no undoing."""
        vote = self._votes.get(request.master)
        if vote is None:
            return
        self._calls = {sent: call for sent, call in self._calls.items() if call is not vote}
        if not master.transport.forget(vote):
            return
        self._take_back(request.command, master, self._command.lasts)  # then the ttl has done it

    def _take_back(self, command: Request[Any], master: Master, seconds: float) -> None:
        loop = self._quorum.loop

        def send(undo: Request[Any], *, at_once: bool) -> None:
            master.asked(loop.time())
            master.transport.send(undo, at_once=at_once)

        take_back(command, send=send, loop=loop, seconds=seconds, told=master.answered, at_once=False)

    # -- what comes back

    def _replied(self, request: MasterRequest, master: Master, reply: Any) -> None:
        call = self._calls.pop(request)
        master.answered()
        if isinstance(reply, Vote) and reply.clock:
            master.clock, master.clock_at = reply.clock, self._quorum.loop.time()
        if request.command.script is not None:
            master.known.add(request.command.script)
        if not self._stopped or self._operation.still_due(request.phase):
            if call.unconfirmed and request.phase == VOTE:
                self._operation.repeated(request.master)
            requests = self._operation.replied(request.master, request.phase, reply)
            if requests or self._operation.outcome is not UNDECIDED:  # most often there is nothing to do yet
                self._go_on(requests)

    def _failed(self, request: MasterRequest, in_its_time: bool, fault: Fault) -> None:  # noqa: FBT001 - a callback
        self._calls.pop(request, None)
        master = self._quorum.masters[request.master]
        if not fault.unknown:
            master.answered()
        elif in_its_time:  # and not only because the caller had less
            master.silent()
        if fault.unknown and self._operation.frees:
            # The lease has ended. But a master that hangs may execute its vote for it when it goes on.
            self._take_back(request.command, master, 0.0)
        if not self._stopped:
            self._go_on(self._operation.failed(request.master, request.phase, fault))

    def _go_on(self, requests: Sequence[MasterRequest]) -> None:
        # Before the caller is told: what it sends then is to go behind this.
        for request in requests:
            self._send(request)
        if not self._operation.decided:
            return
        if self._quorum.rounds.pop(self._call, None) is not None:
            self._tell(self._operation.outcome)
        if self._passed_on or not (self._calls or self._applied):
            self.stop()

    def _tell(self, outcome: Any) -> None:
        # Some may have waited for their connection, but none was sent before this.
        written = [vote for vote in self._votes.values() if vote.written]
        if written:
            self._call.sent = min(vote.sent for vote in written)
            self._call.sent_steady = min(vote.sent_steady for vote in written)
        if isinstance(outcome, Fault):
            self._call.unconfirmed = self._call.unconfirmed or self._operation.executed
            self._call.fault(outcome)
        else:
            self._call.reply(outcome)


@final
class Quorum:
    """A transport over the transports of N masters.

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
        self.rounds: dict[Request[Any], Round] = {}  # undecided
        self.lanes: dict[str, Round] = {}  # the one that was sent last, while it may have more to send
        self.closed = False

    @property
    def hears(self) -> bool:
        """Whether a majority tells of bells."""
        return sum(master.transport.hears for master in self.masters) > len(self.masters) // 2

    def time(self) -> int:
        """A time that the clocks of a majority have passed, microseconds since 1970; 0: none is known.

        A clock said what it says before it was heard, and has gone on since then: the clocks of a process and
        of a master run alike, each within 1 %. One that was set back is known with its next vote.
        """
        now = self.loop.time()
        times = sorted(
            master.clock + (now - master.clock_at) * _SLOWEST for master in self.masters if master.clock
        )
        most = len(self.masters) // 2  # that may be away, or wrong
        return int(times[-1 - most]) if len(times) > most else 0

    @property
    def way(self) -> str:
        """That of the masters: no single one is heard."""
        return "poll"

    @property
    def outage_told(self) -> bool:
        return any(master.transport.outage_told for master in self.masters)

    @property
    def commands_sent(self) -> int:
        return sum(master.transport.commands_sent for master in self.masters)

    def send(self, call: Request[Any], *, at_once: bool = False, corked: bool = False) -> None:
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
        seats: AbstractSet[int] = frozenset()
        if (former := self.lanes.get(command.lane)) is not None:
            creating = former.creating()
            # A message that it would send by now might undo this.
            seats = former.pass_on(leaves=command.leaving is not None)
        call.sent_steady, call.sent = clocks.steady(), self.loop.time()
        call.written = True
        Round(self, call, command, creating).begin(seats, at_once=at_once, corked=corked)

    def _settle(self, settling: Settling) -> None:
        for round_ in dict.fromkeys((*self.lanes.values(), *self.rounds.values())):
            if round_.lane == settling.lane:
                round_.settle(settling)

    def forget(self, call: Request[Any]) -> bool:
        call.done = True
        if (round_ := self.rounds.get(call)) is not None:
            return round_.abandon()
        return call.written

    def prove(self, proof: Proof) -> None:
        raise NotImplementedError("independent masters have no replicas of each other")

    def arm(self, bell: bytes) -> None:
        """A majority answers: what one master tells a moment too early, its heartbeat finds."""

    def ignore_bell(self, bell: bytes) -> None:
        for master in self.masters:
            master.transport.ignore_bell(bell)

    def rest(self) -> bool:
        return not self.rounds and all(master.transport.rest() for master in self.masters)

    async def aclose(self, grace: float) -> None:
        self.closed = True
        try:
            await asyncio.gather(
                *(
                    background(self.loop, master.transport.aclose(grace), name="aiolocks-close")
                    for master in self.masters
                )
            )
        finally:
            if self.voters is not None:
                self.voters.close()
