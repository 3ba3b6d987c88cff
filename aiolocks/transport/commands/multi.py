"""The steps of several simple locks at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, final

from ..answers import (
    Answer,
    Kept,
    Refused,
    Released,
    answer,
    fencing_token,
    kept,
    released,
    truth,
)
from ..keys import key
from ..request import Command, JoinableRelease, Script
from .base import NameCommands
from .listening import Listener
from .standing import SEATED, WAITING, letters
from .waits import Wanted

_ACQUIRE: Final = Script("multi_acquire", "forms", "bells", "fence", "locks", "seats")
_HAND_OVER: Final = Script("multi_acquire", "forms", "bells", "fence", "locks", "seats", "hand_over_locks")
_ANNOTATE: Final = Script("multi_annotate", "forms", "bells", "locks", mid_move="mid_move_multi")
_ADOPT: Final = Script("multi_adopt", "forms", "bells", "locks", mid_move="mid_move_multi")
_LOCKED: Final = Script("multi_locked")
_OWNED: Final = Script("multi_owned", "forms", "bells", "locks", mid_move="mid_move_multi")
_RELEASE: Final = Script("multi_release", "forms", "bells", "locks", "stolen", mid_move="mid_move_multi")
_RENEW: Final = Script("multi_renew", "forms", "bells", "locks", "stolen", mid_move="mid_move_multi")


@final
class MultiCommands(NameCommands):
    """The steps by which all locks of these names are acquired, or none.

    Args:
        part_of: Of more names than these, what tells them from others.
    """

    __slots__ = ("_fences", "_locks", "_names", "_queues", "bell", "number")

    def __init__(
        self, prefix: str, names: Sequence[str], *, retention_ms: int, session: str, part_of: str = ""
    ) -> None:
        super().__init__(retention_ms)
        self.number = len(names)
        self._names = tuple(names)
        self._locks = tuple(key(prefix, "lock", name) for name in names)
        self._fences = tuple(key(prefix, "lock", name, "fence") for name in names)
        self._queues = tuple(key(prefix, "lock", name, "queue") for name in names)
        # One bell in all the queues, called after the first name; it lists the others as their keys have
        # them, so that a script can tell whether it is a bell of its name. The same names always have the
        # same order.
        place = f"{prefix}:lock:".encode()
        others = [lock.removeprefix(place).hex() for lock in self._locks[1:]]
        listed = ".".join([*others, part_of] if part_of else others)
        self.bell = key(prefix, "lock", names[0], f"bell.{session}.{listed}")

    def acquire(self, token: str, ttl_ms: int, metadata: str, standing: int = 0) -> Command[Answer]:
        args = (self.number, token, ttl_ms, self._retention(ttl_ms), metadata, letters(standing))
        keys = self.keys(with_bell=bool(standing & (WAITING | SEATED)))
        return Command(_ACQUIRE, keys, args, self._answer, lane=token)

    def _answer(self, raw: Any) -> Answer:
        found = answer(raw)
        if isinstance(found, Refused) and found.told and (which := found.told[1]):
            found.told = [found.told[0], self._names[which - 1], *found.told[2:]]
        return found

    def endless(self, refused: Refused) -> str:
        return endless_of_several(refused)

    def listener(self, token: str) -> Listener:
        return Listener(self.bell, self._queues, locks=self._locks)

    def wanted(self) -> Wanted:
        return Wanted(self._locks)

    def watch(self, command: Command[Any]) -> None:
        command.watched = command.keys[: self.number]

    def renew(self, token: str, ttl_ms: int) -> Command[Kept]:
        args = (self.number, token, ttl_ms, self._retention(ttl_ms))
        return Command(_RENEW, self._locks + self._fences, args, kept, lane=token)

    def release(
        self, token: str, ttl_ms: int, *, ring: bool = True, leave: bool = False
    ) -> Command[Released]:
        args = (self.number, token, self._retention(ttl_ms), int(ring))
        release = Command(_RELEASE, self.keys(with_bell=leave), args, released, lane=token)
        return release if ring or leave else JoinableRelease(release, token, _ACQUIRE, _HAND_OVER)

    def adopt(self, old: str, new: str, ttl_ms: int, metadata: str) -> Command[int | None]:
        args = (self.number, old, new, ttl_ms, self._retention(ttl_ms), metadata)
        return Command(_ADOPT, self._locks + self._fences, args, fencing_token, lane=min(old, new))

    def annotate(self, token: str, metadata: str) -> Command[bool]:
        return Command(_ANNOTATE, self._locks, (token, metadata), truth, lane=token)

    def owned(self, token: str) -> Command[bool]:
        return Command(_OWNED, self._locks, (token,), truth, lane=token)

    def locked(self) -> Command[bool]:
        return Command(_LOCKED, self._locks, (), truth)

    def keys(self, *, with_bell: bool) -> tuple[bytes, ...]:
        """Locks, fences and queues, as the scripts want them."""
        keys = self._locks + self._fences + self._queues
        return (*keys, self.bell) if with_bell else keys


def endless_of_several(refused: Refused) -> str:
    """As `NameCommands.endless`: of the names that were refused, the first whose key has no ttl."""
    name: object = refused.told[1] if refused.told else ""
    return name if isinstance(name, str) else ""
