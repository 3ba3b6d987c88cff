"""The common part of reader-writer locks on everything and on intervals: modes, and leases that can change.

A `RWLock` is a `RangeLock` on (-inf, inf), in a name space of its own.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Never, TypeVar, final

from ..errors import LockLostError
from ..lock.acquirable import AS_CONFIGURED, Acquirable, Pending, gives_pending
from ..lock.binding import Binding
from ..lock.claim import QueuePolicy, Resource
from ..lock.clock import milliseconds
from ..lock.context import Context
from ..lock.lease import Lease, Possession
from ..lock.options import Options, Seconds, optional_seconds, reject_unknown
from ..transport import Granted
from ..transport.commands.spans import Span, SpanCommands

LeaseT = TypeVar("LeaseT", bound="SpanLease")

EVERYTHING: Final = ("-inf", "inf")

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

    def commands(self, engine: Context, name: str, span: Span, *, under: str = "") -> SpanCommands:
        """The steps of a span in a session, as an upgrade if it is `under` an upgradable's token."""
        return SpanCommands(
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

    def resource(self, engine: Context, name: str, span: Span, *, under: str = "") -> Resource:
        commands = self.commands(engine, name, span, under=under)
        return Resource(commands, (self.kind, name, span, under), _MANNERS[span.mode])


class SpanLease(Lease):
    """A lease on everything or on an interval, which can become less without being let go of."""

    __slots__ = ("__weakref__", "_options", "_span", "_span_class", "_under", "_upgrades")

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
            under._inherit(self)  # noqa: SLF001 - of this very class

    if not TYPE_CHECKING:  # to a type checker, there is no such attribute

        def __getattr__(self, name: str) -> Never:
            wrong = f"{type(self).__name__!r} object has no attribute {name!r}"
            mode = _CAPABLE.get(name)
            raise AttributeError(wrong if mode is None else f"{wrong}: only a lease of {mode} has it")

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
        commands = self._span_class.commands(engine, self.name, self._span)
        changed = await engine.ask(commands.change(self.token, span), told=engine.wake_own, patient=True)
        if not changed.held:
            possession.lose("the server no longer has it as the holder")
        possession.ensure_held()
        if not changed.part:
            raise ValueError(f"{possession.label} {self.name!r} cannot become more than it is")
        shrunk = (span.a, span.b) != (self._span.a, self._span.b)
        self._span = span
        possession.interval = self._span_class.ends(span)
        possession.become(self._span_class.label(span))
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
    """One mode of a `RWLock`, or of an interval of a `RangeLock`: offers all that a `Lock` does.

    Made by these, never by hand; cheap, immutable, shareable by any number of tasks.
    """

    __slots__ = ("_span", "_span_class", "_span_lease_type")

    def __init__(
        self,
        client: Any,
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

    def _resource(self, engine: Context) -> Resource:
        return self._span_class.resource(engine, self._name, self._span)

    def __repr__(self) -> str:
        return f"<{self._label} {self._name!r}{self._span_class.show(self._span)} ttl={self._options.ttl:g}>"


class WriterLease(SpanLease):
    """The lease of a writer."""

    __slots__ = ()

    async def downgrade(self) -> None:
        """Becomes a reader, in place: at no moment can another writer come between.

        Readers that wait may enter at once. The fencing token stays. `kind` is that of a reader from then on.

        Raises:
            RuntimeError: It is an upgrade, whose end leaves the upgradable lease; or a reader already.
            LockLostError: It is no longer ours.
            BackendError: Redis refused, or did not answer within the session's `command_timeout`.

        After a cancellation or an error the server may have done it or not; asked again, it does what is
        left.
        """
        if self._under is not None:
            raise RuntimeError(
                f"the upgrade of {self._span_class.lock} {self.name!r} cannot be downgraded: leave it, and "
                "the upgradable lease remains"
            )
        if self._span.mode != "w":
            raise RuntimeError(f"{self._possession.label} {self.name!r} was downgraded before")
        await self._become(self._span._replace(mode="r"))


class UpgradableLease(SpanLease):
    """The lease of the one upgradable holder beside readers."""

    __slots__ = ()

    @gives_pending
    def upgrade(  # noqa: D417 - there are no unknown arguments to describe
        self, *positional: Never, blocking_timeout: Seconds | None = AS_CONFIGURED, **unknown: Never
    ) -> Pending[WriterLease]:
        """A writer for a while: waits until the readers inside have left, keeps out new ones, excludes all.

        `async with lease.upgrade() as writer:` turns it into a writer, and back again on exit. It goes
        before every other writer that waits, and cannot deadlock with another upgrade, for there is only one
        upgradable holder. The result can be awaited, entered or given to `create_task`, as that of `acquire`
        can.

        It mints a new fencing token, which the upgradable lease inherits.

        Args:
            blocking_timeout: Seconds to wait; 0 for a single try; None for ever. Default: the lock's own.

        Raises:
            LockLostError: The upgradable lease is no longer ours.
            LockTimeoutError: Not acquired within `blocking_timeout`; the upgradable lease is held as before.
            DeadlockError, BackendError, SessionClosedError: As `acquire` does.

        Cancelled at any point, no writer stays; the upgradable lease is held as before.
        """
        reject_unknown("upgrade()", unknown, positional=positional)
        return self._upgrading(WriterLease, self._span._replace(mode="w"), blocking_timeout)
