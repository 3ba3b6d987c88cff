"""Latches, which nobody holds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from .checks import of_others, without_ttl, wrong_types
from .family import Family
from .snapshots import Content, Snapshot, whole_number


def read_latch(now_us: int, found: Mapping[str, Content]) -> Snapshot:
    """A latch, and what is left to count; 0: it is open."""
    if wrong := wrong_types({"": "hash"}, found):
        return Snapshot(now_us, stands=True, problems=wrong)
    if not (latch := found[""]):
        return Snapshot(now_us)
    left = whole_number(latch.value.get(b"left"))
    if left is None or not {b"made", b"opened", b"tokens"} <= set(latch.value):
        return Snapshot(now_us, stands=True, problems=(of_others(""), *without_ttl(latch, ours=False)))
    return Snapshot(now_us, value=left, stands=True, problems=without_ttl(latch, ours=True))


LATCHES: Final = Family(("",), read_latch, passive=("news",))
