"""Work that was done and cannot be kept is not done again in silence, and its first caller learns of it."""

from __future__ import annotations

import asyncio
import pickle
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from decimal import Decimal
from typing import Any

import pytest
from redis.asyncio import Redis

from aiolocks import (
    BackendError,
    ConfigurationError,
    FingerprintError,
    ResultNotKeptError,
    Session,
    SingleFlight,
)
from tests.adversity.flights import TRACKING, Work, joined, running, within
from tests.adversity.test_singleflight import PUBLISH
from tests.adversity.tools import AT_ONCE, Start, begin, with_own_connections
from tests.conftest import Connect
from tests.support.proxy import Proxy
from tests.support.thinning import only
from tests.support.waiting import eventually

PRICE = Decimal("17.50")
VALUE = "aiolocks:singleflight.value:{k}"
RUN = "aiolocks:singleflight:{k}"


class Words:
    """A serializer that gives no bytes."""

    dumps = staticmethod(str)
    loads = staticmethod(str)


def ended(value: Any) -> Work:
    work = Work(value)
    work.end.set()
    return work


async def not_kept(flight: SingleFlight, work: Work, **options: Any) -> ResultNotKeptError:
    with pytest.raises(ResultNotKeptError) as caught:
        await asyncio.wait_for(flight.do("k", work, **options), 15)
    return caught.value


# -- values that the serializer cannot write -----------------------------------------------------------------


@pytest.mark.parametrize("serializer", [None, Words()], ids=["not encodable", "no bytes"])
async def test_what_cannot_be_written_is_not_done_again(
    session: Session, connect: Connect, redis: Redis, serializer: Any
) -> None:
    options = {} if serializer is None else {"serializer": serializer}
    here, there = (SingleFlight(one, keep=60, **options) for one in (session, connect()))
    work = ended(PRICE)

    first = await not_kept(here, work)
    assert (first.here, first.value, first.key) == (True, PRICE, "k")
    assert isinstance(first.__cause__, TypeError)
    for flight in (here, there):
        again = await not_kept(flight, work)
        assert (again.here, again.value, again.key) == (False, None, "k")
        assert again.reason == first.reason == f"builtins.TypeError: {first.__cause__}"
    assert work.begun == 1
    assert 50_000 < await redis.pttl(VALUE) <= 60_000


async def test_all_who_wait_here_have_the_value_with_the_error(session: Session) -> None:
    work = Work(PRICE)
    calls = [begin(SingleFlight(session, keep=60).do("k", work)) for _ in range(3)]
    await running(work, session)
    work.end.set()
    errors = await within(AT_ONCE, *calls)
    assert all(isinstance(error, ResultNotKeptError) and error.value is PRICE for error in errors)


async def test_the_key_is_still_of_one_request(session: Session) -> None:
    flight, work = SingleFlight(session, keep=60), ended(PRICE)
    await not_kept(flight, work, fingerprint="a")
    await not_kept(flight, work, fingerprint="a")
    with pytest.raises(FingerprintError):
        await flight.do("k", work, fingerprint="b")
    assert work.begun == 1


async def test_that_it_was_done_is_kept_for_as_long_as_a_value(session: Session) -> None:
    flight = SingleFlight(session, keep=0.3)
    await not_kept(flight, ended(PRICE))
    await asyncio.sleep(0.4)
    assert await flight.do("k", ended("anew")) == "anew"


