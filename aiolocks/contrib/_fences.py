"""The parts that fences in SQL share: the rows that leases pass, PostgreSQL's statement, and the argument.

A fence is a row for each name, with the largest fencing token that has passed. `fence()` is called in a
transaction; it raises the row's token to that of the lease, or refuses a lease whose token is smaller than
the row's. The row stays locked until the transaction ends.

**Invariant.** Once the `fence()` of a larger token has returned, no transaction that a smaller token of the
same name has fenced commits. (If the transaction of the larger one is rolled back, its fence goes with it, as
do its writes: a smaller token can pass again, as if the larger one had never asked.)

Let S and L be transactions with the tokens s < l, and let both fences return. Both hold the row until they
end, S because it wrote the row and L for the same reason, and the database gives a written row to one
transaction at a time. So one of the two fences came first:

- *S first.* The fence of L waits until S has ended, and returns after that. Nothing is left that S could
  commit.
- *L first.* The fence of S waits until L has ended. If L has committed, the row's token is at least l > s,
  and S is refused. If L was rolled back, the row is as it was before.

It remains to be seen that "the row's token" is the newest one, that "written row" holds for the first fence
of a name, and that what is read after the fence has all that smaller tokens have written.

**PostgreSQL, READ COMMITTED.** The snapshot is taken for each statement, and the fence may have waited since
its own was. `ON CONFLICT DO UPDATE` does not rely on it: it locks the newest version of the row and computes
the new token from that. Each statement after the fence takes a newer snapshot, and so sees what S wrote. Two
first fences of a name meet in the unique index: the second waits for the transaction of the first.

**PostgreSQL, REPEATABLE READ and SERIALIZABLE.** The snapshot is that of the transaction's first statement. A
row that another transaction has changed since then cannot be updated: PostgreSQL raises 40001
(`serialization_failure`), which reaches the caller. A fence that returns has therefore found the row as its
snapshot shows it, so that this snapshot has all that smaller tokens have committed. For this the row must be
*written* by each fence, also by one whose token stands there already: were it only locked, a successor with
an older snapshot could pass after S has committed, and would not see what S wrote.

**SQLite.** A transaction that writes is the only one in the whole database that does. `BEGIN IMMEDIATE`
begins it as such, and its snapshot is taken when it has the write lock; without it, a transaction that has
read before the fence is refused with `database is locked` if anything was written since.

**MySQL and MariaDB.** InnoDB's `ON DUPLICATE KEY UPDATE` and `FOR UPDATE` lock and read the newest version.
Neither can return rows everywhere, so that the fence takes two statements there.

**No deadlock between fences.** One statement writes all rows of one `fence()`, in the order of the names'
bytes, whichever the order of the leases. A transaction that waits for a row has only smaller ones, so that
transactions cannot wait for each other in a circle.
The table has one unique index, so that each row is one thing to wait for. Fences in several calls of one
transaction, and other locks, can deadlock: 40P01 (`deadlock_detected`) reaches the caller.

**A frozen transaction.** A process that stands still leaves its transaction open, and its successor waits for
the row. The same statement that locks the row sets `idle_in_transaction_session_timeout`, for this
transaction only, to what the lease has left: PostgreSQL ends the session when it has waited that long for a
next statement. It is never set to more than it was. The successor gets the lock after the frozen one's lease
has ended, and waits for at most what that lease had left at the fence: the last statement cannot be later
than the freeze. SQLite and MySQL have nothing of the kind.

**A refusal is an error of the statement.** On PostgreSQL the value of that setting is the refusal itself if
there is one, which is no duration, so that the statement fails. The server rolls the transaction back, which
gives the rows free at once even if the refused process is frozen, and commits nothing of it even if the
program goes on after the error.

**Whether it was this statement.** Drivers name their prepared statements by a counter. A pooler that gives
each transaction another connection (PgBouncer in transaction mode, before 1.21 or without
`max_prepared_statements`) may run what another program has prepared there under the same name, without an
error. So the statement says what it has written, with its table and a number that was drawn for this call,
and `Passage.ensure_own` compares.
"""

from __future__ import annotations

import json
import re
import secrets
import sys
from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias, cast, final

from ..errors import ConfigurationError, StaleFenceError
from ..lock.lease import Lease
from ..lock.options import lock_name

if TYPE_CHECKING:
    from ..sync import Lease as SyncLease

AnyLease: TypeAlias = "Lease | SyncLease"
"""Of a task, or of a thread."""
TABLE: Final = "aiolocks_fence"
"""Name of the table, where no other is given."""

CREATE_KEY: Final = 0x61696F6C6F636B73
"""Of the advisory lock for making the table: two `CREATE TABLE IF NOT EXISTS` at once can collide."""

