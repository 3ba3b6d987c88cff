"""Holders and waiters, as an operator is shown them.

This is no step of a lock's life, as the rest of the library is. It reads what all sessions, and other
programs, have written on the server, at its own pace, and takes nothing of it for granted.
"""

from __future__ import annotations

import asyncio
import fnmatch
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Final, TypeVar, final

from .._holders import HolderInfo, without_ttl
from .._infos import KindAndName, LockInfo, WaiterInfo
from .._tasks import spawn
from ..lock.engine import Engine
from ..lock.holders import described_in, holder_info, whereabouts
from ..lock.options import lock_name
from ..transport import Request
from ..transport.keys import ParsedKey, parse, prefix_of
from ..transport.steps.family import Family, families, kinds
from ..transport.steps.inspect import FIRST, scan, scan_everything
from ..transport.steps.snapshots import QueuedWaiter, Snapshot
from ..transport.steps.waits import KIND as WAITS

T = TypeVar("T")

UNKNOWN_KIND: Final = "?"
"""Stands for the kind where a key is none of ours."""

_KEYS: Final = 100
"""Keys that are read in one step: some 0.4 ms of the server's time, unless a name has very many holders or
waiters."""
_PAGES: Final = 4
"""Such steps that are under way at the same time."""
_BY_SLOT: Final = 200
"""The same in a cluster, where each step reads one name."""
_WAITERS: Final = 100
"""Waiters of a name that are described."""
_LITERAL: Final = re.compile(r"\[([*?[])\]")


async def inspect(engine: Engine, pattern: str) -> list[LockInfo]:
    """See `Session.inspect`."""
    if not isinstance(pattern, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"pattern must be a str such as 'order:*', not {type(pattern).__name__}")
    found: list[LockInfo] = []
    places = literal_places(pattern)
    if places is None:
        scanned = await scan_names(engine, matching(pattern))
        places, found = list(scanned.places), list(scanned.foreign.values())
    found += await look(engine, places, waiters=_WAITERS)
    return sorted(found, key=lambda info: (info.name, info.kind))


def literal_places(pattern: str) -> list[KindAndName] | None:
    """The places of the one name that a pattern without wildcards means; None for any other pattern."""
    if any(magic in _LITERAL.sub("", pattern) for magic in "*?["):
        return None
    name = _LITERAL.sub(r"\1", pattern)
    return [(kind, lock_name(name, "pattern")) for kind in families()] if name else []


def matching(pattern: str) -> Callable[[str], object]:
    """A function that is true of the names that match the pattern."""
    return re.compile(fnmatch.translate(pattern)).match


async def scan_names(engine: Engine, accepts: Callable[[str], object]) -> Scanned:
    """All that stands on the server under the prefix of the session, among the names that are asked for."""
    found = Scanned(engine.settings.prefix, accepts)
    cursor: bytes | None = FIRST
    while cursor is not None:
        scanned = await engine.ask(scan(engine.settings.prefix, cursor))
        cursor = scanned.cursor
        found.add(scanned.keys)
    return found


async def names_under(engine: Engine, held: LockInfo) -> tuple[str, ...]:
    """All names that the leases which hold this one hold: of a `MultiLock` all of its names, this one first.

    Goes through all keys of the server if it is a `MultiLock` of several names, and else asks nothing.
    """
    if all((holder.names or 1) == 1 for holder in held.holders):
        return (held.name,)
    leases = {holder.lease_id for holder in held.holders}
    scanned = await scan_names(engine, bool)
    infos = await look(engine, (place for place in scanned.places if place[0] == held.kind), waiters=0)
    under = {info.name for info in infos if leases & {holder.lease_id for holder in info.holders}}
    return (held.name, *sorted(under - {held.name}))


async def prefixes_in_use(engine: Engine) -> dict[str, int]:
    """Under how many names somebody may hold or wait, by prefix: all that this server has."""
    places: dict[str, set[KindAndName]] = {}
    known = families()
    cursor: bytes | None = FIRST
    while cursor is not None:
        scanned = await engine.ask(scan_everything(cursor))
        cursor = scanned.cursor
        for key in scanned.keys:
            prefix = prefix_of(key)
            place = None if prefix is None else parse(prefix, key)
            family = known.get(place.kind) if place is not None else None
            if prefix and place is not None and family is not None and family.shows(place.role):
                places.setdefault(prefix, set()).add((place.kind, place.name))
    return {prefix: len(places[prefix]) for prefix in sorted(places)}


