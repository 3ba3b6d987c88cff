"""The combiner: its own promise, and its place in the tests of all kinds."""

from __future__ import annotations

import asyncio

import pytest
from redis.asyncio import Redis

from aiolocks import Batch, Combiner, Left

FROZEN = {
    "combiners": "57bbd80f5f71f9a191b4f7ad060ca18a6ed8ebd9",
    "combiner_hand_out": "0d2b6553dcd0f1802461475c50d8234bc3ea1f17",
    "combiner_put": "8c8fa4518a46c41e0167c08ad1cba69ed732a541",
    "combiner_acquire": "c972f808c220c34e07e44f29158ec10fe892717b",
    "combiner_take": "66bea88a68237a300816e048f3670de0f2d3113c",
    "combiner_answer": "7dd65e4fe651cf4d78865593f0637791dbfd71ef",
    "combiner_ack": "34bd9d0e55241893a32c307c4003e4c2027eb207",
}
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
