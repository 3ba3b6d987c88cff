"""The effect of `fence` on PostgreSQL alone: the limit for a transaction that stands still, refusals,
deadlocks."""

from __future__ import annotations

import asyncio
import contextlib
import random
from datetime import timedelta

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from aiolocks import Lease, Lock, Session, StaleFenceError
from aiolocks.contrib.sqlalchemy import fence
from tests.contrib_sql.conftest import Late
from tests.contrib_sql.databases import FENCE, NOTE, STATEMENT_ERRORS, session_was_ended, sqlstate

SLACK = 3.0
"""Seconds for which a busy machine may stand still."""


async def idle_limit(connection: AsyncConnection) -> str:
    limit = await connection.scalar(sa.text("SHOW idle_in_transaction_session_timeout"))
    assert isinstance(limit, str)
    return limit


async def test_the_limit_is_what_the_lease_has_left_and_ends_with_the_transaction(
    pg_engine: AsyncEngine, late: Late
) -> None:
    _, lease = await late("orders")
    async with pg_engine.connect() as connection:
        await fence(connection, lease)
        limit = int((await idle_limit(connection)).removesuffix("ms"))
        assert (lease.ttl - 5) * 1000 <= limit <= lease.ttl * 1000  # it may have been renewed since
        await connection.commit()
        assert await idle_limit(connection) == "0"


@pytest.mark.parametrize("limit", ["700ms", "5s", "0.1min"])
async def test_a_shorter_limit_stays(pg_engine: AsyncEngine, late: Late, limit: str) -> None:
    _, lease = await late("orders")
    async with pg_engine.connect() as connection:
        await connection.execute(sa.text(f"SET idle_in_transaction_session_timeout = '{limit}'"))
        await connection.commit()
        before = await idle_limit(connection)
        await fence(connection, lease)
        assert await idle_limit(connection) == before
        await connection.invalidate()


@pytest.mark.parametrize("ttl", [0.4, 10 * 365 * 86400])
async def test_the_least_of_several_leases_counts_and_the_longest_fits(
    pg_engine: AsyncEngine, session: Session, ttl: float
) -> None:
    async with (
        Lock(session, "a", ttl=timedelta(days=3650)) as long,
        Lock(session, "b", ttl=timedelta(seconds=ttl)) as short,
    ):
        async with pg_engine.connect() as connection:
            await fence(connection, long, short)
            limit = await idle_limit(connection)
            await connection.rollback()
    if ttl < 1:
        assert 0 < int(limit.removesuffix("ms")) <= 400
    else:
        assert limit == f"{2**31 - 1}ms"


async def test_the_server_ends_what_stands_still_and_its_successor_goes_on(
    pg_engine: AsyncEngine, late: Late, session: Session
) -> None:
    async with Lock(session, "orders", ttl=0.4, auto_renew=False, on_lost="ignore") as frozen:
        connection = await pg_engine.connect()
        await fence(connection, frozen)
        await connection.execute(sa.insert(NOTE).values(name="orders", writer="frozen"))
        begun = asyncio.get_running_loop().time()
        await asyncio.sleep(0.4)
    async with Lock(session, "orders") as lease, pg_engine.begin() as successor:
        await fence(successor, lease)
        assert asyncio.get_running_loop().time() - begun <= 0.4 + SLACK
        assert (await successor.scalars(sa.select(NOTE))).all() == []
    with pytest.raises(STATEMENT_ERRORS) as caught:
        await connection.execute(sa.insert(NOTE).values(name="orders", writer="frozen"))
    assert session_was_ended(caught.value)
    await connection.close()


async def test_nothing_commits_after_a_refusal_even_if_the_program_goes_on(
    pg_engine: AsyncEngine, late: Late
) -> None:
    early, later = await late("orders")
    async with pg_engine.begin() as connection:
        await fence(connection, later)
    async with pg_engine.connect() as connection:
        await connection.execute(sa.insert(NOTE).values(name="orders", writer="before the fence"))
        with pytest.raises(StaleFenceError):
            await fence(connection, early)
        with pytest.raises(DBAPIError) as caught:
            await connection.execute(sa.insert(NOTE).values(name="orders", writer="after the refusal"))
        assert sqlstate(caught.value) == "25P02"
        await connection.commit()
    async with pg_engine.connect() as connection:
        assert (await connection.scalars(sa.select(NOTE))).all() == []


