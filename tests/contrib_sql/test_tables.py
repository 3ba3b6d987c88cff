"""The table of fences: made by one call, by Alembic, elsewhere; and on MySQL, as it is compiled."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
import sqlalchemy as sa
from sqlalchemy.dialects import mysql
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.schema import CreateTable

from aiolocks import StaleFenceError
from aiolocks.contrib import asyncpg as with_asyncpg
from aiolocks.contrib._fences import Passage
from aiolocks.contrib._passing import statements_for_mysql
from aiolocks.contrib.sqlalchemy import create_fence_table, fence, fence_table
from tests.contrib_sql.conftest import Late
from tests.contrib_sql.databases import FENCE, METADATA, Database
from tests.contrib_sql.test_asyncpg import connected


@pytest.fixture
def without_tables(database: Database) -> Iterator[None]:
    engine = sa.create_engine(database.blocking_url)
    METADATA.drop_all(engine)
    yield
    engine.dispose()


async def test_it_is_made_by_one_call_in_many_processes_at_once(
    without_tables: None, engine: AsyncEngine, late: Late
) -> None:
    async def create() -> None:
        async with engine.begin() as connection:
            await create_fence_table(connection)

    _, lease = await late("orders")
    await asyncio.gather(*(create() for _ in range(5)))
    async with engine.begin() as connection:
        await fence(connection, lease)
        assert (await connection.execute(sa.select(FENCE))).all() == [("orders", lease.fencing_token)]


@pytest.mark.parametrize("schema", [None, "odd schema"])
async def test_it_can_have_another_name(pg_engine: AsyncEngine, late: Late, schema: str | None) -> None:
    _, lease = await late("orders")
    table = fence_table(sa.MetaData(), name='Odd "name" :x', schema=schema)
    async with pg_engine.connect() as connection:
        if schema is not None:
            await connection.execute(sa.schema.CreateSchema(schema))
        await create_fence_table(connection, table=table)
        await fence(connection, lease, table=table)
        assert (await connection.execute(sa.select(table.c.token))).all() == [(lease.fencing_token,)]
        await connection.rollback()


@pytest.mark.parametrize("schema", [None, "of_all"])
async def test_each_tenant_can_have_its_own(pg_engine: AsyncEngine, late: Late, schema: str | None) -> None:
    """By SQLAlchemy's translation of schemas: the fence passes the table that was made, and no other."""
    early, later = await late("orders")
    table = fence_table(sa.MetaData(), schema=schema)
    async with pg_engine.connect() as connection:
        for tenant in ("tenant a", "tenant b"):
            await connection.execute(sa.schema.CreateSchema(tenant))
            await connection.execution_options(schema_translate_map={schema: tenant})
            await create_fence_table(connection, table=table)
        await fence(connection, early, table=table)
        assert (await connection.execute(sa.select(table.c.token))).all() == [(early.fencing_token,)]
        await connection.execution_options(schema_translate_map={schema: "tenant a"})
        await fence(connection, later, table=table)
        with pytest.raises(StaleFenceError):
            async with connection.begin_nested():
                await fence(connection, early, table=table)
        assert await connection.scalar(sa.text("SELECT count(*) FROM public.aiolocks_fence")) == 0
        await connection.rollback()


async def test_a_table_of_sqlite_can_have_another_name(tmp_path: object, late: Late) -> None:
    _, lease = await late("orders")
    table = fence_table(sa.MetaData(), name='Odd "name" :x')
    engine = sa.create_engine("sqlite://")
    with engine.begin() as connection:
        create_fence_table(connection, table=table)
        fence(connection, lease, table=table)
        assert connection.execute(sa.select(table.c.token)).all() == [(lease.fencing_token,)]
    engine.dispose()


async def test_both_drivers_make_and_use_the_same_table(
    postgresql: Database, pg_engine: AsyncEngine, late: Late
) -> None:
    from alembic.autogenerate import compare_metadata
    from alembic.migration import MigrationContext

    early, later = await late("orders")
    async with pg_engine.begin() as connection:
        await connection.run_sync(METADATA.drop_all)
    async with connected(postgresql) as connection:
        await with_asyncpg.create_fence_table(connection)
        async with connection.transaction():
            await with_asyncpg.fence(connection, early)
    async with pg_engine.begin() as connection:
        await create_fence_table(connection)
        await fence(connection, later)
        difference = await connection.run_sync(
            lambda sync: compare_metadata(MigrationContext.configure(sync), FENCE.metadata)
        )
        # Tables of other tests may be there, too.
        changes = [change for change in difference if not str(change[0]).startswith("remove_")]
        tables = [change for change in changes if change[0] == "add_table"]
        assert {change[1].name for change in tables} == {"note", "account"} == {c[1].name for c in changes}


async def test_alembic_writes_a_migration_for_it(without_tables: None, engine: AsyncEngine) -> None:
    from alembic.autogenerate import produce_migrations, render_python_code
    from alembic.migration import MigrationContext

    metadata = sa.MetaData()
    fence_table(metadata)

    def migration(connection: sa.Connection) -> str:
        context = MigrationContext.configure(connection)
        found = produce_migrations(context, metadata)
        assert found.upgrade_ops is not None
        return str(render_python_code(found.upgrade_ops))

    async with engine.connect() as connection:
        code = await connection.run_sync(migration)
    assert "op.create_table('aiolocks_fence'," in code
    assert "sa.PrimaryKeyConstraint('name')" in code


async def test_mysql(late: Late) -> None:
    dialect = mysql.dialect()  # type: ignore[no-untyped-call]
    made = " ".join(str(CreateTable(FENCE).compile(dialect=dialect)).split())
    assert made == (
        "CREATE TABLE aiolocks_fence ( name VARCHAR(700) COLLATE utf8mb4_bin NOT NULL, "
        "token BIGINT NOT NULL, PRIMARY KEY (name) )"
    )
    leases = [(await late(name))[1] for name in "ba"]
    passage = Passage.of(leases, None)
    assert passage.names == ("a", "b")
    write, read = statements_for_mysql(FENCE, passage)
    compiled = write.compile(dialect=dialect)
    assert " ".join(str(compiled).split()) == (
        "INSERT INTO aiolocks_fence (name, token) VALUES (%s, %s), (%s, %s) "
        "ON DUPLICATE KEY UPDATE token = greatest(aiolocks_fence.token, VALUES(token))"
    )
    assert list(compiled.params.values()) == ["a", passage.tokens[0], "b", passage.tokens[1]]
    assert " ".join(str(read.compile(dialect=dialect)).split()).endswith(
        "WHERE aiolocks_fence.name IN (__[POSTCOMPILE_name_1]) FOR UPDATE"
    )
