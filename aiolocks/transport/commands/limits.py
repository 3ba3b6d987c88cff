"""The steps of limits: a permit of each of several keys, or none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple, final

from ..answers import QUEUE_TTL_MS, Answer, Refused, answer
from ..keys import key
from ..request import Command, Script
from .base import NameCommands, tokens_told, told_all
from .caps import caps_of, line_of
from .listening import Listener
from .permits import PermitCommands
from .standing import letters
from .waits import Wanted

if TYPE_CHECKING:
    from .families.snapshots import Holder

KIND: Final = "limits"

_SHARED: Final = ("forms", "bells", "fence", "queue", "limits", "lines")
_ACQUIRE: Final = Script("limits_acquire", *_SHARED)
_HAND_OVER: Final = Script("limits_acquire", *_SHARED, "hand_over_limits")
_ANNOTATE: Final = Script("permits_annotate", *_SHARED, mid_move="mid_move_limits")
_ADOPT: Final = Script("permits_adopt", *_SHARED, mid_move="mid_move_limits")
_LOCKED: Final = Script("limits_locked", *_SHARED)
_OWNED: Final = Script("permits_owned", *_SHARED, mid_move="mid_move_limits")
_RELEASE: Final = Script("permits_release", *_SHARED, "stolen", mid_move="mid_move_limits")
_RENEW: Final = Script("permits_renew", *_SHARED, "stolen", mid_move="mid_move_limits")


@final
class Used(NamedTuple):
    """How much of the limits is in use.

    Attributes:
        locked: A try now would be refused.
        held: For each key how many permits are out.
    """

    locked: bool
    held: dict[str, int]


@final
class LimitsCommands(PermitCommands):
    """The steps by which a permit of each key is acquired under one name.

    Args:
        caps: Each key, and how many may hold it.
    """

    _acquiring: ClassVar[Script] = _ACQUIRE
    _handing_over: ClassVar[Script] = _HAND_OVER
    _hand_over_wakes: ClassVar[bool] = True
    _annotating: ClassVar[Script] = _ANNOTATE
    _adopting: ClassVar[Script] = _ADOPT
    _owning: ClassVar[Script] = _OWNED
    _releasing: ClassVar[Script] = _RELEASE
    _renewing: ClassVar[Script] = _RENEW
    _roles: ClassVar[tuple[str, ...]] = ("leases", "turns", "fence", "queue")
    _value_retention_ms: ClassVar[int] = QUEUE_TTL_MS

    __slots__ = ("_caps", "_line")

    def __init__(
        self, prefix: str, name: str, caps: Mapping[str, int], *, retention_ms: int, session: str
    ) -> None:
        self._caps = caps
        self._line = line = line_of(caps)
        super().__init__(
            prefix, KIND, name, permits=1, value=None, fair=True, retention_ms=retention_ms, session=session
        )
        self.bell = key(prefix, KIND, name, f"bell.{session}.{line}")
        self._keys = (*self._keys[:5], self.bell, key(prefix, KIND, name, f"queue.{line}"))

    def acquire(self, token: str, ttl_ms: int, metadata: str, standing: int = 0) -> Command[Answer]:
        seat, flags = self._seat(token), letters(standing)
        args = (token, ttl_ms, self._retention(ttl_ms), metadata, self._line, seat, flags)
        return Command(self._acquiring, self._keys, args, self._answer, lane=token)

    @property
    def line(self) -> str:
        """The keys with their caps, as the scripts know them."""
        return self._line

    @property
    def _queues(self) -> tuple[bytes, ...]:
        return (self._keys[4], self._keys[6])

    def wanted(self) -> Wanted:
        return Wanted(self._keys[:1], caps=tuple(self._caps.items()))

    def listener(self, token: str) -> Listener:
        return Listener(
            self.bell, self._queues, self._seat(token), deadlines=self._keys[:1], beside=self._keys[2:3]
        )

    def locked(self) -> Command[bool]:
        return Command(_LOCKED, self._keys, (self._line,), lambda raw: bool(raw[0]))

    def used(self) -> Command[Used]:
        """How much of it is in use."""
        return Command(_LOCKED, self._keys, (self._line,), self._used)

    def _used(self, raw: Any) -> Used:
        held = dict(zip(caps_of(self._line), raw[1:], strict=True))
        return Used(bool(raw[0]), {one: int(held[one]) for one in self._caps})

    def excluded_by(self, own: Sequence[tuple[NameCommands, str]], refused: Refused) -> bool:
        """Whether the task itself holds all permits of the key that is full."""
        if refused.full is None:
            return False
        one, cap = refused.full
        held = {token for steps, token in own if self._holds_too(steps, one)}
        if told_all(refused):
            held &= tokens_told(refused)  # the others were lost, and nobody here knows
        return len(held) >= cap

    def _holds_too(self, other: NameCommands, one: str) -> bool:
        if not isinstance(other, LimitsCommands) or other._keys[0] != self._keys[0]:  # noqa: SLF001
            return False
        return one in other._caps  # noqa: SLF001 - its own class, here and above

    def _holder(self, token: bytes, left_ms: int, lease: bytes) -> Holder | None:
        from .families.limits import told_limits  # noqa: PLC0415 - as in `NameCommands.holders`

        return told_limits(token, left_ms, lease)

    def _answer(self, raw: Any) -> Answer:
        found = answer(raw)
        if isinstance(found, Refused) and found.told:
            for one, cap in caps_of(found.told[1].decode()).items():
                found.full = one, cap
                found.detail = f"key {one!r} is full: its cap is {cap}"
            found.detail = found.detail or "other waiters for these keys go first"
        return found
