"""`redis.asyncio.lock.Lock`: as it comes, and polling every 10 ms instead of every 100 ms."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial

from ..settings import Address
from .base import CONNECTIONS, Contender, Locks, Uncounted


@asynccontextmanager
async def _connect(address: Address, ttl: int, *, sleep: float) -> AsyncGenerator[Locks]:
    from redis.asyncio import Redis  # noqa: PLC0415 - as with every contender

    arguments = address.client_arguments
    async with Redis(max_connections=CONNECTIONS, **arguments) as client:
        yield Uncounted(lambda name: client.lock(name, timeout=ttl, sleep=sleep))


AS_IT_COMES = Contender("redis-py", partial(_connect, sleep=0.1), poll=0.1)
TUNED = Contender("redis-py, 10 ms", partial(_connect, sleep=0.01), poll=0.01)
