"""Fixtures of the suite: servers, clients, faults, and a look around after every test.

Everything that a test opens through these fixtures is closed in reverse order, then its servers are looked
at, then they go.
"""

from __future__ import annotations

import gc
import os
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from typing import Any, Protocol

import pytest
import pytest_asyncio
from _pytest.logging import LogCaptureHandler
from redis import Redis as BlockingRedis
from redis.asyncio import Redis, RedisCluster
from redis.backoff import NoBackoff
from redis.retry import Retry

from aiolocks import Session
from aiolocks.testing import EmbeddedServer, ServerState
from benchmarks.servers import UnknownServerError
from tests.support.clients import client_of
from tests.support.clusters import Cluster
from tests.support.hygiene import (
    HygieneError,
    Inspector,
    Leavings,
    LoopWatch,
    TokenWatch,
    pool_problems,
    settle,
)
from tests.support.ordering import Ordering
from tests.support.postgres import running_postgres
from tests.support.processes import Workers
from tests.support.proxy import Proxy
from tests.support.servers import SelectionError, Server, ServerKind, selected
from tests.support.skew import Clock, SkewedServer, SkewUnavailableError, compile_shim, skewed_executable
from tests.support.starting import pytest_sessionstart  # noqa: F401 - a hook
from tests.support.thinning import VARIABLE, part, take_part, thin_out

PREFIX = "aiolocks"
"""The prefix of the keys of all sessions that the suite opens."""

KINDS = pytest.StashKey[list[ServerKind]]()


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "leaves_keys(*patterns): the test may leave keys that match, being its own data; "
        "without patterns, any key that has a ttl",
    )
    config.addinivalue_line(
        "markers",
        "thin(ways=1): of the product of its parameters, the default run takes as many tests as have each "
        "value once, or with 2 each pair of values; the others are `more`",
    )
    config.pluginmanager.register(Ordering())
    if hasattr(config, "workerinput") or not config.getoption("numprocesses"):
        os.environ.pop("PYTEST_ADDOPTS", None)  # it was for this run, not for one that a test begins
    gc.disable()  # until all tests are collected: looking through them takes a third of that time
    try:
        config.stash[KINDS] = selected()
    except (SelectionError, UnknownServerError) as error:
        raise pytest.UsageError(str(error)) from error


def pytest_report_header() -> str | None:
    asked = part()
    return f"{VARIABLE}: part {asked[0]} of {asked[1]} of the tests with the marker `more`" if asked else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    thin_out(items)
    if gone := take_part(items):
        config.hook.pytest_deselected(items=gone)


def pytest_collection_finish() -> None:
    gc.enable()
    # The descriptions of thousands of tests stay: looking through them again and again would hold up tests,
    # and their measurements, for a third of a second each time. So would looking through them once, here.
    gc.freeze()


@pytest.fixture
def quick_collections() -> None:
    """`gc.collect` looks only at what this test makes.

    In a process that has run thousands of tests, it stops all threads for longer than a short ttl.
    """
    gc.collect()
    gc.freeze()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "server_kind" in metafunc.fixturenames:
        kinds = metafunc.config.stash[KINDS]
        metafunc.parametrize("server_kind", kinds, ids=str, indirect=True, scope="session")


# -- looking around


class Surroundings:
    """The servers and clients of one test, which it must leave as it found them."""

    def __init__(self, leavings: Leavings) -> None:
        self.resources = AsyncExitStack()
        self.inspectors: dict[str, Inspector] = {}  # by URL of the server
        self.loop = LoopWatch()
        self.tokens = TokenWatch()
        self.problems: list[str] = []
        self._leavings = leavings

    def begin(self, server: Server, inspector: Inspector) -> None:
        """From now on `server` is the test's. To be called before anything that uses it is opened."""
        inspector.begin()
        self.inspectors[server.url] = inspector
        self.resources.push_async_callback(self._end, server, inspector)

    async def _end(self, server: Server, inspector: Inspector) -> None:
        # A server that is dead or paused cannot be asked. A test answers for a server that it kills.
        if getattr(server, "state", ServerState.RUNNING) is ServerState.RUNNING:
            problems = await settle(lambda: inspector.problems(self._leavings))
            if problems and all(problem.startswith("connection") for problem in problems):
                # A session whose client was closed while a reply was on its way looks again after 0.5 s.
                problems = await settle(lambda: inspector.problems(self._leavings), grace=1.0)
            self.problems += problems
            inspector.remove_keys()

    async def aclose(self) -> None:
        try:
            await self.resources.aclose()
        finally:
            self.problems += await settle(self.loop.problems) + self.tokens.problems
            self.loop.close()
        if self.problems:
            raise HygieneError(self.problems)


