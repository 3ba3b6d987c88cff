"""A server that is out of memory and evicts nothing: what holds goes on holding, and can let go.

T-S-8 of `tests/FAULTS.md`, for every kind.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
from redis.asyncio import Redis

from aiolocks import (
    BackendError,
    FairLock,
    LeaseState,
    MultiLock,
    RangeLock,
    ReentrantLock,
    RWLock,
    Semaphore,
    Session,
)
from tests.adversity.tools import (
    Several,
    begin,
    renewed,
)
from tests.conftest import Connect, OwnServer
from tests.support.waiting import eventually

TTL = 1.5


@asynccontextmanager
async def nested(lock: ReentrantLock) -> AsyncIterator[list[Any]]:
    async with lock.acquire() as outer, lock.acquire() as inner:
        yield [outer, inner]


@asynccontextmanager
async def upgraded(lock: Any) -> AsyncIterator[list[Any]]:
    async with lock.acquire() as lease, lease.upgrade() as upgrade:
        yield [lease, upgrade]


@asynccontextmanager
async def held(*locks: Any) -> AsyncIterator[list[Any]]:
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(lock.acquire()) for lock in locks]


def fair(session: Session) -> tuple[Any, Any]:
    return held(FairLock(session, "a", ttl=TTL)), lambda there: FairLock(there, "a")


def several(session: Session) -> tuple[Any, Any]:
    return held(MultiLock(session, ["{t}a", "{t}b"], ttl=TTL)), lambda there: MultiLock(
        there, ["{t}b", "{t}c"]
    )


def reentrant(session: Session) -> tuple[Any, Any]:
    return nested(ReentrantLock(session, "a", ttl=TTL)), lambda there: ReentrantLock(
        there, "a", owner="another"
    )


def semaphore(session: Session) -> tuple[Any, Any]:
    lock = Semaphore(session, "a", 3, ttl=TTL)
    return held(lock, Several(lock, 2)), lambda there: Several(Semaphore(there, "a", 3), 3)


def fair_semaphore(session: Session) -> tuple[Any, Any]:
    lock = Semaphore(session, "b", 3, fair=True, ttl=TTL)
    return held(Several(lock, 2)), lambda there: Several(Semaphore(there, "b", 3, fair=True), 2)


def readers(session: Session) -> tuple[Any, Any]:
    lock = RWLock(session, "readers", ttl=TTL)
    return held(lock.reader, lock.upgradable, lock.reader), lambda there: RWLock(there, "readers").writer


def writer(session: Session) -> tuple[Any, Any]:
    return held(RWLock(session, "writer", ttl=TTL).writer), lambda there: RWLock(there, "writer").reader


def upgrade(session: Session) -> tuple[Any, Any]:
    return upgraded(RWLock(session, "a", ttl=TTL).upgradable), lambda there: RWLock(there, "a").reader


def ranges(session: Session) -> tuple[Any, Any]:
    lock = RangeLock(session, "a", ttl=TTL)
    return held(lock.writer(0, 1), lock.reader(1, 2)), lambda there: RangeLock(there, "a").writer(0, 2)


KINDS = (fair, several, reentrant, semaphore, fair_semaphore, readers, writer, upgrade, ranges)


@pytest.mark.parametrize("waits", [False, True], ids=["alone", "waited for"])
async def test_t_s_8_renewed_and_released_without_memory(
    own_server: OwnServer, connect: Connect, waits: bool
) -> None:
    """All kinds at the same time, on one server."""
    server = await own_server()
    admin: Redis = connect(server)
    full, filled, emptied = asyncio.Event(), asyncio.Barrier(len(KINDS) + 1), asyncio.Barrier(len(KINDS) + 1)

    async def one(kind: Callable[[Session], tuple[Any, Any]]) -> None:
        async with Session(connect(server)) as session, Session(connect(server)) as elsewhere:
            holding, other = kind(session)
            waiting = None
            async with holding as leases:
                if waits:
                    waiting = begin(other(elsewhere).acquire())
                    await eventually(lambda: elsewhere.statistics().waiters == 1)
                    await asyncio.sleep(0.02)
                await filled.wait()
                await full.wait()
                await renewed(*leases)
                for lease in leases:
                    assert lease.state is LeaseState.HELD, lease
                    assert await lease.owned()
                    await lease.extend(TTL)
                    if hasattr(lease, "shrink"):
                        await lease.shrink(*((0, 0.5) if lease.kind.endswith("writer") else (1.5, 2)))
                    if hasattr(lease, "downgrade") and lease is leases[0]:
                        await lease.downgrade()
            assert [lease.state for lease in leases] == [LeaseState.RELEASED] * len(leases)
            if waiting is not None:
                await asyncio.wait({waiting}, timeout=10)
                assert waiting.done()
                if waiting.exception() is None:
                    await waiting.result().release()
            await emptied.wait()
            await full_no_more.wait()
            async with other(session).acquire(blocking_timeout=10):
                pass

    full_no_more = asyncio.Event()
    async with asyncio.timeout(40), asyncio.TaskGroup() as group:
        for kind in KINDS:
            group.create_task(one(kind), name=kind.__name__)
        await filled.wait()
        await admin.config_set("maxmemory", 1)
        async with Session(connect(server)) as session:
            with pytest.raises(BackendError, match="out of memory"):
                await RangeLock(session, "b").reader(0, 1).acquire()
        full.set()
        await emptied.wait()
        await admin.config_set("maxmemory", 0)
        full_no_more.set()


async def test_t_s_8_permits_that_expired_go_without_memory(own_server: OwnServer, connect: Connect) -> None:
    """They are dropped by whoever renews, and are free again when there is memory."""
    server = await own_server()
    admin: Redis = connect(server)
    async with Session(connect(server)) as session:
        lock = Semaphore(session, "a", 3)
        (await Semaphore(session, "a", 3, ttl=0.1).acquire(2)).detach()
        async with Semaphore(session, "a", 3, ttl=TTL).acquire() as lease:
            await admin.config_set("maxmemory", 1)

            async def two_are_dropped() -> bool:
                return await lock.available() == 2

            await eventually(two_are_dropped)
            assert await lease.owned()
        assert await lock.available() == 3
        await admin.config_set("maxmemory", 0)
        async with lock.acquire(3, blocking_timeout=10):
            pass
