"""Fences in PostgreSQL through psycopg 3: transactions that refuse the writes of a late holder.

```python
with locks.lock("orders") as lease, psycopg.connect(url) as connection:
    fence(connection, lease)
    connection.execute(...)  # from now on, no transaction with an older lease commits
```
"""

from __future__ import annotations

from collections.abc import Coroutine, Iterable
from typing import TYPE_CHECKING, Any, Final, cast, overload

from .._extras import install

try:
    import psycopg
except ModuleNotFoundError as error:
    if error.name != "psycopg":
        raise
    raise ModuleNotFoundError(
        f"aiolocks.contrib.psycopg needs psycopg: {install('psycopg')}", name=error.name
    ) from error

from psycopg import AsyncConnection, AsyncCursor, AsyncRawCursor, Connection, Cursor, RawCursor
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from ..errors import ConfigurationError
from ._fences import CREATE_KEY, TABLE, Passage, another_statement, on_postgresql, quoted, unreadable

if TYPE_CHECKING:
    from ._fences import AnyLease

__all__ = ["create_fence_table", "fence"]

_KEY: Final = f"SELECT pg_advisory_xact_lock({CREATE_KEY})"


def __dir__() -> list[str]:
    """The public names alone."""
    return [*__all__]


@overload
def create_fence_table(connection: Connection[Any], *, table: str = TABLE) -> None: ...


@overload
def create_fence_table(
    connection: AsyncConnection[Any], *, table: str = TABLE
) -> Coroutine[Any, Any, None]: ...


def create_fence_table(
    connection: Connection[Any] | AsyncConnection[Any], *, table: str = TABLE
) -> Coroutine[Any, Any, None] | None:
    """Makes the table that `fence` needs, if it is missing. Several processes may call this at the same time.

    With an `AsyncConnection`, await the result. It is the same table as that of `aiolocks.contrib.sqlalchemy`
    and `aiolocks.contrib.asyncpg`, so programs with any of them can share it.

    Args:
        connection: A connection of psycopg. In a transaction, the table is part of the transaction.
        table: Name of the table, as `"name"` or `"schema.name"`. Default `"aiolocks_fence"`.

    Raises:
        TypeError, ValueError: An argument is wrong.
        psycopg.Error: The database refused.

    After a cancellation or an error, the table may have been made or not.
    """
    create = cast(
        "Any", f"CREATE TABLE IF NOT EXISTS {quoted(table)} (name text PRIMARY KEY, token bigint NOT NULL)"
    )
    if isinstance(connection, AsyncConnection):

        async def make() -> None:
            async with connection.transaction():
                await connection.execute(cast("Any", _KEY), prepare=False)
                await connection.execute(create, prepare=False)

        return make()
    _only(connection)
    with connection.transaction():
        connection.execute(cast("Any", _KEY), prepare=False)
        connection.execute(create, prepare=False)
    return None


@overload
def fence(
    connection: Connection[Any], *leases: AnyLease, names: Iterable[str] | None = None, table: str = TABLE
) -> None: ...


@overload
def fence(
    connection: AsyncConnection[Any],
    *leases: AnyLease,
    names: Iterable[str] | None = None,
    table: str = TABLE,
) -> Coroutine[Any, Any, None]: ...


def fence(
    connection: Connection[Any] | AsyncConnection[Any],
    *leases: AnyLease,
    names: Iterable[str] | None = None,
    table: str = TABLE,
) -> Coroutine[Any, Any, None] | None:
    """Protects all writes of a transaction from a late holder. Call it first in the transaction.

    As `aiolocks.contrib.asyncpg.fence`, which says what it promises. With an `AsyncConnection`, await the
    result. It needs a table: see `create_fence_table`. The statement is never prepared, so a pooler of
    transactions cannot run another one in its place; its answer is compared all the same.

    Args:
        connection: A connection of psycopg 3, asynchronous or not, that is in a transaction or begins one by
            itself. In `transaction.atomic()` of Django, `connection.connection` is one.
        leases: One lease or more, of `aiolocks` or of `aiolocks.sync`, in any order. Each must be of a lock
            that excludes all other holders of its name. The name of the lock is the name of its row.
        names: Names of the rows, if they are not the name of the lock. Only with one lease.
        table: Name of the table, as `"name"` or `"schema.name"`. Default `"aiolocks_fence"`.

    Raises:
        TypeError, ValueError: An argument is wrong, or two rows have the same name; before any I/O.
        ConfigurationError: The connection commits each statement by itself; before any I/O. Or the database
            has run another statement in place of the fence.
        LockLostError: A lease is no longer held; before any I/O.
        StaleFenceError: A later lease has passed. PostgreSQL commits nothing of this transaction any more.
        psycopg.Error: The error of the database, unchanged. Run the transaction again after a
            `SerializationFailure` (above READ COMMITTED: another fence has committed meanwhile) and a
            `DeadlockDetected`.

    After a cancellation, roll the transaction back, as after each cancelled statement of psycopg.
    """
    named = quoted(table)
    placeholders = (f"%({name})s" for name in ("names", "tokens", "left_ms", "nonce"))
    statement = cast("Any", on_postgresql(named.replace("%", "%%"), *placeholders))
    passage = Passage.of(leases, names)
    values = {
        "names": list(passage.names),
        "tokens": list(passage.tokens),
        "left_ms": passage.left_ms,
        "nonce": passage.nonce,
    }

    def failed(error: Exception) -> Exception:
        refusal = another_statement("fence") if unreadable(error) else passage.refusal(error)
        return error if refusal is None else refusal

    if isinstance(connection, AsyncConnection):
        _ensure_transaction(connection)

        async def passing() -> None:
            try:
                cursor: AsyncCursor[Any] = connection.cursor(row_factory=tuple_row)
                if isinstance(cursor, AsyncRawCursor):  # it has no named placeholders
                    cursor = AsyncCursor(connection, row_factory=tuple_row)
                rows = await (await cursor.execute(statement, values, prepare=False)).fetchall()
            except psycopg.Error as error:
                if (other := failed(error)) is error:
                    raise
                raise other from error
            passage.ensure_own(named, rows)

        return passing()
    _only(connection)
    _ensure_transaction(connection)
    try:
        cursor: Cursor[Any] = connection.cursor(row_factory=tuple_row)
        if isinstance(cursor, RawCursor):  # it has no named placeholders
            cursor = Cursor(connection, row_factory=tuple_row)
        rows = cursor.execute(statement, values, prepare=False).fetchall()
    except psycopg.Error as error:
        if (other := failed(error)) is error:
            raise
        raise other from error
    passage.ensure_own(named, rows)
    return None


def _only(connection: object) -> None:
    if not isinstance(connection, Connection):
        raise TypeError(
            "the first argument must be a Connection or an AsyncConnection of psycopg 3, not "
            f"{type(connection).__name__}"
        )


def _ensure_transaction(connection: Connection[Any] | AsyncConnection[Any]) -> None:
    if connection.autocommit and connection.info.transaction_status is TransactionStatus.IDLE:
        raise ConfigurationError(
            "a fence protects a transaction, and this connection commits each statement by itself: "
            "enter connection.transaction() before"
        )
