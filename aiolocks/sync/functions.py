"""What is about threads in the kinds that wait, or call functions of the user. The rest of them is made.

A function of the user never runs in the event loop. `SingleFlight` and `Schedule.guard` have it called by the
thread that asks. `Combiner`, `Schedule`, `Leadership`, and a `SingleFlight` that replaces a value in the
background, give each run a thread of its own.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import functools
import inspect
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import (
    TYPE_CHECKING,
    Any,
    Generic,
    Literal,
    ParamSpec,
    Self,
    TypeAlias,
    TypeVar,
    cast,
    final,
)

from .. import Session as AsyncSession
from ..errors import LockError
from ..lock.acquirable import AS_CONFIGURED
from ..lock.naming import names_of_calls
from ..lock.notes import note
from ..lock.options import Seconds, seconds
from .described import Described, NotEntered, in_thread, kind
from .leases import BaseLease
from .link import Link
from .locks import BaseLock
from .loopthread import Errand
from .misuse import SyncOnly

if TYPE_CHECKING:
    from ..kinds.combiner import Batch
    from ..kinds.leadership import LeaderInfo
    from ..kinds.ratelimit import AllLimits
    from ..kinds.ratelimit import RateDecision as AsyncRateDecision
    from ..kinds.schedule.run import Tick as AsyncTick

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
LeaseT = TypeVar("LeaseT", bound=BaseLease)
TermT = TypeVar("TermT", bound=BaseLease)
JobT = TypeVar("JobT", bound="Callable[[Tick[Any]], object]")


def check_plain(function: object, kind: str) -> None:
    """Refuses a coroutine function.

    Raises:
        TypeError: It is one, or no function at all.
    """
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        raise TypeError(f"this takes a plain function; for {function!r} take aiolocks.{kind}")
    if not callable(function):
        raise TypeError(f"this takes a function, not {function!r}")


# -- Rate limits.

Amounts: TypeAlias = "int | Mapping[Any, int]"
"""How many: of all limits as many, or of each limit, by the limit or its name."""


def amounts(n: Any) -> Any:
    """As the asynchronous limits take it: by names."""
    if not isinstance(n, Mapping):
        return n
    given = cast("Mapping[Any, int]", n)
    return {
        limit.name if isinstance(limit, BaseRateLimit) else limit: number for limit, number in given.items()
    }


class RateDecision:
    """The answer of a rate limit, for threads: `aiolocks.RateDecision`. True if the request may go on.

    Attributes:
        allowed: Whether the request may go on now.
        remaining: How many more requests would be admitted at once, as the server said.
        retry_after: Seconds after which the same request would be admitted, if no other request comes; 0.0 if
            it was admitted.
        reset_after: Seconds until the bucket is full again, if no other request comes.
    """

    __slots__ = ("_decision", "_link", "allowed", "remaining", "reset_after", "retry_after")

    def __init__(self, link: Link, decision: AsyncRateDecision) -> None:
        self._link = link
        self._decision = decision
        self.allowed = decision.allowed
        self.remaining = decision.remaining
        self.retry_after = decision.retry_after
        self.reset_after = decision.reset_after

    def __bool__(self) -> bool:
        """Whether the request may go on now."""
        return self.allowed

    def settle(self, actual: Amounts) -> RateDecision:
        """Says how many permits the request has used, as `aiolocks.RateDecision.settle` does.

        Args:
            actual: How many, 0 to a billion; of several limits of all as many, or a mapping from each limit
                or its name to its number.

        Returns:
            How the limit stands then: `allowed` is True.

        Raises:
            RuntimeError: The request was refused, or an event loop runs in this thread.
            TypeError, ValueError: The number is wrong; before any I/O.
            BackendError, SessionClosedError: As `aiolocks.RateDecision.settle`.

        If an exception interrupts it, it may have been settled or not.
        """
        number, decision = amounts(actual), self._decision
        return RateDecision(self._link, self._link.ask(lambda: decision.settle(number)))

    def __eq__(self, other: object) -> bool:
        if isinstance(other, RateDecision):
            return self._decision == other._decision
        return self._decision == other

    def __hash__(self) -> int:
        return hash(self._decision)

    def __repr__(self) -> str:
        return f"<sync {self._decision!r}>"


class BaseRateLimit(Described):
    """A rate limit for threads: as a context manager, and as a decorator."""

    __slots__ = ()

    @property
    def name(self) -> str:
        """Its name; of several limits the names of all."""
        name: str = self._here().name
        return name

    def _decided(self, ask: Callable[[Any], Awaitable[AsyncRateDecision]]) -> RateDecision:
        return RateDecision(self._link, self._ask(ask))

    @staticmethod
    def all_of(*limits: BaseRateLimit) -> BaseRateLimit:
        """Several limits at once, as `aiolocks.RateLimit.all_of`: a request takes one of each, or none.

        Raises:
            TypeError: Not limits, or of several sessions.
            ValueError: None, more than 16, or two of one name.
        """
        for limit in limits:
            if not isinstance(limit, BaseRateLimit):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise TypeError(f"all_of() takes rate limits of aiolocks.sync, not {type(limit).__name__}")
        if not limits:
            raise ValueError("all_of() takes 1 to 16 limits, not 0")
        link = limits[0]._link  # noqa: SLF001 - its own class, as below
        if any(limit._link is not link for limit in limits):  # noqa: SLF001
            raise TypeError("the limits of all_of() must have one session: one request asks them all")

        def make(session: AsyncSession) -> AllLimits:
            made: AllLimits = kind("RateLimit").all_of(*(limit._make(session) for limit in limits))
            return made

        return type(limits[0])(link, make)

    def weighing(self, n: Amounts | Callable[..., Amounts], /) -> Weighed:
        """The same limit for requests of another weight, as a context manager and as a decorator.

        Args:
            n: How many requests one is: a number or a mapping, as for `acquire`; or a function of the
                arguments of the call that returns that, for a decorator.

        Raises:
            TypeError, ValueError: The number is wrong. Of a function: when the decorated one is called.
        """
        if not callable(n):
            self._here().weighing(amounts(n))
        return Weighed(self, n)

    def _enter(self, n: Amounts) -> RateDecision:
        return self._decided(lambda it: it.acquire(amounts(n)))

    def __enter__(self) -> RateDecision:
        return self._enter(1)

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Does nothing: an admitted request is used up."""

    def __call__(self, function: Callable[P, R], /) -> Callable[P, R]:
        """Decorates a function: each call of it waits for its turn. The name is a template, as of a lock.

        Raises:
            TypeError: It is a coroutine function, or a field is not one of its parameters.
            ValueError: The template is wrong.
        """
        return self._decorate(function, 1)

    def _decorate(self, function: Callable[P, R], weight: Amounts | Callable[..., Amounts]) -> Callable[P, R]:
        check_plain(function, "RateLimit")
        names = names_of_calls(self._here()._texts, function)  # noqa: SLF001 - of the same library

        @functools.wraps(function)
        def limited(*args: P.args, **kwargs: P.kwargs) -> R:
            limit = self
            if names is not None:
                of_call = names.of(args, kwargs)
                limit = self._changed(lambda it: it._renamed(of_call))  # noqa: SLF001 - as above
            limit._enter(weight(*args, **kwargs) if callable(weight) else weight)  # noqa: SLF001 - its own class
            return function(*args, **kwargs)

        return limited


