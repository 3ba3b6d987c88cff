"""A call under way in one session: its task, and those here who wait for it."""

from __future__ import annotations

import asyncio
import inspect
import logging
import weakref
from collections.abc import Awaitable, Callable, Hashable
from contextvars import ContextVar
from typing import Any, Final, final

from .._core.arguments import LARGEST_VALUE, Options
from .._core.clock import milliseconds
from .._core.engine import Engine
from .._core.lease import Lease
from .._core.term import NEVER
from .._transport.commands.flight import Left
from ..errors import BackendError, ConfigurationError, LockError, LockLostError, LockTimeoutError
from .outcomes import Outcome, comes_of_cancellation
from .runs import ended_at, runs
from .serializers import Serializer

log = logging.getLogger("aiolocks.session")

_MOST_LOSSES: Final = 3
"""So often a call is begun: what loses its lease each time would do its work again and again."""

_DONE_AGAIN: Final = "; a new call may do it again"

_within: ContextVar[weakref.ref[Flight] | None] = ContextVar("aiolocks_within_flight", default=None)
"""The call that the running code is a part of, in whichever task. Weak: what it began may outlive it."""


@final
class Flight:
    """One call, made here or waited for, and those of this session who want what comes of it.

    Invariants:
    - it stands in `engine.shared` while others may join: until it has ended, or nobody waits any more;
    - nobody waits who has not been told how it ended; when nobody waits, its task is being cancelled;
    - no call waits for itself, also by way of others: it would keep itself alive when all callers have left;
    - a value that was made is never made again: a lease that was lost then is acquired again, to publish it;
    - a value that is to be kept is published also when no caller waits any more.

    Args:
        slot: Where it stands in `engine.shared`.
        fingerprint: Of the request, hexadecimal; empty for none.
    """

    __slots__ = (
        "__weakref__",
        "_begun",
        "_binding",
        "_busy",
        "_commands",
        "_ended_at",
        "_engine",
        "_fn",
        "_keep_ms",
        "_made",
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
        self._made: Outcome | None = None  # the end of our own call
        self._serializer = serializer
        self.fingerprint = fingerprint
        self._commands, self._binding = runs(
            engine, "singleflight", "SingleFlight", name, options=options, fingerprint=fingerprint
        )
        self._runs: set[int] = set()  # our own
        self._begun = False
        # Done once a run goes on, here or elsewhere. The commands have this future, and not this object: a
        # cycle would be left to the garbage collector.
        self._busy = self._commands.busy = engine.loop.create_future()
        self._waiters: dict[asyncio.Future[bool], float] = {}  # by when they came
        self._waiting_flights: dict[asyncio.Future[bool], Flight] = {}  # the waiters that are a part of one
        self._outcome: Outcome | None = None
        self._ended_at = NEVER
        engine.shared[slot] = self
        self._task = engine.loop.create_task(self._fly(), name=f"aiolocks-singleflight-{name!r}")
        self._task.add_done_callback(self._landed)  # also of a task that was cancelled before it began

    async def join(self, fn: Callable[[], Awaitable[Any]], limit: float | None) -> Outcome | None:
        """Waits for the end; None for who came when it had ended already, elsewhere, unknown to us.

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
            if not self._waiters and self._outcome is None and not self._keeping:
                self._leave()
                self._task.cancel()
        return self._outcome if in_time else None

    async def _within_limit(
        self, waiter: asyncio.Future[bool], fn: Callable[[], Awaitable[Any]], limit: float
    ) -> None:
        """Returns when the end is there, or when the caller's own function runs."""
        await asyncio.wait((waiter, self._busy), return_when=asyncio.FIRST_COMPLETED)
        if not waiter.done() and not self._runs_own(fn):
            await asyncio.wait((waiter,), timeout=limit)
        if not waiter.done() and not self._runs_own(fn):
            raise LockTimeoutError("SingleFlight", self._name, blocking_timeout=limit, remaining=None)

    def _runs_own(self, fn: Callable[[], Awaitable[Any]]) -> bool:
        return self._begun and self._fn is fn

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

    @property
    def _keeping(self) -> bool:
        """Whether the work was done, and the server must know of it for as long as `keep`."""
        return self._keep_ms > 0 and self._made is not None and self._made.done

    async def _fly(self) -> Outcome:
        """Runs the call, unless another has left what would come of it."""
        trouble: LockError | None = None
        for _ in range(_MOST_LOSSES):
            try:
                self._engine.admit()
                lease = await self._binding.acquire(None)
            except Left as left:
                # Our own, if it was not confirmed: then we have the very object.
                if self._made is not None and left.run in self._runs:
                    return self._made.confirmed(left)
                self._ended_at = ended_at(self._engine, left)
                return Outcome.of_another(self._name, left, self._serializer)
            except LockError as error:
                return self._unpublished(error)
            self._runs.add(lease.fencing_token)
            ended = await self._run(lease)
            if isinstance(ended, Outcome):
                return ended
            trouble = ended
        assert trouble is not None
        return self._unpublished(trouble)

    async def _run(self, lease: Lease) -> Outcome | LockError:
        """The end of the run, or the error for which another run has to publish it."""
        deadline = 0.0
        try:
            async with lease:
                if self._made is None:
                    self._made = await self._call(lease)
                deadline = self._engine.now() + lease.remaining()
                self._publish(lease, self._made)
        except LockLostError as error:
            return error
        except BackendError as error:
            return await self._unconfirmed(lease, error, deadline)
        return self._made

    async def _unconfirmed(self, lease: Lease, error: BackendError, deadline: float) -> Outcome | LockError:
        """The server has refused the end of the call, or has said nothing until its `deadline`."""
        made = self._made
        assert made is not None
        refused = self._engine.now() < deadline
        # Perhaps the server hung up on account of its length: in fewer words, the work was done.
        if made.done and (refused or (self._keeping and len(made.payload) > LARGEST_VALUE)):
            self._made = made = self._not_kept(made.value, error)
            if refused and await self._told(lease, made):
                return made
            refused = self._engine.now() < deadline  # if the lease has ended meanwhile, a new one may tell it
        return self._unpublished(error) if refused or not self._keeping else error

    async def _told(self, lease: Lease, outcome: Outcome) -> bool:
        """Whether the run, which was not ended, has ended with that."""
        self._publish(lease, outcome)
        command = self._commands.release(lease.token, milliseconds(lease.ttl))
        try:
            released = await self._engine.ask(command, told=self._engine.wake_own)
        except LockError:
            return False
        return released.freed

    async def _call(self, lease: Lease) -> Outcome:
        """What comes of the function; a cancellation of its task passes."""
        task = asyncio.current_task()
        assert task is not None
        _within.set(weakref.ref(self))
        self._begun = True
        self._commands.tell_busy()
        try:
            awaitable: object = self._fn()
            if not inspect.isawaitable(awaitable):
                raise TypeError(
                    f"fn must be a coroutine function (async def): {self._fn!r} gave "
                    f"{type(awaitable).__name__}; wrap a plain function as asyncio.to_thread does"
                )
            value = await awaitable
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
                not self._waiters or lease.remaining() <= 0.0 or comes_of_cancellation(error)
            ):
                # What it says about having been cancelled is not for those who wait elsewhere.
                raise asyncio.CancelledError from error
            return Outcome.of_error(error)
        try:
            outcome = Outcome.of_value(value, self._serializer)
            self._engine.settings.check_value(outcome.payload)
        except ConfigurationError as error:
            return self._not_kept(value, error)
        except Exception as error:  # noqa: BLE001 - a serializer may raise anything
            error.add_note(
                "aiolocks: the serializer of the SingleFlight says this of the value of the function "
                f"({type(value).__name__}), which others are to have too"
            )
            return self._not_kept(value, error)
        return outcome

    def _not_kept(self, value: Any, because: Exception) -> Outcome:
        """The work was done, and for this reason others cannot have its value.

        Callers here get the value. If it was to be kept, they get it with an error: a caller that relies on
        that has to know.
        """
        log.warning("singleflight %r: others cannot have the value of the call: %s", self._name, because)
        return Outcome.not_kept(self._name, value, because, raises=self._keep_ms > 0)

    def _publish(self, lease: Lease, outcome: Outcome) -> None:
        """With its release."""
        keep_ms = self._keep_ms if outcome.done else 0
        self._commands.leave(
            lease.token, lease.fencing_token, tag=outcome.tag, payload=outcome.payload, keep_ms=keep_ms
        )

    def _unpublished(self, error: LockError) -> Outcome:
        """The work was done: callers here get its value, whatever the others can be told."""
        if self._made is None:
            raise error
        again = _DONE_AGAIN if self._keeping else ""
        log.warning(
            "singleflight %r: what the call gave could not be published%s: %s", self._name, again, error
        )
        if not self._keeping:
            return self._made
        return Outcome.not_kept(self._name, self._made.value, error, raises=True, hint=_DONE_AGAIN)

    def __repr__(self) -> str:
        return f"<Flight {self._name!r} waiters={len(self._waiters)}>"
