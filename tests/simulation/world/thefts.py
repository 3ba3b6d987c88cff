"""Locks that are taken by force: which tasks do so, and what their victims must know, and when."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from aiolocks import FairLock, Leadership, ReentrantLock
from aiolocks.lock.stealing import holder_told

from . import known

if TYPE_CHECKING:
    from .checkers import Attempt
    from .node import Node
    from .run import Run
    from .schedule import Round, Schedule

OFTEN: Final = 0.3
"""The share of rounds that take the lock by force."""
VARIANTS: Final[tuple[dict[str, Any], ...]] = (
    {},
    {"lock": lambda session, want, **how: FairLock(session, want.names[0], **how), "strict": True},
    {"lock": lambda session, want, **how: ReentrantLock(session, want.names[0], **how), "nests": True},
    {"lock": lambda session, want, **how: Leadership(session, want.names[0], **how), "strict": True},
)
"""The kinds that can be stolen; the first is a simple lock."""
_MARK: Final = b".stolen:"


def with_thefts(schedule: Schedule) -> Schedule:
    """The schedule with a kind that can be stolen, and some rounds that do so.

    Drawn by itself, so that it changes nothing that is drawn for other kinds.
    """
    rng = random.Random(f"steal/{schedule.seed}/{schedule.faulty}")
    kind = replace(schedule.kind, **rng.choice(VARIANTS))

    def drawn(one: Round) -> Round:
        doing = "nest" if kind.nests and one.doing == "detach" else one.doing
        steal = rng.random() < OFTEN
        return replace(one, doing=doing, steal=steal, timeout=None if steal else one.timeout)

    crews = tuple(
        replace(
            crew,
            workers=tuple(
                replace(worker, rounds=tuple(map(drawn, worker.rounds))) for worker in crew.workers
            ),
        )
        for crew in schedule.crews
    )
    return replace(schedule, kind=kind, crews=crews)


class Theft(NamedTuple):
    """One lease that was taken from its holder, as the server has noted it.

    Attributes:
        victim: Its token, or that of its owner, who has several.
        fencing_token: Of the lease that has taken its place.
        thief: The task that has that lease.
        until: When the holder must know.
    """

    victim: str
    fencing_token: int
    thief: str
    until: float


class Thefts:
    """Those of one schedule."""

    def __init__(self) -> None:
        self._all: dict[tuple[bytes, bytes], Theft] = {}

    def look(self, run: Run, node: Node) -> None:
        """A server has executed a request, which may have been one."""
        for store in node.server.stores.values():
            for key, marks in store.values.items():
                if _MARK in key and isinstance(marks, dict):
                    for mark in marks.items():
                        if mark not in self._all:
                            self._add(run, mark)

    def _add(self, run: Run, mark: tuple[bytes, bytes]) -> None:
        thief = holder_told(mark[1])
        assert thief is not None
        assert thief.fencing_token is not None
        until = run.world.now + run.noticed_within()
        theft = Theft(mark[0].decode(), thief.fencing_token, thief.task or "", until)
        self._all[mark] = theft
        run.referee.tell(theft.thief, f"takes it by force from {theft.victim}")
        run.world.clockwork.at(until, run.referee.exclude)
        known.expect_theft(run, theft)

    def of(self, attempt: Attempt) -> Theft | None:
        """The theft by which it was lost, if it was: also if its holder does not know yet."""
        if attempt.hold is None:
            return None
        minted = attempt.hold.fencing_token or 0
        stolen = (
            theft
            for theft in self._all.values()
            if attempt.token.startswith(theft.victim) and minted < theft.fencing_token
        )
        return next(stolen, None)

    def befell(self, attempt: Attempt) -> bool:
        """Whether it was taken from that task before; a task whose answer was lost then waits again."""
        return any(attempt.token.startswith(theft.victim) for theft in self._all.values())

    def excuses(self, attempt: Attempt, now: float) -> bool:
        """Whether its holder need not know yet that it was stolen."""
        theft = self.of(attempt)
        return theft is not None and now < theft.until
