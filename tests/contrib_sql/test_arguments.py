"""Arguments that are not as they should be, and connections that cannot be fenced."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session as OrmSession

from aiolocks import ConfigurationError, Limits, Lock, RangeLock, RWLock, Semaphore, Session
from aiolocks.contrib.sqlalchemy import create_fence_table, fence, fenced
from tests.contrib_sql.conftest import Late
from tests.contrib_sql.databases import ACCOUNT, FENCE, Database

CREATE = sa.create_engine("sqlite://")


@pytest.fixture
def untouched() -> sa.Connection:
    """A connection that nothing may be sent over."""
    return sa.Connection(CREATE, connection=_Nothing())  # type: ignore[arg-type]


class _Nothing:
    """In place of the driver's connection."""


async def test_leases_and_names(session: Session, late: Late, untouched: sa.Connection) -> None:
    _, lease = await late("orders")
    for wrong, message in [
        ((), "at least one lease"),
        (("orders",), "needs leases"),
        ((Lock(session, "orders"),), "needs leases"),
        ((lease.fencing_token,), "needs leases"),
    ]:
        with pytest.raises(TypeError, match=message):
            fence(untouched, *wrong)  # type: ignore[call-overload]
    with pytest.raises(ValueError, match="different names"):
        fence(untouched, lease, lease)
    with pytest.raises(ValueError, match="names are for one lease"):
        fence(untouched, lease, (await late("prices"))[1], names=["a"])
    with pytest.raises(TypeError, match=r"names=\['orders'\]"):
        fence(untouched, lease, names="orders")
    for names in ([], ["a", "a"]):
        with pytest.raises(ValueError, match="different names"):
            fence(untouched, lease, names=names)
    with pytest.raises(TypeError, match="each of the names must be a str"):
        fence(untouched, lease, names=[7])  # type: ignore[list-item]
    with pytest.raises(TypeError, match="table must be what fence_table"):
        fence(untouched, lease, table="aiolocks_fence")  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="first argument must be SQLAlchemy's Connection"):
        fence(CREATE, lease)  # type: ignore[call-overload]


async def test_leases_that_others_may_hold_too(session: Session, untouched: sa.Connection) -> None:
    table = RangeLock(session, "range")
    permits = [Semaphore(session, "s", 2), Limits(session, "l", {"all": 2})]
    shared: list[Any] = [*permits, RWLock(session, "rw").reader, table.writer(1, 2)]
    for lock in shared:
        async with lock as lease:
            with pytest.raises(ValueError, match="may be held beside others of its name"):
                fence(untouched, lease)
    for alone in (RWLock(session, "w").writer, RWLock(session, "u").upgradable):
        async with alone as lease:
            with pytest.raises(AttributeError):  # it came to the connection
                fence(untouched, lease)


async def test_the_lease_of_a_multilock_wants_its_names(session: Session, untouched: sa.Connection) -> None:
    from aiolocks import MultiLock

    async with MultiLock(session, ["a", "b"]) as lease:
        with pytest.raises(ValueError, match=r"names=lock\.names"):
            fence(untouched, lease)


async def test_autocommit_is_refused(database: Database, engine: AsyncEngine, late: Late) -> None:
    _, lease = await late("orders")
    ways = [
        engine.execution_options(isolation_level="AUTOCOMMIT"),
        create_async_engine(database.url, isolation_level="AUTOCOMMIT"),
    ]
    for way in ways:
        async with way.connect() as connection:
            with pytest.raises(ConfigurationError, match="commits each statement by itself"):
                await fence(connection, lease)
        await way.dispose()
    if database.is_postgresql:
        driver = sa.create_engine(database.blocking_url, connect_args={"autocommit": True})
        with driver.connect() as blocking, pytest.raises(ConfigurationError):
            fence(blocking, lease)
        driver.dispose()
    async with engine.connect() as connection:
        assert (await connection.execute(sa.select(FENCE))).all() == []


async def test_other_databases_are_refused(late: Late, monkeypatch: pytest.MonkeyPatch) -> None:
    _, lease = await late("orders")
    engine = sa.create_engine("sqlite://")
    monkeypatch.setattr(engine.dialect, "name", "oracle")
    with engine.connect() as connection:
        with pytest.raises(ConfigurationError, match="not on oracle"):
            fence(connection, lease)
    engine.dispose()


async def test_an_async_session_that_is_bound_late(
    database: Database, engine: AsyncEngine, late: Late
) -> None:
    _, lease = await late("orders")
    async with async_sessionmaker(engine).begin() as orm:
        await fence(orm, lease)


async def test_a_session_that_reads_from_a_replica(tmp_path: Path, late: Late) -> None:
    """And decides by the statement, as the example of SQLAlchemy's documentation does."""
    _, lease = await late("orders")
    leader, follower = (sa.create_engine(f"sqlite:///{tmp_path / name}") for name in ("leader", "follower"))

    class Routing(OrmSession):
        def get_bind(self, mapper: Any = None, *, clause: Any = None, **_: Any) -> sa.Engine:
            return leader if self._flushing or isinstance(clause, (sa.Update, sa.Delete)) else follower

    with Routing() as orm:
        create_fence_table(orm)
        fence(orm, lease)
        orm.commit()
    with leader.connect() as connection:
        assert connection.execute(sa.select(FENCE)).all() == [("orders", lease.fencing_token)]
    assert sa.inspect(follower).get_table_names() == []
    leader.dispose()
    follower.dispose()


async def test_fenced(late: Late, session: Session) -> None:
    _, lease = await late("orders")
    with pytest.raises(TypeError, match="not Insert; for others, begin the transaction with fence"):
        fenced(sa.insert(ACCOUNT), lease)  # type: ignore[type-var]
    with pytest.raises(ValueError, match="has no column 'token'"):
        fenced(sa.update(ACCOUNT), lease, column="token")
    with pytest.raises(TypeError, match="needs leases"):
        fenced(sa.update(ACCOUNT), 5)  # type: ignore[arg-type]
    async with Semaphore(session, "s", 2) as permit:
        with pytest.raises(ValueError, match="may be held beside others"):
            fenced(sa.update(ACCOUNT), permit)


def test_create_fence_table_wants_a_connection() -> None:
    with pytest.raises(TypeError, match="first argument"):
        create_fence_table("postgresql://")  # type: ignore[call-overload]


def test_the_import_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "sqlalchemy"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(sys.modules, "aiolocks.contrib.sqlalchemy")
    monkeypatch.setitem(sys.modules, "sqlalchemy", None)  # as if it were not there
    with pytest.raises(ModuleNotFoundError, match=r"needs sqlalchemy: pip install '\.\[sqlalchemy\]'"):
        importlib.import_module("aiolocks.contrib.sqlalchemy")


def test_asyncpg_needs_no_sqlalchemy_and_aiolocks_neither() -> None:
    code = (
        "import sys, aiolocks, aiolocks.contrib.asyncpg; "
        "print({'sqlalchemy', 'asyncpg', 'aiosqlite'} & set(sys.modules))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "set()\n"
