"""The lines that floors talk through: the driver, or nothing but an asyncio protocol with hiredis."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Protocol, cast

import hiredis
from redis.asyncio import Redis

from .model import BARE
from .settings import Address

_NOT_ENOUGH = object()
# Its stub knows only tuples of one word.
_pack = cast("Callable[[Any], bytes]", hiredis.pack_command)


class Wire(asyncio.Protocol):
    """One connection, for one request or one batch of them at a time."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._reader: Any = hiredis.Reader(notEnoughData=_NOT_ENOUGH)
        self._transport: asyncio.Transport | None = None
        self._last: asyncio.Future[Any] | None = None
        self._missing = 0
        self.pushed: asyncio.Future[None] | None = None  # is told when the server pushes anything

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Of asyncio."""
        self._transport = cast("asyncio.Transport", transport)

    def request(self, words: Sequence[Any]) -> asyncio.Future[Any]:
        """Sends one request; its reply."""
        return self._send(_pack(tuple(words)), 1)

    def pipeline(self, requests: Sequence[Sequence[Any]]) -> asyncio.Future[Any]:
        """Sends requests in one write; the last reply."""
        return self._send(b"".join([_pack(tuple(words)) for words in requests]), len(requests))

    def close(self) -> None:
        """Closes it."""
        assert self._transport is not None
        self._transport.close()

    def data_received(self, data: bytes) -> None:
        """Of asyncio."""
        assert self._last is not None
        self._reader.feed(data)
        while (reply := self._reader.gets()) is not _NOT_ENOUGH:
            if type(reply) is hiredis.PushNotification:
                if self.pushed is not None and not self.pushed.done():
                    self.pushed.set_result(None)
                continue
            self._missing -= 1
            if isinstance(reply, Exception) and not self._last.done():
                self._last.set_exception(reply)
            if self._missing == 0 and not self._last.done():
                self._last.set_result(reply)

    def _send(self, data: bytes, replies: int) -> asyncio.Future[Any]:
        assert self._transport is not None
        assert self._missing == 0, "the last reply has not come yet"
        self._missing = replies
        self._last = self._loop.create_future()
        self._transport.write(data)
        return self._last


@asynccontextmanager
async def open_wire(address: Address) -> AsyncGenerator[Wire]:
    """Connects."""
    loop = asyncio.get_running_loop()
    if address.port is None:
        _, wire = await loop.create_unix_connection(Wire, address.path)
    else:
        _, wire = await loop.create_connection(Wire, "127.0.0.1", address.port)
    try:
        yield wire
    finally:
        wire.close()


class Line(Protocol):
    """The line that a floor talks through."""

    def request(self, words: Sequence[Any]) -> Awaitable[Any]:
        """Sends one request; its reply."""
        ...


class _Driver:
    def __init__(self, client: Any) -> None:
        self._client = client

    def request(self, words: Sequence[Any]) -> Awaitable[Any]:
        reply: Awaitable[Any] = self._client.execute_command(*words)
        return reply


@asynccontextmanager
async def open_line(floor: str, address: Address) -> AsyncGenerator[Line]:
    """The driver, or for `BARE` nothing but a protocol."""
    if floor == BARE:
        async with open_wire(address) as wire:
            yield wire
    else:
        async with Redis(**address.client_arguments) as client:
            await client.ping()  # connected
            yield _Driver(client)


async def sleep_and_ping(line: Line, times: int) -> None:
    """The floor of whoever takes turns: a timer of 1 ms and one round trip, in sequence."""
    for _ in range(times):
        await asyncio.sleep(0.001)
        await line.request((b"PING",))
