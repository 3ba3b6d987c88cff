"""A TCP proxy in front of a Redis server: the network, with every fault it can have, on command.

It stands on loopback and leads to a server's port or unix socket. Both directions are read as RESP, so that
the proxy knows which request was answered and can lose exactly the reply that a test wants lost. (Where
messages cannot be told from replies, on a RESP2 connection that has subscribed, `Proxy.reset_after` and
`Proxy.deliver` are of no use.)

No tasks run and nothing is polled: bytes are passed on in the loop's own callbacks.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Self
from urllib.parse import SplitResult, unquote, urlsplit

from hiredis import PushNotification, Reader
from redis.asyncio import Redis

Request = list[bytes]
"""A command as it was sent: its name and its arguments."""

Match = bytes | Callable[[Request], bool]
"""Which requests are meant: those with these bytes in a word, or those for which it is true."""

_NOTHING = object()  # no message complete; None and False are replies


class Proxy:
    """An async context manager: listens from entering to exit, and then cuts what is left.

    All switches act at once, on open connections as on new ones.

    Args:
        upstream: URL of the server, ``unix://`` or ``redis://``. It need not be there yet.

    Attributes:
        delay_requests: Seconds that each piece takes on its way to the server; pieces keep their order.
        delay_replies: The same on the way back.
        drop_requests: Swallow what clients send; the server does not execute it, and does not see a client
            leave.
        drop_replies: Swallow what the server sends; it has executed it.
        refuse: Reset new connections at once.
        requests: Every request that came in, whatever became of it.
        connections: How many connections have been made.
    """

    def __init__(self, upstream: str) -> None:
        self.delay_requests = 0.0
        self.delay_replies = 0.0
        self.drop_requests = False
        self.drop_replies = False
        self.refuse = False
        self.requests: list[Request] = []
        self.connections = 0
        self._upstream = upstream
        self._hold_requests = False
        self._traps: list[_Trap] = []
        self._links: set[_Link] = set()  # until both their ends are closed
        self._arrived = asyncio.Event()
        self._listener: asyncio.Server | None = None

    # -- switches

    @property
    def delay(self) -> float:
        """Seconds for the way there and back. Setting it gives each direction half."""
        return self.delay_requests + self.delay_replies

    @delay.setter
    def delay(self, seconds: float) -> None:
        self.delay_requests = self.delay_replies = seconds / 2

    @property
    def blackhole(self) -> bool:
        """Whether both directions are swallowed: a half-open connection, where nobody hears of anything."""
        return self.drop_requests and self.drop_replies

    @blackhole.setter
    def blackhole(self, on: bool) -> None:
        self.drop_requests = self.drop_replies = on

    @property
    def hold_requests(self) -> bool:
        """Whether requests wait in the proxy. Once it is off, they go on; see also `strand`."""
        return self._hold_requests

    @hold_requests.setter
    def hold_requests(self, on: bool) -> None:
        self._hold_requests = on
        for link in self._links:
            if not link.stranded:
                link.to_server.hold(on)

    # -- faults

    def reset_after(self, match: Match = b"", *, nth: int = 1) -> asyncio.Event:
        """Lose the reply to the `nth` matching request from now on.

        Once the server has answered it, its client is reset instead. What the server sent in the same piece
        before that reply is lost with it.

        Returns:
            An event that is set when it has happened.
        """
        trap = _Trap(match, nth)
        self._traps.append(trap)
        return trap.sprung

    def cut(self) -> None:
        """Reset all open connections, on both sides. What is on its way in the proxy is lost."""
        for link in list(self._links):
            if not link.stranded:
                link.cut()

    def strand(self) -> None:
        """Reset all clients, but keep their connections to the server and the requests held on these.

        Connections made from now on are not held. `deliver` lets the stranded requests arrive: late, after
        whatever those clients have done meanwhile on new connections.
        """
        self._hold_requests = False
        for link in self._links:
            link.strand()

    async def deliver(self) -> int:
        """Deliver what `strand` has kept, wait until the server has answered it, and close those connections.

        Returns:
            How many requests it has answered; none on a connection that it has closed meanwhile.
        """
        stranded = [link for link in self._links if link.stranded]
        before = sum(link.answered for link in stranded)
        for link in stranded:
            link.to_server.hold(False)
            await link.settled()
            link.cut()
        return sum(link.answered for link in stranded) - before

    # -- looking on

    @property
    def open_connections(self) -> int:
        """How many clients are connected now."""
        return sum(not link.client_lost for link in self._links)

    def count(self, match: Match = b"") -> int:
        """How many matching requests have come in."""
        return sum(_matches(match, request) for request in self.requests)

    async def saw(self, match: Match = b"", *, count: int = 1) -> None:
        """Return as soon as `count` matching requests have come in, counting those of the past."""
        while self.count(match) < count:
            self._arrived.clear()
            await self._arrived.wait()

    @property
    def port(self) -> int:
        """Where it listens, on 127.0.0.1."""
        assert self._listener is not None, "the proxy has not been entered"
        port: int = self._listener.sockets[0].getsockname()[1]
        return port

    @property
    def url(self) -> str:
        """What `Redis.from_url` takes; credentials and database are those of the upstream URL."""
        upstream = urlsplit(self._upstream)
        database = "/0" if upstream.scheme == "unix" else upstream.path
        credentials, at, _ = upstream.netloc.rpartition("@")
        query = f"?{upstream.query}" if upstream.query else ""
        return f"redis://{credentials}{at}127.0.0.1:{self.port}{database}{query}"

    def client(self, **kwargs: Any) -> Redis:
        """Make a client that comes through here; its caller closes it."""
        client: Redis = Redis.from_url(self.url, **kwargs)
        return client

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._listener = await loop.create_server(lambda: _ClientSide(self), "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._listener is not None
        self._listener.close()
        links = list(self._links)
        for link in links:
            link.cut()
        for link in links:
            await link.closed.wait()
        await self._listener.wait_closed()

    # -- what its links call

    def accept(self, client: asyncio.Transport) -> _Link | None:
        """A client has connected."""
        if self.refuse:
            _reset(client)
            return None
        self.connections += 1
        link = _Link(self, client, urlsplit(self._upstream))
        link.to_server.hold(self._hold_requests)
        self._links.add(link)
        return link

    def log(self, request: Request) -> list[_Trap]:
        """A request has come in; the traps that it has stepped into."""
        self.requests.append(request)
        self._arrived.set()
        if self.drop_requests:
            return []  # never executed: nothing that `reset_after` could mean
        stepped_into = [trap for trap in self._traps if trap.steps_on(request)]
        self._traps = [trap for trap in self._traps if trap not in stepped_into]
        return stepped_into

    def forget(self, link: _Link) -> None:
        """Both ends of a link are closed."""
        self._links.discard(link)


class _Trap:
    """Waits for the n-th matching request."""

    def __init__(self, match: Match, nth: int) -> None:
        self.sprung = asyncio.Event()
        self._match = match
        self._to_come = nth

    def steps_on(self, request: Request) -> bool:
        if _matches(self._match, request):
            self._to_come -= 1
            return self._to_come == 0
        return False


class _Line:
    """One direction of a link: pieces in order, each no sooner than its delay after it came."""

    def __init__(self) -> None:
        self._pieces: deque[tuple[float, bytes | None]] = (
            deque()
        )  # when it is due; None is the end of the stream
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


class _Link:
    """A client's connection, and the one to the server that belongs to it."""

    def __init__(self, proxy: Proxy, client: asyncio.Transport, upstream: SplitResult) -> None:
        self.to_server = _Line()
        self.answered = 0
        self.stranded = False
        self.client_lost = False
        self.closed = asyncio.Event()
        self._proxy = proxy
        self._client = client
        self._server: asyncio.Transport | None = None
        self._server_lost = False
        self._to_client = _Line()
        self._to_client.connect(client)
        self._sent = 0
        self._traps: deque[tuple[int, _Trap]] = deque()  # and the number of the request that stepped into it
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
        for request in _messages(self._requests, data):
            traps = self._proxy.log(request)
            if not self._proxy.drop_requests:
                self._sent += _answers_due(request)
                self._traps.extend((self._sent, trap) for trap in traps)
        if not self._proxy.drop_requests:
            self.to_server.put(data, self._proxy.delay_requests)

    def replies_came(self, data: bytes) -> None:
        for reply in _messages(self._replies, data):
            self.answered += _is_answer(reply)
        self._progress.set()
        if self._traps and self._traps[0][0] <= self.answered:
            while self._traps and self._traps[0][0] <= self.answered:
                self._traps.popleft()[1].sprung.set()
            self.cut()
        elif not self._proxy.drop_replies:
            self._to_client.put(data, self._proxy.delay_replies)

    def client_left(self) -> None:
        self.client_lost = True
        # Behind a black hole the server is not told either.
        if not self.stranded and not self._proxy.drop_requests:
            self.to_server.put(None, self._proxy.delay_requests)
        self._close_if_over()

    def server_left(self) -> None:
        self._server_lost = True
        self._progress.set()
        if not self._proxy.drop_replies:
            self._to_client.put(None, self._proxy.delay_replies)
        self._close_if_over()

    def strand(self) -> None:
        self.stranded = True
        self._to_client.clear()
        if not self.client_lost:
            _reset(self._client)

    def cut(self) -> None:
        """Reset both ends; what is on its way is lost."""
        self.to_server.clear()
        self._to_client.clear()
        if not self.client_lost:
            _reset(self._client)
        if self._server_lost:
            return
        if self._server is not None:
            _reset(self._server)
        else:
            self._connecting.cancel()
            self.server_left()

    async def settled(self) -> None:
        """Return when everything that was sent has been answered, or nothing more can be."""
        while self.answered < self._sent and not self._server_lost:
            self._progress.clear()
            await self._progress.wait()

    def _close_if_over(self) -> None:
        if self.client_lost and self._server_lost:
            self._proxy.forget(self)
            self.closed.set()


