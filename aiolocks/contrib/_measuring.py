"""The measurements for monitoring systems, and the events that make them: the same for each system."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from typing import Final, Generic, TypeVar

from ..lock.events import LockEvent
from ..transport.steps.family import kind_in_use
from ._labels import Names, labeller

WAIT: Final = "How long granted acquisitions and admitted requests have waited."
HOLD: Final = "How long released and lost leases were held."
GAUGES: Final = {
    "held": ("lease", "Leases that are held now."),
    "waiters": ("waiter", "Acquisitions that wait now."),
}
COUNTERS: Final = {
    "acquisitions": ("lease", "Leases granted."),
    "cache_hits": ("lease", "Leases granted without a request, for their session had kept them."),
    "recalls": ("lease", "Leases that a session had kept, and that another session has asked for."),
    "timeouts": ("timeout", "Acquisitions that timed out."),
    "deadlocks": ("wait", "Waits that were part of a deadlock."),
    "losses": ("lease", "Leases lost."),
    "releases_unconfirmed": ("release", "Releases that the server did not confirm before the lease ended."),
    "renewals": ("renewal", "Renewals that the server has confirmed."),
    "abandoned": ("lease", "Leases collected without a release."),
    "stolen": ("lease", "Locks taken from their holder by force."),
    "admissions": ("request", "Requests that a rate limit has admitted."),
    "refusals": ("request", "Requests that a rate limit has refused at once."),
    "hits": ("call", "Calls of a single flight that have got a value which was kept."),
    "left_items": ("item", "Items that were left with a combiner."),
    "batches": ("batch", "Batches that a combiner has run to their end."),
    "batch_items": ("item", "Items of the batches that a combiner has run to their end."),
    "failed_items": ("item", "Items of batches of a combiner that have failed for good."),
    "dropped_items": (
        "item",
        "Items that nobody has run for as long as they are kept, or that cannot be read.",
    ),
}
"""By name: the unit that is counted, and the description."""
_ONLY_OF: Final = {
    **dict.fromkeys(("cache_hits", "recalls"), ("lock",)),
    "hits": ("singleflight",),
    "stolen": ("lock", "fairlock", "reentrantlock", "leadership"),
    **dict.fromkeys(("admissions", "refusals"), ("ratelimit",)),
    **dict.fromkeys(("left_items", "batches", "batch_items", "failed_items", "dropped_items"), ("combiner",)),
}
"""The kinds that these are counted of."""


def metrics_of(kind: str) -> frozenset[str]:
    """Which of the metrics of all kinds a kind has from its first event on."""
    used = kind_in_use(kind)
    names = (used and used.measured) or ("wait", "hold", *GAUGES, *COUNTERS)
    return frozenset(name for name in names if kind in _ONLY_OF.get(name, (kind,)))


SCHEDULE: Final = "schedule"
OUTCOMES: Final = ("done", "failed", "timeout", "stopped", "lost", "skipped")
RUNS: Final = "Ticks of schedules, by the outcome of their run."
MISSED_TICKS: Final = "Ticks of schedules that no process has claimed in time."
LATENESS: Final = "How long after their due time ticks of schedules have begun to run."
LAST_SUCCESS: Final = "When this process has ended a run of a schedule last whose job did not raise."
"""Of schedules alone."""


SeriesT = TypeVar("SeriesT")


class MeasuringListener(ABC, Generic[SeriesT]):
    """Measures the events that a session tells; a subclass knows the monitoring system.

    The series of a kind and a label are the metrics of these two, as far as the kind has them. They are there
    from the first event on: a counter that begins with 1 would hide its first increase.
    """

    __slots__ = ("_known", "_label")

    def __init__(self, names: Names | None, *, raw_names: bool) -> None:
        self._label = labeller(names, raw_names=raw_names)
        self._known: dict[tuple[str, str], SeriesT] = {}

    @abstractmethod
    def _new_series(self, kind: str, label: str) -> SeriesT: ...

    @abstractmethod
    def _write(self, series: SeriesT, metric: str, amount: float) -> None:
        """Adds to a gauge or a counter, or records a duration; `last_success` is set.

        Of schedules there are also `lateness`, `missed_ticks`, and one metric for each outcome, `runs_done`
        and so on.
        """

    def _of(self, kind: str, name: str) -> SeriesT:
        key = kind, self._label(name)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._new_series(*key)
        return found

    def _tell(self, event: LockEvent, **amounts: float) -> None:
        series = self._of(event.kind, event.name)
        for metric, amount in amounts.items():
            self._write(series, metric, amount)

    def on_waiting(self, event: LockEvent) -> None:
        """Called by the session."""
        self._tell(event, waiters=1)

    def on_waited(self, event: LockEvent) -> None:
        """Called by the session."""
        self._tell(event, waiters=-1)

    def on_timeout(self, event: LockEvent) -> None:
        """Called by the session."""
        self._tell(event, timeouts=1)

    def on_not_acquired(self, event: LockEvent) -> None:
        """Called by the session. Timeouts are counted as such, and no other end of an acquire is."""

    def on_deadlock(self, event: LockEvent) -> None:
        """Called by the session."""
        self._tell(event, deadlocks=1)

    def on_acquired(self, event: LockEvent) -> None:
        """Called by the session."""
        self._tell(event, acquisitions=1, held=1, wait=event.seconds)
        if event.cached:
            self._tell(event, cache_hits=1)

    def on_renewed(self, event: LockEvent) -> None:
        """Called by the session."""
        self._tell(event, renewals=1)

    def on_downgraded(self, event: LockEvent) -> None:
        """Called by the session."""
        self._write(self._of(event.was, event.name), "held", -1)
        self._tell(event, held=1)

    def on_upgraded(self, event: LockEvent) -> None:
        """Called by the session. The writer was counted as it was acquired."""

    def on_shrunk(self, event: LockEvent) -> None:
        """Called by the session. As many leases are held as before."""

    def on_released(self, event: LockEvent) -> None:
        """Called by the session."""
        self._tell(event, held=-1, hold=event.seconds)
        if event.reason == "unconfirmed":
            self._tell(event, releases_unconfirmed=1)

    def on_lost(self, event: LockEvent) -> None:
        """Called by the session."""
        self._tell(event, losses=1, held=-1, hold=event.seconds)

    def on_detached(self, event: LockEvent) -> None:
        """Called by the session."""
        self._tell(event, held=-1)

    def on_abandoned(self, event: LockEvent) -> None:
        """Called by the session."""
        self._tell(event, abandoned=1, held=-1)

    def on_stolen(self, event: LockEvent) -> None:
        """Called by the session."""
        self._tell(event, stolen=1)

    def on_recalled(self, event: LockEvent) -> None:
        """Called by the session."""
        self._tell(event, recalls=1)

    def on_admitted(self, event: LockEvent) -> None:
        """Called by the session."""
        self._tell(event, admissions=1, wait=event.seconds)

    def on_refused(self, event: LockEvent) -> None:
        """Called by the session."""
        self._tell(event, refusals=1)

    def on_hit(self, event: LockEvent) -> None:
        """Called by the session."""
        self._tell(event, hits=1)

    def on_left(self, event: LockEvent) -> None:
        """Called by the session."""
        self._tell(event, left_items=event.items)

    def on_combined(self, event: LockEvent) -> None:
        """Called by the session."""
        if event.reason != "again":  # the same items are run once more
            self._tell(event, batches=1, batch_items=event.items)
        if event.reason == "failed":
            self._tell(event, failed_items=event.items)

    def on_dropped(self, event: LockEvent) -> None:
        """Called by the session."""
        self._tell(event, dropped_items=event.items)

    def on_tick(self, event: LockEvent) -> None:
        """Called by the session."""
        self._tell(event, lateness=event.seconds, missed_ticks=event.items)

    def on_ran(self, event: LockEvent) -> None:
        """Called by the session."""
        self._tell(event, **{f"runs_{event.reason}": 1})
        if event.reason == "done":
            self._tell(event, last_success=time.time())
