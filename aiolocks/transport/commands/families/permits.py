"""Semaphores, fair locks and leaderships: permits, each with a deadline and a lease."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final

from ...request import Script
from ..base import SEAT_LENGTH
from .checks import ID, TOKEN, after, not_ours, of_others, without_ttl, wrong_types
from .family import Family
from .snapshots import Content, Holder, Snapshot, of_nobody, whole_number

_LEASE: Final = re.compile(rb"(\d{1,16}):(\d{1,16}):(.*)", re.DOTALL)
FORCE_PERMITS: Final = Script("force_permits", "bells", "stolen", "forcing")


def told_permits(token: bytes, left_ms: int, lease: bytes) -> Holder | None:
    """A holder of permits, as a refusal tells of it; None for what is not ours."""
    match = _LEASE.fullmatch(lease)
    if match is None:
        return None
    holder = Holder((token.decode(errors="replace"),), int(match[2]), left_ms, match[3])
    return holder._replace(permits=int(match[1]))


def read_permits(
    now_us: int,
    found: Mapping[str, Content],
    numbers: tuple[bytes, ...] = (b"first", b"current"),
    *,
    told: Callable[[bytes, int, bytes], Holder | None] = told_permits,
) -> Snapshot:
    """A kind with several permits. Where there is a value, it has these `numbers`; `told` reads a lease."""
    if wrong := wrong_types({"": "zset", "leases": "hash", "value": "hash"}, found):
        return Snapshot(now_us, stands=True, problems=wrong)
    leases: dict[bytes, bytes] = found["leases"].value if found["leases"] else {}
    deadlines = found[""].value if found[""] else {}
    holders: list[Holder] = []
    foreign = not_ours(found, ("", "leases"))
    problems = list(foreign)
    kept: Holder | None = None
    for token, left_ms in after(found[""], now_us).items():
        if ID.fullmatch(token) is None:
            continue
        holder = told(token, left_ms, leases.get(token, b""))
        if holder is None:
            problems.append("half of a lease is missing")
        elif of_nobody(holder):
            kept = holder
        else:
            holders.append(holder)
    if any(map(TOKEN.fullmatch, leases.keys() - deadlines.keys())):
        problems.append("half of a lease is missing")
    problems += without_ttl(found[""], found["leases"], ours=not foreign)
    values: dict[bytes, bytes] = found["value"].value if found["value"] else {}
    value = whole_number(values.get(b"current"))
    if values and None in map(whole_number, map(values.get, numbers)):
        problems.append(of_others("value"))
    return Snapshot(
        now_us,
        tuple(holders),
        value,
        stands=bool(holders or problems or kept),
        problems=tuple(dict.fromkeys(problems)),
        kept=kept,
    )


PERMITS: Final = Family(
    ("", "leases", "value"),
    read_permits,
    passive=("fence", "value", "stolen"),
    seat=SEAT_LENGTH,
    force=FORCE_PERMITS,
    forced=("", "leases", "queue", "value", "fence"),
)
TERMS: Final = Family(
    ("", "leases", "value"),
    read_permits,
    passive=("fence", "value", "terms", "news", "stolen"),
    seat=SEAT_LENGTH,
    force=FORCE_PERMITS,
    forced=("", "leases", "queue", "value", "fence"),
)
