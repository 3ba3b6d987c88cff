"""Which names stand on the overview, and the rows about them."""

from __future__ import annotations

import heapq
import math
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple, final

from ..._infos import KindAndName, LockInfo
from ...inspect.census import Census
from ._heat import Heat, waits_count
from ._history import Held
from ._rows import Found, Row, charge_row, heat_row, held_row, lock_row, page_row, wait_row
from ._views import Query

_OLDEST: Final = 8
_WAITS: Final = 12
_CHARGES: Final = 8
_HEAT: Final = 12
_UNREAD: Final = 50
"""Names that match a search, and are read because of it, at each look."""


class Rank(NamedTuple):
    """The place of a name in the table: names with a problem come first, then names with the most waiters.

    Attributes:
        well: There is no problem.
        waiters: How many wait, negative.
        since: When the oldest hold began; infinite where no holder is known.
    """

    well: bool
    waiters: int
    since: float
    name: str
    kind: str


Ranked = tuple[Rank, LockInfo]


def rank(info: LockInfo) -> Rank:
    """The place of what was read."""
    return Rank(
        not info.problem,
        -info.waiters if info.waiters and waits_count(info.kind) else 0,
        min((one.held_since or math.inf for one in info.holders), default=math.inf),
        info.name,
        info.kind,
    )


class Totals(NamedTuple):
    """Counts over all names that have been read."""

    names: int
    read: int
    holders: int
    waiters: int


class Match(NamedTuple):
    """The names that match a query.

    Attributes:
        places: The first of them, as many as are shown.
        number: How many there are.
        unread: Some of them that have not been read yet.
    """

    places: tuple[KindAndName, ...] = ()
    number: int = 0
    unread: tuple[KindAndName, ...] = ()


@final
class Chosen:
    """The names that stand on the overview, chosen from all that are known.

    Attributes:
        totals: Of all names.
        oldest: The names that have been held for longest.
        waited: The names with the longest waits.
        matches: For each query.
    """

    __slots__ = ("matches", "oldest", "totals", "waited")

    def __init__(self, census: Census, queries: Iterable[Query]) -> None:
        ranked: list[Ranked] = census.ranked()
        waited = [one for one in ranked if one[0].waiters]
        held = [one for one in ranked if one[0].since < math.inf]
        self.totals = Totals(
            names=census.names,
            read=census.read,
            holders=sum(len(info.holders) for _, info in ranked),
            waiters=-sum(place.waiters for place, _ in waited),
        )
        self.oldest = _first(_OLDEST, held, _by_age)
        self.waited = _first(_WAITS, waited, _by_wait)
        self.matches = {query: _match(query, ranked, census) for query in queries}

    def shown(self) -> set[KindAndName]:
        """All of them that are on a page."""
        places = {*self.oldest, *self.waited}
        for match in self.matches.values():
            places.update(match.places, match.unread)
        return places


def _match(query: Query, ranked: Sequence[Ranked], census: Census) -> Match:
    if not query.text and not query.kind:
        return Match(_first(query.rows, ranked, _KEYS[query.sort]), max(len(ranked), census.names))

    def matches(kind: str, name: str) -> bool:
        return (not query.kind or kind == query.kind) and query.text in name.lower()

    matching = [one for one in ranked if matches(one[1].kind, one[1].name)]
    unread = [place for place in census.unread() if matches(*place)]
    places = _first(query.rows, matching, _KEYS[query.sort])
    return Match(places, len(matching) + len(unread), tuple(unread[:_UNREAD]))


def _first(number: int, ranked: Iterable[Ranked], key: Callable[[Ranked], Any]) -> tuple[KindAndName, ...]:
    return tuple((info.kind, info.name) for _, info in heapq.nsmallest(number, ranked, key=key))


def _by_age(one: Ranked) -> tuple[float, str, str]:
    return one[0][2:]


def _by_wait(one: Ranked) -> float:
    return min((waiter.waiting_since or math.inf for waiter in one[1].waiting), default=math.inf)


_KEYS: Final[dict[str, Callable[[Ranked], Any]]] = {
    "waiters": operator.itemgetter(0),
    "oldest": _by_age,
    "name": lambda one: one[0][3:],
}


def lock_rows(places: Iterable[KindAndName], census: Census, found: Found) -> list[Row]:
    """Locks, in that order, without the names of which nothing stands any more."""
    return [lock_row(info, found) for place in places if (info := census.get(place)) is not None]


def overview_sections(census: Census, chosen: Chosen, found: Found) -> dict[str, list[Row]]:
    """The sections beside the table of locks, as far as they are of holders and waiters."""
    heat = found.heat
    return {
        "oldest": lock_rows(chosen.oldest, census, found),
        "waits": _wait_rows(chosen.waited, census),
        "charges": _charge_rows(census, heat),
        "heat": [heat_row(place, heat) for place, _ in heat.hottest(_HEAT)],
    }


def page_sections(info: LockInfo, held: Iterable[Held], found: Found) -> tuple[Row, dict[str, list[Row]]]:
    """The page of a name: of itself, and of its holders and waiters."""
    row = page_row(info, found)
    holders, waiting = row.pop("holders"), row.pop("waiting")
    return row, {
        "holders": [{"id": one["lease"], **one} for one in holders],
        "waiting": [{"id": str(number), **one} for number, one in enumerate(waiting)],
        "history": [held_row(one) for one in held],
        "heat": [heat_row((info.kind, info.name), found.heat)],
    }


def _wait_rows(places: Iterable[KindAndName], census: Census) -> list[Row]:
    """The longest waits, and the holders for which they are."""
    waits = [
        (waiter.waiting_since or math.inf, number, info, waiter)
        for place in places
        if (info := census.get(place)) is not None
        for number, waiter in enumerate(info.waiting)
    ]
    first = heapq.nsmallest(_WAITS, waits, key=lambda one: one[:2])
    return [wait_row(info, number, waiter) for _, number, info, waiter in first]


def _charge_rows(census: Census, heat: Heat) -> list[Row]:
    """The holders for which waiters have waited most."""
    rows: list[Row] = []
    for charge in heat.charged(_CHARGES):
        info = census.get(charge.place)
        holders = () if info is None else info.holders
        holds = any(one.lease_id == charge.holder.lease_id for one in holders)
        rows.append(charge_row(charge, holds=holds))
    return rows
