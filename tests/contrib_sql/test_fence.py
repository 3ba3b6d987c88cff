"""The effect of `fence` on each database and isolation level."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import (
    AsyncConnection,
    AsyncEngine,
    AsyncSession,
    async_scoped_session,
    async_sessionmaker,
)
from sqlalchemy.orm import scoped_session, sessionmaker

from aiolocks import Lock, LockLostError, MultiLock, Session, StaleFenceError
from aiolocks.contrib.sqlalchemy import create_fence_table, fence
from tests.contrib_sql.conftest import Late
from tests.contrib_sql.databases import FENCE, NOTE, Database, wants_another_try
from tests.support.waiting import eventually


async def write(connection: AsyncConnection | AsyncSession, name: str, writer: str) -> None:
    await connection.execute(sa.insert(NOTE).values(name=name, writer=writer))


async def writers(engine: AsyncEngine) -> list[str]:
    async with engine.connect() as connection:
        return list(await connection.scalars(sa.select(NOTE.c.writer).order_by(NOTE.c.id)))


async def tokens(engine: AsyncEngine) -> dict[str, int]:
    async with engine.connect() as connection:
        return {row.name: row.token for row in await connection.execute(sa.select(FENCE))}


async def test_a_later_lease_keeps_an_earlier_one_out(engine: AsyncEngine, late: Late) -> None:
    early, later = await late("orders")
    async with engine.begin() as connection:
        await fence(connection, early)
        await write(connection, "orders", "early")
    async with engine.begin() as connection:
        await fence(connection, later)
        await write(connection, "orders", "later")
    with pytest.raises(StaleFenceError, match=r"^fence 'orders' refused the transaction: ") as caught:
        async with engine.begin() as connection:
            await fence(connection, early)
            await write(connection, "orders", "too late")
    assert (caught.value.name, caught.value.fencing_token) == ("orders", early.fencing_token)
    assert caught.value.seen == later.fencing_token
    assert await writers(engine) == ["early", "later"]
    assert await tokens(engine) == {"orders": later.fencing_token}


async def test_a_lease_passes_as_often_as_it_likes(engine: AsyncEngine, late: Late) -> None:
    _, lease = await late("orders")
    for _ in range(3):
        async with engine.begin() as connection:
            await fence(connection, lease)
            await fence(connection, lease)
            await write(connection, "orders", "x")
    assert await writers(engine) == ["x"] * 3


async def test_a_fence_that_was_rolled_back_keeps_nobody_out(engine: AsyncEngine, late: Late) -> None:
    early, later = await late("orders")
    async with engine.connect() as connection:
        await fence(connection, later)
        await write(connection, "orders", "later")
        await connection.rollback()
    async with engine.begin() as connection:
        await fence(connection, early)
        await write(connection, "orders", "early")
    assert await writers(engine) == ["early"]


@pytest.mark.parametrize("known", [False, True], ids=["first fence of the name", "known name"])
async def test_a_successor_waits_for_an_open_transaction_and_sees_what_it_wrote(
    engine: AsyncEngine, late: Late, known: bool
) -> None:
    early, later = await late("orders")
    if known:
        async with engine.begin() as connection:
            await fence(connection, early)
    passed = asyncio.Event()

    async def succeed() -> list[str]:
        while True:
            try:
                async with engine.begin() as connection:
                    await fence(connection, later)
                    passed.set()
                    return list(await connection.scalars(sa.select(NOTE.c.writer)))
            except DBAPIError as error:
                if not wants_another_try(error):
                    raise

    async with engine.begin() as connection:
        await fence(connection, early)
        successor = asyncio.create_task(succeed())
        await asyncio.sleep(0.1)
        await write(connection, "orders", "early")
        assert not passed.is_set()
    assert await successor == ["early"]


async def test_who_reads_before_the_fence_does_not_write_what_it_read(
    engine: AsyncEngine, database: Database, late: Late
) -> None:
    # At READ COMMITTED the fence lets it pass: each statement after it has a snapshot of its own. SQLite's
    # driver begins no transaction for a SELECT.
    early, later = await late("orders")
    async with engine.connect() as reading:
        assert (await reading.scalars(sa.select(NOTE.c.writer))).all() == []
        async with engine.begin() as connection:
            await fence(connection, early)
            await write(connection, "orders", "early")
        if database.isolation == "SERIALIZABLE":
            with pytest.raises(DBAPIError) as caught:
                await fence(reading, later)
            assert wants_another_try(caught.value)
            await reading.rollback()
        await fence(reading, later)
        assert (await reading.scalars(sa.select(NOTE.c.writer))).all() == ["early"]
        await reading.rollback()


async def test_a_deferred_transaction_of_sqlite_that_has_read_is_refused(tmp_path: Any, late: Late) -> None:
    early, later = await late("orders")
    database = Database(f"sqlite+aiosqlite:///{tmp_path / 'test.db'}", journal="wal")
    engine = database.engine(timeout=0.1)
    async with engine.begin() as connection:
        await connection.run_sync(NOTE.metadata.create_all)
    async with engine.connect() as reading:
        await reading.exec_driver_sql("BEGIN")
        await reading.execute(sa.select(NOTE))
        async with engine.begin() as connection:
            await fence(connection, early)
        with pytest.raises(DBAPIError, match="database is locked"):
            await fence(reading, later)
        await reading.rollback()
        await fence(reading, later)
        await reading.rollback()
    await engine.dispose()


async def test_it_is_one_statement(engine: AsyncEngine, database: Database, late: Late) -> None:
    statements: list[str] = []

    @sa.event.listens_for(engine.sync_engine, "before_cursor_execute")
    def note(_: Any, __: Any, statement: str, *rest: Any) -> None:
        statements.append(statement.strip())

    _, orders = await late("orders")
    _, prices = await late("prices")
    async with engine.begin() as connection:
        await fence(connection, orders, prices)
    if not database.is_postgresql:
        assert statements.pop(0) == "BEGIN IMMEDIATE"
    (statement,) = statements
    assert "INSERT INTO aiolocks_fence" in statement
    assert await tokens(engine) == {"orders": orders.fencing_token, "prices": prices.fencing_token}


async def test_one_late_lease_of_several_refuses_all(engine: AsyncEngine, late: Late) -> None:
    early, later = await late("b")
    _, other = await late("a")
    async with engine.begin() as connection:
        await fence(connection, later)
    with pytest.raises(StaleFenceError) as caught:
        async with engine.begin() as connection:
            await fence(connection, early, other)
    assert caught.value.name == "b"
    assert await tokens(engine) == {"b": later.fencing_token}


async def test_the_lease_of_a_multilock_passes_each_of_its_names(
    engine: AsyncEngine, session: Session, late: Late
) -> None:
    early, _ = await late("b")
    async with MultiLock(session, ["c", "a"]) as lease:
        async with engine.begin() as connection:
            await fence(connection, lease, names=["c", "a", "b"])
    assert await tokens(engine) == dict.fromkeys("abc", lease.fencing_token)
    with pytest.raises(StaleFenceError):
        async with engine.begin() as connection:
            await fence(connection, early)


async def test_a_lease_that_is_over_is_refused_before_any_statement(engine: AsyncEngine, late: Late) -> None:
    _, lease = await late("orders")
    await lease.release()
    async with engine.connect() as connection:
        with pytest.raises(LockLostError):
            await fence(connection, lease)
        assert not connection.in_transaction()
    assert await tokens(engine) == {}


async def test_a_savepoint_takes_its_fence_along(engine: AsyncEngine, late: Late) -> None:
    early, later = await late("orders")
    async with engine.begin() as connection:
        savepoint = await connection.begin_nested()
        await fence(connection, later)
        await savepoint.rollback()
        await fence(connection, early)
        async with connection.begin_nested():
            await write(connection, "orders", "early")
    assert await writers(engine) == ["early"]
    assert await tokens(engine) == {"orders": early.fencing_token}


async def test_names_are_kept_as_they_are(engine: AsyncEngine, session: Session) -> None:
    for name in ("a'b\"c", "%s :names $1", "Größe ✓", "A", "a", " a"):
        async with Lock(session, name) as lease, engine.begin() as connection:
            await fence(connection, lease)
        assert (await tokens(engine))[name] == lease.fencing_token
    assert len(await tokens(engine)) == 6


async def test_sessions_of_the_orm(engine: AsyncEngine, late: Late) -> None:
    early, later = await late("orders")
    async with AsyncSession(engine) as orm, orm.begin():
        await fence(orm, later)
        await write(orm, "orders", "later")
    with pytest.raises(StaleFenceError):
        async with AsyncSession(engine) as orm, orm.begin():
            await fence(orm, early)
    assert await writers(engine) == ["later"]


async def test_scoped_sessions_of_the_orm(
    engine: AsyncEngine, blocking_engine: sa.Engine, late: Late
) -> None:
    """As Flask-SQLAlchemy's `db.session` is one."""
    early, later = await late("orders")
    scoped = async_scoped_session(async_sessionmaker(engine), scopefunc=asyncio.current_task)
    await fence(scoped, later)
    await write(scoped(), "orders", "later")
    await scoped.commit()
    with pytest.raises(StaleFenceError):
        await fence(scoped, early)
    await scoped.remove()
    of_threads = scoped_session(sessionmaker(blocking_engine))
    fence(of_threads, later)
    of_threads.commit()
    with pytest.raises(StaleFenceError):
        fence(of_threads, early)
    of_threads.remove()
    assert await writers(engine) == ["later"]


