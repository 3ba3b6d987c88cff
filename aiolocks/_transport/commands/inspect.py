"""Looking at what stands on the server, and freeing it whoever holds it: the steps of an operator."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, final

from ..requests.answers import Released, released
from ..requests.calls import Command, Script
from ..requests.keys import ANY_KEY, every_key, key
from .reading import (
    Content,
    Finding,
    read_beside,
    read_job,
    read_limits,
    read_locks,
    read_permits,
    read_register,
    read_schedule,
    read_spans,
    read_turnstile,
)
from .steps import SEAT_LENGTH

_INSPECT: Final = Script("inspect_names", "bells")
_FORCE_LIMITS: Final = Script("force_limits", "bells", "forcing")
_FORCE_LOCK: Final = Script("force_lock", "bells", "forcing")
_FORCE_PERMITS: Final = Script("force_permits", "bells", "forcing")
_FORCE_SPANS: Final = Script("force_spans", "bells", "forcing")

_KEYS_A_STEP: Final = 1000
"""Keys that the server goes through in one step of a scan: about 0.2 ms of its time."""

_SPAN_SIDES: Final = tuple(f"{side}.{end}" for side in ("readers", "upgradables", "writers") for end in "ab")
_MARK_SIDES: Final = tuple(f"{side}.{end}" for side in ("reservations", "turns", "calls") for end in "ab")


@final
class Family:
    """The keys that several kinds keep under a name, in the same way.

    Attributes:
        roles: The keys that are read, the first of them its own.
        passive: Further keys, which stay when nobody holds and nobody waits; what ends with a dot, all those
            that begin so. Of the others it is seen whether aiolocks wrote them.
    """

    __slots__ = (
        "_beginnings",
        "_beside",
        "_force",
        "_forced",
        "_read",
        "_seat",
        "_shallow",
        "passive",
        "roles",
    )

    def __init__(
        self,
        roles: tuple[str, ...],
        read: Callable[..., Finding],
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
    ) -> Command[list[Finding]]:
        """Reads these names, in their order; the first `waiters` of each name are described."""
        roles = ("queue", *self.roles, *self._beside)
        keys = tuple(key(prefix, kind, name, role) for name in names for role in roles)
        told = 0 if self._shallow else len(self.roles)
        return Command(_INSPECT, keys, (len(roles), self._seat, told, waiters), self._findings)

    def force(self, prefix: str, kind: str, name: str, finding: Finding) -> Command[Released]:
        """Frees what was found: what was granted with a fencing token up to the latest of those."""
        assert self._force is not None
        # A clock that was set back does not count: what was granted carries the later number.
        upto = max(finding.now_us, *(holder.fencing_token or 0 for holder in finding.grants), 0)
        keys = tuple(key(prefix, kind, name, role) for role in self._forced)
        return Command(self._force, keys, (str(upto), finding.ticket), released)

    def _findings(self, raw: Any) -> list[Finding]:
        now_us, *names = raw
        return [self._finding(int(now_us), *one) for one in names]

    def _finding(self, now_us: int, waiters: int, told: Sequence[bytes], *found: Any) -> Finding:
        roles = (*self.roles, *self._beside)
        contents = dict(zip(roles, (Content.of(*one) for one in found), strict=True))
        finding = self._read(now_us, contents)
        beside = {role: contents[role] for role in self._beside}
        return finding.with_waiters(waiters, told).with_problems(read_beside(beside))


_PERMITS: Final = Family(
    ("", "leases", "value"),
    read_permits,
    passive=("fence", "value", "stolen"),
    seat=SEAT_LENGTH,
    force=_FORCE_PERMITS,
    forced=("", "leases", "queue", "value", "fence"),
)
_TERMS: Final = Family(
    ("", "leases", "value"),
    read_permits,
    passive=("fence", "value", "terms", "news", "stolen"),
    seat=SEAT_LENGTH,
    force=_FORCE_PERMITS,
    forced=("", "leases", "queue", "value", "fence"),
)
_SPANS: Final = Family(
    ("", "ends", "waits", *_SPAN_SIDES, *_MARK_SIDES),
    read_spans,
    passive=("fence", *_SPAN_SIDES, *_MARK_SIDES),
    seat=SEAT_LENGTH,
    force=_FORCE_SPANS,
    forced=("", "ends", "queue", "waits", "fence", *_SPAN_SIDES, *_MARK_SIDES),
)
_RUNS: Final = Family(
    ("",),
    read_locks,
    passive=("fence", "value"),
    force=_FORCE_LOCK,
    forced=("", "nest", "queue", "fence", "value"),
)
_JOBS: Final = Family(
    ("", "leases", "value", "owner", "about", "beside", "beside.leases"),
    read_job,
    passive=("fence", "value", "beside.value", "over", "before", "about", "seen", "run."),
    seat=SEAT_LENGTH,
    force=_FORCE_PERMITS,
    forced=(
        *("", "leases", "queue", "value", "fence", "owner"),
        *("beside", "beside.leases", "beside.value", "about"),
    ),
)
_SCHEDULES: Final = Family(
    ("", "leases"),
    read_schedule,
    passive=("fence", "register", "history"),
    seat=SEAT_LENGTH,
    force=_FORCE_PERMITS,
    # There is no such key as `value`: what is freed is the run, and never the register.
    forced=("", "leases", "queue", "value", "fence"),
)
_LIMITS: Final = Family(
    ("", "leases", "turns"),
    read_limits,
    passive=("fence", "turns", "queue."),
    seat=SEAT_LENGTH,
    force=_FORCE_LIMITS,
    forced=("", "leases", "queue", "turns", "fence"),
)
_LOCKS: Final = Family(
    ("", "nest"),
    read_locks,
    passive=("fence", "stolen"),
    force=_FORCE_LOCK,
    forced=("", "nest", "queue", "fence"),
)

FAMILIES: Final = {
    "lock": _LOCKS,
    "redlock": _LOCKS,
    "fairlock": _PERMITS,
    "leadership": _TERMS,
    "semaphore": _PERMITS,
    "limits": _LIMITS,
    "rwlock": _SPANS,
    "rangelock": _SPANS,
    "singleflight": _RUNS,
    "turn": _RUNS,
    "uniquejob": _JOBS,
    "schedule": _SCHEDULES,
    "turnstile": Family(("",), read_turnstile, passive=()),
    "fencedregister": Family(("",), read_register, passive=(), shallow=True),
}
"""By kind."""

HOLDABLE: Final = tuple(kind for kind, family in FAMILIES.items() if family.can_be_held)


@final
class Scanned(NamedTuple):
    """One step of a scan.

    Attributes:
        cursor: Where the next one begins; None after the last.
        keys: The keys that were found in this part. A key may come twice.
    """

    cursor: bytes | None
    keys: list[bytes]


FIRST: Final = b"0"


def scan(prefix: str, cursor: bytes) -> Command[Scanned]:
    """The next step through all keys of that prefix. No script: it is the server that goes on from there."""
    return _scan(cursor, every_key(prefix))


def scan_everything(cursor: bytes) -> Command[Scanned]:
    """The next step through all keys that may be ours, whatever their prefix."""
    return _scan(cursor, ANY_KEY)


def _scan(cursor: bytes, pattern: bytes) -> Command[Scanned]:
    words = ("SCAN", cursor, b"MATCH", pattern, b"COUNT", _KEYS_A_STEP)
    return Command(None, (), words, _scanned)


def _scanned(raw: Any) -> Scanned:
    cursor, keys = raw
    if re.fullmatch(rb"\d+|.+@\d+", cursor) is None:
        raise ValueError("no cursor")
    return Scanned(None if cursor == FIRST else cursor, keys)
