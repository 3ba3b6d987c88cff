"""Learning a cluster's table anew, for as long as somebody needs it to say something else."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final, final

import redis.exceptions as driver

from . import faults
from .slots import Slots

log = logging.getLogger("aiolocks.transport")

_EVERY: Final = 0.1
_MAXIMUM: Final = 0.5
"""Seconds between two times that the table is learned."""


@final
class Learner:
    """One task, while the table is known to be out of date.

    Invariant: while it is needed and not closed, the task is alive; killed from outside (as when the loop
    ends) it is started again.

    Args:
        needed: Whether somebody waits for the table to say something else.
        learned: Told of the slots that are served by others now.
        gave_up: Told why there is no table, and will be none.
    """

    __slots__ = (
        "_closed",
        "_gave_up",
        "_last",
        "_learned",
        "_loop",
        "_needed",
        "_slots",
        "_stale",
        "_task",
        "trouble",
    )

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        slots: Slots,
        *,
        needed: Callable[[], bool],
        learned: Callable[[set[int]], None],
        gave_up: Callable[[BaseException], None],
    ) -> None:
        self._loop = loop
        self._slots = slots
        self._needed = needed
        self._learned = learned
        self._gave_up = gave_up
        self._stale = False
        self._task: asyncio.Task[None] | None = None
        self._last = float("-inf")
        self._closed = False
        self.trouble: BaseException | None = None  # why it could not be learned

    def start(self) -> None:
        """The table is out of date."""
        self._stale = True
        if self._task is None and not self._closed and not self._loop.is_closed():
            self._task = self._loop.create_task(self._learn(), name="aiolocks-cluster")
            self._task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._task = None
        if not task.cancelled() and (error := task.exception()) is not None:
            self._stale = False
            self._gave_up(error)
        elif self._stale or self._needed():
            self.start()

    async def _learn(self) -> None:
        pause = _EVERY
        while self._stale and not self._closed:
            await asyncio.sleep(max(0.0, self._last + pause - self._loop.time()))
            self._stale = False
            try:
                changed = await self._slots.learn()
            except (driver.RedisError, OSError, TimeoutError) as error:
                self.trouble = error
                if not self._slots.known and faults.is_final(error):
                    raise
                log.debug("learning the slots: %s", error)
            else:
                self.trouble = None
                self._learned(changed)
            self._stale = self._stale or self._needed()
            self._last = self._loop.time()
            pause = min(2 * pause, _MAXIMUM)

    async def aclose(self) -> None:
        self._closed = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))
