"""A lock in a session: from an acquire or an adoption to a lease."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from ..errors import LockNotOwnedError, SessionClosedError
from ..transport import Granted
from .claim import Claim
from .lease import Possession
from .options import NO_METADATA, check_at_least
from .queue import Gate
from .waiter import Attempt, FirstAsk, Waiter

if TYPE_CHECKING:
    from ..transport import Answer
    from .claim import Resource
    from .context import Context
    from .lease import Lease
    from .options import Options

LeaseT = TypeVar("LeaseT", bound="Lease")


class Binding(Generic[LeaseT]):
    """The part that all acquisitions of one lock in one session share.

    Attributes:
        gate: Where those of the session queue that want the same thing.
        label: Its kind, as messages call it.
    """

    __slots__ = (
        "_beside",
        "_lease_type",
        "_user_json",
        "engine",
        "gate",
        "label",
        "metadata",
        "name",
        "options",
        "resource",
    )

    def __init__(
        self,
        engine: Context,
        resource: Resource,
        lease_type: Callable[[Binding[LeaseT], Possession, Granted], LeaseT],
        *,
        label: str,
        name: str,
        options: Options,
        beside: str = "",
    ) -> None:
        self.engine = engine
        self.gate = Gate.of(engine, resource)
        self.label = label
        self.name = name
        self.options = options
        self.resource = resource
        self._lease_type = lease_type
        self.metadata = {**engine.settings.metadata, **options.metadata} or NO_METADATA
        self._user_json = engine.settings.user_json(self.metadata)
        self._beside = beside  # further fields that stand beside the lease, as JSON

    @property
    def kind(self) -> str:
        return self.label.lower()

    def __str__(self) -> str:
        return f"{self.label} {self.name!r}"

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
        acquisition: Attempt | FirstAsk | Waiter
        if not once and self.gate.idle:
            acquisition = FirstAsk(self, claim, blocking_timeout)
        else:
            acquisition = (Attempt if once else Waiter)(self, claim, blocking_timeout)
            acquisition.start()
        try:
            await acquisition.done
        except BaseException:
            (acquisition.waiter or acquisition).leave()
            raise
        acquisition = acquisition.waiter or acquisition
        grant = acquisition.grant
        if grant is None:
            if isinstance(acquisition, Attempt) and acquisition.owner_asked:
                acquisition = await self._answer_of_owner(claim)
                grant = acquisition.grant
            if grant is None:
                self._not_had(acquisition, blocking_timeout)
                return None
        if engine.closing:
            acquisition.leave()
            raise SessionClosedError("the session was closed while waiting")
        waited = acquisition.answered_at - acquisition.started
        return self._lease(claim, grant.answer, grant.sent, grant.sent_steady, waited)

    def _not_had(self, acquisition: Attempt | FirstAsk | Waiter, blocking_timeout: float | None) -> None:
        """Raises why; returns where it was refused to a caller that gave no `blocking_timeout`."""
        assert not isinstance(acquisition, FirstAsk), "without a grant it is a waiter"
        if acquisition.error is not None:
            # A raised error knows this frame, and so must not be known from here: that would be left to the
            # garbage collector.
            error, acquisition.error = acquisition.error, None
            try:
                raise error
            finally:
                del error
        if blocking_timeout is not None:
            raise acquisition.timed_out(blocking_timeout)

    async def _answer_of_owner(self, claim: Claim) -> Waiter:
        """A single try was refused for a lease that its session may keep without using it.

        It is told apart from one that is used by the session's answer alone: a release, or that a task is
        inside. The waiter has its seat for as long.
        """
        waiter = Waiter(self, claim, None)
        waiter.start_briefly()
        try:
            await waiter.done
        except BaseException:
            waiter.leave()
            raise
        return waiter

    def _seized(self, claim: Claim, answer: Answer) -> Answer:
        if isinstance(answer, Granted) and answer.lost:
            self._tell_loser(claim, answer)
        return answer

    def _tell_loser(self, claim: Claim, grant: Granted) -> None:
        """The server tells no session of what that session has done: a holder of this one learns it here."""
        from .stealing import parties, stolen_by  # noqa: PLC0415 - few locks are stolen, and an import takes its time

        found = parties(claim, grant)
        if found is None:
            return
        loser, thief = found
        owner = grant.lost.partition(b":")[0].decode()
        for possession in self.engine.watchdog.possessions():
            same = possession.shares_token or possession.fencing_token == loser.fencing_token
            if same and possession.claim.owner == owner:
                possession.lose(stolen_by(thief), thief)

    def _tell_stolen(self, possession: Possession, grant: Granted) -> None:
        from .._holders import in_words  # noqa: PLC0415 - few locks are stolen
        from .stealing import holder_in  # noqa: PLC0415 - as above

        loser = holder_in(grant.lost, now_us=grant.fencing_token)
        if loser is not None:
            held = f"held {in_words((loser,))}"
            self.engine.events.stolen(possession, loser.held_for or 0.0, held)

    def _lease(self, claim: Claim, grant: Granted, sent: float, steady: float, waited: float) -> LeaseT:
        possession = Possession(self, claim, grant.fencing_token, sent, steady)
        self.gate.here.entrust(claim, self.engine.watchdog.watch(possession))
        self.engine.events.acquired(possession, waited)
        if grant.lost:
            self._seized(claim, grant)  # again: a task may have been granted it here in the same turn
            self._tell_stolen(possession, grant)
        return self._lease_type(self, possession, grant)

    async def locked(self) -> bool:
        kept = self.gate.kept
        if kept is not None and kept.idle and kept.lasts:
            return False  # only this session keeps it, and nobody uses it: who asks here has it
        return await self.engine.ask(self.resource.commands.locked())

    async def adopt(self, old: str, at_least_ms: int, number: int = 0) -> LeaseT:
        engine, options, commands = self.engine, self.options, self.resource.commands
        at_least_ms = max(at_least_ms, options.at_least_ms)
        check_at_least(at_least_ms, options.first_ttl_ms)
        new = commands.new_token(old, engine.token())
        metadata = engine.describe(self._user_json, self._beside)
        ttl_ms = options.first_ttl_ms
        adopt = partial(commands.adopt_kept, number=number) if number else commands.adopt
        call, adopted = engine.start(
            adopt(old, new, ttl_ms, metadata),
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
                engine.take_back(adopt(new, old, ttl_ms, metadata), options.ttl)
            raise
        if fencing_token is None:
            raise LockNotOwnedError(
                self.label, self.name, "it was adopted before, released, or its ttl has passed"
            )
        grant = Granted(fencing_token, 0)
        return self._lease(self._claim(new, at_least_ms), grant, call.sent, call.sent_steady, 0.0)
