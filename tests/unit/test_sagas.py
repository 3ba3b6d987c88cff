"""Calls that take several commands: who is told whom they woke."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from aiolocks.transport.answers import released
from aiolocks.transport.cluster.redirects import Redirects
from aiolocks.transport.faults import unanswered
from aiolocks.transport.request import Request, ignore
from aiolocks.transport.sagas import Saga, SagaCommand, Sagas, SagaSteps

RUNG = [1, b"bell"]
NOBODY = [1]


class Stage:
    """A saga of two releases, which go out together."""

    def __init__(self) -> None:
        self.parts: list[Request[Any]] = []
        self.rung: list[bytes] = []
        self.call = SagaCommand(self._steps, (b"k",), lane="").ask(ignore, ignore, until=10.0)
        sagas = Sagas(
            send=lambda call, at_once: self.parts.append(call),
            on_rung=self.rung.extend,
            loop=cast("asyncio.AbstractEventLoop", SimpleNamespace(time=lambda: 0.0)),
        )
        self.saga = Saga(sagas, self.call, at_once=False)
        self.saga.begin()

    def _steps(self) -> SagaSteps[None]:
        yield [Request(None, (b"k",), (), released), Request(None, (b"l",), (), released)]


@pytest.mark.parametrize("before", [True, False], ids=["before", "behind"])
def test_whom_a_course_has_woken_is_told_also_when_its_caller_leaves(*, before: bool) -> None:
    stage = Stage()
    if before:
        stage.parts[0].reply(RUNG)
    stage.saga.abandon()
    if not before:
        stage.parts[0].reply(RUNG)
    stage.parts[1].reply(NOBODY)
    assert stage.rung == [b"bell"]


@pytest.mark.parametrize("before", [True, False], ids=["before", "behind"])
def test_whom_a_course_has_woken_is_told_also_when_another_part_of_it_fails(*, before: bool) -> None:
    stage = Stage()
    if before:
        stage.parts[0].reply(RUNG)
    stage.parts[1].fault(unanswered(None))
    if not before:
        stage.parts[0].reply(RUNG)
    assert stage.call.done
    assert stage.rung == [b"bell"]


def test_what_a_course_answers_its_caller_tells() -> None:
    stage = Stage()
    for part in stage.parts:
        part.reply(RUNG)
    assert stage.rung == []


def test_a_course_counts_from_when_its_first_part_was_written() -> None:
    """Until then, it has waited for other requests of its lane: of its lease, that costs nothing."""
    stage = Stage()
    for part, sent in zip(stage.parts, (0.25, 0.125), strict=True):
        part.sent = part.sent_steady = sent
        part.reply(NOBODY)
    assert stage.call.done
    assert (stage.call.sent, stage.call.sent_steady) == (0.125, 0.125)


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
