"""Registers that refuse late writes, which nobody frees by force."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from .checks import wrong_types
from .family import Family
from .found import Content, Finding


def read_register(now_us: int, found: Mapping[str, Content]) -> Finding:
    """A register, which stays for ever and is held by nobody. Its content is the user's."""
    return Finding(now_us, stands=bool(found[""]), problems=wrong_types({"": "hash"}, found))


REGISTERS: Final = Family(("",), read_register, passive=(), shallow=True)
