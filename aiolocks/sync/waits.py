"""Rate limits, latches and combiners for threads. A thread waits for them, and does not hold them."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Generic, Never, ParamSpec, Protocol, TypeVar, final

from .. import Session as AsyncSession
from ..kinds.combiner import Batch, Left
from ..kinds.combiner import Combiner as AsyncCombiner
from ..kinds.latch import Latch as AsyncLatch
from ..kinds.ratelimit import RateDecision
from ..kinds.ratelimit import RateLimit as AsyncRateLimit
from ..lock.naming import names_of_calls
from ..lock.options import Seconds, reject_unknown
from .link import Link
from .misuse import SyncOnly

P = ParamSpec("P")
R = TypeVar("R")
N = TypeVar("N", bound="_Named")


class _Named(Protocol):
    @property
    def name(self) -> str:
        """Its name."""
        ...


class _Described(SyncOnly, Generic[N]):
    """A rate limit, latch or combiner for threads. It makes the asynchronous one for each use.

    The session of the link may be another one at each use, as in a forked process.
    """

    _elsewhere = "make one there, with the same arguments"

    __slots__ = ("_link", "_make")

    def __init__(self, link: Link, make: Callable[[AsyncSession], N]) -> None:
        make(link.session())  # checks the arguments
        self._link = link
        self._make = make

    @property
    def name(self) -> str:
        """Its name. Of a combiner, it has the fields of a template."""
        return self._here.name

    @property
    def _here(self) -> N:
        return self._make(self._link.session())

    def __repr__(self) -> str:
        return f"<sync {repr(self._here)[1:]}"


@final
class RateLimit(_Described[AsyncRateLimit]):
    """A number of requests in a number of seconds, as `aiolocks.RateLimit`.

    `Session.ratelimit()` makes it. As a context manager and as a decorator it waits for its turn.
    """

    __slots__ = ("_named",)

    def __init__(self, link: Link, make: Callable[[AsyncSession, str], AsyncRateLimit], name: str) -> None:
        super().__init__(link, lambda session: make(session, name))
        self._named = make

    def acquire(
        self, n: int = 1, *, blocking_timeout: Seconds | None = None, **unknown: Never
    ) -> RateDecision:
        """Waits for the turn of `n` requests, as `aiolocks.RateLimit.acquire` does.

        Args:
            n: How many requests, 1 to `burst`. Default 1.
            blocking_timeout: Seconds to wait; None, the default, for as long as the turn takes.
            unknown: Nothing; for a better message.

        Raises:
            LockTimeoutError: The turn would come later than `blocking_timeout`; nothing was taken.
            ValueError: `n` is more than `burst`.
            BackendError, SessionClosedError: As `aiolocks.RateLimit.acquire`.
            RuntimeError: An event loop runs in this thread.

        If an exception interrupts the wait, the reserved moment is given back, unless a later one is
        reserved.
        """
        reject_unknown("acquire()", unknown)
        return self._link.ask(lambda: self._here.acquire(n, blocking_timeout=blocking_timeout))

    def try_acquire(self, n: int = 1, **unknown: Never) -> RateDecision:
        """Takes `n` requests at once or not at all, as `aiolocks.RateLimit.try_acquire` does.

        Raises:
            ValueError: `n` is more than `burst`.
            BackendError, SessionClosedError: As `aiolocks.RateLimit.try_acquire`.
            RuntimeError: An event loop runs in this thread.
        """
        reject_unknown("try_acquire()", unknown)
        return self._link.ask(lambda: self._here.try_acquire(n))

    def peek(self) -> RateDecision:
        """Whether one request would be admitted now. It takes nothing.

        Raises:
            BackendError, SessionClosedError: As `aiolocks.RateLimit.peek`.
            RuntimeError: An event loop runs in this thread.
        """
        return self._link.ask(lambda: self._here.peek())  # noqa: PLW0108 - it is made in the thread of the loop

    def __enter__(self) -> RateDecision:
        return self.acquire()

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
        if inspect.iscoroutinefunction(function):
            raise TypeError(f"this decorates a plain function; for {function!r} take aiolocks.RateLimit")
        names = names_of_calls((self.name,), function)

        @functools.wraps(function)
        def limited(*args: P.args, **kwargs: P.kwargs) -> R:
            limit = self if names is None else RateLimit(self._link, self._named, names.of(args, kwargs)[0])
            limit.acquire()
            return function(*args, **kwargs)

        return limited


@final
class Latch(_Described[AsyncLatch]):
    """A number of steps, after which all waiting threads go on, as `aiolocks.Latch`.

    `Session.latch()` makes it. As a context manager it waits until the latch is open.
    """

    __slots__ = ()

    def count_down(self, n: int = 1, **unknown: Never) -> int:
        """Counts `n` steps, and returns how many are left, as `aiolocks.Latch.count_down` does.

        Raises:
            ConfigurationError, BackendError, SessionClosedError: As `aiolocks.Latch.count_down`.
            RuntimeError: An event loop runs in this thread.

        If an exception interrupts it, the steps may have been counted or not.
        """
        reject_unknown("count_down()", unknown)
        return self._link.ask(lambda: self._here.count_down(n))

    def reset(self, count: int | None = None, **unknown: Never) -> int:
        """Closes the latch again, and returns how many steps are left, as `aiolocks.Latch.reset` does.

        Raises:
            ConfigurationError, BackendError, SessionClosedError: As `aiolocks.Latch.reset`.
            RuntimeError: An event loop runs in this thread.

        If an exception interrupts it, the latch may have been reset or not.
        """
        reject_unknown("reset()", unknown)
        return self._link.ask(lambda: self._here.reset(count))

    def wait(self, *, blocking_timeout: Seconds | None = None, **unknown: Never) -> None:
        """Returns when the latch is open, as `aiolocks.Latch.wait` does.

        Args:
            blocking_timeout: Seconds to wait; None, the default, for ever; 0 to ask once.
            unknown: Nothing; for a better message.

        Raises:
            LockTimeoutError: It did not open within `blocking_timeout`.
            ConfigurationError, BackendError, SessionClosedError: As `aiolocks.Latch.wait`.
            RuntimeError: An event loop runs in this thread.

        If an exception interrupts the wait, nothing stays behind.
        """
        reject_unknown("wait()", unknown)
        self._link.ask(lambda: self._here.wait(blocking_timeout=blocking_timeout))

    def __enter__(self) -> None:
        self.wait()

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Does nothing."""


