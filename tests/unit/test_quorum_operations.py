"""How the answers of several masters become one: how an operation can end, and what it sends."""

from __future__ import annotations

from typing import Any

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoPermissionError, ReadOnlyError, ResponseError

from aiolocks import BackendError, ConfigurationError
from aiolocks.kinds.redlock import RedlockSteps
from aiolocks.transport import SEATED, WAITING, Fault, Granted, LockSteps, Refused, Released, faults
from aiolocks.transport.answers import ASK, BELL_RUNG, GONE, NO_END, NOT_OURS, Vote
from aiolocks.transport.quorum.acquiring import Acquiring
from aiolocks.transport.quorum.keeping import Adopting, Carried, Renewing
from aiolocks.transport.quorum.operations import (
    CONFIRM,
    LEAVE,
    LOOK,
    TAKE,
    TOLD,
    UNDO,
    VOTE,
    Freeing,
    Listening,
    QuorumOperation,
    Voting,
)

SILENT = faults.unanswered(None)
CUT = faults.unreachable(RedisConnectionError("cut"))
DENIED = faults.refused(NoPermissionError("this user has no permissions"))
DEMOTED = faults.refused(ReadOnlyError("You can't write against a read only replica."))
FOREIGN = faults.refused(ResponseError("WRONGTYPE Operation against a key"))
MISCONFIGURED = Fault(ConfigurationError("the same server"), transient=False, unknown=False)
TOKEN = "a1" * 16


def steps() -> RedlockSteps:
    """Of a name of which nothing is known."""
    return RedlockSteps("p", "n", retention_ms=1000, session="s", node_timeout=1.0)


COMMANDS = steps()
FIVE, THREE = "abcde", "abc"


def put(command: Any, labels: str, time: int = 0) -> Any:
    operation = command.put(labels, time) if command.elects else command.put(labels)
    requests = operation.open()
    assert [(request.master, request.phase) for request in requests] == [
        (master, VOTE) for master in range(len(labels))
    ]
    return operation


def acquiring(labels: str = FIVE) -> Acquiring:
    operation: Acquiring = put(steps().acquire(TOKEN, 1000, "{}"), labels)
    return operation


def renewing(labels: str = FIVE) -> Renewing:
    operation: Renewing = put(COMMANDS.renew(TOKEN, 1000), labels)
    return operation


def where(requests: list[Any]) -> dict[int, list[int]]:
    """Masters by the phase for which something goes to them."""
    found: dict[int, list[int]] = {}
    for request in requests:
        found.setdefault(request.phase, []).append(request.master)
    return found


def grant(operation: QuorumOperation[Any], **minted: int) -> list[Any]:
    """By the masters of these names, in this order; returns the requests that must be sent then."""
    requests = []
    for label, fencing_token in minted.items():
        requests += operation.replied(FIVE.index(label), VOTE, Granted(fencing_token, 0))
    return requests


# -- acquiring


def test_the_largest_of_a_majority_is_confirmed_by_those_who_granted_it() -> None:
    operation = acquiring()
    assert grant(operation, a=7, d=9) == []

    requests = grant(operation, b=8)

    assert where(requests) == {CONFIRM + 1: [0, 1, 3]}
    assert {request.command.args[1] for request in requests} == {9}
    for master in (0, 1):
        assert operation.replied(master, CONFIRM + 1, True) == []
        assert not operation.decided
    assert operation.replied(3, CONFIRM + 1, True) == []
    assert isinstance(operation.outcome, Granted)
    assert operation.outcome.fencing_token == 9


def vote(operation: QuorumOperation[Any], label: str, minted: int, *, taken: bool = False) -> list[Any]:
    """A vote of the master of that name."""
    return operation.replied(FIVE.index(label), VOTE, Vote(minted, 0, sealed=taken, clock=minted))


def test_what_a_majority_takes_with_its_votes_is_given_at_once() -> None:
    name = steps()
    operation: Acquiring = put(name.acquire(TOKEN, 1000, "{}"), FIVE, 1000)
    assert operation.open()[0].command.args[-1] == "1000"
    assert vote(operation, "a", 1000, taken=True) == []
    assert vote(operation, "d", 1000, taken=True) == []
    assert not operation.decided

    assert vote(operation, "b", 1000, taken=True) == []

    assert isinstance(operation.outcome, Granted)
    assert operation.outcome.fencing_token == 1000
    assert vote(operation, "c", 1000, taken=True) == []
    assert where(vote(operation, "e", 1001)) == {TOLD: [4]}  # that master is not needed, but must know it
    for time, proposed in ((0, "1001"), (1000, "1001"), (2000, "2000")):
        following = put(name.acquire(TOKEN, 1000, "{}"), FIVE, time)
        assert following.open()[0].command.args[-1] == proposed


