"""Leading for as long as a child runs, term by term."""

from __future__ import annotations

import asyncio
import signal
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

import click

from ... import BackendError, Leadership, Session, Term
from ..exits import NO_SERVER, CommandError, of_signal, say
from ..server import connected
from .child import Child
from .programs import ensure_program, started
from .signals import ENDING, Arrival, Signals, stop_self
from .waiting import described, explain

_PART_OF_GRACE: Final = 0.9
"""The part of its grace after which the command gets KILL."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What the command line asked for; times in seconds."""

    url: str = field(repr=False)
    prefix: str
    name: str
    command: tuple[str, ...]
    ttl: float
    grace: float | None
    value: str | None
    quiet: bool


class Candidate:
    """One `aiolocks lead`: it waits for its turn, and looks after the child of each term.

    A signal that arrives while there is no child ends the waiting; one that arrives later is the child's
    affair. There is no await between the two, so none falls between.
    """

    def __init__(self, order: Order, mask: frozenset[int] = frozenset()) -> None:
        self._order = order
        self._mask = mask
        self._task = asyncio.current_task()
        self._child: Child | None = None
        self._ended_by: int | None = None

    @classmethod
    async def carry_out(cls, order: Order) -> int:
        """Does it all, and returns the exit status.

        Raises:
            CommandError: The command was not run to its end.
        """
        candidate = cls(order)
        with Signals(candidate.signalled) as signals:
            candidate._mask = signals.mask
            try:
                return await candidate._lead()
            except asyncio.CancelledError:
                if candidate._ended_by is None:
                    raise
                return of_signal(candidate._ended_by)

    def signalled(self, arrival: Arrival) -> None:
        """A signal has come in."""
        if arrival.number == signal.SIGCHLD:
            if self._child is not None:
                self._child.reap()
        elif self._child is not None:
            if not arrival.to_group:
                self._child.signal(arrival.number)
        elif arrival.number in ENDING and self._task is not None:
            self._ended_by = arrival.number
            self._task.cancel()
        if arrival.number == signal.SIGTSTP:
            stop_self()

    async def _lead(self) -> int:
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
                explaining = None if order.quiet else asyncio.create_task(self._explain(session, leadership))
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
        naming = asyncio.create_task(explain(session, "leadership", self._order.name))
        try:
            while not leadership.is_leader and not naming.done():
                await asyncio.wait((naming,), timeout=0.1)
        finally:
            naming.cancel()

    async def _run(self, term: Term) -> int:
        """The command, for one term."""
        child = self._child = started(self._order.command, term.fencing_token, self._mask)
        try:
            await asyncio.wait((child.ended,))
        except asyncio.CancelledError:
            if not child.ended.done():
                say(f"the term of '{term.name}' ends; ending the command")
                left = term.remaining() or term.grace
                with suppress(asyncio.CancelledError):
                    await child.end(left * _PART_OF_GRACE)
            raise
        finally:
            child.signal(signal.SIGKILL)  # whatever went wrong: it is not left without the lead
            self._child = None
        return child.ended.result()
