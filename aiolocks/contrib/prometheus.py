"""A listener that counts and measures for Prometheus."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from typing import Final, final

try:
    from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram
    from prometheus_client.metrics import MetricWrapperBase
    from prometheus_client.metrics_core import Metric
    from prometheus_client.registry import Collector
except ImportError as error:
    raise ImportError("this needs prometheus-client: pip install aiolocks[prometheus]") from error

from .._core.events import LockEvent
from .._core.statistics import BOUNDS
from ._labels import Names, bounds, labeller

__all__ = ["PrometheusListener"]

_LABELS: Final = ("kind", "name")


@final
class PrometheusListener:
    """Counts and measures what the locks of its sessions do, as metrics of `prometheus_client`.

    ```python
    listener = PrometheusListener(names={"order:*": "order"})
    session = Session(redis, listeners=[listener])
    ```

    One may listen to any number of sessions, in any number of threads. Several on one registry share their
    metrics.

    Each metric has two labels. `kind` is the kind of the lock. `name` is what `names` makes of its name, and
    `other` for all the rest: the names themselves may be too many for Prometheus.

    Args:
        names: Which names are alike. A mapping of patterns to labels, of which the first that matches
            counts; an iterable of patterns that are labels themselves; or a function that gives the label for
            a name, or None for `other`. In a pattern `*` and `{word}` stand for any text, `{{` and `}}` for
            braces.
        raw_names: Each name is a label of its own. For locks with few names that are known before: each stays
            in memory for as long as the process lives.
        registry: Where the metrics are registered; default: the registry of `prometheus_client`.
        wait_buckets: Upper bounds of the buckets for waits, in seconds, rising. Default: 1 ms to 5 minutes.
        hold_buckets: The same for holds. One bound should stand near the ttl.

    Raises:
        TypeError, ValueError: An argument is not as it should be; or the registry has other metrics of these
            names, or the same with other buckets.
    """

    __slots__ = ("_label", "_metrics")

    def __init__(
        self,
        *,
        names: Names | None = None,
        raw_names: bool = False,
        registry: CollectorRegistry | None = None,
        wait_buckets: Sequence[float] = BOUNDS,
        hold_buckets: Sequence[float] = BOUNDS,
    ) -> None:
        self._label = labeller(names, raw_names=raw_names)
        buckets = bounds("wait_buckets", wait_buckets), bounds("hold_buckets", hold_buckets)
        self._metrics = _metrics_of(REGISTRY if registry is None else registry, buckets)

    def _series(self, event: LockEvent) -> _Series:
        return self._metrics.series(event.kind, self._label(event.name))

    def on_waiting(self, event: LockEvent) -> None:
        """Called by the session."""
        self._series(event).waiters.inc()

    def on_waited(self, event: LockEvent) -> None:
        """Called by the session."""
        self._series(event).waiters.dec()

    def on_timeout(self, event: LockEvent) -> None:
        """Called by the session."""
        self._series(event).timeouts.inc()

    def on_deadlock(self, event: LockEvent) -> None:
        """Called by the session."""
        self._series(event).deadlocks.inc()

    def on_acquired(self, event: LockEvent) -> None:
        """Called by the session."""
        series = self._series(event)
        series.acquisitions.inc()
        series.held.inc()
        series.wait.observe(event.seconds)

    def on_renewed(self, event: LockEvent) -> None:
        """Called by the session."""
        self._series(event).renewals.inc()

    def on_downgraded(self, event: LockEvent) -> None:
        """Called by the session."""
        label = self._label(event.name)
        self._metrics.series(event.was, label).held.dec()
        self._metrics.series(event.kind, label).held.inc()

    def on_released(self, event: LockEvent) -> None:
        """Called by the session."""
        series = self._series(event)
        series.held.dec()
        series.hold.observe(event.seconds)

    def on_lost(self, event: LockEvent) -> None:
        """Called by the session."""
        series = self._series(event)
        series.losses.inc()
        series.held.dec()
        series.hold.observe(event.seconds)

    def on_detached(self, event: LockEvent) -> None:
        """Called by the session."""
        self._series(event).held.dec()

    def on_abandoned(self, event: LockEvent) -> None:
        """Called by the session."""
        series = self._series(event)
        series.abandoned.inc()
        series.held.dec()

    def on_stolen(self, event: LockEvent) -> None:
        """Called by the session."""
        self._series(event).stolen.inc()


class _Series:
    """The metrics of one kind and one label, all of them from the first event on.

    A counter that begins with 1 would hide its first increase.
    """

    __slots__ = (
        "abandoned",
        "acquisitions",
        "deadlocks",
        "held",
        "hold",
        "losses",
        "renewals",
        "stolen",
        "timeouts",
        "wait",
        "waiters",
    )

    def __init__(self, metrics: _Metrics, kind: str, label: str) -> None:
        self.wait = metrics.wait.labels(kind, label)
        self.hold = metrics.hold.labels(kind, label)
        self.held = metrics.held.labels(kind, label)
        self.waiters = metrics.waiters.labels(kind, label)
        self.acquisitions = metrics.acquisitions.labels(kind, label)
        self.timeouts = metrics.timeouts.labels(kind, label)
        self.deadlocks = metrics.deadlocks.labels(kind, label)
        self.losses = metrics.losses.labels(kind, label)
        self.renewals = metrics.renewals.labels(kind, label)
        self.abandoned = metrics.abandoned.labels(kind, label)
        self.stolen = metrics.stolen.labels(kind, label)


class _Metrics(Collector):
    """The metrics of one registry. Registered as one, so that it is there as a whole or not at all."""

    def __init__(self, buckets: tuple[tuple[float, ...], tuple[float, ...]]) -> None:
        def histogram(name: str, what: str, upper: Sequence[float]) -> Histogram:
            return Histogram(name, what, _LABELS, registry=None, buckets=upper)

        def gauge(name: str, what: str) -> Gauge:
            # Where several processes write for one endpoint: of those that live, together.
            return Gauge(name, what, _LABELS, registry=None, multiprocess_mode="livesum")

        def counter(name: str, what: str) -> Counter:
            return Counter(name, what, _LABELS, registry=None)

        self.buckets = buckets
        wait, hold = buckets
        self.wait = histogram("aiolocks_wait_seconds", "How long granted acquisitions have waited.", wait)
        self.hold = histogram("aiolocks_hold_seconds", "How long released and lost leases were held.", hold)
        self.held = gauge("aiolocks_held", "Leases that are held now.")
        self.waiters = gauge("aiolocks_waiters", "Acquisitions that wait now.")
        self.acquisitions = counter("aiolocks_acquisitions_total", "Leases granted.")
        self.timeouts = counter("aiolocks_timeouts_total", "Acquisitions that timed out.")
        self.deadlocks = counter("aiolocks_deadlocks_total", "Waits that were part of a deadlock.")
        self.losses = counter("aiolocks_losses_total", "Leases lost.")
        self.renewals = counter("aiolocks_renewals_total", "Renewals that the server has confirmed.")
        self.abandoned = counter("aiolocks_abandoned_total", "Leases collected without a release.")
        self.stolen = counter("aiolocks_stolen_total", "Locks taken from their holder by force.")
        self._all: tuple[MetricWrapperBase, ...] = (
            self.wait,
            self.hold,
            self.held,
            self.waiters,
            self.acquisitions,
            self.timeouts,
            self.deadlocks,
            self.losses,
            self.renewals,
            self.abandoned,
            self.stolen,
        )
        self._series: dict[tuple[str, str], _Series] = {}

    def series(self, kind: str, label: str) -> _Series:
        found = self._series.get((kind, label))
        if found is None:
            found = self._series[kind, label] = _Series(self, kind, label)
        return found

    def describe(self) -> Iterable[Metric]:
        for metric in self._all:
            yield from metric.describe()

    def collect(self) -> Iterable[Metric]:
        for metric in self._all:
            yield from metric.collect()


_registered: Final[weakref.WeakKeyDictionary[CollectorRegistry, _Metrics]] = weakref.WeakKeyDictionary()
"""Where there are metrics of ours already."""


def _metrics_of(registry: object, buckets: tuple[tuple[float, ...], tuple[float, ...]]) -> _Metrics:
    if not isinstance(registry, CollectorRegistry):
        raise TypeError(f"registry must be a CollectorRegistry, not {type(registry).__name__}")
    metrics = _registered.get(registry)
    if metrics is None or not _stands_in(registry, metrics):
        metrics = _Metrics(buckets)
        try:
            registry.register(metrics)
        except ValueError as error:
            raise ValueError(
                "the registry has metrics whose names begin with aiolocks_, and they are not those of a "
                "PrometheusListener: give another registry"
            ) from error
        _registered[registry] = metrics
    elif metrics.buckets != buckets:
        raise ValueError(
            "the registry has these metrics already, with other buckets: give the same, or another registry"
        )
    return metrics


def _stands_in(registry: CollectorRegistry, metrics: _Metrics) -> bool:
    """Whether nobody has unregistered it: a program that clears a registry wants new ones."""
    try:
        registry.register(metrics)
    except ValueError:
        return True
    registry.unregister(metrics)
    return False
