"""A listener that counts and measures for OpenTelemetry."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, final

try:
    from opentelemetry.metrics import MeterProvider, get_meter
except ImportError as error:
    raise ImportError("this needs opentelemetry-api: pip install aiolocks[opentelemetry]") from error

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
