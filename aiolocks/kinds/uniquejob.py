"""Jobs that run once: what is already running, waiting or done is not done again."""

from __future__ import annotations

import base64
import dataclasses
import functools
import hashlib
import re
import secrets
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Literal, Never, Self, TypeVar, final, get_args, overload

from ..errors import ConfigurationError, DuplicateJobError, SessionClosedError
from ..lock.acquirable import Pending, gives_pending
from ..lock.clock import milliseconds
from ..lock.engine import Engine
from ..lock.lease import Binding, Lease, Possession, QueuePolicy, Resource
from ..lock.misuse import NotEntered
from ..lock.options import (
    SHORTEST_TTL,
    Metadata,
    Options,
    Seconds,
    lock_name,
    optional_seconds,
    reject_unknown,
    seconds,
    user_metadata,
    whole_number,
)
from ..lock.sources import Client, engine_of, source_of
from ..transport import Granted
from ..transport.answers import NO_TTL, Answer, Refused, Released, answer, released, truth
from ..transport.keys import key, keys_of
from ..transport.request import MOST_KNOWN, Argument, Request, Script
from ..transport.steps.base import SEAT_LENGTH
from ..transport.steps.checks import of_others, wrong_types
from ..transport.steps.family import Family, Kind, Step
from ..transport.steps.listening import Listener
from ..transport.steps.snapshots import NO_CONTENT, Content, Holder, Snapshot
from ..transport.steps.standing import leave_letters, letters
from .permits import (
    FORCE_PERMITS,
    NEEDS,
    RUN_ADOPT,
    RUN_ANNOTATE,
    RUN_LOCKED,
    RUN_OWNED,
    SHARED,
    RunSteps,
    read_permits,
)

# -- The steps of jobs that run once: running slots for which so many may wait, and tickets that own a key.

_ACQUIRE: Final = Script("job_acquire", *SHARED, "tickets", "runs", "room")
_RENEW: Final = Script("job_renew", *SHARED, "tickets", "runs", mid_move="mid_move_runs")
_RELEASE: Final = Script("job_release", *SHARED, "tickets", "runs", "room", frees=True)
_ENQUEUE: Final = Script("job_enqueue", "forms", "fence", "tickets")
_WITHDRAW: Final = Script("job_withdraw", "forms", "fence", "tickets")

_KIND: Final = "uniquejob"
_NO_LIMIT: Final = 2**31
_REASONS: Final = {
    b"f": "it is running, and all waiting places are taken",
    b"d": "its ticket was done",
    b"s": "another ticket has taken the place of this one",
    b"o": "another ticket owns the key",
}

_TICKET: Final = re.compile(rb"[\w-]{22}\.\d+")


def read_job(now_us: int, found: Mapping[str, Content]) -> Snapshot:
    """The runs of a job, within its limit or beside, and the ticket that owns its key, queued or running."""
    snapshot, owner, about = _read_runs(now_us, found), found["owner"], found["about"]
    wrong = wrong_types({"owner": "string", "about": "hash"}, found)
    if owner.type == "string" and _TICKET.fullmatch(owner.value) is None:
        wrong = (*wrong, of_others("owner"))
    if about.type == "hash" and not all(map(_TICKET.fullmatch, about.value)):
        wrong = (*wrong, of_others("about"))
    if wrong or owner:
        endless = not wrong and owner.ttl_ms == NO_TTL
        snapshot = snapshot._replace(stands=True, problems=(*snapshot.problems, *wrong), endless=endless)
    if owner.type != "string":
        return snapshot
    ticket: bytes = owner.value
    holder = Holder(
        (ticket.decode(errors="replace"),),
        None,
        None if owner.ttl_ms == NO_TTL else owner.ttl_ms,
        about.value.get(ticket, b"") if about.type == "hash" else b"",
        mode="ticket",
    )
    return snapshot._replace(holders=(*snapshot.holders, holder), ticket=ticket)


