"""Limits: permits of several keys at once."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final, NamedTuple, Never, cast, final
from urllib.parse import quote, unquote

from ..lock.acquirable import Acquirable
from ..lock.clock import milliseconds
from ..lock.engine import Engine
from ..lock.lease import Lease, QueuePolicy, Resource
from ..lock.options import Metadata, OnLost, Options, Seconds, lock_name, reject_unknown, whole_number
from ..lock.sources import Client
from ..transport.answers import (
    QUEUE_TTL_MS,
    Answer,
    Refused,
    answer,
    fencing_token,
    kept,
    released,
    truth,
)
from ..transport.keys import keys_of
from ..transport.request import Request, Script
from ..transport.steps.base import SEAT_LENGTH, FamilySteps, NameSteps, tokens_told, told_all
from ..transport.steps.checks import of_others, wrong_types
from ..transport.steps.family import Family, Kind, Step
from ..transport.steps.listening import Listener
from ..transport.steps.snapshots import NO_CONTENT, Content, Holder, Snapshot
from ..transport.steps.waits import Wanted
from . import permits

KIND: Final = "limits"
_MANNER: Final = QueuePolicy(strict=True)
_MOST_KEYS: Final = 8
LONGEST: Final = 256
_MOST: Final = 2**31

_SHARED: Final = ("forms", "bells", "fence", "queue", "limits", "lines")
_ACQUIRE: Final = Script("limits_acquire", *_SHARED)
_HAND_OVER: Final = Script("limits_acquire", *_SHARED, "hand_over_limits")
_ANNOTATE: Final = Script("permits_annotate", *_SHARED, mid_move="mid_move_limits")
_ADOPT: Final = Script("permits_adopt", *_SHARED, mid_move="mid_move_limits")
_LOCKED: Final = Script("limits_locked", *_SHARED)
_OWNED: Final = Script("permits_owned", *_SHARED, mid_move="mid_move_limits")
_RELEASE: Final = Script("permits_release", *_SHARED, "stolen", mid_move="mid_move_limits", frees=True)
_RENEW: Final = Script("permits_renew", *_SHARED, "stolen", mid_move="mid_move_limits")


# -- keys with their caps, and the holders, as they stand on the server

_ONE: Final = re.compile(r"([^=,]+)=(\d{1,10})")


def line_of(caps: Mapping[str, int]) -> str:
    """The text by which scripts know these keys with their caps: the smallest cap first."""
    told = sorted((cap, quote(one, safe="").replace(".", "%2E")) for one, cap in caps.items())
    return ",".join(f"{one}={cap}" for cap, one in told)


def caps_of(line: str) -> dict[str, int]:
    """The keys of a line with their caps, in its order; empty where that is no line."""
    return {unquote(one): int(cap) for one, cap in _ONE.findall(line)}


_LIMITED: Final = re.compile(rb"((?:[^:,=]+=\d{1,10},?)+):(\d{1,16}):(.*)", re.DOTALL)
_TURN: Final = re.compile(rb"#\d{16}|!\S+ \S+ \d{16}|\S+ \d{16} \S+")
_FORCE_LIMITS: Final = Script("force_limits", "bells", "stolen", "forcing")


def told_limits(token: bytes, left_ms: int, lease: bytes) -> Holder | None:
    """A holder of a permit of each of several keys, as a refusal tells of it; None for what is not ours."""
    match = _LIMITED.fullmatch(lease)
    if match is None:
        return None
    keys = tuple(caps_of(match[1].decode(errors="replace")).items())
    return Holder((token.decode(errors="replace"),), int(match[2]), left_ms, match[3], keys=keys)


def read_limits(now_us: int, found: Mapping[str, Content]) -> Snapshot:
    """Leases of limits. A waiter that was called holds nothing yet."""
    leases = found["leases"]
    if isinstance(leases.value, dict):
        every: dict[bytes, Any] = found["leases"].value
        counted = {one: lease for one, lease in every.items() if not one.startswith(b"#")}
        leases = leases._replace(value=counted)
    snapshot = permits.read_permits(
        now_us, {"": found[""], "leases": leases, "value": NO_CONTENT}, told=told_limits
    )._replace(kept=None)
    turns, wrong = found["turns"], wrong_types({"turns": "zset"}, found)
    if turns.type == "zset" and not all(map(_TURN.fullmatch, turns.value)):
        wrong = (of_others("turns"),)
    problems = (*snapshot.problems, *wrong)
    return snapshot._replace(stands=bool(snapshot.holders or problems), problems=problems)


# -- the steps

LIMITS: Final = Family(
    keys="leases turns fence queue bell",
    values="line",
    acquire=Step(_ACQUIRE, "token ttl retention metadata line seat flags"),
    hand_over=_HAND_OVER,
    hand_over_wakes=True,
    renew=Step(_RENEW, permits.RENEWS, kept),
    release=Step(_RELEASE, permits.RELEASES, released),
    adopt=Step(_ADOPT, permits.ADOPTS, fencing_token),
    annotate=Step(_ANNOTATE, permits.ANNOTATES, truth),
    owned=Step(_OWNED, "token", truth),
    locked=Step(_LOCKED, "line", lambda raw: bool(raw[0])),
    roles="leases turns",
    read=read_limits,
    passive="fence turns stolen queue.",
    seat=SEAT_LENGTH,
    force=_FORCE_LIMITS,
    forced="leases queue turns fence",
)


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
class LimitSteps(FamilySteps):
    """The steps by which a permit of each key is acquired under one name.

    Args:
        caps: Each key, and how many may hold it.
    """

    __slots__ = ("_caps", "_line", "_values", "bell")

    family = LIMITS
    _strict = True
    _lasts_ms = QUEUE_TTL_MS

    def __init__(
        self, prefix: str, name: str, caps: Mapping[str, int], *, retention_ms: int, session: str
    ) -> None:
        super().__init__(retention_ms)
        self._caps = caps
        self._line = line = line_of(caps)
        self._values = (line,)
        self._keys = keys_of(
            prefix, KIND, name, (*LIMITS.keys[:-1], f"bell.{session}.{line}", f"queue.{line}")
        )
        self.bell = self._keys[5]

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

    def used(self) -> Request[Used]:
        """How much of it is in use."""
        return Request(_LOCKED, self._keys, (self._line,), self._used)

    def _used(self, raw: Any) -> Used:
        held = dict(zip(caps_of(self._line), raw[1:], strict=True))
        return Used(bool(raw[0]), {one: int(held[one]) for one in self._caps})

    def excluded_by(self, own: Sequence[tuple[NameSteps, str]], refused: Refused) -> bool:
        """Whether the task itself holds all permits of the key that is full."""
        if refused.full is None:
            return False
        one, cap = refused.full
        held = {token for steps, token in own if self._holds_too(steps, one)}
        if told_all(refused):
            held &= tokens_told(refused)  # the other leases were lost, and this session does not know yet
        return len(held) >= cap

    def _holds_too(self, other: NameSteps, one: str) -> bool:
        if not isinstance(other, LimitSteps) or other._keys[0] != self._keys[0]:  # noqa: SLF001
            return False
        return one in other._caps  # noqa: SLF001 - its own class, as above

    def _holder(self, token: bytes, left_ms: int, lease: bytes) -> Holder | None:
        return told_limits(token, left_ms, lease)

    def _answer(self, raw: Any) -> Answer:
        found = answer(raw)
        if isinstance(found, Refused) and found.told:
            for one, cap in caps_of(found.told[1].decode()).items():
                found.full = one, cap
                found.detail = f"key {one!r} is full: its cap is {cap}"
            found.detail = found.detail or "other waiters for these keys go first"
        return found


# -- the class


@final
class Limits(Acquirable[Lease]):
    """A permit of each of several keys, or none: a total for all, and a smaller limit for each tenant.

    ```python
    limits = Limits(redis, "exports", {"all": 20, name_of("tenant:{tenant}", tenant=tenant): 1})
    async with limits:          # one lease: a permit of "all", and one of this tenant
        ...
    ```

    No key ever has more permits out than its cap, and the keys of one name live in one cluster slot, so that
    all of them are taken in one step.

    Limits are fair. Waiters for the same keys form a line. Within a line, waiters enter in the order in which
    they came, over all processes. The lines take turns: a line that has had its turn goes behind every other
    line that could enter. So a tenant with 1000 waiters delays another tenant by at most one turn. A line
    with a full key waits for that key, and does not keep other lines out.

    This is true if keys are nested, as total, region and tenant are: a permit of a narrow key then comes back
    together with one of each wider key. If keys overlap in another way, such as {a, b}, {b, c} and {a, c},
    the keys of a line may never be free at the same time, and the line may wait for ever, as with
    `MultiLock`.

    Each acquire gives its own caps, and the server keeps none. If processes give different caps for one key,
    as in a rolling update, each acquire is refused while as many permits are held as its own cap says. So the
    largest cap limits the key, and waiters with a smaller cap wait until fewer permits are held.

    Options that are not described here are those of `Lock`.

    Args:
        client: `redis.asyncio.Redis`, `RedisCluster`, or an `aiolocks.Session`.
        name: Any non-empty str of at most 1 KiB in UTF-8. Limits of different names share nothing.
        keys: 1 to 8 keys, each with its cap: how many leases may hold that key, 1 to 2**31. A key is any
            non-empty str of at most 256 bytes in UTF-8. The order says nothing.

    Raises:
        TypeError, ValueError: An argument is wrong; before any I/O.

    A waiter that is cancelled, or whose time is over, leaves its line, and takes nothing with it. When a
    process dies, its permits come back one ttl later, and a waiter of it that has just been called delays
    its keys by 2 s at most.
    """

    __slots__ = ("_keys",)

    _label: ClassVar[str] = "Limits"
    _lease_type = Lease

    def __init__(
        self,
        client: Client,
        name: str,
        keys: Mapping[str, int],
        *,
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
        reject_unknown("Limits", unknown)
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
        self._keys = checked_keys(keys)
        super().__init__(client, name, options)

    @property
    def keys(self) -> dict[str, int]:
        """The keys, each with its cap."""
        return dict(self._keys)

    async def in_use(self) -> dict[str, int]:
        """Asks the server how many permits of each of these keys are in use.

        A permit that is reserved for a waiter that has just been called counts, too.

        Raises:
            BackendError: Redis refused, could not be reached, or did not answer within the session's
                `command_timeout`.
            SessionClosedError: The session is closed.
        """
        engine = self._bind().engine
        return (await engine.ask(self._steps(engine).used())).held

    def _resource(self, engine: Engine) -> Resource:
        if self._templates is None:
            engine.names.used(self._keys)
        steps = self._steps(engine)
        return Resource(steps, (KIND, self._name, steps.line), _MANNER)

    def _steps(self, engine: Engine) -> LimitSteps:
        return LimitSteps(
            engine.settings.prefix,
            self._name,
            self._keys,
            retention_ms=milliseconds(engine.settings.fence_retention),
            session=engine.session_id,
        )

    def _all_names(self) -> tuple[str, ...]:
        return (self._name, *self._keys)

    def _rename(self, names: tuple[str, ...]) -> None:
        super()._rename(names)
        filled: dict[str, int] = {}
        for one, cap in zip(names[1:], self._keys.values(), strict=True):
            filled[one] = min(cap, filled.get(one, cap))  # two of them may have become the same
        self._keys = checked_keys(filled)

    def __repr__(self) -> str:
        return f"<Limits {self._name!r} {self._keys} ttl={self._options.ttl:g}>"


def checked_keys(keys: object) -> dict[str, int]:
    """Keys and caps, each as it should be.

    Raises:
        TypeError, ValueError: One is not.
    """
    if not isinstance(keys, Mapping):
        raise TypeError(
            f"keys must be a dict of caps, as in {{'all': 20, 'tenant:7': 1}}, not {type(keys).__name__}"
        )
    given = cast("Mapping[object, object]", keys)
    if not 1 <= len(given) <= _MOST_KEYS:
        raise ValueError(f"keys must be 1 to {_MOST_KEYS} keys, not {len(given)}")
    found = {
        lock_name(one, "each of the keys"): whole_number(f"the cap of {one!r}", cap, most=_MOST)
        for one, cap in given.items()
    }
    for one in found:
        if len(one.encode()) > LONGEST:
            raise ValueError(f"a key must have at most {LONGEST} bytes in UTF-8, not {len(one.encode())}")
    return found


KINDS: Final = (Kind(LIMITS, KIND, "Limits", needs=(*permits.NEEDS, "zrangebylex")),)
