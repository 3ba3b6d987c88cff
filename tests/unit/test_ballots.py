"""How the answers of several masters become one: every way in which a ballot can end, and what it sends."""

from __future__ import annotations

from typing import Any

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoPermissionError, ReadOnlyError, ResponseError

from aiolocks import BackendError, ConfigurationError
from aiolocks._transport import QUEUED, WAITING, Fault, Granted, LockCommands, Refused, Released, faults
from aiolocks._transport.commands.redlock import RedlockCommands
from aiolocks._transport.quorum.ballots import (
    CONFIRM,
    LEAVE,
    LOOK,
    TAKE,
    TOLD,
    UNDO,
    VOTE,
    Ballot,
    Freeing,
    Listening,
    Voting,
)
from aiolocks._transport.quorum.elections import Acquiring, Adopting, Carried, Renewing
from aiolocks._transport.requests.answers import ASK, BELL_RUNG, GONE, NO_END, NOT_OURS

SILENT = faults.unanswered(None)
CUT = faults.unreachable(RedisConnectionError("cut"))
DENIED = faults.refused(NoPermissionError("this user has no permissions"))
DEMOTED = faults.refused(ReadOnlyError("You can't write against a read only replica."))
FOREIGN = faults.refused(ResponseError("WRONGTYPE Operation against a key"))
MISCONFIGURED = Fault(ConfigurationError("the same server"), transient=False, unknown=False)
TOKEN = "a1" * 16
COMMANDS = RedlockCommands("p", "n", retention_ms=1000, session="s", node_timeout=1.0)
FIVE, THREE = "abcde", "abc"


def put(command: Any, labels: str) -> Any:
    ballot = command.put(labels)
    errands = ballot.open()
    assert [(errand.master, errand.phase) for errand in errands] == [
        (master, VOTE) for master in range(len(labels))
    ]
    return ballot


def acquiring(labels: str = FIVE) -> Acquiring:
    ballot: Acquiring = put(COMMANDS.acquire(TOKEN, 1000, "{}"), labels)
    return ballot


def renewing(labels: str = FIVE) -> Renewing:
    ballot: Renewing = put(COMMANDS.renew(TOKEN, 1000), labels)
    return ballot


def where(errands: list[Any]) -> dict[int, list[int]]:
    """Masters by the phase for which something goes to them."""
    found: dict[int, list[int]] = {}
    for errand in errands:
        found.setdefault(errand.phase, []).append(errand.master)
    return found


def grant(ballot: Ballot[Any], **minted: int) -> list[Any]:
    """By the masters of these names, in this order; returns the errands that must be sent then."""
    errands = []
    for label, fencing_token in minted.items():
        errands += ballot.replied(FIVE.index(label), VOTE, Granted(fencing_token, 0))
    return errands


# -- acquiring


def test_the_largest_of_a_majority_is_confirmed_by_those_who_granted_it() -> None:
    ballot = acquiring()
    assert grant(ballot, a=7, d=9) == []

    errands = grant(ballot, b=8)

    assert where(errands) == {CONFIRM + 1: [0, 1, 3]}
    assert {errand.command.args[1] for errand in errands} == {9}
    for master in (0, 1):
        assert ballot.replied(master, CONFIRM + 1, True) == []
        assert not ballot.decided
    assert ballot.replied(3, CONFIRM + 1, True) == []
    assert isinstance(ballot.outcome, Granted)
    assert ballot.outcome.fencing_token == 9


def test_who_grants_later_is_asked_too_if_that_is_no_less() -> None:
    ballot = acquiring()
    grant(ballot, a=7, d=9, b=8)

    assert where(grant(ballot, c=9)) == {CONFIRM + 1: [2]}
    assert where(grant(ballot, e=10)) == {}
    ballot.replied(2, CONFIRM + 1, True)
    ballot.replied(0, CONFIRM + 1, True)
    errands = ballot.replied(1, CONFIRM + 1, True)

    # That master is not needed, but must know it.
    assert where(errands) == {TOLD: [4]}
    assert errands[0].command.args[1:] == (9, 10_000, 1)


def test_who_grants_after_it_was_given_is_told() -> None:
    ballot = acquiring(THREE)
    grant(ballot, a=7, b=8)
    ballot.replied(0, CONFIRM + 1, True)
    ballot.replied(1, CONFIRM + 1, True)

    assert where(grant(ballot, c=20)) == {TOLD: [2]}
    assert ballot.replied(2, TOLD, True) == []
    assert ballot.outcome.fencing_token == 8  # type: ignore[union-attr]


