"""A server: its databases, its connections, and how a request is executed.

It knows neither loop nor network: whoever has it gives the time, feeds the bytes of its connections in,
and is given
those that go out.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from . import (  # noqa: F401 - fill the table
    admin,
    cluster,
    connection,
    hashes,
    keys,
    pubsub,
    scripting,
    sentinel,
    sortedsets,
    strings,
)
from .registry import COMMANDS, OTHER, READ, WRITE
from .replies import Push, Refusal
from .session import Client
from .store import Store
from .tracking import Tracking

_STEP = 7
"""Microseconds that a request takes: of two, the server's clock tells which was first."""
_WITHIN_TRANSACTION = frozenset({b"EXEC", b"DISCARD", b"MULTI", b"WATCH", b"QUIT"})


class Server:
    """One server.

    Args:
        clock: Its wall clock, in microseconds.
        run_id: Names this run of it.
        version: Which Redis it behaves as; up to 7.0, each read of a script counts as a read of all its KEYS.
        on_request: Told of each request and its reply, for a trace.
    """

    on_script: Callable[[Client, bytes, tuple[bytes, ...]], None] | None = None
    """Told of each script before it runs: the connection, the text, and number of keys, keys, arguments."""

    def __init__(
        self,
        clock: Callable[[], int],
        *,
        run_id: str = "0" * 40,
        version: str = "7.2.0",
        on_request: Callable[[Client, tuple[bytes, ...], Any], None] | None = None,
    ) -> None:
        self._clock = clock
        self._instant = self._nth = 0
        self._on_request = on_request
        self.version = version
        self.tracks_all_keys = tuple(map(int, version.split(".")[:2])) <= (7, 0)
        self.now_us = clock()
        self.settings: dict[str, Any] = {
            "maxmemory": 0,
            "maxmemory-policy": "noeviction",
            "notify-keyspace-events": "",
            "lua-time-limit": 5000,
            "busy-reply-threshold": 5000,
            "tracking-table-max-keys": 1000000,
            "save": "",
            "appendonly": "no",
        }
        self.stores: dict[int, Store] = {}
        self.slots: Any = None  # of a node of a cluster: which it serves
        self.sentinel: Any = None  # of a sentinel: what it believes
        self.master: Server | None = None  # of a replica
        self.loading = False
        self.replicas = 0
        self._begin(run_id)

    def _begin(self, run_id: str) -> None:
        self.run_id = run_id
        self.scripts: dict[bytes, bytes] = {}
        self.tracking = Tracking()
        self.clients: dict[int, Client] = {}
        self.talking: list[Client] = []  # those to which something must be sent
        self.listening: set[int] = set()  # the ids of those that have subscribed to something
        self._numbers = itertools.count(1)
        self._executing: Client | None = None
        self._leaving: list[Client] = []

    def restart(self, run_id: str, *, keep: bool) -> None:
        """It dies, and comes back with its data or without."""
        for client in list(self.clients.values()):
            self.drop(client)
        if not keep:
            for store in self.stores.values():
                store.clear()
        self._begin(run_id)

    # -- connections

    def connect(self, write: Callable[[bytes], None], hang_up: Callable[[], None], address: str) -> Client:
        client = Client(self, next(self._numbers), write, hang_up, address)
        self.clients[client.id] = client
        return client

    def feed(self, client: Client, data: bytes) -> None:
        """Bytes have come in on a connection."""
        if client.closed:
            return
        reader = client.reader
        client.speaks = client.speaks or data[:1] == b"*"
        if not client.speaks:  # as people type it
            for line in data.splitlines():
                if words := line.split():
                    self._serve(client, tuple(words))
        else:
            reader.feed(data)
        while not client.closed and (words := reader.gets()) is not False:
            self._serve(client, tuple(words))
        self._flush()

    def disconnected(self, client: Client) -> None:
        """The other end has gone."""
        client.closed = True
        self.clients.pop(client.id, None)
        self.listening.discard(client.id)

    def drop(self, client: Client) -> None:
        """Closes it from here."""
        if not client.closed:
            self.disconnected(client)
            client.hang_up()

    def drop_soon(self, client: Client) -> None:
        """Closes it behind the reply to what it has asked."""
        self._leaving.append(client)

    def _flush(self) -> None:
        talking, self.talking = self.talking, []
        for client in talking:
            client.flush()
        while self._leaving:
            self.drop(self._leaving.pop())

    # -- requests

    def now_ms(self) -> int:
        return self.now_us // 1000

    def _tick(self) -> None:
        instant = self._clock()
        self._nth = self._nth + 1 if instant == self._instant else 0
        self._instant = instant
        self.now_us = instant + self._nth * _STEP

    def _serve(self, client: Client, words: tuple[bytes, ...]) -> None:
        self._tick()
        self._executing = client
        try:
            reply = self._execute(client, words)
        except Refusal as refusal:
            reply = refusal
            client.spoiled = True
        self._executing = None
        if self._on_request is not None:
            self._on_request(client, words, reply)
        if reply is not NotImplemented:  # it has answered by itself
            client.say(reply)
        self.tracking.executed(client)
        if words[0].upper() != b"CLIENT" and client.queue is None:
            client.caching = False

    def _execute(self, client: Client, words: tuple[bytes, ...]) -> Any:
        name = words[0].upper()
        called = COMMANDS.get(name)
        if called is None:
            shown = " ".join(f"'{word.decode(errors='replace')}'" for word in words[1:])
            unknown = words[0].decode(errors="replace")
            raise Refusal(f"ERR unknown command '{unknown}', with args beginning with: {shown} ")
        if not called.takes(len(words)):
            raise Refusal(f"ERR wrong number of arguments for '{name.decode().lower()}' command")
        client.last = name.decode().lower()
        if self.loading and called.kind != OTHER:
            raise Refusal("LOADING Redis is loading the dataset in memory")
        if self.slots is not None:
            self.slots.check(client, called.keys_of(words))
        if client.queue is not None and name not in _WITHIN_TRANSACTION:
            return connection.enqueue(client, words)
        return self.run(client, words)

    def run(self, client: Client, words: tuple[bytes, ...]) -> Any:
        """Executes what was found to be a request."""
        called = COMMANDS[words[0].upper()]
        if called.kind == WRITE:
            self.check_writable()
        if called.grows and self.out_of_memory:
            raise Refusal("OOM command not allowed when used memory > 'maxmemory'.")
        try:
            return called.run(client, *words[1:])
        finally:
            if called.kind == READ and client.tracking:
                self.tracking.remember(client, called.keys_of(words))

    def check_writable(self) -> None:
        if self.master is not None:
            raise Refusal("READONLY You can't write against a read only replica.")

    # -- data

    def store(self, number: int) -> Store:
        found = self.stores.get(number)
        if found is None:
            found = self.stores[number] = Store(
                number, self.now_ms, self._changed, lambda: self.master is None
            )
        return found

    def _changed(self, store: Store, key: bytes, event: bytes) -> None:
        self.tracking.changed(key, self._executing)
        self.notify(store, key, event)

    def notify(self, store: Store, key: bytes, event: bytes) -> None:
        """Publishes what has happened to a key, where that is switched on."""
        if not self.listening:
            return
        setting = self.settings["notify-keyspace-events"]
        if "K" in setting and pubsub.wanted(setting, event):
            channel = b"__keyspace@%d__:%b" % (store.number, key)
            pubsub.announce(self, channel, event)

    def sweep(self) -> None:
        """Removes what has come to its end, as a server does now and then by itself."""
        self._tick()
        for store in self.stores.values():
            if store.ends:
                store.sweep()
        self._flush()

    def flush_out(self) -> None:
        """Somebody beside the connections has done something: all who listen are told."""
        self._flush()

    def flush(self) -> None:
        for store in self.stores.values():
            store.clear()
        self.tracking.forget_all(client for client in self.clients.values() if client is not self._executing)
        if self._executing is not None and self._executing.tracking:
            self._executing.say(Push([b"invalidate", None]))

    def empty(self) -> None:
        """Somebody else flushes it."""
        self._tick()
        self.flush()
        self._flush()

    def delete(self, wanted: Callable[[bytes], bool]) -> None:
        """Somebody else deletes the keys that are wanted."""
        self._tick()
        for store in self.stores.values():
            for key in filter(wanted, store.present()):
                store.delete(key)
        self._flush()

    def has(self, text: str) -> bool:
        """Whether that stands in any value."""
        values = [value for store in self.stores.values() for value in store.values.values()]
        return any(text in repr(getattr(value, "order", value)) for value in values)

    # -- the whole

    @property
    def used_memory(self) -> int:
        return 1_000_000 + sum(len(store.values) for store in self.stores.values()) * 100

    @property
    def out_of_memory(self) -> bool:
        limit = self.settings["maxmemory"]
        return 0 < limit < self.used_memory

    def configure(self, name: str, value: str) -> None:
        self.settings[name] = int(value) if type(self.settings[name]) is int else value

    def replication(self) -> dict[str, Any]:
        return {"role": "master" if self.master is None else "slave", "connected_slaves": self.replicas}

    def acknowledged(self, replicas: int, timeout_ms: int) -> int:
        """How many replicas have what was written."""
        return self.replicas
