"""A node of a cluster: what it knows of who serves which slot, and which requests it therefore turns away."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from typing import Any

from redis.crc import REDIS_CLUSTER_HASH_SLOTS as SLOTS
from redis.crc import key_slot

from .numbers import integer
from .registry import command
from .replies import Refusal
from .session import Client

slot_of = lru_cache(maxsize=4096)(key_slot)


@dataclass(frozen=True)
class Layout:
    """The part of a cluster that never changes.

    Attributes:
        shards: The names of the nodes of each: the master of the beginning and its replica.
        ids: The id of each node.
    """

    shards: tuple[tuple[str, ...], ...]
    ids: dict[str, str]

    def home(self, slot: int) -> int:
        """The shard that the slot belongs to at first."""
        return slot * len(self.shards) // SLOTS

    def shard_of(self, node: str) -> int:
        return next(number for number, nodes in enumerate(self.shards) if node in nodes)


@dataclass
class View:
    """The beliefs of one node.

    Invariant: each claim stands with the epoch in which it was made, and a larger epoch wins. So two views
    can be merged in any order, and as often as one likes.

    Attributes:
        masters: The master of each shard, behind the epoch of that claim.
        moved: The shard of each slot that has left its home, behind the epoch of that claim.
    """

    masters: list[tuple[int, str]]
    moved: dict[int, tuple[int, int]] = field(default_factory=dict)

    @property
    def epoch(self) -> int:
        return max(epoch for epoch, _ in (*self.masters, *self.moved.values()))

    def merge(self, other: View) -> bool:
        """Believes what the other knows better; whether that was anything."""
        if self == other:  # as nearly always
            return False
        before = self.copy()
        self.masters = [max(pair) for pair in zip(self.masters, other.masters, strict=True)]
        for slot, claim in other.moved.items():
            self.moved[slot] = max(claim, self.moved.get(slot, claim))
        return self != before

    def copy(self) -> View:
        return View(list(self.masters), dict(self.moved))


@dataclass
class Slots:
    """The slots of one node, as the node sees them.

    Attributes:
        down: Whether the node believes that the cluster is: a slot is served by nobody, or the node cannot
            reach the majority of the masters.
        migrating: The shard that each slot is being moved to from here.
        importing: The slots that are being moved here.
    """

    node: str
    layout: Layout
    view: View
    down: bool = False
    migrating: dict[int, int] = field(default_factory=dict)
    importing: set[int] = field(default_factory=set)

    def shard(self, slot: int) -> int:
        moved = self.view.moved.get(slot)
        return self.layout.home(slot) if moved is None else moved[1]

    def master(self, slot: int) -> str:
        """The node that serves it."""
        return self.view.masters[self.shard(slot)][1]

    def check(self, client: Client, keys: Sequence[bytes]) -> None:
        """Before a request.

        Raises:
            Refusal: It is not for this node, or not now.
        """
        if keys and (refusal := self._refusal(client, keys)) is not None:
            raise refusal

    def check_channels(self, client: Client, channels: Sequence[bytes]) -> None:
        """Before a request for channels of a slot; a slot that is being moved away is served meanwhile.

        Raises:
            Refusal: It is not for this node, or not now.
        """
        for slot in {slot_of(channel) for channel in channels}:
            if self.down:
                raise Refusal("CLUSTERDOWN The cluster is down")
            master = self.master(slot)
            if master != self.node and not (slot in self.importing and client.asking):
                raise Refusal(f"MOVED {slot} {master}:6379")

    def has_lost(self, channel: bytes) -> bool:
        """Whether another node serves the slot of this channel."""
        slot = slot_of(channel)
        return self.master(slot) != self.node and slot not in self.importing

    def check_inside(self, client: Client, keys: Sequence[bytes]) -> None:
        """Before a command of a script, which may touch keys that the script has not declared.

        Raises:
            Refusal: The script ends, or handles it.
        """
        if keys and (refusal := self._refusal(client, keys)) is not None:
            if str(refusal).startswith("CROSSSLOT"):
                raise Refusal("ERR Script attempted to access keys that do not hash to the same slot")
            raise Refusal("ERR Script attempted to access a non local key in a cluster node")

    def _refusal(self, client: Client, keys: Sequence[bytes]) -> Refusal | None:
        slot, *others = {slot_of(key) for key in keys}
        if others:
            return Refusal("CROSSSLOT Keys in request don't hash to the same slot")
        if self.down:
            return Refusal("CLUSTERDOWN The cluster is down")
        different = set(keys)
        master = self.master(slot)
        if master == self.node:
            if slot not in self.migrating:
                return None
            here = set(client.store.present())
            if different <= here:
                return None
            if different & here:
                return _try_again()
            return Refusal(f"ASK {slot} {self.view.masters[self.migrating[slot]][1]}:6379")
        if slot in self.importing and client.asking:
            if len(different) > 1 and not different <= set(client.store.present()):
                return _try_again()
            return None
        return Refusal(f"MOVED {slot} {master}:6379")

    def rows(self) -> Iterator[list[Any]]:
        """The answer to `CLUSTER SLOTS`."""
        layout = self.layout
        starts = [-(-number * SLOTS // len(layout.shards)) for number in range(len(layout.shards))]
        edges = {*starts, SLOTS}
        for slot in self.view.moved:
            edges |= {slot, slot + 1}
        ordered = sorted(edges)
        for first, behind in pairwise(ordered):
            shard = self.shard(first)
            nodes = sorted(layout.shards[shard], key=self.view.masters[shard][1].__ne__)
            yield [
                first,
                behind - 1,
                *([node.encode(), 6379, layout.ids[node].encode(), []] for node in nodes),
            ]


def _try_again() -> Refusal:
    return Refusal("TRYAGAIN Multiple keys request during rehashing of slot")


def _info(client: Client, slots: Slots) -> bytes:
    fields = {
        "cluster_enabled": 1,
        "cluster_state": "fail" if slots.down else "ok",
        "cluster_slots_assigned": SLOTS,
        "cluster_known_nodes": len(slots.layout.ids),
        "cluster_size": len(slots.layout.shards),
        "cluster_current_epoch": slots.view.epoch,
    }
    return "".join(f"{name}:{value}\r\n" for name, value in fields.items()).encode()


_CLUSTER: dict[bytes, Any] = {
    b"SLOTS": lambda client, slots: list(slots.rows()),
    b"INFO": _info,
    b"MYID": lambda client, slots: slots.layout.ids[slots.node].encode(),
    b"KEYSLOT": lambda client, slots, key: slot_of(key),
    b"COUNTKEYSINSLOT": lambda client, slots, slot: len(keys_in(client, integer(slot))),
    b"GETKEYSINSLOT": lambda client, slots, slot, most: keys_in(client, integer(slot))[: integer(most)],
}


def keys_in(client: Client, slot: int) -> list[bytes]:
    return [key for key in client.store.present() if slot_of(key) == slot]


@command("CLUSTER", -2, alone=True)
def cluster(client: Client, word: bytes, *words: bytes) -> Any:
    slots: Slots | None = client.server.slots
    if slots is None:
        raise Refusal("ERR This instance has cluster support disabled")
    run = _CLUSTER.get(word.upper())
    if run is None:
        raise Refusal(f"ERR unknown subcommand '{word.decode()}'. Try CLUSTER HELP.")
    return run(client, slots, *words)
