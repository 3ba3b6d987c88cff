"""Closes a session some time after SIGTERM, where the server of the application may kill the process later.

There is one handler of the process for all sessions that want it. The handler that was there is called too,
and is put back behind the last of them: asyncio's and uvicorn's go on as without it.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, Final, final

from .. import Session
from .._logs import get_logger
from .._tasks import empty_context, spawn

log: Final = get_logger("aiolocks.session")


@asynccontextmanager
async def closed_after_sigterm(session: Session, after: float | None) -> AsyncGenerator[None]:
    """Closes the session so many seconds after a SIGTERM in the body; None: never."""
    if after is None:
        yield
        return
    end = _End(session, after, asyncio.get_running_loop())
    why = _HANDLER.add(end)
    if why:
        log.info("close_after_sigterm has no effect: %s", why)
    try:
        yield
    finally:
        _HANDLER.remove(end)
        await end.settled()


@final
class _End:
    """The end of one session.

    Invariant: it begins once, however many signals come.
    """

    __slots__ = ("_after", "_closing", "_loop", "_over", "_session", "_timer")

    def __init__(self, session: Session, after: float, loop: asyncio.AbstractEventLoop) -> None:
        self._session = session
        self._after = after
        self._loop = loop
        self._over = False
        self._timer: asyncio.TimerHandle | None = None
        self._closing: asyncio.Task[None] | None = None

    def signalled(self) -> None:
        """From the handler of the signal."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._begin, context=empty_context())

    def _begin(self) -> None:
        if self._timer is None and not self._over:
            self._timer = self._loop.call_later(self._after, self._close, context=empty_context())

    def _close(self) -> None:
        log.info("SIGTERM came %g s ago: the session is closed, whatever still runs", self._after)
        self._closing = spawn(
            self._loop, self._session.aclose(), name="aiolocks-sigterm", context=empty_context()
        )

    async def settled(self) -> None:
        """Begins no more; returns when what has begun is done."""
        self._over = True
        if self._timer is not None:
            self._timer.cancel()
        if self._closing is not None:
            await asyncio.shield(self._closing)


@final
class _Handler:
    """The handler of this process.

    Invariant: it stands while there is an end, and `_before` is then the handler that stood before it.
    """

    __slots__ = ("_before", "_called", "_ends")

    def __init__(self) -> None:
        self._called = False  # one that has taken its place since may call it, and is called by it
        self._ends: list[_End] = []
        self._before: Any = None

    def add(self, end: _End) -> str:
        """Tells it of the signal from now on; returns why that is not possible, else an empty text."""
        if threading.current_thread() is not threading.main_thread():
            return "the event loop does not run in the main thread, where Python handles signals"
        before = signal.getsignal(signal.SIGTERM)
        if before is None:
            return "SIGTERM has a handler that is not Python's"
        if before != self._handle:  # else it stands; or another one has taken its place since
            self._before = before
            signal.signal(signal.SIGTERM, self._handle)
        self._ends.append(end)
        return ""

    def remove(self, end: _End) -> None:
        """Tells it no more."""
        if end not in self._ends:
            return
        self._ends.remove(end)
        if not self._ends and signal.getsignal(signal.SIGTERM) == self._handle:
            signal.signal(signal.SIGTERM, self._before)
            self._before = None

    def _handle(self, number: int, frame: Any) -> None:
        if self._called:
            return
        for end in self._ends:
            end.signalled()
        if callable(self._before):
            self._called = True
            try:
                self._before(number, frame)
            finally:
                self._called = False
        elif self._before == signal.SIG_DFL:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)


_HANDLER: Final = _Handler()
