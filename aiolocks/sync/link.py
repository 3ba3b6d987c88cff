"""What joins a session for threads to the event loop that does its work, in whichever process."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, final

from .. import Session as AsyncSession
from ..errors import SessionClosedError
from ..lock.context import SessionOptions
from . import loopthread
from .loopthread import Errand, LoopThread
from .misuse import refuse_green_threads, refuse_in_coroutines

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

    def thread(self) -> LoopThread:
        """The loop that does the work, which it joins.

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

    def ask(self, work: Callable[[], Awaitable[T]]) -> T:
        """Has the loop do it, and waits; an exception in this thread cancels it."""
        thread, errand = self.thread(), Errand(work, undo=_nothing)
        try:
            return thread.do(errand)
        except BaseException:
            errand.give_up(thread)
            raise

    def open(self) -> None:
        """It may be used, also where it was closed."""
        self._closed = False
        self.ask(self.session().__aenter__)

    def close(self) -> None:
        """Ends the session, and the loop if nobody else uses it."""
        refuse_in_coroutines()
        session, self._closed = self.session(), True
        thread, self._thread = self._thread, None
        if thread is None:
            return
        errand = Errand(session.aclose)
        try:
            thread.do(errand)
        except BaseException:
            errand.give_up(thread)
            raise
        finally:
            loopthread.leave(thread, self)

    @property
    def closed(self) -> bool:
        return self._closed


async def _nothing(result: object) -> None:
    """There is nothing to undo."""
