"""A listener that counts and measures locks for Prometheus."""

from __future__ import annotations

import os
import re
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final, final

from .._extras import install
from .._logs import get_logger

try:
    from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram
    from prometheus_client.metrics import MetricWrapperBase
    from prometheus_client.metrics_core import Metric
    from prometheus_client.registry import Collector
except ImportError as error:
    raise ImportError(
        f"aiolocks.contrib.prometheus needs prometheus-client: {install('prometheus')}"
    ) from error

from ..lock.statistics import BOUNDS
from ._labels import Names, bounds
from ._measuring import (
    COUNTERS,
    GAUGES,
    HOLD,
    LAST_SUCCESS,
    LATENESS,
    MISSED_TICKS,
    OUTCOMES,
    RUNS,
    SCHEDULE,
    WAIT,
    MeasuringListener,
    metrics_of,
)

__all__ = ["PrometheusListener"]


def __dir__() -> list[str]:
    """The public names alone."""
    return [*__all__]


log: Final = get_logger("aiolocks.metrics")

_LABELS: Final = ("kind", "name")
_LOOK_EVERY: Final = 5.0
"""Seconds after which a process that has something to tell looks for dead ones again."""
_PID: Final = re.compile(r"_(\d+)\.db")

_Write = Callable[[float], object]


@final
class _Series(dict[str, _Write]):
    """What adds to the metrics of a kind and a label, by metric; made as it is first asked for."""

    def __init__(self, metrics: _Metrics, kind: str, label: str) -> None:
        super().__init__()
        self._of = metrics, kind, label

    def __missing__(self, metric: str) -> _Write:
        metrics, kind, label = self._of
        write = self[metric] = metrics.writer(metric, kind, label)
        return write


"""By metric, of one kind and one label: adds to it, or records a duration."""


@final
class PrometheusListener(MeasuringListener[_Series]):
    """Counts and measures what the locks of its sessions do, as metrics of `prometheus_client`.

    ```python
    listener = PrometheusListener(names={"order:*": "order"})
    session = Session(redis, listeners=[listener])
    ```

    A listener can serve any number of sessions, in any number of threads. Several listeners on one registry
    share their metrics.

    Each metric has two labels. `kind` is the kind of the lock. `name` is the label that `names` gives to the
    name of the lock, or `other`. The names themselves are not labels by default, because Prometheus cannot
    store very many different ones.

    In the multiprocess mode of the client, the listener removes the gauges of processes that were killed. It
    looks for dead processes when it is made, and when an event happens, at most every 5 s. As
    `mark_process_dead` does, it also removes other gauges of such a process whose mode begins with `live`.
    Nothing is removed on Windows, or if the files are not named after process ids.

    Args:
        names: Which names have the same label. A mapping of patterns to labels: the first pattern that
            matches counts. Or an iterable of patterns, each of which is its own label. Or a function that
            returns the label of a name, or None for `other`. In a pattern, `*` and `{word}` stand for any
            text, and `{{` and `}}` for braces.
        raw_names: True: each name is its own label. Use it only for a few names that you know in advance,
            because each name stays in memory as long as the process lives. Default False.
        registry: Where the metrics are registered. Default: the registry of `prometheus_client`.
        wait_buckets: Upper bounds of the buckets for waits, in seconds, rising. Default: 1 ms to 5 minutes.
        hold_buckets: Upper bounds of the buckets for holds, in seconds, rising. Default: 1 ms to 5 minutes.
            One bound should be near the ttl.

    Raises:
        TypeError, ValueError: An argument is wrong; or the registry has other metrics of these names, or the
            same metrics with other buckets.
    """

    __slots__ = ("_dead", "_metrics")

    def __init__(
        self,
        *,
        names: Names | None = None,
        raw_names: bool = False,
        registry: CollectorRegistry | None = None,
        wait_buckets: Sequence[float] = BOUNDS,
        hold_buckets: Sequence[float] = BOUNDS,
    ) -> None:
        super().__init__(names, raw_names=raw_names)
        buckets = bounds("wait_buckets", wait_buckets), bounds("hold_buckets", hold_buckets)
        self._metrics = _metrics_of(REGISTRY if registry is None else registry, buckets)
        self._dead = _Dead(os.environ.get("PROMETHEUS_MULTIPROC_DIR"))
        self._dead.look()

    def _new_series(self, kind: str, label: str) -> _Series:
        return self._metrics.series(kind, label)

    def _write(self, series: _Series, metric: str, amount: float) -> None:
        series[metric](amount)
        self._dead.look()