def test_a_master_that_has_minted_less_than_is_proposed_is_asked_to_confirm_that() -> None:
    operation: Acquiring = put(steps().acquire(TOKEN, 1000, "{}"), THREE, 1000)
    vote(operation, "a", 1000, taken=True)

    (request,) = vote(operation, "b", 999)

    assert (request.master, request.phase, request.command.args[1:]) == (1, CONFIRM, (1000, 10_000, 0))
    assert operation.replied(1, CONFIRM, True) == []
    assert operation.outcome.fencing_token == 1000  # type: ignore[union-attr]


def test_the_same_number_by_chance_was_not_written_back() -> None:
    operation: Acquiring = put(steps().acquire(TOKEN, 1000, "{}"), THREE, 1000)
    vote(operation, "a", 1000, taken=True)

    assert where(vote(operation, "b", 1000)) == {CONFIRM: [1]}


def test_a_larger_one_is_proposed_where_too_few_have_taken_what_came_with_the_votes() -> None:
    operation: Acquiring = put(steps().acquire(TOKEN, 1000, "{}"), FIVE, 1000)
    vote(operation, "a", 1000, taken=True)
    vote(operation, "b", 1000, taken=True)

    requests = vote(operation, "c", 1003)

    assert where(requests) == {CONFIRM + 1: [0, 1, 2]}
    assert {request.command.args[1] for request in requests} == {1003}
    assert where(vote(operation, "d", 1000, taken=True)) == {CONFIRM + 1: [3]}
    for master in (0, 1):
        operation.replied(master, CONFIRM + 1, True)
    assert not operation.decided
    operation.replied(3, CONFIRM + 1, True)
    assert operation.outcome.fencing_token == 1003  # type: ignore[union-attr]


def test_a_waiter_that_stands_in_the_queues_proposes_nothing() -> None:
    """Its confirmation is what leaves them."""
    operation: Acquiring = put(steps().acquire(TOKEN, 1000, "{}", SEATED | WAITING), THREE, 1000)
    assert operation.open()[0].command.args[-1] == "0"


def test_who_grants_later_is_asked_too_if_that_is_no_less() -> None:
    operation = acquiring()
    grant(operation, a=7, d=9, b=8)

    assert where(grant(operation, c=9)) == {CONFIRM + 1: [2]}
    assert where(grant(operation, e=10)) == {}
    operation.replied(2, CONFIRM + 1, True)
    operation.replied(0, CONFIRM + 1, True)
    requests = operation.replied(1, CONFIRM + 1, True)

    # That master is not needed, but must know it.
    assert where(requests) == {TOLD: [4]}
    assert requests[0].command.args[1:] == (9, 10_000, 1)


def test_who_grants_after_it_was_given_is_told() -> None:
    operation = acquiring(THREE)
    grant(operation, a=7, b=8)
    operation.replied(0, CONFIRM + 1, True)
    operation.replied(1, CONFIRM + 1, True)

    assert where(grant(operation, c=20)) == {TOLD: [2]}
    assert operation.replied(2, TOLD, True) == []
    assert operation.outcome.fencing_token == 8  # type: ignore[union-attr]


def test_a_vote_leaves_no_queue_and_a_confirmation_does() -> None:
    operation: Acquiring = put(steps().acquire(TOKEN, 1000, "{}", SEATED | WAITING), THREE)
    assert "l" not in operation.open()[0].command.args[-2]  # it stays there for now

    operation.replied(0, VOTE, Granted(7, 3))
    requests = operation.replied(1, VOTE, Granted(8, 2))

    assert {request.command.keys[-1] for request in requests} == {COMMANDS.bell}
    operation.replied(0, CONFIRM + 1, True)
    operation.replied(1, CONFIRM + 1, True)
    assert isinstance(operation.outcome, Granted)
    assert operation.outcome.others == 2  # itself is no other