def test_a_vote_leaves_no_queue_and_a_confirmation_does() -> None:
    ballot: Acquiring = put(COMMANDS.acquire(TOKEN, 1000, "{}", QUEUED | WAITING), THREE)
    assert "l" not in ballot.open()[0].command.args[-1]  # it stays there for now

    ballot.replied(0, VOTE, Granted(7, 3))
    errands = ballot.replied(1, VOTE, Granted(8, 2))

    assert {errand.command.keys[-1] for errand in errands} == {COMMANDS.bell}
    ballot.replied(0, CONFIRM + 1, True)
    ballot.replied(1, CONFIRM + 1, True)
    assert isinstance(ballot.outcome, Granted)
    assert ballot.outcome.others == 2  # itself is no other


def test_a_waiter_that_gets_in_leaves_the_queues_of_the_masters_that_have_not_granted() -> None:
    """Also of one whose answer is yet to come: nobody would tell it later."""
    ballot: Acquiring = put(COMMANDS.acquire(TOKEN, 1000, "{}", QUEUED), FIVE)
    grant(ballot, a=7, b=8)
    ballot.replied(3, VOTE, Refused(100))
    grant(ballot, c=9)
    ballot.replied(0, CONFIRM + 1, True)
    ballot.replied(1, CONFIRM + 1, True)
    errands = ballot.replied(2, CONFIRM + 1, True)

    assert where(errands) == {LEAVE: [3, 4]}
    assert all(errand.command.keys[-1] == COMMANDS.bell for errand in errands)
    assert all(errand.command.args[0] == "" for errand in errands)  # it frees nobody's lock
    assert all(errand.command.lane == TOKEN for errand in errands)


def test_one_that_waits_for_the_first_time_leaves_only_where_it_may_be_refused() -> None:
    """A refusal seats it: also one that is yet to come."""
    ballot: Acquiring = put(COMMANDS.acquire(TOKEN, 1000, "{}", WAITING), FIVE)
    grant(ballot, a=7, b=8)
    ballot.replied(3, VOTE, Refused(100))
    errands = grant(ballot, c=9)
    assert COMMANDS.bell not in errands[0].command.keys
    ballot.replied(0, CONFIRM + 1, True)
    ballot.replied(1, CONFIRM + 1, True)

    errands = ballot.replied(2, CONFIRM + 1, True)

    assert where(errands) == {LEAVE: [3, 4]}


def test_one_that_does_not_wait_has_no_queue_to_leave() -> None:
    ballot = acquiring(THREE)
    grant(ballot, a=7, b=8)
    ballot.replied(2, VOTE, Refused(100))
    ballot.replied(0, CONFIRM + 1, True)

    assert ballot.replied(1, CONFIRM + 1, True) == []
    assert isinstance(ballot.outcome, Granted)


@pytest.mark.parametrize("how", ["lost again", "silent"])
def test_it_is_proposed_anew_where_a_larger_one_is_needed(how) -> None:
    ballot = acquiring()
    grant(ballot, a=7, d=9, b=8)
    grant(ballot, e=10)
    ballot.replied(0, CONFIRM + 1, True)

    if how == "silent":
        errands = ballot.failed(3, CONFIRM + 1, SILENT)
    else:
        errands = ballot.replied(3, CONFIRM + 1, False)

    assert where(errands) == {CONFIRM + 2: [0, 1, 4]}
    assert {errand.command.args[1] for errand in errands} == {10}
    ballot.replied(1, CONFIRM + 1, True)  # of before: it does not count
    ballot.replied(0, CONFIRM + 2, True)
    ballot.replied(4, CONFIRM + 2, True)
    assert not ballot.decided
    ballot.replied(1, CONFIRM + 2, True)
    assert ballot.outcome.fencing_token == 10  # type: ignore[union-attr]


