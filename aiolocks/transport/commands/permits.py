"""The steps of kinds with several permits: semaphores, and the fair lock, of which there is one permit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final

from ...errors import ConfigurationError
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
from .base import SEAT_LENGTH, NameCommands, tokens_told, told_all
from .listening import Listener
from .standing import leave_letters, letters
from .waits import Wanted

if TYPE_CHECKING:
    from .families.snapshots import Holder

_SHARED: Final = ("forms", "bells", "fence", "queue", "permits")
_ACQUIRE: Final = Script("permits_acquire", *_SHARED)
_HAND_OVER: Final = Script("permits_acquire", *_SHARED, "hand_over_permits")
_ANNOTATE: Final = Script("permits_annotate", *_SHARED, mid_move="mid_move_permits")
_ADOPT: Final = Script("permits_adopt", *_SHARED, mid_move="mid_move_permits")
_AVAILABLE: Final = Script("permits_available", *_SHARED)
_OWNED: Final = Script("permits_owned", *_SHARED, mid_move="mid_move_permits")
_RELEASE: Final = Script("permits_release", *_SHARED, "stolen", mid_move="mid_move_permits")
_RENEW: Final = Script("permits_renew", *_SHARED, "stolen", mid_move="mid_move_permits")
_STEAL: Final = Script("permits_steal", *_SHARED, "stolen")
_RESIZE: Final = Script("permits_resize", *_SHARED)


class PermitCommands(NameCommands):
    """The steps by which `n` permits of one name are acquired at once.

    Args:
        kind: The kind whose name space it is.
        permits: How many, as one lease.
        value: How many there are, as it was first made; None for one, for ever.
        fair: First come, first served.

    A kind that keeps more beside the permits has further keys, and scripts of its own.
    """

    _acquiring: ClassVar[Script] = _ACQUIRE
    _handing_over: ClassVar[Script] = _HAND_OVER
    _hand_over_wakes: ClassVar[bool] = (
        False  # as a release does; else it goes where the release is to wake nobody
    )
    _annotating: ClassVar[Script] = _ANNOTATE
    _adopting: ClassVar[Script] = _ADOPT
    _owning: ClassVar[Script] = _OWNED
    _releasing: ClassVar[Script] = _RELEASE
    _renewing: ClassVar[Script] = _RENEW
    _stealing: ClassVar[Script] = _STEAL
    _roles: ClassVar[tuple[str, ...]] = ("leases", "value", "fence", "queue")
    _more_roles: ClassVar[tuple[str, ...]] = ()
    _value_retention_ms: ClassVar[int] = 24 * 3600 * 1000

    __slots__ = ("_fair", "_keys", "_name", "_permits", "_value", "bell")

    def __init__(
        self,
        prefix: str,
        kind: str,
        name: str,
        *,
        permits: int,
        value: int | None,
        fair: bool,
        retention_ms: int,
        session: str,
    ) -> None:
        super().__init__(retention_ms)
        self._name = name
        self._permits = permits
        self._value: int | str = "" if value is None else value
        self._fair = fair
        # Those who want another number wait for something else.
        self.bell = key(prefix, kind, name, f"bell.{session}.{permits}{'.fair' if fair else ''}")
        self._keys = (
            key(prefix, kind, name),
            *(key(prefix, kind, name, role) for role in self._roles),
            self.bell,
            *(key(prefix, kind, name, role) for role in self._more_roles),
        )

    def _seat(self, token: str) -> str:
        return token[:SEAT_LENGTH] if self._fair else "0" * SEAT_LENGTH

    def acquire(self, token: str, ttl_ms: int, metadata: str, standing: int = 0) -> Command[Answer]:
        args = (
            token,
            ttl_ms,
            self._retention(ttl_ms),
            metadata,
            self._permits,
            self._value,
            self._seat(token),
            letters(standing),
            self._value_retention_ms + ttl_ms,
        )
        return Command(self._acquiring, self._keys, args, self._answer, lane=token)

    def steal(self, token: str, ttl_ms: int, metadata: str) -> Command[Answer]:
        """Of those that have one permit."""
        args = (token, ttl_ms, self._retention(ttl_ms), metadata)
        return Command(self._stealing, self._keys, args, stolen, lane=token)

    def listener(self, token: str) -> Listener:
        return Listener(self.bell, self._keys[4:5], self._seat(token), deadlines=self._keys[:1])

    def wanted(self) -> Wanted:
        return Wanted(self._keys[:1], self._permits, 1 if self._value == "" else None)

    def renew(self, token: str, ttl_ms: int) -> Command[Kept]:
        args = (token, ttl_ms, self._retention(ttl_ms), self._value_retention_ms + ttl_ms, self._seat(token))
        return Command(self._renewing, self._keys, args, kept, lane=token)

    def release(
        self, token: str, ttl_ms: int, *, ring: bool = True, leave: bool = False
    ) -> Command[Released]:
        flags = leave_letters(ring=ring, leave=leave)
        args = (token, self._retention(ttl_ms), self._seat(token), flags)
        release = Command(self._releasing, self._keys, args, released, lane=token)
        if leave or (ring and not self._hand_over_wakes):
            return release
        return JoinableRelease(release, token, self._acquiring, self._handing_over)

    def end(self, token: str, ttl_ms: int, at_least_ms: int, *, ring: bool) -> Command[Released]:
        """Lets go, but the permits stay taken, by nobody, until `at_least_ms` after the grant."""
        flags = leave_letters(ring=ring, leave=False)
        args = (token, self._retention(ttl_ms), self._seat(token), flags, at_least_ms)
        return Command(self._releasing, self._keys, args, released, lane=token)

    def adopt(self, old: str, new: str, ttl_ms: int, metadata: str) -> Command[int | None]:
        args = (old, new, ttl_ms, self._retention(ttl_ms), metadata)
        return Command(self._adopting, self._keys, args, fencing_token, lane=min(old, new))

    def annotate(self, token: str, metadata: str) -> Command[bool]:
        return Command(self._annotating, self._keys, (token, metadata), truth, lane=token)

    def owned(self, token: str) -> Command[bool]:
        return Command(self._owning, self._keys, (token,), truth, lane=token)

    def locked(self) -> Command[bool]:
        return self._available(self._too_few)

    def available(self) -> Command[int]:
        """How many permits could be had now."""
        return self._available(self._number)

    def resize(self, value: int) -> Command[Sequence[bytes]]:
        """Sets how many there are from now on; the bells of the waiters that were woken."""
        args = (self._value, value, self._value_retention_ms, self._seat("1" * SEAT_LENGTH))
        return Command(_RESIZE, self._keys, args, self._rung)

    def excluded_by(self, own: Sequence[tuple[NameCommands, str]], refused: Refused) -> bool:
        """Whether there are too few permits beside them, however many others give back."""
        held = {token: permits for steps, token in own if (permits := self._shared_with(steps))}
        if not held or not refused.told:
            return False
        if told_all(refused) and not tokens_told(refused).issuperset(held):
            return False  # one was lost, and nobody here knows
        value: int = refused.told[1]
        return self._permits > value - sum(held.values())

    def _shared_with(self, other: NameCommands) -> int:
        """How many permits of this name a lease of those has."""
        if not isinstance(other, PermitCommands) or other._keys[0] != self._keys[0]:  # noqa: SLF001
            return 0
        return other._permits  # noqa: SLF001 - its own class, here and above

    def _holder(self, token: bytes, left_ms: int, lease: bytes) -> Holder | None:
        from .families.permits import told_permits  # noqa: PLC0415 - as in `NameCommands.holders`

        return told_permits(token, left_ms, lease)

    def _available(self, parse: Any) -> Command[Any]:
        return Command(_AVAILABLE, self._keys, (self._value, "t" if self._fair else ""), parse)

    def _too_few(self, raw: Any) -> bool:
        return self._number(raw) < self._permits

    def _number(self, raw: Any) -> int:
        if isinstance(raw, list):
            raise self._made_otherwise(raw[0], raw[1])
        return int(raw)

    def _answer(self, raw: Any) -> Answer:
        if raw[0] == 2:
            raise self._made_otherwise(raw[1], raw[2])
        if raw[0] == 3:
            return Refused(None, raw[2:], error=self._too_many(raw[1]))
        found = answer(raw)
        if isinstance(found, Refused):
            last = found.rung[-1] if found.rung else b""
            if len(last) == len(self.bell) + SEAT_LENGTH and last.startswith(self.bell):
                found.rung, found.first = found.rung[:-1], last[len(self.bell) :].decode()
            if raw[1] == -3:
                found.detail, found.lasting = self._left_too_few(), True
        return found

    def _rung(self, raw: Any) -> Sequence[bytes]:
        if raw[0] == 2:
            raise self._made_otherwise(raw[1], raw[2])
        rung: Sequence[bytes] = raw[2:]
        return rung

    def _left_too_few(self) -> str:
        if self._permits == 1:
            return "resize(0) has closed it"
        return f"resize() has left fewer than {self._permits} permits"

    def _too_many(self, current: int) -> ConfigurationError:
        resized = f" (resized to {current})" if current != self._value else ""
        return ConfigurationError(
            f"Semaphore {self._name!r}: n must not be more than the semaphore's value, "
            f"{self._value}{resized}, not {self._permits}"
        )

    def _made_otherwise(self, first: int, current: int) -> ConfigurationError:
        resized = f" (and resized to {current})" if current != first else ""
        return ConfigurationError(
            f"Semaphore {self._name!r} was made with value {first}{resized}, not with {self._value}: give "
            "all its users the same value, or change it with resize(); another one counts once nobody holds "
            "or waits"
        )
