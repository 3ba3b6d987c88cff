"""One command put to several masters: how their answers become one. State machines without I/O.

An operation is told of each answer, and says what to send next and how it ended; the sender (`rounds`)
decides nothing. A majority is always one of all masters, never of the masters that answer.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, ClassVar, Final, Generic, NamedTuple, TypeVar, cast, final

from ..answers import ASK, GONE, NO_END, NOT_OURS, Released
from ..faults import Fault, failed
from ..request import Request

T = TypeVar("T")

VOTE, LOOK, TAKE, TOLD, UNDO, LEAVE, CONFIRM = range(7)
"""The purposes of requests. An undo of a vote, or of a place in a queue, is sent until it is answered, and
the operation is not told; from CONFIRM on, each proposal has its own."""

UNDECIDED: Final[Any] = object()


class MasterRequest(NamedTuple):
    """The command that must be sent to one master."""

    master: int
    command: Request[Any]
    phase: int = VOTE


class QuorumOperation(Generic[T]):
    """One command at all masters.

    Invariants:
    - `outcome` is decided once, and does not change when late answers come;
    - each master is in `_pending` until its vote is known, or known not to come.

    Args:
        labels: The names of the masters in messages.
        vote: The command that each of them is asked.
    """

    __slots__ = ("_faults", "_labels", "_pending", "_vote", "enough_against", "majority", "outcome")

    frees: ClassVar[bool] = False
    """Whether its vote lets go: each master must get the vote, also when its caller has left."""

    def __init__(self, labels: Sequence[str], vote: Request[Any]) -> None:
        self._labels = labels
        self._vote = vote
        self.majority = len(labels) // 2 + 1
        self.enough_against = len(labels) - self.majority + 1
        self.outcome: T | Fault = UNDECIDED
        self._pending = set(range(len(labels)))
        self._faults: dict[int, Fault] = {}

    @property
    def decided(self) -> bool:
        return self.outcome is not UNDECIDED

    @property
    def executed(self) -> bool:
        """Whether it ended with a fault, although some masters have executed it."""
        return False

    def open(self) -> list[MasterRequest]:
        return [MasterRequest(master, self._vote) for master in range(len(self._labels))]

    def repeated(self, master: int) -> None:
        """The vote of this master was sent more than once: its answer may be that to the second request."""

    def replied(self, master: int, phase: int, reply: Any) -> list[MasterRequest]:
        """A master has answered; returns the requests that must be sent now."""
        if phase == VOTE:
            self._pending.discard(master)
            self._voted(master, reply)
        return [] if self.decided else self._decide()

    def failed(self, master: int, phase: int, fault: Fault) -> list[MasterRequest]:
        """A master did not answer in its time, or refused to."""
        if phase == VOTE or phase >= CONFIRM:
            self._pending.discard(master)
            self._faults[master] = fault
        return [] if self.decided else self._decide()

    def still_due(self, phase: int) -> bool:
        """Whether a request of this phase goes on after another call of its lane was sent.

        It must be one that changes nothing for a token that does not hold the lease any more.
        """
        return False

    def seats(self) -> AbstractSet[int]:
        """The masters on which it may stand in the queue when another call of its lane is sent."""
        return frozenset()

    def leave(self, masters: Iterable[int]) -> list[MasterRequest]:
        """The requests by which it leaves the queues there."""
        raise NotImplementedError

    def _voted(self, master: int, reply: Any) -> None:
        raise NotImplementedError

    def _decide(self) -> list[MasterRequest]:
        raise NotImplementedError

    # -- when there is no majority

    def _said(self, master: int) -> str:
        """The fate of one master, for people."""
        raise NotImplementedError

    def _report(self) -> str:
        said: list[str] = []
        for master, label in enumerate(self._labels):
            fault = self._faults.get(master)
            if fault is None:
                what = "no answer yet" if master in self._pending else self._said(master)
            else:
                what = f"{'unreachable' if fault.unknown else 'refuses'} ({fault.error})"
            said.append(f"{label}: {what}")
        return f"of {len(self._labels)} masters, {'; '.join(said)}"

    def _no_majority(self) -> Fault:
        faults = self._faults.values()
        return failed(
            f"no majority: {self._report()}",
            next((fault.error for fault in faults), None),
            transient=sum(not fault.transient for fault in faults) < self.enough_against,
            lasting=sum(not fault.passing for fault in faults) >= self.enough_against,
            unknown=any(fault.unknown for fault in faults),
            foreign=sum(fault.foreign for fault in faults) >= self.enough_against,
        )


class Voting(QuorumOperation[bool]):
    """A question that a majority answers."""

    __slots__ = ("_no", "_yes")

    def __init__(self, labels: Sequence[str], vote: Request[bool]) -> None:
        super().__init__(labels, vote)
        self._yes: dict[int, None] = {}  # in the order in which they came
        self._no: dict[int, None] = {}

    def _voted(self, master: int, reply: Any) -> None:
        (self._yes if reply else self._no)[master] = None

    def _decide(self) -> list[MasterRequest]:
        if len(self._yes) >= self.majority:
            self.outcome = True
        elif len(self._no) >= self.enough_against:
            self.outcome = False
        elif (
            len(self._yes) + len(self._pending) < self.majority
            and len(self._no) + len(self._pending) < self.enough_against
        ):
            self.outcome = self._no_majority()
        return []

    def _said(self, master: int) -> str:
        return "yes" if master in self._yes else "no"


@final
class Freeing(QuorumOperation[Released]):
    """Let go by a majority; the rest goes on in the background.

    A master that is asked again because its first reply was lost, and then answers "not the holder", did let
    go the first time.
    """

    __slots__ = ("_freed", "_not_held", "_repeated", "_rung")

    frees = True

    def __init__(self, labels: Sequence[str], vote: Request[Released]) -> None:
        super().__init__(labels, vote)
        self._freed: set[int] = set()
        self._not_held: set[int] = set()
        self._repeated: set[int] = set()
        self._rung: dict[bytes, None] = {}

    @property
    def executed(self) -> bool:
        return bool(self._freed)

    def repeated(self, master: int) -> None:
        self._repeated.add(master)

    def _voted(self, master: int, reply: Any) -> None:
        released = cast("Released", reply)
        freed = released.freed or master in self._repeated
        (self._freed if freed else self._not_held).add(master)
        self._rung.update(dict.fromkeys(released.rung))

    def _decide(self) -> list[MasterRequest]:
        if len(self._freed) >= self.majority:
            self.outcome = Released(freed=True, rung=tuple(self._rung))
        elif len(self._not_held) >= self.enough_against:
            self.outcome = Released(freed=False, rung=tuple(self._rung))
        elif not self._pending:
            self.outcome = self._no_majority()
        return []

    def _said(self, master: int) -> str:
        return "released" if master in self._freed else "not held"


@final
class Listening(QuorumOperation[int]):
    """The time at which a majority may be free, for a waiter that stands in the queues of a majority.

    Until then the lock cannot be had, whatever becomes of the other masters.
    """

    __slots__ = ("_told",)

    def __init__(self, labels: Sequence[str], vote: Request[Sequence[int]]) -> None:
        super().__init__(labels, vote)
        self._told: list[int] = []

    def _voted(self, master: int, reply: Any) -> None:
        (told,) = cast("Sequence[int]", reply)
        self._told.append(told)

    def _decide(self) -> list[MasterRequest]:
        if self._pending:
            return []
        if len(self._told) < self.majority:
            self.outcome = self._no_majority()
            return []
        hanging = [told for told in self._told if told >= NO_END or told == ASK]
        if len(hanging) < self.majority:
            can_hang = len(self._told) - self._told.count(NOT_OURS)
            self.outcome = GONE if can_hang >= self.majority else NOT_OURS
            return []
        free_in = [math.inf] * (len(self._labels) - len(hanging))
        free_in += [math.inf if told == NO_END else max(0, told) for told in hanging]
        soonest = sorted(free_in)[self.majority - 1]
        self.outcome = ASK if soonest == 0 else NO_END if math.isinf(soonest) else int(soonest)
        return []

    def _said(self, master: int) -> str:
        return "told"