def _read_runs(now_us: int, found: Mapping[str, Content]) -> Snapshot:
    """The runs that count for the limit, and the runs beside it, which the server keeps in the same way."""
    snapshot = read_permits(now_us, found, (b"current",))
    kept_beside = {"": found["beside"], "leases": found["beside.leases"], "value": NO_CONTENT}
    beside = read_permits(now_us, kept_beside)
    return snapshot._replace(
        holders=(*snapshot.holders, *beside.holders),
        stands=snapshot.stands or beside.stands,
        problems=tuple(dict.fromkeys((*snapshot.problems, *beside.problems))),
    )


JOBS: Final = Family(
    values="none fair ticket limit",
    renew=Step(_RENEW, "token ttl retention ticket limit", truth),
    adopt=RUN_ADOPT,
    annotate=RUN_ANNOTATE,
    owned=RUN_OWNED,
    locked=RUN_LOCKED,
    roles="leases value owner about beside beside.leases",
    read=read_job,
    passive="fence value beside.value over before about seen run.",
    seat=SEAT_LENGTH,
    force=FORCE_PERMITS,
    forced="leases queue value fence owner beside beside.leases beside.value about",
)
KINDS: Final = (Kind(JOBS, _KIND, "UniqueJob", needs=(*NEEDS, "zremrangebyscore")),)


@final
class TicketRun:
    """The change to the key of a ticket that is run.

    Attributes:
        ticket: The ticket, as the server knows it: `id.ttl, ms`.
        beside: It may run beside all other runs of its key, and does not count for the limit.
        gives_up: The key is given up when it begins; else it is kept while it runs.
        frees: The key is freed when it was done, and kept for the retry when not. If it neither does this nor
            gives it up, the key has its own time again when the run has ended.
        done: It was done, as far as this session knows.
    """

    __slots__ = ("beside", "done", "frees", "gives_up", "ticket")

    def __init__(self, ticket: str, *, beside: bool, gives_up: bool, frees: bool) -> None:
        self.ticket = ticket
        self.beside = beside
        self.gives_up = gives_up
        self.frees = frees
        self.done = False

    @property
    def role(self) -> str:
        """The role of the key that says which token runs it."""
        return f"run.{self.ticket.partition('.')[0]}"

    @property
    def release_flags(self) -> str:
        """The change to the key as the run ends, as flags of a release."""
        if self.frees:
            return "df" if self.done else "k"
        return ("d" if self.done else "") + ("" if self.gives_up else "e")

    @property
    def acquire_flags(self) -> str:
        """The change to the key as the run begins, as flags of an acquire."""
        return "g" if self.gives_up else "k" if self.frees else "ke"


