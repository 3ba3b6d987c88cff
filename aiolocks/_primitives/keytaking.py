"""A ticket on its way to own the key of its job."""

from __future__ import annotations

from typing import Literal

from .._core.arguments import SHORTEST_TTL, Seconds, seconds
from .._core.clock import milliseconds
from .._core.engine import Engine
from .._core.options import Options
from .._transport.commands.jobs import enqueueing, withdrawing
from ..errors import SessionClosedError
from .tickets import MODES, Mode, Ticket

OnConflict = Literal["raise", "skip", "replace"]


def ticket_for(key: str, mode: Mode, ttl: Seconds, on_conflict: OnConflict) -> Ticket:
    """A new ticket; raises where an argument is not as it should be."""
    if mode not in MODES:
        raise ValueError(f"mode must be one of {', '.join(map(repr, MODES))}, not {mode!r}")
    if on_conflict not in ("raise", "skip", "replace"):
        raise ValueError(f"on_conflict must be 'raise', 'skip' or 'replace', not {on_conflict!r}")
    return Ticket.new(key, mode, milliseconds(seconds("ttl", ttl, least=SHORTEST_TTL)))


async def take_key(engine: Engine, ticket: Ticket, options: Options, *, replace: bool) -> int | None:
    """None, or the milliseconds for which another ticket has it.

    Cancelled, or failed, it leaves the key as it was before: an answer that comes late is undone, for as
    long as the ttl of a run.
    """
    prefix, server_id = engine.settings.prefix, ticket.server_id
    user = engine.settings.user_json({**engine.settings.metadata, **options.metadata})
    metadata = engine.describe(user)
    call, answered = engine.start(
        enqueueing(prefix, ticket.key, server_id, ticket.ttl_ms, metadata, replace=replace),
        until=engine.now() + engine.settings.command_timeout,
    )
    try:
        left = await answered
        if engine.closing:
            raise SessionClosedError("the session was closed while waiting")
    except BaseException:
        if engine.forget(call):
            # The ticket reaches nobody: it is taken back, in order after the request.
            engine.take_back(withdrawing(prefix, ticket.key, server_id), options.ttl)
        raise
    return left
