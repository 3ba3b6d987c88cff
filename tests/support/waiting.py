"""Waiting for what nobody announces."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar, overload

from aiolocks.lock.waiter import Stage

if TYPE_CHECKING:
    from aiolocks import Session

T = TypeVar("T")


@overload
async def eventually(predicate: Callable[[], Awaitable[T]], *, within: float = 10.0) -> T: ...
@overload
async def eventually(predicate: Callable[[], T], *, within: float = 10.0) -> T: ...
async def eventually(predicate: Callable[[], Any], *, within: float = 10.0) -> Any:
    """Return the predicate's first true result; look again every few milliseconds.

    For what has no event to await, such as the server's side of a connection. An awaitable result is awaited.

    Args:
        predicate: A function or a coroutine function.
        within: Seconds after which to give up.

    Raises:
        AssertionError: It did not become true in time.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + within
    pause = 0.001
    while True:
        value = predicate()
        if inspect.isawaitable(value):
            value = await value
        if value:
            return value
        remaining = deadline - loop.time()
        if remaining <= 0:
            raise AssertionError(f"still {value!r} after {within} s: {_source(predicate)}")
        await asyncio.sleep(min(pause, remaining))
        pause = min(pause * 1.5, 0.02)


def sleeps(session: Session) -> bool:
    """Whether one of the session's waiters was refused, and sleeps now."""
    engine = session._engine
    return engine is not None and any(one.stage is Stage.SLEEPING for one in engine.waiting)


def _source(predicate: Callable[..., object]) -> str:
    try:
        return inspect.getsource(predicate).strip()
    except (OSError, TypeError):  # a partial, a builtin
        return repr(predicate)