@final
class JobSteps(RunSteps):
    """The steps by which a running slot of a job is had.

    Runs that may run beside other runs are in a set of their own, without a limit. There each ticket has its
    own queue, in which later deliveries wait for its run to end.

    Args:
        limit: The most runs at once.
        waiting: The most that may wait; None for any number.
        ticket_run: The ticket that is to run; None where there is none.
        session: The session that asks: an id of which no two sessions have the same.
        known_ms: For how long the server remembers at least that a ticket was done.
        caller: The waiter of that session, where the server must tell its waiters apart.
    """

    __slots__ = (
        "_alone",
        "_key",
        "_known_ms",
        "_limit",
        "_prefix",
        "_session",
        "_values",
        "_waiting",
        "bell",
        "ticket_run",
    )

    family = JOBS
    _strict = True

    def __init__(
        self,
        prefix: str,
        job: str,
        *,
        limit: int,
        waiting: int | None,
        ticket_run: TicketRun | None,
        retention_ms: int,
        session: str,
        known_ms: int,
        caller: str = "",
    ) -> None:
        super().__init__(retention_ms)
        self._key = job
        self._known_ms = known_ms
        self._prefix = prefix
        self._waiting: int | str = "" if waiting is None else waiting
        self.ticket_run = ticket_run
        beside = ticket_run is not None and ticket_run.beside
        self._limit = _NO_LIMIT if beside else limit
        prefixed = "beside." if beside else ""
        inside = f"{ticket_run.role}." if ticket_run is not None and beside else ""
        self._session = f"bell.{session}"
        who = f"{self._session}.{caller}" if caller else self._session
        self._alone = "a" if caller else ""  # no other caller shares its bell
        roles = [
            *(f"{prefixed}leases", f"{prefixed}value", "fence", f"{inside}queue", f"{inside}{who}"),
            *("owner", "over", f"{inside}seen"),
        ]
        if ticket_run is not None:
            roles += (ticket_run.role, "about")
        slots, *keys = keys_of(prefix, _KIND, job, roles)
        self._keys = (key(prefix, _KIND, job, "beside") if beside else slots, *keys)
        self.bell = self._keys[5]

        # A request that asks whether a run could begin comes after the waiters.
        self._values = ("", "t", self._ticket, self._limit)

    @property
    def _ticket(self) -> str:
        return "" if self.ticket_run is None else self.ticket_run.ticket

    def acquire(self, token: str, ttl_ms: int, metadata: str, standing: int = 0) -> Request[Answer]:
        ticket_run = self.ticket_run
        begin = "" if ticket_run is None else ticket_run.acquire_flags
        args: tuple[Argument, ...] = (
            token,
            ttl_ms,
            self._retention(ttl_ms),
            metadata,
            token[:SEAT_LENGTH],
            letters(standing) + self._alone,
            self._waiting,
            self._ticket,
            begin,
            self._session,
            self._limit,
        )
        return Request(_ACQUIRE, self._keys, args, self._answer, lane=token)

    def listener(self, token: str) -> Listener:
        return Listener(self.bell, self._keys[4:5], token[:SEAT_LENGTH], deadlines=self._keys[:1])

    def release(
        self, token: str, ttl_ms: int, *, ring: bool = True, leave: bool = False
    ) -> Request[Released]:
        flags = leave_letters(ring=ring, leave=leave) + self._alone
        if self.ticket_run is not None:
            flags += self.ticket_run.release_flags
        args = (token, self._retention(ttl_ms), token[:SEAT_LENGTH], flags, self._ticket, self._known_ms)
        return Request(_RELEASE, self._keys, args, released, lane=token)

    def _answer(self, raw: Any) -> Answer:
        if raw[0] == 3:
            raise ConfigurationError(
                f"UniqueJob {self._key!r} runs with limit {raw[1]} elsewhere, not with {self._limit}: give "
                "all users of a key the same limit; a run may have another one once none runs any more"
            )
        if raw[0] == 2:
            error = DuplicateJobError(
                self._key, endless(self._key, self._prefix) if raw[1] == b"e" else _REASONS[raw[1]]
            )
            return Refused(None, raw[2:], error=error)
        return answer(raw)


def endless(job: str, prefix: str) -> str:
    """Why a ticket is a duplicate: the key of the job has lost its ttl."""
    from .._holders import without_ttl  # noqa: PLC0415 - rare, and an import takes its time

    return f"another ticket owns the key. But {without_ttl(job, prefix)}"


def enqueueing(
    prefix: str, job: str, ticket: str, ttl_ms: int, metadata: str, *, replace: bool, known_ms: int
) -> Request[int | None]:
    """Makes the ticket the owner of the key.

    Answers None, or for how many ms more another one owns it: 0 where that has no end. The server remembers
    whose place the ticket has taken for `known_ms` at least.
    """
    args = (ticket, ttl_ms, "r" if replace else "", metadata, known_ms, MOST_KNOWN)
    return Request(_ENQUEUE, _of_enqueueing(prefix, job), args, _conflict, lane=ticket)


def withdrawing(prefix: str, job: str, ticket: str) -> Request[bool]:
    """Takes back a ticket that no caller has got."""
    return Request(_WITHDRAW, _of_enqueueing(prefix, job), (ticket,), truth, lane=ticket)


