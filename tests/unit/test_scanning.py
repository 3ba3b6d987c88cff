"""How the serial transport executes commands of a cluster's client."""

from __future__ import annotations

from typing import Any
from unittest.mock import AsyncMock, patch

import pytest
import redis.exceptions as driver
from redis.asyncio.cluster import ClusterNode, RedisCluster

from aiolocks.transport.cluster_client import over_nodes
from aiolocks.transport.driver import NotConnectedError


def step() -> tuple[bytes | str | int, ...]:
    return ("EVALSHA", b"0" * 40, 1, b"key", b"token")


@pytest.fixture
def node() -> Any:
    """A node that serves every slot."""
    with patch.object(ClusterNode, "execute_command", AsyncMock()):
        yield ClusterNode("node", 6379)


@pytest.fixture
def client(node) -> Any:
    """A client that knows of nothing but that node."""
    client = RedisCluster(startup_nodes=[node])
    client.nodes_manager.default_node = node
    client.nodes_manager.slots_cache = {client.keyslot(b"key"): [node]}
    with patch.object(client, "initialize", AsyncMock()):
        yield client


async def test_a_command_is_sent_once_however_it_ends(client, node) -> None:
    """That it may have been executed is for its caller to know: redis-py would repeat it, and say nothing."""
    node.execute_command.side_effect = driver.ConnectionError("Connection closed by server.")

    with pytest.raises(driver.ConnectionError):
        await over_nodes(client)(step)

    assert node.execute_command.await_count == 1


async def test_where_no_node_is_known_any_is_asked(client, node) -> None:
    node.execute_command.return_value = 1
    client.nodes_manager.slots_cache = {}

    assert await over_nodes(client)(step) == 1


async def test_nothing_was_sent_where_no_node_can_be_reached(client, node) -> None:
    client.initialize.side_effect = driver.RedisClusterException("no node can be reached")

    with pytest.raises(NotConnectedError, match="no node can be reached"):
        await over_nodes(client)(step)

    assert node.execute_command.await_count == 0
