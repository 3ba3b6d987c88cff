"""Candidates and observers outlive each state of a server that passes by itself."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, suppress
from typing import Any

import pytest
from redis.asyncio import Redis

from aiolocks import Leadership, Lock, Session, SingleFlight, Term
from tests.adversity.tools import SLACK, rejected
from tests.adversity.troubles import HEALING, TROUBLES, Setting, Trouble
from tests.conftest import Connect, OwnServer
from tests.support.thinning import only
from tests.support.waiting import eventually

pytestmark = pytest.mark.leaves_keys()  # of what could not be released in time

TTL = 1.0


async def leads(term: Term) -> None:
    await asyncio.sleep(60)


@asynccontextmanager
async def running(leadership: Leadership) -> AsyncIterator[asyncio.Task[None]]:
    """A candidate beside the block, which is still one at its end."""
    task = asyncio.create_task(leadership.run(leads))
    try:
        yield task
        assert not task.done()
    finally:
        task.cancel()
        await asyncio.wait((task,))
        with suppress(asyncio.CancelledError):
            task.result()


@pytest.mark.parametrize(
    "trouble", only(HEALING, *(one for one in HEALING if one.name in ("NOREPLICAS", "OOM"))), ids=str
)
async def test_candidates_and_observers_outlive_what_passes(trouble: Trouble, setting: Setting) -> None:
    """Longer than a ttl, so that a leader loses its term and a candidate gets no answer.

    Those that were there before, and those that come meanwhile.
    """
    _, client, lasting = setting
    told: list[Any] = []

    async def observe(session: Session) -> None:
        async with aclosing(Leadership(session, "observed").observe()) as leaders:
            async for leader in leaders:
                told.append(None if leader is None else leader.value)  # noqa: PERF401 - as they come

    async with Session(client) as session, Session(client) as other:
        leader, candidate = (Leadership(one, "a", ttl=TTL) for one in (session, other))
        newcomer = Leadership(session, "b", ttl=TTL)
        async with running(leader) as leading:
            await eventually(lambda: leader.is_leader, within=10)
            async with running(candidate) as waiting, AsyncExitStack() as trouble_lasts:
                await trouble_lasts.enter_async_context(lasting())
                observing = asyncio.create_task(observe(session))
                async with running(newcomer):
                    await asyncio.sleep(2 * TTL)
                    for task in (leading, waiting, observing):
                        assert not task.done()
                    await trouble_lasts.aclose()
                    await eventually(lambda: leader.is_leader or candidate.is_leader, within=10)
                    await eventually(lambda: newcomer.is_leader, within=10)
        async with Leadership(other, "observed", ttl=5, value="here", blocking_timeout=10):
            await eventually(lambda: told[-1:] == ["here"], within=10)
        observing.cancel()
        await asyncio.wait((observing,))


@pytest.mark.thin
@pytest.mark.parametrize("trouble", [trouble for trouble in TROUBLES if trouble not in HEALING], ids=str)
async def test_what_needs_a_person_ends_a_candidate(trouble: Trouble, setting: Setting) -> None:
    _, client, lasting = setting
    async with Session(client) as session, lasting():
        error = await rejected(Leadership(session, "a", ttl=TTL).run(leads))
        assert not error.transient
        assert trouble.said in str(error)


@pytest.mark.thin
@pytest.mark.parametrize("trouble", [trouble for trouble in HEALING if not trouble.transient], ids=str)
async def test_an_acquire_is_told_of_what_may_last(trouble: Trouble, setting: Setting) -> None:
    _, client, lasting = setting
    async with Session(client) as session, lasting():
        async with asyncio.timeout(SLACK):
            error = await rejected(Lock(session, "a", ttl=30).acquire())
    assert error.transient


# -- what the log says ---------------------------------------------------------------------------------------


@pytest.mark.more  # as an outage of one server, which is two warnings
@pytest.mark.parametrize(
    "trouble",
    only(HEALING, *(one for one in HEALING if one.name == "READONLY")),  # all are told alike
    ids=str,
)
async def test_an_outage_has_two_lines_for_a_session(
    trouble: Trouble, setting: Setting, caplog: pytest.LogCaptureFixture
) -> None:
    """However many objects of the session meet it; they tell at DEBUG."""
    _, client, lasting = setting
    caplog.set_level(logging.DEBUG, logger="aiolocks")
    async with Session(client) as session, AsyncExitStack() as stack:
        await Lock(session, "a").locked()
        async with AsyncExitStack() as trouble_lasts:
            await trouble_lasts.enter_async_context(lasting())
            candidates = [Leadership(session, f"a{number}", ttl=TTL) for number in range(10)]
            for candidate in candidates:
                await stack.enter_async_context(running(candidate))
            await eventually(lambda: caplog.text.count("campaigning again") >= 10, within=10)
            (begun,) = warnings(caplog)
            assert " since " in begun
            assert trouble.said in begun
            assert ("waiters wait" in begun) is trouble.transient
            await trouble_lasts.aclose()
        await eventually(lambda: all(candidate.is_leader for candidate in candidates), within=15)
        await eventually(lambda: len(warnings(caplog)) == 2, within=10)
        assert re.search(r" after \d\.\d s$", warnings(caplog)[1])


@pytest.mark.more  # as other refusals
async def test_values_that_cannot_be_published_are_no_news_in_an_outage(
    own_server: OwnServer, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    server = await own_server()
    caplog.set_level(logging.DEBUG, logger="aiolocks")
    async with Session(connect(server)) as session:
        begun = asyncio.Barrier(6)

        async def make() -> str:
            await begun.wait()
            await asyncio.sleep(0.3)
            return "value"

        flights = [SingleFlight(session, ttl=0.5).do(str(number), make) for number in range(5)]
        making = [asyncio.create_task(flight) for flight in flights]
        await begun.wait()
        server.kill()
        assert await asyncio.gather(*making) == ["value"] * 5
    assert caplog.text.count("could not be published") == 5
    told = [one for one in warnings(caplog) if "was lost after" not in one]
    (away,) = told
    assert " is away since " in away


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


# -- credentials ---------------------------------------------------------------------------------------------


async def user(admin: Redis, password: str) -> None:
    await admin.execute_command("ACL", "SETUSER", "u", "reset", "on", f">{password}", "+@all", "~*", "&*")


@pytest.mark.more  # as a server with too many clients
async def test_credentials_that_were_good_before_are_waited_for(
    own_server: OwnServer, connect: Connect
) -> None:
    """As while a password is changed: at the server first, and by its users a moment later."""
    server = await own_server()
    admin = connect(server)
    await user(admin, "old")
    client = connect(server, username="u", password="old")
    async with Session(client) as session:
        leadership = Leadership(session, "a", ttl=TTL)
        async with running(leadership) as task:
            await eventually(lambda: leadership.is_leader)
            await user(admin, "new")
            await admin.execute_command("CLIENT", "KILL", "USER", "u")
            error = await rejected(Lock(session, "b").try_acquire())
            assert "password is wrong" in str(error)
            await asyncio.sleep(2 * TTL)
            assert not task.done()
            await user(admin, "old")
            await eventually(lambda: leadership.is_leader)


async def test_credentials_that_were_never_good_are_told(own_server: OwnServer, connect: Connect) -> None:
    server = await own_server()
    await user(connect(server), "right")
    async with Session(connect(server, username="u", password="wrong")) as session:
        error = await rejected(Leadership(session, "a", ttl=TTL).run(leads))
    assert "password is wrong" in str(error)
    assert not error.transient


@pytest.mark.more  # as what passes of other refusals
async def test_a_server_with_too_many_clients_is_waited_for(own_server: OwnServer, connect: Connect) -> None:
    server = await own_server()
    admin = connect(server)
    await admin.config_set("maxclients", 1)
    async with Session(connect(server)) as session:
        leadership = Leadership(session, "a", ttl=TTL)
        async with running(leadership) as task:
            await asyncio.sleep(2 * TTL)
            assert not task.done()
            await admin.config_set("maxclients", 100)
            await eventually(lambda: leadership.is_leader)
