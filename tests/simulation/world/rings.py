"""Tasks that take several locks, some of them in any order: who waits for whom for ever.

The reports of sessions about deadlocks are held against that: each is ended in time, and none is named that
is none.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from aiolocks import DeadlockError, FairLock, Lock, LockEvent, MultiLock, RWLock, Semaphore, Session

from .checkers import Referee
from .schedule import Round

NAMED_WITHIN: Final = 2.0
"""Seconds, beside what messages take."""
LATE: Final = 4.0
"""Seconds for which a deadlock may have been over when it is told of, beside what messages take."""
PERMITS: Final = 2
LEAST: Final = 0.05
"""Seconds between one lock and the next."""


class One(NamedTuple):
    """Something that a task takes."""

    kind: str
    names: tuple[str, ...]

    def lock(self, session: Session, ttl: float) -> Any:
        match self.kind:
            case "lock":
                return Lock(session, *self.names, ttl=ttl)
            case "fairlock":
                return FairLock(session, *self.names, ttl=ttl)
            case "semaphore":
                return Semaphore(session, *self.names, PERMITS, ttl=ttl)
            case "multilock":
                return MultiLock(session, list(self.names), ttl=ttl)
            case mode:
                return getattr(RWLock(session, *self.names, ttl=ttl), mode)

    @property
    def places(self) -> set[tuple[str, str]]:
        space = {"multilock": "lock", "reader": "rwlock", "writer": "rwlock"}.get(self.kind, self.kind)
        return {(space, name) for name in self.names}


POOL: Final = (
    *(One("lock", (name,)) for name in "ab"),
    One("fairlock", ("f",)),
    One("semaphore", ("s",)),
    One("reader", ("r",)),
    One("writer", ("r",)),
    One("multilock", ("b", "c")),
)


@dataclass
class Doing:
    """The holds and the wait of a task now."""

    holds: list[One] = field(default_factory=list)
    wants: One | None = None


def kept_out(wanted: One, holding: Iterable[tuple[str, One]], waiting: Iterable[tuple[str, One]]) -> set[str]:
    """The tasks because of which it cannot be had, while these hold and wait; empty if it can."""
    there = [(who, held) for who, held in holding if held.places & wanted.places]
    match wanted.kind:
        case "semaphore":
            return {who for who, _ in there} if len(there) >= PERMITS else set()
        case "reader":
            writers = {who for who, held in there if held.kind == "writer"}
            ahead = {who for who, one in waiting if one.kind == "writer" and one.places & wanted.places}
            return writers | ahead
        case _:
            return {who for who, _ in there}


class Rings:
    """All tasks of a schedule.

    Args:
        travel: Seconds in which a request of the slowest process was executed.
    """

    def __init__(self, referee: Referee, rng: random.Random, *, travel: float) -> None:
        self._referee = referee
        self._travel = travel
        self._ordered = rng.random() < 0.25  # then there is no deadlock
        self._pool = sorted(rng.sample(POOL, rng.choice((3, 4, 5))))
        self._tasks: dict[str, Doing] = {}
        self._stuck: list[tuple[float, frozenset[str]]] = [(0.0, frozenset())]  # since when
        self._knots: dict[frozenset[str], float] = {}
        self.named = 0

    # -- what the tasks do

    async def entangle(self, session: Session, one: Round, ttl: float) -> None:
        """Takes some of the pool, each while it holds those before."""
        rng = random.Random(f"{one.part} {one.hold}")
        wanted = rng.sample(self._pool, min(len(self._pool), rng.choice((2, 2, 3))))
        if self._ordered:
            wanted.sort()
        wanted = [
            each
            for at, each in enumerate(wanted)
            if not any(each.places & other.places for other in wanted[:at])
        ]
        doing = self._tasks[one.part] = Doing()
        try:
            await self._take(session, one, ttl, wanted, doing)
        except DeadlockError as error:
            self._told({task.task or "" for task in error.deadlock.tasks} if error.deadlock else {one.part})
            self._referee.tell(one.part, "gives way")
        finally:
            self._tasks.pop(one.part, None)
            self._changed()

    async def _take(self, session: Session, one: Round, ttl: float, wanted: list[One], doing: Doing) -> None:
        if not wanted:
            await asyncio.sleep(one.hold)
            return
        first, *others = wanted
        doing.wants = first
        self._changed()
        try:
            pending = first.lock(session, ttl).acquire(blocking_timeout=one.timeout)
            async with pending:
                doing.wants = None
                doing.holds.append(first)
                self._changed()
                try:
                    await asyncio.sleep(max(LEAST, one.hold / 3))
                    await self._take(session, one, ttl, others, doing)
                finally:
                    doing.holds.remove(first)
                    doing.wants = None
                    self._changed()
        finally:
            doing.wants = None
            self._changed()

    def died(self, process: str) -> None:
        """Its tasks neither wait nor go on."""
        self._tasks = {who: doing for who, doing in self._tasks.items() if who.partition(".")[0] != process}
        self._changed()

    # -- what is so

    def _changed(self) -> None:
        """Which tasks wait for ever now, if nobody gives up."""
        now = self._referee.now
        left = {who: doing for who, doing in self._tasks.items() if doing.wants is not None}
        edges: dict[str, set[str]] = {}
        while True:
            holding = [(who, held) for who, doing in left.items() for held in doing.holds]
            edges = {
                who: out - {who}
                for who, doing in left.items()
                if doing.wants is not None
                and (
                    out := kept_out(
                        doing.wants,
                        holding,
                        [(other, each.wants) for other, each in left.items() if each.wants],
                    )
                )
            }
            if len(edges) == len(left):
                break
            left = {who: doing for who, doing in left.items() if who in edges}
        if (stuck := frozenset(edges)) != self._stuck[-1][1]:
            self._stuck.append((now, stuck))
        knots = _knots(edges)
        self._knots = {knot: self._knots.get(knot, now) for knot in knots}
        for knot, since in self._knots.items():
            if since == now:
                self._referee.later(now + NAMED_WITHIN + self._travel, self._be_named, knot, now)

    def _be_named(self, knot: frozenset[str], since: float) -> None:
        if self._knots.get(knot) == since and not self._referee.excuses.any:
            self._referee.wrong(f"a deadlock is not ended: of {', '.join(sorted(knot))}")

    # -- what is said

    def on_deadlock(self, event: LockEvent) -> None:
        """A session has found one."""
        self.named += 1
        self._told(set(re.findall(r"task '(\S+)' holds", event.reason)))

    def _told(self, tasks: set[str]) -> None:
        since = self._referee.now - LATE - self._travel
        ends = [at for at, _ in self._stuck[1:]] + [self._referee.now]
        if not any(tasks <= stuck for end, (_, stuck) in zip(ends, self._stuck, strict=True) if end >= since):
            self._referee.wrong(f"told of a deadlock that there was not: of {', '.join(sorted(tasks))}")


def _knots(edges: dict[str, set[str]]) -> list[frozenset[str]]:
    """Tasks each of which waits for all others."""
    reach: dict[str, set[str]] = {}
    for one in edges:
        seen, ahead = set[str](), [one]
        while ahead:
            for other in edges.get(ahead.pop(), set()) - seen:
                seen.add(other)
                ahead.append(other)
        reach[one] = seen
    found = {frozenset(other for other in reach[one] if one in reach.get(other, ())) for one in edges}
    return sorted((knot for knot in found if knot), key=sorted)
