"""Cancelling the body of an `async with`, and telling that cancellation from everybody else's.

The bookkeeping is that of `asyncio.timeout`: the task's count of cancellation requests is remembered on
entry; a cancellation of our own is taken back on exit, and only when nobody else's is left does the
CancelledError become our error.

Up to Python 3.12 the count alone does not tell that: a `TaskGroup` that has failed after its body had ended
leaves it raised, although nobody cancels the task. Where it was raised before our own cancellation, the
CancelledError itself decides: ours is known by its message, and one that others have caused stands in its
context.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Final, Self, final

_COUNTS_TRULY: Final = sys.version_info >= (3, 13)
"""Whether the count of cancellation requests goes back to what it was when a `TaskGroup` has ended."""


@final
class BodyScope:
    """One entered body.

    Invariant: `task.cancel()` is called at most once, never after `leave`, and taken back exactly as often.

    Args:
        cancels: Whether a loss cancels the body (`on_lost="cancel"`).

    Attributes:
        ended: The exit is over, with its release.
        left: The body has ended.
        told: The body was cancelled from here.
    """

    __slots__ = ("_at_entry", "_before", "_cancels", "_loop", "_notice", "ended", "left", "task", "told")

    def __init__(self, loop: asyncio.AbstractEventLoop, *, cancels: bool = True) -> None:
        task = asyncio.current_task(loop)  # for a loop that is given, Python need not ask the kernel
        if task is None:
            raise RuntimeError("a lease is entered inside a task")
        self._loop = loop
        self.task = task
        self._cancels = cancels
        self.ended = False
        self._at_entry = task.cancelling()
        self._before = 0  # the count right before our own cancellation
        self._notice: _Notice | None = None
        self.told = False
        self.left = False

    @property
    def entered_here(self) -> bool:
        """Whether this is the task that has entered."""
        return asyncio.current_task(self._loop) is self.task

    @property
    def unwinding(self) -> bool:
        """Whether the body was told to stop and has not ended."""
        return self._cancels and not self.left and not self.task.done()

    @property
    def running(self) -> bool:
        """Whether the body or its exit may still be at work."""
        return not self.ended and not self.task.done()

    @property
    def cancelled_by_others(self) -> bool:
        """Whether others may have cancelled the body, once it was left.

        Up to Python 3.12, a task group that has failed in it looks so, too.
        """
        return self.task.cancelling() > self._at_entry

    @property
    def cancelled_since(self) -> bool:
        """Whether others have cancelled the body after it was told from here, once it was left."""
        return self.told and self.task.cancelling() > self._before

    def cancel(self, why: str) -> None:
        """The body is to stop, for that reason."""
        if not self._cancels:
            return
        count = self.task.cancelling()
        # A body that has found the loss itself is told by an exception. A cancellation now would wait for its
        # next suspension, wherever that is; if it goes on regardless, it is cancelled then.
        if self.entered_here or count > self._at_entry:
            self._loop.call_soon(self._cancel_when_quiet, why, count)
        else:
            self._cancel(why)

    def _cancel_when_quiet(self, why: str, count: int) -> None:
        """Cancels once nobody else has done so for a whole turn of the loop.

        A cancellation that was requested before and not delivered yet would be delivered as ours, if we
        came between: of two requests for a task that is about to run, asyncio keeps the last message.
        """
        now = self.task.cancelling()
        if now > count and not self.left:
            self._loop.call_soon(self._cancel_when_quiet, why, now)
        else:
            self._cancel(why)

    def _cancel(self, why: str) -> None:
        if self.left or self.told or self.task.done():
            return
        self.told = True
        self._before = self.task.cancelling()
        self._notice = _Notice(f"aiolocks cancels the body: {why}")
        self.task.cancel(self._notice)

    def leave(self, exc: BaseException | None) -> bool:
        """The body has ended so: whether by our own cancellation and nothing else."""
        if self.left:
            return False
        self.left = True
        if self._notice is None:
            return False
        self._notice.settled = True
        count = self.task.uncancel()
        # In another task, an end by cancellation is that other task's.
        if not isinstance(exc, asyncio.CancelledError) or not self.entered_here:
            return False
        if count <= self._at_entry:
            return True
        return not _COUNTS_TRULY and count <= self._before and self._alone_caused(exc)

    def _alone_caused(self, error: BaseException) -> bool:
        """Whether our own cancellation is in it, and no earlier one that others may have requested.

        Later ones do not count: nobody has requested any that was not taken back, and the body may have
        caught ours and raised another one.
        """
        found = False
        converted: BaseException | None = None
        seen: set[int] = set()
        at: BaseException | None = error
        while at is not None and id(at) not in seen:
            seen.add(id(at))
            if isinstance(at, asyncio.CancelledError):
                notice = at.args[0] if at.args else None
                if notice is self._notice:
                    found = True
                elif found and at is not converted and not (isinstance(notice, _Notice) and notice.settled):
                    return False
            # A time limit has taken back the one that it has turned into this.
            converted = at.__cause__ if isinstance(at, TimeoutError) else None
            at = at.__context__
        return found


class _Notice(str):
    """The message of a cancellation of ours; known by its identity.

    Attributes:
        settled: It was taken back.
    """

    __slots__ = ("settled",)

    settled: bool

    def __new__(cls, text: str) -> Self:
        notice = super().__new__(cls, text)
        notice.settled = False
        return notice