def _of_enqueueing(prefix: str, job: str) -> tuple[bytes, ...]:
    return keys_of(prefix, _KIND, job, ("owner", "over", "before", "about"))[1:]


def _conflict(raw: Any) -> int | None:
    return None if raw < 0 else int(raw)


# -- Tickets of a `UniqueJob`: what a producer hands to a worker, in a short str that says all of itself.
#
# `1d3600000.4yNKtd0XQ2u1v9Yh6w3qLg.Zk3vT0aP`: version and mode, ttl in ms, 128 random bits, and a check of
# all this and of the job's key, so that a ticket which was cut off, or is for another job, is told from one
# that the server does not know any more.


Mode = Literal["until_executing", "until_executed", "until_expired", "until_and_while_executing"]
"""Until when a job that was enqueued makes later jobs with its key duplicates."""

OnConflict = Literal["raise", "skip", "replace"]

MODES: Final[tuple[Mode, ...]] = get_args(Mode)

_LETTERS: Final[dict[str, Mode]] = {
    "b": "until_executing",
    "d": "until_executed",
    "e": "until_expired",
    "w": "until_and_while_executing",
}
_FORM: Final = re.compile(r"1([bdew])([1-9]\d{0,14})\.([\w-]{22})\.([\w-]{8})", re.ASCII)
_GIVING_UP: Final = ("until_executing", "until_and_while_executing")
_BESIDE: Final = ("until_executing", "until_expired")


@final
@dataclass(frozen=True, slots=True)
class Ticket:
    """One job that was enqueued.

    Attributes:
        key: Of the job.
        ttl_ms: For how long it is unique if no worker runs it, and is remembered when it was done.
    """

    key: str
    mode: Mode
    ttl_ms: int
    id: str

    @classmethod
    def new(cls, key: str, mode: Mode, ttl_ms: int) -> Self:
        return cls(key, mode, ttl_ms, secrets.token_urlsafe(16))

    @classmethod
    def decode(cls, text: object, *, key: str) -> Self:
        """Reads a ticket of the job with that key.

        Raises:
            TypeError: It is not a str.
            ValueError: It is not a ticket, or of another key.
        """
        if not isinstance(text, str):
            raise TypeError(f"a ticket is the str that enqueue() gave, not {type(text).__name__}")
        found = _FORM.fullmatch(text)
        if found is None:
            raise ValueError(f"this is not a ticket that enqueue() gave, unchanged: {text[:64]!r}")
        ticket = cls(key, _LETTERS[found[1]], int(found[2]), found[3])
        if ticket.encode() != text:
            raise ValueError(
                f"the ticket {text!r} is not one of job {key!r}: perform it with the UniqueJob of its own key"
            )
        return ticket

    @property
    def server_id(self) -> str:
        """The id of the ticket on the server."""
        return f"{self.id}.{self.ttl_ms}"

    def encode(self) -> str:
        (letter,) = (letter for letter, mode in _LETTERS.items() if mode == self.mode)
        said = f"1{letter}{self.ttl_ms}.{self.id}"
        check = hashlib.blake2b(self.key.encode(), digest_size=6, salt=b"aiolocks", person=b"ticket")
        check.update(b"\0" + said.encode())
        return f"{said}.{base64.urlsafe_b64encode(check.digest()).decode()}"

    def to_run(self) -> TicketRun:
        """The change to its key when the ticket is run.

        Where the key is free as soon as the run begins, or stays owned whatever happens, the runs of two
        tickets need not exclude each other.
        """
        return TicketRun(
            self.server_id,
            beside=self.mode in _BESIDE,
            gives_up=self.mode in _GIVING_UP,
            frees=self.mode == "until_executed",
        )


def ticket_for(key: str, mode: Mode, ttl: Seconds, on_conflict: OnConflict) -> Ticket:
    """A new ticket; raises where an argument is not as it should be."""
    if mode not in MODES:
        raise ValueError(f"mode must be one of {', '.join(map(repr, MODES))}, not {mode!r}")
    if on_conflict not in ("raise", "skip", "replace"):
        raise ValueError(f"on_conflict must be 'raise', 'skip' or 'replace', not {on_conflict!r}")
    return Ticket.new(key, mode, milliseconds(seconds("ttl", ttl, least=SHORTEST_TTL)))


