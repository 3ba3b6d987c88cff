"""Locks that stay with their session between uses: their schedules, and what must be true of them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from aiolocks import Lock, MultiLock, ReentrantLock, Session
from aiolocks.lock import tenure

if TYPE_CHECKING:
    from .checkers import Attempt, Referee
    from .kinds import Want
    from .schedule import Crew, Round, Schedule, Worker

CACHES = (0.05, 0.2, 0.3)
"""Seconds, of a ttl of a second at least."""
ENDED = 0.2
"""Seconds after its time in which a lease that nobody uses has ended, in a process that runs."""


def cached(session: Session, want: Want, **options: Any) -> Any:
    """The lock of that want: one that is kept, or one of those that exclude it."""
    if want.by == "multilock":
        return MultiLock(session, ["x", "y"], **options)
    if want.by == "reentrant":
        return ReentrantLock(session, want.names[0], **options)
    return Lock(session, want.names[0], cache=want.cache, **options)


def with_uses(rng: random.Random, schedule: Schedule) -> Schedule:
    """The schedule, where most tasks take their name several times in a row, and most processes keep it."""

    def worker(one: Worker, crew: Crew, cache: float) -> Worker:
        rounds: list[Round] = []
        for use in one.rounds:
            own = cache if rng.random() < 0.9 else rng.choice((0.0, *CACHES))
            by = "" if rng.random() < 0.93 else rng.choice(("reentrant", "multilock"))
            names = ("x", "y") if by == "multilock" else use.want.names
            first = replace(use, want=replace(use.want, cache=own, by=by, names=names))
            if by == "reentrant":  # a task of it may nest: no such wish here
                first = replace(first, doing="")
            more = rng.choice((0, 1, 3, 6)) if not apart else rng.choice((3, 6, 10))
            name = rng.choice("xxy")
            if apart and not by:
                first = replace(first, want=replace(first.want, names=(name,)))
            if apart:  # long pauses, in which others ask
                pause = rng.choice((rng.uniform(0, 0.3), rng.uniform(0, 1.0), rng.uniform(0, 2.0)))
                first = replace(first, after=pause, hold=min(first.hold, rng.uniform(0, 0.1)))
            again = [
                replace(
                    first,
                    after=rng.choice((0.0, 0.0, rng.uniform(0, 0.02), rng.uniform(0, 1.5) * (own or 0.1))),
                    hold=rng.choice((0.0, 0.0, rng.uniform(0, 0.05), use.hold)),
                    doing="" if rng.random() < 0.9 else first.doing,
                    cancel=use.cancel if rng.random() < 0.4 else None,
                )
                for _ in range(more)
            ]
            rounds += [first, *again]
        part = one.part
        numbered = (replace(use, part=f"{part}.r{number}") for number, use in enumerate(rounds))
        return replace(one, rounds=tuple(numbered))

    crews, apart = [], rng.random() < 0.7
    for crew in schedule.crews[: rng.choice((2, 2, 3)) if apart else None]:
        cache = rng.choice((0.0, *CACHES, *CACHES))
        way = "tracking" if rng.random() < 0.8 else crew.wakeup
        several = crew.workers[: rng.choice((1, 1, 2))] if apart else crew.workers
        workers = tuple(worker(one, crew, cache) for one in several)
        crews.append(replace(crew, workers=workers, wakeup=way))
    return replace(schedule, crews=tuple(crews))


@contextmanager
def eager(schedule: Schedule) -> Iterator[None]:
    """In two of three, a name is kept again right after a recall; in as many, blocks have few numbers."""
    before = tenure._PAUSE, tenure._NUMBERS
    rng = random.Random(f"eager/{schedule.seed}")
    if schedule.kind.cached:
        tenure._PAUSE = rng.choice((before[0], 0.0, 0.0))  # type: ignore[misc]
        tenure._NUMBERS = rng.choice((before[1], 4, 64))  # type: ignore[misc]
    try:
        yield
    finally:
        tenure._PAUSE, tenure._NUMBERS = before  # type: ignore[misc]


class Answers:
    """The single tries of a schedule without faults, and who was in their way.

    Args:
        referee: Is told of a try that was refused although nobody used the name.
        trip: Seconds that the longest round trip takes.
    """

    def __init__(self, referee: Referee, trip: float) -> None:
        self._referee = referee
        self._trip = trip

    def judge(self, attempts: list[Attempt]) -> None:
        """No try is refused for a lease that nobody uses.

        A name counts as used from when a task asks for it, to some round trips after that task has it no
        more: so long a request of it may be under way.
        """
        for one in attempts:
            if not one.single or one.hold is not None or not one.refused:
                continue
            others = [other for other in attempts if other is not one and self._in_the_way(other, one)]
            if not others:
                self._referee.wrong(f"{one.who} was refused, and nobody used it")

    def _in_the_way(self, other: Attempt, one: Attempt) -> bool:
        if set(other.want.names).isdisjoint(one.want.names):
            return False
        end = other.ended if other.hold is None else other.hold.confirmed
        return other.invoked <= one.ended and end + 6 * self._trip + 0.05 >= one.invoked
