"""Learning at once that the machine goes on after it was suspended, where the kernel tells: on Linux.

Nothing else wakes an event loop then: its timers run by a clock that has stood still. But the wall clock
jumps, and a timer of the wall clock can ask to be cancelled by that (`timerfd_create(2)`). It never ends
otherwise, so that it costs nothing while the machine is awake. Clocks that an administrator sets cancel it
too; then there is nothing to be done.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
import weakref
from collections.abc import Callable
from typing import Any, Final, final

from .._tasks import empty_context
from ..transport.closed_loops import finalized
from .process import current_pid

_ABSOLUTE_AND_CANCELLED: Final = 0b11  # TFD_TIMER_ABSTIME | TFD_TIMER_CANCEL_ON_SET
_FAR: Final = 2**33
"""The wall clock in the year 2242, in seconds: when the timer ends if nothing cancels it."""
_TICKS: Final = 8
"""Bytes that a read of the timer gives."""


@final
class Resumption:
    """Calls back when the machine goes on.

    Invariant: the event loop keeps neither this object nor the one whose method it calls.
    """

    __slots__ = ("_loop", "_pid", "_timer")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._pid = current_pid()
        self._timer: _Timer | None = None

    def listen(self, told: Callable[[], object]) -> None:
        """Calls that method, held weakly, each time. Without effect where the kernel does not tell."""
        number = _open()
        if number is None:
            return
        timer = _Timer(number, self._loop)
        try:
            empty_context().run(self._loop.add_reader, number, _resumed, timer, weakref.WeakMethod(told))
        except NotImplementedError:
            timer.close()
        else:
            self._timer = timer

    def close(self) -> None:
        """Idempotent."""
        timer, self._timer = self._timer, None
        if timer is None:
            return
        if self._pid == current_pid() and not self._loop.is_closed():  # a fork shares its parent's selector
            self._loop.remove_reader(timer.number)
        timer.close()


@final
class _Timer:
    """A timer of the kernel, which is closed with this object at the latest.

    A loop that watches it keeps it, so that its number is not given to another file meanwhile.
    """

    __slots__ = ("__weakref__", "close", "number")

    def __init__(self, number: int, loop: asyncio.AbstractEventLoop) -> None:
        self.number = number
        self.close = finalized(loop, self, os.close, number)


def _resumed(timer: _Timer, told: weakref.WeakMethod[Callable[[], object]]) -> None:
    with contextlib.suppress(OSError):  # ECANCELED is how it tells
        os.read(timer.number, _TICKS)
    method = told()
    if method is not None:
        method()


def _open() -> int | None:
    """A timer that nothing ends but a jump of the wall clock; None where there is no such thing."""
    if sys.platform != "linux":
        return None
    try:
        import ctypes  # noqa: PLC0415 - takes a while; `os.timerfd_create` comes with Python 3.13

        libc: Any = ctypes.CDLL(None)
        timer: int = libc.timerfd_create(time.CLOCK_REALTIME, os.O_NONBLOCK | os.O_CLOEXEC)
    except (ImportError, OSError, AttributeError):
        return None
    if timer < 0:
        return None
    interval_and_end = (ctypes.c_long * 4)(0, 0, _FAR, 0)  # struct itimerspec
    if libc.timerfd_settime(timer, _ABSOLUTE_AND_CANCELLED, interval_and_end, None) != 0:
        os.close(timer)
        return None
    return timer
