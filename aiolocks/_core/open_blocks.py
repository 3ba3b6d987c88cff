"""The leases that tasks have entered by `async with` on one shared object."""

from __future__ import annotations

import asyncio
from typing import Any, Generic, TypeVar, final

T = TypeVar("T")


@final
class OpenBlocks(Generic[T]):
    """Finds what an exit belongs to: any number of tasks enter the object, each any number of times."""

    __slots__ = ("_of",)

    def __init__(self) -> None:
        self._of: dict[asyncio.Task[Any], list[T]] = {}

    def __len__(self) -> int:
        """How many tasks are inside."""
        return len(self._of)

    def add(self, task: asyncio.Task[Any], entry: T) -> None:
        self._of.setdefault(task, []).append(entry)

    def take(self, loop: asyncio.AbstractEventLoop | None) -> T:
        """The task's latest, or the only one whose task has ended.

        Args:
            loop: Where it was used last, if anywhere: to find out which one runs, Python asks the kernel.

        Raises:
            LookupError: It is not clear which.
        """
        task = None if loop is None else asyncio.current_task(loop)
        if task not in self._of:
            task = asyncio.current_task()
        if task not in self._of:
            ended = [entered for entered in self._of if entered.done()]
            if len(ended) != 1 or len(self._of[ended[0]]) != 1:
                raise LookupError
            task = ended[0]
        assert task is not None
        entries = self._of[task]
        entry = entries.pop()
        if not entries:
            del self._of[task]
        return entry
