"""The lease of a process that runs a ticket of a `UniqueJob`."""

from __future__ import annotations

from types import TracebackType
from typing import Any, final

from .._core.binding import Binding
from .._core.lease import Lease
from .._core.possession import Possession
from .._transport import Granted
from .._transport.commands.jobs import TicketRun


@final
class JobLease(Lease):
    """A run of a ticket.

    A body that ends without an exception has done the ticket: it is remembered, and every further run of it
    is a duplicate. A body that raises or is cancelled has not: the next `perform` of the ticket runs it.
    """

    __slots__ = ("_ticket_run",)

    def __init__(
        self, binding: Binding[Any], possession: Possession, grant: Granted, ticket_run: TicketRun
    ) -> None:
        super().__init__(binding, possession, grant)
        self._ticket_run = ticket_run

    async def release(self, *, done: bool = True) -> None:
        """Ends the run. Idempotent: once it was released, every further call does nothing.

        Waits for the server's confirmation, up to the lease's own deadline. A cancellation is held up for at
        most 1 s; the release goes on by itself after it.

        Args:
            done: Whether the ticket has been done. If not, the next `perform` of it runs it again.

        Raises:
            LockNotOwnedError: It was lost.
            BackendError: Not confirmed by the lease's deadline; the ttl ends the run.
        """
        if self._possession.live:
            self._ticket_run.done = done
        await super().release()

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._possession.remaining() > 0.0:  # a run that was lost before its end is not done
            self._ticket_run.done = exc_type is None
        await super().__aexit__(exc_type, exc, traceback)