@final
class _Dead:
    """The processes that have written into the same directory and were killed since.

    Args:
        directory: That of the multiprocess mode; None where each process has its own endpoint.
    """

    __slots__ = ("_directory", "_due")

    def __init__(self, directory: str | None) -> None:
        # On Windows there is no signal that only asks whether a process lives.
        self._directory = None if sys.platform == "win32" or directory is None else Path(directory)
        self._due = 0.0

    def look(self) -> None:
        """Removes their gauges, if it is time to."""
        if self._directory is None or (now := time.monotonic()) < self._due:
            return
        self._due = now + _LOOK_EVERY
        try:
            files = [
                (path, int(found[1]))
                for path in self._directory.glob("*.db")
                if (found := _PID.search(path.name))
            ]
            # Without a file of this process they may be named after something else than its id.
            if os.getpid() in {pid for _, pid in files}:
                for path, pid in files:
                    if path.name.startswith("gauge_live") and _is_dead(pid):
                        path.unlink(missing_ok=True)  # another process may be the first
        except OSError as error:
            log.warning("the gauges of processes that have ended stay in %s: %s", self._directory, error)
            self._directory = None


def _is_dead(pid: int) -> bool:
    try:
        os.kill(pid, 0)  # asks only
    except ProcessLookupError:
        return True
    except OSError:
        pass  # it lives, and is another user's
    return False


class _Metrics(Collector):
    """The metrics of one registry. Registered as one, so that it is there as a whole or not at all."""

    def __init__(self, buckets: tuple[tuple[float, ...], tuple[float, ...]]) -> None:
        self.buckets = buckets
        wait, hold = buckets
        self._durations = {
            "wait": Histogram("aiolocks_wait_seconds", WAIT, _LABELS, registry=None, buckets=wait),
            "hold": Histogram("aiolocks_hold_seconds", HOLD, _LABELS, registry=None, buckets=hold),
        }
        # Where several processes write for one endpoint: the sum over the processes that live.
        self._gauges = {
            name: Gauge(f"aiolocks_{name}", text, _LABELS, registry=None, multiprocess_mode="livesum")
            for name, (_, text) in GAUGES.items()
        }
        self._counters = {
            name: Counter(f"aiolocks_{name}_total", text, _LABELS, registry=None)
            for name, (_, text) in COUNTERS.items()
        }
        self._runs = Counter("aiolocks_schedule_runs_total", RUNS, (*_LABELS, "outcome"), registry=None)
        self._missed = Counter("aiolocks_schedule_missed_ticks_total", MISSED_TICKS, _LABELS, registry=None)
        self._lateness = Histogram(
            "aiolocks_schedule_lateness_seconds", LATENESS, _LABELS, registry=None, buckets=BOUNDS
        )
        # Also of a process that has ended: its successor need not have run the schedule yet.
        self._last_success = Gauge(
            "aiolocks_schedule_last_success_timestamp_seconds",
            LAST_SUCCESS,
            _LABELS,
            registry=None,
            multiprocess_mode="max",
        )

    def series(self, kind: str, label: str) -> _Series:
        series = _Series(self, kind, label)
        for metric in metrics_of(kind):
            series[metric]  # there from now on
        if kind == SCHEDULE:
            series |= {
                **{f"runs_{one}": self._runs.labels(kind, label, one).inc for one in OUTCOMES},
                "missed_ticks": self._missed.labels(kind, label).inc,
                "lateness": self._lateness.labels(kind, label).observe,
                # Not there before the first: a 0 would be a success of 1970.
                "last_success": lambda at: self._last_success.labels(kind, label).set(at),
            }
        return series

    def writer(self, metric: str, kind: str, label: str) -> _Write:
        """What adds to a metric of all kinds."""
        if metric in self._durations:
            return self._durations[metric].labels(kind, label).observe
        of_all: dict[str, Counter | Gauge] = {**self._counters, **self._gauges}
        return of_all[metric].labels(kind, label).inc

    def _all(self) -> Iterable[MetricWrapperBase]:
        of_schedules = self._runs, self._missed, self._lateness, self._last_success
        return (
            *self._durations.values(),
            *self._gauges.values(),
            *self._counters.values(),
            *of_schedules,
        )

    def describe(self) -> Iterable[Metric]:
        for metric in self._all():
            yield from metric.describe()

    def collect(self) -> Iterable[Metric]:
        for metric in self._all():
            yield from metric.collect()


_registered: Final[weakref.WeakKeyDictionary[CollectorRegistry, _Metrics]] = weakref.WeakKeyDictionary()
"""Where there are metrics of ours already."""
_registering: Final = threading.Lock()


def _metrics_of(registry: object, buckets: tuple[tuple[float, ...], tuple[float, ...]]) -> _Metrics:
    if not isinstance(registry, CollectorRegistry):
        raise TypeError(f"registry must be a CollectorRegistry, not {type(registry).__name__}")
    with _registering:
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
    if metrics.buckets != buckets:
        raise ValueError(
            "the registry has these metrics already, with other buckets: give the same, or another registry"
        )
    return metrics


def _stands_in(registry: CollectorRegistry, metrics: _Metrics) -> bool:
    """Whether it is still registered: a program that clears a registry wants new metrics."""
    try:
        registry.register(metrics)
    except ValueError:
        return True
    registry.unregister(metrics)
    return False
