"""The times of a lease: arithmetic that must never promise more than the server does."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiolocks.lock.clock import NEVER
from aiolocks.lock.options import SHORTEST_TTL, Options
from aiolocks.lock.renewal import Watch

times = st.floats(min_value=0, max_value=1e6)
ttls = st.floats(min_value=SHORTEST_TTL, max_value=3600)
limits = st.none() | st.floats(min_value=SHORTEST_TTL, max_value=36_000)


def term(sent: float, ttl: float, max_hold: float | None = None, *, auto_renew: bool = True) -> Watch:
    return Watch(Options.checked(ttl=ttl, max_hold=max_hold, auto_renew=auto_renew), sent, 0.0)


@given(times, ttls, limits)
def test_promises_less_than_the_server_does(sent, ttl, max_hold) -> None:
    granted = term(sent, ttl, max_hold)

    assert sent < granted.deadline < sent + min(ttl, max_hold or ttl)


@given(times, ttls)
def test_a_renewal_is_due_after_a_third_or_up_to_a_thirty_second_of_the_ttl_before(sent, ttl) -> None:
    due = term(sent, ttl).due - sent

    assert ttl / 3 - ttl / 32 - 1e-6 <= due <= ttl / 3 + 1e-6


@given(times, ttls, st.floats(min_value=SHORTEST_TTL, max_value=36_000), st.floats(min_value=0, max_value=1))
def test_what_is_asked_for_ends_with_max_hold(sent, ttl, max_hold, part) -> None:
    later = sent + max_hold * part
    asked = term(sent, ttl, max_hold).ttl_at(later)

    assert asked <= ttl
    assert later + asked <= sent + max_hold + 0.001 + 1e-6


def test_what_reaches_to_the_end_of_max_hold_is_not_renewed() -> None:
    limited = term(0, 30, max_hold=45)
    assert not limited.at_limit

    limited.span = limited.ttl_at(15)
    limited.holds_from(15, 0.0)

    assert limited.at_limit
    assert limited.renewal_due == NEVER
    assert limited.due == limited.deadline < 45
    assert limited.why_over(stalled=0.0) == "max_hold has passed"


def test_without_auto_renew_only_the_deadline_is_due() -> None:
    kept = term(0, 30, auto_renew=False)

    assert kept.due == kept.deadline
    kept.change(now=1, ttl=20)
    assert kept.due == kept.deadline


@given(times, ttls, ttls)
def test_a_change_counts_as_the_shorter_time_until_it_is_confirmed(sent, old, new) -> None:
    changed = term(sent, old)
    before = changed.deadline
    changed.change(sent, new)
    assert changed.deadline == min(before, term(sent, new).deadline)

    changed.holds_from(sent, 0.0)
    assert changed.deadline == term(sent, new).deadline


def test_a_change_to_less_than_the_rest_of_max_hold_is_renewed() -> None:
    limited = term(0, 30, max_hold=20)
    limited.change(now=2, ttl=60)
    assert limited.at_limit
    assert limited.renewal_due == NEVER

    limited.change(now=2, ttl=3)

    assert not limited.at_limit
    assert limited.renewal_due == 3
    assert limited.why_over(stalled=0.0) == "its ttl passed without a confirmed renewal"


@pytest.mark.parametrize("ttl", [0.05, 30.0, 3600.0])
def test_a_failed_renewal_is_retried_a_thousand_times_without_waiting_longer_than_a_twelfth(ttl) -> None:
    failing = term(0, ttl)
    for _ in range(1000):
        failing.try_again_soon(now=0)
        assert 0 < failing.renewal_due <= ttl / 12


def test_time_that_the_loops_clock_has_not_counted_is_taken_off_all_ends() -> None:
    """Off that of `max_hold`, too, and the renewal comes earlier."""
    limited = term(0, 30, max_hold=45)
    deadline, due = limited.deadline, limited.renewal_due

    limited.move(10)

    assert limited.deadline == pytest.approx(deadline - 10)
    assert limited.renewal_due == pytest.approx(due - 10)
    assert limited.ttl_at(20) == pytest.approx(15)
    assert limited.why_over(stalled=1.0, suspended=10.0) == "the machine was suspended for 10.0 s"
