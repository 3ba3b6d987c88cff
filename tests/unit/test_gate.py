"""The gate: first come, first served, and of those who wait one asks."""

from __future__ import annotations

import weakref
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiolocks._core.claim import SIMPLE, Manner
from aiolocks._core.gate import Gate
from aiolocks._core.bells import Bells
from aiolocks._transport import Call, Command, Granted


class Claim:
    """Of an owner of its own, unless it is said whose."""

    def __init__(self, owner: str = "") -> None:
        self.owner = owner or str(id(self))
        self.nests = bool(owner)

    def arm(self) -> Any:
        return Command(None, (b"bell",), ("arm",), bool, bell=b"bell")


class Waiter:
    """Stands for an acquisition: writes down what the gate tells it."""

    def __init__(self) -> None:
        self.claim = Claim()
        self.told: list[str] = []
        self.asleep = True
        self.unanswered = True
        self.noted = False
        self.carried = False
        self.arming: Call[int] | None = None

    def take_turn(self, *, woken: bool, in_turn: bool) -> None:
        self.told.append(("woken" if woken else "at once") + (", in turn" if in_turn else ""))

    def prompt(self, way: str, *, in_turn: bool) -> None:
        self.told.append("prompted" + (", in turn" if in_turn else ""))


class Possession:
    def __init__(self, remaining: float) -> None:
        self.remaining = lambda: remaining


class Surroundings:
    """Stands for the engine and for the resource of a gate: keeps what is sent, and when it is."""

    def __init__(self) -> None:
        self.time = 1000.0
        self.sent: list[Call[Any]] = []
        self.hears = True
        self.longest_sleep: float | None = None
        self.loop = Mock(time=self.now)
        self.bells: Any = Bells(self.loop)
        self.all_bells = (b"bell",)
        self.commands = self
        self.manner = SIMPLE
        self.settings = Mock(command_timeout=5)

    def now(self) -> float:
        return self.time

    def send(self, call: Call[Any], *, more: bool = False) -> None:
        self.sent.append(call)


@pytest.fixture
def around() -> Surroundings:
    return Surroundings()


@pytest.fixture
def gate(around) -> Any:
    return make_gate(around)


def make_gate(around: Any) -> Any:
    return Gate(around, around)


def hold(gate: Any, *, others: int = 0) -> Waiter:
    """Somebody here who holds it, granted while so many others stood in the queue."""
    (waiter,) = entered(gate, 1)
    gate.granted(waiter, Granted(1, others), gate._engine.now())
    return waiter


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
    gate.granted(waiters[0], Granted(1, 0), gate._engine.now())

    assert told([*waiters, *entered(gate, 1)]) == [["at once"], [], []]
    assert gate.held_here


def test_who_lets_go_wakes_the_next(gate) -> None:
    waiters = entered(gate, 3)
    gate.granted(waiters[0], Granted(1, 0), gate._engine.now())

    gate.vacated(waiters[0].claim)

    assert told(waiters) == [["at once"], ["woken"], []]
    assert not gate.held_here


def test_a_claim_that_does_not_hold_lets_go_of_nothing(gate) -> None:
    waiters = entered(gate, 2)
    gate.granted(waiters[0], Granted(1, 0), gate._engine.now())

    gate.vacated(waiters[1].claim)
    gate.vacated(Claim())

    assert gate.held_here
    assert told(waiters) == [["at once"], []]


def test_who_lets_go_twice_wakes_one(gate) -> None:
    waiters = entered(gate, 3)
    gate.granted(waiters[0], Granted(1, 0), gate._engine.now())

    gate.vacated(waiters[0].claim)
    gate.vacated(waiters[0].claim)

    assert told(waiters) == [["at once"], ["woken"], []]


def test_a_single_try_beside_the_queue_that_lets_go_prompts_the_head(gate) -> None:
    head, behind = entered(gate, 2)
    once = Waiter()
    gate.try_beside(once)
    gate.granted(once, Granted(1, 0), gate._engine.now())

    gate.vacated(once.claim)

    assert head.told == ["at once", "prompted"]
    assert behind.told == []


