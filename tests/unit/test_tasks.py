"""The tasks of the library: made in one place, and no timer or callback has the context of who sets it."""

from __future__ import annotations

import ast
import asyncio
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import aiolocks
from aiolocks._tasks import empty_context, spawn

PACKAGE = Path(aiolocks.__file__).parent
MAKES_TASKS = {
    "create_task",
    "create_task_group",
    "ensure_future",
    "run_coroutine_threadsafe",
    "TaskGroup",
    "to_thread",
}
CALLS_BACK = {"call_soon", "call_later", "call_at", "call_soon_threadsafe", "add_done_callback"}
OF_A_CALL = {("kinds/singleflight.py", "self._landed")}
"""What is to run in the context of a call, by the file and what is called."""

_number: ContextVar[int] = ContextVar("number", default=0)


class Made(NamedTuple):
    """A call in the package that makes a task, or gives the loop a callback."""

    file: str
    name: str
    text: str
    what: str
    has_context: bool


@cache
def calls() -> list[Made]:
    found: list[Made] = []
    for path in PACKAGE.rglob("*.py"):
        text = path.read_text()
        if not any(name in text for name in MAKES_TASKS | CALLS_BACK):
            continue
        for call in ast.walk(ast.parse(text)):
            if not isinstance(call, ast.Call):
                continue
            name = getattr(call.func, "attr", getattr(call.func, "id", ""))
            if name in MAKES_TASKS | CALLS_BACK:
                what = ast.unparse(call.args[0]) if call.args else ""
                has_context = any(word.arg == "context" for word in call.keywords)
                file = path.relative_to(PACKAGE).as_posix()
                found.append(Made(file, name, ast.unparse(call), what, has_context))
    return found


def test_tasks_are_made_in_one_place() -> None:
    assert {(call.file, call.name) for call in calls() if call.name in MAKES_TASKS} == {
        ("_tasks.py", "create_task")
    }


def test_no_callback_has_the_context_of_who_sets_it() -> None:
    given = [call for call in calls() if call.name in CALLS_BACK and (call.file, call.what) not in OF_A_CALL]
    assert len(given) > 50
    through = ("call_later(", "closed_loops.call_later(")  # which gives it to the loop
    assert [call for call in given if not call.has_context and not call.text.startswith(through)] == []


async def test_a_task_begins_later_and_has_its_name_and_context() -> None:
    seen: list[tuple[str, int]] = []

    async def work() -> None:
        task = asyncio.current_task()
        assert task is not None
        seen.append((task.get_name(), _number.get()))

    loop: Any = asyncio.get_running_loop()
    factories = [None, getattr(asyncio, "eager_task_factory", _plain)]
    _number.set(7)
    for factory in factories:
        seen.clear()
        loop.set_task_factory(factory)
        own = spawn(loop, work(), name="own", context=empty_context())
        called = spawn(loop, work(), name="called", context=None)
        loop.set_task_factory(None)
        assert seen == []
        await own
        await called
        assert seen == [("own", 0), ("called", 7)]


def _plain(loop: asyncio.AbstractEventLoop, coroutine: Any, **how: Any) -> asyncio.Task[Any]:
    raise AssertionError("the factory of the user is not asked")
