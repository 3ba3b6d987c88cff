"""The keys of a family: which there are, how they are read, and how the name is freed by force."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, final

from ...answers import Released, released
from ...keys import key
from ...request import Command, Script
from .checks import read_beside
from .snapshots import Content, Snapshot

_NOBODY: Final = "0" * 64
"""The token of a mark which says that an operator has freed a lease."""
_INSPECT: Final = Script("inspect_names", "bells")


@final
class Family:
    """The keys that several kinds keep under a name, in the same way.

    Attributes:
        roles: The keys that are read, the first of them its own.
        passive: Further keys, which stay when nobody holds and nobody waits; what ends with a dot, all those
            that begin so. Of the others it is seen whether aiolocks wrote them.
    """

    def __init__(
        self,
        roles: tuple[str, ...],
        read: Callable[..., Snapshot],
        *,
        passive: tuple[str, ...] = ("fence",),
        seat: int = 0,
        force: Script | None = None,
        forced: tuple[str, ...] = (),
        shallow: bool = False,
    ) -> None:
        self.roles = roles
        self.passive = passive
        self._beside = tuple(role for role in passive if role not in roles and not role.endswith("."))
        self._beginnings = ("bell.", *(role for role in passive if role.endswith(".")))
        self._read = read
        self._seat = seat
        self._force = force
        self._forced = forced
        self._shallow = shallow  # its content may be large, and is the user's

    @property
    def keys(self) -> int:
        """How many keys of a name `look` reads."""
        return 1 + len(self.roles) + len(self._beside)

    @property
    def can_be_held(self) -> bool:
        """Whether there is anything to free."""
        return self._force is not None

    def knows(self, role: str) -> bool:
        """Whether a key of that role is ours."""
        return self.shows(role) or role in self.passive or role.startswith(self._beginnings)

    def shows(self, role: str) -> bool:
        """Whether somebody may hold or wait where there is a key of that role."""
        return role == "queue" or (role in self.roles and role not in self.passive)

    def look(
        self, prefix: str, kind: str, names: Sequence[str], *, waiters: int = 0
    ) -> Command[list[Snapshot]]:
        """Reads these names, in their order; the first `waiters` of each name are described."""
        roles = ("queue", *self.roles, *self._beside)
        keys = tuple(key(prefix, kind, name, role) for name in names for role in roles)
        told = 0 if self._shallow else len(self.roles)
        return Command(_INSPECT, keys, (len(roles), self._seat, told, waiters), self._snapshots)

    def force(self, prefix: str, kind: str, name: str, snapshot: Snapshot, by: str = "") -> Command[Released]:
        """Frees what was found: what was granted with a fencing token up to the latest of those.

        `by`: the operator's metadata, as JSON, for the holders; empty if they are not to be told.
        """
        assert self._force is not None
        # A clock that was set back does not count: what was granted carries the later number.
        upto = max(snapshot.now_us, *(holder.fencing_token or 0 for holder in snapshot.grants), 0)
        keys = tuple(key(prefix, kind, name, role) for role in self._forced)
        # A Redlock is told by no majority of its masters.
        mark = f"{_NOBODY}:{upto}:{by}" if by and "stolen" in self.passive and kind != "redlock" else ""
        return Command(self._force, keys, (str(upto), snapshot.ticket, mark), released)

    def _snapshots(self, raw: Any) -> list[Snapshot]:
        now_us, *names = raw
        return [self._snapshot(int(now_us), *one) for one in names]

    def _snapshot(self, now_us: int, waiters: int, told: Sequence[bytes], *found: Any) -> Snapshot:
        roles = (*self.roles, *self._beside)
        contents = dict(zip(roles, (Content.of(*one) for one in found), strict=True))
        snapshot = self._read(now_us, contents)
        beside = {role: contents[role] for role in self._beside}
        return snapshot.with_waiters(waiters, told).with_problems(read_beside(beside))