@final
class Weighed(SyncOnly):
    """A limit for requests of another weight; see `RateLimit.weighing`."""

    _elsewhere = Described._elsewhere  # noqa: SLF001 - for all of them

    __slots__ = ("_limit", "_weight")

    def __init__(self, limit: BaseRateLimit, weight: Amounts | Callable[..., Amounts]) -> None:
        self._limit = limit
        self._weight = weight

    def __enter__(self) -> RateDecision:
        """Waits for the turn, as `RateLimit.acquire` does."""
        if callable(self._weight):
            raise TypeError(
                f"{self!r} has a function of the arguments of a call, and `with` has none: give it a number"
            )
        return self._limit._enter(self._weight)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - of this very module

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Does nothing: an admitted request is used up."""

    def __call__(self, function: Callable[P, R], /) -> Callable[P, R]:
        """Decorates a function, as a `RateLimit` does."""
        return self._limit._decorate(function, self._weight)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - as above

    def __repr__(self) -> str:
        return f"<sync Weighed {self._weight!r} of {self._limit!r}>"


# -- Turnstiles.


class BaseTurnstile(Described):
    """A turnstile for threads. The end of the winner's `with` ends the window."""

    __slots__ = ("_passages",)

    def _prepare(self) -> None:
        self._passages: list[tuple[threading.Thread, Any]] = []

    def __enter__(self) -> int:
        it, me = self._here(), threading.current_thread()

        async def enter() -> Any:
            return await it._enter()  # noqa: SLF001 - of the same library

        async def undo(passage: Any) -> None:
            await _end(passage, None)

        thread, errand = self._join_loop(), Errand(enter, undo=undo)
        try:
            passage = thread.do(errand)
            self._passages.append((me, passage))
        except BaseException:
            errand.give_up(thread)
            raise
        place: int = passage.place
        return place

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        me = threading.current_thread()
        mine = [entry for entry in self._passages if entry[0] is me] or self._passages[-1:]
        if not mine:
            raise RuntimeError(f"{self!r} was not entered")
        self._passages.remove(mine[-1])
        passage = mine[-1][1]
        if passage.ends_nothing():
            return
        try:
            self._link.ask(lambda: _end(passage, exc))
        except LockError as error:
            if exc is None:
                raise
            note(exc, f"aiolocks: {error}")  # the body's own exception wins


