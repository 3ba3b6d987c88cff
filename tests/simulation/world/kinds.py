"""Every kind of lock, as a schedule uses it: what a task may want of it, and how it asks for that."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from aiolocks import (
    FairLock,
    Lock,
    MultiLock,
    RangeLock,
    Redlock,
    ReentrantLock,
    RWLock,
    Semaphore,
    Session,
)
from tests.support.history import Mode

from . import caches, limited
from .cluster import NODES
from .sentinel import NODES as WATCHED

PERMITS = 3
"""Of the semaphores."""
MASTERS = tuple(f"redis{number}" for number in range(5))
"""The servers of a Redlock; some schedules have the first three."""
NAMES = ("x", "y", "z")
SILENT = ("black hole", "half open", "freeze of the server", "freeze")
"""Faults after which a holder hears nothing of its server."""


@dataclass(frozen=True, kw_only=True)
class Want:
    """The request of one acquire.

    Attributes:
        names: Of the lock, or of several at once.
        mode: The claims that it excludes.
        low: Left end of an interval.
        high: Right end of an interval, which is not part of it.
        permits: How many permits of a semaphore.
        keys: Of limits, of which it wants a permit each.
        cache: Seconds for which its session keeps it between uses.
        by: Another kind that excludes it.
    """

    names: tuple[str, ...] = ("x",)
    mode: Mode = "writer"
    low: float = float("-inf")
    high: float = float("inf")
    permits: int = 1
    keys: tuple[str, ...] = ()
    cache: float = 0.0
    by: str = ""

    def __str__(self) -> str:
        text = "+".join(self.names)
        if self.cache or self.by:
            text += f" by {self.by}" if self.by else f" (cache {self.cache:g} s)"
        if self.keys:
            text += f" with {'+'.join(self.keys)}"
        if self.mode != "writer" or self.low > float("-inf"):
            text += f" as {self.mode}"
        if self.low > float("-inf"):
            text += f" of {self.low:g}-{self.high:g}"
        return text if self.permits == 1 else f"{text} x {self.permits}"


@dataclass(frozen=True, kw_only=True)
class Kind:
    """One kind of lock.

    Attributes:
        wanted: Draws what a task wants.
        lock: Describes it: `lock(session, want, **options)`; of several servers, there is a session for each.
        doings: The acts of a holder beside holding, with how often.
        capacity: How many permits there are.
        strict: Whether it is had in the order of arrival.
        spans: Whether it has readers and writers.
        phased: Whether its readers and writers take turns.
        nests: Whether its holder may have it again.
        topology: The servers under it: `one` server, independent `masters`, a `cluster`, or behind
            `sentinel`.
        hosts: The servers that it is on.
        stepwise: Whether it is taken one part after the other: a waiter may find by its poll that it is free.
        apart: Whether the keys of a lease may be on two nodes for a while.
        replicas: How many replicas must have a lease before it counts.
        limited: Whether it has keys, each with its cap.
        whole: All that there is.
        cached: Whether its session may keep it between uses.
        steals: Whether some of its tasks take it by force.
        work: The tool that is built with locks, by its name in `works`; then there is no `lock` of its own.
        near: So many waiters at the front of a queue are near it; None: as in the library, which are more
            than a world has.
        faults: The only ones that befall it, unless others are asked for; empty: all.
        lasting: A part of keys that stay for ever.
        remembered: Parts of keys that stay for a week.
    """

    name: str
    wanted: Callable[[random.Random], Want]
    lock: Callable[..., Any]
    doings: tuple[str, ...] = ()
    capacity: int = 1
    strict: bool = False
    spans: bool = False
    phased: bool = False
    nests: bool = False
    topology: str = "one"
    hosts: tuple[str, ...] = ("redis",)
    stepwise: bool = False
    apart: bool = True
    replicas: int = 0
    limited: bool = False
    whole: Want = Want()
    steals: bool = False
    cached: bool = False
    work: str = ""
    near: int | None = None
    faults: tuple[str, ...] = ()
    lasting: str = ""
    remembered: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.name


def _one(_: random.Random) -> Want:
    return Want()


def _permits(rng: random.Random) -> Want:
    return Want(permits=rng.choice((1, 1, 1, 2, 3)))


def _limited(rng: random.Random) -> Want:
    return Want(keys=limited.keys_of(rng))


def _any(rng: random.Random) -> Want:
    return Want(names=(rng.choice(NAMES),))


def _either(rng: random.Random) -> Want:
    return Want(names=(rng.choice("xxy"),))


def _some(rng: random.Random) -> Want:
    return Want(names=tuple(sorted(rng.sample(NAMES, rng.choice((1, 2, 2, 3))))))


def _mode(rng: random.Random) -> Mode:
    modes: tuple[Mode, ...] = ("reader", "reader", "reader", "writer", "writer", "upgradable")
    return rng.choice(modes)


def _reading(rng: random.Random) -> Want:
    return Want(mode=_mode(rng))


def _part(rng: random.Random) -> Want:
    low = rng.randrange(4)
    return Want(mode=_mode(rng), low=low, high=low + rng.choice((1, 2, 4)))


def _semaphore(*, fair: bool) -> Callable[..., Any]:
    def lock(session: Session, want: Want, **options: Any) -> Any:
        semaphore = Semaphore(session, want.names[0], PERMITS, fair=fair, **options)
        return _Permits(semaphore, want.permits)

    return lock


class _Permits:
    """A number of permits of a semaphore, acquired as a lock is."""

    def __init__(self, semaphore: Semaphore, permits: int) -> None:
        self._semaphore = semaphore
        self._permits = permits
        self.adopt = semaphore.adopt

    def acquire(self, **how: Any) -> Any:
        return self._semaphore.acquire(self._permits, **how)

    def try_acquire(self) -> Any:
        return self._semaphore.try_acquire(self._permits)


def _simple(cls: Callable[..., Any]) -> Callable[..., Any]:
    return lambda session, want, **options: cls(session, want.names[0], **options)


def _none(*_: Any, **__: Any) -> Any:
    raise NotImplementedError


_HANDLED = ("extend", "adopt", "detach")
_SPANS = ("upgrade", "downgrade", "extend", "adopt")

KINDS: dict[str, Kind] = {
    kind.name: kind
    for kind in (
        Kind(name="lock", wanted=_one, lock=_simple(Lock), doings=_HANDLED),
        # Of several names, so that one session holds several leases, and renews them by one request.
        Kind(name="locks", wanted=_any, lock=_simple(Lock), doings=_HANDLED),
        Kind(name="cached", wanted=_either, lock=caches.cached, doings=_HANDLED, cached=True),
        Kind(name="fairlock", wanted=_one, lock=_simple(FairLock), doings=_HANDLED, strict=True),
        Kind(
            name="semaphore",
            wanted=_permits,
            lock=_semaphore(fair=False),
            doings=_HANDLED,
            capacity=PERMITS,
            whole=Want(permits=PERMITS),
        ),
        Kind(
            name="fair-semaphore",
            wanted=_permits,
            lock=_semaphore(fair=True),
            doings=_HANDLED,
            capacity=PERMITS,
            strict=True,
            whole=Want(permits=PERMITS),
        ),
        Kind(
            name="limits",
            wanted=_limited,
            lock=limited.limits,
            doings=_HANDLED,
            limited=True,
            whole=Want(keys=tuple(limited.CAPS)),
        ),
        Kind(
            name="rwlock",
            wanted=_reading,
            lock=lambda session, want, **options: getattr(
                RWLock(session, want.names[0], **options), want.mode
            ),
            doings=_SPANS,
            spans=True,
            phased=True,
        ),
        Kind(
            name="rangelock",
            wanted=_part,
            lock=lambda session, want, **options: getattr(
                RangeLock(session, want.names[0], **options), want.mode
            )(want.low, want.high),
            doings=(*_SPANS, "shrink"),
            spans=True,
            whole=Want(low=0, high=10),
        ),
        Kind(
            name="reentrant", wanted=_one, lock=_simple(ReentrantLock), doings=("nest", "extend"), nests=True
        ),
        Kind(
            name="multilock",
            wanted=_some,
            lock=lambda session, want, **options: MultiLock(session, list(want.names), **options),
            doings=_HANDLED,
            whole=Want(names=NAMES),
        ),
        Kind(
            name="redlock",
            wanted=_one,
            lock=lambda sessions, want, **options: Redlock(sessions, want.names[0], **options),
            doings=_HANDLED,
            topology="masters",
            hosts=MASTERS[:3],
            stepwise=True,
        ),
        Kind(name="steals", wanted=_one, lock=_simple(Lock), doings=("extend", "detach"), steals=True),
        Kind(name="singleflight", wanted=_permits, lock=_none, work="share"),
        Kind(
            name="uniquejob",
            wanted=_one,
            lock=_none,
            work="update",
            doings=("perform",),
            remembered=(":uniquejob.over:", ":uniquejob.owner:", ":uniquejob.about:"),
        ),
        Kind(name="turnstile", wanted=_one, lock=_none, work="number"),
        Kind(
            name="ratelimit",
            wanted=_permits,
            lock=_none,
            work="admit",
            remembered=(":ratelimit.bucket:", ":ratelimit.log:"),
        ),
        Kind(name="latch", wanted=_one, lock=_none, work="meet", remembered=(":latch:", ":latch.steps:")),
        Kind(
            name="combiner",
            wanted=_one,
            lock=_none,
            work="combine",
            doings=("leave", "leave", "drain"),
            remembered=tuple(f":combiner.{role}:" for role in ("value", "items", "answers", "puts", "idle")),
        ),
        Kind(name="leadership", wanted=_one, lock=_none, work="lead"),
        Kind(name="grace", wanted=_one, lock=_none, work="unwind", faults=SILENT),
        Kind(name="session", wanted=_one, lock=_none, work="end", faults=SILENT),
        Kind(name="rings", wanted=_one, lock=_none, work="entangle"),
        Kind(
            name="schedule",
            wanted=_one,
            lock=_none,
            work="keep",
            remembered=(":schedule.register:", ":schedule.history:"),
        ),
        Kind(name="fencedregister", wanted=_one, lock=_none, work="write", lasting=":fencedregister:"),
    )
}


KINDS |= {
    kind.name: kind
    for kind in (replace(KINDS[name], name=f"far-{name}", near=1) for name in ("lock", "fairlock"))
}


# -- on several servers

SPREAD = ("x", "x", "x", "z", "b")
"""In a cluster of three, each of these names lives on another node; most want the same one."""


def _spread(wanted: Callable[[random.Random], Want]) -> Callable[[random.Random], Want]:
    return lambda rng: replace(wanted(rng), names=(rng.choice(SPREAD),))


def _on_cluster(kind: Kind) -> Kind:
    several = kind.name == "multilock"
    return replace(
        kind,
        name=f"cluster-{kind}",
        topology="cluster",
        hosts=NODES,
        wanted=kind.wanted if several else _spread(kind.wanted),
        stepwise=several,
        apart=kind.name != "lock",
    )


def _behind_sentinel(kind: Kind, **how: Any) -> Kind:
    return replace(kind, **{"name": f"sentinel-{kind}", "topology": "sentinel", "hosts": WATCHED, **how})


KINDS |= {
    kind.name: kind
    for kind in (
        *(
            _on_cluster(KINDS[name])
            for name in (
                *("lock", "fairlock", "semaphore", "limits", "rwlock", "reentrant", "multilock", "combiner"),
                *("ratelimit", "latch", "cached"),
            )
        ),
        *(_behind_sentinel(KINDS[name]) for name in ("lock", "fairlock", "rwlock", "combiner", "cached")),
        # Nobody waits for the replica when a lease is adopted.
        _behind_sentinel(KINDS["lock"], name="sentinel-replicas", replicas=1, doings=("extend",)),
    )
}
