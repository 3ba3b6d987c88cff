"""The checkers of histories find what they are for, and nothing else."""

from __future__ import annotations

import math
from itertools import combinations_with_replacement

import pytest

from tests.support.history import Hold, Mode, Wait, exclusion, fencing, fifo, handover, semaphore


def hold(who: str, granted: float, released: float = math.inf, **more: object) -> Hold:
    """A hold asked for one second before it was granted, its release confirmed at once."""
    fields: dict[str, object] = {"invoked": granted - 1, "confirmed": released} | more
    return Hold(who=who, granted=granted, released=released, **fields)  # type: ignore[arg-type]


def test_holds_one_after_the_other_are_exclusive() -> None:
    assert exclusion([hold("a", 1, 2), hold("b", 2, 3)]) == []


def test_two_writers_at_once_are_found_in_any_order() -> None:
    first, second = hold("a", 1, 3), hold("b", 2, 4)

    for history in ([first, second], [second, first]):
        (violation,) = exclusion(history)
        assert violation.evidence == (first, second)


def test_a_lapsed_lease_is_a_legal_end() -> None:
    assert exclusion([hold("a", 1, deadline=2), hold("b", 2, 3)]) == []
    assert exclusion([hold("a", 1, deadline=2.1), hold("b", 2, 3)])


def test_a_short_hold_does_not_hide_a_long_one() -> None:
    long, short, late = hold("a", 1, 9), hold("b", 2, 3, mode="reader"), hold("c", 5, 6)

    assert [violation.evidence for violation in exclusion([long, short, late])] == [
        (long, short),
        (long, late),
    ]


def test_a_grant_that_came_back_after_its_deadline_holds_nothing() -> None:
    too_late = hold("a", 3, 9, deadline=2)

    assert exclusion([hold("b", 1, 4), too_late]) == []
    assert exclusion([too_late, hold("b", 6, 7)]) == []


def test_names_do_not_know_of_each_other() -> None:
    assert exclusion([hold("a", 1, 3, name="x"), hold("b", 2, 4, name="y")]) == []


@pytest.mark.parametrize(
    ("one", "other"), list(combinations_with_replacement(["reader", "upgradable", "writer"], 2))
)
def test_modes_conflict_as_in_a_three_phase_lock(one: Mode, other: Mode) -> None:
    may_share = {("reader", "reader"), ("reader", "upgradable")}

    found = exclusion([hold("a", 1, 3, mode=one), hold("b", 2, 4, mode=other)])

    assert (not found) == ((one, other) in may_share)


def test_only_intervals_that_overlap_conflict() -> None:
    left = hold("a", 1, 3, low=0, high=5)

    assert exclusion([left, hold("b", 2, 4, low=5, high=9)]) == []
    assert exclusion([left, hold("b", 2, 4, low=4, high=9)])
    assert exclusion([left, hold("b", 2, 4)]), "a hold without an interval holds all of it"


def test_fencing_tokens_rise_from_lease_to_lease() -> None:
    assert fencing([hold("a", 1, 2, fencing_token=5), hold("b", 4, 5, fencing_token=9)]) == []
    assert fencing([hold("a", 1, 2, fencing_token=5), hold("b", 4, 5, fencing_token=4)])
    assert fencing([hold("a", 1, 2, fencing_token=5), hold("b", 4, 5, fencing_token=5)])


def test_a_fencing_token_is_held_against_all_earlier_leases() -> None:
    history = [
        hold(who, at, at + 1, fencing_token=token)
        for who, at, token in [("a", 1, 8), ("b", 4, 2), ("c", 7, 5)]
    ]

    assert [violation.evidence[0] for violation in fencing(history)] == [history[0], history[0]]


def test_of_overlapping_requests_either_may_have_the_larger_fencing_token() -> None:
    assert fencing([hold("a", 1, 2, fencing_token=9), hold("b", 1.5, 3, fencing_token=5)]) == []
    assert fencing([hold("a", 1, 2, fencing_token=5), hold("b", 1.5, 3, fencing_token=5)]), "but not the same"


def test_fifo_finds_who_was_overtaken() -> None:
    first, second = hold("a", 5, invoked=0, queued=0.1), hold("b", 3, invoked=1, queued=1.1)

    (violation,) = fifo([first, second])
    assert violation.evidence == (first, second)
    assert fifo([first, second], dropped=["a"]) == []


def test_fifo_demands_no_order_where_the_place_was_not_yet_confirmed() -> None:
    assert fifo([hold("a", 5, invoked=0, queued=1.5), hold("b", 3, invoked=1, queued=1.1)]) == []
    assert fifo([hold("a", 3, invoked=0, queued=0.1), hold("b", 5, invoked=1, queued=1.1)]) == []


def test_fifo_compares_with_everybody_behind_not_only_the_next() -> None:
    starved, between, ahead = (
        hold("a", 9, invoked=0, queued=0.1),
        hold("b", 8, invoked=6, queued=6.1),
        hold("c", 7, invoked=5, queued=5.1),
    )

    assert [violation.evidence for violation in fifo([starved, between, ahead])] == [
        (starved, between),
        (starved, ahead),
    ]


def test_handover_finds_a_waiter_that_slept_on() -> None:
    holds = [hold("a", 0, 2), hold("b", 9, 10)]

    (violation,) = handover(holds, [Wait(who="b", invoked=0, ended=9)], bound=0.5)
    assert violation.what == "free for 7.000 s while somebody waited"
    assert handover(holds, [Wait(who="b", invoked=8.6, ended=9)], bound=0.5) == []


def test_handover_finds_a_waiter_that_gave_up_on_a_free_lock() -> None:
    holds = [hold("a", 0, 2)]

    assert handover(holds, [Wait(who="b", invoked=0, ended=4)], bound=0.5)
    assert handover(holds, [Wait(who="b", invoked=0, ended=2.4)], bound=0.5) == []
    assert handover([], [Wait(who="b", invoked=0, ended=4)], bound=0.5), "nobody ever held it"


def test_handover_counts_a_hold_until_its_release_is_confirmed_or_its_lease_lapsed() -> None:
    wait = Wait(who="b", invoked=0, ended=3)

    assert handover([hold("a", 0, 1, confirmed=2.9), hold("b", 3)], [wait], bound=0.5) == []
    assert handover([hold("a", 0, 1, confirmed=2.9, deadline=2), hold("b", 3)], [wait], bound=0.5)


def test_semaphore_counts_permits() -> None:
    four = [hold(str(number), 1, 2) for number in range(4)]

    assert semaphore(four, value=4) == []
    assert semaphore(four, value=3)
    assert semaphore([hold("a", 1, 2, permits=3), hold("b", 1.5, 2)], value=3)
    assert semaphore([hold("a", 1, 2, permits=3), hold("b", 2, 3, permits=3)], value=3) == []
