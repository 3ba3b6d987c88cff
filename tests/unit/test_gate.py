"""The gate: first come, first served, and of those who wait one asks."""

from __future__ import annotations

import weakref
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiolocks._core.gate import Gate


class Waiter:
    """Stands for an acquisition: writes down what the gate tells it."""

    def __init__(self) -> None:
        self.claim = object()
        self.told: list[str] = []

    def take_turn(self, *, woken: bool) -> None:
        self.told.append("woken" if woken else "at once")

    def prompt(self) -> None:
        self.told.append("prompted")


class Possession:
    def __init__(self, remaining: float) -> None:
        self.remaining = lambda: remaining


class Idle:
    """How often a gate said that nobody needs it."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, gate: Gate) -> None:
        self.count += 1


@pytest.fixture
def idle() -> Idle:
    return Idle()


@pytest.fixture
def gate(idle) -> Any:
    return Gate(idle)


def entered(gate: Any, count: int) -> list[Waiter]:
    waiters = [Waiter() for _ in range(count)]
    for waiter in waiters:
        gate.enter(waiter)
    return waiters


def told(waiters: list[Waiter]) -> list[list[str]]:
    return [waiter.told for waiter in waiters]


def test_one_head_asks_and_the_others_wait(gate) -> None:
    assert told(entered(gate, 3)) == [["at once"], [], []]


def test_a_leaving_head_passes_on(gate) -> None:
    waiters = entered(gate, 3)

    gate.leave(waiters[0])

    assert told(waiters) == [["at once"], ["woken"], []]


def test_who_leaves_the_queue_lets_nobody_overtake(gate) -> None:
    waiters = entered(gate, 4)

    gate.leave(waiters[1])
    gate.leave(waiters[0])

    assert told(waiters) == [["at once"], [], ["woken"], []]


def test_leaving_twice_passes_on_once(gate) -> None:
    waiters = entered(gate, 3)

    gate.leave(waiters[0])
    gate.leave(waiters[0])

    assert told(waiters) == [["at once"], ["woken"], []]


def test_nobody_asks_while_it_is_held_here(gate) -> None:
    waiters = entered(gate, 2)
    gate.granted(waiters[0])

    assert told([*waiters, *entered(gate, 1)]) == [["at once"], [], []]
    assert gate.held_here


def test_who_lets_go_wakes_the_next(gate) -> None:
    waiters = entered(gate, 3)
    gate.granted(waiters[0])

    gate.vacated(waiters[0].claim)

    assert told(waiters) == [["at once"], ["woken"], []]
    assert not gate.held_here


def test_a_claim_that_does_not_hold_lets_go_of_nothing(gate) -> None:
    waiters = entered(gate, 2)
    gate.granted(waiters[0])

    gate.vacated(waiters[1].claim)
    gate.vacated(object())

    assert gate.held_here
    assert told(waiters) == [["at once"], []]


def test_who_lets_go_twice_wakes_one(gate) -> None:
    waiters = entered(gate, 3)
    gate.granted(waiters[0])

    gate.vacated(waiters[0].claim)
    gate.vacated(waiters[0].claim)

    assert told(waiters) == [["at once"], ["woken"], []]


def test_a_single_try_beside_the_queue_that_lets_go_prompts_the_head(gate) -> None:
    head, behind = entered(gate, 2)
    once = Waiter()
    gate.try_beside(once)
    gate.granted(once)

    gate.vacated(once.claim)

    assert head.told == ["at once", "prompted"]
    assert behind.told == []


def test_a_head_that_leaves_while_it_is_held_here_lets_nobody_ask(gate) -> None:
    head, behind = entered(gate, 2)
    gate.granted(Waiter())

    gate.leave(head)

    assert behind.told == []


def test_an_adopted_claim_holds_it(gate) -> None:
    claim = object()
    gate.entrusted(claim, weakref.ref(Possession(5)))
    (waiter,) = entered(gate, 1)
    assert waiter.told == []

    gate.vacated(claim)

    assert waiter.told == ["woken"]


def test_is_idle_when_the_last_one_has_left(gate, idle) -> None:
    first, second = entered(gate, 2)
    gate.leave(first)
    assert idle.count == 0

    gate.leave(second)

    assert idle.count == 1


def test_is_idle_when_the_last_holder_has_let_go(gate, idle) -> None:
    (holder,) = entered(gate, 1)
    gate.granted(holder)
    assert idle.count == 0

    gate.vacated(holder.claim)

    assert idle.count == 1


def test_a_single_try_keeps_it_busy_until_it_is_refused(gate, idle) -> None:
    once = Waiter()
    gate.try_beside(once)
    (waiter,) = entered(gate, 1)
    gate.leave(waiter)
    assert idle.count == 0

    gate.leave(once)

    assert idle.count == 1
    assert once.told == [], "it asks without being asked to"


def test_remaining_is_unknown_at_first(gate) -> None:
    assert gate.remaining(now=10) is None


def test_remaining_of_a_holder_elsewhere_runs_down_to_nothing(gate) -> None:
    gate.refused_until = 12

    assert gate.remaining(now=10) == 2
    assert gate.remaining(now=13) == 0


def test_remaining_of_a_holder_here_is_its_own(gate) -> None:
    (holder,) = entered(gate, 1)
    gate.refused_until = 12
    gate.granted(holder)
    assert gate.remaining(now=10) is None, "nobody relies on it yet"

    possession = Possession(5)
    gate.entrusted(holder.claim, weakref.ref(possession))
    assert gate.remaining(now=10) == 5

    del possession
    assert gate.remaining(now=10) is None


def test_repr(gate) -> None:
    entered(gate, 3)

    assert repr(gate) == "<Gate held_here=False asking=True queued=2>"


# Somebody comes, leaves, is granted it, lets go. The number chooses among those whom it can befall.
happenings = st.lists(
    st.tuples(st.sampled_from(["enter", "leave", "grant", "grant once", "vacate"]), st.integers(0, 5))
)


@given(happenings)
def test_whatever_happens_exactly_one_asks_if_anybody_waits_and_nobody_holds(happenings) -> None:
    idle = Idle()
    gate: Any = Gate(idle)
    waiting: list[Waiter] = []
    holders: list[Waiter] = []
    for happening, number in happenings:
        asking = [waiter for waiter in waiting if waiter.told]
        if happening == "enter":
            waiting += entered(gate, 1)
        elif happening == "leave" and waiting:
            gate.leave(waiting.pop(number % len(waiting)))
        elif happening == "grant" and asking and not holders:
            waiting.remove(asking[0])
            holders = [asking[0]]
            gate.granted(asking[0])
        elif happening == "grant once" and not holders:
            holders = [Waiter()]
            gate.try_beside(holders[0])
            gate.granted(holders[0])
        elif happening == "vacate" and holders:
            gate.vacated(holders.pop().claim)

        asking = [waiter for waiter in waiting if waiter.told]
        assert asking == waiting[: len(asking)], "out of turn"
        assert len(asking) <= 1
        if waiting and not holders:
            assert len(asking) == 1
        assert gate.held_here == bool(holders)
        was_idle, idle.count = idle.count > 0, 0
        if was_idle:
            assert not waiting
            assert not holders