async def _end(passage: Any, exc: BaseException | None) -> None:
    if not passage.ends_nothing():
        await passage.end(exc)


# -- Combiners.


class BaseCombiner(NotEntered):
    """A combiner for threads: the function that runs a batch is a plain one, in a thread of its own."""

    __slots__ = ()

    def submit(self, item: Any, run: Callable[[Batch], R], /, **fields: object) -> R:
        """Leaves an item, and returns its result, as `aiolocks.Combiner.submit` does, with the same errors.

        If an exception interrupts the wait, a batch that already runs in a thread goes on.

        Raises:
            TypeError: `run` is a coroutine function.
            RuntimeError: An event loop runs in this thread.
        """
        threaded = _threaded(run)
        result: R = self._ask(lambda it: it.submit(item, threaded, **fields))
        return result

    def drain(self, run: Callable[[Batch], object], /, **fields: object) -> None:
        """Runs what is left, as `aiolocks.Combiner.drain`, until an exception is raised in this thread.

        Raises:
            TypeError: `run` is a coroutine function.
            RuntimeError: An event loop runs in this thread.
        """
        threaded = _threaded(run)
        self._ask(lambda it: it.drain(threaded, **fields))

    def __call__(self, function: Callable[[Batch], R]) -> Callable[..., R]:
        """Decorates the function that runs a batch: to call it with an item is to `submit` the item.

        Raises:
            TypeError: It is a coroutine function.
        """
        check_plain(function, "Combiner")

        @functools.wraps(function)
        def submitting(item: Any, /, **fields: object) -> R:
            return self.submit(item, function, **fields)

        return submitting


def _threaded(run: Callable[[Batch], R]) -> Callable[[Batch], Coroutine[Any, Any, R]]:
    check_plain(run, "Combiner")

    async def threaded(batch: Batch) -> R:
        return await in_thread("combiner", batch.name, lambda: run(batch))

    return threaded


# -- Single flights.


def times_in_thread(
    fn: Callable[[], T], times: dict[str, Any], own: Any
) -> tuple[Callable[[], T], dict[str, Any]]:
    """The function, with a function `keep` called after it in its thread; and the times, with the answer."""
    keep = own if times["keep"] is AS_CONFIGURED else times["keep"]
    if not callable(keep):
        return fn, times
    answer: list[tuple[Any, Exception | None]] = []

    def called() -> T:
        value = fn()
        try:
            answer.append((keep(value), None))
        except Exception as error:  # noqa: BLE001 - for who asks for the seconds
            answer.append((None, error))
        return value

    def told(_: object) -> Any:
        found, error = answer[-1]
        if error is not None:
            raise error
        return found

    return called, {**times, "keep": told}


