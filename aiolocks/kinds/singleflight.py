"""Single flight: many want it, one makes it, all have it."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hashlib
import inspect
import logging
import math
import random
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Hashable
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple, Never, ParamSpec, TypeVar, final

from .._logs import get_logger
from .._tasks import empty_context, spawn
from ..errors import (
    BackendError,
    ConfigurationError,
    FingerprintError,
    LockError,
    LockLostError,
    LockTimeoutError,
    SessionClosedError,
)
from ..lock import together
from ..lock.acquirable import AS_CONFIGURED
from ..lock.again import TakeOverError
from ..lock.clock import NEVER, milliseconds
from ..lock.engine import Engine
from ..lock.lease import Lease
from ..lock.misuse import NotEntered
from ..lock.naming import names_of_calls
from ..lock.notes import note
from ..lock.options import (
    LARGEST_VALUE,
    Options,
    Seconds,
    lock_name,
    number,
    optional_seconds,
    reject_unknown,
    seconds,
)
from ..lock.sources import Client, engine_of, source_of
from ..lock.waiter import Waiter
from .flights import FlightSteps, GrantTime, Leaving, RunEnded, ended_at, runs
from .outcome import NOT_KEPT, VALUE, Outcome, ended
from .serializers import JSON, Serializer, checked_serializer
from .turn import Turn, TurnGroup

log = get_logger("aiolocks.session")
T = TypeVar("T")

# -- The arguments of the calls of a single flight, checked.

_DIGEST_BYTES: Final = 16


def check_function(fn: object) -> None:
    if not callable(fn):
        made = inspect.isawaitable(fn)
        hint = ": give fn itself, not what calling it gives; lambda: fn(…) for arguments" if made else ""
        raise TypeError(f"fn must be a coroutine function, not {type(fn).__name__}{hint}")


def digest_of(fingerprint: object) -> str:
    """The digest that is stored of a fingerprint: not the request itself."""
    if fingerprint is None:
        return ""
    if isinstance(fingerprint, str):
        fingerprint = fingerprint.encode(errors="surrogatepass")
    if not isinstance(fingerprint, bytes):
        raise TypeError(f"fingerprint must be str, bytes or None, not {type(fingerprint).__name__}")
    return hashlib.blake2b(fingerprint, digest_size=_DIGEST_BYTES).hexdigest()


# -- The times of a kept value: for how long it is kept, and when it is replaced.

_MOST_EARLY: Final = 1000.0


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Keeping:
    """How long a value is kept, and when it is replaced; see `SingleFlight`. Immutable.

    Invariant: without `keep` and `keep_of` all of them are 0.

    Attributes:
        keep: Seconds for which a value is fresh; with `keep_of`, 0.0.
        keep_of: The user's function of the value that gives them.
        stale: Seconds after that for which it is given while it is being replaced.
        early: A factor of the run's duration: how far ahead of its end a value is replaced, at random.
        jitter: The share of `keep` that is random.
    """

    keep: float = 0.0
    keep_of: Callable[[Any], Seconds] | None = None
    stale: float = 0.0
    early: float = 0.0
    jitter: float = 0.0

    def but(self, *, keep: Any, stale: Any, early: Any, jitter: Any) -> Keeping:
        """The same with other times, where they are given.

        Raises:
            TypeError, ValueError: One is not as it should be.
        """
        changes: dict[str, Any] = {}
        if keep is not AS_CONFIGURED:
            of_value = callable(keep)
            changes["keep"] = 0.0 if of_value else seconds("keep", keep)
            changes["keep_of"] = keep if of_value else None
        if stale is not AS_CONFIGURED:
            changes["stale"] = seconds("stale", stale)
        if early is not AS_CONFIGURED:
            changes["early"] = number("early", early, most=_MOST_EARLY)
        if jitter is not AS_CONFIGURED:
            changes["jitter"] = number("jitter", jitter, most=1.0)
        if not changes:
            return self
        if changes.get("keep", self.keep) or changes.get("keep_of", self.keep_of):
            return replace(self, **changes)
        for name in ("stale", "early", "jitter"):
            if changes.get(name):
                raise ValueError(f"{name}={changes[name]:g} is of no use without keep=: no value is kept")
        return Keeping()

    @property
    def kept(self) -> bool:
        """Whether a value is kept at all."""
        return self.keep > 0 or self.keep_of is not None

    def of(self, value: Any) -> Keeping:
        """The times of this value: what the user's function gives for it counts. Raises what that raises."""
        if self.keep_of is None:
            return self
        found: object = self.keep_of(value)
        if inspect.iscoroutine(found):
            found.close()  # so that Python does not complain of it, too
        keep = seconds("keep", found)
        return replace(self, keep=keep, keep_of=None) if keep else Keeping()

    def fresh_ms(self) -> int:
        """The milliseconds for which one value is fresh: drawn again for each value."""
        return milliseconds(self.keep - self.keep * self.jitter * random.random())  # noqa: S311 - not a secret

    @property
    def stale_ms(self) -> int:
        return milliseconds(self.stale)

    def ahead(self) -> float:
        """How early a value counts as due, as a multiple of its cost: drawn again for each question.

        An exponential law, as of XFetch: Vattani, Chierichetti and Lowenstein, "Optimal Probabilistic Cache
        Stampede Prevention", Proceedings of the VLDB Endowment 8 (8), 2015.
        """
        return -self.early * math.log(1.0 - random.random()) if self.early else 0.0  # noqa: S311 - as above

    def __str__(self) -> str:
        times = ((name, getattr(self, name)) for name in ("stale", "early", "jitter"))
        keep = f"{self.keep:g}" if self.keep_of is None else repr(self.keep_of)
        return " ".join((f"keep={keep}", *(f"{name}={value:g}" for name, value in times if value)))


