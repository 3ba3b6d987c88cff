"""The methods that every kind of lock offers."""

from __future__ import annotations

import asyncio
import functools
import inspect
import sys
import warnings
from abc import ABC, abstractmethod
from asyncio import _get_running_loop  # pyright: ignore[reportPrivateUsage] - as `get_running_loop`, without an error
from collections.abc import Callable, Coroutine, Generator, Hashable
from types import TracebackType
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Final,
    Generic,
    Never,
    NoReturn,
    ParamSpec,
    Self,
    TypeVar,
    cast,
    final,
)
from weakref import ref

from ..errors import LockNotOwnedError
from . import process
from .blocks import OpenBlocks, told_at_exit
from .lease import Binding, Handle, Lease
from .misuse import AsyncOnly, Shown, no_attribute
from .naming import filled_in, names_of_calls, whole
from .options import Options, Seconds, flag, lock_name, optional_seconds, reject_unknown
from .sources import Client, engine_of, source_of

if TYPE_CHECKING:
    from traceback import StackSummary

    from ..transport import Granted
    from .engine import Engine
    from .lease import Possession, Resource


# -- One object that can be awaited, entered, or given to `create_task`.

MYPY: Final[bool] = False
"""True to mypy alone."""

_PACKAGE: Final = __name__.partition(".")[0] + "."

LeaseT_co = TypeVar("LeaseT_co", bound="Lease | None", covariant=True)


CallT = TypeVar("CallT", bound=Callable[..., Any])


def gives_pending(function: CallT) -> CallT:
    """Marks a function that returns a `Pending` as a coroutine function, as asgiref and other code ask."""
    if sys.version_info >= (3, 12):
        return inspect.markcoroutinefunction(function)
    marked: Any = function
    marked._is_coroutine = asyncio.coroutines._is_coroutine  # type: ignore[attr-defined]  # noqa: SLF001  # pyright: ignore - what `asyncio.iscoroutinefunction` looks for
    return function


@final
class Pending(AsyncOnly, Coroutine[Any, Any, LeaseT_co], Generic[LeaseT_co]):
    """The result of `acquire()` and `try_acquire()`: a coroutine that is also an async context manager.

    It starts when it is awaited, entered, or run by a task. Like every coroutine it can be used once. If it
    is never used, it warns when it is collected.

    `async with` enters the lease: the body is cancelled when the lease is lost, and the lease is released on
    exit. With `try_acquire()` the lease may be None; then the exit does nothing.
    """

    _elsewhere = "acquire the lock there"

    __slots__ = ("_call", "_coroutine", "_lease", "_made_at", "_maker", "_of", "_start")

    __name__ = "acquisition"  # by which the `repr` of a task calls what it runs

    def __init__(self, start: Callable[[], Coroutine[Any, Any, LeaseT_co]], *, of: object, call: str) -> None:
        self._of = of
        self._call = call
        self._made_at = _stack(depth) if (depth := sys.get_coroutine_origin_tracking_depth()) else None
        self._start: Callable[[], Coroutine[Any, Any, LeaseT_co]] | None = start
        self._coroutine: Coroutine[Any, Any, LeaseT_co] | None = None
        self._lease: Lease | None = None
        self._maker = _this_task()

    def _begin(self) -> Coroutine[Any, Any, LeaseT_co]:
        start, self._start = self._start, None
        if start is None:
            raise RuntimeError(f"this acquisition was used before: call {self._call}() again")
        self._coroutine = coroutine = start()
        return coroutine

    def __await__(self) -> Generator[Any, Any, LeaseT_co]:
        lease = yield from self._begin().__await__()
        if lease is not None:
            lease.acquired_by(_this_task(), self._maker)
        return lease

    # -- as a coroutine: what a task calls

    def send(self, value: Any, /) -> Any:
        coroutine = self._coroutine if self._coroutine is not None else self._begin()
        try:
            return coroutine.send(value)
        except StopIteration as end:
            # The task does no more than this: the lease is for the one that has made it.
            if end.value is not None:
                end.value.acquired_by(self._maker or _this_task())
            raise

    def throw(self, *error: Any) -> Any:
        if self._coroutine is None:  # a task that was cancelled before it began: nothing is to begin now
            self._start = None
            self._coroutine = _nothing()
        return self._coroutine.throw(*error)

    def close(self) -> None:
        self._start = None
        if self._coroutine is not None:
            self._coroutine.close()

    # -- as a context manager

    async def __aenter__(self) -> LeaseT_co:
        result = await self._begin()
        if result is not None:
            result.enter()
            self._lease = result
        return result

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        lease, self._lease = self._lease, None
        if lease is not None:
            await lease.__aexit__(exc_type, exc, traceback)

    # -- used without an await

    def __del__(self, warn: Callable[..., None] = warnings.warn) -> None:
        # As CPython does for a coroutine. `warn` is an argument because a module may be gone at the very end.
        if self._start is None:
            return
        message = f"{self._call}() of {self._of!r} was never awaited"
        if self._made_at is not None:
            made_at = "".join(self._made_at.format()).rstrip()
            message += f"\nIt was made at (most recent call last):\n{made_at}"
        warn(message, RuntimeWarning, stacklevel=2, source=self)

    # NOTE: no `__bool__` that refuses `if lock.try_acquire():`: asyncio asks for it, in the `repr` of a task.
    # A type checker can: mypy does where there is none (`truthy-bool`), pyright where it is typed so.

    if TYPE_CHECKING and not MYPY:

        def __bool__(self) -> NoReturn: ...

    if not TYPE_CHECKING:  # to a type checker, there is no such attribute

        def __getattr__(self, name: str) -> NoReturn:
            raise AttributeError(
                f"an acquisition has no attribute {name!r}: await it, or enter it, and it gives a lease"
            )

    def __repr__(self) -> str:
        state = "not started" if self._start is not None else "started"
        return f"<acquisition {state}>"


