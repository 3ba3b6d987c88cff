"""Leases for threads: what the loop does for them, and what is about threads. The rest is made."""

from __future__ import annotations

import asyncio
import contextvars
import threading
import warnings
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from .._logs import get_logger
from ..errors import LockError, LockLostError, LockNotOwnedError, SessionClosedError
from ..lock.lease import Lease as AsyncLease
from ..lock.lease import LeaseState
from ..lock.notes import note
from .loopthread import Errand, LoopThread, keep
from .misuse import SyncOnly, refuse_in_coroutines

log: Final = get_logger("aiolocks.sync")

LeaseT = TypeVar("LeaseT", bound="BaseLease")
OnLost = Callable[[LockLostError], object]
"""Called with the error when a lease is lost."""
T = TypeVar("T")


_inside: ContextVar[tuple[weakref.ref[BaseLease], ...]] = ContextVar("aiolocks_sync_inside", default=())
"""The leases that the running code is inside of, the innermost last. Weak: a context may last for long."""


def leases() -> list[BaseLease]:
    """The leases that the running code is inside of, the innermost first."""
    found = (ref() for ref in reversed(_inside.get()))
    return [lease for lease in found if lease is not None and lease.bears]


class BaseLease(SyncOnly):
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
        "_lent",
        "_let_go",
        "_on_lost",
        "_thread",
        "_watch",
        "holder",
    )

    def __init__(self, thread: LoopThread, lease: Any, on_lost: OnLost | None) -> None:
        self._thread = thread
        self._lease = lease
        self._on_lost = on_lost
        self._entered = False  # by the deputy of the thread
        self._inside: bool | None = None  # False: it was left
        self._let_go = False
        self._lent = False  # to a run, which ends it
        self.holder = threading.current_thread()  # replaced by the thread that has asked
        thread.leases.add(self)
        self._watch = None if on_lost is None else thread.begin(_tell_loss(lease, on_lost))

    @classmethod
    def of_run(cls, thread: LoopThread, lease: Any) -> Self:
        """The lease of a run that ends by itself, as that of a tick: not released when it is dropped."""
        made = cls(thread, lease, None)
        made._let_go = made._lent = True
        return made

    @contextmanager
    def lent(self) -> Generator[None]:
        """The running code is inside of it, for the length of a run."""
        self.holder = threading.current_thread()
        self._begin()
        try:
            yield
        finally:
            self._inside = False

    # -- what it asks of the server

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
        try:  # it may give a lease: not by `have_done`
            return thread.do(errand)
        except BaseException:
            errand.give_up(thread)
            raise

    async def _release(self, **how: bool) -> None:
        self._let_go = True
        try:
            await self._lease.release(**how)
        finally:
            _end_watch(self._lease, self._watch)

    async def _detach(self) -> str:
        handle: str = self._lease.detach()
        self._let_go = True
        _end_watch(self._lease, self._watch)
        return handle

    def _upgraded(self, lease_type: type[LeaseT], upgrade: Callable[[], Awaitable[Any]]) -> LeaseT:
        thread, on_lost, me = self._thread, self._on_lost, threading.current_thread()

        async def work() -> LeaseT:
            upgraded = lease_type(thread, await upgrade(), on_lost)
            upgraded.holder = me
            return upgraded

        return self._ask(work, undo=lease_type.let_go)

    # -- in the loop

    async def let_go(self) -> None:
        """No thread needs it any more: in whichever state it is, it is released."""
        if self._let_go:
            return
        self._let_go = True
        with suppress(LockNotOwnedError):
            await self._end(raised=True)

    def entered(self) -> Self:
        """The deputy is inside of it: what the thread waits for in vain is found."""
        self._lease.enter()
        self._entered = True
        return self

    def _how(self, *, raised: bool) -> dict[str, bool]:
        """How it is released when its body has ended, or when it is dropped."""
        return {}

    async def _end(self, *, raised: bool) -> None:
        await _ended(self._lease, self._watch, self._how(raised=raised), entered=self._entered)

    async def _leave(self, *, raised: bool) -> None:
        self._let_go = True
        try:
            await self._end(raised=raised)
        except LockNotOwnedError:
            if self._lease.state is not LeaseState.LOST:
                raise
        if self._lease.state is LeaseState.LOST:
            self._lease.ensure_held()

    # -- as a context manager

    def __enter__(self) -> Self:
        self._lease.ensure_held()
        if self._inside is not None:
            raise RuntimeError(f"{self!r} was entered before: acquire the lock again")
        self._lease.acquired_by(None)  # a thread is inside, of which the loop knows no body
        return self._begin()

    def _begin(self) -> Self:
        """The running code is inside of it from now on."""
        self._inside = True
        _inside.set((*(ref for ref in _inside.get() if (one := ref()) and one.bears), weakref.ref(self)))
        return self

    @property
    def bears(self) -> bool:
        """Whether code is inside of it, and may rely on it or must learn that it was lost."""
        return self._inside is True and self._lease.state not in (LeaseState.RELEASED, LeaseState.DETACHED)

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._inside = False
        raised = exc is not None
        try:
            self._ask(lambda: self._leave(raised=raised))
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
        how = self._how(raised=True)
        what = repr(self)  # now: the loop may be faster
        if thread.of_parent:
            keep(lease)
        elif thread.tell(lambda: thread.begin(_forsaken(lease, watch, how, entered=entered))):
            warnings.warn(
                f"{what} was never released: enter it with `with`, or call release()",
                ResourceWarning,
                stacklevel=1,
                source=self,
            )

    def __repr__(self) -> str:
        return f"<sync {repr(self._lease)[1:]}"


class BaseJobLease(BaseLease):
    """The lease of a run of a ticket, which is done if its body has not raised."""

    __slots__ = ()

    def _how(self, *, raised: bool) -> dict[str, bool]:
        return {"done": not raised}


async def _ended(
    lease: Any, watch: asyncio.Task[None] | None, how: dict[str, bool], *, entered: bool
) -> None:
    """Lets go of it."""
    try:
        if entered:
            await lease.__aexit__(None, None, None)
        elif how:
            await lease.release(**how)
        else:
            await lease.let_go()
    finally:
        _end_watch(lease, watch)


async def _forsaken(
    lease: Any, watch: asyncio.Task[None] | None, how: dict[str, bool], *, entered: bool
) -> None:
    """Lets go of one that was collected."""
    with suppress(LockError):
        await _ended(lease, watch, how, entered=entered)


def _end_watch(lease: AsyncLease, watch: asyncio.Task[None] | None) -> None:
    if watch is not None and lease.state is not LeaseState.LOST:  # else it ends by itself
        watch.cancel()


async def _tell_loss(lease: AsyncLease, on_lost: OnLost) -> None:
    """Calls the function of the user when the lease is lost, in a thread of its own: it may block."""
    await lease.wait_lost()
    try:
        lease.ensure_held()
    except LockLostError as error:
        # In the context of the acquire, as this task: see `LoopThread.begin`.
        context = contextvars.copy_context()
        what = (_call, on_lost, error)
        threading.Thread(target=context.run, args=what, name="aiolocks-on-lost", daemon=True).start()


def _call(on_lost: OnLost, error: LockLostError) -> None:
    try:
        on_lost(error)
    except (SystemExit, KeyboardInterrupt):
        raise
    except BaseException:  # also a panic of an extension
        log.exception("on_lost of a lock has failed; it was called because: %s", error)
