"""Kinds with several permits: semaphores, and the fair lock, of which there is one permit."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Final, Never, Self, cast, final

from ..errors import ConfigurationError
from ..lock.acquirable import AS_CONFIGURED, Acquirable, Pending, gives_pending
from ..lock.clock import milliseconds
from ..lock.engine import Engine
from ..lock.lease import Lease, QueuePolicy, Resource
from ..lock.options import Metadata, OnLost, Options, Seconds, flag, reject_unknown, whole_number
from ..lock.sources import Client
from ..transport.answers import Answer, Refused, answer, fencing_token, kept, released, stolen, truth
from ..transport.keys import keys_of
from ..transport.request import Request, Script
from ..transport.steps.base import SEAT_LENGTH, FamilySteps, NameSteps, tokens_told, told_all
from ..transport.steps.checks import ID, TOKEN, after, not_ours, of_others, without_ttl, wrong_types
from ..transport.steps.family import Family, Kind, Step
from ..transport.steps.listening import Listener
from ..transport.steps.snapshots import Content, Holder, Snapshot, of_nobody
from ..transport.steps.snapshots import whole_number as number_in
from ..transport.steps.waits import Wanted

SHARED: Final = ("forms", "bells", "fence", "queue", "permits")
_ACQUIRE: Final = Script("permits_acquire", *SHARED)
_HAND_OVER: Final = Script("permits_acquire", *SHARED, "hand_over_permits")
ANNOTATE: Final = Script("permits_annotate", *SHARED, mid_move="mid_move_permits")
ADOPT: Final = Script("permits_adopt", *SHARED, mid_move="mid_move_permits")
AVAILABLE: Final = Script("permits_available", *SHARED)
OWNED: Final = Script("permits_owned", *SHARED, mid_move="mid_move_permits")
_RELEASE: Final = Script("permits_release", *SHARED, "stolen", mid_move="mid_move_permits", frees=True)
RENEW: Final = Script("permits_renew", *SHARED, "stolen", mid_move="mid_move_permits")
_STEAL: Final = Script("permits_steal", *SHARED, "stolen")
_RESIZE: Final = Script("permits_resize", *SHARED)
FORCE_PERMITS: Final = Script("force_permits", "bells", "stolen", "forcing")

_VALUE_RETENTION_MS: Final = 24 * 3600 * 1000
_LEASE: Final = re.compile(rb"(\d{1,16}):(\d{1,16}):(.*)", re.DOTALL)
_FAIR: Final = QueuePolicy(strict=True, quiet=True)
_UNFAIR: Final = QueuePolicy(quiet=True)
_ALONE: Final = QueuePolicy(exclusive=True, strict=True, quiet=True)
_MOST: Final = 2**31


# -- the holders, as they stand on the server


def told_permits(token: bytes, left_ms: int, lease: bytes) -> Holder | None:
    """A holder of permits, as a refusal tells of it; None for what is not ours."""
    match = _LEASE.fullmatch(lease)
    if match is None:
        return None
    holder = Holder((token.decode(errors="replace"),), int(match[2]), left_ms, match[3])
    return holder._replace(permits=int(match[1]))


def read_permits(
    now_us: int,
    found: Mapping[str, Content],
    numbers: tuple[bytes, ...] = (b"first", b"current"),
    *,
    told: Callable[[bytes, int, bytes], Holder | None] = told_permits,
) -> Snapshot:
    """A kind with several permits. Where there is a value, it has these `numbers`; `told` reads a lease."""
    if wrong := wrong_types({"": "zset", "leases": "hash", "value": "hash"}, found):
        return Snapshot(now_us, stands=True, problems=wrong)
    leases: dict[bytes, bytes] = found["leases"].value if found["leases"] else {}
    deadlines: dict[bytes, bytes] = found[""].value if found[""] else {}
    holders: list[Holder] = []
    foreign = not_ours(found, ("", "leases"))
    problems = list(foreign)
    kept: Holder | None = None
    for token, left_ms in after(found[""], now_us).items():
        if ID.fullmatch(token) is None:
            continue
        holder = told(token, left_ms, leases.get(token, b""))
        if holder is None:
            problems.append("half of a lease is missing")
        elif of_nobody(holder):
            kept = holder
        else:
            holders.append(holder)
    if any(map(TOKEN.fullmatch, leases.keys() - deadlines.keys())):
        problems.append("half of a lease is missing")
    problems += without_ttl(found[""], found["leases"], ours=not foreign)
    values: dict[bytes, bytes] = found["value"].value if found["value"] else {}
    value = number_in(values.get(b"current"))
    if values and None in map(number_in, map(values.get, numbers)):
        problems.append(of_others("value"))
    return Snapshot(
        now_us,
        tuple(holders),
        value,
        stands=bool(holders or problems or kept),
        problems=tuple(dict.fromkeys(problems)),
        kept=kept,
    )


# -- the steps

KEYS: Final = "leases value fence queue bell"
ACQUIRES: Final = "token ttl retention metadata n value seat flags lasts"
RENEWS: Final = "token ttl retention lasts seat"
RELEASES: Final = "token retention seat ring"
ADOPTS: Final = "old new ttl retention metadata"
STEALS: Final = "token ttl retention metadata"
ANNOTATES: Final = "token metadata"
PERMITS: Final = Family(
    keys=KEYS,
    values="n value fair",
    acquire=Step(_ACQUIRE, ACQUIRES),
    hand_over=_HAND_OVER,
    renew=Step(RENEW, RENEWS, kept),
    release=Step(_RELEASE, RELEASES, released),
    adopt=Step(ADOPT, ADOPTS, fencing_token),
    annotate=Step(ANNOTATE, ANNOTATES, truth),
    owned=Step(OWNED, "token", truth),
    steal=Step(_STEAL, STEALS, stolen),
    roles="leases value",
    read=read_permits,
    passive="fence value stolen",
    seat=SEAT_LENGTH,
    force=FORCE_PERMITS,
    forced="leases queue value fence",
)


class PermitSteps(FamilySteps):
    """The steps by which `n` permits of one name are acquired at once.

    Args:
        kind: The kind whose name space it is.
        permits: How many, as one lease.
        value: How many there are, as it was first made; None for one, for ever.
        fair: First come, first served.
        family: Of a kind that keeps more beside the permits, its further keys and its own scripts.
    """

    __slots__ = ("_name", "_permits", "_strict", "_value", "_values", "bell", "family")

    _lasts_ms = _VALUE_RETENTION_MS

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
        family: Family = PERMITS,
    ) -> None:
        super().__init__(retention_ms)
        self.family = family
        self._name = name
        self._permits = permits
        self._value: int | str = "" if value is None else value
        self._strict = fair
        self._values = (permits, self._value, "t" if fair else "")
        # Waiters for another number have another bell.
        bell = f"bell.{session}.{permits}{'.fair' if fair else ''}"
        roles = [bell if role == "bell" else role for role in family.keys]
        self._keys = keys_of(prefix, kind, name, roles)
        self.bell = self._keys[5]

    def listener(self, token: str) -> Listener:
        return Listener(self.bell, self._keys[4:5], self._seat(token), deadlines=self._keys[:1])

    def wanted(self) -> Wanted:
        return Wanted(self._keys[:1], self._permits, 1 if self._value == "" else None)

    def locked(self) -> Request[bool]:
        return Request(AVAILABLE, self._keys, self._values[1:], self._too_few)

    def available(self) -> Request[int]:
        """How many permits could be had now."""
        return Request(AVAILABLE, self._keys, self._values[1:], self._number)

    def resize(self, value: int) -> Request[Sequence[bytes]]:
        """Sets how many there are from now on; the bells of the waiters that were woken."""
        args = (self._value, value, _VALUE_RETENTION_MS, self._seat("1" * SEAT_LENGTH))
        return Request(_RESIZE, self._keys, args, self._rung)

    def excluded_by(self, own: Sequence[tuple[NameSteps, str]], refused: Refused) -> bool:
        """Whether there are too few permits beside the task's own, however many other holders give back."""
        held = {token: permits for steps, token in own if (permits := self._shared_with(steps))}
        if not held or not refused.told:
            return False
        if told_all(refused) and not tokens_told(refused).issuperset(held):
            return False  # a lease was lost, and this session does not know yet
        value: int = refused.told[1]
        return self._permits > value - sum(held.values())

    def _shared_with(self, other: NameSteps) -> int:
        """How many permits of this name a lease of the given steps has."""
        if not isinstance(other, PermitSteps) or other._keys[0] != self._keys[0]:  # noqa: SLF001
            return 0
        return other._permits  # noqa: SLF001 - its own class, as above

    def _holder(self, token: bytes, left_ms: int, lease: bytes) -> Holder | None:
        return told_permits(token, left_ms, lease)

    def _too_few(self, raw: Any) -> bool:
        return self._number(raw) < self._permits

    def _number(self, raw: Any) -> int:
        if isinstance(raw, list):
            first, current = cast("list[int]", raw)
            raise self._made_otherwise(first, current)
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


