"""Files that are still open on an event loop which is closed without a word.

`asyncio.run` and its like end a loop with `shutdown_asyncgens`, and then a session closes its connection in
order. `loop.close()` alone tells no session. A finalizer closes each file then. The collector, which runs
finalizers, comes late in a large program. So this module also finds the open files of closed loops, and
closes them, as soon as another file is opened.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import weakref
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar, final

from .._tasks import empty_context, spawn

T = TypeVar("T")


@final
class _Open:
    """Something that is open on a loop. This object keeps neither of the two."""

    __slots__ = ("close", "loop")

    def __init__(self, loop: asyncio.AbstractEventLoop, close: weakref.finalize[..., Any]) -> None:
        self.loop = weakref.ref(loop)
        self.close = close

    @property
    def left(self) -> bool:
        """Whether its loop was closed."""
        loop = self.loop()
        return loop is None or loop.is_closed()


_open: Final[set[_Open]] = set()
"""Of all loops of this process. Threads with a loop each share it: what they do with it is one step each."""


def finalized(
    loop: asyncio.AbstractEventLoop, owner: object, close: Callable[..., object], *what: object
) -> weakref.finalize[..., Any]:
    """Sees to it that something is closed: with its owner, or soon after its loop. In any thread.

    Args:
        loop: The loop on which it is open.
        owner: When this is collected, `close` is called, before any finalizer of a class.
        close: Closes it, without the help of the loop; must not keep the owner.
        what: Its arguments.

    Returns:
        Closes it now. Idempotent.
    """
    sweep()
    finalizer = weakref.finalize(owner, close, *what)
    finalizer.atexit = False  # a loop in another thread may still run
    _open.add(_Open(loop, finalizer))
    return finalizer


def sweep() -> None:
    """Closes what is open on closed loops."""
    for one in _open.copy():
        if not one.close.alive:
            _open.discard(one)
        elif one.left:
            _open.discard(one)
            # Not by a call: at the end of the process, finalizers do nothing any more when they are called.
            if (close := one.close.detach()) is not None:
                _, do, what, _ = close
                do(*what)


atexit.register(sweep)


def call_later(
    loop: asyncio.AbstractEventLoop, seconds: float, method: Callable[[], object]
) -> asyncio.TimerHandle:
    """As the loop's, for a method: the loop does not keep the method's object alive."""
    here = weakref.WeakMethod(method)

    def call() -> None:
        if (still := here()) is not None:
            still()

    return loop.call_later(seconds, call, context=empty_context())


def background(
    loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T], *, name: str
) -> asyncio.Task[T]:
    """A task of the session's own, of which nothing is said where its loop is closed before it ends.

    asyncio warns of a task that ends so. The user has not begun this one, and cannot end it.
    """
    task = spawn(loop, work, name=name, context=empty_context())
    with contextlib.suppress(AttributeError):  # not every loop's tasks have it
        task._log_destroy_pending = False  # type: ignore[attr-defined]  # noqa: SLF001
    return task