def test_a_head_that_leaves_while_it_is_held_here_lets_nobody_ask(gate) -> None:
    head, behind = entered(gate, 2)
    gate.granted(Waiter(), Granted(1, 0), gate._engine.now())

    gate.leave(head)

    assert behind.told == []


def test_an_adopted_claim_holds_it(gate) -> None:
    claim = Claim()
    gate.entrusted(claim, weakref.ref(Possession(5)))
    (waiter,) = entered(gate, 1)
    assert waiter.told == []

    gate.vacated(claim)

    assert waiter.told == ["woken"]


def test_a_single_try_asks_without_being_asked_to(gate) -> None:
    once = Waiter()
    gate.try_beside(once)
    gate.leave(once)

    assert once.told == []


def test_remaining_is_unknown_at_first(gate) -> None:
    assert gate.remaining(now=10) is None


def test_remaining_of_a_holder_elsewhere_runs_down_to_nothing(gate) -> None:
    gate.refused_until = 12

    assert gate.remaining(now=10) == 2
    assert gate.remaining(now=13) == 0


def test_remaining_of_a_holder_here_is_its_own(gate) -> None:
    (holder,) = entered(gate, 1)
    gate.refused_until = 12
    gate.granted(holder, Granted(1, 0), gate._engine.now())
    assert gate.remaining(now=10) is None, "nobody relies on it yet"

    possession = Possession(5)
    gate.entrusted(holder.claim, weakref.ref(possession))
    assert gate.remaining(now=10) == 5

    del possession
    assert gate.remaining(now=10) is None


def test_repr(gate) -> None:
    entered(gate, 3)

    assert repr(gate) == "<Gate held_here=False asking=True queued=2>"


# -- between processes ---------------------------------------------------------------------------------------


def test_a_release_behind_which_nobody_waits_here_wakes_who_waits_elsewhere(gate) -> None:
    holder = hold(gate)

    assert gate.letting_go(holder.claim)


def test_a_hand_over_here_wakes_nobody_elsewhere(gate) -> None:
    holder = hold(gate, others=3)
    (behind,) = entered(gate, 1)

    assert not gate.letting_go(holder.claim)
    gate.vacated(holder.claim)

    assert behind.told == ["woken"]


def test_after_a_run_of_hand_overs_it_is_anothers_turn(gate) -> None:
    holder = hold(gate, others=1)
    rang = []
    for _ in range(20):
        (behind,) = entered(gate, 1)
        rang.append(gate.letting_go(holder.claim))
        gate.vacated(holder.claim)
        gate.granted(behind, Granted(1, 1), gate._engine.now())
        holder = behind

    assert rang == [False] * 16 + [True] + [False] * 3
    assert holder.told == ["woken"]


def test_whose_turn_is_over_goes_behind_the_others(gate, around) -> None:
    holder = hold(gate, others=1)
    (behind,) = entered(gate, 1)
    around.time += 0.06

    assert gate.letting_go(holder.claim)
    gate.vacated(holder.claim)

    assert behind.told == ["woken, in turn"]


def test_without_others_a_run_has_no_end(gate, around) -> None:
    holder = hold(gate, others=0)
    entered(gate, 1)
    around.time += 60

    assert not gate.letting_go(holder.claim)


def test_who_has_just_woken_another_process_lets_it_go_first(gate, around) -> None:
    holder = hold(gate)
    gate.letting_go(holder.claim)
    gate.vacated(holder.claim)
    gate.let_go([b"bell of another"], overtaken=False)

    (soon,) = entered(gate, 1)
    gate.leave(soon)
    around.time += 0.01
    (later,) = entered(gate, 1)

    assert soon.told == ["at once, in turn"]
    assert later.told == ["at once"]


