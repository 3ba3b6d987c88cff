"""The reentrant lock: its owner may take it again."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import weakref
from typing import Any, ClassVar, Final, Never, Self, final

from ..lock.acquirable import AS_CONFIGURED, Acquirable, Pending, gives_pending
from ..lock.clock import milliseconds
from ..lock.engine import Engine
from ..lock.lease import Binding, Lease, Possession, Resource
from ..lock.options import Metadata, OnLost, Options, Seconds, lock_name, reject_unknown
from ..lock.sources import Client
from ..transport.answers import Answer, Granted, Refused, answer, fencing_token, kept, released, truth
from ..transport.keys import key, keys_of
from ..transport.request import Script
from ..transport.steps.base import FamilySteps, tells_no_end
from ..transport.steps.family import Family, Kind, Step
from ..transport.steps.listening import Listener
from ..transport.steps.lock import FORCE_LOCK, read_locks, told_lock
from ..transport.steps.snapshots import Holder
from ..transport.steps.waits import Wanted

_ids: Final[weakref.WeakKeyDictionary[asyncio.Task[Any], str]] = weakref.WeakKeyDictionary()
"""The ids of tasks as owners: the same in every lock, so that any object for a name nests."""


_SHARED: Final = ("forms", "bells", "fence", "locks", "nest")
_ACQUIRE: Final = Script("reentrant_acquire", *_SHARED, "seats", "recall")
_HAND_OVER: Final = Script("reentrant_acquire", *_SHARED, "seats", "recall", "hand_over_nest")
_ANNOTATE: Final = Script("reentrant_annotate", *_SHARED, mid_move="mid_move_nest")
_ADOPT: Final = Script("reentrant_adopt", *_SHARED, mid_move="mid_move_nest")
_LOCKED: Final = Script("reentrant_locked", "forms", "bells", "locks", moves=True)
_OWNED: Final = Script("reentrant_owned", *_SHARED, mid_move="mid_move_nest", moves=True)
_RELEASE: Final = Script("reentrant_release", *_SHARED, "stolen", mid_move="mid_move_nest", frees=True)
_RENEW: Final = Script("reentrant_renew", *_SHARED, "stolen", mid_move="mid_move_nest")
_STEAL: Final = Script("reentrant_steal", *_SHARED, "stolen")

OWNER_LENGTH: Final = 32


def _stolen(raw: Any) -> Answer:
    return Granted(int(raw[1]), raw[2], lost=raw[3], depth=raw[4])


def _granted(raw: Any) -> Answer:
    if raw[0]:
        return Granted(int(raw[1]), raw[2], depth=raw[3])
    return answer(raw)


NESTED: Final = Family(
    keys="fence queue nest",
    values="owner",
    acquire=Step(_ACQUIRE, "token ttl retention metadata flags", _granted),
    hand_over=_HAND_OVER,
    bell_last=True,
    renew=Step(_RENEW, "token ttl retention", kept),
    release=Step(_RELEASE, "token retention ring", released),
    # The metadata beside the lock is that of the lease that took it first.
    adopt=Step(_ADOPT, "old new ttl retention", fencing_token),
    annotate=Step(_ANNOTATE, "token metadata", truth),
    owned=Step(_OWNED, "token", truth),
    locked=Step(_LOCKED, "owner", truth, keys=1),
    steal=Step(_STEAL, "token ttl retention metadata", _stolen),
    roles="nest",
    read=read_locks,
    passive="fence stolen",
    force=FORCE_LOCK,
    forced="nest queue fence",
)
KINDS: Final = (Kind(NESTED, "reentrantlock", "ReentrantLock", needs=("zrangebyscore", "zscore"), of="lock"),)


@final
class ReentrantSteps(FamilySteps):
    """The steps of one lock for one owner. A token begins with its owner.

    Args:
        owner: An id of 32 hexadecimal characters.
        apart: Waits apart from the waiters for the simple lock of this name.
    """

    __slots__ = ("_name", "_owner", "_values", "bell")

    family = NESTED

    def __init__(
        self, prefix: str, name: str, *, owner: str, apart: bool, retention_ms: int, session: str
    ) -> None:
        super().__init__(retention_ms)
        self._name = name
        self._owner = owner
        self._values = (owner,)
        self._keys = keys_of(prefix, "lock", name, NESTED.keys)
        self.bell = key(prefix, "lock", name, f"bell.{session}" + (f".{owner[:16]}" if apart else ""))

    @property
    def nests(self) -> bool:
        return True

    def owner(self, token: str) -> str:
        return token[:OWNER_LENGTH]

    def new_token(self, old: str, fresh: str) -> str:
        return (old[:OWNER_LENGTH] or self._owner) + fresh

    def endless(self, refused: Refused) -> str:
        return self._name if tells_no_end(refused) else ""

    def listener(self, token: str) -> Listener:
        return Listener(self.bell, self._keys[2:3], owner=self.owner(token), locks=self._keys[:1])

    def wanted(self) -> Wanted:
        return Wanted(self._keys[:1])

    def _holder(self, token: bytes, left_ms: int, lease: bytes) -> Holder | None:
        return told_lock(left_ms, lease)


# -- the classes


@final
class ReentrantLease(Lease):
    """A lease of an owner on a `ReentrantLock`. The owner may have several."""

    __slots__ = ("_depth",)

    def __init__(self, binding: Binding[Any], possession: Possession, grant: Granted) -> None:
        super().__init__(binding, possession, grant)
        self._depth = grant.depth
        if grant.depth > 1:
            possession.confirms = True  # the name stays taken: only the outermost exit gains by not waiting

    @property
    def depth(self) -> int:
        """How many leases the owner had when this one was acquired, with this one: 1 for the outermost."""
        return self._depth


@final
class ReentrantLock(Acquirable[ReentrantLease]):
    """A lock that its holder can acquire again, without waiting for itself.

    ```python
    async def transfer():
        async with ReentrantLock(redis, "orders:17"):
            await audit()               # acquires it once more, at once

    async def audit():
        async with ReentrantLock(redis, "orders:17") as lease:
            ...                         # lease.depth is 2, the fencing token that of the outer lease
    ```

    The owner is the task that *calls* `acquire()`. A child task is another owner: a task of `gather` or of a
    `TaskGroup`, and up to Python 3.11 the task that `asyncio.wait_for` makes. A child that acquires the lock
    waits for its parent. If several tasks or processes must be one owner, give them all the same `owner`.

    A task that adopts a lease does not become its owner. If this task acquires the lock again, it is another
    owner.

    Each acquisition has a lease with its own time. The lock is free when the last lease was released or has
    ended. A nested lease never shortens the time of an outer one. `Lock` and `MultiLock` of the same name
    exclude it.

    Options that are not described here are those of `Lock`.

    Args:
        client: `redis.asyncio.Redis`, `RedisCluster`, or an `aiolocks.Session`.
        name: Any non-empty str of at most 1 KiB in UTF-8.
        owner: The owner, as a non-empty str of at most 1 KiB. Default None: the task that acquires.
        metadata: JSON values kept with the outermost lease. Every user that can read the key can read them.
        confirm: As of `Lock`, for the end of the outermost block. The end of a nested block waits.

    Raises:
        TypeError, ValueError: An argument is wrong; before any I/O.
    """

    __slots__ = ("_apart", "_of_tasks", "_owner")

    _label: ClassVar[str] = "ReentrantLock"
    _can_be_stolen = True
    _lease_type = ReentrantLease

    def __init__(
        self,
        client: Client,
        name: str,
        *,
        owner: str | None = None,
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
        reject_unknown("ReentrantLock", unknown)
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
        super().__init__(client, name, options)
        self._owner = "" if owner is None else _id_of(lock_name(owner, "owner"))
        self._apart = owner is not None
        self._of_tasks: weakref.WeakKeyDictionary[asyncio.Task[Any], Self] = weakref.WeakKeyDictionary()

    @gives_pending
    def acquire(
        self,
        *positional: Never,
        blocking_timeout: Seconds | None = AS_CONFIGURED,
        steal: bool = False,
        **unknown: Never,
    ) -> Pending[ReentrantLease]:
        """Acquires the lock for its owner: the task that calls this or, if it was given, `owner`.

        See `Lock.acquire`, also for its errors and for a cancellation.
        """
        return super(ReentrantLock, self._of_owner()).acquire(
            *positional, blocking_timeout=blocking_timeout, steal=steal, **unknown
        )

    @gives_pending
    def try_acquire(self, *positional: Never, **unknown: Never) -> Pending[ReentrantLease | None]:
        """Acquires the lock for its owner at once, or returns None.

        See `Lock.try_acquire`, also for its errors and for a cancellation.
        """
        return super(ReentrantLock, self._of_owner()).try_acquire(*positional, **unknown)

    def _of_owner(self) -> Self:
        """The same lock, for the caller."""
        if self._owner:
            return self
        try:
            task = asyncio.current_task()
        except RuntimeError:  # called before there is a loop: the task that runs it is the owner
            task = None
        if task is None:
            return self
        found = self._of_tasks.get(task)
        if found is None:
            found = self._of_tasks[task] = object.__new__(type(self))
            super(ReentrantLock, found).__init__(self._source, self._name, self._options)
            found._owner = _ids.setdefault(task, secrets.token_hex(16))
            found._apart = False
        return found

    def _bind(self) -> Binding[ReentrantLease]:
        binding = super(ReentrantLock, self._of_owner())._bind()
        # In a queue of its own, it meets no lease of the name that its session keeps.
        if self._apart and (keep := binding.engine.kept).live:
            keep.pass_by((self._name,))
        return binding

    def _rename(self, names: tuple[str, ...]) -> None:
        super()._rename(names)
        self._of_tasks = weakref.WeakKeyDictionary()

    def _resource(self, engine: Engine) -> Resource:
        steps = ReentrantSteps(
            engine.settings.prefix,
            self._name,
            owner=self._owner,
            apart=self._apart,
            retention_ms=milliseconds(engine.settings.fence_retention),
            session=engine.session_id,
        )
        # Other processes may have the same named owner. So it must not wait behind a waiter of this session:
        # it may hold the lock already. A task is an owner in this process alone, and waits in one queue with
        # the tasks that want the simple lock.
        gate_key = ("lock", self._name, self._owner) if self._apart else ("lock", self._name)
        return Resource(steps, gate_key)


def _id_of(owner: str) -> str:
    """The id of an owner of that name in keys: of the same length as the ids of tasks."""
    return hashlib.sha256(owner.encode()).hexdigest()[:32]
