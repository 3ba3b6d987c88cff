"""What a lock, a limit or another description for threads is: the asynchronous one, made where it is used."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, Never, Self, TypeVar, cast

from .. import Session as AsyncSession
from .. import __getattr__ as _public
from .._logs import get_logger
from .._tasks import empty_context
from ..lock.misuse import no_attribute
from .leases import LeaseT, OnLost
from .link import Link
from .loopthread import Errand, LoopThread, nothing
from .misuse import SyncOnly

log: Final = get_logger("aiolocks.sync")

DescribedT = TypeVar("DescribedT", bound="Described")
R = TypeVar("R")
T = TypeVar("T")


def kind(name: str) -> Any:
    """The asynchronous class of that name: most programs use few of them."""
    return _public(name)


class Described(SyncOnly):
    """Something of the asynchronous library, for threads. Each process makes its own.

    Args:
        link: The session.
        make: Makes it for an asynchronous session.
        lease_type: Of the leases that it gives.
        on_lost: Called when one of them is lost.
        others: The sessions that it needs beside its own, as a `Redlock` does.
    """

    _elsewhere = "threads can share it; in another process, make one of the same name there"

    __slots__ = ("__weakref__", "_it", "_lease_type", "_link", "_made_for", "_make", "_on_lost", "_others")

    def __init__(
        self,
        link: Link,
        make: Callable[[AsyncSession], Any],
        lease_type: type[Any] | None = None,
        on_lost: OnLost | None = None,
        others: Sequence[Link] = (),
    ) -> None:
        if on_lost is not None and not callable(on_lost):
            raise TypeError(
                "on_lost must be a function that is called with the LockLostError, or None, not "
                f"{on_lost!r}: a thread cannot be cancelled"
            )
        self._link = link
        self._make = make
        self._lease_type = lease_type
        self._on_lost = on_lost
        self._others = others
        self._made_for = link.session()
        self._it = make(self._made_for)
        self._prepare()

    def _prepare(self) -> None:
        """What a class needs beside that."""

    def _here(self) -> Any:
        """The asynchronous one, in this process."""
        session = self._link.session()
        if self._made_for is not session:
            self._it, self._made_for = self._make(session), session
        return self._it

    def _join_loop(self) -> LoopThread:
        """Joins the loop that does the work, and returns the thread in which that runs."""
        for other in self._others:
            other.join_loop()
        return self._link.join_loop()

    def _changed(self, change: Callable[[Any], Any]) -> Self:
        """Another one of this sort, which is made of the asynchronous one."""
        return self._part(type(self), change, self._lease_type)

    def _part(
        self, cls: type[DescribedT], change: Callable[[Any], Any], lease_type: type[Any] | None = None
    ) -> DescribedT:
        make = self._make
        return cls(self._link, lambda session: change(make(session)), lease_type, self._on_lost, self._others)

    # -- what the loop does for a thread

    def _ask(self, ask: Callable[[Any], Awaitable[T]]) -> T:
        it = self._here()
        self._join_loop()
        return self._link.ask(lambda: ask(it))

    def _acquired(
        self, acquire: Callable[[Any], Awaitable[Any]], lease_type: type[LeaseT] | None = None
    ) -> LeaseT:
        lease = self._tried(acquire, lease_type)
        assert lease is not None, "it was acquired, or an error was raised"
        return lease

    def _tried(
        self, acquire: Callable[[Any], Awaitable[Any]], lease_type: type[LeaseT] | None = None
    ) -> LeaseT | None:
        thread = self._join_loop()
        errand = self._errand(thread, self._here(), acquire, lease_type, enters=False)
        try:
            return thread.do(errand)
        except BaseException:
            errand.give_up(thread)
            raise

    def _errand(
        self,
        thread: LoopThread,
        it: Any,
        acquire: Callable[[Any], Awaitable[Any]],
        lease_type: type[LeaseT] | None,
        *,
        enters: bool,
    ) -> Errand[LeaseT | None]:
        """Acquires a lease; `enters` it where the thread waits for the end of its block."""
        me, made = threading.current_thread(), cast("type[LeaseT]", lease_type or self._lease_type)

        async def work() -> LeaseT | None:
            given = await acquire(it)
            if given is None:
                return None
            lease = made(thread, given, self._on_lost)
            lease.holder = me
            if errand.apart:
                given.acquired_by(None)  # its thread has no task that lasts as long as it does
            return lease.entered() if enters else lease

        async def undo(lease: LeaseT | None) -> None:
            if lease is not None:
                await lease.let_go()

        errand = Errand(work, undo=undo)
        return errand

    def _asked_with(self, ask: Callable[[Any, Errand[Any]], Awaitable[T]]) -> T:
        """As `_ask`, for what has this thread call functions of the user."""
        it, thread = self._here(), self._join_loop()

        async def work() -> T:
            return await ask(it, errand)

        errand = Errand(work, undo=nothing)
        return thread.have_done(errand)

    def __repr__(self) -> str:
        return f"<sync {repr(self._it)[1:]}"


class NotEntered(Described):
    """What is not entered itself, for threads."""

    __slots__ = ()

    if not TYPE_CHECKING:  # to a type checker, there are no such methods

        def __enter__(self) -> Never:
            self._it.__enter__()  # which says what is entered in its place

        def __exit__(self, *_: object) -> None: ...  # `with` asks for it before it calls the other

        def __getattr__(self, name: str) -> Never:
            private = name.startswith("_")  # one that is not set yet, or that a protocol looks for
            raise no_attribute(self, name, "" if private else self._it._instead)  # noqa: SLF001 - of what it describes


async def in_thread(what: str, name: str, work: Callable[[], R], *, until_it_ends: bool = False) -> R:
    """What the work gives, done in a thread of its own and in a copy of the caller's context.

    The loop has few threads for such work, and resolves the names of servers with them as well: where runs
    have all of them, and each waits for a request, none would end.

    Args:
        what: What runs, such as `"combiner"`.
        name: Its name.
        work: A function of the user.
        until_it_ends: A cancellation is held back until the thread has ended, so that no two run at once.
    """
    loop, context = asyncio.get_running_loop(), contextvars.copy_context()
    ended: asyncio.Future[tuple[list[R], BaseException | None]] = loop.create_future()

    def tell(result: list[R], error: BaseException | None) -> None:
        if not ended.done():
            ended.set_result((result, error))
        else:
            log.warning(
                "%s %r: a run has ended that nobody waits for any more: its lease was lost, or the session "
                "was closed",
                *(what, name),
                exc_info=error,
            )

    def do() -> None:
        result: list[R] = []
        error: BaseException | None = None
        try:
            result.append(context.run(work))
        except (KeyboardInterrupt, SystemExit) as raised:
            error = RuntimeError(
                f"the run of {what.capitalize()} {name!r} has raised {type(raised).__name__}, which ends no "
                "program from a worker thread"
            )
            error.__cause__ = raised
        except BaseException as raised:  # noqa: BLE001 - of who waits
            error = raised
        with contextlib.suppress(RuntimeError):  # the loop has ended, and with it who waits
            loop.call_soon_threadsafe(tell, result, error, context=empty_context())

    threading.Thread(target=do, name=f"aiolocks-{what}-{name}", daemon=False).start()
    result, failed = await (_after(ended) if until_it_ends else ended)
    if failed is not None:
        raise failed
    return result[0]


async def _after(ended: asyncio.Future[T]) -> T:
    """Its result; a cancellation comes after it."""
    cancelled: asyncio.CancelledError | None = None
    while not ended.done():
        try:
            await asyncio.shield(ended)
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
    return ended.result()
