#!/usr/bin/env bash
# gunicorn's ASGI worker, daphne: what becomes of a handler, and of what goes on behind its answer, when the client has
#   closed its connection.
#
# Guess: as with uvicorn, the application is told (`http.disconnect`), and runs to its end. A background task of an
#   answer that was read to its end has no client any more, so that nothing can happen to it.
# So it is: gunicorn cancels the application 3 s after the client has closed, also where the answer is complete and
#   a background task of Starlette is at work. A reverse proxy that keeps no connections to gunicorn closes behind
#   each answer, so that each such task has 3 s. (`asgi_disconnect_grace_period` sets it.) daphne does both
#   after 10 s, and cancels what is at work at SIGTERM at once.
# Versions: gunicorn 27.0.1, daphne 4.2.3, uvicorn 0.54.0, Starlette 1.10.0; CPython 3.11.
# Output seen (of work that takes 12 s, from when the client has closed, or from SIGTERM):
#   gunicorn, handler: cancelled after 3 s
#   gunicorn, background task: cancelled after 3 s
#   daphne, handler: cancelled after 10 s
#   daphne, background task: cancelled after 10 s
#   uvicorn, handler: done after 12 s
#   uvicorn, background task: done after 12 s
#   daphne, handler at SIGTERM: cancelled after 0 s
set -euo pipefail

directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
python3 -m venv "$directory/venv"
"$directory/venv/bin/pip" install -qq --no-compile gunicorn==27.0.1 daphne==4.2.3 uvicorn==0.54.0 starlette==1.10.0
cat > "$directory/application.py" <<'APPLICATION'
import asyncio
import os
import time
from pathlib import Path

from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.responses import PlainTextResponse
from starlette.routing import Route

LOG = Path(os.environ["LOG"])


async def work():
    LOG.write_text("begun")
    end = "done"
    try:
        await asyncio.sleep(12)
    except asyncio.CancelledError:
        end = "cancelled"
        raise
    finally:
        LOG.write_text(f"{end} {time.time()}")


async def handler(request):
    await work()
    return PlainTextResponse("ok")


async def background(request):
    return PlainTextResponse("ok", background=BackgroundTask(work))


async def ready(request):
    return PlainTextResponse("ok")


app = Starlette(routes=[Route("/handler", handler), Route("/background", background), Route("/", ready)])
APPLICATION
"$directory/venv/bin/python" - "$directory" <<'PROGRAM'
import os
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

directory = Path(sys.argv[1])
programs = directory / "venv/bin"


def command(server, port):
    if server == "gunicorn":
        words = ["-k", "asgi", "-b", f"127.0.0.1:{port}", "--log-level", "critical"]
    elif server == "daphne":
        words = ["-v", "0", "-b", "127.0.0.1", "-p", str(port)]
    else:
        words = ["--port", str(port), "--log-level", "critical"]
    return [str(programs / server), *words, "application:app"]


def asked(port, path):
    connection = socket.create_connection(("127.0.0.1", port), 5)
    connection.settimeout(20)
    connection.sendall(f"GET {path} HTTP/1.1\r\nHost: test\r\n\r\n".encode())
    return connection


def until(true):
    end = time.monotonic() + 40
    while not true():
        if time.monotonic() > end:
            raise TimeoutError
        time.sleep(0.02)


def answers(port):
    try:
        with asked(port, "/") as connection:
            return b"ok" in connection.recv(4096)
    except OSError:
        return False


def look(server, path, at_sigterm=False):
    log = directory / f"{server}{path.strip('/')}{at_sigterm}"
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    process = subprocess.Popen(
        command(server, port),
        env={**os.environ, "LOG": str(log)},
        cwd=directory,
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        until(lambda: answers(port))
        with asked(port, path) as connection:
            if path == "/background":
                answer = b""
                while not answer.endswith(b"ok"):
                    answer += connection.recv(4096)
            until(log.exists)
            time.sleep(0.5)
            if at_sigterm:
                process.send_signal(signal.SIGTERM)
                since = time.time()
                until(lambda: b" " in log.read_bytes())
        if not at_sigterm:
            since = time.time()
            until(lambda: b" " in log.read_bytes())
        end, at = log.read_text().split()
        what = {"/handler": "handler", "/background": "background task"}[path] + " at SIGTERM" * at_sigterm
        seconds = float(at) - since
        whole = "12" if end == "done" else min((0, 3, 10), key=lambda known: abs(known - seconds))
        close = end == "done" or abs(seconds - whole) < 1.5
        return f"{server}, {what}: {end} after {whole if close else round(seconds, 1)} s"
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


expected = [
    "gunicorn, handler: cancelled after 3 s",
    "gunicorn, background task: cancelled after 3 s",
    "daphne, handler: cancelled after 10 s",
    "daphne, background task: cancelled after 10 s",
    "uvicorn, handler: done after 12 s",
    "uvicorn, background task: done after 12 s",
    "daphne, handler at SIGTERM: cancelled after 0 s",
]
asking = [(server, path) for server in ("gunicorn", "daphne", "uvicorn") for path in ("/handler", "/background")]
with ThreadPoolExecutor() as pool:
    seen = list(pool.map(lambda words: look(*words), [*asking, ("daphne", "/handler", True)]))
print("\n".join(seen))
sys.exit(0 if seen == expected else "this has changed")
PROGRAM
