"""A limit that more callers want than it admits, of whom each gives up in time: it goes on admitting.

The whole client, its scripts and the server in the simulated world, whose time costs nothing.
"""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from collections.abc import Iterator

import pytest
from redis.asyncio import Redis

from aiolocks import LockTimeoutError, RateLimit, Session

from .world.network import NEAR
from .world.process import Process
from .world.randomness import seeded
from .world.world import World

RATE = 10
"""Permits a second, one at once."""
PATIENCE = 2.0
CROWDED, WHOLE = 12, 36
"""Seconds in which callers come at 15 a second, and then at 9, until the end."""


@pytest.fixture(autouse=True)
def no_collection() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


async def call(session: Session, how: str, admitted: Counter[int], began: float) -> None:
    loop = asyncio.get_running_loop()
    limit = RateLimit(session, "api", RATE, per=1, burst=1)
    try:
        if how == "blocking_timeout":
            await limit.acquire(blocking_timeout=PATIENCE)
        else:
            async with asyncio.timeout(PATIENCE):
                await limit.acquire()
    except (TimeoutError, LockTimeoutError):
        return
    admitted[int(loop.time() - began)] += 1


async def live(process: Process, number: int, of: int, how: str, admitted: Counter[int]) -> None:
    loop = asyncio.get_running_loop()
    async with Redis(host="server", port=6379) as client, Session(client, wakeup="auto") as session:
        began = loop.time()
        tasks: list[asyncio.Task[None]] = []
        await asyncio.sleep(number / 15)
        while (now := loop.time() - began) < WHOLE:
            tasks.append(loop.create_task(call(session, how, admitted, began)))
            await asyncio.sleep(of / (15 if now < CROWDED else 9))
        await asyncio.gather(*tasks)


@pytest.mark.thin
@pytest.mark.parametrize("processes", [1, 3])
@pytest.mark.parametrize("how", ["timeout", "blocking_timeout"])
def test_callers_who_give_up_leave_the_limit_to_those_behind(how: str, processes: int) -> None:
    admitted: Counter[int] = Counter()
    with seeded() as source:
        world = World(f"collapse/{how}/{processes}", source)
        world.node("server")
        for number in range(processes):
            process = world.process(f"p{number}", delays=NEAR)
            process.start(live(process, number, processes, how, admitted), process.name)
        world.run(lambda: world.now > WHOLE + 2 * PATIENCE, limit=WHOLE + 60, steps=2_000_000)
        world.dispose()
    each = [admitted[second] for second in range(WHOLE)]
    # From ten seconds after the crowd on, what comes is what is admitted: nine a second.
    calm = each[CROWDED + 10 :]
    assert sum(calm) >= 0.95 * 9 * len(calm), each
    # And the crowd itself does not take the limit away from all: each second has callers in time.
    assert sum(each[1:CROWDED]) >= 0.9 * RATE * (CROWDED - 1), each
    assert max(each) <= RATE + 1, each
