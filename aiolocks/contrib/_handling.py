"""Whether the handler of a request has begun. Idempotency keys ask: an earlier refusal is not a result."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final, final


@final
class Handling:
    """One request that is worked on under an idempotency key.

    Attributes:
        begun: The handler has begun.
        only_asks: The request is a repetition: its dependencies say whether it may have the record, and
            nothing else is done.
        may: They have said yes.
    """

    __slots__ = ("begun", "may", "only_asks")

    def __init__(self, *, only_asks: bool = False) -> None:
        self.begun = False
        self.only_asks = only_asks
        self.may = False

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


def current() -> Handling | None:
    """The one that this code runs for; None without an idempotency key."""
    return _current.get()


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