async def take_key(engine: Engine, ticket: Ticket, options: Options, *, replace: bool) -> int | None:
    """None, or the milliseconds for which another ticket has it.

    Cancelled, or failed, it leaves the key as it was before: an answer that comes late is undone, for as
    long as the ttl of a run.
    """
    settings, server_id = engine.settings, ticket.server_id
    prefix, known_ms = settings.prefix, settings.known_ms
    metadata = engine.describe(settings.user_json({**settings.metadata, **options.metadata}))
    call, answered = engine.start(
        enqueueing(
            prefix, ticket.key, server_id, ticket.ttl_ms, metadata, replace=replace, known_ms=known_ms
        ),
        until=engine.now() + settings.command_timeout,
    )
    try:
        left = await answered
        if engine.closing:
            raise SessionClosedError("the session was closed while waiting")
    except BaseException:
        if engine.forget(call):
            # The ticket reaches no caller: it is taken back, in order after the request.
            engine.take_back(withdrawing(prefix, ticket.key, server_id), options.ttl)
        raise
    return left


# -- The runs of a job: its settings, how the tasks of one session ask for a slot, and the lease of a ticket.

LeaseT = TypeVar("LeaseT", bound=Lease)
LeaseType = Callable[[Binding[LeaseT], Possession, Granted], LeaseT]

_ONE: Final = QueuePolicy(exclusive=True, strict=True)
_SEVERAL: Final = QueuePolicy(strict=True)
# A ticket whose place another one has taken is not told of that: its run asks each second.
_ONE_TICKET: Final = QueuePolicy(exclusive=True, strict=True, silence=1.0)
_TICKETS: Final = QueuePolicy(strict=True, silence=1.0)
_MOST_WAITING: Final = 1000
_MOST_AT_ONCE: Final = 2**31 - 1


@final
@dataclass(frozen=True, slots=True)
class JobSettings:
    """One job.

    Attributes:
        limit: The most runs at once.
    """

    key: str
    options: Options
    limit: int

    @classmethod
    def checked(cls, key: object, *, ttl: object, limit: object, metadata: object) -> JobSettings:
        name = lock_name(key, "key")
        options = Options.checked(ttl=ttl, metadata=metadata)
        return cls(name, options, whole_number("limit", limit, most=_MOST_AT_ONCE))

    def options_with(self, metadata: Metadata | None) -> Options:
        """The options of one run, with metadata of its own beside the metadata of the job."""
        if metadata is None:
            return self.options
        both = {**self.options.metadata, **user_metadata(metadata)}
        return dataclasses.replace(self.options, metadata=both)


@final
class JobLease(Lease):
    """The lease of a run of a ticket.

    If the body ends without an exception, the ticket is done: the server remembers this, and each further run
    of it is a duplicate. If the body raises or is cancelled, the ticket is not done: the next `perform` runs
    it.
    """

    __slots__ = ("_ticket_run",)

    def __init__(
        self, binding: Binding[Any], possession: Possession, grant: Granted, ticket_run: TicketRun
    ) -> None:
        super().__init__(binding, possession, grant)
        self._ticket_run = ticket_run

    async def release(self, *, done: bool = True) -> None:
        """Ends the run. After it was released, a further call does nothing.

        It waits until the server confirms the release, up to the lease's own deadline. A cancellation is
        delayed by at most 1 s; after that the release goes on in the background.

        Args:
            done: Whether the ticket is done, True by default. If not, the next `perform` runs it again.

        Raises:
            LockNotOwnedError: The lease was lost.
            BackendError: The release was not confirmed before the lease's deadline. The ttl ends the run.
        """
        if self._possession.live:
            self._ticket_run.done = done
        await super().release()

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._possession.remaining() > 0.0:  # a run that was lost before its end is not done
            self._ticket_run.done = exc_type is None
        await super().__aexit__(exc_type, exc, traceback)