@final
class Call(NamedTuple):
    """What a caller asks for.

    Attributes:
        name: The key.
        fn: The caller's function, if that is to run.
        fingerprint: Of the request, hexadecimal; empty for none. The value of a key with one, which is an
            idempotency key, is not made again because it cannot be read.
        is_cache: The value is that of a cache: where it cannot be kept, it is made again.
    """

    name: str
    fn: Callable[[], Awaitable[Any]]
    options: Options
    keeping: Keeping
    serializer: Serializer
    fingerprint: str
    is_cache: bool


# -- How a value is made under a lease, and published for the callers that wait in other sessions.

_MOST_LOSSES: Final = 3
"""The most times that a call is begun, as a call that loses its lease each time would never end."""

PAUSE: Final = 1.0
"""Seconds before another try to replace a value, after a try has failed."""

_DONE_AGAIN: Final = "; a new call may do it again"


@final
class Making:
    """One value of a key: the result of another run, or of our function.

    Invariants:
    - a value that was made is never made again: a lease that was lost then is acquired again, to publish it;
    - the function runs only under a lease.

    Args:
        anew: Fencing token of the run whose value this call replaces, while callers get that value; None if
            callers wait for the value of this call.

    Attributes:
        busy: Done once a run goes on, in this session or in another one.
        begun: Whether our function runs, or has run.
        abandoned: No caller waits for the value any more, and the task is being cancelled.
        ended_at: Loop time up to which a caller must have come to get the result.
    """

    __slots__ = (
        "_anew",
        "_begun_in",
        "_binding",
        "_cost_ms",
        "_engine",
        "_grant_time",
        "_keeping",
        "_lasts",
        "_made",
        "_made_at",
        "_runs",
        "_runs_of",
        "_steps",
        "abandoned",
        "asked",
        "begun",
        "busy",
        "call",
        "ended_at",
    )

    def __init__(self, engine: Engine, call: Call, *, anew: int | None) -> None:
        self._engine = engine
        self.call = call
        self._anew = anew
        self._keeping = call.keeping  # until the value is there, which may say how long it is kept
        self._begun_in = 0  # fencing token of the run in which our function was called
        self._runs_of = functools.partial(
            runs,
            engine,
            "singleflight",
            "SingleFlight",
            call.name,
            options=call.options,
            fingerprint=call.fingerprint,
            anew=anew,
        )
        self._steps, self._binding = self._runs_of(ahead=call.keeping.ahead())
        # The steps have this future, and not this object: a cycle would be left to the garbage collector.
        self.busy: asyncio.Future[Any] = engine.loop.create_future()
        self._steps.busy = self.busy
        self.asked = engine.now()
        self._grant_time: GrantTime | None = None  # of the last run of ours
        self._made: Outcome | None = None  # the end of our own call
        self._made_at = engine.mark()
        self._lasts = 0.0  # seconds for which it may be given from then on to callers that come later
        self._cost_ms = 0
        self._runs: set[int] = set()  # our own
        self.begun = False
        self.abandoned = False
        self.ended_at = NEVER

    def runs(self, fn: Callable[[], Awaitable[Any]]) -> bool:
        """Whether it is this function that runs."""
        return self.begun and self.call.fn is fn

    def endless(self) -> str:
        """That the run of another session has lost its ttl, and what frees it; empty where it has not."""
        if not self._steps.no_end:
            return ""
        from .._holders import without_ttl  # noqa: PLC0415 - rare, and an import takes its time

        return without_ttl(self.call.name, self._engine.settings.prefix)

    @property
    def keeps(self) -> bool:
        """Whether the work was done, and the server must know of it for as long as `keep`."""
        return self._keeping.kept and self._made is not None and self._made.done

    async def make(self) -> Outcome | None:
        """Runs the call, unless another run has left its result; None if another call replaces the value.

        Raises:
            LockError: There is no value, neither ours nor another one.
        """
        trouble: LockError | None = None
        missed = False
        for begun in range(_MOST_LOSSES):
            try:
                self._engine.check_usable()
                lease = await self._acquire()
            except RunEnded as end:
                # Our own, if it was not confirmed: then we have the very object.
                if self._made is not None and end.run in self._runs:
                    return self._own(self._made.confirmed(end))
                if self.call.is_cache and end.tag == NOT_KEPT and not missed and self._made is None:
                    missed = True  # that run could not keep its value: this caller makes one
                    self._ask_anew()
                    continue
                try:
                    outcome = Outcome.of_another(self.call.name, end, self.call.serializer)
                except Exception as error:
                    if self.call.fingerprint or self._anew is not None or begun == _MOST_LOSSES - 1:
                        raise
                    self._tell_unreadable(error)
                    self._ask_anew(replaces=end.run)
                    continue
                self.ended_at = ended_at(end, asked=self.asked)
                return outcome
            except LockError as error:
                return self._own(self._unpublished(error))
            if lease is None:
                return None
            self._runs.add(lease.fencing_token)
            self._grant_time = GrantTime(self._engine, self._steps.granted_at_us, lease)
            ended = await self._run(lease)
            if isinstance(ended, Outcome):
                return self._own(ended)
            trouble = ended
        assert trouble is not None
        return self._own(self._unpublished(trouble))

    def _tell_unreadable(self, error: Exception) -> None:
        """A value of another run cannot be read: another version has written it, or another serializer."""
        level = logging.WARNING if self._engine.events.first("unreadable values") else logging.DEBUG
        log.log(
            level,
            "singleflight %r: the value of another run cannot be read by %r, and is made anew (others are "
            "logged at DEBUG): %s: %s",
            self.call.name,
            self.call.serializer,
            type(error).__name__,
            error,
        )

    def _ask_anew(self, *, replaces: int | None = None) -> None:
        """As a caller that was not told of any run yet; `replaces`: the value of that run is of no use."""
        self._steps, self._binding = self._runs_of(ahead=self._keeping.ahead(), replaces=replaces)
        self._steps.busy = self.busy
        self.asked = self._engine.now()

    def _own(self, outcome: Outcome) -> Outcome:
        """The outcome of our own call, whose publication may have taken longer than it may be given."""
        age = self._engine.elapsed(self._made_at)
        if age > self._lasts:
            self.ended_at = self._engine.now() - age
        return outcome

    async def _acquire(self) -> Lease | None:
        """The lease of a run; a run that replaces a value does not queue for it."""
        if self._anew is not None:
            return await self._binding.try_acquire()
        return await self._binding.acquire(None)

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
        except (BackendError, SessionClosedError) as error:
            return await self._unconfirmed(lease, error, deadline)
        return self._made

    async def _unconfirmed(self, lease: Lease, error: LockError, deadline: float) -> Outcome | LockError:
        """The server has refused the end of the call, or has said nothing until its `deadline`."""
        made = self._made
        assert made is not None
        refused = self._engine.now() < deadline
        # Perhaps the server hung up on account of its length: in fewer words, the work was done.
        if made.done and (refused or (self.keeps and len(made.payload) > LARGEST_VALUE)):
            self._made = made = self._not_kept(made.value, error)
            if refused and await self._told(lease, made):
                return made
            refused = self._engine.now() < deadline  # if the lease has ended meanwhile, a new one may tell it
        return self._unpublished(error) if refused or self.call.is_cache or not self.keeps else error

    async def _told(self, lease: Lease, outcome: Outcome) -> bool:
        """Whether the run, which was not ended, has ended with that."""
        self._publish(lease, outcome)
        command = self._steps.release(lease.token, milliseconds(lease.ttl))
        try:
            released = await self._engine.ask(command, told=self._engine.wake_own)
        except LockError:
            return False
        return released.freed

    async def _call(self, lease: Lease) -> Outcome:
        """The outcome of the function; a cancellation of its task passes."""
        self.begun = True
        self._begun_in = lease.fencing_token
        self._steps.tell_busy()
        began = self._engine.now()
        try:
            value, raised = await ended(
                self._awaited(),
                f"the call of SingleFlight key {self.call.name!r}",
                needless=lambda: self.abandoned or lease.remaining() <= 0.0,
            )
        finally:
            self._made_at = self._engine.mark()
        if raised is not None:
            return Outcome.of_error(raised)
        self._cost_ms = milliseconds(self._engine.now() - began)
        self._resolve_keep(value)
        try:
            outcome = Outcome.of_value(value, self.call.serializer)
            self._engine.settings.check_value(outcome.payload)
        except ConfigurationError as error:
            return self._not_kept(value, error)
        except Exception as error:  # noqa: BLE001 - a serializer may raise anything
            note(
                error,
                "aiolocks: the serializer of the SingleFlight says this of the value of the function "
                f"({type(value).__name__}), which others are to have too",
            )
            return self._not_kept(value, error)
        return outcome

    async def _awaited(self) -> Any:
        """What the function gives; it is called in this task, and in its context."""
        awaitable: object = self.call.fn()
        if not inspect.isawaitable(awaitable):
            raise TypeError(
                f"fn must be a coroutine function (async def): {self.call.fn!r} gave "
                f"{type(awaitable).__name__}; wrap a plain function as asyncio.to_thread does"
            )
        return await awaitable

    def _resolve_keep(self, value: Any) -> None:
        """For how long this value is kept, if a function says so."""
        try:
            self._keeping = self._keeping.of(value)
        except Exception as error:  # noqa: BLE001 - it may raise anything
            self._keeping = Keeping()
            together.tell(
                log,
                logging.ERROR,
                "singleflight %r: keep= gives no seconds for its value, which is not kept: %s",
                *(self.call.name, error),
                name=repr(self.call.name),
                many="for %d values of single flights keep= gives no seconds (%s), and they are not kept: %s",
                why=type(error).__name__,
                error=error,
            )

    def _not_kept(self, value: Any, because: Exception) -> Outcome:
        """The work was done, and for this reason other sessions cannot have its value.

        Callers in this session get the value. If the value had to be kept, they get it with an error: a
        caller that relies on a kept value has to know.
        """
        if self._anew is None:
            level = self._engine.log_level(because)
            log.log(
                level,
                "singleflight %r: others cannot have the value of the call: %s",
                self.call.name,
                because,
            )
        # No caller waits for a value that replaces another one: the log says that there is none.
        raises = self._keeping.kept and (not self.call.is_cache or self._anew is not None)
        return Outcome.not_kept(self.call.name, value, because, raises=raises)

    def _publish(self, lease: Lease, outcome: Outcome) -> None:
        """Publishes the result, with the release."""
        granted = self._grant_time
        assert granted is not None
        fresh_ms = keep_ms = 0
        if outcome.done and self._keeping.kept and (outcome.tag == VALUE or not self.call.is_cache):
            # Shorter, so that no caller gets a value that is older than `keep` and `stale` allow.
            fresh_ms = self._keeping.fresh_ms() - math.ceil(granted.unsure * 1000)
            keep_ms = max(0, fresh_ms + self._keeping.stale_ms)
            fresh_ms = max(0, fresh_ms)
        self._lasts = keep_ms / 1000
        pauses = self._anew is not None and outcome.tag != VALUE
        self._steps.leave(
            Leaving(
                token=lease.token,
                run=lease.fencing_token,
                tag=outcome.tag,
                payload=outcome.payload,
                made_at_us=granted.latest_us(self._engine.elapsed(self._made_at)),
                begun=self._begun_in,
                fresh_ms=fresh_ms,
                keep_ms=keep_ms,
                cost_ms=self._cost_ms,
                pause_ms=milliseconds(PAUSE) if pauses else None,
            )
        )

    def _unpublished(self, error: LockError) -> Outcome:
        """The work was done: callers in this session get its value, whatever other sessions can be told."""
        if self._made is None:
            raise error
        must = self.keeps and not self.call.is_cache
        again = _DONE_AGAIN if must else ""
        if self._anew is None:
            log.log(
                self._engine.log_level(error),
                "singleflight %r: what the call gave could not be published%s: %s",
                self.call.name,
                again,
                error,
            )
        if not must:
            return self._made
        return Outcome.not_kept(self.call.name, self._made.value, error, raises=True, hint=_DONE_AGAIN)