@final
class Scanned:
    """The result of a scan of a prefix so far, among the names that are asked for.

    Attributes:
        places: Where somebody may hold or wait; True where a queue stands, so that somebody may wait.
        lasting: Schedules and leaderships, also while no process runs or leads them.
        foreign: Keys that are not ours, and how they are shown.
    """

    __slots__ = ("_accepts", "_families", "_prefix", "_start", "foreign", "lasting", "places")

    def __init__(self, prefix: str, accepts: Callable[[str], object]) -> None:
        self._prefix = prefix
        self._start = len(prefix.encode()) + 1
        self._accepts = accepts
        self._families = families()
        self.places: dict[KindAndName, bool] = {}
        self.lasting: set[KindAndName] = set()
        self.foreign: dict[bytes, LockInfo] = {}

    def add(self, keys: Iterable[bytes]) -> None:
        """Keys that begin with the prefix."""
        for key in keys:
            place = parse(self._prefix, key)
            family = self._families.get(place.kind) if place is not None else None
            if place is not None and place.kind == WAITS:
                continue
            if place is None or family is None or not family.knows(place.role):
                text = key[self._start :].decode(errors="backslashreplace")
                if self._accepts(text if place is None else place.name):
                    self.foreign[key] = _foreign(text, place and (place.kind, place.name))
            elif self._accepts(place.name):
                self._add(family, place)

    def _add(self, family: Family, place: ParsedKey) -> None:
        where = place.kind, place.name
        if kinds()[place.kind].lasting:
            self.lasting.add(where)
        if family.shows(place.role):
            self.places[where] = self.places.get(where, False) or place.role == "queue"


def _foreign(text: str, place: tuple[str, str] | None) -> LockInfo:
    if place is None or place[0] in families():
        return LockInfo(kind=UNKNOWN_KIND, name=text, problem="this key was not written by aiolocks")
    kind, name = place
    return LockInfo(kind=kind, name=name, problem="this version of aiolocks knows no such kind")


async def look(engine: Engine, places: Iterable[KindAndName], *, waiters: int) -> list[LockInfo]:
    """Reads these places; leaves out the places where nothing stands.

    `waiters` is how many of each name are described.
    """
    asked = pages(engine, places, waiters=waiters)
    snapshots = await _ask_all(
        engine, [command for _, _, command in asked], _BY_SLOT if engine.by_slot else _PAGES
    )
    return [
        info(kind, name, snapshot, engine.settings.prefix)
        for (kind, page, _), answers in zip(asked, snapshots, strict=True)
        for name, snapshot in zip(page, answers, strict=True)
        if snapshot.stands or snapshot.waiters or snapshot.problems
    ]


def pages(
    engine: Engine, places: Iterable[KindAndName], *, waiters: int
) -> list[tuple[str, list[str], Request[list[Snapshot]]]]:
    """The requests that read these places: of each, its kind and names."""
    names: dict[str, list[str]] = {}
    known = families()
    for kind, name in places:
        if kind in known:
            names.setdefault(kind, []).append(name)
    asked: list[tuple[str, list[str], Request[list[Snapshot]]]] = []
    for kind, some in names.items():
        family = known[kind]
        at_once = 1 if engine.by_slot else max(1, _KEYS // family.keys_read)  # a step is of one slot
        asked += [
            (kind, page, family.look(engine.settings.prefix, kind, page, waiters=waiters))
            for page in (some[at : at + at_once] for at in range(0, len(some), at_once))
        ]
    return asked


async def _ask_all(engine: Engine, commands: Sequence[Request[T]], at_once: int) -> list[T]:
    """Some at a time: a lease that is renewed at the same time must not wait for all of them."""
    replies: list[T] = []
    for at in range(0, len(commands), at_once):
        asked = [
            spawn(engine.loop, engine.ask(command), name="aiolocks-look", context=None)
            for command in commands[at : at + at_once]
        ]
        try:
            replies += await asyncio.gather(*asked)
        finally:
            for one in asked:
                one.cancel()
            await asyncio.gather(*asked, return_exceptions=True)
    return replies


def info(kind: str, name: str, snapshot: Snapshot, prefix: str) -> LockInfo:
    """The snapshot, as users see it."""
    problems = list(snapshot.problems)
    if snapshot.endless:
        problems.append(without_ttl(name, prefix))
    holders: list[HolderInfo] = []
    for holder in sorted(snapshot.holders, key=lambda one: one.fencing_token or 0):
        described = described_in(holder.metadata)
        if described is None:
            problems.append("its metadata cannot be read")
        holders.append(holder_info(kind, holder, snapshot.now_us, described or {}))
    left_ms = None if snapshot.kept is None else snapshot.kept.left_ms
    kept_for = None if left_ms is None else left_ms / 1000
    if snapshot.taken_us is not None:
        kept_for = snapshot.taken_us / 1e6
    return LockInfo(
        kind=kind,
        name=name,
        holders=tuple(holders),
        waiters=snapshot.waiters,
        value=None if kinds()[kind].value is None else snapshot.value,
        problem="; ".join(dict.fromkeys(problems)),
        waiting=tuple(_waiter_info(waiter, snapshot.now_us) for waiter in snapshot.first_waiters),
        kept_for=kept_for,
        kept_until=None if kept_for is None else snapshot.now_us / 1e6 + kept_for,
    )


def _waiter_info(waiter: QueuedWaiter, now_us: int) -> WaiterInfo:
    host, pid, _ = whereabouts(described_in(waiter.card) or {})
    since = waiter.since_us
    return WaiterInfo(
        host=host,
        pid=pid,
        waited_for=None if since is None else max(0.0, (now_us - since) / 1e6),
        waiting_since=None if since is None else since / 1e6,
    )
