"""The combiner: its own promise, and its place in the tests of all kinds."""

from __future__ import annotations

import asyncio
import inspect

import pytest
from redis.asyncio import Redis

from aiolocks import Batch, Combiner, Left

FROZEN = {
    "combiners": "4f672122802ee17e8b6796de47d2f3e6d665dd89",
    "combiner_hand_out": "0d2b6553dcd0f1802461475c50d8234bc3ea1f17",
    "combiner_put": "8895431e9df064463f33dcd0028ce5d81235383f",
    "combiner_acquire": "246dff39961b45f856f16d719bdaf134c50ea833",
    "combiner_take": "66bea88a68237a300816e048f3670de0f2d3113c",
    "combiner_answer": "c0f3d495ee79c8db6825a25f23ac3fcd0ab2cfb8",
    "combiner_ack": "b9add2b3b149f531e759549ed85f7c434293d68f",
}
PUBLIC = {
    Combiner: "name of ttl submit leave drain __call__",
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


def test_a_decorated_function_takes_an_item_and_fields_and_says_so() -> None:
    @Combiner(Redis(), "pages:{site}")
    async def pages(batch: Batch) -> int:
        return len(batch.items)

    assert str(inspect.signature(pages)) == "(item, /, **fields)"
    with pytest.raises(TypeError, match="takes 1 positional argument but 2 were given"):
        pages(3, 3)  # type: ignore[call-arg]
