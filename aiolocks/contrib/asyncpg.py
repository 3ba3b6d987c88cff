"""Fences in PostgreSQL through asyncpg: transactions that refuse the writes of a late holder.

```python
async with Lock(redis, "orders") as lease, pool.acquire() as connection, connection.transaction():
    await fence(connection, lease)
    await connection.execute(...)  # from now on, no transaction with an older lease commits
```
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from ..errors import ConfigurationError
from ._fences import CREATE_KEY, TABLE, AnyLease, Passage, another_statement, on_postgresql, unreadable
from ._fences import quoted as quoted_name

__all__ = ["Connection", "create_fence_table", "fence"]


def __dir__() -> list[str]:
    """The public names alone."""
    return [*__all__]


class Connection(Protocol):
    """The part of `asyncpg.Connection` that the fences use. The result of `pool.acquire()` has it, too."""

    def is_in_transaction(self) -> bool:
        """Whether a transaction is open."""
        ...

    def transaction(self) -> Any:
        """A new transaction or, inside a transaction, a savepoint."""
        ...

    async def execute(self, query: str, *args: Any) -> Any:
        """Runs a statement."""
        ...

    async def fetch(self, query: str, *args: Any) -> Any:
        """Runs a statement, and returns its rows."""
        ...


async def create_fence_table(connection: Connection, *, table: str = TABLE) -> None:
    """Makes the table that `fence` needs, if it is missing. Several processes may call this at the same time.

    The table has one row for each fenced name: the name, and the largest fencing token that has passed. It is
    the same table as that of `aiolocks.contrib.sqlalchemy`, so programs with either of them can share it.

    Args:
        connection: A connection of asyncpg. In a transaction, the table is part of the transaction.
        table: Name of the table, as `"name"` or `"schema.name"`. Default `"aiolocks_fence"`.

    Raises:
        TypeError, ValueError: The name is wrong.
        asyncpg.PostgresError: The database refused.

    After a cancellation, the table may have been made or not.
    """
    quoted = quoted_name(table)
    async with connection.transaction():
        await connection.execute("SELECT pg_advisory_xact_lock($1)", CREATE_KEY)
        await connection.execute(
            f"CREATE TABLE IF NOT EXISTS {quoted} (name text PRIMARY KEY, token bigint NOT NULL)"
        )


async def fence(
    connection: Connection, *leases: AnyLease, names: Iterable[str] | None = None, table: str = TABLE
) -> None:
    """Protects all writes of a transaction from a late holder. Call it first in the transaction.

    When the fence of a larger token has returned, no transaction with a smaller token of the same name
    commits: the fence waits for an open one, and refuses a later one. Think of the fence as a row that
    belongs to the newest lease. Each transaction has the row for itself until it ends. If the transaction is
    rolled back, its fence is undone, too. In a savepoint, the fence is undone when the savepoint is rolled
    back; then call it again.

    The fence is one statement, at each isolation level, and its answer says what it has written. It needs a
    table: see `create_fence_table`. It also
    sets `idle_in_transaction_session_timeout` for this transaction, to the time that is left of the lease. If
    this process is suspended, the server then ends the transaction, and the next holder goes on. A shorter
    setting stays.

    Args:
        connection: A connection of asyncpg, in a transaction.
        leases: One lease or more, also of `aiolocks.sync`, in any order. Each must be of a lock that excludes
            all other holders of its name. The name of the lock is the name of its row.
        names: Names of the rows, if they are not the name of the lock. Use it for the lease of a `MultiLock`
            (`names=lock.names`), and if locks of different kinds or prefixes share a name. Only with one
            lease.
        table: Name of the table, as `"name"` or `"schema.name"`. Default `"aiolocks_fence"`.

    Raises:
        TypeError, ValueError: An argument is wrong, or two rows have the same name; before any I/O.
        ConfigurationError: The connection is not in a transaction; before any I/O. Or a pooler of
            transactions, such as PgBouncer, has run a statement of another program in place of the fence: let
            the error leave the transaction, and change the setting that the message names.
        LockLostError: A lease is no longer held; before any I/O.
        StaleFenceError: A later lease has passed. PostgreSQL commits nothing of this transaction any more.
        asyncpg.PostgresError: The error of the database, unchanged. Run the transaction again after a
            `SerializationError` (above READ COMMITTED: another fence has committed meanwhile) and a
            `DeadlockDetectedError`. `LockNotAvailableError` and `QueryCanceledError` come from your
            `lock_timeout` and `statement_timeout`.

    After a cancellation, roll the transaction back, as after each cancelled statement of asyncpg.

    The idea is that of *Fencing tokens* in "How to do distributed locking" (M. Kleppmann, 2016). The source,
    `aiolocks/contrib/_fences.py`, argues how the database must compare tokens.
    """
    quoted = quoted_name(table)
    statement = on_postgresql(quoted, "$1", "$2", "$3", "$4")
    passage = Passage.of(leases, names)
    if not connection.is_in_transaction():
        raise ConfigurationError(
            "a fence protects a transaction, and this connection commits each statement by itself: "
            "enter connection.transaction() before"
        )
    try:
        rows = await connection.fetch(
            statement, passage.names, passage.tokens, passage.left_ms, passage.nonce
        )
    except Exception as error:
        refusal = another_statement("fence") if unreadable(error) else passage.refusal(error)
        if refusal is None:
            raise
        raise refusal from error
    passage.ensure_own(quoted, rows)
