"""Fixtures of the tests that need no server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from redis.asyncio import Redis

from aiolocks import Session
from aiolocks.lock import session as session_module
from aiolocks.lock.lease import Possession
from aiolocks.lock.renewal import Watch, Watchdog
from tests.support import examples  # noqa: F401 - for its effect
from tests.unit.fakes import FakeTransport, VirtualClock, generous


@pytest.fixture
async def clock() -> AsyncIterator[VirtualClock]:
    """The event loop's clock, which jumps to the next timer whenever nothing else is left to do."""
    clock = VirtualClock(asyncio.get_running_loop())
    with clock.installed():
        yield clock


@pytest.fixture
async def transport(clock: VirtualClock, monkeypatch: pytest.MonkeyPatch) -> FakeTransport:
    """The transport to which every session of this test sends its requests."""
    transport = FakeTransport(asyncio.get_running_loop())

    def open_transport(client: Redis, loop: asyncio.AbstractEventLoop, **arguments: Any) -> FakeTransport:
        transport.on_rung = arguments["on_rung"]
        return transport

    monkeypatch.setattr(session_module, "open_transport", open_transport)
    return transport


@pytest.fixture
async def make_session(
    transport: FakeTransport, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Callable[..., Session]]:
    """Makes sessions over `transport`; closed at the end. Until then, leases that a test drops are kept."""
    sessions: list[Session] = []
    watch = Watchdog.watch

    def watch_and_keep(watchdog: Watchdog, possession: Possession) -> Watch:
        transport.kept.add(possession)
        return watch(watchdog, possession)

    monkeypatch.setattr(Watchdog, "watch", watch_and_keep)

    def make(**arguments: object) -> Session:
        sessions.append(Session(Redis(), **arguments))
        return sessions[-1]

    yield make
    transport.answer = generous
    for session in sessions:
        await session.aclose()
    transport.kept.clear()


@pytest.fixture
async def offline(make_session: Callable[..., Session]) -> Session:
    """A session whose server is the test."""
    return make_session()