# -- A call under way in one session: its task, and the callers in this session that wait for it.

_within: ContextVar[weakref.ref[Flight] | None] = ContextVar("aiolocks_within_flight", default=None)
"""The call that the running code is a part of, in whichever task. Weak: what it began may outlive it."""


@final
class Flight:
    """One call, made in this session or waited for, and the callers of this session that want its result.

    Invariants:
    - it stands in `engine.in_progress` while callers may join: until it has ended, or no caller waits any
      more;
    - when it ends, each caller that waits is told how; when no caller waits, its task is being cancelled;
    - no call waits for itself, also by way of other calls: it would keep itself alive when all callers have
      left;
    - a value that must be kept is published also when no caller waits any more;
    - no caller waits for a value that is being replaced: that call ends by itself, or with the session. If it
      fails, no other call of this session begins for the time of the pause, whatever the server knows of it.

    Args:
        slot: Where it stands in `engine.in_progress`.
        making: Makes the value.
        anew: Fencing token of the run whose value it replaces, in a slot where no caller joins; else None.

    Attributes:
        fingerprint: Of the request, hexadecimal; empty for none.
    """

    __slots__ = (
        "__weakref__",
        "_anew",
        "_engine",
        "_inside",
        "_making",
        "_name",
        "_outcome",
        "_slot",
        "_task",
        "_unjoined",
        "_waiters",
        "_waiting_flights",
        "fingerprint",
    )

    def __init__(
        self,
        engine: Engine,
        slot: Hashable,
        making: Making,
        *,
        anew: int | None = None,
    ) -> None:
        self._engine = engine
        self._slot = slot
        self._name = name = making.call.name
        self._anew = anew
        self.fingerprint = making.call.fingerprint
        self._making = making
        self._waiters: dict[asyncio.Future[bool], float] = {}  # by when they came
        self._waiting_flights: dict[asyncio.Future[bool], Flight] = {}  # the waiters that are a part of one
        self._outcome: Outcome | None = None
        self._unjoined = True
        engine.in_progress[slot] = self
        # In the context of the caller, as the function is called in it.
        self._task = spawn(engine.loop, self._run(), name=f"aiolocks-singleflight-{name!r}", context=None)
        # For the search for deadlocks: what its task waits for holds up the runs whose functions have joined.
        self._inside: list[weakref.ref[Any]] = engine.entered.shared(self._task)
        # Also of a task that was cancelled before it began.
        self._task.add_done_callback(self._landed)

    async def join(self, fn: Callable[[], Awaitable[Any]], limit: float | None) -> Outcome | None:
        """Waits for the end; None for a caller that came after the end, of which this session did not know.

        Args:
            fn: The caller's function: its own run has no limit.
            limit: Seconds to wait once a run of another caller goes on.

        Raises:
            LockTimeoutError: That run lasts longer.

        Cancelled, it ends this wait alone, and the call if no other caller in this session waits.
        """
        within = _within.get()
        caller = None if within is None else within()
        if caller is not None and self._needs(caller):
            raise RuntimeError(
                f"the call of SingleFlight key {self._name!r} waits for itself: ask for another key"
            )
        waiter: asyncio.Future[bool] = self._engine.waiter()
        # Who has begun the call came before its first question: the answer to that tells of the run.
        self._waiters[waiter] = self._making.asked if self._unjoined else self._engine.now()
        self._unjoined = False
        runs: list[weakref.ref[Any]] = []
        if caller is not None:
            self._waiting_flights[waiter] = caller
            runs = self._bind_to(caller)
        try:
            if limit is not None:
                await self._within_limit(waiter, fn, limit)
            in_time = await waiter
        finally:
            del self._waiters[waiter]
            self._waiting_flights.pop(waiter, None)
            for run in runs:
                with contextlib.suppress(ValueError):
                    self._inside.remove(run)
            waiter.cancel()  # where the limit has ended the wait
            if not waiter.cancelled():
                waiter.exception()  # the session's end, of which a cancelled caller learns nothing
            if not self._waiters and self._outcome is None and not self._making.keeps:
                self._making.abandoned = True
                self.leave()
                self._task.cancel()
        return self._outcome if in_time else None

    def _bind_to(self, caller: Flight) -> list[weakref.ref[Any]]:
        """The function of that run waits for this call: what holds this one up holds up that one."""
        if caller._engine is not self._engine:
            return []
        entered = self._engine.entered.by(id(caller._task))
        runs = [run for run in entered if (found := run()) is not None and found.kind == "singleflight"]
        self._inside += runs
        for acquire in tuple(self._engine.waiting):
            if isinstance(acquire, Waiter) and acquire.inside is self._inside:
                self._engine.entangled(acquire)
        return runs

    async def _within_limit(
        self, waiter: asyncio.Future[bool], fn: Callable[[], Awaitable[Any]], limit: float
    ) -> None:
        """Returns when the end is there, or when the caller's own function runs."""
        making, loop = self._making, self._engine.loop
        await asyncio.wait((waiter, making.busy), return_when=asyncio.FIRST_COMPLETED)
        if not waiter.done() and not making.runs(fn):
            # Not the time-out of asyncio: its timer has the caller's context, and may stand there for long.
            over: asyncio.Future[None] = loop.create_future()
            timer = loop.call_later(limit, over.cancel, context=empty_context())
            try:
                await asyncio.wait((waiter, over), return_when=asyncio.FIRST_COMPLETED)
            finally:
                timer.cancel()
        if not waiter.done() and not making.runs(fn):
            raise LockTimeoutError(
                "SingleFlight", self._name, blocking_timeout=limit, remaining=None, endless=making.endless()
            )

    def _needs(self, caller: Flight) -> bool:
        """Whether this call is that one, or waits for it, also by way of other calls."""
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

    def leave(self) -> None:
        """Closes the call: no caller may join any more."""
        if self._engine.in_progress.get(self._slot) is self:
            del self._engine.in_progress[self._slot]

    def _landed(self, task: asyncio.Task[Outcome | None]) -> None:
        self._engine.entered.forget(task)
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
            self.leave()
        else:
            # A server that refuses the new value need not know of the pause.
            self._engine.loop.call_later(PAUSE, self.leave, context=empty_context())
            self._tell_failure(error)
        for waiter, came_at in self._waiters.items():
            if not waiter.done():
                waiter.set_result(came_at <= self._making.ended_at)

    async def _run(self) -> Outcome | None:
        _within.set(weakref.ref(self))
        return await self._making.make()

    def _tell_failure(self, error: BaseException) -> None:
        """Logs the error: no caller waits for the value."""
        log.log(
            self._engine.log_level(error),
            "singleflight %r: the value could not be made again, and the old one stays until its end: %s",
            self._name,
            error,
            exc_info=None if isinstance(error, LockError) else error,
        )

    def __repr__(self) -> str:
        return f"<Flight {self._name!r} waiters={len(self._waiters)}>"


