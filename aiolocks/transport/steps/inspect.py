"""The steps of an operator: which family of keys each kind has, and scans over all keys."""

from __future__ import annotations

import re
from typing import Any, Final, NamedTuple, final

from ..keys import ANY_KEY, every_key
from ..request import Request

_KEYS_A_STEP: Final = 1000
"""Keys that the server goes through in one step of a scan: about 0.2 ms of its time."""


@final
class Scanned(NamedTuple):
    """One step of a scan.

    Attributes:
        cursor: Where the next one begins; None after the last.
        keys: The keys that were found in this part. A key may come twice.
    """

    cursor: bytes | None
    keys: list[bytes]


FIRST: Final = b"0"


def scan(prefix: str, cursor: bytes) -> Request[Scanned]:
    """The next step through all keys of that prefix. No script: it is the server that goes on from there."""
    return _scan(cursor, every_key(prefix))


def scan_everything(cursor: bytes) -> Request[Scanned]:
    """The next step through all keys that may be ours, whatever their prefix."""
    return _scan(cursor, ANY_KEY)


def _scan(cursor: bytes, pattern: bytes) -> Request[Scanned]:
    words = ("SCAN", cursor, b"MATCH", pattern, b"COUNT", _KEYS_A_STEP)
    return Request(None, (), words, _scanned)


def _scanned(raw: Any) -> Scanned:
    cursor, keys = raw
    if re.fullmatch(rb"\d+|.+@\d+", cursor) is None:
        raise ValueError("no cursor")
    return Scanned(None if cursor == FIRST else cursor, keys)
