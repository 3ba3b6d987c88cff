"""The default prefix beside a session of the same server with another one: it is told so."""

from __future__ import annotations

import gc
import logging
from typing import Any

import pytest
from redis.asyncio import Redis

from aiolocks import Lock, Session, Turnstile
from tests.unit.fakes import generous


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture, transport: Any) -> Any:
    """The warnings."""
    transport.answer = generous
    return lambda: [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


async def use(lock: Any) -> None:
    async with lock:
        pass


async def test_a_lock_of_the_client_beside_a_session_with_another_prefix(told) -> None:
    client = Redis()
    async with Session(client, prefix="shop") as session:
        await use(Lock(session, "order:7"))
        assert told() == []
        await use(Lock(client, "order:7"))
        (message,) = told()
        assert message.startswith(
            "<Lock 'order:7' ttl=30> has the default prefix 'aiolocks', and a Session of the same server in "
            "this process has the prefix 'shop': it does not exclude the locks of that Session. "
        )
        assert message.endswith("Make all locks of an application with one Session")

        # Once for each client.
        await use(Lock(client, "order:8"))
        await use(Lock(client, "order:9"))
        assert len(told()) == 1
        async with Session(client, prefix="another"):
            await use(Lock(client, "order:10"))
        assert len(told()) == 1
    other = Redis()
    async with Session(other, prefix="shop"):
        await use(Lock(other, "seats"))
    assert len(told()) == 2
    for each in (client, other):
        await Session.of(each).aclose()


async def test_a_lock_that_was_made_before_the_session(told) -> None:
    client = Redis()
    lock = Lock(client, "order:7")
    async with Session(client, prefix="shop"):
        await use(lock)
    assert len(told()) == 1
    await Session.of(client).aclose()


async def test_what_is_asked_of_the_client_counts_too(told) -> None:
    client = Redis()
    async with Session(client, prefix="shop"):
        await Turnstile(client, "name", window=2).enter()
    assert len(told()) == 1
    await Session.of(client).aclose()


async def test_another_client_of_the_same_server(told) -> None:
    """As the recipes had it: a session of the application, with a client of its own, and locks on another."""
    client, elsewhere = Redis(), Redis(db=1)
    async with Session.from_url("redis://localhost:6379", prefix="shop"):
        await use(Lock(elsewhere, "order:7"))
        assert told() == []
        await use(Lock(client, "order:7"))
        assert len(told()) == 1
    for each in (client, elsewhere):
        await Session.of(each).aclose()


async def test_a_session_without_a_prefix_beside_one_with_a_prefix(told) -> None:
    forgotten = Session.from_url("redis://localhost:6379")
    async with Session.from_url("redis://127.0.0.1", prefix="shop") as session, forgotten:
        await use(Lock(session, "order:7"))
        await use(Lock(forgotten, "order:7"))
        await use(Lock(forgotten, "order:7"))
    (message,) = told()
    assert "has the default prefix" in message


async def test_several_prefixes_that_were_chosen_are_nobodys_mistake(told) -> None:
    client = Redis()
    async with Session(client, prefix="shop") as one, Session(client, prefix="stock") as other:
        await use(Lock(one, "order:7"))
        await use(Lock(other, "order:7"))
    assert told() == []


async def test_where_both_exclude_each_other_or_there_is_only_one_nothing_is_said(told) -> None:
    client = Redis()
    await use(Lock(client, "order:7"))
    async with Session(client):  # with the prefix of the default session
        await use(Lock(client, "order:7"))
    async with Session(client, prefix="shop"):
        pass
    await use(Lock(client, "order:7"))  # it is closed
    session = Session(client, prefix="forgotten")
    del session
    gc.collect()
    await use(Lock(client, "order:7"))
    async with Session(client, prefix="shop"):
        assert Session.of(client) is Session.of(client)  # asked for by name
    assert told() == []
    await Session.of(client).aclose()
