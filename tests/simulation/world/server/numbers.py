"""Numbers as they stand in requests."""

from __future__ import annotations

import math
import re

from .replies import Refusal

_INTEGER = re.compile(rb"-?(0|[1-9][0-9]*)\Z")

_ZERO = ord("0")
_OFTEN = {b"-1": -1, b"-2": -2}
"""Ends of ranges."""


def syntax() -> Refusal:
    return Refusal("ERR syntax error")


def integer(word: bytes) -> int:
    # Of up to 18 digits without a zero in front there is nothing to look at; these are nearly all.
    if word.isdigit() and len(word) < 19 and (word[0] != _ZERO or len(word) == 1):
        return int(word)
    if (often := _OFTEN.get(word)) is not None:
        return often
    if _INTEGER.match(word) and -(2**63) <= (value := int(word)) < 2**63:
        return value
    raise Refusal("ERR value is not an integer or out of range")


def score(word: bytes) -> float:
    try:
        value = float(word)
    except ValueError:
        raise Refusal("ERR value is not a valid float") from None
    if math.isnan(value) or b"_" in word or word != word.strip():
        raise Refusal("ERR value is not a valid float")
    return value


def edge(word: bytes) -> tuple[float, bool]:
    """An end of a range of scores, and whether it is left out."""
    outside = word[:1] == b"("
    try:
        return float(word[1:] if outside else word), outside
    except ValueError:
        raise Refusal("ERR min or max is not a float") from None


def between(length: int, first: bytes, last: bytes) -> tuple[int, int]:
    """A slice, from two ends that count from the back where negative."""
    start, stop = integer(first), integer(last)
    start = max(0, start + length if start < 0 else start)
    stop = stop + length if stop < 0 else stop
    return start, max(start, stop + 1)
