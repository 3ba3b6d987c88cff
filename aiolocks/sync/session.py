"""A session for threads: what is about threads in it. Its methods that make locks are made."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack

from .. import Session as AsyncSession
from ..lock.engine import SessionOptions
from ..lock.sources import Source
from ..lock.statistics import SessionStatistics
from .described import kind
from .link import Link
from .loopthread import watched
from .misuse import SyncOnly

if TYPE_CHECKING:
    from ..lock.leaving import Release

T = TypeVar("T")


class BaseSession(SyncOnly):
    """The state that all locks of a program with threads share: for scripts, Celery, RQ, Django and the like.

    ```python
    locks = Session.from_url("redis://localhost:6379", prefix="shop")  # at import: there is no I/O

    with locks.lock("order:17", ttl=10, blocking_timeout=2) as lease:
        ...  # no other thread or process has it
        lease.ensure_held()  # right before what must not be done twice
    ```

    Its locks, and the locks of an `aiolocks.Session` with the same server and prefix, exclude each other,
    also between processes. One event loop in a thread of its own does the work of all sessions of the
    process. It starts at the first use, renews the leases while the threads work, and ends when the last
    session is closed or the program ends. Any number of threads can use the session.

    A forked process connects anew when it uses the session. It does not have the leases of its parent.

    If an exception is raised in a thread while it waits (Ctrl-C, the time limit of a Celery task or an RQ
    job), the wait ends, and nothing stays held. At the end of a program, what its threads still hold is
    released. After `os._exit` or a kill, the ttl frees it.

    It needs threads of the operating system: gevent and eventlet are refused.

    Raises:
        TypeError, ValueError: An argument is wrong, or the URL names no server.
        ConfigurationError: gevent or eventlet has replaced threads.
    """

    _elsewhere = "use it in a forked process, or make one there"

    __slots__ = ("_link",)

    def __init__(self, source: Source, **options: Unpack[SessionOptions]) -> None:
        self._link = Link(source, options)

    @classmethod
    def from_url(cls, url: Source, **options: Unpack[SessionOptions]) -> Self:
        """Makes a session with its own client, which connects at the first use.

        Args:
            url: A URL as `aiolocks.Session.from_url` takes it, also of a cluster or of Sentinel. Or a
                function that makes a client of `redis.asyncio` or `valkey.asyncio`, for options that a URL
                cannot have. It is called in each process that uses the session.
            **options: Options of `aiolocks.Session`. Listeners are called in the thread of the event loop, so
                they must not block: a warning says so where one does for 50 ms.

        Raises:
            TypeError, ValueError: An argument is wrong, or the URL names no server.
            ConfigurationError: gevent or eventlet has replaced threads.
        """
        return cls(url, **options)

    def __enter__(self) -> Self:
        self._link.open()
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._link.close("unused")

    def close(self, *, release: Release = "unused") -> None:
        """Closes the session, as the end of its `with` does. After that, only `with` opens it again.

        Waiters get `SessionClosedError`. A lease is released if no `with` is open for it, and the thread that
        acquired it has ended, or is the one that closes. Other leases become `LOST`, and their threads have
        at most 1 s to leave their blocks. What is held longer is free when its ttl has passed. A second call
        does nothing.

        Args:
            release: `"unused"`, the default, as described. `"none"`: no lease is released.

        Raises:
            RuntimeError: An event loop runs in this thread.
        """
        self._link.close(release)

    def statistics(self) -> SessionStatistics:
        """Counts: the leases and waiters of this session now, and its work since it was made. No I/O."""
        return self._link.session().statistics()

    def call(self, function: Callable[[AsyncSession], Awaitable[T]], /) -> T:
        """Calls a coroutine function with the asynchronous session, and returns its result.

        The function runs in the event loop. Use it for what has no method for threads, such as your own
        coroutines:

        ```python
        async def both(session):
            async with Lock(session, "a"), Lock(session, "b"):
                ...

        locks.call(both)
        ```

        Args:
            function: Called in the thread of the event loop, so it must not block: while it does, no lease of
                the process is renewed. A warning says so where it blocks for 50 ms.

        Raises:
            SessionClosedError: The session is closed.
            RuntimeError: An event loop runs in this thread.
            TypeError: The result of the function cannot be awaited.
            Exception: What the function raises.

        If an exception interrupts it, what the function awaits is cancelled.
        """
        link = self._link

        async def work() -> T:
            awaitable: object = function(link.session())
            if not inspect.isawaitable(awaitable):
                raise TypeError(
                    "call() takes a coroutine function of the asynchronous session, as in "
                    f"locks.call(lambda session: session.inspect()), and {function!r} gave {awaitable!r}"
                )
            result: T = await awaitable
            return result

        return link.ask(lambda: watched(work(), f"call({function!r})"))

    def _ask(self, ask: Callable[[AsyncSession], Awaitable[T]]) -> T:
        link = self._link
        return link.ask(lambda: ask(link.session()))

    def _redirected(self, make: Callable[[], Any]) -> AbstractContextManager[None]:
        """For the block, this session makes its clients by that function. For tests."""
        return self._link.redirected(make)

    def _masters(self, others: Sequence[Any]) -> list[Link]:
        """The links of the other masters of a `Redlock`."""
        given: object = others
        if not isinstance(given, Sequence) or not all(isinstance(one, BaseSession) for one in others):
            raise TypeError(
                f"others must be sessions of aiolocks.sync, one for each other master, not {others!r}"
            )
        return [one._link for one in others]  # noqa: SLF001 - its own class

    def _redlock(self, links: Sequence[Link], name: str, **options: Any) -> Callable[[AsyncSession], Any]:
        return lambda session: kind("Redlock")(
            [session, *(link.session() for link in links)], name, **options
        )

    def __repr__(self) -> str:
        if self._link.closed:
            return "<sync Session closed>"
        return f"<sync {repr(self._link.session())[1:]}"
