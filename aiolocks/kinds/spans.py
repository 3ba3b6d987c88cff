"""Readers and writers, of everything or of intervals: spans of the real numbers, held in three modes.

A `RWLock` is a `RangeLock` on (-inf, inf), in a name space of its own.
"""

from __future__ import annotations

import copy
import functools
import math
import re
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Never, TypeVar, final

from ..errors import LockLostError
from ..lock.acquirable import AS_CONFIGURED, Acquirable, Pending, gives_pending
from ..lock.clock import milliseconds
from ..lock.engine import Engine
from ..lock.lease import Binding, Lease, Possession, QueuePolicy, Resource
from ..lock.misuse import NotEntered, no_attribute
from ..lock.options import Metadata, OnLost, Options, Seconds, lock_name, optional_seconds, reject_unknown
from ..lock.sources import Client, source_of
from ..transport import Granted
from ..transport.answers import (
    BELL_TTL_MS,
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
from ..transport.steps.base import NO_SEAT, SEAT_LENGTH, FamilySteps, NameSteps, tokens_told, told_all
from ..transport.steps.checks import ID, after, not_ours, without_ttl, wrong_types
from ..transport.steps.family import Family, Kind, Step
from ..transport.steps.listening import Listener
from ..transport.steps.snapshots import Content, Holder, Place, Snapshot, whole_number
from ..transport.steps.waits import Wanted

LeaseT = TypeVar("LeaseT", bound="SpanLease")

EVERYTHING: Final = ("-inf", "inf")

_SHARED: Final = ("forms", "bells", "fence", "queue", "spans")
_ACQUIRE: Final = Script("spans_acquire", *_SHARED, "ours")
_HAND_OVER: Final = Script("spans_acquire", *_SHARED, "ours", "hand_over_spans")
_ANNOTATE: Final = Script("spans_annotate", *_SHARED, mid_move="mid_move_spans")
_ADOPT: Final = Script("spans_adopt", *_SHARED, mid_move="mid_move_spans")
_CHANGE: Final = Script("spans_change", *_SHARED)
_LOCKED: Final = Script("spans_locked", *_SHARED, "ours")
_OWNED: Final = Script("spans_owned", *_SHARED, mid_move="mid_move_spans")
_RELEASE: Final = Script("spans_release", *_SHARED, "stolen", mid_move="mid_move_spans", frees=True)
_RENEW: Final = Script("spans_renew", *_SHARED, "stolen", mid_move="mid_move_spans")


_SIDES: Final = ("readers", "upgradables", "writers", "reservations", "turns", "calls", "places")
_ENDS: Final = " ".join(f"{side}.{end}" for side in _SIDES for end in "ab")
_FORGET_EVERY: Final = 4
_RESERVED: Final = -4
"""In the place of the time that a lease has left: a writer that waits goes first, and keeps readers out."""


# -- the holders and the waiters, as they stand on the server

_SPAN: Final = re.compile(rb"([ruw]) (\S+) (\S+) (\d{1,16}) (.*)", re.DOTALL)
_WAITING: Final = re.compile(rb"([uw]) (\S+) (\S+) (\S) (\S+)")
"""Of a writer or an upgradable that waits."""
_FIRST_SEAT: Final = NO_SEAT.encode()
_NAMES: Final = {b"r": "reader", b"u": "upgradable", b"w": "writer"}
_FORCE_SPANS: Final = Script("force_spans", "bells", "stolen", "forcing")


def told_span(token: bytes, left_ms: int, lease: bytes) -> Holder | None:
    """A holder of a span, as a refusal tells of it; None for what is not ours."""
    match = _SPAN.fullmatch(lease)
    a, b = (_bound(match[2]), _bound(match[3])) if match is not None else (None, None)
    if match is None or a is None or b is None:
        return None
    holder = Holder((token.decode(errors="replace"),), int(match[4]), left_ms, match[5])
    return holder._replace(mode=_NAMES[match[1]], span=(a, b))


def read_spans(now_us: int, found: Mapping[str, Content]) -> Snapshot:
    """Spans, in three modes."""
    sides = tuple(found.keys() - {"", "ends", "waits", "queue", "fence", "stolen"})
    if wrong := wrong_types({"": "hash", "ends": "zset", "waits": "zset"}, found):
        return Snapshot(now_us, stands=True, problems=wrong)
    spans: dict[bytes, bytes] = found[""].value if found[""] else {}
    ends: dict[bytes, bytes] = found["ends"].value if found["ends"] else {}
    waits: dict[bytes, bytes] = found["waits"].value if found["waits"] else {}
    queue: dict[bytes, bytes] = found["queue"].value if found["queue"].type == "zset" else {}
    holders: list[Holder] = []
    foreign = wrong_types(dict.fromkeys(sides, "zset"), found) + not_ours(
        found, ("", "ends", "waits", *sides)
    )
    problems = list(foreign)
    for token, left_ms in after(found["ends"], now_us).items():
        if ID.fullmatch(token) is None:
            continue
        holder = told_span(token, left_ms, spans.get(token, b""))
        if holder is None:
            problems.append("half of a lease is missing")
        else:
            holders.append(holder)
    if any(map(ID.fullmatch, spans.keys() - ends.keys() - waits.keys())):
        problems.append("half of a lease is missing")
    problems += without_ttl(found[""], found["ends"], ours=not foreign)
    return Snapshot(
        now_us,
        tuple(holders),
        stands=bool(holders or problems),
        problems=tuple(dict.fromkeys(problems)),
        places=tuple(_places(spans, waits, queue, now_us // 1000)),
    )


def _places(
    spans: Mapping[bytes, bytes], waits: Mapping[bytes, bytes], queue: Mapping[bytes, bytes], now_ms: int
) -> Iterator[Place]:
    for bell, until in waits.items():
        match, until_ms = _WAITING.fullmatch(spans.get(bell, b"")), whole_number(until)
        a, b = (_bound(match[2]), _bound(match[3])) if match is not None else (None, None)
        if match and a is not None and b is not None and until_ms is not None and until_ms > now_ms:
            asked = whole_number(queue.get(bell + _FIRST_SEAT))
            yield Place(
                bell,
                until_ms,
                (a, b),
                match[5].decode(errors="replace").removesuffix("-"),
                mode=match[1].decode(),
                asked=math.inf if asked is None else asked,
                reserved=match[4] == b"p",
            )


def _bound(text: bytes) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


# -- the steps

SPANS: Final = Family(
    keys=f"ends waits fence queue {_ENDS} bell",
    values="mode a b under marks none",
    acquire=Step(_ACQUIRE, "token ttl retention metadata mode a b under marks seat flags"),
    hand_over=_HAND_OVER,
    hand_over_wakes=True,
    renew=Step(_RENEW, "token ttl retention seat", kept),
    release=Step(_RELEASE, "token retention seat ring", released),
    adopt=Step(_ADOPT, "old new ttl retention metadata mode a b none", fencing_token),
    annotate=Step(_ANNOTATE, "token metadata", truth),
    owned=Step(_OWNED, "token none", truth),
    locked=Step(_LOCKED, "mode a b under none", truth),
    roles=f"ends waits {_ENDS} queue",
    read=read_spans,
    passive=f"fence stolen {_ENDS}",
    seat=SEAT_LENGTH,
    force=_FORCE_SPANS,
    forced=f"ends queue waits fence {_ENDS}",
)


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
class SpanSteps(FamilySteps):
    """The steps by which one span is acquired and held.

    Args:
        kind: The kind whose name space it is.
        under: The token of the upgradable that will be upgraded; empty when there is none.
        longest_sleep_ms: After which a waiter asks again, at the latest.
        interval: The span as users know it, if it is one of a range.
    """

    __slots__ = ("_joins", "_label", "_marks_ms", "_name", "_span", "_under", "_values", "bell", "interval")

    family = SPANS

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
        self._keys = keys_of(prefix, kind, name, (*SPANS.keys[:-1], f"bell.{who}"))
        self.bell = self._keys[-1]
        self._values = (*span, self._under, self._marks_ms, NO_SEAT)
        # Readers enter together. An upgrade may be refused for good, and that answer has no bells.
        self._joins = span.mode != "r" and not under

    @property
    def lingers(self) -> float:
        return self._marks_ms / 1000

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
            self.bell, self._keys[4:5], NO_SEAT, deadlines=(ends, waits), marks=marks, marks_ms=self._marks_ms
        )

    def change(self, token: str, span: Span) -> Request[Changed]:
        """Holds that part of it from now on, or as a reader what it held as a writer."""
        return Request(_CHANGE, self._keys, (token, *span, NO_SEAT), _changed, lane=token)

    def excluded_by(self, own: Sequence[tuple[NameSteps, str]], refused: Refused) -> bool:
        """Whether a lease of the task is in its way, or in the way of a writer that waits and goes first."""
        wanted, told, all_told = self._span, tokens_told(refused), told_all(refused)
        for steps, token in own:
            span = self._span_beside(steps)
            if span is None or token == self._under:
                continue
            if wanted.excludes(span):
                if token in told or not all_told:  # else it was lost, and this session does not know yet
                    return True
            elif refused.reserved and wanted.mode != "w" and wanted.within(span):
                return True  # a writer has reserved what this wants, and waits for this task to leave it
        return False

    def _span_beside(self, other: NameSteps) -> Span | None:
        """The span of the given steps, if they are of this name."""
        if not isinstance(other, SpanSteps) or other._keys[0] != self._keys[0]:  # noqa: SLF001
            return None
        return other._span  # noqa: SLF001 - its own class, as above

    def _holder(self, token: bytes, left_ms: int, lease: bytes) -> Holder | None:
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


# -- the classes

_MANNERS: Final = {
    "r": QueuePolicy(together=True),
    "u": QueuePolicy(),
    "w": QueuePolicy(),
}
_MODES: Final = {"r": "reader", "u": "upgradable", "w": "writer"}
_CAPABLE: Final = {"upgrade": "an upgradable", "downgrade": "a writer"}


@final
@dataclass(frozen=True, slots=True)
class SpanClass:
    """The class of lock to which a span belongs.

    Attributes:
        lock: Name of the class.
        part: Makes a span of the bounds that a user gives; None where there are none.
        show: Writes a span for messages; empty for everything.
        ends: The bounds of a span, as a user gives them; None where there are none.
    """

    lock: str
    part: Callable[[str, Any, Any], Span] | None = None
    show: Callable[[Span], str] = field(default=lambda _: "")
    ends: Callable[[Span], tuple[float, float] | None] = field(default=lambda _: None)

    @property
    def kind(self) -> str:
        return self.lock.lower()

    def label(self, span: Span) -> str:
        """The name of it in messages."""
        return f"{self.lock}.{_MODES[span.mode]}"

    def steps(self, engine: Engine, name: str, span: Span, *, under: str = "") -> SpanSteps:
        """The steps of a span in a session, as an upgrade if it is `under` an upgradable's token."""
        return SpanSteps(
            engine.settings.prefix,
            self.kind,
            name,
            span,
            label=self.label(span),
            under=under,
            retention_ms=milliseconds(engine.settings.fence_retention),
            longest_sleep_ms=milliseconds(engine.settings.backoff.maximum),
            session=engine.session_id,
            interval=self.ends(span),
        )

    def resource(self, engine: Engine, name: str, span: Span, *, under: str = "") -> Resource:
        steps = self.steps(engine, name, span, under=under)
        return Resource(steps, (self.kind, name, span, under), _MANNERS[span.mode])


class SpanLease(Lease):
    """A lease of everything or of an interval. While it is held, it can become less."""

    __slots__ = ("_options", "_span", "_span_class", "_under", "_upgrades")

    def __init__(
        self,
        binding: Binding[Any],
        possession: Possession,
        grant: Granted,
        *,
        span_class: SpanClass,
        span: Span,
        under: SpanLease | None = None,
    ) -> None:
        super().__init__(binding, possession, grant)
        self._span_class = span_class
        self._options = binding.options
        self._span = span
        self._under = under
        self._upgrades: list[weakref.ref[SpanLease]] = []
        if under is not None:
            possession.confirms = True  # the holder goes on beside readers, who wait for this release
            under._inherit(self)  # noqa: SLF001 - of this very class

    if not TYPE_CHECKING:  # to a type checker, there is no such attribute

        def __getattr__(self, name: str) -> Never:
            mode = _CAPABLE.get(name)
            raise no_attribute(self, name, "" if mode is None else f"only a lease of {mode} has it")

    def _inherit(self, upgrade: SpanLease) -> None:
        """The fencing token, as on the server."""
        self._possession.fencing_token = upgrade.fencing_token
        self._upgrades.append(weakref.ref(upgrade))

    def _reaches_beyond(self, span: Span) -> bool:
        """Whether it is held outside of that span."""
        return self._possession.live and not self._span.within(span)

    async def _become(self, span: Span) -> None:
        """Holds that part of it from now on."""
        possession, engine = self._possession, self._engine
        for upgrade in filter(None, (ref() for ref in self._upgrades)):
            if upgrade._reaches_beyond(span):  # noqa: SLF001 - of this very class
                raise RuntimeError(f"leave the upgrade first: {upgrade!r}")
        possession.ensure_here()
        possession.ensure_held()
        steps = self._span_class.steps(engine, self.name, self._span)
        changed = await engine.ask(steps.change(self.token, span), told=engine.wake_own, patient=True)
        if not changed.held:
            possession.lose("the server no longer has it as the holder")
        possession.ensure_held()
        if not changed.part:
            raise ValueError(
                f"{possession.label} {self.name!r} cannot become more than it is: shrink() takes a part of it"
            )
        shrunk = (span.a, span.b) != (self._span.a, self._span.b)
        self._span = span
        possession.become(self._span_class.label(span), self._span_class.ends(span))
        if shrunk:
            engine.events.shrunk(possession, engine.now() - possession.granted_at)

    def _upgrading(
        self, lease_type: type[LeaseT], span: Span, blocking_timeout: Seconds | None
    ) -> Pending[LeaseT]:
        """The acquisition of a writer's span under this lease, of an upgradable."""
        if blocking_timeout is AS_CONFIGURED:
            timeout = self._options.blocking_timeout
        else:
            timeout = optional_seconds("blocking_timeout", blocking_timeout)
        start = functools.partial(self._upgrade, lease_type, span, timeout)
        return Pending(start, of=self, call="upgrade")

    async def _upgrade(self, lease_type: type[LeaseT], span: Span, timeout: float | None) -> LeaseT:
        possession, span_class, engine = self._possession, self._span_class, self._engine
        possession.ensure_here()
        possession.ensure_held()
        binding: Binding[LeaseT] = Binding(
            engine,
            span_class.resource(engine, self.name, span, under=self.token),
            functools.partial(lease_type, span_class=span_class, span=span, under=self),
            label=span_class.label(span),
            name=self.name,
            options=self._options,
        )
        began = engine.now()
        try:
            lease = await binding.acquire(timeout)
        except LockLostError:
            possession.lose("the server no longer has it as the holder")
            raise
        engine.events.upgraded(lease._possession, engine.now() - began, possession.kind)  # noqa: SLF001
        return lease

    def __repr__(self) -> str:
        name = repr(self.name)
        return super().__repr__().replace(name, name + self._span_class.show(self._span), 1)


class SpanLock(Acquirable[LeaseT]):
    """One mode of a `RWLock`, or of an interval of a `RangeLock`. It has all methods of a `Lock`.

    `RWLock` and `RangeLock` make it. It is cheap and immutable, and any number of tasks can share it.
    """

    __slots__ = ("_span", "_span_class", "_span_lease_type")

    def __init__(
        self,
        client: Client,
        name: str,
        options: Options,
        *,
        span_class: SpanClass,
        span: Span,
        lease_type: type[LeaseT],
    ) -> None:
        super().__init__(client, name, options)
        self._span_class = span_class
        self._span = span
        self._span_lease_type = lease_type

    @property
    def _label(self) -> str:  # type: ignore[override]
        return self._span_class.label(self._span)

    @property
    def _lease_type(self) -> Callable[[Binding[LeaseT], Possession, Granted], LeaseT]:  # type: ignore[override]
        return functools.partial(self._span_lease_type, span_class=self._span_class, span=self._span)

    def _resource(self, engine: Engine) -> Resource:
        return self._span_class.resource(engine, self._name, self._span)

    def __repr__(self) -> str:
        return f"<{self._label} {self._name!r}{self._span_class.show(self._span)} ttl={self._options.ttl:g}>"


class WriterLease(SpanLease):
    """The lease of a writer, which can become the lease of a reader."""

    __slots__ = ()

    async def downgrade(self) -> None:
        """Turns the writer into a reader, in one step. No other writer can enter in between.

        Waiting readers may then enter at once. The fencing token stays. From then on, `kind` is the kind of
        a reader.

        Raises:
            RuntimeError: The lease is an upgrade: leave it to get the upgradable lease back. Or it is a
                reader already.
            LockLostError: The lease is no longer held.
            BackendError: Redis refused, or did not answer within the session's `command_timeout`.

        After a cancellation or an error, the server may have done it or not. A second call does what is left.
        """
        if self._under is not None:
            raise RuntimeError(
                f"the upgrade of {self._span_class.lock} {self.name!r} cannot be downgraded: leave it, and "
                "the upgradable lease remains"
            )
        if self._span.mode != "w":
            raise RuntimeError(
                f"{self._possession.label} {self.name!r} was downgraded before, and is that of a reader now"
            )
        await self._become(self._span._replace(mode="r"))


class UpgradableLease(SpanLease):
    """The lease of the one upgradable holder, beside readers. It can become a writer for a while."""

    __slots__ = ()

    @gives_pending
    def upgrade(  # noqa: D417 - there are no unknown arguments to describe
        self, *positional: Never, blocking_timeout: Seconds | None = AS_CONFIGURED, **unknown: Never
    ) -> Pending[WriterLease]:
        """Becomes a writer for a while: it waits until the present readers leave, and keeps new ones out.

        `async with lease.upgrade() as writer:` makes it a writer, and an upgradable holder again on exit. It
        enters before every other waiting writer. There is only one upgradable holder, so two upgrades cannot
        wait for each other. As with `acquire`, you can await the result, enter it, or give it to
        `create_task`.

        The writer gets a new fencing token, and the upgradable lease keeps it.

        Args:
            blocking_timeout: Seconds to wait; 0 for a single try; None for ever. Default: the lock's own.

        Raises:
            LockLostError: The upgradable lease is no longer held.
            LockTimeoutError: Not acquired within `blocking_timeout`. The upgradable lease is held as before.
            DeadlockError, BackendError, SessionClosedError: As `acquire` does.

        Cancelled at any point, no writer stays, and the upgradable lease is held as before.
        """
        reject_unknown("upgrade()", unknown, positional=positional)
        return self._upgrading(WriterLease, self._span._replace(mode="w"), blocking_timeout)


_EVERYTHING: Final = SpanClass("RWLock")


@final
class RWLock(NotEntered):
    """Many readers at a time, or one writer; beside readers one upgradable holder, which may become a writer.

    ```python
    lock = RWLock(redis, "catalogue")
    async with lock.reader:
        ...                                     # beside other readers
    async with lock.writer:
        ...                                     # alone
    async with lock.upgradable as lease:
        plan = await read()                     # beside readers, and no other task can write
        async with lease.upgrade() as writer:   # waits for the readers inside to leave
            await write(plan, writer.fencing_token)
    ```

    | inside | a reader | an upgradable | a writer |
    |---|---|---|---|
    | reader | enters | enters | waits |
    | upgradable | enters | waits | waits |
    | writer | waits | waits | waits |

    Writers and upgradables enter in the order of asking. While a writer waits only for readers, it
    *reserves*: new readers wait, the readers inside leave, and the writer enters. When it leaves, the readers
    that have waited for it enter before the next writer. So neither readers nor writers starve. A writer that
    waits behind an upgradable keeps no reader out. A place in the order lasts 2 s without a sign of life: a
    waiter that dies delays other waiters for at most this time.

    A reader inside a reader of the same task can deadlock: if a writer has reserved between the two, the
    inner reader waits for the writer, and the writer for the outer reader. The task then gets a
    `DeadlockError`. Pass the lease on instead.

    Options that are not described here are those of `Lock`.

    Args:
        client: `redis.asyncio.Redis`, `RedisCluster`, or an `aiolocks.Session`.
        name: Any non-empty str of at most 1 KiB in UTF-8.

    Raises:
        TypeError, ValueError: An argument is wrong; before any I/O.
    """

    __slots__ = ("_reader", "_upgradable", "_writer")

    _instead = "what is acquired is its .reader, .upgradable or .writer"

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
        confirm: bool = True,
        **unknown: Never,
    ) -> None:
        reject_unknown("RWLock", unknown)
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

        def mode(letter: str, lease_type: Any) -> Any:
            span = Span(letter, *EVERYTHING)
            return SpanLock(client, name, options, span_class=_EVERYTHING, span=span, lease_type=lease_type)

        self._reader: SpanLock[SpanLease] = mode("r", SpanLease)
        self._upgradable: SpanLock[UpgradableLease] = mode("u", UpgradableLease)
        self._writer: SpanLock[WriterLease] = mode("w", WriterLease)

    def of(self, /, **fields: object) -> RWLock:
        """The same lock under the name that a decorator gives it for these values; see `Lock.of`."""
        same = object.__new__(RWLock)
        same._reader = self._reader.of(**fields)
        same._upgradable = self._upgradable.of(**fields)
        same._writer = self._writer.of(**fields)
        return same

    @property
    def _one(self) -> SpanLock[SpanLease]:
        """One of its modes."""
        return self._reader

    @property
    def name(self) -> str:
        """Name of the lock."""
        return self._reader.name

    @property
    def reader(self) -> SpanLock[SpanLease]:
        """The lock of a reader. Readers share it with each other and with the upgradable holder."""
        return self._reader

    @property
    def upgradable(self) -> SpanLock[UpgradableLease]:
        """The lock of the one upgradable holder, beside readers. Its lease has `upgrade()`."""
        return self._upgradable

    @property
    def writer(self) -> SpanLock[WriterLease]:
        """The lock of a writer, which excludes all other holders. Its lease has `downgrade()`."""
        return self._writer

    def __repr__(self) -> str:
        return repr(self._reader).replace(".reader", "", 1)


Bound = float | int | datetime
"""An end of an interval, to the precision of a double; an aware `datetime` counts as its timestamp."""

_EXACT: Final = 2**53


class RangeLease(SpanLease):
    """A lease of an interval."""

    __slots__ = ()

    async def shrink(self, lo: Bound, hi: Bound) -> None:
        """Keeps a part of the interval, and frees the rest. The part stays held all the time.

        The interval can only become smaller. If a part of it is upgraded, leave the upgrade before you free
        that part.

        Args:
            lo: New lower end, not below the present one.
            hi: New upper end, not above the present one.

        Raises:
            ValueError: The new interval is not a part of the present one.
            RuntimeError: A part that would be freed is upgraded.
            LockLostError: The lease is no longer held.
            BackendError: Redis refused, or did not answer within the session's `command_timeout`.

        After a cancellation or an error, the server may have done it or not. A second call does what is left.
        """
        await self._become(self._within(self._part(self._span.mode, lo, hi)))

    def _part(self, mode: str, lo: Bound, hi: Bound) -> Span:
        assert self._span_class.part is not None
        return self._span_class.part(mode, lo, hi)

    def _within(self, part: Span) -> Span:
        if not part.within(self._span):
            show = self._span_class.show
            raise ValueError(f"{show(part).strip()} is no part of what is held:{show(self._span)}")
        return part


@final
class RangeWriterLease(RangeLease, WriterLease):
    """The lease of a writer of an interval."""

    __slots__ = ()


@final
class RangeUpgradableLease(RangeLease):
    """The lease of the one upgradable holder of an interval, beside its readers."""

    __slots__ = ()

    @gives_pending
    def upgrade(  # noqa: D417 - there are no unknown arguments to describe
        self,
        lo: Bound | None = None,
        hi: Bound | None = None,
        *positional: Never,
        blocking_timeout: Seconds | None = AS_CONFIGURED,
        **unknown: Never,
    ) -> Pending[RangeWriterLease]:
        """Becomes a writer of a part of the interval, or of all of it; see `UpgradableLease.upgrade`.

        Readers of the rest of the interval are not affected.

        Args:
            lo: Lower end of the part. Default None: the lower end of the interval.
            hi: Upper end of the part. Default None: the upper end of the interval.
            blocking_timeout: Seconds to wait; 0 for a single try; None for ever. Default: the lock's own.

        Raises:
            ValueError: The part is not within the interval.
            LockLostError: The upgradable lease is no longer held.
            LockTimeoutError: Not acquired within `blocking_timeout`. The upgradable lease is held as before.
            DeadlockError, BackendError, SessionClosedError: As `acquire` does.

        Cancelled at any point, no writer stays, and the upgradable lease is held as before.
        """
        reject_unknown("upgrade()", unknown, positional=positional)
        part = self._part("w", -math.inf if lo is None else lo, math.inf if hi is None else hi)
        if lo is None:
            part = part._replace(a=self._span.a)
        if hi is None:
            part = part._replace(b=self._span.b)
        return self._upgrading(RangeWriterLease, self._within(part), blocking_timeout)


@final
class RangeLock(NotEntered):
    """Many readers or one writer of each interval of real numbers, with the modes of `RWLock`.

    Holders of intervals that do not overlap do not exclude each other.

    ```python
    pages = RangeLock(redis, "book:7")
    async with pages.writer(10, 20):            # 10 up to, but without, 20
        ...
    async with pages.upgradable(0, 100) as lease:
        ...                                     # read all of it, beside readers
        async with lease.upgrade(40, 45):
            ...                                 # write a part
        await lease.shrink(40, 60)              # frees the rest; this part stays held all the time
    ```

    Ends are `int`, `float` or `datetime` with a time zone, also infinite. They have the precision of a
    double. An `int` above 2**53 that a double cannot represent is refused. A `datetime` of our time is exact
    to the microsecond.

    Where intervals overlap, waiting readers and writers take turns, and writers and upgradables enter in the
    order of asking, as with a `RWLock`. The time of a check grows with the logarithm of the number of held
    intervals.

    Options that are not described here are those of `Lock`.

    Args:
        client: `redis.asyncio.Redis`, `RedisCluster`, or an `aiolocks.Session`.
        name: Any non-empty str of at most 1 KiB in UTF-8.
        bounds: `"[)"`, the default: an interval does not contain its upper end, so [1, 2) and [2, 3) do not
            overlap, and it must not be empty. `"[]"`: it contains its upper end, so [2, 2] is a single point.

    Raises:
        TypeError, ValueError: An argument is wrong; before any I/O.
    """

    __slots__ = ("_client", "_name", "_options", "_span_class", "_templates")

    _instead = "what is acquired is its .reader(lo, hi), .upgradable(lo, hi) or .writer(lo, hi)"

    def __init__(
        self,
        client: Client,
        name: str,
        *,
        bounds: Literal["[)", "[]"] = "[)",
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
        reject_unknown("RangeLock", unknown)
        self._options = Options.checked(
            ttl=ttl,
            blocking_timeout=blocking_timeout,
            auto_renew=auto_renew,
            max_hold=max_hold,
            on_lost=on_lost,
            metadata=metadata,
            grace=grace,
            confirm=confirm,
        )
        self._client = source_of(client)
        self._name = lock_name(name)
        self._templates: tuple[str, ...] | None = None
        if bounds not in _BOUNDS:
            raise ValueError(f"bounds must be '[)' or '[]', not {bounds!r}")
        self._span_class = _BOUNDS[bounds]

    def of(self, /, **fields: object) -> RangeLock:
        """The same lock under the name that a decorator gives it for these values; see `Lock.of`."""
        point = self.reader(0, 1).of(**fields)
        same = copy.copy(self)
        same._name, same._templates = point.name, point._templates  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - of this very module
        return same

    @property
    def name(self) -> str:
        """Name of the lock."""
        return self._name

    @property
    def _one(self) -> SpanLock[RangeLease]:
        """One of its modes, of some interval."""
        return self.reader(0, 1)

    def reader(self, lo: Bound, hi: Bound) -> SpanLock[RangeLease]:
        """The lock of a reader. It shares the interval with other readers and with upgradable holders."""
        return self._of("r", lo, hi, RangeLease)

    def upgradable(self, lo: Bound, hi: Bound) -> SpanLock[RangeUpgradableLease]:
        """The lock of an upgradable holder: one at a time, beside readers. Its lease has `upgrade()`."""
        return self._of("u", lo, hi, RangeUpgradableLease)

    def writer(self, lo: Bound, hi: Bound) -> SpanLock[RangeWriterLease]:
        """The lock of a writer, which excludes all other holders from the interval.

        Its lease has `downgrade()`.
        """
        return self._of("w", lo, hi, RangeWriterLease)

    def _of(self, mode: str, lo: Bound, hi: Bound, lease_type: type[LeaseT]) -> SpanLock[LeaseT]:
        assert self._span_class.part is not None
        span = self._span_class.part(mode, lo, hi)
        lock = SpanLock(
            self._client,
            self._name,
            self._options,
            span_class=self._span_class,
            span=span,
            lease_type=lease_type,
        )
        lock._templates = self._templates  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - of this very module
        return lock

    def __repr__(self) -> str:
        return f"<RangeLock {self._name!r} ttl={self._options.ttl:g}>"


def _half_open(mode: str, lo: object, hi: object) -> Span:
    """[lo, hi) as the closed interval that the server keeps: up to the last double below hi."""
    left, right = _number("lo", lo), _number("hi", hi)
    if not left < right:
        raise ValueError(f"lo must be less than hi, for [lo, hi) not to be empty; not {lo!r} and {hi!r}")
    return Span(mode, repr(left), repr(math.nextafter(right, -math.inf)))


def _closed(mode: str, lo: object, hi: object) -> Span:
    left, right = _number("lo", lo), _number("hi", hi)
    if not left <= right:
        raise ValueError(f"lo must not be more than hi; not {lo!r} and {hi!r}")
    return Span(mode, repr(left), repr(right))


def _show_half_open(span: Span) -> str:
    return f" [{span.a}, {math.nextafter(float(span.b), math.inf)!r})"


def _ends_half_open(span: Span) -> tuple[float, float]:
    return float(span.a), math.nextafter(float(span.b), math.inf)


def _ends_closed(span: Span) -> tuple[float, float]:
    return float(span.a), float(span.b)


def _show_closed(span: Span) -> str:
    return f" [{span.a}, {span.b}]"


_BOUNDS: Final = {
    "[)": SpanClass("RangeLock", _half_open, _show_half_open, _ends_half_open),
    "[]": SpanClass("RangeLock", _closed, _show_closed, _ends_closed),
}


def _number(what: str, value: object) -> float:
    if isinstance(value, datetime):
        if value.utcoffset() is None:
            raise ValueError(
                f"{what} must be an aware datetime, as with tzinfo=UTC, not {value!r}: without a zone it "
                "means another time on another machine"
            )
        return value.timestamp()
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(
            f"{what} must be an int, a float or a datetime, not {value!r} ({type(value).__name__})"
        )
    if isinstance(value, int) and abs(value) > _EXACT and not _holds(value):
        raise ValueError(f"{what} must be a number that a double can hold, not {value!r}")
    number = float(value)
    if math.isnan(number):
        raise ValueError(f"{what} must be a number, not {value!r}")
    return number + 0.0  # -0.0 is 0.0


def _holds(value: int) -> bool:
    try:
        return int(float(value)) == value
    except OverflowError:
        return False


_NEEDS: Final = ("hdel", "hget", "hkeys", "hlen", "hset", "zcount", "zrangebyscore", "zscore")
KINDS: Final = (
    Kind(SPANS, "rwlock", "RWLock", needs=_NEEDS),
    Kind(SPANS, "rangelock", "RangeLock", needs=_NEEDS),
)