def test_where_nobody_hears_a_run_is_as_long_as_some_sleeps(gate, around) -> None:
    around.longest_sleep = 0.064
    holder = hold(gate, others=1)
    entered(gate, 1)
    around.time += 0.25
    assert not gate.letting_go(holder.claim)

    around.time += 0.01
    assert gate.letting_go(holder.claim)


def test_where_nobody_hears_who_has_given_another_its_turn_lets_it_sleep_out(gate, around) -> None:
    around.longest_sleep = 0.064
    holder = hold(gate, others=1)
    entered(gate, 1)
    around.time += 1
    gate.letting_go(holder.claim)
    gate.vacated(holder.claim)
    gate.let_go([b"bell of another"], overtaken=False)

    assert gate.yielding
    around.time += 0.065
    assert not gate.yielding


def test_where_nobody_hears_a_lock_does_not_lie_idle_for_each_single_hand_over(gate, around) -> None:
    around.longest_sleep = 0.064
    holder = hold(gate, others=1)
    gate.letting_go(holder.claim)
    gate.vacated(holder.claim)
    gate.let_go([b"bell of another"], overtaken=False)

    assert not gate.yielding


@pytest.mark.parametrize("rung", [(), [b"bell"]])
def test_who_has_woken_nobody_elsewhere_lets_nobody_go_first(gate, rung) -> None:
    holder = hold(gate)
    gate.letting_go(holder.claim)
    gate.vacated(holder.claim)
    gate.let_go(rung, overtaken=False)

    assert entered(gate, 1)[0].told == ["at once"]


def test_the_last_to_leave_behind_a_quiet_hand_over_owes_the_others_a_wakeup(gate) -> None:
    holder = hold(gate, others=1)
    first, second = entered(gate, 2)
    gate.letting_go(holder.claim)
    gate.vacated(holder.claim)
    assert not gate.is_last(first)

    gate.leave(first)

    assert gate.is_last(second)
    assert gate.unsettled
    gate.settled()
    assert not gate.unsettled


@pytest.mark.parametrize("answer", ["granted", "refused"])
def test_an_answer_behind_a_quiet_hand_over_settles_it(gate, answer) -> None:
    holder = hold(gate, others=1)
    (first,) = entered(gate, 1)
    gate.letting_go(holder.claim)
    gate.vacated(holder.claim)
    assert gate.unsettled

    if answer == "granted":
        gate.granted(first, Granted(1, 1), gate._engine.now())
    else:
        assert gate.refused(first)

    assert not gate.unsettled


def test_who_stands_in_the_queue_owes_the_others_to_leave_it(gate) -> None:
    (waiter,) = entered(gate, 1)
    gate.arm(Claim(), until=0)

    assert gate.is_last(waiter)
    assert gate.unsettled
    gate.settled()
    assert not gate.unsettled
    assert not gate.place.taken


def test_a_single_try_is_never_the_last(gate) -> None:
    once = Waiter()
    gate.try_beside(once)

    assert not gate.is_last(once)


def test_a_rung_bell_prompts_the_head(gate, around) -> None:
    head, behind = entered(gate, 2)
    gate.arm(Claim(), until=0)

    around.bells.rung("tracking", [b"bell", b"bell of another"])

    assert head.told == ["at once", "prompted"]
    assert behind.told == []
    assert not gate.place.armed


def test_a_bell_that_is_not_hung_up_prompts_nobody(gate, around) -> None:
    (head,) = entered(gate, 1)

    around.bells.rung("tracking", [b"bell"])
    around.bells.rung("tracking", None)

    assert head.told == ["at once"]


def test_when_nobody_knows_what_was_rung_every_head_is_prompted(gate, around) -> None:
    (head,) = entered(gate, 1)
    gate.arm(Claim(), until=0)

    around.bells.rung("tracking", None)

    assert head.told == ["at once", "prompted"]


def test_whose_bell_may_be_gone_with_somebody_else_tries_again(around) -> None:
    gate = make_gate_of(around)
    (head,) = entered(gate, 1)
    gate.arm(head.claim, until=0)

    gate.bell_gone()
    head.asleep = False
    gate.bell_gone()

    assert head.told == ["at once", "prompted"]
    assert not gate.place.armed