_LONGEST_MS: Final = 2**31 - 1
"""The longest duration that PostgreSQL takes."""

_SHARED: Final = ("semaphore", "limits", "rwlock.reader", "rangelock.")
"""The prefixes of the kinds whose leases may be held beside other leases of their name."""

REMEDY: Final = (
    "Let PgBouncer name them (1.21 and later, max_prepared_statements), or switch them off (asyncpg: "
    "statement_cache_size=0; SQLAlchemy with asyncpg: also prepared_statement_cache_size=0 and unique names "
    "from prepared_statement_name_func; psycopg: prepare_threshold=None)"
)
"""What to change where a pooler of transactions is between."""

_REFUSED: Final = re.compile(r"aiolocks: fencing token \d+ is older than (\d+), at place (\d+)")


@final
@dataclass(frozen=True, slots=True)
class Passage:
    """The rows that must be passed in one transaction.

    Invariant: the names are different and sorted by their bytes, so that all passages lock rows in one order.

    Attributes:
        names: Of the rows.
        tokens: The fencing token for each of them.
        left_ms: Milliseconds that the leases have left, the least of them; at least 1.
        nonce: What only the statement of this passage can have been given.
    """

    names: tuple[str, ...]
    tokens: tuple[int, ...]
    left_ms: int
    nonce: str = field(default_factory=lambda: secrets.token_hex(8))

    @classmethod
    def of(cls, leases: Collection[AnyLease], names: Iterable[str] | None) -> Self:
        """The passage for these leases, as they are now.

        Args:
            leases: Their names are the names of the rows.
            names: Names of the rows, where the one lease is to pass rows of other names.

        Raises:
            TypeError, ValueError: An argument is wrong.
            LockLostError: A lease is not held.
        """
        rows = _rows(leases, names)
        for lease in leases:
            lease.ensure_held()
        # A lease may have ended since; 0 would mean that there is no limit.
        left_ms = max(1, min(_LONGEST_MS, *(int(lease.remaining() * 1000) for lease in leases)))
        return cls(tuple(rows), tuple(rows.values()), left_ms)

    def ensure_passed(self, seen: Iterable[tuple[str, int]]) -> None:
        """Compares with the tokens that stand in the rows now.

        Raises:
            StaleFenceError: One of them is larger.
        """
        newest = dict(seen)
        for name, token in zip(self.names, self.tokens, strict=True):
            if newest[name] > token:
                raise stale(name, fencing_token=token, seen=newest[name])

    def ensure_own(self, table: str, rows: Iterable[Any]) -> None:
        """Compares what `on_postgresql` has returned with what this passage has sent.

        Args:
            table: Quoted.
            rows: Of one column each.

        Raises:
            ConfigurationError: Another statement has run instead.
        """
        said: list[Any] = [row[0] for row in rows]
        found: Any = None
        with suppress(ValueError, TypeError, KeyError):  # whatever another statement has said
            found = json.loads(said[0])[:-1] if len(said) == 1 else None
        if found != [self.nonce, table, list(self.names), list(self.tokens)]:
            raise another_statement("fence")

    def refusal(self, error: BaseException | None) -> StaleFenceError | None:
        """The one that the database has reported by this error; None if it is another error."""
        found = _REFUSED.search(str(error))
        if found is None:
            return None
        place = int(found[2]) - 1
        return stale(self.names[place], fencing_token=self.tokens[place], seen=int(found[1]))


def _of_threads() -> tuple[type[Any], ...]:
    """The class of the leases of `aiolocks.sync`, where the program has them."""
    module: Any = sys.modules.get("aiolocks.sync")
    return () if module is None else (module.Lease,)


def quoted(table: object) -> str:
    """The name of a table as PostgreSQL takes it, of `"name"` or `"schema.name"`."""
    if not isinstance(table, str):
        raise TypeError(f"table must be a str, not {type(table).__name__}")
    parts = table.split(".")
    if not all(parts):
        raise ValueError(f"table must be a name, or a schema and a name with a dot between, not {table!r}")
    return ".".join('"' + part.replace('"', '""') + '"' for part in parts)


def ensure_exclusive(lease: object) -> None:
    """Returns if no other lease of its name is held beside it.

    Raises:
        TypeError, ValueError: It is no lease, or one that may be shared.
    """
    if not isinstance(lease, (Lease, *_of_threads())):
        raise TypeError(f"a fence needs leases, as `async with Lock(…) as lease` gives, not {lease!r}")
    kind: str = cast("Any", lease).kind
    if kind.startswith(_SHARED):
        raise ValueError(
            f"{lease!r} may be held beside others of its name, so that no token of it is the newest: "
            "fence with a lease that excludes all others"
        )


