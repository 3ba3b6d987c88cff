"""The promises of Redlock, over the real transport in the simulated world; and the failures that are found
when it is broken.

`test_world.py` runs schedules with all faults. Here each row of the promises has schedules of its own, with
the faults of that row; a schedule that fails is printed as a line that runs it again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from itertools import count, islice

import pytest

from tests.simulation.found_in_redlock import ASKS_ONCE, BROKEN
from tests.simulation.safeguards import SAFEGUARDS
from tests.simulation.world.node import ServerClock
from tests.simulation.world.run import Outcome, Runner
from tests.simulation.world.schedule import APART, Schedule, drawn
from tests.simulation.world.shrink import command

FEW, MANY = 4, 5_000

PROMISED = {
    "clocks that differ, delays, losses": ("black hole", "cut", "half cut", "half open"),
    "masters that hang": ("freeze of the server",),
    "restarts that keep the data": ("restart",),
    "empty restarts after a ttl, clocks alike": ("late restart",),
}
"""One holder, and tokens that rise in the order in which the leases were had."""

FENCED = {
    "empty restarts at once, clocks alike": ("empty restart", "flush"),
    "clocks that differ and jump": ("clock ahead", "clock back"),
}
"""Two holders may be, but a task that asks after another one had it has the larger token."""

BEGIN = {"empty restarts at once, clocks alike": 0, "clocks that differ and jump": 100}
"""From which schedule on one with two holders is soon there, where two may hold it."""

SEARCHED = 300
"""Schedules in which one is."""


@pytest.fixture(scope="module")
def runner() -> Iterator[Runner]:
    with Runner() as runner:
        yield runner


def struck(sorts: tuple[str, ...], first: int) -> Iterator[Schedule]:
    """Schedules with faults of these sorts."""
    return (drawn("redlock", seed, faulty=True, sorts=sorts) for seed in count(first))


def hasty(first: int) -> Iterator[Schedule]:
    """Schedules in which votes come late."""
    return (one for seed in count(first) if (one := drawn("redlock", seed)).hasty)


def all_go_well(runner: Runner, schedules: Iterable[Schedule], *, overlaps: bool = False) -> None:
    for schedule in schedules:
        outcome = runner.run(schedule)
        assert outcome.violations == (), command(schedule)
        assert overlaps or outcome.overlaps == (), command(schedule)


def first(runner: Runner, schedules: Iterable[Schedule]) -> Outcome | None:
    """The first in which two held it."""
    return next((outcome for one in schedules if (outcome := runner.run(one)).overlaps), None)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("sorts", PROMISED.values(), ids=PROMISED)
def test_one_holder_and_rising_tokens(runner: Runner, sorts: tuple[str, ...]) -> None:
    all_go_well(runner, islice(struck(sorts, 0), FEW))


@pytest.mark.timeout(300)
def test_one_holder_and_rising_tokens_with_late_votes(runner: Runner) -> None:
    all_go_well(runner, islice(hasty(0), FEW))


@pytest.mark.timeout(300)
@pytest.mark.parametrize("fenced", FENCED)
def test_t_rl_5_where_two_may_hold_it_the_later_has_the_larger_token(runner: Runner, fenced: str) -> None:
    """The limits of the protocol are shown, not hidden: a schedule with two holders is there.

    A store that compares the tokens stays right all the same, T-RL-6.
    """
    sorts, begin = FENCED[fenced], BEGIN[fenced]
    all_go_well(runner, islice(struck(sorts, 0), FEW), overlaps=True)
    assert first(runner, islice(struck(sorts, begin), SEARCHED)) is not None


@pytest.mark.soak
@pytest.mark.timeout(0)
@pytest.mark.parametrize("sorts", [*PROMISED.values(), ()], ids=[*PROMISED, "late votes"])
def test_one_holder_and_rising_tokens_in_many_schedules(runner: Runner, sorts: tuple[str, ...]) -> None:
    all_go_well(runner, islice(struck(sorts, FEW) if sorts else hasty(10 * FEW), MANY))


@pytest.mark.soak
@pytest.mark.timeout(0)
@pytest.mark.parametrize("sorts", FENCED.values(), ids=FENCED)
def test_t_rl_6_the_later_has_the_larger_token_in_many_schedules(
    runner: Runner, sorts: tuple[str, ...]
) -> None:
    all_go_well(runner, islice(struck(sorts, FEW), MANY), overlaps=True)


@pytest.mark.timeout(300)
def test_a_fence_that_was_forgotten_begins_at_its_masters_clock(runner: Runner) -> None:
    """Where that stands behind, the token falls: so much for what a restart without data can cost."""
    behind = tuple(ServerClock(ahead) for ahead in (APART, APART / 2, 0.0, APART / 4, APART / 8))
    schedules = islice(struck(("flush",), 0), SEARCHED)
    apart = (replace(one, clocks=behind[: len(one.kind.hosts)]) for one in schedules)
    found = (violation for one in apart for violation in runner.run(one).violations)
    assert any("fencing token" in violation for violation in found)


def test_a_waiter_does_not_hear_its_own_vote(runner: Runner) -> None:
    """On a master that is free while the others are not: it would ask again at once, without end."""
    outcome = runner.run(ASKS_ONCE)
    assert outcome.violations == ()
    assert outcome.trace.text().count("lock_acquire(") < 60


# -- broken on purpose


@pytest.mark.parametrize("name", BROKEN)
def test_t_rl_9_without_its_safeguard_the_promise_is_broken(runner: Runner, name: str) -> None:
    schedule, how = BROKEN[name]
    for broken in (False, True):
        with SAFEGUARDS[name].taken_out() if broken else nullcontext():
            violations = runner.run(schedule).violations
        assert any(how in violation for violation in violations) is broken, violations
