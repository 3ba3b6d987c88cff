"""A process that is stopped in the midst of its transactions, by SIGSTOP at any time."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest
import sqlalchemy as sa
from redis.asyncio import Redis
from sqlalchemy.exc import DBAPIError

from aiolocks import Lock, LockError, Session
from aiolocks.contrib.sqlalchemy import fence
from tests.contrib_sql.databases import NOTE, STATEMENT_ERRORS, Database, wants_another_try
from tests.support.processes import Workers, tell
from tests.support.servers import Server

TTL = 1.0
SLACK = 3.0
"""Seconds for which a busy machine may stand still."""


async def work(redis_url: str, prefix: str, database: dict[str, str]) -> None:
    """Transactions of one holder, until one fails."""
    engine = Database(**database).engine(timeout=TTL)
    async with Redis.from_url(redis_url) as redis, Session(redis, prefix=prefix) as session:
        lease = await Lock(session, "orders", ttl=TTL, on_lost="ignore").acquire()
        tell("holds")
        try:
            while True:
                async with engine.begin() as connection:
                    await fence(connection, lease)
                    for _ in range(3):
                        await connection.execute(sa.insert(NOTE).values(name="orders", writer="stopped"))
        except (LockError, *STATEMENT_ERRORS) as error:
            tell("ended", error=str(error))
    await engine.dispose()


@pytest.mark.long
@pytest.mark.parametrize(
    "database",
    [
        "postgresql-read-committed",
        "sqlite-wal",
        pytest.param("postgresql-serializable", marks=pytest.mark.soak),
        pytest.param("sqlite-delete", marks=pytest.mark.soak),
    ],
    indirect=True,
)
async def test_nothing_of_a_stopped_process_commits_once_the_fence_has_returned(
    database: Database, server: Server, session: Session, prefix: str, workers: Workers, tmp_path: Path
) -> None:
    given = {"url": database.url, "isolation": database.isolation, "journal": database.journal}
    holder = await workers.start(work, redis_url=server.url, prefix=prefix, database=given)
    await holder.told("holds")
    await asyncio.sleep(random.uniform(0.05, 0.3))
    holder.stop()
    engine, now = database.engine(timeout=TTL), asyncio.get_running_loop().time
    if (
        not database.is_postgresql
    ):  # nobody ends what has the file: it goes on some time after the lease's end
        asyncio.get_running_loop().call_later(1.5 * TTL, holder.cont)
    count = sa.select(sa.func.count()).select_from(NOTE).where(NOTE.c.writer == "stopped")
    async with Lock(session, "orders", ttl=20) as lease:
        while True:
            begun = now()
            try:
                async with engine.begin() as connection:
                    try:
                        await fence(connection, lease)
                    finally:
                        assert now() - begun <= TTL + SLACK
                    seen = await connection.scalar(count)
                    holder.cont()
                    await asyncio.sleep(0.3)
                    await connection.execute(sa.insert(NOTE).values(name="orders", writer="successor"))
                break
            except DBAPIError as error:
                if not wants_another_try(error):
                    raise
        await holder.told("ended")
    async with engine.connect() as connection:
        assert await connection.scalar(count) == seen
    assert seen is not None
    assert seen % 3 == 0
    await holder.finish()
    await engine.dispose()
