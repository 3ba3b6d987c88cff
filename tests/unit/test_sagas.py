"""Calls that take several requests: each line of the invariants in `transport/cluster/sagas.py`."""

from __future__ import annotations

import asyncio
import gc
import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast
from weakref import ref

import pytest

import aiolocks.transport.cluster.sagas as module
from aiolocks.transport.answers import Granted, Refused, released
from aiolocks.transport.cluster.redirects import Redirects
from aiolocks.transport.cluster.sagas import Adopting, Saga, SagaCommand, Sagas, State, Taking, Together
from aiolocks.transport.faults import Fault, unanswered
from aiolocks.transport.request import Request, ignore
from aiolocks.transport.steps.standing import BEHIND, PASSING, SEATED, STAYING, WAITING

RUNG = [1, b"bell"]
NOBODY = [1]
SLOTS = 3


def granted(token: int) -> Granted:
    return Granted(token, 0)


REFUSED = Refused(100, seated=True)


class Stage:
    """A saga, and what it sends: each request by the name and the slot that stand in its key."""

    def __init__(self, saga: Callable[[], Saga], *, make: bool = False) -> None:
        self.parts: list[Request[Any]] = []
        self.rung: list[bytes] = []
        self.ends: list[Any] = []

        def made() -> SagaCommand[Any]:
            return SagaCommand(saga, (b"k",), lane="")

        self.call = made().ask(self.ends.append, self.ends.append, until=10.0, make=made if make else None)
        self.sagas = Sagas(
            send=lambda call, at_once: self.parts.append(call),
            on_rung=self.rung.extend,
            loop=cast("asyncio.AbstractEventLoop", SimpleNamespace(time=lambda: 0.0)),
        )
        self.sagas.begin(self.call, at_once=False)
        self.saga = self.sagas._begun.get(self.call)

    @property
    def state(self) -> State | None:
        return None if self.saga is None else self.saga.state

    def sent(self) -> list[str]:
        """The requests that were sent since this was asked last."""
        told, self._told = getattr(self, "_told", 0), len(self.parts)
        return [part.keys[0].decode() for part in self.parts[told:]]

    def part(self, name: str) -> Request[Any]:
        return next(part for part in reversed(self.parts) if part.keys[0].decode() == name)

    def leave(self) -> None:
        self.sagas.forget(self.call)
        self.call.done = True


def request(name: str, slot: int, *args: int, parse: Callable[[Any], Any] = lambda raw: raw) -> Request[Any]:
    return Request(None, (f"{name} {slot}".encode(),), args, parse)


def taking(standing: int = WAITING) -> Stage:
    return Stage(
        lambda: Taking(
            SLOTS,
            lambda slot, asking: request("take", slot, asking),
            lambda slot, minted, leaving: request("seal", slot, minted, int(leaving)),
            lambda slot: request("back", slot, parse=released),
            standing=standing,
            seconds=30.0,
        )
    )


def adopting() -> Stage:
    return Stage(
        lambda: Adopting(SLOTS, lambda slot: request("adopt", slot), lambda slot: request("restore", slot))
    )


def two_releases() -> Stage:
    return Stage(
        lambda: Together(
            [request("release", slot, parse=released) for slot in range(2)], lambda answers: answers
        )
    )


def grant(stage: Stage, *tokens: int) -> None:
    for slot, token in enumerate(tokens):
        stage.part(f"take {slot}").reply(granted(token))


def test_the_table_at_the_head_has_the_states_that_may_follow() -> None:
    rows = re.findall(r"^\| (.*?) \| `([A-Z]+)` \|", module.__doc__ or "", re.MULTILINE)
    told = {(before, after) for left, after in rows for before in re.findall("`([A-Z]+)`", left)}
    told |= {(state.name, "ENDED") for state in State if state not in (State.BEGUN, State.ENDED)}
    assert told == {(before.name, state.name) for before, after in module._AFTER.items() for state in after}


# -- 1. one slot after the other


def test_a_slot_is_asked_when_all_before_it_have_granted() -> None:
    stage = taking()
    assert stage.sent() == ["take 0"]
    stage.part("take 0").reply(granted(5))
    assert (stage.sent(), stage.state) == (["take 1"], State.TAKING)
    stage.part("take 1").reply(granted(6))
    assert stage.sent() == ["take 2"]
    stage.part("take 2").reply(granted(7))
    assert (stage.sent(), stage.state) == ([f"seal {slot}" for slot in range(SLOTS)], State.SEALING)


def test_the_queues_are_left_when_all_slots_have_granted() -> None:
    for standing, leaves in ((SEATED, 1), (SEATED | STAYING, 0), (0, 0)):
        stage = taking(standing | PASSING)
        grant(stage, 5, 5, 5)
        asked = [part.args for part in stage.parts]
        assert asked == [(0,)] * SLOTS + [(5, leaves)] * SLOTS


# -- 2. what was taken is given back