def test_a_waiter_that_gets_in_leaves_the_queues_of_the_masters_that_have_not_granted() -> None:
    """Also of one whose answer is yet to come, as soon as it refuses, or with the release."""
    operation: Acquiring = put(steps().acquire(TOKEN, 1000, "{}", SEATED), FIVE)
    grant(operation, a=7, b=8)
    operation.replied(3, VOTE, Refused(100))
    grant(operation, c=9)
    operation.replied(0, CONFIRM + 1, True)
    operation.replied(1, CONFIRM + 1, True)
    requests = operation.replied(2, CONFIRM + 1, True)

    assert where(requests) == {LEAVE: [3]}
    assert operation.seats() == {4}
    requests += operation.replied(4, VOTE, Refused(100))
    assert where(requests) == {LEAVE: [3, 4]}
    assert operation.seats() == set()
    assert all(request.command.keys[-1] == COMMANDS.bell for request in requests)
    assert all(request.command.args[0] == "" for request in requests)  # it frees nobody's lock
    assert all(request.command.lane == TOKEN for request in requests)


def test_a_confirmation_that_comes_after_the_release_leaves_the_queue_all_the_same() -> None:
    operation: Acquiring = put(steps().acquire(TOKEN, 1000, "{}", SEATED), THREE)
    grant(operation, a=7, b=8, c=9)
    assert not operation.still_due(CONFIRM + 1)
    operation.replied(0, CONFIRM + 1, True)
    operation.replied(1, CONFIRM + 1, True)
    assert isinstance(operation.outcome, Granted)
    assert [operation.still_due(phase) for phase in (VOTE, TOLD, CONFIRM + 1)] == [False, False, True]

    assert where(operation.replied(2, CONFIRM + 1, False)) == {LEAVE: [2]}


def test_one_that_waits_for_the_first_time_leaves_only_where_it_may_be_refused() -> None:
    """A refusal seats it: also one that is yet to come."""
    operation: Acquiring = put(steps().acquire(TOKEN, 1000, "{}", WAITING), FIVE)
    grant(operation, a=7, b=8)
    operation.replied(3, VOTE, Refused(100))
    requests = grant(operation, c=9)
    assert COMMANDS.bell not in requests[0].command.keys
    operation.replied(0, CONFIRM + 1, True)
    operation.replied(1, CONFIRM + 1, True)

    requests = operation.replied(2, CONFIRM + 1, True)

    assert where(requests) == {LEAVE: [3]}
    assert operation.seats() == {4}
    assert where(operation.failed(4, VOTE, SILENT)) == {LEAVE: [4]}  # it may have executed it


def test_one_that_does_not_wait_has_no_queue_to_leave() -> None:
    operation = acquiring(THREE)
    grant(operation, a=7, b=8)
    operation.replied(2, VOTE, Refused(100))
    operation.replied(0, CONFIRM + 1, True)

    assert operation.replied(1, CONFIRM + 1, True) == []
    assert isinstance(operation.outcome, Granted)


@pytest.mark.parametrize("how", ["lost again", "silent"])
def test_it_is_proposed_anew_where_a_larger_one_is_needed(how) -> None:
    operation = acquiring()
    grant(operation, a=7, d=9, b=8)
    grant(operation, e=10)
    operation.replied(0, CONFIRM + 1, True)

    if how == "silent":
        requests = operation.failed(3, CONFIRM + 1, SILENT)
    else:
        requests = operation.replied(3, CONFIRM + 1, False)

    assert where(requests) == {CONFIRM + 2: [0, 1, 4]}
    assert {request.command.args[1] for request in requests} == {10}
    operation.replied(1, CONFIRM + 1, True)  # of before: it does not count
    operation.replied(0, CONFIRM + 2, True)
    operation.replied(4, CONFIRM + 2, True)
    assert not operation.decided
    operation.replied(1, CONFIRM + 2, True)
    assert operation.outcome.fencing_token == 10  # type: ignore[union-attr]


