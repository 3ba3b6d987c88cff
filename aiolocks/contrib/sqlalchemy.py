"""Fences in SQL through SQLAlchemy: transactions and rows that refuse the writes of a late holder.

```python
async with Lock(redis, "orders") as lease, engine.begin() as connection:
    await fence(connection, lease)
    await connection.execute(...)  # from now on, no transaction with an older lease commits
```
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Final, TypeAlias, TypeVar, cast, overload

from .._extras import install

try:
    import sqlalchemy as sa
except ModuleNotFoundError as error:
    if error.name != "sqlalchemy":
        raise
    raise ModuleNotFoundError(
        f"aiolocks.contrib.sqlalchemy needs sqlalchemy: {install('sqlalchemy')}", name=error.name
    ) from error

from sqlalchemy.dialects import mysql
from sqlalchemy.engine import Connection, CursorResult
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session
from sqlalchemy.orm import Session, scoped_session
from sqlalchemy.schema import CreateTable

from ._fences import CREATE_KEY, TABLE, AnyLease, Passage, ensure_exclusive, unwritten
from ._passing import ensure_named_apart, pass_fence

__all__ = ["check_pooler", "create_fence_table", "ensure_written", "fence", "fence_table", "fenced"]


def __dir__() -> list[str]:
    """The public names alone."""
    return [*__all__]


Blocking: TypeAlias = "Connection | Session | scoped_session[Any]"
Awaited: TypeAlias = "AsyncConnection | AsyncSession | async_scoped_session[Any]"

ResultT = TypeVar("ResultT")
StatementT = TypeVar("StatementT", bound=sa.Update | sa.Delete)

_MYSQL: Final = ("mysql", "mariadb")


def fence_table(metadata: sa.MetaData, *, name: str = TABLE, schema: str | None = None) -> sa.Table:
    """Describes the table that `fence` needs, as a table of your `MetaData`.

    Then `metadata.create_all()` makes it, and Alembic's `--autogenerate` writes a migration for it. The table
    has one row for each fenced name: the name, and the largest fencing token that has passed.

    Args:
        metadata: Your metadata, such as `Base.metadata`.
        name: Name of the table. With another name than the default, give the table to `fence` as `table=`.
        schema: Schema of the table. With another schema than the default, give the table to `fence` as
            `table=`. Default: the schema of the metadata.

    Raises:
        sqlalchemy.exc.InvalidRequestError: The metadata already has another table of this name.
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
def create_fence_table(connection: Blocking, *, table: sa.Table | None = None) -> None: ...


@overload
def create_fence_table(
    connection: Awaited, *, table: sa.Table | None = None
) -> Coroutine[Any, Any, None]: ...


def create_fence_table(
    connection: Blocking | Awaited, *, table: sa.Table | None = None
) -> Coroutine[Any, Any, None] | None:
    """Makes the table that `fence` needs, if it is missing. Several processes may call this at the same time.

    With an `AsyncConnection` or an `AsyncSession`, await the result. The table is part of the connection's
    transaction.

    Args:
        connection: A connection or a session, asynchronous or not.
        table: The result of `fence_table`. Default: `aiolocks_fence`.

    Raises:
        TypeError: An argument is wrong.
        sqlalchemy.exc.DBAPIError: The database refused.

    After a cancellation or an error, the table may have been made or not, until the transaction is rolled
    back.
    """
    described = _table(table)

    def create(target: Connection | Session) -> None:
        opened = _connection(target, described)
        if opened.dialect.name == "postgresql":
            opened.execute(sa.select(sa.func.pg_advisory_xact_lock(CREATE_KEY)))
        opened.execute(CreateTable(described, if_not_exists=True))

    return _run(connection, create)


@overload
def check_pooler(connection: Blocking) -> None: ...


@overload
def check_pooler(connection: Awaited) -> Coroutine[Any, Any, None]: ...


