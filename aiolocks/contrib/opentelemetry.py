"""Listeners for OpenTelemetry: one counts and measures locks, one makes spans of them."""

from __future__ import annotations

import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, final

from .._extras import install

try:
    from opentelemetry.metrics import MeterProvider, get_meter
    from opentelemetry.trace import (
        INVALID_SPAN,
        Link,
        Span,
        Status,
        StatusCode,
        TracerProvider,
        get_current_span,
        get_tracer,
    )
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ImportError as error:
    raise ImportError(
        f"aiolocks.contrib.opentelemetry needs opentelemetry-api: {install('opentelemetry')}"
    ) from error

from .. import __version__
from ..lock.events import LockEvent
from ..lock.statistics import BOUNDS
from ._labels import Names, bounds, labeller
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

__all__ = ["OpenTelemetryListener", "SpanListener"]


def __dir__() -> list[str]:
    """The public names alone."""
    return [*__all__]


KIND: Final = "aiolocks.kind"
NAME: Final = "aiolocks.name"
OUTCOME: Final = "aiolocks.outcome"
WAITED: Final = "aiolocks.waited"


@final
class OpenTelemetryListener(MeasuringListener[dict[str, str]]):
    """Counts and measures what the locks of its sessions do, through OpenTelemetry's metrics API.

    ```python
    listener = OpenTelemetryListener(names={"order:*": "order"})
    session = Session(redis, listeners=[listener])
    ```

    A listener can serve any number of sessions, in any number of threads. Several listeners with one meter
    provider share their instruments.

    Each measurement has two attributes. `aiolocks.kind` is the kind of the lock. `aiolocks.name` is the value
    that `names` gives to the name of the lock, or `other`. The names themselves are not values by default,
    because the store of the metrics may not take very many different ones.

    Args:
        names: Which names have the same value. A mapping of patterns to values: the first pattern that
            matches counts. Or an iterable of patterns, each of which is its own value. Or a function that
            returns the value of a name, or None for `other`. In a pattern, `*` and `{word}` stand for any
            text, and `{{` and `}}` for braces.
        raw_names: True: each name is its own value. Use it only for a few names that you know in advance,
            because each name stays in memory as long as the process lives. Default False.
        meter_provider: Makes the instruments. Default: the global provider, also if it is set later.
        wait_buckets: Upper bounds of the buckets for waits, in seconds, rising. Default: 1 ms to 5 minutes. A
            view of yours for `aiolocks.wait.duration` takes precedence.
        hold_buckets: Upper bounds of the buckets for holds, in seconds, rising. Default: 1 ms to 5 minutes.
            One bound should be near the ttl. A view of yours for `aiolocks.hold.duration` takes precedence.

    Raises:
        TypeError, ValueError: An argument is wrong.
    """

    __slots__ = ("_counters", "_missed", "_runs", "_writes")

    def __init__(
        self,
        *,
        names: Names | None = None,
        raw_names: bool = False,
        meter_provider: MeterProvider | None = None,
        wait_buckets: Sequence[float] = BOUNDS,
        hold_buckets: Sequence[float] = BOUNDS,
    ) -> None:
        super().__init__(names, raw_names=raw_names)
        wait, hold = bounds("wait_buckets", wait_buckets), bounds("hold_buckets", hold_buckets)
        if meter_provider is not None and not isinstance(meter_provider, MeterProvider):
            raise TypeError(f"meter_provider must be a MeterProvider, not {type(meter_provider).__name__}")
        meter = get_meter("aiolocks", __version__, meter_provider)
        durations = {
            name: meter.create_histogram(
                f"aiolocks.{name}.duration",
                unit="s",
                description=text,
                explicit_bucket_boundaries_advisory=buckets,
            )
            for name, text, buckets in (("wait", WAIT, wait), ("hold", HOLD, hold))
        }
        gauges = {
            name: meter.create_up_down_counter(f"aiolocks.{name}", unit=f"{{{unit}}}", description=text)
            for name, (unit, text) in GAUGES.items()
        }
        self._counters = {
            name: meter.create_counter(f"aiolocks.{name}", unit=f"{{{unit}}}", description=text)
            for name, (unit, text) in COUNTERS.items()
        }
        self._runs = meter.create_counter("aiolocks.schedule.runs", unit="{run}", description=RUNS)
        self._missed = meter.create_counter(
            "aiolocks.schedule.missed_ticks", unit="{tick}", description=MISSED_TICKS
        )
        lateness = meter.create_histogram(
            "aiolocks.schedule.lateness",
            unit="s",
            description=LATENESS,
            explicit_bucket_boundaries_advisory=BOUNDS,
        )
        last_success = meter.create_gauge(
            "aiolocks.schedule.last_success", unit="s", description=LAST_SUCCESS
        )
        self._writes: dict[str, Callable[[float, dict[str, str]], None]] = {
            **{f"runs_{outcome}": self._ran(outcome) for outcome in OUTCOMES},
            "missed_ticks": self._missed.add,
            "lateness": lateness.record,
            "last_success": last_success.set,
            **{name: one.record for name, one in durations.items()},
            **{name: one.add for name, one in (gauges | self._counters).items()},
        }

    def _new_series(self, kind: str, label: str) -> dict[str, str]:
        attributes = {KIND: kind, NAME: label}
        for name in metrics_of(kind) & self._counters.keys():
            self._counters[name].add(0, attributes)
        if kind == SCHEDULE:
            self._missed.add(0, attributes)
            for outcome in OUTCOMES:
                self._runs.add(0, {**attributes, OUTCOME: outcome})
        return attributes

    def _ran(self, outcome: str) -> Callable[[float, dict[str, str]], None]:
        return lambda amount, series: self._runs.add(amount, {**series, OUTCOME: outcome})

    def _write(self, series: dict[str, str], metric: str, amount: float) -> None:
        self._writes[metric](amount, series)


