"""Long waits as sessions publish them for each other, to find deadlocks: what a task wants, and holds."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Final, NamedTuple, cast, final

from .._infos import KindAndName
from ..lock.blocks import held
from ..lock.engine import Engine
from ..lock.holders import described_in, lease_id, whereabouts
from ..lock.lease import Possession
from ..lock.waiter import Waiter
from ..transport.keys import parse

_MODES: Final = {"r", "u", "w"}


@final
class Want(NamedTuple):
    """The lock that a task waits for, as far as it tells the holders in the way; see `Wanted` of transport.

    Attributes:
        places: Where holders may be in its way.
        own: Possessions that are not in its way, by lease id: the possessions of the same owner, and the one
            that the task upgrades.
    """

    places: tuple[KindAndName, ...]
    own: tuple[str, ...]
    permits: int = 0
    of: int | None = None
    mode: str = ""
    span: tuple[float, float] | None = None
    caps: tuple[tuple[str, int], ...] = ()

    @property
    def upgrades(self) -> bool:
        """Whether it is an upgrade, which waits for no other waiter."""
        return self.mode == "w" and len(self.own) > 1


@final
class HeldLease(NamedTuple):
    """A lease that a waiting task has entered."""

    lease_id: str
    places: tuple[KindAndName, ...]
    kind: str
    name: str


@final
class Wait(NamedTuple):
    """A task that has waited for long, and holds something.

    Attributes:
        id: No other wait ever has it.
        beat: Rises each time that its session says that it still waits.
        kind, name: The lock, as a user knows it.
        since_us: When it began, by the server's clock, about: the same wherever it is read.
        told: Whether it may get a `DeadlockError`.
    """

    id: str
    beat: int
    host: str | None
    pid: int | None
    task: str | None
    kind: str
    name: str
    since_us: int
    waited: float
    told: bool
    want: Want
    holds: tuple[HeldLease, ...]


def wait_of(engine: Engine, acquisition: Waiter, *, told: bool) -> Wait | None:
    """The wait of an acquisition; None if its task holds nothing that lasts, or its kind is not searched."""
    claim, holding = acquisition.lease.claim, held(acquisition.inside, lasting=True)
    wanted = claim.wanted()
    holds = tuple(one for one in (_held(engine, possession) for possession in holding) if one is not None)
    if wanted is None or not holds:
        return None
    own = (lease_id(claim.owner), *((lease_id(wanted.under),) if wanted.under else ()))
    mode, span = "", None
    if wanted.span is not None:
        mode, span = wanted.span[0], (float(wanted.span[1]), float(wanted.span[2]))
    host, pid, task = whereabouts(described_in(claim.metadata.encode()) or {})
    # The fencing token is the server's time of the grant: from there, this loop's clock goes on.
    first = holding[0]
    since_us = first.granted_us + round((acquisition.started - first.granted_at) * 1e6)
    return Wait(
        lease_id(claim.token),
        0,
        host,
        pid,
        task,
        acquisition.target.kind,
        acquisition.target.name,
        since_us,
        engine.now() - acquisition.started,
        told,
        Want(_places(engine, wanted.keys), own, wanted.permits, wanted.of, mode, span, wanted.caps),
        holds,
    )


def _held(engine: Engine, possession: Possession) -> HeldLease | None:
    wanted = possession.claim.wanted()
    if wanted is None:
        return None
    places = _places(engine, wanted.keys)
    return HeldLease(lease_id(possession.claim.owner), places, possession.kind, possession.name)


def _places(engine: Engine, keys: Iterable[bytes]) -> tuple[KindAndName, ...]:
    found = (parse(engine.settings.prefix, key) for key in keys)
    return tuple((place.kind, place.name) for place in found if place is not None)


# -- as they travel


def record_of(waits: Iterable[Wait], beat: int) -> str:
    """The record that a session publishes: JSON, whose bounds may be infinite."""
    return json.dumps([beat, *(tuple(wait) for wait in waits)], separators=(",", ":"))


def waits_in(records: Iterable[bytes]) -> dict[str, Wait]:
    """All waits, by id. A record that cannot be read was not written by this version of aiolocks."""
    found: dict[str, Wait] = {}
    for record in records:
        try:
            beat, *waits = json.loads(record)
            for fields in waits:
                wait = _read(fields, beat)
                former = found.get(wait.id)
                if former is None or former.beat < beat:
                    found[wait.id] = wait
        except (ValueError, TypeError, RecursionError, KeyError, OverflowError):
            continue
    return found


def _read(fields: list[Any], beat: Any) -> Wait:
    wait = Wait(*fields)
    want, span = Want(*wait.want), cast("Any", wait.want)[5]
    want = want._replace(
        places=_read_places(want.places),
        own=tuple(map(str, want.own)),
        span=None if span is None else (float(span[0]), float(span[1])),
        caps=tuple((str(key), int(cap)) for key, cap in want.caps),
    )
    if want.mode and (want.mode not in _MODES or want.span is None):
        raise ValueError(want.mode)
    holds = tuple(
        HeldLease(str(one[0]), _read_places(one[1]), str(one[2]), str(one[3])) for one in wait.holds
    )
    return wait._replace(
        beat=int(beat),
        since_us=int(wait.since_us),
        waited=float(wait.waited),
        told=wait.told is True,
        want=want,
        holds=holds,
    )


def _read_places(places: Iterable[Any]) -> tuple[KindAndName, ...]:
    return tuple((str(kind), str(name)) for kind, name in places)
