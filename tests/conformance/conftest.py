"""Every kind of lock runs through each test here, over each transport."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol

import pytest
from redis.asyncio import Redis
from redis.asyncio.connection import Connection

from aiolocks import (
    FairLock,
    KeyspaceWakeup,
    Limits,
    Lock,
    LockTimeoutError,
    MultiLock,
    RangeLock,
    ReentrantLock,
    RWLock,
    Semaphore,
    Session,
)
from tests.conftest import Connect, Surroundings, clustered
from tests.kinds import declared
from tests.simulation.world.loop import SimulatedLoop
from tests.support.clients import with_own_connections
from tests.support.clusters import Cluster
from tests.support.masters import MASTERS, OneServerAsThree, open_three
from tests.support.proxy import Proxy
from tests.support.servers import Server
from tests.support.waiting import eventually


@dataclass(frozen=True)
class Kind:
    """One kind of lock.

    Attributes:
        make: Describes a lock: `make(client_or_session, name, **common)`.
        ways: The transports and wakeups over which it is tested; all of them with `AIOLOCKS_TEST_WAYS=all`.
            The default run has the first of them.
        masters: To how many each request goes.
    """

    name: str
    make: Callable[..., Any]
    ways: tuple[str, ...]
    masters: int = 1

    def __str__(self) -> str:
        return self.name


SHORT = 1.5
"""Seconds of a ttl of which a test waits for the end. Each of several masters has a twentieth of it."""


def stall() -> float:
    """Seconds that a machine may stand still: beyond what is promised, nothing is late in the world."""
    return 0.0 if isinstance(asyncio.get_running_loop(), SimulatedLoop) else 4.0


async def nothing_left(kind: Kind, keys: Callable[..., list[str]]) -> None:
    """At once where one server was asked; of several, a majority has answered, and the rest will.

    The keys that a minority of several has given back to a handle that nobody has any more are there for one
    ttl.
    """
    if kind.masters > 1:
        await eventually(lambda: not keys(), within=6)
    assert keys() == []


async def server_remaining(kind: Kind, client: Redis, name: str = "a") -> float:
    """Seconds that the holder's lease has left, as the server says."""
    with pytest.raises(LockTimeoutError) as caught:
        await kind.make(client, name).acquire(blocking_timeout=0)
    assert caught.value.remaining is not None
    return caught.value.remaining


class EachItsOwn(ReentrantLock):
    """A reentrant lock of which each acquisition has an owner of its own: then one excludes the next."""

    def _of_owner(self) -> Any:
        found = ReentrantLock(self._source, self._name, owner=secrets.token_hex(4), **self._common)
        found._apart = False  # as a task is: nobody elsewhere can be it
        return found

    def __init__(self, client: Any, name: str, **common: Any) -> None:
        super().__init__(client, name, **common)
        self._common = common


def _several(client: Any, name: str, **common: Any) -> Any:
    """Several names, of which the tests know the first."""
    lock = MultiLock(client, [name, f"{name[:500]} and another"], **common)
    lock._name = name
    return lock


def _part(mode: str) -> Callable[..., Any]:
    return lambda client, name, **common: getattr(RangeLock(client, name, **common), mode)(2, 3)


def _mode(mode: str) -> Callable[..., Any]:
    return lambda client, name, **common: getattr(RWLock(client, name, **common), mode)


def _semaphore(*, fair: bool) -> Callable[..., Any]:
    return lambda client, name, **common: Semaphore(client, name, 1, fair=fair, **common)


def _limits(client: Any, name: str, **common: Any) -> Any:
    return Limits(client, name, {"all": 2, "tenant": 1}, **common)


