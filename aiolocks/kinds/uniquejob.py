"""Jobs that run once: what is already running, waiting or done is not done again."""

from __future__ import annotations

import functools
from collections.abc import Coroutine
from typing import Any, Literal, Never, final, overload

from ..errors import DuplicateJobError
from ..lock.acquirable import Pending, gives_pending
from ..lock.lease import Lease
from ..lock.options import Metadata, Options, Seconds, optional_seconds, reject_unknown
from ..lock.sources import engine_of, source_of
from .jobruns import MEANT, JobLease, JobSettings, LeaseT, LeaseType, run, unless_duplicate, whole_places
from .jobsteps import TicketRun, endless
from .tickets import Mode, OnConflict, Ticket, take_key, ticket_for


@final
class UniqueJob:
    """One job at a time under a key, among all processes: a further call is a duplicate, and does not run.

    On the worker's side alone: one runs, `waiting` calls wait, the rest are turned away. As the call that
    waits begins when the one that runs has ended, an update that arrives during a run is never lost, and
    however many arrive they are one run.

    ```python
    job = UniqueJob(redis, "report:17")

    async with job.run(waiting=1):          # raises DuplicateJobError when one runs and one waits
        await build_report(17)              # sees all that was there before it began
    ```

    From the producer on: a producer that enqueues gets a ticket, which travels with the job; another one for
    the same key is a conflict, until the first has begun, has been done, or its time is over.

    ```python
    ticket = await job.enqueue("until_executed")        # raises DuplicateJobError while there is another
    ...
    async with job.perform(ticket):                     # raises DuplicateJobError when it has been done
        await build_report(17)
    ```

    With `limit`, that many run at once under the key: calls of `run`, and tickets of the modes whose runs
    wait for each other. A ticket never runs beside itself, and a key has one ticket that is unique, whatever
    the limit.

    This makes work unique in time; it does not make it exactly once. A worker that dies after its work was
    done, but before it could say so, leaves a job that the queue delivers again, and that runs again.

    `run` and `try_run` know of no run that has ended. Machines that start the same job by clocks that differ
    run it once each, if it is shorter than the difference: there, take a `Lock` with `at_least`.

    Args:
        client: `redis.asyncio.Redis`, `RedisCluster`, or an `aiolocks.Session`.
        key: The key of the job: any non-empty str of at most 1 KiB in UTF-8. It has a name space of its own.
        ttl: Seconds that a run lasts without a renewal, 50 ms to ten years. It is renewed while its worker
            lives, however long the job takes; when a worker dies, the next in line begins after that time.
        limit: How many may run at once, 1 to 2**31 - 1. All users of a key must give the same limit: while
            one runs, another limit is refused; once none runs, the next run may have another.
        metadata: JSON values that stand beside each run and each ticket, readable by everybody who can read
            the key: `session.inspect()` shows them.

    Raises:
        TypeError, ValueError: An argument is not as it should be; before any I/O.
    """

    __slots__ = ("__weakref__", "_settings", "_source")

    def __init__(
        self,
        client: Any,
        key: str,
        *,
        ttl: Seconds = 60.0,
        limit: int = 1,
        metadata: Metadata | None = None,
        **unknown: Never,
    ) -> None:
        reject_unknown("UniqueJob", unknown, MEANT)
        self._source = source_of(client)
        self._settings = JobSettings.checked(key, ttl=ttl, limit=limit, metadata=metadata)

    @property
    def key(self) -> str:
        """The key of the job."""
        return self._settings.key

    @property
    def ttl(self) -> float:
        """Seconds that a run lasts without a renewal."""
        return self._settings.options.ttl

    @property
    def limit(self) -> int:
        """How many may run at once."""
        return self._settings.limit

    def __repr__(self) -> str:
        limit = f" limit={self.limit}" if self.limit > 1 else ""
        return f"<UniqueJob {self.key!r} ttl={self.ttl:g}{limit}>"

    # -- the worker's side alone

    @gives_pending
    def run(
        self,
        *,
        waiting: int | None = 1,
        blocking_timeout: Seconds | None = None,
        metadata: Metadata | None = None,
    ) -> Pending[Lease]:
        """Runs when fewer than `limit` others do: at once, or when it is its turn.

        The result can be entered with `async with`, awaited (then release the lease yourself), or given to
        `asyncio.create_task` and the like. The body is cancelled if the lease is lost.

        A waiting place belongs to the call that waits there, and is free as soon as that call begins, in the
        same step: a call that arrives from then on waits for its own run, and sees a later state. A dead
        waiter makes no job a duplicate. If all waiting places are taken, their owners are asked whether they
        live, and if all answer, which takes a few milliseconds, the newcomer is a duplicate. A waiter that
        has not answered for 2 s loses its place to the newcomer.

        Args:
            waiting: How many may wait while `limit` run, 0 to 1000; None for any number. One is enough for a
                job that looks at the present state. They run in the order in which they came. Waiters with
                a ticket do not count: such a waiter runs nothing if another delivery does its ticket.
            blocking_timeout: Seconds to wait for its turn; None for ever. 0 is the same as `waiting=0`: where
                it cannot run at once, it is a duplicate.
            metadata: JSON values that stand beside this run, with those of the job.

        Raises:
            DuplicateJobError: `limit` run, and as many wait already.
            LockTimeoutError: Its turn did not come within `blocking_timeout`; it gives its waiting place
                back.
            ConfigurationError: Others run under the key with another `limit`.
            DeadlockError: This very task runs it, and would wait for itself.
            BackendError: Redis refused for good, or gave no answer for `ttl` seconds.
            SessionClosedError: The session is closed, or was closed meanwhile.

        Cancelled at any point, nothing stays held, and the next waiter goes on.
        """
        places, options = whole_places(waiting), self._settings.options_with(metadata)
        timeout = optional_seconds("blocking_timeout", blocking_timeout)
        if timeout == 0:
            places, timeout = 0, None
        return Pending(
            lambda: self._run(Lease, options, waiting=places, timeout=timeout), of=self, call="run"
        )

    @gives_pending
    def try_run(self, *, waiting: int | None = 1, metadata: Metadata | None = None) -> Pending[Lease | None]:
        """As `run`, but a duplicate gives None, and raises nothing. It does wait if there is a place to wait.

        So of three calls at the same time two run, one after the other, unless `waiting` is 0. And a call
        that comes after a run has ended runs, whatever `waiting` is.

        Args:
            waiting: How many may wait while `limit` run, 0 to 1000; None for any number.
            metadata: JSON values that stand beside this run, with those of the job.

        Raises:
            ConfigurationError: Others run under the key with another `limit`.
            DeadlockError: This very task runs it, and would wait for itself.
            BackendError: Redis refused for good, or gave no answer for `ttl` seconds.
            SessionClosedError: The session is closed, or was closed meanwhile.

        Cancelled at any point, nothing stays held, and the next waiter goes on.
        """
        places, options = whole_places(waiting), self._settings.options_with(metadata)
        return Pending(
            lambda: unless_duplicate(self._run(Lease, options, waiting=places)), of=self, call="try_run"
        )

    # -- from the producer on

    @overload
    async def enqueue(
        self,
        mode: Mode,
        *,
        ttl: Seconds = ...,
        on_conflict: Literal["raise", "replace"] = ...,
        metadata: Metadata | None = ...,
    ) -> str: ...
    @overload
    async def enqueue(
        self, mode: Mode, *, ttl: Seconds = ..., on_conflict: OnConflict, metadata: Metadata | None = ...
    ) -> str | None: ...
    async def enqueue(
        self,
        mode: Mode,
        *,
        ttl: Seconds = 3600.0,
        on_conflict: OnConflict = "raise",
        metadata: Metadata | None = None,
    ) -> str | None:
        """Takes the key for one job that is about to be queued: its ticket, which travels with the job.

        The ticket is a short str, to be given to `perform` of the same key. The server keeps what makes it
        unique, and beside that, while it has the key, its producer and metadata. It is no harm if the job is
        never put into the queue, except that its key stays taken for `ttl`.

        Args:
            mode: For how long another ticket for this key is a conflict: `"until_executing"`, to the
                beginning of its run; `"until_executed"`, to the end of a run that did not raise;
                `"until_expired"`, for `ttl`, whatever becomes of it, and while it runs; or
                `"until_and_while_executing"`, as until executing, and runs of the key wait for each other.
            ttl: Seconds for which it stays unique if nobody runs it, and for which it is remembered when it
                was done, 50 ms to ten years. More than the queue holds a job for, retries included.
            on_conflict: What happens while another ticket has the key: `"raise"`; `"skip"`, give None;
                `"replace"`, take its place: the older ticket is a duplicate from then on, but a run of it
                that has begun goes on.
            metadata: JSON values that stand beside the ticket while it has the key, with those of the job.

        Raises:
            TypeError, ValueError: An argument is not as it should be; before any I/O.
            DuplicateJobError: Another ticket has the key.
            BackendError: Redis refused, is not there, or was silent for the session's `command_timeout`.
            SessionClosedError: The session is closed.

        Cancelled, or failed, it leaves the key as it was before.
        """
        ticket = ticket_for(self.key, mode, ttl, on_conflict)
        options, engine = self._settings.options_with(metadata), engine_of(self._source, self)
        left = await take_key(engine, ticket, options, replace=on_conflict == "replace")
        if left is None:
            return ticket.encode()
        if on_conflict == "skip":
            return None
        reason = f"another ticket owns the key, for {left / 1000:.3f} s more"
        raise DuplicateJobError(self.key, reason if left else endless(self.key, engine.settings.prefix))

    @gives_pending
    def perform(self, ticket: str, *, metadata: Metadata | None = None) -> Pending[JobLease]:
        """Runs the job of a ticket, unless it has been done or another ticket has its key.

        Waits while the same ticket runs elsewhere, or, for `"until_executed"` and
        `"until_and_while_executing"`, while `limit` run under this key; then looks again. A ticket whose
        time has lapsed still runs if no other has the key.

        A ticket that gave up its key when it began (`"until_executing"`, `"until_and_while_executing"`) and
        was not done runs again whichever ticket has the key by then: nobody can know whether the job of the
        newer one ever comes to a worker. Both run.

        If the body ends without an exception, the ticket is remembered for its ttl as done. If it raises, a
        retry with the same ticket runs it again. The result can also be awaited: then end it with
        `lease.release(done=…)`.

        Args:
            ticket: The ticket that `enqueue` of the same key gave.
            metadata: JSON values that stand beside this run, with those of the job.

        Raises:
            TypeError, ValueError: It is not a ticket of this key; before any I/O.
            ConfigurationError: Others run under the key with another `limit`.
            DuplicateJobError: It has been done, another one has taken its place, or another one has the key
                and this one has not given it up by beginning.
            DeadlockError: This very task runs it, and would wait for itself.
            BackendError: Redis refused for good, or gave no answer for `ttl` seconds.
            SessionClosedError: The session is closed, or was closed meanwhile.

        Cancelled at any point, it does not run here, and can run elsewhere.
        """
        decoded, options = Ticket.decode(ticket, key=self.key), self._settings.options_with(metadata)
        return Pending(lambda: self._perform(decoded, options), of=self, call="perform")

    @gives_pending
    def try_perform(self, ticket: str, *, metadata: Metadata | None = None) -> Pending[JobLease | None]:
        """As `perform`, but a duplicate gives None, and raises nothing. It waits as `perform` does.

        Args:
            ticket: The ticket that `enqueue` of the same key gave.
            metadata: JSON values that stand beside this run, with those of the job.

        Raises:
            TypeError, ValueError: It is not a ticket of this key; before any I/O.
            ConfigurationError: Others run under the key with another `limit`.
            DeadlockError: This very task runs it, and would wait for itself.
            BackendError: Redis refused for good, or gave no answer for `ttl` seconds.
            SessionClosedError: The session is closed, or was closed meanwhile.

        Cancelled at any point, it does not run here, and can run elsewhere.
        """
        decoded, options = Ticket.decode(ticket, key=self.key), self._settings.options_with(metadata)
        return Pending(lambda: unless_duplicate(self._perform(decoded, options)), of=self, call="try_perform")

    def _perform(self, ticket: Ticket, options: Options) -> Coroutine[Any, Any, JobLease]:
        ticket_run = ticket.to_run()
        return self._run(functools.partial(JobLease, ticket_run=ticket_run), options, ticket_run=ticket_run)

    def _run(
        self,
        lease_type: LeaseType[LeaseT],
        options: Options,
        *,
        waiting: int | None = None,
        timeout: float | None = None,
        ticket_run: TicketRun | None = None,
    ) -> Coroutine[Any, Any, LeaseT]:
        engine = engine_of(self._source, self)
        return run(
            engine,
            self.key,
            lease_type,
            options,
            limit=self.limit,
            waiting=waiting,
            timeout=timeout,
            ticket_run=ticket_run,
        )
