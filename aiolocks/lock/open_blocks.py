"""The entries that `async with` has made on one shared object, so that each exit finds its own.

A block is known by its frame: that of a coroutine or generator stays the same, whichever task runs it. An
async generator that its consumer leaves, for one, is closed by the event loop in a task of its own; and a
fixture may be set up and torn down in two tasks. Where the frame of the exit has entered nothing (that of an
`AsyncExitStack`, or a call of `__aexit__` by hand), the task decides, and then what else is clear.
"""

from __future__ import annotations

import asyncio
import sys
import weakref
from collections.abc import Callable
from types import CodeType
from typing import Any, Generic, NamedTuple, TypeVar, final

from .notes import note

T = TypeVar("T")

_Block = tuple[int, CodeType]
"""A frame by its id, which does not keep it alive. With its code: a frame that was entered in and has ended,
as that of a stack, may have left its id to another one."""


class _Entry(NamedTuple, Generic[T]):
    number: int
    block: _Block
    entered: T


def _anything(_: object) -> bool:
    return True


@final
class OpenBlocks(Generic[T]):
    """Any number of tasks enter the object, each any number of times.

    Invariant: each block that is open has one entry, or its task is remembered as one whose entry was taken.
    """

    __slots__ = ("_number", "_of", "_taken", "_task_of")

    def __init__(self) -> None:
        self._number = 0
        self._of: dict[asyncio.Task[Any], list[_Entry[T]]] = {}
        self._task_of: dict[_Block, asyncio.Task[Any]] = {}
        # By task: its block whose entry another exit has taken. Made when it is needed.
        self._taken: weakref.WeakKeyDictionary[asyncio.Task[Any], _Block] | None = None

    def __len__(self) -> int:
        """How many tasks are inside."""
        return len(self._of)

    def add(self, task: asyncio.Task[Any], entered: T) -> None:
        """The block of the caller's caller has entered: to be called by `__aenter__` itself."""
        frame = sys._getframe(2)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - there is no other way
        block = id(frame), frame.f_code
        self._number += 1
        entries = self._of.get(task)
        if entries is None:
            self._of[task] = entries = []
        entries.append(_Entry(self._number, block, entered))
        self._task_of[block] = task

    def take(
        self,
        loop: asyncio.AbstractEventLoop | None,
        *,
        holds: Callable[[T], bool] = _anything,
        alike: Callable[[T], bool] = _anything,
    ) -> T | None:
        """The entry of the block that the caller's caller leaves: to be called by `__aexit__` itself.

        None: the block is open no more, for an exit in another task has taken its entry.

        Args:
            loop: Where it was used last, if anywhere: to find out which one runs, Python asks the kernel.
            holds: Whether there is something to give back. Where the exit belongs to no block and no task, it
                takes what is held.
            alike: Whether it may be given back in place of any other one that is.

        Raises:
            LookupError: It is not clear which. Nothing is kept any more that a task has entered which has
                ended.
        """
        frame = sys._getframe(2)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - as `add`
        block = id(frame), frame.f_code
        task = None if loop is None else asyncio.current_task(loop)
        if task not in self._of:
            task = asyncio.current_task()
        if task is None:
            return self._clear_one(holds, alike)
        own = self._of.get(task, ())
        for entry in reversed(own):
            if entry.block == block:
                return self._remove(task, entry)
        if self._forget_taken(task, block):
            return None
        entered_by = self._task_of.get(block)
        if entered_by is not None:
            entries = reversed(self._of[entered_by])
            return self._remove(entered_by, next(entry for entry in entries if entry.block == block))
        if own:
            return self._remove(task, own[-1])
        if not self._of and self._forget_taken(task):
            return None
        return self._clear_one(holds, alike)

    def _clear_one(self, holds: Callable[[T], bool], alike: Callable[[T], bool]) -> T:
        """The one that must be meant, or any of those that are alike: first one whose task has ended."""
        here = asyncio.get_running_loop()  # a thread with another loop may have entered it as well
        mine = [(task, entries) for task, entries in self._of.copy().items() if task.get_loop() is here]
        every = [(task, entry) for task, entries in mine for entry in entries]
        found = [one for one in every if holds(one[1].entered)] or every
        if not found or (len(found) > 1 and not all(alike(entry.entered) for _, entry in found)):
            for task, entry in every:
                if task.done():
                    self._remove(task, entry)
            raise LookupError
        task, entry = max(found, key=lambda one: (one[0].done(), one[1].number))
        if len(found) == 1 and not task.done():
            # It may be inside. Where there are others like it, its exit takes one of these.
            if self._taken is None:
                self._taken = weakref.WeakKeyDictionary()
            self._taken[task] = entry.block
        return self._remove(task, entry)

    def _remove(self, task: asyncio.Task[Any], entry: _Entry[T]) -> T:
        entries = self._of[task]
        if len(entries) == 1 and self._task_of.get(entry.block) is task:
            del self._of[task], self._task_of[entry.block]
            return entry.entered
        entries.remove(entry)
        if not entries:
            del self._of[task]
        if self._task_of.get(entry.block) is task and all(other.block != entry.block for other in entries):
            del self._task_of[entry.block]
        return entry.entered

    def _forget_taken(self, task: asyncio.Task[Any], block: _Block | None = None) -> bool:
        """Whether its entry was taken: that of this block, or of any."""
        taken = None if self._taken is None else self._taken.get(task)
        if self._taken is None or taken is None or block not in (taken, None):
            return False
        del self._taken[task]
        return True


async def told_at_exit(error: Exception, body_raised: BaseException | None) -> None:
    """Raises the error, or notes it on the exception of the body, which wins: above all a cancellation."""
    if body_raised is None or isinstance(body_raised, GeneratorExit):  # that one is shown to nobody
        raise error
    note(body_raised, f"aiolocks: {error}")
