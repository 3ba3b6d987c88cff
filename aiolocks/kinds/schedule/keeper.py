"""One process that keeps a schedule: it waits for each tick, claims it, and calls the job."""

from __future__ import annotations

import asyncio
import functools
import logging
from typing import Final, final

from ..._tasks import empty_context, spawn
from ...errors import BackendError, ConfigurationError, LockError
from ...lock import together
from ...lock.context import Context
from .clock import ServerClock, ask_time, server_clock
from .plan import Plan
from .runs import Claims, Job, Run
from .settings import Settings
from .steps import Claimed, NotClaimed

log: Final = logging.getLogger("aiolocks.schedule")

_LONGEST_NAP: Final = 60.0
"""Seconds after which it looks at the time again: timers of the loop stand still while the machine does."""
_FIRST_RETRY: Final = 0.05
_LAST_RETRY: Final = 2.0
"""Seconds between two tries while Redis is away."""


@final
class Keeper:
    """A schedule in one process, for as long as it is kept.

    Invariant: a tick that it has claimed is run by one of its tasks, or was given back.

    Attributes:
        ended_by: The error for which it is not kept any more, also while its last runs unwind.
    """

    __slots__ = ("_ended_runs", "_engine", "_job", "_nap", "_plan", "_runs", "_settings", "ended_by")

    def __init__(self, engine: Context, settings: Settings, job: Job) -> None:
        self._engine = engine
        self._settings = settings
        self._job = job
        self._plan = Plan(settings.name, settings.dues, settings.policy)
        self._nap: asyncio.Future[None] | None = None
        self._runs: set[asyncio.Task[None]] = set()
        self._ended_runs = 0
        self.ended_by: LockError | None = None

    @property
    def session_closed(self) -> bool:
        return self._engine.closing

    async def keep(self) -> None:
        """Runs until it is cancelled, which cancels the runs of this process and waits for their end.

        Raises:
            SessionClosedError: The session is closed.
            ConfigurationError: The server does not allow what is needed.
        """
        try:
            with server_clock(self._engine, self._settings.name) as clock:
                await self._keep(clock)
        except BaseException as error:
            if isinstance(error, LockError):
                self.ended_by = error
            await self._unwind()
            self.ended_by = None  # its traceback has this frame, which must not refer to it
            raise

    async def _unwind(self) -> None:
        """Cancels the runs of this process, and waits for their end, through any cancellation."""
        for run in self._runs:
            run.cancel()
        cancelled: asyncio.CancelledError | None = None
        while self._runs:
            try:
                await asyncio.wait(self._runs)
            except asyncio.CancelledError as error:
                cancelled = error
        if cancelled is not None:
            try:
                raise cancelled
            finally:
                del cancelled

    async def kept_logged(self) -> None:
        """The same where no caller waits for it: its end is logged, too."""
        try:
            await self.keep()
        except LockError as error:
            together.tell(
                log,
                logging.WARNING,
                "schedule %r is not kept any more: %s",
                *(self._settings.name, error),
                name=repr(self._settings.name),
                many="%d schedules are not kept any more: %s: %s",
                why=str(error),
            )
            raise

    async def _keep(self, clock: ServerClock) -> None:
        settings = self._settings
        claims = Claims(self._engine, settings.name, settings.options, clock, settings.zone)
        retry, told = 0.0, logging.NOTSET
        while True:
            try:
                await self._step(clock, claims)
            except ConfigurationError:
                raise
            except BackendError as error:
                # The session tells of a server that is away, once for all of its schedules.
                level = logging.DEBUG if error.transient else logging.WARNING
                if level > told:
                    together.tell(
                        log,
                        level,
                        "schedule %r: cannot ask for its next tick: %s",
                        *(settings.name, error),
                        name=repr(settings.name),
                        many="%d schedules cannot ask for their next ticks: %s: %s",
                        why=str(error),
                    )
                    told = level
                retry = min(max(_FIRST_RETRY, 2 * retry), _LAST_RETRY)
                await self._engine.sleep(retry)
            else:
                if retry:
                    together.tell(
                        log,
                        min(told, logging.INFO),
                        "schedule %r: Redis answers again",
                        settings.name,
                        name=repr(settings.name),
                        many="for %d schedules Redis answers again%s: %s",
                    )
                retry, told = 0.0, logging.NOTSET

    async def _step(self, clock: ServerClock, claims: Claims) -> None:
        await claims.settle()
        if not clock.fresh:
            await ask_time(self._engine, self._settings.name, clock)
        now, plan = clock.now(), self._plan
        wanted = plan.next(now)
        if wanted.at > now:
            await self._sleep((wanted.at - now) / 1000)
            return
        ended = self._ended_runs
        found = await claims.claim(plan.ask(wanted.due))
        if isinstance(found, NotClaimed):
            plan.refused(wanted.due, found)
            if self._ended_runs > ended:  # the refusal may be older
                plan.run_ended()
        elif isinstance(found, Claimed):
            plan.taken_back(found, clock.now())
        else:
            plan.claimed(found.reply)
            self._begin(found)
            await asyncio.sleep(0)  # it begins before this task can be cancelled

    async def _sleep(self, seconds: float) -> None:
        """Sleeps until then, or until a run of this process has ended; at most a minute."""
        self._nap = nap = self._engine.waiter()
        timer = self._engine.loop.call_later(min(seconds, _LONGEST_NAP), self._wake, context=empty_context())
        try:
            await nap
        finally:
            timer.cancel()
            self._nap = None

    def _wake(self) -> None:
        if self._nap is not None and not self._nap.done():
            self._nap.set_result(None)

    def _begin(self, run: Run) -> None:
        settings = self._settings
        calling = run.call_logged(self._job, settings.tick(run), at_most=settings.at_most)
        task = spawn(self._engine.loop, calling, name=f"aiolocks-schedule:{settings.name}", context=None)
        self._runs.add(task)
        task.add_done_callback(functools.partial(self._ended, run), context=empty_context())

    def _ended(self, run: Run, task: asyncio.Task[None]) -> None:
        self._runs.discard(task)
        run.take_back()
        self._ended_runs += 1
        self._plan.run_ended()
        self._wake()