@final
class Combiner(_Described[AsyncCombiner]):
    """Work that callers leave, and that one caller does for all, as `aiolocks.Combiner`.

    `Session.combiner()` makes it. The function that runs a batch is a plain function, and runs in a worker
    thread. A thread cannot be cancelled: a run that has lost its lease goes on beside the next run. If that
    would do harm, let the store check `batch.fencing_token`.
    """

    __slots__ = ()

    def submit(self, item: Any, run: Callable[[Batch], R], /, **fields: object) -> R:
        """Leaves an item, and returns its result, as `aiolocks.Combiner.submit` does, with the same errors.

        If an exception interrupts the wait, a batch that already runs in a thread goes on.

        Raises:
            TypeError: `run` is a coroutine function.
            RuntimeError: An event loop runs in this thread.
        """
        threaded = _threaded(run)
        return self._link.ask(lambda: self._here.submit(item, threaded, **fields))

    def leave(self, item: Any, /, **fields: object) -> Left:
        """Leaves an item for the next run, as `aiolocks.Combiner.leave` does, with the same errors.

        Raises:
            RuntimeError: An event loop runs in this thread.
        """
        return self._link.ask(lambda: self._here.leave(item, **fields))

    def drain(self, run: Callable[[Batch], object], /, **fields: object) -> None:
        """Runs what is left, as `aiolocks.Combiner.drain`, until an exception is raised in this thread.

        Raises:
            TypeError: `run` is a coroutine function.
            RuntimeError: An event loop runs in this thread.
        """
        threaded = _threaded(run)
        self._link.ask(lambda: self._here.drain(threaded, **fields))

    def __call__(self, function: Callable[[Batch], R]) -> Callable[..., R]:
        """Decorates the function that runs a batch: to call it with an item is to `submit` the item.

        Raises:
            TypeError: It is a coroutine function.
        """
        _threaded(function)

        @functools.wraps(function)
        def submitting(item: Any, /, **fields: object) -> R:
            return self.submit(item, function, **fields)

        return submitting


def _threaded(run: Callable[[Batch], R]) -> Callable[[Batch], Coroutine[Any, Any, R]]:
    if inspect.iscoroutinefunction(run):
        raise TypeError(f"this takes a plain function; for {run!r} take aiolocks.Combiner")

    async def threaded(batch: Batch) -> R:
        return await asyncio.to_thread(run, batch)

    return threaded
