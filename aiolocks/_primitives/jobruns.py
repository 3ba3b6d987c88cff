"""How the tasks of one session ask for a running slot of a job."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

from .._core.binding import Binding
from .._core.claim import Manner, Resource
from .._core.clock import milliseconds
from .._core.engine import Engine
from .._core.lease import Lease
from .._core.options import Options
from .._core.possession import Possession
from .._transport import Granted
from .._transport.commands.jobs import JobCommands, TicketRun
from ..errors import DuplicateJobError

LeaseT = TypeVar("LeaseT", bound=Lease)
LeaseType = Callable[[Binding[LeaseT], Possession, Granted], LeaseT]

_ONE: Final = Manner(exclusive=True, eager=True, strict=True)
_SEVERAL: Final = Manner(eager=True, strict=True)
# A ticket whose place another one has taken is not told of that: its run asks each second.
_ONE_TICKET: Final = Manner(exclusive=True, eager=True, strict=True, silence=1.0)
_TICKETS: Final = Manner(eager=True, strict=True, silence=1.0)
_MOST_WAITING: Final = 1000


def run(
    engine: Engine,
    key: str,
    lease_type: LeaseType[LeaseT],
    options: Options,
    *,
    limit: int,
    waiting: int | None = None,
    ticket_run: TicketRun | None = None,
) -> Coroutine[Any, Any, LeaseT]:
    """Acquires one of `limit` slots, for which `waiting` calls may wait; or the run of a ticket."""
    # Where any number may wait, the waiters of this session stand in one queue. Else the server has to tell
    # them apart: each asks for itself, with a bell of its own.
    alone = waiting is not None or ticket_run is not None
    caller = engine.token()[:16] if alone else ""
    commands = JobCommands(
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
    manner = one if limit == 1 else several
    resource = Resource(commands, ("uniquejob", key, caller, limit), manner)
    binding: Binding[LeaseT] = Binding(
        engine, resource, lease_type, label="UniqueJob", name=key, options=options
    )
    return binding.acquire(None)


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