def test_whose_bell_may_be_gone_waits_while_it_is_held_here(gate) -> None:
    (head,) = entered(gate, 1)
    trying = Waiter()
    gate.try_beside(trying)
    gate.granted(trying, Granted(1, 0), 0)

    gate.bell_gone()

    assert head.told == ["at once"]


def test_a_bell_is_hung_up_anew_while_its_owner_sleeps(gate, around) -> None:
    (head,) = entered(gate, 1)
    gate.arm(Claim(), until=0)
    gate.renew_place(until=0)
    assert len(around.sent) == 2

    head.asleep = False  # what it has asked may be granted, and then nobody would wait for the bell
    gate.renew_place(until=0)
    assert len(around.sent) == 2


def test_a_bell_that_was_gone_when_it_was_hung_up_anew_counts_as_rung(gate, around) -> None:
    (head,) = entered(gate, 1)
    gate.arm(Claim(), until=0)
    gate.renew_place(until=0)

    around.sent[-1].reply(0)

    assert head.told == ["at once", "prompted"]


def test_a_bell_that_is_rung_while_it_is_held_here_prompts_nobody(gate, around) -> None:
    (head,) = entered(gate, 1)
    gate.arm(Claim(), until=0)
    gate.granted(Waiter(), Granted(1, 0), gate._engine.now())

    around.bells.rung("tracking", [b"bell"])

    assert head.told == ["at once"]


# Somebody comes, leaves, is granted it, lets go. The number chooses among those whom it can befall.
happenings = st.lists(
    st.tuples(
        st.sampled_from(["enter", "leave", "grant", "grant once", "vacate", "release"]), st.integers(0, 5)
    )
)


@given(happenings)
def test_whatever_happens_exactly_one_asks_if_anybody_waits_and_nobody_holds(happenings) -> None:
    gate = make_gate(Surroundings())
    waiting: list[Waiter] = []
    holders: list[Waiter] = []
    for happening, number in happenings:
        asking = [waiter for waiter in waiting if waiter.told]
        if happening == "enter":
            waiting += entered(gate, 1)
        elif happening == "leave" and waiting:
            leaver = waiting[number % len(waiting)]
            if gate.is_last(leaver) and gate.unsettled:
                assert len(waiting) == 1
                gate.settled()
            waiting.remove(leaver)
            gate.leave(leaver)
        elif happening == "grant" and asking and not holders:
            waiting.remove(asking[0])
            holders = [asking[0]]
            gate.granted(asking[0], Granted(1, 0), gate._engine.now())
        elif happening == "grant once" and not holders:
            holders = [Waiter()]
            gate.try_beside(holders[0])
            gate.granted(holders[0], Granted(1, 0), gate._engine.now())
        elif happening == "vacate" and holders:
            gate.vacated(holders.pop().claim)
        elif happening == "release" and holders:
            holder = holders.pop()
            quiet = not gate.letting_go(holder.claim)
            gate.vacated(holder.claim)
            gate.let_go((), overtaken=False)
            assert not quiet or (waiting and gate.unsettled)

        asking = [waiter for waiter in waiting if waiter.told]
        assert asking == waiting[: len(asking)], "out of turn"
        assert len(asking) <= 1
        if waiting and not holders:
            assert len(asking) == 1
        assert gate.held_here == bool(holders)
        if not waiting:
            assert not gate.unsettled


# -- other manners than that of the simple lock --------------------------------------------------------------


def make_gate_of(around: Any, **manner: bool) -> Any:
    around.manner = Manner(**manner)
    return make_gate(around)


def arms(around: Surroundings) -> int:
    return sum(call.command.args == ("arm",) for call in around.sent)


def test_where_several_may_hold_the_next_asks_behind_a_grant(around) -> None:
    gate = make_gate_of(around, eager=True)
    waiters = entered(gate, 3)

    gate.granted(waiters[0], Granted(1, 0), around.time)

    assert told(waiters) == [["at once"], ["woken"], []]


