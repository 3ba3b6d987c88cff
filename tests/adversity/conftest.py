"""A client whose way to the server can be disturbed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator

import pytest
from redis.asyncio import Redis

from tests.adversity.tools import WAYS, ByHand, Formed, warm
from tests.conftest import Connect
from tests.support.proxy import Proxy
from tests.support.servers import Server


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


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> str:
    """One way in which bells are heard."""
    name: str = request.param
    return name


@pytest.fixture
def by_hand(server: Server) -> Iterator[ByHand]:
    """Who holds locks of the shared server without a session of the library."""
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
