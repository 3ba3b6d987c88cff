"""Several locks at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, Final, Never, cast, final

from ..lock.acquirable import Acquirable
from ..lock.claim import Resource
from ..lock.clock import milliseconds
from ..lock.context import Context
from ..lock.lease import Lease
from ..lock.options import Metadata, OnLost, Options, Seconds, lock_name, reject_unknown
from ..transport.answers import Answer, Refused, answer, fencing_token, kept, released, truth
from ..transport.commands.base import FamilySteps, NameSteps
from ..transport.commands.family import Family, Kind, Step
from ..transport.commands.listening import Listener
from ..transport.commands.lock import FORCE_LOCK, read_locks, told_lock
from ..transport.commands.snapshots import Holder
from ..transport.commands.waits import Wanted
from ..transport.keys import key
from ..transport.request import Command, Script

_MOST_NAMES: Final = 1000


_ACQUIRE: Final = Script("multi_acquire", "forms", "bells", "fence", "locks", "seats")
_HAND_OVER: Final = Script("multi_acquire", "forms", "bells", "fence", "locks", "seats", "hand_over_locks")
_ANNOTATE: Final = Script("multi_annotate", "forms", "bells", "locks", mid_move="mid_move_multi")
_ADOPT: Final = Script("multi_adopt", "forms", "bells", "locks", mid_move="mid_move_multi")
_LOCKED: Final = Script("multi_locked")
_OWNED: Final = Script("multi_owned", "forms", "bells", "locks", mid_move="mid_move_multi")
_RELEASE: Final = Script("multi_release", "forms", "bells", "locks", "stolen", mid_move="mid_move_multi")
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
        part_of: Of more names than these, what tells them from others.
    """

    __slots__ = ("_names", "_values", "bell", "number")

    family = SEVERAL

    def __init__(
        self, prefix: str, names: Sequence[str], *, retention_ms: int, session: str, part_of: str = ""
    ) -> None:
        super().__init__(retention_ms)
        self.number = len(names)
        self._values = (self.number,)
        self._names = tuple(names)
        self._keys = tuple(key(prefix, "lock", name, role) for role in ("", *SEVERAL.keys) for name in names)
        # One bell in all the queues, called after the first name; it lists the others as their keys have
        # them, so that a script can tell whether it is a bell of its name. The same names always have the
        # same order.
        place = f"{prefix}:lock:".encode()
        others = [lock.removeprefix(place).hex() for lock in self._locks[1:]]
        listed = ".".join([*others, part_of] if part_of else others)
        self.bell = key(prefix, "lock", names[0], f"bell.{session}.{listed}")

    @property
    def _locks(self) -> tuple[bytes, ...]:
        return self._keys[: self.number]

    def _answer(self, raw: Any) -> Answer:
        found = answer(raw)
        if isinstance(found, Refused) and found.told and (which := found.told[1]):
            found.told = [found.told[0], self._names[which - 1], *found.told[2:]]
        return found

    def _holder(self, token: bytes, left_ms: int, lease: bytes) -> Holder | None:
        return told_lock(left_ms, lease)

    def endless(self, refused: Refused) -> str:
        return endless_of_several(refused)

    def listener(self, token: str) -> Listener:
        return Listener(self.bell, self._keys[2 * self.number :], locks=self._locks)

    def wanted(self) -> Wanted:
        return Wanted(self._locks)

    def watch(self, command: Command[Any]) -> None:
        command.watched = command.keys[: self.number]

    def keys(self, *, with_bell: bool) -> tuple[bytes, ...]:
        """Locks, fences and queues, as the scripts want them."""
        return self._with_bell() if with_bell else self._keys


def endless_of_several(refused: Refused) -> str:
    """As `NameSteps.endless`: of the names that were refused, the first whose key has no ttl."""
    name: object = refused.told[1] if refused.told else ""
    return name if isinstance(name, str) else ""


# -- the class


@final
class MultiLock(Acquirable[Lease]):
    """The locks of several names, all of them or none.

    On one server all names are taken in one step. A waiter holds none of them, so it cannot take part in a
    deadlock, whatever the order of the names. Each name excludes the `Lock`, the `ReentrantLock` and every
    other `MultiLock` of that name.

    ```python
    async with MultiLock(redis, ["account:1", "account:2"]) as lease:
        ...                     # one lease, one fencing token, larger than every earlier one of each name
    ```

    In a Redis Cluster, names that share a slot, as those with a common `{hash tag}` do, are taken in one
    step. Over several slots it is not one atomic step: the slots are taken one after the other, in one order
    for all, and given back if one refuses. No lease ever holds a part of them; but for the time of a try,
    others may be refused a name that is then given back.

    It makes no promise of progress for names that are never free at the same time: a task that wants one of
    them only may always come first. Where that matters, let all take one more lock in common.

    Options that have no text here are those of `Lock`.

    Args:
        client: `redis.asyncio.Redis`, `RedisCluster`, or an `aiolocks.Session`.
        names: 1 to 1000 names, in any order; one that is given twice counts once.

    Raises:
        TypeError, ValueError: An argument is not as it should be; before any I/O.
    """

    __slots__ = ("_names",)

    _label: ClassVar[str] = "MultiLock"
    _lease_type = Lease

    def __init__(
        self,
        client: Any,
        names: Iterable[str],
        *,
        ttl: Seconds = 30.0,
        blocking_timeout: Seconds | None = None,
        auto_renew: bool = True,
        max_hold: Seconds | None = None,
        on_lost: OnLost = "cancel",
        metadata: Metadata | None = None,
        grace: Seconds = 0.0,
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
        )
        self._names = _checked(names)
        super().__init__(client, self._names[0], options)
        self._name = ", ".join(self._names)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the locks, sorted; `name` is all of them, separated by commas."""
        return self._names

    def _all_names(self) -> tuple[str, ...]:
        return self._names

    def _rename(self, names: tuple[str, ...]) -> None:
        super()._rename(names)
        self._names = _checked(names)
        self._name = ", ".join(self._names)

    def _beside(self, engine: Context) -> str:
        return f',"names":{len(self._names)}' if len(self._names) > 1 else ""

    def _resource(self, engine: Context) -> Resource:
        make: Callable[..., NameSteps] = SeveralSteps
        if engine.by_slot:
            from .multislot import steps_of as make  # noqa: PLC0415 - few need it
        commands = make(
            engine.settings.prefix,
            self._names,
            retention_ms=milliseconds(engine.settings.fence_retention),
            session=engine.session_id,
        )
        return Resource(commands, ("multilock", self._names))


def _checked(names: object) -> tuple[str, ...]:
    if isinstance(names, (str, bytes)) or not isinstance(names, Iterable):
        raise TypeError(f"names must be several names, as in ['a', 'b'], not {type(names).__name__}")
    found = sorted({lock_name(name, "each of the names") for name in cast("Iterable[object]", names)})
    if not 1 <= len(found) <= _MOST_NAMES:
        raise ValueError(f"names must be 1 to {_MOST_NAMES} different names, not {len(found)}")
    return tuple(found)
