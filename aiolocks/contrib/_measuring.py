"""The measurements for monitoring systems, and the events that make them: the same for each system."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Final, Generic, TypeVar

from ..lock.events import LockEvent
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
    "renewals": ("renewal", "Renewals that the server has confirmed."),
    "abandoned": ("lease", "Leases collected without a release."),
    "stolen": ("lease", "Locks taken from their holder by force."),
    "admissions": ("request", "Requests that a rate limit has admitted."),
    "refusals": ("request", "Requests that a rate limit has refused at once."),
    "left_items": ("item", "Items that were left with a combiner."),
    "batches": ("batch", "Batches that a combiner has run to their end."),
    "batch_items": ("item", "Items of the batches that a combiner has run to their end."),
    "dropped_items": (
        "item",
        "Items that nobody has run for as long as they are kept, or that cannot be read.",
    ),
}
"""By name: the unit that is counted, and the description."""


SeriesT = TypeVar("SeriesT")


class MeasuringListener(ABC, Generic[SeriesT]):
    """Measures the events that a session tells; a subclass knows the monitoring system.

    The series of a kind and a label are all the metrics of these two. They are there from the first event on:
    a counter that begins with 1 would hide its first increase.
    """

    __slots__ = ("_known", "_label")

    def __init__(self, names: Names | None, *, raw_names: bool) -> None:
        self._label = labeller(names, raw_names=raw_names)
        self._known: dict[tuple[str, str], SeriesT] = {}

    @abstractmethod
    def _new_series(self, kind: str, label: str) -> SeriesT: ...

    @abstractmethod
    def _write(self, series: SeriesT, metric: str, amount: float) -> None:
        """Adds to a gauge or a counter, or records a duration."""

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

    def on_left(self, event: LockEvent) -> None:
        """Called by the session."""
        self._tell(event, left_items=event.items)

    def on_combined(self, event: LockEvent) -> None:
        """Called by the session."""
        if event.reason != "again":  # the same items are run once more
            self._tell(event, batches=1, batch_items=event.items)

    def on_dropped(self, event: LockEvent) -> None:
        """Called by the session."""
        self._tell(event, dropped_items=event.items)