@pytest.mark.parametrize("slot", range(SLOTS))
@pytest.mark.parametrize("woken", [False, True], ids=["", "woken"])
def test_a_refusal_gives_back_what_was_taken_before_it(slot: int, woken: bool) -> None:
    """One that was woken has the slot that refused wake the next waiter, too."""
    stage = taking(WAITING | PASSING if woken else WAITING)
    grant(stage, *range(slot))
    stage.sent()
    stage.part(f"take {slot}").reply(REFUSED)
    others = [f"take {other}" for other in range(SLOTS) if other != slot]
    assert stage.sent() == [*(f"back {one}" for one in range(slot + woken)), *others]
    assert stage.state is State.SEATING
    assert all(part.args == (WAITING | BEHIND,) for part in stage.parts[-len(others) :])
    for other in others:
        assert stage.ends == []
        stage.part(other).reply(REFUSED)
    assert stage.ends == [REFUSED]


def test_a_single_try_takes_no_seat() -> None:
    stage = taking(0)
    grant(stage, 1)
    stage.sent()
    stage.part("take 1").reply(REFUSED)
    assert (stage.sent(), stage.ends, stage.state) == (["back 0"], [REFUSED], State.ENDED)


@pytest.mark.parametrize("slot", range(SLOTS))
def test_a_slot_that_does_not_answer_is_given_back_with_the_slots_before_it(slot: int) -> None:
    """It may have granted."""
    stage = taking()
    grant(stage, *range(slot))
    stage.sent()
    stage.part(f"take {slot}").fault(Fault(unanswered(None).error, transient=True, unknown=False))
    assert stage.sent() == [f"back {one}" for one in range(slot + 1)]
    (end,) = stage.ends
    assert (end.unknown, stage.call.unconfirmed) == (True, True)


def test_a_lease_that_one_slot_has_lost_is_given_back_in_all() -> None:
    for ends in ([0, -1, 0], None):
        stage = taking()
        grant(stage, 5, 6, 7)
        stage.sent()
        for slot in range(SLOTS):
            if ends is not None:
                stage.part(f"seal {slot}").reply(ends[slot])
        if ends is None:
            stage.part("seal 1").fault(unanswered(None))
        assert stage.sent() == [f"back {slot}" for slot in range(SLOTS)]
        (end,) = stage.ends
        assert isinstance(end, Fault if ends is None else Refused)


def test_a_waiter_whose_seat_is_in_doubt_gives_back_as_well() -> None:
    stage = taking()
    grant(stage, 5)
    stage.part("take 1").reply(REFUSED)
    stage.sent()
    stage.part("take 2").fault(unanswered(None))
    assert stage.sent() == ["back 0", "back 1"]
    assert stage.saga is not None
    assert [type(end) for end in stage.ends] == [Fault]


# -- 3. granted by all


def test_granted_is_what_all_have_confirmed_with_the_largest_token() -> None:
    stage = taking()
    grant(stage, 5, 9, 7)
    assert [part.args[0] for part in stage.parts[SLOTS:]] == [9, 9, 9]
    for slot, others in enumerate((0, 2, 1)):
        assert stage.ends == []
        stage.part(f"seal {slot}").reply(others)
    (end,) = stage.ends
    assert (end.fencing_token, end.others) == (9, 2)


# -- adoption


def test_adopted_is_what_all_have_adopted() -> None:
    stage = adopting()
    for slot, token in enumerate((5, 9, 7)):
        assert (stage.sent(), stage.ends) == ([f"adopt {slot}"], [])
        stage.part(f"adopt {slot}").reply(token)
    assert stage.ends == [9]


@pytest.mark.parametrize("slot", range(SLOTS))
def test_what_is_gone_in_one_slot_is_adopted_back_in_the_slots_before_it(slot: int) -> None:
    stage = adopting()
    for one in range(slot):
        stage.part(f"adopt {one}").reply(5)
    stage.sent()
    stage.part(f"adopt {slot}").reply(None)
    assert stage.sent() == [f"restore {one}" for one in range(slot)]
    for one in range(slot):
        assert stage.ends == []
        stage.part(f"restore {one}").reply(5)
    assert stage.ends == [None]


# -- 4. nothing after the end


def test_a_caller_that_has_left_asks_no_other_slot() -> None:
    stage = taking()
    stage.part("take 0").reply(granted(5))
    stage.sent()
    stage.leave()
    stage.part("take 1").reply(granted(6))
    assert (stage.sent(), stage.ends, stage.state) == ([], [], State.ENDED)


def test_one_that_fails_ends_all_of_its_state_once() -> None:
    stage = taking()
    grant(stage, 5, 6, 7)
    stage.part("seal 0").fault(unanswered(None))
    stage.sent()
    stage.part("seal 1").reply(0)
    stage.part("seal 2").fault(unanswered(None))
    assert (stage.sent(), len(stage.ends)) == ([], 1)


