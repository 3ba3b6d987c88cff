"""The schedule: a job that is run at its times, by one of all processes."""

from __future__ import annotations

import asyncio
import datetime as dt
import functools
import inspect
from collections.abc import Awaitable, Callable, Coroutine
from types import TracebackType
from typing import Any, Final, Never, ParamSpec, Self, TypeVar, cast, final

from ..._tasks import spawn
from ...errors import SessionClosedError
from ...lock.engine import Engine
from ...lock.misuse import AsyncOnly
from ...lock.options import Metadata, Seconds, reject_unknown, whole_number
from ...lock.sources import Client, engine_of, source_of
from .plan import Misfire, Overlap
from .run import Job, Keeper, Run, Settings, Tick, TickRecord, claim_nearest, history, reading, trigger

P = ParamSpec("P")
R = TypeVar("R")
JobT = TypeVar("JobT", bound=Callable[[Tick], Awaitable[Any]])

_MOST_RECORDS: Final = 100


@final
class Schedule(AsyncOnly):
    """Runs a job at its times, once for all processes that run the schedule.

    Start it in every process. At each tick one of the processes runs the job. If that process dies, another
    one runs the next tick.

    ```python
    nightly = Schedule(redis, "nightly", cron="0 3 * * *", tz="Europe/Berlin")

    @nightly
    async def job(tick): ...

    async with nightly:                 # or: await nightly.run()
        ...
    ```

    A *tick* is one due time of the schedule. A process claims it. The server grants the claim if the tick is
    due by the server's clock, and no newer tick is claimed. The register of claims is kept after the run, so
    a short run cannot be followed by a second run of the same tick. The clock of a process does not matter,
    however wrong it is. The run is a lease: it is renewed while the job runs, has a fencing token, and the
    job is cancelled when it is lost.

    If the server has lost its data, and the register with it, a tick is run only by a process that has seen
    the claim of the tick before, and only within a second: at worst a tick is not run. A server that fails
    over to a replica without the last claim can grant a tick twice; a store that compares
    `tick.fencing_token` is safe.

    Args:
        client: `redis.asyncio.Redis`, `RedisCluster`, or an `aiolocks.Session`.
        name: Any non-empty str of at most 1 KiB in UTF-8. All processes give a name the same arguments,
            except during a rolling update. With another `cron`, `tz` or `every`, it begins like a new
            schedule; the old times count as long as a process has them.
        cron: A cron expression of five fields, or of six with seconds in front. It needs
            `aiolocks[schedule]`. If daylight saving skips a local time, the tick is due once, at the end of
            the gap. If it repeats a local time, the tick is due the first time. If the hour is `*`, each hour
            that passes has its run.
        every: Seconds between two ticks, 50 ms to ten years, counted from the beginning of 1970 in UTC:
            `every=3600` is due on the hour. Give either `every` or `cron`.
        tz: The time zone of `cron` and of `tick.due`: its name, or a `tzinfo`. Default UTC.
        overlap: What happens to a tick while the run of another tick goes on. `"skip"`, the default: it is
            not run. `"queue"`: it is run when the other run has ended. `"allow"`: it is run at once.
        misfire: What happens to ticks that no process claimed in time because none was running. `"latest"`,
            the default, runs the last of them, however late. `"skip"` runs none that is later than half the
            time between two ticks or 60 s, whichever is less. `"all"` runs each of them, in order. It also
            says which of several queued ticks run. A new schedule runs nothing before its next tick.
        redo: How often a tick is run again if its run was lost (its process died, froze or was cut off) or
            stopped (its process was shut down). Default 0: it is not run again, and the next tick follows. A
            job that raises is not run again.
        at_most: Seconds after which a run is cancelled. Default None, no limit. It does not say when another
            process takes over: that is `ttl`.
        jitter: Seconds over which starts are spread. Each tick is delayed by up to this time, and at most by
            half of the time between two ticks; the delay is the same in all processes. Use it if many
            schedules are due at the same time. Default 0.
        ttl: Seconds after which a run counts as lost if its process has died. The run is renewed after each
            third of it. It does not limit how long a run may take. Default 30 s.
        metadata: JSON values kept with each run. Every user that can read the keys can read them.

    Raises:
        TypeError, ValueError: An argument is wrong; before any I/O.
        ConfigurationError: `cron` was given, and its library is not installed.
    """

    __slots__ = ("__weakref__", "_job", "_keeping", "_settings", "_source")

    _elsewhere = "make one of the same name there, with a client of that process"

    def __init__(
        self,
        client: Client,
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
        **unknown: Never,
    ) -> None:
        reject_unknown("Schedule", unknown)
        self._source = source_of(client)
        self._settings = Settings.checked(
            name,
            cron=cron,
            every=every,
            tz=tz,
            overlap=overlap,
            misfire=misfire,
            redo=redo,
            at_most=at_most,
            jitter=jitter,
            ttl=ttl,
            metadata=metadata,
        )
        self._job: Job | None = None
        self._keeping: tuple[Keeper, asyncio.Task[None]] | None = None  # by `async with`

    @property
    def name(self) -> str:
        """Name of the schedule."""
        return self._settings.name

    def __call__(self, job: JobT, /) -> JobT:
        """Decorates the job: a coroutine function that takes the `Tick`. The function stays unchanged.

        Raises:
            TypeError: It is not a coroutine function, or does not take one argument.
            RuntimeError: The schedule already has a job.
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
        """Runs the schedule until it is cancelled.

        While Redis is away or refuses, it tries again, and runs no tick. A run that goes on is cancelled when
        its lease has ended. The session logs the outage, and the schedule logs any other refusal. An error of
        a job is logged, and is in the history.

        Raises:
            RuntimeError: It has no job.
            SessionClosedError: The session is closed, or was closed meanwhile.
            ConfigurationError: The session or the server does not allow what is needed.

        Cancelled at any point, it cancels the runs of this process, waits until they have ended, and ends
        them on the server, so that no other process waits for them.
        """
        await self._keeper().keep()

    async def __aenter__(self) -> Self:
        if self._keeping is not None:
            raise RuntimeError(f"{self!r} is kept already: enter it once in a process")
        keeper, name = self._keeper(), f"aiolocks-schedule:{self.name}"
        keeping = spawn(asyncio.get_running_loop(), keeper.kept_logged(), name=name, context=None)
        self._keeping = keeper, keeping
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        kept, self._keeping = self._keeping, None
        if kept is None:
            raise RuntimeError(f"{self!r} was not entered: write `async with`, or await run()")
        keeper, keeping = kept
        keeping.cancel()
        await asyncio.wait([keeping])
        error = keeper.ended_by if keeping.cancelled() else keeping.exception()
        if error is None and keeper.session_closed:  # it was cancelled before it could notice
            error = SessionClosedError("the session was closed while waiting")
        if error is not None and exc is None:
            try:
                raise error
            finally:
                del error, keeper, kept, keeping

    def _keeper(self) -> Keeper:
        job = self._ensure_job()
        return Keeper(self._engine(), self._settings, job)

    def _engine(self) -> Engine:
        return engine_of(self._source, self)

    def _ensure_job(self) -> Job:
        if self._job is None:
            raise RuntimeError(f"{self!r} has no job: decorate a coroutine function with it first")
        return self._job

    # -- out of turn

    async def trigger(self) -> bool:
        """Runs the job now, in this process, and waits for its end.

        It claims no tick, but `overlap` counts. With `"skip"`, the job is not run while another run goes on,
        and a tick that is due during this run is left out. With `"queue"`, each waits for the other.

        Returns:
            Whether it was run; False if another run goes on, with `overlap="skip"`.

        Raises:
            RuntimeError: It has no job.
            Exception: Any error of the job; `TimeoutError` after `at_most`.
            LockLostError: The lease of the run was lost, and the job was cancelled.
            BackendError: Redis refused, could not be reached, or did not answer within the session's
                `command_timeout`.
            SessionClosedError: The session is closed.

        Cancelled at any point, it cancels the job, and ends its run on the server.
        """
        job = self._ensure_job()
        run = await trigger(self._engine(), self._settings)
        if run is None:
            return False
        await self._call(run, job)
        return True

    def guard(
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> Callable[P, Coroutine[Any, Any, R | None]]:
        """Decorates a coroutine function that another scheduler calls in every process: one process runs it.

        Each call claims the nearest tick. If this tick is due soon, the call waits for it first. The clock of
        the process may differ from the server's by less than half of the time between two ticks, and by less
        than a minute. The first call for a tick runs the function, and the other calls return None at once.
        With `redo`, a call after a run that was lost or stopped runs it again. `misfire` and `jitter` have no
        effect, because the other scheduler decides when to call.

        Raises:
            TypeError: It is not a coroutine function. From a call, besides what the function raises:
            LockLostError: The lease of the run was lost, and the function was cancelled.
            BackendError: Redis refused, could not be reached, or did not answer within the session's
                `command_timeout`.
            SessionClosedError: The session is closed.

        A call that is cancelled cancels the function, and ends its run on the server.
        """
        if not inspect.iscoroutinefunction(function):
            raise TypeError(f"guard decorates a coroutine function (async def), not {function!r}")

        @functools.wraps(function)
        async def guarded(*args: P.args, **kwargs: P.kwargs) -> R | None:
            told = self._settings
            found = await claim_nearest(self._engine(), told.name, told.dues, told.options, told.policy)
            if not isinstance(found, Run):
                return None
            return await self._call(found, lambda _: function(*args, **kwargs))

        return guarded

    async def _call(self, run: Run, job: Callable[[Tick], Awaitable[R]]) -> R:
        try:
            return await run.call(job, self._settings.tick(run), at_most=self._settings.at_most)
        finally:
            run.take_back()

    # -- looking at it

    async def history(self, limit: int = 20) -> list[TickRecord]:
        """The last runs of all processes, also the runs that go on now; the latest first.

        The server keeps the last 100 runs that have ended. It keeps them as long as the register: at least
        twice the time between two ticks, and at least a week after the last tick. Of ticks that were skipped
        in a row, or missed, the last one stands for all. A missed tick is known from the next run on.

        Args:
            limit: How many runs at most, 1 to 100. Default 20.

        Raises:
            TypeError, ValueError: The limit is wrong.
            BackendError: Redis refused, could not be reached, or did not answer within the session's
                `command_timeout`.
            SessionClosedError: The session is closed.
        """
        number = whole_number("limit", limit, most=_MOST_RECORDS)
        engine, told = self._engine(), self._settings
        read = await engine.ask(reading(engine.settings.prefix, told.name, records=number))
        return history(read, told.dues, told.zone)[:number]

    def __repr__(self) -> str:
        told = self._settings
        return f"<Schedule {told.name!r} {told.dues!r} overlap={told.policy.overlap!r}>"
