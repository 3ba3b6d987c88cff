"""Registers that refuse late writes, which nobody frees by force."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from .checks import wrong_types
from .family import Family
from .snapshots import Content, Snapshot


def read_register(now_us: int, found: Mapping[str, Content]) -> Snapshot:
    """A register, which stays for ever and is held by nobody. Its content is the user's."""
    return Snapshot(now_us, stands=bool(found[""]), problems=wrong_types({"": "hash"}, found))


REGISTERS: Final = Family(("",), read_register, passive=(), shallow=True)
