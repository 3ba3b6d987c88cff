"""A Redlock is handed over while a master has not answered yet: nothing of the old token stays there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from redis.asyncio import Redis

from aiolocks import Redlock
from tests.adversity.tools import ACQUIRE, step
from tests.conftest import Connect, OwnServer
from tests.support.proxy import Proxy, Request
from tests.support.waiting import eventually

KEY = "aiolocks:redlock:{a}"
DELAY = 0.2
"""Seconds that a request takes to the slow master: adopting and releasing elsewhere takes less."""


class Way:
    """Two ways to three masters: by the first the third master is slow, when its test says so."""

    def __init__(self, slow: list[Redis], fast: list[Redis], link: Proxy) -> None:
        self.here = Redlock(slow, "a", ttl=30)
        self.elsewhere = Redlock(fast, "a", ttl=30)
        self.third = fast[2]
        self.link = link

    async def adopt_and_release(self, handle: str) -> None:
        adopted = await self.elsewhere.adopt(handle)
        await adopted.release()

    async def arrived(self) -> None:
        """All that was sent to the third master has come there."""
        await asyncio.sleep(2 * DELAY)
        await eventually(self._is_free, within=2)

    async def _is_free(self) -> bool:
        return not await self.third.exists(KEY)


@pytest.fixture
async def way(own_server: OwnServer, connect: Connect, proxy: Callable[..., Proxy]) -> Way:
    servers = [await own_server() for _ in range(3)]
    link = await proxy(servers[2])  # type: ignore[misc]
    way = Way(
        [connect(server) for server in (*servers[:2], link)], [connect(server) for server in servers], link
    )
    for lock in (way.here, way.elsewhere) * 2:
        async with lock:
            pass
    return way


@pytest.mark.more  # as masters that come back empty
async def test_while_a_master_that_came_back_empty_is_healed(way: Way) -> None:
    lease = await way.here.acquire()
    await way.third.delete(KEY)
    way.link.delay_requests = DELAY
    vote = step("lock_acquire", "redlock_vote")

    def asked(request: Request) -> bool:
        return ACQUIRE(request) or vote(request)

    before = way.link.count(asked)
    await lease.extend()
    await way.link.saw(asked, count=before + 1)  # it is on its way, to put the lease back
    await way.adopt_and_release(lease.detach())
    await way.arrived()


async def test_before_a_slow_master_has_granted_it(way: Way) -> None:
    way.link.delay_requests = DELAY
    lease = await way.here.acquire()
    await way.adopt_and_release(lease.detach())
    await way.arrived()


async def test_after_a_renewal_that_came_behind_the_unanswered_vote(way: Way) -> None:
    way.link.delay_requests = DELAY
    lease = await way.here.acquire()
    await lease.extend()
    await way.adopt_and_release(lease.detach())
    await way.arrived()


@pytest.mark.more  # as a master that has it
async def test_what_a_slow_master_grants_before_the_adoption_is_the_heirs(way: Way) -> None:
    way.link.delay_requests = DELAY
    lease = await way.here.acquire()
    handle = lease.detach()
    await asyncio.sleep(3 * DELAY)
    assert (await way.third.get(KEY)).startswith(lease.token.encode())
    await way.adopt_and_release(handle)
    await way.arrived()


async def test_a_master_that_has_it_keeps_it_for_the_heir(way: Way) -> None:
    lease = await way.here.acquire()
    await eventually(lambda: way.third.exists(KEY))
    await asyncio.sleep(0.05)  # nothing is under way
    handle = lease.detach()
    await asyncio.sleep(0.05)
    assert (await way.third.get(KEY)).startswith(lease.token.encode())
    await way.adopt_and_release(handle)
    await way.arrived()
