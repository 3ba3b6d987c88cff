"""A call under way in one session: its task, and those here who wait for it."""

from __future__ import annotations

import asyncio
import inspect
import logging
import weakref
from collections.abc import Awaitable, Callable, Hashable
from contextvars import ContextVar
from typing import Any, Final, final

from .._core.arguments import Options
from .._core.binding import Binding
from .._core.claim import Resource
from .._core.clock import milliseconds
from .._core.engine import Engine
from .._core.lease import Lease
from .._core.term import NEVER
from .._transport.commands.flight import FlightCommands, Left
from ..errors import BackendError, LockError, LockLostError
from .outcomes import Outcome
from .serializers import Serializer

log = logging.getLogger("aiolocks.session")

_MOST_LOSSES: Final = 3
"""So often a call is begun: what loses its lease each time would do its work again and again."""

_within: ContextVar[weakref.ref[Flight] | None] = ContextVar("aiolocks_within_flight", default=None)
"""The call that the running code is a part of, in whichever task. Weak: what it began may outlive it."""


def runs(
    engine: Engine, kind: str, label: str, name: str, *, options: Options, fingerprint: str
) -> tuple[FlightCommands, Binding[Lease]]:
    """How those of one session who want one run ask for it."""
    commands = FlightCommands(
        engine.settings.prefix,
        kind,
        name,
        fingerprint=fingerprint,
        retention_ms=milliseconds(engine.settings.fence_retention),
        session=engine.session_id,
    )
    resource = Resource(commands, (kind, name))
    return commands, Binding(engine, resource, Lease, label=label, name=name, options=options)


def ended_at(engine: Engine, left: Left) -> float:
    """Loop time until which who came has waited for what that run has left."""
    return NEVER if left.age_us is None else engine.now() - left.age_us / 1e6


