"""The combiner: its own promise, and its place in the tests of all kinds."""

from __future__ import annotations

import asyncio

import pytest
from redis.asyncio import Redis

from aiolocks import Batch, Combiner, Left

FROZEN: dict[str, str] = {}
PUBLIC = {
    Combiner: "name ttl submit leave drain __call__",
    Batch: "name number attempt fencing_token items lease results",
    Left: "number pressure",
}


@pytest.mark.leaves_keys("aiolocks:combiner*")
async def test_what_comes_while_a_batch_runs_is_the_next_batch(redis: Redis) -> None:
    batches: list[list[int]] = []
    begun = asyncio.Event()

    @Combiner(redis, "a")
    async def run(batch: Batch) -> int:
        batches.append(batch.items)
        begun.set()
        await asyncio.sleep(0.05)
        return batch.number

    async def later(item: int) -> int:
        await begun.wait()
        return await run(item)

    assert await asyncio.gather(run(1), later(2), later(3)) == [1, 2, 2]
    assert batches == [[1], [2, 3]]
