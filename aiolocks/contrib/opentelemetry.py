"""A listener that counts and measures for OpenTelemetry."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, final

try:
    from opentelemetry.metrics import MeterProvider, get_meter
except ImportError as error:
    raise ImportError("this needs opentelemetry-api: pip install aiolocks[opentelemetry]") from error

from .. import __version__
from .._core.events import LockEvent
from .._core.statistics import BOUNDS
from ._labels import Names, bounds, labeller

__all__ = ["OpenTelemetryListener"]

KIND: Final = "aiolocks.kind"
NAME: Final = "aiolocks.name"


@final
class OpenTelemetryListener:
    """Counts and measures what the locks of its sessions do, through OpenTelemetry's metrics API.

    ```python
    listener = OpenTelemetryListener(names={"order:*": "order"})
    session = Session(redis, listeners=[listener])
    ```

    One may listen to any number of sessions, in any number of threads. Several with one meter provider share
    their instruments.

    Each measurement has two attributes. `aiolocks.kind` is the kind of the lock. `aiolocks.name` is what
    `names` makes of its name, and `other` for all the rest: the names themselves may be too many for what
    stores them.

    Args:
        names: Which names are alike. A mapping of patterns to labels, of which the first that matches
            counts; an iterable of patterns that are labels themselves; or a function that gives the label for
            a name, or None for `other`. In a pattern `*` and `{word}` stand for any text, `{{` and `}}` for
            braces.
        raw_names: Each name is a value of the attribute. For locks with few names that are known before: each
            stays in memory for as long as the process lives.
        meter_provider: Makes the instruments; default: the global one, also if it is set only later.
        wait_buckets: Upper bounds of the buckets for waits, in seconds, rising. Default: 1 ms to 5 minutes.
            A view of yours for `aiolocks.wait.duration` takes precedence.
        hold_buckets: The same for holds, and `aiolocks.hold.duration`. One bound should stand near the ttl.

    Raises:
        TypeError, ValueError: An argument is not as it should be.
    """

    __slots__ = (
        "_abandoned",
        "_acquisitions",
        "_attributes",
        "_deadlocks",
        "_held",
        "_hold",
        "_label",
        "_losses",
        "_renewals",
        "_stolen",
        "_timeouts",
        "_wait",
        "_waiters",
    )

    def __init__(
        self,
        *,
        names: Names | None = None,
        raw_names: bool = False,
        meter_provider: MeterProvider | None = None,
        wait_buckets: Sequence[float] = BOUNDS,
        hold_buckets: Sequence[float] = BOUNDS,
    ) -> None:
        self._label = labeller(names, raw_names=raw_names)
        wait, hold = bounds("wait_buckets", wait_buckets), bounds("hold_buckets", hold_buckets)
        if meter_provider is not None and not isinstance(meter_provider, MeterProvider):
            raise TypeError(f"meter_provider must be a MeterProvider, not {type(meter_provider).__name__}")
        meter = get_meter("aiolocks", __version__, meter_provider)
        self._attributes: dict[tuple[str, str], dict[str, str]] = {}
        self._wait = meter.create_histogram(
            "aiolocks.wait.duration",
            unit="s",
            description="How long granted acquisitions have waited.",
            explicit_bucket_boundaries_advisory=wait,
        )
        self._hold = meter.create_histogram(
            "aiolocks.hold.duration",
            unit="s",
            description="How long released and lost leases were held.",
            explicit_bucket_boundaries_advisory=hold,
        )
        self._held = meter.create_up_down_counter(
            "aiolocks.held", unit="{lease}", description="Leases that are held now."
        )
        self._waiters = meter.create_up_down_counter(
            "aiolocks.waiters", unit="{waiter}", description="Acquisitions that wait now."
        )
        self._acquisitions = meter.create_counter(
            "aiolocks.acquisitions", unit="{lease}", description="Leases granted."
        )
        self._timeouts = meter.create_counter(
            "aiolocks.timeouts",
            unit="{timeout}",
            description="Acquisitions that timed out.",
        )
        self._deadlocks = meter.create_counter(
            "aiolocks.deadlocks", unit="{wait}", description="Waits that were part of a deadlock."
        )
        self._losses = meter.create_counter("aiolocks.losses", unit="{lease}", description="Leases lost.")
        self._renewals = meter.create_counter(
            "aiolocks.renewals", unit="{renewal}", description="Renewals that the server has confirmed."
        )
        self._abandoned = meter.create_counter(
            "aiolocks.abandoned", unit="{lease}", description="Leases collected without a release."
        )
        self._stolen = meter.create_counter(
            "aiolocks.stolen", unit="{lease}", description="Locks taken from their holder by force."
        )

    def _of(self, kind: str, name: str) -> dict[str, str]:
        label = self._label(name)
        found = self._attributes.get((kind, label))
        if found is None:
            found = self._attributes[kind, label] = {KIND: kind, NAME: label}
            # All counters are there from the first event on: one that begins with 1 would hide its first
            # increase.
            for counter in (
                self._acquisitions,
                self._timeouts,
                self._deadlocks,
                self._losses,
                self._renewals,
                self._abandoned,
                self._stolen,
            ):
                counter.add(0, found)
        return found

    def on_waiting(self, event: LockEvent) -> None:
        """Called by the session."""
        self._waiters.add(1, self._of(event.kind, event.name))

    def on_waited(self, event: LockEvent) -> None:
        """Called by the session."""
        self._waiters.add(-1, self._of(event.kind, event.name))

    def on_timeout(self, event: LockEvent) -> None:
        """Called by the session."""
        self._timeouts.add(1, self._of(event.kind, event.name))

    def on_deadlock(self, event: LockEvent) -> None:
        """Called by the session."""
        self._deadlocks.add(1, self._of(event.kind, event.name))

    def on_acquired(self, event: LockEvent) -> None:
        """Called by the session."""
        attributes = self._of(event.kind, event.name)
        self._acquisitions.add(1, attributes)
        self._held.add(1, attributes)
        self._wait.record(event.seconds, attributes)

    def on_renewed(self, event: LockEvent) -> None:
        """Called by the session."""
        self._renewals.add(1, self._of(event.kind, event.name))

    def on_downgraded(self, event: LockEvent) -> None:
        """Called by the session."""
        self._held.add(-1, self._of(event.was, event.name))
        self._held.add(1, self._of(event.kind, event.name))

    def on_released(self, event: LockEvent) -> None:
        """Called by the session."""
        attributes = self._of(event.kind, event.name)
        self._held.add(-1, attributes)
        self._hold.record(event.seconds, attributes)

    def on_lost(self, event: LockEvent) -> None:
        """Called by the session."""
        attributes = self._of(event.kind, event.name)
        self._losses.add(1, attributes)
        self._held.add(-1, attributes)
        self._hold.record(event.seconds, attributes)

    def on_detached(self, event: LockEvent) -> None:
        """Called by the session."""
        self._held.add(-1, self._of(event.kind, event.name))

    def on_abandoned(self, event: LockEvent) -> None:
        """Called by the session."""
        attributes = self._of(event.kind, event.name)
        self._abandoned.add(1, attributes)
        self._held.add(-1, attributes)

    def on_stolen(self, event: LockEvent) -> None:
        """Called by the session."""
        self._stolen.add(1, self._of(event.kind, event.name))