@TRACKING
async def test_without_keep_those_here_have_the_value_and_those_elsewhere_learn_why_not(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    here, there = start(), start()
    work, theirs = Work(PRICE), ended("theirs")
    calls = [begin(SingleFlight(here).do("k", work)) for _ in range(2)]
    await running(work, here)
    waiting = await joined(there, SingleFlight(there), "k", theirs)
    work.end.set()
    assert await within(AT_ONCE, *calls) == [PRICE, PRICE]
    with pytest.raises(ResultNotKeptError, match=r"was done, .* Decimal is not JSON serializable") as caught:
        await asyncio.wait_for(waiting, AT_ONCE)
    assert not caught.value.here
    assert (work.begun, theirs.begun) == (1, 0)
    assert "Decimal is not JSON serializable" in caplog.text
    assert await SingleFlight(there).do("k", theirs) == "theirs"  # nothing had to be kept


async def test_a_value_that_another_serializer_writes_is_kept(session: Session, connect: Connect) -> None:
    work = ended(PRICE)
    for one in (session, connect()):
        assert await SingleFlight(one, keep=60, serializer=pickle).do("k", work) == PRICE
    assert work.begun == 1


# -- values that the server does not take --------------------------------------------------------------------


@asynccontextmanager
async def of_small_values(own_server: Any, connect: Connect) -> AsyncIterator[Any]:
    """Sessions with a server that takes no argument of more than 1 MiB, which they do not know."""
    server = await own_server()
    async with connect(server) as admin, AsyncExitStack() as sessions:
        await admin.config_set("proto-max-bulk-len", 1024 * 1024)

        def make(client: Redis | None = None) -> Session:
            session = Session(client or connect(server), largest_value=10_000_000)
            sessions.push_async_callback(session.aclose)
            return session

        make.client = lambda: connect(server)  # type: ignore[attr-defined]
        yield make


LARGE = "x" * 3_000_000


BROKEN_WRITELINES = pytest.mark.skipif(
    sys.version_info >= (3, 12),
    reason="asyncio registers a socket again that has failed in writelines",
)
"""The connections of redis-py use it."""


@pytest.mark.parametrize(
    "plain", [False, pytest.param(True, marks=BROKEN_WRITELINES)], ids=["multiplexed", "plain"]
)
async def test_a_value_that_is_too_large_for_the_server_is_not_made_again(
    own_server: Any, connect: Connect, plain: bool
) -> None:
    async with of_small_values(own_server, connect) as make:
        clients = [make.client() for _ in range(2)]
        flights = [
            SingleFlight(make(with_own_connections(client) if plain else client), ttl=2, keep=60)
            for client in clients
        ]
        work = ended(LARGE)
        first = await not_kept(flights[0], work)
        assert first.here
        assert first.value is work._value
        assert isinstance(first.__cause__, BackendError)
        for flight in flights:
            assert not (await not_kept(flight, work)).here
        assert work.begun == 1


@pytest.mark.more  # as one whose lease lasts
async def test_a_value_that_is_too_large_is_not_made_again_though_the_lease_ended_before_that_was_noted(
    own_server: Any, connect: Connect
) -> None:
    """The server refuses the value at once, as it reads it; the note in its place comes after the lease."""
    async with of_small_values(own_server, connect) as make:
        work, here = Work(LARGE), make()
        call = begin(not_kept(SingleFlight(here, ttl=1, keep=60), work))
        await running(work, here)
        await make.client().execute_command("CLIENT", "PAUSE", "1500", "WRITE")
        work.end.set()
        assert (await call).here
        assert not (await not_kept(SingleFlight(make(), ttl=1, keep=60), work)).here
        assert work.begun == 1


async def test_without_keep_a_value_that_is_too_large_is_had_here_and_those_elsewhere_learn_why_not(
    own_server: Any, connect: Connect
) -> None:
    async with of_small_values(own_server, connect) as make:
        here, there = make(), make()
        work, theirs = Work(LARGE), ended("theirs")
        call = begin(SingleFlight(here, ttl=5).do("k", work))
        await running(work, here)
        waiting = await joined(there, SingleFlight(there, ttl=5), "k", theirs)
        work.end.set()
        assert await asyncio.wait_for(call, AT_ONCE + 5) is work._value
        with pytest.raises(ResultNotKeptError):
            await asyncio.wait_for(waiting, AT_ONCE + 5)
        assert (work.begun, theirs.begun) == (1, 0)


async def test_a_value_that_is_larger_than_the_session_takes_is_not_sent_and_not_made_again(
    connect: Connect, through: Proxy
) -> None:
    client = connect(through)
    async with Session(client, largest_value=2000) as here:
        work = ended("x" * 1999)  # in quotes, as JSON
        first = await not_kept(SingleFlight(here, keep=60), work)
        assert (first.here, first.value) == (True, work._value)
        assert "largest_value" in first.reason
        assert isinstance(first.__cause__, ConfigurationError)
        assert not (await not_kept(SingleFlight(here, keep=60), work)).here
        assert work.begun == 1
        assert through.count(b"x" * 1999) == 0
        assert await SingleFlight(here, keep=60).do("other", ended("x" * 1998)) == "x" * 1998


async def test_where_not_even_that_can_be_noted_the_first_caller_learns_of_it(
    own_server: Any, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    """A server that refuses every write of this kind: no more can be done, and the ttl frees the run."""
    server = await own_server()
    client = connect(server)
    work = Work("made")
    call = begin(SingleFlight(client, ttl=5, keep=60).do("k", work))
    await running(work, Session.of(client))
    admin = connect(server)
    await admin.execute_command("ACL", "SETUSER", "default", "-hset")
    work.end.set()
    with pytest.raises(ResultNotKeptError, match="a new call may do it again") as caught:
        await asyncio.wait_for(call, 15)
    assert (caught.value.here, caught.value.value) == (True, "made")
    assert "a new call may do it again" in caplog.text
    await eventually(lambda: "its ttl frees it" in caplog.text)  # it might be one of several
    assert 0 < await admin.pttl(RUN) <= 5000
    await admin.delete(RUN)


async def test_a_run_that_has_become_something_else_is_not_run_again(session: Session, redis: Redis) -> None:
    """The key of the run is of another type now: the server refuses every request for it."""
    work = Work("made")
    flight = SingleFlight(session, ttl=20, keep=60)
    call = begin(flight.do("k", work))
    await running(work, session)
    await redis.delete(RUN)
    await redis.rpush(RUN, "of another type")
    work.end.set()
    with pytest.raises(ResultNotKeptError) as caught:
        await asyncio.wait_for(call, 15)
    assert caught.value.value == "made"
    with pytest.raises(BackendError, match="did not write"):
        await flight.do("k", work)
    assert work.begun == 1
    await redis.delete(RUN)


# -- a server that is silent while it is published -----------------------------------------------------------


@pytest.mark.parametrize("leaves", only([False, True], False), ids=["waited for", "abandoned"])
async def test_what_was_made_is_kept_by_a_server_that_was_silent_for_longer_than_the_ttl(
    connect: Connect, through: Proxy, session: Session, redis: Redis, leaves: bool
) -> None:
    """Its lease is over by then: it is acquired again, to publish the value, for a caller or for none."""
    ttl = 1.0
    client, work = connect(through), Work()
    call = begin(SingleFlight(client, ttl=ttl, keep=60).do("k", work))
    await running(work, Session.of(client))
    through.blackhole = True
    work.end.set()
    await eventually(lambda: any(PUBLISH(request) for request in through.requests), within=5)
    if leaves:
        call.cancel()
        await asyncio.wait([call])
    await eventually(lambda: gone(redis), within=5)
    through.blackhole = False
    through.cut()

    async def kept() -> bool:
        return bool(await redis.exists(VALUE))

    await eventually(kept, within=10)
    assert leaves or await asyncio.wait_for(call, 15) == "made"
    assert await SingleFlight(session).do("k", work) == "made"
    assert work.begun == 1


async def gone(redis: Redis) -> bool:
    return not await redis.exists(RUN)


@pytest.mark.more  # as one that was silent
async def test_of_a_server_that_stays_away_the_first_caller_learns_that_it_was_not_kept(
    connect: Connect, through: Proxy
) -> None:
    client, work = connect(through), Work()
    call = begin(SingleFlight(client, ttl=0.5, keep=60).do("k", work))
    await running(work, Session.of(client))
    through.blackhole = True
    work.end.set()
    with pytest.raises(ResultNotKeptError, match="a new call may do it again") as caught:
        await asyncio.wait_for(call, 15)
    assert (caught.value.here, caught.value.value) == (True, "made")
    through.blackhole = False
