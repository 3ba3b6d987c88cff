"""Strings."""

from __future__ import annotations

from typing import Any

from .numbers import integer, syntax
from .registry import READ, WRITE, command
from .replies import OK, Refusal
from .session import Client


@command("GET", 2, READ)
def get(client: Client, key: bytes) -> Any:
    return client.store.find_as(key, bytes)


@command("STRLEN", 2, READ)
def strlen(client: Client, key: bytes) -> int:
    return len(client.store.find_as(key, bytes) or b"")


@command("MGET", -2, READ, keys="all")
def mget(client: Client, *keys: bytes) -> list[Any]:
    found = [client.store.find(key) for key in keys]
    return [value if type(value) is bytes else None for value in found]


@command("SET", -3, WRITE, grows=True)
def set_(client: Client, key: bytes, value: bytes, *options: bytes) -> Any:
    store = client.store
    flags: set[bytes] = set()
    end: int | None = None
    words = iter(options)
    for word in words:
        option = word.upper()
        if option in (b"PX", b"EX", b"PXAT", b"EXAT"):
            if end is not None or b"KEEPTTL" in flags:
                raise syntax()
            amount = integer(next(words, b"?"))
            if amount <= 0:
                raise Refusal("ERR invalid expire time in 'set' command")
            end = amount * (1000 if option[0:1] == b"E" else 1)
            end += 0 if option.endswith(b"AT") else client.server.now_ms()
        elif option in (b"NX", b"XX", b"GET", b"KEEPTTL"):
            flags.add(option)
        else:
            raise syntax()
    if flags >= {b"NX", b"XX"} or (end is not None and b"KEEPTTL" in flags):
        raise syntax()
    before = store.find_as(key, bytes) if b"GET" in flags else store.find(key)
    if (b"NX" in flags and before is not None) or (b"XX" in flags and before is None):
        return before if b"GET" in flags else None
    store.put(key, value)
    if b"KEEPTTL" not in flags:
        store.ends.pop(key, None)
    store.touched(key, b"set")
    if end is not None:
        store.ends[key] = end
        client.server.notify(store, key, b"expire")
    return before if b"GET" in flags else OK


@command("SETNX", 3, WRITE, grows=True)
def setnx(client: Client, key: bytes, value: bytes) -> int:
    return int(set_(client, key, value, b"NX") is not None)


@command("PSETEX", 4, WRITE, grows=True)
def psetex(client: Client, key: bytes, ms: bytes, value: bytes) -> Any:
    return set_(client, key, value, b"PX", ms)


@command("SETEX", 4, WRITE, grows=True)
def setex(client: Client, key: bytes, seconds: bytes, value: bytes) -> Any:
    return set_(client, key, value, b"EX", seconds)


@command("APPEND", 3, WRITE, grows=True)
def append(client: Client, key: bytes, value: bytes) -> int:
    whole = (client.store.find_as(key, bytes) or b"") + value
    client.store.put(key, whole)
    client.store.touched(key, b"append")
    return len(whole)


@command("INCRBY", 3, WRITE, grows=True)
def incrby(client: Client, key: bytes, by: bytes) -> int:
    total = integer(client.store.find_as(key, bytes) or b"0") + integer(by)
    client.store.put(key, b"%d" % total)
    client.store.touched(key, b"incrby")
    return total


@command("INCR", 2, WRITE, grows=True)
def incr(client: Client, key: bytes) -> int:
    return incrby(client, key, b"1")
