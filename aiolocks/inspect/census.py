"""The names of a prefix, for a screen that is kept up to date: read little by little if they are many.

Up to some hundreds of names, all of them are read at each look. Of more, each look goes on with the scan, and
reads the names on the screen, the names with a queue, and a part of the remaining names in turn: the costs of
a look, in this process and on the server, do not grow with the number of names.
"""

from __future__ import annotations

import heapq
import itertools
import math
import operator
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple, final

from .._holders import HolderInfo
from .._infos import KindAndName, LockInfo
from ..lock.engine import Engine
from ..transport.steps.inspect import FIRST, scan
from .looking import Scanned, literal_places, look, matching

_KEYS: Final = 4_000
"""Keys of the prefix that are taken from the scan in a second: they cost 1 % of a core of this process."""
_STEPS: Final = 50
"""Steps of the scan in a second, of a thousand keys of the server each: they cost 1 % of its core."""
_NAMES: Final = 200
"""Names that are read in a second: 1 % of a core of this process."""
_AT_FIRST: Final = 5
"""The first scan is so many times as fast, to find at once the names that have waiters."""
_MOST: Final = 50_000
"""Names without a queue that are remembered."""


class Reading(NamedTuple):
    """The reading of one name: its state at the last reading, and now; None where nothing stands."""

    place: KindAndName
    before: LockInfo | None
    now: LockInfo | None

    @property
    def gone(self) -> list[HolderInfo]:
        """The holders at the last reading that hold it no more."""
        there = {holder.lease_id for holder in self.now.holders} if self.now is not None else set[str]()
        return [one for one in self.before.holders if one.lease_id not in there] if self.before else []


class _Least(NamedTuple):
    keys: int
    steps: int
    names: int


_FEWEST: Final = _Least(keys=1_000, steps=5, names=50)
"""The same in one look, where looks follow each other more quickly than once in a second."""


Rank = tuple[int, float, str, str]


def rank(info: LockInfo) -> Rank:
    """Sorts locks: first by the number of waiters, the most first, then by how long they have been held."""
    # Since when, not for how long: not all names are read in the same moment.
    since = min((holder.held_since or math.inf for holder in info.holders), default=math.inf)
    return -info.waiters, since, info.name, info.kind


