"""New locks for minutes: the memory of the process does not grow: `pytest -m soak`.

``AIOLOCKS_SOAK_SECONDS`` says for how long (300 by default). The log has the megabytes of each minute.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import time
from itertools import count, islice

import pytest
from redis.asyncio import Redis

from aiolocks import Lock, Session
from tests.conftest import OwnServer
from tests.support.memory import megabytes

SECONDS = float(os.environ.get("AIOLOCKS_SOAK_SECONDS", "300"))
TASKS = 200
NAMES = 20_000
"""All of them have been met once long before the first quarter ends."""
log = logging.getLogger(__name__)


@pytest.mark.soak
@pytest.mark.timeout(SECONDS + 120)
async def test_soak_of_new_locks(own_server: OwnServer) -> None:
    server = await own_server(port=0)
    end = time.monotonic() + SECONDS
    numbers = count()
    sizes: list[float] = []

    async def cycles(session: Session) -> None:
        for number in numbers:
            if time.monotonic() > end:
                return
            async with Lock(session, f"many-new:{number % NAMES}"):
                pass

    async def report() -> None:
        while time.monotonic() < end:
            await asyncio.sleep(SECONDS / 60)
            gc.collect()
            sizes.append(megabytes())

    async with Redis.from_url(server.url) as redis, Session(redis) as session:
        async with asyncio.TaskGroup() as group:
            group.create_task(report())
            for _ in range(TASKS):
                group.create_task(cycles(session))
        held = session.statistics().leases_held
    cycles_done = next(islice(numbers, 1))

    log.info("%d cycles, megabytes: %s", cycles_done, [round(size, 1) for size in sizes])
    assert held == 0
    assert cycles_done > 100 * SECONDS
    warm_up = len(sizes) // 4
    assert sizes[-1] < sizes[warm_up] + 2, sizes
