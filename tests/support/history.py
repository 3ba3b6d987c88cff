"""Checkers for histories: what many tasks and processes logged while faults were going on.

Every worker logs a `Hold` for each grant. The checkers are pure functions from holds to the list of
`Violation`s found, so that a test reads ``assert not exclusion(holds)`` and shows the guilty pair when it
fails.

All times are seconds of CLOCK_MONOTONIC, which all processes of one host share (`time.monotonic()`, a loop's
`time()`). What a client cannot know exactly is always judged in its favour: a hold *definitely* lasts from
the moment when the grant was returned to the moment when the release was called or the local deadline passed,
whichever came first. Two definite holds that conflict and overlap are two holders; there is no innocent
reading.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import Literal

Mode = Literal["reader", "upgradable", "writer"]

# Which pairs of modes may not be held at once. An upgradable lives beside readers and excludes its own kind.
_CONFLICTS = frozenset(
    {
        frozenset({"writer"}),
        frozenset({"writer", "reader"}),
        frozenset({"writer", "upgradable"}),
        frozenset({"upgradable"}),
    }
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Hold:
    """One grant, as its client saw it.

    Attributes:
        who: The holder, for the report, and what `fifo` is told about waiters that dropped out.
        invoked: When acquire was called.
        granted: When acquire returned.
        released: When release was called; infinite if it never was.
        confirmed: When release returned; infinite if it never did.
        deadline: The lease's last local deadline; infinite if the lease was kept alive throughout.
        name: What was locked. Holds of different names do not know of each other.
        mode: What the hold excludes. A plain lock is a writer.
        low: Left end of the interval held, included.
        high: Right end of the interval held, excluded.
        permits: How many permits of a semaphore it took.
        fencing_token: The token of the lease, if the history is about tokens.
        queued: When the server had confirmed the place in the queue, if the history is about order.
    """

    who: str
    invoked: float
    granted: float
    released: float = math.inf
    confirmed: float = math.inf
    deadline: float = math.inf
    name: str = ""
    mode: Mode = "writer"
    low: float = -math.inf
    high: float = math.inf
    permits: int = 1
    fencing_token: int | None = None
    queued: float | None = None

    @property
    def definite_end(self) -> float:
        """Until when the holder may have relied on it; the definite hold is [granted, definite_end)."""
        return min(self.released, self.deadline)

    def conflicts_with(self, other: Hold) -> bool:
        """Whether the two may not be held at the same time."""
        return (
            frozenset({self.mode, other.mode}) in _CONFLICTS
            and self.low < other.high
            and other.low < self.high
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Wait:
    """One call of acquire, granted or not: it wanted the lock from `invoked` to `ended`."""

    who: str
    invoked: float
    ended: float
    name: str = ""


@dataclass(frozen=True, slots=True)
class Violation:
    """A promise that the history breaks, and the records that show it."""

    what: str
    evidence: tuple[Hold | Wait, ...]


def exclusion(holds: Iterable[Hold]) -> list[Violation]:
    """Find definite holds that overlap though their modes and intervals conflict."""
    violations = []
    for same_name in _by_name(holds):
        inside: list[Hold] = []
        for hold in sorted(same_name, key=attrgetter("granted")):
            if hold.definite_end <= hold.granted:
                continue  # the grant came back too late to be relied on at all
            inside = [other for other in inside if other.definite_end > hold.granted]
            violations += [
                Violation("two conflicting holders at once", (other, hold))
                for other in inside
                if hold.conflicts_with(other)
            ]
            inside.append(hold)
    return violations


def fencing(holds: Iterable[Hold]) -> list[Violation]:
    """Find fencing tokens that repeat, or that do not exceed one of an earlier lease.

    A lease is earlier than another only if it was granted before the other was asked for. Of leases that were
    asked for at the same time, neither has to have the larger token.
    """
    violations = []
    for same_name in _by_name(holds):
        tokens = [(hold.fencing_token, hold) for hold in same_name if hold.fencing_token is not None]
        first_with: dict[int, Hold] = {}
        for token, hold in tokens:
            if (first := first_with.setdefault(token, hold)) is not hold:
                violations.append(Violation(f"fencing token {token} given twice", (first, hold)))

        granted = sorted(tokens, key=lambda pair: pair[1].granted)
        largest: tuple[int, Hold] | None = None
        done = 0
        for token, hold in sorted(tokens, key=lambda pair: pair[1].invoked):
            while granted[done][1].granted < hold.invoked:
                if largest is None or granted[done][0] > largest[0]:
                    largest = granted[done]
                done += 1
            if largest is not None and token < largest[0]:
                violations.append(Violation(f"fencing token {token} after {largest[0]}", (largest[1], hold)))
    return violations


def fifo(holds: Iterable[Hold], *, dropped: Iterable[str] = ()) -> list[Violation]:
    """Find waiters that were overtaken by one that asked only after they had their place in the queue.

    Args:
        holds: Only those with `queued` count.
        dropped: Who timed out, was cancelled or died, and so lost its place with right.
    """
    excused = set(dropped)
    violations = []
    for same_name in _by_name(holds):
        in_line = [
            (hold.queued, hold) for hold in same_name if hold.queued is not None and hold.who not in excused
        ]
        longest: tuple[float, Hold] | None = None
        # From the last grant to the first, so that `longest` is always somebody who was granted after `hold`.
        for queued, hold in sorted(in_line, key=lambda pair: pair[1].granted, reverse=True):
            if longest is not None and longest[0] < hold.invoked:
                violations.append(Violation("overtaken in the queue", (longest[1], hold)))
            if longest is None or queued < longest[0]:
                longest = (queued, hold)
    return violations


def handover(holds: Iterable[Hold], waits: Iterable[Wait], *, bound: float) -> list[Violation]:
    """Find waiters that waited more than `bound` seconds at a stretch for an exclusive lock that was free.

    A hold counts until its release was confirmed or its deadline passed. Waiters that gave up count as well:
    whoever missed a wakeup may never have been granted anything.
    """
    free = {same_name[0].name: list(_free_intervals(same_name)) for same_name in _by_name(holds)}
    never_held = [(-math.inf, math.inf, None)]
    violations = []
    for wait in waits:
        for start, end, last in free.get(wait.name, never_held):
            idle = min(end, wait.ended) - max(start, wait.invoked)
            if idle > bound:
                evidence = (wait,) if last is None else (last, wait)
                violations.append(Violation(f"free for {idle:.3f} s while somebody waited", evidence))
    return violations


def semaphore(holds: Iterable[Hold], *, value: int) -> list[Violation]:
    """Find moments at which more than `value` permits were definitely out."""
    violations = []
    for same_name in _by_name(holds):
        inside: list[Hold] = []
        for hold in sorted(same_name, key=attrgetter("granted")):
            if hold.definite_end <= hold.granted:
                continue
            inside = [other for other in inside if other.definite_end > hold.granted]
            inside.append(hold)
            out = sum(other.permits for other in inside)
            if out > value:
                violations.append(Violation(f"{out} permits out of {value}", tuple(inside)))
    return violations


def _by_name(holds: Iterable[Hold]) -> list[list[Hold]]:
    name = attrgetter("name")
    return [list(group) for _, group in groupby(sorted(holds, key=name), key=name)]


def _free_intervals(holds: Sequence[Hold]) -> Iterator[tuple[float, float, Hold | None]]:
    """Yield when nobody had it, as start, end, and the hold that ended there."""
    start, last = -math.inf, None
    for hold in sorted(holds, key=attrgetter("granted")):
        if hold.granted > start:
            yield start, hold.granted, last
        end = min(hold.confirmed, hold.deadline)
        if end > start:
            start, last = end, hold
    yield start, math.inf, last