def test_a_transport_that_is_closed_is_asked_no_more() -> None:
    """It ends each request at once."""
    ends: list[Any] = []
    call: SagaCommand[Any] = SagaCommand(
        lambda: Together([request("one", 0), request("other", 1)], list), (b"k",), lane=""
    ).ask(ignore, ends.append, until=10.0)
    sent: list[Request[Any]] = []

    def refuse(part: Request[Any], *, at_once: bool) -> None:
        sent.append(part)
        part.fault(unanswered(None))

    sagas = Sagas(refuse, ignore, cast("asyncio.AbstractEventLoop", SimpleNamespace(time=lambda: 0.0)))
    sagas.begin(call, at_once=False)
    assert (len(sent), len(ends)) == (1, 1)
    assert sagas._begun == {}


def test_no_state_follows_the_end() -> None:
    stage = taking()
    stage.leave()
    assert stage.saga is not None
    with pytest.raises(AssertionError, match=r"<Taking ENDED, 1 of 1 under way> cannot go to SEALING"):
        stage.saga._go(State.SEALING, [])


@pytest.mark.parametrize("end", ["answered", "failed", "left"])
def test_one_that_has_ended_leaves_no_circle(end: str) -> None:
    stage = two_releases()
    for part in stage.parts:
        if end == "answered":
            part.reply(NOBODY)
        elif end == "failed":
            part.fault(unanswered(None))
        else:
            stage.leave()
    last = ref(part)
    gc.disable()
    try:
        stage.parts.clear()
        stage.saga = None
        del part
        assert last() is None
    finally:
        gc.enable()


# -- 5. whom it has woken


@pytest.mark.parametrize("before", [True, False], ids=["before", "behind"])
def test_whom_a_course_has_woken_is_told_also_when_its_caller_leaves(*, before: bool) -> None:
    stage = two_releases()
    if before:
        stage.parts[0].reply(RUNG)
    stage.leave()
    if not before:
        stage.parts[0].reply(RUNG)
    stage.parts[1].reply(NOBODY)
    assert stage.rung == [b"bell"]


@pytest.mark.parametrize("before", [True, False], ids=["before", "behind"])
def test_whom_a_course_has_woken_is_told_also_when_another_part_of_it_fails(*, before: bool) -> None:
    stage = two_releases()
    if before:
        stage.parts[0].reply(RUNG)
    stage.parts[1].fault(unanswered(None))
    if not before:
        stage.parts[0].reply(RUNG)
    assert stage.call.done
    assert stage.rung == [b"bell"]


def test_what_a_course_answers_its_caller_tells() -> None:
    stage = two_releases()
    for part in stage.parts:
        part.reply(RUNG)
    assert stage.rung == []


def test_whom_the_way_back_has_woken_is_told() -> None:
    stage = taking()
    grant(stage, 5)
    stage.part("take 1").reply(REFUSED)
    stage.part("back 0").reply(RUNG)
    assert stage.rung == [b"bell"]


# -- 6. from when it counts


def test_a_course_counts_from_when_its_first_part_was_written() -> None:
    """Until then, it has waited for other requests of its lane: of its lease, that costs nothing."""
    stage = two_releases()
    for part, sent in zip(stage.parts, (0.25, 0.125), strict=True):
        part.sent = part.sent_steady = sent
        part.reply(NOBODY)
    assert stage.call.done
    assert (stage.call.sent, stage.call.sent_steady) == (0.125, 0.125)


def test_it_counts_from_its_first_state_alone() -> None:
    stage = taking()
    for name, sent in (("take 0", 0.125), ("take 1", 0.25), ("take 2", 0.5)):
        part = stage.part(name)
        part.sent = part.sent_steady = sent
        part.reply(granted(5))
    assert (stage.call.sent, stage.call.sent_steady) == (0.125, 0.125)


def test_one_that_may_have_been_executed_before_makes_the_whole_doubtful() -> None:
    stage = two_releases()
    stage.parts[0].unconfirmed = True
    for part in stage.parts:
        part.reply(NOBODY)
    assert stage.call.unconfirmed


def test_the_first_requests_are_made_again_when_they_are_written() -> None:
    """What they say may depend on the time; what follows them is made when it is sent."""
    made: list[Request[Any]] = []

    def steps() -> Saga:
        made.append(request("release", len(made)))
        return Together([made[-1]], list)

    stage = Stage(steps, make=True)
    (part,) = stage.parts
    before = len(made)
    part.words()
    assert part.keys == (f"release {len(made) - 1}".encode(),)
    assert len(made) > before


def test_a_caller_is_told_once_of_an_undo_that_is_sent_again_when_its_slot_has_moved() -> None:
    """A waiter that the second one wakes is told, and nothing else: a saga counts its answers."""
    held: list[Request[Any]] = []
    backlogs = SimpleNamespace(closed=False, hold=lambda slot, call, pause: held.append(call))
    cluster: Any = SimpleNamespace(_backlogs=backlogs)
    told, late = list[Any](), list[Any]()
    command = Request(None, (b"k",), (), released)
    call = command.again().ask(ignore, ignore, until=10.0, undoes=True, on_late=late.append)

    Redirects._undo_the_rest(cluster, 1, call, told.append, released(NOBODY))
    (rest,) = held
    rest.reply(RUNG)

    assert [answer.rung for answer in told] == [()]
    assert [answer.rung for answer in late] == [[b"bell"]]