@final
class Census:
    """The names that match a pattern, as far as they are known.

    Args:
        engine: Of the session that reads them.
        pattern: Of names, as in a shell.
        waiters: How many waiters of a name are described.
        rank: Gives the key by which names are sorted; it is worked out once for each reading.

    Attributes:
        complete: All that there is was read in the last look.
    """

    def __init__(
        self, engine: Engine, pattern: str, *, waiters: int = 0, rank: Callable[[LockInfo], Any] = rank
    ) -> None:
        self._engine = engine
        self._rank = rank
        self._waiters = waiters
        self._accepts = matching(pattern)
        self._places = literal_places(pattern)  # which need no scan
        self._known: dict[KindAndName, int] = {}  # with the number of the scan that has found it last
        self._queued: dict[KindAndName, int] = {}  # the same, of names with a queue
        self._lasting: dict[
            KindAndName, int
        ] = {}  # the same, of schedules and leaderships that have ever been used
        self._read: dict[KindAndName, tuple[Any, LockInfo]] = {}  # with their ranks
        self._foreign: dict[bytes, LockInfo] = {}
        self._foreign_before: dict[bytes, LockInfo] = {}  # found by the last scan that came to its end
        self._turns: deque[KindAndName] = deque()
        self._queued_turns: deque[KindAndName] = deque()
        self._cursor = FIRST
        self._scans = 0
        self._found = self._found_before = 0  # names, in this scan and in the one before
        self.complete = False

    @property
    def names(self) -> int:
        """How many names there are, as far as that is known."""
        read = len(self._read)
        ours = read if self.complete else max(self._found, self._found_before, read)
        return ours + len(self._foreign_before | self._foreign)

    @property
    def read(self) -> int:
        """How many of them have been read."""
        return len(self._read)

    @property
    def holders(self) -> int:
        """The holders of the names that have been read."""
        return sum(len(info.holders) for _, info in self._read.values())

    @property
    def waiters(self) -> int:
        """The waiters of the names that have been read."""
        return sum(info.waiters for _, info in self._read.values())

    @property
    def lines(self) -> int:
        """How many lines a table of them all would have."""
        of_read = sum(len(info.holders) or 1 for _, info in self._read.values())
        return of_read + self.names - self.read

    def lines_of(self, accepts: Callable[[LockInfo], bool], *, waits: bool = False) -> int:
        """How many lines a table of what has been read and is accepted has; or one of its waiters."""
        return sum(
            len(info.waiting) if waits else len(info.holders) or 1
            for _, info in self.ranked()
            if accepts(info)
        )

    @property
    def lasting(self) -> list[KindAndName]:
        """Schedules and leaderships, also while no process runs or leads them."""
        return list(self._lasting)

    def ranked(self) -> list[tuple[Any, LockInfo]]:
        """All that has been read, and keys that are not ours, with their ranks and in no order."""
        foreign = (self._foreign_before | self._foreign).values()
        return [*self._read.values(), *((self._rank(info), info) for info in foreign)]

    def get(self, place: KindAndName) -> LockInfo | None:
        """The content at the last look."""
        found = self._read.get(place)
        return None if found is None else found[1]

    @property
    def around(self) -> float:
        """Seconds in which each name is read once."""
        return len(self._known) / _NAMES

    def rank_by(self, rank: Callable[[LockInfo], Any]) -> None:
        """Sorts by another key from now on."""
        if rank is not self._rank:
            self._rank = rank
            self._read = {place: (rank(info), info) for place, (_, info) in self._read.items()}

    def first(self, number: int, accepts: Callable[[LockInfo], bool] = lambda _: True) -> list[LockInfo]:
        """The first that are accepted, by their rank; keys that are not ours come last."""
        read = (one for one in self._read.values() if accepts(one[1]))
        first = [info for _, info in heapq.nsmallest(number, read, key=operator.itemgetter(0))]
        if len(first) < number:
            first += filter(accepts, (self._foreign_before | self._foreign).values())
        return first[:number]

    def unread(self) -> Iterator[KindAndName]:
        """The names that are known, and have not been read yet."""
        return (place for place in self._known if place not in self._read)

    async def glance(self, places: Iterable[KindAndName]) -> list[Reading]:
        """Reads these places again, as far as they are known, and nothing else.

        Raises:
            BackendError: As `Session.inspect`.
        """
        return await self._read_all([place for place in places if place in self._known])

    async def look(self, seconds: float, shown: Iterable[LockInfo], *, new_names: int = 1) -> list[Reading]:
        """Reads the locks that are shown, and as many further ones as it can read in `seconds`.

        Args:
            seconds: The time that a look may cost its share of.
            shown: Locks that are read in any case.
            new_names: How many times as many further locks are read while some have never been read.

        Returns:
            All that was read.

        Raises:
            BackendError: As `Session.inspect`.
        """
        whole = await self._scan(seconds) if self._places is None else True
        if self._places is not None:
            self._known = dict.fromkeys(self._places, 0)
        faster = new_names if len(self._read) < len(self._known) else 1
        at_once = max(int(_NAMES * seconds * faster), _FEWEST.names)
        self.complete = whole and len(self._known) <= at_once
        if self.complete:
            chosen = list(self._known)
        else:
            now = [place for info in shown if (place := (info.kind, info.name)) in self._known]
            queued = _next(self._queued_turns, self._queued, at_once // 2)
            some = _next(self._turns, self._new_first(), at_once - len(queued))
            chosen = list(dict.fromkeys((*now, *queued, *some)))
        return await self._read_all(chosen)

    async def _read_all(self, places: Sequence[KindAndName]) -> list[Reading]:
        found = await look(self._engine, places, waiters=self._waiters)
        read = {(info.kind, info.name): info for info in found}
        return [self._keep(place, read.get(place)) for place in places]

    def _new_first(self) -> Iterator[KindAndName]:
        """All known names; first the names that have never been read."""
        yield from self.unread()
        yield from self._read

    async def _scan(self, seconds: float) -> bool:
        """Goes on with the scan; whether it has gone through all keys in this look."""
        seconds *= 1 if self._scans else _AT_FIRST
        keys, steps = max(_KEYS * seconds, _FEWEST.keys), max(_STEPS * seconds, _FEWEST.steps)
        whole = self._cursor == FIRST
        prefix = self._engine.settings.prefix
        found = Scanned(prefix, self._accepts)
        cursor: bytes | None = self._cursor
        while cursor is not None and keys > 0 and steps > 0:
            scanned = await self._engine.ask(scan(prefix, cursor))
            cursor = scanned.cursor
            found.add(scanned.keys)
            keys -= len(scanned.keys)
            steps -= 1
        self._cursor = cursor or FIRST
        self._add(found)
        if cursor is None:
            self._end_scan()
        return whole and cursor is None

    def _add(self, found: Scanned) -> None:
        for place, queued in found.places.items():
            self._found += self._known.get(place) != self._scans
            if queued or place in self._known or len(self._known) < _MOST:
                self._known[place] = self._scans
            if queued:
                self._queued[place] = self._scans
        self._lasting |= dict.fromkeys(found.lasting, self._scans)
        self._foreign |= dict(itertools.islice(found.foreign.items(), _FEWEST.names))

    def _end_scan(self) -> None:
        """Forgets the names that this scan has not found: of many short holds, most are never read again."""
        self._queued = {place: number for place, number in self._queued.items() if number == self._scans}
        self._lasting = {place: number for place, number in self._lasting.items() if number == self._scans}
        for place in [place for place, number in self._known.items() if number < self._scans]:
            self._forget(place)
        self._foreign_before, self._foreign = self._foreign, {}
        self._found_before, self._found = self._found, 0
        self._scans += 1

    def _keep(self, place: KindAndName, info: LockInfo | None) -> Reading:
        before = self.get(place)
        if info is None:
            self._forget(place)
        else:
            self._known.setdefault(place, self._scans)
            self._read[place] = self._rank(info), info
        return Reading(place, before, info)

    def _forget(self, place: KindAndName) -> None:
        self._known.pop(place, None)
        self._queued.pop(place, None)
        self._read.pop(place, None)


def _next(turns: deque[KindAndName], places: Iterable[KindAndName], number: int) -> list[KindAndName]:
    """The next of these places; each has its turn before one has it again."""
    if len(turns) < number:
        turns.extend(places)
    return [turns.popleft() for _ in range(min(number, len(turns)))]
