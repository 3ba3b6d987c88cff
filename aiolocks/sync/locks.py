"""Locks and leases for threads, of whichever kind: each has the asynchronous one in it."""

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
    """Possession of a lock, for threads; made by acquiring, never by hand.

    The event loop of aiolocks renews it while the thread works. It may be relied on until its local deadline,
    as `aiolocks.Lease`. No thread can be cancelled: after a loss the body runs on, until it calls
    `ensure_held()` or ends.

    `with lease:` releases it at the end of the body, and raises `LockLostError` there if it was lost. An
    exception of the body always wins; the loss is then a note on it.

    Any thread may use it and release it. One that nobody refers to any more is released. In a fork of its
    process, all that it has raises `LockNotOwnedError` or `LockLostError`.
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
        """Seconds that it lasts without a renewal."""
        return self._lease.ttl

    @property
    def metadata(self) -> Mapping[str, Any]:
        """Metadata that stand beside it."""
        return self._lease.metadata

    @property
    def fencing_token(self) -> int:
        """Larger than that of every earlier lease of this name: for a store that compares."""
        return self._lease.fencing_token

    @property
    def state(self) -> LeaseState:
        """`HELD`, `UNKNOWN`, `LOST` or `RELEASED`. No I/O."""
        return self._lease.state

    def remaining(self) -> float:
        """Seconds that the holder may still rely on; 0.0 once lost or let go. No I/O."""
        return self._lease.remaining()

    def ensure_held(self) -> None:
        """Returns if the lease may be relied on now. No I/O, so that it fits right before every write.

        Raises:
            LockLostError: It was lost, or let go, or belongs to the process that forked this one.
        """
        self._lease.ensure_held()

    # -- what it asks of the server

    def owned(self) -> bool:
        """Asks the server whether this lease holds the lock.

        Raises:
            LockNotOwnedError: It belongs to the process that forked this one.
            BackendError: Redis refused, is not there, or was silent for the session's `command_timeout`.
            SessionClosedError: The session is closed.
        """
        return self._ask(self._lease.owned, undo=_nothing)

    def extend(self, ttl: Seconds | None = None) -> None:
        """Sets a new ttl from now on, which the renewals that follow keep.

        Args:
            ttl: Seconds from now, 50 ms to ten years, and no less than the lock's `at_least`; None for the
                ttl that it has.

        Raises:
            TypeError, ValueError: The ttl is wrong.
            LockLostError: It is no longer ours.
            LockNotOwnedError: It belongs to the process that forked this one.
            BackendError: Redis refused, or did not answer within the session's `command_timeout`.

        After an exception that interrupts it, the server may have done it or not.
        """
        self._ask(lambda: self._lease.extend(ttl), undo=_nothing)

    def release(self) -> None:
        """Lets go. Idempotent: once it was released, every further call does nothing.

        Waits for the server's confirmation, up to the lease's own deadline. An exception that interrupts the
        wait is held up for at most 1 s; the release goes on by itself after it.

        Raises:
            LockNotOwnedError: It was lost, or belongs to the process that forked this one.
            BackendError: Not confirmed by the lease's deadline; the ttl frees the name.
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
            raise RuntimeError(f"{self!r} was entered before")
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
            warnings.warn(f"{self!r} was never released", ResourceWarning, stacklevel=1, source=self)

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
        log.exception("on_lost of a lock has failed, which was called because: %s", error)


@final
class ReentrantLease(Lease):
    """One of the leases that a thread has on a reentrant lock."""

    __slots__ = ()

    @property
    def depth(self) -> int:
        """How many leases the owner had with this one, when it was acquired: 1 for the outermost."""
        return cast("AsyncReentrantLease", self._lease).depth


class WriterLease(Lease):
    """The lease of a writer."""

    __slots__ = ()

    def downgrade(self) -> None:
        """Becomes a reader, in place: at no moment can another writer come between.

        Readers that wait may enter at once. The fencing token stays. `kind` is that of a reader from then on.

        Raises:
            RuntimeError: It is an upgrade, whose end leaves the upgradable lease; or a reader already.
            LockLostError: It is no longer ours.
            LockNotOwnedError: It belongs to the process that forked this one.
            BackendError: Redis refused, or did not answer within the session's `command_timeout`.

        After an exception that interrupts it, the server may have done it or not; asked again, it does what
        is left.
        """
        self._ask(cast("AsyncWriterLease", self._lease).downgrade, undo=_nothing)


