"""A lease that a majority of masters holds: how it is given. `keeping` has how it is kept and handed over.

**The ground of a lease.** Let a master *confirm* a lease when it writes the lease's fencing token back while
it still carries the lease's token, and has minted nothing larger for it (`redlock_seal`). A master also
confirms a lease with its vote, if it grants with the very fencing token that the vote proposes, for which
that must be larger than its fence (`redlock_vote`): then it mints this number, and has written it back. A
lease is given when a majority has confirmed it. Two majorities have a master in common; of two leases, let
that be `m`.

- *One holder.* `m` carries a token from its grant to its confirmation, and on until it is released or its ttl
  has passed there, which is not before the holder's own deadline: the holder counts it from before the first
  request was sent, less drift. So `m` was free again when it granted the other lease, and the two do not
  overlap.
- *A rising fencing token.* Say that `m` confirmed A, with the token S(A), and granted B after that. Its fence
  was at least S(A), so that it minted more than S(A) for B, whether it took that number from a proposal or
  not; and as it confirmed B too, S(B) is not less than that. The larger of the tokens minted by one majority
  is not enough: B may have been granted at `m` before A was, and have lost that grant again. Neither is it
  enough to write back to any master that answers: a fence that is raised for a lease which is gone says
  nothing of the lease that is there.

The first property needs clocks that *run* alike (the holder's, and each master's, within 1 %) and do not
jump; they need not agree. The second property needs no clock, where `m` kept its data, the fence for its
retention among them. Both need that requests of one possession reach a master in the order of their sending,
or not at all, which is what a transport is for.

A master that restarts without its data within a ttl may confirm another lease beside one that it has
forgotten: then two may hold at a time. One that stays away for the longest ttl in use cannot. Whenever it
comes back empty, its fencing tokens begin at its clock: the later lease has the larger one unless that clock
stands behind the one that minted the earlier.

**What is proposed.** The last fencing token of the name that this process was given, and one more; or a time
that the clocks of a majority have passed (`Quorum.time`), if that is larger. Not a time ahead of the clocks,
which each master could take: where masters lose their fences, the next lease would have a smaller token than
one that was given ahead of them. For the same reason a master without a fence takes no number that is less
than its clock: so the first lease of a name takes two phases.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Final, final

from ...errors import ConfigurationError
from ..answers import Answer, Granted, Refused, Released, Vote
from ..faults import Fault
from ..request import Request
from .operations import CONFIRM, LEAVE, TOLD, UNDO, VOTE, MasterRequest, QuorumOperation

_NONE: Final[AbstractSet[int]] = frozenset()


@final
class Newest:
    """The newest fencing token of a name that this process was given; 0: none."""

    __slots__ = ("number",)

    def __init__(self) -> None:
        self.number = 0


@final
class Acquiring(QuorumOperation[Answer]):
    """Grants by a majority, and a fencing token confirmed by a majority; undone where that fails.

    A fencing token is proposed with the votes. If too few masters take it, the largest that they have minted
    is proposed in a second phase.

    Args:
        time: A time that the masters' clocks have passed, microseconds; 0: none is known.
        newest: It proposes a larger one.
        confirm: Writes the fencing token of the lease back.
        undo: Takes back what may have been granted; wakes no waiter, for nothing has become free by it.
        leave: Leaves the queue, and nothing else; None where no master seats the voter.
        queued: The voter may stand in the queues already. Then nothing is proposed with the votes, a
            confirmation leaves the queue, too, and only the masters that have not confirmed need `leave`. A
            master whose confirmation is under way when the lease is given needs it if that confirmation
            comes after the release. If the voter stands in no queue yet, the masters need `leave` that have
            refused, and so have seated it. A master that has not voted by then needs `leave` when it refuses,
            or with the next call of the lane (`seats`).
    """

    __slots__ = (
        "_confirm",
        "_confirmed",
        "_fencing_token",
        "_granted",
        "_leave",
        "_newest",
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
        time: int,
        *,
        vote: Request[Answer],
        confirm: Callable[..., Request[bool]],
        undo: Request[Released],
        leave: Request[Released] | None,
        newest: Newest,
        queued: bool,
    ) -> None:
        super().__init__(labels, vote)
        self._newest = newest
        self._confirm = confirm
        self._queued = queued
        self._undo = undo
        self._leave = leave
        self._fencing_token = 0 if queued else max(time, newest.number + 1)  # proposed for the lease
        self._proposal = CONFIRM  # phase of its confirmations
        vote.args, vote.packed = (*vote.args[:-1], str(self._fencing_token)), None
        self._granted: dict[int, Granted] = {}
        self._refused: dict[int, int | None] = {}  # ms that the other's lease has left
        self._told: list[Sequence[Any]] = []  # the holder, as each of these masters says
        self._confirmed: set[int] = set()
        self._unconfirmed: set[int] = set()  # granted it, and lost it again
        self._unasked: set[int] = set()  # granted it, and minted more than is proposed

    def replied(self, master: int, phase: int, reply: Any) -> list[MasterRequest]:
        if phase == VOTE:
            self._pending.discard(master)
            if isinstance(reply, Refused):
                self._refused[master] = reply.remaining_ms
                if reply.told:
                    self._told.append(reply.told)
                if self._leaves:
                    return self.leave((master,))
            else:
                self._granted[master] = reply
                return self._confirmed_or_asked(master, reply)
        elif not reply:
            self._unconfirmed.add(master)
            if self._leave is not None and self.still_due(phase):
                return self.leave((master,))
        elif phase == self._proposal:
            self._confirmed.add(master)
        return [] if self.decided else self._decide()

    def failed(self, master: int, phase: int, fault: Fault) -> list[MasterRequest]:
        if isinstance(fault.error, ConfigurationError) and not self.decided:
            self.outcome = fault
            return self._take_back()
        if phase == VOTE and fault.unknown and self._leaves:
            self._pending.discard(master)
            return self.leave((master,))  # it may have seated the voter
        return super().failed(master, phase, fault)

    def still_due(self, phase: int) -> bool:
        """A confirmation leaves the queue, also where it is not needed for the majority any more."""
        return self._queued and isinstance(self.outcome, Granted) and phase == self._proposal

    def seats(self) -> AbstractSet[int]:
        return self._pending if self._leaves else _NONE

    @property
    def _leaves(self) -> bool:
        """It was given: a master that seats the voter after that needs `leave`."""
        return self._leave is not None and isinstance(self.outcome, Granted)

    def leave(self, masters: Iterable[int]) -> list[MasterRequest]:
        assert self._leave is not None
        return [MasterRequest(master, self._leave, LEAVE) for master in masters]

    def _confirmed_or_asked(self, master: int, granted: Granted) -> list[MasterRequest]:
        """The more masters carry the lease, the more may fail later: also one that grants late is asked.

        If the acquire has failed meanwhile, an undo was sent after the vote.
        """
        minted = granted.fencing_token
        sealed = minted == self._fencing_token and isinstance(granted, Vote) and granted.sealed
        if isinstance(self.outcome, Granted):
            return [] if sealed else self._tell((master,))
        if self.decided:
            return []
        if sealed:
            self._confirmed.add(master)
            if not self._unasked and len(self._confirmed) < self.majority:
                return []  # the most frequent answer: it changes nothing yet
        elif minted > self._fencing_token:
            self._unasked.add(master)
        else:
            return [MasterRequest(master, self._confirm(self._fencing_token), self._proposal)]
        return self._decide()

    def _decide(self) -> list[MasterRequest]:
        if len(self._confirmed) >= self.majority:
            itself = 1 if self._queued else 0  # it stands there until it has confirmed
            others = max(grant.others for grant in self._granted.values()) - itself
            self.outcome = Granted(self._fencing_token, max(0, others))
            self._newest.number = self._fencing_token
            return [*self._tell(self._unasked), *self._leave_queues()]
        gone = self._refused.keys() | self._faults.keys() | self._unconfirmed
        if len(gone) >= self.enough_against:
            self.outcome = (
                self._no_majority() if len(self._faults) >= self.enough_against else self._refusal()
            )
            return self._take_back()
        carrying = self._granted.keys() - gone
        if len(carrying) >= self.majority > len(carrying - self._unasked):
            return self._propose(carrying)
        return []

    def _propose(self, carrying: AbstractSet[int]) -> list[MasterRequest]:
        """The largest that they have minted: confirmations of what was proposed before do not count then."""
        self._fencing_token = max(self._granted[master].fencing_token for master in carrying)
        self._proposal += 1
        self._confirmed.clear()
        self._unasked.clear()
        command = self._confirm(self._fencing_token)
        return [MasterRequest(master, command, self._proposal) for master in sorted(carrying)]

    def _tell(self, masters: Iterable[int]) -> list[MasterRequest]:
        """The masters are not needed any more, but are to know the fencing token of the lease they carry."""
        command = self._confirm(self._fencing_token, given=True)
        return [MasterRequest(master, command, TOLD) for master in masters]

    def _leave_queues(self) -> list[MasterRequest]:
        """On the masters that were not asked to confirm the lease, or did not: no other request does so."""
        if self._leave is None:
            return []
        masters: AbstractSet[int] = self._refused.keys()
        if self._queued:
            masters |= self._unconfirmed | self._unasked
        return self.leave(sorted(masters))

    def _take_back(self) -> list[MasterRequest]:
        masters = range(len(self._labels))
        return [MasterRequest(master, self._undo, UNDO) for master in masters if master not in self._refused]

    def _refusal(self) -> Refused:
        """For as long as it takes until a majority could be free."""
        held = [*self._refused.values(), *(0 for _ in self._unconfirmed)]
        times = sorted(float("inf") if left is None else left for left in held)
        ours = len(self._granted.keys() - self._faults.keys() - self._unconfirmed)
        needed = min(max(self.majority - ours, 1), len(times))
        left = times[needed - 1]
        return Refused(
            None if left == float("inf") else int(left),
            detail=self._report(),
            told=self._most_told(),
            seated=len(self._refused) >= self.majority,
        )

    def _most_told(self) -> Sequence[Any]:
        """The answer about the holder that most masters name: any other token that one names is trying."""
        by_lease = Counter(told[4].split(b":")[0] for told in self._told)
        return max(self._told, key=lambda told: by_lease[told[4].split(b":")[0]], default=())

    def _said(self, master: int) -> str:
        if master in self._refused:
            return "held elsewhere"
        return "granted, and lost again" if master in self._unconfirmed else "granted"
