"""Connecting, for as long as somebody waits for it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final, final

from .._visible import in_line
from . import faults
from .on_demand import OnDemandTask
from .outages import Outage

log = logging.getLogger("aiolocks.transport")

_FIRST: Final = 0.01
_MAXIMUM: Final = 0.5
"""Seconds from the beginning of one attempt to the next: doubled from the first each time, until a connection
has been useful. Where a silent server has held up an attempt for longer, the next one follows at once."""


@final
class Connector(OnDemandTask):
    """Tries to connect until it succeeds, fails for good, or nobody wants it any more.

    Invariant: between the beginnings of two attempts lies the pause, and nothing shortens it but a connection
    that was useful. A peer that closes each connection at the first real request is not asked more often than
    one that refuses connections.

    Args:
        establish: Connects.
        needed: Whether somebody still waits for a connection.
        gave_up: Told why it will not succeed.
        failed: Told of each attempt that failed at once, and not because the server is silent.
        outage: Told when the server is away, and when it is back.

    Attributes:
        trouble: Why there is no connection, or no answer.
        refusal: How the last attempt has failed, if it failed at once.
    """

    __slots__ = ("_again_at", "_establish", "_failed", "_outage", "_pause", "refusal")

    _task_name = "aiolocks-connect"

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        establish: Callable[[], Awaitable[None]],
        needed: Callable[[], bool],
        gave_up: Callable[[BaseException], None],
        *,
        failed: Callable[[BaseException], None],
        outage: Outage,
    ) -> None:
        super().__init__(loop, needed, gave_up)
        self._establish = establish
        self._failed = failed
        self._outage = outage
        self._pause = _FIRST
        self._again_at = 0.0  # loop time before which no other attempt is made
        self.refusal: BaseException | None = None

    @property
    def resting(self) -> bool:
        """Whether the last attempt has failed a moment ago, so that the next one is not due yet."""
        return self._loop.time() < self._again_at

    async def _work(self) -> None:
        while self._needed() and not self._closed:
            if (pause := self._again_at - self._loop.time()) > 0:
                await asyncio.sleep(pause)
                continue
            began = self._loop.time()
            self.refusal = None
            try:
                await self._establish()
            except faults.CONNECTING as error:
                if faults.is_final(error):
                    raise
                self._try_again(error, began)
            else:
                self.trouble = None
                self._rest(began)
                self._outage.over()

    def _rest(self, began: float) -> None:
        self._again_at = began + self._pause
        self._pause = min(self._pause * 2, _MAXIMUM)

    def useful(self) -> None:
        """The connection has answered a request of a caller, not only those that set it up."""
        self._pause, self._again_at = _FIRST, 0.0

    def _try_again(self, error: Exception, began: float) -> None:
        log.debug("connecting: %s", in_line(error))
        self._outage.begun(error, since=began)
        self.trouble = error
        self._rest(began)
        if not faults.is_silence(error):
            self.refusal = error
            self._failed(error)
