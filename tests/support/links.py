"""The parts of the proxy: a link is a client's connection and the one to the server that belongs to it."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import SplitResult, unquote

from hiredis import ProtocolError, PushNotification, Reader

if TYPE_CHECKING:
    from tests.support.proxy import Proxy

Request = list[bytes]
"""A command as it was sent: its name and its arguments."""

Match = bytes | Callable[[Request], bool]
"""Which requests are meant: those with these bytes in a word, or those for which it is true."""

CLOSED: Final = b"closed"
"""Instead of an answer: the connection is closed."""

_NOTHING = object()  # no message complete; None and False are replies


class Trap:
    """Waits for the n-th matching request."""

    def __init__(self, match: Match, nth: int) -> None:
        self.sprung = asyncio.Event()
        self._match = match
        self._to_come = nth

    def catches(self, request: Request) -> bool:
        if matches(self._match, request):
            self._to_come -= 1
            return self._to_come == 0
        return False


class Line:
    """One direction of a link: pieces in order, each no sooner than its delay after it came."""

    def __init__(self) -> None:
        # Each with the time when it is due. None is the end of the stream.
        self._pieces: deque[tuple[float, bytes | None]] = deque()
        self._to: asyncio.Transport | None = None
        self._held = False
        self._timer: asyncio.TimerHandle | None = None

    def connect(self, to: asyncio.Transport) -> None:
        """The far end is there; until then everything waits."""
        self._to = to
        self._run()

    def hold(self, on: bool) -> None:
        self._held = on
        self._run()

    def put(self, piece: bytes | None, delay: float) -> None:
        due = asyncio.get_running_loop().time() + delay
        if self._pieces:
            due = max(due, self._pieces[-1][0])  # a delay that was lowered lets nothing overtake
        self._pieces.append((due, piece))
        self._run()

    def clear(self) -> None:
        self._pieces.clear()
        if self._timer is not None:
            self._timer.cancel()

    def _run(self) -> None:
        """Pass on what is due, and come back for the next."""
        if self._timer is not None:
            self._timer.cancel()
        if self._to is None or self._held:
            return
        loop = asyncio.get_running_loop()
        while self._pieces:
            due, piece = self._pieces[0]
            if due > loop.time():
                self._timer = loop.call_at(due, self._run)
                return
            self._pieces.popleft()
            if piece is None:
                self._to.close()
            elif not self._to.is_closing():
                self._to.write(piece)


class Link:
    """A client's connection, and the one to the server that belongs to it."""

    def __init__(self, proxy: Proxy, client: asyncio.Transport, upstream: SplitResult) -> None:
        self.to_server = Line()
        self.answered = 0
        self.stranded = False
        self.deaf = False
        self.client_lost = False
        self.closed = asyncio.Event()
        self._proxy = proxy
        self._client = client
        self._server: asyncio.Transport | None = None
        self._server_lost = False
        self._to_client = Line()
        self._to_client.connect(client)
        self._sent = 0
        self._traps: deque[tuple[int, Trap]] = deque()  # and the number of the request that it caught
        self._progress = asyncio.Event()
        self._requests = Reader(notEnoughData=_NOTHING)
        self._replies = Reader(notEnoughData=_NOTHING)
        self._connecting = asyncio.get_running_loop().create_task(self._connect(upstream))

    async def _connect(self, upstream: SplitResult) -> None:
        loop = asyncio.get_running_loop()
        try:
            if upstream.scheme == "unix":
                await loop.create_unix_connection(lambda: _ServerSide(self), unquote(upstream.path))
            else:
                address = upstream.hostname or "127.0.0.1", upstream.port or 6379
                await loop.create_connection(lambda: _ServerSide(self), *address)
        except OSError:
            self._server_lost = True
            self.cut()

    def server_came(self, server: asyncio.Transport) -> None:
        self._server = server
        self.to_server.connect(server)

    def requests_came(self, data: bytes) -> None:
        if self._proxy.rate is not None:
            self._client.pause_reading()
            pause = len(data) / self._proxy.rate
            asyncio.get_running_loop().call_later(pause, self._client.resume_reading)
        goes_on = not self._drops_requests
        for request in _messages(self._requests, data):
            traps = self._proxy.log(request, goes_on=goes_on)
            if goes_on:
                self._sent += _answers_due(request)
                self._traps.extend((self._sent, trap) for trap in traps)
        if goes_on and not self._says_no(data):
            if self._proxy.request is not None:
                data = self._proxy.request(data)
            self.to_server.put(data, self._proxy.delay_requests)

    def _says_no(self, data: bytes) -> bool:
        """Whether the proxy answers in place of the server. Clients send this alone, and wait."""
        if b"$5\r\nHELLO\r\n$1\r\n3\r\n" in data:
            answer = self._proxy.hello
        else:
            answer = self._proxy.subscribe if b"$9\r\nSUBSCRIBE\r\n" in data else None
        if answer is None:
            return False
        self._sent -= 1
        if answer:
            self._to_client.put(None if answer == CLOSED else answer, self._proxy.delay)
        return True

    def replies_came(self, data: bytes) -> None:
        for reply in _messages(self._replies, data):
            self.answered += _is_answer(reply)
        self._progress.set()
        if self._traps and self._traps[0][0] <= self.answered:
            while self._traps and self._traps[0][0] <= self.answered:
                self._traps.popleft()[1].sprung.set()
            self.cut()
        elif not self._drops_replies:
            if self._proxy.reply is not None:
                data = self._proxy.reply(data)
            self._to_client.put(data, self._proxy.delay_replies)

    def client_left(self) -> None:
        self.client_lost = True
        # Behind a black hole the server is not told either.
        if not self.stranded and not self._drops_requests:
            self.to_server.put(None, self._proxy.delay_requests)
        self._close_if_over()

    def server_left(self) -> None:
        self._server_lost = True
        self._progress.set()
        if not self._drops_replies:
            self._to_client.put(None, self._proxy.delay_replies)
        self._close_if_over()

    def strand(self) -> None:
        self.stranded = True
        self._to_client.clear()
        if not self.client_lost:
            reset(self._client)

    def cut(self) -> None:
        """Reset both ends; what is on its way is lost."""
        self.to_server.clear()
        self._to_client.clear()
        if not self.client_lost:
            reset(self._client)
        if self._server_lost:
            return
        if self._server is not None:
            reset(self._server)
        else:
            self._connecting.cancel()
            self.server_left()

    async def settled(self) -> None:
        """Return when everything that was sent has been answered, or nothing more can be."""
        while self.answered < self._sent and not self._server_lost:
            self._progress.clear()
            await self._progress.wait()

    @property
    def _drops_requests(self) -> bool:
        return self.deaf or self._proxy.drop_requests

    @property
    def _drops_replies(self) -> bool:
        return self.deaf or self._proxy.drop_replies

    def _close_if_over(self) -> None:
        if self.client_lost and self._server_lost:
            self._proxy.forget(self)
            self.closed.set()


