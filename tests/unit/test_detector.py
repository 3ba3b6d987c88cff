"""The search of one session for deadlocks: every step is the test's, time included."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from aiolocks import Backoff, Lock, Session
from aiolocks.transport import Request
from tests.unit.fakes import FakeTransport, generous, grant, refuse


async def published(transport: FakeTransport) -> Request[Any]:
    """The next request that publishes a record, or takes one back; those before it stay unanswered."""
    while not transport.unasked or transport.unasked[0] != "waits_publish":
        await (transport.asked(transport.unasked[0]) if transport.unasked else asyncio.sleep(0.01))
    return await transport.asked("waits_publish")


@pytest.mark.parametrize("sent", [True, False], ids=["sent", "not sent"])
async def test_a_wait_that_ends_takes_back_the_record_that_the_server_has(
    make_session: Callable[..., Session], transport: FakeTransport, sent: bool
) -> None:
    """A record that was not sent in time has replaced nothing."""
    session = make_session(backoff=Backoff(initial=10, maximum=10, jitter=0))

    async def waiting() -> None:
        async with Lock(session, "held"), Lock(session, "wanted"):
            raise AssertionError

    task = asyncio.create_task(waiting())
    grant(await transport.asked("acquire"))
    refuse(await transport.asked("acquire"))
    transport.listening = True  # the test sees requests that publish, too
    first = await published(transport)
    first.reply([])
    transport.connected = sent
    second = await published(transport)
    assert second.args[1] == first.args[0]
    task.cancel()
    last = await published(transport)

    assert last.args[:2] == ("", (second if sent else first).args[0])

    transport.connected, transport.answer = True, generous
    await asyncio.wait([task])
