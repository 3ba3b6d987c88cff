"""Records in the user's own transaction: effect and record commit together, or neither."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session as OrmSession

from aiolocks import Session
from aiolocks.contrib.idempotency import Stored, _once
from aiolocks.contrib.idempotency._keys import name_of, stored_name
from aiolocks.contrib.idempotency._once import Once
from aiolocks.contrib.idempotency._policy import Policy
from aiolocks.contrib.idempotency._problems import Failed, Problem
from aiolocks.contrib.idempotency._record import Record, Unkept
from aiolocks.contrib.idempotency.sqlalchemy import SQLAlchemyStore, _Transaction
from tests.conftest import Connect
from tests.contrib.ledgers import METADATA, PAYMENTS, database, payments, store_of
from tests.support.postgres import postgres_url

ANSWER = Record(201, ((b"a", b"b"),), b"\0paid\xff")


@pytest.fixture(params=["sqlite", "READ COMMITTED", "SERIALIZABLE"])
async def engine(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[AsyncEngine]:
    isolation = None if request.param == "sqlite" else request.param
    url = f"sqlite+aiosqlite:///{tmp_path / 'test.db'}"
    if isolation is not None:
        url = postgres_url(request.getfixturevalue("postgres"), "asyncpg")
    async with database(url, isolation=isolation) as engine:
        async with engine.begin() as connection:
            await connection.run_sync(METADATA.drop_all)
            await connection.run_sync(METADATA.create_all)
            await connection.execute(sa.text("DROP TABLE IF EXISTS aiolocks_idempotency"))
        yield engine


@pytest.fixture
async def store(engine: AsyncEngine) -> SQLAlchemyStore:
    store = store_of(engine)
    async with engine.begin() as connection:
        await store.create(connection)
        await store.create(connection)  # is there already
    return store


class Desk:
    """Requests to one service with a store, without HTTP."""

    def __init__(self, session: Session, store: SQLAlchemyStore, **options: Any) -> None:
        self._session = session
        self._store = store
        self._once = Once(Policy.of({"store": store, **options}))
        self.asked = 0

    async def ask(self, answer: Any = ANSWER, *, key: str = "k", fingerprint: str = "f" * 64) -> Any:
        async def work() -> Record | Unkept:
            self.asked += 1
            await (await self._store.session()).execute(sa.insert(PAYMENTS).values(key=key))
            if isinstance(answer, BaseException):
                raise answer
            given: Record | Unkept = await answer() if callable(answer) else answer
            return given

        return await self._once.serve(
            self._session, asker="me", key=key, fingerprint=fingerprint, route="r", work=work
        )


async def test_a_session_that_reads_from_a_replica_and_wants_no_execute(tmp_path: Path) -> None:
    """By the statement, as in the example of SQLAlchemy's documentation; SQLModel's warns of `execute()`."""
    leader, follower = (
        create_async_engine(f"sqlite+aiosqlite:///{tmp_path / name}") for name in ("leader", "follower")
    )

    class Routing(OrmSession):
        def get_bind(self, mapper: Any = None, *, clause: Any = None, **_: Any) -> Any:
            writes = self._flushing or isinstance(clause, (sa.Update, sa.Delete))
            return (leader if writes else follower).sync_engine

    class OfAModel(AsyncSession):
        sync_session_class = Routing

        async def execute(self, *_: Any, **__: Any) -> Any:
            raise DeprecationWarning("you probably want to use exec()")

    store = SQLAlchemyStore(async_sessionmaker(class_=OfAModel), metadata=sa.MetaData())
    async with leader.begin() as connection:
        await store.create(connection)
    for _ in range(2):
        async with store.transaction() as transaction:
            await transaction.commit("k", Stored("f" * 64, b"x"), keep=-1)
    assert await store.purge() == 1
    async with store.transaction() as transaction:
        await transaction.commit("k", Stored("f" * 64, b"x"), keep=60)
    assert await store.find("k") == Stored("f" * 64, b"x")
    await leader.dispose()
    await follower.dispose()


async def test_effect_and_record_commit_together(
    session: Session, store: SQLAlchemyStore, engine: AsyncEngine
) -> None:
    desk = Desk(session, store)
    answers = [await desk.ask() for _ in range(3)]
    assert answers == [ANSWER] * 3
    assert [answer.of_another for answer in answers] == [False, True, True]
    with pytest.raises(Problem, match=r"^422"):
        await desk.ask(fingerprint="g" * 64)
    assert (desk.asked, await payments(engine)) == (1, {"k": 1})


async def test_what_is_not_kept_is_rolled_back(
    session: Session, store: SQLAlchemyStore, engine: AsyncEngine
) -> None:
    desk = Desk(session, store)
    with pytest.raises(RuntimeError, match="out of money"):
        await desk.ask(RuntimeError("out of money"))
    assert (await desk.ask(Failed(answer=Record(503, (), b"")))).status == 503
    with pytest.raises(Problem, match=r"^500"):
        await desk.ask(Unkept("the answer is streamed"))
    assert await payments(engine) == {}
    assert await desk.ask() == ANSWER
    assert (desk.asked, await payments(engine)) == (4, {"k": 1})


async def test_a_refusal_is_kept_without_its_effects(
    session: Session, store: SQLAlchemyStore, engine: AsyncEngine
) -> None:
    desk = Desk(session, store)
    for _ in range(2):
        assert (await desk.ask(Record(402, (), b"no"))).body == b"no"
    assert (desk.asked, await payments(engine)) == (1, {})


async def test_of_two_at_the_same_time_one_commits(
    session: Session, store: SQLAlchemyStore, engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a failover, where two processes have the run of one key."""
    begun = asyncio.Barrier(2)
    desk = Desk(session, store)
    postgres = engine.dialect.name == "postgresql"  # SQLite lets one write at a time

    async def receipt(number: int) -> Record:
        if postgres:
            await begun.wait()
        return Record(201, (), b"%d" % number)

    monkeypatch.setattr(_once.SingleFlight, "do", unguarded)
    answers = await asyncio.gather(*[desk.ask(partial(receipt, number)) for number in (1, 2)])
    assert answers[0] == answers[1]
    assert sorted(answer.of_another for answer in answers) == [False, True]  # one of the two has made it
    assert desk.asked == 2 or not postgres
    assert await payments(engine) == {"k": 1}


