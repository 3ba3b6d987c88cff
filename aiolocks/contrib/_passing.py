"""How a transaction of SQLAlchemy passes its fence, by the dialect of its database."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.dialects import mysql, sqlite
from sqlalchemy.engine import Connection
from sqlalchemy.exc import DBAPIError

from ..errors import ConfigurationError
from ._fences import REMEDY, Passage, another_statement, unreadable
from ._fences import on_postgresql as statement_for_postgresql

_PROCESS: Final = ("get_server_pid", "backend_pid", "get_backend_pid")
"""How asyncpg, psycopg and psycopg2 call the process of the server that a connection was told of."""

_COUNTED: Final = re.compile(r"__asyncpg_stmt_[0-9a-f]+__|_pg3_\d+|pg8000_statement_\d+")
_MIXED_UP: Final = ("26000", "42P05")
"""What the server says of a name that it does not know, or knows already."""
_MOST_RUNS: Final = 20


def pass_fence(connection: Connection, table: sa.Table, passage: Passage) -> None:
    """Returns when the transaction has passed.

    Raises:
        ConfigurationError: The connection has no transactions, or its database no fences.
        StaleFenceError: A later lease has passed.
        DBAPIError: The database refused for another reason.
    """
    _refuse_autocommit(connection)
    on_dialect = _DIALECTS.get(connection.dialect.name)
    if on_dialect is None:
        raise ConfigurationError(
            f"fences work on PostgreSQL, SQLite, MySQL and MariaDB, not on {connection.dialect.name}"
        )
    on_dialect(connection, table, passage)


def ensure_named_apart(connection: Connection) -> None:
    """Returns unless a pooler is between that may run what another program has prepared.

    A pooler has process numbers of its own for its clients. One that names prepared statements itself, as
    PgBouncer from 1.21 on, is seen by their names at the server.

    Raises:
        ConfigurationError: The driver counts its prepared statements, behind a pooler.
        DBAPIError: The database refused.
    """
    driver: Any = connection.connection.driver_connection
    if connection.dialect.name != "postgresql":
        return
    info: Any = getattr(driver, "info", driver)  # psycopg's
    own = next((getattr(info, name) for name in _PROCESS if hasattr(info, name)), None)
    own = own() if callable(own) else own
    mark = f"aiolocks-{secrets.token_hex(8)}"
    question = sa.text(
        "SELECT CAST(pg_backend_pid() AS text), "  # noqa: S608 - hexadecimal digits
        f"(SELECT max(name) FROM pg_prepared_statements WHERE strpos(statement, '{mark}') > 0)"
    )
    # psycopg prepares a statement when it has run so often.
    for _ in range(1 + min(_MOST_RUNS, getattr(driver, "prepare_threshold", None) or 0)):
        try:
            rows: Any = connection.execute(question)
        except DBAPIError as error:
            if getattr(error.orig, "sqlstate", None) not in _MIXED_UP:
                raise
            raise _counted("") from error
        process, name = rows.one()
        if process == str(own):
            return
        if name is not None and _COUNTED.fullmatch(name):
            raise _counted(f", such as {name!r},")


def _counted(such_as: str) -> ConfigurationError:
    return ConfigurationError(
        f"the driver names its prepared statements by a counter{such_as} and a pooler is between. If it "
        "pools transactions, as PgBouncer can, it may run what another program has prepared under a name. "
        f"{REMEDY}"
    )


def _refuse_autocommit(connection: Connection) -> None:
    """A fence that is committed by itself would protect nothing."""
    chosen = connection.get_execution_options().get("isolation_level")
    chosen = chosen or getattr(connection.dialect, "_on_connect_isolation_level", None)
    driver: object = getattr(connection.connection.dbapi_connection, "autocommit", None)
    if chosen == "AUTOCOMMIT" or driver is True:  # not all drivers have it; some have a method of this name
        raise ConfigurationError(
            "a fence protects a transaction, and this connection commits each statement by itself: "
            "use another isolation_level than AUTOCOMMIT"
        )


def _on_postgresql(connection: Connection, table: sa.Table, passage: Passage) -> None:
    quoted = _quoted(connection, table)
    escaped = quoted.replace(":", "\\:")  # which would begin a parameter
    statement = sa.text(statement_for_postgresql(escaped, ":names", ":tokens", ":left_ms", ":nonce"))
    values = {
        "names": list(passage.names),
        "tokens": list(passage.tokens),
        "left_ms": passage.left_ms,
        "nonce": passage.nonce,
    }
    try:
        rows: Any = connection.execute(statement, values).all()
    except Exception as error:
        reported = error.orig if isinstance(error, DBAPIError) else None
        refusal = another_statement("fence") if unreadable(error) else passage.refusal(reported)
        if refusal is None:
            raise
        raise refusal from error
    passage.ensure_own(quoted, rows)


def _quoted(connection: Connection, table: sa.Table) -> str:
    """The name of the table for a statement in text, of which SQLAlchemy does not translate the schema."""
    preparer = connection.dialect.identifier_preparer
    name, schema = preparer.format_table(table, use_schema=False), connection.schema_for_object(table)
    return f"{preparer.quote_schema(schema)}.{name}" if schema else name


def _on_sqlite(connection: Connection, table: sa.Table, passage: Passage) -> None:
    if not connection.in_transaction():
        connection.begin()  # a listener of the program may send its own BEGIN now
    if not getattr(connection.connection.driver_connection, "in_transaction", False):
        connection.exec_driver_sql("BEGIN IMMEDIATE")
    given = sqlite.insert(table).values(_values(passage))
    newest = sa.func.max(table.c.token, given.excluded.token)
    statement = given.on_conflict_do_update(index_elements=[table.c.name], set_={"token": newest})
    passage.ensure_passed(_pairs(connection.execute(statement.returning(table.c.name, table.c.token))))


def _on_mysql(connection: Connection, table: sa.Table, passage: Passage) -> None:
    write, read = statements_for_mysql(table, passage)
    connection.execute(write)
    seen: Any = connection.execute(read)
    passage.ensure_passed(_pairs(seen))


def statements_for_mysql(table: sa.Table, passage: Passage) -> tuple[mysql.Insert, Any]:
    """The statements that write the rows, and that read them as they are then."""
    given = mysql.insert(table).values(_values(passage))
    newest = sa.func.greatest(table.c.token, given.inserted.token)
    rows = sa.select(table.c.name, table.c.token).where(table.c.name.in_(passage.names))
    return given.on_duplicate_key_update(token=newest), rows.with_for_update()


def _values(passage: Passage) -> list[dict[str, Any]]:
    rows = zip(passage.names, passage.tokens, strict=True)
    return [{"name": name, "token": token} for name, token in rows]


def _pairs(rows: Iterable[Any]) -> list[tuple[str, int]]:
    return [(row[0], row[1]) for row in rows]


_DIALECTS: Final = {
    "postgresql": _on_postgresql,
    "sqlite": _on_sqlite,
    "mysql": _on_mysql,
    "mariadb": _on_mysql,
}
