"""The counts of a session."""

from __future__ import annotations

from dataclasses import FrozenInstanceError

import pytest

from aiolocks import Lock
from aiolocks.lock.statistics import BOUNDS, Counters
from tests.unit.fakes import NO_WAKEUPS, generous, hold


def counts(*durations: float) -> dict[float, int]:
    """How often each bucket was hit, by its upper bound."""
    counters = Counters()
    for duration in durations:
        counters.wait.add(duration)
    histogram = counters.snapshot(leases_held=0, waiters=0, commands_sent=0).wait_seconds
    bounds = [*histogram.bounds, float("inf")]
    return {bound: count for bound, count in zip(bounds, histogram.counts, strict=True) if count}


def test_a_bucket_takes_what_is_up_to_its_bound() -> None:
    assert counts(0.0, 0.001, 0.0011, 0.002) == {0.001: 2, 0.002: 2}


def test_the_last_bucket_takes_the_rest() -> None:
    assert counts(300.0, 300.1, 1e9) == {300.0: 1, float("inf"): 2}


def test_bounds_rise() -> None:
    assert list(BOUNDS) == sorted(set(BOUNDS))


def test_a_histogram_knows_sum_and_count() -> None:
    counters = Counters()
    counters.hold.add(0.5)
    counters.hold.add(2.5)
    histogram = counters.snapshot(leases_held=0, waiters=0, commands_sent=0).hold_seconds

    assert histogram.count == 2
    assert histogram.total == 3


def test_a_snapshot_does_not_change_any_more() -> None:
    counters = Counters()
    before = counters.snapshot(leases_held=1, waiters=2, commands_sent=3)
    counters.wakeups["poll"] += 1
    counters.wait.add(1)

    assert (before.acquisitions, before.wakeups, before.wait_seconds.count) == (0, NO_WAKEUPS, 0)
    with pytest.raises(FrozenInstanceError):
        before.leases_held = 5  # type: ignore[misc]
    with pytest.raises(TypeError):
        before.wakeups["poll"] = 5  # type: ignore[index]


async def test_a_session_counts_what_it_holds_and_has_done(make_session, transport) -> None:
    session = make_session()
    assert session.statistics().commands_sent == 0

    lease = await hold(session, transport, "first")
    transport.answer = generous
    await Lock(session, "second").acquire()
    await lease.release()

    statistics = session.statistics()
    assert statistics.leases_held == 1
    assert statistics.acquisitions == 2
    assert statistics.commands_sent == 3
    assert statistics.hold_seconds.count == 1
    assert statistics.wait_seconds.count == 2
    assert (statistics.waiters, statistics.timeouts, statistics.losses) == (0, 0, 0)
