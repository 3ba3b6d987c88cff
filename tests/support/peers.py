"""A peer that speaks RESP3 and is no Redis: it greets clients, and a test says how it answers scripts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from hiredis import Reader
from redis.asyncio import Redis

from tests.support.links import reset

_NOTHING = object()


@dataclass
class Peer:
    """Where it listens, and what came in.

    Attributes:
        port: On 127.0.0.1.
        at: Loop times at which clients have connected.
        scripts: How many requests for scripts have come in.
    """

    port: int = 0
    at: list[float] = field(default_factory=list)
    scripts: int = 0

    def client(self) -> Redis:
        return Redis(host="127.0.0.1", port=self.port)


@asynccontextmanager
async def peer(on_script: Callable[[asyncio.Transport], object]) -> AsyncIterator[Peer]:
    """Listens for as long as the block lasts; `on_script` answers the requests for scripts, or does not."""
    here, open_now = Peer(), set[asyncio.Transport]()

    class Served(asyncio.Protocol):
        def connection_made(self, transport: Any) -> None:  # of uvloop, its class is no Transport
            self.transport, self.reader = transport, Reader(notEnoughData=_NOTHING)
            here.at.append(asyncio.get_running_loop().time())
            open_now.add(transport)

        def data_received(self, data: bytes) -> None:
            self.reader.feed(data)
            while (request := self.reader.gets()) is not _NOTHING:
                word = request[0].upper()
                if word in (b"EVAL", b"EVALSHA"):
                    here.scripts += 1
                    on_script(self.transport)
                else:
                    known = {b"HELLO": b"%1\r\n$5\r\nproto\r\n:3\r\n", b"INFO": b"$0\r\n\r\n"}
                    self.transport.write(known.get(word, b"+OK\r\n"))

        def connection_lost(self, _: Exception | None) -> None:
            open_now.discard(self.transport)

    listener = await asyncio.get_running_loop().create_server(Served, "127.0.0.1", 0)
    here.port = listener.sockets[0].getsockname()[1]
    try:
        yield here
    finally:
        listener.close()
        for transport in tuple(open_now):
            reset(transport)
        await listener.wait_closed()