# -- The steps that jobs and schedules share: a run is a permit, under the first six of their keys.

RUN_ADOPT: Final = Step(ADOPT, ADOPTS, fencing_token, keys=6)
RUN_ANNOTATE: Final = Step(ANNOTATE, ANNOTATES, truth, keys=6)
RUN_OWNED: Final = Step(OWNED, "token", truth, keys=6)


def _none(raw: Any) -> bool:
    return int(raw) < 1


RUN_LOCKED: Final = Step(AVAILABLE, "none fair", _none, keys=6)


class RunSteps(FamilySteps):
    """The steps of one that runs."""

    __slots__ = ()

    def _holder(self, token: bytes, left_ms: int, lease: bytes) -> Holder | None:
        return told_permits(token, left_ms, lease)


# -- the classes


@final
class Semaphore(Acquirable[Lease]):
    """A number of permits, which any number of processes share.

    ```python
    crawlers = Semaphore(redis, "crawlers", 10)
    async with crawlers:                    # one permit
        ...
    async with crawlers.acquire(3):         # three at once, or none: one lease
        ...
    ```

    Each lease has its own end: the permits of a holder that died are back one ttl later, whatever other
    holders renew. All users of a name give the same `value`. While a task holds or waits, a different `value`
    is refused; when no task does, it replaces the old one. `resize` changes the number of permits for all
    users, while the name is in use and for 24 h after, whatever their `value`.

    Permits that come back go to waiters of the same process first, as with a `Lock`. With `fair=True`,
    waiters get them in the order in which they asked, over all processes: then no waiter for a few permits
    overtakes a waiter for many. Without it, a waiter for many may wait for ever, if other tasks keep taking
    the permits that come back. Give all users of a name the same `fair`: a user without it overtakes the
    queue.

    Options that are not described here are those of `Lock`.

    Args:
        client: `redis.asyncio.Redis`, `RedisCluster`, or an `aiolocks.Session`.
        name: Any non-empty str of at most 1 KiB in UTF-8.
        value: How many permits there are, 1 to 2**31.
        fair: Whether waiters get permits in the order in which they asked.

    Raises:
        TypeError, ValueError: An argument is wrong; before any I/O.
    """

    __slots__ = ("_fair", "_of_several", "_permits", "_value")

    _label: ClassVar[str] = "Semaphore"
    _lease_type = Lease

    def __init__(
        self,
        client: Client,
        name: str,
        value: int,
        *,
        fair: bool = False,
        ttl: Seconds = 30.0,
        blocking_timeout: Seconds | None = None,
        auto_renew: bool = True,
        max_hold: Seconds | None = None,
        on_lost: OnLost = "cancel",
        metadata: Metadata | None = None,
        grace: Seconds = 0.0,
        replicas: int = 0,
        confirm: bool = True,
        **unknown: Never,
    ) -> None:
        reject_unknown("Semaphore", unknown)
        options = Options.checked(
            ttl=ttl,
            blocking_timeout=blocking_timeout,
            auto_renew=auto_renew,
            max_hold=max_hold,
            on_lost=on_lost,
            metadata=metadata,
            grace=grace,
            replicas=replicas,
            confirm=confirm,
        )
        super().__init__(client, name, options)
        self._value = whole_number("value", value, most=_MOST)
        self._fair = flag("fair", fair)
        self._permits = 1
        self._of_several: dict[int, Self] = {}

    @property
    def value(self) -> int:
        """The number of permits that was given when this object was made; `resize` does not change it."""
        return self._value

    @property
    def fair(self) -> bool:
        """Whether waiters get permits in the order in which they asked."""
        return self._fair

    @gives_pending
    def acquire(  # noqa: D417 - there are no unknown arguments to describe
        self,
        n: int = 1,
        *positional: Never,
        blocking_timeout: Seconds | None = AS_CONFIGURED,
        steal: bool = False,
        **unknown: Never,
    ) -> Pending[Lease]:
        """Acquires `n` permits as one lease, and waits up to `blocking_timeout` for them.

        Args:
            n: How many permits, all at once or none: up to `value`, or up to the number that `resize` has
                set. While `resize` has set fewer than `n`, an `n` up to `value` waits, and a warning in the
                log says so. Default 1.
            blocking_timeout: Seconds to wait; 0 for a single try; None for ever. Default: the semaphore's
                own.

        Raises:
            ValueError: `n` is more than `value`, so it could never be acquired.
            LockTimeoutError: Not acquired within `blocking_timeout`; it names some of the holders.
            DeadlockError: There is no `blocking_timeout`, and this task itself holds too many of the permits.
            ConfigurationError: A task holds permits or waits for them with another `value`.
            BackendError: Redis refused for good, or gave no answer at all: within `blocking_timeout` or,
                without one, for `ttl` seconds.
            SessionClosedError: The session is closed, or was closed meanwhile.

        Cancelled at any point, nothing stays held, and the next waiter goes on.
        """
        several = self._several(n)
        return super(Semaphore, several).acquire(
            *positional, blocking_timeout=blocking_timeout, steal=steal, **unknown
        )

    @gives_pending
    def try_acquire(  # noqa: D417 - see above
        self, n: int = 1, *positional: Never, **unknown: Never
    ) -> Pending[Lease | None]:
        """Acquires `n` permits at once, or returns None. It never waits in the queue.

        Args:
            n: How many permits, all at once or none. Default 1.

        Raises:
            ConfigurationError: Tasks use it with another `value`. Or `n` is more than `value` and more than
                `resize` has set, so no release could bring that many; this error is also a `ValueError`.
            BackendError: Redis refused, could not be reached, or did not answer within the session's
                `command_timeout`.
            SessionClosedError: The session is closed.

        Cancelled at any point, nothing stays held.
        """
        several = self._several(n)
        return super(Semaphore, several).try_acquire(*positional, **unknown)

    async def available(self) -> int:
        """Asks the server how many permits could be acquired now; 0 if it is fair and a task waits.

        Raises:
            ConfigurationError: A task holds permits or waits for them with another `value`.
            BackendError: Redis refused, could not be reached, or did not answer within the session's
                `command_timeout`.
            SessionClosedError: The session is closed.
        """
        binding = self._bind()
        return await binding.engine.ask(self._steps(binding.engine).available())

    async def resize(self, value: int) -> None:
        """Sets how many permits there are, for all users of the name, and wakes waiters that may enter now.

        Leases stay held. If there are fewer permits than before, more may be held until enough of them come
        back. With 0 the semaphore is closed: no task enters, and waiters wait until a later `resize` opens
        it. The `value` that it is made with stays the same.

        Args:
            value: How many, 0 to 2**31.

        Raises:
            TypeError, ValueError: `value` is wrong; before any I/O.
            ConfigurationError: A task holds permits or waits for them with another `value`.
            BackendError: Redis refused, could not be reached, or did not answer within the session's
                `command_timeout`.
            SessionClosedError: The session is closed.

        After a cancellation or an error, the server may have done it or not. A second call does no harm.
        """
        number = whole_number("value", value, least=0, most=_MOST)
        engine = self._bind().engine
        wake_own = functools.partial(engine.bells.rung, "local")
        await engine.ask(self._steps(engine).resize(number), told=wake_own)

    def _several(self, n: int) -> Self:
        """The same semaphore, of which `n` permits are one lease."""
        number = whole_number("n", n, most=_MOST)
        if number == self._permits:
            return self
        found = self._of_several.get(number)
        if found is None:
            found = self._of_several[number] = self._alike(number)
        return found

    def _bound_as(self) -> tuple[str, int, int, bool]:
        return self._name, self._permits, self._value, self._fair

    def _resource(self, engine: Engine) -> Resource:
        gate_key = ("semaphore", self._name, self._permits, self._fair)
        return Resource(self._steps(engine), gate_key, _FAIR if self._fair else _UNFAIR)

    def _steps(self, engine: Engine) -> PermitSteps:
        return PermitSteps(
            engine.settings.prefix,
            "semaphore",
            self._name,
            permits=self._permits,
            value=self._value,
            fair=self._fair,
            retention_ms=milliseconds(engine.settings.fence_retention),
            session=engine.session_id,
        )

    def _alike(self, permits: int) -> Self:
        alike = self._renamed((self._name,))
        alike._permits = permits  # noqa: SLF001 - of this very class
        return alike

    def _rename(self, names: tuple[str, ...]) -> None:
        super()._rename(names)
        self._of_several = {}

    def __repr__(self) -> str:
        fair = " fair" if self._fair else ""
        return f"<Semaphore {self._name!r} value={self._value}{fair} ttl={self._options.ttl:g}>"


