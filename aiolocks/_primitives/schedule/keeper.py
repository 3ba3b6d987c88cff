"""One process that keeps a schedule: it waits for each tick, claims it, and calls the job."""

from __future__ import annotations

import asyncio
import datetime as dt
import functools
import logging
from typing import Final, final

from ..._core.arguments import Options
from ..._core.engine import Engine
from ..._transport.commands.schedule import Claimed, NotClaimed, reading
from ...errors import BackendError, ConfigurationError, LockError
from .clock import ServerClock, server_clock
from .dues import Dues, between
from .plan import Plan, Policy
from .runs import Job, Run, claim
from .ticks import Tick, at

log: Final = logging.getLogger("aiolocks.schedule")

_LONGEST_NAP: Final = 60.0
"""Seconds after which it looks at the time again: timers of the loop stand still while the machine does."""
_FIRST_RETRY: Final = 0.05
_LAST_RETRY: Final = 2.0
"""Seconds between two tries while Redis is away."""


@final
class Keeper:
    """A schedule in one process, for as long as it is kept.

    Args:
        at_most: Seconds after which a run is cancelled; None for no limit.
    """

    __slots__ = (
        "_at_most",
        "_dues",
        "_ended_runs",
        "_engine",
        "_job",
        "_name",
        "_nap",
        "_options",
        "_plan",
        "_runs",
        "_zone",
    )

    def __init__(
        self,
        engine: Engine,
        name: str,
        dues: Dues,
        policy: Policy,
        *,
        job: Job,
        zone: dt.tzinfo,
        options: Options,
        at_most: float | None,
    ) -> None:
        self._engine = engine
        self._name = name
        self._dues = dues
        self._plan = Plan(name, dues, policy)
        self._job = job
        self._zone = zone
        self._options = options
        self._at_most = at_most
        self._nap: asyncio.Future[None] | None = None
        self._runs: set[asyncio.Task[None]] = set()
        self._ended_runs = 0

    async def keep(self) -> None:
        """Runs until it is cancelled, which cancels the runs of this process and waits for their end.

        Raises:
            SessionClosedError: The session is closed.
            ConfigurationError: The server does not allow what is needed.
        """
        ended_by: LockError | None = None
        async with asyncio.TaskGroup() as group:
            try:
                with server_clock(self._engine, self._name) as clock:
                    await self._keep(group, clock)
            except LockError as error:
                ended_by = error
                for run in self._runs:
                    run.cancel()
        if ended_by is not None:
            raise ended_by

    async def _keep(self, group: asyncio.TaskGroup, clock: ServerClock) -> None:
        retry = 0.0
        while True:
            try:
                await self._step(group, clock)
            except ConfigurationError:
                raise
            except BackendError as error:
                if not retry:
                    log.warning("schedule %r: cannot ask for its next tick: %s", self._name, error)
                retry = min(max(_FIRST_RETRY, 2 * retry), _LAST_RETRY)
                await asyncio.sleep(retry)
            else:
                if retry:
                    log.info("schedule %r: Redis answers again", self._name)
                retry = 0.0

    async def _step(self, group: asyncio.TaskGroup, clock: ServerClock) -> None:
        if not clock.fresh:
            await self._read_clock(clock)
        now, plan = clock.now(), self._plan
        wanted = plan.next(now)
        if wanted.at > now:
            await self._sleep((wanted.at - now) / 1000)
            return
        ended = self._ended_runs
        found = await claim(self._engine, self._name, plan.ask(wanted.due), self._options, clock)
        if isinstance(found, NotClaimed):
            plan.refused(wanted.due, found)
            if self._ended_runs > ended:  # the refusal may be older
                plan.run_ended()
        elif isinstance(found, Claimed):
            plan.taken_back(found, clock.now())
        else:
            plan.claimed(found.reply)
            self._begin(found, group)
            await asyncio.sleep(0)  # it begins before this task, and with it the group, can be cancelled

    async def _read_clock(self, clock: ServerClock) -> None:
        asked_at = self._engine.now()
        read = await self._engine.ask(reading(self._engine.settings.prefix, self._name, records=0))
        clock.heard(read.now_us, self._engine.now() - asked_at)

    async def _sleep(self, seconds: float) -> None:
        """Until then, or until a run of this process has ended; at most a minute."""
        self._nap = nap = self._engine.loop.create_future()
        timer = self._engine.loop.call_later(min(seconds, _LONGEST_NAP), self._wake)
        try:
            await nap
        finally:
            timer.cancel()
            self._nap = None

    def _wake(self) -> None:
        if self._nap is not None and not self._nap.done():
            self._nap.set_result(None)

    def _begin(self, run: Run, group: asyncio.TaskGroup) -> None:
        tick = tick_of(run, self._name, self._dues, self._zone)
        calling = run.call_logged(self._job, tick, at_most=self._at_most)
        task = group.create_task(calling, name=f"aiolocks-schedule:{self._name}")
        self._runs.add(task)
        task.add_done_callback(functools.partial(self._ended, run))

    def _ended(self, run: Run, task: asyncio.Task[None]) -> None:
        self._runs.discard(task)
        run.take_back()
        self._ended_runs += 1
        self._plan.run_ended()
        self._wake()


def tick_of(run: Run, name: str, dues: Dues, zone: dt.tzinfo) -> Tick:
    """What the job is told."""
    reply = run.reply
    due = reply.now_us // 1000 if reply.due is None else reply.due
    missed = 0 if reply.before is None else between(dues, reply.before, due)
    return Tick(
        name=name,
        due=at(due, zone),
        fencing_token=run.lease.fencing_token,
        missed=missed,
        attempt=reply.attempt,
        lease=run.lease,
    )
