"""When the calls of a connection end without an answer."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable
from typing import Any, final

from .. import faults
from ..requests.calls import Call


@final
class Deadlines:
    """Ends the calls whose time has passed, with one timer for all of them.

    Invariant: it looks no later than at the earliest `until` of a call that was noted and has not ended.

    Args:
        calls: Gives those that may not have ended.
        trouble: Gives what is known of why there is no answer.

    Attributes:
        at: Loop time at which it looks next.
    """

    __slots__ = ("_calls", "_loop", "_timer", "_trouble", "at")

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        calls: Callable[[], Iterable[Call[Any]]],
        trouble: Callable[[], BaseException | None],
    ) -> None:
        self._loop = loop
        self._calls = calls
        self._trouble = trouble
        self._timer: asyncio.TimerHandle | None = None
        self.at = math.inf

    def note(self, when: float) -> None:
        """A call ends at that loop time, which is earlier than `at`."""
        self.cancel()
        self.at = when
        self._timer = self._loop.call_at(when, self._look)

    def cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        self._timer = None
        self.at = math.inf
        now = self._loop.time()
        earliest = math.inf
        for call in tuple(self._calls()):
            if call.done:
                continue
            if call.until > now:
                earliest = min(earliest, call.until)
                continue
            trouble = self._trouble()
            sent = call.written or call.unconfirmed
            if sent or trouble is None or faults.is_silence(trouble):
                call.fault(faults.unanswered(trouble))
            else:
                call.fault(faults.unreachable(trouble))
        if earliest < self.at:
            self.note(earliest)
