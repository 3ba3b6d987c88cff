"""The age of what a run has left: it counts from when that was made, by clocks that nobody sets back."""

from __future__ import annotations

import asyncio
import logging
import time

import pytest
from redis.asyncio import Redis

from aiolocks import Session, SingleFlight
from aiolocks.kinds.singleflight import PAUSE
from tests.adversity.flights import Work, joined, running, within
from tests.adversity.test_singleflight import PUBLISH
from tests.adversity.test_singleflight_anew import VALUE, cached, made, old_value, renewed
from tests.adversity.tools import AT_ONCE, begin
from tests.conftest import Connect, OwnServer
from tests.support.proxy import Proxy
from tests.support.servers import Server
from tests.support.skew import SkewedServer
from tests.support.waiting import eventually

pytestmark = pytest.mark.leaves_keys("aiolocks:singleflight*", "aiolocks:turn*")


# -- a clock that is set back --------------------------------------------------------------------------------


@pytest.mark.parametrize("value", ["made", ValueError("no such city")], ids=["a value", "an error"])
async def test_what_is_not_kept_is_told_to_nobody_who_comes_when_the_clock_was_set_back(
    skewed_server: SkewedServer, connect: Connect, value: object
) -> None:
    here, there = (SingleFlight(connect(skewed_server.server)) for _ in range(2))
    await within(5, here.do("k", made(value)))
    await skewed_server.advance(-60)
    again = made("again")

    assert await there.do("k", again) == "again"
    assert await here.do("k", again) == "again"
    assert again.begun == 2


async def test_a_turn_that_ended_is_told_to_nobody_who_comes_when_the_clock_was_set_back(
    skewed_server: SkewedServer, connect: Connect
) -> None:
    for _ in range(2):
        async with SingleFlight(connect(skewed_server.server)).turn("k") as turn:
            assert turn.first
        await skewed_server.advance(-60)


async def test_who_waited_is_told_although_the_clock_was_set_back(
    skewed_server: SkewedServer, connect: Connect
) -> None:
    here, there = (Session(connect(skewed_server.server)) for _ in range(2))
    async with here, there:
        work, nobody = Work(), made("nobody needs it")
        call = begin(SingleFlight(here).do("k", work))
        await running(work, here)
        waiting = await joined(there, SingleFlight(there), "k", nobody)
        await skewed_server.advance(-60)
        work.end.set()

        assert await within(5, call, waiting) == ["made", "made"]
        assert nobody.begun == 0


async def test_a_kept_value_lasts_no_longer_than_keep_from_when_the_clock_is_found_set_back(
    skewed_server: SkewedServer, connect: Connect
) -> None:
    flight = SingleFlight(connect(skewed_server.server), keep=0.5)
    assert await flight.do("k", made("old")) == "old"
    await skewed_server.advance(-60)
    assert await flight.do("k", made("too early")) == "old"
    await asyncio.sleep(0.55)

    assert await flight.do("k", made("new")) == "new"


# -- a publication that is late ------------------------------------------------------------------------------


async def until_published(through: Proxy, work: Work) -> None:
    """The server is silent when the call ends."""
    through.blackhole = True
    work.end.set()
    await eventually(lambda: any(PUBLISH(request) for request in through.requests), within=5)


async def test_keep_counts_from_when_the_value_was_made(
    connect: Connect, through: Proxy, session: Session, redis: Redis
) -> None:
    work = Work("old")
    client = connect(through)
    call = begin(SingleFlight(client, ttl=10, keep=0.3).do("k", work))
    await running(work, Session.of(client))
    await until_published(through, work)
    await asyncio.sleep(0.4)
    through.blackhole = False
    through.cut()
    assert await within(10, call) == ["old"]

    assert await redis.exists(VALUE)
    assert await SingleFlight(session, keep=1).do("k", made("new")) == "new"


@pytest.mark.parametrize("keep", [0, 0.2])
async def test_who_comes_when_the_value_has_ended_gets_a_new_one_though_it_is_not_published_yet(
    connect: Connect, through: Proxy, keep: float
) -> None:
    """Also in the session that has made it, where callers join the call."""
    work, later = Work("old"), made("new")
    flight = SingleFlight(connect(through), ttl=10, keep=keep)
    call = begin(flight.do("k", work))
    await eventually(lambda: work.begun == 1, within=5)
    await until_published(through, work)
    await asyncio.sleep(0.3)
    joining = begin(flight.do("k", later))
    await asyncio.sleep(0.1)
    through.blackhole = False
    through.cut()

    assert await within(10, call, joining) == ["old", "new"]


async def test_who_comes_while_the_value_is_published_and_kept_gets_it(
    connect: Connect, through: Proxy
) -> None:
    work, later = Work("old"), made("nobody needs it")
    flight = SingleFlight(connect(through), ttl=10, keep=60)
    call = begin(flight.do("k", work))
    await eventually(lambda: work.begun == 1, within=5)
    await until_published(through, work)
    joining = begin(flight.do("k", later))
    await asyncio.sleep(0.1)
    through.blackhole = False
    through.cut()

    assert await within(10, call, joining) == ["old", "old"]
    assert later.begun == 0


