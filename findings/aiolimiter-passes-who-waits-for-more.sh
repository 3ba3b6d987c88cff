#!/usr/bin/env bash
# aiolimiter: a task that waits for much, among tasks that ask for little.
#
# Guess: `await limiter.acquire(10)` waits in the order of asking, for at most the time in which 10 flow off.
# So it is: a waiter keeps nothing back. As long as others ask for 1, each gets what has become free, also those that came later; the waiter
#   for 10 never finds room for 10. With two tasks that go on asking it has waited, for 10 that flow off in 1 s, as long as they asked,
#   and gets in 1 s after they have stopped.
# Why it matters: the figure is the tokens of a request to a model, or the rows of a batch. Large requests starve beside
#   small ones, and nothing in the limit says so.
# Versions: aiolimiter 1.3.0; CPython 3.11.7.
# Output seen:
#   10 a second: the waiter for 10 came first and got in after 9 s; before it passed 80 that asked for 1
set -euo pipefail

directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
python3 -m venv --without-pip "$directory/venv"
python3 -m pip --python "$directory/venv" install -qq --no-compile aiolimiter==1.3.0
"$directory/venv/bin/python" - <<'PROGRAM'
import asyncio
import sys
import time

from aiolimiter import AsyncLimiter


async def main():
    limiter = AsyncLimiter(10, 1)
    await limiter.acquire(10)  # the bucket is full
    order = []
    begun = time.monotonic()

    async def large():
        await limiter.acquire(10)
        order.append("large")

    async def small():
        for _ in range(40):
            await limiter.acquire()
            order.append("small")

    waiter = asyncio.create_task(large())
    await asyncio.sleep(0)  # it asks first
    await asyncio.gather(small(), small())
    await waiter
    return order.index("large"), time.monotonic() - begun


passed, seconds = asyncio.run(main())
print(
    f"10 a second: the waiter for 10 came first and got in after {seconds:.0f} s; before it passed {passed} that asked for 1"
)
sys.exit(0 if passed == 80 else 1)
PROGRAM
