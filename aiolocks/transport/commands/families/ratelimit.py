"""Rate limits, which nobody frees by force."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from ..ratelimit import left_in
from .checks import TOKEN, of_others, without_ttl, wrong_types
from .family import Family
from .snapshots import Content, Snapshot

_FIGURES: Final = {b"seen", b"before", b"interval", b"burst"}


def read_ratelimit(now_us: int, found: Mapping[str, Content]) -> Snapshot:
    """A bucket that is not full: how many requests it would admit now, and how many wait for their moment."""
    if wrong := wrong_types({"": "zset"}, found):
        return Snapshot(now_us, stands=True, problems=wrong)
    if not (entries := found[""]):
        return Snapshot(now_us)
    scores = {member: float(score) for member, score in entries.value.items()}
    ours = all(member in _FIGURES or TOKEN.fullmatch(member) for member in scores)
    if not ours or not {b"seen", b"interval", b"burst"} <= set(scores) or not scores[b"interval"] > 0:
        return Snapshot(now_us, stands=True, problems=(of_others(""), *without_ttl(entries, ours=False)))
    interval, burst = scores.pop(b"interval"), scores.pop(b"burst")
    room = math.ceil(burst * interval)
    left = left_in(int(burst), interval, max(0.0, max(scores.values()) - now_us))
    waiters = sum(score - room > now_us for member, score in scores.items() if member not in _FIGURES)
    problems = without_ttl(entries, ours=True)
    return Snapshot(now_us, value=left, waiters=waiters, stands=True, problems=problems)


RATE_LIMITS: Final = Family(("",), read_ratelimit, passive=())