def _rows(leases: Collection[AnyLease], names: Iterable[str] | None) -> dict[str, int]:
    if not leases:
        raise TypeError("a fence needs at least one lease, as in fence(connection, lease)")
    for lease in leases:
        ensure_exclusive(lease)
    if names is None:
        for lease in leases:
            if lease.kind == "multilock":
                raise ValueError("say which rows a MultiLock's lease passes: names=lock.names")
        named = [(lease.name, lease.fencing_token) for lease in leases]
    elif isinstance(names, str):
        raise TypeError(f"names must be several names, as in names=[{names!r}]")
    elif len(leases) > 1:
        raise ValueError(f"names are for one lease, not {len(leases)}: call fence for each of them")
    else:
        (lease,) = leases
        named = [(lock_name(name, "each of the names"), lease.fencing_token) for name in names]
    rows = dict(sorted(named, key=lambda row: row[0].encode()))
    if not rows or len(rows) < len(named):
        raise ValueError(
            f"the rows must have different names, and at least one: {[name for name, _ in named]}"
        )
    return rows


def stale(name: str, *, fencing_token: int, seen: int) -> StaleFenceError:
    """The error for a fence that was refused."""
    return _worded(
        StaleFenceError(name, fencing_token=fencing_token, seen=seen),
        f"fence {name!r} refused the transaction: fencing token {fencing_token} is older than {seen}, "
        "which has passed already; the lease was lost, and a later one has written",
    )


def unwritten(name: str, *, fencing_token: int) -> StaleFenceError:
    """The error for a fenced statement that has changed nothing."""
    return _worded(
        StaleFenceError(name, fencing_token=fencing_token, seen=fencing_token + 1),
        f"no row was written under {name!r}: fencing token {fencing_token} is older than that in the row, "
        "or there is no such row",
    )


def _worded(error: StaleFenceError, message: str) -> StaleFenceError:
    error.args = (message,)  # its own speaks of a FencedRegister
    return error


def another_statement(what: str) -> ConfigurationError:
    """The error for a statement of ours in whose place the database has run another one."""
    return ConfigurationError(
        f"the database has run another statement in place of the {what}: a pooler of transactions, such as "
        "PgBouncer, is between, and the driver names its prepared statements by a counter. Nothing protects "
        f"this transaction: roll it back. {REMEDY}"
    )


def unreadable(error: BaseException | None) -> bool:
    """Whether the driver could not read the answer to a statement, because it is that to another one."""
    while error is not None:
        # The last is asyncpg's own.
        if isinstance(error, (UnicodeDecodeError, BufferError)) or type(error).__name__ == "ProtocolError":
            return True
        error = error.__cause__
    return False


def on_postgresql(table: str, names: str, tokens: str, left_ms: str, nonce: str) -> str:
    """The one statement of a fence.

    Args:
        table: Quoted.
        names: The driver's placeholder for an array of text: sorted, for rows are locked in this order.
        tokens: That for an array of bigint, one for each name.
        left_ms: That for an int.
        nonce: That for a text.

    It returns one row with one text, for `Passage.ensure_own`. Refused, it fails with 22023
    (`invalid_parameter_value`) and a text for `Passage.refusal`.
    """
    literal = table.replace("'", "''")
    return f"""
WITH lease AS (
    SELECT * FROM unnest(CAST({names} AS text[]), CAST({tokens} AS bigint[]))
        WITH ORDINALITY AS lease (name, token, place)
), passed AS (
    INSERT INTO {table} AS fence (name, token)
    SELECT name, token FROM lease ORDER BY place
    ON CONFLICT (name) DO UPDATE SET token = greatest(fence.token, excluded.token)
    RETURNING name, token
)
SELECT CAST(json_build_array(
    CAST({nonce} AS text), '{literal}',
    array_agg(passed.name ORDER BY place), array_agg(passed.token ORDER BY place),
    set_config('idle_in_transaction_session_timeout', coalesce(
        min('aiolocks: fencing token ' || lease.token || ' is older than ' || passed.token
            || ', at place ' || lease.place || ': ' || lease.name) FILTER (WHERE passed.token > lease.token),
        least(
            CAST({left_ms} AS bigint),
            nullif(CAST(extract(epoch FROM
                CAST(current_setting('idle_in_transaction_session_timeout') AS interval)
            ) * 1000 AS bigint), 0)
        )::text
    ), true)
) AS text)
FROM lease JOIN passed ON passed.name = lease.name
"""  # noqa: S608 - placeholders and a quoted name
