"""A value that is replaced in the background: no reader waits, and one session makes it."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from redis.asyncio import Redis

from aiolocks import FingerprintError, LockTimeoutError, Session, SingleFlight
from aiolocks.kinds import singleflight as keeping
from aiolocks.kinds.singleflight import PAUSE
from tests.adversity.flights import TRACKING, Work, joined, running, within
from tests.adversity.test_teardown import run as run_script
from tests.adversity.tools import AT_ONCE, Start, begin
from tests.conftest import Connect
from tests.support.cancel import Shot, sweep
from tests.support.proxy import Proxy
from tests.support.waiting import eventually

pytestmark = pytest.mark.leaves_keys("aiolocks:singleflight*")

READERS = 10_000
RUN, VALUE = "aiolocks:singleflight:{k}", "aiolocks:singleflight.value:{k}"


def cached(session: Session) -> SingleFlight:
    return SingleFlight(session, ttl=10, keep=60, stale=60)


def made(value: Any) -> Work:
    work = Work(value)
    work.end.set()
    return work


async def old_value(flight: SingleFlight, redis: Redis) -> None:
    """The value there has been kept for long enough."""
    assert await flight.do("k", made("old")) == "old"
    await redis.hset(VALUE, "fresh", 1)


async def renewed(flight: SingleFlight, value: str) -> None:
    work = made("nobody needs it")

    async def is_there() -> bool:
        return await flight.do("k", work) == value

    await eventually(is_there, within=30)
    assert work.begun == 0


# -- who waits, and who makes it -----------------------------------------------------------------------------


@TRACKING
async def test_10_000_readers_at_the_end_of_keep_are_one_run_and_none_of_them_waits(
    start: Start, redis: Redis
) -> None:
    flights = [SingleFlight(start(), ttl=60, keep=60, stale=60) for _ in range(4)]
    assert await flights[0].do("k", made("old")) == "old"
    work = Work("new")

    async def read(flight: SingleFlight) -> str:
        return await flight.do("k", work)

    # The first readers come before the value has ended, the last ones after that; the run lasts for longer.
    readers = []
    for number in range(READERS):
        if number == READERS // 2:
            await redis.hset(VALUE, "fresh", 1)
        readers.append(begin(read(flights[number % 4])))
        if number % 500 == 0:
            await asyncio.sleep(0.03)
    assert await asyncio.gather(*readers) == ["old"] * READERS
    await eventually(lambda: work.begun, within=30)
    assert [await read(flight) for flight in flights] == ["old"] * 4
    work.end.set()
    for flight in flights:
        await renewed(flight, "new")
    assert work.begun == 1


async def test_a_value_that_is_fresh_is_not_made_anew(session: Session) -> None:
    flight, work = cached(session), made("new")
    assert await flight.do("k", made("old")) == "old"
    before = session.statistics().commands_sent
    assert await flight.do("k", work) == "old"
    assert (session.statistics().commands_sent, work.begun) == (before + 1, 0)


async def test_readers_beside_the_one_that_makes_it_anew_ask_the_server_and_do_not_wait(
    session: Session, redis: Redis
) -> None:
    """In the same session too."""
    flight, work = cached(session), Work("new")
    await old_value(flight, redis)
    assert await flight.do("k", work) == "old"
    await running(work, session)
    before = session.statistics().commands_sent
    for _ in range(3):
        assert await flight.do("k", work, blocking_timeout=0) == "old"
    assert session.statistics().commands_sent == before + 3
    work.end.set()
    await renewed(flight, "new")
    assert work.begun == 1


@TRACKING
async def test_several_that_find_it_due_at_once_make_it_once(start: Start, redis: Redis) -> None:
    """The others do not wait for that, neither their callers nor in the queue."""
    sessions = [start() for _ in range(8)]
    flights = [cached(session) for session in sessions]
    await old_value(flights[0], redis)
    assert [await flight.do("connected", made(1)) for flight in flights] == [1] * 8
    work = Work("new")
    assert await asyncio.gather(*(flight.do("k", work) for flight in flights)) == ["old"] * 8
    await eventually(lambda: sum(session.statistics().leases_held for session in sessions) == 1)
    await eventually(lambda: not any(session._engine.waiting for session in sessions))
    work.end.set()
    for flight in flights:
        await renewed(flight, "new")
    assert work.begun == 1


async def test_readers_that_have_joined_ask_for_the_run_once(session: Session, redis: Redis) -> None:
    flight, work = cached(session), Work("new")
    await old_value(flight, redis)
    before = session.statistics().commands_sent
    assert await asyncio.gather(*(flight.do("k", work) for _ in range(100))) == ["old"] * 100
    await running(work, session)
    assert session.statistics().commands_sent == before + 2
    work.end.set()
    await renewed(flight, "new")


@TRACKING
async def test_when_even_the_stale_value_has_ended_callers_wait_for_the_run(
    start: Start, redis: Redis
) -> None:
    here, there = start(), start()
    work = Work("new")
    await old_value(cached(here), redis)
    assert await cached(here).do("k", work) == "old"
    await running(work, here)
    await redis.hset(VALUE, "until", 1)
    with pytest.raises(LockTimeoutError):
        await cached(here).do("k", work, blocking_timeout=0)
    waiting = [await joined(there, cached(there), "k", work), begin(cached(here).do("k", work))]
    await asyncio.sleep(0.05)
    work.end.set()
    assert await within(AT_ONCE, *waiting) == ["new", "new"]
    assert work.begun == 1


async def test_it_is_made_anew_early_by_what_it_has_cost(
    session: Session, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    flight, work = SingleFlight(session, keep=60, early=1), made("new")
    assert await flight.do("k", made("old")) == "old"
    await redis.hset(VALUE, "cost", 10_000)
    monkeypatch.setattr(keeping.random, "random", lambda: 0.9)  # 2.3 times the cost
    assert await flight.do("k", work) == "old"
    await redis.hset(VALUE, "cost", 30_000)
    assert await flight.do("k", work, early=0) == "old"
    assert work.begun == 0
    assert await flight.do("k", work) == "old"
    await renewed(SingleFlight(session, keep=60), "new")
    assert work.begun == 1


async def test_the_cost_is_the_time_that_the_function_took(session: Session, redis: Redis) -> None:
    async def last() -> str:
        await asyncio.sleep(0.05)
        return "made"

    await SingleFlight(session, keep=60).do("k", last)
    assert 50 <= int(await redis.hget(VALUE, "cost")) < 5_000


async def test_jitter_shortens_what_is_kept(session: Session, redis: Redis) -> None:
    shares = []
    for number in range(20):
        key = f"aiolocks:singleflight.value:{{k{number}}}"
        await SingleFlight(session, keep=100, jitter=0.5).do(f"k{number}", made("old"))
        at, fresh = await redis.hmget(key, "at", "fresh")
        shares.append((int(fresh) - int(at) / 1000) / 100_000)
    assert all(0.499 < share <= 1.001 for share in shares)
    assert max(shares) - min(shares) > 0.1


# -- failures ------------------------------------------------------------------------------------------------


@pytest.mark.more  # as a run that loses its lease
async def test_a_value_that_cannot_be_made_anew_stays_and_there_is_a_pause(
    session: Session, redis: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    flight, failing = cached(session), made(ValueError("no such city"))
    await old_value(flight, redis)
    with caplog.at_level(logging.WARNING, "aiolocks"):
        assert await flight.do("k", failing) == "old"
        await eventually(lambda: caplog.records)
    [record] = caplog.records
    assert "could not be made again, and the old one stays until its end: no such city" in record.getMessage()
    assert record.exc_info is not None
    for _ in range(3):
        assert await flight.do("k", failing) == "old"
    await eventually(lambda: session.statistics().leases_held == 0)
    assert failing.begun == 1
    assert await redis.exists(RUN) == 0
    await asyncio.sleep(PAUSE)
    assert await flight.do("k", made("new")) == "old"
    await renewed(flight, "new")


async def test_a_new_value_that_cannot_be_kept_leaves_the_old_one(
    session: Session, redis: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    flight, work = cached(session), made({1})
    await old_value(flight, redis)
    with caplog.at_level(logging.WARNING, "aiolocks"):
        assert await flight.do("k", work) == "old"
        await eventually(lambda: caplog.records)
    [record] = caplog.records
    assert "the old one stays until its end" in record.getMessage()
    assert record.exc_info is None
    assert await flight.do("k", work) == "old"
    assert work.begun == 1


@TRACKING
async def test_another_session_makes_it_anew_when_the_first_has_lost_its_lease(
    start: Start, redis: Redis
) -> None:
    """While the first still cleans up: it would try again itself."""
    here, there, begun = start(), start(), asyncio.Event()
    first, second = Work("late", outlived_by=begun), Work("new")
    await old_value(cached(here), redis)
    assert await cached(here).do("k", first) == "old"
    await running(first, here)
    assert await cached(there).do("k", second) == "old"
    assert second.begun == 0
    await redis.delete(RUN)

    async def begun_there() -> bool:
        """Not by a call whose question was on its way before."""
        assert await cached(there).do("k", second) == "old"
        return second.begun == 1

    await eventually(begun_there, within=5)
    await running(second, there)
    await eventually(lambda: first.cancelled)
    begun.set()
    await eventually(lambda: here.statistics().leases_held == 0)
    assert await cached(here).do("k", first) == "old"
    second.end.set()
    await renewed(cached(here), "new")
    assert (first.begun, second.begun) == (1, 1)


@pytest.mark.more  # as another session that makes it anew
async def test_a_run_that_loses_its_lease_again_and_again_is_given_up(
    session: Session, redis: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    work = Work("new")
    await old_value(cached(session), redis)
    assert await cached(session).do("k", work) == "old"
    with caplog.at_level(logging.WARNING, "aiolocks"):
        for number in (1, 2, 3):
            await running(work, session, number=number)
            await session.force_release("k", kind="singleflight")
        await eventually(lambda: "made again" in caplog.text)
    assert (work.begun, work.cancelled) == (3, 3)
    await asyncio.sleep(PAUSE)
    assert await cached(session).do("k", made("new")) == "old"
    await renewed(cached(session), "new")


async def test_what_is_kept_for_another_request_is_refused_as_long_as_it_is_given(
    session: Session, redis: Redis
) -> None:
    flight = cached(session)
    await flight.do("k", made("old"), fingerprint="a")
    await redis.hset(VALUE, "fresh", 1)
    with pytest.raises(FingerprintError):
        await flight.do("k", made("new"), fingerprint="b")
    assert await flight.do("k", made("new"), fingerprint="a") == "old"
    await eventually(lambda: session.statistics().leases_held == 0)


@pytest.mark.parametrize("directly", [True, False])
async def test_a_function_that_asks_for_its_own_key_is_told_so(
    session: Session, redis: Redis, caplog: pytest.LogCaptureFixture, directly: bool
) -> None:
    """Directly, and by way of another key: while no value is there, it would wait for itself."""
    flight = cached(session)

    async def other() -> Any:
        return await flight.do("other", itself)

    async def itself() -> Any:
        return await flight.do("k", made("never"))

    await old_value(flight, redis)
    with caplog.at_level(logging.WARNING, "aiolocks"):
        assert await flight.do("k", itself if directly else other) == "old"
        await eventually(lambda: caplog.records)
    assert "waits for itself" in caplog.records[0].getMessage()


# -- the end -------------------------------------------------------------------------------------------------


async def test_a_cancelled_reader_does_not_cancel_what_is_made_anew(session: Session, redis: Redis) -> None:
    flight, work = cached(session), Work("new")
    await old_value(flight, redis)

    async def read() -> None:
        assert await flight.do("k", work) == "old"
        await asyncio.sleep(60)

    reader = begin(read())
    await running(work, session)
    reader.cancel()
    await asyncio.wait([reader])
    work.end.set()
    await renewed(flight, "new")
    assert work.cancelled == 0


async def test_a_reader_cancelled_at_every_await_leaves_nothing_held(
    through: Proxy, connect: Connect, redis: Redis
) -> None:
    client = connect(through)
    await client.ping()
    far = Session.of(client)
    through.delay = 0.005
    flight = cached(far)
    await old_value(flight, redis)

    async def read() -> None:
        assert await flight.do("k", made("new")) in ("old", "new")

    async def nothing_is_left(_: Shot) -> None:
        await eventually(lambda: far._engine.in_progress == {}, within=5)
        assert not await redis.exists(RUN)
        await redis.hset(VALUE, mapping={"fresh": 1, "again": 0})

    shots = await sweep(read, after=nothing_is_left)
    assert {shot.mode for shot in shots} == {"early", "late"}


async def test_the_end_of_the_session_ends_what_is_made_anew_and_another_session_makes_it(
    session: Session, redis: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    work = Work("new")
    with caplog.at_level(logging.WARNING, "aiolocks"):
        async with Session(redis) as ending:
            await old_value(cached(ending), redis)
            assert await cached(ending).do("k", work) == "old"
            await running(work, ending)
        await eventually(lambda: ending._engine.in_progress == {})
    assert work.cancelled == 1
    assert [record for record in caplog.records if "made again" in record.getMessage()] == []
    assert not await redis.exists(RUN)
    assert await cached(session).do("k", made("new")) == "old"
    await renewed(cached(session), "new")


@pytest.mark.more  # as what is made first
async def test_the_end_of_the_loop_ends_what_is_made_anew_and_prints_nothing(
    through: Proxy, redis: Redis
) -> None:
    status, out, err = await run_script(
        """
