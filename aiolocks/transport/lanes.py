"""The calls of one possession that a pooled transport has not done yet, in their order."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, Final, final

from . import faults
from .request import Call

RETRY_FIRST: Final = 0.01
"""Seconds after which an attempt that has failed is made again, for the first time."""


@final
class Lane:
    """The calls of one possession: the first is under way while there is a worker, the others wait for it."""

    __slots__ = ("_doubtful", "calls", "closed", "delay", "hurry", "name", "timers", "worker")

    def __init__(self, name: str) -> None:
        self.name = name
        self.delay = RETRY_FIRST  # seconds after which the head is tried again
        self.closed = 0  # the number of connections that were closed while the head was on its way
        self._doubtful = False  # a request that was sent has ended without a reply
        self.calls: deque[Call[Any]] = deque()
        self.timers: deque[asyncio.TimerHandle] = deque()  # beside `calls`: when each has taken too long
        self.worker: asyncio.Task[Any] | None = None
        self.hurry: asyncio.TimerHandle | None = None

    @staticmethod
    def name_of(call: Call[Any]) -> str:
        """The lane in which it goes; one of its own for a request that belongs to no possession."""
        return call.command.lane or f"#{id(call)}"

    def append(self, call: Call[Any], timer: asyncio.TimerHandle) -> None:
        self.calls.append(call)
        self.timers.append(timer)

    def in_doubt(self, call: Call[Any]) -> bool:
        """Whether a request before this one may still be executed: one that was sent, and not answered."""
        return self._doubtful or (self.calls[0] is not call and self.calls[0].written)

    def pop(self) -> bool:
        """Its head has ended. Whether there is another one."""
        self._doubtful = self._doubtful or self.calls[0].unconfirmed
        self.delay = RETRY_FIRST
        self.closed = 0
        self.calls.popleft()
        self.timers.popleft().cancel()
        if self.hurry is not None:
            self.hurry.cancel()
            self.hurry = None
        return bool(self.calls)

    def end(self) -> None:
        """Ends everything that is left."""
        for call in self.calls:
            call.fault(faults.session_closed())
        for timer in self.timers:
            timer.cancel()
