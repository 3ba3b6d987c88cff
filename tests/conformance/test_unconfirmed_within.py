"""`confirm=False` where a lease lies within another one: the end of the inner block waits, that of the outer
one does not.

Over a link of 5 ms, so that every answer takes a turn of the event loop.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import pytest
from redis.asyncio import Redis

from aiolocks import LeaseState, RangeLock, ReentrantLock, RWLock, Session
from tests.conformance.test_cancel import LINK
from tests.conftest import Connect, Surroundings
from tests.support.cancel import CancelAt, Shot, sweep
from tests.support.proxy import Proxy
from tests.support.servers import Server
from tests.support.waiting import eventually

STALL = 4.0
"""Seconds that a machine may stand still."""
Keys = Callable[[], list[str]]


@dataclass(frozen=True)
class Nesting:
    """One kind of lock.

    Attributes:
        make: Describes it: `make(client, **common)`.
        inner: What its holder enters within its block.
        beside: What another session can have while the outer block alone is there; None: nothing.
    """

    make: Callable[..., Any]
    inner: Callable[[Any, Any], Any]
    beside: Callable[[Any], Any] | None = None


NESTINGS = {
    "rwlock": Nesting(
        lambda client, **common: RWLock(client, "a", **common).upgradable,
        lambda _, lease: lease.upgrade(),
        lambda client: RWLock(client, "a").reader,
    ),
    "rangelock": Nesting(
        lambda client, **common: RangeLock(client, "a", **common).upgradable(0, 9),
        lambda _, lease: lease.upgrade(2, 3),
        lambda client: RangeLock(client, "a").reader(2, 3),
    ),
    "reentrant": Nesting(
        lambda client, **common: ReentrantLock(client, "a", **common), lambda lock, _: lock.acquire()
    ),
}


@pytest.fixture(params=NESTINGS)
def nesting(request: pytest.FixtureRequest) -> Nesting:
    return NESTINGS[request.param]


@pytest.fixture
async def far(connect: Connect, proxy: Callable[[Server], Awaitable[Proxy]], server: Server) -> Redis:
    """A client at the other end of a slow link."""
    link = await proxy(server)
    link.delay = LINK
    return connect(link)


@pytest.fixture
def left(surroundings: Surroundings, server: Server) -> Keys:
    """The keys that are there, but those of fencing tokens."""
    return surroundings.inspectors[server.url].keys


async def turns_of_the_end(block: Any) -> int:
    """Leaves a block; how often that waits."""
    leaving: CancelAt[None] = CancelAt(block.__aexit__(None, None, None), 0)
    await leaving
    return leaving.suspensions


async def test_the_end_of_the_inner_block_waits_and_that_of_the_outer_one_does_not(
    nesting: Nesting, far: Redis, redis: Redis, left: Keys
) -> None:
    lock = nesting.make(far, confirm=False)
    for _ in range(3):  # the next acquire goes right behind the release
        lease = await lock.__aenter__()
        inner = nesting.inner(lock, lease)
        within = await inner.__aenter__()
        assert await turns_of_the_end(inner) > 0
        assert within.state is LeaseState.RELEASED
        if nesting.beside is not None:  # at once: a single try
            async with nesting.beside(redis).try_acquire() as other:
                assert other is not None
        assert lease.remaining() > 0
        assert await turns_of_the_end(lock) == 0
        assert lease.remaining() == 0
    assert await lease.wait_released()
    assert left() == []
    counts = Session.of(far).statistics()
    assert (counts.losses, counts.releases_unconfirmed) == (0, 0)


async def test_what_was_not_released_within_the_outer_block_stays(
    nesting: Nesting, far: Redis, left: Keys
) -> None:
    """As with `confirm=True`: an upgrade, or a further lease of the owner, is one of its own."""
    lock = nesting.make(far, confirm=False)
    async with lock as lease:
        within = await nesting.inner(lock, lease)
    assert await lease.wait_released()
    assert await within.owned()
    await within.release()
    assert left() == []


@pytest.mark.parametrize("late", ["inner", "outer"])
async def test_cancelled_at_every_await(
    nesting: Nesting, far: Redis, redis: Redis, left: Keys, late: str
) -> None:
    """In the inner block and at its end, or in the acquire that follows the outer one."""
    lock = nesting.make(far, confirm=False)

    async def use() -> None:
        async with lock as lease:
            async with nesting.inner(lock, lease) as within:
                if late == "inner":
                    await within.extend(20)
            if late == "inner":
                await lease.extend(20)
        async with lock.acquire():
            pass
        if late == "outer":
            await lease.wait_released()

    async def nothing_left(_: Shot) -> None:
        await eventually(lambda: not left(), within=2 + STALL)
        async with nesting.make(redis).acquire(blocking_timeout=1 + STALL):
            pass

    shots = await sweep(use, within=1.5 + STALL, after=nothing_left)
    assert {shot.mode for shot in shots} == {"early", "late"}
