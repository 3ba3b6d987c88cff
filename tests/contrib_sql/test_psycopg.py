"""`fence` through psycopg 3, and with the leases of threads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from psycopg import rows
from sqlalchemy.orm import Session as OrmSession

import aiolocks.sync
from aiolocks import ConfigurationError, LockLostError, StaleFenceError
from aiolocks.contrib import psycopg as fences
from aiolocks.contrib import sqlalchemy as of_sqlalchemy
from aiolocks.testing import EmbeddedServer
from tests.contrib_sql.conftest import Late
from tests.contrib_sql.databases import Database
from tests.docs.markdown import read

PAGES = Path(__file__).parents[2] / "docs" / "how-to"


@pytest.fixture
def dsn(postgresql: Database) -> str:
    url = sa.make_url(postgresql.url)
    return f"host={url.query['host']} user={url.username} dbname={url.database}"


@pytest.fixture
def connection(dsn: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(dsn) as connection:
        yield connection
        connection.rollback()


@pytest.fixture(scope="module")
def served() -> Iterator[str]:
    with EmbeddedServer() as server:
        yield server.url


@pytest.fixture
def locks(served: str) -> Iterator[aiolocks.sync.Session]:
    with aiolocks.sync.Session.from_url(served, prefix="shop") as session:
        yield session


def tokens(connection: psycopg.Connection[Any]) -> dict[str, int]:
    return dict(connection.execute("SELECT name, token FROM aiolocks_fence").fetchall())


@pytest.mark.parametrize("level", ["READ_COMMITTED", "REPEATABLE_READ", "SERIALIZABLE"])
async def test_a_later_lease_keeps_an_earlier_one_out(
    connection: psycopg.Connection[Any], late: Late, level: str
) -> None:
    connection.isolation_level = psycopg.IsolationLevel[level]
    early, later = await late("orders")
    for lease in (early, later, later):
        fences.fence(connection, lease)
        assert connection.execute("SHOW idle_in_transaction_session_timeout").fetchone() != ("0",)
        connection.commit()
    with pytest.raises(StaleFenceError) as caught:
        fences.fence(connection, early)
    assert (caught.value.name, caught.value.seen) == ("orders", later.fencing_token)
    connection.commit()  # nothing of a transaction that was refused
    assert tokens(connection) == {"orders": later.fencing_token}


async def test_asynchronous_connections(dsn: str, late: Late) -> None:
    early, later = await late("orders")
    async with await psycopg.AsyncConnection.connect(dsn) as connection:
        for _ in range(2):
            await fences.create_fence_table(connection)
        async with connection.transaction():
            await fences.fence(connection, later)
        with pytest.raises(StaleFenceError):
            async with connection.transaction():
                await fences.fence(connection, early)
        await connection.set_autocommit(True)
        with pytest.raises(ConfigurationError, match="commits each statement by itself"):
            await fences.fence(connection, later)


async def test_what_it_refuses_before_any_request(dsn: str, late: Late) -> None:
    _, lease = await late("orders")
    with psycopg.connect(dsn, autocommit=True) as connection:
        with pytest.raises(ConfigurationError, match=r"enter connection\.transaction\(\) before"):
            fences.fence(connection, lease)
        with connection.transaction():
            fences.fence(connection, lease)
        assert tokens(connection) == {"orders": lease.fencing_token}
        for table in ("", "a.", 7):
            with pytest.raises((TypeError, ValueError), match="table must be a"):
                fences.fence(connection, lease, table=table)  # type: ignore[call-overload]
        with pytest.raises(TypeError, match="needs leases"):
            fences.fence(connection, "orders")  # type: ignore[call-overload]
    for call in (fences.fence, fences.create_fence_table):
        with pytest.raises(TypeError, match="must be a Connection or an AsyncConnection of psycopg 3"):
            call(dsn, *([lease] if call is fences.fence else []))  # type: ignore[call-overload]


async def test_a_table_in_a_schema_and_names(connection: psycopg.Connection[Any], late: Late) -> None:
    _, lease = await late("orders")
    connection.execute('CREATE SCHEMA "100%"')
    fences.create_fence_table(connection, table="100%.fence")
    fences.fence(connection, lease, names=["b", "a"], table="100%.fence")
    assert connection.execute('SELECT name FROM "100%".fence ORDER BY name').fetchall() == [("a",), ("b",)]


@dataclass
class Book:
    """What a program makes of its own rows."""

    id: int


FACTORIES: dict[str, tuple[Any, Any]] = {
    "dicts": (rows.dict_row, rows.dict_row),
    "scalars": (rows.scalar_row, rows.scalar_row),
    "objects": (rows.class_row(Book), rows.class_row(Book)),
}


@pytest.mark.parametrize("shape", FACTORIES)
async def test_whatever_a_program_makes_of_its_rows(dsn: str, late: Late, shape: str) -> None:
    early, later = await late("orders")
    blocking, awaited = FACTORIES[shape]
    with psycopg.connect(dsn, row_factory=blocking) as connection:
        fences.create_fence_table(connection)
        fences.fence(connection, later)
        connection.commit()
        with pytest.raises(StaleFenceError):
            fences.fence(connection, early)
    async with await psycopg.AsyncConnection.connect(dsn, row_factory=awaited) as connection_:
        await fences.create_fence_table(connection_)
        await fences.fence(connection_, later)
        await connection_.commit()
        with pytest.raises(StaleFenceError):
            await fences.fence(connection_, early)


@pytest.mark.parametrize("kind", ["ClientCursor", "RawCursor"])
async def test_whatever_cursors_a_connection_makes(dsn: str, late: Late, kind: str) -> None:
    early, later = await late("orders")
    with psycopg.connect(dsn, cursor_factory=getattr(psycopg, kind)) as connection:
        fences.create_fence_table(connection)
        fences.fence(connection, later)
        connection.commit()
        with pytest.raises(StaleFenceError):
            fences.fence(connection, early)
    factory = getattr(psycopg, f"Async{kind}")
    async with await psycopg.AsyncConnection.connect(dsn, cursor_factory=factory) as connection_:
        await fences.create_fence_table(connection_)
        await fences.fence(connection_, later)
        await connection_.commit()
        with pytest.raises(StaleFenceError):
            await fences.fence(connection_, early)


# -- The leases of threads.


def by_psycopg(dsn: str, lease: aiolocks.sync.Lease) -> None:
    with psycopg.connect(dsn) as connection:
        fences.fence(connection, lease)


@contextmanager
def engine_of(dsn: str) -> Iterator[sa.Engine]:
    engine = sa.create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(dsn))
    try:
        yield engine
    finally:
        engine.dispose()


def by_sqlalchemy(dsn: str, lease: aiolocks.sync.Lease) -> None:
    with engine_of(dsn) as engine, engine.begin() as connection:
        of_sqlalchemy.fence(connection, lease)


def by_the_orm(dsn: str, lease: aiolocks.sync.Lease) -> None:
    with engine_of(dsn) as engine, OrmSession(engine) as orm, orm.begin():
        of_sqlalchemy.fence(orm, lease)


@pytest.mark.parametrize("fence", [by_psycopg, by_sqlalchemy, by_the_orm])
def test_a_lease_of_a_thread_fences(
    dsn: str, locks: aiolocks.sync.Session, fence: Callable[[str, aiolocks.sync.Lease], None]
) -> None:
    with locks.lock("orders") as lease:
        fence(dsn, lease)
        with psycopg.connect(dsn) as connection:
            assert tokens(connection) == {"orders": lease.fencing_token}
            connection.execute("UPDATE aiolocks_fence SET token = token + 1")  # a later holder has written
        with pytest.raises(StaleFenceError):
            fence(dsn, lease)
    with pytest.raises(LockLostError):
        fence(dsn, lease)


def test_a_statement_that_a_lease_of_a_thread_fences(dsn: str, locks: aiolocks.sync.Session) -> None:
    table = sa.Table("row", sa.MetaData(), sa.Column("id", sa.Integer), sa.Column("fence", sa.BigInteger))
    with engine_of(dsn) as engine, engine.connect() as connection, locks.lock("row") as lease:
        table.metadata.create_all(connection)
        connection.execute(sa.insert(table).values(id=1))
        update = of_sqlalchemy.fenced(sa.update(table).values(id=2), lease)
        of_sqlalchemy.ensure_written(connection.execute(update), lease)
        assert connection.execute(sa.select(table)).all() == [(2, lease.fencing_token)]
        connection.rollback()
    with locks.rwlock("row").reader as reader, pytest.raises(ValueError, match="may be held beside others"):
        of_sqlalchemy.fenced(sa.update(table).values(id=2), reader)


def test_the_example_of_the_page(connection: psycopg.Connection[Any], locks: aiolocks.sync.Session) -> None:
    (example,) = [block for block in read(PAGES / "fence-sql.md").blocks if block.title == "books.py"]
    books: dict[str, Any] = {}
    exec(example.text, books)
    books["prepare"](connection)
    books["transfer"](locks, connection, 17, 18, 50)
    assert connection.execute("SELECT * FROM book ORDER BY account").fetchall() == [(17, -50), (18, 50)]
    connection.execute("DROP TABLE book")
    connection.commit()