@final
class Flight:
    """One call, made here or waited for, and those of this session who want what comes of it.

    Invariants:
    - it stands in `engine.shared` while others may join: until it has ended, or nobody waits any more;
    - nobody waits who has not been told how it ended; when nobody waits, its task is being cancelled;
    - no call waits for itself, also by way of others: it would keep itself alive when all callers have left;
    - what the function gave is never made again: a lease that was lost then is acquired anew, to publish it.

    Args:
        slot: Where it stands in `engine.shared`.
        fingerprint: Of the request, hexadecimal; empty for none.
    """

    __slots__ = (
        "__weakref__",
        "_binding",
        "_commands",
        "_ended_at",
        "_engine",
        "_fn",
        "_keep_ms",
        "_name",
        "_outcome",
        "_runs",
        "_serializer",
        "_slot",
        "_task",
        "_waiters",
        "_waiting_flights",
        "fingerprint",
    )

    def __init__(
        self,
        engine: Engine,
        slot: Hashable,
        name: str,
        fn: Callable[[], Awaitable[Any]],
        *,
        options: Options,
        keep_ms: int,
        serializer: Serializer,
        fingerprint: str,
    ) -> None:
        self._engine = engine
        self._slot = slot
        self._name = name
        self._fn = fn
        self._keep_ms = keep_ms
        self._serializer = serializer
        self.fingerprint = fingerprint
        self._commands, self._binding = runs(
            engine, "singleflight", "SingleFlight", name, options=options, fingerprint=fingerprint
        )
        self._runs: set[int] = set()  # our own
        self._waiters: dict[asyncio.Future[bool], float] = {}  # by when they came
        self._waiting_flights: dict[asyncio.Future[bool], Flight] = {}  # the waiters that are a part of one
        self._outcome: Outcome | None = None
        self._ended_at = NEVER
        engine.shared[slot] = self
        self._task = engine.loop.create_task(self._fly(), name=f"aiolocks-singleflight-{name!r}")
        self._task.add_done_callback(self._landed)  # also of a task that was cancelled before it began

    async def join(self) -> Outcome | None:
        """Waits for the end; None for who came when it had ended already, elsewhere, unknown to us.

        Cancelled, it ends this wait alone, and the call if nobody else waits here.
        """
        within = _within.get()
        caller = None if within is None else within()
        if caller is not None and self._needs(caller):
            raise RuntimeError(f"the call of SingleFlight key {self._name!r} waits for itself")
        waiter: asyncio.Future[bool] = self._engine.waiter()
        self._waiters[waiter] = self._engine.now()
        if caller is not None:
            self._waiting_flights[waiter] = caller
        try:
            in_time = await waiter
        finally:
            del self._waiters[waiter]
            self._waiting_flights.pop(waiter, None)
            if waiter.done() and not waiter.cancelled():
                waiter.exception()  # the session's end, of which a cancelled caller learns nothing
            if not self._waiters and self._outcome is None:
                self._leave()
                self._task.cancel()
        return self._outcome if in_time else None

    def _needs(self, caller: Flight) -> bool:
        """Whether this call is that one, or waits for it, also by way of others."""
        needing, seen = [caller], {caller}
        while needing:
            flight = needing.pop()
            if flight is self:
                return True
            more = set(flight._waiting_flights.values()) - seen  # noqa: SLF001 - its own class
            seen |= more
            needing.extend(more)
        return False

    def _leave(self) -> None:
        """Nobody may join any more."""
        if self._engine.shared.get(self._slot) is self:
            del self._engine.shared[self._slot]

    def _landed(self, task: asyncio.Task[Outcome]) -> None:
        self._leave()
        if task.cancelled():
            ended = RuntimeError(f"the task of SingleFlight key {self._name!r} was cancelled")
            self._outcome = Outcome.of_error(ended)
        elif (error := task.exception()) is not None:
            self._outcome = Outcome.of_error(error)
        else:
            self._outcome = task.result()
        for waiter, came_at in self._waiters.items():
            if not waiter.done():
                waiter.set_result(came_at <= self._ended_at)

    async def _fly(self) -> Outcome:
        """Runs the call, unless another has left what would come of it."""
        outcome: Outcome | None = None
        losses = 0
        while True:
            try:
                self._engine.admit()
                lease = await self._binding.acquire(None)
            except Left as left:
                # Our own, if it was not confirmed: then we have the very object.
                if outcome is not None and left.run in self._runs:
                    return outcome
                self._ended_at = ended_at(self._engine, left)
                return Outcome.of_another(left, self._serializer)
            except LockError as error:
                return self._unpublished(outcome, error)
            self._runs.add(lease.fencing_token)
            try:
                async with lease:
                    if outcome is None:
                        outcome = await self._call(lease)
                    self._publish(lease, outcome)
            except LockLostError as error:
                losses += 1
                if losses == _MOST_LOSSES:
                    return self._unpublished(outcome, error)
            except BackendError as error:
                return self._unpublished(outcome, error)
            else:
                return outcome

    async def _call(self, lease: Lease) -> Outcome:
        """What comes of the function; a cancellation of its task passes."""
        task = asyncio.current_task()
        assert task is not None
        _within.set(weakref.ref(self))
        try:
            awaitable: object = self._fn()
            if not inspect.isawaitable(awaitable):
                raise TypeError(
                    f"fn must be a coroutine function (async def): {self._fn!r} gave "
                    f"{type(awaitable).__name__}; wrap a plain function as asyncio.to_thread does"
                )
            return Outcome.of_value(await awaitable, self._serializer)
        except asyncio.CancelledError as error:
            if task.cancelling():
                raise
            # It came out of the function by itself. Nobody who waits was cancelled, or may believe it.
            ended = RuntimeError(f"the call of SingleFlight key {self._name!r} was cancelled from within")
            ended.__cause__ = error
            return Outcome.of_error(ended)
        except Exception as error:
            # The count alone says nothing: up to Python 3.12 a TaskGroup that has failed leaves it raised.
            if task.cancelling() and (
                not self._waiters or lease.remaining() <= 0.0 or _comes_of_cancellation(error)
            ):
                # What it says about having been cancelled is not for those who wait elsewhere.
                raise asyncio.CancelledError from error
            return Outcome.of_error(error)

    def _publish(self, lease: Lease, outcome: Outcome) -> None:
        """With its release."""
        keep_ms = self._keep_ms if outcome.kept else 0
        self._commands.leave(
            lease.token, lease.fencing_token, tag=outcome.tag, payload=outcome.payload, keep_ms=keep_ms
        )

    def _unpublished(self, outcome: Outcome | None, error: LockError) -> Outcome:
        """What was done is done: those here get it, whatever the others can be told."""
        if outcome is None:
            raise error
        log.warning("singleflight %r: what the call gave could not be published: %s", self._name, error)
        return outcome

    def __repr__(self) -> str:
        return f"<Flight {self._name!r} waiters={len(self._waiters)}>"


def _comes_of_cancellation(error: BaseException) -> bool:
    """Whether it was raised on account of a cancellation, or while one was on its way."""
    cause: BaseException | None = error
    seen: set[int] = set()  # `raise error from error` makes one its own cause
    while cause is not None and id(cause) not in seen:
        if isinstance(cause, asyncio.CancelledError):
            return True
        seen.add(id(cause))
        cause = cause.__cause__ or cause.__context__
    return False