def test_refused_as_soon_as_there_can_be_no_majority() -> None:
    ballot = acquiring()
    grant(ballot, a=7)
    ballot.replied(1, VOTE, Refused(300))
    ballot.replied(2, VOTE, Refused(100))
    assert not ballot.decided

    errands = ballot.replied(3, VOTE, Refused(200))

    assert where(errands) == {UNDO: [0, 4]}  # also by who has not answered
    assert isinstance(ballot.outcome, Refused)
    assert ballot.outcome.remaining_ms == 200  # then two of these are free, and with the one that was granted
    assert ballot.outcome.detail == (
        "of 5 masters, a: granted; b: held elsewhere; c: held elsewhere; d: held elsewhere; e: no answer yet"
    )
    assert ballot.replied(4, VOTE, Granted(8, 0)) == []  # the undo was sent behind it


def test_refused_without_end_where_too_many_say_so() -> None:
    ballot = acquiring(THREE)
    ballot.replied(0, VOTE, Refused(None))
    ballot.replied(1, VOTE, Refused(None))
    assert ballot.outcome.remaining_ms is None  # type: ignore[union-attr]

    ballot = acquiring(THREE)
    ballot.replied(0, VOTE, Refused(None))
    grant(ballot, c=7)
    ballot.replied(1, VOTE, Refused(50))
    assert ballot.outcome.remaining_ms == 50  # type: ignore[union-attr]


def test_a_grant_that_was_lost_again_is_a_refusal() -> None:
    ballot = acquiring(THREE)
    grant(ballot, a=7, b=8)
    ballot.replied(2, VOTE, Refused(500))

    errands = ballot.replied(0, CONFIRM + 1, False)

    assert where(errands) == {UNDO: [0, 1]}
    assert ballot.outcome.remaining_ms == 0  # type: ignore[union-attr]
    assert "a: granted, and lost again; b: granted; c: held elsewhere" in ballot.outcome.detail  # type: ignore[union-attr]


def test_without_a_majority_of_all_it_is_a_fault() -> None:
    ballot = acquiring()
    grant(ballot, a=7)
    ballot.replied(1, VOTE, Refused(300))
    ballot.failed(2, VOTE, SILENT)
    ballot.failed(3, VOTE, CUT)

    assert isinstance(ballot.outcome, Refused)  # the last may well be there

    ballot = acquiring()
    grant(ballot, a=7, b=8)
    for master in (2, 3):
        assert ballot.failed(master, VOTE, SILENT) == []
    errands = ballot.failed(4, VOTE, DENIED)

    assert where(errands) == {UNDO: [0, 1, 2, 3, 4]}
    fault: Any = ballot.outcome
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
    ballot = acquiring(THREE)
    for master, fault in enumerate(said):
        ballot.failed(master, VOTE, fault)
    outcome: Any = ballot.outcome
    assert (outcome.transient, outcome.unknown, outcome.foreign) == (transient, unknown, foreign)
    assert outcome.error.__cause__ is said[0].error


def test_what_is_wrong_with_the_masters_themselves_ends_it_at_once() -> None:
    ballot = acquiring()
    grant(ballot, a=7, b=8)

    assert where(ballot.failed(4, VOTE, MISCONFIGURED)) == {UNDO: [0, 1, 2, 3, 4]}
    assert ballot.outcome is MISCONFIGURED
    assert ballot.failed(3, VOTE, MISCONFIGURED) == []


# -- questions


@pytest.mark.parametrize(
    ("answers", "outcome"),
    [([1, 1], True), ([0, 0], False), ([1, 0, 1], True), ([SILENT, 0, 0], False), ([1, SILENT, 0], None)],
)
def test_a_majority_answers(answers, outcome) -> None:
    ballot: Voting = put(COMMANDS.owned(TOKEN), THREE)
    for master, answer in enumerate(answers):
        assert not ballot.decided
        if isinstance(answer, Fault):
            ballot.failed(master, VOTE, answer)
        else:
            ballot.replied(master, VOTE, bool(answer))
    if outcome is None:
        assert "a: yes; b: unreachable" in str(ballot.outcome.error)  # type: ignore[union-attr]
        assert "c: no" in str(ballot.outcome.error)  # type: ignore[union-attr]
    else:
        assert ballot.outcome is outcome


def test_no_answer_is_given_as_soon_as_there_can_be_none() -> None:
    ballot: Voting = put(COMMANDS.locked(), THREE)
    ballot.failed(0, VOTE, SILENT)
    ballot.failed(1, VOTE, SILENT)
    assert ballot.decided


# -- renewing


