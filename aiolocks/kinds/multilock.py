"""Several locks at once."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, Final, Never, cast, final

from ..errors import ConfigurationError
from ..lock.acquirable import Acquirable
from ..lock.clock import milliseconds
from ..lock.engine import Engine
from ..lock.lease import Binding, Lease, Resource
from ..lock.options import Metadata, OnLost, Options, Seconds, lock_name, reject_unknown
from ..lock.sources import Client
from ..transport.answers import (
    ASK,
    BELL_RUNG,
    GONE,
    NO_END,
    NOT_OURS,
    Answer,
    Kept,
    Refused,
    Released,
    Stolen,
    answer,
    fencing_token,
    kept,
    released,
    truth,
)
from ..transport.cluster.sagas import Adopting, Saga, SagaCommand, Taking, Together
from ..transport.keys import key, slot_of
from ..transport.request import Request, Script
from ..transport.steps.base import FamilySteps, NameSteps
from ..transport.steps.family import Family, Kind, Step
from ..transport.steps.listening import Listener, listening
from ..transport.steps.lock import FORCE_LOCK, read_locks, told_lock
from ..transport.steps.snapshots import Holder
from ..transport.steps.waits import Wanted

_MOST_NAMES: Final = 1000
_ACQUIRE: Final = Script("multi_acquire", "forms", "bells", "fence", "locks", "seats", "recall")
_HAND_OVER: Final = Script(
    "multi_acquire", "forms", "bells", "fence", "locks", "seats", "recall", "hand_over_locks"
)
_ANNOTATE: Final = Script("multi_annotate", "forms", "bells", "locks", mid_move="mid_move_multi")
_ADOPT: Final = Script("multi_adopt", "forms", "bells", "locks", mid_move="mid_move_multi")
_LOCKED: Final = Script("multi_locked", moves=True)
_OWNED: Final = Script("multi_owned", "forms", "bells", "locks", mid_move="mid_move_multi", moves=True)
_RELEASE: Final = Script(
    "multi_release", "forms", "bells", "locks", "stolen", mid_move="mid_move_multi", frees=True
)
_RENEW: Final = Script("multi_renew", "forms", "bells", "locks", "stolen", mid_move="mid_move_multi")


SEVERAL: Final = Family(
    keys="fence queue",
    values="number",
    acquire=Step(_ACQUIRE, "number token ttl retention metadata flags"),
    hand_over=_HAND_OVER,
    bell_last=True,
    renew=Step(_RENEW, "number token ttl retention", kept, keys=2),
    release=Step(_RELEASE, "number token retention ring", released),
    adopt=Step(_ADOPT, "number old new ttl retention metadata", fencing_token, keys=2),
    annotate=Step(_ANNOTATE, "token metadata", truth, keys=1),
    owned=Step(_OWNED, "token", truth, keys=1),
    locked=Step(_LOCKED, "", truth, keys=1),
    read=read_locks,
    passive="fence stolen",
    force=FORCE_LOCK,
    forced="nest queue fence",
)
KINDS: Final = (Kind(SEVERAL, "multilock", "MultiLock", needs=("zscore",), of="lock"),)


@final
class SeveralSteps(FamilySteps):
    """The steps by which all locks of these names are acquired, or none.

    Args:
        part_of: Where these names are a part of a larger set, tells that set from other sets.
    """

    __slots__ = ("_values", "bell", "names", "number")

    family = SEVERAL

    def __init__(
        self, prefix: str, names: Sequence[str], *, retention_ms: int, session: str, part_of: str = ""
    ) -> None:
        super().__init__(retention_ms)
        self.number = len(names)
        self._values = (self.number,)
        self.names = tuple(names)
        self._keys = tuple(key(prefix, "lock", name, role) for role in ("", *SEVERAL.keys) for name in names)
        # One bell in all the queues, called after the first name; it lists the other names as their
        # keys have them, so that a script can tell whether it is a bell of its name. The same names always
        # have the same order.
        place = f"{prefix}:lock:".encode()
        further = [lock.removeprefix(place).hex() for lock in self._locks[1:]]
        listed = ".".join([*further, part_of] if part_of else further)
        self.bell = key(prefix, "lock", names[0], f"bell.{session}.{listed}")

    @property
    def _locks(self) -> tuple[bytes, ...]:
        return self._keys[: self.number]

    def _answer(self, raw: Any) -> Answer:
        found = answer(raw)
        if isinstance(found, Refused) and found.told and (which := found.told[1]):
            found.told = [found.told[0], self.names[which - 1], *found.told[2:]]
        return found

    def _holder(self, token: bytes, left_ms: int, lease: bytes) -> Holder | None:
        return told_lock(left_ms, lease)

    def endless(self, refused: Refused) -> str:
        return endless_of_several(refused)

    def listener(self, token: str) -> Listener:
        return Listener(self.bell, self._keys[2 * self.number :], locks=self._locks)

    def wanted(self) -> Wanted:
        return Wanted(self._locks)

    def watch(self, command: Request[Any]) -> None:
        command.track(command.keys[: self.number])

    def keys(self, *, with_bell: bool) -> tuple[bytes, ...]:
        """Locks, fences and queues, as the scripts want them."""
        return self._with_bell() if with_bell else self._keys


def endless_of_several(refused: Refused) -> str:
    """As `NameSteps.endless`: of the names that were refused, the first whose key has no ttl."""
    name: object = refused.told[1] if refused.told else ""
    return name if isinstance(name, str) else ""


# -- names in several slots
#
# No script reaches more than one slot. So the slots are taken one after the other, in the order of their
# numbers, which is the same for all callers (`Taking`: its states stand in a table at the head of its file).
# This is not one atomic step: for the time of a try, other callers may find taken what is then given back.
#
# The fencing token. Each slot mints one, larger than every earlier one of its own names. The largest is
# written to all names (`multi_seal`), in each slot only where all the locks still carry the token, and the
# lease is given only when every slot has confirmed that. So it is larger than every earlier one of each name;
# and a later holder of one of the names finds it behind that name's fence, and mints a larger one. If a slot
# has lost it meanwhile, nothing is given.

_RETURN: Final = Script("multi_return", "forms", "bells", "locks", frees=True)
_SEAL: Final = Script("multi_seal", "forms", "bells", "locks")


def steps_of(
    prefix: str, names: Sequence[str], *, retention_ms: int, session: str
) -> SeveralSteps | MultiSlotSteps:
    """The steps of these names in a cluster: in one script, where they share a slot."""
    slots: dict[int, list[str]] = {}
    for name in names:
        slots.setdefault(slot_of(key(prefix, "lock", name)), []).append(name)
    if len(slots) == 1:
        return SeveralSteps(prefix, names, retention_ms=retention_ms, session=session)
    # In each slot a bell of its own, which differs from the bells of other sets of names.
    everything = hashlib.sha1("\0".join(names).encode(), usedforsecurity=False).hexdigest()
    parts = [
        SeveralSteps(
            prefix, slots[slot], retention_ms=retention_ms, session=session, part_of=f"of-{everything}"
        )
        for slot in sorted(slots)
    ]
    return MultiSlotSteps(parts, retention_ms=retention_ms)


@final
class MultiSlotSteps(NameSteps):
    """The steps by which all locks of these slots are acquired, or none."""

    __slots__ = ("_parts", "bell", "names")

    def __init__(self, parts: Sequence[SeveralSteps], *, retention_ms: int) -> None:
        super().__init__(retention_ms)
        self._parts = parts
        self.bell = parts[0].bell
        self.names = tuple(name for part in parts for name in part.names)

    @property
    def all_bells(self) -> tuple[bytes, ...]:
        return tuple(part.bell for part in self._parts)

    def acquire(self, token: str, ttl_ms: int, metadata: str, standing: int = 0) -> Request[Answer]:
        def take(slot: int, asking: int) -> Request[Answer]:
            return self._parts[slot].acquire(token, ttl_ms, metadata, asking)

        def seal(slot: int, minted: int, leaving: bool) -> Request[int]:  # noqa: FBT001 - of a callback
            part = self._parts[slot]
            args = (part.number, token, str(minted), self._retention(ttl_ms))
            return Request(_SEAL, part.keys(with_bell=leaving), args, int, lane=token)

        def give_back(slot: int) -> Request[Released]:
            part = self._parts[slot]
            args = (part.number, token, self._retention(ttl_ms))
            return Request(_RETURN, part.keys(with_bell=True), args, released, lane=token)

        def taking() -> Taking:
            return Taking(len(self._parts), take, seal, give_back, standing=standing, seconds=ttl_ms / 1000)

        return self._saga(taking, lane=token)

    def wanted(self) -> Wanted:
        return Wanted(tuple(lock for part in self._parts for lock in part.wanted().keys))

    def endless(self, refused: Refused) -> str:
        return endless_of_several(refused)

    def _holder(self, token: bytes, left_ms: int, lease: bytes) -> Holder | None:
        return told_lock(left_ms, lease)

    def listener(self, token: str) -> Request[int]:
        commands = [listening([part.listener(token)]) for part in self._parts]
        return self._together(commands, _told_by_all, lane=token)

    def watch(self, command: Request[Any]) -> None:
        """Each of the nodes would have to be asked for all: it is renewed as if nothing was heard."""

    def renew(self, token: str, ttl_ms: int) -> Request[Kept]:
        return self._together([part.renew(token, ttl_ms) for part in self._parts], _kept_by_all, lane=token)

    def release(
        self, token: str, ttl_ms: int, *, ring: bool = True, leave: bool = False
    ) -> Request[Released]:
        def ended(answers: list[Released]) -> Released:
            freed = all(answer.freed for answer in answers)
            thief = next((answer.thief for answer in answers if answer.thief), b"")
            rung = [bell for answer in answers for bell in answer.rung]
            return Released(freed=freed, rung=rung, thief=thief)

        commands = [part.release(token, ttl_ms, ring=ring, leave=leave) for part in self._parts]
        return self._together(commands, ended, lane=token)

    def adopt(self, old: str, new: str, ttl_ms: int, metadata: str) -> Request[int | None]:
        def adopt(slot: int) -> Request[int | None]:
            return self._parts[slot].adopt(old, new, ttl_ms, metadata)

        def restore(slot: int) -> Request[int | None]:
            return self._parts[slot].adopt(new, old, ttl_ms, metadata)

        return self._saga(lambda: Adopting(len(self._parts), adopt, restore), lane=min(old, new))

    def annotate(self, token: str, metadata: str) -> Request[bool]:
        return self._together([part.annotate(token, metadata) for part in self._parts], all, lane=token)

    def owned(self, token: str) -> Request[bool]:
        return self._together([part.owned(token) for part in self._parts], all, lane=token)

    def locked(self) -> Request[bool]:
        return self._together([part.locked() for part in self._parts], any, lane="")

    def _together(
        self, commands: Sequence[Request[Any]], told: Callable[[list[Any]], Any], *, lane: str
    ) -> Request[Any]:
        return self._saga(lambda: Together(commands, told), lane=lane)

    def _saga(self, saga: Callable[[], Saga], *, lane: str) -> Request[Any]:
        keys = tuple(key for part in self._parts for key in part.keys(with_bell=False))
        return SagaCommand(saga, keys, lane=lane)


def _kept_by_all(answers: Sequence[Kept]) -> Kept:
    stolen = (answer for answer in answers if isinstance(answer, Stolen))
    return next(stolen, all(answers))


def _told_by_all(answers: Sequence[Sequence[int]]) -> int:
    """The answer to a waiter that wants names in all these slots: it has to wait for each of them."""
    told = [one for (one,) in answers]
    for worst in (NOT_OURS, GONE, BELL_RUNG, NO_END):
        if worst in told:
            return worst
    longest = max(told)
    return max(ASK, longest)


# -- the class


@final
class MultiLock(Acquirable[Lease]):
    """The locks of several names, all of them or none.

    On one server all names are taken in one step. A waiter holds none of them, so it cannot be part of a
    deadlock, in whatever order the names are given. Each name excludes the `Lock`, the `ReentrantLock` and
    every other `MultiLock` of that name.

    ```python
    async with MultiLock(redis, ["account:1", "account:2"]) as lease:
        ...                     # one lease, one fencing token, larger than every earlier one of each name
    ```

    In a Redis Cluster, names of the same slot are taken in one step; names with a common `{hash tag}` have
    the same slot. Names of several slots are not taken in one atomic step. The slots are taken one after the
    other, in the same order by all processes, and given back if one refuses. No lease ever has only a part of
    the names. But during a try, another task may be refused a name that is given back a moment later.

    A `MultiLock` may wait for ever if its names are never free at the same time, because tasks that want only
    one of them come first each time. If this matters, let all of these tasks also take one common lock.

    Options that are not described here are those of `Lock`.

    Args:
        client: `redis.asyncio.Redis`, `RedisCluster`, or an `aiolocks.Session`.
        names: 1 to 1000 names, in any order. A name that is given twice counts once.

    Raises:
        TypeError, ValueError: An argument is wrong; before any I/O.
        ConfigurationError: `confirm=False`, and the names are in several slots of a cluster; at the first
            acquire.
    """

    __slots__ = ("_names",)

    _label: ClassVar[str] = "MultiLock"
    _lease_type = Lease

    def __init__(
        self,
        client: Client,
        names: Iterable[str],
        *,
        ttl: Seconds = 30.0,
        blocking_timeout: Seconds | None = None,
        auto_renew: bool = True,
        max_hold: Seconds | None = None,
        on_lost: OnLost = "cancel",
        metadata: Metadata | None = None,
        grace: Seconds = 0.0,
        confirm: bool = True,
        **unknown: Never,
    ) -> None:
        reject_unknown("MultiLock", unknown)
        options = Options.checked(
            ttl=ttl,
            blocking_timeout=blocking_timeout,
            auto_renew=auto_renew,
            max_hold=max_hold,
            on_lost=on_lost,
            metadata=metadata,
            grace=grace,
            confirm=confirm,
        )
        self._names = _checked(names)
        super().__init__(client, self._names[0], options)
        self._name = ", ".join(self._names)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the locks, sorted. `name` is all of them, separated by commas."""
        return self._names

    def _all_names(self) -> tuple[str, ...]:
        return self._names

    def _held_as(self) -> tuple[str, ...]:
        return self._as_templates()

    def _rename(self, names: tuple[str, ...]) -> None:
        super()._rename(names)
        self._names = _checked(names)
        self._name = ", ".join(self._names)

    def _bind(self) -> Binding[Lease]:
        binding = super()._bind()
        if (kept := binding.engine.kept).live:
            kept.pass_by(self._names)
        return binding

    def _beside(self, engine: Engine) -> str:
        return f',"names":{len(self._names)}' if len(self._names) > 1 else ""

    def _resource(self, engine: Engine) -> Resource:
        make: Callable[..., NameSteps] = steps_of if engine.by_slot else SeveralSteps
        steps = make(
            engine.settings.prefix,
            self._names,
            retention_ms=milliseconds(engine.settings.fence_retention),
            session=engine.session_id,
        )
        if isinstance(steps, MultiSlotSteps) and not self._options.confirm:
            raise ConfigurationError(
                f"confirm=False and names of several slots do not go together, here of {self._label} "
                f"{self._name!r}: each slot is released by a request of its own; give the names a common "
                "{hash tag}, or leave confirm out"
            )
        return Resource(steps, ("multilock", self._names))


def _checked(names: object) -> tuple[str, ...]:
    if isinstance(names, (str, bytes)) or not isinstance(names, Iterable):
        raise TypeError(f"names must be several names, as in ['a', 'b'], not {type(names).__name__}")
    found = sorted({lock_name(name, "each of the names") for name in cast("Iterable[object]", names)})
    if not 1 <= len(found) <= _MOST_NAMES:
        raise ValueError(f"names must be 1 to {_MOST_NAMES} different names, not {len(found)}")
    return tuple(found)
