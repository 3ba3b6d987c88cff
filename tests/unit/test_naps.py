"""How long a waiter sleeps: pure arithmetic."""

from __future__ import annotations

from typing import Any

import pytest

from aiolocks import Backoff
from aiolocks.lock.backoff import SILENT
from aiolocks.lock.waiter import BEYOND, LAST_TRY, Naps

STEPS = Backoff(initial=1, maximum=8, jitter=0)


def nap(naps: Naps, silence: float | None = None, **more: Any) -> float | None:
    naps.begin(100.0, STEPS, silence)
    return wake_at(naps, 100.0, **more)


def wake_at(naps: Naps, now: float, *, yielding_until: float = 0.0, end: float | None = None) -> float | None:
    return naps.wake_at(now, yielding_until=yielding_until, end=end)


def test_they_grow_as_the_backoff_says() -> None:
    naps = Naps()

    assert [nap(naps) for _ in range(5)] == [101, 102, 104, 108, 108]
    assert naps.taken == 5


def test_told_when_to_ask_it_is_silent() -> None:
    assert nap(Naps(), silence=SILENT) == 100 + SILENT


def test_what_it_hears_meanwhile_moves_the_end_of_a_nap_but_never_past_its_poll() -> None:
    naps = Naps()
    nap(naps, silence=SILENT)

    naps.refused_until = 103.0
    assert wake_at(naps, 101) == pytest.approx(103 + BEYOND)
    naps.refused_until = 140.0
    assert wake_at(naps, 102) == 100 + SILENT
    naps.refused_until = None
    assert wake_at(naps, 104, end=105.0) == pytest.approx(105 - LAST_TRY)
    assert naps.taken == 1


def test_a_nap_in_which_nothing_will_be_heard_any_more_ends_though_that_is_said_again_and_again() -> None:
    naps = Naps()
    nap(naps, silence=SILENT)
    ends = []
    for now in (101.0, 101.6, 102.2, 102.8):
        naps.unheard(now, STEPS)
        ends.append(wake_at(naps, now))

    assert ends == [103, 103, 103, 103]
    assert naps.taken == 1


@pytest.mark.parametrize(
    ("refused_until", "wake"), [(100.5, 100.5 + BEYOND), (103, 101), (90, 101), (None, 101)]
)
def test_none_lasts_past_the_end_of_the_lease_in_the_way(refused_until: float | None, wake: float) -> None:
    naps = Naps()
    naps.refused_until = refused_until

    assert nap(naps) == pytest.approx(wake)


def test_refused_for_the_sake_of_others_it_looks_again_when_they_have_had_their_chance() -> None:
    assert nap(Naps(), yielding_until=100.2) == pytest.approx(100.2 + BEYOND)
    assert nap(Naps(), yielding_until=0.0) == 101


def test_refused_for_the_sake_of_others_who_have_had_their_chance_it_looks_again_at_once() -> None:
    """They may have been unable to use it while the refusal was on its way: then nobody tells."""
    assert nap(Naps(), silence=SILENT, yielding_until=99.0) == pytest.approx(100 + BEYOND)


@pytest.mark.parametrize(("round_trip", "margin"), [(0.0, LAST_TRY), (0.1, 0.2)])
def test_before_the_end_there_is_time_for_a_last_try(round_trip: float, margin: float) -> None:
    naps = Naps()
    naps.round_trip = round_trip

    assert nap(naps, end=100.5) == pytest.approx(100.5 - margin)


def test_where_there_is_no_time_for_a_last_try_there_is_none() -> None:
    assert nap(Naps(), end=100 + LAST_TRY) is None
