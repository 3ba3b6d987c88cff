"""Connecting, for as long as somebody waits for it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final, final

import redis.exceptions as driver

from . import faults

log = logging.getLogger("aiolocks.transport")

_FIRST: Final = 0.01
_MAXIMUM: Final = 0.5


@final
class Connector:
    """One task that tries to connect until it succeeds, fails for good, or nobody wants it any more.

    Invariant: while it is wanted and not closed, the task is alive; killed from outside (as when the loop
    ends) it is started again.

    Args:
        establish: Connects with a protocol version, 3 or (where the server knows no other) 2.
        wanted: Whether somebody still waits for a connection.
        gave_up: Told why it will not succeed.
    """

    __slots__ = ("_closed", "_establish", "_gave_up", "_loop", "_protocol", "_task", "_wanted", "trouble")

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        establish: Callable[[int], Awaitable[None]],
        wanted: Callable[[], bool],
        gave_up: Callable[[BaseException], None],
    ) -> None:
        self._loop = loop
        self._establish = establish
        self._wanted = wanted
        self._gave_up = gave_up
        self._protocol = 3
        self._task: asyncio.Task[None] | None = None
        self._closed = False
        self.trouble: BaseException | None = None  # why there is no connection, or no answer

    def start(self) -> None:
        if self._task is None and not self._closed and not self._loop.is_closed():
            self._task = self._loop.create_task(self._connect(), name="aiolocks-connect")
            self._task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._task = None
        if not task.cancelled() and (error := task.exception()) is not None:
            self._gave_up(error)
        elif self._wanted():
            self.start()

    async def _connect(self) -> None:
        delay = _FIRST
        while self._wanted() and not self._closed:
            try:
                await self._establish(self._protocol)
            except (driver.RedisError, OSError, TimeoutError) as error:
                if not faults.is_final(error):
                    self.trouble = error
                    log.debug("connecting: %s", error)
                    await asyncio.sleep(delay)
                    delay = min(delay * 2, _MAXIMUM)
                elif self._protocol == 3 and "HELLO" in str(error).upper():
                    self._protocol = 2
                else:
                    raise
            else:
                self.trouble = None

    async def aclose(self) -> None:
        self._closed = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))
