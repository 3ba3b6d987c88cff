"""Routes of FastAPI whose endpoints say that they begin, and whose dependencies can be asked alone."""

# Annotations are objects in this module: FastAPI looks at them.

import functools
import inspect
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextlib import aclosing
from typing import Any, Final

from fastapi import Depends
from fastapi.dependencies.utils import get_typed_return_annotation, get_typed_signature

from .._fastapi_hold import ends_the_question
from .._handling import handler_begins

_MARKS: Final = "__aiolocks_marks__"


def marking(endpoint: Callable[..., Any]) -> Callable[..., Any]:
    """The same endpoint, which says that it begins.

    The endpoint itself is wrapped, and not what FastAPI makes of it: FastAPI makes that again for each
    router that includes the route.
    """
    if getattr(endpoint, _MARKS, False):
        return endpoint
    marks = _wrapped(endpoint)
    # Annotations that are strings mean names of the endpoint's module. Some versions of FastAPI would look
    # for them in this one.
    returned = get_typed_return_annotation(endpoint)
    typed = get_typed_signature(endpoint).replace(
        return_annotation=inspect.Signature.empty if returned is None else returned
    )
    setattr(marks, "__signature__", typed)  # noqa: B010 - functions have no such attribute for type checkers
    setattr(marks, _MARKS, True)
    return marks


def _wrapped(endpoint: Callable[..., Any]) -> Callable[..., Any]:
    """FastAPI runs functions in a thread and coroutine functions in the event loop; it streams generators."""
    called: Any = endpoint
    while isinstance(called, functools.partial):
        called = called.func
    kinds = (called, getattr(called, "__call__", None))  # noqa: B004 - its kind counts, not whether it is there

    if any(map(inspect.iscoroutinefunction, kinds)):

        @functools.wraps(endpoint)
        async def awaits(*args: Any, **kwargs: Any) -> Any:
            handler_begins()
            return await endpoint(*args, **kwargs)

        return awaits
    if any(map(inspect.isasyncgenfunction, kinds)):

        @functools.wraps(endpoint)
        async def streams(*args: Any, **kwargs: Any) -> AsyncGenerator[Any]:
            handler_begins()
            async with aclosing(endpoint(*args, **kwargs)) as items:
                async for item in items:
                    yield item

        return streams
    if any(map(inspect.isgeneratorfunction, kinds)):

        @functools.wraps(endpoint)
        def yields(*args: Any, **kwargs: Any) -> Generator[Any]:
            handler_begins()
            yield from endpoint(*args, **kwargs)

        return yields

    @functools.wraps(endpoint)
    def runs(*args: Any, **kwargs: Any) -> Any:
        handler_begins()
        return endpoint(*args, **kwargs)

    return runs


_ENDS: Final = Depends(ends_the_question)


def asked_alone(dependencies: Sequence[Any]) -> list[Any]:
    """The dependencies of a route, in such a way that they can be asked without the work of its handler.

    FastAPI solves the dependencies of applications and routers, then these, then the handler's parameters.
    """
    return [*(each for each in dependencies if each is not _ENDS), _ENDS]
