"""The CPU time of some work: it says the same on a host on which others work as on an idle one."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from redis.asyncio import RedisCluster

from .model import Figure

FIGURES = (Figure("client", "client, µs of CPU a cycle", 1), Figure("server", "server, µs of CPU a cycle", 1))


@dataclass(slots=True)
class Spent:
    """Seconds of CPU: of this process, and of the server or of all nodes of the cluster."""

    client: float = 0.0
    server: float = 0.0

    def each(self, cycles: int) -> dict[str, float]:
        """`FIGURES`, for that many cycles."""
        return {"client": self.client / cycles * 1e6, "server": self.server / cycles * 1e6}


@asynccontextmanager
async def spending(admin: Any) -> AsyncGenerator[Spent]:
    """Counts it for as long as it is entered.

    The server's includes that of the two questions themselves, which take some 50 µs.
    """
    spent = Spent()
    server, client = await _of_server(admin), time.process_time()
    try:
        yield spent
    finally:
        spent.client = time.process_time() - client
        spent.server = await _of_server(admin) - server


async def _of_server(admin: Any) -> float:
    if isinstance(admin, RedisCluster):
        nodes = list((await admin.info("cpu", target_nodes=RedisCluster.PRIMARIES)).values())
    else:
        nodes = [await admin.info("cpu")]
    seconds: float = sum(used["used_cpu_user"] + used["used_cpu_sys"] for used in nodes)
    return seconds


async def of_scripts(admin: Any) -> float:
    """Microseconds of all scripts of a server so far, by its own count."""
    stats = await admin.info("commandstats")
    return float(stats["cmdstat_evalsha"]["usec"])
