"""Limits in a schedule: which keys a task wants, and what must hold between the lines of waiters."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Mapping
from typing import Any

from aiolocks import Limits, Session
from tests.support.history import Hold, Violation

CAPS = {"all": 2, "a": 3, "b": 1, "c": 1}
TENANTS = ("a", "a", "a", "a", "b", "c", "")
"""Of which tenant a task is: one of them is noisy, and some tasks want a permit of the total only."""


def keys_of(rng: random.Random) -> tuple[str, ...]:
    """The keys that one task wants."""
    tenant = rng.choice(TENANTS)
    return ("all", tenant) if tenant else ("all",)


def limits(session: Session, want: Any, **options: Any) -> Limits:
    """The limits that a task acquires."""
    return Limits(session, want.names[0], {one: CAPS[one] for one in want.keys}, **options)


def too_many(wanted: Iterable[tuple[str, ...]]) -> str:
    """Says which key has more holders than its cap; empty where none has."""
    out: dict[str, int] = {}
    for keys in wanted:
        for one in keys:
            out[one] = out.get(one, 0) + 1
    return ", ".join(
        f"{number} permits of {one} out of {CAPS[one]}" for one, number in out.items() if number > CAPS[one]
    )


def turns(holds: Mapping[Hold, tuple[str, ...]]) -> list[Violation]:
    """Find waiters before which another line had more than its turn.

    Counted from when the first waiter of a line is seated and no key of its own is full: each other line may
    have been called as often as there are permits in all before that, and once after.
    """
    found: list[Violation] = []
    for hold, keys in holds.items():
        if hold.queued is None or len(keys) != 3:  # its name, the total and a tenant
            continue
        line = [one for one, others in holds.items() if others == keys and one is not hold]
        if any(one.queued is None for one in line):
            continue
        before = [one.granted for one in line if one.granted < hold.granted and one.invoked < hold.queued]
        begun = max(hold.queued, max(before, default=-math.inf), _room(hold, keys, line))
        for other in {others for others in holds.values() if others != keys}:
            had = [
                one for one, others in holds.items() if others == other and begun < one.granted < hold.granted
            ]
            if len(had) > CAPS["all"] + 1:
                found.append(Violation(f"a line had {len(had)} turns in a row", (*had, hold)))
    return found


def _room(hold: Hold, keys: tuple[str, ...], line: list[Hold]) -> float:
    """When its own key had room again before it was granted."""
    ends = [min(one.confirmed, hold.granted) for one in line if one.granted < hold.granted]
    return max(ends, default=-math.inf)
