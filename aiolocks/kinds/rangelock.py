"""The reader-writer lock on intervals."""

from __future__ import annotations

import math
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Literal, Never, TypeVar, final

from ..lock.acquirable import AS_CONFIGURED, Pending, gives_pending
from ..lock.options import Metadata, OnLost, Options, Seconds, lock_name, reject_unknown
from ..lock.sources import source_of
from .spans import Span, SpanClass, SpanLease, SpanLock, WriterLease

Bound = float | int | datetime
"""An end of an interval, to the precision of a double; an aware `datetime` counts as its timestamp."""

LeaseT = TypeVar("LeaseT", bound=SpanLease)

_EXACT: Final = 2**53


class RangeLease(SpanLease):
    """A lease on an interval."""

    __slots__ = ()

    async def shrink(self, lo: Bound, hi: Bound) -> None:
        """Keeps that part of the interval, and gives back the rest without letting go of this.

        It never grows. Leave an upgrade of a part before you give that part back.

        Args:
            lo: Lower end, not below that of before.
            hi: Upper end, not above that of before.

        Raises:
            ValueError: It is not part of what is held.
            RuntimeError: Some of the part to give back is upgraded.
            LockLostError: It is no longer ours.
            BackendError: Redis refused, or did not answer within the session's `command_timeout`.

        After a cancellation or an error the server may have done it or not; asked again, it does what is
        left.
        """
        await self._become(self._within(self._part(self._span.mode, lo, hi)))

    def _part(self, mode: str, lo: Bound, hi: Bound) -> Span:
        assert self._span_class.part is not None
        return self._span_class.part(mode, lo, hi)

    def _within(self, part: Span) -> Span:
        if not part.within(self._span):
            show = self._span_class.show
            raise ValueError(f"{show(part).strip()} is no part of what is held:{show(self._span)}")
        return part


@final
class RangeWriterLease(RangeLease, WriterLease):
    """The lease of a writer on an interval."""

    __slots__ = ()


@final
class RangeUpgradableLease(RangeLease):
    """The lease of the one upgradable holder of an interval beside its readers."""

    __slots__ = ()

    @gives_pending
    def upgrade(  # noqa: D417 - there are no unknown arguments to describe
        self,
        lo: Bound | None = None,
        hi: Bound | None = None,
        *positional: Never,
        blocking_timeout: Seconds | None = AS_CONFIGURED,
        **unknown: Never,
    ) -> Pending[RangeWriterLease]:
        """A writer for a while, on a part of the interval or on all of it; see `UpgradableLease.upgrade`.

        Readers of the rest of the interval are not disturbed.

        Args:
            lo: Lower end of the part; None for that of the interval.
            hi: Upper end of the part; None for that of the interval.
            blocking_timeout: Seconds to wait; 0 for a single try; None for ever. Default: the lock's own.

        Raises:
            ValueError: It is not part of what is held.
            LockLostError: The upgradable lease is no longer ours.
            LockTimeoutError: Not acquired within `blocking_timeout`; the upgradable lease is held as before.
            DeadlockError, BackendError, SessionClosedError: As `acquire` does.

        Cancelled at any point, no writer stays; the upgradable lease is held as before.
        """
        reject_unknown("upgrade()", unknown, positional=positional)
        part = self._part("w", -math.inf if lo is None else lo, math.inf if hi is None else hi)
        if lo is None:
            part = part._replace(a=self._span.a)
        if hi is None:
            part = part._replace(b=self._span.b)
        return self._upgrading(RangeWriterLease, self._within(part), blocking_timeout)


