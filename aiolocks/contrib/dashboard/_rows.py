"""How what was found becomes rows of a page: JSON values whose texts may hold anything.

Times are the server's, in seconds since 1970, so that a row does not change while nothing happens: a page
counts on by itself.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from ..._deadlocks import Deadlock
from ..._holders import HolderInfo, interval
from ..._infos import KindAndName, LockInfo, WaiterInfo
from ...kinds.leadership import TermFound
from ...kinds.schedule.run import TickRecord
from ...lock.holders import described_in, who_in
from ._heat import Charge, Heat
from ._history import Held

Row = dict[str, Any]

_MOST_HOLDERS: Final = 3
"""Holders of a name that a row names; the page of the name has them all."""
MOST_ON_PAGE: Final = 200
_LONGEST: Final = 4_096
"""Characters of a value that a page is sent."""
_STEADY: Final = 0.3
"""Seconds by which the end of a lease may move unnoticed: no two measurements are quite the same."""


class Found(NamedTuple):
    """The knowledge that rows are made of."""

    heat: Heat
    ends: dict[str, float]
    """When leases end, by their id, as pages were told."""


def row_id(*parts: object) -> str:
    """A short name for a row."""
    text = "\0".join(map(str, parts))
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=6).hexdigest()


def lock_row(info: LockInfo, found: Found) -> Row:
    """A line of the table of locks."""
    place = info.kind, info.name
    return {
        "id": row_id(*place),
        "kind": info.kind,
        "name": info.name,
        "holders": [_holder(place, one, found) for one in info.holders[:_MOST_HOLDERS]],
        "more": max(0, len(info.holders) - _MOST_HOLDERS),
        "waiters": info.waiters,
        "value": info.value,
        "taken": sum(one.permits or 0 for one in info.holders),
        "kept": _rounded(info.kept_until),
        "problem": info.problem,
    }


def page_row(info: LockInfo, found: Found) -> Row:
    """All that is known of a name."""
    place = info.kind, info.name
    holders = [
        {
            **_holder(place, one, found),
            "fence": one.fencing_token,
            "metadata": _text(one.metadata) if one.metadata else "",
            "value": "" if one.value is None else _text(one.value),
        }
        for one in info.holders[:MOST_ON_PAGE]
    ]
    return {
        **lock_row(info, found),
        "holders": holders,
        "more": max(0, len(info.holders) - MOST_ON_PAGE),
        "waiting": [_waiter(one) for one in info.waiting],
    }


def wait_row(info: LockInfo, number: int, waiter: WaiterInfo) -> Row:
    """A waiter, and the holder for which it waits."""
    return {
        "id": row_id(info.kind, info.name, number),
        "kind": info.kind,
        "name": info.name,
        **_waiter(waiter),
        "place": number + 1,
        "holders": [_who(one) for one in info.holders[:_MOST_HOLDERS]],
        "more": max(0, len(info.holders) - _MOST_HOLDERS),
    }


def charge_row(charge: Charge, *, holds: bool) -> Row:
    """A holder for which waiters have waited."""
    kind, name = charge.place
    return {
        "id": row_id(kind, name, charge.holder.lease_id),
        "kind": kind,
        "name": name,
        **_who(charge.holder),
        "charged": _roughly(charge.seconds),
        "holds": holds,
    }


def heat_row(place: KindAndName, heat: Heat) -> Row:
    """The heat of a name, minute by minute."""
    kind, name = place
    total = _roughly(heat.total(place))
    return {"id": row_id(*place), "kind": kind, "name": name, "levels": heat.levels(place), "total": total}


def held_row(held: Held) -> Row:
    """A hold that has ended."""
    return {
        "id": row_id(held.holder.lease_id),
        "lease": held.holder.lease_id,
        **_who(held.holder),
        "fence": held.holder.fencing_token,
        "since": _rounded(held.holder.held_since),
        "until": _rounded(held.until),
        "about": round(held.until - held.seen, 1),
        "charged": round(held.charged, 1),
    }


def leader_row(place: KindAndName, info: LockInfo | None) -> Row:
    """A leadership, led or not."""
    leader = info.holders[0] if info is not None and info.holders else None
    return {
        "id": row_id(*place),
        "kind": place[0],
        "name": place[1],
        "leader": None if leader is None else {**_who(leader), "since": _rounded(leader.held_since)},
        "value": "" if leader is None or leader.value is None else _text(leader.value),
        "candidates": 0 if info is None else info.waiters,
    }


def term_row(term: TermFound) -> Row:
    """One term of a leadership."""
    who = who_in(described_in(term.described) or {})
    return {
        "id": str(term.fencing_token),
        **{name: who[name] for name in ("host", "pid", "task")},
        "fence": term.fencing_token,
        "since": term.fencing_token / 1e6,
        "value": "" if who["value"] is None else _text(who["value"]),
    }


def schedule_row(name: str, ticks: Sequence[TickRecord], following: float | None, *, kept: bool) -> Row:
    """A schedule, its last ticks, when the next one is due, and whether a process keeps it."""
    return {
        "id": row_id("schedule", name),
        "kind": "schedule",
        "name": name,
        "last": tick_row(ticks[0]) if ticks else None,
        "next": following,
        "asked": kept,
        "ticks": [one.outcome for one in ticks],
    }


def tick_row(tick: TickRecord) -> Row:
    """One run of a schedule."""
    began = tick.began.timestamp()
    return {
        "id": row_id(tick.fencing_token, began, tick.outcome),
        "outcome": tick.outcome,
        "due": None if tick.due is None else tick.due.timestamp(),
        "since": began,
        "until": None if tick.ended is None else tick.ended.timestamp(),
        "seconds": None if tick.duration is None or tick.ended is None else tick.duration,
        "attempt": tick.attempt,
        "host": tick.host,
        "pid": tick.pid,
        "error": tick.error[:_LONGEST],
    }


def deadlock_row(deadlock: Deadlock, now: float) -> Row:
    """Tasks that wait for each other."""
    tasks = [
        {
            "host": one.host,
            "pid": one.pid,
            "task": one.task,
            "kind": one.kind,
            "name": one.name,
            "since": round(now - one.waited_for),
            "holds": [list(held) for held in one.holds],
        }
        for one in deadlock.tasks
    ]
    identity = sorted((str(one.host), str(one.pid), str(one.task), one.name) for one in deadlock.tasks)
    return {"id": row_id(*identity), "tasks": tasks}


def moment_of(info: LockInfo) -> float | None:
    """The server's time when that was read, if anything tells it."""
    for holder in info.holders:
        if holder.held_since is not None and holder.held_for is not None:
            return holder.held_since + holder.held_for
    for waiter in info.waiting:
        if waiter.waiting_since is not None and waiter.waited_for is not None:
            return waiter.waiting_since + waiter.waited_for
    return None


