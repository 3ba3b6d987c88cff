"""The checkers of histories find what they are for, and nothing else."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import combinations_with_replacement

import pytest

from tests.support.history import (
    Hold,
    Mode,
    Resize,
    Wait,
    exclusion,
    fencing,
    fifo,
    handover,
    nesting,
    phases,
    reservations,
    semaphore,
    unreached,
)


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


def test_neighbours_conflict_where_both_ends_belong_to_the_intervals() -> None:
    left, right = hold("a", 1, 3, low=0, high=5, closed=True), hold("b", 2, 4, low=5, high=9, closed=True)

    assert exclusion([left, right])
    assert exclusion([left, hold("b", 2, 4, low=6, high=9, closed=True)]) == []


def test_one_owner_may_hold_it_twice() -> None:
    outer = hold("a", 1, 5, owner="me")

    assert exclusion([outer, hold("b", 2, 4, owner="me")]) == []
    assert exclusion([outer, hold("b", 2, 4, owner="you")])
    assert exclusion([outer, hold("b", 2, 4)])
    assert exclusion([hold("a", 1, 5), hold("b", 2, 4)]), "nobody in particular is not one owner"


def test_a_downgraded_writer_lets_readers_in_and_keeps_writers_out() -> None:
    history = list(hold("a", 1, 9, fencing_token=5).changed(4, 4.5, mode="reader"))

    assert exclusion([*history, hold("b", 4.2, 5, mode="reader")]) == []
    assert exclusion([*history, hold("b", 3.9, 5, mode="reader")])
    assert exclusion([*history, hold("b", 4.2, 5)])
    assert exclusion([*history, hold("b", 8.9, 9.5)]), "to the end of the lease"
    assert fencing(history) == []


def test_what_was_shrunk_leaves_the_rest_to_others() -> None:
    history = list(hold("a", 1, 9, low=0, high=10).changed(4, 4.5, low=2, high=5))

    assert exclusion([*history, hold("b", 4.2, 9, low=5, high=10)]) == []
    assert exclusion([*history, hold("b", 3.9, 9, low=5, high=10)])
    assert exclusion([*history, hold("b", 4.2, 9, low=4, high=10)])


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


def test_a_writers_fencing_token_exceeds_that_of_the_readers_before_it() -> None:
    readers = [
        hold("a", 1, 2, mode="reader", fencing_token=5),
        hold("b", 1, 2, mode="reader", fencing_token=7),
    ]

    assert fencing([*readers, hold("c", 4, 5, fencing_token=8)]) == []
    assert fencing([*readers, hold("c", 4, 5, fencing_token=6)])


def test_only_the_leases_of_one_owner_share_a_fencing_token() -> None:
    outer, inner = (hold(who, at, 9, owner="me", fencing_token=5) for who, at in (("a", 1), ("b", 3)))

    assert fencing([outer, inner]) == []
    assert fencing([outer, hold("b", 3, 9, owner="you", fencing_token=5)])
    assert fencing([outer, hold("b", 3, 9, fencing_token=5)])


def test_nesting_finds_a_re_entry_with_a_new_fencing_token() -> None:
    outer = hold("a", 1, 5, owner="me", fencing_token=5)

    assert nesting([outer, hold("b", 3, 4, owner="me", fencing_token=5)]) == []
    assert nesting([outer, hold("b", 3, 4, owner="me", fencing_token=6)])
    assert nesting([outer, hold("b", 7, 8, owner="me", fencing_token=6)]) == [], "it was let go meanwhile"
    assert nesting([outer, hold("b", 5.5, 8, invoked=3, owner="me", fencing_token=6)]) == [], (
        "or may have been"
    )


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


def test_fifo_goes_by_the_fencing_tokens_where_several_are_granted_at_once() -> None:
    first = hold("a", 5.2, invoked=0, queued=0.1, fencing_token=3)

    assert fifo([first, hold("b", 5.1, invoked=1, queued=1.1, fencing_token=4)]) == []
    assert fifo([first, hold("b", 5.1, invoked=1, queued=1.1, fencing_token=2)])


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


def test_semaphore_follows_its_resizes() -> None:
    three = [hold(str(number), 5, 6) for number in range(3)]
    grown = Resize(called=3, confirmed=3.5, value=3)

    assert semaphore(three, value=2, resizes=[grown]) == []
    assert semaphore(three, value=2, resizes=[grown, Resize(called=3.6, confirmed=3.9, value=2)])
    assert semaphore(three, value=2, resizes=[grown, Resize(called=3.6, confirmed=4.1, value=2)]) == [], (
        "it may have counted only after they had been granted"
    )


def test_permits_that_are_out_when_the_value_becomes_smaller_are_no_violation() -> None:
    three = [hold(str(number), 1, 9) for number in range(3)]
    shrunk = Resize(called=4, confirmed=4.1, value=1)

    assert semaphore(three, value=3, resizes=[shrunk]) == []
    assert semaphore([*three[:2], hold("late", 6, 7)], value=3, resizes=[shrunk]), "but one that is given out"
    assert semaphore([*three[:2], hold("late", 6, 7, invoked=0.5)], value=3, resizes=[shrunk]) == []


def test_permits_that_are_never_all_out_are_found() -> None:
    two = [hold("a", 1, 3), hold("b", 2, 4), hold("c", 5, 6)]

    assert unreached(two, value=2) == []
    (violation,) = unreached(two, value=3)
    assert violation.what == "never more than 2 of 3 permits out"
    assert unreached([hold("a", 1, 3, permits=2), hold("b", 2, 4)], value=3) == []


def test_a_reader_that_passed_a_waiting_writer_is_found() -> None:
    inside = hold("i", 0, 6, mode="reader")
    waiting = hold("w", 7, 8, invoked=1, queued=1.1)

    (violation,) = reservations([inside, waiting, hold("r", 3, 4, mode="reader", invoked=2)])
    assert violation.evidence[0] is waiting
    assert reservations([inside, waiting, hold("r", 3, 4, mode="reader", invoked=1.05)]) == []
    assert reservations([inside, waiting, hold("r", 9, 9.5, mode="reader", invoked=2)]) == []


def test_a_reader_may_pass_a_writer_that_waits_for_an_upgradable() -> None:
    waiting = hold("w", 7, 8, invoked=1, queued=1.1)
    planner = hold("u", 0, 4, mode="upgradable", confirmed=4.2, low=0, high=5)

    assert reservations([planner, waiting, hold("r", 3, 4, mode="reader", invoked=2)]) == []
    assert reservations([planner, waiting, hold("r", 5, 6, mode="reader", invoked=4.1)]) == []
    assert reservations([planner, waiting, hold("r", 5, 6, mode="reader", invoked=4.3)]), "but it has left"
    aside = replace(planner, low=-5, high=0)
    assert reservations([aside, replace(waiting, low=0, high=9), hold("r", 3, 4, mode="reader", invoked=2)])


def test_readers_that_waited_pass_when_another_writer_leaves() -> None:
    first, second = hold("w", 1, 3, confirmed=3.2), hold("x", 7, 8, invoked=1, queued=1.1)

    assert reservations([first, second, hold("r", 4, 5, mode="reader", invoked=2)]) == []
    assert reservations([first, second, hold("r", 4, 5, mode="reader", invoked=3.1)]) == []
    assert reservations([first, second, hold("r", 4, 5, mode="reader", invoked=3.3)]), "but it came too late"


def test_readers_come_along_with_one_of_their_session_that_had_its_turn() -> None:
    def reader(who: str, granted: float, invoked: float, session: str | None = "s") -> Hold:
        return hold(who, granted, 8, mode="reader", invoked=invoked, session=session)

    writers = [hold("w", 1, 3), hold("x", 9, 10, invoked=1, queued=1.1)]
    mate = reader("m", 5, 2)

    assert reservations([*writers, mate, reader("r", 5.5, 4)]) == []
    for session in (None, "t"):
        assert reservations([*writers, mate, reader("r", 5.5, 4, session)])
    late = reservations([*writers, mate, reader("r", 5.5, 4), reader("n", 6, 5.3)])
    assert [violation.evidence[1].who for violation in late] == ["n"], "the others had entered by then"


def test_a_reader_has_the_place_of_one_of_its_session_that_gave_up() -> None:
    history = [
        hold("w", 1, 3),
        hold("x", 9, 10, invoked=1, queued=1.1),
        hold("r", 6, 8, mode="reader", invoked=4, session="s"),
    ]

    def given_up(who: str, invoked: float, ended: float) -> Wait:
        return Wait(who=who, invoked=invoked, ended=ended, session="s")

    assert reservations(history, given_up=[given_up("m", 2, 4.5)]) == []
    assert reservations(history, given_up=[given_up("m", 2, 3.95)]) == []
    assert reservations(history, given_up=[given_up("m", 2, 3.8)])
    assert reservations(history, given_up=[given_up("m", 2, 3.6), given_up("n", 3.5, 5)]) == []


def test_a_killed_process_may_have_been_a_writer_that_left() -> None:
    history = [hold("w", 7, 8, invoked=1, queued=1.1), hold("r", 3, 4, mode="reader", invoked=2)]

    assert reservations(history)
    assert reservations(history, deaths=[1.5], unsettled=1) == []
    assert reservations(history, deaths=[1.5], unsettled=0.4)
    assert reservations(history, deaths=[3.5], unsettled=1)


def test_a_reader_beside_the_interval_that_a_writer_waits_for_does_not_pass_it() -> None:
    waiting = hold("w", 7, 8, invoked=1, queued=1.1, low=0, high=5)

    assert reservations([waiting, hold("r", 3, 4, mode="reader", invoked=2, low=5, high=9)]) == []
    assert reservations([waiting, hold("r", 3, 4, mode="reader", invoked=2, low=4, high=9)])


def test_a_reader_that_had_to_wait_for_two_writers_is_found() -> None:
    first, second = hold("w", 1, 3), hold("x", 4, 5)
    late = hold("r", 6, 7, mode="reader", invoked=2, queued=2.1)

    (violation,) = phases([first, second, late])
    assert violation.evidence == (first, second, late)
    assert phases([first, second, hold("r", 3.5, 4, mode="reader", invoked=2, queued=2.1)]) == []
    assert phases([first, second, hold("r", 6, 7, mode="reader", invoked=3, queued=3.1)]) == []
    assert phases([first, hold("x", 4, 5, owner="me"), late]) == [], "an upgrade has its upgradable's place"
    assert phases([hold("w", 1, deadline=3), second, late]) == [], "a dead writer rings nobody"
