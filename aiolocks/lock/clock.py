"""The one place where seconds become milliseconds, and where a server's ttl becomes a local deadline."""

from __future__ import annotations

import functools
import math
from typing import Final

_DRIFT_FACTOR: Final = 0.01
_DRIFT_FIXED: Final = 0.002

READING: Final = 0.001
"""Seconds that may pass between the readings of two clocks: they are no suspension of the machine."""
NEVER: Final = float("inf")
"""The time of what does not come."""


@functools.lru_cache  # there are few ttls, and each renewal asks
def milliseconds(seconds: float) -> int:
    """Rounds up: a ttl is never shorter on the server than what was asked for."""
    # 0.1 + 0.2 s is 300.00000000000006 ms in binary, and must not become 301.
    return math.ceil(round(seconds * 1000, 6))


def seconds(milliseconds: int) -> float:
    return milliseconds / 1000


def dependable(ttl: float) -> float:
    """How much of a ttl its holder may rely on, counted from before the request was sent.

    The rest, 1 % and 2 ms, is for two clocks that do not run alike and for the server's
    granularity (as in the Redlock description).
    """
    return ttl - ttl * _DRIFT_FACTOR - _DRIFT_FIXED


_MARGIN: Final = 0.05
"""Seconds before its end, at least, at which the event loop must have run."""
_SHARE: Final = 0.05
"""The same as a share of the ttl."""


def margin(ttl: float) -> float:
    """Seconds before the end of a lease at which the event loop must have run."""
    return min(max(_MARGIN, _SHARE * ttl), ttl / 4)
