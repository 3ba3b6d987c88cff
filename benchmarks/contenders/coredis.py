"""`coredis.patterns.lock.Lock`, polling every 10 ms.

As it comes it polls every 100 ms, as redis-py does: its queue of 200 then takes 20 s.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from ..settings import Address
from .base import Contender, Locks, Uncounted

_POLL = 0.01


@asynccontextmanager
async def _connect(address: Address, ttl: int) -> AsyncGenerator[Locks]:
    from coredis import ConnectionPool, Redis  # noqa: PLC0415 - it may not be installed
    from coredis.connection import TCPLocation, UnixDomainSocketLocation  # noqa: PLC0415 - as above
    from coredis.patterns.lock import Lock  # noqa: PLC0415 - as above

    # Its pool is its own: it shares a few connections and waits for a free one, so that it never raises.
    pool: Any
    if address.port is None:
        pool = ConnectionPool(location=UnixDomainSocketLocation(address.path))
    else:
        pool = ConnectionPool(location=TCPLocation("127.0.0.1", address.port))
    client: Any
    async with Redis(connection_pool=pool) as client:
        yield Uncounted(lambda name: Lock(client, name, timeout=float(ttl), sleep=_POLL))


CONTENDER = Contender("coredis, 10 ms", _connect, poll=_POLL)
