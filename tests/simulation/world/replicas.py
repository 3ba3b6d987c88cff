"""A master and its replica: the stream between them, and what a failover loses."""

from __future__ import annotations

import re
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from .clockwork import Clockwork
from .node import Node
from .server.replication import Change, Replicated
from .server.store import SortedSet

_TOKEN = re.compile(rb"(?<![0-9a-f])(?:[0-9a-f]{32}){1,2}(?![0-9a-f])")  # two parts: its owner, and itself
_RETRY = 0.02
"""Seconds after which a replica that hangs is tried again."""


class Losses:
    """The leases that a failover has lost: two may rely on one of them until its next renewal.

    Args:
        lose: Told of each of them, by its token.
        strict: Whether a lease counts only once the replica has it.
    """

    def __init__(self, lose: Callable[[str], None], *, strict: bool) -> None:
        self._lose = lose
        self._strict = strict

    def failed_over(self, old: Replicated, new: Replicated) -> None:
        """The new one takes over; of what the old one has it may lack a part."""
        before, after = _by_token(_everything(old)), _by_token(_everything(new))
        for token, what in before.items():
            if what != after.get(token) and (token in after or not self._strict):
                self._lose(token)

    def written_in_vain(self, changes: Sequence[Change], new: Replicated) -> None:
        """A server that is no longer the master, and does not know it, has changed this."""
        known = _by_token(_everything(new)) if self._strict else {}
        for token in _by_token((key, value, end) for _, key, value, end in changes):
            if token in known or not self._strict:
                self._lose(token)

    def all_of(self, server: Replicated) -> None:
        """It has lost its data."""
        for token in _by_token(_everything(server)):
            self._lose(token)


def _everything(server: Replicated) -> Iterator[tuple[bytes, Any, int | None]]:
    for store in server.stores.values():
        for key, value in store.values.items():
            yield key, value, store.ends.get(key)


def _by_token(entries: Any) -> dict[str, set[object]]:
    """The entries of each token, with its end."""
    found: dict[str, set[object]] = defaultdict(set)
    for key, value, end in entries:
        if type(value) is bytes:
            parts: list[tuple[bytes, object]] = [(value, end)]
        elif type(value) is dict:
            parts = [(field + b" " + text, None) for field, text in value.items()]
        elif type(value) is SortedSet:
            parts = [(member, score) for member, score in value.scores.items()]
        else:
            parts = [(member, None) for member in value or ()]
        for text, until in parts:
            for token in _TOKEN.findall(text):
                found[token.decode()].add((key, text, until))
    return found


class Pair:
    """Two servers, of which one is the master and the other its replica, or is to become it.

    Invariant: changes of the master reach the replica in their order, or not at all: then the replica takes
    over, or copies all that there is.

    Args:
        lag: Seconds that a change takes to the replica, at most.

    Attributes:
        following: Whether the replica has the master's data and its stream.
        stalled_until: Before then, nothing more reaches the replica.
    """

    def __init__(
        self, clockwork: Clockwork, master: Node, replica: Node, losses: Losses, *, lag: float
    ) -> None:
        self.master = master
        self.replica = replica
        self.losses = losses
        self.lag = lag
        self.stalled_until = 0.0
        self.following = False
        self._clockwork = clockwork
        self._random = clockwork.part(f"{master.name}/stream")
        self._stream: deque[tuple[float, int, list[Change]]] = deque()
        for node in (master, replica):
            server_of(node).wait_for = lambda ms, then: clockwork.after(ms / 1000, then)
        self.demote()

    def demote(self) -> None:
        """The replica knows that it is one: it has what the master has, and follows it."""
        master, replica = server_of(self.master), server_of(self.replica)
        self._stream.clear()
        replica.changes = lambda _, __: None
        replica.follow(master)
        replica.copy(master)
        master.replicas = 1
        master.changes = self._changed
        master.acknowledge(master.told)
        self.following = True

    def promote(self) -> None:
        """The replica takes over, with what has reached it."""
        old, new = server_of(self.master), server_of(self.replica)
        self.losses.failed_over(old, new)
        self._drop()
        new.lead()
        old.changes = lambda _, changes: self.losses.written_in_vain(changes, new)
        self.master, self.replica = self.replica, self.master

    def catch_up(self) -> None:
        """The replica has all that the master has."""
        for _, _, changes in self._stream:
            server_of(self.replica).apply(changes)
        self._stream.clear()

    def stopped(self, node: Node) -> None:
        """One of them has died, and what was on its way with it."""
        self._stream.clear()
        if self.following and node is self.replica:
            self._drop()

    def started(self, node: Node) -> None:
        """One of them is back, and knows no better than before who is the master."""
        known = server_of(self.replica).master is not None
        if known and not self.replica.down and not self.master.down:
            self.demote()

    def _drop(self) -> None:
        self.following = False
        self._stream.clear()
        server = server_of(self.master)
        server.replicas = 0
        server.changes = lambda _, __: None

    # -- the stream

    def _changed(self, number: int, changes: list[Change]) -> None:
        due = self._clockwork.now + self.lag * self._random.random()
        if self._stream:
            due = max(due, self._stream[-1][0])
        self._stream.append((due, number, changes))
        self._clockwork.at(due, self._arrive)

    def _arrive(self) -> None:
        if not self.following:
            return
        if self.replica.frozen or self._clockwork.now < self.stalled_until:
            self._clockwork.after(_RETRY, self._arrive)
            return
        last = 0
        while self._stream and self._stream[0][0] <= self._clockwork.now:
            _, last, changes = self._stream.popleft()
            server_of(self.replica).apply(changes)
        if last:
            self._clockwork.after(self.lag * self._random.random(), self._acknowledged, self.master, last)

    def _acknowledged(self, by: Node, number: int) -> None:
        if self.following and by is self.master and not by.frozen:
            server_of(by).acknowledge(number)


def server_of(node: Node) -> Replicated:
    assert isinstance(node.server, Replicated)
    return node.server
