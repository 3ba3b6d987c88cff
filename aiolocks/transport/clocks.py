"""The clock that goes on while the machine is suspended, as the clocks of the servers do.

The clock of an event loop (`time.monotonic`) stands still then, on Linux and on macOS. On Windows it goes on.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Final

_CLOCKS: Final = {"linux": "CLOCK_BOOTTIME", "darwin": "CLOCK_MONOTONIC_RAW"}


def _steady() -> Callable[[], float]:
    clock = getattr(time, _CLOCKS.get(sys.platform, ""), None)
    if clock is None:
        return time.monotonic
    read = partial(time.clock_gettime, clock)
    try:
        read()
    except OSError:  # a sandbox that does not know this clock
        return time.monotonic
    return read


steady: Callable[[], float] = _steady()
"""Seconds since some moment. Read it as `clocks.steady()`: tests put another clock in its place."""
