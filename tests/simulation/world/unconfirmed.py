"""Blocks whose ends do not wait for the answer to the release: their schedules, and what must be true of
them."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from aiolocks import Lock, MultiLock, ReentrantLock, Session

if TYPE_CHECKING:
    from .checkers import Attempt, Referee
    from .schedule import Round, Schedule, Worker
    from .wants import Want


def exclusive(session: Session, want: Want, **options: Any) -> Any:
    """The lock of that want: the simple one, or one of those that exclude it."""
    if want.by == "multilock":
        return MultiLock(session, [want.names[0]], **options)
    if want.by == "reentrant":
        return ReentrantLock(session, want.names[0], **options)
    return Lock(session, want.names[0], **options)


def with_uses(rng: random.Random, schedule: Schedule) -> Schedule:
    """The schedule, where most blocks do not wait at their end, and most tasks take their name again at once.

    Some of these ask a single time: nothing but the release of their own session may be in the way.
    """
    exclusive = schedule.kind.name.endswith("unconfirmed")

    def worker(one: Worker) -> Worker:
        rounds: list[Round] = []
        for use in one.rounds:
            by = rng.choice(("reentrant", "multilock")) if exclusive and rng.random() < 0.15 else ""
            first = replace(use, want=replace(use.want, by=by, confirm=rng.random() < 0.2))
            if by:  # a task of it may nest: no such wish here
                first = replace(first, doing="")
            again = [
                replace(
                    first,
                    after=rng.choice((0.0, 0.0, 0.0, rng.uniform(0, 0.02), use.after)),
                    hold=rng.choice((0.0, 0.0, rng.uniform(0, 0.05), use.hold)),
                    doing="" if rng.random() < 0.9 else first.doing,
                    cancel=use.cancel if rng.random() < 0.4 else None,
                    timeout=0.0 if rng.random() < 0.25 else use.timeout,
                    want=replace(first.want, confirm=rng.random() < 0.2),
                )
                for _ in range(rng.choice((0, 1, 3, 6)))
            ]
            rounds += [first, *again]
        numbered = (replace(use, part=f"{one.part}.r{number}") for number, use in enumerate(rounds))
        return replace(one, rounds=tuple(numbered))

    crews = [replace(crew, workers=tuple(map(worker, crew.workers))) for crew in schedule.crews]
    return replace(schedule, crews=tuple(crews))


class OwnReleases:
    """The single tries of a schedule without faults: none is refused for what its own session has let go of.

    Args:
        referee: Is told of a try that was refused although nothing else was in the way.
        trip: Seconds that the longest round trip takes.
    """

    def __init__(self, referee: Referee, trip: float) -> None:
        self._referee = referee
        self._trip = trip

    def judge(self, attempts: list[Attempt]) -> None:
        for one in attempts:
            if not one.single or one.hold is not None or not one.refused:
                continue
            if not any(self._in_the_way(other, one) for other in attempts if other is not one):
                self._referee.wrong(f"{one.who} was refused for a release of its own session")

    def _in_the_way(self, other: Attempt, one: Attempt) -> bool:
        if other.session == one.session and other.written:
            assert other.hold is not None
            end = other.hold.released
        else:  # requests of it may be under way for longer
            end = (other.ended if other.hold is None else other.hold.confirmed) + 6 * self._trip + 0.05
        return other.invoked <= one.ended and end >= one.invoked
