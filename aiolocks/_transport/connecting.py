"""Connecting, for as long as somebody waits for it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final, final

import redis.exceptions as driver

from . import faults
from .lasting import Lasting

log = logging.getLogger("aiolocks.transport")

_FIRST: Final = 0.01
_MAXIMUM: Final = 0.5


@final
class Connector(Lasting):
    """Tries to connect until it succeeds, fails for good, or nobody wants it any more.

    Args:
        establish: Connects with a protocol version, 3 or (where the server knows no other) 2.
        needed: Whether somebody still waits for a connection.
        gave_up: Told why it will not succeed.

    Attributes:
        trouble: Why there is no connection, or no answer.
    """

    __slots__ = ("_establish", "_protocol")

    _task_name = "aiolocks-connect"

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        establish: Callable[[int], Awaitable[None]],
        needed: Callable[[], bool],
        gave_up: Callable[[BaseException], None],
    ) -> None:
        super().__init__(loop, needed, gave_up)
        self._establish = establish
        self._protocol = 3

    async def _work(self) -> None:
        delay = _FIRST
        while self._needed() and not self._closed:
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
