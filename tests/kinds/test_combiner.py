"""The combiner: its own promise, and its place in the tests of all kinds."""

from __future__ import annotations

import asyncio

import pytest
from redis.asyncio import Redis

from aiolocks import Batch, Combiner, Left

FROZEN = {
    "combiners": "a1c98ba123843a3b0c0860937b5e7a9479ba85cf",
    "combiner_hand_out": "0d2b6553dcd0f1802461475c50d8234bc3ea1f17",
    "combiner_put": "8c8fa4518a46c41e0167c08ad1cba69ed732a541",
    "combiner_acquire": "246dff39961b45f856f16d719bdaf134c50ea833",
    "combiner_take": "66bea88a68237a300816e048f3670de0f2d3113c",
    "combiner_answer": "7dd65e4fe651cf4d78865593f0637791dbfd71ef",
    "combiner_ack": "74235da072ea78bcea9b10bb7b36502b0da33099",
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