def test_refused_as_soon_as_there_can_be_no_majority() -> None:
    operation = acquiring()
    grant(operation, a=7)
    operation.replied(1, VOTE, Refused(300))
    operation.replied(2, VOTE, Refused(100))
    assert not operation.decided

    requests = operation.replied(3, VOTE, Refused(200))

    assert where(requests) == {UNDO: [0, 4]}  # also by who has not answered
    assert isinstance(operation.outcome, Refused)
    assert (
        operation.outcome.remaining_ms == 200
    )  # then two of these are free, and with the one that was granted
    assert operation.outcome.detail == (
        "of 5 masters, a: granted; b: held elsewhere; c: held elsewhere; d: held elsewhere; e: no answer yet"
    )
    assert operation.replied(4, VOTE, Granted(8, 0)) == []  # the undo was sent behind it


def test_refused_without_end_where_too_many_say_so() -> None:
    operation = acquiring(THREE)
    operation.replied(0, VOTE, Refused(None))
    operation.replied(1, VOTE, Refused(None))
    assert operation.outcome.remaining_ms is None  # type: ignore[union-attr]

    operation = acquiring(THREE)
    operation.replied(0, VOTE, Refused(None))
    grant(operation, c=7)
    operation.replied(1, VOTE, Refused(50))
    assert operation.outcome.remaining_ms == 50  # type: ignore[union-attr]


def test_it_is_seated_by_a_majority_that_has_refused_it_and_by_no_smaller_number() -> None:
    operation = acquiring(THREE)
    operation.replied(0, VOTE, Refused(50))
    operation.replied(1, VOTE, Refused(50))
    assert operation.outcome.seated  # type: ignore[union-attr]

    operation = acquiring(THREE)
    operation.replied(0, VOTE, Refused(50))
    operation.failed(1, VOTE, CUT)
    grant(operation, c=7)
    assert not operation.outcome.seated  # type: ignore[union-attr]


def test_a_grant_that_was_lost_again_is_a_refusal() -> None:
    operation = acquiring(THREE)
    grant(operation, a=7, b=8)
    operation.replied(2, VOTE, Refused(500))

    requests = operation.replied(0, CONFIRM + 1, False)

    assert where(requests) == {UNDO: [0, 1]}
    assert operation.outcome.remaining_ms == 0  # type: ignore[union-attr]
    assert "a: granted, and lost again; b: granted; c: held elsewhere" in operation.outcome.detail  # type: ignore[union-attr]


def test_without_a_majority_of_all_it_is_a_fault() -> None:
    operation = acquiring()
    grant(operation, a=7)
    operation.replied(1, VOTE, Refused(300))
    operation.failed(2, VOTE, SILENT)
    operation.failed(3, VOTE, CUT)

    assert isinstance(operation.outcome, Refused)  # the last may well be there

    operation = acquiring()
    grant(operation, a=7, b=8)
    for master in (2, 3):
        assert operation.failed(master, VOTE, SILENT) == []
    requests = operation.failed(4, VOTE, DENIED)

    assert where(requests) == {UNDO: [0, 1, 2, 3, 4]}
    fault: Any = operation.outcome
    assert isinstance(fault.error, BackendError)
    assert (fault.transient, fault.unknown, fault.foreign) == (True, True, False)
    assert str(fault.error) == (
        "no majority: of 5 masters, a: granted; b: granted; c: unreachable (Redis did not answer in time); "
        "d: unreachable (Redis did not answer in time); "
        "e: refuses (Redis refused: this user may not do it: see the minimal ACL in the documentation "
        "(this user has no permissions))"
    )


@pytest.mark.parametrize(
    ("said", "transient", "unknown", "foreign"),
    [
        ([DENIED, DENIED], False, False, False),
        ([DENIED, DEMOTED], True, False, False),
        ([FOREIGN, FOREIGN], False, False, True),
        ([FOREIGN, SILENT], True, True, False),
    ],
)
def test_what_is_wrong_with_enough_of_them_is_wrong(said, transient, unknown, foreign) -> None:
    operation = acquiring(THREE)
    for master, fault in enumerate(said):
        operation.failed(master, VOTE, fault)
    outcome: Any = operation.outcome
    assert (outcome.transient, outcome.unknown, outcome.foreign) == (transient, unknown, foreign)
    assert outcome.error.__cause__ is said[0].error


def test_what_is_wrong_with_the_masters_themselves_ends_it_at_once() -> None:
    operation = acquiring()
    grant(operation, a=7, b=8)

    assert where(operation.failed(4, VOTE, MISCONFIGURED)) == {UNDO: [0, 1, 2, 3, 4]}
    assert operation.outcome is MISCONFIGURED
    assert operation.failed(3, VOTE, MISCONFIGURED) == []