async def test_a_refused_transaction_is_in_nobodys_way(pg_engine: AsyncEngine, late: Late) -> None:
    early, later = await late("orders")
    async with pg_engine.begin() as connection:
        await fence(connection, later)
    async with pg_engine.connect() as refused:
        with pytest.raises(StaleFenceError):
            await fence(refused, early)  # and nothing behind it: as if its process stood still now
        async with asyncio.timeout(5), pg_engine.begin() as connection:
            await fence(connection, later)


async def test_several_fences_in_one_call_never_deadlock(pg_engine: AsyncEngine, session: Session) -> None:
    names = [f"n{number}" for number in range(6)]
    async with asyncio.timeout(30), contextlib.AsyncExitStack() as stack:
        leases = [await stack.enter_async_context(Lock(session, name, ttl=60)) for name in names]

        async def transactions(seed: int) -> None:
            chance = random.Random(seed)
            for _ in range(10):
                some = chance.sample(leases, chance.randint(2, len(leases)))
                async with pg_engine.begin() as connection:
                    await fence(connection, *some)
                    await asyncio.sleep(chance.uniform(0, 0.003))

        await asyncio.gather(*(transactions(seed) for seed in range(10)))


async def test_the_databases_errors_reach_the_caller(pg_engine: AsyncEngine, late: Late) -> None:
    _, a = await late("a")
    _, b = await late("b")
    both = asyncio.Barrier(2)

    async def crosswise(*leases: Lease) -> None:
        async with pg_engine.begin() as connection:
            await fence(connection, leases[0])
            await both.wait()
            await fence(connection, leases[1])

    first, second = await asyncio.gather(crosswise(a, b), crosswise(b, a), return_exceptions=True)
    (error,) = (found for found in (first, second) if found is not None)
    assert sqlstate(error) == "40P01"

    async with pg_engine.begin() as holding, pg_engine.connect() as waiting:
        await fence(holding, a)
        for setting, state in (("lock_timeout", "55P03"), ("statement_timeout", "57014")):
            await waiting.execute(sa.text(f"SET LOCAL {setting} = '50ms'"))
            with pytest.raises(DBAPIError) as caught:
                await fence(waiting, a)
            assert sqlstate(caught.value) == state
            await waiting.rollback()
        await waiting.execute(sa.text("SET TRANSACTION READ ONLY"))
        with pytest.raises(DBAPIError) as caught:
            await fence(waiting, a)
        assert sqlstate(caught.value) == "25006"


async def test_the_row_is_written_also_by_a_token_that_stands_there(
    pg_engine: AsyncEngine, late: Late
) -> None:
    # Otherwise a transaction with an older snapshot could pass, and would not see what that one wrote.
    _, lease = await late("orders")
    versions = set()
    for _ in range(3):
        async with pg_engine.begin() as connection:
            await fence(connection, lease)
            versions.add(await connection.scalar(sa.text("SELECT xmin::text FROM aiolocks_fence")))
    assert len(versions) == 3


async def test_a_fence_outlives_the_savepoint_that_has_fenced_again(
    pg_engine: AsyncEngine, late: Late
) -> None:
    early, later = await late("orders")
    async with pg_engine.connect() as connection:
        await fence(connection, early)
        savepoint = await connection.begin_nested()
        await fence(connection, early)
        await savepoint.rollback()
        # The transaction still has the rows that the savepoint has given up.
        async with pg_engine.connect() as successor:
            await successor.execute(sa.text("SET LOCAL lock_timeout = '50ms'"))
            with pytest.raises(DBAPIError) as caught:
                await fence(successor, later)
            assert sqlstate(caught.value) == "55P03"
        await connection.rollback()
    async with pg_engine.connect() as connection:
        assert (await connection.execute(sa.select(FENCE))).all() == []
