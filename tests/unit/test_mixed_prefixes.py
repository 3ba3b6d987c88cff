"""A client used by itself beside a session of it: with another prefix, it is told so."""

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
            "<Lock 'order:7' ttl=30> was made with a client that also has a Session with the prefix 'shop'. "
        )
        assert "with the prefix 'aiolocks'" in message
        assert message.endswith("give it the Session instead of the client")

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
