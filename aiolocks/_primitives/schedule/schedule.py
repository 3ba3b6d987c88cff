"""The schedule: a job that is run at its times, by one of all processes."""

from __future__ import annotations

import asyncio
import datetime as dt
import inspect
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, Final, Never, Self, TypeVar, cast, final

from ..._core.arguments import (
    Metadata,
    Options,
    Seconds,
    lock_name,
    optional_seconds,
    reject_slips,
    seconds,
    whole_number,
)
from ..._core.clock import milliseconds
from ..._core.engine import Engine
from ..._core.misuse import AsyncOnly
from ..._core.session import engine_of, source_of
from ..._transport.commands.schedule import Claimed, NotClaimed, reading
from .clock import server_clock
from .dues import Cron, Every, time_zone
from .keeper import Keeper, tick_of
from .plan import Misfire, Overlap, Plan, Policy
from .runs import Job, Run, claim
from .ticks import Tick, TickRecord, history

JobT = TypeVar("JobT", bound=Callable[[Tick], Awaitable[Any]])

_MOST_RECORDS: Final = 100
_MOST_REDONE: Final = 1000
_OVERLAPS: Final = ("skip", "queue", "allow")
_MISFIRES: Final = ("latest", "skip", "all")
_SLIPS: Final[dict[str, str]] = {
    **dict.fromkeys(("interval", "seconds", "period"), "every= (seconds between two ticks)"),
    **dict.fromkeys(("crontab", "expression", "expr"), "cron= (a cron expression)"),
    **dict.fromkeys(("timezone", "zone"), "tz= (the time zone of the cron expression)"),
    **dict.fromkeys(("timeout", "max_hold", "lock_at_most_for"), "at_most= (how long a run may take)"),
    **dict.fromkeys(("at_least", "lock_at_least_for"), "nothing: a tick that was claimed is never run again"),
    **dict.fromkeys(("coalesce", "misfire_grace_time"), "misfire= ('latest', 'skip' or 'all')"),
    **dict.fromkeys(("max_instances",), "overlap= ('skip', 'queue' or 'allow')"),
    **dict.fromkeys(("retries", "max_retries"), "redo= (how often a run that was lost is run again)"),
}


