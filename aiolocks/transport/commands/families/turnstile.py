"""Turnstiles, which nobody frees by force."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ...answers import NO_TTL
from .checks import of_others, without_ttl, wrong_types
from .family import Family
from .snapshots import Content, Holder, Snapshot, whole_number


def read_turnstile(now_us: int, found: Mapping[str, Content]) -> Snapshot:
    """A window that is open: its first entrant, and how many have gone through."""
    if wrong := wrong_types({"": "zset"}, found):
        return Snapshot(now_us, stands=True, problems=wrong)
    if not (places := found[""]):
        return Snapshot(now_us)
    numbers = {token: whole_number(place) for token, place in places.value.items()}
    winner = next((token for token, place in numbers.items() if place == 1), None)
    if winner is None or None in numbers.values():
        return Snapshot(now_us, stands=True, problems=(of_others(""), *without_ttl(places, ours=False)))
    left_ms = None if places.ttl_ms == NO_TTL else places.ttl_ms
    holder = Holder((winner.decode(errors="replace"),), None, left_ms)
    value = max(filter(None, numbers.values()))
    return Snapshot(now_us, (holder,), value, stands=True, problems=without_ttl(places, ours=True))


TURNSTILES: Final = Family(("",), read_turnstile, passive=())
