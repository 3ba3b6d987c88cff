"""The steps of jobs that run once: running slots for which so many may wait, and tickets that own a key."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, final

from ..errors import ConfigurationError, DuplicateJobError
from ..transport.answers import NO_TTL, Answer, Refused, Released, answer, released, truth
from ..transport.commands.base import SEAT_LENGTH
from ..transport.commands.checks import of_others, wrong_types
from ..transport.commands.family import Family, Kind, Step
from ..transport.commands.listening import Listener
from ..transport.commands.snapshots import NO_CONTENT, Content, Holder, Snapshot
from ..transport.commands.standing import leave_letters, letters
from ..transport.keys import key
from ..transport.request import Argument, Command, Script
from .permits import FORCE_PERMITS, NEEDS, SHARED, read_permits
from .runsteps import RUN_ADOPT, RUN_ANNOTATE, RUN_LOCKED, RUN_OWNED, RunSteps

_ACQUIRE: Final = Script("job_acquire", *SHARED, "tickets", "runs", "room")
_RENEW: Final = Script("job_renew", *SHARED, "tickets", "runs", mid_move="mid_move_runs")
_RELEASE: Final = Script("job_release", *SHARED, "tickets", "runs", "room")
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
    """The runs of a job, beside others or not, and the ticket that owns its key, queued or running."""
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
    """Those that count for the limit, and those beside them, which are kept in the same way."""
    snapshot = read_permits(now_us, found, (b"current",))
    others = {"": found["beside"], "leases": found["beside.leases"], "value": NO_CONTENT}
    beside = read_permits(now_us, others)
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
        beside: It may run beside all others of its key, and does not count for the limit.
        gives_up: The key is given up when it begins; else it is kept while it runs.
        frees: The key is freed when it was done, and kept for the retry when not. If it neither does this nor
            gives it up, the key has its own time again when the run has ended.
        done: It was done, as far as is known here.
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
    def outcome(self) -> str:
        """The same as flags of a release."""
        if self.frees:
            return "df" if self.done else "k"
        return ("d" if self.done else "") + ("" if self.gives_up else "e")

    @property
    def beginning(self) -> str:
        """The change to the key as the run begins, as flags of an acquire."""
        return "g" if self.gives_up else "k" if self.frees else "ke"


@final
class JobSteps(RunSteps):
    """The steps by which a running slot of a job is had.

    Those that may run beside others are in a set of their own, without a limit; there each ticket has a queue
    of its own, in which later deliveries wait for its run to end.

    Args:
        limit: The most runs at once.
        waiting: The most that may wait; None for any number.
        ticket_run: The ticket that is to run; None where there is none.
        session: The session that asks: an id of which no two sessions have the same.
        caller: The waiter of that session, where the server must tell its waiters apart.
    """

    __slots__ = (
        "_alone",
        "_key",
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
        caller: str = "",
    ) -> None:
        super().__init__(retention_ms)
        self._key = job
        self._prefix = prefix
        self._waiting: int | str = "" if waiting is None else waiting
        self.ticket_run = ticket_run
        beside = ticket_run is not None and ticket_run.beside
        self._limit = _NO_LIMIT if beside else limit
        slots, prefixed = ("beside", "beside.") if beside else ("", "")
        inside = f"{ticket_run.role}." if ticket_run is not None and beside else ""
        self._session = f"bell.{session}"
        who = f"{self._session}.{caller}" if caller else self._session
        self._alone = "a" if caller else ""  # nobody shares its bell
        self.bell = key(prefix, _KIND, job, f"{inside}{who}")
        self._keys = (
            key(prefix, _KIND, job, slots),
            key(prefix, _KIND, job, f"{prefixed}leases"),
            key(prefix, _KIND, job, f"{prefixed}value"),
            key(prefix, _KIND, job, "fence"),
            key(prefix, _KIND, job, f"{inside}queue"),
            self.bell,
            *_of_tickets(prefix, job),
            key(prefix, _KIND, job, f"{inside}seen"),
        )
        if ticket_run is not None:
            self._keys += (key(prefix, _KIND, job, ticket_run.role), key(prefix, _KIND, job, "about"))

        # A request that asks whether a run could begin comes after those who wait.
        self._values = ("", "t", self._ticket, self._limit)

    @property
    def _ticket(self) -> str:
        return "" if self.ticket_run is None else self.ticket_run.ticket

    def acquire(self, token: str, ttl_ms: int, metadata: str, standing: int = 0) -> Command[Answer]:
        ticket_run = self.ticket_run
        begin = "" if ticket_run is None else ticket_run.beginning
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
        return Command(_ACQUIRE, self._keys, args, self._answer, lane=token)

    def listener(self, token: str) -> Listener:
        return Listener(self.bell, self._keys[4:5], token[:SEAT_LENGTH], deadlines=self._keys[:1])

    def release(
        self, token: str, ttl_ms: int, *, ring: bool = True, leave: bool = False
    ) -> Command[Released]:
        flags = leave_letters(ring=ring, leave=leave) + self._alone
        if self.ticket_run is not None:
            flags += self.ticket_run.outcome
        args = (token, self._retention(ttl_ms), token[:SEAT_LENGTH], flags, self._ticket)
        return Command(_RELEASE, self._keys, args, released, lane=token)

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
    prefix: str, job: str, ticket: str, ttl_ms: int, metadata: str, *, replace: bool
) -> Command[int | None]:
    """Makes the ticket the owner of the key.

    Answers None, or for how many ms more another one owns it: 0 where that has no end.
    """
    args = (ticket, ttl_ms, "r" if replace else "", metadata)
    return Command(_ENQUEUE, _of_enqueueing(prefix, job), args, _conflict, lane=ticket)


def withdrawing(prefix: str, job: str, ticket: str) -> Command[bool]:
    """Takes back a ticket that nobody has got to know."""
    return Command(_WITHDRAW, _of_enqueueing(prefix, job), (ticket,), truth, lane=ticket)


def _of_tickets(prefix: str, job: str) -> tuple[bytes, bytes]:
    return key(prefix, _KIND, job, "owner"), key(prefix, _KIND, job, "over")


def _of_enqueueing(prefix: str, job: str) -> tuple[bytes, ...]:
    return *_of_tickets(prefix, job), key(prefix, _KIND, job, "before"), key(prefix, _KIND, job, "about")


def _conflict(raw: Any) -> int | None:
    return None if raw < 0 else int(raw)