KINDS = [
    Kind("lock", Lock, ("tracking", "plain")),
    Kind("reentrant", EachItsOwn, ("tracking",)),
    Kind("fair", FairLock, ("tracking",)),
    Kind("multi", _several, ("cluster-tracking", "keyspace")),
    Kind("semaphore", _semaphore(fair=False), ("poll",)),
    Kind("fair semaphore", _semaphore(fair=True), ("plain",)),
    Kind("limits", _limits, ("cluster-tracking",)),
    Kind("rwlock.writer", _mode("writer"), ("tracking",)),
    Kind("rwlock.upgradable", _mode("upgradable"), ("plain",)),
    Kind("rangelock.writer", _part("writer"), ("keyspace",)),
    Kind("rangelock.upgradable", _part("upgradable"), ("poll",)),
    Kind("redlock", OneServerAsThree, ("tracking",), masters=MASTERS),
]
CONFORMS = [*KINDS, *(Kind(*row) for rows in declared("CONFORMS") for row in rows)]
KEEPING = [
    Kind("lock", Lock, ("tracking", "keyspace", "poll", "plain", "cluster-tracking")),
    Kind("fair", FairLock, ("plain", "tracking", "cluster-poll")),
]
"""Those that have `at_least`, of which `test_at_least` asks more."""
KEPT = {"tracking", "plain", "cluster-poll"}
"""Over these, by default."""
WAYS = ["tracking", "keyspace", "poll", "plain", "cluster-tracking", "cluster-keyspace", "cluster-poll"]
"""Those of a cluster are on three nodes, between which the keys of a `MultiLock` are divided."""
ALL_WAYS = os.environ.get("AIOLOCKS_TEST_WAYS") == "all"


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "timed(*kinds): the test waits for a clock. By default it runs on a real server with these kinds, "
        "`lock` if none is given, and with each kind in the simulated world",
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Each kind over its ways, of which all but the first are `more`."""
    if "kind" in metafunc.fixturenames and metafunc.function.__name__ != "test_in_the_world":
        of_keeping = metafunc.module.__name__.endswith("test_at_least")
        timed = (
            None if _is_special(metafunc.config) else next(metafunc.definition.iter_markers("timed"), None)
        )
        pairs = []
        for kind in KEEPING if of_keeping else CONFORMS:
            for way in WAYS:
                if (ALL_WAYS and not (kind.masters > 1 and way.startswith("cluster"))) or way in kind.ways:
                    first = way == kind.ways[0] or (of_keeping and timed is None and way in KEPT)
                    here = timed is None or kind.name in (timed.args or ("lock",))
                    marks = [] if first and here else [pytest.mark.more]
                    pairs.append(pytest.param(kind, way, id=f"{kind}-{way}", marks=marks))
        metafunc.parametrize(("kind", "way"), pairs)


def _is_special(config: pytest.Config) -> bool:
    """Whether another server, client or loop is under test, of which the simulated world shows nothing."""
    variables = ("AIOLOCKS_TEST_SERVERS", "AIOLOCKS_TEST_REDIS_URL", "AIOLOCKS_TEST_CLIENTS")
    plugins = ("tests.support.on_uvloop", "tests.support.eager_tasks")
    return any(map(os.environ.get, variables)) or any(map(config.pluginmanager.has_plugin, plugins))


def wakeup_of(way: str) -> Any:
    wakeup = way.removeprefix("cluster-")
    return {"keyspace": KeyspaceWakeup(configure=True), "plain": "auto"}.get(wakeup, wakeup)


class OwnTcp(Connection):
    """As users write them, to go through a tunnel: nothing that can be taken over."""

    async def _connect(self) -> None:
        await super()._connect()


@pytest.fixture
def transport(way: str) -> str:
    return "plain" if way == "plain" else "multiplexed"


class Join(Protocol):
    """The `join` fixture: makes one more client, with the transport and the wakeup under test."""

    def __call__(self, **kwargs: Any) -> Any: ...


@pytest.fixture
def cluster(surroundings: Surroundings, way: str, request: pytest.FixtureRequest) -> Cluster | None:
    """The cluster that is under test, empty, if one is."""
    if not way.startswith("cluster"):
        return None
    cluster: Cluster = request.getfixturevalue("shared_cluster")
    cluster.begin(surroundings)
    return cluster


@pytest.fixture
def join(
    connect: Connect,
    kind: Kind,
    way: str,
    cluster: Cluster | None,
    surroundings: Surroundings,
    monkeypatch: pytest.MonkeyPatch,
) -> Join:
    if kind.masters > 1:
        monkeypatch.setattr("aiolocks.lock.session.open_transport", open_three)
    monkeypatch.setitem(Session.__init__.__kwdefaults__, "wakeup", wakeup_of(way))

    def join(**kwargs: Any) -> Any:
        if cluster is not None:
            return clustered(surroundings, cluster, **kwargs)
        client = connect(**kwargs)
        return with_own_connections(client) if way == "plain" else client

    return join


@pytest.fixture
async def client(join: Join, cluster: Cluster | None) -> Any:
    client = join()
    if cluster is not None:
        await client.initialize()  # it computes for a while when it first is used for itself, as tests do
    return client


@pytest.fixture
async def far_away(
    join: Join, proxy: Callable[[Any], Awaitable[Proxy]], server: Server, cluster: Cluster | None
) -> Callable[[float], Awaitable[Any]]:
    """Makes a client at the other end of a link on which bytes take `delay` seconds."""

    async def far_away(delay: float) -> Any:
        if cluster is None:
            link = await proxy(server)
            link.delay = delay
            return join(to=link)
        ports: dict[int, int] = {}
        for node in cluster.nodes:
            link = await proxy(node)
            link.delay = delay
            ports[node.port] = link.port
        return join(address_remap=lambda address: (address[0], ports[address[1]]))

    return far_away


@pytest.fixture
def keys(keys: Callable[..., list[str]], cluster: Cluster | None) -> Callable[..., list[str]]:
    """The keys of the server or of the cluster under test, but those of fencing tokens."""
    return keys if cluster is None else cluster.keys