def _holder(place: KindAndName, holder: HolderInfo, found: Found) -> Row:
    return {
        "lease": holder.lease_id,
        **_who(holder),
        "since": _rounded(holder.held_since),
        "until": _end(holder, found.ends),
        "charged": _roughly(found.heat.charge_of(place, holder.lease_id)),
        "permits": holder.permits,
        "depth": holder.depth,
        "cached": holder.cached,
        "mode": holder.mode,
        "keys": None if holder.keys is None else " ".join(holder.keys),
        "span": None if holder.span is None else interval(holder.span),
    }


def _who(one: HolderInfo) -> Row:
    return {"host": one.host, "pid": one.pid, "task": one.task}


def _waiter(waiter: WaiterInfo) -> Row:
    return {"host": waiter.host, "pid": waiter.pid, "since": _rounded(waiter.waiting_since)}


def _end(holder: HolderInfo, ends: dict[str, float]) -> float | None:
    if holder.remaining is None or holder.held_since is None or holder.held_for is None:
        return None
    end = holder.held_since + holder.held_for + holder.remaining
    told = ends.get(holder.lease_id)
    if told is None or abs(told - end) > _STEADY:
        told = ends[holder.lease_id] = round(end, 2)
    return told


def _rounded(moment: float | None) -> float | None:
    return None if moment is None else round(moment, 2)


def _roughly(seconds: float) -> float:
    """Two digits of a sum that grows at each look: few viewers want more, and each change is sent to all."""
    return round(seconds, 1) if seconds < 10 else float(f"{seconds:.2g}")


def _text(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
