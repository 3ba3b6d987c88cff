"""The steps of a simple lock."""

from __future__ import annotations

from typing import Final

from ..answers import (
    Answer,
    Kept,
    Refused,
    Released,
    answer,
    fencing_token,
    kept,
    released,
    stolen,
    truth,
)
from ..keys import key
from ..request import Command, JoinableRelease, Script
from .base import NameCommands, tells_no_end
from .listening import Listener
from .standing import SEATED, WAITING, letters
from .waits import Wanted

_ACQUIRE: Final = Script("lock_acquire")
_HAND_OVER: Final = Script("lock_acquire", "hand_over_lock")
_ANNOTATE: Final = Script("lock_annotate", mid_move="mid_move_lock")
_ADOPT: Final = Script("lock_adopt", mid_move="mid_move_lock")
_LOCKED: Final = Script("lock_locked")
_OWNED: Final = Script("lock_owned", mid_move="mid_move_lock")
_RELEASE: Final = Script("lock_release", "lock_straight", "bells", "stolen", mid_move="mid_move_lock")
_RENEW_SEVERAL: Final = Script("locks_renew", "stolen")
_RENEW: Final = Script("lock_renew", "stolen", mid_move="mid_move_lock", several=_RENEW_SEVERAL)
_STEAL: Final = Script("lock_steal", "forms", "bells", "fence", "locks", "stolen")


def a_question(prefix: str, session: str) -> Command[bool]:
    """A question that the server answers at once whenever it serves locks: whether some lock is held."""
    return Command(_LOCKED, (key(prefix, "lock", f"healthy.{session}"),), (), truth)


class LockCommands(NameCommands):
    """The steps of one lock under its name.

    Args:
        session: The session in the queue: an id of which no two sessions have the same.
        kind: The name space; locks of one name in two of them do not know of each other.
    """

    __slots__ = ("_keys", "_kind", "_name", "_prefix", "_session")

    def __init__(
        self, prefix: str, name: str, *, retention_ms: int, session: str, kind: str = "lock"
    ) -> None:
        super().__init__(retention_ms)
        self._prefix = prefix
        self._name = name
        self._session = session
        self._kind = kind
        # One tuple, of which the requests take parts: many thousand leases may be held.
        self._keys = tuple(key(prefix, kind, name, role) for role in ("", "fence", "queue"))

    @property
    def bell(self) -> bytes:
        """The key that is deleted to wake this session."""
        return self._queued_keys()[-1]

    @property
    def _held(self) -> tuple[bytes, ...]:
        return self._keys[:2]

    @property
    def _with_queue(self) -> tuple[bytes, ...]:
        return self._keys[:3]

    def _queued_keys(self) -> tuple[bytes, ...]:
        """With the bell, which comes last; a lock that is only tried has none."""
        if len(self._keys) == 3:
            self._keys = (*self._keys, key(self._prefix, self._kind, self._name, f"bell.{self._session}"))
        return self._keys

    def acquire(self, token: str, ttl_ms: int, metadata: str, standing: int = 0) -> Command[Answer]:
        keys = self._queued_keys() if standing & (WAITING | SEATED) else self._with_queue
        args = (token, ttl_ms, self._retention(ttl_ms), metadata, letters(standing))
        return Command(_ACQUIRE, keys, args, answer, lane=token)

    def steal(self, token: str, ttl_ms: int, metadata: str) -> Command[Answer]:
        keys = (*self._with_queue, key(self._prefix, self._kind, self._name, "nest"))
        args = (token, ttl_ms, self._retention(ttl_ms), metadata)
        return Command(_STEAL, keys, args, stolen, lane=token)

    def endless(self, refused: Refused) -> str:
        return self._name if tells_no_end(refused) else ""

    def listener(self, token: str) -> Listener:
        return Listener(self.bell, self._with_queue[-1:], locks=self._held[:1])

    def wanted(self) -> Wanted | None:
        return Wanted(self._held[:1])

    @property
    def renewed_by(self) -> Script:
        return _RENEW

    def renew(self, token: str, ttl_ms: int) -> Command[Kept]:
        args = (token, ttl_ms, self._retention(ttl_ms))
        return Command(_RENEW, self._keys[:2], args, kept, lane=token)

    def release(
        self, token: str, ttl_ms: int, *, ring: bool = True, leave: bool = False
    ) -> Command[Released]:
        keys = self._queued_keys() if leave else self._with_queue
        args = (token, self._retention(ttl_ms), int(ring))
        release = Command(_RELEASE, keys, args, released, lane=token)
        return release if ring or leave else JoinableRelease(release, token, _ACQUIRE, _HAND_OVER)

    def end(self, token: str, ttl_ms: int, at_least_ms: int, *, ring: bool) -> Command[Released]:
        args = (token, self._retention(ttl_ms), int(ring), at_least_ms)
        return Command(_RELEASE, self._with_queue, args, released, lane=token)

    def adopt(self, old: str, new: str, ttl_ms: int, metadata: str) -> Command[int | None]:
        args = (old, new, ttl_ms, self._retention(ttl_ms), metadata)
        # One lane for both directions: giving back follows what it gives back.
        return Command(_ADOPT, self._held, args, fencing_token, lane=min(old, new))

    def annotate(self, token: str, metadata: str) -> Command[bool]:
        return Command(_ANNOTATE, self._held[:1], (token, metadata), truth, lane=token)

    def owned(self, token: str) -> Command[bool]:
        return Command(_OWNED, self._held[:1], (token,), truth, lane=token)

    def locked(self) -> Command[bool]:
        return Command(_LOCKED, self._held[:1], (), truth)