_ERRORS: Final = {
    "timeout": "not acquired in time",
    "closed": "the session was closed",
    "failed": "the acquire has failed",
}
"""The outcomes of an acquire that are errors, with the description of their status."""
_LINKS: Final = 8
"""Holders that an acquire has a link to."""
_PROPAGATOR: Final = TraceContextTextMapPropagator()


@final
class SpanListener:
    """Makes a span of each acquire and of each hold, through OpenTelemetry's trace API.

    ```python
    session = Session(redis, listeners=[SpanListener(names={"order:*": "order"})])
    ```

    `aiolocks.acquire` lasts from the call to the grant or the refusal, and `aiolocks.hold` from the grant to
    the end of the lease. Both are children of the span that is current where the lock is acquired. They are
    not current themselves: spans of the body are siblings of `aiolocks.hold`. An acquire is a span when it
    has ended: one that waits now is not seen yet.

    The attributes are `aiolocks.kind`, `aiolocks.name` (the value that `names` gives to the name, or
    `other`), `aiolocks.outcome`, and for an acquire `aiolocks.waited`, in seconds. If the metadata of the
    holder that is waited for have a `traceparent`, the acquire has a link to that trace.

    A listener can serve any number of sessions, in any number of threads.

    Args:
        names: Which names have the same value, as of `OpenTelemetryListener`.
        raw_names: True: each name is its own value. Default False.
        tracer_provider: Makes the spans. Default: the global provider, also if it is set later.

    Raises:
        TypeError, ValueError: An argument is wrong.
    """

    __slots__ = ("_collected", "_holds", "_label", "_tracer")

    wants_holders = True
    """So that events have the holders."""

    def __init__(
        self,
        *,
        names: Names | None = None,
        raw_names: bool = False,
        tracer_provider: TracerProvider | None = None,
    ) -> None:
        if tracer_provider is not None and not isinstance(tracer_provider, TracerProvider):
            raise TypeError(f"tracer_provider must be a TracerProvider, not {type(tracer_provider).__name__}")
        self._label = labeller(names, raw_names=raw_names)
        self._tracer = get_tracer("aiolocks", __version__, tracer_provider)
        self._holds: dict[weakref.ref[Any] | None, Span] = {}
        # Ended at the next event: the garbage collector may come while a lock of the exporter is held.
        self._collected: deque[tuple[Span, int]] = deque()

    def on_acquired(self, event: LockEvent) -> None:
        """Called by the session."""
        self._end_collected()
        self._acquire(event, "granted")
        if event.lease is not None and (lease := event.lease()) is not None:
            attributes = self._attributes(event)
            if event.cached:
                attributes["aiolocks.cached"] = True
            hold = self._tracer.start_span("aiolocks.hold", attributes=attributes)
            self._holds[weakref.ref(lease, self._is_collected)] = hold

    def on_not_acquired(self, event: LockEvent) -> None:
        """Called by the session."""
        self._end_collected()
        self._acquire(event, event.reason)

    def on_admitted(self, event: LockEvent) -> None:
        """Called by the session. A rate limit has no lease."""
        self._acquire(event, "granted")

    def on_refused(self, event: LockEvent) -> None:
        """Called by the session. `seconds` is when it would be admitted: it has not waited."""
        self._acquire(event, "refused", waited=0.0)

    def on_waited(self, event: LockEvent) -> None:
        """Called by the session."""
        # A kind that is waited for, and never acquired.
        if event.reason == "granted" and "wait" not in metrics_of(event.kind):
            self._acquire(event, "granted")

    def on_stolen(self, event: LockEvent) -> None:
        """Called by the session, right after `on_acquired`."""
        self._note(event, "aiolocks.stolen")

    def on_upgraded(self, event: LockEvent) -> None:
        """Called by the session. The writer has a span of its own."""

    def on_downgraded(self, event: LockEvent) -> None:
        """Called by the session."""
        self._note(event, "aiolocks.downgraded").set_attribute(KIND, event.kind)

    def on_shrunk(self, event: LockEvent) -> None:
        """Called by the session."""
        self._note(event, "aiolocks.shrunk")

    def on_released(self, event: LockEvent) -> None:
        """Called by the session."""
        self._end_hold(event, "released")

    def on_lost(self, event: LockEvent) -> None:
        """Called by the session."""
        self._end_hold(event, "lost", error=event.reason)

    def on_detached(self, event: LockEvent) -> None:
        """Called by the session."""
        self._end_hold(event, "detached")

    def on_abandoned(self, event: LockEvent) -> None:
        """Called by the session, after the lease was collected."""
        self._end_collected()

    def _attributes(self, event: LockEvent) -> dict[str, str | bool | float]:
        return {KIND: event.kind, NAME: self._label(event.name)}

    def _acquire(self, event: LockEvent, outcome: str, *, waited: float | None = None) -> None:
        """The span of an acquire that has ended."""
        waited, now = event.seconds if waited is None else waited, time.time_ns()
        span = self._tracer.start_span(
            "aiolocks.acquire",
            attributes={**self._attributes(event), WAITED: waited, OUTCOME: outcome},
            links=[*_links(event)],
            start_time=now - round(waited * 1e9),
        )
        if outcome in _ERRORS:
            span.set_status(Status(StatusCode.ERROR, _ERRORS[outcome]))
        span.end(now)

    def _note(self, event: LockEvent, text: str) -> Span:
        hold = self._holds.get(event.lease, INVALID_SPAN)
        hold.add_event(text)
        return hold

    def _end_hold(self, event: LockEvent, outcome: str, *, error: str = "") -> None:
        self._end_collected()
        hold = self._holds.pop(event.lease, None)
        if hold is not None:
            _end(hold, outcome, error)

    def _is_collected(self, lease: weakref.ref[Any]) -> None:
        hold = self._holds.pop(lease, None)
        if hold is not None:
            self._collected.append((hold, time.time_ns()))

    def _end_collected(self) -> None:
        while self._collected:
            try:
                hold, at = self._collected.popleft()
            except IndexError:  # another thread was first
                return
            _end(hold, "abandoned", "the lease was collected without a release", at)


def _end(hold: Span, outcome: str, error: str, at: int | None = None) -> None:
    hold.set_attribute(OUTCOME, outcome)
    if error:
        hold.set_status(Status(StatusCode.ERROR, error))
    hold.end(at)


def _links(event: LockEvent) -> Iterator[Link]:
    """To the traces of the holders, if they have put them into the metadata of their locks."""
    for holder in event.holders[:_LINKS]:
        carrier = {key: value for key, value in holder.metadata.items() if isinstance(value, str)}
        context = get_current_span(_PROPAGATOR.extract(carrier)).get_span_context()
        if context.is_valid:
            yield Link(context, {"aiolocks.link": "holder"})
