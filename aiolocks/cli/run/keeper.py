"""Holding a lock for as long as a child runs."""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import click

from ... import (
    BackendError,
    FairLock,
    Lease,
    Lock,
    LockError,
    LockEvent,
    LockLostError,
    LockNotOwnedError,
    LockTimeoutError,
    Session,
)
from ..._tasks import spawn
from ..._visible import visible
from ...kinds.schedule.plan import Dues
from ...kinds.schedule.run import Run, TickOutcome, at, claim_nearest
from ...lock.options import Options, lock_name
from ...lock.sources import engine_of
from ..exits import LOST, NO_SERVER, NOT_ACQUIRED, CommandError, of_signal, say
from ..server import Server, connected
from .charge import InCharge
from .child import PART_OF_GRACE, Child, ensure_program, started
from .waiting import described, explain

T = TypeVar("T")

_DUE: Final = "AIOLOCKS_DUE"

_LOOK: Final = 1.0
"""Seconds: so late a grace may begin for which the machine was suspended."""

_RELEASE_PATIENCE: Final = 3.0
"""Seconds that a release may take once the command has ended; after it, the ttl frees the lock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """The request of the command line; times in seconds, `wait` None for ever, `ticks` None for a lock."""

    url: str = field(repr=False)
    prefix: str
    name: str
    command: tuple[str, ...]
    ttl: float
    wait: float | None
    at_least: float
    fair: bool
    kill_after: float
    grace: float
    quiet: bool
    steal: bool = False
    ticks: Dues | None = None


class Keeper(InCharge):
    """One `aiolocks run`: it waits, holds, and looks after the child."""

    def __init__(self, order: Order) -> None:
        super().__init__(order.name)
        self._order = order
        self._ended_child = False

    async def _wait_and_run(self) -> int:
        async with connected(self._order.url) as server, self._session(server) as session:
            ensure_program(self._order.command[0])
            run: Run | None = None
            if self._order.ticks is None:
                lease = await self._acquire(session)
            elif (run := await _claim_tick(session, self._order)) is None:
                return 0
            else:
                lease = run.lease
            # Not `async with`: on a loss the child must be ended with care, not this task cancelled.
            try:
                child = self._start(lease, run, self._mask)
                if run is not None:
                    run.began()
                with self._in_charge_of(child):
                    await self._look_after(child, lease)
                if run is not None and not self._ended_child:
                    run.ended(*_outcome(child.ended.result()))
            finally:
                loss = await _let_go(lease)
        status = child.ended.result()
        if self._ended_child:
            return LOST
        if loss is None:
            return status if status >= 0 else of_signal(-status)
        say(f"{loss}; the command has ended, but may not have been alone")
        return LOST

    def _session(self, server: Server) -> Session:
        try:
            return Session(server.client, prefix=self._order.prefix, listeners=[self])
        except ValueError as error:  # of the prefix
            raise click.UsageError(str(error), click.get_current_context()) from None

    def on_stolen(self, event: LockEvent) -> None:
        """Called by the session."""
        say(f"'{visible(event.name)}' was taken by force: it was {event.reason}")

    async def _acquire(self, session: Session) -> Lease:
        order = self._order
        kind: type[FairLock | Lock] = FairLock if order.fair else Lock
        explaining = None
        if not (order.quiet or order.steal):
            explained = explain(session, kind.__name__.lower(), order.name)
            explaining = _begun(explained, "aiolocks-explains")
        try:
            lock = kind(
                session,
                order.name,
                ttl=order.ttl,
                blocking_timeout=order.wait,
                at_least=order.at_least,
                grace=order.grace,
                metadata=described(order.command),
            )
            return await (lock.acquire(steal=True) if order.steal else lock.acquire())
        except LockTimeoutError as error:
            raise CommandError(str(error), NOT_ACQUIRED) from None
        except BackendError as error:
            raise CommandError(str(error), NO_SERVER) from None
        except ValueError as error:  # of an argument
            raise click.UsageError(str(error), click.get_current_context()) from None
        finally:
            if explaining is not None:
                explaining.cancel()

    def _start(self, lease: Lease, run: Run | None, mask: frozenset[int]) -> Child:
        more: dict[str, str] = {}
        if run is not None and run.reply.due is not None:
            more[_DUE] = at(run.reply.due, dt.UTC).isoformat()
        return started(self._order.command, lease.fencing_token, mask, more)

    async def _look_after(self, child: Child, lease: Lease) -> None:
        """Returns when it has ended, by itself or because the lock was lost, or ends within the grace."""
        patience = self._order.kill_after
        finished = _begun(child.finished(patience), "aiolocks-child")
        over = _begun(self._wait_over(lease), "aiolocks-over")
        try:
            either: list[asyncio.Task[Any]] = [over, finished]
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not finished.done():
                finished.cancel()
                self._ended_child = True
                left = lease.remaining()
                if left:
                    ends = f"was not renewed, and ends in {left:.1f} s"
                    say(f"'{visible(lease.name)}' {ends}; ending the command")
                    patience = min(patience, left * PART_OF_GRACE)
                else:
                    say(f"{_loss(lease)}; ending the command")
                await child.end(patience)
        finally:
            over.cancel()
            finished.cancel()

    async def _wait_over(self, lease: Lease) -> None:
        """Returns when the lease is lost, or when its grace begins: it ends by then unless it is renewed."""
        lost = _begun(lease.wait_lost(), "aiolocks-lost")
        try:
            # With a grace of at most half of its ttl, a lease that is renewed never has so little time left.
            while not lost.done() and (left := lease.remaining() - self._order.grace) > 0:
                await asyncio.wait((lost,), timeout=min(left, _LOOK))
        finally:
            lost.cancel()


def _begun(work: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
    return spawn(asyncio.get_running_loop(), work, name=name, context=None)


async def _claim_tick(session: Session, order: Order) -> Run | None:
    """The run of the tick, or None: another machine has it, or another run goes on."""
    assert order.ticks is not None
    options = Options.checked(ttl=order.ttl, grace=order.grace, metadata=described(order.command))
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


def _outcome(status: int) -> tuple[TickOutcome, str]:
    """The outcome that the history of the schedule must record."""
    if status == 0:
        return "done", ""
    return "failed", f"exit status {status}" if status > 0 else f"signal {-status}"


async def _let_go(lease: Lease) -> LockError | None:
    """Releases, and returns what shows that the lock was not held until now."""
    try:
        async with asyncio.timeout(_RELEASE_PATIENCE):
            await lease.release()
    except LockNotOwnedError:
        return _loss(lease)
    except (BackendError, TimeoutError):
        say(f"{lease.name!r} was not released, for Redis does not answer; it is free after {lease.ttl:g} s")
    return None


def _loss(lease: Lease) -> LockError:
    """The library's error for the loss."""
    try:
        lease.ensure_held()
    except LockLostError as error:
        return error
    raise AssertionError(f"{lease!r} is not lost")
