"""The holder of a lock, as operators and errors are told."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, final

from ._visible import visible

_PREFIX: Final = "aiolocks"
"""The prefix that the commands take by default."""
_IN_WORDS: Final = 3
"""Holders that a message tells of."""
_METADATA_IN_WORDS: Final = 200
"""Characters of a holder's metadata that a message shows."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class HolderInfo:
    """A holder of a lock, as the server has it. Times are in seconds. An unknown field is None.

    Attributes:
        lease_id: An id of this lease, made from a digest of its token. The token itself is a secret. A
            `MultiLock` holds each of its names under the same id.
        fencing_token: As `lease.fencing_token`.
        remaining: Seconds until its lease ends on the server if it is not renewed. It is renewed for as long
            as the holder lives.
        held_since: The server's time of the grant, as seconds since 1970. For an upgradable holder, the time
            of its grant or of its last upgrade.
        held_for: Seconds since then.
        host: Name of the holder's machine.
        pid: Its process id on that machine.
        task: Name of its task.
        metadata: The metadata of the user: those of the session and of the lock.
        permits: How many permits of a `Semaphore` it holds; 1 for a `FairLock`.
        depth: How many leases the owner of a `ReentrantLock` has.
        mode: `"reader"`, `"upgradable"` or `"writer"` of a `RWLock` or `RangeLock`. `"ticket"` if it has the
            key of a `UniqueJob`.
        names: How many names a `MultiLock` of several names holds under this lease.
        keys: For `Limits`: each key of which it holds a permit, with the cap that it was acquired with.
        value: The value that the leader of a `Leadership` has published.
        cached: Whether its session may keep it between uses (`Lock(..., cache=...)`). Only that session knows
            if a task uses it now: `held_since` is the time when the session got it, and `task` is None.
        span: The interval of a `RangeLock` that it holds, with both of its ends: `[0, 10)` ends with the
            number right below 10.
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
    names: int | None = None
    keys: dict[str, int] | None = None
    value: Any = None
    span: tuple[float, float] | None = None
    cached: bool = False


def interval(span: tuple[float, float]) -> str:
    """As the holder wrote it: `[0, 10)` stands on the server with the number right below 10."""
    low, high = span
    above = math.nextafter(high, math.inf)
    half_open = len(repr(above)) + 4 < len(repr(high))
    return f"[{_number(low)}, {_number(above if half_open else high)}{')' if half_open else ']'}"


def _number(value: float) -> str:
    return repr(value).removesuffix(".0")


def in_words(holders: Sequence[HolderInfo]) -> str:
    """For how long and by whom it is held, as `for 12.3 s by host1 pid 42 task 'Task-7' {'order': 17}`."""
    told = [_one_in_words(holder) for holder in holders[:_IN_WORDS]]
    if len(holders) > _IN_WORDS:
        told.append("and others")
    return ", ".join(told)


def without_ttl(name: str, prefix: str, where: str = "") -> str:
    """That the key of a name has lost its ttl, as by `PERSIST` or a restore, and what frees it.

    The command is left out where a terminal would not show the name as it is.
    """
    frees = f"session.force_release({name!r})"
    if name.isprintable():
        here = "" if prefix == _PREFIX else f" --prefix {shlex.quote(prefix)}"
        frees = f"`aiolocks release {shlex.quote(name)} --force{here}` or {frees}"
    unless = "unless its holder renews it, nothing frees it but"
    return f"the key of {name!r} has lost its ttl: {unless} {frees}{where}"


def _one_in_words(holder: HolderInfo) -> str:
    words: list[str] = [] if holder.held_for is None else [f"for {holder.held_for:.1f} s"]
    words.append(f"by {visible(holder.host or 'an unknown host')}")
    if holder.pid is not None:
        words.append(f"pid {holder.pid}")
    if holder.task:
        words.append(f"task {holder.task!r}")
    if holder.metadata:
        metadata = repr(holder.metadata)
        words.append(metadata if len(metadata) <= _METADATA_IN_WORDS else f"{metadata[:_METADATA_IN_WORDS]}…")
    return " ".join(words)
