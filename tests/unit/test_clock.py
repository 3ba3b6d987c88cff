"""Seconds become milliseconds in one place, rounded up; a ttl becomes what its holder may rely on."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiolocks.lock.clock import dependable, milliseconds, seconds
from aiolocks.lock.options import LONGEST, SHORTEST_TTL

durations = st.floats(min_value=SHORTEST_TTL, max_value=LONGEST)


@pytest.mark.parametrize(
    ("given_seconds", "ms"),
    [
        (0.1 + 0.2, 300),  # 300.00000000000006 in binary
        (3 * 1.1, 3300),  # 3300.0000000000005
        (1.1, 1100),
        (1.9, 1900),
        (0.0004, 1),
        (0.0501, 51),
        (1.0001, 1001),
        (30, 30_000),
        (LONGEST, 315_576_000_000),
    ],
)
def test_rounds_up_to_whole_milliseconds(given_seconds, ms) -> None:
    assert milliseconds(given_seconds) == ms


@given(st.integers(min_value=1, max_value=10**9))  # 11 days; beyond 100 there may be one more
def test_whole_milliseconds_stay_as_they_are(ms) -> None:
    assert milliseconds(seconds(ms)) == ms


@given(durations)
def test_never_shorter_than_asked_for_and_less_than_one_millisecond_longer(duration) -> None:
    assert -1e-4 <= milliseconds(duration) - duration * 1000 < 1


@given(durations)
def test_what_a_holder_may_rely_on_is_less_than_the_ttl_by_one_per_cent_and_two_milliseconds(ttl) -> None:
    assert 0 < dependable(ttl) == pytest.approx(ttl * 0.99 - 0.002)
