"""The requests that servers were really sent, whoever sent them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from redis.asyncio import Redis

from .settings import Address

_BEGIN, _END = "the count begins", "the count ends"


@dataclass(slots=True)
class Requests:
    """The number of them, once the count has ended."""

    number: int = 0


@asynccontextmanager
async def counting(addresses: Iterable[Address]) -> AsyncGenerator[Requests]:
    """Counts all requests to these servers, by MONITOR; not the commands that scripts call."""
    counted = Requests()
    async with AsyncExitStack() as stack:
        watched: list[tuple[Redis, Any]] = []
        for address in addresses:
            admin = await stack.enter_async_context(Redis(**address.client_arguments))
            watched.append((admin, await stack.enter_async_context(admin.monitor())))
        for admin, monitor in watched:
            await _until(admin, monitor, _BEGIN)
        yield counted
        for admin, monitor in watched:
            counted.number += await _until(admin, monitor, _END)


async def _until(admin: Redis, monitor: Any, mark: str) -> int:
    """Sends the mark; the number of the requests that came before it."""
    await admin.echo(mark)
    number = 0
    while not (said := await monitor.next_command())["command"].endswith(mark):
        number += said["client_type"] != "lua"
    return number