from aiolocks import SingleFlight

async def fn():
    try:
        await asyncio.sleep(60)
    finally:
        print("cancelled")

async def old():
    return "old"

async def main():
    redis = client()
    flight = SingleFlight(redis, keep=0.05, stale=60)
    print(await flight.do("k", old))
    await asyncio.sleep(0.1)
    print(await flight.do("k", fn))
    while Session.of(redis).statistics().leases_held < 1:
        await asyncio.sleep(0.001)

asyncio.run(main())
""",
        through.url,
        "-X",
        "dev",
    )
    assert (status, out, err) == (0, "old\nold\ncancelled\n", "")
    assert await redis.exists(RUN) == 0


# -- as a decorator ------------------------------------------------------------------------------------------


@TRACKING
async def test_decorated_calls_with_the_same_key_share_a_run(start: Start) -> None:
    begun = []
    flights = [SingleFlight(start(), keep=60) for _ in range(2)]

    def report_of(flight: SingleFlight) -> Any:
        @flight("report:{user}:{day}")
        async def report(user: str, day: int = 1, *, note: str = "") -> str:
            """Makes a report."""
            begun.append((user, day))
            await asyncio.sleep(0.01)
            return f"of {user}, {note}"

        return report

    reports = [report_of(flight) for flight in flights]
    assert (reports[0].__name__, reports[0].__doc__) == ("report", "Makes a report.")
    calls = [report("a", note="x") for report in reports * 10]
    calls += [report(user="a:1", day=2, note="y") for report in reports * 10]
    assert await asyncio.gather(*calls) == ["of a, x"] * 20 + ["of a:1, y"] * 20
    assert await reports[0]("a", 1, note="z") == "of a, x"
    assert sorted(begun) == [("a", 1), ("a:1", 2)]


async def test_a_decorated_function_has_times_of_its_own(session: Session, redis: Redis) -> None:
    flight = SingleFlight(session)
    work = made("old")

    @flight("k", keep=60, stale=30, early=1, jitter=0)
    async def value() -> Any:
        return await work()

    assert [await value(), await value()] == ["old", "old"]
    assert work.begun == 1
    at, fresh, until = map(int, await redis.hmget(VALUE, "at", "fresh", "until"))
    assert (round((fresh - at / 1000) / 1000), round((until - at / 1000) / 1000)) == (60, 90)


async def test_a_method_is_decorated_too_and_its_object_is_not_in_the_key(session: Session) -> None:
    class Reports:
        def __init__(self) -> None:
            self.made = 0

        @SingleFlight(session, keep=60)("of:{user}")
        async def of(self, user: int) -> int:
            self.made += 1
            return user

    first, second = Reports(), Reports()
    assert [await first.of(1), await second.of(1), await second.of(2)] == [1, 1, 2]
    assert (first.made, second.made) == (1, 1)
