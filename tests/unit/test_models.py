"""The models answer as the contract says: each rule once, by example."""

from __future__ import annotations

import math
from itertools import product

import pytest

from tests.support.history import Mode
from tests.support.models import (
    FairModel,
    Model,
    NamesModel,
    RangesModel,
    SemaphoreModel,
    Want,
    broken,
    grants,
)

MODES: tuple[Mode, ...] = ("reader", "upgradable", "writer")


def names(*of: str, owner: str | None = None) -> Want:
    return Want(names=frozenset(of), owner=owner)


def permits(number: int) -> Want:
    return Want(permits=number)


def reader(low: float = -math.inf, high: float = math.inf) -> Want:
    return Want(mode="reader", low=low, high=high)


def upgradable(low: float = -math.inf, high: float = math.inf) -> Want:
    return Want(mode="upgradable", low=low, high=high)


def writer(low: float = -math.inf, high: float = math.inf, *, within: int | None = None) -> Want:
    return Want(mode="writer", low=low, high=high, within=within)


# -- what all have


def holding(*wants: Want, model: Model | None = None) -> Model:
    """A model in which these are held for 60 s, as leases 1, 2, ..."""
    model = model or NamesModel()
    assert all(grants(model, wants))
    return model


def test_a_lease_ends_when_its_time_is_over_and_not_before() -> None:
    model = holding(names("a"))

    model.advance(59.9)
    assert model.holds(1)
    assert not model.admits(names("a"))
    model.advance(0.1)
    assert not model.holds(1)
    assert model.admits(names("a"))


def test_what_has_ended_cannot_be_extended_released_or_adopted() -> None:
    model = holding(names("a"))
    model.advance(60)

    assert not model.extend(1, 60)
    assert not model.release(1)
    assert not model.adopt(1, 2, 60)


def test_extending_counts_from_now() -> None:
    model = holding(names("a"))
    model.advance(30)

    assert model.extend(1, 40)
    model.advance(39)
    assert model.holds(1)
    model.advance(1)
    assert not model.holds(1)


def test_an_adopter_has_it_instead() -> None:
    model = holding(names("a"))

    assert model.adopt(1, 2, 90)
    assert not model.adopt(1, 3, 90)
    assert not model.release(1)
    model.advance(80)
    assert model.release(2)


# -- names


def test_names_exclude_where_they_have_one_in_common() -> None:
    model = holding(names("a", "b"))

    assert not model.admits(names("b", "c"))
    assert model.admits(names("c", "d"))


def test_all_names_or_none() -> None:
    model = holding(names("b"))

    assert grants(model, [names("a", "b"), names("a")]) == [False, True]


def test_an_owner_enters_again_and_others_do_not() -> None:
    model = holding(names("a", owner="me"), names("a", owner="me"))
    assert isinstance(model, NamesModel)

    assert model.depth("me", frozenset({"a"})) == 2
    assert not model.admits(names("a", owner="you"))
    assert not model.admits(names("a"))
    model.release(1)
    assert not model.admits(names("a", owner="you"))
    model.release(2)
    assert model.admits(names("a", owner="you"))


def test_without_an_owner_nobody_enters_again() -> None:
    assert not holding(names("a")).admits(names("a"))


def test_nesting_never_shortens() -> None:
    model = holding(names("a", owner="me"))

    model.grant(2, names("a", owner="me"), 10)
    model.advance(50)
    assert model.holds(1)
    assert not model.holds(2)
    assert not model.admits(names("a"))
    model.advance(10)
    assert model.admits(names("a"))


# -- semaphores


def test_permits_up_to_the_value() -> None:
    model = SemaphoreModel(3)

    assert grants(model, [permits(2), permits(2), permits(1), permits(1)]) == [True, False, True, False]
    assert model.available == 0
    model.release(1)
    assert model.available == 2


def test_a_smaller_value_puts_nobody_out() -> None:
    model = SemaphoreModel(3)
    holding(permits(2), permits(1), model=model)

    model.resize(1)
    assert (model.available, model.first) == (0, 3)
    assert model.holds(1)
    model.release(1)
    assert not model.admits(permits(1))
    model.release(2)
    assert model.admits(permits(1))


