"""Simple and reentrant locks, Redlocks, and the runs of a SingleFlight: one string, its holder."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from ...answers import NO_TTL
from ...request import Script
from .checks import after, not_ours, of_others, without_ttl, wrong_types
from .family import Family
from .snapshots import NO_CONTENT, Content, Holder, Snapshot, of_nobody

# A leading zero is that of a Redlock's fencing token which was written back.
_LOCK: Final = re.compile(rb"((?:[0-9a-f]{32}){1,2}):(0?\d{1,16}):(.*)", re.DOTALL)
_FORCE_LOCK: Final = Script("force_lock", "bells", "stolen", "forcing")


def read_locks(now_us: int, found: Mapping[str, Content]) -> Snapshot:
    """A lock, which its owner may have taken more than once."""
    lock, nest = found[""], found.get("nest", NO_CONTENT)
    if wrong := wrong_types({"": "string", "nest": "zset"}, found) + not_ours(found, ("nest",)):
        return Snapshot(now_us, stands=bool(lock), problems=wrong)
    if not lock:
        return Snapshot(now_us)
    match = _LOCK.fullmatch(lock.value)
    if match is None:
        return Snapshot(now_us, stands=True, problems=(of_others(""), *without_ttl(lock, ours=False)))
    token, endless = match[1].decode(), lock.ttl_ms == NO_TTL
    nested = _nested(token, nest, now_us)
    holder = Holder(
        (token, *nested),
        int(match[2]),
        None if endless else lock.ttl_ms,
        match[3],
        depth=len(nested) or None,
    )
    if of_nobody(holder):
        return Snapshot(now_us, stands=True, endless=endless, kept=holder)
    return Snapshot(now_us, (holder,), stands=True, endless=endless)


def told_lock(left_ms: int, held: bytes) -> Holder | None:
    """A holder as a refusal tells of it; None for what is not ours."""
    match = _LOCK.fullmatch(held)
    if match is None:
        return None
    return Holder((match[1].decode(),), int(match[2]), None if left_ms < 0 else left_ms, match[3])


def _nested(owner: str, nest: Content, now_us: int) -> list[str]:
    """The tokens of that owner; what another one has left behind is nobody's."""
    if not nest:
        return []
    tokens = (token.decode(errors="replace") for token in after(nest, now_us))
    return sorted(token for token in tokens if token.startswith(owner))


LOCKS: Final = Family(
    ("", "nest"),
    read_locks,
    passive=("fence", "stolen"),
    force=_FORCE_LOCK,
    forced=("", "nest", "queue", "fence"),
)
RUNS: Final = Family(
    ("",),
    read_locks,
    passive=("fence", "value"),
    force=_FORCE_LOCK,
    forced=("", "nest", "queue", "fence", "value"),
)
