"""Locks and leases for threads. Each has the asynchronous lock or lease in it."""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
import sys
import threading
import warnings
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, Final, Generic, Never, ParamSpec, Self, TypeVar, cast, final

from .. import Session as AsyncSession
from ..errors import LockError, LockLostError, LockNotOwnedError, SessionClosedError
from ..kinds.limits import Limits as AsyncLimits
from ..kinds.permits import Semaphore as AsyncSemaphore
from ..kinds.reentrant import ReentrantLease as AsyncReentrantLease
from ..kinds.spans import Bound
from ..kinds.spans import RangeLease as AsyncRangeLease
from ..kinds.spans import RangeLock as AsyncRangeLock
from ..kinds.spans import RangeUpgradableLease as AsyncRangeUpgradableLease
from ..kinds.spans import RWLock as AsyncRWLock
from ..kinds.spans import UpgradableLease as AsyncUpgradableLease
from ..kinds.spans import WriterLease as AsyncWriterLease
from ..lock.acquirable import AS_CONFIGURED, Acquirable, locks_of_calls
from ..lock.lease import Lease as AsyncLease
from ..lock.lease import LeaseState
from ..lock.notes import note
from ..lock.options import Seconds, reject_unknown
from .link import Link
from .loopthread import Errand, LoopThread, keep
from .misuse import SyncOnly, refuse_in_coroutines

log: Final = logging.getLogger("aiolocks.sync")

OnLost = Callable[[LockLostError], object]
"""Called with the error when a lease is lost."""

P = ParamSpec("P")
_NO_FUNCTION: Final[Any] = object()
R = TypeVar("R")
T = TypeVar("T")
LeaseT = TypeVar("LeaseT", bound="Lease")
AsyncLockT = TypeVar("AsyncLockT", bound=Acquirable[Any])


# -- Leases.


