"""Finding deadlocks over several processes.

A task that waits is of no interest for as long as its wait is short, or as it holds nothing. Only after
`PATIENCE` its session publishes what it wants and holds (`detector`), and reads what all sessions have
published. If these waits could make a ring, it looks at the locks of that ring on the server, as
`Session.inspect` does. An operator who asks (`Session.deadlocks`) reads the same records.

The records are not of one moment. So a deadlock counts when it was found twice with the same waits, each of
which its session has confirmed in between (`beat`): a task that waits does not enter anything, so that what
was there both times was there all the time, and at one moment everything of it was. A writer that holds
nothing publishes nothing, and may be part of a ring by its place: it is confirmed when the deadline of
its place has moved, as it does each time that its session says that it still waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, final

from .._deadlocks import Deadlock, DeadlockedTask
from .._infos import KindAndName
from ..lock.engine import Engine
from ..transport import Request
from ..transport.steps.snapshots import Snapshot
from ..transport.steps.waits import publish
from .knots import Occupants, in_order, knots, may_wait_for, stuck
from .looking import pages
from .waits import Wait, waits_in

PATIENCE: Final = 0.4
"""Seconds after which a wait is published."""
EVERY: Final = 0.6
"""Seconds between two requests of a session; records last three times as long."""

Beats = Mapping[str | bytes, int]
"""Heartbeats of waits, by id, and deadlines of places, by bell: they rise while the waiter lives."""


@final
class Look:
    """The result of one look: the deadlocks as things stood then.

    Args:
        waits: The waits that could be part of a deadlock.
        occupants: The holders and waiters of what they wait for.
    """

    __slots__ = ("_edges", "_occupants", "knots", "waits")

    def __init__(self, waits: Mapping[str, Wait], occupants: Mapping[KindAndName, Occupants]) -> None:
        self.waits = waits
        self._occupants = occupants
        self._edges = stuck(waits, occupants)
        self.knots = knots(self._edges)

    def since(self, before: Beats, told: Collection[str] = ()) -> Beats:
        """The beats with which all that may be part of a deadlock was found first; empty where there is none.

        Args:
            before: The beats of the look before.
            told: Waits whose deadlock does not count, since it is known.
        """
        beats: dict[str | bytes, int] = {
            one: self.waits[one].beat for knot in self.knots for one in knot if one not in told
        }
        if beats:
            for occupants in self._occupants.values():
                beats |= {one.bell: one.until_ms for one in occupants.places}
        return {one: min(beat, before.get(one, beat)) for one, beat in beats.items()}

    def confirmed(self, before: Beats) -> Look:
        """The same, of the waiters alone that were there before, and have said since that they still wait."""

        def counts(one: str | bytes, beat: int) -> bool:
            return beat > before.get(one, _NEVER)

        waits = {one: wait for one, wait in self.waits.items() if counts(one, wait.beat)}
        occupants = {place: there.of_waiters(counts) for place, there in self._occupants.items()}
        return Look(waits, occupants)

    def in_order(self, knot: frozenset[str]) -> list[str]:
        """Each waits for the next one; the youngest waiter comes first."""
        return in_order(knot, self._edges, self.youngest(knot))

    def described(self, knot: frozenset[str]) -> Deadlock:
        """The deadlock as users see it."""
        return Deadlock(tasks=tuple(_task(self.waits[one]) for one in self.in_order(knot)))

    def youngest(self, knot: Iterable[str]) -> str:
        """The one that began to wait last."""
        return max(knot, key=lambda one: (self.waits[one].since_us, one))


_NEVER: Final = 1 << 60


def _task(wait: Wait) -> DeadlockedTask:
    return DeadlockedTask(
        host=wait.host,
        pid=wait.pid,
        task=wait.task,
        kind=wait.kind,
        name=wait.name,
        waited_for=wait.waited,
        holds=tuple(dict.fromkeys((lease.kind, lease.name) for lease in wait.holds)),
    )


def suspects_in(waits: Mapping[str, Wait], own: Iterable[str] | None = None) -> dict[str, Wait]:
    """The waits that could be part of a deadlock, by their own records; with `own`, only these."""
    mine = None if own is None else frozenset(own)
    rings = (knot for knot in knots(may_wait_for(waits)) if mine is None or knot & mine)
    return {one: waits[one] for knot in rings for one in sorted(knot)}


def looks_at(
    engine: Engine, waits: Mapping[str, Wait]
) -> list[tuple[str, list[str], Request[list[Snapshot]]]]:
    """The requests that read what these wait for."""
    places = dict.fromkeys(place for wait in waits.values() for place in wait.want.places)
    return pages(engine, places, waiters=0)


def occupants_in(
    kind: str, names: Sequence[str], snapshots: Sequence[Snapshot]
) -> dict[KindAndName, Occupants]:
    return {(kind, name): Occupants.of(snapshot) for name, snapshot in zip(names, snapshots, strict=True)}


async def deadlocks(engine: Engine) -> list[Deadlock]:
    """See `Session.deadlocks`."""
    before, deadlocks = (await _look(engine)).since({}), dict[frozenset[str], Deadlock]()
    until = engine.now() + 2 * EVERY + PATIENCE
    while before and engine.now() < until:
        await asyncio.sleep(EVERY / 2)
        found = await _look(engine)
        confirmed = found.confirmed(before)
        deadlocks |= {knot: confirmed.described(knot) for knot in confirmed.knots}
        before = found.since(before, frozenset[str]().union(*deadlocks))
    return [one for knot, one in deadlocks.items() if not any(knot < other for other in deadlocks)]


async def _look(engine: Engine) -> Look:
    records = await engine.ask(publish(engine.settings.prefix, ""))
    suspects = suspects_in(waits_in(records))
    occupants: dict[KindAndName, Occupants] = {}
    for kind, names, command in looks_at(engine, suspects):
        snapshots = await engine.ask(command)
        occupants |= occupants_in(kind, names, snapshots)
    return Look(suspects, occupants)
