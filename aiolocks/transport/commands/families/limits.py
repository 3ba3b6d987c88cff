"""Limits: leases of a permit of each of several keys."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from ...request import Script
from ..base import SEAT_LENGTH
from ..caps import caps_of
from .checks import of_others, wrong_types
from .family import Family
from .permits import read_permits
from .snapshots import NO_CONTENT, Content, Holder, Snapshot

_LIMITED: Final = re.compile(rb"((?:[^:,=]+=\d{1,10},?)+):(\d{1,16}):(.*)", re.DOTALL)
_TURN: Final = re.compile(rb"#\d{16}|!\S+ \S+ \d{16}|\S+ \d{16} \S+")
_FORCE_LIMITS: Final = Script("force_limits", "bells", "stolen", "forcing")


def told_limits(token: bytes, left_ms: int, lease: bytes) -> Holder | None:
    """A holder of a permit of each of several keys, as a refusal tells of it; None for what is not ours."""
    match = _LIMITED.fullmatch(lease)
    if match is None:
        return None
    keys = tuple(caps_of(match[1].decode(errors="replace")).items())
    return Holder((token.decode(errors="replace"),), int(match[2]), left_ms, match[3], keys=keys)


def read_limits(now_us: int, found: Mapping[str, Content]) -> Snapshot:
    """Leases of limits. A waiter that was called holds nothing yet."""
    leases = found["leases"]
    if isinstance(leases.value, dict):
        counted = {one: lease for one, lease in leases.value.items() if not one.startswith(b"#")}
        leases = leases._replace(value=counted)
    snapshot = read_permits(
        now_us, {"": found[""], "leases": leases, "value": NO_CONTENT}, told=told_limits
    )._replace(kept=None)
    turns, wrong = found["turns"], wrong_types({"turns": "zset"}, found)
    if turns.type == "zset" and not all(map(_TURN.fullmatch, turns.value)):
        wrong = (of_others("turns"),)
    problems = (*snapshot.problems, *wrong)
    return snapshot._replace(stands=bool(snapshot.holders or problems), problems=problems)


LIMITS: Final = Family(
    ("", "leases", "turns"),
    read_limits,
    passive=("fence", "turns", "stolen", "queue."),
    seat=SEAT_LENGTH,
    force=_FORCE_LIMITS,
    forced=("", "leases", "queue", "turns", "fence"),
)