@final
class UpgradableLease(Lease):
    """The lease of the one upgradable holder beside readers."""

    __slots__ = ()

    def upgrade(
        self, *positional: Never, blocking_timeout: Seconds | None = AS_CONFIGURED, **unknown: Never
    ) -> WriterLease:
        """A writer for a while: waits until the readers inside have left, keeps out new ones, excludes all.

        `with lease.upgrade() as writer:` turns it into a writer, and back again at the end. See
        `aiolocks.UpgradableLease.upgrade`.

        Args:
            blocking_timeout: Seconds to wait; 0 for a single try; None for ever. Default: the lock's own.

        Raises:
            LockLostError: The upgradable lease is no longer ours.
            LockTimeoutError: Not acquired within `blocking_timeout`; the upgradable lease is held as before.
            DeadlockError, BackendError, SessionClosedError: As `acquire` does.

        After an exception that interrupts it no writer stays; the upgradable lease is held as before.
        """
        reject_unknown("upgrade()", unknown, positional=positional)
        lease = cast("AsyncUpgradableLease", self._lease)
        return _upgraded(self, WriterLease, lambda: lease.upgrade(blocking_timeout=blocking_timeout))


class RangeLease(Lease):
    """A lease on an interval."""

    __slots__ = ()

    def shrink(self, lo: Bound, hi: Bound) -> None:
        """Keeps that part of the interval, and gives back the rest without letting go of this.

        It never grows. Leave an upgrade of a part before you give that part back.

        Args:
            lo: Lower end, not below that of before.
            hi: Upper end, not above that of before.

        Raises:
            ValueError: It is not part of what is held.
            RuntimeError: Some of the part to give back is upgraded.
            LockLostError: It is no longer ours.
            LockNotOwnedError: It belongs to the process that forked this one.
            BackendError: Redis refused, or did not answer within the session's `command_timeout`.

        After an exception that interrupts it, the server may have done it or not; asked again, it does what
        is left.
        """
        self._ask(lambda: cast("AsyncRangeLease", self._lease).shrink(lo, hi), undo=_nothing)


@final
class RangeWriterLease(RangeLease, WriterLease):
    """The lease of a writer on an interval."""

    __slots__ = ()


