"""What Redlock promises, searched for a counter-example; and those that are known, found when it is broken.

Each schedule has a seed, which a failure names: `World(seed, rules).run()` is that schedule again.

Some thousands of schedules run by default; `pytest -m soak tests/simulation` runs at least 100 000 of each
sort (``AIOLOCKS_SIMULATED_SCHEDULES`` for another number).
"""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from tests.simulation.broken import HalfIsEnough, OfThoseThatAnswer, ToEverybody, WithoutWritingBack
from tests.simulation.histories import Holding, falling_token, tokens_out_of_order, two_holders
from tests.simulation.masters import Rules
from tests.simulation.quorum import World

FEW = 2_000
MANY = int(os.environ.get("AIOLOCKS_SIMULATED_SCHEDULES", "100000"))

Wrong = Callable[[list[Holding]], bool]

PROMISED = {
    "clocks that differ, delays, losses": Rules(skew=1000.0),
    "late votes": Rules(skew=1000.0, hasty=True),
    "restarts that keep the data": Rules(skew=1000.0, restarts="kept"),
    "empty restarts after a ttl, clocks alike": Rules(restarts="late"),
}
"""One holder, and tokens that rise in the order in which the leases were had."""

FENCED = {
    "empty restarts at once, clocks alike": Rules(restarts="empty"),
    "clocks that jump": Rules(jumps=150.0),
    "clocks that differ and jump": Rules(skew=1000.0, jumps=150.0),
}
"""Two holders may be, but who asks after another one had it has the larger token."""


def search(rules: Rules, wrong: Wrong, schedules: int, *, first: int = 0) -> int | None:
    """The first seed whose schedule is wrong, or None."""
    leases = 0
    for seed in range(first, first + schedules):
        holdings = World(seed, rules).run()
        leases += len(holdings)
        if wrong(holdings):
            return seed
    assert leases > schedules / 4  # something has happened in them
    return None


def broken_promise(holdings: list[Holding]) -> bool:
    return two_holders(holdings) or tokens_out_of_order(holdings)


def test_a_seed_says_it_all() -> None:
    for seed in range(20):
        assert World(seed, Rules(skew=1000.0)).run() == World(seed, Rules(skew=1000.0)).run()
    assert World(1, Rules()).run() != World(2, Rules()).run()


@pytest.mark.parametrize("rules", PROMISED.values(), ids=PROMISED)
def test_one_holder_and_rising_tokens(rules) -> None:
    assert search(rules, broken_promise, FEW) is None


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("rules", PROMISED.values(), ids=PROMISED)
def test_one_holder_and_rising_tokens_in_many_schedules(rules) -> None:
    assert search(rules, broken_promise, MANY, first=FEW) is None


@pytest.mark.parametrize("rules", FENCED.values(), ids=FENCED)
def test_t_rl_5_where_two_may_hold_it_the_later_has_the_larger_token(rules) -> None:
    """What the protocol cannot promise is shown, not hidden: a schedule with two holders is there."""
    assert search(rules, falling_token, FEW) is None
    assert search(rules, two_holders, FEW) is not None


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("rules", FENCED.values(), ids=FENCED)
def test_t_rl_6_the_later_has_the_larger_token_in_many_schedules(rules) -> None:
    assert search(rules, falling_token, MANY, first=FEW) is None


def test_a_fence_that_was_forgotten_begins_at_its_masters_clock() -> None:
    """Where that stands behind, the token falls: so much for what a restart without data can cost."""
    assert search(Rules(skew=1000.0, restarts="late"), falling_token, 10 * FEW) is not None


# -- broken on purpose


def test_t_rl_9_without_writing_back_the_token_falls() -> None:
    schedules = 300
    fell = sum(
        falling_token(World(seed, Rules(skew=1000.0, acquiring=WithoutWritingBack)).run())
        for seed in range(schedules)
    )
    assert fell > schedules / 10  # no rare event


@pytest.mark.parametrize("acquiring", [HalfIsEnough, OfThoseThatAnswer])
def test_without_a_majority_of_all_masters_two_hold_it(acquiring) -> None:
    rules = Rules(skew=1000.0, restarts="kept", acquiring=acquiring)
    assert search(rules, two_holders, FEW) is not None


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_written_back_whatever_is_carried_the_token_falls() -> None:
    rules = Rules(skew=1000.0, hasty=True, acquiring=ToEverybody, unconditional=True)
    assert search(rules, tokens_out_of_order, MANY) is not None


def test_written_back_whatever_is_carried_the_token_falls_in_this_schedule() -> None:
    """A rare one, which the search has found."""
    rules = Rules(skew=1000.0, hasty=True, acquiring=ToEverybody, unconditional=True)
    assert tokens_out_of_order(World(UNLUCKY, rules).run())
    assert not tokens_out_of_order(World(UNLUCKY, Rules(skew=1000.0, hasty=True)).run())


UNLUCKY = 2579