def test_a_renewal_puts_back_what_is_missing_with_what_another_carries() -> None:
    ballot = renewing()
    assert ballot.replied(0, VOTE, False) == []
    for master in (1, 2):
        assert ballot.replied(master, VOTE, True) == []

    errands = ballot.replied(3, VOTE, True)

    assert ballot.outcome is True
    assert where(errands) == {LOOK: [1]}
    assert errands[0].command.args[0] == "GET"
    errands = ballot.replied(1, LOOK, Carried(7, False, "{}"))  # the token that this master has minted
    assert where(errands) == {LOOK: [2]}
    errands = ballot.failed(2, LOOK, SILENT)
    assert where(errands) == {LOOK: [3]}
    errands = ballot.replied(3, LOOK, Carried(9, True, '{"user":1}'))
    assert where(errands) == {TAKE: [0]}
    assert errands[0].command.args[3] == '{"user":1}'
    assert where(ballot.replied(4, VOTE, False)) == {TAKE: [4]}
    assert ballot.replied(4, TAKE, Refused(10)) == []
    errands = ballot.replied(0, TAKE, Granted(12, 0))
    assert where(errands) == {TOLD: [0]}
    assert errands[0].command.args[1:] == (9, 10_000, 1)
    assert ballot.replied(0, TOLD, True) == []


def test_nothing_is_put_back_where_nobody_knows_what() -> None:
    ballot = renewing(THREE)
    ballot.replied(0, VOTE, False)
    ballot.replied(1, VOTE, True)
    assert where(ballot.replied(2, VOTE, True)) == {LOOK: [1]}
    assert where(ballot.replied(1, LOOK, None)) == {LOOK: [2]}
    assert ballot.replied(2, LOOK, Carried(7, False, "{}")) == []


