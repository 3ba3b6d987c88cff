"""The typed commands: one function a script, which says what goes in and what comes out.

Times are whole milliseconds here, as the server counts; the conversion is `aiolocks._core.clock`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, final

from .calls import Command, Script
from .keys import key

_ACQUIRE: Final = Script("lock_acquire")
_ADOPT: Final = Script("lock_adopt")
_LOCKED: Final = Script("lock_locked")
_OWNED: Final = Script("lock_owned")
_RELEASE: Final = Script("lock_release")
_RENEW: Final = Script("lock_renew")


@final
@dataclass(frozen=True, slots=True)
class Granted:
    """The server gave the lock to the token."""

    fencing_token: int


@final
@dataclass(frozen=True, slots=True)
class Refused:
    """Somebody else holds it.

    Attributes:
        remaining_ms: What the holder's lease has left; None when it has no end.
    """

    remaining_ms: int | None


Answer = Granted | Refused


@final
class LockCommands:
    """The steps of one lock under its name.

    Args:
        retention_ms: For how long the fence is kept after its last use; at least ten times the ttl of that.
    """

    __slots__ = ("_keys", "_retention_ms")

    def __init__(self, prefix: str, name: str, *, retention_ms: int) -> None:
        self._keys = (key(prefix, "lock", name), key(prefix, "lock", name, "fence"))
        self._retention_ms = retention_ms

    def acquire(self, token: str, ttl_ms: int, metadata: str) -> Command[Answer]:
        args = (token, ttl_ms, self._retention(ttl_ms), metadata)
        return Command(_ACQUIRE, self._keys, args, _answer, token)

    def renew(self, token: str, ttl_ms: int) -> Command[bool]:
        return Command(_RENEW, self._keys, (token, ttl_ms, self._retention(ttl_ms)), _truth, token)

    def release(self, token: str, ttl_ms: int) -> Command[bool]:
        return Command(_RELEASE, self._keys, (token, self._retention(ttl_ms)), _truth, token)

    def adopt(self, old: str, new: str, ttl_ms: int, metadata: str) -> Command[int | None]:
        args = (old, new, ttl_ms, self._retention(ttl_ms), metadata)
        # One lane for both directions: giving back follows what it gives back.
        return Command(_ADOPT, self._keys, args, _fencing_token, min(old, new))

    def _retention(self, ttl_ms: int) -> int:
        return max(10 * ttl_ms, self._retention_ms)

    def owned(self, token: str) -> Command[bool]:
        return Command(_OWNED, self._keys[:1], (token,), _truth, token)

    def locked(self) -> Command[bool]:
        return Command(_LOCKED, self._keys[:1], (), _truth)


def _truth(raw: Any) -> bool:
    return bool(raw)


def _answer(raw: Any) -> Answer:
    if raw[0]:
        return Granted(int(raw[1]))
    return Refused(None if raw[1] < 0 else raw[1])


def _fencing_token(raw: Any) -> int | None:
    return int(raw) if raw else None
