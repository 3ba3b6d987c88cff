"""The steps of a lock that its owner may take again."""

from __future__ import annotations

from typing import Any, Final, final

from ..answers import (
    Answer,
    Granted,
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
from .base import NameCommands, tells_no_end
from .listening import Listener
from .standing import SEATED, WAITING, letters
from .waits import Wanted

_SHARED: Final = ("forms", "bells", "fence", "locks", "nest")
_ACQUIRE: Final = Script("reentrant_acquire", *_SHARED, "seats")
_HAND_OVER: Final = Script("reentrant_acquire", *_SHARED, "seats", "hand_over_nest")
_ANNOTATE: Final = Script("reentrant_annotate", *_SHARED, mid_move="mid_move_nest")
_ADOPT: Final = Script("reentrant_adopt", *_SHARED, mid_move="mid_move_nest")
_LOCKED: Final = Script("reentrant_locked", "forms", "bells", "locks")
_OWNED: Final = Script("reentrant_owned", *_SHARED, mid_move="mid_move_nest")
_RELEASE: Final = Script("reentrant_release", *_SHARED, "stolen", mid_move="mid_move_nest")
_RENEW: Final = Script("reentrant_renew", *_SHARED, "stolen", mid_move="mid_move_nest")
_STEAL: Final = Script("reentrant_steal", *_SHARED, "stolen")

OWNER_LENGTH: Final = 32


@final
class ReentrantCommands(NameCommands):
    """The steps of one lock for one owner. A token begins with its owner.

    Args:
        owner: An id of 32 hexadecimal characters.
        apart: Waits apart from the waiters for the simple lock of this name.
    """

    __slots__ = ("_keys", "_name", "_owner", "bell")

    def __init__(
        self, prefix: str, name: str, *, owner: str, apart: bool, retention_ms: int, session: str
    ) -> None:
        super().__init__(retention_ms)
        self._name = name
        self._owner = owner
        roles = ("fence", "queue", "nest")
        self._keys = (key(prefix, "lock", name), *(key(prefix, "lock", name, role) for role in roles))
        self.bell = key(prefix, "lock", name, f"bell.{session}" + (f".{owner[:16]}" if apart else ""))

    @property
    def nests(self) -> bool:
        return True

    def owner(self, token: str) -> str:
        return token[:OWNER_LENGTH]

    def new_token(self, old: str, fresh: str) -> str:
        return (old[:OWNER_LENGTH] or self._owner) + fresh

    def acquire(self, token: str, ttl_ms: int, metadata: str, standing: int = 0) -> Command[Answer]:
        args = (token, ttl_ms, self._retention(ttl_ms), metadata, letters(standing))
        keys = (*self._keys, self.bell) if standing & (WAITING | SEATED) else self._keys
        return Command(_ACQUIRE, keys, args, _answer, lane=token)

    def steal(self, token: str, ttl_ms: int, metadata: str) -> Command[Answer]:
        args = (token, ttl_ms, self._retention(ttl_ms), metadata)
        return Command(_STEAL, self._keys, args, _stolen, lane=token)

    def endless(self, refused: Refused) -> str:
        return self._name if tells_no_end(refused) else ""

    def listener(self, token: str) -> Listener:
        return Listener(self.bell, self._keys[2:3], owner=self.owner(token), locks=self._keys[:1])

    def wanted(self) -> Wanted:
        return Wanted(self._keys[:1])

    def renew(self, token: str, ttl_ms: int) -> Command[Kept]:
        args = (token, ttl_ms, self._retention(ttl_ms))
        return Command(_RENEW, self._keys, args, kept, lane=token)

    def release(
        self, token: str, ttl_ms: int, *, ring: bool = True, leave: bool = False
    ) -> Command[Released]:
        keys = (*self._keys, self.bell) if leave else self._keys
        args = (token, self._retention(ttl_ms), int(ring))
        release = Command(_RELEASE, keys, args, released, lane=token)
        return release if ring or leave else JoinableRelease(release, token, _ACQUIRE, _HAND_OVER)

    def adopt(self, old: str, new: str, ttl_ms: int, metadata: str) -> Command[int | None]:
        # The metadata beside the lock are those of the lease that took it first.
        args = (old, new, ttl_ms, self._retention(ttl_ms))
        return Command(_ADOPT, self._keys, args, fencing_token, lane=min(old, new))

    def annotate(self, token: str, metadata: str) -> Command[bool]:
        return Command(_ANNOTATE, self._keys, (token, metadata), truth, lane=token)

    def owned(self, token: str) -> Command[bool]:
        return Command(_OWNED, self._keys, (token,), truth, lane=token)

    def locked(self) -> Command[bool]:
        return Command(_LOCKED, self._keys[:1], (self._owner,), truth)


def _stolen(raw: Any) -> Answer:
    return Granted(int(raw[1]), raw[2], lost=raw[3], depth=raw[4])


def _answer(raw: Any) -> Answer:
    if raw[0]:
        return Granted(int(raw[1]), raw[2], depth=raw[3])
    return answer(raw)
