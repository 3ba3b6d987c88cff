"""Which waits never end: a graph of tasks and leases, and nothing else.

A task that waits is released if what it wants could be had once all other tasks that are not stuck have let
go of everything. So the stuck ones are what is left when that is done again and again (the reduction of
Holt's resource graphs, 1972): it is right for locks with one holder, for permits, of which any that are given
back will do, and for spans, of which some exclude each other. Among the stuck, a deadlock is a set of tasks
each of which waits for all the rest of it (a strongly connected part); the remaining tasks wait for the set.

A reader that waits behind a writer, which waits for a reader, needs no lease of the writer: what keeps the
writer out is in the reader's way. So it is for a writer or an upgradable that waits behind an earlier one of
these. A writer that waits for more than readers keeps no reader out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple, final

from .._infos import KindAndName
from ..lock.holders import lease_id
from ..transport.steps.snapshots import Place, Snapshot
from .waits import Wait, Want

Edges = dict[str, set[str]]
"""For each wait, by its id, the ids of the waits that it waits for."""


@final
class StandingLease(NamedTuple):
    """A lease that stands on the server."""

    permits: int
    mode: str
    span: tuple[float, float] | None
    keys: frozenset[str] = frozenset()


@final
class Occupants(NamedTuple):
    """The holders and waiters of one name."""

    leases: dict[str, StandingLease]
    permits: int | None
    places: tuple[Place, ...]

    @classmethod
    def of(cls, snapshot: Snapshot) -> Occupants:
        leases = {
            lease_id(holder.tokens[0]): StandingLease(
                holder.permits or 1,
                (holder.mode or "")[:1],
                holder.span,
                frozenset(key for key, _ in holder.keys or ()),
            )
            for holder in snapshot.holders
        }
        return cls(leases, snapshot.value, snapshot.places)

    def of_waiters(self, counts: Callable[[bytes, int], bool]) -> Occupants:
        """The same, with the waiters alone that count: by their bells and deadlines."""
        left = tuple(one for one in self.places if counts(one.bell, one.until_ms))
        return self._replace(places=left)


def may_wait_for(waits: Mapping[str, Wait]) -> Edges:
    """The edges that may exist by the records alone: more than there are, and no fewer."""
    holding: dict[KindAndName, set[str]] = {}
    for wait in waits.values():
        for lease in wait.holds:
            for place in lease.places:
                holding.setdefault(place, set()).add(wait.id)
    nobody: set[str] = set()
    return {
        wait.id: set[str]().union(*(holding.get(place, nobody) for place in wait.want.places))
        for wait in waits.values()
    }


def stuck(waits: Mapping[str, Wait], occupants: Mapping[KindAndName, Occupants]) -> Edges:
    """The waits that never end as things stand on the server, and the tasks for which they wait."""
    left = dict(waits)
    while True:
        holding: dict[str, set[str]] = {}
        for wait in left.values():
            for lease in wait.holds:
                holding.setdefault(lease.lease_id, set()).add(wait.id)
        edges: Edges = {}
        for wait in left.values():
            in_the_way = _in_the_way(wait.want, occupants, holding.keys())
            if in_the_way:
                edges[wait.id] = set[str]().union(*(holding[one] for one in in_the_way))
        if len(edges) == len(left):
            return edges
        left = {one: wait for one, wait in left.items() if one in edges}


def _in_the_way(want: Want, occupants: Mapping[KindAndName, Occupants], stay: Iterable[str]) -> set[str]:
    """The leases for which it waits if all other leases go; empty if the lock can be had then."""
    found: set[str] = set()
    for place in want.places:
        those_there = occupants.get(place)
        if those_there is None:
            continue
        there = {
            one: those_there.leases[one] for one in stay if one in those_there.leases and one not in want.own
        }
        if want.caps:
            for key, cap in want.caps:
                having = [one for one, lease in there.items() if key in lease.keys]
                found.update(having if len(having) >= cap else ())
        elif want.permits:
            number = want.of if those_there.permits is None else those_there.permits
            taken = sum(lease.permits for lease in there.values())
            if number is not None and number - taken < want.permits <= number:
                found.update(there)
        elif want.span is None:
            found.update(there)
        else:
            found.update(_excluding(want.mode, want.span, there))
            if want.mode == "r":
                found.update(_behind_writers(want, those_there, there))
            elif not want.upgrades:
                found.update(_behind_earlier(want, those_there, there))
    return found


def _excluding(mode: str, span: tuple[float, float], leases: Mapping[str, StandingLease]) -> set[str]:
    return {
        one
        for one, lease in leases.items()
        if lease.span is not None
        and _overlap(lease.span, span)
        and ("w" in (mode, lease.mode) or mode == lease.mode == "u")
    }


def _behind_writers(want: Want, those_there: Occupants, there: Mapping[str, StandingLease]) -> set[str]:
    """The leases, also its own, that keep out the writers whose reservations are in the way of a reader."""
    assert want.span is not None
    found: set[str] = set()
    for one in those_there.places:
        if one.reserved and _overlap(one.span, want.span):
            upgraded = lease_id(one.under) if one.under else ""
            found |= _excluding("w", one.span, {key: there[key] for key in there if key != upgraded})
    return found


def _behind_earlier(want: Want, those_there: Occupants, there: Mapping[str, StandingLease]) -> set[str]:
    """The leases, also its own, that keep out the waiters that have asked before this writer or upgradable.

    Of several places that may be its own, the first is taken: so it waits for no waiter that came later.
    """
    plain = [one for one in those_there.places if not one.under]
    own = [one for one in plain if (one.mode, one.span) == (want.mode, want.span)]
    look = sorted(own, key=lambda one: one.asked)[:1]
    found: set[str] = set()
    ahead: set[bytes] = set()
    for one in look:
        for other in plain:
            if other.bell not in ahead and other.asked < one.asked and _overlap(one.span, other.span):
                ahead.add(other.bell)
                look.append(other)
                found |= _excluding(other.mode, other.span, there)
    return found


def _overlap(one: tuple[float, float], other: tuple[float, float]) -> bool:
    return one[0] <= other[1] and other[0] <= one[1]


def knots(edges: Mapping[str, set[str]]) -> list[frozenset[str]]:
    """The parts of the graph in which each waits for each, and in which there is a cycle."""
    return _Walk(edges).found


@final
class _Walk:
    """Through the whole graph, depth first (Tarjan 1972), without recursion: rings may be long.

    Invariant: on the path are the nodes that were reached and are not yet known to be a part of their own;
    `low` is the first of them that each can reach.
    """

    def __init__(self, edges: Mapping[str, set[str]]) -> None:
        self.found: list[frozenset[str]] = []
        self._edges = edges
        self._number: dict[str, int] = {}
        self._low: dict[str, int] = {}
        self._path: list[str] = []
        self._on_path: set[str] = set()
        self._work: list[tuple[str, Iterator[str]]] = []
        for one in edges:
            if one not in self._number:
                self._reach(one)
                while self._work:
                    self._step()

    def _reach(self, one: str) -> None:
        self._number[one] = self._low[one] = len(self._number)
        self._path.append(one)
        self._on_path.add(one)
        self._work.append((one, iter(sorted(self._edges[one] & self._edges.keys()))))

    def _step(self) -> None:
        one, others = self._work[-1]
        for other in others:
            if other not in self._number:
                self._reach(other)
                return
            if other in self._on_path:
                self._low[one] = min(self._low[one], self._number[other])
        self._work.pop()
        if self._work:
            before, _ = self._work[-1]
            self._low[before] = min(self._low[before], self._low[one])
        if self._low[one] == self._number[one]:
            self._cut_off(one)

    def _cut_off(self, first: str) -> None:
        at = self._path.index(first)
        part = frozenset(self._path[at:])
        del self._path[at:]
        self._on_path -= part
        if len(part) > 1 or first in self._edges[first]:
            self.found.append(part)


def in_order(knot: frozenset[str], edges: Mapping[str, set[str]], first: str) -> list[str]:
    """A shortest cycle through that one, and then the remaining ones."""
    came_from: dict[str, str] = {}
    reached = [first]
    for one in reached:
        if first in edges[one]:
            cycle = [one]
            while cycle[-1] != first:
                cycle.append(came_from[cycle[-1]])
            cycle.reverse()
            return [*cycle, *sorted(knot.difference(cycle))]
        for other in sorted(edges[one] & knot):
            if other not in came_from and other != first:
                came_from[other] = one
                reached.append(other)
    raise AssertionError("a knot is connected")
