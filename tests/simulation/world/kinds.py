"""Every kind of lock, as a schedule uses it; those of `tests/kinds` say so in their own module (`WORLD`)."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
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
from tests.kinds import declared
from tests.support.history import Mode

from . import caches, limited, unconfirmed
from .cluster import NODES
from .sentinel import NODES as WATCHED
from .wants import HANDLED, Kind, Want, none, one, simple

PERMITS = 3
"""Of the semaphores."""
MASTERS = tuple(f"redis{number}" for number in range(5))
"""The servers of a Redlock; some schedules have the first three."""
NAMES = ("x", "y", "z")
SILENT = ("black hole", "half open", "freeze of the server", "freeze")
"""Faults after which a holder hears nothing of its server."""


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


_SPANS = ("upgrade", "downgrade", "extend", "adopt")

KINDS: dict[str, Kind] = {
    kind.name: kind
    for kind in (
        Kind(name="lock", wanted=one, lock=simple(Lock), doings=HANDLED),
        # Of several names, so that one session holds several leases, and renews them by one request.
        Kind(name="locks", wanted=_any, lock=simple(Lock), doings=HANDLED),
        Kind(name="cached", wanted=_either, lock=caches.cached, doings=HANDLED, cached=True),
        Kind(name="fairlock", wanted=one, lock=simple(FairLock), doings=HANDLED, strict=True),
        Kind(
            name="semaphore",
            wanted=_permits,
            lock=_semaphore(fair=False),
            doings=HANDLED,
            capacity=PERMITS,
            whole=Want(permits=PERMITS),
        ),
        Kind(
            name="fair-semaphore",
            wanted=_permits,
            lock=_semaphore(fair=True),
            doings=HANDLED,
            capacity=PERMITS,
            strict=True,
            whole=Want(permits=PERMITS),
        ),
        Kind(
            name="limits",
            wanted=_limited,
            lock=limited.limits,
            doings=HANDLED,
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
        Kind(name="reentrant", wanted=one, lock=simple(ReentrantLock), doings=("nest", "extend"), nests=True),
        Kind(
            name="multilock",
            wanted=_some,
            lock=lambda session, want, **options: MultiLock(session, list(want.names), **options),
            doings=HANDLED,
            whole=Want(names=NAMES),
        ),
        Kind(
            name="redlock",
            wanted=one,
            lock=lambda sessions, want, **options: Redlock(sessions, want.names[0], **options),
            doings=HANDLED,
            topology="masters",
            hosts=MASTERS[:3],
            stepwise=True,
        ),
        Kind(name="unconfirmed", wanted=one, lock=unconfirmed.exclusive, doings=HANDLED, unconfirmed=True),
        Kind(name="steals", wanted=one, lock=simple(Lock), doings=("extend", "detach"), steals=True),
        Kind(name="singleflight", wanted=_permits, lock=none, work="share"),
        Kind(
            name="uniquejob",
            wanted=one,
            lock=none,
            work="update",
            doings=("perform",),
            remembered=(":uniquejob.over:", ":uniquejob.owner:", ":uniquejob.about:"),
        ),
        Kind(name="turnstile", wanted=one, lock=none, work="number"),
        Kind(
            name="ratelimit",
            wanted=_permits,
            lock=none,
            work="admit",
            remembered=(":ratelimit.bucket:", ":ratelimit.log:"),
        ),
        Kind(name="latch", wanted=one, lock=none, work="meet", remembered=(":latch:", ":latch.steps:")),
        Kind(
            name="combiner",
            wanted=one,
            lock=none,
            work="combine",
            doings=("leave", "leave", "drain"),
            remembered=tuple(f":combiner.{role}:" for role in ("value", "items", "answers", "puts", "idle")),
        ),
        Kind(name="leadership", wanted=one, lock=none, work="lead"),
        Kind(name="grace", wanted=one, lock=none, work="unwind", faults=SILENT),
        Kind(name="session", wanted=one, lock=none, work="end", faults=SILENT),
        Kind(name="rings", wanted=one, lock=none, work="entangle"),
        Kind(
            name="schedule",
            wanted=one,
            lock=none,
            work="keep",
            remembered=(":schedule.register:", ":schedule.history:"),
        ),
        Kind(name="fencedregister", wanted=one, lock=none, work="write", lasting=":fencedregister:"),
        *declared("WORLD"),
    )
}


KINDS |= {
    kind.name: kind
    for kind in (
        *(replace(KINDS[name], name=f"far-{name}", near=1) for name in ("lock", "fairlock")),
        *(
            replace(KINDS[name], name=f"unconfirmed-{name}", unconfirmed=True)
            for name in ("fairlock", "semaphore", "limits", "rwlock", "rangelock", "reentrant", "multilock")
        ),
    )
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
                *("ratelimit", "latch", "cached", "unconfirmed"),
            )
        ),
        *(
            _behind_sentinel(KINDS[name])
            for name in ("lock", "fairlock", "rwlock", "combiner", "cached", "unconfirmed")
        ),
        # Nobody waits for the replica when a lease is adopted.
        _behind_sentinel(KINDS["lock"], name="sentinel-replicas", replicas=1, doings=("extend",)),
    )
}
