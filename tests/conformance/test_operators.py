"""What an operator sees and does: who holds it and who waits, in all processes, and a release by force."""

from __future__ import annotations

import asyncio

import pytest
from redis.asyncio import Redis

from aiolocks import LockInfo, LockLostError, Session
from tests.conformance.conftest import Join, Kind
from tests.support.waiting import eventually


async def seen(client: Redis) -> list[LockInfo]:
    return [info for info in await Session.of(client).inspect() if info.name == "a"]


@pytest.fixture
def on_one_master(kind: Kind) -> None:
    if kind.masters > 1:
        pytest.skip("its masters are looked at one by one: see test_redlock")


@pytest.mark.usefixtures("on_one_master")
async def test_its_holder_and_a_waiter_are_seen(kind: Kind, client: Redis, join: Join) -> None:
    assert await seen(client) == []
    async with kind.make(client, "a") as lease:
        waiter = asyncio.create_task(kind.make(join(), "a").acquire())

        async def both() -> bool:
            return [info.waiters for info in await seen(client)] == [1]

        await eventually(both)
        (info,) = await seen(client)
        (holder,) = info.holders
        assert holder.fencing_token == lease.fencing_token
        assert holder.task == asyncio.current_task().get_name()  # type: ignore[union-attr]
        assert info.problem == ""
        assert not waiter.done()
    async with await waiter as next_lease:
        assert next_lease.fencing_token > lease.fencing_token


@pytest.mark.usefixtures("on_one_master")
async def test_a_release_by_force_ends_it_for_its_holder_and_frees_it_for_others(
    kind: Kind, client: Redis
) -> None:
    with pytest.raises(LockLostError, match="released by force"):
        async with kind.make(client, "a"):
            (freed,) = await Session.of(client).force_release("a")
            assert len(freed.holders) == 1
            async with kind.make(client, "a", blocking_timeout=5):
                pass
            await asyncio.sleep(5)
    assert await seen(client) == []