def check_pooler(
    connection: Blocking | Awaited,
) -> Coroutine[Any, Any, None] | None:
    """Checks that no pooler can run another program's statement in place of one of this program.

    `fence` sees that by its answer. `fenced` cannot, nor can your own statements: call this once when the
    program starts. With an `AsyncConnection` or an `AsyncSession`, await the result.

    A pooler that gives each transaction another connection, such as PgBouncer with `pool_mode = transaction`,
    knows a prepared statement by its name, and drivers name theirs by a counter of each process. The check
    compares the number of the server's process with the number that the driver was told, and reads how the
    server calls a statement. It sends one statement, with psycopg up to `prepare_threshold` more. On other
    databases than PostgreSQL it does nothing.

    A pooler of *sessions* looks the same from a client, and does no harm: do not call this function there.

    Args:
        connection: A connection or a session, asynchronous or not.

    Raises:
        TypeError: The argument is wrong.
        ConfigurationError: A pooler is between, and the driver names its prepared statements by a counter.
            The message has the settings of each driver.
        sqlalchemy.exc.DBAPIError: The database refused.

    Cancelled, it has changed nothing.
    """

    def check(target: Connection | Session) -> None:
        ensure_named_apart(_connection(target, _FENCE))

    return _run(connection, check)


@overload
def fence(
    connection: Blocking,
    *leases: AnyLease,
    names: Iterable[str] | None = None,
    table: sa.Table | None = None,
) -> None: ...


@overload
def fence(
    connection: Awaited,
    *leases: AnyLease,
    names: Iterable[str] | None = None,
    table: sa.Table | None = None,
) -> Coroutine[Any, Any, None]: ...


def fence(
    connection: Blocking | Awaited,
    *leases: AnyLease,
    names: Iterable[str] | None = None,
    table: sa.Table | None = None,
) -> Coroutine[Any, Any, None] | None:
    """Protects all writes of a transaction from a late holder. Call it first in the transaction.

    When the fence of a larger token has returned, no transaction with a smaller token of the same name
    commits: the fence waits for an open one, and refuses a later one. Think of the fence as a row that
    belongs to the newest lease. Each transaction has the row for itself until it ends. If the transaction is
    rolled back, its fence is undone, too. In a savepoint, the fence is undone when the savepoint is rolled
    back; then call it again.

    With an `AsyncConnection` or an `AsyncSession`, await the result. The fence needs a table: see
    `create_fence_table` and `fence_table`.

    - PostgreSQL: one statement, at each isolation level, whose answer says what it has written. It also sets
      `idle_in_transaction_session_timeout` for this transaction, to the time that is left of the lease. If
      this process is suspended, the server then ends the transaction, and the next holder goes on. A shorter
      setting stays.
    - SQLite: `BEGIN IMMEDIATE`, unless the driver has begun, and one statement. Only one transaction writes
      at a time. If a process is suspended, the next holder waits up to the driver's `timeout` (5 s by
      default).
    - MySQL, MariaDB: two statements. Nothing ends the transaction of a suspended process.

    Args:
        connection: A connection in a transaction, or a connection that begins one by itself, or a session,
            also a scoped one; each asynchronous or not. A session with several databases is asked for the one
            of an UPDATE of the table; if that is another one, give `session.connection(bind_arguments=…)`.
        leases: One lease or more, also of `aiolocks.sync`, in any order. Each must be of a lock that excludes
            all other holders of its name. The name of the lock is the name of its row.
        names: Names of the rows, if they are not the name of the lock. Use it for the lease of a `MultiLock`
            (`names=lock.names`), and if locks of different kinds or prefixes share a name. Only with one
            lease.
        table: The result of `fence_table`. Default: `aiolocks_fence`.

    Raises:
        TypeError, ValueError: An argument is wrong, or two rows have the same name; before any I/O.
        ConfigurationError: The connection commits each statement by itself, or its database is none of these.
            Or a pooler of transactions, such as PgBouncer, has run a statement of another program in place of
            the fence: let the error leave the transaction, and change the setting that the message names.
        LockLostError: A lease is no longer held; before any I/O.
        StaleFenceError: A later lease has passed. Let the error leave the transaction, so that it is rolled
            back. PostgreSQL commits nothing of the transaction in any case.
        sqlalchemy.exc.DBAPIError: The error of the database, unchanged. Run the transaction again after
            PostgreSQL's SQLSTATE 40001 (above READ COMMITTED: another fence has committed meanwhile) and
            40P01 (deadlock). 55P03 and 57014 come from your `lock_timeout` and `statement_timeout`. SQLite's
            `database is locked` means that another transaction writes.

    After a cancellation, roll the transaction back, as after each cancelled statement of the driver.

    The idea is that of *Fencing tokens* in "How to do distributed locking" (M. Kleppmann, 2016). The source,
    `aiolocks/contrib/_fences.py`, argues how the database must compare tokens.
    """
    described = _table(table)
    rows = None if names is None else tuple(names) if not isinstance(names, str) else names
    Passage.of(leases, rows)  # refuses bad arguments in this call, not where the result is awaited

    def passing(target: Connection | Session) -> None:
        opened = _connection(target, described)
        pass_fence(opened, described, Passage.of(leases, rows))  # a session may have waited for it

    return _run(connection, passing)


