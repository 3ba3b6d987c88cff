"""The excuses of faults: which sort of violation, of which process, in which time.

A fault of a process explains what goes wrong in that process, and for how long the others may find something
idle because of it; a fault of a server explains what goes wrong in every process that uses it. Each sort of
fault says which sorts of violation it explains, and for how long after its end (`faults.FAULTS`): what is not
named there must hold in spite of the fault.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from math import inf


class Excused(Enum):
    """A sort of violation."""

    ERROR = "a call fails, or a lease is lost"
    UNANSWERED = "a call fails, for no answer came in its time"
    LATE = "a wait or a cancellation ends late"
    IDLE = "something is free while a task waits for it"
    PLACE = "a waiter loses its place in the queue"
    LEASE = "a holder works on after its lease has ended"
    RESULT = "a result is lost, or kept for too long"


@dataclass(frozen=True, slots=True)
class _Excuse:
    sort: Excused
    process: str | None  # None: of everybody
    since: float
    until: float


class Excuses:
    """All excuses of a schedule; times of the world."""

    def __init__(self) -> None:
        self._given: list[_Excuse] = []

    def give(self, sort: Excused, process: str | None, since: float, until: float) -> None:
        """Such a violation of this process (None: of everybody) is explained in this time."""
        self._given.append(_Excuse(sort, process, since, until))

    def until(self, sort: Excused, who: str) -> float:
        """Until when such a violation is explained; minus infinity: it never was."""
        return max((one.until for one in self._of(sort, who)), default=-inf)

    def explain(self, sort: Excused, who: str, since: float, until: float) -> bool:
        """Whether anything in this time explains such a violation."""
        return any(one.since <= until and since <= one.until for one in self._of(sort, who))

    def explain_any(self, sort: Excused, since: float, until: float) -> bool:
        """The same of any process."""
        return any(one.sort is sort and one.since <= until and since <= one.until for one in self._given)

    @property
    def any(self) -> bool:
        """Whether anything is explained at all."""
        return bool(self._given)

    def begun(self, sort: Excused) -> list[float]:
        """When each excuse of this sort began, whosever it is."""
        return [one.since for one in self._given if one.sort is sort]

    def _of(self, sort: Excused, who: str) -> list[_Excuse]:
        """`who` is a process, or a part of it, as `p1.w0.r2`."""
        if not self._given:
            return []
        process = who.partition(".")[0]
        return [one for one in self._given if one.sort is sort and one.process in (None, process)]