# -- a value that cannot be replaced -------------------------------------------------------------------------


@pytest.mark.more  # as a function that fails there
async def test_where_the_server_refuses_a_new_value_there_is_a_pause_and_one_line(
    own_server: OwnServer, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    redis = connect(await own_server(arguments=("--maxmemory-policy", "noeviction")))
    async with Session(redis) as session:
        flight, work = cached(session), made("new")
        await old_value(flight, redis)
        await redis.config_set("maxmemory", 1)
        began = time.monotonic()
        with caplog.at_level(logging.DEBUG, "aiolocks.session"):
            for _ in range(100):
                assert await flight.do("k", work) == "old"
                await asyncio.sleep(0.004)
        tries = 1 + (time.monotonic() - began) // PAUSE
        await redis.config_set("maxmemory", 0)
        record, *more = [one for one in caplog.records if "singleflight '" in one.getMessage()]
        assert len(more) < tries
        assert "the old one stays until its end" in record.getMessage()
        assert record.exc_info is None
        assert record.levelno == logging.DEBUG  # the session has told that its server refuses
        assert said(caplog)[:1] == ["refuses requests"]
        assert work.begun <= 1
        await asyncio.sleep(1)
        assert await asyncio.wait_for(flight.do("k", work), AT_ONCE) == "old"
        await renewed(flight, "new")


@pytest.mark.more  # as one pause
async def test_an_outage_of_several_pauses_is_told_once_although_old_values_are_read_between(
    own_server: OwnServer, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    """The script that finds an old value is the one that is refused where there is none."""
    redis = connect(await own_server(arguments=("--maxmemory-policy", "noeviction")))
    async with Session(redis) as session:
        flight, work = cached(session), made("new")
        await old_value(flight, redis)
        with caplog.at_level(logging.WARNING, "aiolocks"):
            await redis.config_set("maxmemory", 1)
            for _ in range(140):
                assert await flight.do("k", work) == "old"
                await asyncio.sleep(0.02)
            assert said(caplog) == ["refuses requests"]
            await redis.config_set("maxmemory", 0)

            async def is_new() -> bool:
                return await flight.do("k", work) == "new"

            await eventually(is_new, within=5)
            await eventually(
                lambda: said(caplog) == ["refuses requests", "executes requests again"], within=5
            )


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The lines of the session about its server."""
    lines = [one.getMessage() for one in caplog.records if one.name == "aiolocks.transport"]
    return [
        what for line in lines for what in ("refuses requests", "executes requests again") if what in line
    ]


async def test_a_function_that_fails_on_a_server_that_cannot_note_it_is_called_once_in_a_pause(
    connect: Connect, through: Proxy, session: Session, redis: Redis
) -> None:
    """The pause on the server is known only where the end of the run arrives there."""
    client, work = connect(through), Work(ValueError("no such city"))
    flight = SingleFlight(client, ttl=1.5, keep=60, stale=60)
    await old_value(flight, redis)
    assert await flight.do("k", work) == "old"
    await running(work, Session.of(client))
    through.blackhole = True
    work.end.set()
    await asyncio.sleep(2)  # longer than the ttl
    through.blackhole = False
    through.cut()
    await eventually(lambda: Session.of(client).statistics().leases_held == 0, within=10)
    for _ in range(20):
        await flight.do("k", work)
    assert work.begun <= 2


# -- an answer that is long on its way -----------------------------------------------------------------------


@pytest.mark.more  # as who comes later
async def test_who_comes_while_an_old_answer_is_on_its_way_gets_a_new_value(
    server: Server, through: Proxy, connect: Connect
) -> None:
    """The caller before it, in the same session, has waited for the run, and gets its value."""
    async with Session(connect()) as here, Session(connect(through)) as there:
        work, later = Work("old"), made("new")
        call = begin(SingleFlight(here).do("k", work))
        await running(work, here)
        waiting = await joined(there, SingleFlight(there), "k", made("nobody needs it"))
        through.delay_replies = 0.5
        work.end.set()
        assert await call == "old"
        assert not waiting.done()
        coming = begin(SingleFlight(there).do("k", later))
        assert await within(10, waiting, coming) == ["old", "new"]
        assert later.begun == 1


async def test_who_waited_gets_it_however_long_its_last_question_takes(
    session: Session, connect: Connect, through: Proxy
) -> None:
    work, nobody = Work("made"), Work("nobody needs it")
    async with Session(connect(through)) as there:
        call = begin(SingleFlight(session).do("k", work))
        await running(work, session)
        waiting = await joined(there, SingleFlight(there), "k", nobody)
        through.delay = 0.5
        work.end.set()
        assert await within(10, call, waiting) == ["made", "made"]
        through.delay = 0
        assert nobody.begun == 0
