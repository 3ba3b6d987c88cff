"""The contenders of the benchmarks.

Looked at and left out: aioredlock (needs aioredis 1, superseded in 2021, and `distutils`, gone in Python
3.12; it gives up after a few tries instead of waiting) and aiocache's `RedLock` (by its own documentation not
for mutual exclusion: who has waited is let in together with everybody else).
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from types import TracebackType
from typing import Self

from ..settings import Address
from . import cashews, coredis, least, ours, pottery, python_redis_lock, redis_py
from .base import TTL, Contender, Locks

__all__ = ["CONTENDERS", "TTL", "Arena", "Contender", "Locks"]

CONTENDERS = {
    contender.name: contender
    for contender in (
        *ours.BY_WAKEUP.values(),
        ours.UNCONFIRMED,
        least.CONTENDER,
        redis_py.AS_IT_COMES,
        redis_py.TUNED,
        pottery.CONTENDER,
        coredis.CONTENDER,
        python_redis_lock.CONTENDER,
        cashews.CONTENDER,
    )
}


class Arena:
    """The contenders on one server. Each is connected when first needed, and stays so: rounds are alike."""

    def __init__(self, address: Address, *, ttl: int = TTL) -> None:
        self.address = address
        self._ttl = ttl
        self._stack = AsyncExitStack()
        self._locks: dict[str, Locks] = {}

    async def locks(self, contender: str) -> Locks:
        """Its locks."""
        if contender not in self._locks:
            connection = CONTENDERS[contender].connect(self.address, self._ttl)
            self._locks[contender] = await self._stack.enter_async_context(connection)
        return self._locks[contender]

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.__aexit__(kind, error, trace)
