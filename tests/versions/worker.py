"""A process that takes a lock again and again, or keeps a schedule, with whatever aiolocks is on its path.

python worker.py URL KIND ROUNDS    of the kind "cached", a version without a cache takes a plain lock
python worker.py URL schedule SECONDS OPTIONS
python worker.py URL phases SECONDS KIND
python worker.py URL waiter KIND
"""

from __future__ import annotations

import asyncio
import inspect
import json
import sys
import time
from typing import Any

from redis.asyncio import Redis

import aiolocks

KINDS: dict[str, Any] = {
    "lock": lambda client: aiolocks.Lock(client, "a", ttl=5),
    "cached": lambda client: aiolocks.Lock(client, "a", ttl=5, **_cache()),
    "fairlock": lambda client: aiolocks.FairLock(client, "a", ttl=5),
    "reentrant": lambda client: aiolocks.ReentrantLock(client, "a", ttl=5),
    "multilock": lambda client: aiolocks.MultiLock(client, ["a", "b"], ttl=5),
    "semaphore": lambda client: aiolocks.Semaphore(client, "a", value=1, ttl=5),
    "fair semaphore": lambda client: aiolocks.Semaphore(client, "a", value=1, fair=True, ttl=5),
    "rwlock": lambda client: aiolocks.RWLock(client, "a", ttl=5).writer,
    "rangelock": lambda client: aiolocks.RangeLock(client, "a", ttl=5).writer(0, 1),
}


def _cache() -> dict[str, Any]:
    return {"cache": 0.3} if "cache" in inspect.signature(aiolocks.Lock).parameters else {}


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
        hits = getattr(session.statistics(), "cache_hits", None)
    sys.stdout.write(json.dumps({"version": aiolocks.__file__, "longest": longest, "hits": hits}))


async def read_plan_and_write(url: str, seconds: float, kind: str) -> None:
    """Tells in the end how often each mode got in, and how long its longest wait was."""
    ends = time.monotonic() + seconds
    entered = dict.fromkeys("ruw", 0)
    longest = dict.fromkeys("ruw", 0.0)
    async with Redis.from_url(url) as client, aiolocks.Session(client) as session:
        if kind == "rwlock":
            lock = aiolocks.RWLock(session, "a", ttl=5)
            reader, upgradable, writer = lock.reader, lock.upgradable, lock.writer
        else:
            ranges = aiolocks.RangeLock(session, "a", ttl=5)
            reader, upgradable, writer = ranges.reader(0, 6), ranges.upgradable(2, 8), ranges.writer(4, 9)

        async def enter(mode: str, lock: Any, inside: Any) -> None:
            while time.monotonic() < ends:
                began = time.monotonic()
                async with lock as lease:
                    longest[mode] = max(longest[mode], time.monotonic() - began)
                    entered[mode] += 1
                    await inside(lease)
                await asyncio.sleep(0.002)

        async def read(_: Any) -> None:
            await client.incr("readers")
            await asyncio.sleep(0.003)
            await client.decr("readers")

        async def write(_: Any) -> None:
            writers, readers = await client.incr("writers"), int(await client.get("readers") or 0)
            await asyncio.sleep(0.003)
            await client.decr("writers")
            if writers != 1 or readers:
                raise SystemExit(f"{writers} writers and {readers} readers are inside")

        async def plan(lease: Any) -> None:
            planners = await client.incr("planners")
            await asyncio.sleep(0.02)
            async with lease.upgrade() as upgrade:
                await write(upgrade)
            await client.decr("planners")
            if planners != 1:
                raise SystemExit(f"{planners} planners are inside")

        tasks = [enter("r", reader, read) for _ in range(3)]
        await asyncio.gather(*tasks, enter("u", upgradable, plan), enter("w", writer, write))
    report = {"version": aiolocks.__file__, "longest": longest, "entered": entered}
    sys.stdout.write(json.dumps(report))


async def wait_to_be_killed(url: str, kind: str) -> None:
    """Waits as a writer behind an upgradable, holds nothing, and says so."""
    async with Redis.from_url(url) as client, aiolocks.Session(client) as session:
        if kind == "rwlock":
            lock: Any = aiolocks.RWLock(session, "a", ttl=5).writer
        else:
            lock = aiolocks.RangeLock(session, "a", ttl=5).writer(3, 7)
        while (lease := await lock.try_acquire()) is not None:
            await lease.release()
        waiting = asyncio.create_task(lock.acquire())
        await asyncio.sleep(0.01)
        sys.stdout.write("waits\n")
        sys.stdout.flush()
        await waiting
        await asyncio.sleep(3600)


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
    if sys.argv[2] == "phases":
        asyncio.run(read_plan_and_write(sys.argv[1], float(sys.argv[3]), sys.argv[4]))
    elif sys.argv[2] == "waiter":
        asyncio.run(wait_to_be_killed(sys.argv[1], sys.argv[3]))
    elif sys.argv[2] == "schedule":
        asyncio.run(keep(sys.argv[1], float(sys.argv[3]), json.loads(sys.argv[4])))
    else:
        asyncio.run(work(sys.argv[1], sys.argv[2], int(sys.argv[3])))