def test_who_waits_is_overtaken_where_it_is_not_fair() -> None:
    plain, fair = SemaphoreModel(2), FairModel(2)
    for model in (plain, fair):
        holding(permits(1), model=model)
        model.wait(8, permits(2))
        model.wait(9, permits(1))

    assert (plain.due(), plain.admits(permits(1))) == ({9}, True)
    assert (fair.due(), fair.admits(permits(1))) == (set(), False)


def test_first_come_first_served() -> None:
    model = FairModel()
    holding(Want(), model=model)
    for waiter in (7, 8, 9):
        model.wait(waiter, Want())

    assert model.due() == set()
    model.release(1)
    assert model.due() == {7}
    model.leave(7)
    assert model.due() == {8}
    model.enter(8, 60)
    assert model.due() == set()
    model.advance(60)
    assert model.due() == {9}


# -- modes and intervals


@pytest.mark.parametrize(("one", "other"), list(product(MODES, MODES)))
def test_modes_share_as_in_a_three_phase_lock(one: Mode, other: Mode) -> None:
    may_share = {("reader", "reader"), ("reader", "upgradable"), ("upgradable", "reader")}

    model = holding(Want(mode=one), model=RangesModel())

    assert model.admits(Want(mode=other)) == ((one, other) in may_share)


@pytest.mark.parametrize(("closed", "admitted"), [(False, True), (True, False)])
def test_whether_neighbours_meet_depends_on_the_bounds(closed: bool, admitted: bool) -> None:
    model = holding(writer(2, 5), model=RangesModel(closed=closed))

    assert model.admits(writer(5, 9)) == admitted
    assert model.admits(writer(0, 2)) == admitted
    assert not model.admits(writer(4, 9))
    assert not model.admits(writer(3, 4))
    assert not model.admits(writer())
    assert model.admits(writer(6, math.inf))


def test_a_point_is_an_interval_where_both_ends_belong_to_it() -> None:
    model = holding(writer(3, 3), model=RangesModel(closed=True))

    assert not model.admits(writer(3, 3))
    assert model.admits(writer(4, 4))


def test_an_upgrade_does_not_mind_its_own_upgradable() -> None:
    model = holding(upgradable(0, 10), model=RangesModel())

    assert not model.admits(writer(2, 4))
    assert model.admits(writer(2, 4, within=1))
    model.grant(2, reader(3, 9), 60)
    assert model.admits(writer(0, 3, within=1))
    assert not model.admits(writer(2, 4, within=1))


def test_an_upgrade_ends_and_the_upgradable_is_there_still() -> None:
    model = holding(upgradable(0, 10), writer(2, 4, within=1), model=RangesModel())

    assert not model.admits(reader(3, 5))
    model.release(2)
    assert model.admits(reader(3, 5))
    assert not model.admits(upgradable(3, 5))


def test_a_downgraded_writer_is_a_reader() -> None:
    model = RangesModel()
    holding(writer(), model=model)

    model.downgrade(1)
    assert model.admits(reader())
    assert not model.admits(writer())


def test_what_was_shrunk_is_free() -> None:
    model = RangesModel()
    holding(writer(0, 10), model=model)

    model.shrink(1, 2, 4)
    assert model.admits(writer(4, 10))
    assert model.admits(writer(0, 2))
    assert not model.admits(writer(3, 5))


def test_a_writer_that_waits_reserves() -> None:
    model = holding(reader(0, 5), model=RangesModel())
    model.wait(9, writer(3, 8))

    assert not model.admits(reader(4, 5))
    assert not model.admits(reader(7, 9)), "also where nobody is inside yet"
    assert model.admits(reader(0, 3))
    model.leave(9)
    assert model.admits(reader(4, 5))


def test_writers_and_upgradables_enter_in_the_order_of_asking() -> None:
    model = holding(reader(0, 5), model=RangesModel())
    model.wait(9, writer(3, 8))

    assert model.admits(writer(6, 7)) is False
    assert model.admits(upgradable(6, 7)) is False
    assert model.admits(writer(8, 9)) is True
    model.wait(10, upgradable(7, 10))
    model.wait(11, upgradable(9, 11))
    assert (model.due(), model.allowed()) == (set(), set())
    model.leave(10)
    assert model.due() == {11}


