"""Sorted sets."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import Any

from .numbers import between, edge, integer, score, syntax
from .registry import READ, WRITE, command
from .replies import Double, Refusal, Scored
from .session import Client
from .store import SortedSet

_ABOVE = b"\xff" * 64
"""Sorts after every member that is in use here."""


_NONE = SortedSet()
"""The value at a key that is not there; never written to."""


def _set(client: Client, key: bytes) -> SortedSet:
    found: SortedSet | None = client.store.find_as(key, SortedSet)
    return _NONE if found is None else found


@command("ZADD", -4, WRITE, grows=True)
def zadd(client: Client, key: bytes, *words: bytes) -> Any:
    flags: set[bytes] = set()
    at = 0
    while at < len(words) and (option := words[at].upper()) in (b"NX", b"XX", b"GT", b"LT", b"CH", b"INCR"):
        flags.add(option)
        at += 1
    pairs = words[at:]
    if not pairs or len(pairs) % 2:
        raise syntax()
    if flags >= {b"NX", b"XX"} or (b"NX" in flags and flags & {b"GT", b"LT"}) or flags >= {b"GT", b"LT"}:
        raise Refusal("ERR GT, LT, and/or NX options at the same time are not compatible")
    scores = [score(word) for word in pairs[::2]]
    found = client.store.find_as(key, SortedSet)
    if found is None:
        if b"XX" in flags:
            return None if b"INCR" in flags else 0
        found = client.store.make(key, SortedSet)
    added = changed = 0
    value: float | None = None
    for member, wanted in zip(pairs[1::2], scores, strict=True):
        before = found.scores.get(member)
        new = wanted + (before or 0.0) if b"INCR" in flags else wanted
        if (
            (b"NX" in flags and before is not None)
            or (b"XX" in flags and before is None)
            or (before is not None and b"GT" in flags and new <= before)
            or (before is not None and b"LT" in flags and new >= before)
        ):
            continue
        value = new
        if found.add(member, new):
            added += 1
        elif before != new:
            changed += 1
    if added or changed:
        client.store.touched(key, b"zincr" if b"INCR" in flags else b"zadd")
    if b"INCR" in flags:
        return None if value is None else Double(value)
    return added + changed if b"CH" in flags else added


@command("ZREM", -3, WRITE)
def zrem(client: Client, key: bytes, *members: bytes) -> int:
    found = _set(client, key)
    gone = sum([found.remove(member) for member in members])
    if gone:
        client.store.touched(key, b"zrem")
    return gone


@command("ZCARD", 2, READ)
def zcard(client: Client, key: bytes) -> int:
    return len(_set(client, key))


@command("ZSCORE", 3, READ)
def zscore(client: Client, key: bytes, member: bytes) -> Any:
    found = _set(client, key).scores.get(member)
    return None if found is None else Double(found)


@command("ZRANK", 3, READ)
def zrank(client: Client, key: bytes, member: bytes) -> Any:
    return _set(client, key).rank(member)


def _by_score(found: SortedSet, least: bytes, most: bytes) -> list[tuple[float, bytes]]:
    (low, above), (high, below) = edge(least), edge(most)
    start = bisect_right(found.order, (low, _ABOVE)) if above else bisect_left(found.order, (low, b""))
    stop = bisect_left(found.order, (high, b"")) if below else bisect_right(found.order, (high, _ABOVE))
    return found.order[start:stop]


def _shown(entries: list[tuple[float, bytes]], *, scores: bool) -> list[Any]:
    if scores:
        return Scored((member, value) for value, member in entries)
    return [member for _, member in entries]


@command("ZRANGE", -4, READ)
def zrange(client: Client, key: bytes, first: bytes, last: bytes, *options: bytes) -> list[Any]:
    found = _set(client, key)
    if not options:
        start, stop = between(len(found.order), first, last)
        return [member for _, member in found.order[start:stop]]
    flags = {option.upper() for option in options}
    if flags - {b"WITHSCORES", b"BYSCORE", b"REV"}:
        raise syntax()
    if b"BYSCORE" in flags:
        ends = (last, first) if b"REV" in flags else (first, last)
        entries = _by_score(found, *ends)
        return _shown(entries[::-1] if b"REV" in flags else entries, scores=b"WITHSCORES" in flags)
    order = found.order[::-1] if b"REV" in flags else found.order
    start, stop = between(len(order), first, last)
    return _shown(order[start:stop], scores=b"WITHSCORES" in flags)


@command("ZRANGEBYSCORE", -4, READ)
def zrangebyscore(client: Client, key: bytes, least: bytes, most: bytes, *options: bytes) -> list[Any]:
    scores, start, stop = False, 0, None
    words = iter(options)
    for word in words:
        option = word.upper()
        if option == b"WITHSCORES":
            scores = True
        elif option == b"LIMIT":
            start, count = integer(next(words, b"?")), integer(next(words, b"?"))
            stop = None if count < 0 else start + count
        else:
            raise syntax()
    return _shown(_by_score(_set(client, key), least, most)[start:stop], scores=scores)


def _lexical(end: bytes, *, last: bool) -> tuple[float, bytes]:
    """Before this entry, of those that have no score, a range begins or ends."""
    if end in (b"-", b"+"):
        return (0.0, b"") if end == b"-" else (0.0, _ABOVE)
    if end[:1] not in (b"[", b"("):
        raise Refusal("ERR min or max not valid string range item")
    return (0.0, end[1:] + b"\0" if (end[:1] == b"[") == last else end[1:])


@command("ZRANGEBYLEX", -4, READ)
def zrangebylex(client: Client, key: bytes, least: bytes, most: bytes, *options: bytes) -> list[bytes]:
    order = _set(client, key).order
    start = bisect_left(order, _lexical(least, last=False))
    found = [member for _, member in order[start : bisect_left(order, _lexical(most, last=True))]]
    if not options:
        return found
    if len(options) != 3 or options[0].upper() != b"LIMIT":
        raise syntax()
    first, number = integer(options[1]), integer(options[2])
    return found[first:] if number < 0 else found[first : first + number]


@command("ZCOUNT", 4, READ)
def zcount(client: Client, key: bytes, least: bytes, most: bytes) -> int:
    return len(_by_score(_set(client, key), least, most))


@command("ZREMRANGEBYRANK", 4, WRITE)
def zremrangebyrank(client: Client, key: bytes, first: bytes, last: bytes) -> int:
    found = _set(client, key)
    start, stop = between(len(found.order), first, last)
    over = found.order[start:stop]
    for _, member in over:
        found.remove(member)
    if over:
        client.store.touched(key, b"zremrangebyrank")
    return len(over)


@command("ZREMRANGEBYSCORE", 4, WRITE)
def zremrangebyscore(client: Client, key: bytes, least: bytes, most: bytes) -> int:
    found = _set(client, key)
    over = _by_score(found, least, most)
    for _, member in over:
        found.remove(member)
    if over:
        client.store.touched(key, b"zremrangebyscore")
    return len(over)
