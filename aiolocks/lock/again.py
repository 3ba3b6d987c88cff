"""Work that is begun again after it has failed: its pauses, and the lines of the log."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final, final

from .backoff import Backoff

_PAUSES: Final = Backoff(initial=1.0, maximum=60.0)
_WELL: Final = 60.0
"""Seconds of work after which the pauses are short again."""


@final
class Again:
    """The failures of one piece of work that is begun again after each.

    Args:
        log: Is told of each.
        what: The name of the work in the log.
        sleep: Sleeps.
    """

    __slots__ = ("_failures", "_log", "_sleep", "_what")

    def __init__(
        self,
        log: logging.Logger,
        what: str,
        *,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._log = log
        self._what = what
        self._sleep = sleep
        self._failures = 0  # in a row

    async def after(self, error: BaseException, lasted: float) -> None:
        """Logs the failure of work that went on for `lasted` seconds, and rests.

        It rests for 0 to 1 s; after each further failure for up to double that, up to 60 s. Work of 60 s
        makes the next rest a short one.
        """
        if lasted >= _WELL:
            self._failures = 0
        pause = _PAUSES.delay(self._failures)
        self._failures += 1
        self._log.error(
            "%s failed after %.1f s, and begins again in %.1f s: %s",
            self._what,
            lasted,
            pause,
            str(error) or type(error).__name__,
            exc_info=error,
        )
        await self._sleep(pause)


class TakeOverError(BaseException):
    """A function of the user cannot be called by its caller any more: a run of another caller follows.

    Raised by a function that a thread was to call and that was interrupted. Nothing is published.
    """
