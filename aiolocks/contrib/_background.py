"""Tasks that run beside an application, and begin again after an error."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any, Final, NamedTuple, final

from .. import Session
from .._logs import get_logger
from .._tasks import spawn
from ..errors import SessionClosedError
from ..lock.again import Again
from ..lock.sources import is_closed

log: Final = get_logger("aiolocks.background")

Work = Callable[[Session], Awaitable[object]] | Callable[[], Awaitable[object]]
"""What a user gives."""


class Checked(NamedTuple):
    """The same, as it is called."""

    call: Callable[..., object]
    takes_session: bool
    name: str


_UNWINDS: Final = 10.0
"""Seconds after which the log names the tasks for whose end the application waits."""


def checked(background: Any) -> tuple[Checked, ...]:
    """The functions that were given.

    Raises:
        TypeError: They are no functions of the session, or of nothing.
    """
    if not isinstance(background, Iterable) or isinstance(background, str):
        raise TypeError(f"background is a list of functions of the session: [sweep], not {background!r}")
    works: tuple[Any, ...] = tuple(background)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType] - checked below
    return tuple(map(_checked, works))


def _checked(work: Any) -> Checked:
    if not callable(work):
        if inspect.iscoroutine(work):
            work.close()  # so that Python does not complain of it, too
        raise TypeError(f"background has functions of the session: [sweep], not [sweep(…)] as in {work!r}")
    if _is_ours(work):  # its call decorates a function
        raise TypeError(
            f"background has functions, not {work!r}: give [nightly.run] for a Schedule, "
            "[partial(leadership.run, main)] for a Leadership, and a function that uses it for a lock"
        )
    called = work
    while isinstance(called, functools.partial):
        called = called.func
    owner = getattr(called, "__self__", None)
    if inspect.isasyncgenfunction(called) or inspect.isgeneratorfunction(called):
        raise TypeError(f"background has async functions, and {work!r} is a generator: remove its `yield`")
    takes_session = _takes_session(work, ours=_is_ours(owner))
    name: str = getattr(called, "__qualname__", None) or repr(called)
    return Checked(work, takes_session, f"{name} of {owner!r}" if _is_ours(owner) else name)


def _is_ours(one: object) -> bool:
    """Whether it is an object of this library, such as a `Schedule`."""
    return type(one).__module__.partition(".")[0] == Session.__module__.partition(".")[0]


def _takes_session(work: Callable[..., object], *, ours: bool) -> bool:
    """Whether it is called with the session; no method of this library is.

    Raises:
        TypeError: It needs something else.
    """
    try:
        parameters = inspect.signature(work)
    except ValueError:
        return True  # it does not tell how it is called
    for takes_session in (False,) if ours else (True, False):
        with contextlib.suppress(TypeError):
            parameters.bind(*(None,) * takes_session)
            return takes_session
    raise TypeError(
        f"a function in background= is called with the session, or with nothing, and {work!r} needs "
        f"{parameters}: give it the rest by functools.partial, as in partial(leadership.run, main)"
    )


@asynccontextmanager
async def beside(session: Session, background: tuple[Checked, ...]) -> AsyncGenerator[None]:
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

    def __init__(self, session: Session, work: Checked) -> None:
        self._session = session
        self._work = work
        self._ending = False  # the application ends
        self.name = f"background task {work.name}"
        self.task = spawn(asyncio.get_running_loop(), self._run(), name=f"aiolocks-{self.name}", context=None)

    def cancel(self) -> None:
        self._ending = True
        self.task.cancel()

    async def _run(self) -> None:
        again, now = Again(log, self.name), asyncio.get_running_loop().time
        while True:
            began, cancelled = now(), self.task.cancelling()
            failed: BaseException
            try:
                work = self._work.call(self._session) if self._work.takes_session else self._work.call()
                if not inspect.isawaitable(work):
                    log.error("%s is not async: it returned %r, and has ended", self.name, work)
                    return
                await work
            except asyncio.CancelledError as error:
                if self._ending:
                    raise
                if self.task.cancelling() > cancelled:
                    log.error("%s was cancelled, not by its application, and has ended", self.name)  # noqa: TRY400
                    raise
                failed = error  # it came out of the work by itself
            except (SystemExit, KeyboardInterrupt, GeneratorExit):
                raise
            except BaseException as error:  # a panic of an extension in Rust is no Exception
                closed = isinstance(error, SessionClosedError) and is_closed(self._session)
                if closed or self._ending:
                    level = logging.WARNING if closed else logging.ERROR
                    log.log(level, "%s has ended", self.name, exc_info=not closed)
                    return
                failed = error
            else:
                log.info("%s has ended", self.name)
                return
            await again.after(failed, now() - began)
            del failed  # which knows this frame