def run(
    engine: Engine,
    key: str,
    lease_type: LeaseType[LeaseT],
    options: Options,
    *,
    limit: int,
    waiting: int | None = None,
    timeout: float | None = None,
    ticket_run: TicketRun | None = None,
    alike: bool = False,
) -> Coroutine[Any, Any, LeaseT]:
    """Acquires one of `limit` slots, for which `waiting` calls may wait; or the run of a ticket.

    `timeout`: seconds to wait; None for ever. `alike`: other calls have the same options.
    """
    # Where any number may wait, the waiters of this session stand in one queue. Else the server has to tell
    # them apart: each asks for itself, with a bell of its own.
    alone = waiting is not None or ticket_run is not None

    def bind() -> Binding[LeaseT]:
        caller = engine.token()[:16] if alone else ""
        return bound(
            engine,
            key,
            lease_type,
            options,
            limit=limit,
            waiting=waiting,
            ticket_run=ticket_run,
            caller=caller,
        )

    if not alike or ticket_run is not None:
        return bind().acquire(timeout)
    last: list[Binding[LeaseT]] = engine.bound(
        ("uniquejob", key, limit, waiting, options), list[Binding[LeaseT]]
    )
    # The last caller is used again if it has never waited: no request about its bell is under way then.
    if not last or (alone and not last[0].gate.untouched):
        last[:] = (bind(),)
    return last[0].acquire(timeout)


def bound(
    engine: Engine,
    key: str,
    lease_type: LeaseType[LeaseT],
    options: Options,
    *,
    limit: int,
    waiting: int | None = None,
    ticket_run: TicketRun | None = None,
    caller: str = "",
) -> Binding[LeaseT]:
    """How a slot of a job is acquired in one session: by all its callers, or by that one."""
    steps = JobSteps(
        engine.settings.prefix,
        key,
        limit=limit,
        waiting=waiting,
        ticket_run=ticket_run,
        retention_ms=milliseconds(engine.settings.fence_retention),
        session=engine.session_id,
        known_ms=engine.settings.known_ms,
        caller=caller,
    )
    one, several = (_ONE, _SEVERAL) if ticket_run is None else (_ONE_TICKET, _TICKETS)
    policy = one if limit == 1 else several
    resource = Resource(steps, ("uniquejob", key, caller, limit), policy)
    return Binding(engine, resource, lease_type, label="UniqueJob", name=key, options=options)


async def unless_duplicate(running: Coroutine[Any, Any, LeaseT]) -> LeaseT | None:
    """The lease, or None for a duplicate."""
    try:
        return await running
    except DuplicateJobError:
        return None


def whole_places(waiting: object) -> int | None:
    """The number of waiting places, checked; None for any number."""
    if waiting is None:
        return None
    if isinstance(waiting, bool) or not isinstance(waiting, int):
        raise TypeError(f"waiting must be an int or None for any number, not {waiting!r}")
    if not 0 <= waiting <= _MOST_WAITING:
        raise ValueError(
            f"waiting must be from 0 to {_MOST_WAITING}, or None for any number, not {waiting!r}"
        )
    return waiting


