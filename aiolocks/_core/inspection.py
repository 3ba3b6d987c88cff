"""Who holds what: what an operator is shown, and how he frees it.

Unlike all else in the core this is no step of a lock's life. It reads what others have written, at its own
pace, and takes nothing of it for granted.
"""

from __future__ import annotations

import asyncio
import fnmatch
import hashlib
import json
import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast, final

from .._transport import Command
from .._transport.commands.inspect import FAMILIES, FIRST, HOLDABLE, scan
from .._transport.commands.reading import Finding, Holder
from .._transport.keys import parse
from .arguments import lock_name

if TYPE_CHECKING:
    from .engine import Engine

T = TypeVar("T")

UNKNOWN_KIND: Final = "?"
"""Stands for the kind where a key is none of ours."""
FORCED: Final = "it was released by force"

_AT_ONCE: Final = 200
_TRIES: Final = 3
_ID_LENGTH: Final = 12
_SAME_SPACE: Final = {"reentrantlock": "lock", "multilock": "lock"}
_LITERAL: Final = re.compile(r"\[([*?[])\]")


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class HolderInfo:
    """One who holds a lock, as the server has it. Times in seconds; what is not known is None.

    Attributes:
        lease_id: Names this possession, as a part of a digest of its token, which is a secret. A `MultiLock`
            holds each of its names under the same one.
        fencing_token: As `lease.fencing_token`.
        remaining: What its lease has left on the server. It is renewed for as long as the holder lives.
        held_since: The server's time when it was granted, as seconds since 1970; of an upgradable, when it or
            its last upgrade was.
        held_for: How long ago that was.
        host: Name of the holder's machine.
        pid: Its process id there.
        task: Name of its task.
        metadata: What the user has attached: the session's and the lock's.
        permits: How many permits of a `Semaphore` it holds; of a `FairLock`, always one.
        depth: How many leases the owner of a `ReentrantLock` has.
        mode: `"reader"`, `"upgradable"` or `"writer"` of a `RWLock` or `RangeLock`; `"ticket"` of one that
            owns the key of a `UniqueJob`.
        span: What it holds of a `RangeLock`, with both ends: of `[0, 10)`, the number right below 10.
    """

    lease_id: str
    fencing_token: int | None = None
    remaining: float | None = None
    held_since: float | None = None
    held_for: float | None = None
    host: str | None = None
    pid: int | None = None
    task: str | None = None
    metadata: dict[str, Any] = field(default_factory=dict[str, Any])
    permits: int | None = None
    depth: int | None = None
    mode: str | None = None
    span: tuple[float, float] | None = None


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class LockInfo:
    """What stands under one name, as `session.inspect()` found it.

    Attributes:
        kind: Its name space: `"lock"` (which a `ReentrantLock` and a `MultiLock` share), `"fairlock"`,
            `"semaphore"`, `"rwlock"` …; `"?"` where the key is none of ours.
        name: Name of the lock; where the key is none of ours, what stands behind the prefix.
        holders: Who holds it; those that were granted first come first.
        waiters: How many wait in the queue and live: one for each session, however many of its tasks wait,
            but one for each task where waiting is fair. Of a `Lock`, who waits for a holder of his own
            session is not in the queue, and not counted.
        value: How many permits a `Semaphore` has in all; how many have gone through a `Turnstile`.
        problem: What is wrong with what stands there, in words; empty when all is well.
    """

    kind: str
    name: str
    holders: tuple[HolderInfo, ...] = ()
    waiters: int = 0
    value: int | None = None
    problem: str = ""


# -- looking


async def inspect(engine: Engine, pattern: str) -> list[LockInfo]:
    """See `Session.inspect`."""
    if not isinstance(pattern, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"pattern must be a str such as 'order:*', not {type(pattern).__name__}")
    literal = _LITERAL.sub("", pattern)
    if not any(magic in literal for magic in "*?["):
        name = _LITERAL.sub(r"\1", pattern)
        places = [(kind, lock_name(name, "pattern")) for kind in FAMILIES] if name else []
        found: list[LockInfo] = []
    else:
        places, found = await _scan(engine, re.compile(fnmatch.translate(pattern)).match)
    for (kind, name), finding in zip(places, await _look(engine, places), strict=True):
        if finding.stands or finding.waiters or finding.problems:
            found.append(_info(kind, name, finding))
    return sorted(found, key=lambda info: (info.name, info.kind))


async def _scan(
    engine: Engine, accepts: Callable[[str], object]
) -> tuple[list[tuple[str, str]], list[LockInfo]]:
    """Kinds and names under which somebody may hold or wait; and what is not ours."""
    prefix = engine.settings.prefix
    start = len(prefix.encode()) + 1
    places: dict[tuple[str, str], None] = {}
    foreign: dict[bytes, LockInfo] = {}
    cursor: bytes | None = FIRST
    while cursor is not None:
        scanned = await engine.ask(scan(prefix, cursor))
        cursor = scanned.cursor
        for key in scanned.keys:
            place = parse(prefix, key)
            family = FAMILIES.get(place.kind) if place is not None else None
            if place is None or family is None or not family.knows(place.role):
                text = key[start:].decode(errors="backslashreplace")
                if accepts(text if place is None else place.name):
                    foreign[key] = _foreign(text, place and (place.kind, place.name))
            elif family.shows(place.role) and accepts(place.name):
                places[place.kind, place.name] = None
    return list(places), list(foreign.values())


