"""When a schedule runs: its due times, and which tick is claimed next. All decisions, and no I/O.

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
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, Protocol, final

from ..._extras import install
from ...errors import ConfigurationError
from ...lock.clock import milliseconds
from ...lock.options import SHORTEST_TTL, Seconds, seconds

# -- The claim of a tick, and its answer.

Why = Literal["early", "taken", "busy", "skipped", "late", "new", "other", "gone"]


@final
class Ask(NamedTuple):
    """One claim of a tick. Times are milliseconds since 1970, in UTC; durations are milliseconds.

    Attributes:
        due: Due time of the tick; None for a run out of turn.
        known: The newest tick that the asker knows to be claimed.
        before: The tick before the one that is due.
        flags: `s` skipped if another run goes on, `q` waits for it, `w` only if it is the next one, `f` also
            if it is the first of all.
        redo: How often a run that was lost or stopped is run again.
        gap: Time from this tick to the next.
        lasting: For how long the register is kept after its last use.
        latest: Latest moment to begin the tick at; None for any.
        in_time: For how long after its due time the tick is run although the register is gone.
        definition: A name for the times of the schedule.
        again: When the next claim will be made, of the tick after this one.
    """

    due: int | None
    known: int | None = None
    before: int = 0
    flags: str = ""
    redo: int = 0
    gap: int = 0
    lasting: int = 0
    latest: int | None = None
    in_time: int = 0
    definition: str = ""
    again: int = 0


@final
class Claimed(NamedTuple):
    """The tick is the token's.

    Attributes:
        due: Its due time; None for a run out of turn.
        before: The tick that was claimed before it, by any process.
        attempt: 1 for the first run of the tick, more for one that was lost before.
        now_us: The server's time, microseconds.
    """

    due: int | None
    before: int | None
    attempt: int
    now_us: int


_LOOK_AGAIN: Final = 1_000
"""Milliseconds: the run of another process is looked at that often where its end matters to this one."""


@final
class NotClaimed(NamedTuple):
    """The tick is not the asker's.

    Attributes:
        why: `gone`: the run was granted to this very token before, and its lease has ended.
        claimed: The newest tick that is claimed; None if there is none.
        ends_in: Milliseconds until a run that goes on may end; None while none goes on.
        now_us: The server's time, microseconds.
    """

    why: Why
    claimed: int | None
    ends_in: int | None
    now_us: int

    @property
    def look_again(self) -> int:
        """Milliseconds after which a process that waits for a run that goes on asks again."""
        return min(_LOOK_AGAIN, (self.ends_in or 0) + 2)


# -- When ticks are due: arithmetic, and nothing else.

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


# -- The next tick to claim, and the time to claim it, by the server's clock.

Overlap = Literal["skip", "queue", "allow"]
Misfire = Literal["latest", "skip", "all"]

LATE: Final = 60_000
"""Up to that many milliseconds late, and no more than half a gap, a tick is not missed yet."""
_IN_TIME: Final = 1_000
"""The same where the register is gone: later than that, another process may have run it before."""
_WEEK: Final = 7 * 24 * 3_600_000
_SET_BACK: Final = 60_000
"""A tick that was claimed so far in the future was claimed before the server's clock was set back."""
_FLAGS: Final[dict[Overlap, str]] = {"skip": "s", "queue": "q", "allow": ""}


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The settings of a schedule; checked. Times are milliseconds."""

    overlap: Overlap
    misfire: Misfire
    redo: int
    jitter: int


@final
class Wanted(NamedTuple):
    """The next claim: of which tick, and not before when."""

    due: int
    at: int


@final
class Plan:
    """The next claim of one schedule in one process, by what the register said last.

    Invariants:
    - no tick is asked for before it is due, as far as this process knows the server's time;
    - with `misfire="all"` each tick is asked for by itself, in order; otherwise the latest that is due;
    - a tick that is known to be claimed is asked for again only to find out whether its run was lost.
    """

    __slots__ = ("_dues", "_known", "_name", "_not_before", "_passed", "_policy", "_watch_at")

    def __init__(self, name: str, dues: Dues, policy: Policy) -> None:
        self._name = name
        self._dues = dues
        self._policy = policy
        self._known: int | None = None  # the newest tick that is claimed, as far as this process knows
        self._passed: int | None = None  # up to this tick, no claim is of use any more
        self._not_before = 0  # another run is in the way until then
        self._watch_at: int | None = None  # when to see whether a run was lost

    def next(self, now: int) -> Wanted:
        """The claim to make next."""
        self._forget_future(now)
        floor = max((one for one in (self._known, self._passed) if one is not None), default=None)
        due = self._dues.latest(now)
        if floor is not None and (due <= floor or self._policy.misfire == "all"):
            due = self._dues.after(floor)
        at = max(due + self._delay(due), self._not_before)
        if self._watch_at is not None and self._watch_at < at and self._known is not None:
            return Wanted(self._known, self._watch_at)
        return Wanted(due, at)

    def _forget_future(self, now: int) -> None:
        if self._known is not None and self._known > now + _SET_BACK:
            self._known = None
        if self._passed is not None and self._passed > now + _SET_BACK:
            self._passed = None

    def _delay(self, due: int) -> int:
        if not self._policy.jitter:
            return 0
        return delay(self._name, due, self._dues.after(due) - due, self._policy.jitter)

    def ask(self, due: int) -> Ask:
        """The request to the register for this claim."""
        policy, following = self._policy, self._dues.after(due)
        gap, put_off = following - due, self._delay(due)
        late = put_off + min(gap // 2, LATE)
        return Ask(
            due,
            known=self._known,
            before=self._dues.latest(due - 1),
            flags=_FLAGS[policy.overlap] + ("w" if policy.misfire == "all" else ""),
            redo=policy.redo,
            gap=gap,
            lasting=self._lasting(due, following),
            latest=due + late if policy.misfire == "skip" else None,
            in_time=put_off + min(gap // 2, _IN_TIME),
            definition=self._dues.definition,
            again=following + self._delay(following),
        )

    def out_of_turn(self, now: int) -> Ask:
        """The same for a run that is no tick."""
        due, policy = self._dues.latest(now), self._policy
        lasting = self._lasting(due, self._dues.after(due))
        return Ask(
            None,
            flags=_FLAGS[policy.overlap],
            redo=policy.redo,
            lasting=lasting,
            definition=self._dues.definition,
        )

    def _lasting(self, due: int, following: int) -> int:
        """At least two gaps, and a week: as long as an outage may last, after which ticks count as missed."""
        return max(_WEEK, 2 * (self._dues.after(following) - due))

    # -- what came of it

    def claimed(self, reply: Claimed) -> None:
        """The claim has been granted."""
        self._watch_at, self._not_before = None, 0
        if reply.due is not None and (self._known is None or reply.due > self._known):
            self._known = reply.due

    def taken_back(self, reply: Claimed, now: int) -> None:
        """The tick has been granted, and was given back at once: the answer came too late."""
        self._known = reply.before
        self._not_before = now + 50

    def refused(self, wanted: int, reply: NotClaimed) -> None:
        """The register says why not."""
        now = reply.now_us // 1000
        self._watch_at = None
        if reply.claimed is not None:
            self._known = reply.claimed
        if reply.why == "late":
            self._passed = wanted
        gap = self._dues.after(wanted) - wanted
        again = None if reply.ends_in is None else now + min(reply.look_again, gap // 4)
        if reply.why == "busy":
            self._not_before = again if again is not None else now
        elif self._policy.redo and reply.why in ("taken", "skipped"):
            self._watch_at = again

    def run_ended(self) -> None:
        """A run of this process has ended, or was lost: none is known to be in the way."""
        self._not_before = 0
        if self._policy.redo:
            self._watch_at = 0