def _this_task() -> ref[asyncio.Task[Any]] | None:
    task = None if (loop := _get_running_loop()) is None else asyncio.current_task(loop)
    return None if task is None else ref(task)


async def _nothing() -> Any:
    """A coroutine that is there to be thrown into."""


def _stack(depth: int) -> StackSummary:
    """The call of the user that made it, with at most as many frames as asyncio's debug mode asks for."""
    import traceback  # noqa: PLC0415 - for debugging, and an import takes its time

    frame = inspect.currentframe()
    while frame is not None and frame.f_globals.get("__name__", "").startswith(_PACKAGE):
        frame = frame.f_back
    stack = traceback.StackSummary.extract(traceback.walk_stack(frame), limit=depth, lookup_lines=False)
    stack.reverse()
    return stack


P = ParamSpec("P")
R = TypeVar("R")
LeaseT = TypeVar("LeaseT", bound=Lease)

AS_CONFIGURED: Final[Any] = Shown("<that of the lock>")
_NO_FUNCTION: Final[Any] = Shown("<none>")


def _held(lease: Lease) -> bool:
    return lease.remaining() > 0.0


class Acquirable(AsyncOnly, ABC, Generic[LeaseT]):
    """A description of something that can be held: cheap, immutable, shareable by any number of tasks.

    With a client, not a session, tasks of several threads can share it too, each thread with its own loop.

    Invariant: the object stores nothing about a present holder, except the leases that `async with` on this
    very object has entered, by block and task, so that the exit finds them.
    """

    __slots__ = ("__weakref__", "_binding", "_entered", "_name", "_options", "_source", "_templates")

    _elsewhere = (
        "tasks can share it; in another process, make one of the same name with a client of that process"
    )
    _label: ClassVar[str]  # how messages call it
    _can_be_stolen: ClassVar[bool] = False
    _lease_type: Callable[[Binding[LeaseT], Possession, Granted], LeaseT]

    def __init__(self, client: Client, name: str, options: Options) -> None:
        self._source = source_of(client)
        self._name = lock_name(name)
        self._templates: tuple[str, ...] | None = None  # of which its names were made
        self._options = options
        self._binding: Binding[LeaseT] | None = None
        self._entered: OpenBlocks[LeaseT] = OpenBlocks()

    @property
    def name(self) -> str:
        """Name of the lock."""
        return self._name

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._name!r} ttl={self._options.ttl:g}>"

    @abstractmethod
    def _resource(self, engine: Engine) -> Resource:
        """The name in a session."""

    def _beside(self, engine: Engine) -> str:
        """The fields that this kind adds to the metadata of its leases, as JSON with a comma before each."""
        return ""

    def _all_names(self) -> tuple[str, ...]:
        return (self._name,)

    def _held_as(self) -> tuple[str, ...]:
        """Templates that the names of its leases, and of its copies' leases, fit."""
        return (self._name,) if self._templates is None else whole((self._name,))

    def _sources_(self) -> tuple[Any, ...]:
        """The sessions or clients that it works with."""
        return (self._source,)

    def _as_templates(self) -> tuple[str, ...]:
        names = self._all_names()
        return names if self._templates is None else whole(names)

    def _renamed(self, names: tuple[str, ...]) -> Self:
        """The same lock under other names, as many as it has."""
        renamed = object.__new__(type(self))
        for state in cast("tuple[dict[str, Any] | None, dict[str, Any]]", object.__getstate__(self)):
            for attribute, value in (state or {}).items():
                setattr(renamed, attribute, value)
        renamed._rename(names)
        return renamed

    def _rename(self, names: tuple[str, ...]) -> None:
        """Makes a copy a lock of its own: nothing that belongs to the old name, or changes, is shared."""
        if self._templates is None and names != (before := self._all_names()):
            self._templates = before
        self._name = names[0]
        self._binding = None
        self._entered = OpenBlocks()

    @final
    def of(self, /, **fields: object) -> Self:
        """The same lock under the name that a decorator gives it for these values.

        ```python
        accounts = Lock(redis, "account:{payer}")
        async with accounts.of(payer=payer):
            ...
        ```

        The name of this lock is a template, as for a decorator; `name_of` describes how a name is made of it.
        Of a `MultiLock` and of `Limits`, a field may be in any of the names or keys. Nothing is acquired, and
        no I/O is done.

        Args:
            fields: The value of each field.

        Raises:
            TypeError: A field is missing or one too many, or the text of a value is not the same in every
                process.
            ValueError: The template is wrong, or a name is empty or too long, or a value is not equal to
                itself.
        """
        return self._renamed(filled_in(self._as_templates(), fields))

    def _engine(self) -> Engine:
        """The engine that does the work in the running event loop."""
        return engine_of(self._source, self)

    # -- acquiring

    @gives_pending
    def acquire(  # noqa: D417 - there are no unknown arguments to describe
        self,
        *positional: Never,
        blocking_timeout: Seconds | None = AS_CONFIGURED,
        steal: bool = False,
        **unknown: Never,
    ) -> Pending[LeaseT]:
        """Acquires the lock, and waits up to `blocking_timeout` for it.

        You can await the result (then release the lease yourself), enter it with `async with`, or give it to
        `asyncio.create_task` and similar functions.

        Args:
            blocking_timeout: Seconds to wait; 0 for a single try; None for ever. Default: the lock's own.
            steal: True takes the lock from its holder at once, before all waiters, even while `at_least`
                keeps the name. It is for an operator who knows that the holder hangs. The holder's lease
                becomes `LOST`, with `stolen_by`. Its body goes on until its session learns of the loss, and
                only a store that compares fencing tokens can refuse its writes. For `Lock`, `FairLock`,
                `ReentrantLock` and `Leadership`. A steal never waits, so it takes no `blocking_timeout`.
                Default False.

        Raises:
            TypeError, ValueError: This kind cannot be stolen, or an argument is wrong.
            LockTimeoutError: Not acquired within `blocking_timeout`; it names the holders.
            DeadlockError: There is no `blocking_timeout`, and this task itself holds a lease that it would
                wait for.
            BackendError: Redis refused for good, or gave no answer at all: within `blocking_timeout` or,
                without one, for `ttl` seconds. A single try fails at once if Redis cannot be reached.
            SessionClosedError: The session is closed, or was closed meanwhile.

        Cancelled at any point, nothing stays held, and the next waiter goes on.
        """
        reject_unknown("acquire()", unknown, positional=positional)
        if flag("steal", steal):
            self._check_steal(blocking_timeout)
            return Pending(lambda: self._bind().steal(), of=self, call="acquire")
        if blocking_timeout is AS_CONFIGURED:
            timeout = self._options.blocking_timeout
        else:
            timeout = optional_seconds("blocking_timeout", blocking_timeout)
        return Pending(functools.partial(self._acquire, timeout), of=self, call="acquire")

    @gives_pending
    def try_acquire(self, *positional: Never, **unknown: Never) -> Pending[LeaseT | None]:
        """Acquires the lock at once, or returns None if another holder has it. It never waits in the queue.

        None means that the lock is held now. It does not say whether the lock was held before: see `at_least`
        of `Lock`.

        Raises:
            BackendError: Redis refused, could not be reached, or did not answer within the session's
                `command_timeout`.
            SessionClosedError: The session is closed.

        Cancelled at any point, nothing stays held.
        """
        reject_unknown("try_acquire()", unknown, positional=positional)
        return Pending(self._try_acquire, of=self, call="try_acquire")

    def _check_steal(self, blocking_timeout: object) -> None:
        if not self._can_be_stolen:
            raise TypeError(
                f"a {self._label} cannot be stolen: a Lock, FairLock, ReentrantLock or Leadership can; "
                "session.force_release(name) frees any kind"
            )
        if blocking_timeout is not AS_CONFIGURED:
            raise ValueError("steal=True waits for nobody: leave blocking_timeout out")

    def _acquire(self, blocking_timeout: float | None) -> Coroutine[Any, Any, LeaseT]:
        return self._bind().acquire(blocking_timeout)

    def _try_acquire(self) -> Coroutine[Any, Any, LeaseT | None]:
        return self._bind().try_acquire()

    async def locked(self) -> bool:
        """Asks the server whether a try now would be refused.

        A session may keep a lease between uses (`Lock(..., cache=...)`). While no task uses this lease, the
        answer is False in that session, without a request. In other sessions the answer is True: the question
        does not ask that session to let go, but a try does, and may have the lease.

        Raises:
            BackendError: Redis refused, could not be reached, or did not answer within the session's
                `command_timeout`.
            SessionClosedError: The session is closed.
        """
        return await self._bind().locked()

    async def adopt(self, handle: str) -> LeaseT:
        """Takes over a lease in this task or process, with the handle from `lease.detach()`.

        The fencing token stays the same. An `at_least` also stays, unless this lock has a longer one.

        Args:
            handle: The result of `lease.detach()`.

        Raises:
            TypeError, ValueError: This is not a handle of this lock, or the lease has an `at_least` that is
                longer than this lock's ttl.
            LockNotOwnedError: The lease was already adopted or released, or its ttl has passed.
            BackendError: Redis refused, or did not answer within the session's `command_timeout`.

        Cancelled at any point, the handle stays valid for as long as the ttl runs.
        """
        opened = Handle.decode(handle, kind=self._label.lower(), name=self._name)
        lease = await self._bind().adopt(opened.token, opened.at_least_ms, opened.number)
        lease.acquired_by(_this_task())
        return lease

    def _bind(self) -> Binding[LeaseT]:
        binding = self._binding
        if binding is not None:
            engine = binding.engine  # below as `Engine.serves`
            if not engine.closing and _get_running_loop() is engine.loop and process.pid == engine.pid:
                return binding
        engine, bound_as = self._engine(), self._bound_as()
        if self._templates is not None or "{" in self._name:
            engine.names.used(self._all_names(), made_of=self._templates)
        if bound_as is None:
            binding = self._bound(engine)
        else:
            binding = engine.bound((type(self), bound_as, self._options), lambda: self._bound(engine))
        self._binding = binding
        return binding

    def _bound(self, engine: Engine) -> Binding[LeaseT]:
        return Binding(
            engine,
            self._resource(engine),
            self._lease_type,
            label=self._label,
            name=self._name,
            options=self._options,
            beside=self._beside(engine),
        )

    def _bound_as(self) -> Hashable:
        """The key, with the options, under which a session shares the bound lock; None: never shared."""
        return None

    if not TYPE_CHECKING:  # to a type checker, there is no such attribute

        def __getattr__(self, name: str) -> Never:
            of_lease = not name.startswith("_") and hasattr(Lease, name)
            raise no_attribute(self, name, "the lease that acquire() gives has it" if of_lease else "")

    # -- as a context manager and a decorator

    @final
    async def __aenter__(self) -> LeaseT:
        lease = await self._acquire(self._options.blocking_timeout)
        self._entered.add(lease.enter(), lease)
        return lease

    @final
    def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> Coroutine[Any, Any, None]:
        error: Exception
        try:
            # The loop of now: another thread with a loop of its own may have used it last.
            lease = self._entered.take(_get_running_loop(), holds=_held)
        except LookupError:
            error = RuntimeError(
                f"cannot tell which lease to release: {self!r} was not entered in this task, nor has another "
                "task entered one that must be meant. Use `async with lock.acquire()`, which keeps its lease"
            )
        else:
            if lease is not None:
                return lease.__aexit__(exc_type, exc, traceback)
            error = LockNotOwnedError(self._label, self._name, "its block was left in another task")
        return told_at_exit(error, exc)

    @final
    def __call__(
        self, function: Callable[P, Coroutine[Any, Any, R]] = _NO_FUNCTION, /
    ) -> Callable[P, Coroutine[Any, Any, R]]:
        """Decorates a coroutine function: each call of it holds the lock.

        The name is a template of the function's parameters, such as `"order:{order_id}"`: each call holds the
        lock of its own arguments. Equal arguments are the same lock, in whatever form: a `datetime` with a
        time zone is written in UTC, and `1.0` as `1`. In the name, the values are percent-encoded: letters,
        digits and `_.-~` stay as they are. `{{` and `}}` are braces of the name itself, such as the braces
        of a hash tag.

        Raises:
            TypeError: It is not a coroutine function; or the name has a field that is not one of its
                parameters; or the parameters are hidden, by a decorator without `functools.wraps` or an
                `AsyncMock`. From a call: the value of a field has no text that is the same in every process.
            ValueError: The template is wrong. From a call: its name is empty or too long, or an argument is
                not equal to itself, such as `nan`.
        """
        if function is _NO_FUNCTION:
            raise TypeError(f"use `async with lock:` or `@lock`: this {self._label} is not called")
        if not inspect.iscoroutinefunction(function):
            raise TypeError(
                f"{type(self).__name__} decorates a coroutine function (async def), not {function!r}"
            )
        lock_of = locks_of_calls(self, function)

        @functools.wraps(function)
        async def holding(*args: P.args, **kwargs: P.kwargs) -> R:
            async with lock_of(args, kwargs).acquire():
                return await function(*args, **kwargs)

        return holding


AcquirableT = TypeVar("AcquirableT", bound=Acquirable[Any])


def locks_of_calls(
    lock: AcquirableT, function: Callable[..., object]
) -> Callable[[tuple[Any, ...], dict[str, Any]], AcquirableT]:
    """Gives the lock of a call of the function that it decorates, by the arguments of the call.

    Raises:
        TypeError, ValueError: As a decorator does.
    """
    names = names_of_calls(lock._as_templates(), function)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - of this very module, as below

    def lock_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> AcquirableT:
        return lock if names is None else lock._renamed(names.of(args, kwargs))  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]

    return lock_of
