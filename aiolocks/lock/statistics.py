"""The counts of a session."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, final

BOUNDS: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0)
"""Upper bounds of the histograms' buckets, in seconds; a last bucket takes the rest."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Histogram:
    """Counts of durations, by buckets.

    Attributes:
        bounds: Upper bound of each bucket but the last, in seconds, inclusive.
        counts: How many durations are in each bucket; one more than `bounds`.
        total: Sum of all durations, in seconds.
    """

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total: float

    @property
    def count(self) -> int:
        return sum(self.counts)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class SessionStatistics:
    """Counts: the leases and waiters of a session now, and its work since it was made.

    Attributes:
        leases_held: Number of leases that are held now (`HELD` or `UNKNOWN`).
        waiters: Number of tasks that wait for an acquisition now.
        acquisitions: Number of leases granted.
        timeouts: Number of acquisitions that ended because their `blocking_timeout` passed.
        losses: Number of leases lost.
        releases_unconfirmed: Number of releases that the server did not confirm before the lease ended. The
            work under these leases had ended in time.
        commands_sent: Number of requests sent to the server, without the requests that set up a
            connection.
        wakeups: How often a waiter was woken to try, by cause: `local` (a holder in this session has
            released), `tracking` or `keyspace` (a push of the server), `poll` (its sleep was over).
        wait_seconds: How long the granted acquisitions waited.
        hold_seconds: How long the ended leases were held.
        cached: Number of leases that the session keeps now without a user (`Lock(..., cache=...)`).
        cache_hits: Number of leases granted from these, without a request; they are part of `acquisitions`.
        recalls: Number of times that another session asked for such a lease, or deleted its key.
    """

    leases_held: int
    waiters: int
    acquisitions: int
    timeouts: int
    losses: int
    releases_unconfirmed: int
    commands_sent: int
    wakeups: Mapping[str, int]
    wait_seconds: Histogram
    hold_seconds: Histogram
    cached: int
    cache_hits: int
    recalls: int


@final
class Counters:
    """The running counts behind `SessionStatistics`.

    Attributes:
        hits: Acquires that were served from what the session keeps, without a wait. The other counts leave
            them out: `snapshot` adds them to `acquisitions`, `cache_hits` and the shortest waits.
    """

    __slots__ = (
        "cache_hits",
        "hits",
        "hold",
        "losses",
        "recalls",
        "releases_unconfirmed",
        "timeouts",
        "wait",
        "wakeups",
    )

    def __init__(self) -> None:
        self.timeouts = 0
        self.losses = 0
        self.releases_unconfirmed = 0
        self.cache_hits = self.hits = 0
        self.recalls = 0
        self.wakeups = {"local": 0, "tracking": 0, "keyspace": 0, "poll": 0}
        self.wait = _Durations()
        self.hold = _Durations()

    def snapshot(
        self, *, leases_held: int, waiters: int, commands_sent: int, cached: int = 0
    ) -> SessionStatistics:
        return SessionStatistics(
            leases_held=leases_held,
            waiters=waiters,
            acquisitions=sum(self.wait.counts) + self.hits,
            timeouts=self.timeouts,
            losses=self.losses,
            releases_unconfirmed=self.releases_unconfirmed,
            commands_sent=commands_sent,
            wakeups=MappingProxyType(dict(self.wakeups)),
            wait_seconds=self.wait.histogram(at_once=self.hits),
            hold_seconds=self.hold.histogram(),
            cached=cached,
            cache_hits=self.cache_hits + self.hits,
            recalls=self.recalls,
        )


@final
class _Durations:
    __slots__ = ("counts", "total")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS) + 1)
        self.total = 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(BOUNDS, seconds)] += 1
        self.total += seconds

    def histogram(self, *, at_once: int = 0) -> Histogram:
        """`at_once`: durations of 0 that were not added."""
        counts = (self.counts[0] + at_once, *self.counts[1:])
        return Histogram(bounds=BOUNDS, counts=counts, total=self.total)
