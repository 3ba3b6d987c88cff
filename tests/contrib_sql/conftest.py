from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from redis.asyncio import Redis
from sqlalchemy.ext.asyncio import AsyncEngine

from aiolocks import Lease, Lock, Session
from tests.conftest import Connect
from tests.contrib_sql.databases import METADATA, Database
from tests.support.postgres import postgres_url

KINDS = {
    "postgresql-read-committed": "READ COMMITTED",
    "postgresql-serializable": "SERIALIZABLE",
    "sqlite-delete": None,
    "sqlite-wal": None,
}

Late = Callable[[str], Awaitable[tuple[Lease, Lease]]]
"""The `late` fixture: two leases of a name, of which the earlier one seems to be held: `await late("n")`."""


@pytest.fixture(params=KINDS)
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Database:
    """Each database and isolation level in turn, with tables that are empty."""
    family, _, rest = request.param.partition("-")
    if family == "postgresql":
        database = Database(
            postgres_url(request.getfixturevalue("postgres"), "asyncpg"), KINDS[request.param]
        )
    else:
        database = Database(f"sqlite+aiosqlite:///{tmp_path / 'test.db'}", journal=rest)
    make_tables(database)
    return database


@pytest.fixture
def postgresql(postgres: str) -> Database:
    """PostgreSQL at READ COMMITTED alone."""
    database = Database(postgres_url(postgres, "asyncpg"), "READ COMMITTED")
    make_tables(database)
    return database


def make_tables(database: Database) -> None:
    engine = _engine(database.blocking_url)
    with engine.begin() as connection:
        METADATA.create_all(connection)
        for table in METADATA.sorted_tables:
            connection.execute(sa.delete(table))


@functools.cache
def _engine(url: str) -> sa.Engine:
    return sa.create_engine(url, poolclass=sa.NullPool)


@pytest.fixture
async def engine(database: Database) -> AsyncIterator[AsyncEngine]:
    engine = database.engine()
    yield engine
    await engine.dispose()


@pytest.fixture
async def pg_engine(postgresql: Database) -> AsyncIterator[AsyncEngine]:
    engine = postgresql.engine()
    yield engine
    await engine.dispose()


@pytest.fixture
def blocking_engine(database: Database) -> Iterator[sa.Engine]:
    engine = sa.create_engine(database.blocking_url, **database.options())
    yield engine
    engine.dispose()


@pytest.fixture
async def late(session: Session, connect: Connect, redis: Redis, prefix: str) -> AsyncIterator[Late]:
    """Redis has lost the first lease, and its holder does not know it yet."""
    taken: list[Lease] = []
    async with Session(connect(), prefix=prefix, wakeup="poll") as elsewhere:  # else it would be told

        async def take(name: str) -> tuple[Lease, Lease]:
            first = await Lock(elsewhere, name, ttl=20, auto_renew=False).acquire()
            await redis.delete(f"{prefix}:lock:{{{name}}}")
            second = await Lock(session, name, ttl=20).acquire()
            assert first.remaining() > 10
            assert first.fencing_token < second.fencing_token
            taken.extend((first, second))  # a lease that nobody refers to is given up
            return first, second

        yield take
    for lease in taken[1::2]:
        await lease.release()