@final
class Schedule(AsyncOnly):
    """Runs a job at its times, once for all processes that keep the schedule.

    Start it in every process. At each tick one of them runs the job; if that process dies, the next tick is
    run by another one.

    ```python
    nightly = Schedule(redis, "nightly", cron="0 3 * * *", tz="Europe/Berlin")

    @nightly
    async def job(tick): ...

    async with nightly:                 # or: await nightly.run()
        ...
    ```

    A process claims a *tick*, by the time at which it is due, and not the name of the schedule. The server
    grants the claim if no newer tick is claimed and the tick is due by the server's clock. The register of
    claims outlasts the run, so a short run does not give room to a second one; and the clock of a process
    does not count, however wrong it is. The run is a lease: it is renewed while the job runs, has a fencing
    token, and the job is cancelled when it is lost.

    After a loss of the register (a server that lost its data), a tick is run only by a process that has seen
    the tick before it claimed, within a second: at worst a tick is left out. A server that fails over to a
    replica without the last claim can grant a tick twice; a store that compares `tick.fencing_token` is safe.

    Args:
        client: `redis.asyncio.Redis`, `RedisCluster`, or an `aiolocks.Session`.
        name: Any non-empty str of at most 1 KiB in UTF-8. All processes give a name the same arguments.
        cron: A cron expression of five fields, or of six with seconds in front. Needs `aiolocks[schedule]`. A
            local time that daylight saving skips is due once, at the end of the gap; one that it repeats is
            due the first time. Where the hour is `*`, each hour that passes has its run.
        every: Seconds between two ticks, 50 ms to ten years, counted from the beginning of 1970 in UTC:
            `every=3600` is due on the hour. Either this or `cron`.
        tz: The time zone of `cron`, by its name or as a `tzinfo`, and of `tick.due`.
        overlap: What becomes of a tick while the run of another one goes on: `"skip"` leaves it out;
            `"queue"` runs it when the other run has ended; `"allow"` runs it beside.
        misfire: What becomes of ticks that no process claimed in time, because none was there: `"latest"`
            runs the last of them, however late; `"skip"` none that is later than half a gap or 60 s,
            whichever is less; `"all"` each of them, in order. It also says which of several queued ticks run.
            A schedule that is new runs nothing before its next tick.
        redo: How often a tick is run again whose run was lost (its process died, froze or was cut off) or
            stopped (its process was shut down). 0: it is not; the next tick goes on. A job that raises is not
            run again.
        at_most: Seconds after which a run is cancelled; None for no limit. It does not say when another
            process takes over: that is `ttl`.
        jitter: Seconds over which starts are spread: each tick is put off by up to so many, and at most by
            half of its gap, the same in all processes. For many schedules that are due at the same time.
        ttl: Seconds after which a run counts as lost when its process has died; renewed each third of it. It
            neither limits a run nor keeps anything back after it.
        metadata: JSON values that stand beside each run, readable by whoever can read the keys.

    Raises:
        TypeError, ValueError: An argument is not as it should be; before any I/O.
        ConfigurationError: `cron` was given, and its library is not installed.
    """

    __slots__ = (
        "__weakref__",
        "_at_most",
        "_dues",
        "_job",
        "_keeping",
        "_name",
        "_options",
        "_policy",
        "_source",
        "_zone",
    )

    _elsewhere = "make one of the same name there, with a client of that process"

    def __init__(
        self,
        client: Any,
        name: str,
        *,
        cron: str | None = None,
        every: Seconds | None = None,
        tz: str | dt.tzinfo = "UTC",
        overlap: Overlap = "skip",
        misfire: Misfire = "latest",
        redo: int = 0,
        at_most: Seconds | None = None,
        jitter: Seconds = 0.0,
        ttl: Seconds = 30.0,
        metadata: Metadata | None = None,
        **slips: Never,
    ) -> None:
        reject_slips("Schedule", slips, _SLIPS)
        self._source = source_of(client)
        self._name = lock_name(name)
        if (cron is None) == (every is None):
            raise TypeError("Schedule takes either cron= or every=, such as cron='0 3 * * *' or every=60")
        self._zone = time_zone(tz)
        self._dues = Every(every) if every is not None else Cron(cron, self._zone)  # type: ignore[arg-type]
        if overlap not in _OVERLAPS:
            raise ValueError(f"overlap must be one of {', '.join(map(repr, _OVERLAPS))}, not {overlap!r}")
        if misfire not in _MISFIRES:
            raise ValueError(f"misfire must be one of {', '.join(map(repr, _MISFIRES))}, not {misfire!r}")
        self._policy = Policy(
            overlap=overlap,
            misfire=misfire,
            redo=whole_number("redo", redo, least=0, most=_MOST_REDONE),
            jitter=milliseconds(seconds("jitter", jitter)),
        )
        self._at_most = optional_seconds("at_most", at_most, least=0.001)
        ttl = seconds("ttl", ttl)
        self._options = Options.checked(
            ttl=ttl,
            blocking_timeout=None,
            auto_renew=True,
            # A job that does not heed its cancellation keeps its lease no longer than one that died.
            max_hold=None if self._at_most is None else self._at_most + ttl,
            on_lost="cancel",
            metadata=metadata,
        )
        self._job: Job | None = None
        self._keeping: asyncio.Task[None] | None = None  # by `async with`

    @property
    def name(self) -> str:
        """Name of the schedule."""
        return self._name

    def __call__(self, job: JobT, /) -> JobT:
        """Decorates the job: a coroutine function that takes the `Tick`. The function stays as it is.

        Raises:
            TypeError: It is not a coroutine function, or does not take one argument.
            RuntimeError: The schedule has a job already.
        """
        if not inspect.iscoroutinefunction(cast("object", job)):
            raise TypeError(f"a schedule decorates a coroutine function (async def), not {job!r}")
        try:
            inspect.signature(job).bind(None)
        except TypeError:
            raise TypeError(f"the job of a schedule takes the tick as its only argument: {job!r}") from None
        if self._job is not None:
            raise RuntimeError(f"{self!r} has a job already: make a schedule of another name for another job")
        self._job = job
        return job

    # -- keeping it

    async def run(self) -> None:
        """Keeps the schedule until it is cancelled.

        While Redis is away, it tries again, logs that once, and runs no tick: a run that goes on is cancelled
        when its lease has ended. What a job raises is logged, and stands in the history.

        Raises:
            RuntimeError: It has no job.
            SessionClosedError: The session is closed, or was closed meanwhile.

        Cancelled at any point, it cancels the runs of this process, waits until they have unwound, and ends
        them on the server, so that no other process waits for them.
        """
        await self._keeper().keep()

    async def __aenter__(self) -> Self:
        if self._keeping is not None:
            raise RuntimeError(f"{self!r} is kept already: enter it once in a process")
        name = f"aiolocks-schedule:{self._name}"
        self._keeping = asyncio.create_task(self._keeper().keep(), name=name)
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        keeping, self._keeping = self._keeping, None
        if keeping is None:
            raise RuntimeError(f"{self!r} was not entered")
        keeping.cancel()
        await asyncio.wait([keeping])
        error = None if keeping.cancelled() else keeping.exception()
        if error is not None and exc is None:
            try:
                raise error
            finally:
                del error, keeping

    def _keeper(self) -> Keeper:
        return Keeper(
            self._engine(),
            self._name,
            self._dues,
            self._policy,
            job=self._ensure_job(),
            zone=self._zone,
            options=self._options,
            at_most=self._at_most,
        )

    def _engine(self) -> Engine:
        return engine_of(self._source, self)

    def _ensure_job(self) -> Job:
        if self._job is None:
            raise RuntimeError(f"{self!r} has no job: decorate a coroutine function with it first")
        return self._job

    # -- out of turn

    async def trigger(self) -> bool:
        """Runs the job now, here, out of turn, and waits for its end.

        No tick is claimed by that, and `overlap` holds: with `"skip"` the job is not run while another run
        goes on, and a tick that is due while this run goes on is left out; with `"queue"` each waits.

        Returns:
            Whether it was run; False if another run is going on, with `overlap="skip"`.

        Raises:
            RuntimeError: It has no job.
            Exception: Whatever the job raised; `TimeoutError` after `at_most`.
            LockLostError: The lease of the run was lost, and the job was cancelled.
            BackendError: Redis refused, is not there, or was silent for the session's `command_timeout`.
            SessionClosedError: The session is closed.

        Cancelled at any point, the job is cancelled, and its run ends on the server.
        """
        job, engine = self._ensure_job(), self._engine()
        plan = Plan(self._name, self._dues, self._policy)
        with server_clock(engine, self._name) as clock:
            while True:
                ask = plan.out_of_turn(clock.now())
                found = await claim(engine, self._name, ask, self._options, clock)
                if isinstance(found, Run):
                    break
                if isinstance(found, NotClaimed) and found.why == "skipped":
                    return False
                ends_in = 0 if isinstance(found, Claimed) or found.ends_in is None else found.ends_in
                await asyncio.sleep(min(1.0, ends_in / 1000 + 0.002))
        try:
            tick = tick_of(found, self._name, self._dues, self._zone)
            await found.call(job, tick, at_most=self._at_most)
        finally:
            found.take_back()
        return True

    # -- looking at it

    async def history(self, limit: int = 20) -> list[TickRecord]:
        """The last runs, whichever process ran them: those that go on too, the latest first.

        The server keeps the last 100 that have ended, for as long as the register: at least two gaps, and at
        least a week after the last tick. Of ticks that were skipped in a row, the last stands for all.

        Args:
            limit: How many at most, 1 to 100.

        Raises:
            TypeError, ValueError: The limit is not as it should be.
            BackendError: Redis refused, is not there, or was silent for the session's `command_timeout`.
            SessionClosedError: The session is closed.
        """
        number = whole_number("limit", limit, most=_MOST_RECORDS)
        engine = self._engine()
        read = await engine.ask(reading(engine.settings.prefix, self._name, records=number))
        return history(read, self._dues, self._zone)[:number]

    def __repr__(self) -> str:
        return f"<Schedule {self._name!r} {self._dues!r} overlap={self._policy.overlap!r}>"
