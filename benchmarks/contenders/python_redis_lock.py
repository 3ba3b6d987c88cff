"""`redis_lock.Lock`, which blocks: in threads, each with a connection. It waits in BLPOP, without polling."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from ..settings import Address
from .base import CONNECTIONS, Contender, Locks, Uncounted

_WAITING = 256
"""Threads for those who wait: one each."""
_LEAVING = 4
"""Threads of their own for those who leave, or they would queue behind those who wait for them."""


@asynccontextmanager
async def _connect(address: Address, ttl: int) -> AsyncGenerator[Locks]:
    import redis_lock  # type: ignore[import-untyped,unused-ignore]  # noqa: PLC0415 - it may not be installed
    from redis import Redis  # noqa: PLC0415 - as with every contender

    client = Redis(max_connections=CONNECTIONS, **address.client_arguments)
    waiting, leaving = ThreadPoolExecutor(_WAITING), ThreadPoolExecutor(_LEAVING)
    loop = asyncio.get_running_loop()

    @asynccontextmanager
    async def held(name: str) -> AsyncGenerator[None]:
        lock = redis_lock.Lock(client, name, expire=ttl)
        await loop.run_in_executor(waiting, lock.acquire)
        try:
            yield
        finally:
            await loop.run_in_executor(leaving, lock.release)

    def lock(name: str) -> AbstractAsyncContextManager[Any]:
        return held(name)

    try:
        yield Uncounted(lock, again=False)
    finally:
        for pool in (waiting, leaving):
            pool.shutdown(wait=False, cancel_futures=True)
        client.close()


CONTENDER = Contender("python-redis-lock", _connect, key="lock:{}".format)