class _ClientSide(asyncio.Protocol):
    """What asyncio calls for the connection of a client."""

    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy
        self._link: _Link | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._link = self._proxy.accept(transport)

    def data_received(self, data: bytes) -> None:
        if self._link is not None:
            self._link.requests_came(data)

    def connection_lost(self, _: Exception | None) -> None:
        if self._link is not None:
            self._link.client_left()


class _ServerSide(asyncio.Protocol):
    """What asyncio calls for the connection to the server."""

    def __init__(self, link: _Link) -> None:
        self._link = link

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._link.server_came(transport)

    def data_received(self, data: bytes) -> None:
        self._link.replies_came(data)

    def connection_lost(self, _: Exception | None) -> None:
        self._link.server_left()


def _messages(reader: Reader, data: bytes) -> Iterator[Any]:
    """What the data complete."""
    reader.feed(data)
    while (message := reader.gets()) is not _NOTHING:
        yield message


def _answers_due(request: Request) -> int:
    """How many replies there will be. A subscription is confirmed channel by channel."""
    return max(1, len(request) - 1) if request[0].upper().endswith(b"SUBSCRIBE") else 1


def _is_answer(message: Any) -> bool:
    """Whether it replies to a request. A push does not, unless it confirms a subscription."""
    return not isinstance(message, PushNotification) or message[0].endswith(b"subscribe")


def _matches(match: Match, request: Request) -> bool:
    if isinstance(match, bytes):
        return any(match in word for word in request)
    return match(request)


def _reset(transport: asyncio.Transport) -> None:
    """Close with a RST: to linger for zero seconds is to throw away what is unsent and not to say goodbye."""
    transport.get_extra_info("socket").setsockopt(
        socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
    )
    transport.abort()