async def unguarded(_flight: Any, _name: str, fn: Any, **_: Any) -> Any:
    return await fn()


async def test_a_commit_whose_confirmation_is_lost_is_found(
    session: Session, store: SQLAlchemyStore, engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = Desk(session, store)
    commit = _Transaction.commit

    async def lost(transaction: Any, key: str, record: Stored, *, keep: float) -> None:
        await commit(transaction, key, record, keep=keep)
        raise ConnectionError("the database is gone")

    async def refused(transaction: Any, key: str, record: Stored, *, keep: float) -> None:
        raise ConnectionError("the database is gone")

    monkeypatch.setattr(_Transaction, "commit", refused)
    with pytest.raises(ConnectionError):
        await desk.ask()
    assert await payments(engine) == {}
    monkeypatch.setattr(_Transaction, "commit", lost)
    answer = await desk.ask()
    assert (answer, answer.of_another) == (ANSWER, False)
    assert await payments(engine) == {"k": 1}


async def test_records_end_with_keep(session: Session, store: SQLAlchemyStore, engine: AsyncEngine) -> None:
    desk = Desk(session, store, keep=1)
    await desk.ask()
    await asyncio.sleep(1.05)
    await desk.ask()  # in place of the one that has ended
    assert await payments(engine) == {"k": 2}
    assert await store.purge() == 0
    await asyncio.sleep(1.05)
    assert await store.purge() == 1


async def test_outside_of_a_request_there_is_no_session(store: SQLAlchemyStore) -> None:
    with pytest.raises(RuntimeError, match="no transaction with an idempotency key"):
        await store.session()


async def test_the_primary_key_decides(store: SQLAlchemyStore) -> None:
    record = Stored("f" * 64, b"a")
    async with store.transaction() as transaction:
        await transaction.commit("k", record, keep=60)
    with pytest.raises(IntegrityError):
        async with store.transaction() as transaction:
            await transaction.commit("k", record, keep=60)
    assert await store.find("k") == record
    assert await store.find("l") is None


async def test_services_with_other_prefixes_share_a_table_and_no_answers(
    session: Session, connect: Connect, store: SQLAlchemyStore, engine: AsyncEngine, prefix: str
) -> None:
    async with Session(connect(), prefix=f"{prefix}:other") as there:
        first, second = Desk(session, store), Desk(there, store)
        other = Record(201, (), b"of the other service")
        for _ in range(2):
            assert await first.ask() == ANSWER
            assert await second.ask(other, fingerprint="g" * 64) == other
        assert await second.ask(other, key="l") == other
        assert await first.ask(key="l") == ANSWER
    assert (first.asked, second.asked) == (2, 2)
    assert await payments(engine) == {"k": 2, "l": 2}


async def test_records_of_earlier_versions_count_on(
    session: Session, store: SQLAlchemyStore, engine: AsyncEngine
) -> None:
    """Their keys had no prefix; as long as they are kept, what they tell is not done again."""
    async with store.transaction() as transaction:
        await transaction.commit(name_of("me", "k"), Stored("f" * 64, ANSWER.dumps()), keep=60)
    desk = Desk(session, store)
    assert await desk.ask() == ANSWER
    with pytest.raises(Problem, match=r"^422"):
        await desk.ask(fingerprint="g" * 64)
    assert (desk.asked, await payments(engine)) == (0, {})
    assert await desk.ask(key="l") == ANSWER


@pytest.mark.parametrize("prefix", ["a", "a:b", "a" * 1024, "\N{EURO SIGN}" * 300, "#"])
def test_the_key_of_a_record_fits_its_column_and_tells_prefixes_apart(prefix: str) -> None:
    keys = {stored_name(each, name_of("me", "k" * 255)) for each in (prefix, f"{prefix}b", f"{prefix}:")}
    assert len(keys) == 3
    assert all(key.isascii() and len(key) <= 250 for key in keys)
