"""A listener that counts and measures locks for OpenTelemetry."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, final

try:
    from opentelemetry.metrics import MeterProvider, get_meter
except ImportError as error:
    raise ImportError(
        "aiolocks.contrib.opentelemetry needs opentelemetry-api: pip install 'aiolocks[opentelemetry]'"
    ) from error

from .. import __version__
from ..lock.statistics import BOUNDS
from ._labels import Names, bounds
from ._measuring import COUNTERS, GAUGES, HOLD, WAIT, MeasuringListener

__all__ = ["OpenTelemetryListener"]

KIND: Final = "aiolocks.kind"
NAME: Final = "aiolocks.name"


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

    __slots__ = ("_counters", "_writes")

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
        self._writes = {
            **{name: one.record for name, one in durations.items()},
            **{name: one.add for name, one in (gauges | self._counters).items()},
        }

    def _new_series(self, kind: str, label: str) -> dict[str, str]:
        attributes = {KIND: kind, NAME: label}
        for counter in self._counters.values():
            counter.add(0, attributes)
        return attributes

    def _write(self, series: dict[str, str], metric: str, amount: float) -> None:
        self._writes[metric](amount, series)
