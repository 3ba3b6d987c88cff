"""Hashes, lists, sets and streams: of the last two only as much as shows that a key holds something
else."""

from __future__ import annotations

from typing import Any

from .numbers import between, integer
from .registry import READ, WRITE, command
from .replies import OK, Pairs, Refusal
from .session import Client
from .store import Stream


def _hash(client: Client, key: bytes) -> dict[bytes, bytes]:
    return client.store.find_as(key, dict) or {}


@command("HSET HMSET", -4, WRITE, grows=True)
def hset(client: Client, key: bytes, *pairs: bytes) -> int:
    if len(pairs) % 2:
        raise Refusal("ERR wrong number of arguments for 'hset' command")
    fields = client.store.make(key, dict)
    before = len(fields)
    fields.update(zip(pairs[::2], pairs[1::2], strict=True))
    client.store.touched(key, b"hset")
    return len(fields) - before


@command("HGET", 3, READ)
def hget(client: Client, key: bytes, field: bytes) -> Any:
    return _hash(client, key).get(field)


@command("HMGET", -3, READ)
def hmget(client: Client, key: bytes, *fields: bytes) -> list[Any]:
    found = _hash(client, key)
    return [found.get(field) for field in fields]


@command("HGETALL", 2, READ)
def hgetall(client: Client, key: bytes) -> Pairs:
    return Pairs(_hash(client, key).items())


@command("HKEYS", 2, READ)
def hkeys(client: Client, key: bytes) -> list[bytes]:
    return list(_hash(client, key))


@command("HVALS", 2, READ)
def hvals(client: Client, key: bytes) -> list[bytes]:
    return list(_hash(client, key).values())


@command("HLEN", 2, READ)
def hlen(client: Client, key: bytes) -> int:
    return len(_hash(client, key))


@command("HEXISTS", 3, READ)
def hexists(client: Client, key: bytes, field: bytes) -> int:
    return int(field in _hash(client, key))


@command("HDEL", -3, WRITE)
def hdel(client: Client, key: bytes, *fields: bytes) -> int:
    found = _hash(client, key)
    gone = sum([found.pop(field, None) is not None for field in fields])
    if gone:
        client.store.touched(key, b"hdel")
    return gone


@command("HINCRBY", 4, WRITE, grows=True)
def hincrby(client: Client, key: bytes, field: bytes, by: bytes) -> int:
    amount = integer(by)
    fields = client.store.find_as(key, dict) or {}
    try:
        total = integer(fields.get(field, b"0")) + amount
    except Refusal:
        raise Refusal("ERR hash value is not an integer") from None
    client.store.make(key, dict)[field] = b"%d" % total
    client.store.touched(key, b"hincrby")
    return total


@command("RPUSH", -3, WRITE, grows=True)
def rpush(client: Client, key: bytes, *items: bytes) -> int:
    values: list[bytes] = client.store.make(key, list)
    values.extend(items)
    client.store.touched(key, b"rpush")
    return len(values)


@command("LPUSH", -3, WRITE, grows=True)
def lpush(client: Client, key: bytes, *items: bytes) -> int:
    values: list[bytes] = client.store.make(key, list)
    values[:0] = reversed(items)
    client.store.touched(key, b"lpush")
    return len(values)


@command("LLEN", 2, READ)
def llen(client: Client, key: bytes) -> int:
    return len(client.store.find_as(key, list) or ())


@command("LRANGE", 4, READ)
def lrange(client: Client, key: bytes, first: bytes, last: bytes) -> list[bytes]:
    values = client.store.find_as(key, list) or []
    start, stop = between(len(values), first, last)
    return list(values[start:stop])


@command("LSET", 4, WRITE, grows=True)
def lset(client: Client, key: bytes, index: bytes, item: bytes) -> Any:
    values: list[bytes] | None = client.store.find_as(key, list)
    if values is None:
        raise Refusal("ERR no such key")
    at = integer(index)
    if not -len(values) <= at < len(values):
        raise Refusal("ERR index out of range")
    values[at] = item
    client.store.touched(key, b"lset")
    return OK


@command("LTRIM", 4, WRITE)
def ltrim(client: Client, key: bytes, first: bytes, last: bytes) -> Any:
    values: list[bytes] | None = client.store.find_as(key, list)
    if values is not None:
        start, stop = between(len(values), first, last)
        values[:] = values[start:stop]
        client.store.touched(key, b"ltrim")
    return OK


@command("SADD", -3, WRITE, grows=True)
def sadd(client: Client, key: bytes, *members: bytes) -> int:
    found: set[bytes] = client.store.make(key, set)
    before = len(found)
    found.update(members)
    if len(found) > before:
        client.store.touched(key, b"sadd")
    return len(found) - before


@command("SMEMBERS", 2, READ)
def smembers(client: Client, key: bytes) -> list[bytes]:
    return sorted(client.store.find_as(key, set) or ())


@command("XADD", -5, WRITE, grows=True)
def xadd(client: Client, key: bytes, entry: bytes, *fields: bytes) -> bytes:
    found: Stream = client.store.make(key, Stream)
    number = b"%d-%d" % (client.server.now_ms(), len(found)) if entry == b"*" else entry
    found.append((number, *fields))
    client.store.touched(key, b"xadd")
    return number
