"""A note on an exception that takes none: the exception is raised on, and the log has the note."""

from __future__ import annotations

import ast
import logging
from dataclasses import dataclass
from pathlib import Path

import pytest

import aiolocks
from aiolocks import Lock, ResultNotKeptError, Session, SingleFlight
from aiolocks.lock.notes import note


@dataclass(frozen=True)
class FrozenError(Exception):
    """No attribute of it can be set."""

    code: int


class LoudError(Exception):
    """Its own `add_note` raises."""

    def add_note(self, note: str, /) -> None:
        raise ZeroDivisionError


@pytest.mark.parametrize("error", [FrozenError(7), LoudError()], ids=lambda it: type(it).__name__)
def test_an_exception_that_takes_no_note(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    note(error, "aiolocks: it was lost")
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.getMessage().startswith(
        f"aiolocks: it was lost (a note that {type(error).__name__} does not"
    )


def test_one_that_takes_notes_has_it(caplog: pytest.LogCaptureFixture) -> None:
    error = ValueError()
    note(error, "aiolocks: it was lost")
    assert error.__notes__ == ["aiolocks: it was lost"]
    assert caplog.records == []


@pytest.mark.parametrize("error", [FrozenError(7), LoudError()], ids=lambda it: type(it).__name__)
async def test_a_serializer_that_raises_one(error: Exception, session: Session) -> None:
    class Refuses:
        def dumps(self, value: object) -> bytes:
            raise error

        def loads(self, payload: bytes) -> object:
            raise NotImplementedError

    async def work() -> str:
        return "done"

    flight = SingleFlight(session, keep=10, serializer=Refuses())
    with pytest.raises(ResultNotKeptError, match=type(error).__name__):
        await flight.do("k", work)


@pytest.mark.parametrize("error", [FrozenError(7), LoudError()], ids=lambda it: type(it).__name__)
async def test_a_body_that_raises_one_when_its_lease_is_lost(error: Exception, session: Session) -> None:
    with pytest.raises(type(error)) as caught:
        async with Lock(session, "a"):
            try:
                await session.force_release("a")
            finally:  # the loss may be told, by a cancellation, before the answer
                raise error
    assert caught.value is error


def test_nothing_else_adds_notes() -> None:
    """Where a note goes to an exception of the user, this helper adds it."""
    package = Path(aiolocks.__file__).parent
    calls = {
        str(path.relative_to(package))
        for path in package.rglob("*.py")
        if "add_note" in (text := path.read_text())
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Attribute) and node.attr == "add_note"
    }
    assert calls == {"lock/notes.py"}
