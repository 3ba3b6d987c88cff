"""`fenced`: one statement that leaves rows with a larger token alone; and synchronous programs."""

from __future__ import annotations

import asyncio
import pickle

import pytest
import sqlalchemy as sa
from sqlalchemy import orm
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession

from aiolocks import StaleFenceError
from aiolocks.contrib.sqlalchemy import create_fence_table, ensure_written, fence, fenced
from tests.contrib_sql.conftest import Late
from tests.contrib_sql.databases import ACCOUNT, FENCE, NOTE


class Base(orm.DeclarativeBase):
    metadata = sa.MetaData()


class Account(Base):
    __table__ = ACCOUNT.to_metadata(Base.metadata)


@pytest.fixture(params=[None, 0])
async def account(request: pytest.FixtureRequest, engine: AsyncEngine) -> None:
    async with engine.begin() as connection:
        await connection.execute(sa.insert(ACCOUNT).values(id=17, balance=100, fence=request.param))
        await connection.execute(sa.insert(ACCOUNT).values(id=18, balance=100, fence=request.param))


async def test_an_update_or_a_delete_that_is_too_late_changes_nothing(
    engine: AsyncEngine, account: None, late: Late
) -> None:
    early, later = await late("account:17")
    of_17 = sa.update(ACCOUNT).where(ACCOUNT.c.id == 17)
    async with engine.begin() as connection:
        for lease, balance in ((early, 120), (later, 150), (later, 160)):
            ensure_written(await connection.execute(fenced(of_17.values(balance=balance), lease)), lease)
        for statement in (of_17.values(balance=90), sa.delete(ACCOUNT).where(ACCOUNT.c.id == 17)):
            result = await connection.execute(fenced(statement, early))
            with pytest.raises(StaleFenceError, match=r"^no row was written under 'account:17'") as caught:
                ensure_written(result, early)
            assert caught.value.seen == early.fencing_token + 1
            assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
        rows = (await connection.execute(sa.select(ACCOUNT).order_by(ACCOUNT.c.id))).all()
    assert rows[0] == (17, 160, later.fencing_token)
    assert rows[1].balance == 100
    async with engine.begin() as connection:
        gone = sa.delete(ACCOUNT).where(ACCOUNT.c.id == 17)
        ensure_written(await connection.execute(fenced(gone, later)), later)


async def test_mapped_classes(engine: AsyncEngine, account: None, late: Late) -> None:
    early, later = await late("account:17")
    async with AsyncSession(engine) as session, session.begin():
        mine = await session.get_one(Account, 17)
        update = sa.update(Account).where(Account.id == 17)
        ensure_written(await session.execute(fenced(update.values(balance=150), later)), later)
        await session.refresh(mine)
        assert (mine.balance, mine.fence) == (150, later.fencing_token)
        with pytest.raises(StaleFenceError):
            ensure_written(await session.execute(fenced(update.values(balance=90), early)), early)


@pytest.mark.parametrize("database", ["postgresql-read-committed"], indirect=True)
async def test_returning(engine: AsyncEngine, account: None, late: Late) -> None:
    early, later = await late("account:17")
    update = sa.update(ACCOUNT).values(balance=1).where(ACCOUNT.c.id == 17).returning(ACCOUNT.c.id)
    async with engine.begin() as connection:
        result = await connection.execute(fenced(update, later))
        ensure_written(result, later)
        assert result.all() == [(17,)]
        with pytest.raises(StaleFenceError):
            ensure_written(await connection.execute(fenced(update, early)), early)


async def test_what_ensure_written_cannot_tell(late: Late) -> None:
    _, lease = await late("account:17")
    for wrong in (None, 0, sa.update(ACCOUNT)):
        with pytest.raises(TypeError, match="needs the result of an UPDATE or a DELETE"):
            ensure_written(wrong, lease)


async def test_synchronous_programs(blocking_engine: sa.Engine, late: Late) -> None:
    early, later = await late("orders")

    def work() -> None:
        with blocking_engine.begin() as connection:
            create_fence_table(connection)
            fence(connection, early)
            connection.execute(sa.insert(NOTE).values(name="orders", writer="early"))
        with orm.Session(blocking_engine) as session, session.begin():
            fence(session, later)
            session.execute(sa.insert(NOTE).values(name="orders", writer="later"))
        with orm.Session(blocking_engine) as session, pytest.raises(StaleFenceError), session.begin():
            fence(session, early)
        with blocking_engine.connect() as connection:
            assert connection.scalars(sa.select(NOTE.c.writer)).all() == ["early", "later"]
            assert connection.scalars(sa.select(FENCE.c.token)).all() == [later.fencing_token]

    await asyncio.to_thread(work)
