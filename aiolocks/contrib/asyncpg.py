"""Fences in PostgreSQL through asyncpg: transactions that refuse a holder who is too late.

```python
async with Lock(redis, "orders") as lease, pool.acquire() as connection, connection.transaction():
    await fence(connection, lease)
    await connection.execute(...)  # from here on, nobody with an older lease commits
```
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from ..errors import ConfigurationError
from ..lock.lease import Lease
from ._fences import CREATE_KEY, TABLE, Passage, on_postgresql

__all__ = ["Connection", "create_fence_table", "fence"]


class Connection(Protocol):
    """The part of `asyncpg.Connection` that is used, and of the result of `pool.acquire()`."""

    def is_in_transaction(self) -> bool:
        """Whether a transaction is open."""
        ...

    def transaction(self) -> Any:
        """A transaction, or a savepoint in one."""
        ...

    async def execute(self, query: str, *args: Any) -> Any:
        """Runs it."""
        ...


async def create_fence_table(connection: Connection, *, table: str = TABLE) -> None:
    """Makes the table that `fence` needs, unless it is there; any number of processes may do so at once.

    It has one row for each name that was fenced: the name, and the largest fencing token that has passed. It
    is the same as that of `aiolocks.contrib.sqlalchemy`, so that programs with either can share it.

    Args:
        connection: Of asyncpg. In a transaction, the table is part of it.
        table: Name of the table, as `"name"` or `"schema.name"`.

    Raises:
        TypeError, ValueError: The name is not as it should be.
        asyncpg.PostgresError: The database refused.

    Cancelled, it may have made the table or not.
    """
    quoted = _quoted(table)
    async with connection.transaction():
        await connection.execute("SELECT pg_advisory_xact_lock($1)", CREATE_KEY)
        await connection.execute(
            f"CREATE TABLE IF NOT EXISTS {quoted} (name text PRIMARY KEY, token bigint NOT NULL)"
        )


async def fence(
    connection: Connection, *leases: Lease, names: Iterable[str] | None = None, table: str = TABLE
) -> None:
    """Makes all writes of a transaction safe from a holder who is too late; its first statement.

    Once the fence of a larger token has returned, no transaction with the fence of a smaller token of the
    same name commits: an open one is waited for, and a later one is refused. Think of it as a row that
    belongs to the newest lease, and that each transaction has to itself until its end. If the transaction is
    rolled back, its fence is undone too. In a savepoint, it is undone when that is rolled back, and has to be
    called again.

    It is one statement, at each isolation level, and needs a table: `create_fence_table`. It also sets
    `idle_in_transaction_session_timeout` for this transaction, to the seconds that the lease has left: if
    this process stands still, the server ends the transaction then, and the successor goes on. A shorter one
    stays as it is.

    Args:
        connection: Of asyncpg, in a transaction.
        leases: One or more, in any order, each of a lock that excludes all others of its name. The row
            of each has the lock's name.
        names: Of the rows instead: for the lease of a `MultiLock` (`names=lock.names`), and where locks of
            different kinds or prefixes share a name. For one lease.
        table: Name of the table, as `"name"` or `"schema.name"`.

    Raises:
        TypeError, ValueError: An argument is wrong, or two rows have one name; before any I/O.
        ConfigurationError: The connection is in no transaction; before any I/O.
        LockLostError: A lease is not held any more; before any I/O.
        StaleFenceError: A later lease has passed. PostgreSQL commits nothing of this transaction any more.
        asyncpg.PostgresError: From the database, as it is. `SerializationError` (above READ COMMITTED,
            another fence has committed meanwhile) and `DeadlockDetectedError` want the transaction to be run
            again; `LockNotAvailableError` and `QueryCanceledError` come from your `lock_timeout` and
            `statement_timeout`.

    Cancelled while it waits, it leaves the transaction to be rolled back, as each statement of asyncpg does.

    After *Fencing tokens* in "How to do distributed locking" (M. Kleppmann, 2016); how the store has to
    compare is argued in the source, `aiolocks/contrib/_fences.py`.
    """
    statement = on_postgresql(_quoted(table), "$1", "$2", "$3")
    passage = Passage.of(leases, names)
    if not connection.is_in_transaction():
        raise ConfigurationError(
            "a fence protects a transaction, and this connection commits each statement by itself: "
            "enter connection.transaction() before"
        )
    try:
        await connection.execute(statement, passage.names, passage.tokens, passage.left_ms)
    except Exception as error:
        refusal = passage.refusal(error)
        if refusal is None:
            raise
        raise refusal from error


def _quoted(table: object) -> str:
    if not isinstance(table, str):
        raise TypeError(f"table must be a str, not {type(table).__name__}")
    parts = table.split(".")
    if not all(parts):
        raise ValueError(f"table must be a name, or a schema and a name with a dot between, not {table!r}")
    return ".".join('"' + part.replace('"', '""') + '"' for part in parts)
