#!/usr/bin/env bash
# FastAPI: what becomes of a handler that is a generator when its answer ends early.
#
# Guess: when the client hangs up, the generator is closed, so that its `finally` runs then; and when it raises,
#   the client sees a broken answer.
# So it is: 1. An `async` generator that is suspended at its `yield`, because the client reads too slowly, is not
#   closed when that client hangs up: the request has ended, its dependencies with `yield` have ended (scope
#   "request", too), and the `finally` of the handler has not run. It runs when the garbage collector finds the
#   generator. 2. With `EventSourceResponse`, a handler that raises looks like one that has ended: 200, all of its
#   events, a whole body. As lines of JSON, the same handler breaks the answer.
# Versions: FastAPI 0.165.0, Starlette 1.10.0, uvicorn 0.54.0, httpx 0.28.1.
# Output seen:
#   hang-up: ended 1 s later: ['dependency']; after gc.collect(): ['dependency', 'handler']
#   raises, lines: RemoteProtocolError
#   raises, events: 200, 'data: "one"\n\n'
set -euo pipefail

directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
python3 -m venv "$directory/venv"
"$directory/venv/bin/pip" install -qq fastapi==0.165.0 starlette==1.10.0 uvicorn==0.54.0 httpx==0.28.1
"$directory/venv/bin/python" - <<'PROGRAM'
import asyncio
import contextlib
import gc

import fastapi
import httpx
import starlette
import uvicorn
from fastapi import Depends, FastAPI
from fastapi.responses import StreamingResponse
from fastapi.sse import EventSourceResponse

print(f"FastAPI {fastapi.__version__}, Starlette {starlette.__version__}, uvicorn {uvicorn.__version__}")
ended: list[str] = []
app = FastAPI()


async def dependency():
    yield
    ended.append("dependency")


@app.get("/long", dependencies=[Depends(dependency)], response_class=StreamingResponse)
async def long():
    try:
        while True:
            yield b"x" * 200_000
    finally:
        ended.append("handler")


async def raises():
    yield "one"
    await asyncio.sleep(0.2)
    raise ZeroDivisionError


app.get("/lines")(raises)
app.get("/events", response_class=EventSourceResponse)(raises)


class Server(uvicorn.Server):
    def capture_signals(self):
        return contextlib.nullcontext()


async def main() -> list[str]:
    server = Server(uvicorn.Config(app, port=0, log_level="critical"))
    serving = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.05)
    port = server.servers[0].sockets[0].getsockname()[1]
    seen = []
    gc.disable()  # it would run at some time

    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /long HTTP/1.1\r\nHost: test\r\n\r\n")
    await reader.readexactly(1)
    await asyncio.sleep(0.5)  # the handler waits at its `yield`: the connection is full
    writer.transport.abort()
    await asyncio.sleep(1)
    first = list(ended)
    gc.collect()
    await asyncio.sleep(0.2)
    seen.append(f"{first} {ended}")
    print(f"hang-up: ended 1 s later: {first}; after gc.collect(): {ended}")

    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
        for path in ("lines", "events"):
            try:
                answer = await client.get(f"/{path}")
                seen.append(f"{answer.status_code}, {answer.text!r}")
            except httpx.TransportError as error:
                seen.append(type(error).__name__)
            print(f"raises, {path}: {seen[-1]}")
    server.should_exit = True
    await serving
    return seen


expected = [
    "['dependency'] ['dependency', 'handler']",
    "RemoteProtocolError",
    "200, 'data: \"one\"\\n\\n'",
]
seen = asyncio.run(main())
if seen != expected:
    raise SystemExit(f"this has changed: {seen}")
PROGRAM
