#!/usr/bin/env bash
# Valkey GLIDE: `await GlideClient.create(…)` while the server does not answer.
#
# Guess: it is awaited, so other tasks go on while the connection is made, as with redis-py and coredis.
# So it is: it blocks the thread, and with it the event loop, until the connection is made or `connection_timeout` (2 s) is over.
#   Commands, and connections that are made again later, do not block.
# Why it matters: a client that is made in the midst of the work, one for each request, tenant or retry, stops all other tasks of the process
#   just when a server is away: renewals of leases, heartbeats, answers to health checks.
# Versions: valkey-glide 2.6.0, redis-py 8.1.0.
# Output seen (a server that accepts and never answers; a task that should run each 10 ms):
#   GLIDE: ClosingError after 2.0 s; the task ran 0 times meanwhile
#   GLIDE, connection_timeout 1 s: ClosingError after 1.0 s; the task ran 0 times meanwhile
#   redis-py: TimeoutError after 1.0 s; the task ran 99 times meanwhile
set -euo pipefail

directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
python3 -m venv --without-pip "$directory/venv"
python3 -m pip --python "$directory/venv" install -qq --no-compile valkey-glide==2.6.0 redis==8.1.0
"$directory/venv/bin/python" - <<'PROGRAM'
import asyncio
import socket
import sys
import time

from glide import AdvancedGlideClientConfiguration, GlideClient, GlideClientConfiguration, Logger, LogLevel, NodeAddress
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

Logger.init(LogLevel.OFF)
seen = {}


async def trial(name, connect):
    turns = 0

    async def beat():
        nonlocal turns
        while True:
            await asyncio.sleep(0.01)
            turns += 1

    beating = asyncio.create_task(beat())
    await asyncio.sleep(0.05)
    turns, begun = 0, time.monotonic()
    try:
        await connect()
        outcome = "connected"
    except Exception as error:
        outcome = type(error).__name__
    seen[name] = turns
    print(f"{name}: {outcome} after {time.monotonic() - begun:.1f} s; the task ran {turns} times meanwhile")
    beating.cancel()


async def main():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        address = [NodeAddress("127.0.0.1", port)]
        await trial("GLIDE", lambda: GlideClient.create(GlideClientConfiguration(address)))
        shorter = AdvancedGlideClientConfiguration(connection_timeout=1000)
        await trial(
            "GLIDE, connection_timeout 1 s",
            lambda: GlideClient.create(GlideClientConfiguration(address, advanced_config=shorter)),
        )
        client = Redis(port=port, socket_timeout=1, retry=Retry(NoBackoff(), 0))
        await trial("redis-py", client.ping)
        await client.aclose()


asyncio.run(main())
glide, shorter, other = seen.values()
sys.exit(0 if glide <= 1 and shorter <= 1 and other > 20 else 1)
PROGRAM