# -- questions


@pytest.mark.parametrize(
    ("answers", "outcome"),
    [([1, 1], True), ([0, 0], False), ([1, 0, 1], True), ([SILENT, 0, 0], False), ([1, SILENT, 0], None)],
)
def test_a_majority_answers(answers, outcome) -> None:
    operation: Voting = put(COMMANDS.owned(TOKEN), THREE)
    for master, answer in enumerate(answers):
        assert not operation.decided
        if isinstance(answer, Fault):
            operation.failed(master, VOTE, answer)
        else:
            operation.replied(master, VOTE, bool(answer))
    if outcome is None:
        assert "a: yes; b: unreachable" in str(operation.outcome.error)  # type: ignore[union-attr]
        assert "c: no" in str(operation.outcome.error)  # type: ignore[union-attr]
    else:
        assert operation.outcome is outcome


def test_no_answer_is_given_as_soon_as_there_can_be_none() -> None:
    operation: Voting = put(COMMANDS.locked(), THREE)
    operation.failed(0, VOTE, SILENT)
    operation.failed(1, VOTE, SILENT)
    assert operation.decided


# -- renewing


def test_a_renewal_puts_back_what_is_missing_with_what_another_carries() -> None:
    operation = renewing()
    assert operation.replied(0, VOTE, False) == []
    for master in (1, 2):
        assert operation.replied(master, VOTE, True) == []

    requests = operation.replied(3, VOTE, True)

    assert operation.outcome is True
    assert where(requests) == {LOOK: [1]}
    assert requests[0].command.args[0] == "GET"
    requests = operation.replied(1, LOOK, Carried(7, False, "{}"))  # the token that this master has minted
    assert where(requests) == {LOOK: [2]}
    requests = operation.replied(2, LOOK, Carried(8, False, "{}"))
    assert where(requests) == {LOOK: [3]}
    requests = operation.replied(3, LOOK, Carried(9, True, '{"user":1}'))
    assert where(requests) == {TAKE: [0]}
    assert requests[0].command.args[3] == '{"user":1}'
    assert where(operation.replied(4, VOTE, False)) == {TAKE: [4]}
    assert operation.replied(4, TAKE, Refused(10)) == []
    requests = operation.replied(0, TAKE, Granted(12, 0))
    assert where(requests) == {TOLD: [0]}
    assert requests[0].command.args[1:] == (9, 10_000, 1)
    assert operation.replied(0, TOLD, True) == []


def test_a_renewal_puts_back_the_largest_fencing_token_that_was_written_back() -> None:
    """One master may have taken a smaller one with its vote, and have missed the one that was confirmed."""
    operation = renewing()
    operation.replied(0, VOTE, False)
    operation.replied(1, VOTE, True)
    operation.replied(2, VOTE, True)
    assert where(operation.replied(3, VOTE, True)) == {LOOK: [1]}
    assert where(operation.replied(1, LOOK, Carried(7, True, '{"of":7}'))) == {LOOK: [2]}
    assert where(operation.replied(2, LOOK, Carried(9, True, '{"of":9}'))) == {LOOK: [3]}
    assert operation.replied(4, VOTE, False) == []  # not all is read yet
    requests = operation.replied(3, LOOK, Carried(8, True, '{"of":8}'))
    assert where(requests) == {TAKE: [0, 4]}
    assert requests[0].command.args[3] == '{"of":9}'
    (told,) = operation.replied(4, TAKE, Granted(12, 0))
    assert told.command.args[1:] == (9, 10_000, 1)


@pytest.mark.parametrize("silent", [1, 2, 3])
def test_nothing_is_put_back_unless_a_majority_was_read(silent: int) -> None:
    """The one that does not answer may be the only one with the token that a majority has confirmed."""
    operation = renewing()
    operation.replied(0, VOTE, False)
    operation.replied(1, VOTE, True)
    operation.replied(2, VOTE, True)
    assert where(operation.replied(3, VOTE, True)) == {LOOK: [1]}
    for master in (1, 2, 3):
        if master == silent:
            requests = operation.failed(master, LOOK, SILENT)
        else:
            requests = operation.replied(master, LOOK, Carried(7, True, '{"of":7}'))
    assert requests == []
    assert where(operation.replied(4, VOTE, True)) == {LOOK: [4]}
    requests = operation.replied(4, LOOK, Carried(9, True, '{"of":9}'))
    assert where(requests) == {TAKE: [0]}
    assert requests[0].command.args[3] == '{"of":9}'


