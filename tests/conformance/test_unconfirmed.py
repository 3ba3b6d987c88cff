"""`confirm=False`: the end of a block takes no turn of the event loop, and leaves nothing behind.

Over a link of 5 ms, so that the release of a block is under way when the next request is made.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from redis.asyncio import Redis

from aiolocks import LeaseState, Session
from tests.conformance.conftest import Kind, stall
from tests.conformance.test_cancel import LINK, Keys, nothing_left
from tests.support.cancel import sweep

pytestmark = pytest.mark.timed("lock", "fair semaphore")

NAME = "{a}"
"""With a hash tag: the names of a `MultiLock` must share a slot."""


@pytest.fixture
async def far(kind: Kind, far_away: Callable[[float], Awaitable[Any]]) -> Redis:
    """A client at the other end of a slow link."""
    if kind.masters > 1:
        pytest.skip("a Redlock always waits")
    client: Redis = await far_away(LINK)
    await client.ping()
    return client


async def test_the_exit_takes_no_turn_of_the_loop(kind: Kind, far: Redis, keys: Keys) -> None:
    lock = kind.make(far, NAME, confirm=False)
    for _ in range(3):  # the next acquire goes right behind the release
        lease = await lock.__aenter__()
        leaving = lock.__aexit__(None, None, None)
        with pytest.raises(StopIteration):
            leaving.send(None)
        assert lease.remaining() == 0
    assert await lease.wait_released()
    assert lease.state is LeaseState.RELEASED
    assert keys() == []
    counts = Session.of(far).statistics()
    assert (counts.losses, counts.releases_unconfirmed, counts.hold_seconds.count) == (0, 0, 3)


async def test_a_single_try_behind_the_exit_has_it(kind: Kind, far: Redis, client: Redis) -> None:
    """The name is free for other sessions as soon as the release has arrived."""
    lock = kind.make(far, NAME, confirm=False)
    for _ in range(3):
        async with lock:
            pass
        async with lock.try_acquire() as lease:
            assert lease is not None
    async with kind.make(client, NAME).acquire(blocking_timeout=1 + stall()):
        pass


@pytest.mark.thin
@pytest.mark.parametrize("late", ["body", "behind"])
async def test_cancelled_at_every_await(kind: Kind, far: Redis, keys: Keys, late: str) -> None:
    """Within the block, at its end, and in the acquire that follows; the block ends in the step of the
    cancellation."""
    lock = kind.make(far, NAME, confirm=False)

    async def use() -> None:
        async with lock as lease:
            if late == "body":
                await lease.extend(20)
        async with lock.acquire():
            pass
        if late == "behind":
            await lease.wait_released()

    shots = await sweep(use, within=1.5 + stall(), after=nothing_left(keys, kind.make(far, NAME)))
    assert {shot.mode for shot in shots} == {"early", "late"}
