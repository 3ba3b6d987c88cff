"""Keys of limits with their caps, as the scripts know them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import quote, unquote

_ONE: Final = re.compile(r"([^=,]+)=(\d{1,10})")


def line_of(caps: Mapping[str, int]) -> str:
    """The text by which scripts know these keys with their caps: the smallest cap first."""
    told = sorted((cap, quote(one, safe="").replace(".", "%2E")) for one, cap in caps.items())
    return ",".join(f"{one}={cap}" for cap, one in told)


def caps_of(line: str) -> dict[str, int]:
    """The keys of a line with their caps, in its order; empty where that is no line."""
    return {unquote(one): int(cap) for one, cap in _ONE.findall(line)}
