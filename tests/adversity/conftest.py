"""A client whose way to the server can be disturbed."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from aiolocks import Backoff, Session
from tests.adversity.tools import PATIENT, WAYS, ByHand, Formed, Start, wakeup, warm, with_own_connections
from tests.adversity.troubles import Setting, Trouble
from tests.conftest import Connect, OwnServer, Surroundings, clustered
from tests.support.clusters import Cluster
from tests.support.proxy import Proxy
from tests.support.servers import Server
from tests.support.thinning import spread_out

SPREAD = {
    *("decode", "decode_responses", "dress", "form", "nutcracker", "plain", "protocol", "settings"),
    *("skewed_client", "spoiled", "transport", "trouble", "wakeup", "wakeups", "way"),
}
"""Parameters that say how a test comes to its fault, or which of like faults it meets."""


@pytest.hookimpl(tryfirst=True)  # and so before the products are thinned out
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Each fault over one transport and one way of waking; `tests/conformance` has the kinds over all."""
    here = f"{Path(__file__).parent}{os.sep}"
    spread_out([item for item in items if str(item.path).startswith(here)], SPREAD)


@pytest.fixture
async def through(proxy: Callable[[Server], Awaitable[Proxy]], server: Server) -> Proxy:
    """A proxy before the shared server."""
    return await proxy(server)


@pytest.fixture(params=["url", "own connections"], ids=["multiplexed", "plain"])
def form(request: pytest.FixtureRequest) -> str:
    """One form of client for each transport."""
    form: str = request.param
    return form


@pytest.fixture
async def client(connect: Connect, through: Proxy, form: str) -> Redis:
    """A client that comes through `through`, its default session connected."""
    client = connect(Formed(through, form))
    await warm(client)
    return client


@pytest.fixture(params=["multiplexed", "plain"])
def dress(request: pytest.FixtureRequest) -> Callable[[Redis], Redis]:
    """Makes a client use the transport under test."""
    return with_own_connections if request.param == "plain" else lambda client: client


@pytest.fixture
async def setting(
    request: pytest.FixtureRequest,
    trouble: Trouble,
    own_server: OwnServer,
    connect: Connect,
    dress: Callable[[Redis], Redis],
    tmp_path: Path,
) -> Setting:
    """A server, a client of it with its session connected, and the way into the trouble."""
    directory = tmp_path / "data"
    directory.mkdir()
    server = await own_server(arguments=(*trouble.arguments, "--dir", str(directory)))
    client = dress(connect(server))
    await warm(client)
    admin = connect(server, username="admin", password="admin")
    async with server.client() as first:
        await first.acl_setuser(
            "admin", enabled=True, passwords=["+admin"], commands=["+@all"], keys=["*"], channels=["*"]
        )
    await admin.ping()
    return server, client, lambda: trouble.lasting(admin, server)


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> str:
    """One way in which bells are heard."""
    name: str = request.param
    return name


@pytest.fixture
def cluster(surroundings: Surroundings, shared_cluster: Cluster) -> Iterator[Cluster]:
    """Three nodes; the slots that a test moves stay where they are then, which harms nobody."""
    shared_cluster.begin(surroundings)
    yield shared_cluster
    for node in shared_cluster.masters:
        node.do("CONFIG", "SET", "notify-keyspace-events", "")


@pytest.fixture
async def sessions(surroundings: Surroundings, cluster: Cluster) -> AsyncIterator[list[Session]]:
    """Two sessions of the cluster, of two clients, so that only the servers know of both."""
    async with (
        Session(clustered(surroundings, cluster)) as one,
        Session(clustered(surroundings, cluster)) as two,
    ):
        yield [one, two]


@pytest.fixture
async def start(connect: Connect, way: str) -> AsyncIterator[Start]:
    """Makes sessions that are closed before their clients are."""
    async with AsyncExitStack() as sessions:

        def start(*, backoff: Backoff = PATIENT, to: Any = None) -> Session:
            session = Session(connect(to), wakeup=wakeup(way), backoff=backoff)
            sessions.push_async_callback(session.aclose)
            return session

        yield start


@pytest.fixture
def by_hand(server: Server) -> Iterator[ByHand]:
    """A client that holds locks of the shared server without a session of the library."""
    holder = ByHand(server)
    yield holder
    holder.close()


@pytest.fixture(autouse=True)
def _producible(request: pytest.FixtureRequest) -> None:
    """Redis 6.2 has neither the settings nor the ACL words with which these faults are made."""
    name = request.node.name
    if "redis-6" in name and any(
        fault in name for fault in ("MISCONF", "loads_its_data", "cannot_be_dropped")
    ):
        pytest.skip("this fault cannot be produced on Redis 6.2")
