"""A way to a server on which bytes take their time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import cast

from .settings import Address


class _End(asyncio.Protocol):
    """One end of a connection: what it receives leaves at the other end, so many seconds later."""

    def __init__(self, seconds: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._seconds = seconds
        self._early: list[bytes] = []
        self._transport: asyncio.Transport | None = None
        self.other: _End | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Of asyncio."""
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Of asyncio."""
        self._loop.call_later(self._seconds, self._pass_on, data)

    def connection_lost(self, exc: Exception | None) -> None:
        """Of asyncio."""
        if self.other is not None:
            self._loop.call_later(self._seconds, self.other.close)

    def _pass_on(self, data: bytes) -> None:
        if self.other is None or self.other._transport is None:  # noqa: SLF001 - of this very class
            self._early.append(data)
        else:
            self.other._transport.write(data)  # noqa: SLF001 - as above

    def joined(self, other: _End) -> None:
        """From now on, that is the other end."""
        self.other = other
        while self._early:
            self._pass_on(self._early.pop(0))

    def close(self) -> None:
        """The other end has closed."""
        if self._transport is not None:
            self._transport.close()


@asynccontextmanager
async def far_away(address: Address, seconds: float) -> AsyncGenerator[Address]:
    """An address of the same server, from which an answer takes so many seconds longer."""
    loop = asyncio.get_running_loop()
    connecting: set[asyncio.Task[None]] = set()

    async def connect(near: _End) -> None:
        def make() -> _End:
            return _End(seconds / 2)

        if address.port is None:
            _, far = await loop.create_unix_connection(make, address.path)
        else:
            _, far = await loop.create_connection(make, "127.0.0.1", address.port)
        far.joined(near)
        near.joined(far)

    def accept() -> _End:
        near = _End(seconds / 2)
        task = loop.create_task(connect(near))
        connecting.add(task)
        task.add_done_callback(connecting.discard)
        return near

    server = await loop.create_server(accept, "127.0.0.1", 0)
    try:
        yield Address("", server.sockets[0].getsockname()[1])
    finally:
        server.close()
