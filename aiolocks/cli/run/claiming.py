"""The tick that `run --every` and `run --cron` come for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ... import BackendError, Session
from ..._core.arguments import lock_name
from ..._core.options import Options
from ..._core.sources import engine_of
from ..._primitives.schedule.once import claim_nearest
from ..._primitives.schedule.runs import Run
from ..exits import NO_SERVER, CommandError, say
from ..listing.shown import visible
from .waiting import described

if TYPE_CHECKING:
    from .keeper import Order


async def claim_tick(session: Session, order: Order) -> Run | None:
    """The run of the tick, or None: another machine has it, or another run goes on."""
    assert order.ticks is not None
    options = Options.checked(ttl=order.ttl, metadata=described(order.command))
    try:
        found = await claim_nearest(engine_of(session), lock_name(order.name), order.ticks, options)
    except BackendError as error:
        raise CommandError(str(error), NO_SERVER) from None
    except ValueError as error:  # of the name
        raise click.UsageError(str(error), click.get_current_context()) from None
    if isinstance(found, Run):
        return found
    if found.why in ("skipped", "busy") and not order.quiet:
        say(f"'{visible(order.name)}' is skipped: another run of it goes on")
    return None