class ClientSide(asyncio.Protocol):
    """The protocol that asyncio calls for the connection of a client."""

    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy
        self._link: Link | None = None

    def connection_made(self, transport: Any) -> None:  # of uvloop, its class is no Transport
        if self._proxy.rate is not None:  # a slow line holds little
            transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
        self._link = self._proxy.accept(transport)

    def data_received(self, data: bytes) -> None:
        if self._link is None:
            return
        try:
            self._link.requests_came(data)
        except ProtocolError:  # as a server, it closes a connection that begins with a TLS handshake
            self._link.cut()

    def connection_lost(self, _: Exception | None) -> None:
        if self._link is not None:
            self._link.client_left()


class _ServerSide(asyncio.Protocol):
    """The protocol that asyncio calls for the connection to the server."""

    def __init__(self, link: Link) -> None:
        self._link = link

    def connection_made(self, transport: Any) -> None:  # of uvloop, its class is no Transport
        self._link.server_came(transport)

    def data_received(self, data: bytes) -> None:
        self._link.replies_came(data)

    def connection_lost(self, _: Exception | None) -> None:
        self._link.server_left()


def _messages(reader: Reader, data: bytes) -> Iterator[Any]:
    """The messages that the data complete."""
    reader.feed(data)
    while (message := reader.gets()) is not _NOTHING:
        yield message


def _answers_due(request: Request) -> int:
    """How many replies there will be. A subscription is confirmed channel by channel."""
    return max(1, len(request) - 1) if request[0].upper().endswith(b"SUBSCRIBE") else 1


def _is_answer(message: Any) -> bool:
    """Whether it replies to a request. A push does not, unless it confirms a subscription."""
    return not isinstance(message, PushNotification) or message[0].endswith(b"subscribe")


def matches(match: Match, request: Request) -> bool:
    if isinstance(match, bytes):
        return any(match in word for word in request)
    return match(request)


def reset(transport: asyncio.Transport) -> None:
    """Close with a RST: to linger for zero seconds is to throw away what is unsent and not to say goodbye."""
    transport.get_extra_info("socket").setsockopt(
        socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
    )
    transport.abort()