@final
class FairLock(Acquirable[Lease]):
    """A lock that waiters get in the order in which they asked for it, over all processes.

    A `Lock` is handed over within a process before other processes get it, which is faster. With a `FairLock`
    no waiter overtakes another, so a hand-over may go from process to process. The order is the order in
    which the requests reach the server.

    ```python
    async with FairLock(redis, "printer"):
        ...
    ```

    A waiter keeps its place by a sign of life that its session sends, and that lasts 2 s. Waiters that die,
    however many, delay the next one by at most these 2 s. `try_acquire` does not overtake either: it is
    refused while a task waits.

    It has a name space of its own: a `FairLock` and a `Lock` of the same name are separate locks.

    Options that are not described here are those of `Lock`.

    Args:
        client: `redis.asyncio.Redis`, `RedisCluster`, or an `aiolocks.Session`.
        name: Any non-empty str of at most 1 KiB in UTF-8.

    Raises:
        TypeError, ValueError: An argument is wrong; before any I/O.
    """

    __slots__ = ()

    _label: ClassVar[str] = "FairLock"
    _can_be_stolen = True
    _lease_type = Lease

    def __init__(
        self,
        client: Client,
        name: str,
        *,
        ttl: Seconds = 30.0,
        blocking_timeout: Seconds | None = None,
        auto_renew: bool = True,
        max_hold: Seconds | None = None,
        on_lost: OnLost = "cancel",
        metadata: Metadata | None = None,
        grace: Seconds = 0.0,
        replicas: int = 0,
        at_least: Seconds = 0.0,
        confirm: bool = True,
        **unknown: Never,
    ) -> None:
        reject_unknown("FairLock", unknown)
        options = Options.checked(
            ttl=ttl,
            blocking_timeout=blocking_timeout,
            auto_renew=auto_renew,
            max_hold=max_hold,
            on_lost=on_lost,
            metadata=metadata,
            grace=grace,
            replicas=replicas,
            at_least=at_least,
            confirm=confirm,
        )
        super().__init__(client, name, options)

    def _bound_as(self) -> str:
        return self._name

    def _resource(self, engine: Engine) -> Resource:
        steps = PermitSteps(
            engine.settings.prefix,
            "fairlock",
            self._name,
            permits=1,
            value=None,
            fair=True,
            retention_ms=milliseconds(engine.settings.fence_retention),
            session=engine.session_id,
        )
        return Resource(steps, ("fairlock", self._name), _ALONE)


NEEDS: Final = ("hdel", "hexists", "hget", "hincrby", "hkeys", "hlen", "hset", "zrangebyscore", "zscore")
KINDS: Final = (
    Kind(PERMITS, "fairlock", "FairLock", needs=NEEDS),
    Kind(PERMITS, "semaphore", "Semaphore", value="", needs=NEEDS),
)
