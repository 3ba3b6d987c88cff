"""The databases that the tests of fences run on, and how their errors read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from asyncpg import InternalClientError
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from aiolocks.contrib.sqlalchemy import fence_table

METADATA = sa.MetaData()
FENCE = fence_table(METADATA)
NOTE = sa.Table(
    "note",
    METADATA,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("writer", sa.Text, nullable=False),
)
ACCOUNT = sa.Table(
    "account",
    METADATA,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("balance", sa.Integer, nullable=False),
    sa.Column("fence", sa.BigInteger),
)


@dataclass(frozen=True)
class Database:
    """One database, as programs use it.

    Attributes:
        url: For SQLAlchemy, with the asynchronous driver.
        isolation: Of the transactions; None for the driver's own.
        journal: Mode of SQLite's journal.
    """

    url: str
    isolation: str | None = None
    journal: str | None = None

    @property
    def is_postgresql(self) -> bool:
        return self.url.startswith("postgresql")

    @property
    def blocking_url(self) -> str:
        """The same for synchronous programs."""
        return self.url.replace("+asyncpg", "+psycopg").replace("+aiosqlite", "")

    def options(self, **options: Any) -> dict[str, Any]:
        if self.isolation is not None:
            options.setdefault("isolation_level", self.isolation)
        return options

    def engine(self, *, timeout: float = 5, **options: Any) -> AsyncEngine:
        """An engine; `timeout` is for how long SQLite's driver waits for the write lock."""
        connect_args = {} if self.is_postgresql else {"timeout": timeout}
        engine = create_async_engine(self.url, connect_args=connect_args, **self.options(**options))
        if self.journal is not None:

            @sa.event.listens_for(engine.sync_engine, "connect")
            def set_journal(connection: Any, _: object) -> None:
                cursor = connection.cursor()
                cursor.execute(f"PRAGMA journal_mode={self.journal}")
                cursor.execute("PRAGMA synchronous=OFF")
                cursor.close()

        return engine


def sqlstate(error: BaseException) -> str | None:
    """Of PostgreSQL, through whichever driver."""
    origin = error.orig if isinstance(error, DBAPIError) else error
    return getattr(origin, "sqlstate", None)


def wants_another_try(error: DBAPIError) -> bool:
    """Whether the transaction must be run again, as the documentation says."""
    return sqlstate(error) in ("40001", "40P01") or "database is locked" in str(error.orig)


STATEMENT_ERRORS: tuple[type[Exception], ...] = (DBAPIError, InternalClientError)
"""What a statement raises. The second, if it crossed with the end of the session: SQLAlchemy hands it on."""


def session_was_ended(error: Exception) -> bool:
    """Whether the server has ended the session, which was idle in a transaction for too long."""
    if not isinstance(error, DBAPIError):
        return "cannot switch to state" in str(error)
    # The second is how asyncpg puts it when a statement and the end of the session cross.
    words = ("closed", "cannot switch to state")
    return sqlstate(error) == "25P03" or any(word in str(error.orig) for word in words)
