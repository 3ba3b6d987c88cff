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
    "combiner_take": "b79aeea7a923333d8341c4b8a420081b463334dc",
    "combiner_answer": "cdb1484b7e942ccec1938807ff2f4470e69cc662",
    "combiner_ack": "bbd2f50bcb2a67a42c7363ecf1592125e4ec62ab",
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