def test_nothing_is_put_back_by_a_renewal_that_a_change_has_caused() -> None:
    """An operator may be freeing it, on one master after the other."""
    operation = put(COMMANDS.renew_changed(TOKEN, 1000), THREE)
    for master in range(3):
        assert operation.replied(master, VOTE, master > 0) == []
    assert operation.outcome is True


def test_nothing_is_put_back_where_nobody_knows_what() -> None:
    operation = renewing(THREE)
    operation.replied(0, VOTE, False)
    operation.replied(1, VOTE, True)
    assert where(operation.replied(2, VOTE, True)) == {LOOK: [1]}
    assert where(operation.replied(1, LOOK, None)) == {LOOK: [2]}
    assert operation.replied(2, LOOK, Carried(7, False, "{}")) == []


@pytest.mark.parametrize("number", [3, 5])
def test_a_renewal_that_a_majority_denies_puts_nothing_back(number) -> None:
    operation = renewing(FIVE[:number])
    for master in range(number // 2 + 1):
        assert not operation.decided
        assert operation.replied(master, VOTE, False) == []
    assert operation.outcome is False
    assert operation.replied(number - 1, VOTE, True) == []


def test_a_renewal_without_a_majority_is_no_loss() -> None:
    operation = renewing()
    operation.replied(0, VOTE, True)
    operation.replied(1, VOTE, False)
    operation.failed(2, VOTE, SILENT)
    assert not operation.decided
    operation.failed(3, VOTE, CUT)  # any answer of the last one is no majority for anything
    assert operation.outcome.transient  # type: ignore[union-attr]
    assert operation.failed(4, TAKE, CUT) == []


# -- releasing


def released(freed: bool, *rung: bytes) -> Released:
    return Released(freed=freed, rung=rung)


def test_released_by_a_majority() -> None:
    operation: Freeing = put(COMMANDS.release(TOKEN, 1000), THREE)
    operation.failed(0, VOTE, SILENT)
    operation.replied(1, VOTE, released(True, b"x"))
    assert not operation.decided
    operation.replied(2, VOTE, released(True, b"x"))
    outcome: Any = operation.outcome
    assert (outcome.freed, outcome.rung) == (True, (b"x",))


def test_not_released_where_a_majority_has_nothing() -> None:
    operation: Freeing = put(COMMANDS.release(TOKEN, 1000), THREE)
    operation.replied(1, VOTE, released(True))
    operation.replied(0, VOTE, released(False))
    operation.replied(2, VOTE, released(False))
    assert not operation.outcome.freed  # type: ignore[union-attr]


def test_a_master_that_is_asked_again_and_has_nothing_did_release() -> None:
    operation: Freeing = put(COMMANDS.release(TOKEN, 1000), THREE)
    for master in (0, 1):
        operation.repeated(master)
        operation.replied(master, VOTE, released(False))
    assert operation.outcome.freed  # type: ignore[union-attr]

    operation = put(COMMANDS.release(TOKEN, 1000), THREE)
    operation.repeated(0)
    for master in range(3):
        operation.replied(master, VOTE, released(False))
    assert not operation.outcome.freed  # type: ignore[union-attr] # the others were asked only once


def test_a_release_is_waited_for_to_the_last() -> None:
    operation: Freeing = put(COMMANDS.release(TOKEN, 1000), THREE)
    operation.failed(0, VOTE, SILENT)
    operation.failed(1, VOTE, SILENT)
    assert not operation.decided
    operation.replied(2, VOTE, released(True))
    assert "c: released" in str(operation.outcome.error)  # type: ignore[union-attr]
    assert operation.executed  # said again, "not held" will be no surprise

    operation = put(COMMANDS.release(TOKEN, 1000), THREE)
    operation.replied(2, VOTE, released(False))
    operation.failed(0, VOTE, SILENT)
    operation.failed(1, VOTE, SILENT)
    assert not operation.executed
    assert "c: not held" in str(operation.outcome.error)  # type: ignore[union-attr]


# -- adopting


def adopting(labels: str = FIVE) -> Adopting:
    operation: Adopting = put(COMMANDS.adopt("b2" * 16, TOKEN, 1000, "{}"), labels)
    return operation


def test_adopted_with_the_fencing_token_that_was_written_back() -> None:
    operation = adopting()
    operation.replied(0, VOTE, Carried(30, False, ""))
    operation.replied(3, VOTE, Carried(20, True, ""))
    operation.replied(4, VOTE, Carried(40, False, ""))
    assert operation.outcome == 20


def test_adopted_with_the_largest_where_all_have_forgotten_it() -> None:
    operation = adopting(THREE)
    operation.replied(0, VOTE, Carried(30, False, ""))
    operation.replied(1, VOTE, Carried(20, False, ""))
    assert operation.outcome == 30


def test_given_back_where_a_majority_does_not_have_it() -> None:
    operation = adopting(THREE)
    operation.replied(0, VOTE, None)
    operation.replied(1, VOTE, Carried(20, True, ""))
    requests = operation.replied(2, VOTE, None)
    assert operation.outcome is None
    assert where(requests) == {UNDO: [1]}
    assert requests[0].command.args[:2] == (TOKEN, "b2" * 16)


def test_given_back_where_there_is_no_majority() -> None:
    operation = adopting(THREE)
    operation.replied(0, VOTE, None)
    operation.replied(1, VOTE, Carried(20, True, ""))
    assert where(operation.failed(2, VOTE, SILENT)) == {UNDO: [1, 2]}
    assert "a: not held; b: adopted" in str(operation.outcome.error)  # type: ignore[union-attr]


# -- standing in the queue


@pytest.mark.parametrize(
    ("told", "outcome"),
    [
        ([9000, 4000, 7000], 7000),  # two of three have to be free
        ([ASK, 4000, NO_END], 4000),
        ([ASK, ASK, 9000], ASK),
        ([NO_END, NO_END, 5000], NO_END),
        ([GONE, 5000, 4000], 5000),
        ([GONE, 5000, ASK], 5000),
        ([GONE, GONE, 5000], GONE),
        ([NOT_OURS, BELL_RUNG, 5000], GONE),
        ([SILENT, 5000, 4000], 5000),
        ([SILENT, GONE, 4000], GONE),
        ([NOT_OURS, NOT_OURS, GONE], NOT_OURS),  # however often it asks, no majority hangs its bell
        ([SILENT, NOT_OURS, 4000], NOT_OURS),
    ],
)
def test_it_is_to_ask_when_a_majority_may_be_free(told, outcome) -> None:
    operation: Listening = put(COMMANDS.listener(TOKEN), THREE)
    for master, one in enumerate(told):
        assert not operation.decided
        if isinstance(one, Fault):
            operation.failed(master, VOTE, one)
        else:
            operation.replied(master, VOTE, [one])
    assert operation.outcome == outcome


def test_what_one_master_alone_tells_is_not_enough() -> None:
    operation: Listening = put(COMMANDS.listener(TOKEN), THREE)
    operation.replied(0, VOTE, [5000])
    operation.failed(1, VOTE, SILENT)
    operation.failed(2, VOTE, SILENT)
    assert "a: told" in str(operation.outcome.error)  # type: ignore[union-attr]


# -- the steps


def test_a_redlock_has_keys_of_its_own() -> None:
    simple = LockSteps("p", "n", retention_ms=1000, session="s")
    own = {*COMMANDS.acquire(TOKEN, 1000, "{}").keys, COMMANDS.bell}
    assert own.isdisjoint({*simple.acquire(TOKEN, 1000, "{}").keys, simple.bell})
    assert all(key.startswith(b"p:redlock") for key in own)


def test_a_lock_key_is_read_only_for_its_token() -> None:
    operation = renewing(THREE)
    operation.replied(2, VOTE, False)
    operation.replied(0, VOTE, True)
    (look,) = operation.replied(1, VOTE, True)
    parse = look.command.parse
    assert parse(f'{TOKEN}:017:{{"a":":"}}'.encode()) == Carried(17, True, '{"a":":"}')
    assert parse(f"{TOKEN}:17:{{}}".encode()) == Carried(17, False, "{}")
    for other in (None, b"", b"nothing of ours", f"{'b2' * 16}:017:{{}}".encode()):
        assert parse(other) is None
