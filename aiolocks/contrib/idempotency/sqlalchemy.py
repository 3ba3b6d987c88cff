"""Records in your own database, through SQLAlchemy: each request takes effect exactly once.

```python
store = SQLAlchemyStore(async_sessionmaker(engine), metadata=Base.metadata)
app.add_middleware(IdempotencyMiddleware, client=redis, scope=..., store=store)


@app.post("/payments")
async def pay(session: Annotated[AsyncSession, Depends(store.session)]) -> ...:
    session.add(...)  # committed together with the record, when the answer is whole
```
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta
from typing import Any, final

from ..._extras import install

try:
    from sqlalchemy import (
        Column,
        DateTime,
        LargeBinary,
        MetaData,
        String,
        Table,
        delete,
        func,
        insert,
        literal,
        select,
        text,
    )
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_sessionmaker
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] != "sqlalchemy":
        raise
    raise ModuleNotFoundError(
        f"aiolocks.contrib.idempotency.sqlalchemy needs SQLAlchemy: {install('sqlalchemy')}",
        name=error.name,
    ) from error

from .._fences import another_statement, unreadable
from ._store import Stored

__all__ = ["SQLAlchemyStore"]


def __dir__() -> list[str]:
    """The public names alone."""
    return [*__all__]


@final
class SQLAlchemyStore:
    """Keeps records in a table, and gives handlers the transaction in which their record is committed.

    The handler gets its session from `session()`, and does not commit it. When the answer is whole, the
    session is committed together with the record; then the client gets the answer. The transaction is rolled
    back if the handler raises, if its answer is not kept (429, 5xx), or if the answer is a refusal (4xx); the
    record of a refusal is committed alone. Writes of the handler in other sessions or databases are not part
    of the transaction.

    The primary key of the table decides: of two transactions with one key, the second one cannot commit,
    whatever happens to Redis. On PostgreSQL each statement says in its answer that it is one of this store:
    behind a pooler of transactions, such as PgBouncer, another program's statement may run instead. Then the
    request ends with `ConfigurationError`, and nothing is committed.

    Services can share a table, because the key of a record begins with the prefix of their session. Services
    with the same prefix, such as the default `aiolocks`, count as one service.

    Args:
        sessions: Makes sessions, such as `async_sessionmaker(engine)`.
        metadata: Where the table is declared, so that Alembic finds it, such as `Base.metadata`. Default: a
            `MetaData` of its own.
        table: The name of the table. Default `"aiolocks_idempotency"`.

    Attributes:
        table: The table. `create`, `create_all` or Alembic makes it.

    Raises:
        sqlalchemy.exc.InvalidRequestError: The metadata already has another table of this name.
    """

    __slots__ = ("__weakref__", "_current", "_sessions", "table")

    def __init__(
        self,
        sessions: async_sessionmaker[Any],
        *,
        metadata: MetaData | None = None,
        table: str = "aiolocks_idempotency",
    ) -> None:
        self._sessions = sessions
        self._current: ContextVar[AsyncSession | None] = ContextVar("aiolocks_idempotency", default=None)
        self.table = Table(
            table,
            MetaData() if metadata is None else metadata,
            Column("key", String(250), primary_key=True),
            Column("fingerprint", String(64), nullable=False),
            Column("answer", LargeBinary(2**24), nullable=False),
            Column("expires_at", DateTime(timezone=True), nullable=False, index=True),
        )

    async def session(self) -> AsyncSession:
        """The database session of the current request, as a dependency for FastAPI.

        Raises:
            RuntimeError: The request has no key, or there is no request.
        """
        session = self._current.get()
        if session is None:
            raise RuntimeError(
                "there is no transaction with an idempotency key here: the request has no key (required=True "
                "refuses such requests), or its middleware does not have this store"
            )
        return session

    async def create(self, connection: AsyncConnection) -> None:
        """Makes the table, if it is missing.

        Raises:
            sqlalchemy.exc.DBAPIError: The database refused.
        """
        await connection.run_sync(self.table.create, checkfirst=True)

    async def purge(self) -> int:
        """Deletes the records that no longer count, and returns their number. Call it regularly, as by cron.

        Raises:
            sqlalchemy.exc.DBAPIError: The database refused.

        Cancelled, it deletes all of them or none.
        """
        async with self._sessions.begin() as session:
            connection = await _connection(session, self.table)
            result: Any = await connection.execute(
                delete(self.table).where(self.table.c.expires_at <= _now())
            )
            removed: int = result.rowcount
            return removed

    async def find(self, key: str) -> Stored | None:
        """Called by the middleware."""
        columns = self.table.c
        wanted = select(columns.fingerprint, columns.answer, columns.key).where(
            columns.key == key, columns.expires_at > _now()
        )
        try:
            async with self._sessions() as session:
                rows = (await (await _connection(session, self.table)).execute(wanted)).all()
        except Exception as error:
            if unreadable(error):
                raise another_statement("search for a record") from error
            raise
        if not rows:
            return None
        if [row[2:] for row in rows] != [(key,)]:
            raise another_statement("search for a record")
        return Stored(rows[0].fingerprint, bytes(rows[0].answer))

    @asynccontextmanager
    async def transaction(self) -> AsyncGenerator[_Transaction, None]:
        """Called by the middleware."""
        async with self._sessions() as session:
            outer = self._current.set(session)
            try:
                yield _Transaction(session, self.table)
            finally:
                self._current.reset(outer)


@final
class _Transaction:
    """The session of one request. Its exit rolls back what was not committed."""

    def __init__(self, session: AsyncSession, table: Table) -> None:
        self._session = session
        self._table = table

    async def commit(self, key: str, record: Stored, *, keep: float) -> None:
        table, session, now = self._table, self._session, _now()
        # The handler's own statements come first: what is wrong with them has nothing to do with the record.
        await session.flush()
        connection = await _connection(session, table)
        removed = delete(table).where(table.c.key == key, table.c.expires_at <= now)
        written = insert(table).values(
            key=key,
            fingerprint=record.fingerprint,
            answer=record.answer,
            expires_at=now + timedelta(seconds=keep),
        )
        if connection.dialect.name == "postgresql":
            # Behind a pooler of transactions another program's may run instead: both say that they are these.
            nonce, gone = secrets.token_hex(8), removed.returning(table.c.key).cte("gone")
            number = select(func.count()).select_from(gone).scalar_subquery()
            await _own(
                connection, select(literal(nonce), text("'gone'"), number.is_not(None)), (nonce, "gone", True)
            )
            row = (nonce, key, record.fingerprint)
            await _own(connection, written.returning(literal(nonce), table.c.key, table.c.fingerprint), row)
        else:
            await connection.execute(removed)
            await connection.execute(written)
        await session.commit()


async def _connection(session: AsyncSession, table: Table) -> AsyncConnection:
    """Where the session writes, for statements that are none of the program's own.

    A session may read from a replica, and decide by the statement; and that of SQLModel warns of `execute()`.
    """
    return await session.connection(bind_arguments={"clause": delete(table)})


async def _own(connection: AsyncConnection, statement: Any, row: tuple[object, ...]) -> None:
    """Runs a statement that returns this row.

    Raises:
        ConfigurationError: Another statement has run.
        DBAPIError: The database refused.
    """
    try:
        found = (await connection.execute(statement)).all()
    except Exception as error:
        if unreadable(error):
            raise another_statement("record") from error
        raise
    if [tuple(each) for each in found] != [row]:
        raise another_statement("record")


def _now() -> datetime:
    return datetime.now(UTC)
