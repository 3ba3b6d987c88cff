"""From a schedule that fails to a small one that fails in the same way."""

from __future__ import annotations

import re
from collections.abc import Callable

from .run import Outcome, Runner
from .schedule import Schedule

_DETAIL = re.compile(r"p\d+(\.w\d+)?(\.r\d+)?\+?|[0-9]+(\.[0-9]+)?|\b[0-9a-f]{16,}\b")


def sort_of(violation: str) -> str:
    """The kind of failure, without times and names."""
    return _DETAIL.sub("…", violation)


def shrink(runner: Runner, outcome: Outcome, *, tries: int = 400) -> Outcome:
    """Leaves out processes, faults, workers and rounds for as long as what failed first still fails."""
    wanted = sort_of(outcome.violations[0])

    def fails(schedule: Schedule) -> Outcome | None:
        again = runner.run(schedule)
        return again if any(sort_of(violation) == wanted for violation in again.violations) else None

    return _smaller(fails, outcome, tries)


def _smaller(fails: Callable[[Schedule], Outcome | None], outcome: Outcome, tries: int) -> Outcome:
    best, last = outcome, None
    while last is not best and tries > 0:
        last = best
        for part in list(best.schedule.parts()):
            if part not in best.schedule.parts() or tries <= 0:
                continue  # it went with something larger
            tries -= 1
            if (smaller := fails(best.schedule.leaving_out((part,)))) is not None:
                best = smaller
    return best


def command(schedule: Schedule) -> str:
    """The line that runs it again."""
    parts = f" --without {','.join(schedule.without)}" if schedule.without else ""
    faulty = " --faults" if schedule.faulty else ""
    sorts = f" --sorts '{','.join(schedule.sorts)}'" if schedule.sorts else ""
    return f"python -m tests.simulation.world {schedule.kind} {schedule.seed}{faulty}{sorts}{parts}"
