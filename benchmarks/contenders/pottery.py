"""`pottery.AIORedlock` on one master, as it comes: it polls after a random time of up to 200 ms."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from ..settings import Address
from .base import CONNECTIONS, Contender, Locks, Uncounted


@asynccontextmanager
async def _connect(address: Address, ttl: int) -> AsyncGenerator[Locks]:
    from pottery import AIORedlock  # noqa: PLC0415 - it may not be installed
    from redis.asyncio import Redis  # noqa: PLC0415 - as with every contender

    arguments = address.client_arguments
    async with Redis(max_connections=CONNECTIONS, **arguments) as client:
        yield Uncounted(lambda name: AIORedlock(key=name, masters={client}, auto_release_time=ttl))


CONTENDER = Contender("pottery", _connect, key="redlock:{}".format)
