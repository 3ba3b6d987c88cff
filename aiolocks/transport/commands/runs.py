"""The steps that all runs share, each of which holds one permit: those of jobs and of schedules."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from ..answers import fencing_token, truth
from ..request import Command, Script
from .base import NameCommands

if TYPE_CHECKING:
    from .families.snapshots import Holder

PERMITS: Final = ("forms", "bells", "fence", "queue", "permits")
"""The shared scripts before each of their scripts."""
_ANNOTATE: Final = Script("permits_annotate", *PERMITS, mid_move="mid_move_permits")
_ADOPT: Final = Script("permits_adopt", *PERMITS, mid_move="mid_move_permits")
_AVAILABLE: Final = Script("permits_available", *PERMITS)
_OWNED: Final = Script("permits_owned", *PERMITS, mid_move="mid_move_permits")


class RunCommands(NameCommands):
    """The steps of one that runs, under the first six of its keys, which are those of permits."""

    __slots__ = ("_keys",)

    _keys: tuple[bytes, ...]
    _fair: ClassVar[str]
    """Flag for a request that asks whether a run could begin: `t` after those who wait, or nothing."""

    def adopt(self, old: str, new: str, ttl_ms: int, metadata: str) -> Command[int | None]:
        args = (old, new, ttl_ms, self._retention(ttl_ms), metadata)
        return Command(_ADOPT, self._keys[:6], args, fencing_token, lane=min(old, new))

    def annotate(self, token: str, metadata: str) -> Command[bool]:
        return Command(_ANNOTATE, self._keys[:6], (token, metadata), truth, lane=token)

    def owned(self, token: str) -> Command[bool]:
        return Command(_OWNED, self._keys[:6], (token,), truth, lane=token)

    def locked(self) -> Command[bool]:
        return Command(_AVAILABLE, self._keys[:6], ("", self._fair), lambda raw: int(raw) < 1)

    def _holder(self, token: bytes, left_ms: int, lease: bytes) -> Holder | None:
        from .families.permits import told_permits  # noqa: PLC0415 - as in `NameCommands.holders`

        return told_permits(token, left_ms, lease)
