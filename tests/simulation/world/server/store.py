"""The keys of one database, and when each comes to its end."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable
from typing import Any

from .replies import wrong_type


class SortedSet:
    """Members by score, and by their bytes where scores are equal."""

    __slots__ = ("order", "scores")

    def __init__(self) -> None:
        self.scores: dict[bytes, float] = {}
        self.order: list[tuple[float, bytes]] = []

    def __len__(self) -> int:
        return len(self.order)

    def add(self, member: bytes, score: float) -> bool:
        """Whether it is new."""
        before = self.scores.get(member)
        if before is not None:
            if before == score:
                return False
            del self.order[bisect_left(self.order, (before, member))]
        self.scores[member] = score
        insort(self.order, (score, member))
        return before is None

    def remove(self, member: bytes) -> bool:
        score = self.scores.pop(member, None)
        if score is None:
            return False
        del self.order[bisect_left(self.order, (score, member))]
        return True

    def rank(self, member: bytes) -> int | None:
        score = self.scores.get(member)
        return None if score is None else bisect_left(self.order, (score, member))


class Stream(list):
    """Entries, each with its id."""


TYPES: dict[type, bytes] = {
    bytes: b"string",
    dict: b"hash",
    SortedSet: b"zset",
    list: b"list",
    set: b"set",
    Stream: b"stream",
}


class Store:
    """One database.

    Invariant: every change of a key, its end included, goes through `changed`, so that whoever watches it
    is told.

    Args:
        number: Which database it is.
        now_ms: The server's wall clock.
        changed: Called with the store, the key and what has happened to it.
        expires: Whether what has come to its end is removed here, or by a master.
    """

    __slots__ = ("_changed", "_expires", "_now_ms", "ends", "number", "values")

    def __init__(
        self,
        number: int,
        now_ms: Callable[[], int],
        changed: Callable[[Store, bytes, bytes], None],
        expires: Callable[[], bool],
    ) -> None:
        self.number = number
        self._now_ms = now_ms
        self._changed = changed
        self._expires = expires
        self.values: dict[bytes, Any] = {}
        self.ends: dict[bytes, int] = {}

    def find(self, key: bytes) -> Any:
        """The value there, or None."""
        value = self.values.get(key)
        if value is not None and (end := self.ends.get(key)) is not None and end <= self._now_ms():
            if self._expires():
                self.expire(key)
            return None
        return value

    def find_as(self, key: bytes, kind: type) -> Any:
        """The value there if it is of this type, or None."""
        value = self.values.get(key)
        if value is None:
            return None
        end = self.ends.get(key)
        if end is not None and end <= self._now_ms():
            return self.find(key)
        if type(value) is not kind:
            raise wrong_type()
        return value

    def make(self, key: bytes, kind: type) -> Any:
        """The value there, or a new one of this type."""
        value = self.find_as(key, kind)
        if value is None:
            value = self.values[key] = kind()
        return value

    def put(self, key: bytes, value: bytes) -> None:
        self.values[key] = value

    def touched(self, key: bytes, event: bytes) -> None:
        """The key was changed in this way; one that has become empty goes."""
        self._changed(self, key, event)
        value = self.values.get(key)
        if value is not None and type(value) is not bytes and not len(value):
            self.drop(key)
            self._changed(self, key, b"del")

    def delete(self, key: bytes) -> bool:
        if self.find(key) is None:
            return False
        self.drop(key)
        self._changed(self, key, b"del")
        return True

    def drop(self, key: bytes) -> None:
        del self.values[key]
        self.ends.pop(key, None)

    def expire(self, key: bytes) -> None:
        self.drop(key)
        self._changed(self, key, b"expired")

    def sweep(self) -> None:
        """Removes what has come to its end."""
        now = self._now_ms()
        for key in [key for key, end in self.ends.items() if end <= now]:
            self.expire(key)

    def present(self) -> list[bytes]:
        """All that are there."""
        now = self._now_ms()
        return [key for key in self.values if self.ends.get(key, now + 1) > now]

    def clear(self) -> None:
        self.values.clear()
        self.ends.clear()
