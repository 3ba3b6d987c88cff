"""When to try again, and when to give up."""

from __future__ import annotations

import asyncio
from typing import Final, final

_LEAST: Final = 0.25
"""Seconds that a first try may take, however short the wait: it may have to connect."""
_LEAST_LATER: Final = 0.05


@final
class Patience:
    """How long one acquire waits.

    As with redis-py, it gives up when the next try would be too late; a task that hears of the key's end
    waits to the end.
    """

    __slots__ = ("_hears", "_loop", "_sleep", "_stop_at", "blocking", "refused")

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        blocking: bool,
        blocking_timeout: float | None,
        sleep: float,
        hears: bool,
    ) -> None:
        self._loop = loop
        self.blocking = blocking
        self._sleep = sleep
        self._stop_at = None if blocking_timeout is None else loop.time() + blocking_timeout
        self._hears = hears
        self.refused = False  # a try was answered

    def limit(self) -> float | None:
        """Loop time at which a try that begins now must be over."""
        if self._stop_at is None or not self.blocking:
            return None
        least = _LEAST_LATER if self.refused else _LEAST
        return max(self._stop_at, self._loop.time() + least)

    def over(self, limit: float | None) -> bool:
        """Whether a try with this limit has had its time."""
        return limit is not None and self._loop.time() >= limit

    def pause(self) -> float | None:
        """Seconds to the next try; None for none."""
        if not self.blocking:
            return None
        if self._stop_at is None:
            return self._sleep
        left = self._stop_at - self._loop.time()
        if self._hears:
            return min(self._sleep, left) if left > 0 else None
        return self._sleep if self._sleep <= left else None