def replaces() -> bool:
    """Whether the running code is a part of a call that replaces a value, for which no caller waits."""
    within = _within.get()
    flight = None if within is None else within()
    return flight is not None and flight._anew is not None  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - for this file


async def share(engine: Engine, call: Call, limit: float | None) -> Any:
    """The value of a key, for one caller; a value that is due is replaced in the background.

    `limit` is the seconds to wait for the run of another caller; None without end.
    """

    def begin(slot: Hashable, *, anew: int | None = None) -> Flight:
        return Flight(engine, slot, Making(engine, call, anew=anew), anew=anew)

    name = call.name
    slot, behind = ("singleflight", name), ("singleflight", name, "anew")
    while True:
        flight: Flight | None = engine.in_progress.get(slot)
        if flight is None:
            flight = begin(slot)
        elif flight.fingerprint != call.fingerprint:
            raise FingerprintError(name)
        outcome = await flight.join(call.fn, limit)
        if outcome is not None and not isinstance(outcome.error, TakeOverError):
            if outcome.kept:
                reason = "fresh" if outcome.due is None else "due"
                engine.events.tell("on_hit", "singleflight", name, reason=reason)
            if outcome.due is not None and behind not in engine.in_progress and not engine.closing:
                begin(behind, anew=outcome.due)
            return outcome.get()
        engine.check_usable()


