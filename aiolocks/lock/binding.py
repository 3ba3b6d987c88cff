"""A lock in a session: from an acquire or an adoption to a lease."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast, final

from ..errors import LockNotOwnedError, SessionClosedError
from ..transport import Granted
from .claim import Claim
from .lease import Possession
from .options import NO_METADATA, check_at_least
from .target import Target
from .waiter import Attempt, Waiter

if TYPE_CHECKING:
    from ..transport import Answer
    from .claim import Resource
    from .engine import Engine
    from .lease import Lease
    from .options import Options

LeaseT = TypeVar("LeaseT", bound="Lease")


@final
class Binding(Target, Generic[LeaseT]):
    """The part that all acquisitions of one lock in one session share."""

    __slots__ = ("_beside", "_lease_type", "_user_json", "metadata", "resource")

    def __init__(
        self,
        engine: Engine,
        resource: Resource,
        lease_type: Callable[[Binding[LeaseT], Possession, Granted], LeaseT],
        *,
        label: str,
        name: str,
        options: Options,
        beside: str = "",
    ) -> None:
        super().__init__(engine, engine.gate(resource), label=label, name=name, options=options)
        self.resource = resource
        self._lease_type = lease_type
        self.metadata = {**engine.settings.metadata, **options.metadata} or NO_METADATA
        self._user_json = engine.settings.user_json(self.metadata)
        self._beside = beside  # further fields that stand beside the lease, as JSON

    def acquire(self, blocking_timeout: float | None) -> Coroutine[Any, Any, LeaseT]:
        attempt = self._attempt(blocking_timeout, once=blocking_timeout == 0)
        return cast("Coroutine[Any, Any, LeaseT]", attempt)  # refused, it raises

    def try_acquire(self) -> Coroutine[Any, Any, LeaseT | None]:
        return self._attempt(None, once=True)

    def steal(self) -> Coroutine[Any, Any, LeaseT]:
        return cast("Coroutine[Any, Any, LeaseT]", self._attempt(0.0, once=True, by_force=True))

    def _claim(self, token: str, at_least_ms: int, *, by_force: bool = False) -> Claim:
        described, ttl_ms = self.engine.describe(self._user_json, self._beside), self.options.first_ttl_ms
        commands = self.resource.commands
        seized = self._seized if by_force else None
        return Claim(commands, token, described, ttl_ms, at_least_ms=at_least_ms, seized=seized)

    async def _attempt(
        self, blocking_timeout: float | None, *, once: bool, by_force: bool = False
    ) -> LeaseT | None:
        """The lease; refused, None for a caller that gave no `blocking_timeout`."""
        engine = self.engine
        token = self.resource.commands.new_token("", engine.token())
        claim = self._claim(token, self.options.at_least_ms, by_force=by_force)
        acquisition = (Attempt if once else Waiter)(self, claim, blocking_timeout)
        acquisition.start()
        try:
            await acquisition.done
        except BaseException:
            acquisition.leave()
            raise
        if acquisition.error is not None:
            # A raised error knows this frame, and so must not be known from here: that would be left to the
            # garbage collector.
            error, acquisition.error = acquisition.error, None
            try:
                raise error
            finally:
                del error
        grant = acquisition.grant
        if grant is None:
            if blocking_timeout is not None:
                raise acquisition.timed_out(blocking_timeout)
            return None
        if engine.closing:
            acquisition.leave()
            raise SessionClosedError("the session was closed while waiting")
        waited = acquisition.answered_at - acquisition.started
        sent = engine.moment(grant.sent, grant.sent_steady)
        return self._lease(claim, grant.answer, sent, waited)

    def _seized(self, claim: Claim, answer: Answer) -> Answer:
        if isinstance(answer, Granted) and answer.lost:
            from .stealing import tell_loser  # noqa: PLC0415 - few locks are stolen, and an import takes its time

            tell_loser(self.engine, claim, answer)
        return answer

    def _lease(self, claim: Claim, grant: Granted, sent: float, waited: float) -> LeaseT:
        possession = Possession(self, claim, grant.fencing_token, sent)
        self.gate.here.entrust(claim, self.engine.watchdog.watch(possession))
        self.engine.events.acquired(possession, waited)
        if grant.lost:
            self._seized(claim, grant)  # again: a task may have been granted it here in the same turn
            self.engine.events.stolen(possession, grant)
        return self._lease_type(self, possession, grant)

    async def locked(self) -> bool:
        return await self.engine.ask(self.resource.commands.locked())

    async def adopt(self, old: str, at_least_ms: int) -> LeaseT:
        engine, options, commands = self.engine, self.options, self.resource.commands
        at_least_ms = max(at_least_ms, options.at_least_ms)
        check_at_least(at_least_ms, options.first_ttl_ms)
        new = commands.new_token(old, engine.token())
        metadata = engine.describe(self._user_json, self._beside)
        ttl_ms = options.first_ttl_ms
        call, adopted = engine.start(
            commands.adopt(old, new, ttl_ms, metadata),
            until=engine.now() + engine.settings.command_timeout,
            patient=True,
        )
        try:
            fencing_token = await adopted
            if engine.closing:
                raise SessionClosedError("the session was closed while waiting")
        except BaseException:
            if engine.forget(call):
                # Another process may still adopt the handle: this adoption is undone, in order, after the
                # request.
                engine.take_back(commands.adopt(new, old, ttl_ms, metadata), options.ttl)
            raise
        if fencing_token is None:
            raise LockNotOwnedError(
                self.label, self.name, "it was adopted before, released, or its ttl has passed"
            )
        sent = engine.moment(call.sent, call.sent_steady)
        return self._lease(self._claim(new, at_least_ms), Granted(fencing_token, 0), sent, 0.0)
