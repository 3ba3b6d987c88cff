"""The time for which tasks wait: by name and minute over the last hour, and charged to the holders.

A reading tells since when each waiter waits. So what passed between two readings is known to a part of a
second for each waiter that is still there, also where no viewer has looked for an hour. A waiter that came
and went between two readings is not seen.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator
from typing import Final, final

from ..._holders import HolderInfo
from ..._infos import KindAndName, LockInfo
from ...inspect.census import Reading

MINUTES: Final = 60
_MINUTE: Final = 60
_HOUR: Final = MINUTES * _MINUTE
_MOST: Final = 2_000
"""Names, and holders, that are remembered."""
_BOUNDS: Final = (0.0, 1.0, 6.0, 30.0, 60.0, 300.0)
"""Seconds of waiting in a minute above which its heat is 1, 2 … 6."""
_NOT_LOOKED: Final = "-"
_NO_CONTENTION: Final = ("leadership",)
"""Kinds of which waiting is no sign of anything: candidates wait for as long as they live."""


def waits_count(kind: str) -> bool:
    """Whether waiting for that kind is time lost."""
    return kind not in _NO_CONTENTION


@final
class Charge:
    """The time that waiters have waited for one holder.

    Attributes:
        seconds: Of all its waiters together, divided by the number of holders at the time.
        last: The server's time when it grew last.
    """

    __slots__ = ("holder", "last", "place", "seconds")

    def __init__(self, place: KindAndName, holder: HolderInfo) -> None:
        self.place = place
        self.holder = holder
        self.seconds = 0.0
        self.last = 0.0


@final
class Heat:
    """All times are the server's, in seconds since 1970."""

    def __init__(self) -> None:
        self._waited: dict[KindAndName, dict[int, float]] = {}  # seconds, by minute
        self._read_at: dict[KindAndName, float] = {}  # of names that had waiters then
        self._charges: dict[tuple[KindAndName, str], Charge] = {}
        self._looked: set[int] = set()  # minutes
        self._minute = 0

    def look(self, now: float) -> None:
        """A look begins."""
        minute = int(now // _MINUTE)
        if minute != self._minute:
            self._minute = minute
            self._forget(now)
        self._looked.add(minute)

    def add(self, reading: Reading, now: float) -> None:
        """One name was read."""
        place, info = reading.place, reading.now
        upto = self._read_at.pop(place, None)
        if info is None or not info.waiters or not waits_count(info.kind):
            return
        self._read_at[place] = now
        minutes = self._waited.setdefault(place, {})
        for since, waiters in _waits(info, max(now - _HOUR, upto or 0.0), now):
            _spread(minutes, since, now, waiters)
            self._charge(reading, since, now, waiters)

    def _charge(self, reading: Reading, since: float, now: float, waiters: int) -> None:
        """Charges each holder with the time since it holds, and the holders before it with the rest."""
        holders = reading.now.holders if reading.now is not None else ()
        first = now
        for holder in holders:
            begun = since if holder.held_since is None else holder.held_since
            first = min(first, begun)
            self._add(reading.place, holder, (now - max(since, begun)) * waiters / len(holders), now)
        gone = reading.gone
        for holder in gone:
            self._add(reading.place, holder, (first - since) * waiters / len(gone), now)

    def _add(self, place: KindAndName, holder: HolderInfo, seconds: float, now: float) -> None:
        if seconds <= 0.0:
            return
        key = place, holder.lease_id
        charge = self._charges.get(key)
        if charge is None:
            charge = self._charges[key] = Charge(place, holder)
        charge.seconds += seconds
        charge.last = now

    def _forget(self, now: float) -> None:
        """Everything older than an hour, and the least of too much."""
        oldest = self._minute - MINUTES + 1
        self._looked = {minute for minute in self._looked if minute >= oldest}
        for minutes in self._waited.values():
            for minute in [minute for minute in minutes if minute < oldest]:
                del minutes[minute]
        self._waited = {place: minutes for place, minutes in self._waited.items() if minutes}
        self._read_at = {place: at for place, at in self._read_at.items() if at > now - _HOUR}
        self._charges = {key: one for key, one in self._charges.items() if one.last > now - _HOUR}
        if len(self._waited) > _MOST:
            self._waited = {place: self._waited[place] for place, _ in self.hottest(_MOST)}
        if len(self._charges) > _MOST:
            self._charges = {(one.place, one.holder.lease_id): one for one in self.charged(_MOST)}

    # -- what is known

    def hottest(self, number: int) -> list[tuple[KindAndName, float]]:
        """The names with the most waiting in the last hour, and how much."""
        sums = ((place, self.total(place)) for place in self._waited)
        return heapq.nlargest(number, sums, key=lambda one: one[1])

    def total(self, place: KindAndName) -> float:
        """Seconds waited for a name in the last hour."""
        return sum(self._waited.get(place, {}).values())

    def levels(self, place: KindAndName) -> str:
        """A digit for each minute of the last hour, 0 to 6; `-` where no viewer has looked."""
        minutes = self._waited.get(place, {})
        every = range(self._minute - MINUTES + 1, self._minute + 1)
        return "".join(
            _level(minutes[minute]) if minute in minutes else "0" if minute in self._looked else _NOT_LOOKED
            for minute in every
        )

    def charged(self, number: int) -> list[Charge]:
        """The holders for which waiters have waited most."""
        return heapq.nlargest(number, self._charges.values(), key=lambda one: one.seconds)

    def charge_of(self, place: KindAndName, lease_id: str) -> float:
        """Seconds that waiters have waited for one holder."""
        charge = self._charges.get((place, lease_id))
        return 0.0 if charge is None else charge.seconds


def _waits(info: LockInfo, upto: float, now: float) -> Iterator[tuple[float, int]]:
    """Since when they wait, as far as it is not counted yet, and how many do."""
    since = upto
    for waiter in info.waiting:
        if waiter.waiting_since is not None:
            since = min(now, max(upto, waiter.waiting_since))
        yield since, 1
    # Further ones stand behind these in the queue, and so have come later than the last of these.
    if rest := info.waiters - len(info.waiting):
        yield since if info.waiting else now, rest


def _spread(minutes: dict[int, float], since: float, now: float, waiters: int) -> None:
    """Writes the time down in its minutes."""
    while since < now:
        minute = int(since // _MINUTE)
        until = min(now, (minute + 1) * _MINUTE)
        minutes[minute] = minutes.get(minute, 0.0) + (until - since) * waiters
        since = until


def _level(seconds: float) -> str:
    return str(sum(seconds > bound for bound in _BOUNDS) if math.isfinite(seconds) else 0)
