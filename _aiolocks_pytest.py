"""pytest fixtures with a real server: `aiolocks_server` for the whole run, and two others for each test.

`aiolocks_redis` is a client, and `aiolocks_serving` redirects the sessions of an application to the server.

The plugin is installed with aiolocks, and does nothing until a test asks for a fixture. Async tests can be
run by pytest-asyncio, in strict or auto mode, or by anyio's plugin on asyncio.

It stands beside the package and not in it: pytest imports its plugins at each start, also for tests that have
nothing to do with locks, and a module of the package would import all of it first, with the driver.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from aiolocks import Session
    from aiolocks.sync import Session as SyncSession
    from aiolocks.testing import EmbeddedServer

try:
    from pytest_asyncio import fixture as asyncio_fixture
except ImportError:  # then anyio's plugin is the only one that can run async tests
    asyncio_fixture = pytest.fixture  # type: ignore[assignment]  # more overloads, all that matters the same


@pytest.fixture(scope="session")
def aiolocks_server() -> Iterator[EmbeddedServer]:
    """A real server for the whole run: the one that `EmbeddedServer` finds."""
    from aiolocks.testing import EmbeddedServer  # noqa: PLC0415 - not before it is needed

    with EmbeddedServer() as server:
        yield server


@pytest.fixture
def aiolocks_redis(request: pytest.FixtureRequest) -> Redis:
    """A client of `aiolocks_server`, with an empty database. The end of the test closes it.

    If an earlier test has killed the server or left it paused, it is started again.
    """
    # The fixture must run in the test's own event loop, and that is its plugin's.
    runner = "anyio" if "anyio_backend" in request.fixturenames else "asyncio"
    client: Redis = request.getfixturevalue(f"_aiolocks_redis_by_{runner}")
    return client


@pytest.fixture
def aiolocks_serving(aiolocks_server: EmbeddedServer) -> Iterator[Callable[..., None]]:
    """A function: after `aiolocks_serving(shop.locks)`, a session made at import uses `aiolocks_server`.

    Also one of `aiolocks.sync`. It does so until the test ends, async or not. The database is emptied before
    the test. If an earlier test has killed the server or left it paused, it is started again.
    """
    from redis import Redis as BlockingRedis  # noqa: PLC0415 - not before it is needed

    from aiolocks.testing import ServerState  # noqa: PLC0415 - as above

    if aiolocks_server.state is not ServerState.RUNNING:
        aiolocks_server.kill()
        aiolocks_server.__enter__()
    with BlockingRedis.from_url(aiolocks_server.url) as client:  # pyright: ignore[reportUnknownMemberType] - its **kwargs
        client.flushdb()  # pyright: ignore[reportUnknownMemberType] - as above
    with ExitStack() as stack:

        def serving(*sessions: Session | SyncSession) -> None:
            stack.enter_context(aiolocks_server.serving(*sessions))

        yield serving


@asyncio_fixture
async def _aiolocks_redis_by_asyncio(aiolocks_server: EmbeddedServer) -> AsyncIterator[Redis]:
    async with connected(aiolocks_server) as client:
        yield client


@pytest.fixture
async def _aiolocks_redis_by_anyio(aiolocks_server: EmbeddedServer) -> AsyncIterator[Redis]:
    async with connected(aiolocks_server) as client:
        yield client


@asynccontextmanager
async def connected(server: EmbeddedServer) -> AsyncGenerator[Redis, None]:
    """The body of both, which differ in whose event loop runs them."""
    from aiolocks import Session  # noqa: PLC0415 - not before it is needed
    from aiolocks.testing import ServerState  # noqa: PLC0415 - as above

    if server.state is not ServerState.RUNNING:
        await server.restart()
    client = server.client()
    try:
        await client.flushdb()  # pyright: ignore[reportUnknownMemberType] - redis-py leaves its **kwargs untyped
        yield client
    finally:
        await Session.of(client).aclose()
        await client.aclose()