@pytest.mark.parametrize("number", [3, 5])
def test_a_renewal_that_a_majority_denies_puts_nothing_back(number) -> None:
    ballot = renewing(FIVE[:number])
    for master in range(number // 2 + 1):
        assert not ballot.decided
        assert ballot.replied(master, VOTE, False) == []
    assert ballot.outcome is False
    assert ballot.replied(number - 1, VOTE, True) == []


def test_a_renewal_without_a_majority_is_no_loss() -> None:
    ballot = renewing()
    ballot.replied(0, VOTE, True)
    ballot.replied(1, VOTE, False)
    ballot.failed(2, VOTE, SILENT)
    assert not ballot.decided
    ballot.failed(3, VOTE, CUT)  # any answer of the last one is no majority for anything
    assert ballot.outcome.transient  # type: ignore[union-attr]
    assert ballot.failed(4, TAKE, CUT) == []


# -- releasing


def released(freed: bool, *rung: bytes) -> Released:
    return Released(freed=freed, rung=rung)


def test_released_by_a_majority() -> None:
    ballot: Freeing = put(COMMANDS.release(TOKEN, 1000), THREE)
    ballot.failed(0, VOTE, SILENT)
    ballot.replied(1, VOTE, released(True, b"x"))
    assert not ballot.decided
    ballot.replied(2, VOTE, released(True, b"x"))
    outcome: Any = ballot.outcome
    assert (outcome.freed, outcome.rung) == (True, (b"x",))


def test_not_released_where_a_majority_has_nothing() -> None:
    ballot: Freeing = put(COMMANDS.release(TOKEN, 1000), THREE)
    ballot.replied(1, VOTE, released(True))
    ballot.replied(0, VOTE, released(False))
    ballot.replied(2, VOTE, released(False))
    assert not ballot.outcome.freed  # type: ignore[union-attr]


def test_a_master_that_is_asked_again_and_has_nothing_did_release() -> None:
    ballot: Freeing = put(COMMANDS.release(TOKEN, 1000), THREE)
    for master in (0, 1):
        ballot.repeated(master)
        ballot.replied(master, VOTE, released(False))
    assert ballot.outcome.freed  # type: ignore[union-attr]

    ballot = put(COMMANDS.release(TOKEN, 1000), THREE)
    ballot.repeated(0)
    for master in range(3):
        ballot.replied(master, VOTE, released(False))
    assert not ballot.outcome.freed  # type: ignore[union-attr] # the others were asked only once


def test_a_release_is_waited_for_to_the_last() -> None:
    ballot: Freeing = put(COMMANDS.release(TOKEN, 1000), THREE)
    ballot.failed(0, VOTE, SILENT)
    ballot.failed(1, VOTE, SILENT)
    assert not ballot.decided
    ballot.replied(2, VOTE, released(True))
    assert "c: released" in str(ballot.outcome.error)  # type: ignore[union-attr]
    assert ballot.executed  # said again, "not held" will be no surprise

    ballot = put(COMMANDS.release(TOKEN, 1000), THREE)
    ballot.replied(2, VOTE, released(False))
    ballot.failed(0, VOTE, SILENT)
    ballot.failed(1, VOTE, SILENT)
    assert not ballot.executed
    assert "c: not held" in str(ballot.outcome.error)  # type: ignore[union-attr]


# -- adopting


def adopting(labels: str = FIVE) -> Adopting:
    ballot: Adopting = put(COMMANDS.adopt("b2" * 16, TOKEN, 1000, "{}"), labels)
    return ballot


def test_adopted_with_the_fencing_token_that_was_written_back() -> None:
    ballot = adopting()
    ballot.replied(0, VOTE, Carried(30, False, ""))
    ballot.replied(3, VOTE, Carried(20, True, ""))
    ballot.replied(4, VOTE, Carried(40, False, ""))
    assert ballot.outcome == 20


def test_adopted_with_the_largest_where_all_have_forgotten_it() -> None:
    ballot = adopting(THREE)
    ballot.replied(0, VOTE, Carried(30, False, ""))
    ballot.replied(1, VOTE, Carried(20, False, ""))
    assert ballot.outcome == 30


def test_given_back_where_a_majority_does_not_have_it() -> None:
    ballot = adopting(THREE)
    ballot.replied(0, VOTE, None)
    ballot.replied(1, VOTE, Carried(20, True, ""))
    errands = ballot.replied(2, VOTE, None)
    assert ballot.outcome is None
    assert where(errands) == {UNDO: [1]}
    assert errands[0].command.args[:2] == (TOKEN, "b2" * 16)


def test_given_back_where_there_is_no_majority() -> None:
    ballot = adopting(THREE)
    ballot.replied(0, VOTE, None)
    ballot.replied(1, VOTE, Carried(20, True, ""))
    assert where(ballot.failed(2, VOTE, SILENT)) == {UNDO: [1, 2]}
    assert "a: not held; b: adopted" in str(ballot.outcome.error)  # type: ignore[union-attr]


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
    ],
)
def test_it_is_to_ask_when_a_majority_may_be_free(told, outcome) -> None:
    ballot: Listening = put(COMMANDS.listener(TOKEN), THREE)
    for master, one in enumerate(told):
        assert not ballot.decided
        if isinstance(one, Fault):
            ballot.failed(master, VOTE, one)
        else:
            ballot.replied(master, VOTE, [one])
    assert ballot.outcome == outcome


def test_what_one_master_alone_tells_is_not_enough() -> None:
    ballot: Listening = put(COMMANDS.listener(TOKEN), THREE)
    ballot.replied(0, VOTE, [5000])
    ballot.failed(1, VOTE, SILENT)
    ballot.failed(2, VOTE, SILENT)
    assert "a: told" in str(ballot.outcome.error)  # type: ignore[union-attr]


# -- the steps


def test_a_redlock_has_keys_of_its_own() -> None:
    simple = LockCommands("p", "n", retention_ms=1000, session="s")
    own = {*COMMANDS.acquire(TOKEN, 1000, "{}").keys, COMMANDS.bell}
    assert own.isdisjoint({*simple.acquire(TOKEN, 1000, "{}").keys, simple.bell})
    assert all(key.startswith(b"p:redlock") for key in own)


def test_a_lock_key_is_read_only_for_its_token() -> None:
    ballot = renewing(THREE)
    ballot.replied(2, VOTE, False)
    ballot.replied(0, VOTE, True)
    (look,) = ballot.replied(1, VOTE, True)
    parse = look.command.parse
    assert parse(f'{TOKEN}:017:{{"a":":"}}'.encode()) == Carried(17, True, '{"a":":"}')
    assert parse(f"{TOKEN}:17:{{}}".encode()) == Carried(17, False, "{}")
    for other in (None, b"", b"nothing of ours", f"{'b2' * 16}:017:{{}}".encode()):
        assert parse(other) is None
