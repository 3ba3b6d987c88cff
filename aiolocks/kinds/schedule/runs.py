"""The run of one tick: from its claim to its outcome."""

from __future__ import annotations

import asyncio
import datetime as dt
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar, final

from ..._tasks import empty_context
from ..._visible import visible
from ...errors import LockError, LockLostError
from ...lock import together
from ...lock.clock import milliseconds
from ...lock.context import Context
from ...lock.lease import Binding, BodyScope, Lease, LeaseState, QueuePolicy, Resource
from ...lock.options import Options
from .clock import ServerClock
from .steps import Ask, Claimed, NotClaimed, TickSteps
from .ticks import Outcome, Tick, at, lost_run

log: Final = logging.getLogger("aiolocks.schedule")

T = TypeVar("T")
Job = Callable[[Tick], Awaitable[Any]]

_SEVERAL: Final = QueuePolicy()
_MOST_DETAIL: Final = 200
"""Characters of an exception that the history keeps."""


@final
class Run:
    """A tick that is claimed, and held: the job must be called now.

    Invariant: from when the job is called, its outcome is "lost" until it is known: so a claim is taken back
    only if nothing was run.
    """

    __slots__ = ("_commands", "_engine", "lease", "reply")

    def __init__(self, engine: Context, lease: Lease, commands: TickSteps, reply: Claimed) -> None:
        self._engine = engine
        self._commands = commands
        self.lease = lease
        self.reply = reply

    def began(self) -> None:
        """Something is run: unless `ended` says more, it is lost."""
        self._commands.outcome = "lost"

    def ended(self, outcome: Outcome, detail: str = "") -> None:
        """The run has ended, as the release of the lease must record."""
        self._commands.outcome, self._commands.detail = outcome, detail[:_MOST_DETAIL]

    async def call(self, job: Callable[[Tick], Awaitable[T]], tick: Tick, *, at_most: float | None) -> T:
        """Calls the job, and ends the run with its outcome; what the job returned.

        Raises:
            Exception: Any error of the job; `TimeoutError` after `at_most`.
            LockLostError: The lease was lost.
            BackendError: Redis did not confirm the end.
        """
        self.began()
        self._tell_begin(tick)
        began = self._engine.now()
        try:
            result = await self._held(job, tick, at_most)
        finally:
            # Where the server has not confirmed the end, it is a run that is lost: the next claim tells.
            if self.lease.state is LeaseState.RELEASED:
                self._engine.events.ran(
                    self.lease.fencing_token,
                    "schedule",
                    tick.name,
                    self._commands.outcome,
                    seconds=self._engine.now() - began,
                )
        return result

    def _tell_begin(self, tick: Tick) -> None:
        """How late a tick is at its first run, and which ticks before it were missed."""
        reply = self.reply
        if reply.due is None or reply.attempt != 1:
            return
        late = max(0.0, reply.now_us / 1e6 - reply.due / 1e3)
        self._engine.events.ticked(
            self.lease.fencing_token, "schedule", tick.name, late=late, missed=tick.missed
        )
        if tick.missed:
            together.tell(
                log,
                logging.INFO,
                "schedule %r: %d ticks before that of %s were missed: no process has claimed them in time",
                *(tick.name, tick.missed, tick.due),
                name=f"{tick.name!r} ({tick.missed})",
                many="%d schedules have missed ticks, which no process has claimed in time%s: %s",
            )

    async def _held(self, job: Callable[[Tick], Awaitable[T]], tick: Tick, at_most: float | None) -> T:
        """The job under the lease of its run, which ends with the outcome."""
        loop = self._engine.loop
        async with self.lease:
            # Not asyncio.timeout: up to Python 3.12 it does not know its own cancellation any more once a
            # task group has failed in the job.
            limit = BodyScope(loop)
            timer = (
                None
                if at_most is None
                else loop.call_later(at_most, limit.cancel, "at_most has passed", context=empty_context())
            )
            try:
                result = await job(tick)
            except BaseException as error:
                too_long = limit.leave(error)
                outcome = "timeout" if too_long else self._how_ended(error, limit)
                self.ended(outcome, _described(error) if outcome == "failed" else "")
                if too_long:
                    raise TimeoutError from error
                raise
            finally:
                limit.leave(None)
                if timer is not None:
                    timer.cancel()
            self.ended("done")
        return result

    def _how_ended(self, error: BaseException, limit: BodyScope) -> Outcome:
        if not isinstance(error, asyncio.CancelledError):
            return "timeout" if limit.told else "failed"
        if self._engine.closing:
            return "stopped"
        if self.lease.remaining() <= 0.0:
            return "lost"
        return "stopped" if limit.cancelled_by_others else "failed"

    async def call_logged(self, job: Job, tick: Tick, *, at_most: float | None) -> None:
        """The same where no caller waits for it: errors are logged."""
        name, due = tick.name, tick.due
        try:
            await self.call(job, tick, at_most=at_most)
        except LockLostError as error:
            together.tell(
                log,
                logging.WARNING,
                "schedule %r: the run of %s was cancelled: %s",
                *(name, due, error),
                name=repr(name),
                many="%d runs of schedules were cancelled, as their leases were lost%s: %s",
            )
        except LockError as error:
            together.tell(
                log,
                self._engine.log_level(error),
                "schedule %r: the run of %s has ended, and Redis did not confirm it: %s",
                *(name, due, error),
                name=repr(name),
                many="%d runs of schedules have ended, and Redis did not confirm it: %s: %s",
                why=str(error),
            )
        except asyncio.CancelledError:
            if self._commands.outcome == "failed":  # no task has cancelled it
                log.exception("schedule %r: the run of %s failed", name, due)
            raise
        except (SystemExit, KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException:  # a panic of an extension in Rust is no Exception
            if self._commands.outcome == "timeout":
                log.warning("schedule %r: the run of %s was cancelled after at_most=%g s", name, due, at_most)
            else:
                log.exception("schedule %r: the run of %s failed", name, due)

    def take_back(self) -> None:
        """Synchronous: the job was never called, and another process may run the tick."""
        if not self._commands.outcome:
            possession = self.lease._possession  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - no await fits here
            possession.lose("its schedule was stopped before the run began")
            self._engine.take_back(possession.ending(), self.lease.ttl)


def _described(error: BaseException) -> str:
    name, text = type(error).__name__, str(error)
    return f"{name}: {text}" if text else name


@final
class Claims:
    """The claims of one schedule in one process, one after the other.

    Invariant: a claim that had no answer, or had it too late, is given back before the next one is made. So a
    tick that the server has granted, and no process has run, is run by the next claim.

    Args:
        zone: The time zone in which the log tells of ticks.
    """

    __slots__ = ("_clock", "_doubtful", "_engine", "_name", "_options", "_skips", "_zone")

    def __init__(
        self, engine: Context, name: str, options: Options, clock: ServerClock, zone: dt.tzinfo = dt.UTC
    ) -> None:
        self._engine = engine
        self._name = name
        self._options = options
        self._clock = clock
        self._zone = zone
        self._doubtful: TickSteps | None = None  # of a claim that the server may have granted
        self._skips = False  # the log has told that ticks are skipped while a run goes on

    async def claim(self, ask: Ask) -> Run | Claimed | NotClaimed:
        """Asks the register for a tick: its run, or why there is none (`Claimed`: the answer came too late).

        Raises:
            BackendError: Redis refused, is not there, or was silent for the session's `command_timeout`.
            SessionClosedError: The session is closed.

        Cancelled or failed at any point, a claim that the server may have granted is given back.
        """
        engine = self._engine
        while True:
            await self.settle()
            commands = TickSteps(
                engine.settings.prefix,
                self._name,
                ask,
                retention_ms=milliseconds(engine.settings.fence_retention),
                session=engine.session_id,
            )
            # Each claim has a gate of its own: no claim waits in it, and runs go on side by side.
            resource = Resource(commands, ("schedule", self._name, engine.token()), _SEVERAL)
            binding: Binding[Lease] = Binding(
                engine,
                resource,
                Lease,
                label="Schedule",
                name=self._name,
                options=self._options,
                beside=f',"definition":"{ask.definition}"',
            )
            asked_at = engine.now()
            self._doubtful = commands
            lease = await binding.try_acquire()
            reply = commands.reply
            assert reply is not None
            early = isinstance(reply, NotClaimed) and reply.why == "early"
            self._clock.heard(reply.now_us, 0.0 if early else engine.now() - asked_at)
            self._tell_lost(commands)
            self._tell_skipped(ask, reply)
            if lease is not None:
                assert isinstance(reply, Claimed)
                self._doubtful = None
                return Run(engine, lease, commands, reply)
            if isinstance(reply, Claimed):
                return reply
            if reply.why != "gone":
                self._doubtful = None
                return reply

    async def settle(self) -> None:
        """Gives back what the last claim may have been granted, if its answer did not come in time.

        Raises:
            BackendError, SessionClosedError: As `claim`.
        """
        if (commands := self._doubtful) is not None:
            await self._engine.ask(commands.release(commands.token, self._options.first_ttl_ms))
            self._doubtful = None

    def _tell_lost(self, commands: TickSteps) -> None:
        for text in commands.lost:
            run = lost_run(text, self._zone)
            what = f"the run of {run.due}" if run.due else f"the run out of turn of {run.began}"
            self._engine.events.ran(run.fencing_token, "schedule", self._name, "lost", seconds=0.0)
            together.tell(
                log,
                logging.WARNING,
                "schedule %r: %s was lost: its process (%s on %s) died, froze or was cut off",
                *(self._name, what, run.pid, visible(str(run.host))),
                name=repr(self._name),
                many="%d runs of schedules were lost: their process (%s) died, froze or was cut off: %s",
                why=f"{run.pid} on {visible(str(run.host))}",
            )

    def _tell_skipped(self, ask: Ask, reply: Claimed | NotClaimed) -> None:
        if isinstance(reply, NotClaimed) and reply.why == "skipped" and ask.due is not None:
            self._engine.events.ran(None, "schedule", self._name, "skipped", seconds=0.0)
            # A run of an hour may have a thousand ticks in its way.
            level = logging.DEBUG if self._skips else logging.WARNING
            due = at(ask.due, self._zone)
            together.tell(
                log,
                level,
                "schedule %r: the tick of %s is skipped: another run goes on",
                *(self._name, due),
                name=repr(self._name),
                many="%d ticks of schedules are skipped: other runs go on%s: %s",
            )
            self._skips = True
        elif isinstance(reply, Claimed) or reply.ends_in is None:
            self._skips = False