@pytest.fixture
async def surroundings(request: pytest.FixtureRequest) -> AsyncIterator[Surroundings]:
    """The servers and clients that this test uses. For the fixtures here; a test asks for these."""
    marker = request.node.get_closest_marker("leaves_keys")
    patterns = marker.args if marker is not None else ()
    surroundings = Surroundings(Leavings(anything=marker is not None and not patterns, patterns=patterns))
    with surroundings.tokens.installed():
        yield surroundings
        await surroundings.aclose()


@pytest.fixture(autouse=True)
def _clean(request: pytest.FixtureRequest) -> None:
    """Looks around after every async test: set up before all other fixtures, and so torn down behind them."""
    if pytest_asyncio.is_async_test(request.node):
        request.getfixturevalue("surroundings")


@pytest.fixture(autouse=True, scope="session")
def _every_line_can_be_written() -> Iterator[None]:
    """A line of ours that cannot be formatted fails its test, as without `aiolocks._logs`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("aiolocks._logs._REPORT", LogCaptureHandler())
        yield


# -- servers


class OwnServer(Protocol):
    """The `own_server` fixture: starts one more server for this test."""

    async def __call__(self, *, port: int | None = None, arguments: Sequence[str] = ()) -> EmbeddedServer: ...


@pytest.fixture(scope="session")
def server_kind(request: pytest.FixtureRequest) -> ServerKind:
    """Which sort of server this test runs on; parametrized over those selected."""
    kind: ServerKind = request.param
    return kind


@pytest.fixture(scope="session")
def _shared_server(server_kind: ServerKind) -> Iterator[tuple[Server, Inspector]]:
    with ExitStack() as stack:
        server = stack.enter_context(server_kind.run())
        inspector = Inspector(blocking(server.url), prefix=PREFIX if server_kind.is_foreign else None)
        stack.callback(inspector.close)
        yield server, inspector


@pytest.fixture
def server(surroundings: Surroundings, _shared_server: tuple[Server, Inspector]) -> Server:
    """A server, empty; all tests share its process, so it is neither killed nor paused nor configured."""
    server, inspector = _shared_server
    surroundings.begin(server, inspector)
    return server


@pytest.fixture
def own_server(surroundings: Surroundings, server_kind: ServerKind) -> OwnServer:
    """Starts a server that is the test's alone: `own = await own_server(port=0, arguments=("--hz", "1"))`."""
    executable = server_kind.executable
    if executable is None:
        pytest.skip(f"not with {server_kind}: it kills, pauses or configures its server")

    async def start(*, port: int | None = None, arguments: Sequence[str] = ()) -> EmbeddedServer:
        return await open_server(surroundings, executable, port=port, arguments=arguments)

    return start


@pytest.fixture(scope="session")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    try:
        return compile_shim(tmp_path_factory.mktemp("skew"))
    except SkewUnavailableError as error:
        pytest.skip(str(error))


@pytest.fixture
async def skewed_server(
    surroundings: Surroundings, server_kind: ServerKind, shim: Path, tmp_path: Path
) -> SkewedServer:
    """A server of the test's own whose wall clock moves at will: `await skewed_server.advance(60)`."""
    if server_kind.executable is None:
        pytest.skip(f"not with {server_kind}: it moves its server's clock")
    clock = surroundings.resources.enter_context(Clock(tmp_path / "offset"))
    executable = skewed_executable(tmp_path / "server", server_kind.executable, shim, clock)
    server = await open_server(surroundings, executable)
    return SkewedServer(server, clock)


