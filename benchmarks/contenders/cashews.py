"""The lock of the cache library cashews, as it comes: it asks again and again without a pause."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from ..settings import Address
from .base import Contender, Locks, Uncounted


@asynccontextmanager
async def _connect(address: Address, ttl: int) -> AsyncGenerator[Locks]:
    from cashews.backends.redis import Redis  # noqa: PLC0415 - it may not be installed

    # Its pool of 10 blocks instead of raising. The backend itself: `cashews.Cache` takes no unix socket.
    backend: Any = Redis(address.url)
    await backend.init()
    try:
        yield Uncounted(lambda name: backend.lock(name, ttl), again=False)
    finally:
        await backend.close()


CONTENDER = Contender("cashews", _connect)
