"""The types that a type checker sees of fences in a program. It is checked by mypy and pyright, and never
run."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, assert_type

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession, async_scoped_session
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, scoped_session

from aiolocks import Lease, MultiLock
from aiolocks.contrib import asyncpg
from aiolocks.contrib.sqlalchemy import create_fence_table, ensure_written, fence, fence_table, fenced


class Base(DeclarativeBase):
    pass


class Account(Base):
    __tablename__ = "account"

    id: Mapped[int] = mapped_column(primary_key=True)
    balance: Mapped[int]
    fence: Mapped[int] = mapped_column(sa.BigInteger, default=0)


async def asynchronous(engine: AsyncEngine, lock: MultiLock, lease: Lease, other: Lease) -> None:
    table = fence_table(Base.metadata, name="shop_fence", schema="shop")
    async with engine.begin() as connection:
        await create_fence_table(connection, table=table)
        await fence(connection, lease, other, table=table)
        await fence(connection, lease, names=lock.names)
        update = sa.update(Account).where(Account.id == 17).values(balance=150)
        ensure_written(await connection.execute(fenced(update, lease)), lease)
    async with AsyncSession(engine) as session, session.begin():
        await fence(session, lease)
        ensure_written(await session.execute(fenced(sa.delete(Account), lease, column="fence")), lease)


def synchronous(engine: sa.Engine, lease: Lease) -> None:
    with engine.begin() as connection:
        create_fence_table(connection)
        fence(connection, lease)
    with Session(engine) as session, session.begin():
        fence(session, lease)
        ensure_written(session.execute(fenced(sa.update(Account).values(balance=1), lease)), lease)


async def scoped(
    tasks: async_scoped_session[AsyncSession], threads: scoped_session[Session], lease: Lease
) -> None:
    await fence(tasks, lease)
    fence(threads, lease)


def kinds(connection: AsyncConnection, lease: Lease) -> None:
    _ = assert_type(fence(connection, lease), Coroutine[Any, Any, None])
    assert_type(fenced(sa.update(Account), lease), sa.Update)
    assert_type(fenced(sa.delete(Account), lease), sa.Delete)


def mistakes(engine: AsyncEngine, connection: sa.Connection, lease: Lease) -> None:
    fence(engine, lease)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
    fence(connection, "orders")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
    fenced(sa.insert(Account), lease)  # type: ignore[type-var]  # pyright: ignore[reportArgumentType]


async def forgotten(connection: AsyncConnection, lease: Lease) -> None:
    fence(connection, lease)  # type: ignore[unused-coroutine]  # pyright: ignore[reportUnusedCoroutine]


async def with_asyncpg(connection: asyncpg.Connection, lease: Lease) -> None:
    await asyncpg.create_fence_table(connection, table="shop.fence")
    await asyncpg.fence(connection, lease, lease, table="shop.fence")
