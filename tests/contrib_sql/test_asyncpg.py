"""`fence` through asyncpg itself."""

from __future__ import annotations

import ast
import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest
import sqlalchemy as sa
from redis.asyncio import Redis

from aiolocks import ConfigurationError, Session, StaleFenceError
from aiolocks.contrib.asyncpg import create_fence_table, fence
from tests.contrib_sql.conftest import Late
from tests.contrib_sql.databases import Database
from tests.docs.markdown import read

PAGES = Path(__file__).parents[2] / "docs" / "how-to"


@contextlib.asynccontextmanager
async def connected(database: Database) -> AsyncIterator[asyncpg.Connection]:
    url = sa.make_url(database.url)
    connection = await asyncpg.connect(user=url.username, database=url.database, host=url.query["host"])
    try:
        yield connection
    finally:
        await connection.close()


@pytest.fixture
async def connection(postgresql: Database) -> AsyncIterator[asyncpg.Connection]:
    async with connected(postgresql) as connection:
        yield connection


async def tokens(connection: asyncpg.Connection) -> dict[str, int]:
    return {row["name"]: row["token"] for row in await connection.fetch("SELECT * FROM aiolocks_fence")}


@pytest.mark.parametrize("isolation", ["read_committed", "repeatable_read", "serializable"])
async def test_a_later_lease_keeps_an_earlier_one_out(
    connection: asyncpg.Connection, late: Late, isolation: Any
) -> None:
    early, later = await late("orders")
    for lease in (early, later, later):
        async with connection.transaction(isolation=isolation):
            await fence(connection, lease)
            assert await connection.fetchval("SHOW idle_in_transaction_session_timeout") != "0"
    assert await connection.fetchval("SHOW idle_in_transaction_session_timeout") == "0"
    with pytest.raises(StaleFenceError) as caught:
        async with connection.transaction(isolation=isolation):
            await fence(connection, early)
    assert (caught.value.name, caught.value.seen) == ("orders", later.fencing_token)
    assert isinstance(caught.value.__cause__, asyncpg.InvalidParameterValueError)
    assert await tokens(connection) == {"orders": later.fencing_token}


async def test_it_wants_a_transaction(connection: asyncpg.Connection, late: Late) -> None:
    _, lease = await late("orders")
    with pytest.raises(ConfigurationError, match=r"enter connection\.transaction\(\) before"):
        await fence(connection, lease)
    for table in ("", "a.", 7):
        with pytest.raises((TypeError, ValueError), match="table must be a"):
            await fence(connection, lease, table=table)  # type: ignore[arg-type]
    assert await tokens(connection) == {}


async def test_several_leases_and_names(connection: asyncpg.Connection, late: Late) -> None:
    _, b = await late("b")
    _, a = await late("a")
    async with connection.transaction():
        await fence(connection, b, a)
        await fence(connection, a, names=["d", "c"])
    assert await tokens(connection) == {
        "a": a.fencing_token, "b": b.fencing_token, "c": a.fencing_token, "d": a.fencing_token
    }  # fmt: skip


async def test_of_a_pool_with_a_table_in_a_schema(postgresql: Database, late: Late) -> None:
    _, lease = await late("orders")
    url = sa.make_url(postgresql.url)
    async with asyncpg.create_pool(
        user=url.username, database=url.database, host=url.query["host"], min_size=1, max_size=4
    ) as pool:
        await pool.execute('CREATE SCHEMA IF NOT EXISTS "Locks"')

        async def create() -> None:
            async with pool.acquire() as connection:
                await create_fence_table(connection, table="Locks.fence")

        await asyncio.gather(*(create() for _ in range(8)))
        async with pool.acquire() as connection, connection.transaction():
            await fence(connection, lease, table="Locks.fence")
            assert await connection.fetchval('SELECT token FROM "Locks".fence') == lease.fencing_token
        await pool.execute('DROP SCHEMA "Locks" CASCADE')


async def test_the_databases_errors_reach_the_caller(
    postgresql: Database, connection: asyncpg.Connection, late: Late, session: Session
) -> None:
    early, later = await late("orders")
    async with connected(postgresql) as other:
        await connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        await connection.fetch("SELECT * FROM note")
        async with other.transaction():
            await fence(other, early)
        with pytest.raises(asyncpg.SerializationError):
            await fence(connection, later)
        await connection.execute("ROLLBACK")


async def test_the_example_of_the_page(postgresql: Database, redis: Redis) -> None:
    (example,) = [block for block in read(PAGES / "fence-sql.md").blocks if block.title == "ledger.py"]
    ledger: dict[str, Any] = {}
    exec(example.text, ledger)
    url = sa.make_url(postgresql.url)
    async with asyncpg.create_pool(
        user=url.username, database=url.database, host=url.query["host"], min_size=1, max_size=2
    ) as pool:
        await ledger["prepare"](pool)
        await ledger["transfer"](redis, pool, 17, 18, 50)
        assert await pool.fetch("SELECT * FROM entry ORDER BY account") == [(17, -50), (18, 50)]
        await pool.execute("DROP TABLE entry")


async def test_the_statement_of_the_page_on_django(postgresql: Database, late: Late) -> None:
    (example,) = [block for block in read(PAGES / "fence-sql.md").blocks if block.title == "fences.py"]
    assigned = [node for node in ast.parse(example.text).body if isinstance(node, ast.Assign)]
    page: dict[str, str] = {}
    exec(compile(ast.Module(assigned, []), "fences.py", "exec"), page)
    early, later = await late("orders")
    engine = sa.create_engine(postgresql.blocking_url)
    with engine.connect() as connection:
        for lease, passes in ((early, True), (later, True), (later, True), (early, False)):
            values = (lease.name, lease.fencing_token, "9000")
            limit, token = connection.exec_driver_sql(page["PASS_AND_LIMIT"], values).one()
            assert (limit, token) == ("9s", lease.fencing_token if passes else None)
            connection.commit()
    engine.dispose()
