"""What joins a session for threads to the event loop that does its work, in whichever process."""

from __future__ import annotations

import os
import threading
from collections.abc import Awaitable, Callable, Generator, Iterable
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar, final

from .. import Session as AsyncSession
from ..errors import SessionClosedError
from ..lock.engine import SessionOptions
from ..lock.events import HOOKS
from . import loopthread
from .loopthread import Errand, LoopThread, WatchedListener, nothing
from .misuse import refuse_green_threads, refuse_in_coroutines

if TYPE_CHECKING:
    from ..lock.leaving import Release

T = TypeVar("T")


@final
class Link:
    """The asynchronous session of this process, and the loop in which it is used.

    Invariant: a forked process has an asynchronous session of its own, and never touches that of its parent.

    Args:
        source: A URL, or a function that makes a client.
        options: Of the session.

    Raises:
        TypeError, ValueError: They are not as they should be.
        ConfigurationError: gevent or eventlet has replaced threads.
    """

    __slots__ = ("__weakref__", "_closed", "_options", "_pid", "_session", "_source", "_thread")

    def __init__(self, source: str | Callable[[], Any], options: SessionOptions) -> None:
        refuse_green_threads()
        self._source = source
        if isinstance(listeners := options.get("listeners"), Iterable):
            options = {**options, "listeners": [_watched(listener) for listener in listeners]}
        self._options = options
        self._pid = os.getpid()
        self._session = AsyncSession.from_url(source, **options)
        self._thread: LoopThread | None = None  # from the first use on
        self._closed = False

    def session(self) -> AsyncSession:
        """The asynchronous session of this process."""
        if self._pid != os.getpid():
            loopthread.keep((self._session, self._thread))
            self._session = AsyncSession.from_url(self._source, **self._options)
            self._pid, self._thread = os.getpid(), None
        return self._session

    def join_loop(self) -> LoopThread:
        """Joins the loop that does the work, unless it has, and returns the thread in which that runs.

        Raises:
            SessionClosedError: It is closed.
            RuntimeError: An event loop runs in this thread.
            ConfigurationError: gevent or eventlet has replaced threads meanwhile.
        """
        refuse_in_coroutines()
        self.session()
        thread = self._thread
        if self._closed:
            raise SessionClosedError("the session is closed: use a session that is open")
        if thread is None or thread.stopping:
            refuse_green_threads()
            thread = self._thread = loopthread.current(self)
            if self.closed:  # meanwhile, by another thread
                loopthread.leave(thread, self)
                raise SessionClosedError("the session is closed: use a session that is open")
        return thread

    @property
    def joined(self) -> LoopThread:
        """The thread of the loop that it has joined, for what happens there."""
        assert self._thread is not None, "its work is done there"
        return self._thread

    def ask(self, work: Callable[[], Awaitable[T]]) -> T:
        """Has the loop do it, and waits; an exception in this thread cancels it."""
        return self.join_loop().have_done(Errand(work, undo=nothing))

    def open(self) -> None:
        """It may be used, also where it was closed."""
        self._closed = False
        self.ask(self.session().__aenter__)

    def close(self, release: Release = "unused") -> None:
        """Ends the session, and the loop if no other session uses it."""
        refuse_in_coroutines()
        session, self._closed = self.session(), True
        thread, self._thread = self._thread, None
        if thread is None:
            return
        try:
            thread.have_done(Errand(lambda: session.aclose(release=release)))
        finally:
            loopthread.leave(thread, self)

    def abandon(self) -> None:
        """Ends the session without waiting: what it served was collected, in whichever thread."""
        if self._closed or self._pid != os.getpid():
            return
        self._closed = True
        thread, self._thread = self._thread, None
        if thread is not None:
            loopthread.abandon(thread, self, self._session.aclose)

    @property
    def closed(self) -> bool:
        return self._closed

    @contextmanager
    def redirected(self, make: Callable[[], Any]) -> Generator[None]:
        """For the block, the session makes its clients by that function; the end closes it. For tests.

        Raises:
            RuntimeError: It is in use already.
        """
        self.session()
        if self._thread is not None:
            raise RuntimeError("this session is in use already: redirect it before it is used")
        source, session, closed = self._source, self._session, self._closed
        self._source, self._session, self._closed = make, AsyncSession.from_url(make, **self._options), False
        try:
            yield
        finally:
            # In a thread: in this one, a loop may run, of a test that has used the session in other threads.
            closing = threading.Thread(target=self.close, name="aiolocks-sync-close")
            closing.start()
            closing.join()
            self._source, self._session, self._closed = source, session, closed


def _watched(listener: object) -> object:
    """A listener whose methods are watched; what is none is refused as it stands."""
    if isinstance(listener, type) or not any(hasattr(listener, name) for name in HOOKS):
        return listener
    return WatchedListener(listener)
