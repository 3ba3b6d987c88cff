"""When a holder must know that its lease was lost: after a push and one question."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from functools import partial
from typing import TYPE_CHECKING

from .schedule import Crew

if TYPE_CHECKING:
    from .checkers import Attempt
    from .node import Node
    from .run import Run
    from .thefts import Theft

ARMED_AFTER = 0.06
"""Seconds after its grant for which a lease is held without the server having to tell of its loss."""
TURNS = 12
"""Turns of the loop in which a lease is armed, or its loss told to its body, at most."""
LOSSES = {"deletion": ("tracking", "keyspace"), "flush": ("tracking",)}
"""Faults by which leases are lost on a server that goes on, and the wakeups that tell of them."""


def expect(run: Run, node: Node, what: str) -> None:
    """Each holder that the server tells of this loss, which befalls it now, is to know it in time.

    Of the kinds whose keys nobody but the holder changes: another change takes the place of the news.
    """
    for crew, attempt in _told(run, LOSSES[what]):
        if node.server.has(attempt.lease.token):
            _is_to_know(run, crew, attempt)


def expect_theft(run: Run, theft: Theft) -> None:
    """The same of a holder from which another session has taken it by force."""
    for crew, attempt in _told(run, LOSSES["deletion"]):
        if attempt.token.startswith(theft.victim) and crew.part != theft.thief.partition(".")[0]:
            _is_to_know(run, crew, attempt)


def _told(run: Run, wakeups: Collection[str]) -> Iterator[tuple[Crew, Attempt]]:
    """The holders of which the server knows that it is to tell them of each change."""
    schedule, now = run.schedule, run.world.now
    kind = schedule.kind
    shared = kind.capacity > 1 or kind.limited or kind.nests or kind.spans
    simple = kind.topology == "one" and not (kind.work or shared)
    if not simple or any(fault.what not in LOSSES for fault in schedule.faults):
        return
    for crew in schedule.crews:
        if crew.wakeup not in wakeups:
            continue
        turns = TURNS * crew.busy
        for attempt in tuple(run.referee.holding):
            lease = attempt.lease
            if attempt.session != crew.part or lease is None or attempt.hold is None:
                continue
            armed = attempt.hold.granted + ARMED_AFTER + 2 * crew.delays.longest + turns
            if armed < now and lease.token == attempt.token:
                yield crew, attempt


def _is_to_know(run: Run, crew: Crew, attempt: Attempt) -> None:
    run.referee.told_of.setdefault(attempt, (run.world.now, crew))
    run.world.clockwork.after(_within(crew), partial(_look, run, attempt, attempt.lease, run.world.now))


def _within(crew: Crew) -> float:
    return 3 * crew.delays.longest + TURNS * crew.busy + 0.001


def _look(run: Run, attempt: Attempt, lease: object, since: float) -> None:
    if attempt.lease is lease and attempt.relied_on:
        late = run.world.now - since
        run.referee.wrong(f"{attempt.who} relies on what was lost {late:.3f} s ago, and was told of")
