"""The search for deadlocks, beside the looks: where one is suspected it takes a second."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, final

from ..._deadlocks import Deadlock
from ..._tasks import empty_context, spawn
from ...errors import LockError
from ...inspect.deadlocks import deadlocks
from ...lock.engine import Engine

_EVERY: Final = 2.0
"""Seconds between two searches."""


@final
class Search:
    """One search after the other, of which one is under way at most.

    Attributes:
        found: The deadlocks that the last search has found.
    """

    def __init__(self) -> None:
        self.found: Sequence[Deadlock] = ()
        self._task: asyncio.Task[list[Deadlock]] | None = None
        self._next = 0.0

    def go_on(self, engine: Engine) -> None:
        """Takes what was found, and begins again when it is time."""
        if self._task is not None:
            if not self._task.done():
                return
            with suppress(LockError):  # the looks say what is wrong
                self.found = self._task.result()
            self._task = None
        if engine.now() >= self._next:
            self._next = engine.now() + _EVERY
            self._task = spawn(
                engine.loop,
                deadlocks(engine),
                name="aiolocks-dashboard-deadlocks",
                context=empty_context(),
            )

    async def aclose(self) -> None:
        """Ends the search that is under way."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
