"""The least that a lock can be, for comparison: `SET NX`, a push when it is free, and `DEL`.

It goes over nothing but a protocol, with no token, no queue and no ttl that is renewed: it shows what a
hand-over between two processes takes by itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from ..settings import Address
from ..wire import Wire, open_wire
from .base import Contender, Locks, Uncounted

LEAST = "the least, bare protocol"


class _Bare:
    """One connection, over which one task at a time asks and waits."""

    def __init__(self, wire: Wire, ttl: int) -> None:
        self._wire = wire
        self._ttl = ttl

    @asynccontextmanager
    async def lock(self, name: str) -> AsyncGenerator[None]:
        """Waits for a push whenever it is taken."""
        key, loop = f"least:{name}", asyncio.get_running_loop()
        while await self._wire.request(("SET", key, b"held", "NX", "EX", self._ttl)) is None:
            freed = self._wire.pushed = loop.create_future()
            if await self._wire.request(("GET", key)) is not None:
                await freed
        try:
            yield
        finally:
            await self._wire.request(("DEL", key))


@asynccontextmanager
async def _connect(address: Address, ttl: int) -> AsyncGenerator[Locks]:
    async with open_wire(address) as wire:
        await wire.request(("HELLO", 3))
        await wire.request(("CLIENT", "TRACKING", "ON", "NOLOOP"))
        yield Uncounted(_Bare(wire, ttl).lock, again=False)


CONTENDER = Contender(LEAST, _connect, key="least:{}".format)
