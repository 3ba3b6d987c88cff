"""A lease that a majority of masters holds: how it is kept, and handed over to another token.

`acquiring` says on what ground a majority is enough.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, final

from ..answers import Answer, Granted
from ..faults import Fault
from ..request import Request
from .operations import LOOK, TAKE, TOLD, UNDO, VOTE, MasterRequest, QuorumOperation, Voting


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

    Of the fencing tokens that were written back on a majority, the largest is the lease's: one of the masters
    may have taken a smaller one with its vote, and have missed the one that a majority has confirmed. So
    nothing is put back unless a majority was read: a smaller one, which another lease may have, would be the
    lease's for an adoption that the master which was not read does not hear of.

    Args:
        heals: Whether it puts it back; if not, the next renewal does.
        look: Reads what a master carries of it.
        take: Acquires for the token, with that metadata.
        confirm: Writes the fencing token of the lease back.
    """

    __slots__ = ("_asked", "_carried", "_confirm", "_heals", "_look", "_read", "_reading", "_take", "_taking")

    def __init__(
        self,
        labels: Sequence[str],
        vote: Request[bool],
        look: Request[Carried | None],
        take: Callable[[str], Request[Answer]],
        confirm: Callable[..., Request[bool]],
        *,
        heals: bool = True,
    ) -> None:
        super().__init__(labels, vote)
        self._heals = heals
        self._look = look
        self._take = take
        self._confirm = confirm
        self._asked: set[int] = set()  # what they carry
        self._reading = False  # the last of them has not answered
        self._read = 0  # how many carry it still
        self._carried: Carried | None = None  # the part to put back, as far as it was read
        self._taking: set[int] = set()

    def replied(self, master: int, phase: int, reply: Any) -> list[MasterRequest]:
        if phase == VOTE:
            super().replied(master, phase, reply)
            return self._heal() if self._heals and self.outcome is True else []
        if phase == LOOK:
            self._reading = False
            if reply is not None:
                self._read += 1
                if reply.written_back:
                    self._carried = max(reply, self._carried or reply)
            return self._heal()
        if phase == TAKE and isinstance(reply, Granted) and self._carried is not None:
            return [MasterRequest(master, self._confirm(self._carried.fencing_token, given=True), TOLD)]
        return []

    def failed(self, master: int, phase: int, fault: Fault) -> list[MasterRequest]:
        if phase == VOTE:
            return super().failed(master, phase, fault)
        if phase == LOOK:
            self._reading = False
            return self._heal()
        return []

    def _heal(self) -> list[MasterRequest]:
        """Reads it from one master after the other; puts it back when all that have renewed it were asked."""
        missing = self._no.keys() - self._taking
        if self._reading or not missing:
            return []
        source = next((master for master in self._yes if master not in self._asked), None)
        if source is not None:
            self._reading = True
            self._asked.add(source)
            return [MasterRequest(source, self._look, LOOK)]
        if self._read < self.majority or self._carried is None:
            return []
        self._taking |= missing
        command = self._take(self._carried.metadata)
        return [MasterRequest(master, command, TAKE) for master in missing]


@final
class Adopting(QuorumOperation[int | None]):
    """Given from one token to another by a majority; given back where that fails.

    Of several adopters at a time at most one has a majority. If none has, the handle stays good. If one has,
    the other adopters give their minority of masters back to the handle, which is good no more: this part has
    no holder, and is free again after the ttl.

    Args:
        undo: Gives it back.
    """

    __slots__ = ("_given", "_not_held", "_undo")

    def __init__(
        self, labels: Sequence[str], vote: Request[Carried | None], undo: Request[Carried | None]
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

    def _decide(self) -> list[MasterRequest]:
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
            MasterRequest(master, self._undo, UNDO)
            for master in range(len(self._labels))
            if master not in self._not_held
        ]

    def _said(self, master: int) -> str:
        return "adopted" if master in self._given else "not held"
