"""A process that takes a lock again and again, or keeps a schedule, with whatever aiolocks is on its path.

python worker.py URL KIND ROUNDS
python worker.py URL schedule SECONDS OPTIONS
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any

from redis.asyncio import Redis

import aiolocks

KINDS: dict[str, Any] = {
    "lock": lambda client: aiolocks.Lock(client, "a", ttl=5),
    "fairlock": lambda client: aiolocks.FairLock(client, "a", ttl=5),
    "reentrant": lambda client: aiolocks.ReentrantLock(client, "a", ttl=5),
    "multilock": lambda client: aiolocks.MultiLock(client, ["a", "b"], ttl=5),
    "semaphore": lambda client: aiolocks.Semaphore(client, "a", value=1, ttl=5),
    "fair semaphore": lambda client: aiolocks.Semaphore(client, "a", value=1, fair=True, ttl=5),
    "rwlock": lambda client: aiolocks.RWLock(client, "a", ttl=5).writer,
    "rangelock": lambda client: aiolocks.RangeLock(client, "a", ttl=5).writer(0, 1),
}


async def work(url: str, kind: str, rounds: int) -> None:
    """Tells in the end how long the longest wait was, in seconds."""
    longest = 0.0
    async with Redis.from_url(url) as client, aiolocks.Session(client) as session:
        lock = KINDS[kind](session)
        for _ in range(rounds):
            began = time.monotonic()
            async with lock as lease:
                longest = max(longest, time.monotonic() - began)
                inside = await client.incr("inside")
                await client.rpush("tokens", lease.fencing_token)
                await asyncio.sleep(0.001)
                await client.decr("inside")
                if inside != 1:
                    raise SystemExit(f"{inside} are inside")
            await asyncio.sleep(0.002)
    sys.stdout.write(json.dumps({"version": aiolocks.__file__, "longest": longest}))


async def keep(url: str, seconds: float, options: dict[str, Any]) -> None:
    """Tells in the end of each run: when it was due, and how many ticks were missed before it."""
    runs: list[tuple[float, int]] = []
    async with Redis.from_url(url) as client, aiolocks.Session(client) as session:
        schedule = aiolocks.Schedule(session, "a", **options)

        @schedule
        async def job(tick: Any) -> None:
            runs.append((round(tick.due.timestamp(), 3), tick.missed))

        async with schedule:
            await asyncio.sleep(seconds)
    sys.stdout.write(json.dumps({"version": aiolocks.__file__, "runs": runs}))


if __name__ == "__main__":
    if sys.argv[2] == "schedule":
        asyncio.run(keep(sys.argv[1], float(sys.argv[3]), json.loads(sys.argv[4])))
    else:
        asyncio.run(work(sys.argv[1], sys.argv[2], int(sys.argv[3])))
