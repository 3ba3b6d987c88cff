"""The text that stands on the server beside a lease."""

from __future__ import annotations

import asyncio
import json
import os
import socket

from aiolocks.lock.engine import Description


async def test_it_is_of_the_task_that_runs_and_made_once_for_its_leases() -> None:
    description = Description(asyncio.get_running_loop(), os.getpid())

    async def text(user: str = "{}", more: str = "") -> str:
        return description.text(user, more)

    first, again, user, more, other = [
        await asyncio.create_task(text(*arguments), name=name)
        for name, *arguments in (("a",), ("a",), ("a", '{"x":1}'), ("a", '{"x":1}', ',"y":2'), ('"b',))
    ]
    assert first is again
    process = {"host": socket.gethostname(), "pid": os.getpid()}
    assert json.loads(first) == {**process, "task": "a", "user": {}}
    assert json.loads(user) == {**process, "task": "a", "user": {"x": 1}}
    assert json.loads(more) == {**process, "task": "a", "user": {"x": 1}, "y": 2}
    assert json.loads(other) == {**process, "task": '"b', "user": {}}
