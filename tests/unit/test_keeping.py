"""The times for which values are kept, and how far ahead of their end they are replaced."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from typing import Any

import pytest

from aiolocks.kinds.singleflight import Keeping
from aiolocks.lock.acquirable import AS_CONFIGURED


@pytest.fixture(autouse=True)
def seeded() -> Iterator[None]:
    state = random.getstate()
    random.seed(17)
    yield
    random.setstate(state)


def but(keeping: Keeping, **changes: Any) -> Keeping:
    return keeping.but(**dict.fromkeys(("keep", "stale", "early", "jitter"), AS_CONFIGURED) | changes)


def test_a_call_changes_what_it_names() -> None:
    keeping = Keeping(keep=60.0, stale=30.0, early=1.0, jitter=0.5)
    assert but(keeping) is keeping
    assert but(keeping, keep=10) == Keeping(keep=10.0, stale=30.0, early=1.0, jitter=0.5)
    assert but(keeping, stale=0, early=0, jitter=0) == Keeping(keep=60.0)
    assert but(keeping, keep=0) == Keeping()


def test_nothing_is_stale_that_was_not_kept() -> None:
    with pytest.raises(ValueError, match="stale=5 is of no use without keep="):
        but(Keeping(keep=60.0), keep=0, stale=5)


def test_jitter_is_the_share_that_is_random() -> None:
    drawn = [Keeping(keep=100.0, jitter=0.25).fresh_ms() for _ in range(2000)]
    assert min(drawn) >= 75_000
    assert max(drawn) <= 100_000
    assert sum(drawn) / len(drawn) == pytest.approx(87_500, rel=0.01)
    assert {Keeping(keep=0.1 + 0.2).fresh_ms() for _ in range(10)} == {300}
    assert Keeping().fresh_ms() == 0


@pytest.mark.parametrize("early", [0.5, 1.0, 3.0])
def test_how_far_ahead_is_drawn_by_an_exponential_law(early: float) -> None:
    """XFetch: a value is replaced x times its cost ahead with a probability of exp(-x / early)."""
    drawn = [Keeping(keep=1.0, early=early).ahead() for _ in range(20_000)]
    assert min(drawn) >= 0
    assert sum(drawn) / len(drawn) == pytest.approx(early, rel=0.03)
    for ahead in (0.5, 1.0, 2.0):
        share = sum(one > ahead for one in drawn) / len(drawn)
        assert share == pytest.approx(math.exp(-ahead / early), abs=0.015)


def test_without_early_nothing_is_made_anew_ahead_of_its_end() -> None:
    assert {Keeping(keep=1.0).ahead() for _ in range(100)} == {0.0}
