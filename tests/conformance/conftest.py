"""What every kind of lock is run through: each test here, on each kind, over each transport."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from redis.asyncio import Redis
from redis.asyncio.connection import Connection, UnixDomainSocketConnection

from aiolocks import KeyspaceWakeup, Lock, Session
from tests.conftest import Connect
from tests.support.proxy import Proxy
from tests.support.servers import Server


@dataclass(frozen=True)
class Kind:
    """One kind of lock.

    Attributes:
        make: Describes a lock: `make(client_or_session, name, **common)`.
    """

    name: str
    make: Callable[..., Any]

    def __str__(self) -> str:
        return self.name


KINDS = [Kind("lock", Lock)]


@pytest.fixture(params=KINDS, ids=str)
def kind(request: pytest.FixtureRequest) -> Kind:
    found: Kind = request.param
    return found


class OwnTcp(Connection):
    """As users write them, to go through a tunnel: nothing that can be taken over."""

    async def _connect(self) -> None:
        await super()._connect()


class OwnUnix(UnixDomainSocketConnection):
    async def _connect(self) -> None:
        await super()._connect()


@pytest.fixture(params=["tracking", "keyspace", "poll", "plain"])
def way(request: pytest.FixtureRequest) -> str:
    """The transport, and how its sessions are woken: by one of three ways over the one connection that all
    share, or, over the plain transport, by the poll."""
    name: str = request.param
    return name


@pytest.fixture
def transport(way: str) -> str:
    return "plain" if way == "plain" else "multiplexed"


@pytest.fixture
def join(connect: Connect, way: str, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Redis]:
    """Makes a client whose sessions use the transport and the wakeup under test."""
    wakeups = {"keyspace": KeyspaceWakeup(configure=True), "plain": "auto"}
    monkeypatch.setitem(Session.__init__.__kwdefaults__, "wakeup", wakeups.get(way, way))

    def join(to: Server | Proxy | None = None, **kwargs: Any) -> Redis:
        client = connect(to, **kwargs)
        if way == "plain":
            pool = client.connection_pool
            own = OwnUnix if issubclass(pool.connection_class, UnixDomainSocketConnection) else OwnTcp
            pool.connection_class = own
        return client

    return join


@pytest.fixture
def client(join: Callable[..., Redis]) -> Redis:
    return join()
