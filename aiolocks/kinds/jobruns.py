"""The runs of a job: its settings, how the tasks of one session ask for a slot, and the lease of a ticket."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, TypeVar, final

from ..errors import DuplicateJobError
from ..lock.binding import Binding
from ..lock.claim import QueuePolicy, Resource
from ..lock.clock import milliseconds
from ..lock.context import Context
from ..lock.lease import Lease, Possession
from ..lock.options import Metadata, Options, lock_name, user_metadata, whole_number
from ..transport import Granted
from .jobsteps import JobSteps, TicketRun

LeaseT = TypeVar("LeaseT", bound=Lease)
LeaseType = Callable[[Binding[LeaseT], Possession, Granted], LeaseT]

_ONE: Final = QueuePolicy(exclusive=True, strict=True)
_SEVERAL: Final = QueuePolicy(strict=True)
# A ticket whose place another one has taken is not told of that: its run asks each second.
_ONE_TICKET: Final = QueuePolicy(exclusive=True, strict=True, silence=1.0)
_TICKETS: Final = QueuePolicy(strict=True, silence=1.0)
_MOST_WAITING: Final = 1000
_MOST_AT_ONCE: Final = 2**31 - 1

# The names that other libraries use for an option, or that are easily taken for it.
MEANT: Final = {
    "blocking_timeout": "asyncio.timeout() around run() or perform(), or run(waiting=0)",
    "concurrency": "limit= (how many may run at once)",
    "lock_name": "key=",
    "name": "key=",
    "on_conflict": "enqueue(mode, on_conflict=...)",
    "value": "limit= (how many may run at once)",
    "timeout": "ttl= (how long the lease lasts), or asyncio.timeout() around run() or perform()",
    "waiting": "run(waiting=...)",
}


@final
@dataclass(frozen=True, slots=True)
class JobSettings:
    """One job.

    Attributes:
        limit: The most runs at once.
    """

    key: str
    options: Options
    limit: int

    @classmethod
    def checked(cls, key: object, *, ttl: object, limit: object, metadata: object) -> JobSettings:
        name = lock_name(key, "key")
        options = Options.checked(ttl=ttl, metadata=metadata)
        return cls(name, options, whole_number("limit", limit, most=_MOST_AT_ONCE))

    def options_with(self, metadata: Metadata | None) -> Options:
        """The options of one run, with metadata of its own beside those of the job."""
        if metadata is None:
            return self.options
        both = {**self.options.metadata, **user_metadata(metadata)}
        return dataclasses.replace(self.options, metadata=both)


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


def run(
    engine: Context,
    key: str,
    lease_type: LeaseType[LeaseT],
    options: Options,
    *,
    limit: int,
    waiting: int | None = None,
    timeout: float | None = None,
    ticket_run: TicketRun | None = None,
) -> Coroutine[Any, Any, LeaseT]:
    """Acquires one of `limit` slots, for which `waiting` calls may wait; or the run of a ticket.

    `timeout`: seconds to wait; None for ever.
    """
    # Where any number may wait, the waiters of this session stand in one queue. Else the server has to tell
    # them apart: each asks for itself, with a bell of its own.
    alone = waiting is not None or ticket_run is not None
    caller = engine.token()[:16] if alone else ""
    commands = JobSteps(
        engine.settings.prefix,
        key,
        limit=limit,
        waiting=waiting,
        ticket_run=ticket_run,
        retention_ms=milliseconds(engine.settings.fence_retention),
        session=engine.session_id,
        caller=caller,
    )
    one, several = (_ONE, _SEVERAL) if ticket_run is None else (_ONE_TICKET, _TICKETS)
    policy = one if limit == 1 else several
    resource = Resource(commands, ("uniquejob", key, caller, limit), policy)
    binding: Binding[LeaseT] = Binding(
        engine, resource, lease_type, label="UniqueJob", name=key, options=options
    )
    return binding.acquire(timeout)


async def unless_duplicate(running: Coroutine[Any, Any, LeaseT]) -> LeaseT | None:
    """The lease, or None for a duplicate."""
    try:
        return await running
    except DuplicateJobError:
        return None


def whole_places(waiting: object) -> int | None:
    """The number of waiting places, checked; None for any number."""
    if waiting is None:
        return None
    if isinstance(waiting, bool) or not isinstance(waiting, int):
        raise TypeError(f"waiting must be an int or None for any number, not {waiting!r}")
    if not 0 <= waiting <= _MOST_WAITING:
        raise ValueError(
            f"waiting must be from 0 to {_MOST_WAITING}, or None for any number, not {waiting!r}"
        )
    return waiting
