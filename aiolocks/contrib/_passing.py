"""How a transaction of SQLAlchemy passes its fence, by the dialect of its database."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.dialects import mysql, sqlite
from sqlalchemy.engine import Connection
from sqlalchemy.exc import DBAPIError

from ..errors import ConfigurationError
from ._fences import Passage
from ._fences import on_postgresql as statement_for_postgresql


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
    quoted = connection.dialect.identifier_preparer.format_table(table)
    escaped = quoted.replace(":", "\\:")  # which would begin a parameter
    statement = sa.text(statement_for_postgresql(escaped, ":names", ":tokens", ":left_ms"))
    values = {"names": list(passage.names), "tokens": list(passage.tokens), "left_ms": passage.left_ms}
    try:
        connection.execute(statement, values)
    except DBAPIError as error:
        refusal = passage.refusal(error.orig)
        if refusal is None:
            raise
        raise refusal from error


def _on_sqlite(connection: Connection, table: sa.Table, passage: Passage) -> None:
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