class Lease(SyncOnly):
    """Possession of a lock, for threads. Acquiring a lock makes it.

    The event loop of aiolocks renews the lease while the thread works. As with `aiolocks.Lease`, the thread
    can rely on it until its local deadline. A thread cannot be cancelled: after a loss the body runs on,
    until it calls `ensure_held()` or ends.

    `with lease:` releases the lease at the end of the body, and raises `LockLostError` there if it was lost.
    If the body raises, its exception is not replaced; the loss is a note on it.

    Any thread can use the lease and release it. If no variable refers to it any more, it is released, with a
    `ResourceWarning`. In a fork of the process, its methods raise `LockNotOwnedError` or `LockLostError`.
    """

    _elsewhere = "acquire the lock there"

    __slots__ = (
        "__weakref__",
        "_entered",
        "_inside",
        "_lease",
        "_let_go",
        "_on_lost",
        "_thread",
        "_watch",
        "holder",
    )

    def __init__(self, thread: LoopThread, lease: AsyncLease, on_lost: OnLost | None) -> None:
        self._thread = thread
        self._lease = lease
        self._on_lost = on_lost
        self._entered = False  # by the deputy of the thread
        self._inside = False
        self._let_go = False
        self.holder = threading.current_thread()  # replaced by the thread that has asked
        thread.leases.add(self)
        self._watch = None if on_lost is None else thread.begin(_tell_loss(lease, on_lost))

    # -- what it says of itself

    @property
    def name(self) -> str:
        """Name of the lock."""
        return self._lease.name

    @property
    def kind(self) -> str:
        """Kind of the lock, such as `"lock"` or `"rwlock.writer"`."""
        return self._lease.kind

    @property
    def ttl(self) -> float:
        """Seconds that the lease lasts without a renewal; `extend` may change it."""
        return self._lease.ttl

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The metadata of the session and of the lock; read-only."""
        return self._lease.metadata

    @property
    def fencing_token(self) -> int:
        """Larger than that of every earlier lease of this name, for a store that refuses late writes."""
        return self._lease.fencing_token

    @property
    def state(self) -> LeaseState:
        """`HELD`, `UNKNOWN`, `LOST` or `RELEASED`; see `aiolocks.LeaseState`. No I/O."""
        return self._lease.state

    def remaining(self) -> float:
        """Seconds for which the holder can rely on the lease; 0.0 once it is lost or released. No I/O."""
        return self._lease.remaining()

    def ensure_held(self) -> None:
        """Returns if the lease can be relied on now. No I/O, so call it right before every write.

        Raises:
            LockLostError: The lease was lost or released, or belongs to the process that forked this one.
        """
        self._lease.ensure_held()

    # -- what it asks of the server

    def owned(self) -> bool:
        """Asks the server whether this lease holds the lock.

        Raises:
            LockNotOwnedError: The lease belongs to the process that forked this one.
            BackendError: Redis refused, could not be reached, or did not answer within the session's
                `command_timeout`.
            SessionClosedError: The session is closed.
            RuntimeError: An event loop runs in this thread.
        """
        return self._ask(self._lease.owned, undo=_nothing)

    def extend(self, ttl: Seconds | None = None) -> None:
        """Sets a new ttl from now on. Later renewals keep it.

        Args:
            ttl: Seconds from now, 50 ms to ten years, and at least the lock's `at_least`. None: the present
                ttl.

        Raises:
            TypeError, ValueError: The ttl is wrong; before any I/O.
            LockLostError: The lease is no longer held.
            LockNotOwnedError: The lease belongs to the process that forked this one.
            BackendError: Redis refused, or did not answer within the session's `command_timeout`.
            RuntimeError: An event loop runs in this thread.

        If an exception interrupts it, the server may have set the ttl or not.
        """
        self._ask(lambda: self._lease.extend(ttl), undo=_nothing)

    def release(self) -> None:
        """Releases the lease. After it was released, a further call does nothing.

        It waits until the server confirms the release, up to the lease's own deadline. If an exception
        interrupts the wait, it is delayed by at most 1 s; after that the release goes on in the background.

        Raises:
            LockNotOwnedError: The lease was lost, or belongs to the process that forked this one.
            BackendError: The release was not confirmed before the lease's deadline. The ttl frees the name.
            RuntimeError: An event loop runs in this thread.
        """
        self._ask(self._release)

    def _ask(
        self,
        work: Callable[[], Coroutine[Any, Any, T]],
        *,
        undo: Callable[[T], Awaitable[object]] | None = None,
    ) -> T:
        refuse_in_coroutines()
        thread = self._thread
        if thread.of_parent:
            coroutine = work()
            try:
                coroutine.send(None)  # says whose it is before it does anything
            finally:
                coroutine.close()
        errand = Errand(work, undo=undo)
        try:
            return thread.do(errand)
        except BaseException:
            errand.give_up(thread)
            raise

    async def _release(self) -> None:
        self._let_go = True
        try:
            await self._lease.release()
        finally:
            _end_watch(self._lease, self._watch)

    # -- in the loop

    async def let_go(self) -> None:
        """Nobody needs it: whatever it is, it is released."""
        if self._let_go:
            return
        self._let_go = True
        with suppress(LockNotOwnedError):
            await self._end()

    def entered(self) -> Self:
        """The deputy is inside of it: what the thread waits for in vain is found."""
        self._lease.enter()
        self._entered = self._inside = True
        return self

    async def _end(self) -> None:
        await _ended(self._lease, self._watch, entered=self._entered)

    async def _leave(self) -> None:
        self._let_go = True
        try:
            await self._end()
        except LockNotOwnedError:
            if self._lease.state is not LeaseState.LOST:
                raise
        if self._lease.state is LeaseState.LOST:
            self._lease.ensure_held()

    # -- as a context manager

    def __enter__(self) -> Self:
        self._lease.ensure_held()
        if self._inside:
            raise RuntimeError(f"{self!r} was entered before: acquire the lock again")
        self._inside = True
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self._ask(self._leave)
        except SessionClosedError:
            self._told(exc, self._lost())  # and so is every lease of it
        except LockError as error:
            self._told(exc, error)

    def _lost(self) -> LockError:
        try:
            self._lease.ensure_held()
        except LockLostError as error:
            return error
        return SessionClosedError("the session is closed")

    @staticmethod
    def _told(exc: BaseException | None, error: LockError) -> None:
        if exc is None:
            raise error from error.__cause__
        note(exc, f"aiolocks: {error}")  # the body's own exception wins

    def __del__(self) -> None:
        # Of an exception that came between two steps, or of a program that has dropped it.
        if getattr(self, "_let_go", True):
            return
        lease, watch, thread, entered = self._lease, self._watch, self._thread, self._entered
        if thread.of_parent:
            keep(lease)
        elif thread.tell(lambda: thread.begin(_forsaken(lease, watch, entered=entered))):
            warnings.warn(
                f"{self!r} was never released: enter it with `with`, or call release()",
                ResourceWarning,
                stacklevel=1,
                source=self,
            )

    def __repr__(self) -> str:
        return f"<sync {repr(self._lease)[1:]}"


async def _nothing(result: object) -> None:
    """There is nothing to undo: what asks only is cancelled."""


async def _ended(lease: AsyncLease, watch: asyncio.Task[None] | None, *, entered: bool) -> None:
    """Lets go of it."""
    try:
        if entered:
            await lease.__aexit__(None, None, None)
        else:
            await lease.release()
    finally:
        _end_watch(lease, watch)


async def _forsaken(lease: AsyncLease, watch: asyncio.Task[None] | None, *, entered: bool) -> None:
    """Lets go of one that was collected."""
    with suppress(LockError):
        await _ended(lease, watch, entered=entered)


def _end_watch(lease: AsyncLease, watch: asyncio.Task[None] | None) -> None:
    if watch is not None and lease.state is not LeaseState.LOST:  # else it ends by itself
        watch.cancel()


async def _tell_loss(lease: AsyncLease, on_lost: OnLost) -> None:
    """Calls the function of the user when the lease is lost, in a thread of its own: it may block."""
    await lease.wait_lost()
    try:
        lease.ensure_held()
    except LockLostError as error:
        call = functools.partial(_call, on_lost, error)
        threading.Thread(target=call, name="aiolocks-on-lost", daemon=True).start()


def _call(on_lost: OnLost, error: LockLostError) -> None:
    try:
        on_lost(error)
    except Exception:
        log.exception("on_lost of a lock has failed; it was called because: %s", error)


@final
class ReentrantLease(Lease):
    """A lease of a thread on a reentrant lock. The thread may have several."""

    __slots__ = ()

    @property
    def depth(self) -> int:
        """How many leases the owner had when this one was acquired, with this one: 1 for the outermost."""
        return cast("AsyncReentrantLease", self._lease).depth


class WriterLease(Lease):
    """The lease of a writer, which can become that of a reader."""

    __slots__ = ()

    def downgrade(self) -> None:
        """Turns the writer into a reader, in one step. No other writer can enter in between.

        Waiting readers may then enter at once. The fencing token stays. From then on, `kind` is that of a
        reader.

        Raises:
            RuntimeError: The lease is an upgrade: leave it to get the upgradable lease back. Or it is a
                reader already, or an event loop runs in this thread.
            LockLostError: The lease is no longer held.
            LockNotOwnedError: The lease belongs to the process that forked this one.
            BackendError: Redis refused, or did not answer within the session's `command_timeout`.

        If an exception interrupts it, the server may have done it or not. A second call does what is left.
        """
        self._ask(cast("AsyncWriterLease", self._lease).downgrade, undo=_nothing)


@final
class UpgradableLease(Lease):
    """The lease of the one upgradable holder, beside readers. It can become a writer for a while."""

    __slots__ = ()

    def upgrade(
        self, *positional: Never, blocking_timeout: Seconds | None = AS_CONFIGURED, **unknown: Never
    ) -> WriterLease:
        """Becomes a writer for a while: it waits until the present readers leave, and keeps new ones out.

        `with lease.upgrade() as writer:` makes it a writer, and an upgradable holder again at the end. See
        `aiolocks.UpgradableLease.upgrade`.

        Args:
            blocking_timeout: Seconds to wait; 0 for a single try; None for ever. Default: the lock's own.

        Raises:
            LockLostError: The upgradable lease is no longer held.
            LockTimeoutError: Not acquired within `blocking_timeout`. The upgradable lease is held as before.
            DeadlockError, BackendError, SessionClosedError, RuntimeError: As `Lock.acquire`.

        If an exception interrupts it, no writer stays, and the upgradable lease is held as before.
        """
        reject_unknown("upgrade()", unknown, positional=positional)
        lease = cast("AsyncUpgradableLease", self._lease)
        return _upgraded(self, WriterLease, lambda: lease.upgrade(blocking_timeout=blocking_timeout))


class RangeLease(Lease):
    """A lease of an interval."""

    __slots__ = ()

    def shrink(self, lo: Bound, hi: Bound) -> None:
        """Keeps a part of the interval, and frees the rest. The part stays held all the time.

        The interval can only become smaller. If a part of it is upgraded, leave the upgrade before you free
        that part.

        Args:
            lo: New lower end, not below the present one.
            hi: New upper end, not above the present one.

        Raises:
            ValueError: The new interval is not a part of the present one.
            RuntimeError: A part that would be freed is upgraded, or an event loop runs in this thread.
            LockLostError: The lease is no longer held.
            LockNotOwnedError: The lease belongs to the process that forked this one.
            BackendError: Redis refused, or did not answer within the session's `command_timeout`.

        If an exception interrupts it, the server may have done it or not. A second call does what is left.
        """
        self._ask(lambda: cast("AsyncRangeLease", self._lease).shrink(lo, hi), undo=_nothing)


@final
class RangeWriterLease(RangeLease, WriterLease):
    """The lease of a writer of an interval."""

    __slots__ = ()


@final
class RangeUpgradableLease(RangeLease):
    """The lease of the one upgradable holder of an interval, beside its readers."""

    __slots__ = ()

    def upgrade(
        self,
        lo: Bound | None = None,
        hi: Bound | None = None,
        *positional: Never,
        blocking_timeout: Seconds | None = AS_CONFIGURED,
        **unknown: Never,
    ) -> RangeWriterLease:
        """Becomes a writer of a part of the interval, or of all of it; see `UpgradableLease.upgrade`.

        Args:
            lo: Lower end of the part. Default None: the lower end of the interval.
            hi: Upper end of the part. Default None: the upper end of the interval.
            blocking_timeout: Seconds to wait; 0 for a single try; None for ever. Default: the lock's own.

        Raises:
            ValueError: The part is not within the interval.
            LockLostError: The upgradable lease is no longer held.
            LockTimeoutError: Not acquired within `blocking_timeout`. The upgradable lease is held as before.
            DeadlockError, BackendError, SessionClosedError, RuntimeError: As `Lock.acquire`.

        If an exception interrupts it, no writer stays, and the upgradable lease is held as before.
        """
        reject_unknown("upgrade()", unknown, positional=positional)
        lease = cast("AsyncRangeUpgradableLease", self._lease)
        return _upgraded(
            self, RangeWriterLease, lambda: lease.upgrade(lo, hi, blocking_timeout=blocking_timeout)
        )


def _upgraded(lease: Lease, lease_type: type[LeaseT], upgrade: Callable[[], Awaitable[AsyncLease]]) -> LeaseT:
    thread, on_lost, me = lease._thread, lease._on_lost, threading.current_thread()  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - of this very module

    async def work() -> LeaseT:
        upgraded = lease_type(thread, await upgrade(), on_lost)
        upgraded.holder = me
        return upgraded

    return lease._ask(work, undo=lease_type.let_go)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - as above


# -- Locks.

_ELSEWHERE: Final = "threads can share it; in another process, make one of the same name there"


class Lock(SyncOnly, Generic[LeaseT]):
    """A lock for threads. A method of `Session` makes it.

    It is a description: cheap and immutable. Any number of threads can share it, also in a forked process.

    ```python
    with locks.lock("order:17") as lease:  # for the length of a block
        ...


    @locks.lock("order:{order_id}")  # for the length of each call
    def ship(order_id): ...


    lease = locks.lock("order:17").acquire()  # until lease.release()
    ```

    Each of these waits up to the lock's `blocking_timeout`, and raises what `acquire` raises.
    """

    _elsewhere = _ELSEWHERE

    __slots__ = (
        "__weakref__",
        "_entered",
        "_lease_type",
        "_link",
        "_lock",
        "_made_for",
        "_make",
        "_on_lost",
        "_others",
    )

    def __init__(
        self,
        link: Link,
        make: Callable[[AsyncSession], Acquirable[Any]],
        lease_type: type[LeaseT],
        on_lost: OnLost | None,
        others: Sequence[Link] = (),
    ) -> None:
        if on_lost is not None and not callable(on_lost):
            raise TypeError(
                "on_lost must be a function that is called with the LockLostError, or None, not "
                f"{on_lost!r}: a thread cannot be cancelled"
            )
        self._link = link
        self._make = make
        self._others = others  # that it needs beside its own, as a `Redlock` does
        self._lease_type = lease_type
        self._on_lost = on_lost
        self._made_for = link.session()
        self._lock = make(self._made_for)
        self._entered: list[_Block[LeaseT]] = []

    @property
    def name(self) -> str:
        """Name of the lock."""
        return self._lock.name

    def _here(self) -> Acquirable[Any]:
        """The asynchronous lock, in this process."""
        session = self._link.session()
        if self._made_for is not session:
            self._lock, self._made_for = self._make(session), session
        return self._lock

    def _thread(self) -> LoopThread:
        """The loop that does the work."""
        for other in self._others:
            other.thread()
        return self._link.thread()

    # -- acquiring

    def acquire(
        self, *positional: Never, blocking_timeout: Seconds | None = AS_CONFIGURED, **unknown: Never
    ) -> LeaseT:
        """Acquires the lock, and waits up to `blocking_timeout` for it.

        `with lock.acquire(blocking_timeout=2) as lease:` releases the lease at the end. Otherwise release it
        yourself.

        Args:
            blocking_timeout: Seconds to wait; 0 for a single try; None for ever. Default: the lock's own.

        Raises:
            TypeError, ValueError: An argument is wrong.
            LockTimeoutError: Not acquired within `blocking_timeout`; it names the holders.
            DeadlockError: There is no `blocking_timeout`, and this thread itself is in a `with` that holds
                what it would wait for.
            BackendError: Redis refused for good, or gave no answer at all: within `blocking_timeout` or,
                without one, for `ttl` seconds. A single try fails at once if Redis cannot be reached.
            SessionClosedError: The session is closed, or was closed meanwhile.
            RuntimeError: An event loop runs in this thread.

        An exception that interrupts the wait, such as a `KeyboardInterrupt` or the time limit of a worker, is
        delayed by at most 1 s. Nothing stays held, and the next waiter goes on.
        """
        reject_unknown("acquire()", unknown, positional=positional)
        return self._acquired(lambda lock: lock.acquire(blocking_timeout=blocking_timeout))

    def try_acquire(self, *positional: Never, **unknown: Never) -> LeaseT | None:
        """Acquires the lock at once, or returns None if another holder has it. It never waits in the queue.

        Raises:
            BackendError: Redis refused, could not be reached, or did not answer within the session's
                `command_timeout`.
            SessionClosedError: The session is closed.
            RuntimeError: An event loop runs in this thread.

        If an exception interrupts it, nothing stays held.
        """
        reject_unknown("try_acquire()", unknown, positional=positional)
        return self._tried(lambda lock: lock.try_acquire())

    def locked(self) -> bool:
        """Asks the server whether a try now would be refused.

        Raises:
            BackendError: Redis refused, could not be reached, or did not answer within the session's
                `command_timeout`.
            SessionClosedError: The session is closed.
            RuntimeError: An event loop runs in this thread.
        """
        taken: bool = self._asked(lambda lock: lock.locked())
        return taken

    def _acquired(self, acquire: Callable[[Any], Awaitable[AsyncLease]]) -> LeaseT:
        lease = self._tried(acquire)
        assert lease is not None, "it was acquired, or an error was raised"
        return lease

    def _tried(self, acquire: Callable[[Any], Awaitable[AsyncLease | None]]) -> LeaseT | None:
        thread = self._thread()
        errand = self._errand(thread, self._here(), acquire, enters=False)
        try:
            return thread.do(errand)
        except BaseException:
            errand.give_up(thread)
            raise

    def _asked(self, ask: Callable[[Any], Awaitable[T]]) -> T:
        lock = self._here()
        self._thread()
        return self._link.ask(lambda: ask(lock))

    def _errand(
        self,
        thread: LoopThread,
        lock: Acquirable[Any],
        acquire: Callable[[Any], Awaitable[AsyncLease | None]],
        *,
        enters: bool,
    ) -> Errand[LeaseT | None]:
        me = threading.current_thread()

        async def work() -> LeaseT | None:
            given = await acquire(lock)
            if given is None:
                return None
            lease = self._lease_type(thread, given, self._on_lost)
            lease.holder = me
            return lease.entered() if enters else lease

        async def undo(lease: LeaseT | None) -> None:
            if lease is not None:
                await lease.let_go()

        return Errand(work, undo=undo)

    # -- as a context manager and a decorator

    @final
    def __enter__(self) -> LeaseT:
        block = _Block(self, self._here())
        self._entered.append(block)
        try:
            return block.__enter__()
        except BaseException:
            self._entered.remove(block)
            raise

    @final
    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        me = threading.current_thread()
        inside = [block for block in self._entered if block.lease is not None]
        # FastAPI ends a dependency in another thread than it began.
        mine = [block for block in inside if block.holder is me] or (inside if len(inside) == 1 else [])
        if not mine:
            raise RuntimeError(
                f"cannot tell which lease to release: {self!r} was not entered in this thread, nor has "
                "another thread entered one that must be meant. Use `with lock.acquire():`, which keeps its "
                "lease"
            )
        block = mine[-1]
        self._entered.remove(block)
        block.__exit__(exc_type, exc, traceback)

    @final
    def __call__(self, function: Callable[P, R] = _NO_FUNCTION, /) -> Callable[P, R]:
        """Decorates a function: each call of it holds the lock.

        The name is a template of the function's parameters, such as `"order:{order_id}"`, as for the
        decorators of `aiolocks.Lock`.

        Raises:
            TypeError: It is not a function, or is a coroutine function or a generator; or the name has a
                field that is not one of its parameters; or another decorator without `functools.wraps` hides
                the parameters. From a call: the value of a field has no text that is the same in every
                process.
            ValueError: The template is wrong. From a call: its name is empty or too long, or an argument is
                not equal to itself, such as `nan`.
        """
        if function is _NO_FUNCTION:
            raise TypeError(f"use `with lock:` or `@lock`: {self!r} is not called")
        if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
            raise TypeError(
                f"a lock of aiolocks.sync decorates a plain function, not {function!r}: for a coroutine "
                "function take the classes of aiolocks itself"
            )
        if inspect.isgeneratorfunction(function):
            raise TypeError(
                f"a lock decorates a function that has done its work when it returns, not {function!r}: "
                "write `with lock:` in the generator"
            )
        if not callable(function):
            raise TypeError(f"a lock of aiolocks.sync decorates a function, not {function!r}")
        decorating, lock_of = self._here(), locks_of_calls(self._here(), function)

        @functools.wraps(function)
        def holding(*args: P.args, **kwargs: P.kwargs) -> R:
            nonlocal decorating, lock_of
            if (lock := self._here()) is not decorating:  # in a forked process
                decorating, lock_of = lock, locks_of_calls(lock, function)
            with _Block(self, lock_of(args, kwargs)):
                return function(*args, **kwargs)

        return holding

    if not TYPE_CHECKING:  # to a type checker, there is no such attribute

        def __getattr__(self, name: str) -> Never:
            wrong = f"{type(self).__name__!r} object has no attribute {name!r}"
            if not name.startswith("_") and hasattr(Lease, name):
                raise AttributeError(f"{wrong}: the lease that acquire() gives has it")
            raise AttributeError(wrong)

    def __repr__(self) -> str:
        return f"<sync {repr(self._lock)[1:]}"


@final
class _Block(Generic[LeaseT]):
    """One `with` of a lock.

    Attributes:
        holder: The thread that has begun it.
        lease: The lease that it holds.
    """

    __slots__ = ("_inner", "_lock", "holder", "lease")

    def __init__(self, lock: Lock[LeaseT], inner: Acquirable[Any]) -> None:
        self._lock = lock
        self._inner = inner
        self.holder = threading.current_thread()
        self.lease: LeaseT | None = None

    def __enter__(self) -> LeaseT:
        lock = self._lock
        enters, thread = not _may_be_left_open(), lock._thread()  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - of this very module, as below
        errand = lock._errand(thread, self._inner, lambda inner: inner.acquire(), enters=enters)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
        try:
            lease = self.lease = thread.do(errand)
            assert lease is not None, "it was acquired, or an error was raised"
            return lease
        except BaseException:
            self.lease = None
            errand.give_up(thread)
            raise

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        lease, self.lease = self.lease, None
        assert lease is not None, "it was entered"
        lease.__exit__(exc_type, exc, traceback)


def _may_be_left_open() -> bool:
    """Whether this thread may do other work while the block is open, as where a generator has yielded inside.

    Such a thread does not wait for itself when it wants what it holds.
    """
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - as `inspect.currentframe`
    while frame is not None:
        if frame.f_code.co_flags & inspect.CO_GENERATOR:
            return True
        frame = frame.f_back
    return False


@final
class Semaphore(Lock[Lease]):
    """A number of permits, for threads; see `aiolocks.Semaphore`."""

    __slots__ = ()

    @property
    def value(self) -> int:
        """The number of permits that was given when this object was made; `resize` does not change it."""
        return cast("AsyncSemaphore", self._lock).value

    def acquire(
        self,
        n: int = 1,
        *positional: Never,
        blocking_timeout: Seconds | None = AS_CONFIGURED,
        **unknown: Never,
    ) -> Lease:
        """Acquires `n` permits as one lease, and waits up to `blocking_timeout` for them.

        Args:
            n: How many permits, all at once or none: up to `value`, or up to the number that `resize` has
                set. Default 1.
            blocking_timeout: Seconds to wait; 0 for a single try; None for ever. Default: the semaphore's
                own.

        Raises:
            ValueError: `n` is more than `value`, so it could never be acquired.
            ConfigurationError: A task holds permits or waits for them with another `value`.
            LockTimeoutError, DeadlockError, BackendError, SessionClosedError, RuntimeError: As
                `Lock.acquire`.

        If an exception interrupts the wait, nothing stays held, and the next waiter goes on.
        """
        reject_unknown("acquire()", unknown, positional=positional)
        return self._acquired(lambda lock: lock.acquire(n, blocking_timeout=blocking_timeout))

    def try_acquire(self, n: int = 1, *positional: Never, **unknown: Never) -> Lease | None:
        """Acquires `n` permits at once, or returns None. It never waits in the queue.

        Args:
            n: How many permits, all at once or none. Default 1.

        Raises:
            ConfigurationError: Tasks use it with another `value`. Or `n` is more than `value` and more than
                `resize` has set; this error is also a `ValueError`.
            BackendError, SessionClosedError, RuntimeError: As `Lock.try_acquire`.

        If an exception interrupts it, nothing stays held.
        """
        reject_unknown("try_acquire()", unknown, positional=positional)
        return self._tried(lambda lock: lock.try_acquire(n))

    def available(self) -> int:
        """Asks the server how many permits could be acquired now; 0 if it is fair and a task waits.

        Raises:
            ConfigurationError: A task holds permits or waits for them with another `value`.
            BackendError, SessionClosedError, RuntimeError: As `Lock.locked`.
        """
        free: int = self._asked(lambda lock: lock.available())
        return free

    def resize(self, value: int) -> None:
        """Sets how many permits there are, for all users of the name, and wakes waiters that may enter now.

        Args:
            value: How many, 0 to 2**31. With 0, no task can enter.

        Raises:
            ConfigurationError: A task holds permits or waits for them with another `value`.
            BackendError, SessionClosedError, RuntimeError: As `Lock.locked`.

        If an exception interrupts it, the server may have done it or not. A second call does no harm.
        """
        self._asked(lambda lock: lock.resize(value))


@final
class Limits(Lock[Lease]):
    """One permit of each of several keys, or none, for threads; see `aiolocks.Limits`."""

    __slots__ = ()

    @property
    def keys(self) -> dict[str, int]:
        """The keys, each with its cap."""
        return cast("AsyncLimits", self._lock).keys

    def in_use(self) -> dict[str, int]:
        """Asks the server how many permits of each of these keys are held.

        Raises:
            BackendError, SessionClosedError, RuntimeError: As `Lock.locked`.
        """
        return self._asked(lambda lock: lock.in_use())


@final
class RWLock(SyncOnly):
    """Many readers at a time, or one writer, for threads; see `aiolocks.RWLock`."""

    _elsewhere = _ELSEWHERE

    __slots__ = ("_reader", "_upgradable", "_writer")

    def __init__(
        self, link: Link, make: Callable[[AsyncSession], AsyncRWLock], on_lost: OnLost | None
    ) -> None:
        self._reader = Lock(link, lambda inner: make(inner).reader, Lease, on_lost)
        self._upgradable = Lock(link, lambda inner: make(inner).upgradable, UpgradableLease, on_lost)
        self._writer = Lock(link, lambda inner: make(inner).writer, WriterLease, on_lost)

    @property
    def name(self) -> str:
        """Name of the lock."""
        return self._reader.name

    @property
    def reader(self) -> Lock[Lease]:
        """The lock of a reader. Readers share it with each other and with the upgradable holder."""
        return self._reader

    @property
    def upgradable(self) -> Lock[UpgradableLease]:
        """The lock of the one upgradable holder, beside readers. Its lease has `upgrade()`."""
        return self._upgradable

    @property
    def writer(self) -> Lock[WriterLease]:
        """The lock of a writer, which excludes all others. Its lease has `downgrade()`."""
        return self._writer

    def __repr__(self) -> str:
        return repr(self._reader).replace(".reader", "", 1)


@final
class RangeLock(SyncOnly):
    """Many readers or one writer on each interval of real numbers, for threads; see `aiolocks.RangeLock`."""

    _elsewhere = _ELSEWHERE

    __slots__ = ("_link", "_lock", "_make", "_on_lost", "_others")

    def __init__(
        self, link: Link, make: Callable[[AsyncSession], AsyncRangeLock], on_lost: OnLost | None
    ) -> None:
        self._link = link
        self._make = make
        self._on_lost = on_lost
        self._lock = make(link.session())
        _ = self.reader(0, 1)  # checks `on_lost`

    @property
    def name(self) -> str:
        """Name of the lock."""
        return self._lock.name

    def reader(self, lo: Bound, hi: Bound) -> Lock[RangeLease]:
        """The lock of a reader. It shares the interval with other readers and with upgradable holders."""
        return Lock(self._link, lambda inner: self._make(inner).reader(lo, hi), RangeLease, self._on_lost)

    def upgradable(self, lo: Bound, hi: Bound) -> Lock[RangeUpgradableLease]:
        """The lock of an upgradable holder: one at a time, beside readers. Its lease has `upgrade()`."""
        return Lock(
            self._link,
            lambda inner: self._make(inner).upgradable(lo, hi),
            RangeUpgradableLease,
            self._on_lost,
        )

    def writer(self, lo: Bound, hi: Bound) -> Lock[RangeWriterLease]:
        """The lock of a writer, which excludes all others from the interval. Its lease has `downgrade()`."""
        return Lock(
            self._link, lambda inner: self._make(inner).writer(lo, hi), RangeWriterLease, self._on_lost
        )

    def __repr__(self) -> str:
        return f"<sync {repr(self._lock)[1:]}"
