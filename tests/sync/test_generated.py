"""The classes that are made are those that would be made now, and have what the asynchronous ones have."""

from __future__ import annotations

import ast
import inspect
from typing import Any

import pytest

import aiolocks
import aiolocks.sync
from tests.sync import generate


def test_they_are_those_that_would_be_made_now() -> None:
    """The way in which lines are broken is that of ruff."""
    made, fresh = parsed(generate.TARGET.read_text()), parsed(generate.text())
    assert made == fresh, "python -m tests.sync.generate writes the file again"


def parsed(text: str) -> list[str]:
    """What it says, in whichever order it imports."""
    return sorted(
        ast.dump(node)
        for statement in ast.parse(text).body
        for node in (imports(statement) if isinstance(statement, (ast.If, ast.ImportFrom)) else [statement])
    )


def imports(statement: ast.stmt) -> list[ast.AST]:
    return [node for node in ast.walk(statement) if isinstance(node, ast.alias)]


@pytest.mark.parametrize("name", [made.name for made in (*generate.LEASES, *generate.KINDS)] + ["Session"])
def test_threads_have_each_public_member(name: str) -> None:
    of: Any = getattr(aiolocks, name)
    ours: Any = getattr(aiolocks.sync, name)
    internal = {"acquired_by", "enter"} if issubclass(of, aiolocks.Lease) else set[str]()
    public = {
        member
        for member in dir(of)
        if not member.startswith("_") and not inspect.isclass(getattr(of, member, None))
    }
    missing = public - set(dir(ours)) - internal
    assert missing == (set() if name != "Session" else {"aclose", "of"})


def test_each_kind_has_a_method_of_the_session() -> None:
    """What a program without a loop can name, it can have."""
    kinds = {made.of.__name__ for made in generate.KINDS if made.name != "Lock"}
    kinds |= {cls.__name__ for cls in generate.PLAIN_LOCKS}
    assert {kind.lower() for kind in kinds} <= set(dir(aiolocks.sync.Session))
    assert kinds == {
        name
        for name in aiolocks.__all__
        if inspect.isclass(cls := getattr(aiolocks, name))
        and not issubclass(cls, aiolocks.Lease)
        and name != "SpanLock"
        and ({"acquire", "run", "do", "enter", "write", "wait", "submit", "reader"} & set(dir(cls)))
    } - {"Session"}


def test_the_texts_are_those_of_threads() -> None:
    """No text of a method tells a thread to await, or of a task that is cancelled."""
    for name in aiolocks.sync.__all__:
        for called, value in inspect.getmembers(getattr(aiolocks.sync, name), callable):
            text = inspect.getdoc(value) or ""
            if not called.startswith("_") and called != "call":
                for word in (
                    "async with",
                    "await ",
                    "Cancelled",
                    "cancellation",
                    "coroutine function (async",
                ):
                    assert word not in text, f"{name}.{called}: {text}"
