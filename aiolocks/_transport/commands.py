"""The typed commands: one function a script, which says what goes in and what comes out.

Times are whole milliseconds here, as the server counts; the conversion is `aiolocks._core.clock`.
"""

from __future__ import annotations

from typing import Any, Final, final

from .calls import Command, Script
from .keys import key

_ACQUIRE: Final = Script("lock_acquire")
_ADOPT: Final = Script("lock_adopt")
_ARM: Final = Script("queue_arm")
_LOCKED: Final = Script("lock_locked")
_OWNED: Final = Script("lock_owned")
_RELEASE: Final = Script("lock_release")
_RENEW: Final = Script("lock_renew")

BELL_TTL: Final = 2.0
"""Seconds after which a bell is gone that nobody hangs up anew: its waiter is dead."""
_QUEUE_TTL_MS: Final = 10_000


@final
class Granted:
    """The server gave the lock to the token.

    Attributes:
        others: How many stand in the queue, dead ones among them.
    """

    __slots__ = ("fencing_token", "others")

    def __init__(self, fencing_token: int, others: int) -> None:
        self.fencing_token = fencing_token
        self.others = others


@final
class Refused:
    """Somebody else holds it.

    Attributes:
        remaining_ms: What the holder's lease has left; None when it has no end, or when nobody holds it and
            it is another's turn.
    """

    __slots__ = ("remaining_ms",)

    def __init__(self, remaining_ms: int | None) -> None:
        self.remaining_ms = remaining_ms


Answer = Granted | Refused


@final
class Released:
    """What a release found and did.

    Attributes:
        freed: The token did hold it.
        rung: The bell of who was woken, if anybody was.
    """

    __slots__ = ("freed", "rung")

    def __init__(self, *, freed: bool, rung: bytes | None) -> None:
        self.freed = freed
        self.rung = rung


@final
class LockCommands:
    """The steps of one lock under its name.

    Args:
        retention_ms: For how long the fence is kept after its last use; at least ten times the ttl of that.
        session: Who stands in the queue: an id of which no two sessions have the same.
    """

    __slots__ = ("_held", "_in_queue", "_name", "_prefix", "_retention_ms", "_session", "_with_queue")

    def __init__(self, prefix: str, name: str, *, retention_ms: int, session: str) -> None:
        self._prefix = prefix
        self._name = name
        self._session = session
        self._held = (key(prefix, "lock", name), key(prefix, "lock", name, "fence"))
        self._with_queue = (*self._held, key(prefix, "lock", name, "queue"))
        self._in_queue: tuple[bytes, ...] = ()  # with the bell; of most names, nobody ever waits for one
        self._retention_ms = retention_ms

    @property
    def bell(self) -> bytes:
        """The key that is deleted to wake this session."""
        return self._queued_keys()[-1]

    def _queued_keys(self) -> tuple[bytes, ...]:
        if not self._in_queue:
            bell = key(self._prefix, "lock", self._name, f"bell.{self._session}")
            self._in_queue = (*self._with_queue, bell)
        return self._in_queue

    def acquire(
        self, token: str, ttl_ms: int, metadata: str, *, queued: bool = False, in_turn: bool = False
    ) -> Command[Answer]:
        """Takes it, or says for how long it may be held elsewhere.

        `queued` if this session stands in the queue, which it leaves when it gets in; `in_turn` to take it
        only if nobody stands there before this session.
        """
        keys = self._queued_keys() if queued else self._with_queue
        args = (token, ttl_ms, self._retention(ttl_ms), metadata, int(in_turn))
        return Command(_ACQUIRE, keys, args, _answer, lane=token)

    def arm(self, lane: str) -> Command[bool]:
        """Stands in the queue from now on, with a fresh bell; whether the last one was still there."""
        bell, args = self.bell, (self._with_queue[-1], int(BELL_TTL * 1000), _QUEUE_TTL_MS)
        return Command(_ARM, (bell,), args, _truth, lane=lane, bell=bell)

    def renew(self, token: str, ttl_ms: int) -> Command[bool]:
        return Command(_RENEW, self._held, (token, ttl_ms, self._retention(ttl_ms)), _truth, lane=token)

    def release(
        self, token: str, ttl_ms: int, *, ring: bool = True, leave: bool = False
    ) -> Command[Released]:
        """Lets go, if the token holds it.

        `ring` to wake who is next in the queue, if it is free then; `leave` to leave the queue too.
        """
        keys = self._queued_keys() if leave else self._with_queue
        return Command(_RELEASE, keys, (token, self._retention(ttl_ms), int(ring)), _released, lane=token)

    def adopt(self, old: str, new: str, ttl_ms: int, metadata: str) -> Command[int | None]:
        args = (old, new, ttl_ms, self._retention(ttl_ms), metadata)
        # One lane for both directions: giving back follows what it gives back.
        return Command(_ADOPT, self._held, args, _fencing_token, lane=min(old, new))

    def _retention(self, ttl_ms: int) -> int:
        least = 10 * ttl_ms
        return max(self._retention_ms, least)

    def owned(self, token: str) -> Command[bool]:
        return Command(_OWNED, self._held[:1], (token,), _truth, lane=token)

    def locked(self) -> Command[bool]:
        return Command(_LOCKED, self._held[:1], (), _truth)


def _truth(raw: Any) -> bool:
    return bool(raw)


def _answer(raw: Any) -> Answer:
    if raw[0]:
        return Granted(int(raw[1]), raw[2])
    return Refused(None if raw[1] < 0 else raw[1])


def _released(raw: Any) -> Released:
    return Released(freed=bool(raw[0]), rung=raw[1] if len(raw) > 1 else None)


def _fencing_token(raw: Any) -> int | None:
    return int(raw) if raw else None
