"""The combiner: its own promise, and its place in the tests of all kinds."""

from __future__ import annotations

import asyncio
import inspect

import pytest
from redis.asyncio import Redis

from aiolocks import Batch, Combiner, Left

FROZEN = {
    "combiners": "591e55def59fab13c77c4d1fd09dde3275de1327",
    "combiner_hand_out": "0d2b6553dcd0f1802461475c50d8234bc3ea1f17",
    "combiner_puts": "03e69ddf265820b39f0b35d440c3ed1d62a7c464",
    "combiner_put": "902ff47e127b2931be4128e226dfe4ea839af5a3",
    "combiner_acquire": "feda08d65f862b7453c44f684150b7a8eff643ca",
    "combiner_take": "66bea88a68237a300816e048f3670de0f2d3113c",
    "combiner_answer": "3b43a7b8b0399d49204e294bccc162d2234767d4",
    "combiner_ack": "831c6934afa41db56ad3b4a1e836ee75c0cb8005",
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
