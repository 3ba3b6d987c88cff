"""A process that takes locks, or keeps schedules, with whatever aiolocks is on its path.

`python worker.py SOCKET` listens there until its standard input ends. A connection to it is one job, in a
session of its own: a line of JSON with a URL and the words of the job, and its report as another line.

work KIND ROUNDS URL…   of the kind "cached", a version without a cache takes a plain lock; the URLs are those
                        of the masters of a Redlock
schedule SECONDS OPTIONS
ratelimit SECONDS
phases ROUNDS KIND
waiter KIND
counts KIND ROUNDS
flights ROUNDS
tickets ROUNDS
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import os
import random
import secrets
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any

from redis.asyncio import Redis

import aiolocks

HIT_WITHIN = 10.0
"""Seconds. While four sessions want one name in turn, none keeps it: a hit comes when some have ended."""
KINDS: dict[str, Any] = {
    "lock": lambda client: aiolocks.Lock(client, "a", ttl=20),
    "cached": lambda client: aiolocks.Lock(client, "a", ttl=20, **_cache()),
    "fairlock": lambda client: aiolocks.FairLock(client, "a", ttl=20),
    "reentrant": lambda client: aiolocks.ReentrantLock(client, "a", ttl=20),
    "multilock": lambda client: aiolocks.MultiLock(client, ["a", "b"], ttl=20),
    "semaphore": lambda client: aiolocks.Semaphore(client, "a", value=1, ttl=20),
    "fair semaphore": lambda client: aiolocks.Semaphore(client, "a", value=1, fair=True, ttl=20),
    "rwlock": lambda client: aiolocks.RWLock(client, "a", ttl=20).writer,
    "rangelock": lambda client: aiolocks.RangeLock(client, "a", ttl=20).writer(0, 1),
}


def _cache() -> dict[str, Any]:
    return {"cache": 0.3} if "cache" in inspect.signature(aiolocks.Lock).parameters else {}


async def work(url: str, kind: str, rounds: int, *urls: str) -> dict[str, Any]:
    """Tells in the end how long the longest wait was, in seconds."""
    longest = 0.0
    async with (
        Redis.from_url(url) as client,
        aiolocks.Session(client) as session,
        contextlib.AsyncExitStack() as stack,
    ):
        masters = [await stack.enter_async_context(Redis.from_url(master)) for master in urls]
        lock = aiolocks.Redlock(masters, "a", ttl=20) if masters else KINDS[kind](session)
        for _ in range(rounds):
            began = time.monotonic()
            async with lock as lease:
                longest = max(longest, time.monotonic() - began)
                inside = await client.incr("inside")
                await client.rpush("tokens", lease.fencing_token)
                await asyncio.sleep(0.001)
                await client.decr("inside")
                if inside != 1:
                    raise AssertionError(f"{inside} are inside")
            # With several masters, often for so long that no task waits when the next one asks.
            await asyncio.sleep(random.random() * 0.1 if masters else 0.002)
        hits = getattr(session.statistics(), "cache_hits", None)
        ends = time.monotonic() + HIT_WITHIN
        while kind == "cached" and hits == 0 and time.monotonic() < ends:
            for _ in range(2):  # one right behind the other, and in no rhythm with the other session
                async with lock:
                    pass
            await asyncio.sleep(random.random() * 0.1)
            hits = session.statistics().cache_hits
    return {"longest": longest, "hits": hits}


async def read_plan_and_write(url: str, rounds: int, kind: str) -> dict[str, Any]:
    """Reads until the writer and the planner have done their rounds. Tells how long they waited at most."""
    entered = dict.fromkeys("ruw", 0)
    longest = dict.fromkeys("ruw", 0.0)
    async with Redis.from_url(url) as client, aiolocks.Session(client) as session:
        if kind == "rwlock":
            lock = aiolocks.RWLock(session, "a", ttl=20)
            locks: tuple[Any, ...] = lock.reader, lock.upgradable, lock.writer
        else:
            ranges = aiolocks.RangeLock(session, "a", ttl=20)
            locks = ranges.reader(0, 6), ranges.upgradable(2, 8), ranges.writer(4, 9)
        reader, upgradable, writer = locks

        async def enter(mode: str, lock: Any, inside: Any) -> None:
            while entered[mode] < rounds or (mode == "r" and min(entered.values()) < rounds):
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
                raise AssertionError(f"{writers} writers and {readers} readers are inside")

        async def plan(lease: Any) -> None:
            planners = await client.incr("planners")
            await asyncio.sleep(0.02)
            async with lease.upgrade() as upgrade:
                await write(upgrade)
            await client.decr("planners")
            if planners != 1:
                raise AssertionError(f"{planners} planners are inside")

        tasks = [enter("r", reader, read) for _ in range(3)]
        await asyncio.gather(*tasks, enter("u", upgradable, plan), enter("w", writer, write))
    return {"longest": longest}


async def wait_to_be_killed(url: str, kind: str, waits: asyncio.StreamWriter) -> None:
    """Waits as a writer behind an upgradable, holds nothing, and says so."""
    async with Redis.from_url(url) as client, aiolocks.Session(client) as session:
        if kind == "rwlock":
            lock: Any = aiolocks.RWLock(session, "a", ttl=20).writer
        else:
            lock = aiolocks.RangeLock(session, "a", ttl=20).writer(3, 7)
        while (lease := await lock.try_acquire()) is not None:
            await lease.release()
        waiting = asyncio.create_task(lock.acquire())
        await asyncio.sleep(0.01)
        waits.write(b"waits\n")
        await waiting
        await asyncio.sleep(3600)


async def count(url: str, kind: str, rounds: int) -> dict[str, Any]:
    """Tells in the end what each of its steps was told, and what it has run."""
    told: list[Any] = []
    run: list[str] = []
    name = secrets.token_hex(8)
    async with Redis.from_url(url) as client, aiolocks.Session(client) as session:
        latch = aiolocks.Latch(session, "a", 4 * rounds)
        turnstile = aiolocks.Turnstile(session, "a", window=60)
        combiner = aiolocks.Combiner(session, "a")
        job = aiolocks.UniqueJob(session, "a")

        async def work(batch: Any) -> None:
            run.extend(batch.items)
            batch.results = batch.items

        for number in range(rounds):
            item = f"{name} {number}"
            if kind == "latch":
                told.append(await latch.count_down())
            elif kind == "turnstile":
                told.append(await turnstile.enter())
            elif kind == "uniquejob":
                enqueueing = job.enqueue("until_executed", on_conflict="replace")
                with contextlib.suppress(TimeoutError):
                    told.append(await asyncio.wait_for(enqueueing, 0.0005 if number % 2 else None))
            else:
                told.append(await combiner.submit(item, work) == item)
        if kind == "latch":
            await latch.wait(blocking_timeout=20)
    return {"told": told, "run": run}


async def share(url: str, rounds: int) -> dict[str, Any]:
    """Tells the value that it got for each key."""
    told: list[str] = []
    async with Redis.from_url(url) as client, aiolocks.Session(client) as session:
        flight = aiolocks.SingleFlight(session, ttl=20, keep=600)
        for number in range(rounds):

            async def work(number: int = number) -> str:
                await client.hincrby("runs", f"key {number}", 1)
                await asyncio.sleep(0.002)
                return secrets.token_hex(8)

            told.append(await flight.do(f"key {number}", work))
    return {"told": told}


async def queue_and_perform(url: str, rounds: int) -> dict[str, Any]:
    """Tells which tickets it has got, and which it has performed, whoever has got them."""
    got: list[str] = []
    performed: list[str] = []
    async with Redis.from_url(url) as client, aiolocks.Session(client) as session:

        async def perform() -> bool:
            told: Any = await client.rpop("tickets")
            if told is None:
                return False
            key, _, ticket = told.decode().partition(" ")
            async with aiolocks.UniqueJob(session, key, ttl=20).try_perform(ticket) as lease:
                if lease is not None:
                    performed.append(ticket)
                    if await client.hincrby("inside", key, 1) != 1:
                        raise AssertionError(f"two perform {key}")
                    await asyncio.sleep(0.001)
                    await client.hincrby("inside", key, -1)
            return True

        for number in range(rounds):
            key = f"key{number}"
            ticket = await aiolocks.UniqueJob(session, key).enqueue("until_executed", on_conflict="skip")
            if ticket is not None:
                got.append(ticket)
                await client.lpush("tickets", f"{key} {ticket}")
            if number % 2:
                await perform()
        while await perform():
            pass
    return {"got": got, "performed": performed}


async def be_admitted(url: str, seconds: float) -> dict[str, Any]:
    """Tells in the end how many requests a rate limit has admitted, and in which time."""
    admitted = 0
    async with Redis.from_url(url) as client, aiolocks.Session(client) as session:
        limit = aiolocks.RateLimit(session, "a", 20, per=1, burst=5)
        await limit.peek()
        since = time.monotonic()

        async def work() -> None:
            nonlocal admitted
            while time.monotonic() < since + seconds:
                try:
                    await limit.acquire(blocking_timeout=seconds)
                except aiolocks.LockTimeoutError:
                    return
                admitted += 1

        await asyncio.gather(*(work() for _ in range(4)))
        return {"admitted": admitted, "since": since, "until": time.monotonic()}


async def keep(url: str, seconds: float, options: dict[str, Any]) -> dict[str, Any]:
    """Tells of each run when it was due, and how many ticks were missed before it.

    It ends soon after a run was due, and so not in the midst of what the next tick begins with.
    """
    runs: list[tuple[float, int]] = []
    ran = asyncio.Event()
    async with Redis.from_url(url) as client, aiolocks.Session(client) as session:
        schedule = aiolocks.Schedule(session, "a", **options)

        @schedule
        async def job(tick: Any) -> None:
            runs.append((round(tick.due.timestamp(), 3), tick.missed))
            ran.set()

        async with schedule:
            await asyncio.sleep(seconds)
            while not runs or time.time() > runs[-1][0] + options["every"] / 2:
                ran.clear()
                await ran.wait()
    return {"runs": runs}


async def do(job: str, url: str, words: list[Any], report: asyncio.StreamWriter) -> dict[str, Any]:
    if job == "phases":
        return await read_plan_and_write(url, *words)
    if job == "counts":
        return await count(url, *words)
    if job == "flights":
        return await share(url, *words)
    if job == "tickets":
        return await queue_and_perform(url, *words)
    if job == "waiter":
        (kind,) = words
        await wait_to_be_killed(url, kind, report)
    if job == "ratelimit":
        return await be_admitted(url, *words)
    if job == "schedule":
        return await keep(url, *words)
    return await work(url, *words)


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    url, job, *words = json.loads(await reader.readline())
    report: dict[str, Any] = {"version": aiolocks.__file__}
    try:
        report |= await do(job, url, words, writer)
    except Exception:
        report["failed"] = traceback.format_exc()
    writer.write(json.dumps(report).encode() + b"\n")
    await writer.drain()
    writer.close()


def end_with_stdin() -> None:
    os.read(0, 1)
    os._exit(0)


async def main() -> None:
    threading.Thread(target=end_with_stdin, daemon=True).start()
    made, place = Path(f"{sys.argv[1]}.made"), Path(sys.argv[1])
    server = await asyncio.start_unix_server(serve, made, limit=2**20)
    await asyncio.to_thread(made.rename, place)  # the file is there before anything listens
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
