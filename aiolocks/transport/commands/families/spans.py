"""Locks for readers and writers, of a whole name or of intervals."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Final

from ...request import Script
from ..base import SEAT_LENGTH
from .checks import ID, after, not_ours, without_ttl, wrong_types
from .family import Family
from .snapshots import Content, Holder, Place, Snapshot, whole_number

_SPAN: Final = re.compile(rb"([ruw]) (\S+) (\S+) (\d{1,16}) (.*)", re.DOTALL)
_WAITING: Final = re.compile(rb"([uw]) (\S+) (\S+) (\S) (\S+)")
"""Of a writer or an upgradable that waits."""
_SEAT: Final = b"0" * SEAT_LENGTH
_MODES: Final = {b"r": "reader", b"u": "upgradable", b"w": "writer"}
_FORCE_SPANS: Final = Script("force_spans", "bells", "stolen", "forcing")
_SPAN_SIDES: Final = tuple(f"{side}.{end}" for side in ("readers", "upgradables", "writers") for end in "ab")
_MARKS: Final = ("reservations", "turns", "calls", "places")
_MARK_SIDES: Final = tuple(f"{side}.{end}" for side in _MARKS for end in "ab")


def told_span(token: bytes, left_ms: int, lease: bytes) -> Holder | None:
    """A holder of a span, as a refusal tells of it; None for what is not ours."""
    match = _SPAN.fullmatch(lease)
    a, b = (_bound(match[2]), _bound(match[3])) if match is not None else (None, None)
    if match is None or a is None or b is None:
        return None
    holder = Holder((token.decode(errors="replace"),), int(match[4]), left_ms, match[5])
    return holder._replace(mode=_MODES[match[1]], span=(a, b))


def read_spans(now_us: int, found: Mapping[str, Content]) -> Snapshot:
    """Spans, in three modes."""
    sides = tuple(found.keys() - {"", "ends", "waits", "queue", "fence", "stolen"})
    if wrong := wrong_types({"": "hash", "ends": "zset", "waits": "zset"}, found):
        return Snapshot(now_us, stands=True, problems=wrong)
    spans: dict[bytes, bytes] = found[""].value if found[""] else {}
    ends, waits = (found[key].value if found[key] else {} for key in ("ends", "waits"))
    queue = found["queue"].value if found["queue"].type == "zset" else {}
    holders: list[Holder] = []
    foreign = wrong_types(dict.fromkeys(sides, "zset"), found) + not_ours(
        found, ("", "ends", "waits", *sides)
    )
    problems = list(foreign)
    for token, left_ms in after(found["ends"], now_us).items():
        if ID.fullmatch(token) is None:
            continue
        holder = told_span(token, left_ms, spans.get(token, b""))
        if holder is None:
            problems.append("half of a lease is missing")
        else:
            holders.append(holder)
    if any(map(ID.fullmatch, spans.keys() - ends.keys() - waits.keys())):
        problems.append("half of a lease is missing")
    problems += without_ttl(found[""], found["ends"], ours=not foreign)
    return Snapshot(
        now_us,
        tuple(holders),
        stands=bool(holders or problems),
        problems=tuple(dict.fromkeys(problems)),
        places=tuple(_places(spans, waits, queue, now_us // 1000)),
    )


def _places(
    spans: Mapping[bytes, bytes], waits: Mapping[bytes, bytes], queue: Mapping[bytes, bytes], now_ms: int
) -> Iterator[Place]:
    for bell, until in waits.items():
        match, until_ms = _WAITING.fullmatch(spans.get(bell, b"")), whole_number(until)
        a, b = (_bound(match[2]), _bound(match[3])) if match is not None else (None, None)
        if match and a is not None and b is not None and until_ms is not None and until_ms > now_ms:
            asked = whole_number(queue.get(bell + _SEAT))
            yield Place(
                bell,
                until_ms,
                (a, b),
                match[5].decode(errors="replace").removesuffix("-"),
                mode=match[1].decode(),
                asked=math.inf if asked is None else asked,
                reserved=match[4] == b"p",
            )


def _bound(text: bytes) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


SPANS: Final = Family(
    ("", "ends", "waits", *_SPAN_SIDES, *_MARK_SIDES, "queue"),
    read_spans,
    passive=("fence", "stolen", *_SPAN_SIDES, *_MARK_SIDES),
    seat=SEAT_LENGTH,
    force=_FORCE_SPANS,
    forced=("", "ends", "queue", "waits", "fence", *_SPAN_SIDES, *_MARK_SIDES),
)