def test_where_there_is_room_for_several_they_ask_at_the_same_time(around) -> None:
    gate = make_gate_of(around, eager=True)
    waiters = entered(gate, 5)

    gate.granted(waiters[0], Granted(1, 0, room=2), around.time)

    assert told(waiters) == [["at once"], ["woken"], ["woken"], [], []]


def test_who_asked_beside_the_head_and_was_refused_waits_behind_it_before_the_others(around) -> None:
    gate = make_gate_of(around, eager=True)
    waiters = entered(gate, 4)
    gate.granted(waiters[0], Granted(1, 0, room=2), around.time)

    assert not gate.refused(waiters[2])
    gate.leave(waiters[1])

    assert told(waiters) == [["at once"], ["woken"], ["woken", "woken"], []]


def test_who_asked_beside_a_head_that_has_left_becomes_the_head(around) -> None:
    gate = make_gate_of(around, eager=True)
    waiters = entered(gate, 3)
    gate.granted(waiters[0], Granted(1, 0, room=2), around.time)
    gate.granted(waiters[1], Granted(1, 0), around.time)

    assert gate.refused(waiters[2])


def test_it_is_held_here_until_the_last_has_let_go(around) -> None:
    gate = make_gate_of(around, eager=True)
    waiters = entered(gate, 2)
    for waiter in waiters:
        gate.granted(waiter, Granted(1, 0), around.time)

    gate.vacated(waiters[0].claim)
    assert gate.held_here
    gate.vacated(waiters[1].claim)
    assert not gate.held_here


def test_who_is_not_eager_waits_to_be_called(around) -> None:
    gate = make_gate_of(around)
    holder, head = entered(gate, 2)
    gate.granted(holder, Granted(1, 0), around.time)

    assert gate.letting_go(holder.claim), "whoever it is"
    gate.vacated(holder.claim)

    assert head.told == ["woken"]


def test_a_place_that_was_kept_for_who_has_left_is_given_up(around) -> None:
    around.undo = Mock()
    gate = make_gate_of(around, together=True)
    (head,) = entered(gate, 1)
    gate.arm(head.claim, until=0)

    gate.granted(head, Granted(1, 0, room=9), around.time)

    assert not gate.place.taken
    around.undo.assert_called_once()
    assert around.undo.call_args.kwargs == {"leave": True}


def test_a_place_is_kept_for_who_enters_behind_the_head(around) -> None:
    around.undo = Mock()
    gate = make_gate_of(around, together=True)
    head, _ = entered(gate, 2)
    gate.arm(head.claim, until=0)

    gate.granted(head, Granted(1, 0, room=9), around.time)

    assert gate.place.taken
    around.undo.assert_not_called()


def entering(around: Any, fellows: int) -> tuple[Any, list[Waiter], Waiter]:
    """A gate where one has got in by the place, so many that waited come along, and one has come since."""
    around.undo = Mock()
    gate = make_gate_of(around, together=True)
    head, *along = entered(gate, 1 + fellows)
    gate.arm(head.claim, until=0)
    gate.granted(head, Granted(1, 0, room=9), around.time)
    assert told(along) == [["woken"]] * fellows
    (late,) = entered(gate, 1)
    return gate, along, late


def test_who_comes_while_others_enter_together_asks_after_them_without_their_place(around) -> None:
    gate, along, late = entering(around, 3)

    gate.granted(along[1], Granted(1, 0, room=9), around.time)
    gate.granted(along[0], Granted(1, 0, room=9), around.time)
    assert late.told == []
    around.undo.assert_not_called()
    around.undo.side_effect = lambda *_, leave: late.told.append(f"left: {leave}")
    gate.granted(along[2], Granted(1, 0, room=9), around.time)

    assert late.told == ["left: True", "woken"]
    assert not gate.place.taken


