"""The steps of rate limits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final, NamedTuple, final

from ..keys import key
from ..request import Argument, Command, Script

_ACQUIRE: Final = Script("ratelimit_acquire", "forms", "fence")
_GIVE_BACK: Final = Script("ratelimit_give_back")

MICROSECOND: Final = 1e6
"""Microseconds of a second."""
ONLY_ASKED: Final = -1


@final
class Bucket(NamedTuple):
    """The figures of one limit.

    Attributes:
        name: Of the limit.
        limit: Requests that it admits in the long run in each `per`.
        per: Seconds.
        burst: Requests that it admits at once.
    """

    name: str
    limit: int
    per: float
    burst: int

    @property
    def interval_us(self) -> float:
        """Microseconds between two requests, in the long run."""
        return self.per * MICROSECOND / self.limit

    def left(self, full_us: int) -> int:
        """How many requests it admits at once if it is full again after so many microseconds."""
        return left_in(self.burst, self.interval_us, full_us)


def left_in(burst: int, interval_us: float, full_us: float) -> int:
    """How many requests a bucket admits at once if it is full again after so many microseconds."""
    # The scripts round each request up to a microsecond: what that makes must not count as a request.
    room = math.ceil(burst * interval_us) - full_us + min(2.0, interval_us / 2)
    return min(burst, max(0, math.floor(room / interval_us)))


@final
class Reserved(NamedTuple):
    """The answer of the server.

    Attributes:
        granted: There is a reservation.
        waits_us: Of each limit, the microseconds until the moment comes.
        full_us: Of each limit, the microseconds until its bucket is full again.
    """

    granted: bool
    waits_us: Sequence[int]
    full_us: Sequence[int]

    @property
    def wait(self) -> float:
        """Seconds until all limits admit it."""
        return max(self.waits_us) / MICROSECOND


@final
class RateLimitCommands:
    """The steps of one limit, or of several at once: all of them or none."""

    __slots__ = ("_figures", "keys")

    def __init__(self, prefix: str, buckets: Sequence[Bucket]) -> None:
        self.keys = tuple(key(prefix, "ratelimit", bucket.name) for bucket in buckets)
        figures: list[Argument] = []
        for bucket in buckets:
            per_us = math.ceil(bucket.per * MICROSECOND)
            figures += (repr(bucket.interval_us), bucket.burst, per_us)
        self._figures = tuple(figures)

    def acquire(self, token: str, n: int, longest_us: int) -> Command[Reserved]:
        """Reserves the next moment for n requests, if it comes within that time."""
        return Command(_ACQUIRE, self.keys, (token, n, longest_us, *self._figures), _reserved, lane=token)

    def give_back(self, token: str) -> Command[int]:
        """Undoes a reservation; see the script."""
        return Command(_GIVE_BACK, self.keys, (token,), int, lane=token)


def _reserved(raw: Any) -> Reserved:
    granted, *times = (int(number) for number in raw)
    return Reserved(granted == 1, times[::2], times[1::2])
