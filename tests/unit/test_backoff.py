"""`Backoff.delay`: exponential, bounded, jittered, and without a state of its own."""

from __future__ import annotations

from dataclasses import FrozenInstanceError

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiolocks import Backoff

attempts = st.integers(min_value=0, max_value=100_000)


@given(attempts)
def test_full_jitter_stays_between_zero_and_the_ceiling(attempt) -> None:
    assert 0 <= Backoff().delay(attempt) <= min(0.004 * 2 ** min(attempt, 10), 0.064)


@given(attempts, st.floats(min_value=0, max_value=1))
def test_jitter_is_the_share_that_is_random(attempt, jitter) -> None:
    delay = Backoff(initial=1, maximum=1, jitter=jitter).delay(attempt)

    assert 1 - jitter - 1e-9 <= delay <= 1


def test_without_jitter_it_doubles_up_to_its_maximum() -> None:
    backoff = Backoff(jitter=0)

    assert [backoff.delay(attempt) for attempt in range(6)] == [0.004, 0.008, 0.016, 0.032, 0.064, 0.064]


def test_full_jitter_spreads_over_the_whole_range() -> None:
    delays = [Backoff(initial=1, maximum=1).delay(0) for _ in range(1000)]

    assert min(delays) < 0.1
    assert max(delays) > 0.9


@pytest.mark.parametrize("attempt", [5000, 10**6, 10**18])
def test_an_attempt_beyond_all_floats_takes_the_maximum(attempt) -> None:
    assert Backoff(jitter=0).delay(attempt) == 0.064


def test_a_multiplier_of_one_stays_constant() -> None:
    assert Backoff(multiplier=1, jitter=0).delay(10**6) == 0.004


def test_integers_give_floats() -> None:
    delay = Backoff(initial=1, maximum=4, multiplier=2, jitter=0).delay(7)

    assert delay == 4.0
    assert isinstance(delay, float)


def test_a_negative_attempt_is_refused() -> None:
    with pytest.raises(ValueError, match=r"attempt must not be negative, not -1"):
        Backoff().delay(-1)


def test_is_immutable_and_compares_by_value() -> None:
    backoff = Backoff(initial=0.01)

    with pytest.raises(FrozenInstanceError):
        backoff.initial = 0.02  # type: ignore[misc]
    assert backoff == Backoff(initial=0.01)
    assert hash(backoff) == hash(Backoff(initial=0.01))
    assert repr(backoff) == "Backoff(initial=0.01, maximum=0.064, multiplier=2.0, jitter=1.0)"


def test_takes_keywords_alone() -> None:
    with pytest.raises(TypeError):
        Backoff(0.01)  # type: ignore[misc]
