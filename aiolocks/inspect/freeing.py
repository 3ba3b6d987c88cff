"""Takes a lock from its holder: for an operator, like looking at it."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from .._infos import LockInfo
from ..lock.engine import Engine
from ..lock.holders import described_in, lease_id
from ..lock.options import lock_name
from ..lock.stealing import forced, operator_json
from ..transport.steps.family import families, forcible, holdable, kinds
from ..transport.steps.snapshots import Snapshot
from .looking import info

_TRIES: Final = 3


async def force_release(
    engine: Engine,
    name: str,
    kind: str | None,
    *,
    leases: frozenset[str] | None = None,
    by: str | None = None,
) -> list[LockInfo]:
    """See `Session.force_release`; with `leases`, only if it is exactly these that hold it, by their ids."""
    name = lock_name(name)
    settings = engine.settings
    described = engine.describe(settings.user_json(settings.metadata), operator_json(by))
    spaces = holdable() if kind is None else (name_space(kind),)
    freed: list[LockInfo] = []
    tokens: set[str] = set()
    engine.kept.pass_by((name,))
    try:
        for one in spaces:
            snapshot = await _force(engine, one, name, leases, described)
            if snapshot is not None:
                freed.append(info(one, name, snapshot, engine.settings.prefix))
                tokens.update(token for holder in snapshot.holders for token in holder.tokens)
    finally:
        # Last: the caller may be the holder, and this cancels it.
        _lose(engine, tokens, described)
    return freed


def name_space(kind: object, among: Collection[str] | None = None) -> str:
    """The name space of that kind; checked to be in `among`, or one that can be freed or reset."""
    same = {one.name: one.of for one in kinds().values() if one.of}
    among = forcible() if among is None else among
    given = same.get(kind, kind) if isinstance(kind, str) else kind
    if not isinstance(given, str):
        raise TypeError(f"kind must be None or a str such as 'semaphore', not {kind!r}")
    if given not in among:
        raise ValueError(f"kind must be one of {', '.join([*among, *same])}, not {kind!r}")
    return given


async def _force(
    engine: Engine, kind: str, name: str, leases: frozenset[str] | None, described: str
) -> Snapshot | None:
    """Frees what stands there now; what that was, or None.

    In two steps, the second bounded by the fencing tokens that the first has seen: sent again after its reply
    was lost, it does not take the lock from a holder that has come in between.
    """
    family, prefix = families()[kind], engine.settings.prefix
    for _ in range(_TRIES):
        (snapshot,) = await engine.ask(family.look(prefix, kind, [name]))
        if not snapshot.stands and not snapshot.problems:
            return None
        there = frozenset(lease_id(holder.tokens[0]) for holder in snapshot.holders)
        if leases is not None and leases != there:
            return None
        force = family.force(prefix, kind, name, snapshot, described)
        released = await engine.ask(force, told=engine.wake_own)
        if released.freed or not snapshot.grants:
            return snapshot
    return None  # it went from hand to hand: no holder stays


def _lose(engine: Engine, tokens: set[str], described: str) -> None:
    """The holders of this session need not wait for a renewal to learn of it."""
    reason = forced(described_in(described.encode()) or {})
    for possession in engine.watchdog.possessions():
        if possession.claim.token in tokens:
            possession.lose(reason)
