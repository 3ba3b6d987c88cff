"""Jobs that run once: what is already running, waiting or done is not done again."""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine
from typing import Any, Final, Literal, Never, TypeVar, final, overload

from .._core.arguments import SHORTEST_TTL, Options, Seconds, lock_name, reject_slips, seconds
from .._core.binding import Binding
from .._core.claim import Manner, Resource
from .._core.clock import milliseconds
from .._core.engine import Engine
from .._core.lease import Lease
from .._core.pending import Pending
from .._core.possession import Possession
from .._core.session import engine_of, source_of
from .._transport import Call, Granted, ignore
from .._transport.commands.jobs import Errand, JobCommands, enqueueing, withdrawing
from ..errors import DuplicateJobError, SessionClosedError
from .joblease import JobLease
from .tickets import MODES, Mode, Ticket

LeaseT = TypeVar("LeaseT", bound=Lease)

OnConflict = Literal["raise", "skip", "replace"]

_MANNER: Final = Manner(exclusive=True, eager=True, strict=True)
_MOST_WAITING: Final = 1000


@final
class UniqueJob:
    """One job at a time under a key, among all processes: what is one too many is a duplicate, and not run.

    On the worker's side alone: one runs, so many wait, the rest are turned away. As the one who waits begins
    when the one who runs has ended, an update that arrives during a run is never lost, and however many
    arrive they are one run.

    ```python
    job = UniqueJob(redis, "report:17")

    async with job.run(waiting=1):          # raises DuplicateJobError when one runs and one waits
        await build_report(17)              # sees all that was there before it began
    ```

    From the producer on: whoever enqueues gets a ticket, which travels with the job; another one for the
    same key is a conflict, until the first has begun, has been done, or its time is over.

    ```python
    ticket = await job.enqueue("until_executed")        # raises DuplicateJobError while there is another
    ...
    async with job.perform(ticket):                     # raises DuplicateJobError when it has been done
        await build_report(17)
    ```

    This makes work unique in time; it does not make it exactly once. A worker that dies after its work was
    done, but before it could say so, leaves a job that the queue delivers again, and that runs again.

    Args:
        client: `redis.asyncio.Redis`, `RedisCluster`, or an `aiolocks.Session`.
        key: What is unique: any non-empty str of at most 1 KiB in UTF-8. It has a name space of its own.
        ttl: Seconds that a run lasts without a renewal, 50 ms to ten years. It is renewed while its worker
            lives, however long the job takes; when a worker dies, whoever waits begins after that time.

    Raises:
        TypeError, ValueError: An argument is not as it should be; before any I/O.
    """

    __slots__ = ("__weakref__", "_key", "_options", "_source")

    def __init__(self, client: Any, key: str, *, ttl: Seconds = 60.0, **slips: Never) -> None:
        reject_slips("UniqueJob", slips)
        self._source = source_of(client)
        self._key = lock_name(key, "key")
        self._options = Options.checked(
            ttl=ttl,
            blocking_timeout=None,
            auto_renew=True,
            max_hold=None,
            on_lost="cancel",
            metadata=None,
        )

    @property
    def key(self) -> str:
        """What is unique."""
        return self._key

    @property
    def ttl(self) -> float:
        """Seconds that a run lasts without a renewal."""
        return self._options.ttl

    def __repr__(self) -> str:
        return f"<UniqueJob {self._key!r} ttl={self._options.ttl:g}>"

    # -- the worker's side alone

    def run(self, *, waiting: int | None = 1) -> Pending[Lease]:
        """Runs when nobody else does: at once, or when it is its turn.

        What it returns can be entered with `async with`, awaited (then release the lease yourself), or given
        to `asyncio.create_task` and the like. The body is cancelled if the lease is lost.

        A place to wait in belongs to who waits there, and is free as soon as he begins, in the same step:
        what arrives from then on waits for its own run, and sees a later state. Nobody is a duplicate of
        the dead: one that would be is told so when those who wait have given a sign of life, a few
        milliseconds later, or has the place of one who has given none for 2 s.

        Args:
            waiting: How many may wait while one runs, 0 to 1000; None for any number. One is enough for a
                job that looks at the present state. They run in the order in which they came.

        Raises:
            DuplicateJobError: One runs, and as many wait already.
            BackendError: Redis refused for good, or gave no answer for `ttl` seconds.
            SessionClosedError: The session is closed, or was closed meanwhile.

        Cancelled at any point, nothing stays held, and whoever waits behind goes on.
        """
        room = _room(waiting)
        return Pending(lambda: self._acquire(Lease, waiting=room))

    def try_run(self, *, waiting: int | None = 1) -> Pending[Lease | None]:
        """As `run`, but a duplicate gives None, and raises nothing. It does wait if there is a place to wait.

        Args:
            waiting: How many may wait while one runs, 0 to 1000; None for any number.

        Raises:
            BackendError: Redis refused for good, or gave no answer for `ttl` seconds.
            SessionClosedError: The session is closed, or was closed meanwhile.

        Cancelled at any point, nothing stays held, and whoever waits behind goes on.
        """
        room = _room(waiting)
        return Pending(lambda: _unless_duplicate(self._acquire(Lease, waiting=room)))

    # -- from the producer on

    @overload
    async def enqueue(
        self, mode: Mode, *, ttl: Seconds = ..., on_conflict: Literal["raise", "replace"] = ...
    ) -> str: ...
    @overload
    async def enqueue(self, mode: Mode, *, ttl: Seconds = ..., on_conflict: OnConflict) -> str | None: ...
    async def enqueue(
        self, mode: Mode, *, ttl: Seconds = 3600.0, on_conflict: OnConflict = "raise"
    ) -> str | None:
        """Takes the key for one job that is about to be queued: its ticket, which travels with the job.

        The ticket is a short str, to be given to `perform` of the same key. Nothing is kept of it but what
        makes it unique: it is no harm if the job is never put into the queue, except that its key stays
        taken for `ttl`.

        Args:
            mode: For how long another ticket for this key is a conflict: `"until_executing"`, to the
                beginning of its run; `"until_executed"`, to the end of a run that did not raise;
                `"until_expired"`, for `ttl`, whatever becomes of it; `"until_and_while_executing"`, as
                until executing, and runs of the same key wait for each other.
            ttl: Seconds for which it stays unique if nobody runs it, and for which it is remembered when it
                was done, 50 ms to ten years. More than the queue holds a job for, retries included.
            on_conflict: What to do while another ticket has the key: `"raise"`; `"skip"`, give None;
                `"replace"`, take its place: the older ticket is a duplicate from then on, but a run of it
                that has begun goes on.

        Raises:
            TypeError, ValueError: An argument is not as it should be; before any I/O.
            DuplicateJobError: Another ticket has the key.
            BackendError: Redis refused, or did not answer within the session's `command_timeout`.
            SessionClosedError: The session is closed.

        Cancelled, or failed, it leaves the key as it was before.
        """
        if mode not in MODES:
            raise ValueError(f"mode must be one of {', '.join(map(repr, MODES))}, not {mode!r}")
        if on_conflict not in ("raise", "skip", "replace"):
            raise ValueError(f"on_conflict must be 'raise', 'skip' or 'replace', not {on_conflict!r}")
        ttl_ms = milliseconds(seconds("ttl", ttl, least=SHORTEST_TTL))
        ticket = Ticket.new(self._key, mode, ttl_ms)
        left = await self._take_key(engine_of(self._source), ticket, replace=on_conflict == "replace")
        if left is None:
            return ticket.encode()
        if on_conflict == "skip":
            return None
        raise DuplicateJobError(self._key, f"another ticket owns the key, for {left / 1000:.3f} s more")

    async def _take_key(self, engine: Engine, ticket: Ticket, *, replace: bool) -> int | None:
        """None, or the milliseconds for which another ticket has it."""
        prefix, known_as = engine.settings.prefix, ticket.known_as
        call, answered = engine.start(
            enqueueing(prefix, self._key, known_as, ticket.ttl_ms, replace=replace),
            until=engine.now() + engine.settings.command_timeout,
        )
        try:
            left = await answered
            if engine.closing:
                raise SessionClosedError("the session was closed while waiting")
        except BaseException:
            if engine.forget(call):
                # Nobody gets to know this ticket: it is taken back, in order behind the request.
                back = withdrawing(prefix, self._key, known_as)
                until = engine.now() + self._options.ttl
                engine.send(Call(back, ignore, ignore, until=until, in_full=True), at_once=True)
            raise
        return left

    def perform(self, ticket: str) -> Pending[JobLease]:
        """Runs the job of a ticket, unless it has been done or somebody else has its key.

        Waits while the same ticket runs elsewhere, or, for `"until_executed"` and
        `"until_and_while_executing"`, while anybody runs under this key; then looks again. A ticket whose
        time has lapsed still runs if no other has the key.

        If the body ends without an exception, the ticket is remembered for its ttl as done. If it raises, a
        retry with the same ticket runs it again. What it returns can also be awaited: then end it with
        `lease.release(done=…)`.

        Args:
            ticket: What `enqueue` of the same key gave.

        Raises:
            TypeError, ValueError: It is not a ticket of this key; before any I/O.
            DuplicateJobError: It has been done, another one has taken its place, or another one has the key.
            BackendError: Redis refused for good, or gave no answer for `ttl` seconds.
            SessionClosedError: The session is closed, or was closed meanwhile.

        Cancelled at any point, it does not run here, and can run elsewhere.
        """
        decoded = Ticket.decode(ticket, key=self._key)
        return Pending(lambda: self._perform(decoded))

    def try_perform(self, ticket: str) -> Pending[JobLease | None]:
        """As `perform`, but a duplicate gives None, and raises nothing. It waits as `perform` does.

        Args:
            ticket: What `enqueue` of the same key gave.

        Raises:
            TypeError, ValueError: It is not a ticket of this key; before any I/O.
            BackendError: Redis refused for good, or gave no answer for `ttl` seconds.
            SessionClosedError: The session is closed, or was closed meanwhile.

        Cancelled at any point, it does not run here, and can run elsewhere.
        """
        decoded = Ticket.decode(ticket, key=self._key)
        return Pending(lambda: _unless_duplicate(self._perform(decoded)))

    def _perform(self, ticket: Ticket) -> Coroutine[Any, Any, JobLease]:
        errand = ticket.errand()
        return self._acquire(functools.partial(JobLease, errand=errand), errand=errand)

    # -- in a session

    async def _acquire(
        self,
        lease_type: Callable[[Binding[LeaseT], Possession, Granted], LeaseT],
        *,
        waiting: int | None = None,
        errand: Errand | None = None,
    ) -> LeaseT:
        engine = engine_of(self._source)
        # Where any number may wait, those who do here stand in one queue. Else the server is to tell them
        # apart: each asks for himself, with a bell of his own.
        alone = waiting is not None or errand is not None
        caller = engine.token()[:16] if alone else ""
        commands = JobCommands(
            engine.settings.prefix,
            self._key,
            waiting=waiting,
            errand=errand,
            retention_ms=milliseconds(engine.settings.fence_retention),
            session=engine.session_id,
            caller=caller,
        )
        binding: Binding[LeaseT] = Binding(
            engine,
            Resource(commands, ("uniquejob", self._key, caller), _MANNER),
            lease_type,
            label="UniqueJob",
            name=self._key,
            options=self._options,
        )
        return await binding.acquire(None)


async def _unless_duplicate(running: Coroutine[Any, Any, LeaseT]) -> LeaseT | None:
    try:
        return await running
    except DuplicateJobError:
        return None


def _room(waiting: object) -> int | None:
    if waiting is None:
        return None
    if isinstance(waiting, bool) or not isinstance(waiting, int):
        raise TypeError(f"waiting must be an int or None for any number, not {waiting!r}")
    if not 0 <= waiting <= _MOST_WAITING:
        raise ValueError(
            f"waiting must be from 0 to {_MOST_WAITING}, or None for any number, not {waiting!r}"
        )
    return waiting
