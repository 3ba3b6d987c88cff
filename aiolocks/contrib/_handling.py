"""Whether the handler of a request has begun. Idempotency keys ask: an earlier refusal is not a result."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final, final

ASKED: Final = "aiolocks.asked"
"""In the scope of a repetition, while its dependencies are asked: the `Question`.

Not in the context, as a `Handling` is: a dependency may make other requests in this process.
"""


@final
class Question:
    """Whether a repetition may have the record: its dependencies say so, and nothing else is done.

    Attributes:
        may: They have said yes.
    """

    __slots__ = ("may",)

    def __init__(self) -> None:
        self.may = False


@final
class Handling:
    """One request that is worked on, under an idempotency key or without one.

    Attributes:
        begun: The handler has begun.
    """

    __slots__ = ("begun",)

    def __init__(self) -> None:
        self.begun = False

    @contextmanager
    def as_current(self) -> Generator[None]:
        """It is the current one for the code in the block, and for the tasks and threads that this starts."""
        outer = _current.set(self)
        try:
            yield
        finally:
            _current.reset(outer)


# A variable of the context, and not an entry of the scope: threads see it, and code that has no request.
_current: Final[ContextVar[Handling | None]] = ContextVar("aiolocks_handling", default=None)


def handler_begins() -> None:
    """Tells the middleware that the handler of this request begins: its answer from here on is a result.

    ```python
    async def pay(scope, receive, send):
        handler_begins()
        ...                     # a 404 from here on is kept under the idempotency key, as a 201 is
    ```

    `IdempotencyMiddleware`, and the middleware for aiohttp, do not see which code gives an answer. Without
    this call, they do not keep a refusal that may come from code before the handler; see `keeps`. The routes
    of `idempotent_route` and the handlers of `aiolocks.contrib.aiohttp.locked` call it themselves. Outside of
    a request with an idempotency key it does nothing.
    """
    handling = _current.get()
    if handling is not None:
        handling.begun = True