def fenced(statement: StatementT, lease: AnyLease, *, column: str = "fence") -> StatementT:
    """Protects one UPDATE or DELETE from a late holder, by a fencing token in each row.

    The statement skips rows whose token is larger than that of the lease. An UPDATE writes the lease's token
    into the rows. The statement needs no transaction and no other table. It protects only these rows: for
    several tables, and for INSERT, use `fence`. Behind a pooler of transactions, see `check_pooler`.

    ```python
    update = fenced(sa.update(account).where(account.c.id == 17).values(balance=150), lease)
    ensure_written(await connection.execute(update), lease)
    ```

    When a statement with a larger token has committed, no statement with a smaller token changes the row.
    Every statement that writes the row must be fenced. PostgreSQL at READ COMMITTED, MySQL and SQLite compare
    with the newest version of the row. PostgreSQL above READ COMMITTED raises SQLSTATE 40001 if the row was
    changed meanwhile.

    Args:
        statement: `sqlalchemy.update(…)` or `delete(…)` of a table or a mapped class.
        lease: A lease of a lock that excludes all other holders of its name.
        column: Name of the column with the token: `BIGINT`. `NULL` counts as an old token. Default `"fence"`.

    Raises:
        TypeError, ValueError: An argument is wrong, or the table has no such column.
        LockLostError: The lease is no longer held.
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


def ensure_written(result: object, lease: AnyLease) -> None:
    """Checks that a fenced statement has changed a row.

    Args:
        result: The result of `connection.execute()` or `session.execute()` for the statement.
        lease: The lease that the statement was fenced with.

    Raises:
        TypeError: The result is not that of an UPDATE or a DELETE, or its rows were not counted. Before
            SQLAlchemy 2.1, rows of RETURNING are not counted on SQLite.
        StaleFenceError: No row was changed: a later lease has written, or there is no such row. `seen` of the
            error is the smallest token that the later lease can have.
    """
    if not isinstance(result, CursorResult) or result.rowcount < 0:
        raise TypeError(f"ensure_written needs the result of an UPDATE or a DELETE, not {result!r}")
    if result.rowcount == 0:
        raise unwritten(lease.name, fencing_token=lease.fencing_token)


def _run(
    connection: object, step: Callable[[Connection | Session], ResultT]
) -> Coroutine[Any, Any, ResultT] | ResultT:
    """Takes the step, at once or where it is awaited."""
    if isinstance(connection, (scoped_session, async_scoped_session)):
        connection = cast("Any", connection)()
    if isinstance(connection, (AsyncConnection, AsyncSession)):
        return connection.run_sync(step)
    if isinstance(connection, (Connection, Session)):
        return step(connection)
    raise TypeError(
        "the first argument must be SQLAlchemy's Connection, AsyncConnection, Session or AsyncSession, "
        f"not {type(connection).__name__}"
    )


def _connection(target: Connection | Session, table: sa.Table) -> Connection:
    """The one that writes: a session may read from a replica, and decide by the statement."""
    if isinstance(target, Session):
        return target.connection(bind_arguments={"clause": sa.update(table)})
    return target


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
