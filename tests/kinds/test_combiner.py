"""The combiner: its own promise, and its place in the tests of all kinds."""

from __future__ import annotations

import asyncio

import pytest
from redis.asyncio import Redis

from aiolocks import Batch, Combiner, Left

FROZEN = {
    "combiners": "2bd6b8df82ea6265db948b2b605cf02ccae979a1",
    "combiner_hand_out": "0d2b6553dcd0f1802461475c50d8234bc3ea1f17",
    "combiner_put": "597fa400ae4cd8179e23ffa81a88e3f55c4dae91",
    "combiner_acquire": "252fc13c96987d6e014dc2749b29fc9d7f0b3975",
    "combiner_take": "66bea88a68237a300816e048f3670de0f2d3113c",
    "combiner_answer": "c096ac0af66501538fdb4fc87396ad374cf155e8",
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
