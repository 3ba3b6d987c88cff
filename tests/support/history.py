"""Checkers for histories: what many tasks and processes logged while faults were going on.

Every worker logs a `Hold` for each grant. The checkers are pure functions from holds to the list of
`Violation`s found, so that a test reads ``assert not exclusion(holds)`` and shows the guilty pair when it
fails.

All times are seconds of CLOCK_MONOTONIC, which all processes of one host share (`time.monotonic()`, a loop's
`time()`). Facts that a client cannot know exactly are always judged in its favour: a hold *definitely* lasts
from the moment when the grant was returned to the moment when the release was called or the local deadline
passed, whichever came first. Two definite holds that conflict and overlap are two holders; there is no
innocent reading.
"""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import Awaitable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal, TextIO

from aiolocks import Lease

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
        name: The name that was locked. Holds of different names do not know of each other.
        mode: The holds that it excludes. A plain lock is a writer.
        low: Left end of the interval held, included.
        high: Right end of the interval held.
        closed: Whether the right end is included.
        owner: The owner, where one may hold several at once: re-entries, an upgrade within its upgradable.
        permits: How many permits of a semaphore it took.
        fencing_token: The token of the lease, if the history is about tokens.
        queued: When the server had confirmed the place in the queue, if the history is about order.
        session: The session it was acquired in, of which the readers that wait enter together.
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
    closed: bool = False
    owner: str | None = None
    permits: int = 1
    fencing_token: int | None = None
    queued: float | None = None
    session: str | None = None

    @property
    def definite_end(self) -> float:
        """Until when the holder may have relied on it; the definite hold is [granted, definite_end)."""
        return min(self.released, self.deadline)

    def conflicts_with(self, other: Hold) -> bool:
        """Whether the two may not be held at the same time."""
        if self.owner is not None and self.owner == other.owner:
            return False
        return frozenset({self.mode, other.mode}) in _CONFLICTS and self.overlaps(other)

    def overlaps(self, other: Hold) -> bool:
        """Whether the intervals do."""
        if self.closed and other.closed:
            return self.low <= other.high and other.low <= self.high
        return self.low < other.high and other.low < self.high

    def changed(self, called: float, confirmed: float, **to: Any) -> tuple[Hold, Hold]:
        """The holds that a downgrade or a shrink makes of it: the hold until then, and the weaker one from
        then on.

        Of what both have in common nothing is given back, so that there is no gap between the two.
        """
        before = replace(self, released=min(called, self.released), confirmed=min(confirmed, self.confirmed))
        after = replace(self, invoked=called, granted=called, fencing_token=None, queued=None, **to)
        return before, after