async def open_server(
    surroundings: Surroundings, executable: Path, *, port: int | None = None, arguments: Sequence[str] = ()
) -> EmbeddedServer:
    """Start a server that lives as long as the test."""
    server = EmbeddedServer(executable=executable, port=port, password=False, arguments=arguments)
    await surroundings.resources.enter_async_context(server)
    # By its socket: there always is one, whatever the test makes of the port.
    inspector = Inspector(blocking(f"unix://{server.path}", password=_option(arguments, "--requirepass")))
    surroundings.resources.callback(inspector.close)
    surroundings.begin(server, inspector)
    return server


@pytest.fixture(scope="session")
def shared_cluster(server_kind: ServerKind) -> Iterator[Cluster]:
    """Three nodes; all tests share them, so they are neither killed nor paused, and keep their slots."""
    if server_kind.executable is None:
        pytest.skip(f"not with {server_kind}: it starts servers of its own")
    if server_kind.is_simulated:
        pytest.skip(f"not with {server_kind}: it knows no clusters")
    with Cluster(server_kind.executable) as cluster:
        yield cluster


def clustered(surroundings: Surroundings, cluster: Cluster, **kwargs: Any) -> RedisCluster:
    """A client that is closed behind the test, and its default session before it."""
    client = cluster.client(**kwargs)

    async def close() -> None:
        try:
            await Session.of(client).aclose()
        finally:
            await client.aclose()

    surroundings.resources.push_async_callback(close)
    return client


def blocking(url: str, **kwargs: Any) -> BlockingRedis:
    """A client for looking at a server from outside."""
    return BlockingRedis.from_url(url, socket_timeout=2, retry=Retry(NoBackoff(), 1), **kwargs)


def _option(arguments: Sequence[str], name: str) -> str | None:
    return arguments[arguments.index(name) + 1] if name in arguments else None


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """A server of PostgreSQL, for all tests of a process: the directory of its socket."""
    with running_postgres() as socket:
        yield socket


# -- on the servers


class Connect(Protocol):
    """The `connect` fixture: makes one more client for this test."""

    def __call__(self, to: Server | Proxy | None = None, **kwargs: Any) -> Redis: ...


@pytest.fixture
def connect(surroundings: Surroundings, server: Server) -> Connect:
    """Makes clients and closes them: `connect(protocol=3)` of `server`, `connect(own)` of what is given."""

    def connect(to: Server | Proxy | None = None, **kwargs: Any) -> Redis:
        client = client_of(to or server, **kwargs)
        surroundings.resources.push_async_callback(close, client)
        return client

    async def close(client: Redis) -> None:
        try:
            await Session.of(client).aclose()  # the sessions that primitives with the bare client have shared
        finally:
            surroundings.problems += pool_problems(client)
            await client.aclose()

    return connect


@pytest.fixture
def redis(connect: Connect) -> Redis:
    """A client of `server`, as it comes."""
    return connect()


@pytest.fixture
def prefix(server_kind: ServerKind) -> str:
    """The prefix of this test's `session`: the default, but one of its own on a server that others use."""
    return f"{PREFIX}-test-{secrets.token_hex(4)}" if server_kind.is_foreign else PREFIX


@pytest.fixture
async def session(redis: Redis, prefix: str) -> AsyncIterator[Session]:
    """A session on `redis`, entered."""
    async with Session(redis, prefix=prefix) as session:
        yield session


@pytest.fixture
def keys(surroundings: Surroundings, server: Server) -> Callable[..., list[str]]:
    """The keys on `server`, or of one given, but those of fencing tokens: `assert keys() == []`."""

    def keys(of: Server = server) -> list[str]:
        return surroundings.inspectors[of.url].keys()

    return keys


@pytest.fixture
def proxy(surroundings: Surroundings) -> Callable[[Server], Awaitable[Proxy]]:
    """Puts a proxy before a server: `through = await proxy(server)`, then `connect(through)`."""

    def open_proxy(to: Server) -> Awaitable[Proxy]:
        return surroundings.resources.enter_async_context(Proxy(to.url))

    return open_proxy


@pytest.fixture
async def workers() -> AsyncIterator[Workers]:
    """Runs functions in processes of their own: `worker = await workers.start(function, url=server.url)`."""
    async with Workers() as workers:
        yield workers
