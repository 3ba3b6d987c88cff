"""Fences in SQL through SQLAlchemy: transactions and rows that refuse a holder who is too late.

```python
async with Lock(redis, "orders") as lease, engine.begin() as connection:
    await fence(connection, lease)
    await connection.execute(...)  # from here on, nobody with an older lease commits
```
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Final, TypeVar, cast, overload

try:
    import sqlalchemy as sa
except ModuleNotFoundError as error:
    if error.name != "sqlalchemy":
        raise
    raise ModuleNotFoundError(
        "aiolocks.contrib.sqlalchemy needs sqlalchemy: pip install aiolocks[sqlalchemy]", name=error.name
    ) from error

from sqlalchemy.dialects import mysql
from sqlalchemy.engine import Connection, CursorResult
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
from sqlalchemy.orm import Session
from sqlalchemy.schema import CreateTable

from ..lock.lease import Lease
from ._fences import CREATE_KEY, TABLE, Passage, ensure_exclusive, unwritten
from ._passing import pass_fence

__all__ = ["create_fence_table", "ensure_written", "fence", "fence_table", "fenced"]

ResultT = TypeVar("ResultT")
StatementT = TypeVar("StatementT", bound=sa.Update | sa.Delete)

_MYSQL: Final = ("mysql", "mariadb")


def fence_table(metadata: sa.MetaData, *, name: str = TABLE, schema: str | None = None) -> sa.Table:
    """Describes the table that `fence` needs, among others of your `MetaData`.

    So `metadata.create_all()` makes it, and Alembic's `--autogenerate` writes a migration for it. It has one
    row for each name that was fenced: the name, and the largest fencing token that has passed.

    Args:
        metadata: Yours, as `Base.metadata`.
        name: Of the table. If it is not the default, give the table to `fence` as `table=`.
        schema: Of the table; the same holds for it. Default: that of the metadata.

    Raises:
        sqlalchemy.exc.InvalidRequestError: The metadata has another table of this name.
    """
    # MySQL bounds an index by 3072 bytes, and would take names for the same that differ in case.
    text = sa.Text().with_variant(mysql.VARCHAR(700, collation="utf8mb4_bin"), *_MYSQL)
    return sa.Table(
        name,
        metadata,
        sa.Column("name", text, primary_key=True),
        sa.Column("token", sa.BigInteger, nullable=False),
        schema=schema,
    )


_FENCE: Final = fence_table(sa.MetaData())


@overload
def create_fence_table(connection: Connection | Session, *, table: sa.Table | None = None) -> None: ...


@overload
def create_fence_table(
    connection: AsyncConnection | AsyncSession, *, table: sa.Table | None = None
) -> Coroutine[Any, Any, None]: ...


def create_fence_table(
    connection: Connection | Session | AsyncConnection | AsyncSession, *, table: sa.Table | None = None
) -> Coroutine[Any, Any, None] | None:
    """Makes the table that `fence` needs, unless it is there; any number of processes may do so at once.

    To be awaited with what is asynchronous. It is part of the connection's transaction.

    Args:
        connection: Or a session, of either kind.
        table: The result of `fence_table`. Default: `aiolocks_fence`.

    Raises:
        TypeError: An argument is wrong.
        sqlalchemy.exc.DBAPIError: The database refused.

    Cancelled, it may have made the table or not; so it is after an error, until the transaction is rolled
    back.
    """
    described = _table(table)

    def create(target: Connection | Session) -> None:
        opened = _connection(target)
        if opened.dialect.name == "postgresql":
            opened.execute(sa.select(sa.func.pg_advisory_xact_lock(CREATE_KEY)))
        opened.execute(CreateTable(described, if_not_exists=True))

    return _run(connection, create)


@overload
def fence(
    connection: Connection | Session,
    *leases: Lease,
    names: Iterable[str] | None = None,
    table: sa.Table | None = None,
) -> None: ...


@overload
def fence(
    connection: AsyncConnection | AsyncSession,
    *leases: Lease,
    names: Iterable[str] | None = None,
    table: sa.Table | None = None,
) -> Coroutine[Any, Any, None]: ...


def fence(
    connection: Connection | Session | AsyncConnection | AsyncSession,
    *leases: Lease,
    names: Iterable[str] | None = None,
    table: sa.Table | None = None,
) -> Coroutine[Any, Any, None] | None:
    """Makes all writes of a transaction safe from a holder who is too late; its first statement.

    Once the fence of a larger token has returned, no transaction with the fence of a smaller token of the
    same name commits: an open one is waited for, and a later one is refused. Think of it as a row that
    belongs to the newest lease, and that each transaction has to itself until its end. If the transaction is
    rolled back, its fence is undone too. In a savepoint, it is undone when that is rolled back, and has to be
    called again.

    To be awaited with what is asynchronous. It needs a table: `create_fence_table` or `fence_table`.

    - PostgreSQL: one statement, at each isolation level. It also sets `idle_in_transaction_session_timeout`
      for this transaction, to the seconds that the lease has left: if this process stands still, the server
      ends the transaction then, and the successor goes on. A shorter one stays as it is.
    - SQLite: `BEGIN IMMEDIATE`, unless the driver has begun, and one statement. All transactions that write
      come one after the other; the successor of a frozen process waits for as long as the driver's `timeout`
      (5 s).
    - MySQL, MariaDB: two statements, and no limit for the transaction of a frozen process.

    Args:
        connection: In a transaction, or one that begins it by itself; or a session, of either kind. A session
            with several databases: `session.connection(bind_arguments=…)`.
        leases: One or more, in any order, each of a lock that excludes all others of its name. The row
            of each has the lock's name.
        names: Of the rows instead: for the lease of a `MultiLock` (`names=lock.names`), and where locks of
            different kinds or prefixes share a name. For one lease.
        table: The result of `fence_table`. Default: `aiolocks_fence`.

    Raises:
        TypeError, ValueError: An argument is wrong, or two rows have one name; before any I/O.
        ConfigurationError: The connection commits each statement by itself, or its database is not among
            those above.
        LockLostError: A lease is not held any more; before any I/O.
        StaleFenceError: A later lease has passed. Let the error leave the transaction, so that it is rolled
            back; PostgreSQL commits nothing of it in any case.
        sqlalchemy.exc.DBAPIError: From the database, as it is. PostgreSQL's SQLSTATE 40001 (above READ
            COMMITTED, another fence has committed meanwhile) and 40P01 (deadlock) want the transaction to be
            run again; 55P03 and 57014 come from your `lock_timeout` and `statement_timeout`. SQLite's
            `database is locked` says that another transaction writes.

    Cancelled while it waits, it leaves the transaction to be rolled back, as the driver does with each
    statement.

    After *Fencing tokens* in "How to do distributed locking" (M. Kleppmann, 2016); how the store has to
    compare is argued in the source, `aiolocks/contrib/_fences.py`.
    """
    described = _table(table)
    rows = None if names is None else tuple(names) if not isinstance(names, str) else names
    Passage.of(leases, rows)  # refuses bad arguments here, not where it is awaited

    def passing(target: Connection | Session) -> None:
        opened = _connection(target)
        pass_fence(opened, described, Passage.of(leases, rows))  # a session may have waited for it

    return _run(connection, passing)


def fenced(statement: StatementT, lease: Lease, *, column: str = "fence") -> StatementT:
    """Makes one UPDATE or DELETE safe from a holder who is too late: by a token in each row.

    The statement leaves rows alone whose token is larger than the lease's, and an UPDATE writes the lease's
    token. A statement of its own needs no transaction and no other table. It protects this row only: for
    several rows, and for INSERT, use `fence`.

    ```python
    update = fenced(sa.update(account).where(account.c.id == 17).values(balance=150), lease)
    ensure_written(await connection.execute(update), lease)
    ```

    Once a statement with a larger token has committed, none with a smaller one changes the row. Every
    statement that writes the row must be fenced. PostgreSQL at READ COMMITTED, MySQL and SQLite compare with
    the newest version of the row; PostgreSQL above that raises 40001 if the row was changed meanwhile, which
    reaches the caller.

    Args:
        statement: `sqlalchemy.update(…)` or `delete(…)` of a table or a mapped class.
        lease: Of a lock that excludes all others of its name.
        column: Name of a column of the table: `BIGINT`. No token (`NULL`) counts as an old one.

    Raises:
        TypeError, ValueError: An argument is wrong.
        LockLostError: The lease is not held any more.
    """
    _only(statement)
    ensure_exclusive(lease)
    lease.ensure_held()
    table = cast("sa.Table", statement.table)
    if column not in table.c:
        raise ValueError(f"table {table.name!r} has no column {column!r} for the fencing token")
    token, kept = lease.fencing_token, table.c[column]
    guarded: Any = statement.where(sa.func.coalesce(kept, 0) <= token)
    if isinstance(guarded, sa.Update):
        guarded = guarded.values({kept: token})
    return cast("StatementT", guarded)


def ensure_written(result: object, lease: Lease) -> None:
    """Returns if a fenced statement has changed a row.

    Args:
        result: Of the statement, as `connection.execute()` or `session.execute()` has given it.
        lease: The one that it was fenced with.

    Raises:
        TypeError: The result is not that of an UPDATE or a DELETE, or its rows were not counted, as before
            SQLAlchemy 2.1 those of RETURNING on SQLite.
        StaleFenceError: No row was changed: a later lease has written, or there is no such row. Its `seen` is
            the smallest that it can be.
    """
    if not isinstance(result, CursorResult) or result.rowcount < 0:
        raise TypeError(f"ensure_written needs the result of an UPDATE or a DELETE, not {result!r}")
    if result.rowcount == 0:
        raise unwritten(lease.name, fencing_token=lease.fencing_token)


def _run(
    connection: object, step: Callable[[Connection | Session], ResultT]
) -> Coroutine[Any, Any, ResultT] | ResultT:
    """Takes the step, at once or where it is awaited."""
    if isinstance(connection, (AsyncConnection, AsyncSession)):
        return connection.run_sync(step)
    if isinstance(connection, (Connection, Session)):
        return step(connection)
    raise TypeError(
        "the first argument must be SQLAlchemy's Connection, AsyncConnection, Session or AsyncSession, "
        f"not {type(connection).__name__}"
    )


def _connection(target: Connection | Session) -> Connection:
    return target.connection() if isinstance(target, Session) else target


def _table(table: object) -> sa.Table:
    if table is None:
        return _FENCE
    if not isinstance(table, sa.Table):
        raise TypeError(f"table must be what fence_table() gives, not {table!r}")
    return cast("sa.Table", table)


def _only(statement: object) -> None:
    if not isinstance(statement, (sa.Update, sa.Delete)):
        raise TypeError(
            f"fenced needs sqlalchemy.update(…) or delete(…), not {type(statement).__name__}; "
            "for others, begin the transaction with fence()"
        )
