"""One simulated server with the real scripts, which can be put back to where it was."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from aiolocks.transport.request import Request
from tests.simulation.world.passing import Passing
from tests.simulation.world.server.replies import Push, Refusal
from tests.simulation.world.server.scripting import digest
from tests.simulation.world.server.server import Server
from tests.simulation.world.server.session import Client
from tests.simulation.world.server.store import SortedSet

_BEGAN_MS = 1_700_000_000_000
_TIMES = re.compile(rb"(?<!\d)\d{13}(?!\d)|(?<!\d)\d{16}(?!\d)")
"""Milliseconds and microseconds since 1970. Tokens are letters here, so that none looks like a time."""


class Snapshot(NamedTuple):
    """All that the server knows."""

    now_ms: int
    values: dict[bytes, Any]
    ends: dict[bytes, int]
    readers: dict[bytes, frozenset[int]]


class _Ear(Client):
    """A connection whose replies and pushes are looked at as they are."""

    __slots__ = ("said",)

    def __init__(self, server: Server, number: int) -> None:
        super().__init__(server, number, lambda data: None, lambda: None, f"client {number}")
        self.said: list[Any] = []
        self.protocol = 3
        self.tracking = self.optin = self.noloop = True

    def say(self, reply: Any) -> None:
        self.said.append(reply)


class Exact:
    """The server, and a connection for each client. Each request takes a millisecond.

    Args:
        clients: How many connect.
    """

    def __init__(self, clients: int) -> None:
        self._now_ms = _BEGAN_MS
        self._server = Server(lambda: self._now_ms * 1000)
        self._ears = [_Ear(self._server, number) for number in range(clients)]
        self._store = self._server.store(0)

    def execute(self, client: int, command: Request[Any]) -> tuple[Any, dict[int, set[bytes]]]:
        """The parsed reply, and which clients were told of the end of which keys."""
        self._now_ms += 1
        if command.script is not None:
            self._server.scripts.setdefault(digest(command.script.text), command.script.text)
        ear = self._ears[client]
        ear.caching = bool(command.bells)
        words = tuple(
            word if isinstance(word, bytes) else str(word).encode() for word in command.words(as_eval=False)
        )
        passing = Passing(_broken)
        passing.begins(self._server, words)
        self._server._serve(ear, words)
        reply: Any = None
        told: dict[int, set[bytes]] = {}
        for number, each in enumerate(self._ears):
            for said in each.said:
                if isinstance(said, Push):
                    told.setdefault(number, set()).update(said[1])
                else:
                    reply = said
            each.said.clear()
        if isinstance(reply, Refusal):
            raise AssertionError(f"{command!r} was refused: {reply}")  # noqa: TRY004 - a rule is broken
        passing.executed(self._server, words, reply)
        return command.parse(reply), told

    def pass_time(self, milliseconds: int) -> None:
        """Nobody asks for so long; what ends meanwhile is gone, and no client is told of that."""
        self._now_ms += milliseconds
        self._server.sweep()
        for ear in self._ears:
            ear.said.clear()

    def snapshot(self) -> Snapshot:
        readers = self._server.tracking._readers
        return Snapshot(
            self._now_ms,
            {key: _copy(value) for key, value in self._store.values.items()},
            dict(self._store.ends),
            {key: frozenset(by) for key, by in readers.items()},
        )

    def restore(self, snapshot: Snapshot) -> None:
        self._now_ms = snapshot.now_ms
        self._store.values = {key: _copy(value) for key, value in snapshot.values.items()}
        self._store.ends = dict(snapshot.ends)
        self._server.tracking._readers = {
            key: {number: self._ears[number] for number in by} for key, by in snapshot.readers.items()
        }

    def seated(self, bell: bytes) -> bool:
        """Whether that bell hangs, and stands in a queue."""
        queues = (value for key, value in self._store.values.items() if b".queue:" in key)
        stands = any(member.startswith(bell) for queue in queues for member in queue.scores)
        return stands and self._store.values.get(bell) == b""

    @property
    def keys(self) -> list[bytes]:
        return self._store.present()


def _broken(what: str) -> None:
    raise AssertionError(what)


def _copy(value: Any) -> Any:
    if isinstance(value, SortedSet):
        copied = SortedSet()
        copied.scores = dict(value.scores)
        copied.order = list(value.order)
        return copied
    return value if isinstance(value, bytes) else value.copy()


def alike(snapshot: Snapshot) -> bytes:
    """The same for two states that differ only in their times, if these are in the same order."""
    parts = []
    for key in sorted(snapshot.values):
        value = snapshot.values[key]
        if isinstance(value, SortedSet):
            shown = b" ".join(b"%b=%.16g" % (member, score) for score, member in value.order)
        elif isinstance(value, dict):
            shown = b" ".join(b"%b=%b" % pair for pair in sorted(value.items()))
        else:
            shown = repr(value).encode()
        by = ",".join(map(str, sorted(snapshot.readers.get(key, ())))).encode()
        parts.append(b"%b %b %b" % (key, by, shown))
    text = b"\n".join(parts)
    times = sorted({(len(time), time) for time in _TIMES.findall(text)})
    rank = {time: b"#%d.%d" % (len(time), number) for number, (_, time) in enumerate(times)}
    return _TIMES.sub(lambda found: rank[found[0]], text)