@final
class UniqueJob(NotEntered):
    """One job at a time under a key, among all processes. A further call is a duplicate, and does not run.

    Used in the worker only: one call runs, `waiting` calls wait, and all other calls are duplicates. The
    waiting call begins when the running call has ended. So an update that arrives during a run is never lost,
    and however many updates arrive, one run follows.

    ```python
    job = UniqueJob(redis, "report:17")

    async with job.run(waiting=1):          # raises DuplicateJobError when one runs and one waits
        await build_report(17)              # sees all that was there before it began
    ```

    Used in the producer, too: the producer enqueues, and gets a ticket that travels with the job. Another
    ticket for the same key is a conflict until the first one has begun, is done, or has reached its ttl.

    ```python
    ticket = await job.enqueue("until_executed")        # raises DuplicateJobError while there is another
    ...
    async with job.perform(ticket):                     # raises DuplicateJobError when it has been done
        await build_report(17)
    ```

    With `limit`, that many may run at once under the key: calls of `run`, and tickets of the modes whose runs
    wait for each other. A ticket never runs twice at the same time, and only one ticket at a time has the
    key, whatever the limit.

    This does not mean exactly once. If a worker dies after its work was done, and before it could report
    that, the queue delivers the job again, and it runs again.

    `run` and `try_run` do not remember runs that have ended. If the clocks of machines differ by more than a
    job takes, each machine runs it once. For such a job, use a `Lock` with `at_least`.

    Args:
        client: `redis.asyncio.Redis`, `RedisCluster`, or an `aiolocks.Session`.
        key: The key of the job: any non-empty str of at most 1 KiB in UTF-8. It has a name space of its own.
        ttl: Seconds that a run lasts without a renewal, 50 ms to ten years. It is renewed while its worker
            lives, however long the job takes. If a worker dies, the next call begins after this time. Default
            60 s.
        limit: How many may run at once, 1 to 2**31 - 1. All users of a key must give the same limit: while
            one runs, another limit is refused; when none runs, the next run may have another. Default 1.
        metadata: JSON values kept with each run and each ticket; `session.inspect()` shows them. Every user
            that can read the key can read them.

    Raises:
        TypeError, ValueError: An argument is wrong; before any I/O.
    """

    __slots__ = ("__weakref__", "_settings", "_source")

    _instead = "enter its run() or its perform(ticket)"

    def __init__(
        self,
        client: Client,
        key: str,
        *,
        ttl: Seconds = 60.0,
        limit: int = 1,
        metadata: Metadata | None = None,
        **unknown: Never,
    ) -> None:
        reject_unknown("UniqueJob", unknown)
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
        """Runs when fewer than `limit` other runs go on: at once, or when its turn comes.

        You can enter the result with `async with`, await it (then release the lease yourself), or give it to
        `asyncio.create_task` and similar functions. The body is cancelled if the lease is lost.

        A call that waits has a waiting place. When the call begins, its place is free in the same step. So a
        call that arrives after that waits for a run of its own, which sees a later state. If all places are
        taken, their owners are asked if they live, which takes a few milliseconds. If all answer, the new
        call is a duplicate. An owner that has not answered for 2 s loses its place to the new call, so a dead
        waiter makes no job a duplicate.

        Args:
            waiting: How many may wait while `limit` run, 0 to 1000; None for any number. The default, 1, is
                enough for a job that works on the present state. They run in the order in which they came.
                Waiters with a ticket do not count: such a waiter runs nothing if another delivery does its
                ticket.
            blocking_timeout: Seconds to wait for its turn; None, the default, for ever. 0 is the same as
                `waiting=0`: if it cannot run at once, it is a duplicate.
            metadata: JSON values kept with this run, in addition to the metadata of the job.

        Raises:
            DuplicateJobError: `limit` run, and `waiting` wait already.
            LockTimeoutError: Its turn did not come within `blocking_timeout`. It gives its waiting place
                back.
            ConfigurationError: Other calls run under the key with another `limit`.
            DeadlockError: This task itself runs the job, and would wait for itself.
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
        """Does what `run` does, but returns None for a duplicate. It waits if a waiting place is free.

        So of three calls at the same time two run, one after the other, unless `waiting` is 0. A call that
        comes after a run has ended always runs.

        Args:
            waiting: How many may wait while `limit` run, 0 to 1000; None for any number. Default 1.
            metadata: JSON values kept with this run, in addition to the metadata of the job.

        Raises:
            ConfigurationError: Other calls run under the key with another `limit`.
            DeadlockError: This task itself runs the job, and would wait for itself.
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
        """Takes the key for one job before it is queued, and returns its ticket, which travels with the job.

        The ticket is a short str for `perform` of the same key. The server keeps the ticket and, while the
        ticket has the key, its producer and metadata. If the job is never put into the queue, the key stays
        taken for `ttl`.

        Args:
            mode: For how long another ticket for this key is a conflict. `"until_executing"`: until its run
                begins. `"until_executed"`: until a run has ended without an exception. `"until_expired"`: for
                `ttl`, whatever happens to it, and while it runs. `"until_and_while_executing"`: until its run
                begins, and runs of the key also wait for each other.
            ttl: Seconds for which the ticket has the key if no worker runs it, and for which the server
                remembers that it was done (30 s at least, or twice the session's `command_timeout`), 50 ms to
                ten years. Give more than the queue keeps a job, with its retries. Default 3600, an hour.
            on_conflict: What happens while another ticket has the key. `"raise"`, the default:
                `DuplicateJobError`. `"skip"`: returns None. `"replace"`: takes its place; the older ticket is
                a duplicate from then on, but if its run has begun, the run goes on. At most 100 000 tickets
                of one key are replaced in 30 s, or in twice the session's `command_timeout`.
            metadata: JSON values kept with the ticket while it has the key, in addition to the metadata of
                the job.

        Raises:
            TypeError, ValueError: An argument is wrong; before any I/O.
            DuplicateJobError: Another ticket has the key.
            BackendError: Redis refused, could not be reached, or did not answer within the session's
                `command_timeout`.
            SessionClosedError: The session is closed.

        After a cancellation or an error, the key is as it was before.
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
        """Runs the job of a ticket, unless it is done or another ticket has its key.

        It waits while another delivery of the same ticket runs. For `"until_executed"` and
        `"until_and_while_executing"`, it also waits while `limit` run under this key. Then it looks again. A
        ticket whose time has passed still runs if no other ticket has the key.

        A ticket of `"until_executing"` or `"until_and_while_executing"` gives up its key when it begins. If
        it is then not done, it runs again, even if a newer ticket has the key by then. Both run, because the
        job of the newer ticket may never come to a worker.

        If the body ends without an exception, the server remembers for the ticket's ttl, 30 s at least, that
        it is done. If the body raises, a retry with the same ticket runs it again. You can also await the
        result: then end it with `lease.release(done=…)`.

        Args:
            ticket: The ticket that `enqueue` of the same key returned.
            metadata: JSON values kept with this run, in addition to the metadata of the job.

        Raises:
            TypeError, ValueError: It is not a ticket of this key; before any I/O.
            ConfigurationError: Other calls run under the key with another `limit`.
            DuplicateJobError: The ticket is done, or another ticket has replaced it. Or another ticket has
                the key, and this one has not given it up by beginning.
            DeadlockError: This task itself runs the job, and would wait for itself.
            BackendError: Redis refused for good, or gave no answer for `ttl` seconds.
            SessionClosedError: The session is closed, or was closed meanwhile.

        Cancelled at any point, it does not run in this worker, and can run in another one.
        """
        decoded, options = Ticket.decode(ticket, key=self.key), self._settings.options_with(metadata)
        return Pending(lambda: self._perform(decoded, options), of=self, call="perform")

    @gives_pending
    def try_perform(self, ticket: str, *, metadata: Metadata | None = None) -> Pending[JobLease | None]:
        """Does what `perform` does, but returns None for a duplicate. It waits as `perform` does.

        Args:
            ticket: The ticket that `enqueue` of the same key returned.
            metadata: JSON values kept with this run, in addition to the metadata of the job.

        Raises:
            TypeError, ValueError: It is not a ticket of this key; before any I/O.
            ConfigurationError: Other calls run under the key with another `limit`.
            DeadlockError: This task itself runs the job, and would wait for itself.
            BackendError: Redis refused for good, or gave no answer for `ttl` seconds.
            SessionClosedError: The session is closed, or was closed meanwhile.

        Cancelled at any point, it does not run in this worker, and can run in another one.
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
            alike=options is self._settings.options,
        )
