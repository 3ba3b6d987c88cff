"""Leading for as long as a child runs, term by term."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field

import click

from ... import BackendError, Leadership, LockLostError, Session, Term
from ..._tasks import spawn
from ..._visible import visible
from ..exits import NO_SERVER, CommandError, of_signal, say
from ..server import connected
from .charge import InCharge
from .child import PART_OF_GRACE, ensure_program, started
from .waiting import described, explain


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """The request of the command line; times in seconds."""

    url: str = field(repr=False)
    prefix: str
    name: str
    command: tuple[str, ...]
    ttl: float
    grace: float | None
    value: str | None
    quiet: bool


class Candidate(InCharge):
    """One `aiolocks lead`: it waits for its turn, and looks after the child of each term."""

    def __init__(self, order: Order) -> None:
        super().__init__(order.name)
        self._order = order

    async def _wait_and_run(self) -> int:
        order = self._order
        async with connected(order.url) as server:
            ensure_program(order.command[0])
            try:
                session = Session(server.client, prefix=order.prefix)
                leadership = Leadership(
                    session,
                    order.name,
                    ttl=order.ttl,
                    grace=order.grace,
                    value=order.value,
                    metadata=described(order.command),
                )
            except ValueError as error:  # of an argument
                raise click.UsageError(str(error), click.get_current_context()) from None
            async with session:
                explaining = None
                if not order.quiet:
                    explaining = spawn(
                        asyncio.get_running_loop(),
                        self._explain(session, leadership),
                        name="aiolocks-explains",
                        context=None,
                    )
                try:
                    status = await leadership.run(self._run)
                except BackendError as error:
                    raise CommandError(str(error), NO_SERVER) from None
                finally:
                    if explaining is not None:
                        explaining.cancel()
        return status if status >= 0 else of_signal(-status)

    async def _explain(self, session: Session, leadership: Leadership) -> None:
        """Names the leader for which this process waits."""
        explained = explain(session, "leadership", self._order.name)
        naming = spawn(asyncio.get_running_loop(), explained, name="aiolocks-names", context=None)
        try:
            while not leadership.is_leader and not naming.done():
                await asyncio.wait((naming,), timeout=0.1)
        finally:
            naming.cancel()

    async def _run(self, term: Term) -> int:
        """The command, for one term."""
        child = started(self._order.command, term.fencing_token, self._mask)
        try:
            with self._in_charge_of(child):
                try:
                    return await child.finished(term.grace)
                except asyncio.CancelledError:
                    say(f"the term of '{visible(term.name)}' ends: {_why(term)}; ending the command")
                    left = term.remaining() or term.grace
                    with suppress(asyncio.CancelledError):
                        await child.end(left * PART_OF_GRACE)
                    raise
        finally:
            self._child = None


def _why(term: Term) -> str:
    """Why the term ends, or is about to end."""
    try:
        term.ensure_held()
    except LockLostError as error:
        return str(error)
    return f"it was not renewed, and ends in {term.remaining():.1f} s"
