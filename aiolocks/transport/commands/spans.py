"""The steps of reader-writer locks, which hold spans of the real numbers: all of them, or intervals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, final

from ...errors import LockLostError
from ..answers import (
    BELL_TTL_MS,
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
from .base import SEAT_LENGTH, NameCommands, tokens_told, told_all
from .listening import Listener
from .standing import leave_letters, letters
from .waits import Wanted

if TYPE_CHECKING:
    from .families.snapshots import Holder

_SHARED: Final = ("forms", "bells", "fence", "queue", "spans")
_ACQUIRE: Final = Script("spans_acquire", *_SHARED, "ours")
_HAND_OVER: Final = Script("spans_acquire", *_SHARED, "ours", "hand_over_spans")
_ANNOTATE: Final = Script("spans_annotate", *_SHARED, mid_move="mid_move_spans")
_ADOPT: Final = Script("spans_adopt", *_SHARED, mid_move="mid_move_spans")
_CHANGE: Final = Script("spans_change", *_SHARED)
_LOCKED: Final = Script("spans_locked", *_SHARED, "ours")
_OWNED: Final = Script("spans_owned", *_SHARED, mid_move="mid_move_spans")
_RELEASE: Final = Script("spans_release", *_SHARED, "stolen", mid_move="mid_move_spans")
_RENEW: Final = Script("spans_renew", *_SHARED, "stolen", mid_move="mid_move_spans")

_SIDES: Final = ("readers", "upgradables", "writers", "reservations", "turns", "calls", "places")
_ROLES: Final = ("ends", "waits", "fence", "queue", *(f"{side}.{end}" for side in _SIDES for end in "ab"))
_SEAT: Final = "0" * SEAT_LENGTH
_FORGET_EVERY: Final = 4
_RESERVED: Final = -4
"""In the place of the time that a lease has left: a writer that waits goes first, and keeps readers out."""


class Span(NamedTuple):
    """A closed interval that is wanted or held in one of the modes.

    Attributes:
        mode: `"r"`, `"u"` or `"w"`.
        a: Its left end, as Redis reads it.
        b: Its right end.
    """

    mode: str
    a: str
    b: str

    def within(self, other: Span) -> bool:
        """Whether it is a part of the other."""
        return float(other.a) <= float(self.a) and float(self.b) <= float(other.b)

    def excludes(self, other: Span) -> bool:
        """Whether not both can be held at a time."""
        overlap = float(other.a) <= float(self.b) and float(self.a) <= float(other.b)
        modes = {self.mode, other.mode}
        return overlap and ("w" in modes or modes == {"u"})


@final
class Changed(NamedTuple):
    """The effect of a change of a span.

    Attributes:
        held: The token holds.
        part: Whether the span that was asked for was part of the one that it held.
        rung: The bells of the waiters that were woken.
    """

    held: bool
    part: bool
    rung: tuple[bytes, ...]


@final
class SpanCommands(NameCommands):
    """The steps by which one span is acquired and held.

    Args:
        kind: The kind whose name space it is.
        under: The token of the upgradable that will be upgraded; empty when there is none.
        longest_sleep_ms: After which a waiter asks again, at the latest.
        interval: The span as users know it, if it is one of a range.
    """

    __slots__ = ("_keys", "_label", "_marks_ms", "_name", "_span", "_under", "bell", "interval")

    def __init__(
        self,
        prefix: str,
        kind: str,
        name: str,
        span: Span,
        *,
        label: str,
        under: str = "",
        retention_ms: int,
        longest_sleep_ms: int,
        session: str,
        interval: tuple[float, float] | None = None,
    ) -> None:
        super().__init__(retention_ms)
        self._label = label
        self._name = name
        self._span = span
        self.interval = interval
        self._under = under or "-"
        self._marks_ms = max(BELL_TTL_MS, _FORGET_EVERY * longest_sleep_ms)
        who = f"{session}.{span.mode}.{span.a}_{span.b}" + (f".{under[:16]}" if under else "")
        self.bell = key(prefix, kind, name, f"bell.{who}")
        self._keys = (
            key(prefix, kind, name),
            *(key(prefix, kind, name, role) for role in _ROLES),
            self.bell,
        )

    @property
    def lingers(self) -> float:
        return self._marks_ms / 1000

    def acquire(self, token: str, ttl_ms: int, metadata: str, standing: int = 0) -> Command[Answer]:
        args = (
            token,
            ttl_ms,
            self._retention(ttl_ms),
            metadata,
            *self._span,
            self._under,
            self._marks_ms,
            _SEAT,
            letters(standing),
        )
        return Command(_ACQUIRE, self._keys, args, self._answer, lane=token)

    def wanted(self) -> Wanted:
        return Wanted(
            self._keys[:1],
            span=(self._span.mode, self._span.a, self._span.b),
            under=self._under.removesuffix("-"),
        )

    def listener(self, token: str) -> Listener:
        spans, ends, waits = self._keys[:3]
        marks = (waits, spans, ends, *self._keys[11:19])
        return Listener(
            self.bell, self._keys[4:5], _SEAT, deadlines=(ends, waits), marks=marks, marks_ms=self._marks_ms
        )

    def renew(self, token: str, ttl_ms: int) -> Command[Kept]:
        args = (token, ttl_ms, self._retention(ttl_ms), _SEAT)
        return Command(_RENEW, self._keys, args, kept, lane=token)

    def release(
        self, token: str, ttl_ms: int, *, ring: bool = True, leave: bool = False
    ) -> Command[Released]:
        flags = leave_letters(ring=ring, leave=leave)
        args = (token, self._retention(ttl_ms), _SEAT, flags)
        release = Command(_RELEASE, self._keys, args, released, lane=token)
        # Readers enter together. An upgrade may be refused for good, and that answer has no bells.
        if leave or self._span.mode == "r" or self._under != "-":
            return release
        return JoinableRelease(release, token, _ACQUIRE, _HAND_OVER)

    def adopt(self, old: str, new: str, ttl_ms: int, metadata: str) -> Command[int | None]:
        args = (old, new, ttl_ms, self._retention(ttl_ms), metadata, *self._span, _SEAT)
        return Command(_ADOPT, self._keys, args, fencing_token, lane=min(old, new))

    def annotate(self, token: str, metadata: str) -> Command[bool]:
        return Command(_ANNOTATE, self._keys, (token, metadata), truth, lane=token)

    def owned(self, token: str) -> Command[bool]:
        return Command(_OWNED, self._keys, (token, _SEAT), truth, lane=token)

    def locked(self) -> Command[bool]:
        return Command(_LOCKED, self._keys, (*self._span, self._under, _SEAT), truth)

    def change(self, token: str, span: Span) -> Command[Changed]:
        """Holds that part of it from now on, or as a reader what it held as a writer."""
        return Command(_CHANGE, self._keys, (token, *span, _SEAT), _changed, lane=token)

    def excluded_by(self, own: Sequence[tuple[NameCommands, str]], refused: Refused) -> bool:
        """Whether one of them is in the way, or in that of a writer who waits and goes first."""
        wanted, told, all_told = self._span, tokens_told(refused), told_all(refused)
        for steps, token in own:
            span = self._span_beside(steps)
            if span is None or token == self._under:
                continue
            if wanted.excludes(span):
                if token in told or not all_told:  # else it was lost, and nobody here knows
                    return True
            elif refused.reserved and wanted.mode != "w" and wanted.within(span):
                return True  # a writer has reserved what this wants, and waits for what is held of it here
        return False

    def _span_beside(self, other: NameCommands) -> Span | None:
        """The span of those, if it is of this name."""
        if not isinstance(other, SpanCommands) or other._keys[0] != self._keys[0]:  # noqa: SLF001
            return None
        return other._span  # noqa: SLF001 - its own class, here and above

    def _holder(self, token: bytes, left_ms: int, lease: bytes) -> Holder | None:
        from .families.spans import told_span  # noqa: PLC0415 - as in `NameCommands.holders`

        return told_span(token, left_ms, lease)

    def _answer(self, raw: Any) -> Answer:
        if raw[:2] == [0, -3]:
            raise LockLostError(self._label, self._name, "the upgradable lease does not hold it any more")
        answered = answer(raw)
        if isinstance(answered, Refused):
            answered.reserved = raw[1] == _RESERVED
        return answered


def _changed(raw: Any) -> Changed:
    return Changed(held=raw[0] != 0, part=raw[0] != -1, rung=tuple(raw[1:]))