@dataclass(frozen=True, kw_only=True, slots=True)
class Wait:
    """One call of acquire, granted or not: it wanted the lock from `invoked` to `ended`, in that session."""

    who: str
    invoked: float
    ended: float
    name: str = ""
    session: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Resize:
    """One call of a semaphore's `resize`."""

    called: float
    confirmed: float
    value: int


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
    asked for at the same time, neither has to have the larger token. All modes count alike: a writer's token
    exceeds those of the readers before it. The leases of one owner may share a token.
    """
    violations = []
    for same_name in _by_name(holds):
        tokens = [(hold.fencing_token, hold) for hold in same_name if hold.fencing_token is not None]
        first_with: dict[int, Hold] = {}
        for token, hold in tokens:
            first = first_with.setdefault(token, hold)
            if first is not hold and (hold.owner is None or hold.owner != first.owner):
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


def nesting(holds: Iterable[Hold]) -> list[Violation]:
    """Find re-entries whose fencing token is another than that of the lease that their owner had already."""
    violations = []
    for same_name in _by_name(holds):
        for inner in same_name:
            violations += [
                Violation(f"re-entered with fencing token {inner.fencing_token}", (outer, inner))
                for outer in same_name
                if outer.owner is not None
                and outer.owner == inner.owner
                and outer.granted <= inner.invoked
                and inner.granted < outer.definite_end
                and outer.fencing_token != inner.fencing_token
            ]
    return violations


def fifo(holds: Iterable[Hold], *, dropped: Iterable[str] = ()) -> list[Violation]:
    """Find waiters that were overtaken by one that asked only after they had their place in the queue.

    The fencing tokens tell who was granted first; without them, the order in which grants were returned does,
    which is the same where there is one holder at a time.

    Args:
        holds: Only those with `queued` count.
        dropped: The waiters that timed out, were cancelled or died, and so lost their places with right.
    """
    excused = set(dropped)
    violations = []
    for same_name in _by_name(holds):
        in_line = [
            (hold.queued, hold) for hold in same_name if hold.queued is not None and hold.who not in excused
        ]
        longest: tuple[float, Hold] | None = None
        # From the last grant to the first, so that `longest` is always somebody who was granted after `hold`.
        tokens = all(hold.fencing_token is not None for _, hold in in_line)
        order = attrgetter("fencing_token" if tokens else "granted")
        for queued, hold in sorted(in_line, key=lambda pair: order(pair[1]), reverse=True):
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


def semaphore(holds: Iterable[Hold], *, value: int, resizes: Iterable[Resize] = ()) -> list[Violation]:
    """Find moments at which more permits were definitely out than there are.

    Permits that were out already when the value was made smaller are no violation: only the last of those
    that are out had to find room; where it may have been one or another, the value that allows more counts.

    Args:
        value: How many there were at first.
        resizes: The changes since.
    """
    changes = [Resize(called=-math.inf, confirmed=-math.inf, value=value), *resizes]
    violations = []
    for same_name in _by_name(holds):
        inside: list[Hold] = []
        for hold in sorted(same_name, key=attrgetter("granted")):
            if hold.definite_end <= hold.granted:
                continue
            inside = [other for other in inside if other.definite_end > hold.granted]
            inside.append(hold)
            out = sum(other.permits for other in inside)
            latest = max(other.invoked for other in inside)
            may_be_last = [other for other in inside if other.granted >= latest]
            allowed = max(_largest_value(changes, other.invoked, other.granted) for other in may_be_last)
            if out > allowed:
                violations.append(Violation(f"{out} permits out of {allowed}", tuple(inside)))
    return violations


def unreached(holds: Iterable[Hold], *, value: int) -> list[Violation]:
    """Find semaphores of which never all permits were out, though there was demand: some have been lost."""
    violations = []
    for same_name in _by_name(holds):
        inside: list[Hold] = []
        largest = 0
        then: tuple[Hold, ...] = ()
        for hold in sorted(same_name, key=attrgetter("granted")):
            inside = [other for other in inside if other.definite_end > hold.granted]
            inside.append(hold)
            out = sum(other.permits for other in inside)
            if out > largest:
                largest, then = out, tuple(inside)
        if largest < value:
            violations.append(Violation(f"never more than {largest} of {value} permits out", then))
    return violations


_UNDOING = 0.1
"""Seconds after the end of a wait in which the request that gives its place up may not be written yet."""


def reservations(
    holds: Iterable[Hold],
    *,
    given_up: Iterable[Wait] = (),
    deaths: Iterable[float] = (),
    unsettled: float = 0.0,
) -> list[Violation]:
    """Find readers that came after a writer had its place in the queue, and got in before it.

    While an upgradable or another writer is in the writer's way, readers may pass: only from when the last of
    these has left, the writer keeps them out.

    When another writer leaves, the readers that wait pass. The readers of one session have one place: those
    that wait there when the first of them gets in come along, and a reader has the place of one that gave up
    while it waited, or a moment before: until that is undone.

    Args:
        given_up: Readers that waited in vain.
        deaths: When a process was killed. It may have been a writer that it did not live to note.
        unsettled: Seconds behind each death in which a writer of the dead may have left.
    """
    deaths, given_up = list(deaths), list(given_up)
    violations = []
    for same_name in _by_name(holds):
        writers = [hold for hold in same_name if hold.mode == "writer"]
        readers = [hold for hold in same_name if hold.mode == "reader"]
        for writer in writers:
            if writer.queued is None:
                continue
            others = [other for other in writers if other is not writer]
            since = _reserved_since(writer, same_name)
            violations += [
                Violation("a reader passed a writer that waited", (writer, reader))
                for reader in readers
                if not _may_pass(reader, since, others)
                and reader.granted < writer.granted
                and reader.overlaps(writer)
                and not any(_may_pass(mate, since, others) for mate in _mates(reader, readers, given_up))
                and not any(
                    death <= reader.granted and reader.invoked <= death + unsettled for death in deaths
                )
            ]
    return violations


def phases(holds: Iterable[Hold]) -> list[Violation]:
    """Find readers that stood in the queue while a writer was inside, and got in only behind the next one.

    Upgrades are no such writers: they have their upgradable's place.
    """
    violations = []
    for same_name in _by_name(holds):
        writers = [hold for hold in same_name if hold.mode == "writer" and hold.owner is None]
        for reader in same_name:
            if reader.mode != "reader" or reader.queued is None:
                continue
            inside = [
                writer
                for writer in writers
                if writer.granted <= reader.granted
                and reader.queued <= writer.released < math.inf
                and writer.overlaps(reader)
            ]
            first = min(inside, key=attrgetter("released"), default=None)
            violations += [
                Violation("a reader had to wait for two writers", (first, second, reader))
                for second in inside
                if first is not None
                and second is not first  # one may be held for no time at all
                and first.released <= second.granted
                and first.overlaps(second)
            ]
    return violations


def _left_meanwhile(writer: Hold, reader: Hold | Wait) -> bool:
    """Whether the writer may have left while the reader waited."""
    return writer.definite_end <= _end_of_wait(reader) and reader.invoked <= writer.confirmed


def _reserved_since(writer: Hold, holds: Iterable[Hold]) -> float:
    """From when on nothing but readers was in the way of this writer, which had its place in the queue."""
    assert writer.queued is not None
    return max(
        writer.queued,
        *(
            min(other.confirmed, other.deadline)
            for other in holds
            if other is not writer
            and other.mode != "reader"
            and other.granted < writer.granted
            and other.overlaps(writer)
        ),
        -math.inf,
    )


def _may_pass(reader: Hold | Wait, since: float, others: Sequence[Hold]) -> bool:
    """Whether the reader came before a writer reserved, or waited when another writer left."""
    return reader.invoked <= since or any(_left_meanwhile(other, reader) for other in others)


def _mates(
    reader: Hold | Wait, readers: Sequence[Hold], given_up: Sequence[Wait], *, along: bool = True
) -> Iterator[Hold | Wait]:
    """Yield the readers with which it came along, and those whose place it had."""
    if reader.session is None:
        return
    for mate in (*(readers if along else ()), *given_up):
        together = mate.session == reader.session and mate.name == reader.name and mate is not reader
        undone = _UNDOING if isinstance(mate, Wait) else 0.0
        if together and mate.invoked < reader.invoked <= _end_of_wait(mate) + undone:
            yield mate
            yield from _mates(mate, readers, given_up, along=along and isinstance(mate, Wait))


def _end_of_wait(reader: Hold | Wait) -> float:
    return reader.ended if isinstance(reader, Wait) else reader.granted


def _largest_value(changes: Sequence[Resize], start: float, end: float) -> int:
    """The largest value that may have counted at some moment from start to end."""
    begun = [change for change in changes if change.called <= end]
    return max(
        change.value
        for change in begun
        if not any(change.confirmed < other.called and other.confirmed < start for other in begun)
    )


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


def noted(folder: Path) -> list[Hold]:
    """The holds that processes have written, but for a line in which one was killed."""
    lines = [line for file in folder.iterdir() for line in file.read_text().split("\n")[:-1]]
    return [Hold(**json.loads(line)) for line in lines]


async def held_for(
    seconds: float, pending: Awaitable[Lease | None], *, name: str, who: str, permits: int = 1
) -> Hold | None:
    """Acquires it, holds it for so long and releases it: the hold, or None where it was not acquired."""
    invoked = time.monotonic()
    lease = await pending
    if lease is None:
        return None
    granted = time.monotonic()
    deadline = granted + lease.remaining()
    await asyncio.sleep(seconds)
    released = time.monotonic()
    await lease.release()
    return Hold(
        name=name,
        who=who,
        invoked=invoked,
        granted=granted,
        released=released,
        confirmed=time.monotonic(),
        deadline=deadline,
        permits=permits,
    )


def note(file: TextIO, hold: Hold) -> None:
    """Writes it down as a line, which `noted` reads."""
    file.write(json.dumps(asdict(hold)) + "\n")
