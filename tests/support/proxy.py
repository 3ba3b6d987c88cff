"""A TCP proxy in front of a Redis server: the network, with every fault it can have, on command.

It stands on loopback and leads to a server's port or unix socket. Both directions are read as RESP, so that
the proxy knows which request was answered and can lose exactly the reply that a test wants lost. (Where
messages cannot be told from replies, on a RESP2 connection that has subscribed, `Proxy.reset_after` and
`Proxy.deliver` are of no use.)

Nothing is polled, and but for connecting there are no tasks: bytes are passed on in the loop's callbacks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final, Self
from urllib.parse import urlsplit

from redis.asyncio import Redis

from tests.support.links import ClientSide, Link, Match, Request, Trap, matches, reset

SILENT: Final = b""
"""Instead of an answer: nothing."""


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
        rate: Bytes a second that each connection takes from its client; None for any number. Bytes beyond
            that wait with the client, as behind a slow line.
        hello: What a client that sends ``HELLO 3`` is told instead of the answer of the server, which does
            not see the request; `CLOSED` of `links` closes the connection, and `SILENT` says nothing. None:
            the server answers.
        subscribe: The same for ``SUBSCRIBE``, on a connection with RESP2.
        request: Changes what clients send, piece by piece, before it goes on to the server; `requests` has it
            as it came.
        reply: Changes what the server sends, piece by piece, before it goes on to the client.
        requests: Every request that came in, whatever became of it.
        connections: How many connections have been made.
    """

    def __init__(self, upstream: str) -> None:
        self.delay_requests = 0.0
        self.delay_replies = 0.0
        self.drop_requests = False
        self.drop_replies = False
        self.refuse = False
        self.rate: float | None = None
        self.hello: bytes | None = None
        self.subscribe: bytes | None = None
        self.request: Callable[[bytes], bytes] | None = None
        self.reply: Callable[[bytes], bytes] | None = None
        self.requests: list[Request] = []
        self.connections = 0
        self._upstream = upstream
        self._hold_requests = False
        self._traps: list[Trap] = []
        self._links: set[Link] = set()  # until both their ends are closed
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

    def lead_to(self, upstream: str) -> None:
        """New connections lead to another server: the address is that one's from now on."""
        self._upstream = upstream

    # -- faults

    def reset_after(self, match: Match = b"", *, nth: int = 1) -> asyncio.Event:
        """Lose the reply to the `nth` matching request from now on.

        Once the server has answered it, its client is reset instead. Bytes that the server sent in the same
        piece before that reply are lost with it.

        Returns:
            An event that is set when it has happened.
        """
        trap = Trap(match, nth)
        self._traps.append(trap)
        return trap.sprung

    def deafen(self) -> None:
        """Leave the connections that are open now half-open for good: nothing passes, not even their end.

        Those made from now on are as the switches say.
        """
        for link in self._links:
            link.deaf = True

    def cut(self) -> None:
        """Reset all open connections, on both sides. Bytes on their way in the proxy are lost."""
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
        return sum(matches(match, request) for request in self.requests)

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
        """The URL for `Redis.from_url`; credentials and database are those of the upstream URL."""
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
        self._listener = await loop.create_server(lambda: ClientSide(self), "127.0.0.1", 0)
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

    def accept(self, client: asyncio.Transport) -> Link | None:
        """A client has connected."""
        if self.refuse:
            reset(client)
            return None
        self.connections += 1
        link = Link(self, client, urlsplit(self._upstream))
        link.to_server.hold(self._hold_requests)
        self._links.add(link)
        return link

    def log(self, request: Request, *, goes_on: bool) -> list[Trap]:
        """A request has come in, and goes on to the server or not; the traps that caught it."""
        self.requests.append(request)
        self._arrived.set()
        if not goes_on:
            return []  # never executed: nothing that `reset_after` could mean
        sprung = [trap for trap in self._traps if trap.catches(request)]
        self._traps = [trap for trap in self._traps if trap not in sprung]
        return sprung

    def forget(self, link: Link) -> None:
        """Both ends of a link are closed."""
        self._links.discard(link)
