"""When the ticks of a schedule are due: arithmetic, and nothing else.

Times are whole milliseconds since 1970, in UTC, as the register on the server has them.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import re
import zlib
import zoneinfo
from collections.abc import Iterator
from typing import Final, Protocol, final

from ..._extras import install
from ...errors import ConfigurationError
from ...lock.clock import milliseconds
from ...lock.options import SHORTEST_TTL, Seconds, seconds

_DAY: Final = dt.timedelta(days=1)
_MOST_COUNTED: Final = 10_000
_RANGE: Final = 2**32
_ADDRESS: Final = re.compile(r" at 0x[0-9a-fA-F]+")


class Dues(Protocol):
    """The due times of one schedule.

    Invariants: `after(t)` is the first one later than t; `latest(t)` is the last one that is not later than
    t. So `latest(after(t) - 1) <= t`, and two processes with the same schedule have the same due times.

    Attributes:
        definition: A name for them: 16 characters, the same in every process and version of aiolocks. After
            a change of the schedule it is another one, also where the due times happen to be the same.
    """

    @property
    def definition(self) -> str: ...

    def latest(self, moment: int) -> int: ...

    def after(self, moment: int) -> int: ...


def between(dues: Dues, before: int, due: int) -> int:
    """How many ticks lie between two; at most 10 000 are counted."""
    if isinstance(dues, Every):
        return min(max(0, (due - before - 1) // dues.period), _MOST_COUNTED)
    number, tick = 0, dues.after(before)
    while tick < due and number < _MOST_COUNTED:
        number, tick = number + 1, dues.after(tick)
    return number


def delay(name: str, due: int, gap: int, jitter: int) -> int:
    """The seconds by which that tick starts late: the same in every process, below half of the gap."""
    return zlib.crc32(f"{name}:{due}".encode()) * min(jitter, gap // 2) // _RANGE


def _named(*parts: object) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


@final
class Every:
    """A tick every `gap` seconds, counted from the beginning of 1970 in UTC."""

    __slots__ = ("definition", "period")

    def __init__(self, every: Seconds) -> None:
        self.period = milliseconds(seconds("every", every, least=SHORTEST_TTL))
        self.definition = _named("every", self.period)

    def latest(self, moment: int) -> int:
        return moment // self.period * self.period

    def after(self, moment: int) -> int:
        return self.latest(moment) + self.period

    def __repr__(self) -> str:
        return f"every={self.period / 1000:g}"


@final
class Cron:
    """Ticks by a cron expression in a time zone.

    A due time of the expression is a local time. One that the time zone skips is due at the end of what is
    skipped, once; one that it repeats is due the first time. Where the hour is `*`, there is a run in each
    hour that passes, and so nothing is skipped, nor is anything left out in the hour that is repeated.

    The expression is read by the library cronsim, as Debian's cron reads it.

    Args:
        expression: Five fields, or six with seconds in front.
        tz: The time zone, by its name or as a `tzinfo`.

    Raises:
        TypeError, ValueError: An argument is wrong, or no date fits the expression.
        ConfigurationError: The library is not installed.
    """

    __slots__ = ("_expression", "_hourly", "_sim", "definition", "zone")

    def __init__(self, expression: str, tz: str | dt.tzinfo) -> None:
        try:
            import cronsim  # noqa: PLC0415 - of an extra
        except ImportError:
            raise ConfigurationError(f"cron= needs the library cronsim: {install('schedule')}") from None
        if not isinstance(expression, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"cron must be a str such as '0 3 * * *', not {type(expression).__name__}")
        self.zone = time_zone(tz)
        self._sim = cronsim.CronSim
        self._expression = expression
        fields = expression.split()
        try:
            next(self._sim(expression, dt.datetime(2000, 1, 1)))  # noqa: DTZ001 - any local time
        except cronsim.CronSimError as error:
            raise ValueError(f"cron {expression!r} is not an expression: {error}") from None
        except StopIteration:
            raise ValueError(f"cron {expression!r} is never due: no date fits it") from None
        self._hourly = fields[-4] == "*"
        self.definition = _named("cron", fields, *_identity(self.zone))

    def latest(self, moment: int) -> int:
        start = _from(moment) + dt.timedelta(seconds=1)  # the one that it starts from is left out
        for due in self._instants(start, reverse=True):
            if due <= moment:
                return due
        raise ValueError(f"cron {self._expression!r} was never due before")

    def after(self, moment: int) -> int:
        for due in self._instants(_from(moment) - dt.timedelta(seconds=1), reverse=False):
            if due > moment:
                return due
        raise ValueError(f"cron {self._expression!r} is never due again")

    def _instants(self, start: dt.datetime, *, reverse: bool) -> Iterator[int]:
        """Due times from about then on, the order kept; one may come twice."""
        if self._hourly:
            found = self._sim(self._expression, start.astimezone(self.zone), reverse=reverse)
            return (round(one.timestamp() * 1000) for one in found)
        # By the clock that is furthest ahead, or behind: around a change, the first ones may be of no use.
        offsets = [
            (start + apart).astimezone(self.zone).utcoffset() for apart in (-_DAY, dt.timedelta(), _DAY)
        ]
        offset = (max if reverse else min)(one for one in offsets if one is not None)
        local = start.replace(tzinfo=None) + offset
        return map(self._instant, self._sim(self._expression, local, reverse=reverse))

    def _instant(self, local: dt.datetime) -> int:
        """That local time, the first of two; of one that is skipped, the end of what is skipped."""
        late = local.replace(tzinfo=self.zone).astimezone(dt.UTC)
        if late.astimezone(self.zone).replace(tzinfo=None) != local:
            early = local.replace(tzinfo=self.zone, fold=1).astimezone(dt.UTC)
            before = early.astimezone(self.zone).utcoffset()
            while late - early > dt.timedelta(seconds=1):
                middle = early + (late - early) // 2
                if middle.astimezone(self.zone).utcoffset() == before:
                    early = middle
                else:
                    late = middle
            late = late.replace(microsecond=0)
        return round(late.timestamp() * 1000)

    def __repr__(self) -> str:
        return f"cron={self._expression!r} tz={str(self.zone)!r}"


def time_zone(tz: object) -> dt.tzinfo:
    """A time zone by its name, or as given."""
    if isinstance(tz, dt.tzinfo):
        return tz
    if not isinstance(tz, str):
        raise TypeError(f"tz must be a name such as 'Europe/Berlin' or a tzinfo, not {type(tz).__name__}")
    if tz == "UTC":
        return dt.UTC
    try:
        return zoneinfo.ZoneInfo(tz)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError(
            f"tz {tz!r} is not a known time zone; where the system has none at all: pip install "
            "'aiolocks[schedule]'"
        ) from None


def _identity(zone: dt.tzinfo) -> tuple[str, list[float]]:
    """The name and the offsets of a time zone, the same in every process."""
    offsets = [
        dt.datetime(2024, month, 15, tzinfo=dt.UTC).astimezone(zone).utcoffset() for month in range(1, 13)
    ]
    # One without a name shows where it lies in the memory of this process.
    name = _ADDRESS.sub("", str(zone))
    return name, [offset.total_seconds() for offset in offsets if offset is not None]


def _from(moment: int) -> dt.datetime:
    return dt.datetime.fromtimestamp(moment // 1000, dt.UTC)
