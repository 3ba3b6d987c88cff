"""Handlers of FastAPI that go on after their task: in threads, or while the answer is sent.

From FastAPI 0.134 on, a handler may be a generator, `async` or not, whose items are sent as lines of JSON, as
events, or as they are. FastAPI calls it, ends the dependencies of scope "function", and runs its first line
only then. What is held for it is therefore kept on the stack of the request, which ends after the answer.

That stack alone would be wrong twice. It ends after the background tasks, which may want the same lock. And
where a client hangs up while an item is sent, it ends before the generator: FastAPI does not close one that
is suspended there, and the garbage collector finds it later. So the call of the handler is replaced, as
tracers do it, by one whose items say that they have ended, and are closed before what is held is released.

A plain handler runs in a thread, which goes on where its request is cancelled. Its call says that it has
ended, too, and what is held is released after that.
"""

# Annotations are objects in this module: FastAPI looks at them.

import asyncio
import contextlib
import functools
import inspect
import threading
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Collection,
    Coroutine,
    Iterable,
    Iterator,
    MutableMapping,
)
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from contextvars import ContextVar
from typing import Any, Final, final

import anyio
from anyio import from_thread, to_thread
from starlette.concurrency import iterate_in_threadpool
from starlette.responses import Response

from .._tasks import empty_context, spawn
from ._holding import Held

_STREAM: Final = "aiolocks.stream"
"""In the scope of a request: its `Stream`."""


def dependants_of(scope: MutableMapping[str, Any]) -> list[Any]:
    """What FastAPI solves and calls for a request.

    Where a router is included, each inclusion has a call of its own.
    """
    included = scope.get("fastapi", {}).get("effective_route_context")
    found = (getattr(one, "dependant", None) for one in (scope.get("route"), included))
    return [dependant for dependant in found if dependant is not None]


def stream_of(scope: MutableMapping[str, Any], *, until_sent: bool) -> "Stream | None":
    """That of a request whose dependencies are solved; None if FastAPI ends the dependency in time.

    Args:
        scope: Of the request.
        until_sent: FastAPI ends the dependency when it has sent the answer.
    """
    route, dependants = scope.get("route"), dependants_of(scope)
    # Older versions stream nothing: they make a list of the items before the dependencies end.
    generates = hasattr(route, "is_json_stream") and any(map(_generates, dependants))
    watched = generates or until_sent
    if not watched and not any(map(_runs_in_thread, dependants)):
        return None
    stream: Stream | None = scope.get(_STREAM)
    if stream is None:
        for dependant in dependants:
            if not isinstance(dependant.call, _Call):
                dependant.call = _Call(dependant.call)
        calls, stack = [dependant.call for dependant in dependants], scope["fastapi_inner_astack"]
        stream = scope[_STREAM] = Stream(stack, calls, generates=generates, outer=_called_next.get())
        _called_next.set(stream)
        stack.callback(_forget, stream)  # where its handler is not called
    stream.watched = stream.watched or watched
    return stream


