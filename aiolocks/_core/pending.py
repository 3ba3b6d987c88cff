"""One object that can be awaited, entered, or given to `create_task`."""

from __future__ import annotations

import asyncio
import inspect
import sys
import warnings
from collections.abc import Callable, Coroutine, Generator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Generic, NoReturn, TypeVar, final

from .misuse import AsyncOnly

if TYPE_CHECKING:
    from traceback import StackSummary

    from .lease import Lease

MYPY: Final[bool] = False
"""True to mypy alone."""

_PACKAGE: Final = __name__.partition(".")[0] + "."

LeaseT_co = TypeVar("LeaseT_co", bound="Lease | None", covariant=True)


CallT = TypeVar("CallT", bound=Callable[..., Any])


def gives_pending(function: CallT) -> CallT:
    """Marks a function that returns a `Pending` as a coroutine function, for asgiref and others who look."""
    if sys.version_info >= (3, 12):
        return inspect.markcoroutinefunction(function)
    marked: Any = function
    marked._is_coroutine = asyncio.coroutines._is_coroutine  # type: ignore[attr-defined]  # noqa: SLF001  # pyright: ignore - what `asyncio.iscoroutinefunction` looks for
    return function


@final
class Pending(AsyncOnly, Coroutine[Any, Any, LeaseT_co], Generic[LeaseT_co]):
    """The result of `acquire()` and `try_acquire()`: a coroutine that is also an async context manager.

    Nothing happens before it is awaited, entered, or run by a task. Like every coroutine it is used once, and
    one that is never used warns of that when it is collected.

    `async with` enters the lease: the body is cancelled when it is lost, and it is released on exit. With
    `try_acquire()` the lease may be None, and then the exit does nothing.
    """

    _elsewhere = "acquire the lock there"

    __slots__ = ("_call", "_coroutine", "_lease", "_made_at", "_of", "_start")

    __name__ = "acquisition"  # by which the `repr` of a task calls what it runs

    def __init__(self, start: Callable[[], Coroutine[Any, Any, LeaseT_co]], *, of: object, call: str) -> None:
        self._of = of
        self._call = call
        self._made_at = _stack(depth) if (depth := sys.get_coroutine_origin_tracking_depth()) else None
        self._start: Callable[[], Coroutine[Any, Any, LeaseT_co]] | None = start
        self._coroutine: Coroutine[Any, Any, LeaseT_co] | None = None
        self._lease: Lease | None = None

    def _begin(self) -> Coroutine[Any, Any, LeaseT_co]:
        start, self._start = self._start, None
        if start is None:
            raise RuntimeError(f"this acquisition was used before: call {self._call}() again")
        self._coroutine = coroutine = start()
        return coroutine

    def __await__(self) -> Generator[Any, Any, LeaseT_co]:
        return self._begin().__await__()

    # -- as a coroutine: what a task calls

    def send(self, value: Any, /) -> Any:
        coroutine = self._coroutine if self._coroutine is not None else self._begin()
        return coroutine.send(value)

    def throw(self, *error: Any) -> Any:
        if self._coroutine is None:  # a task that was cancelled before it began: nothing is to begin now
            self._start = None
            self._coroutine = _nothing()
        return self._coroutine.throw(*error)

    def close(self) -> None:
        self._start = None
        if self._coroutine is not None:
            self._coroutine.close()

    # -- as a context manager

    async def __aenter__(self) -> LeaseT_co:
        result = await self._begin()
        if result is not None:
            result.enter()
            self._lease = result
        return result

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        lease, self._lease = self._lease, None
        if lease is not None:
            await lease.__aexit__(exc_type, exc, traceback)

    # -- used without an await

    def __del__(self, warn: Callable[..., None] = warnings.warn) -> None:
        # As CPython does for a coroutine. `warn` is an argument because a module may be gone at the very end.
        if self._start is None:
            return
        message = f"{self._call}() of {self._of!r} was never awaited"
        if self._made_at is not None:
            made_at = "".join(self._made_at.format()).rstrip()
            message += f"\nIt was made at (most recent call last):\n{made_at}"
        warn(message, RuntimeWarning, stacklevel=2, source=self)

    # NOTE: no `__bool__` that refuses `if lock.try_acquire():`: asyncio asks for it, in the `repr` of a task.
    # A type checker can: mypy does where there is none (`truthy-bool`), pyright where it is typed so.

    if TYPE_CHECKING and not MYPY:

        def __bool__(self) -> NoReturn: ...

    if not TYPE_CHECKING:  # to a type checker, there is no such attribute

        def __getattr__(self, name: str) -> NoReturn:
            raise AttributeError(
                f"an acquisition has no attribute {name!r}: await it, or enter it, and it gives a lease"
            )

    def __repr__(self) -> str:
        state = "not started" if self._start is not None else "started"
        return f"<acquisition {state}>"


async def _nothing() -> Any:
    """A coroutine that is there to be thrown into."""


def _stack(depth: int) -> StackSummary:
    """The call of the user that made it, with at most as many frames as asyncio's debug mode asks for."""
    import traceback  # noqa: PLC0415 - for debugging, and an import takes its time

    frame = inspect.currentframe()
    while frame is not None and frame.f_globals.get("__name__", "").startswith(_PACKAGE):
        frame = frame.f_back
    stack = traceback.StackSummary.extract(traceback.walk_stack(frame), limit=depth, lookup_lines=False)
    stack.reverse()
    return stack
