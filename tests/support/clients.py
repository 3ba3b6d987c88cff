"""The clients of the suite: of redis-py, or of valkey-py with ``AIOLOCKS_TEST_CLIENTS=valkey``."""

from __future__ import annotations

import os
from typing import Any

from redis.asyncio import RedisCluster

CLIENTS = os.environ.get("AIOLOCKS_TEST_CLIENTS", "redis")
OF_VALKEY = CLIENTS == "valkey"
if CLIENTS not in ("redis", "valkey"):
    raise ValueError(f"AIOLOCKS_TEST_CLIENTS is redis or valkey, not {CLIENTS}")


def client_of(server: Any, **kwargs: Any) -> Any:
    """A client of a server or a proxy. An object without a URL makes one of redis-py in a form of its own."""
    if not OF_VALKEY or not hasattr(server, "url"):
        return server.client(**kwargs)
    from valkey.asyncio import Valkey

    return Valkey.from_url(server.url, **kwargs)


def cluster_client(host: str, port: int, **kwargs: Any) -> Any:
    """A client of the cluster that this node belongs to."""
    if not OF_VALKEY:
        return RedisCluster(host=host, port=port, **kwargs)
    from valkey.asyncio import ValkeyCluster

    return ValkeyCluster(host=host, port=port, **kwargs)


def with_own_connections(client: Any) -> Any:
    """Give the client connections of a class of the user's own: the serial transport serves them."""
    pool = client.connection_pool
    pool.connection_class = own_class(pool.connection_class)
    return client


def own_class(base: Any) -> Any:
    """A class of connections as users write them, to go through a tunnel: nothing that can be taken over."""

    async def connect(self: Any) -> None:
        await base._connect(self)

    return type(f"Own{base.__name__}", (base,), {"_connect": connect})
