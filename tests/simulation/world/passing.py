"""How often each waiter of readers and writers is passed, counted in what a server does.

Whatever befalls the clients, a server that holds all keys of the name keeps the order: of waiters whose bells
are there. So nothing excuses a violation here. The bounds are those of the page on the order of waiters.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from .server.server import Server
from .trace import name_of

_SEAT = 16
MOST_WRITERS = 1
"""Plain writers that may enter while a reader waits."""


class Span(NamedTuple):
    """A holder or a waiter: its mode, its ends, and the upgradable that it upgrades."""

    mode: str
    a: float
    b: float
    under: str = "-"

    @property
    def plain(self) -> bool:
        """Whether it has its place in the order of writers and upgradables."""
        return self.mode != "r" and self.under == "-"

    def overlaps(self, other: Span) -> bool:
        return self.a <= other.b and other.a <= self.b


class Waiter(NamedTuple):
    """A waiter whose bell is there, by when it asked first."""

    bell: bytes
    since: float
    span: Span


@dataclass
class Name:
    """The state of one name at a server, after its last request."""

    keys: tuple[bytes, ...]
    waiters: list[Waiter] = field(default_factory=list)
    holders: dict[bytes, Span] = field(default_factory=dict)
    called: list[Span] = field(default_factory=list)
    turns: set[bytes] = field(default_factory=set)
    dead: list[Span] = field(default_factory=list)


class Passing:
    """All waiters at one server.

    Args:
        wrong: Told of each that was passed more often than it may be.
    """

    def __init__(self, wrong: Callable[[str], None]) -> None:
        self._wrong = wrong
        self._names: dict[bytes, Name] = {}
        self._passed: Counter[tuple[bytes, float, str]] = Counter()

    def begins(self, server: Server, words: tuple[bytes, ...]) -> None:
        """A server is about to execute a request that may be the first of its name here."""
        if _asks(words):
            self._read(server, self._name(words))

    def executed(self, server: Server, words: tuple[bytes, ...], reply: Any) -> None:
        """A server has executed a request."""
        if _asks(words):
            name, args = self._name(words), words[3 + int(words[2]) :]
            if isinstance(reply, list) and reply[0] == 1 and args[0] not in name.holders:
                self._granted(server, name, words[2 + int(words[2])], args)
        for name in self._names.values():
            self._read(server, name)
        if _asks(words) and isinstance(reply, list) and reply[0] == 0:
            self._refused(self._name(words), args)

    def _name(self, words: tuple[bytes, ...]) -> Name:
        keys = words[3 : 2 + int(words[2])]
        return self._names.setdefault(keys[0], Name(keys))

    def _granted(self, server: Server, name: Name, bell: bytes, args: tuple[bytes, ...]) -> None:
        mode, under, flags = args[4].decode(), args[7].decode(), args[10]
        span = Span(mode, float(args[5]), float(args[6]), under)
        if len(args) > 11:
            name.holders.pop(args[11], None)  # it was handed over in the same step
        since = next((one.since for one in name.waiters if one.bell == bell and b"w" in flags), math.inf)
        turn = b"w" in flags and bell in name.turns
        others = [
            waiter
            for waiter in name.waiters
            if waiter.since != since
            and waiter.span.overlaps(span)
            and self._still_waits(server, name, waiter)
        ]
        if span.plain:
            for other in others:
                if other.span.plain and other.since < since:
                    self._count(other, "a later writer or upgradable", 0)
        if span.plain and mode == "w":
            for other in others:
                if other.span.mode == "r":
                    self._count(
                        other, "a writer, though it had its turn", 0 if other.bell in name.turns else 1
                    )
                    self._count(other, "writers", MOST_WRITERS)
        if mode == "w" and not span.plain and any(one.overlaps(span) for one in name.called):
            self._wrong("an upgrade passed a reader that was called")
        first = not any(one.since < since and self._still_waits(server, name, one) for one in name.waiters)
        if mode == "r" and not turn and not first:
            for other in others:
                if other.span.mode == "w" and other.since < since and self._keeps_readers_out(name, other):
                    self._count(other, "a reader, though it was next", 0)

    def _refused(self, name: Name, args: tuple[bytes, ...]) -> None:
        """A reader is kept out by a writer inside, or by one that waits for readers alone, or has died."""
        span = Span(args[4].decode(), float(args[5]), float(args[6]))
        if span.mode != "r" or any(
            held.mode == "w" and held.overlaps(span) for held in name.holders.values()
        ):
            return
        waiting = [one for one in name.waiters if one.span.mode == "w" and one.span.overlaps(span)]
        if not any(self._keeps_readers_out(name, one) for one in waiting) and not any(
            one.overlaps(span) for one in name.dead
        ):
            self._wrong("a reader was kept out by a writer that waits for more than readers")

    def _keeps_readers_out(self, name: Name, writer: Waiter) -> bool:
        """Whether nothing but readers is in the way of this writer, or of this upgrade."""
        return not any(
            held.mode != "r" and held.overlaps(writer.span) and token.decode() != writer.span.under
            for token, held in name.holders.items()
        ) and not any(
            other.span.plain and other.since < writer.since and other.span.overlaps(writer.span)
            for other in name.waiters
            if writer.span.plain
        )

    def _count(self, waiter: Waiter, by: str, most: int) -> None:
        self._passed[waiter.bell, waiter.since, by] += 1
        times = self._passed[waiter.bell, waiter.since, by]
        if times > most:
            who = {"r": "a reader", "u": "an upgradable", "w": "a writer"}[waiter.span.mode]
            self._wrong(f"{who} was passed {times} times by {by}")

    # -- what stands there

    def _still_waits(self, server: Server, name: Name, waiter: Waiter) -> bool:
        """Whether its bell and its seat are there also after the request."""
        queue = _at(server, name.keys[4])
        seat = waiter.bell + b"0" * _SEAT
        return (
            queue is not None
            and queue.scores.get(seat) == waiter.since
            and _at(server, waiter.bell) is not None
        )

    def _read(self, server: Server, name: Name) -> None:
        now = server.now_ms()
        spans, ends, waits, _, queue = (_at(server, key) for key in name.keys[:5])
        called = _at(server, name.keys[15])
        fields = spans or {}

        def living(deadlines: Any) -> Iterator[tuple[bytes, list[bytes]]]:
            for one, deadline in deadlines.scores.items() if deadlines is not None else ():
                if deadline > now and one in fields:
                    yield one, fields[one].split(b" ")

        name.holders = {
            token: Span(mode.decode(), float(a), float(b)) for token, (mode, a, b, *_) in living(ends)
        }
        name.waiters, name.called, name.dead, name.turns = [], [], [], set()
        for bell, (mode, a, b, mark, under) in living(waits):
            if mark == b"t" and mode == b"r":
                name.turns.add(bell)  # for as long as it is noted, also if its bell is gone
            since = None if queue is None else queue.scores.get(bell + b"0" * _SEAT)
            span = Span(mode.decode(), float(a), float(b), under.decode())
            if since is None or _at(server, bell) is None:
                name.dead.append(span)
            else:
                name.waiters.append(Waiter(bell, since, span))
                if called is not None and bell in called.scores:
                    name.called.append(span)


def _asks(words: tuple[bytes, ...]) -> bool:
    return words[0].upper() in (b"EVAL", b"EVALSHA") and name_of(words) == "spans_acquire"


def _at(server: Server, key: bytes) -> Any:
    """The value there, or None; what has ended is left to the server."""
    store = server.stores.get(0)
    if store is None or store.ends.get(key, math.inf) <= server.now_ms():
        return None
    return store.values.get(key)