@pytest.mark.parametrize("word", ["BEGIN", "BEGIN IMMEDIATE"])
async def test_a_program_that_begins_transactions_of_sqlite_itself(
    tmp_path: Path, late: Late, word: str
) -> None:
    """As SQLAlchemy's documentation says how to have savepoints there."""
    early, later = await late("orders")
    engine = sa.create_engine(f"sqlite:///{tmp_path / 'test.db'}")

    @sa.event.listens_for(engine, "connect")
    def leave_it_to_the_program(connection: Any, _: object) -> None:
        connection.isolation_level = None

    @sa.event.listens_for(engine, "begin")
    def begin(connection: sa.Connection) -> None:
        connection.exec_driver_sql(word)

    with engine.connect() as connection:
        create_fence_table(connection)
        connection.commit()
        fence(connection, later)
        connection.commit()
        with pytest.raises(StaleFenceError):
            fence(connection, early)
    engine.dispose()


async def test_cancelled_while_it_waits(engine: AsyncEngine, late: Late) -> None:
    early, later = await late("orders")

    async def succeed() -> None:
        async with engine.begin() as connection:
            await fence(connection, later)
            await write(connection, "orders", "later")

    async with engine.begin() as connection:
        await fence(connection, early)
        successor = asyncio.create_task(succeed())
        await asyncio.sleep(0.1)
        successor.cancel()
        await asyncio.wait([successor], timeout=1)
        await write(connection, "orders", "early")
    await asyncio.wait([successor])
    assert successor.cancelled()
    assert await writers(engine) == ["early"]

    async def open_to_the_early_one() -> bool:
        async with engine.begin() as connection:
            await fence(connection, early)
        return True

    assert await open_to_the_early_one()
    await eventually(lambda: engine.pool.checkedout() == 0, within=2)  # type: ignore[attr-defined]
