"""Learning a cluster's table again, for as long as a request needs it to change."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, final

from ..._logs import get_logger
from ..._visible import in_line
from .. import faults
from ..on_demand import OnDemandTask
from ..outages import Outage
from .slots import Slots

log = get_logger("aiolocks.transport")

_EVERY: Final = 0.1
_MAXIMUM: Final = 0.5
"""Seconds between two times that the table is learned."""


@final
class TopologyRefresher(OnDemandTask):
    """Learns the table while it is known to be out of date.

    Args:
        needed: Whether a request waits for the table to say something else.
        outage: The log of the time until the first table could be learned; later, that of each node speaks.
        learned: Told of the slots that other nodes serve now.
        failed: Told why the table could not be learned this time, if that was known at once.
        gave_up: Told why there is no table, and will be none.

    Attributes:
        trouble: Why it could not be learned.
    """

    __slots__ = ("_failed", "_last", "_learned", "_outage", "_slots", "_stale")

    _task_name = "aiolocks-cluster"

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        slots: Slots,
        *,
        needed: Callable[[], bool],
        outage: Outage,
        learned: Callable[[set[int]], None],
        failed: Callable[[BaseException], None],
        gave_up: Callable[[BaseException], None],
    ) -> None:
        super().__init__(loop, lambda: self._stale or needed(), gave_up)
        self._slots = slots
        self._outage = outage
        self._learned = learned
        self._failed = failed
        self._stale = False
        self._last = float("-inf")

    def start(self) -> None:
        """The table is out of date."""
        self._stale = True
        super().start()

    async def _work(self) -> None:
        pause = _EVERY
        while self._stale and not self._closed:
            await asyncio.sleep(max(0.0, self._last + pause - self._loop.time()))
            self._stale = False
            began = self._loop.time()
            try:
                changed = await self._slots.learn()
            except faults.CONNECTING as error:
                self.trouble = error
                if not self._slots.known and faults.is_final(error):
                    raise
                log.debug("learning the slots: %s", in_line(error))
                if not self._slots.known:
                    self._outage.begun(error, since=began)
                if not faults.is_silence(error):
                    self._failed(error)
            else:
                self.trouble = None
                self._outage.over()
                self._learned(changed)
            self._stale = self._needed()
            self._last = self._loop.time()
            pause = min(2 * pause, _MAXIMUM)
