"""A server whose clock moves, and sessions on it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

from aiolocks import Session
from tests.conftest import Connect
from tests.models.worlds import Stage
from tests.support.skew import SkewedServer

SESSIONS = 2


@pytest.fixture
async def stage(skewed_server: SkewedServer, connect: Connect) -> AsyncIterator[Stage]:
    """A server of the test's own, and two sessions on it. At the end all that is left there expires."""
    async with AsyncExitStack() as stack:
        clients = [connect(skewed_server.server) for _ in range(SESSIONS)]
        sessions = [await stack.enter_async_context(Session(client)) for client in clients]
        yield Stage(skewed_server, clients[0], sessions)
    await skewed_server.advance(48 * 3600)
