"""The simulated server beside a real one: the same random requests, the same replies, pushes and data."""

from __future__ import annotations

import random
import socket
import time
from typing import Any
from urllib.parse import unquote, urlsplit

import hiredis
import pytest

from tests.simulation.world.server.server import Server
from tests.support.servers import ServerKind

SEEDS = 40
REQUESTS = 60
KEYS = [b"a", b"b", b"c"]
LEXICAL = b"d"
"""A sorted set in which all scores are the same."""
FOREVER = b"100000"
"""Milliseconds: what lasts so long does not end meanwhile."""
SOON = 0.03


class Real:
    """Two connections to a server, driven by hand."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._sockets = []
        for _ in range(2):
            if parts.scheme == "unix":
                connection = socket.socket(socket.AF_UNIX)
                connection.connect(unquote(parts.path))
            else:
                connection = socket.create_connection((parts.hostname, parts.port))
            connection.settimeout(5)
            self._sockets.append(connection)
        self._readers = [hiredis.Reader(protocolError=OSError, notEnoughData=StopIteration) for _ in range(2)]
        for number in range(2):
            self.say(number, (b"CLIENT", b"SETNAME", b"end"))

    def say(self, number: int, words: tuple[bytes, ...]) -> list[Any]:
        """The messages on that connection, up to the reply and to one that shows the end.

        That is to a command of CLIENT, as only those leave it alone what the command behind CACHING is.
        """
        connection, reader = self._sockets[number], self._readers[number]
        connection.sendall(hiredis.pack_command(words) + hiredis.pack_command((b"CLIENT", b"GETNAME")))
        found: list[Any] = []
        while True:
            while (reply := reader.gets()) is not StopIteration:
                if reply == b"end":
                    return found
                found.append(reply)
            reader.feed(connection.recv(65536))

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def close(self) -> None:
        for connection in self._sockets:
            connection.close()


class Simulated:
    """Two connections to the simulated server."""

    def __init__(self, version: str) -> None:
        self._now = 1_700_000_000_000_000
        self._server = Server(lambda: self._now, version=version)
        self._readers = [hiredis.Reader(protocolError=OSError, notEnoughData=StopIteration) for _ in range(2)]
        self._clients = [self._server.connect(reader.feed, int, f"here:{reader}") for reader in self._readers]

    def say(self, number: int, words: tuple[bytes, ...]) -> list[Any]:
        self._now += 100
        self._server.feed(self._clients[number], hiredis.pack_command(words))
        found = []
        while (reply := self._readers[number].gets()) is not StopIteration:
            found.append(reply)
        return found

    def sleep(self, seconds: float) -> None:
        self._now += int(seconds * 1e6)

    def close(self) -> None:
        """Nothing is open."""


def _plain(rng: random.Random) -> tuple[bytes, ...]:
    """One command of those that scripts use."""
    key, other, member = rng.choice(KEYS), rng.choice(KEYS), rng.choice((b"m", b"n", b"o"))
    score = rng.choice((b"1", b"2.5", b"-3", b"1700000000000000", b"inf"))
    edge = rng.choice((b"-inf", b"(1", b"2", b"+inf", b"1700000000000000"))
    number = rng.choice((b"0", b"1", b"-1", b"-2", b"5"))
    return rng.choice(
        (
            (b"GET", key),
            (b"SET", key, member),
            (b"SET", key, member, b"PX", FOREVER),
            (b"SET", key, b"", b"NX", b"PX", FOREVER),
            (b"SET", key, b"7", b"KEEPTTL"),
            (b"SET", key, member, b"XX", b"GET"),
            (b"DEL", key),
            (b"DEL", key, other),
            (b"EXISTS", key, other),
            (b"TYPE", key),
            (b"PEXPIRE", key, FOREVER),
            (b"PEXPIRE", key, b"-1"),
            (b"PERSIST", key),
            (b"HSET", key, member, number),
            (b"HGET", key, member),
            (b"HMGET", key, b"m", b"o"),
            (b"HDEL", key, member),
            (b"HINCRBY", key, member, number),
            (b"HKEYS", key),
            (b"HGETALL", key),
            (b"HLEN", key),
            (b"HEXISTS", key, member),
            (b"ZADD", key, score, member),
            (b"ZADD", key, b"NX", score, member),
            (b"ZREM", key, member),
            (b"ZSCORE", key, member),
            (b"ZRANK", key, member),
            (b"ZCARD", key),
            (b"ZCOUNT", key, edge, b"+inf"),
            (b"ZRANGE", key, number, number),
            (b"ZRANGE", key, b"0", b"-1", b"WITHSCORES"),
            (b"ZRANGEBYSCORE", key, edge, b"+inf"),
            (b"ZRANGEBYSCORE", key, b"-inf", edge, b"LIMIT", b"0", b"1"),
            (b"ZADD", LEXICAL, b"0", member + number),
            (b"ZRANGEBYLEX", LEXICAL, rng.choice((b"[", b"(")) + member, b"(p", b"LIMIT", b"0", number),
            (b"ZRANGEBYLEX", LEXICAL, b"-", rng.choice((b"[", b"(", b"")) + member + number),
            (b"ZRANGEBYLEX", LEXICAL, b"[n", b"+"),
            (b"ZREMRANGEBYSCORE", key, b"-inf", edge),
            (b"RPUSH", key, member, other),
            (b"RPUSH", key, member),
            (b"LRANGE", key, number, b"-1"),
            (b"LTRIM", key, number, b"-1"),
            (b"LSET", key, number, other),
            (b"HSET", key, member),
            (b"ZADD", key, b"x", member),
            (b"NOSUCH", key),
        )
    )


def _script(rng: random.Random) -> tuple[bytes, ...]:
    lines = []
    for _ in range(rng.choice((1, 2, 4))):
        command = ", ".join(f"'{word.decode()}'" for word in _plain(rng))
        lines.append(f"out[#out + 1] = redis.{rng.choice(('call', 'pcall', 'pcall'))}({command}) or 'none'")
    text = "local out = {} " + " ".join(lines) + " return out"
    return (b"EVAL", text.encode(), b"2", b"a", b"b")


def _request(rng: random.Random) -> tuple[bytes, ...]:
    how = rng.random()
    if how < 0.15:
        return (b"CLIENT", b"CACHING", b"YES")
    if how < 0.45:
        return _script(rng)
    if how < 0.48:
        return (b"FLUSHALL",)
    if how < 0.52:
        return (b"SET", rng.choice(KEYS), b"for a moment", b"PX", b"10")
    return _plain(rng)


def _alike(reply: Any) -> Any:
    """The part of a reply that must be the same: of an error, that it is one, and of what sort."""
    if isinstance(reply, Exception):
        return f"error {str(reply).partition(' ')[0]}"
    if isinstance(reply, hiredis.PushNotification):
        return ("push", *map(_alike, reply))
    if isinstance(reply, list):
        return [_alike(item) for item in reply]
    return reply


@pytest.mark.timeout(120)
async def test_it_answers_as_a_real_server_does(server, surroundings, server_kind: ServerKind) -> None:
    if server_kind.is_simulated:
        pytest.skip("it would be compared with itself")
    inspector = surroundings.inspectors[server.url]
    for seed in range(SEEDS):
        inspector.begin()
        simulated, real = Simulated(server_kind.name.partition("-")[2]), Real(server.url)
        try:
            _compare(random.Random(seed), seed, real, simulated)
        finally:
            real.close()
    inspector.begin()


def _compare(rng: random.Random, seed: int, real: Real, simulated: Simulated) -> None:
    history: list[Any] = []
    servers = (real, simulated)

    def both(number: int, words: tuple[bytes, ...], *, replies: bool = True) -> None:
        found = [[_alike(item) for item in server.say(number, words)] for server in servers]
        if words[0] == b"EVAL":  # each version tells of errors inside in other words
            found = [_without_sorts(items) for items in found]
        history.append((number, words, found[0]))
        pushes = [sorted(str(item) for item in items if isinstance(item, tuple)) for items in found]
        assert pushes[1] == pushes[0], _told(seed, history)
        if replies:
            assert _replies(found[1]) == _replies(found[0]), _told(seed, history)

    for number in (0, 1):
        both(number, (b"CLIENT", b"TRACKING", b"OFF"))
        both(number, (b"HELLO", b"3"), replies=False)
        if rng.random() < 0.8:
            noloop = (b"NOLOOP",) if rng.random() < 0.7 else ()
            both(number, (b"CLIENT", b"TRACKING", b"ON", b"OPTIN", *noloop))
    for _ in range(REQUESTS):
        number, words = rng.choice((0, 1)), _request(rng)
        both(number, words)
        both(1 - number, (b"ECHO", b"what was pushed"))
        if words[-1] == b"10" and words[0] == b"SET":
            for server in servers:
                server.sleep(SOON)
            both(number, (b"EXISTS", words[1]))
            both(1 - number, (b"ECHO", b"what was pushed"))
    for key in KEYS:
        kind = real.say(0, (b"TYPE", key))[-1]
        reading = {
            b"string": (b"GET", key),
            b"hash": (b"HGETALL", key),
            b"zset": (b"ZRANGE", key, b"0", b"-1", b"WITHSCORES"),
        }
        both(0, (b"TYPE", key))
        if kind in reading:
            both(0, reading[kind])


def _without_sorts(reply: Any) -> Any:
    if isinstance(reply, list):
        return [_without_sorts(item) for item in reply]
    return "error" if isinstance(reply, str) and reply.startswith("error") else reply


def _replies(items: list[Any]) -> list[Any]:
    return [item for item in items if not isinstance(item, tuple)]


def _told(seed: int, history: list[Any]) -> str:
    return f"seed {seed}:\n" + "\n".join(
        f"{number}: {words} → {found}" for number, words, found in history[-25:]
    )