class BaseSingleFlight(NotEntered):
    """Single flights for threads: the thread that asks first calls its function."""

    __slots__ = ()

    def _do(self, key: str, fn: Callable[[], T], *args: Any, **times: Any) -> T:
        check_plain(fn, "SingleFlight")
        here, times = times_in_thread(fn, times, self._here()._keeping.keep_of)  # noqa: SLF001 - of the same library

        from ..kinds.singleflight import replaces  # noqa: PLC0415 - most programs use no single flights

        async def ask(it: Any, errand: Errand[Any]) -> T:
            async def call() -> T:
                # Who got the old value waits for no new one.
                return await (in_thread("singleflight", key, here) if replaces() else errand.calls(here))

            result: T = await it._do(key, call, *args, **times)  # noqa: SLF001 - as above
            return result

        return self._asked_with(ask)

    def __call__(
        self,
        key: str,
        *,
        blocking_timeout: Seconds | None = None,
        keep: Seconds | Callable[[Any], Seconds] = AS_CONFIGURED,
        stale: Seconds = AS_CONFIGURED,
        early: float = AS_CONFIGURED,
        jitter: float = AS_CONFIGURED,
    ) -> Callable[[Callable[P, T]], Callable[P, T]]:
        """Decorates a function: calls with the same key share one run of it, as `aiolocks.SingleFlight` does.

        ```python
        @flight("report:{user_id}", keep=60, stale=30)
        def report(user_id): ...
        ```

        Args:
            key: The key that calls must have in common to share a run: a template of the parameters.
            blocking_timeout: Seconds to wait for the run of another caller; None, the default, without end.
            keep: As of the `SingleFlight`, which gives the default; as the next three.
            stale: As of the `SingleFlight`.
            early: As of the `SingleFlight`.
            jitter: As of the `SingleFlight`.

        Raises:
            TypeError: It is a coroutine function, or a field is none of its parameters.
            ValueError: An argument is wrong.
        """
        times = {"keep": keep, "stale": stale, "early": early, "jitter": jitter}
        self._here()(key, blocking_timeout=blocking_timeout, **times)  # checks the arguments

        def decorate(function: Callable[P, T]) -> Callable[P, T]:
            check_plain(function, "SingleFlight")
            names = names_of_calls((key,), function)

            @functools.wraps(function)
            def sharing(*args: P.args, **kwargs: P.kwargs) -> T:
                of_call = key if names is None else names.of(args, kwargs)[0]
                return self._do(
                    of_call, lambda: function(*args, **kwargs), None, blocking_timeout, template=key, **times
                )

            return sharing

        return decorate

    def turn(self, key: str) -> Turn:
        """Says whether to do the work, or whether another caller has just done it.

        ```python
        with flight.turn("cache:warm") as turn:
            if turn.first:
                warm_the_cache()
        ```

        Args:
            key: Any non-empty str of at most 1 KiB in UTF-8.

        Raises:
            TypeError, ValueError: The key is wrong.
            DeadlockError, BackendError, SessionClosedError: On entering.
            LockLostError, BackendError: On leaving: the lease was lost, or the end was not confirmed.

        If an exception interrupts it, nothing stays held, and the next waiter goes on.
        """
        return Turn(self, key)


@final
class Turn(SyncOnly):
    """The result of `SingleFlight.turn(key)`, for threads: enter it with `with`, once."""

    _elsewhere = "call turn() there"

    __slots__ = ("_flight", "_key", "_turn")

    def __init__(self, flight: BaseSingleFlight, key: str) -> None:
        flight._here().turn(key)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - of this very module; checks the key
        self._flight = flight
        self._key = key
        self._turn: Any = None

    @property
    def first(self) -> bool:
        """Whether this caller does the work. If False, another caller has done it while this one waited.

        Raises:
            RuntimeError: The turn was not entered.
        """
        first: bool = self._entered().first
        return first

    @property
    def fencing_token(self) -> int | None:
        """The fencing token of the first caller, for a store that refuses late writes.

        Raises:
            RuntimeError: The turn was not entered.
        """
        token: int | None = self._entered().fencing_token
        return token

    def _entered(self) -> Any:
        if self._turn is None:
            raise RuntimeError("enter a turn first: with flight.turn(key) as turn")
        return self._turn

    def __enter__(self) -> Self:
        if self._turn is not None:
            raise RuntimeError("a turn is entered once: call turn() again")
        flight, key = self._flight, self._key
        it, thread = flight._here(), flight._join_loop()  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - of this very module

        async def enter() -> Any:
            return await it.turn(key).__aenter__()

        async def undo(turn: Any) -> None:
            await turn.__aexit__(KeyboardInterrupt, None, None)  # the next one is the first

        errand = Errand(enter, undo=undo)
        try:
            self._turn = thread.do(errand)
        except BaseException:
            errand.give_up(thread)
            raise
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        turn = self._entered()

        async def leave() -> None:
            await turn.__aexit__(exc_type, exc, traceback)

        try:
            self._flight._link.ask(leave)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - of this very module
        except LockError as error:
            if exc is None:
                raise
            note(exc, f"aiolocks: {error}")  # the body's own exception wins

    def __repr__(self) -> str:
        return "<sync Turn not entered>" if self._turn is None else f"<sync {repr(self._turn)[1:]}"


