"""The metadata on the server beside a lease, made readable for people."""

from __future__ import annotations

import hashlib
import json
import math
from typing import TYPE_CHECKING, Any, Final, cast

from .._holders import HolderInfo

if TYPE_CHECKING:
    from ..transport import Refused
    from ..transport.steps.snapshots import Holder
    from .lease import Claim, Possession

_ID_LENGTH: Final = 12


def holder_info(
    kind: str, holder: Holder, now_us: int, described: dict[str, Any], *, since: float = 0.0
) -> HolderInfo:
    """The holder as the server had it at its time `now_us`, `since` seconds ago; if it is the holder yet."""
    # The fencing token is the server's time, unless that clock has been set back since.
    granted = holder.fencing_token if (holder.fencing_token or now_us + 1) <= now_us else None
    return HolderInfo(
        lease_id=lease_id(holder.tokens[0]),
        fencing_token=holder.fencing_token,
        remaining=None if holder.left_ms is None else max(0.0, holder.left_ms / 1000 - since),
        held_since=None if granted is None else granted / 1e6,
        held_for=None if granted is None else (now_us - granted) / 1e6 + since,
        permits=holder.permits,
        depth=holder.depth,
        mode=holder.mode,
        names=_names(described),
        keys=None if holder.keys is None else dict(holder.keys),
        span=holder.span if kind.startswith("rangelock") else None,
        cached=is_cached(described),
        **who_in(described),
    )


def who_in(described: dict[str, Any]) -> dict[str, Any]:
    """Host, process, task, the user's metadata, and what a leader has published."""
    (host, pid, task), user = whereabouts(described), described.get("user")
    metadata = cast("dict[str, Any]", user) if isinstance(user, dict) else {}
    if is_cached(described):
        task = None  # that of the grant, which may have ended long ago
    return {"host": host, "pid": pid, "task": task, "metadata": metadata, "value": described.get("value")}


def is_cached(described: dict[str, Any]) -> bool:
    """Whether its session may keep the lease between uses: see `recall` in `lua/lock.lua`."""
    return described.get("cache") in (1, 2, 3, 4)


def _names(described: dict[str, Any]) -> int | None:
    """How many names a `MultiLock` holds."""
    names = described.get("names")
    return names if isinstance(names, int) else None


def whereabouts(described: dict[str, Any]) -> tuple[str | None, int | None, str | None]:
    """Host, process and task, each of them only if it is what we write."""
    host, pid, task = (described.get(key) for key in ("host", "pid", "task"))
    return (
        host if isinstance(host, str) else None,
        pid if isinstance(pid, int) else None,
        task if isinstance(task, str) else None,
    )


def described_in(metadata: bytes) -> dict[str, Any] | None:
    """The metadata beside a lease; None if aiolocks did not write them."""
    if not metadata:
        return {}
    try:
        described: object = _DECODER.decode(metadata.decode())
    except (ValueError, RecursionError):
        return None
    return cast("dict[str, Any]", described) if isinstance(described, dict) else None


def _finite(text: str) -> float:
    """A value that is no number in JSON was not written by aiolocks, and could not be passed on as JSON."""
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is not finite")
    return number


_DECODER: Final = json.JSONDecoder(parse_float=_finite, parse_constant=_finite)


def told_by(kind: str, claim: Claim, refused: Refused, now: float) -> tuple[HolderInfo, ...]:
    """The holders named by the refusal of that claim, each once, in the order in which they were granted.

    The refusal may be old: a server that hangs, or a slot that moves, gives no other answer. So the times are
    of now.
    """
    now_us = int(refused.told[0]) if refused.told else 0
    since = max(0.0, now - refused.heard)
    holders = {holder.tokens: holder for holder in claim.steps.holders(refused)}
    return tuple(
        holder_info(kind, holder, now_us, described_in(holder.metadata) or {}, since=since)
        for holder in sorted(holders.values(), key=lambda one: one.fencing_token or 0)
    )


def held_here(possession: Possession, now: float) -> HolderInfo:
    """The holder of a lock that a task of this very session holds."""
    claim = possession.claim
    described = described_in(claim.metadata.encode()) or {}
    if possession.watch is None:  # it was granted a moment ago, and its task has not run since
        return HolderInfo(lease_id=lease_id(claim.owner), **who_in(described))
    return HolderInfo(
        lease_id=lease_id(claim.owner),
        fencing_token=possession.fencing_token,
        remaining=possession.remaining(),
        held_since=possession.granted_us / 1e6,
        held_for=now - possession.granted_at,
        names=_names(described),
        **who_in(described),
    )


def lease_id(token: str) -> str:
    """A part of a digest of the token, which is a secret."""
    return hashlib.sha256(token.encode()).hexdigest()[:_ID_LENGTH]
