"""A background task that runs for as long as it is needed."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar

from .._tasks import empty_context
from .closed_loops import background


class OnDemandTask(ABC):
    """One task, for as long as its work is needed.

    Invariant: while it is needed and not closed, the task is alive; killed from outside (as when the loop
    ends) it is started again.

    Args:
        needed: Whether the work is needed.
        gave_up: Told why it will not succeed.

    Attributes:
        trouble: Why it has not succeeded yet.
    """

    __slots__ = ("_closed", "_gave_up", "_loop", "_needed", "_task", "trouble")

    _task_name: ClassVar[str]

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        needed: Callable[[], bool],
        gave_up: Callable[[BaseException], None],
    ) -> None:
        self._loop = loop
        self._needed = needed
        self._gave_up = gave_up
        self._task: asyncio.Task[None] | None = None
        self._closed = False
        self.trouble: BaseException | None = None

    @abstractmethod
    async def _work(self) -> None:
        """Until it is not needed any more; what it raises is final."""

    @property
    def at_work(self) -> bool:
        return self._task is not None

    def start(self) -> None:
        if self._task is None and not self._closed and not self._loop.is_closed():
            self._task = background(self._loop, self._work(), name=self._task_name)
            self._task.add_done_callback(self._ended, context=empty_context())

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._task = None
        if not task.cancelled() and (error := task.exception()) is not None:
            self._gave_up(error)
        elif self._needed():
            self.start()

    async def aclose(self) -> None:
        self._closed = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))
