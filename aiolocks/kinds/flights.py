"""A call under way in one session: its task, and those here who wait for it."""

from __future__ import annotations

import asyncio
import logging
import weakref
from collections.abc import Awaitable, Callable, Hashable
from contextvars import ContextVar
from typing import Any, TypeVar, final

from ..errors import FingerprintError, LockError, LockTimeoutError, SessionClosedError
from ..lock.context import Context
from ..lock.options import Options
from .keeping import Keeping
from .making import PAUSE, Making
from .outcomes import Outcome
from .serializers import Serializer

log = logging.getLogger("aiolocks.session")

T = TypeVar("T")

_within: ContextVar[weakref.ref[Flight] | None] = ContextVar("aiolocks_within_flight", default=None)
"""The call that the running code is a part of, in whichever task. Weak: what it began may outlive it."""


@final
class Flight:
    """One call, made here or waited for, and the callers of this session that want its result.

    Invariants:
    - it stands in `engine.in_progress` while others may join: until it has ended, or nobody waits any more;
    - nobody waits who has not been told how it ended; when nobody waits, its task is being cancelled;
    - no call waits for itself, also by way of others: it would keep itself alive when all callers have left;
    - a value that must be kept is published also when no caller waits any more;
    - nobody waits for a value that is being replaced: that call ends by itself, or with the session. If it
      fails, no other call of this session begins for the time of the pause, whatever the server knows of it.

    Args:
        slot: Where it stands in `engine.in_progress`.
        making: Makes the value.
        fingerprint: Of the request, hexadecimal; empty for none.
        anew: Fencing token of the run whose value it replaces, in a slot where nobody joins; else None.
    """

    __slots__ = (
        "__weakref__",
        "_anew",
        "_engine",
        "_making",
        "_name",
        "_outcome",
        "_slot",
        "_task",
        "_waiters",
        "_waiting_flights",
        "fingerprint",
    )

    def __init__(
        self,
        engine: Context,
        slot: Hashable,
        name: str,
        making: Making,
        *,
        fingerprint: str,
        anew: int | None = None,
    ) -> None:
        self._engine = engine
        self._slot = slot
        self._name = name
        self._anew = anew
        self.fingerprint = fingerprint
        self._making = making
        self._waiters: dict[asyncio.Future[bool], float] = {}  # by when they came
        self._waiting_flights: dict[asyncio.Future[bool], Flight] = {}  # the waiters that are a part of one
        self._outcome: Outcome | None = None
        engine.in_progress[slot] = self
        self._task = engine.loop.create_task(self._run(), name=f"aiolocks-singleflight-{name!r}")
        self._task.add_done_callback(self._landed)  # also of a task that was cancelled before it began

    async def join(self, fn: Callable[[], Awaitable[Any]], limit: float | None) -> Outcome | None:
        """Waits for the end; None for a caller that came when it had ended already, elsewhere, unknown to us.

        Args:
            fn: The caller's function: its own run has no limit.
            limit: Seconds to wait once a run of another caller goes on.

        Raises:
            LockTimeoutError: That run lasts longer.

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
            if limit is not None:
                await self._within_limit(waiter, fn, limit)
            in_time = await waiter
        finally:
            del self._waiters[waiter]
            self._waiting_flights.pop(waiter, None)
            waiter.cancel()  # where the limit has ended the wait
            if not waiter.cancelled():
                waiter.exception()  # the session's end, of which a cancelled caller learns nothing
            if not self._waiters and self._outcome is None and not self._making.keeps:
                self._making.abandoned = True
                self._leave()
                self._task.cancel()
        return self._outcome if in_time else None

    async def _within_limit(
        self, waiter: asyncio.Future[bool], fn: Callable[[], Awaitable[Any]], limit: float
    ) -> None:
        """Returns when the end is there, or when the caller's own function runs."""
        making = self._making
        await asyncio.wait((waiter, making.busy), return_when=asyncio.FIRST_COMPLETED)
        if not waiter.done() and not making.runs(fn):
            await asyncio.wait((waiter,), timeout=limit)
        if not waiter.done() and not making.runs(fn):
            raise LockTimeoutError(
                "SingleFlight", self._name, blocking_timeout=limit, remaining=None, endless=making.endless()
            )

    def _needs(self, caller: Flight) -> bool:
        """Whether this call is that one, or waits for it, also by way of others."""
        needing, seen = [caller], {caller}
        while needing:
            flight = needing.pop()
            # Or the call that replaces its value: while there is none, this call waits for that one.
            if flight._name == self._name and flight._engine is self._engine:  # noqa: SLF001 - its own class
                return True
            more = set(flight._waiting_flights.values()) - seen  # noqa: SLF001 - as above
            seen |= more
            needing.extend(more)
        return False

    def _leave(self) -> None:
        """Closes the call: no caller may join any more."""
        if self._engine.in_progress.get(self._slot) is self:
            del self._engine.in_progress[self._slot]

    def _landed(self, task: asyncio.Task[Outcome | None]) -> None:
        error: BaseException | None = None
        if task.cancelled():
            ended = RuntimeError(f"the task of SingleFlight key {self._name!r} was cancelled")
            self._outcome = Outcome.of_error(ended)
        elif (error := task.exception()) is not None:
            self._outcome = Outcome.of_error(error)
        else:
            self._outcome = task.result()
            error = None if self._outcome is None else self._outcome.error
        if self._anew is None or error is None or isinstance(error, SessionClosedError):
            self._leave()
        else:
            # A server that refuses the new value need not know of the pause.
            self._engine.loop.call_later(PAUSE, self._leave)
            self._tell_failure(error)
        for waiter, came_at in self._waiters.items():
            if not waiter.done():
                waiter.set_result(came_at <= self._making.ended_at)

    async def _run(self) -> Outcome | None:
        _within.set(weakref.ref(self))
        return await self._making.make()

    def _tell_failure(self, error: BaseException) -> None:
        """In the log, where nobody waits for the value."""
        log.log(
            self._engine.log_level(error),
            "singleflight %r: the value could not be made again, and the old one stays until its end: %s",
            self._name,
            error,
            exc_info=None if isinstance(error, LockError) else error,
        )

    def __repr__(self) -> str:
        return f"<Flight {self._name!r} waiters={len(self._waiters)}>"


async def share(
    engine: Context,
    name: str,
    fn: Callable[[], Awaitable[T]],
    limit: float | None,
    *,
    options: Options,
    keeping: Keeping,
    serializer: Serializer,
    fingerprint: str,
    spares: bool,
) -> T:
    """The value of a key, for one caller; a value that is due is replaced in the background.

    `limit` is the seconds to wait for the run of another caller; None without end. `spares` is that of
    `Making`.
    """

    def begin(slot: Hashable, *, anew: int | None = None) -> Flight:
        making = Making(
            engine,
            name,
            fn,
            options=options,
            keeping=keeping,
            serializer=serializer,
            fingerprint=fingerprint,
            anew=anew,
            spares=spares,
        )
        return Flight(engine, slot, name, making, fingerprint=fingerprint, anew=anew)

    slot, behind = ("singleflight", name), ("singleflight", name, "anew")
    while True:
        flight: Flight | None = engine.in_progress.get(slot)
        if flight is None:
            flight = begin(slot)
        elif flight.fingerprint != fingerprint:
            raise FingerprintError(name)
        outcome = await flight.join(fn, limit)
        if outcome is not None:
            if outcome.due is not None and behind not in engine.in_progress and not engine.closing:
                begin(behind, anew=outcome.due)
            value: T = outcome.get()
            return value
        engine.check_usable()