# -- Schedules.


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Tick(Generic[LeaseT]):
    """A due time of a schedule, as its job for threads gets it; see `aiolocks.Tick`.

    Attributes:
        name: Name of the schedule.
        due: When it was due, in the time zone of the schedule.
        fencing_token: Larger than that of each earlier run, for a store that refuses late writes.
        missed: How many ticks before it were not run.
        attempt: 1; more where a run that was lost or stopped is run again.
        lease: Possession of the run: call `tick.lease.ensure_held()` before what must not be done twice.
    """

    name: str
    due: dt.datetime
    fencing_token: int
    missed: int
    attempt: int
    lease: LeaseT


class BaseSchedule(Described):
    """A schedule for threads: each run of its job has a thread of its own."""

    __slots__ = ("_job", "_keeping")

    def _prepare(self) -> None:
        self._job: Callable[[Any], object] | None = None
        self._keeping: tuple[Any, threading.Thread] | None = None

    def _here(self) -> Any:
        it = super()._here()
        if self._job is not None and it._job is None:  # noqa: SLF001 - of the same library; in a forked process
            it(self._in_thread(self._job))
        return it

    def __call__(self, job: JobT, /) -> JobT:
        """Decorates the job: a function that takes the `Tick`. The function stays unchanged.

        Raises:
            TypeError: It is a coroutine function, or does not take one argument.
            RuntimeError: The schedule already has a job.
        """
        check_plain(job, "Schedule")
        try:
            inspect.signature(job).bind(None)
        except TypeError:
            raise TypeError(f"the job of a schedule takes the tick as its only argument: {job!r}") from None
        if self._job is not None:
            raise RuntimeError(f"{self!r} has a job already: make a schedule of another name for another job")
        self._job = job
        self._here()
        return job

    def _in_thread(self, job: Callable[[Any], object]) -> Callable[[AsyncTick], Coroutine[Any, Any, object]]:
        async def in_a_thread(tick: AsyncTick) -> object:
            told = self._tick(tick)

            def run() -> object:
                with told.lease.lent():
                    return job(told)

            return await in_thread("schedule", tick.name, run, until_it_ends=True)

        return in_a_thread

    def _tick(self, tick: AsyncTick) -> Tick[Any]:
        assert self._lease_type is not None, "it gives leases"
        return Tick(
            name=tick.name,
            due=tick.due,
            fencing_token=tick.fencing_token,
            missed=tick.missed,
            attempt=tick.attempt,
            lease=self._lease_type.of_run(self._link.joined, tick.lease),
        )

    def guard(self, function: Callable[P, R], /) -> Callable[P, R | None]:
        """Decorates a function that another scheduler calls in every process: one process runs it.

        Each call claims the nearest tick, as `aiolocks.Schedule.guard` does. The first call for a tick runs
        the function, in the thread that calls; the later calls return None at once.

        Raises:
            TypeError: It is a coroutine function. From a call, besides what the function raises:
            LockLostError, BackendError, SessionClosedError: As `aiolocks.Schedule.guard`.
            RuntimeError: An event loop runs in this thread.

        If an exception interrupts a call, its run ends on the server.
        """
        check_plain(function, "Schedule")

        @functools.wraps(function)
        def guarded(*args: P.args, **kwargs: P.kwargs) -> R | None:
            async def ask(it: Any, errand: Errand[Any]) -> R | None:
                async def called() -> R:
                    return await errand.calls(lambda: function(*args, **kwargs))

                result: R | None = await it.guard(called)()
                return result

            return self._asked_with(ask)

        return guarded

    def __enter__(self) -> Self:
        if self._keeping is not None:
            raise RuntimeError(f"{self!r} is kept already: enter it once in a process")
        it, thread = self._here(), self._join_loop()

        async def leave(entered: Any) -> None:
            await entered.__aexit__(None, None, None)

        errand = Errand(it.__aenter__, undo=leave)
        try:
            self._keeping = thread.do(errand), threading.current_thread()
        except BaseException:
            self._keeping = None
            errand.give_up(thread)
            raise
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        kept, self._keeping = self._keeping, None
        if kept is None:
            raise RuntimeError(f"{self!r} was not entered: write `with`, or call run()")
        self._link.ask(lambda: kept[0].__aexit__(exc_type, exc, traceback))