def test_a_writer_behind_an_upgradable_or_another_waiter_keeps_no_reader_out() -> None:
    model = holding(upgradable(0, 2), model=RangesModel())
    model.wait(8, writer(1, 3))
    model.wait(9, writer(2.5, 8))

    assert [model.admits(reader(a, a + 0.1)) for a in (0, 2.5, 7)] == [True, True, True]
    model.release(1)
    assert [model.admits(reader(a, a + 0.1)) for a in (0, 2.5, 7)] == [True, False, True]
    model.enter(8, 60)
    assert [model.admits(reader(a, a + 0.1)) for a in (0, 2.5, 7)] == [True, False, True]
    model.release(8)
    assert [model.admits(reader(a, a + 0.1)) for a in (0, 2.5, 7)] == [True, False, False]


def test_of_one_session_the_next_asks_when_the_first_has_got_in_and_has_its_place_if_it_left() -> None:
    for gone, due in ((True, {7}), (False, {6})):
        model = holding(writer(), model=RangesModel())
        for waiter, session in ((5, 1), (6, 2), (7, 1)):
            model.wait(waiter, writer(), session)
        assert model.asked == [5, 6]
        model.release(1)
        if gone:
            model.leave(5)
        else:
            model.enter(5, 60)
            model.release(5)
        assert model.due() == due


def test_who_shrinks_lets_in_who_waited_to_read() -> None:
    model = RangesModel()
    holding(writer(0, 10), model=model)
    model.wait(6, reader(5, 10))
    model.wait(7, writer(5, 10))

    model.shrink(1, 0, 5)
    assert model.due() == {6}


def test_an_upgrade_passes_a_reservation() -> None:
    model = holding(upgradable(), model=RangesModel())
    model.wait(8, writer())
    model.wait(9, writer(within=1))

    assert model.admits(writer(within=1))
    assert model.due() == {9}


def test_readers_drain_then_the_writer_then_those_who_waited_then_the_next() -> None:
    model = holding(reader(), model=RangesModel())
    model.wait(5, writer())
    model.wait(6, reader())
    model.wait(7, writer())
    model.wait(8, reader())

    assert model.due() == set()
    model.release(1)
    assert model.due() == {5}
    model.enter(5, 60)
    assert model.due() == set()
    model.release(5)
    assert model.due() == {6, 8}
    model.enter(6, 60)
    assert model.due() == {8}
    model.enter(8, 60)
    assert not model.admits(reader()), "the next writer waits, and reserves"
    model.release(6)
    model.release(8)
    assert model.due() == {7}


def test_behind_a_writer_that_died_the_readers_that_waited_go_first() -> None:
    model = holding(writer(), model=RangesModel())
    model.wait(6, reader())
    model.wait(7, writer())
    model.advance(60)

    assert (model.due(), model.allowed()) == ({6}, {6, 7})


def test_an_upgradable_waits_for_a_writer_that_asked_before_it() -> None:
    model = holding(reader(), model=RangesModel())
    model.wait(6, writer())
    model.wait(7, upgradable())

    assert (model.due(), model.allowed()) == (set(), set())
    model.leave(6)
    assert model.due() == {7}


def test_a_downgrade_lets_those_in_who_waited_to_read() -> None:
    model = RangesModel()
    holding(writer(), model=model)
    model.wait(6, reader())
    model.wait(7, writer())

    model.downgrade(1)
    assert model.due() == {6}


def test_a_reader_that_came_behind_the_departed_writer_has_no_turn() -> None:
    model = holding(writer(), model=RangesModel())
    model.wait(7, writer())
    model.release(1)
    model.wait(8, reader())

    assert model.due() == {7}


def test_a_broken_rule_answers_otherwise() -> None:
    model = holding(reader(), model=broken(RangesModel, share=lambda *_: False)())

    assert not model.admits(reader())
