"""The tasks of the library, and the contexts of `contextvars` in which its tasks, timers and callbacks run.

A session outlives the request that has used it first. So a task or a timer of a session must not begin in the
context of that request: the request's variables would stay alive for as long as the session, and would be
those of every later log line. The library's own work begins in an empty context. The work of a call (a
function of the user, a lease) has the context of that call.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

T = TypeVar("T")

empty_context: Final = contextvars.Context
"""Makes the context of what is no call's work. One for each: no context can be entered twice at a time, and
loops of several threads, or inside each other, would do that."""


def spawn(
    loop: asyncio.AbstractEventLoop,
    work: Coroutine[Any, Any, T],
    *,
    name: str,
    context: contextvars.Context | None,
) -> asyncio.Task[T]:
    """A task that begins in a later step of the loop, whatever task factory the loop has.

    `asyncio.eager_task_factory` would begin it here and now: before its creator knows it, and before it has
    its name.

    Args:
        loop: Where it runs.
        work: Its coroutine.
        name: Its name, which is known from its first step on.
        context: `empty_context()` for the work of a session; None for a copy of the caller's.
    """
    if loop.get_task_factory() is None:
        return loop.create_task(work, name=name, context=context)
    return asyncio.Task(work, loop=loop, name=name, context=context)
