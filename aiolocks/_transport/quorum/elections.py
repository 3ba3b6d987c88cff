"""A lease that a majority of masters holds: how it is given, kept and handed over.

**The ground of a lease.** Let a master *confirm* a lease when it writes the lease's fencing token back while
it still carries the lease's token, and has minted nothing larger for it (`redlock_seal.lua`). A lease is
given when a majority has confirmed it. Two majorities have a master in common; of two leases, let that be
`m`.

- *One holder.* `m` carries a token from its grant to its confirmation, and on until it is released or its ttl
  has passed there, which is not before the holder's own deadline: that one is counted from before the first
  request was sent, less drift. So `m` was free again when it granted the other lease, and the two do not
  overlap.
- *A rising fencing token.* Say that `m` confirmed A, with the token S(A), and granted B after that. Its fence
  was at least S(A), so that it minted more than S(A) for B; and as it confirmed B too, S(B) is not less than
  that. The larger of the tokens minted by one majority is not enough: B may have been granted at `m` before A
  was, and have lost that grant again. Neither is writing back to any master that answers: a fence that is
  raised for a lease which is gone says nothing of the one that is there.

The first needs clocks that *run* alike (the holder's, and each master's, within 1 %) and do not jump; they
need not agree. The second needs no clock, where `m` kept its data, the fence for its retention among them.
Both need that requests of one possession reach a master in the order of their sending, or not at all, which
is what a transport is for.

A master that restarts without its data within a ttl may confirm another lease beside one that it has
forgotten: then two may hold at a time. One that stays away for the longest ttl in use cannot. Whenever it
comes back empty, its fencing tokens begin at its clock: the later lease has the larger one unless that clock
stands behind the one that minted the earlier.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, NamedTuple, final

from ...errors import ConfigurationError
from ..faults import Fault
from ..requests.answers import Answer, Granted, Refused, Released
from ..requests.calls import Command
from .ballots import CONFIRM, LEAVE, LOOK, TAKE, TOLD, UNDO, VOTE, Ballot, Errand, Voting


@final
class Acquiring(Ballot[Answer]):
    """Grants by a majority, then the largest fencing token confirmed by a majority; undone where that fails.

    Args:
        confirm: Writes the fencing token of the lease back.
        undo: Takes back what may have been granted; wakes nobody, for nothing has become free by it.
        leave: Leaves the queue, and nothing else; None where no master seats the voter.
        queued: The voter may stand in the queues already. Then the queue is left with a confirmation, too;
            so only the masters that have not confirmed need `leave`. Otherwise only those need it that have
            refused, and so have seated the voter, or may yet do so.
    """

    __slots__ = (
        "_confirm",
        "_confirmed",
        "_fencing_token",
        "_granted",
        "_leave",
        "_proposal",
        "_queued",
        "_refused",
        "_told",
        "_unasked",
        "_unconfirmed",
        "_undo",
    )

    def __init__(
        self,
        labels: Sequence[str],
        vote: Command[Answer],
        confirm: Callable[..., Command[bool]],
        undo: Command[Released],
        leave: Command[Released] | None = None,
        *,
        queued: bool = False,
    ) -> None:
        super().__init__(labels, vote)
        self._confirm = confirm
        self._queued = queued
        self._undo = undo
        self._leave = leave
        self._fencing_token = 0  # proposed for the lease, once a majority has granted
        self._proposal = CONFIRM  # phase of its confirmations
        self._granted: dict[int, Granted] = {}
        self._refused: dict[int, int | None] = {}  # ms that the other's lease has left
        self._told: list[Sequence[Any]] = []  # the holder, as each of those says
        self._confirmed: set[int] = set()
        self._unconfirmed: set[int] = set()  # granted it, and lost it again
        self._unasked: set[int] = set()  # granted it later, and minted more than is proposed

    def replied(self, master: int, phase: int, reply: Any) -> list[Errand]:
        if phase == VOTE:
            self._pending.discard(master)
            if isinstance(reply, Refused):
                self._refused[master] = reply.remaining_ms
                if reply.told:
                    self._told.append(reply.told)
            else:
                self._granted[master] = reply
                if self._fencing_token:
                    return self._granted_late(master)
        elif not reply:
            self._unconfirmed.add(master)
        elif phase == self._proposal:
            self._confirmed.add(master)
        return [] if self.decided else self._decide()

    def failed(self, master: int, phase: int, fault: Fault) -> list[Errand]:
        if isinstance(fault.error, ConfigurationError) and not self.decided:
            self.outcome = fault
            return self._take_back()
        return super().failed(master, phase, fault)

    def _granted_late(self, master: int) -> list[Errand]:
        """The more carry the lease, the more may fail later. An undo was sent after it."""
        if isinstance(self.outcome, Granted):
            return self._tell((master,))
        if self.decided:
            return []
        if self._granted[master].fencing_token > self._fencing_token:
            self._unasked.add(master)
            return self._decide()
        return [Errand(master, self._confirm(self._fencing_token), self._proposal)]

    def _decide(self) -> list[Errand]:
        if len(self._confirmed) >= self.majority:
            itself = 1 if self._queued else 0  # it stands there until it has confirmed
            others = max(grant.others for grant in self._granted.values()) - itself
            self.outcome = Granted(self._fencing_token, max(0, others))
            return [*self._tell(self._unasked), *self._leave_queues()]
        gone = self._refused.keys() | self._faults.keys() | self._unconfirmed
        if len(gone) >= self.enough_against:
            self.outcome = (
                self._no_majority() if len(self._faults) >= self.enough_against else self._refusal()
            )
            return self._take_back()
        carrying = self._granted.keys() - gone
        if len(carrying) >= self.majority > len(carrying - self._unasked if self._fencing_token else ()):
            return self._propose(carrying)
        return []

    def _propose(self, carrying: AbstractSet[int]) -> list[Errand]:
        """For the first time, or again with more of them: earlier confirmations do not count then."""
        self._fencing_token = max(self._granted[master].fencing_token for master in carrying)
        self._proposal += 1
        self._confirmed.clear()
        self._unasked.clear()
        command = self._confirm(self._fencing_token)
        return [Errand(master, command, self._proposal) for master in sorted(carrying)]

    def _tell(self, masters: Iterable[int]) -> list[Errand]:
        """They are not needed any more, but are to know the fencing token of what they carry."""
        command = self._confirm(self._fencing_token, given=True)
        return [Errand(master, command, TOLD) for master in masters]

    def _leave_queues(self) -> list[Errand]:
        """On the masters that were not asked to confirm the lease, or did not: nobody else would."""
        if self._leave is None:
            return []
        masters = self._refused.keys() | self._pending
        if self._queued:
            masters |= self._unconfirmed | self._unasked
        return [Errand(master, self._leave, LEAVE) for master in sorted(masters)]

    def _take_back(self) -> list[Errand]:
        masters = range(len(self._labels))
        return [Errand(master, self._undo, UNDO) for master in masters if master not in self._refused]

    def _refusal(self) -> Refused:
        """For as long as it takes until a majority could be free."""
        held = [*self._refused.values(), *(0 for _ in self._unconfirmed)]
        times = sorted(float("inf") if left is None else left for left in held)
        ours = len(self._granted.keys() - self._faults.keys() - self._unconfirmed)
        needed = min(max(self.majority - ours, 1), len(times))
        left = times[needed - 1]
        return Refused(
            None if left == float("inf") else int(left), detail=self._report(), told=self._most_told()
        )

    def _most_told(self) -> Sequence[Any]:
        """The answer about the holder that most of them name: any other that they name is trying."""
        by_lease = Counter(told[4].split(b":")[0] for told in self._told)
        return max(self._told, key=lambda told: by_lease[told[4].split(b":")[0]], default=())

    def _said(self, master: int) -> str:
        if master in self._refused:
            return "held elsewhere"
        return "granted, and lost again" if master in self._unconfirmed else "granted"


class Carried(NamedTuple):
    """The part of a lease on one master: whether its fencing token was written back, and the metadata."""

    fencing_token: int
    written_back: bool
    metadata: str


@final
class Renewing(Voting):
    """A majority has it renewed; and where it is missing, it is put back.

    A master that came back empty, or was away when the lease was given, is taken again for the same token, if
    it is free: only once a majority has said that the lease is held, and with what one of them carries. So a
    renewal creates nothing that is gone. It restores what further failures may take, not what has happened.

    Args:
        look: Reads what a master carries of it.
        take: Acquires for the token, with that metadata.
        confirm: Writes the fencing token of the lease back.
    """

    __slots__ = ("_carried", "_confirm", "_look", "_sources", "_take", "_taking")

    def __init__(
        self,
        labels: Sequence[str],
        vote: Command[bool],
        look: Command[Carried | None],
        take: Callable[[str], Command[Answer]],
        confirm: Callable[..., Command[bool]],
    ) -> None:
        super().__init__(labels, vote)
        self._look = look
        self._take = take
        self._confirm = confirm
        self._sources: list[int] | None = None  # masters that may be asked yet for the part to put back
        self._carried: Carried | None = None
        self._taking: set[int] = set()

    def replied(self, master: int, phase: int, reply: Any) -> list[Errand]:
        if phase == VOTE:
            super().replied(master, phase, reply)
            return self._heal() if self.outcome is True else []
        if phase == LOOK:
            if reply is None or not reply.written_back:
                return self._look_further()
            self._carried = reply
            return self._heal()
        if phase == TAKE and isinstance(reply, Granted) and self._carried is not None:
            return [Errand(master, self._confirm(self._carried.fencing_token, given=True), TOLD)]
        return []

    def failed(self, master: int, phase: int, fault: Fault) -> list[Errand]:
        if phase == VOTE:
            return super().failed(master, phase, fault)
        return self._look_further() if phase == LOOK else []

    def _heal(self) -> list[Errand]:
        missing = self._no.keys() - self._taking
        if not missing:
            return []
        if self._carried is None:
            if self._sources is not None:
                return []  # being read
            self._sources = list(self._yes)
            return self._look_further()
        self._taking |= missing
        command = self._take(self._carried.metadata)
        return [Errand(master, command, TAKE) for master in missing]

    def _look_further(self) -> list[Errand]:
        return [Errand(self._sources.pop(0), self._look, LOOK)] if self._sources else []


@final
class Adopting(Ballot[int | None]):
    """Given from one token to another by a majority; given back where that fails.

    Of several who adopt at a time at most one has a majority. If none has, the handle stays good; if one has,
    what others give back to it on a minority of masters is nobody's, and free again after the ttl.

    Args:
        undo: Gives it back.
    """

    __slots__ = ("_given", "_not_held", "_undo")

    def __init__(
        self, labels: Sequence[str], vote: Command[Carried | None], undo: Command[Carried | None]
    ) -> None:
        super().__init__(labels, vote)
        self._undo = undo
        self._given: dict[int, Carried] = {}
        self._not_held: set[int] = set()

    def _voted(self, master: int, reply: Any) -> None:
        if reply is None:
            self._not_held.add(master)
        else:
            self._given[master] = reply

    def _decide(self) -> list[Errand]:
        if len(self._given) >= self.majority:
            # A token that a single master has minted is not the lease's; a majority has the lease's, and so
            # one of these.
            known = [carried for carried in self._given.values() if carried.written_back]
            found = known or self._given.values()
            self.outcome = max(carried.fencing_token for carried in found)
            return []
        if len(self._not_held) >= self.enough_against:
            self.outcome = None
        elif not self._pending:
            self.outcome = self._no_majority()
        else:
            return []
        return [
            Errand(master, self._undo, UNDO)
            for master in range(len(self._labels))
            if master not in self._not_held
        ]

    def _said(self, master: int) -> str:
        return "adopted" if master in self._given else "not held"
