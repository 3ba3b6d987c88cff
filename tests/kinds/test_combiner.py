"""The combiner: its own promise, and its place in the tests of all kinds."""

from __future__ import annotations

import asyncio

import pytest
from redis.asyncio import Redis

from aiolocks import Batch, Combiner, Left

FROZEN = {
    "combiners": "2c4138cd4bdb145e7837f003a4aefc20c82a17d7",
    "combiner_hand_out": "bf49b8eb8950130874e88ea99ab2a245bc9fc2d7",
    "combiner_put": "597fa400ae4cd8179e23ffa81a88e3f55c4dae91",
    "combiner_acquire": "4cd15f509384467d44b9114118f3908ffd4fda21",
    "combiner_take": "66bea88a68237a300816e048f3670de0f2d3113c",
    "combiner_answer": "d25569e963913c2376625da3f8cb2241abca7db3",
    "combiner_ack": "29dbe7e7aa2a60938ab581b50c3361f985a84d75",
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