def test_who_comes_while_others_enter_together_asks_when_the_last_of_them_has_given_up(around) -> None:
    gate, along, late = entering(around, 2)

    for waiter in along:
        gate.leave(waiter)

    assert late.told == ["woken"]
    assert not gate.place.taken


def test_those_who_are_refused_wait_on_together_with_who_came_meanwhile(around) -> None:
    gate, along, late = entering(around, 2)

    assert gate.refused(along[0])
    gate.granted(along[0], Granted(1, 0, room=9), around.time)

    assert late.told == ["woken"]


def test_a_seat_that_may_have_been_put_back_is_given_up_with_the_place(around) -> None:
    around.undo = Mock()
    gate = make_gate_of(around, exclusive=True, strict=True)
    (last,) = entered(gate, 1)
    last.claim.token = "0123456789abcdef" * 2
    gate.arm(last.claim, until=0)

    gate.give_up_seat(last)

    (nobody, _), how = around.undo.call_args
    assert (nobody.token, how, gate.place.taken) == ("0123456789abcdef", {"leave": True}, False)


def test_strictly_everybody_who_waits_has_a_seat(around) -> None:
    gate = make_gate_of(around, exclusive=True, eager=True, strict=True)
    waiters = entered(gate, 3)

    assert arms(around) == 2, "all but the head, who gets one if he is refused"
    assert [waiter.noted for waiter in waiters] == [False, True, True]


@pytest.mark.parametrize("whose", ["a waiter here", "one that has left"])
def test_strictly_a_seat_before_all_others_is_used_or_given_up(around, whose) -> None:
    """Requests can overtake each other: that waiter sat down before the one that asks."""
    gate = make_gate_of(around, exclusive=True, eager=True, strict=True)
    around.undo = Mock()
    waiters = entered(gate, 3)
    for number, waiter in enumerate(waiters):
        waiter.claim.token = f"{number:032x}"[::-1]

    if whose == "a waiter here":
        gate.goes_first(waiters[2].claim.token[:16])
        assert told(waiters) == [["at once"], [], ["woken"]]
        gate.goes_first(waiters[2].claim.token[:16])  # it asks already
        assert told(waiters) == [["at once"], [], ["woken"]]
        assert not around.undo.called
    else:
        gate.goes_first("f" * 16)
        assert told(waiters) == [["at once"], [], []]
        assert [call.args[0].token for call in around.undo.call_args_list] == ["f" * 16]


def test_strictly_nobody_asks_for_a_seat_while_it_is_held_here(around) -> None:
    gate = make_gate_of(around, exclusive=True, eager=True, strict=True)
    hold(gate)
    (waiter,) = entered(gate, 1)
    waiter.claim.token = "a" * 32

    gate.goes_first("a" * 16)
    assert waiter.told == []


@pytest.mark.parametrize("others", [0, 1])
def test_strictly_a_seat_that_came_too_late_is_given_up_by_name(around, others) -> None:
    """Not only the bell: the seat would live by the bell of the next waiter here."""
    gate = make_gate_of(around, exclusive=True, eager=True, strict=True)
    around.undo = Mock()
    waiter, *_ = entered(gate, 1 + others)
    waiter.claim.token = "a" * 32
    gate.arm(waiter.claim, until=0.0)

    gate.give_up_seat(waiter)
    assert [call.args[0].token for call in around.undo.call_args_list] == ["a" * 16]
    assert gate.place.taken is bool(others)


def test_strictly_every_hand_over_is_told_to_others(around) -> None:
    gate = make_gate_of(around, exclusive=True, eager=True, strict=True)
    holder = hold(gate, others=1)
    (behind,) = entered(gate, 1)

    assert gate.letting_go(holder.claim)
    gate.vacated(holder.claim)

    assert behind.told == ["woken"]


def test_strictly_a_bell_is_hung_up_for_who_waits_behind_a_holder_here(around) -> None:
    gate = make_gate_of(around, exclusive=True, eager=True, strict=True)
    hold(gate)
    entered(gate, 1)
    before = arms(around)

    around.bells.rung("tracking", [b"bell"])
    gate.renew_place(until=0)

    assert arms(around) == before + 2


