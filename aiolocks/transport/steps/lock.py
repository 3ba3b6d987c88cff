"""The simple lock, which sessions, inspection and other families build on: its keys, steps and holders."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, final

from ..answers import (
    NO_TTL,
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
    vote,
)
from ..keys import key, keys_of
from ..request import Argument, Request, Script
from .base import FamilySteps, tells_no_end
from .checks import after, not_ours, of_others, without_ttl, wrong_types
from .family import Family, Step
from .listening import Listener
from .snapshots import NO_CONTENT, Content, Holder, Snapshot, of_nobody
from .waits import Wanted

_ACQUIRE: Final = Script("lock_acquire")
_HAND_OVER: Final = Script("lock_acquire", "hand_over_lock")
_VOTE: Final = Script("lock_acquire", "redlock_vote")
_ANNOTATE: Final = Script("lock_annotate", mid_move="mid_move_lock")
_ADOPT: Final = Script("lock_adopt", mid_move="mid_move_lock")
_LOCKED: Final = Script("lock_locked", moves=True)
_OWNED: Final = Script("lock_owned", mid_move="mid_move_lock", moves=True)
_RELEASE: Final = Script(
    "lock_release", "lock_straight", "bells", "stolen", mid_move="mid_move_lock", frees=True
)
_RENEW: Final = Script("lock_renew", "stolen", mid_move="mid_move_lock")
_KEEP: Final = Script("lock_acquire", "lock_keep", moves=True)
_RELEASE_KEPT: Final = Script(
    "lock_release", "lock_straight", "bells", "stolen", "give_back", mid_move="mid_move_lock", frees=True
)
_RELEASE_SEVERAL: Final = Script("locks_release", "bells", frees=True)
_RENEW_KEPT: Final = Script("lock_renew_kept", "bells", "stolen", mid_move="mid_move_lock", moves=True)
_ADOPT_KEPT: Final = Script("lock_adopt", "adopt_kept", mid_move="mid_move_lock")
_STEAL: Final = Script("lock_steal", "forms", "bells", "fence", "locks", "stolen")
FORCE_LOCK: Final = Script("force_lock", "bells", "stolen", "forcing")

# A leading zero is that of a Redlock's fencing token which was written back.
_LOCK: Final = re.compile(rb"((?:[0-9a-f]{32}){1,2}):(0?\d{1,16}):(.*)", re.DOTALL)


def read_locks(now_us: int, found: Mapping[str, Content]) -> Snapshot:
    """A lock, which its owner may have taken more than once."""
    lock, nest = found[""], found.get("nest", NO_CONTENT)
    if wrong := wrong_types({"": "string", "nest": "zset"}, found) + not_ours(found, ("nest",)):
        return Snapshot(now_us, stands=bool(lock), problems=wrong)
    if not lock:
        return Snapshot(now_us)
    match = _LOCK.fullmatch(lock.value)
    if match is None:
        return Snapshot(now_us, stands=True, problems=(of_others(""), *without_ttl(lock, ours=False)))
    token, endless = match[1].decode(), lock.ttl_ms == NO_TTL
    nested = _nested(token, nest, now_us)
    holder = Holder(
        (token, *nested),
        int(match[2]),
        None if endless else lock.ttl_ms,
        match[3],
        depth=len(nested) or None,
    )
    if of_nobody(holder):
        return Snapshot(now_us, stands=True, endless=endless, kept=holder)
    return Snapshot(now_us, (holder,), stands=True, endless=endless)


def told_lock(left_ms: int, held: bytes) -> Holder | None:
    """A holder as a refusal tells of it; None for what is not ours."""
    match = _LOCK.fullmatch(held)
    if match is None:
        return None
    return Holder((match[1].decode(),), int(match[2]), None if left_ms < 0 else left_ms, match[3])


def _nested(owner: str, nest: Content, now_us: int) -> list[str]:
    """The tokens of that owner; what another owner has left behind holds nothing."""
    if not nest:
        return []
    tokens = (token.decode(errors="replace") for token in after(nest, now_us))
    return sorted(token for token in tokens if token.startswith(owner))


def _locks(acquire: Step[Answer], hand_over: Script | None, values: str = "") -> Family:
    return Family(
        keys="fence queue",
        values=values,
        acquire=acquire,
        hand_over=hand_over,
        bell_last=True,
        renew=Step(_RENEW, "token ttl retention", kept, keys=2),
        release=Step(_RELEASE, "token retention ring", released),
        adopt=Step(_ADOPT, "old new ttl retention metadata", fencing_token, keys=2),
        annotate=Step(_ANNOTATE, "token metadata", truth, keys=1),
        owned=Step(_OWNED, "token", truth, keys=1),
        locked=Step(_LOCKED, "", truth, keys=1),
        steal=Step(_STEAL, "token ttl retention metadata", stolen),
        roles="nest",
        read=read_locks,
        passive="fence stolen",
        force=FORCE_LOCK,
        forced="nest queue fence",
    )


LOCKS: Final = _locks(Step(_ACQUIRE, "token ttl retention metadata flags", answer), _HAND_OVER)
_VOTES: Final = _locks(Step(_VOTE, "token ttl retention metadata flags proposed", vote), None, "proposed")


def a_question(prefix: str, session: str) -> Request[bool]:
    """A question that the server answers at once whenever it serves locks: whether some lock is held."""
    return Request(_LOCKED, (key(prefix, "lock", f"healthy.{session}"),), (), truth)


class LockSteps(FamilySteps):
    """The steps of one lock under its name.

    Args:
        session: The session in the queue: an id of which no two sessions have the same.
        kind: The name space; locks of one name in two of them do not know of each other.
        like: Steps of the same lock and session, whose keys it takes over; None: there are none.
    """

    __slots__ = ("_kind", "_name", "_prefix", "_queued", "_session")

    family = LOCKS

    def __init__(
        self,
        prefix: str,
        name: str,
        *,
        retention_ms: int,
        session: str,
        kind: str = "lock",
        like: LockSteps | None = None,
    ) -> None:
        super().__init__(retention_ms)
        self._prefix = prefix
        self._name = name
        self._session = session
        self._kind = kind
        self._keys = keys_of(prefix, kind, name, LOCKS.keys) if like is None else like._keys  # noqa: SLF001 - its own class
        # A lock that is only tried has no bell, and many thousand leases may be held.
        self._queued: tuple[bytes, ...] | None = None if like is None else like._with_bell()  # noqa: SLF001 - as above

    @property
    def bell(self) -> bytes:
        """The key that is deleted to wake this session."""
        return self._with_bell()[-1]

    def _with_bell(self) -> tuple[bytes, ...]:
        queued = self._queued
        if queued is None:
            bell = key(self._prefix, self._kind, self._name, f"bell.{self._session}")
            queued = self._queued = (*self._keys, bell)
        return queued

    def steal(self, token: str, ttl_ms: int, metadata: str) -> Request[Answer]:
        command = super().steal(token, ttl_ms, metadata)
        command.keys += (key(self._prefix, self._kind, self._name, "nest"),)
        return command

    @property
    def held(self) -> tuple[bytes, ...]:
        """The keys of the lease itself, and of its fence."""
        return self._keys[:2]

    def endless(self, refused: Refused) -> str:
        return self._name if tells_no_end(refused) else ""

    def listener(self, token: str) -> Listener:
        return Listener(self.bell, self._keys[2:3], locks=self._keys[:1])

    def wanted(self) -> Wanted | None:
        return Wanted(self._keys[:1])

    def adopt_kept(
        self, old: str, new: str, ttl_ms: int, metadata: str, *, number: int
    ) -> Request[int | None]:
        adopting = self.adopt(old, new, ttl_ms, metadata)
        args = (*adopting.args, str(number))
        return Request(_ADOPT_KEPT, adopting.keys, args, adopting.parse, lane=adopting.lane)

    def _holder(self, token: bytes, left_ms: int, lease: bytes) -> Holder | None:
        return told_lock(left_ms, lease)


@final
class VoteSteps(LockSteps):
    """The steps of a lock on one of several masters.

    The last argument of an acquire is the fencing token that is proposed: 0, unless its sender replaces it.
    """

    __slots__ = ()

    family = _VOTES
    _values = (0,)


@final
class KeptSteps(LockSteps):
    """The steps of a lock that its session may keep between its uses."""

    __slots__ = ()

    @property
    def held_key(self) -> tuple[bytes, ...]:
        """The key that its session tracks."""
        return self._keys[:1]

    def keep(self, token: str, ttl_ms: int, metadata: str, standing: int, numbers: int) -> Request[Answer]:
        """As `acquire`, where its session may keep it; with `numbers` fencing tokens, 0 if it may not."""
        asking = self.acquire(token, ttl_ms, metadata, standing)
        return Request(_KEEP, asking.keys, (*asking.args, numbers), asking.parse, lane=token)

    def release_kept(
        self, token: str, ttl_ms: int, given: int, *, ring: bool = True, leave: bool = False
    ) -> Request[Released]:
        """As `release`; `given` is the last fencing token that was given, 0 if none may have been."""
        release = self.release(token, ttl_ms, ring=ring, leave=leave)
        return Request(_RELEASE_KEPT, release.keys, (*release.args, str(given)), release.parse, lane=token)

    def renew_kept(
        self, token: str, ttl_ms: int, told: Callable[..., object], *, keeps: bool
    ) -> Request[Kept]:
        """As `renew`; `keeps`: its session may keep it. `told` hears whether it was asked for."""

        def read(raw: Any) -> Kept:
            if raw in (1, 2):
                told(asked=raw == 2)
            return kept(raw)

        args = (token, ttl_ms, max(self._retention_ms, 10 * ttl_ms), +keeps)
        return Request(_RENEW_KEPT, self._keys, args, read, lane=token)


def locks_release(releases: Sequence[Request[Released]]) -> Request[Released]:
    """One request for the releases of several unused locks, as `release_kept` makes them; of one slot."""
    keys: list[bytes] = []
    args: list[Argument] = []
    for release in releases:
        token, retention, _, given = release.args
        keys += release.keys
        args += (token, retention, given)
    return Request(_RELEASE_SEVERAL, tuple(keys), tuple(args), released)