@final
class RangeUpgradableLease(RangeLease):
    """The lease of the one upgradable holder of an interval beside its readers."""

    __slots__ = ()

    def upgrade(
        self,
        lo: Bound | None = None,
        hi: Bound | None = None,
        *positional: Never,
        blocking_timeout: Seconds | None = AS_CONFIGURED,
        **unknown: Never,
    ) -> RangeWriterLease:
        """A writer for a while, on a part of the interval or on all of it; see `UpgradableLease.upgrade`.

        Args:
            lo: Lower end of the part; None for that of the interval.
            hi: Upper end of the part; None for that of the interval.
            blocking_timeout: Seconds to wait; 0 for a single try; None for ever. Default: the lock's own.

        Raises:
            ValueError: It is not part of what is held.
            LockLostError: The upgradable lease is no longer ours.
            LockTimeoutError: Not acquired within `blocking_timeout`; the upgradable lease is held as before.
            DeadlockError, BackendError, SessionClosedError: As `acquire` does.

        After an exception that interrupts it no writer stays; the upgradable lease is held as before.
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
    """A description of something that can be held, for threads; a method of `Session` makes it.

    Cheap, immutable, shareable by any number of threads, and of use in a forked process too.

    ```python
    with locks.lock("order:17") as lease:  # for the length of a block
        ...


    @locks.lock("order:{order_id}")  # for the length of each call
    def ship(order_id): ...


    lease = locks.lock("order:17").acquire()  # until lease.release()
    ```

    Each of them waits for as long as the lock's `blocking_timeout` allows, and raises what `acquire` raises.
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
        """Acquires, waiting for as long as `blocking_timeout` allows.

        `with lock.acquire(blocking_timeout=2) as lease:` releases it at the end; otherwise release it
        yourself.

        Args:
            blocking_timeout: Seconds to wait; 0 for a single try; None for ever. Default: the lock's own.

        Raises:
            TypeError, ValueError: An argument is wrong.
            LockTimeoutError: Not acquired within `blocking_timeout`; it names the holders.
            DeadlockError: There is no `blocking_timeout`, and this very thread is inside a `with` of what is
                in the way, for as long as it waits.
            BackendError: Redis refused for good, or gave no answer at all: within `blocking_timeout`, or for
                `ttl` seconds where there is none. A single try fails at once if Redis cannot be reached.
            SessionClosedError: The session is closed, or was closed meanwhile.
            RuntimeError: An event loop runs in this thread.

        An exception that interrupts the wait, such as a `KeyboardInterrupt` or the time limit of a worker, is
        held up for at most 1 s; nothing stays held, and the next waiter goes on.
        """
        reject_unknown("acquire()", unknown, positional=positional)
        return self._acquired(lambda lock: lock.acquire(blocking_timeout=blocking_timeout))

    def try_acquire(self, *positional: Never, **unknown: Never) -> LeaseT | None:
        """Acquires at once or not at all: the lease, or None when it is held elsewhere. Never queues.

        Raises:
            BackendError: Redis refused, is not there, or was silent for the session's `command_timeout`.
            SessionClosedError: The session is closed.
            RuntimeError: An event loop runs in this thread.

        After an exception that interrupts it, nothing stays held.
        """
        reject_unknown("try_acquire()", unknown, positional=positional)
        return self._tried(lambda lock: lock.try_acquire())

    def locked(self) -> bool:
        """Whether a try now would be refused, as the server says.

        Raises:
            BackendError: Redis refused, is not there, or was silent for the session's `command_timeout`.
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
            TypeError: It is no function, or a coroutine function, or a generator; or a field is none of its
                parameters, or these are hidden by a decorator without `functools.wraps`. From a call: the
                value of a field has no text that is the same in every process.
            ValueError: The template is not as it should be. From a call: its name is empty or too long, or an
                argument equals nothing, as `nan`.
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
        """How many permits there are, as it was made; `resize` does not change this."""
        return cast("AsyncSemaphore", self._lock).value

    def acquire(
        self,
        n: int = 1,
        *positional: Never,
        blocking_timeout: Seconds | None = AS_CONFIGURED,
        **unknown: Never,
    ) -> Lease:
        """Acquires `n` permits as one lease, waiting for as long as `blocking_timeout` allows.

        Args:
            n: How many permits, all at once or none: up to `value`, or up to what `resize` has set.
            blocking_timeout: Seconds to wait; 0 for a single try; None for ever. Default: the semaphore's
                own.

        Raises:
            ValueError: `n` is more than `value`, and so could never be acquired.
            ConfigurationError: Somebody holds it or waits with another `value`.
            LockTimeoutError, DeadlockError, BackendError, SessionClosedError, RuntimeError: As
                `Lock.acquire`.

        After an exception that interrupts the wait nothing stays held, and the next waiter goes on.
        """
        reject_unknown("acquire()", unknown, positional=positional)
        return self._acquired(lambda lock: lock.acquire(n, blocking_timeout=blocking_timeout))

    def try_acquire(self, n: int = 1, *positional: Never, **unknown: Never) -> Lease | None:
        """Acquires `n` permits at once or not at all: the lease, or None. Never queues.

        Args:
            n: How many permits, all at once or none.

        Raises:
            ConfigurationError: It is in use with another `value`; or `n` is more than `value` and more than
                `resize` has set. Also a `ValueError`.
            BackendError, SessionClosedError, RuntimeError: As `Lock.try_acquire`.

        After an exception that interrupts it, nothing stays held.
        """
        reject_unknown("try_acquire()", unknown, positional=positional)
        return self._tried(lambda lock: lock.try_acquire(n))

    def available(self) -> int:
        """How many permits could be acquired now, as the server says; 0 of a fair one while anybody waits.

        Raises:
            ConfigurationError: Somebody holds it or waits with another `value`.
            BackendError: Redis refused, is not there, or was silent for the session's `command_timeout`.
        """
        free: int = self._asked(lambda lock: lock.available())
        return free

    def resize(self, value: int) -> None:
        """Sets how many permits there are, for all users of the name, and wakes waiters that may enter now.

        Args:
            value: How many, 0 to 2**31. With 0 nobody gets in.

        Raises:
            ConfigurationError: Somebody holds it or waits with another `value`.
            BackendError: Redis refused, is not there, or was silent for the session's `command_timeout`.
        """
        self._asked(lambda lock: lock.resize(value))


@final
class Limits(Lock[Lease]):
    """A permit of each of several keys, or none, for threads; see `aiolocks.Limits`."""

    __slots__ = ()

    @property
    def keys(self) -> dict[str, int]:
        """The keys, each with its cap."""
        return cast("AsyncLimits", self._lock).keys

    def in_use(self) -> dict[str, int]:
        """How many permits of each of these keys are out, as the server says.

        Raises:
            BackendError: Redis refused, is not there, or was silent for the session's `command_timeout`.
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
        """Shared with other readers and with the upgradable holder."""
        return self._reader

    @property
    def upgradable(self) -> Lock[UpgradableLease]:
        """Beside readers, one at a time; its lease has `upgrade()`."""
        return self._upgradable

    @property
    def writer(self) -> Lock[WriterLease]:
        """Alone; its lease has `downgrade()`."""
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
        """Shared with other readers of what overlaps, and with its upgradable holders."""
        return Lock(self._link, lambda inner: self._make(inner).reader(lo, hi), RangeLease, self._on_lost)

    def upgradable(self, lo: Bound, hi: Bound) -> Lock[RangeUpgradableLease]:
        """Beside readers, one where intervals overlap; its lease has `upgrade()`."""
        return Lock(
            self._link,
            lambda inner: self._make(inner).upgradable(lo, hi),
            RangeUpgradableLease,
            self._on_lost,
        )

    def writer(self, lo: Bound, hi: Bound) -> Lock[RangeWriterLease]:
        """Alone on the interval; its lease has `downgrade()`."""
        return Lock(
            self._link, lambda inner: self._make(inner).writer(lo, hi), RangeWriterLease, self._on_lost
        )

    def __repr__(self) -> str:
        return f"<sync {repr(self._lock)[1:]}"
