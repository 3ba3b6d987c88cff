#!/usr/bin/env bash
# cashews and others: several callers wait for one run of a cached function, and the first one leaves.
#
# Guess: the caller that leaves is cancelled; the others get the value, of the same run or of another one.
# So it is: with cashews, which lets one call run for all by default (`protected`), the cancel of the first caller cancels all
#   that wait with it: each gets a CancelledError, though no one has cancelled it. With `protected=False`, with async-lru and with
#   cachetools-async the second caller gets its value.
# Why it matters: one client that hangs up ends the requests of all others that wait for the same key. A CancelledError out of a
#   task that was not cancelled is taken for the end of that task, and not logged.
# Versions: cashews 7.6.0, async-lru 2.4.0, cachetools-async 0.0.5.
# Output seen:
#   cashews: the first: CancelledError, the second, which nobody has cancelled: CancelledError; runs: 1
#   cashews, protected=False: the first: CancelledError, the second, which nobody has cancelled: value; runs: 2
#   async-lru: the first: CancelledError, the second, which nobody has cancelled: value; runs: 1
#   cachetools-async: the first: CancelledError, the second, which nobody has cancelled: value; runs: 1
set -euo pipefail

directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
python3 -m venv --without-pip "$directory/venv"
python3 -m pip --python "$directory/venv" install -qq --no-compile cashews==7.6.0 async-lru==2.4.0 cachetools-async==0.0.5
"$directory/venv/bin/python" - <<'PROGRAM'
import asyncio
import sys

from async_lru import alru_cache
from cachetools import TTLCache
from cachetools_async import cached
from cashews import Cache

seen = []


async def trial(name, decorator):
    runs = 0

    @decorator
    async def compute(key):
        nonlocal runs
        runs += 1
        await asyncio.sleep(0.5)
        return "value"

    first = asyncio.create_task(compute(1))
    await asyncio.sleep(0.1)
    second = asyncio.create_task(compute(1))
    await asyncio.sleep(0.1)
    first.cancel()
    found = [
        outcome if isinstance(outcome, str) else type(outcome).__name__
        for outcome in await asyncio.gather(first, second, return_exceptions=True)
    ]
    seen.append((*found, runs))
    print(f"{name}: the first: {found[0]}, the second, which nobody has cancelled: {found[1]}; runs: {runs}")


async def main():
    cache = Cache()
    cache.setup("mem://")
    await trial("cashews", cache(ttl="1m"))
    await trial("cashews, protected=False", cache(ttl="1m", protected=False, key="other:{key}"))
    await trial("async-lru", alru_cache)
    await trial("cachetools-async", cached(TTLCache(10, 60)))


asyncio.run(main())
left = "CancelledError"
sys.exit(0 if seen == [(left, left, 1), (left, "value", 2), (left, "value", 1), (left, "value", 1)] else 1)
PROGRAM
