"""How what is found becomes text that a terminal may be given, and documents for scripts."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from ... import HolderInfo, LockInfo, WaiterInfo
from ..._holders import interval
from ..._visible import in_line, visible
from ...inspect.twins import Twins, in_words
from ...transport.steps.family import kinds

_MOST_NAMED = 5
"""Prefixes that a hint names."""
_MINUTE, _HOUR, _DAY = 60, 3600, 86400


def duration(seconds: float | None) -> str:
    """For people: two numbers at most."""
    if seconds is None:
        return "-"
    if seconds < _MINUTE:
        return f"{max(0.0, seconds):.1f} s"
    for unit, below, larger, smaller in ((_MINUTE, _HOUR, "min", "s"), (_HOUR, _DAY, "h", "min")):
        if seconds < below:
            rest = int(seconds % unit) // (unit // 60)
            return f"{int(seconds // unit)} {larger} {rest} {smaller}"
    return f"{int(seconds // _DAY)} d {int(seconds % _DAY) // _HOUR} h"


def stands(info: LockInfo) -> bool:
    """Whether something keeps a further task from having it."""
    return bool(info.holders or info.problem) or info.kept_until is not None


def kept(info: LockInfo) -> str:
    """Until when a name that no lease holds cannot be acquired; empty where that is not so."""
    if info.kept_until is None:
        return ""
    until = datetime.fromtimestamp(info.kept_until, UTC).astimezone()
    how = "taken" if info.kind == "ratelimit" else "kept"
    return f"{how} until {until.isoformat(sep=' ', timespec='seconds')}"


def kind_of(info: LockInfo, holder: HolderInfo | None) -> str:
    """The kind of the lock as its holder took it: a `ReentrantLock` shares the name space of `Lock`."""
    return "reentrantlock" if holder is not None and holder.depth is not None else info.kind


def details(info: LockInfo, holder: HolderInfo | None, encoding: str = "utf-8") -> str:
    """The facts that only some kinds have."""
    said: list[str | None] = []
    if holder is not None:
        said = [
            None if holder.mode is None else visible(holder.mode, encoding),
            None if holder.span is None else interval(holder.span),
            None if holder.keys is None else " ".join(visible(key, encoding) for key in holder.keys),
            f"{holder.permits} of {info.value or '?'}" if info.kind == "semaphore" else None,
            None if holder.depth is None else f"depth {holder.depth}",
            "kept between uses" if holder.cached else None,
            f"one of {holder.names} names" if (holder.names or 1) > 1 else None,
        ]
    said += [
        None if info.value is None else (kinds()[info.kind].value or "").format(info.value),
        kept(info),
        f"! {in_line(info.problem)}" if info.problem else None,
    ]
    return " ".join(filter(None, said))


def sentence(info: LockInfo, encoding: str = "utf-8") -> str:
    """One line about the holder: `lock 'job', held by worker-3 pid 4711 for 12.4 s`."""
    what = f"{kind_of(info, info.holders[0] if info.holders else None)} '{visible(info.name, encoding)}'"
    if info.kind == "ratelimit" and not info.problem:
        taken = f"taken for {duration(info.kept_for)}, " if info.kept_for is not None else ""
        return f"{what} ({taken}{info.value} left, {info.waiters} waiting)"
    if not info.holders:
        why = in_line(info.problem) or kept(info)
        return f"{what} ({why})" if why else what
    return f"{what}, {held_by(info, encoding)}"


def held_by(info: LockInfo, encoding: str = "utf-8") -> str:
    """Names the first of its holders, of which there is one: `held by worker-3 pid 4711 for 12.4 s`."""
    first = info.holders[0]
    since = "" if first.held_for is None else f" for {duration(first.held_for)}"
    others = f" and {len(info.holders) - 1} more" if len(info.holders) > 1 else ""
    return f"held by {visible(whereabouts(first), encoding)}{since}{others}"


def whereabouts(one: HolderInfo | WaiterInfo) -> str:
    """Host and process."""
    return f"{one.host or '?'} pid {'?' if one.pid is None else one.pid}"


def elsewhere(others: dict[str, int]) -> str:
    """Says how many names there are under other prefixes."""
    some = [visible(prefix) for prefix in others][:_MOST_NAMED]
    rest = f" and {len(others) - len(some)} more" if len(others) > len(some) else ""
    where = f"prefix{'es' if len(others) > 1 else ''} {', '.join(some)}{rest}"
    number = sum(others.values())
    return f"{number} {'name' if number == 1 else 'names'} under the {where}: see them with --prefix"


def in_two_forms(found: Sequence[Twins]) -> str:
    """Says which names stand as they are, and percent-encoded."""
    some = ", ".join(visible(one) for one in in_words(found[:_MOST_NAMED]))
    rest = f" and {len(found) - _MOST_NAMED} more" if len(found) > _MOST_NAMED else ""
    return f"{some}{rest}: two names that do not exclude each other; make both with name_of()"


# -- for scripts


def document(**fields: Any) -> str:
    """One JSON document; what stands in it of locks is as `as_json` makes it."""
    return json.dumps(fields, indent=2, allow_nan=False)


def as_json(info: LockInfo) -> dict[str, Any]:
    """The fields of a lock, and of its holders; times in seconds. An end that is infinite becomes null."""
    fields = dataclasses.asdict(info)
    fields["problem"] = info.problem or None
    for holder in fields["holders"]:
        if holder["span"] is not None:
            holder["span"] = [_end(holder["span"][0]), _end(holder["span"][1])]
    return fields


def _end(end: float) -> float | None:
    """None where it is infinite: of [0, inf), the last double below stands on the server."""
    return end if math.isfinite(math.nextafter(end, math.copysign(math.inf, end))) else None