@pytest.mark.parametrize("how", ["missed", "anybody"])
def test_strictly_who_may_have_been_taken_for_dead_sits_down_again(around, how) -> None:
    gate = make_gate_of(around, exclusive=True, eager=True, strict=True)
    hold(gate)
    entered(gate, 3)
    gate.renew_place(until=0)
    renewal = around.sent[-1]
    before = arms(around)

    if how == "missed":
        renewal.reply(0)
    else:
        around.bells.rung("tracking", None)

    assert arms(around) - before >= 3


def test_who_owns_it_already_asks_while_it_is_held_here(gate) -> None:
    outer, other = hold(gate), entered(gate, 1)[0]
    nested = Waiter()
    nested.claim.owner = outer.claim.owner
    gate.enter(nested)
    gate.granted(nested, Granted(1, 0), 0)
    assert told([nested, other]) == [["at once"], []]

    gate.vacated(outer.claim)
    assert other.told == [], "the owner still holds it"
    gate.vacated(nested.claim)
    assert other.told == ["woken"]


def test_what_is_let_go_of_quietly_while_the_head_asks_is_told_to_others_when_nobody_here_can_use_it(
    around,
) -> None:
    around.undo = Mock()
    gate = make_gate_of(around, eager=True)
    holder, head = entered(gate, 2)
    gate.granted(holder, Granted(1, 1), around.time)
    assert not gate.letting_go(holder.claim), "quietly: the head asks for it"
    gate.vacated(holder.claim)

    gate.granted(head, Granted(2, 1), around.time)  # what he had asked for before

    around.undo.assert_called_once()
    assert not gate.owing


def test_who_asks_behind_what_was_let_go_of_quietly_tells_others_himself(around) -> None:
    around.undo = Mock()
    gate = make_gate_of(around, eager=True)
    holder, head = entered(gate, 2)
    gate.granted(holder, Granted(1, 1), around.time)
    gate.letting_go(holder.claim)
    gate.vacated(holder.claim)
    head.carried = gate.owing

    gate.granted(head, Granted(2, 1), around.time)

    around.undo.assert_not_called()
    assert not gate.owing


def test_strictly_one_asks_behind_the_other_whatever_room_there_is(around) -> None:
    gate = make_gate_of(around, eager=True, strict=True)
    waiters = entered(gate, 3)

    gate.granted(waiters[0], Granted(1, 0, room=9), around.time)

    assert told(waiters) == [["at once"], ["woken"], []]


def test_a_head_that_sleeps_when_a_release_that_woke_nobody_has_ended_tries_again(gate) -> None:
    holder = hold(gate)
    (head,) = entered(gate, 1)
    gate.letting_go(holder.claim)
    gate.vacated(holder.claim)
    gate.refused(head)  # the server did not know the script of the release, and executed the try before it

    gate.let_go((), overtaken=False)

    assert head.told == ["woken", "prompted"]


def test_what_is_let_go_of_while_the_head_asks_already_is_told_to_others(around) -> None:
    gate = make_gate_of(around, eager=True)
    holder, head = entered(gate, 2)
    gate.granted(holder, Granted(1, 1), around.time)
    head.asleep = False

    assert gate.letting_go(holder.claim)


def test_who_waits_for_what_he_owns_by_now_asks_for_it(gate) -> None:
    hold(gate)
    waiters = [Waiter() for _ in range(4)]
    waiters[0].claim, waiters[2].claim = Claim("me"), Claim("me")
    for waiter in waiters:
        gate.enter(waiter)
    gate.vacated(gate._holder)

    gate.granted(waiters[0], Granted(1, 0), 0)

    assert told(waiters) == [["woken"], [], ["woken"], []]


def test_one_who_waits_alone_behind_a_holder_is_the_last(gate) -> None:
    hold(gate)
    (waiter,) = entered(gate, 1)

    assert gate.is_last(waiter)
    assert not gate.others_wait(waiter)
