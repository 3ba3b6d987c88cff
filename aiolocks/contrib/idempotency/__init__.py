"""A request that is sent again is not done again: the header `Idempotency-Key`.

This follows the IETF draft *The Idempotency-Key HTTP Header Field*. `IdempotencyMiddleware` is for ASGI
applications, and needs no framework. `aiolocks.contrib.idempotency.fastapi` has a route class for FastAPI,
`aiolocks.contrib.idempotency.aiohttp` a middleware for aiohttp, and `aiolocks.contrib.idempotency.sqlalchemy`
a store that commits the record of a request together with its effects.
"""

from __future__ import annotations

from .._handling import handler_begins
from ._middleware import IdempotencyMiddleware
from ._store import Store, Stored, Transaction

__all__ = ["IdempotencyMiddleware", "Store", "Stored", "Transaction", "handler_begins"]


def __dir__() -> list[str]:
    """The public names alone."""
    return [*__all__]
