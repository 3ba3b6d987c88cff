#!/usr/bin/env bash
# Starlette under five servers: a WebSocket handler that holds a lock and sends events, when its client has left.
#
# Guess: the next `send`, or the one after it, raises WebSocketDisconnect, so that the handler ends and its lock is free.
# So it is: with uvicorn and gunicorn, yes. With granian and hypercorn each `send` goes well, without an end, also after a
#   proper close: a handler that only sends never ends, and a lock that is renewed while its body runs is never free.
#   daphne cancels the handler 10 s after its client has left; until then each `send` goes well.
# Versions: Starlette 1.10.0, uvicorn 0.54.0 with websockets 17.4, gunicorn 27.0.1, granian 2.8.9, hypercorn 0.18.0,
#   daphne 4.2.3.
# Output seen (the client has closed by the rules; 14 s later):
#   uvicorn: WebSocketDisconnect
#   gunicorn: WebSocketDisconnect
#   granian: still sending
#   hypercorn: still sending
#   daphne: CancelledError after some more sends
set -euo pipefail

directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
python3 -m venv "$directory/venv"
"$directory/venv/bin/pip" install -qq --no-compile starlette==1.10.0 uvicorn==0.54.0 websockets==17.4 gunicorn==27.0.1 \
    granian==2.8.9 hypercorn==0.18.0 daphne==4.2.3
cat > "$directory/application.py" <<'APPLICATION'
import asyncio
import os
from pathlib import Path

from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route, WebSocketRoute

LOG = Path(os.environ["LOG"])


async def events(websocket):
    await websocket.accept()
    number, end = 0, ""
    try:
        while True:
            await websocket.send_text("event")
            number += 1
            LOG.write_text(f"{number} sending")
            await asyncio.sleep(0.25)
    except BaseException as error:
        end = type(error).__name__
        raise
    finally:
        LOG.write_text(f"{number} {end}")


async def ready(request):
    return PlainTextResponse("ok")


app = Starlette(routes=[WebSocketRoute("/events", events), Route("/", ready)])
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
COMMANDS = {
    "uvicorn": "--port {port} --log-level critical",
    "gunicorn": "-k asgi -b 127.0.0.1:{port} --log-level critical",
    "granian": "--interface asgi --port {port}",
    "hypercorn": "-b 127.0.0.1:{port}",
    "daphne": "-v 0 -b 127.0.0.1 -p {port}",
}
SECONDS = 14
UPGRADE = (
    "GET /events HTTP/1.1\r\nHost: test\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)
CLOSE = b"\x88\x82\x00\x00\x00\x00\x03\xe8"  # masked, 1000: a normal end


def until(true):
    end = time.monotonic() + 40
    while not true():
        if time.monotonic() > end:
            raise TimeoutError
        time.sleep(0.05)


def answers(port):
    try:
        with socket.create_connection(("127.0.0.1", port), 5) as connection:
            connection.settimeout(5)
            connection.sendall(b"GET / HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n")
            return b"200" in connection.recv(4096)
    except OSError:
        return False


def look(server):
    log = directory / server
    log.with_suffix(".log").write_text("0 sending")

    def state():
        return (log.with_suffix(".log").read_text() or "0 sending").split()

    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    process = subprocess.Popen(
        [str(programs / server), *COMMANDS[server].format(port=port).split(), "application:app"],
        env={**os.environ, "LOG": str(log.with_suffix(".log"))},
        cwd=directory,
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        until(lambda: answers(port))
        with socket.create_connection(("127.0.0.1", port), 5) as client:
            client.sendall(UPGRADE.encode())
            until(lambda: int(state()[0]) > 2)
            client.sendall(CLOSE)
            time.sleep(0.2)
        left = int(state()[0])
        time.sleep(SECONDS)
        number, end = state()
        if end == "sending":
            return f"{server}: still sending"
        return f"{server}: {end}{' after some more sends' if int(number) - left > 12 else ''}"
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


with ThreadPoolExecutor() as pool:
    seen = list(pool.map(look, COMMANDS))
print("\n".join(seen))
expected = [
    "uvicorn: WebSocketDisconnect",
    "gunicorn: WebSocketDisconnect",
    "granian: still sending",
    "hypercorn: still sending",
    "daphne: CancelledError after some more sends",
]
sys.exit(0 if seen == expected else "this has changed")
PROGRAM
