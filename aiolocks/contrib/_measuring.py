"""The measurements for monitoring systems, and the events that make them: the same for each system."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Final, NamedTuple

from .._core.events import LockEvent
from ._labels import Names, labeller

Write = Callable[[float], object]
"""Adds to a gauge or a counter, or records a duration."""

WAIT: Final = "How long granted acquisitions have waited."
HOLD: Final = "How long released and lost leases were held."
GAUGES: Final = {
    "held": ("lease", "Leases that are held now."),
    "waiters": ("waiter", "Acquisitions that wait now."),
}
COUNTERS: Final = {
    "acquisitions": ("lease", "Leases granted."),
    "timeouts": ("timeout", "Acquisitions that timed out."),
    "deadlocks": ("wait", "Waits that were part of a deadlock."),
    "losses": ("lease", "Leases lost."),
    "renewals": ("renewal", "Renewals that the server has confirmed."),
    "abandoned": ("lease", "Leases collected without a release."),
    "stolen": ("lease", "Locks taken from their holder by force."),
}
"""By name: the unit that is counted, and the description."""


class Series(NamedTuple):
    """Writes the metrics of one kind and one label, all of which are there from the first event on.

    A counter that begins with 1 would hide its first increase.
    """

    wait: Write
    hold: Write
    held: Write
    waiters: Write
    acquisitions: Write
    timeouts: Write
    deadlocks: Write
    losses: Write
    renewals: Write
    abandoned: Write
    stolen: Write


class MeasuringListener(ABC):
    """Measures the events that a session tells; a subclass knows the monitoring system."""

    __slots__ = ("_known", "_label")

    def __init__(self, names: Names | None, *, raw_names: bool) -> None:
        self._label = labeller(names, raw_names=raw_names)
        self._known: dict[tuple[str, str], Series] = {}

    @abstractmethod
    def _new_series(self, kind: str, label: str) -> Series: ...

    def _of(self, kind: str, name: str) -> Series:
        key = kind, self._label(name)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._new_series(*key)
        return found

    def on_waiting(self, event: LockEvent) -> None:
        """Called by the session."""
        self._of(event.kind, event.name).waiters(1)

    def on_waited(self, event: LockEvent) -> None:
        """Called by the session."""
        self._of(event.kind, event.name).waiters(-1)

    def on_timeout(self, event: LockEvent) -> None:
        """Called by the session."""
        self._of(event.kind, event.name).timeouts(1)

    def on_deadlock(self, event: LockEvent) -> None:
        """Called by the session."""
        self._of(event.kind, event.name).deadlocks(1)

    def on_acquired(self, event: LockEvent) -> None:
        """Called by the session."""
        series = self._of(event.kind, event.name)
        series.acquisitions(1)
        series.held(1)
        series.wait(event.seconds)

    def on_renewed(self, event: LockEvent) -> None:
        """Called by the session."""
        self._of(event.kind, event.name).renewals(1)

    def on_downgraded(self, event: LockEvent) -> None:
        """Called by the session."""
        self._of(event.was, event.name).held(-1)
        self._of(event.kind, event.name).held(1)

    def on_released(self, event: LockEvent) -> None:
        """Called by the session."""
        series = self._of(event.kind, event.name)
        series.held(-1)
        series.hold(event.seconds)

    def on_lost(self, event: LockEvent) -> None:
        """Called by the session."""
        series = self._of(event.kind, event.name)
        series.losses(1)
        series.held(-1)
        series.hold(event.seconds)

    def on_detached(self, event: LockEvent) -> None:
        """Called by the session."""
        self._of(event.kind, event.name).held(-1)

    def on_abandoned(self, event: LockEvent) -> None:
        """Called by the session."""
        series = self._of(event.kind, event.name)
        series.abandoned(1)
        series.held(-1)

    def on_stolen(self, event: LockEvent) -> None:
        """Called by the session."""
        self._of(event.kind, event.name).stolen(1)
