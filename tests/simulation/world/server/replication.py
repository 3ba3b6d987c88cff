"""A server with a replica, or one that is a replica itself: the stream of its changes, and who has them.

It knows neither loop nor network: whoever has it carries the changes from the master to the replica, and says
how far the replica has come.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from .registry import COMMANDS, WRITE
from .replies import Refusal
from .server import Server
from .session import Client
from .store import SortedSet, Store

Change = tuple[int, bytes, Any, int | None]
"""A database, a key, what stands there now (None: nothing), and when that ends."""


class Replicated(Server):
    """A server that takes part in replication.

    Invariants:
    - each change of a key is told in `changes` before the reply to the request that made it leaves;
    - a replica changes by `apply` and `copy` alone.

    Attributes:
        changes: Told of all that one request, or a sweep, has changed, with the number of that step.
        told: The number of the last step that was told.
    """

    def __init__(self, clock: Callable[[], int], **how: Any) -> None:
        self._dirty: dict[tuple[int, bytes], None] = {}
        self.changes: Callable[[int, list[Change]], None] = lambda _, __: None
        self.told = 0
        self._acknowledged = 0
        self._wrote: dict[int, int] = {}  # by connection: the last step that it has made
        self._waiting: dict[int, tuple[Client, int, int, list[tuple[bytes, ...]]]] = {}
        self._paused = False  # nobody may write
        self._held_up: dict[int, tuple[Client, list[tuple[bytes, ...]]]] = {}
        self.wait_for: Callable[[int, Callable[[], None]], None] = lambda _, __: None
        super().__init__(clock, **how)

    # -- the stream

    def _changed(self, store: Store, key: bytes, event: bytes) -> None:
        self._dirty[store.number, key] = None
        super()._changed(store, key, event)

    def tell(self) -> None:
        """The changes since the last time go to the replica."""
        if not self._dirty:
            return
        self.told += 1
        changes = [
            (number, key, copied(store.values.get(key)), store.ends.get(key))
            for (number, key), store in ((place, self.stores[place[0]]) for place in self._dirty)
        ]
        self._dirty.clear()
        if self._executing is not None:
            self._wrote[self._executing.id] = self.told
        self.changes(self.told, changes)

    def give_away(self, store: Store, key: bytes) -> None:
        """A key goes with its slot: connections that track it are told, and no channel is."""
        store.drop(key)
        self._dirty[store.number, key] = None
        self.tracking.changed(key, None)

    def flush_out(self) -> None:
        self.tell()
        super().flush_out()

    def _serve(self, client: Client, words: tuple[bytes, ...]) -> None:
        if client.id in self._waiting:
            self._waiting[client.id][3].append(words)
            return
        if client.id in self._held_up:
            self._held_up[client.id][1].append(words)
            return
        if self._paused and _may_write(words):
            self._held_up[client.id] = (client, [words])
            return
        super()._serve(client, words)
        if words[0].upper() != b"ASKING":
            client.asking = False

    def run(self, client: Client, words: tuple[bytes, ...]) -> Any:
        try:
            return super().run(client, words)
        finally:
            self.tell()

    # -- a pause of all writes

    def pause(self) -> None:
        """Requests that may write wait, and nothing expires, until `go_on`."""
        self._paused = True

    def go_on(self) -> None:
        self._paused = False
        held_up, self._held_up = self._held_up, {}
        for client, later in held_up.values():
            for words in later:
                self._serve(client, words)
        self._flush()

    def sweep(self) -> None:
        if self._paused:
            return
        if self.master is None:
            super().sweep()
            self.tell()

    # -- a replica

    def apply(self, changes: Sequence[Change]) -> None:
        """The changes of the master."""
        for number, key, value, end in changes:
            store = self.store(number)
            if value is None:
                store.values.pop(key, None)
                store.ends.pop(key, None)
                continue
            store.values[key] = copied(value)
            if end is None:
                store.ends.pop(key, None)
            else:
                store.ends[key] = end

    def copy(self, other: Server) -> None:
        """All that the other one has, and nothing else."""
        self.flush()
        self._dirty.clear()
        for number, store in other.stores.items():
            self.apply([(number, key, value, store.ends.get(key)) for key, value in store.values.items()])
        self._flush()

    def follow(self, master: Server) -> None:
        """It is a replica from now on."""
        self.master = master
        for client, *_ in list(self._waiting.values()):
            text = (
                "UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)"
            )
            self._end_wait(client, Refusal(text))
        self._flush()

    def lead(self) -> None:
        """It is a master from now on."""
        self.master = None
        self._acknowledged = 0

    def hang_up_on_clients(self) -> None:
        for client in list(self.clients.values()):
            self.drop(client)

    # -- WAIT

    def acknowledged(self, replicas: int, timeout_ms: int) -> int:
        """How many replicas have what this connection has written; it waits for them."""
        client = self._executing
        assert client is not None
        if self.master is not None:
            raise Refusal("ERR WAIT cannot be used with replica instances.")
        wanted = self._wrote.get(client.id, 0)
        if self._acknowledged >= wanted and self.replicas >= replicas:
            return self.replicas
        self._waiting[client.id] = (client, wanted, replicas, [])
        self.wait_for(timeout_ms, lambda: self._give_up_waiting(client))
        return NotImplemented  # type: ignore[no-any-return]  # it is answered later

    def acknowledge(self, number: int) -> None:
        """The replica has come so far."""
        self._acknowledged = max(self._acknowledged, number)
        for client, wanted, replicas, _ in list(self._waiting.values()):
            if self._acknowledged >= wanted and self.replicas >= replicas:
                self._end_wait(client, self.replicas)
        self._flush()

    def _give_up_waiting(self, client: Client) -> None:
        if (waiting := self._waiting.get(client.id)) is not None and waiting[0] is client:
            self._end_wait(client, self.replicas if self._acknowledged >= waiting[1] else 0)
            self._flush()

    def _end_wait(self, client: Client, reply: Any) -> None:
        *_, later = self._waiting.pop(client.id)
        client.say(reply)
        for words in later:
            self._serve(client, words)

    def disconnected(self, client: Client) -> None:
        self._waiting.pop(client.id, None)
        self._held_up.pop(client.id, None)
        super().disconnected(client)

    def restart(self, run_id: str, *, keep: bool) -> None:
        super().restart(run_id, keep=keep)
        self._paused = False
        self._dirty.clear()
        self._wrote.clear()
        self._acknowledged = 0

    def replication(self) -> dict[str, Any]:
        if self.master is None:
            return super().replication()
        return {"role": "slave", "master_link_status": "up", "slave_read_only": 1, "connected_slaves": 0}


def _may_write(words: tuple[bytes, ...]) -> bool:
    called = COMMANDS.get(words[0].upper())
    return called is not None and (called.kind == WRITE or called.keys == "script" or called.name == b"EXEC")


def copied(value: Any) -> Any:
    """A value that does not change when the other one does."""
    if type(value) is SortedSet:
        other = SortedSet()
        other.scores, other.order = dict(value.scores), list(value.order)
        return other
    return value if value is None or type(value) is bytes else type(value)(value)
