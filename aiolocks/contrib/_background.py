"""Tasks that run beside an application, and begin again after an error."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any, Final, final

from .. import Session
from ..errors import SessionClosedError
from ..lock.again import Again
from ..lock.sources import engine_of

log: Final = logging.getLogger("aiolocks.background")

Work = Callable[[Session], Awaitable[object]]

_UNWINDS: Final = 10.0
"""Seconds after which the log names the tasks for whose end the application waits."""


def checked(background: Any) -> tuple[Work, ...]:
    """The functions that were given.

    Raises:
        TypeError: They are no functions.
    """
    if not isinstance(background, Iterable) or isinstance(background, str):
        raise TypeError(f"background is a list of functions of the session: [sweep], not {background!r}")
    works: tuple[Any, ...] = tuple(background)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType] - checked here
    for work in works:
        if not callable(work):
            if inspect.iscoroutine(work):
                work.close()  # so that Python does not complain of it, too
            raise TypeError(
                f"background has functions of the session: [sweep], not [sweep(…)] as in {work!r}"
            )
    return works


@asynccontextmanager
async def beside(session: Session, background: tuple[Work, ...]) -> AsyncGenerator[None]:
    """Runs all of them for the body; cancels them after it, and waits for their end."""
    tasks = [_Background(session, work) for work in background]
    try:
        yield
    finally:
        if tasks:
            await _end(tasks)


async def _end(tasks: list[_Background]) -> None:
    for one in tasks:
        one.cancel()
    _, pending = await asyncio.wait([one.task for one in tasks], timeout=_UNWINDS)
    if pending:
        for one in tasks:
            if one.task in pending:
                log.warning("%s has not ended %g s after it was cancelled", one.name, _UNWINDS)
        await asyncio.wait(pending)


@final
class _Background:
    """One of them.

    Invariant: it ends without a line in the log only where the application has ended it.
    """

    __slots__ = ("_ending", "_session", "_work", "name", "task")

    def __init__(self, session: Session, work: Work) -> None:
        self._session = session
        self._work = work
        self._ending = False  # the application ends
        self.name = f"background task {getattr(work, '__qualname__', None) or repr(work)}"
        self.task = asyncio.create_task(self._run(), name=f"aiolocks-{self.name}")

    def cancel(self) -> None:
        self._ending = True
        self.task.cancel()

    async def _run(self) -> None:
        again, now = Again(log, self.name), asyncio.get_running_loop().time
        while True:
            began, cancelled = now(), self.task.cancelling()
            failed: BaseException
            try:
                await self._work(self._session)
            except asyncio.CancelledError as error:
                if self._ending:
                    raise
                if self.task.cancelling() > cancelled:
                    log.error("%s was cancelled, not by its application, and has ended", self.name)  # noqa: TRY400
                    raise
                failed = error  # it came out of the work by itself
            except Exception as error:
                if self._ending or (isinstance(error, SessionClosedError) and _is_closed(self._session)):
                    log.exception("%s has ended", self.name)
                    return
                failed = error
            else:
                log.info("%s has ended", self.name)
                return
            await again.after(failed, now() - began)
            del failed  # which knows this frame


def _is_closed(session: Session) -> bool:
    try:
        engine_of(session)
    except SessionClosedError:
        return True
    return False
