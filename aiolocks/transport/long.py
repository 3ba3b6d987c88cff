"""The second connection to a server: for long requests, and for the requests that have to come after them.

On the main connection, a long request would hold up each renewal after it. And a server that closes a
connection because of a long request would end the connection of all leases of the session.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import socket
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final, final

from .._tasks import empty_context
from .keys import slot_of
from .request import Request, ignore

if TYPE_CHECKING:
    from .connection import Multiplexed

_PIECE: Final = 65_536
_KERNEL: Final = 262_144
"""Bytes that the kernel may hold for the connection: this process does not learn when they leave."""


@final
class Long:
    """The second connection, and the order that its requests keep with the requests of the main one.

    Invariant: requests for keys of one slot reach the server in the order of their sending. A long one waits
    at the head of the second connection's queue until the main connection owes no reply for its slots
    (`waits`). While a long one waits or is under way, later requests for its slots follow it (`concerns`).
    All keys of a name are in one slot.

    Args:
        main: The connection of all other requests.
        open_connection: Makes the second one. It has one request under way at a time, so that it is known
            for which request the server closes it.
    """

    __slots__ = ("_clearing", "_loop", "connection", "main")

    def __init__(
        self,
        main: Multiplexed,
        open_connection: Callable[[Long], Multiplexed],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._loop = loop
        self._clearing = False
        self.main = main
        self.connection = open_connection(self)

    def concerns(self, call: Request[Any]) -> bool:
        """Whether it has to come after a long request."""
        if call.script is None or call.unconfirmed:  # that was sent before, on the main connection
            return False
        # An undo also where its connection has ended, and only the server may still have what it undoes.
        return self.connection.may_execute(call) or _shares(call, self.connection.owed())

    def send(self, call: Request[Any]) -> None:
        self.connection.send(call, at_once=True)

    def waits(self, call: Request[Any]) -> bool:
        """Whether the main connection owes a reply that has to come before it."""
        return _shares(call, self.main.owed())

    def clear(self) -> None:
        """Has the second connection go on when the main one has answered all that it owes by now."""
        if self._clearing:
            return
        self._clearing = True

        def cleared() -> None:
            self._clearing = False
            self.connection.go_on()

        # Not at once: a connection that is being closed refuses every request.
        def answered(_: object) -> None:
            self._loop.call_soon(cleared, context=empty_context())

        ping: Request[None] = Request(None, (), ("PING",), ignore)
        self.main.send(ping.ask(answered, answered, until=math.inf))


def _shares(call: Request[Any], others: Iterable[Request[Any]]) -> bool:
    slots = {slot_of(key) for key in call.keys}
    return any(slot_of(key) in slots for other in others for key in other.keys)


@final
class Outflow:
    """A long request on its way out, piece by piece, as the line takes them.

    In one piece, a TLS transport would not tell when its bytes leave: a slow line would look like a silent
    server.

    Attributes:
        held: The line takes no more for now.
    """

    __slots__ = ("_began", "_moved_at", "_now", "_rest", "_transport", "held")

    def __init__(self, transport: asyncio.WriteTransport, request: bytes, now: Callable[[], float]) -> None:
        self._transport = transport
        # Not every transport has a socket that can be told so; the rest works without.
        with contextlib.suppress(AttributeError, OSError, TypeError):
            transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _KERNEL)
        self._rest = memoryview(request)
        self._now = now
        self._began = self._moved_at = now()
        self.held = True

    def go_on(self) -> None:
        """The line takes more, or the first of it."""
        self.held = False
        self._moved_at = self._now()
        while self._rest and not self.held and not self._transport.is_closing():
            piece, self._rest = self._rest[:_PIECE], self._rest[_PIECE:]
            self._transport.write(piece)  # during which `held` may be set

    @property
    def silent_since(self) -> float:
        """Loop time from which on the server counts as silent.

        Not before the line has taken the last piece. What the kernel holds by then, this process cannot see:
        it is taken to leave as slowly as the rest has left.
        """
        return self._moved_at + (self._moved_at - self._began)
