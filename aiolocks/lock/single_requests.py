"""Requests of a session outside any queue: one answer for one caller; and requests that undo other ones."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar, final

from .._tasks import empty_context
from ..errors import BackendError
from ..transport import Fault, Released, Request, Transport, ignore, take_back
from .notes import note

if TYPE_CHECKING:
    from .lease import Claim

T = TypeVar("T")


@final
class SingleRequests:
    """Sends what a task or a clean-up asks of the server by itself.

    It knows the connection, and not the session: an undo may last longer than a session that no task
    uses any more, and must not keep it.

    Args:
        loop: The loop of the session.
        transport: The connection of the session.
        wake_own: Called with the answer to an undo, which may wake a waiter of this session.
    """

    __slots__ = ("_loop", "_send", "_waited_for", "_wake_own")

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        transport: Transport,
        wake_own: Callable[[Released], None],
    ) -> None:
        self._loop = loop
        self._send = transport.send
        self._wake_own = wake_own
        self._waited_for: set[asyncio.Future[Any]] = set()

    def waiter(self) -> asyncio.Future[Any]:
        """A future for a waiter: it ends with the session at the latest."""
        future: asyncio.Future[Any] = self._loop.create_future()
        self._waited_for.add(future)
        future.add_done_callback(self._waited_for.discard, context=empty_context())
        return future

    @property
    def busy(self) -> bool:
        """Whether a task waits for an answer."""
        return bool(self._waited_for)

    def end_with(self, make_error: Callable[[], Exception]) -> None:
        """Ends all requests that a task waits for: the session is closed."""
        for future in tuple(self._waited_for):
            if not future.done():
                future.set_exception(make_error())

    def start(
        self,
        command: Request[T],
        *,
        until: float,
        make: Callable[[], Request[T]] | None = None,
        told: Callable[[T], object] | None = None,
        patient: bool = False,
    ) -> tuple[Request[T], asyncio.Future[T]]:
        """Sends a command; its end is the future's, or the session's.

        `told` is called with the answer when it comes, whether a task still waits for it or not. `patient`
        for what is held: it waits for a server that cannot be reached.
        """
        future: asyncio.Future[T] = self.waiter()

        def replied(result: T) -> None:
            if told is not None:
                told(result)
            if not future.done():
                future.set_result(result)

        def failed(fault: Fault) -> None:
            if not future.done():
                if command.keys and isinstance(fault.error, BackendError):
                    note(fault.error, f"aiolocks: asked for {command.keys[0].decode(errors='replace')!r}")
                future.set_exception(fault.error)

        call = command.again().ask(replied, failed, until=until, patient=patient, make=make, on_late=told)
        self._send(call)
        return call, future

    def undo(
        self,
        claim: Claim,
        ttl: float,
        *,
        leave: bool = False,
    ) -> None:
        """Takes back whatever an acquire of this claim did or may yet do; `leave` to leave the queue too."""
        self.take_back(claim.release(leave=leave), ttl, told=self._wake_own)

    def take_back(
        self,
        command: Request[T],
        ttl: float,
        *,
        told: Callable[[T], None] = ignore,
    ) -> None:
        """Sends an undo, which is of use for `ttl` seconds at least; see `transport.take_back`."""
        take_back(command, send=self._send, loop=self._loop, seconds=ttl, told=told)

    def settle(self, claim: Claim) -> None:
        """Synchronous: what was sent for this claim creates nothing any more once a task may adopt it."""
        if (command := claim.settle()) is not None:
            self._send(command.again().ask(ignore, ignore, until=self._loop.time()), at_once=True)
