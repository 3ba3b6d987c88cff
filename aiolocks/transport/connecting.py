"""Connecting, for as long as a connection is needed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, final

from .._logs import get_logger
from .._tasks import empty_context
from .._visible import in_line
from . import faults
from .on_demand import OnDemandTask
from .outages import Outage

log = get_logger("aiolocks.transport")

_FIRST: Final = 0.01
_MAXIMUM: Final = 0.5
"""Seconds from the beginning of one attempt to the next: doubled from the first each time, until a connection
has been useful. Where a silent server has held up an attempt for longer, the next one follows at once."""
_IN_A_HURRY: Final = 0.05
"""The same seconds while a request waits that is refused if the attempt fails."""


@final
class Connector(OnDemandTask):
    """Tries to connect until it succeeds, fails for good, or no connection is needed any more.

    Invariant: between the beginnings of two attempts lies the pause. A connection that was useful ends it;
    after an attempt that failed, a request in a hurry shortens it. A peer that closes each connection at the
    first real request is not asked more often than one that refuses connections.

    Args:
        establish: Connects.
        needed: Whether a connection is still needed.
        gave_up: Told why it will not succeed.
        failed: Told of each attempt that failed at once, and not because the server is silent.
        outage: Told when the server is away, and when it is back.

    Attributes:
        trouble: Why there is no connection, or no answer.
        refusal: How the last attempt has failed, if it failed at once.
    """

    __slots__ = ("_again_at", "_began", "_establish", "_failed", "_nap", "_outage", "_pause", "refusal")

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
        self._again_at = self._began = 0.0  # loop time before which no other attempt is made, and of the last
        self._nap: asyncio.Future[None] | None = None  # until then
        self.refusal: BaseException | None = None

    async def _work(self) -> None:
        while self._needed() and not self._closed:
            if self._again_at > self._loop.time():
                self._nap = self._loop.create_future()
                timer = self._loop.call_at(self._again_at, self._wake, context=empty_context())
                try:
                    await self._nap
                finally:
                    timer.cancel()
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

    def _wake(self) -> None:
        if self._nap is not None and not self._nap.done():
            self._nap.set_result(None)

    def hurry(self) -> None:
        """A request waits for the next attempt, and is refused if that fails; the last one has failed."""
        soon = max(self._began + _IN_A_HURRY, self._loop.time())
        if soon < self._again_at:
            self._again_at = soon
            self._wake()

    def _rest(self, began: float) -> None:
        self._began = began
        self._again_at = began + self._pause
        self._pause = min(self._pause * 2, _MAXIMUM)

    def useful(self) -> None:
        """The connection has answered a request of a caller, not only the requests that set it up."""
        self._pause, self._again_at = _FIRST, 0.0

    def _try_again(self, error: Exception, began: float) -> None:
        log.debug("connecting: %s", in_line(error))
        self._outage.begun(error, since=began)
        self.trouble = error
        self._rest(began)
        if not faults.is_silence(error):
            self.refusal = error
            self._failed(error)