P = ParamSpec("P")


@final
class SingleFlight(NotEntered):
    """One caller runs the function, and all get its result: among all processes of one server and prefix.

    ```python
    flight = SingleFlight(redis)

    async def price(city):
        return await flight.do(f"price:{city}", lambda: ask_slow_service(city))
    ```

    However many tasks and processes ask for one key at the same time, the function runs once, and all get its
    value or its error. With `keep`, later callers get the value too: an idempotency key, or a cache. As a
    decorator it takes the key from the arguments: see `__call__`.

    The function runs in a task of the session, in the context of its first caller in this session, and not in
    the caller's own task. So a cancelled caller ends only its own wait. When no caller in this process waits
    any more, the work is cancelled, and a caller that waits in another process does it at once. If the
    process that runs the function dies, another one runs it when the lease ends.

    Each run holds a lease, renewed while it lives. If the lease is lost, the function is cancelled, and the
    call tries again: in most cases another process has run it by then. So the function may run more than
    once. A write that only the last run may make needs a fencing token: see `turn`.

    A `SingleFlight` is a description: cheap and immutable, for any number of keys and tasks.

    Args:
        client: `redis.asyncio.Redis`, `RedisCluster`, or an `aiolocks.Session`.
        ttl: Seconds that the lease of a run lasts without a renewal, 50 ms to ten years. If the runner dies,
            the waiters wait for this time. It does not limit how long a run may take. Default 30 s.
        keep: Seconds for which a value is kept, from the end of the call that made it, however late the
            server hears of it; or a function of the value that gives them, called in the process that has
            made the value. If that raises, or gives no such number, the value is not kept, and the log says
            so in an error with the key. With 0, the default, only waiting callers get it. Errors are not
            kept. If the server's clock is set back, a value is kept for at most `keep` (and `stale`) from
            when a caller asks for it next. If a value cannot be kept, the server remembers for the same time
            that the work was done: see `ResultNotKeptError`. The runner's own `keep` counts.
        stale: Seconds after `keep` for which callers still get the old value at once, while the session of
            one caller replaces it in the background. With 0, the default, callers wait for the new value. Not
            for an idempotency key, because the function runs again.
        early: A factor, 0 to 1000, for replacing a value before its end in the same way, at random. Each
            question draws a time, `-early * ln(uniform)` times the duration of the run that made the value,
            and a value that ends within that time is due. So costly values are replaced earlier, and rarely
            by two callers. 1 is right as a rule, more is earlier, and 0, the default, is never. The algorithm
            is XFetch: Vattani, Chierichetti and Lowenstein, "Optimal Probabilistic Cache Stampede
            Prevention", Proceedings of the VLDB Endowment 8 (8), 2015. The asker's own `early` counts.
        jitter: The largest share of `keep`, 0 to 1, by which it is shortened, at random for each value, so
            that values made at the same time do not end at the same time. Default 0.
        serializer: An object with `dumps` and `loads` that turns values into bytes for other processes. The
            default, JSON, needs no trust in other programs that can write to the server; pickle would. It is
            called when the function has ended, because only the value itself shows whether it can be written.
            A value of another process that it cannot read is made anew, and replaced; a warning says so, once
            a session. But a call with a `fingerprint` raises the serializer's error, because the work of an
            idempotency key was done.

    Raises:
        TypeError, ValueError: An argument is wrong; before any I/O.
    """

    __slots__ = ("__weakref__", "_keeping", "_options", "_serializer", "_source")

    _instead = "call its do(key, fn), or enter its turn(key)"

    def __init__(
        self,
        client: Client,
        *,
        ttl: Seconds = 30.0,
        keep: Seconds | Callable[[Any], Seconds] = 0.0,
        stale: Seconds = 0.0,
        early: float = 0.0,
        jitter: float = 0.0,
        serializer: Serializer = JSON,
        **unknown: Never,
    ) -> None:
        reject_unknown("SingleFlight", unknown)
        self._source = source_of(client)
        self._options = Options.checked(ttl=ttl)
        self._keeping = Keeping().but(keep=keep, stale=stale, early=early, jitter=jitter)
        self._serializer = checked_serializer(serializer)

    async def do(
        self,
        key: str,
        fn: Callable[[], Awaitable[T]],
        *,
        fingerprint: str | bytes | None = None,
        blocking_timeout: Seconds | None = None,
        keep: Seconds | Callable[[T], Seconds] = AS_CONFIGURED,
        stale: Seconds = AS_CONFIGURED,
        early: float = AS_CONFIGURED,
        jitter: float = AS_CONFIGURED,
    ) -> T:
        """Returns the result of `fn`, or raises its error, also if another caller has called it.

        All callers of this session that wait get the same object, by whichever `SingleFlight` they ask, and
        to join costs no request. Callers of other sessions get what the serializer makes of it, and an error
        as `RemoteCallError`. An `HTTPException` of FastAPI, Starlette or aiohttp comes as one with the same
        status, detail and headers, if the process has loaded one of them.

        A value that is due (`stale`, `early`) is returned at once, and replaced in the background. One
        session then runs its caller's `fn` in the background, also after that caller has gone; the end of the
        session ends it. If `fn` raises there, or the server refuses the new value, the log says so, and the
        old value stays until its end. For 1 s no session tries again. If the server could not be told, at
        least this session does not.

        Args:
            key: Any non-empty str of at most 1 KiB in UTF-8.
            fn: A function without arguments that returns an awaitable, such as a coroutine function. If it
                raises a `CancelledError` by itself, all callers get a `RuntimeError`.
            fingerprint: The content of the request, for a key that a client chose, such as the body of a
                POST. Only a hash of it is stored. None, the default, is a fingerprint like another: give one
                always or never.
            blocking_timeout: Seconds to wait for the run of another caller, from the moment at which this
                session knows that the run goes on; 0 ends the call at that moment. A value that is kept is
                still returned, and the time that `fn` takes does not count. None, the default, waits for as
                long as the run takes.
            keep: As of the `SingleFlight`, whose value is the default.
            stale: As of the `SingleFlight`, whose value is the default.
            early: As of the `SingleFlight`, whose value is the default.
            jitter: As of the `SingleFlight`, whose value is the default.

        Raises:
            LockTimeoutError: The run of another caller did not end within `blocking_timeout`. This call has
                not run `fn`.
            FingerprintError: The key is in use, or its value kept, for another fingerprint.
            RemoteCallError: The function raised in another session.
            ResultNotKeptError: The work was done, but other sessions cannot have its value: the serializer
                refused it, or Redis refused it (as larger than its `proto-max-bulk-len`) or did not take it
                in time.
                With `keep`, callers in the session that ran it also get this error, with its value. Callers
                in other sessions get the error for as long as `keep`, and the function does not run again.
                Without `keep`, callers in that session get the value, and waiters in other sessions get the
                error. If Redis could not even be told that the work was done, the error says that a new call
                may do it again. With `stale` or `early` it is a cache: see the decorator.
            LockLostError: The lease was lost three times, each time while the function ran.
            BackendError: Redis refused for good, or gave no answer at all for `ttl` seconds. After the
                function has ended it is not raised: the callers in its session get its value, with `keep` as
                the value of a `ResultNotKeptError`, and the log says that no other session was told.
            SessionClosedError: The session is closed, or was closed meanwhile.
            RuntimeError: The call would wait for itself: the function asks for its own key, or a task or call
                that it began does.
            DeadlockError: The call waits for itself by way of other sessions: functions wait for each other's
                keys. One of the calls gets it, about a second later, and the log says which they are.
            TypeError, ValueError: An argument is wrong; before any I/O.

        If a caller is cancelled, its call ends at once. The function goes on while other callers wait for it
        in this session; otherwise it is cancelled. A value that must be kept is published also when no caller
        waits any more. Limit the wait with `asyncio.timeout()`.
        """
        return await self._do(
            key, fn, fingerprint, blocking_timeout, keep=keep, stale=stale, early=early, jitter=jitter
        )

    async def _do(
        self,
        key: str,
        fn: Callable[[], Awaitable[T]],
        fingerprint: str | bytes | None,
        blocking_timeout: Seconds | None,
        *,
        template: str | None = None,
        **times: Any,
    ) -> T:
        name = lock_name(key, "key")
        check_function(fn)
        digest = digest_of(fingerprint)
        limit = optional_seconds("blocking_timeout", blocking_timeout)
        keeping = self._keeping.but(**times)
        engine = engine_of(self._source, self)
        engine.names.used((name,), made_of=None if template is None else (template,))
        # An idempotency key is asked for by `do`, and never with these.
        is_cache = template is not None or keeping.stale > 0 or keeping.early > 0
        call = Call(name, fn, self._options, keeping, self._serializer, digest, is_cache)
        value: T = await share(engine, call, limit)
        return value

    async def forget(self, key: str) -> bool:
        """Drops the value that is kept for a key, also a stale one; returns whether there was one.

        A run under way goes on for its callers, and its value is not kept. A call that begins after this one
        has returned starts a newer run, which waits for the end of a run under way, or waits for a newer run
        of another call. But in another session that waits already, later callers join the waiting callers.

        Args:
            key: As for `do`.

        Raises:
            TypeError, ValueError: The key is wrong; before any I/O.
            BackendError: Redis refused, could not be reached, or did not answer within the session's
                `command_timeout`. The value may have been dropped or not; so also after a cancellation.
            SessionClosedError: The session is closed.
        """
        name = lock_name(key, "key")
        engine = engine_of(self._source, self)
        steps = FlightSteps(
            engine.settings.prefix,
            "singleflight",
            name,
            fingerprint="",
            retention_ms=milliseconds(engine.settings.fence_retention),
            session=engine.session_id,
            now=engine.now,
        )
        try:
            return await engine.ask(steps.forget(engine.token()))
        finally:
            # Until the answer, calls of this session may have been told of the old run.
            flight: Flight | None = engine.in_progress.get(("singleflight", name))
            if flight is not None:
                flight.leave()

    def __call__(
        self,
        key: str,
        *,
        blocking_timeout: Seconds | None = None,
        keep: Seconds | Callable[[Any], Seconds] = AS_CONFIGURED,
        stale: Seconds = AS_CONFIGURED,
        early: float = AS_CONFIGURED,
        jitter: float = AS_CONFIGURED,
    ) -> Callable[[Callable[P, Coroutine[Any, Any, T]]], Callable[P, Coroutine[Any, Any, T]]]:
        """Decorates a coroutine function: calls with the same key share one run of it.

        ```python
        @flight("report:{user_id}", keep=60, stale=30)
        async def report(user_id: int) -> dict[str, Any]: ...
        ```

        Each call raises what `do` raises, but no `ResultNotKeptError`: it is a cache. Where the value cannot
        be kept, the log says so in a warning, the callers in this session get the value, and other callers
        run the function. Cancelled, it does what `do` does.

        Args:
            key: The key that calls must have in common to share a run. Each field in braces is the value of
                that parameter, percent-encoded: letters, digits and `_.-~` stay as they are. Put every
                parameter into it on which the result depends. Equal values have the same text, and so have
                `1` and `"1"`, and None and `""`. `{{` and `}}` are braces of the key itself. Without fields
                all calls share. The key does not say which function it is for: two functions need two keys.
            blocking_timeout: As for `do`.
            keep: As of the `SingleFlight`, whose value is the default.
            stale: As of the `SingleFlight`, whose value is the default.
            early: As of the `SingleFlight`, whose value is the default.
            jitter: As of the `SingleFlight`, whose value is the default.

        Raises:
            TypeError: It is not a coroutine function, or a field is none of its parameters, or these are
                hidden: by a decorator without `functools.wraps`, or an `AsyncMock`. From a call: the value of
                a field has no text that is the same in every process.
            ValueError: An argument is wrong. From a call: the key is empty or too long.
        """
        if callable(key):
            raise TypeError(
                'a SingleFlight needs a key to decorate a function: @flight("report:{user_id}"), with the '
                "parameters in braces on which the result depends"
            )
        name = lock_name(key, "key")
        optional_seconds("blocking_timeout", blocking_timeout)
        self._keeping.but(keep=keep, stale=stale, early=early, jitter=jitter)

        def decorate(function: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Coroutine[Any, Any, T]]:
            if not inspect.iscoroutinefunction(function):
                raise TypeError(f"SingleFlight decorates a coroutine function (async def), not {function!r}")
            names = names_of_calls((name,), function)

            @functools.wraps(function)
            async def sharing(*args: P.args, **kwargs: P.kwargs) -> T:
                of_call = name if names is None else names.of(args, kwargs)[0]
                call = functools.partial(function, *args, **kwargs)
                return await self._do(
                    of_call,
                    call,
                    None,
                    blocking_timeout,
                    template=name,
                    keep=keep,
                    stale=stale,
                    early=early,
                    jitter=jitter,
                )

            return sharing

        return decorate

    def turn(self, key: str) -> Turn:
        """Says whether to do the work, or whether another caller has just done it: for work without a value.

        ```python
        async with flight.turn("cache:warm") as turn:
            if turn.first:
                await warm_the_cache()
        ```

        One caller enters with `turn.first` True. Callers that wait during this time, in any process, enter
        when the first one leaves. If its body ended without an exception, all enter at once, with
        `turn.first` False. If it raised, was cancelled, or lost its lease, the next caller is the first. A
        later caller begins a new turn. A turn and a `do` with the same key have nothing in common.

        Args:
            key: Any non-empty str of at most 1 KiB in UTF-8.

        Raises:
            TypeError, ValueError: The key is wrong.
            DeadlockError: On entering: this task itself is first, and would wait for itself.
            LockLostError: On leaving: the lease was lost, and the body of the first was cancelled.
            BackendError: On entering: Redis refused for good, or gave no answer for `ttl` seconds. On
                leaving: the end was not confirmed.
            SessionClosedError: On entering: the session is closed, or was closed meanwhile.

        Cancelled at any point, nothing stays held, and the next waiter goes on.
        """
        name = lock_name(key, "key")
        return Turn(functools.partial(self._group, name))

    def _group(self, name: str) -> TurnGroup:
        engine = engine_of(self._source, self)
        slot = ("turn", name)
        group: TurnGroup | None = engine.in_progress.get(slot)
        return TurnGroup(engine, slot, name, self._options) if group is None else group

    def __repr__(self) -> str:
        return f"<SingleFlight ttl={self._options.ttl:g} {self._keeping}>"