@final
class Stream:
    """One request, the call of its handler, and the items of its answer.

    Invariant: what is held is released after the call has ended, and the items have ended or were closed, in
    whatever way the request ends; or it is lost before.

    Args:
        stack: Ends after the answer.
        calls: One of these is the call of its handler.
        generates: The handler is a generator. Otherwise it may return an answer that has items.
        outer: The stream of another request, of which a dependency makes this request in this process.

    Attributes:
        answers: There are items: the answer has begun, or will at once.
        watched: Something is held until the items have ended, or until the answer was sent.
    """

    __slots__ = ("_call", "_calls", "_generates", "_held", "_items", "_stack", "answers", "outer", "watched")

    def __init__(
        self, stack: AsyncExitStack, calls: Collection[object], *, generates: bool, outer: "Stream | None"
    ) -> None:
        self._stack = stack
        self._calls = calls
        self._generates = generates
        self.outer = outer
        self.answers = False
        self.watched = False
        self._call: Future[None] = Future()  # its state is that of the call of the handler
        self._held: list[Held] = []  # until the items have ended
        self._items: _Items | AsyncGenerator[Any, None] | None = None

    @asynccontextmanager
    async def holds(
        self, holds: AbstractAsyncContextManager[Held], *, until_sent: bool
    ) -> AsyncGenerator[Held, None]:
        """Holds it for the body, and until the call of the handler has ended; or as long as `_hold` says."""
        if self._generates or until_sent:
            yield await self._hold(holds, until_sent=until_sent)
            return
        async with holds as held:
            try:
                yield held
            finally:
                await self._call_has_ended(held)

    async def _hold(self, holds: AbstractAsyncContextManager[Held], *, until_sent: bool) -> Held:
        """Enters it, until the items have ended; or else until the answer was sent, background tasks too."""
        held = await self._stack.enter_async_context(self._closing_before(holds))
        if not until_sent:
            self._held.append(held)
        return held

    @asynccontextmanager
    async def _closing_before(self, holds: AbstractAsyncContextManager[Held]) -> AsyncGenerator[Held, None]:
        async with holds as held:
            try:
                yield held
            finally:
                await self._call_has_ended(held)
                await self._close()

    def calls(self, call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What the call of the handler has made, as FastAPI is to have it; in whatever thread.

        Raises:
            CancelledError: The request was cancelled before this thread came to it.
        """
        if not self._call.set_running_or_notify_cancel():
            raise asyncio.CancelledError("the request has ended")
        try:
            made = call(*args, **kwargs)
        finally:
            self._call.set_result(None)
        return self._takes(made) if self.watched else made

    async def _call_has_ended(self, held: Held) -> None:
        """Waits for the thread of a request whose task was cancelled: it works on, and cannot be cancelled.

        What is lost meanwhile is not waited with. But a session that closes would give it back.
        """
        if self._call.cancel() or self._call.done():
            return
        loop = asyncio.get_running_loop()
        ended = asyncio.wrap_future(self._call)
        lost = spawn(loop, held.lease.wait_lost(), name="aiolocks-lost", context=empty_context())
        try:
            with anyio.CancelScope(shield=True):
                while not ended.done() and not held.gone:
                    waits = (ended,) if lost.done() else (ended, lost)
                    with contextlib.suppress(asyncio.CancelledError):  # one is on its way already
                        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            lost.cancel()

    async def _close(self) -> None:
        items, self._items = self._items, None
        if isinstance(items, _Items):
            # Not by a thread of the pool for handlers: all of these may wait for this lock.
            await to_thread.run_sync(items.close, limiter=anyio.CapacityLimiter(1))
        elif items is not None:
            await items.aclose()

    def is_of(self, call: object) -> bool:
        """Whether that is the call of its handler."""
        return call in self._calls

    def _takes(self, made: Any) -> Any:
        if self._generates:
            return self._watched(made)
        return self._takes_later(made) if inspect.isawaitable(made) else self._takes_answer(made)

    async def _takes_later(self, made: Awaitable[Any]) -> Any:
        return self._takes_answer(await made)

    def _takes_answer(self, answer: Any) -> Any:
        streaming: Any = answer
        if isinstance(answer, Response) and hasattr(answer, "body_iterator"):
            body = streaming.body_iterator
            items = _taken_in_threads(body)
            streaming.body_iterator = (
                self._watched(body) if items is None else iterate_in_threadpool(self._watched(iter(items)))
            )
        return answer

    def _watched(self, items: Any) -> Any:
        self.answers = True
        self._items = self._until_end(items) if hasattr(items, "__aiter__") else _Items(items, self._ended)
        return self._items

    async def _until_end(self, items: Any) -> AsyncGenerator[Any, None]:
        try:
            async for item in items:
                yield item
        finally:
            if hasattr(items, "aclose"):
                await items.aclose()
        await self._ended()

    async def _ended(self) -> None:
        """They have run to their end: a client that has the whole answer is to find the lock free."""
        for held in reversed(self._held):
            await held.let_go()


# The call of the handler follows in the task that solves the dependencies, and does not get the scope.
_called_next: Final[ContextVar[Stream | None]] = ContextVar("aiolocks_stream", default=None)


def _forget(stream: Stream) -> None:
    if _called_next.get() is stream:
        _called_next.set(stream.outer)


@final
class _Call:
    """The call of a handler: what it makes belongs to the `Stream` of the request, if it has one."""

    def __init__(self, call: Callable[..., Any]) -> None:
        functools.update_wrapper(self, call)  # FastAPI looks at the function below for what it makes
        self._call = call

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        stream = _called_next.get()
        while stream is not None and not stream.is_of(self):  # of a request that was refused, or an outer one
            stream = stream.outer
        if stream is None:  # its dependency was overridden
            return self._call(*args, **kwargs)
        _called_next.set(stream.outer)  # not for requests that the handler makes in this process
        return stream.calls(self._call, args, kwargs)


@final
class _Items(Iterator[Any]):
    """The items of a generator, or of another iterator, that runs in threads, in one after the other.

    Args:
        items: The generator.
        ended: Called in the event loop when it has run to its end.
    """

    def __init__(self, items: Any, ended: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._items = items
        self._ended = ended
        # A request that is cancelled by its task leaves a thread in the generator.
        self._running = threading.Lock()

    def __next__(self) -> Any:
        with self._running:
            try:
                return next(self._items)
            except StopIteration:
                with contextlib.suppress(RuntimeError):  # no thread of anyio: the end of the answer releases
                    from_thread.run(self._ended)
                raise

    def close(self) -> None:
        with self._running:
            if inspect.isgenerator(self._items):  # and not a file, which may be sent again
                self._items.close()


def _taken_in_threads(body: Any) -> Iterable[Any] | None:
    """The items of an answer's body that is no async iterable; None if it is one.

    Starlette has made an async generator of them, whose end does not close them.
    """
    if getattr(body, "ag_code", None) is not getattr(iterate_in_threadpool, "__code__", body):
        return None
    items: Iterable[Any] = body.ag_frame.f_locals[body.ag_code.co_varnames[0]]
    return items


def _runs_in_thread(dependant: Any) -> bool:
    """Whether FastAPI calls it in a thread. An object with an async `__call__` counts, too, without harm."""
    return not inspect.iscoroutinefunction(inspect.unwrap(dependant.call))


def _generates(dependant: Any) -> bool:
    """Whether its call makes a generator, as FastAPI finds out."""
    call = dependant.call
    while isinstance(call, functools.partial):
        call = call.func
    function: Any = inspect.unwrap(call)
    kinds = (function, getattr(function, "__call__", None))  # noqa: B004 - its kind counts, not whether it is there
    return any(inspect.isasyncgenfunction(one) or inspect.isgeneratorfunction(one) for one in kinds)
