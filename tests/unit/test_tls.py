"""The question whether only one side speaks TLS: when it is asked."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest
import redis.exceptions as driver
from redis.asyncio.cluster import RedisCluster
from redis.asyncio.connection import Connection

from aiolocks.transport import tls
from aiolocks.transport.cluster_client import NodeConnectors
from aiolocks.transport.faults import TlsMismatchError


class _Door(SimpleNamespace):
    __hash__ = object.__hash__  # type: ignore[assignment]


async def _works() -> str:
    return "connected"


async def _breaks() -> str:
    raise driver.ConnectionError("Connection closed by server.")


async def test_where_a_connection_came_about_before_a_broken_one_is_no_reason_to_ask(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The answer takes a second, in which leases end: the next attempt must not wait for it."""
    asked = []

    async def speaks_tls(host: str, port: int) -> bool:
        asked.append((host, port))
        return True

    monkeypatch.setattr(tls, "_speaks_tls", speaks_tls)
    door = _Door(connection_class=Connection, connection_kwargs={"host": "redis", "port": 6379})
    with pytest.raises(TlsMismatchError):
        await tls.connected(door, _breaks())
    assert asked == [("redis", 6379)]
    assert await tls.connected(door, _works()) == "connected"
    with pytest.raises(driver.ConnectionError):
        await asyncio.wait_for(tls.connected(door, _breaks()), 1.0)
    assert len(asked) == 1


async def test_where_one_node_of_a_cluster_has_answered_no_other_is_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A node that is connected to again, as after a slot has moved, must not wait for that either."""

    async def speaks_tls(host: str, port: int) -> bool:
        pytest.fail("asked")

    monkeypatch.setattr(tls, "_speaks_tls", speaks_tls)
    client = RedisCluster("one", 6379)
    connectors = NodeConnectors(client)
    assert await tls.connected(connectors.connector(("one", 6379)), _works()) == "connected"

    for node in (("one", 6379), ("two", 6380)):
        with pytest.raises(driver.ConnectionError):
            await tls.connected(connectors.connector(node), _breaks())
