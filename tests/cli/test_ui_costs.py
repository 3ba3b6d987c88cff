"""The costs of `aiolocks ui` while ten people look at ten thousand locks: only with `-m soak`."""

from __future__ import annotations

import asyncio
import os
import re
import sys
import time
from pathlib import Path

import httpx
import pytest
from redis.asyncio import Redis

from aiolocks.transport.keys import key
from tests.cli.conftest import Aiolocks
from tests.conftest import Connect, OwnServer

LOCKS, WAITED_FOR, VIEWERS = 10_000, 100, 10
SETTLING, MEASURED = 75, 30
"""Seconds: all names have been read after about 50."""

pytestmark = [
    pytest.mark.soak,
    pytest.mark.timeout(300),
    pytest.mark.skipif(sys.platform != "linux", reason="needs /proc to see what a process has cost"),
]


async def test_ten_viewers_of_ten_thousand_locks(
    aiolocks: Aiolocks, own_server: OwnServer, connect: Connect
) -> None:
    server = await own_server()
    redis = connect(server)
    await held(redis)
    invocation = await aiolocks("ui", "--port", "0", url=server.url)
    await invocation.says("Ctrl-C ends it")
    found = re.search(r"http://\S+/", invocation.out)
    assert found
    (process,) = invocation.processes()
    read = [0] * VIEWERS

    async def look(http: httpx.AsyncClient, viewer: int) -> None:
        while True:
            async with http.stream("GET", f"{found[0]}events") as events:
                async for data in events.aiter_raw():
                    read[viewer] += len(data)

    async with httpx.AsyncClient(timeout=None, limits=httpx.Limits(max_connections=VIEWERS)) as http:
        viewers = [asyncio.create_task(look(http, viewer)) for viewer in range(VIEWERS)]
        await asyncio.sleep(SETTLING)
        began, spent, asked, sent = time.monotonic(), cpu_of(process), await cpu_of_server(redis), sum(read)
        await asyncio.sleep(MEASURED)
        seconds = time.monotonic() - began
        shares = (cpu_of(process) - spent) / seconds, (await cpu_of_server(redis) - asked) / seconds
        a_viewer = (sum(read) - sent) / seconds / VIEWERS
        for one in viewers:
            one.cancel()
        await asyncio.gather(*viewers, return_exceptions=True)
    sys.stderr.write(
        f"process {shares[0]:.1%}, server {shares[1]:.1%}, {a_viewer / 1024:.1f} KiB/s a viewer\n"
    )
    assert all(read)
    assert shares[0] <= 0.10
    assert shares[1] <= 0.05
    await redis.flushall()


async def held(redis: Redis) -> None:
    """All locks as their holders write them; some of them have a waiter."""
    granted, ttl = int((time.time() - 600) * 1e6), 600_000
    async with redis.pipeline(transaction=False) as pipeline:
        for at in range(LOCKS):
            name = f"order:{at:05}"
            described = (
                f'{{"host":"worker-{at % 7}","pid":{4_000 + at},"task":"ship","user":{{"order":{at}}}}}'
            )
            pipeline.set(key("aiolocks", "lock", name), f"{at:032x}:{granted + at}:{described}", px=ttl)
            pipeline.set(key("aiolocks", "lock", name, "fence"), granted + at, px=ttl)
            if at < WAITED_FOR:
                bell = key("aiolocks", "lock", name, "bell.0123")
                queue = key("aiolocks", "lock", name, "queue")
                pipeline.set(bell, "", px=ttl)
                pipeline.zadd(queue, {bell: granted + 5_000_000})
                pipeline.pexpire(queue, ttl)
        await pipeline.execute()


def cpu_of(process: int) -> float:
    """Seconds that it has spent on a core so far."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def cpu_of_server(redis: Redis) -> float:
    told = await redis.info("cpu")
    return float(told["used_cpu_user"]) + float(told["used_cpu_sys"])
