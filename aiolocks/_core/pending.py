"""One object that can be awaited, entered, or given to `create_task`."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar, final

if TYPE_CHECKING:
    from .lease import Lease

LeaseT_co = TypeVar("LeaseT_co", bound="Lease | None", covariant=True)


@final
class Pending(Coroutine[Any, Any, LeaseT_co], Generic[LeaseT_co]):
    """What `acquire()` and `try_acquire()` return: a coroutine that is also an async context manager.

    Nothing happens before it is awaited, entered, or run by a task; one that is never used warns of
    nothing and holds nothing. Like every coroutine it is used once.

    `async with` enters the lease: the body is cancelled when it is lost, and it is released on exit. With
    `try_acquire()` the lease may be None, and then the exit does nothing.
    """

    __slots__ = ("_coroutine", "_lease", "_start")

    __name__ = "acquisition"  # by which the `repr` of a task calls what it runs

    def __init__(self, start: Callable[[], Coroutine[Any, Any, LeaseT_co]]) -> None:
        self._start: Callable[[], Coroutine[Any, Any, LeaseT_co]] | None = start
        self._coroutine: Coroutine[Any, Any, LeaseT_co] | None = None
        self._lease: Lease | None = None

    def _begin(self) -> Coroutine[Any, Any, LeaseT_co]:
        start, self._start = self._start, None
        if start is None:
            raise RuntimeError("this acquisition was used before: call acquire() again")
        self._coroutine = coroutine = start()
        return coroutine

    def __await__(self) -> Generator[Any, Any, LeaseT_co]:
        return self._begin().__await__()

    # -- as a coroutine: what a task calls

    def send(self, value: Any, /) -> Any:
        coroutine = self._coroutine if self._coroutine is not None else self._begin()
        return coroutine.send(value)

    def throw(self, *error: Any) -> Any:
        coroutine = self._coroutine if self._coroutine is not None else self._begin()
        return coroutine.throw(*error)

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

    # NOTE: no `__bool__` that refuses `if lock.try_acquire():`: asyncio asks for it, in the `repr` of a task.

    if not TYPE_CHECKING:  # to a type checker, there is no such attribute

        def __getattr__(self, name: str) -> NoReturn:
            raise AttributeError(
                f"an acquisition has no attribute {name!r}: await it, or enter it, and it gives a lease"
            )

    def __repr__(self) -> str:
        state = "not started" if self._start is not None else "started"
        return f"<acquisition {state}>"
