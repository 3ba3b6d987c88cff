"""Keys of any type: whether they are there, for how long, and all of them."""

from __future__ import annotations

import re
from typing import Any

from .numbers import integer, syntax
from .registry import OTHER, READ, WRITE, command
from .replies import OK, Refusal, Status
from .session import Client
from .store import TYPES, SortedSet


@command("DEL UNLINK", -2, WRITE, keys="all")
def delete(client: Client, *keys: bytes) -> int:
    return sum([client.store.delete(key) for key in keys])


@command("EXISTS", -2, READ, keys="all")
def exists(client: Client, *keys: bytes) -> int:
    return sum([client.store.find(key) is not None for key in keys])


@command("TYPE", 2, READ)
def type_(client: Client, key: bytes) -> Status:
    value = client.store.find(key)
    return Status(b"none" if value is None else TYPES[type(value)])


def _may_end(before: int | None, end: int, flags: set[bytes]) -> bool:
    if unknown := flags - {b"NX", b"XX", b"GT", b"LT"}:
        raise Refusal(f"ERR Unsupported option {min(unknown).decode()}")
    return not (
        (b"NX" in flags and before is not None)
        or (b"XX" in flags and before is None)
        or (b"GT" in flags and (before is None or end <= before))
        or (b"LT" in flags and before is not None and end >= before)
    )


def _end_at(client: Client, key: bytes, end: int, options: tuple[bytes, ...]) -> int:
    store = client.store
    if store.find(key) is None:
        return 0
    if options and not _may_end(store.ends.get(key), end, {option.upper() for option in options}):
        return 0
    if end <= client.server.now_ms():
        store.delete(key)
        return 1
    store.ends[key] = end
    store.touched(key, b"expire")
    return 1


@command("PEXPIRE", -3, WRITE)
def pexpire(client: Client, key: bytes, ms: bytes, *options: bytes) -> int:
    return _end_at(client, key, client.server.now_ms() + integer(ms), options)


@command("EXPIRE", -3, WRITE)
def expire(client: Client, key: bytes, seconds: bytes, *options: bytes) -> int:
    return _end_at(client, key, client.server.now_ms() + 1000 * integer(seconds), options)


@command("PEXPIREAT", -3, WRITE)
def pexpireat(client: Client, key: bytes, at: bytes, *options: bytes) -> int:
    return _end_at(client, key, integer(at), options)


@command("PERSIST", 2, WRITE)
def persist(client: Client, key: bytes) -> int:
    if client.store.find(key) is None or client.store.ends.pop(key, None) is None:
        return 0
    client.store.touched(key, b"persist")
    return 1


@command("PTTL", 2, READ)
def pttl(client: Client, key: bytes) -> int:
    if client.store.find(key) is None:
        return -2
    end = client.store.ends.get(key)
    return -1 if end is None else max(0, end - client.server.now_ms())


@command("TTL", 2, READ)
def ttl(client: Client, key: bytes) -> int:
    left = pttl(client, key)
    return left if left < 0 else (left + 500) // 1000


@command("RENAME", 3, WRITE, keys="all")
def rename(client: Client, key: bytes, to: bytes) -> Any:
    store = client.store
    value = store.find(key)
    if value is None:
        raise Refusal("ERR no such key")
    end = store.ends.get(key)
    store.drop(key)
    store.values[to] = value
    store.ends.pop(to, None)
    if end is not None:
        store.ends[to] = end
    store.touched(key, b"rename_from")
    store.touched(to, b"rename_to")
    return OK


@command("DUMP", 2, READ)
def dump(client: Client, key: bytes) -> Any:
    """Not as a server writes it, but equal where the values are."""
    value = client.store.find(key)
    if value is None:
        return None
    if type(value) is SortedSet:
        return b"zset" + repr(value.order).encode()
    if type(value) is dict:
        return b"hash" + repr(sorted(value.items())).encode()
    return TYPES[type(value)] + repr(sorted(value) if type(value) is set else value).encode()


def _pattern(glob: bytes) -> re.Pattern[bytes]:
    """A pattern as the server reads it."""
    out, at = b"", 0
    while at < len(glob):
        char = glob[at : at + 1]
        if char == b"*":
            out += b".*"
        elif char == b"?":
            out += b"."
        elif char == b"\\" and at + 1 < len(glob):
            at += 1
            out += re.escape(glob[at : at + 1])
        elif (
            char == b"[" and (end := glob.find(b"]", at + 2 if glob[at + 1 : at + 2] == b"^" else at + 1)) > 0
        ):
            out += b"[" + glob[at + 1 : end].replace(b"[", b"\\[").replace(b"&&", b"&\\&") + b"]"
            at = end
        else:
            out += re.escape(char)
        at += 1
    return re.compile(out + rb"\Z", re.DOTALL)


@command("KEYS", 2, OTHER)
def keys(client: Client, glob: bytes) -> list[bytes]:
    matches = _pattern(glob).match
    return [key for key in client.store.present() if matches(key)]


@command("SCAN", -2, OTHER)
def scan(client: Client, cursor: bytes, *options: bytes) -> list[Any]:
    """All at once, or in as many parts as are asked for: the cursor is a place in the sorted keys."""
    glob, count, kind = b"*", 10, None
    words = iter(options)
    for word in words:
        option, value = word.upper(), next(words, None)
        if value is None:
            raise syntax()
        if option == b"MATCH":
            glob = value
        elif option == b"COUNT":
            count = integer(value)
        elif option == b"TYPE":
            kind = value.lower()
        else:
            raise syntax()
    try:
        start = int(cursor)
    except ValueError:
        raise Refusal("ERR invalid cursor") from None
    found = sorted(client.store.present())
    part = found[start : start + count]
    matches = _pattern(glob).match
    after = start + count if start + count < len(found) else 0
    chosen = [key for key in part if matches(key)]
    if kind is not None:
        chosen = [key for key in chosen if TYPES[type(client.store.find(key))] == kind]
    return [b"%d" % after, chosen]


@command("DBSIZE", 1)
def dbsize(client: Client) -> int:
    return len(client.store.values)
