"""`aiolocks top` knows all of a few names, and of very many as much as one look may cost."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from redis.asyncio import Redis

from aiolocks import FairLock, Leadership, Lock, Schedule, Session, Tick
from aiolocks.inspect.census import Census
from aiolocks.lock.sources import engine_of
from tests.cli.test_top import held

AT_ONCE = 50
"""Names that a look reads when it has no time at all."""


@pytest.fixture
async def session(redis: Redis) -> AsyncIterator[Session]:
    async with Session(redis, wakeup="poll") as session:
        yield session


async def calls(redis: Redis) -> int:
    """Commands that the server has executed, those in scripts among them."""
    stats = await redis.info("commandstats")
    return sum(one["calls"] for one in stats.values())


async def test_of_a_few_names_each_look_knows_all(session: Session) -> None:
    census = Census(engine_of(session), "[!a]*")
    async with Lock(session, "one"), FairLock(session, "two"), Lock(session, "another"):
        read = await census.look(0, ())
        assert {(one.place, one.before) for one in read} == {
            (("lock", "one"), None),
            (("fairlock", "two"), None),
        }
        assert [one.now for one in await census.look(0, ())] == [info for _, info in census.ranked()]
        assert (census.complete, census.names, census.holders) == (True, 2, 2)
        assert [(info.kind, info.name) for info in census.first(9)] == [("lock", "one"), ("fairlock", "two")]
        assert [info.name for info in census.first(1)] == ["one"]
    await census.look(0, ())
    assert (census.complete, census.names, census.first(9)) == (True, 0, [])


@pytest.mark.leaves_keys
async def test_schedules_and_leaderships_are_known_while_nobody_runs_or_leads(session: Session) -> None:
    census = Census(engine_of(session), "*")
    nightly = Schedule(session, "nightly", every=3600)
    nightly(at_once)
    await nightly.trigger()
    async with Leadership(session, "lead"):
        pass
    await census.look(0, ())
    assert sorted(census.lasting) == [("leadership", "lead"), ("schedule", "nightly")]
    assert census.ranked() == []


async def at_once(tick: Tick) -> None:
    """Is over at once."""


async def test_a_single_name(session: Session) -> None:
    census = Census(engine_of(session), "one[*]")
    async with Lock(session, "one*"), Lock(session, "one"):
        await census.look(0, ())
    assert [info.name for info in census.first(9)] == ["one*"]
    assert census.complete


async def test_of_many_names_a_look_reads_some_and_those_that_are_shown(
    session: Session, redis: Redis
) -> None:
    census = Census(engine_of(session), "*")
    async with held(redis, 1_000, waited_for=999):
        await census.look(0, ())
        assert not census.complete
        assert AT_ONCE / 2 <= census.read <= AT_ONCE
        while census.read < 1_000:
            before = await calls(redis)
            shown = census.first(5)
            read = census.read
            await census.look(0, shown)
            assert read <= census.read <= read + AT_ONCE
            assert await calls(redis) - before < 20 * (AT_ONCE + len(shown))
        assert not census.complete
        assert (census.names, census.holders, census.waiters) == (1_000, 1_000, 1)
        assert [info.name for info in census.first(3)] == ["name:999", "name:0", "name:1"]

        shown = census.first(3)
        await redis.delete("aiolocks:lock:{name:0}")
        await census.look(0, shown)
        assert "name:0" not in [info.name for info in census.first(3)]
    for _ in range(3):
        await census.look(1, ())
    assert (census.complete, census.names, census.first(9)) == (True, 0, [])


@pytest.mark.leaves_keys("aiolocks:*")
async def test_what_is_not_ours_is_there_while_it_is_there(session: Session, redis: Redis) -> None:
    census = Census(engine_of(session), "*")
    await redis.set("aiolocks:text", "x")
    for _ in range(3):
        await census.look(0, ())
        assert [(info.kind, info.name) for info in census.first(9)] == [("?", "text")]
        assert census.names == 1
    await redis.delete("aiolocks:text")
    await census.look(0, ())
    await census.look(0, ())
    assert census.first(9) == []