@final
class RangeLock:
    """Many readers or one writer on each interval of real numbers, with the modes of `RWLock`.

    Holders of intervals that do not overlap do not exclude each other.

    ```python
    pages = RangeLock(redis, "book:7")
    async with pages.writer(10, 20):            # 10 up to, but without, 20
        ...
    async with pages.upgradable(0, 100) as lease:
        ...                                     # read all of it, beside readers
        async with lease.upgrade(40, 45):
            ...                                 # write a part
        await lease.shrink(40, 60)              # the rest is free for others; this was never let go of
    ```

    Ends are `int`, `float` or aware `datetime`, infinite ones allowed, all to the precision of a double: an
    `int` beyond 2**53 that a double cannot hold is refused, a `datetime` of our times is exact to the
    microsecond.

    Readers and writers that wait for each other take turns, and writers and upgradables enter in the order of
    asking, as those of a `RWLock` do, where their intervals overlap. A check takes a time that grows with the
    logarithm of the number of intervals that are held.

    Options that have no text here are those of `Lock`.

    Args:
        client: `redis.asyncio.Redis`, `RedisCluster`, or an `aiolocks.Session`.
        name: Any non-empty str of at most 1 KiB in UTF-8.
        bounds: `"[)"`: an interval is without its upper end, so that [1, 2) and [2, 3) do not overlap, and
            must not be empty; `"[]"`: with it, so that [2, 2] is a single point.

    Raises:
        TypeError, ValueError: An argument is not as it should be; before any I/O.
    """

    __slots__ = ("_client", "_name", "_options", "_span_class")

    def __init__(
        self,
        client: Any,
        name: str,
        *,
        bounds: Literal["[)", "[]"] = "[)",
        ttl: Seconds = 30.0,
        blocking_timeout: Seconds | None = None,
        auto_renew: bool = True,
        max_hold: Seconds | None = None,
        on_lost: OnLost = "cancel",
        metadata: Metadata | None = None,
        grace: Seconds = 0.0,
        **unknown: Never,
    ) -> None:
        reject_unknown("RangeLock", unknown)
        self._options = Options.checked(
            ttl=ttl,
            blocking_timeout=blocking_timeout,
            auto_renew=auto_renew,
            max_hold=max_hold,
            on_lost=on_lost,
            metadata=metadata,
            grace=grace,
        )
        self._client = source_of(client)
        self._name = lock_name(name)
        if bounds not in _FAMILIES:
            raise ValueError(f"bounds must be '[)' or '[]', not {bounds!r}")
        self._span_class = _FAMILIES[bounds]

    @property
    def name(self) -> str:
        """Name of the lock."""
        return self._name

    def reader(self, lo: Bound, hi: Bound) -> SpanLock[RangeLease]:
        """Shared with other readers of what overlaps, and with its upgradable holders."""
        return self._of("r", lo, hi, RangeLease)

    def upgradable(self, lo: Bound, hi: Bound) -> SpanLock[RangeUpgradableLease]:
        """Beside readers, one where intervals overlap; its lease has `upgrade()`."""
        return self._of("u", lo, hi, RangeUpgradableLease)

    def writer(self, lo: Bound, hi: Bound) -> SpanLock[RangeWriterLease]:
        """Alone on the interval; its lease has `downgrade()`."""
        return self._of("w", lo, hi, RangeWriterLease)

    def _of(self, mode: str, lo: Bound, hi: Bound, lease_type: type[LeaseT]) -> SpanLock[LeaseT]:
        assert self._span_class.part is not None
        span = self._span_class.part(mode, lo, hi)
        return SpanLock(
            self._client,
            self._name,
            self._options,
            span_class=self._span_class,
            span=span,
            lease_type=lease_type,
        )

    if not TYPE_CHECKING:  # to a type checker, there is no such attribute

        def __getattr__(self, name: str) -> Never:
            raise AttributeError(
                f"RangeLock has no attribute {name!r}: what is acquired is its .reader(lo, hi), "
                ".upgradable(lo, hi) or .writer(lo, hi)"
            )

    def __repr__(self) -> str:
        return f"<RangeLock {self._name!r} ttl={self._options.ttl:g}>"


def _half_open(mode: str, lo: object, hi: object) -> Span:
    """[lo, hi) as the closed interval that the server keeps: up to the last double below hi."""
    left, right = _number("lo", lo), _number("hi", hi)
    if not left < right:
        raise ValueError(f"lo must be less than hi, for [lo, hi) not to be empty; not {lo!r} and {hi!r}")
    return Span(mode, repr(left), repr(math.nextafter(right, -math.inf)))


def _closed(mode: str, lo: object, hi: object) -> Span:
    left, right = _number("lo", lo), _number("hi", hi)
    if not left <= right:
        raise ValueError(f"lo must not be more than hi; not {lo!r} and {hi!r}")
    return Span(mode, repr(left), repr(right))


def _show_half_open(span: Span) -> str:
    return f" [{span.a}, {math.nextafter(float(span.b), math.inf)!r})"


def _ends_half_open(span: Span) -> tuple[float, float]:
    return float(span.a), math.nextafter(float(span.b), math.inf)


def _ends_closed(span: Span) -> tuple[float, float]:
    return float(span.a), float(span.b)


def _show_closed(span: Span) -> str:
    return f" [{span.a}, {span.b}]"


_FAMILIES: Final = {
    "[)": SpanClass("RangeLock", _half_open, _show_half_open, _ends_half_open),
    "[]": SpanClass("RangeLock", _closed, _show_closed, _ends_closed),
}


def _number(what: str, value: object) -> float:
    if isinstance(value, datetime):
        if value.utcoffset() is None:
            raise ValueError(
                f"{what} must be an aware datetime, as with tzinfo=UTC, not {value!r}: without a zone it "
                "means another time on another machine"
            )
        return value.timestamp()
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(
            f"{what} must be an int, a float or a datetime, not {value!r} ({type(value).__name__})"
        )
    if isinstance(value, int) and abs(value) > _EXACT and not _holds(value):
        raise ValueError(f"{what} must be a number that a double can hold, not {value!r}")
    number = float(value)
    if math.isnan(number):
        raise ValueError(f"{what} must be a number, not {value!r}")
    return number + 0.0  # -0.0 is 0.0


def _holds(value: int) -> bool:
    try:
        return int(float(value)) == value
    except OverflowError:
        return False
