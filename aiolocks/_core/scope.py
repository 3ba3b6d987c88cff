"""Cancelling the body of an `async with` when its lease is lost.

The bookkeeping is that of `asyncio.timeout`: the task's count of cancellation requests is remembered on
entry; a cancellation of our own is taken back on exit, and only when nobody else's is left does the
CancelledError become our error.
"""

from __future__ import annotations

import asyncio
from typing import final


@final
class LossScope:
    """One entered body.

    Args:
        cancels: Whether a loss cancels the body (`on_lost="cancel"`).

    Invariant: `task.cancel()` is called at most once, never after `leave`, and taken back exactly as often.
    """

    __slots__ = ("_baseline", "_cancels", "_left", "_loop", "ended", "task", "told")

    def __init__(self, loop: asyncio.AbstractEventLoop, *, cancels: bool) -> None:
        task = asyncio.current_task(loop)  # for a loop that is given, Python need not ask the kernel
        if task is None:
            raise RuntimeError("a lease is entered inside a task")
        self._loop = loop
        self.task = task
        self._cancels = cancels
        self.ended = False  # the exit is over, with its release
        self._baseline = task.cancelling()
        self.told = False  # the body was cancelled by us
        self._left = False

    @property
    def entered_here(self) -> bool:
        """Whether this is the task that has entered."""
        return asyncio.current_task(self._loop) is self.task

    @property
    def unwinding(self) -> bool:
        """Whether the body was told to stop and has not ended."""
        return self._cancels and not self._left and not self.task.done()

    @property
    def running(self) -> bool:
        """Whether the body or its exit may still be at work."""
        return not self.ended and not self.task.done()

    def cancel(self) -> None:
        """The lease is lost: the body is to stop."""
        if not self._cancels or self._left or self.told or self.task.done():
            return
        if self.entered_here:
            # The body has found the loss itself, and is told by an exception. A cancellation now would wait
            # for its next suspension, wherever that is; if it goes on regardless, it is cancelled then.
            self._loop.call_soon(self.cancel)
            return
        self.told = True
        self.task.cancel()

    def leave(self, exc_type: type[BaseException] | None) -> bool:
        """The body has ended: whether by our own cancellation and nothing else."""
        self._left = True
        if not self.told:
            return False
        only_ours = self.task.uncancel() <= self._baseline
        return only_ours and exc_type is not None and issubclass(exc_type, asyncio.CancelledError)