# -- Leaderships.


class BaseTerm(BaseLease):
    """The term of a leader, for threads."""

    __slots__ = ()

    def step_down(self, *, cool_down: Seconds = 0.0) -> None:
        """Ends the term: `ending` becomes True, and when the body has ended, the next candidate leads.

        If the body itself calls it, it returns at once, and the body should return. If another thread calls
        it, it returns when the term is over. A term that `run` has not begun is released.

        Args:
            cool_down: Seconds for which this `Leadership` object is not a candidate again, so that another
                candidate leads, or that the reason for stepping down can pass. Default 0.

        Raises:
            TypeError, ValueError: `cool_down` is wrong.
            BackendError: The release was not confirmed.
            RuntimeError: An event loop runs in this thread.

        If an exception interrupts the call, the term still ends.
        """
        seconds("cool_down", cool_down)
        if not self._lent or self.holder is not threading.current_thread():
            self._ask(lambda: self._lease.step_down(cool_down=cool_down))
            return

        async def begin() -> None:
            self._thread.begin(self._stepped_down(cool_down))
            await asyncio.sleep(0)

        self._ask(begin)

    async def _stepped_down(self, cool_down: Seconds) -> None:
        with suppress(LockError):
            await self._lease.step_down(cool_down=cool_down)


OnError = Literal["raise", "again"] | Callable[[Exception], bool]
"""The reaction to an error of `main`."""


class BaseLeadership(BaseLock[TermT], Generic[TermT]):
    """A leadership for threads: `main` has a thread of its own."""

    _enters = False  # the end of a term cancels a task that is inside of it

    __slots__ = ()

    def run(self, main: Callable[[TermT], R], *, on_error: OnError = "raise") -> R:
        """Calls `main(term)` whenever this process is elected, and returns what it returns.

        As `aiolocks.Leadership.run`, but `main` runs in a thread of its own, which cannot be cancelled: when
        its term ends, `term.ending` is True and `term.ensure_held()` raises, and `main` should return. This
        process campaigns again only when `main` has ended.

        Args:
            main: A function that takes the `Term`.
            on_error: The reaction to an `Exception` of `main`: `"raise"`, `"again"`, or a function of the
                error, called in a thread, that returns True for again. As of `aiolocks.Leadership.run`.

        Raises:
            TypeError, ValueError: An argument is wrong.
            Exception: Any error of `main`, as `on_error` says.
            BackendError, SessionClosedError: As `aiolocks.Leadership.run`.
            RuntimeError: An event loop runs in this thread.

        If an exception interrupts it, the term ends as soon as `main` has ended, and no other begins.
        """
        check_plain(main, "Leadership")
        lease_type, name = self._lease_type, self._here().name
        assert lease_type is not None, "it gives terms"

        def decides(error: Exception) -> Coroutine[Any, Any, bool]:
            decide = cast("Callable[[Exception], bool]", on_error)
            return in_thread("leadership", name, lambda: bool(decide(error)))

        async def in_a_thread(term: Any) -> R:
            lease = lease_type.of_run(self._link.joined, term)

            def run() -> R:
                with lease.lent():
                    return main(lease)

            return await in_thread("leadership", name, run, until_it_ends=True)

        async def work(it: Any) -> R:
            returned: R = await it.run(in_a_thread, on_error=decides if callable(on_error) else on_error)
            return returned

        return self._ask(work)

    def observe(self) -> Iterator[LeaderInfo | None]:
        """Yields the present leader, or None if there is none, and then each change, at once.

        As `aiolocks.Leadership.observe`. Close it, or end its loop by `break`, to end it.

        Raises:
            BackendError: Redis refuses for good, such as for a missing permission.
            SessionClosedError: The session is closed.
            RuntimeError: An event loop runs in this thread.
        """
        it, end = self._here(), object()

        async def begin() -> Any:
            return it.observe()  # in the loop to which it belongs

        changes = self._ask(lambda _: begin())
        try:
            while (change := self._link.ask(lambda: _next(changes, end))) is not end:
                yield change
        finally:
            with_loop = self._join_loop()
            with_loop.tell(lambda: with_loop.begin(_close(changes)))


async def _next(changes: Any, end: object) -> Any:
    try:
        return await anext(changes)
    except StopAsyncIteration:
        return end


async def _close(changes: Any) -> None:
    await changes.aclose()
