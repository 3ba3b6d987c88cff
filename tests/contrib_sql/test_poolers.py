"""Fences and records behind a pooler of transactions, which may run what another program has prepared."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import asyncpg
import asyncpg.connection
import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker, create_async_engine

from aiolocks import ConfigurationError
from aiolocks.contrib.asyncpg import fence as asyncpg_fence
from aiolocks.contrib.idempotency import Stored
from aiolocks.contrib.idempotency.sqlalchemy import SQLAlchemyStore
from aiolocks.contrib.sqlalchemy import check_pooler, fence
from tests.contrib_sql.conftest import Late
from tests.contrib_sql.databases import Database
from tests.support.pgbouncer import CONNECTIONS, running_pgbouncer
from tests.support.postgres import postgres_url

OTHERS = {
    "nothing": "SELECT 'x' WHERE ($1::text[], $2::bigint[], $3::bigint, $4::text) IS NULL",
    "a-text": "SELECT $4::text WHERE ($1::text[], $2::bigint[], $3::bigint) IS NOT NULL",
    "a-number": "SELECT -$3::bigint WHERE ($1::text[], $2::bigint[], $4::text) IS NOT NULL",
    "columns": "SELECT $1::text[], $2::bigint[], $3::bigint, $4::text",
    "a-fence-elsewhere": """
        SELECT json_build_array($4::text, '"elsewhere"', $1::text[], $2::bigint[], '9s')::text
        WHERE $3::bigint > 0
    """,
}
"""Statements of another program, with the parameters of a fence."""

_numbers = itertools.count(0x10000, 0x100)


class Pooler:
    """PgBouncer with two connections to PostgreSQL, and two clients that keep them busy.

    Attributes:
        socket: The directory of its socket.
        servers: The process of PostgreSQL behind each connection.
        monkeypatch: Sets the counter of asyncpg.
    """

    def __init__(
        self, socket: str, stack: contextlib.AsyncExitStack, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.socket = socket
        self.servers: list[int] = []
        self._stack = stack
        self._holders: list[asyncpg.Connection] = []
        self._monkeypatch = monkeypatch
        self._number = next(_numbers)

    async def connect(self, **options: Any) -> asyncpg.Connection:
        connection = await asyncpg.connect(host=self.socket, user="postgres", database="postgres", **options)
        self._stack.push_async_callback(connection.close)
        return connection

    def counted_alike(self, *, before: int = 0) -> None:
        """The next statement but so many is named as that of another program after as many statements."""
        self._monkeypatch.setattr(asyncpg.connection, "_uid", self._number - before)

    def named(self, *, before: int = 0) -> str:
        """The name of the next statement but so many, after `counted_alike()`."""
        return f"__asyncpg_stmt_{self._number + 1 - before:x}__"

    @contextlib.asynccontextmanager
    async def through(self, server: int) -> AsyncIterator[None]:
        """All transactions go through this connection."""
        begun = {}
        while len(self._holders) < CONNECTIONS:
            self._holders.append(await self.connect(statement_cache_size=0))
        for holder in self._holders:
            transaction = holder.transaction()
            await transaction.start()
            if not self.servers:
                await holder.execute("DEALLOCATE ALL")  # what other tests have prepared there
            begun[await holder.fetchval("SELECT pg_backend_pid()")] = transaction
        self.servers = self.servers or list(begun)
        await begun.pop(self.servers[server]).rollback()
        yield
        for transaction in begun.values():
            await transaction.rollback()


@pytest.fixture(scope="session")
def pgbouncer(postgres: str) -> Iterator[str]:
    with running_pgbouncer(postgres) as socket:
        yield socket


@pytest.fixture
async def pooler(
    postgresql: Database, pgbouncer: str, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Pooler]:
    async with contextlib.AsyncExitStack() as stack:
        yield Pooler(pgbouncer, stack, monkeypatch)


@pytest.mark.parametrize("other", OTHERS)
async def test_a_fence_knows_that_another_statement_has_run(pooler: Pooler, late: Late, other: str) -> None:
    _, lease = await late("orders")
    ours, theirs = await pooler.connect(), await pooler.connect()

    async def fenced() -> None:
        async with ours.transaction():
            pooler.counted_alike()
            await asyncpg_fence(ours, lease)

    async with pooler.through(0):
        await fenced()
    async with pooler.through(1), theirs.transaction():
        pooler.counted_alike()
        values = (["a"], [1], 1, "b")
        await theirs.fetch(OTHERS[other], *values)
    async with pooler.through(1):
        with pytest.raises(ConfigurationError, match=r"in place of the fence: a pooler .*PgBouncer"):
            await fenced()
        assert not ours.is_in_transaction()
    async with pooler.through(0):
        await fenced()


@contextlib.asynccontextmanager
async def engine_of(pooler: Pooler, driver: str = "asyncpg", **options: Any) -> AsyncIterator[AsyncEngine]:
    """With one connection to the pooler."""
    url = postgres_url(pooler.socket, driver)
    engine = create_async_engine(url, pool_size=1, max_overflow=0, **options)
    try:
        async with engine.connect() as connection:
            await connection.execute(sa.text("SELECT 1"))
        yield engine
    finally:
        await engine.dispose()


SAFE: dict[str, Any] = {
    "connect_args": {
        "statement_cache_size": 0,
        "prepared_statement_cache_size": 0,
        "prepared_statement_name_func": lambda: f"__asyncpg_{uuid4()}__",
    }
}
"""As the page says, for SQLAlchemy with asyncpg."""


@pytest.mark.parametrize("settings", ["default", "safe"])
async def test_a_fence_of_sqlalchemy_too(pooler: Pooler, late: Late, settings: str) -> None:
    _, lease = await late("orders")
    theirs = await pooler.connect()

    async with engine_of(pooler, **(SAFE if settings == "safe" else {})) as engine:

        async def fenced() -> None:
            async with engine.begin() as connection:
                pooler.counted_alike()
                await fence(connection, lease)

        async with pooler.through(0):
            await fenced()
        async with pooler.through(1), theirs.transaction():
            pooler.counted_alike()
            await theirs.fetch("SELECT $1::text[], $2::bigint[], $3::text, $4::bigint", ["a"], [1], "b", 1)
        async with pooler.through(1):
            if settings == "safe":
                await fenced()
            else:
                with pytest.raises(ConfigurationError, match="in place of the fence"):
                    await fenced()


@pytest.mark.parametrize("settings", ["default", "safe"])
async def test_a_fence_of_psycopg_too(pooler: Pooler, late: Late, settings: str) -> None:
    _, lease = await late("orders")
    safe: dict[str, Any] = {"connect_args": {"prepare_threshold": None}} if settings == "safe" else {}
    async with engine_of(pooler, "psycopg", **safe) as ours, engine_of(pooler, "psycopg") as theirs:

        async def run(engine: AsyncEngine, text: str | None) -> None:
            for _ in range(7):  # the sixth time, psycopg prepares it as _pg3_0
                async with engine.begin() as connection:
                    if text is None:
                        await fence(connection, lease)
                    else:
                        values = {"a": ["a"], "b": [2**40], "c": "c", "d": 2**14}
                        await connection.execute(sa.text(text), values)

        async with pooler.through(0):
            await run(ours, None)
        async with pooler.through(1):
            await run(
                theirs,
                "SELECT CAST(:a AS text[]), CAST(:b AS bigint[]), CAST(:c AS text), CAST(:d AS bigint)",
            )
        async with pooler.through(1):
            if settings == "safe":
                await run(ours, None)
            else:
                with pytest.raises(ConfigurationError, match="in place of the fence"):
                    await run(ours, None)


@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
async def test_the_check_of_the_setting(pooler: Pooler, postgres: str, driver: str) -> None:
    safe = SAFE if driver == "asyncpg" else {"connect_args": {"prepare_threshold": None}}
    async with engine_of(pooler, driver, **safe) as engine, engine.begin() as connection:
        await check_pooler(connection)
    async with engine_of(pooler, driver) as engine, engine.begin() as connection:
        with pytest.raises(
            ConfigurationError, match=r"by a counter.* a pooler is between.*prepare_threshold=None"
        ):
            await check_pooler(connection)
    direct = create_async_engine(postgres_url(postgres, driver))
    async with direct.begin() as connection:
        await check_pooler(connection)
    await direct.dispose()


async def test_the_check_needs_no_postgresql() -> None:
    engine = create_async_engine("sqlite+aiosqlite://")
    async with engine.begin() as connection:
        await check_pooler(connection)
    await engine.dispose()


NOW = datetime.now(UTC)
OTHERS_OF_A_STORE: dict[str, tuple[str, list[object]]] = {
    "search": (
        "SELECT 'f', '\\x00'::bytea, 'other' WHERE ($1::text, $2::timestamptz) IS NOT NULL",
        ["", NOW],
    ),
    "removal": ("SELECT $1::text, $2::text, $3::timestamptz", ["", "", NOW]),
    "record": (
        "SELECT 'x', $1::text, $2::text WHERE ($3::bytea, $4::timestamptz, $5::text) IS NOT NULL",
        ["", "", b"", NOW, ""],
    ),
}
"""Statements of another program, with the parameters of those of a store."""


@pytest.mark.parametrize("swapped", OTHERS_OF_A_STORE)
async def test_a_store_knows_that_another_statement_has_run(
    pooler: Pooler, postgres: str, swapped: str
) -> None:
    theirs = await pooler.connect()
    async with engine_of(pooler) as engine:
        store = SQLAlchemyStore(async_sessionmaker(engine), metadata=sa.MetaData())
        async with engine.begin() as connection:
            await store.create(connection)
            await connection.execute(sa.delete(store.table))

        async def step(key: str) -> None:
            if swapped == "search":
                await store.find(key)
                return
            async with store.transaction() as transaction:
                await transaction.commit(key, Stored("f" * 64, b"x"), keep=60)

        async with pooler.through(0):
            pooler.counted_alike(before=1 if swapped == "record" else 0)
            await step("a")
            removal = await theirs.fetchval(
                "SELECT statement FROM pg_prepared_statements WHERE name = $1", pooler.named(before=1)
            )
        async with pooler.through(1), theirs.transaction():
            pooler.counted_alike(before=1 if swapped == "record" else 0)
            if swapped == "record":  # the first of two, which is the store's in both programs
                await theirs.fetch(removal, *OTHERS_OF_A_STORE["removal"][1])
            text, values = OTHERS_OF_A_STORE[swapped]
            await theirs.fetch(text, *values)
        async with pooler.through(1):
            with pytest.raises(ConfigurationError, match=r"in place of the (record|search)"):
                await step("b")
        async with pooler.through(0):
            await step("c")
        direct = await asyncpg.connect(host=postgres, user="postgres", database="postgres")
        keys = [row["key"] for row in await direct.fetch("SELECT key FROM aiolocks_idempotency ORDER BY key")]
        await direct.close()
        assert keys == ([] if swapped == "search" else ["a", "c"])