def _foreign(text: str, place: tuple[str, str] | None) -> LockInfo:
    if place is None or place[0] in FAMILIES:
        return LockInfo(kind=UNKNOWN_KIND, name=text, problem="this key was not written by aiolocks")
    kind, name = place
    return LockInfo(kind=kind, name=name, problem="this version of aiolocks knows no such kind")


async def _look(engine: Engine, places: Sequence[tuple[str, str]]) -> list[Finding]:
    prefix = engine.settings.prefix
    return await _ask_all(engine, (FAMILIES[kind].look(prefix, kind, name) for kind, name in places))


async def _ask_all(engine: Engine, commands: Iterable[Command[T]]) -> list[T]:
    """Some hundreds at a time: who renews a lease at the same time is not to wait behind all of them."""
    waiting, replies = list(commands), list[T]()
    while waiting:
        batch, waiting = waiting[:_AT_ONCE], waiting[_AT_ONCE:]
        asked = [asyncio.ensure_future(engine.ask(command)) for command in batch]
        try:
            replies += await asyncio.gather(*asked)
        finally:
            for one in asked:
                one.cancel()
            await asyncio.gather(*asked, return_exceptions=True)
    return replies


def _info(kind: str, name: str, finding: Finding) -> LockInfo:
    problems = list(finding.problems)
    holders: list[HolderInfo] = []
    for holder in sorted(finding.holders, key=lambda one: one.fencing_token or 0):
        described = _described(holder.metadata)
        if described is None:
            problems.append("its metadata cannot be read")
        holders.append(_holder_info(kind, holder, finding.now_us, described or {}))
    return LockInfo(
        kind=kind,
        name=name,
        holders=tuple(holders),
        waiters=finding.waiters,
        value=finding.value if kind in ("semaphore", "turnstile") else None,
        problem="; ".join(dict.fromkeys(problems)),
    )


def _holder_info(kind: str, holder: Holder, now_us: int, described: dict[str, Any]) -> HolderInfo:
    # The fencing token is the server's time, unless that clock has been set back since.
    granted = holder.fencing_token if (holder.fencing_token or now_us + 1) <= now_us else None
    host, pid, task, user = (described.get(key) for key in ("host", "pid", "task", "user"))
    return HolderInfo(
        lease_id=hashlib.sha256(holder.tokens[0].encode()).hexdigest()[:_ID_LENGTH],
        fencing_token=holder.fencing_token,
        remaining=None if holder.left_ms is None else holder.left_ms / 1000,
        held_since=None if granted is None else granted / 1e6,
        held_for=None if granted is None else (now_us - granted) / 1e6,
        host=host if isinstance(host, str) else None,
        pid=pid if isinstance(pid, int) else None,
        task=task if isinstance(task, str) else None,
        metadata=cast("dict[str, Any]", user) if isinstance(user, dict) else {},
        permits=holder.permits,
        depth=holder.depth,
        mode=holder.mode,
        span=holder.span if kind == "rangelock" else None,
    )


def _described(metadata: bytes) -> dict[str, Any] | None:
    """What stands beside a lease; None when that is not what we write."""
    if not metadata:
        return {}
    try:
        described: object = json.loads(metadata, parse_float=_finite, parse_constant=_finite)
    except (ValueError, RecursionError):
        return None
    return cast("dict[str, Any]", described) if isinstance(described, dict) else None


def _finite(text: str) -> float:
    """What is no number in JSON is none of ours, and could not be given on as JSON."""
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is not finite")
    return number


# -- freeing


async def force_release(engine: Engine, name: str, kind: str | None) -> list[LockInfo]:
    """See `Session.force_release`."""
    name = lock_name(name)
    kinds = HOLDABLE if kind is None else (name_space(kind),)
    freed: list[LockInfo] = []
    tokens: set[str] = set()
    try:
        for one in kinds:
            finding = await _force(engine, one, name)
            if finding is not None:
                freed.append(_info(one, name, finding))
                tokens.update(token for holder in finding.holders for token in holder.tokens)
    finally:
        # Not before all is done: whoever asks may be the holder, whom this cancels.
        _lose(engine, tokens)
    return freed


def name_space(kind: object) -> str:
    """Which name space that kind of lock has; checked."""
    given = _SAME_SPACE.get(kind, kind) if isinstance(kind, str) else kind
    if not isinstance(given, str):
        raise TypeError(f"kind must be None or a str such as 'semaphore', not {kind!r}")
    if given not in HOLDABLE:
        raise ValueError(f"kind must be one of {', '.join([*HOLDABLE, *_SAME_SPACE])}, not {kind!r}")
    return given


async def _force(engine: Engine, kind: str, name: str) -> Finding | None:
    """Frees what stands there now; what that was, or None.

    In two steps, the second bounded by the fencing tokens that the first has seen: sent again after its
    reply was lost, it does not take the lock from who has come in between.
    """
    family, prefix = FAMILIES[kind], engine.settings.prefix
    for _ in range(_TRIES):
        finding = await engine.ask(family.look(prefix, kind, name))
        if not finding.stands and not finding.problems:
            return None
        force = family.force(prefix, kind, name, finding)
        released = await engine.ask(force, told=engine.wake_own)
        if released.freed or not finding.holders:
            return finding
    return None  # it went from hand to hand: nobody stays on it


def _lose(engine: Engine, tokens: set[str]) -> None:
    """Whoever held it here need not wait for a renewal to learn of it."""
    for possession in engine.watchdog.possessions():
        if possession.claim.token in tokens:
            possession.lose(FORCED)
