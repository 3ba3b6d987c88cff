"""Long requests, on a connection of their own.

On the main connection, a long request would hold up each renewal after it. And a server that closes a
connection because of a long request would end the connection of all leases of the session.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, final

from .._tasks import empty_context
from .keys import slot_of
from .request import Request, ignore

if TYPE_CHECKING:
    from .connection import Multiplexed, Router


@final
class Bulk:
    """The long requests of one connection, and the requests that have to come after them.

    Invariant: requests for keys of one slot reach the server in the order of their sending. A long one waits
    until `main` owes no reply for its slots; while it waits or is under way, later requests for its slots
    follow it over `connection`. All keys of a name are in one slot.

    Args:
        main: The connection of all other requests.
        connection: For these requests; it has one of them under way at a time.

    Attributes:
        waiting: Not sent yet.
    """

    __slots__ = ("_clearing", "_loop", "connection", "main", "waiting")

    def __init__(self, main: Multiplexed, connection: Multiplexed, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.main = main
        self.connection = connection
        self.waiting: deque[Request[Any]] = deque()
        self._clearing = False

    def concerns(self, call: Request[Any]) -> bool:
        """Whether it has to come behind a long request."""
        if call.script is None or call.unconfirmed:  # that was sent before, on the other connection
            return False
        if self.connection.may_execute(call):
            return True
        return _shares(call, (*self.waiting, *self.connection.awaited()))

    def send(self, call: Request[Any]) -> None:
        self.waiting.append(call)
        self._go_on()

    def _go_on(self) -> None:
        while self.waiting and not self._clearing:
            call = self.waiting[0]
            if not call.done and _shares(call, self.main.awaited(further=False)):
                self._clear()
                return
            self.waiting.popleft()
            if not call.done:
                self.connection.send(call, at_once=True)

    def _clear(self) -> None:
        """Asks the other connection for a reply that comes after all that it owes by now."""
        self._clearing = True

        def cleared() -> None:
            self._clearing = False
            self._go_on()

        # Not at once: a connection that is being closed refuses every request.
        def answered(_: object) -> None:
            self._loop.call_soon(cleared, context=empty_context())

        ping: Request[None] = Request(None, (), ("PING",), ignore)
        self.main.send(ping.again().ask(answered, answered, until=math.inf))

    @property
    def busy(self) -> bool:
        return any(not call.done for call in self.waiting) or self.connection.busy

    def take_back(self, elsewhere: Callable[[Request[Any]], bool]) -> list[Request[Any]]:
        """As of the connection, and what waits for it."""
        taken = [call for call in self.waiting if not call.done and elsewhere(call)]
        gone = set(taken)
        self.waiting = deque(call for call in self.waiting if call not in gone)
        return [*self.connection.take_back(elsewhere), *taken]


@final
class ForMain:
    """In a cluster, the node's connection stands for the one of its long requests."""

    __slots__ = ("_main", "_router")

    def __init__(self, router: Router, main: Multiplexed) -> None:
        self._router = router
        self._main = main

    def redirected(self, node: Multiplexed, call: Request[Any], error: Exception) -> bool:
        return self._router.redirected(self._main, call, error)

    def broken(self, node: Multiplexed) -> None:
        if node.stuck:
            self._router.broken(self._main)

    def away(self, node: Multiplexed) -> None:
        self._router.away(self._main)


def _shares(call: Request[Any], others: tuple[Request[Any], ...] | list[Request[Any]]) -> bool:
    if not others:
        return False
    slots = {slot_of(key) for key in call.keys}
    return any(slot_of(key) in slots for other in others for key in other.keys)
