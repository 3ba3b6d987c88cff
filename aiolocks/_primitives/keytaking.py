"""A ticket on its way to own the key of its job."""

from __future__ import annotations

from .._core.engine import Engine
from .._transport.commands.jobs import enqueueing, withdrawing
from ..errors import SessionClosedError
from .tickets import Ticket


async def take_key(
    engine: Engine, ticket: Ticket, metadata: str, *, replace: bool, undo_for: float
) -> int | None:
    """None, or the milliseconds for which another ticket has it.

    Cancelled, or failed, it leaves the key as it was before: an answer that comes late is undone, for
    `undo_for` seconds.
    """
    prefix, known_as = engine.settings.prefix, ticket.known_as
    call, answered = engine.start(
        enqueueing(prefix, ticket.key, known_as, ticket.ttl_ms, metadata, replace=replace),
        until=engine.now() + engine.settings.command_timeout,
    )
    try:
        left = await answered
        if engine.closing:
            raise SessionClosedError("the session was closed while waiting")
    except BaseException:
        if engine.forget(call):
            # The ticket reaches nobody: it is taken back, in order after the request.
            engine.take_back(withdrawing(prefix, ticket.key, known_as), undo_for)
        raise
    return left
