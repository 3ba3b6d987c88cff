"""How a schedule runs: its steps on the server, the run of one tick, and the process that keeps it."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime as dt
import functools
import json
import logging
from collections.abc import Awaitable, Callable, Generator, Hashable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple, TypeVar, final

from ..._logs import get_logger
from ..._tasks import empty_context, spawn
from ..._visible import visible
from ...errors import BackendError, ConfigurationError, LockError, LockLostError
from ...lock import together
from ...lock.clock import milliseconds
from ...lock.engine import Engine
from ...lock.lease import Binding, BodyScope, Lease, LeaseState, QueuePolicy, Resource
from ...lock.options import Options, lock_name, optional_seconds, seconds, whole_number
from ...transport import clocks
from ...transport.answers import Answer, Granted, Refused, Released, released, truth
from ...transport.keys import key
from ...transport.request import Argument, Request, Script
from ...transport.steps.base import NO_SEAT, SEAT_LENGTH
from ...transport.steps.family import Family, Kind, Step
from ...transport.steps.listening import Listener
from ...transport.steps.snapshots import NO_CONTENT, Content, Snapshot
from ..permits import (
    FORCE_PERMITS,
    NEEDS,
    RENEW,
    RUN_ADOPT,
    RUN_ANNOTATE,
    RUN_LOCKED,
    RUN_OWNED,
    SHARED,
    RunSteps,
    read_permits,
)
from .plan import LATE, Ask, Claimed, Cron, Dues, Every, NotClaimed, Plan, Policy, Why, between, time_zone

# -- On the server: ticks are claimed in a register, and each run of one is a lease.

_CLAIM: Final = Script("schedule_claim", *SHARED, "ticks", "claims")
_TRIGGER: Final = Script("schedule_trigger", *SHARED, "ticks", "claims")
_RELEASE: Final = Script("schedule_release", *SHARED, "ticks", frees=True)
_READ: Final = Script("schedule_read", moves=True)

_KIND: Final = "schedule"


def read_schedule(now_us: int, found: Mapping[str, Content]) -> Snapshot:
    """The runs of a schedule, which are kept as permits are."""
    return read_permits(now_us, {**found, "value": NO_CONTENT})


TICKS: Final = Family(
    keys="leases register fence queue bell history",
    values="none fair lasting noseat",
    renew=Step(RENEW, "token ttl retention lasting noseat", truth, keys=6),
    adopt=RUN_ADOPT,
    annotate=RUN_ANNOTATE,
    owned=RUN_OWNED,
    locked=RUN_LOCKED,
    roles="leases",
    read=read_schedule,
    passive="fence register history",
    seat=SEAT_LENGTH,
    force=FORCE_PERMITS,
    # There is no such key as `value`: what is freed is the run, and never the register.
    forced="leases queue value fence",
)
KINDS: Final = (Kind(TICKS, _KIND, "Schedule", lasting=True, needs=NEEDS),)

_WHY: Final[dict[bytes, Why]] = {
    b"e": "early",
    b"t": "taken",
    b"b": "busy",
    b"s": "skipped",
    b"l": "late",
    b"n": "new",
    b"o": "other",
    b"g": "gone",
}


@final
class TickSteps(RunSteps):
    """The steps by which one tick is claimed, and its run held.

    Attributes:
        reply: The last answer of the server about the claim; None before.
        lost: The records of the runs that the claim has found lost.
        token: The token of the last claim; empty before.
        outcome: The outcome to record when the run ends; empty while nothing has been run.
        detail: Further details of that, in words.
    """

    __slots__ = ("_ask", "_values", "bell", "detail", "lost", "outcome", "reply", "token")

    family = TICKS

    def __init__(self, prefix: str, name: str, ask: Ask, *, retention_ms: int, session: str) -> None:
        super().__init__(retention_ms)
        self._ask = ask
        self._values = ("", "", ask.lasting, NO_SEAT)
        self.reply: Claimed | NotClaimed | None = None
        self.lost: list[bytes] = []
        self.token = ""
        self.outcome = ""
        self.detail = ""
        # No session waits in a queue for a tick, but the steps of permits have a place for its two keys.
        self.bell = key(prefix, _KIND, name, f"bell.{session}")
        self._keys = tuple(
            self.bell if role == "bell" else key(prefix, _KIND, name, role) for role in ("", *TICKS.keys)
        )

    def listener(self, token: str) -> Listener:
        return Listener(self.bell, self._keys[4:5], deadlines=self._keys[:1])

    def acquire(self, token: str, ttl_ms: int, metadata: str, standing: int = 0) -> Request[Answer]:
        ask, self.token = self._ask, token
        args: tuple[Argument, ...] = (
            token,
            ttl_ms,
            self._retention(ttl_ms),
            metadata,
            ask.lasting,
            ask.flags,
            ask.redo,
        )
        if ask.due is None:
            return Request(_TRIGGER, self._keys, args, self._answer, lane=token)
        times = (ask.due, _or_empty(ask.known), ask.before, ask.gap, _or_empty(ask.latest), ask.in_time)
        args = (*args, *times, ask.definition, ask.again)
        return Request(_CLAIM, self._keys, args, self._answer, lane=token)

    def _answer(self, raw: Any) -> Answer:
        if raw[0]:
            _, minted, due, before, attempt, now_us, *self.lost = raw
            self.reply = Claimed(_or_none(due), _or_none(before), int(attempt), int(now_us))
            return Granted(int(minted), 0)
        _, why, claimed, ends_in, now_us, *self.lost = raw
        left = None if ends_in < 0 else int(ends_in)
        self.reply = NotClaimed(_WHY[why], _or_none(claimed), left, int(now_us))
        return Refused(left)

    def release(
        self, token: str, ttl_ms: int, *, ring: bool = True, leave: bool = False
    ) -> Request[Released]:
        ask = self._ask
        detail = json.dumps(self.detail)
        args = (token, self._retention(ttl_ms), self.outcome, detail, ask.redo, ask.definition)
        return Request(_RELEASE, self._keys, args, released, lane=token)


@final
class Read(NamedTuple):
    """The content of the register.

    Attributes:
        now_us: The server's time, microseconds.
        claimed: The newest tick that is claimed; None if there is none.
        runs: The facts of each run that has begun and not ended: `state:due:attempt:before:fencing
            token:holder`, by its token.
        living: The tokens that have a lease.
        records: Of the runs that have ended, the newest last: JSON arrays.
    """

    now_us: int
    claimed: int | None
    runs: dict[bytes, bytes]
    living: frozenset[bytes]
    records: list[bytes]


def reading(prefix: str, name: str, *, records: int) -> Request[Read]:
    """Reads the register and as many `records`; with 0 of them, hardly more than the server's time."""
    roles = ("", "register", "history")
    return Request(_READ, tuple(key(prefix, _KIND, name, role) for role in roles), (records,), _read)


def _read(raw: Any) -> Read:
    now_us, claimed, runs, living, records = raw
    pairs = dict(zip(runs[::2], runs[1::2], strict=True))
    return Read(int(now_us), _or_none(claimed), pairs, frozenset(living), records)


@final
class Times(NamedTuple):
    """The times of a schedule, `cron` or `every`, as the register has them: milliseconds since 1970.

    Attributes:
        definition: A name for the times.
        claimed: The newest tick that is claimed.
        asked: When a process asked for a tick last.
        expected: Until when a process must ask again, or none keeps the schedule.
        next: When the next tick will be claimed; None where the register does not say.
    """

    definition: str
    claimed: int
    asked: int
    expected: int
    next: int | None


def times(prefix: str, name: str) -> Request[list[Times]]:
    """Reads which times a schedule has; the times for which a process has asked last come first."""
    register = key(prefix, _KIND, name, "register")
    return Request(None, (register,), ("HGETALL", register), _times, lane=register.decode())


def _times(raw: Any) -> list[Times]:
    fields: dict[bytes, bytes] = dict(raw if hasattr(raw, "items") else zip(raw[::2], raw[1::2], strict=True))
    found: list[Times] = []
    for name, slot in fields.items():
        head, _, definition = name.partition(b":")
        if head == b"claimed" and definition:
            claimed, asked, expected = map(int, slot.split(b":"))
            following = fields.get(b"next:" + definition)
            found.append(
                Times(
                    definition.decode(),
                    claimed,
                    asked,
                    expected,
                    None if following is None else int(following),
                )
            )
    return sorted(found, key=lambda one: one.asked, reverse=True)


def _or_empty(number: int | None) -> int | str:
    return "" if number is None else number


def _or_none(text: bytes) -> int | None:
    return int(text) if text else None


# -- The tick that a job is given, and the records of the history.

TickOutcome = Literal["running", "done", "failed", "timeout", "stopped", "lost", "skipped", "missed"]

_SKIPPED: Final = "skipped"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """One run of a schedule, as its job sees it.

    Attributes:
        name: Name of the schedule.
        due: When it was due, in the time zone of the schedule; for `trigger`, when the run began. Take dates
            and periods from this field, because the clock of the machine may be wrong.
        fencing_token: Larger than the token of every earlier run, for a store that refuses late writes.
        missed: How many ticks were due between this one and the last claimed one, and were not run; at most
            10 000 are counted, and none from before a change of the schedule.
        attempt: 1 for the first run of this tick, more if earlier ones were lost or stopped (`redo`); 0 for
            `trigger`.
        lease: The lease of the run: `ensure_held()`, `remaining()`, `annotate()`.
    """

    name: str
    due: dt.datetime
    fencing_token: int
    missed: int
    attempt: int
    lease: Lease = field(repr=False)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class TickRecord:
    """One run in the history of a schedule. All times are by the server's clock.

    Attributes:
        outcome: `"running"`. `"done"`. `"failed"`: the job raised. `"timeout"`: it was cancelled after
            `at_most`. `"stopped"`: its process was shut down. `"lost"`: its process died, froze or was cut
            off. `"skipped"`: another run was going on (`overlap="skip"`), and this one never began.
            `"missed"`: no process has claimed it in time.
        due: When the tick was due; None for a run by `trigger`.
        began: When the run began; of a tick without a run, when it was skipped, or due.
        ended: When it ended; None while it goes on, and if this is unknown (`"lost"`).
        duration: Seconds from `began` to `ended`, up to now while it goes on; None if this is unknown.
        attempt: As in `Tick`.
        missed: As in `Tick`, for the times of the schedule that is asked; 0 for a run from before a change of
            the schedule. For `"skipped"` and `"missed"`: how many ticks before it were, in a row.
        fencing_token: As in `Tick`; 0 for `"skipped"` and `"missed"`.
        error: For `"failed"`: the type and text of the exception.
        host: Name of the machine that ran it; None if none did.
        pid: Process id on that machine.
        metadata: The metadata of the user: of the session and of the schedule.
    """

    outcome: TickOutcome
    due: dt.datetime | None
    began: dt.datetime
    ended: dt.datetime | None
    duration: float | None
    attempt: int
    missed: int
    fencing_token: int
    error: str = ""
    host: str | None = None
    pid: int | None = None
    metadata: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))


def history(read: Read, dues: Dues | None, zone: dt.tzinfo) -> list[TickRecord]:
    """The runs that go on and the runs that have ended; the run that began last comes first.

    Without `dues`, it cannot tell how many ticks were missed, and says 0.
    """
    found = [_unended(token, run, read) for token, run in read.runs.items()]
    found += [json.loads(record) for record in read.records]
    records = [_record(fields, read.now_us // 1000, dues, zone) for fields in found]
    if dues is not None:
        records += [
            _missed(record, dues, zone) for record in records if record.missed and record.attempt == 1
        ]
    return sorted(records, key=lambda record: (record.began, record.fencing_token), reverse=True)


def _missed(after: TickRecord, dues: Dues, zone: dt.tzinfo) -> TickRecord:
    """Of the ticks that were missed before this one, the last: it stands for all."""
    assert after.due is not None
    due = at(dues.latest(round(after.due.timestamp() * 1000) - 1), zone)
    return TickRecord(
        outcome="missed",
        due=due,
        began=due,
        ended=None,
        duration=None,
        attempt=0,
        missed=after.missed - 1,
        fencing_token=0,
    )


def lost_run(record: bytes, zone: dt.tzinfo) -> TickRecord:
    """A run that a claim has found lost."""
    return _record(json.loads(record), 0, None, zone)


def _unended(token: bytes, run: bytes, read: Read) -> list[Any]:
    state, due, attempt, before, minted, holder = run.split(b":", 5)
    outcome = "running" if token in read.living else "stopped" if state == b"stopped" else "lost"
    began = int(minted) // 1000
    return [
        outcome,
        int(due),
        int(before or 0),
        began,
        None,
        int(attempt),
        int(minted),
        "",
        json.loads(holder),
    ]


def _record(fields: list[Any], now: int, dues: Dues | None, zone: dt.tzinfo) -> TickRecord:
    outcome, due, before, began, ended, attempt, minted, detail, holder = fields
    until = now if outcome == "running" else ended
    duration = None if until is None or outcome == _SKIPPED else max(0, until - began) / 1000
    described: dict[str, Any] = holder or {}
    in_turn = attempt > 0 or outcome == _SKIPPED
    # None for a tick of other due times, from before a change of the schedule. Version 0.2 does not say of
    # which it was.
    own = dues if dues is None or described.get("definition", dues.definition) == dues.definition else None
    return TickRecord(
        outcome=outcome,
        due=at(due, zone) if in_turn else None,
        began=at(began, zone),
        ended=None if ended is None else at(ended, zone),
        duration=duration,
        attempt=attempt,
        missed=between(own, before, due) if own is not None and before and in_turn else 0,
        fencing_token=minted,
        error=detail,
        host=described.get("host"),
        pid=described.get("pid"),
        metadata=MappingProxyType(described.get("user", {})),
    )


def at(moment: int, zone: dt.tzinfo) -> dt.datetime:
    """That moment, in milliseconds since 1970, in a time zone."""
    return (
        dt.datetime.fromtimestamp(moment // 1000, dt.UTC) + dt.timedelta(milliseconds=moment % 1000)
    ).astimezone(zone)


# -- The server's time, as a process knows it without asking each time.

_FRESH: Final = 600.0
"""Seconds for which one reading will do: a good clock is wrong by 30 ms after that."""


@final
class ServerClock:
    """Counts on from the server's time in its last answers.

    It does so by the loop's clock and by the one that goes on while the machine is suspended, whichever has
    gone further. It does not read the time of day from a clock of the process, so a wrong clock does no harm.

    Invariant: right after an answer it is not ahead of the server. When the answer came, the server's clock
    stood between what the answer says and that plus the round trip. A reading inside these bounds is kept;
    otherwise the lower one counts: one that asks a little late is not told to come again.
    """

    __slots__ = ("_heard_at", "_loop_time", "_steady_at", "_told", "users")

    def __init__(self, loop_time: Callable[[], float]) -> None:
        self._loop_time = loop_time
        self._told = 0.0  # milliseconds since 1970, at `_heard_at` of the loop and `_steady_at` of the other
        self._heard_at: float | None = None
        self._steady_at = 0.0
        self.users = 0

    @property
    def fresh(self) -> bool:
        """Whether it can be relied on without asking."""
        return self._heard_at is not None and self._since() < _FRESH

    def _since(self) -> float:
        """Seconds since it was heard."""
        assert self._heard_at is not None
        return max(self._loop_time() - self._heard_at, clocks.steady() - self._steady_at)

    def now(self) -> int:
        """Milliseconds since 1970; 0 before anything was heard."""
        return 0 if self._heard_at is None else int(self._told + self._since() * 1000)

    def heard(self, now_us: int, round_trip: float) -> None:
        """An answer has come with the server's time, `round_trip` seconds after the question."""
        told = now_us / 1000
        counted = told if self._heard_at is None else self._told + self._since() * 1000
        self._told = counted if told <= counted <= told + round_trip * 1000 else told
        self._heard_at, self._steady_at = self._loop_time(), clocks.steady()


@contextmanager
def server_clock(engine: Engine, name: str) -> Generator[ServerClock]:
    """The clock that the schedules of a session share; in a cluster, each name has that of its own node."""
    key: Hashable = ("server clock", name if engine.by_slot else "")
    clock: ServerClock = engine.in_progress.setdefault(key, ServerClock(engine.now))
    clock.users += 1
    try:
        yield clock
    finally:
        clock.users -= 1
        if not clock.users and engine.in_progress.get(key) is clock:
            del engine.in_progress[key]


async def ask_time(engine: Engine, name: str, clock: ServerClock) -> None:
    """Asks the server: in a cluster, the node of that name. Raises what `engine.ask` does."""
    asked_at = engine.now()
    read = await engine.ask(reading(engine.settings.prefix, name, records=0))
    clock.heard(read.now_us, engine.now() - asked_at)


# -- The run of one tick: from its claim to its outcome.

log: Final = get_logger("aiolocks.schedule")

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

    __slots__ = ("_engine", "_steps", "lease", "reply")

    def __init__(self, engine: Engine, lease: Lease, steps: TickSteps, reply: Claimed) -> None:
        self._engine = engine
        self._steps = steps
        self.lease = lease
        self.reply = reply

    def began(self) -> None:
        """Something is run: unless `ended` says more, it is lost."""
        self._steps.outcome = "lost"

    def ended(self, outcome: TickOutcome, detail: str = "") -> None:
        """The run has ended, as the release of the lease must record."""
        self._steps.outcome, self._steps.detail = outcome, detail[:_MOST_DETAIL]

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
                self._engine.events.tell(
                    "on_ran",
                    "schedule",
                    tick.name,
                    fencing_token=self.lease.fencing_token,
                    reason=self._steps.outcome,
                    seconds=self._engine.now() - began,
                )
        return result

    def _tell_begin(self, tick: Tick) -> None:
        """How late a tick is at its first run, and which ticks before it were missed."""
        reply = self.reply
        if reply.due is None or reply.attempt != 1:
            return
        late = max(0.0, reply.now_us / 1e6 - reply.due / 1e3)
        token, missed = self.lease.fencing_token, tick.missed
        self._engine.events.tell(
            "on_tick", "schedule", tick.name, fencing_token=token, seconds=late, items=missed
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

    def _how_ended(self, error: BaseException, limit: BodyScope) -> TickOutcome:
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
            if (
                self._steps.outcome == "done"
            ):  # the server did not know the lease any more when the job had ended
                together.tell(
                    log,
                    logging.WARNING,
                    "schedule %r: the run of %s has ended, but its lease was lost: %s",
                    *(name, due, error),
                    name=repr(name),
                    many="%d runs of schedules have ended, but their leases were lost%s: %s",
                )
                return
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
            if self._steps.outcome == "failed":  # no task has cancelled it
                log.exception("schedule %r: the run of %s failed", name, due)
            raise
        except (SystemExit, KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException:  # a panic of an extension in Rust is no Exception
            if self._steps.outcome == "timeout":
                log.warning("schedule %r: the run of %s was cancelled after at_most=%g s", name, due, at_most)
            else:
                log.exception("schedule %r: the run of %s failed", name, due)

    def take_back(self) -> None:
        """Synchronous: the job was never called, and another process may run the tick."""
        if not self._steps.outcome:
            possession = self.lease._possession  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - a callback cannot await
            possession.lose("its schedule was stopped before the run began")
            self._engine.take_back(possession.release_used(), self.lease.ttl)


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
        self, engine: Engine, name: str, options: Options, clock: ServerClock, zone: dt.tzinfo = dt.UTC
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
            steps = TickSteps(
                engine.settings.prefix,
                self._name,
                ask,
                retention_ms=milliseconds(engine.settings.fence_retention),
                session=engine.session_id,
            )
            # Each claim has a gate of its own: no claim waits in it, and runs go on side by side.
            resource = Resource(steps, ("schedule", self._name, engine.token()), _SEVERAL)
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
            self._doubtful = steps
            lease = await binding.try_acquire()
            reply = steps.reply
            assert reply is not None
            early = isinstance(reply, NotClaimed) and reply.why == "early"
            self._clock.heard(reply.now_us, 0.0 if early else engine.now() - asked_at)
            self._tell_lost(steps)
            self._tell_skipped(ask, reply)
            if lease is not None:
                assert isinstance(reply, Claimed)
                self._doubtful = None
                return Run(engine, lease, steps, reply)
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
        if (steps := self._doubtful) is not None:
            await self._engine.ask(steps.release(steps.token, self._options.first_ttl_ms))
            self._doubtful = None

    def _tell_lost(self, steps: TickSteps) -> None:
        for text in steps.lost:
            run = lost_run(text, self._zone)
            what = f"the run of {run.due}" if run.due else f"the run out of turn of {run.began}"
            token = run.fencing_token
            self._engine.events.tell("on_ran", "schedule", self._name, fencing_token=token, reason="lost")
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
            self._engine.events.tell("on_ran", "schedule", self._name, reason="skipped")
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


# -- The settings of a schedule; checked.

_MOST_REDONE: Final = 1000
_OVERLAPS: Final = ("skip", "queue", "allow")
_MISFIRES: Final = ("latest", "skip", "all")


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """One schedule.

    Attributes:
        at_most: Seconds after which a run is cancelled; None for no limit.
    """

    name: str
    dues: Dues
    policy: Policy
    zone: dt.tzinfo
    options: Options
    at_most: float | None

    @classmethod
    def checked(
        cls,
        name: object,
        *,
        cron: Any,
        every: Any,
        tz: object,
        overlap: Any,
        misfire: Any,
        redo: object,
        at_most: object,
        jitter: object,
        ttl: object,
        metadata: object,
    ) -> Settings:
        name = lock_name(name)
        if (cron is None) == (every is None):
            raise TypeError("Schedule takes either cron= or every=, such as cron='0 3 * * *' or every=60")
        zone = time_zone(tz)
        if overlap not in _OVERLAPS:
            raise ValueError(f"overlap must be one of {', '.join(map(repr, _OVERLAPS))}, not {overlap!r}")
        if misfire not in _MISFIRES:
            raise ValueError(f"misfire must be one of {', '.join(map(repr, _MISFIRES))}, not {misfire!r}")
        longest = optional_seconds("at_most", at_most, least=0.001)
        lease = seconds("ttl", ttl)
        return cls(
            name=name,
            dues=Every(every) if cron is None else Cron(cron, zone),
            policy=Policy(
                overlap=overlap,
                misfire=misfire,
                redo=whole_number("redo", redo, least=0, most=_MOST_REDONE),
                jitter=milliseconds(seconds("jitter", jitter)),
            ),
            zone=zone,
            options=Options.checked(
                ttl=lease,
                # A job that does not heed its cancellation keeps its lease no longer than one that died.
                max_hold=None if longest is None else longest + lease,
                metadata=metadata,
            ),
            at_most=longest,
        )

    def tick(self, run: Run) -> Tick:
        """The argument of the job."""
        reply = run.reply
        due = reply.now_us // 1000 if reply.due is None else reply.due
        return Tick(
            name=self.name,
            due=at(due, self.zone),
            fencing_token=run.lease.fencing_token,
            missed=0 if reply.before is None else between(self.dues, reply.before, due),
            attempt=reply.attempt,
            lease=run.lease,
        )


# -- One run, claimed by a process that comes for nothing else: a tick, or one out of turn.

ONCE: Final = Policy(overlap="skip", misfire="latest", redo=0, jitter=0)
_AGAIN: Final = ("early", "busy")


def nearest(dues: Dues, now: int) -> int:
    """The tick that a machine means that asks now by its own clock: the latest one, or one that is near.

    Clocks of machines may differ by less than half of the gap, and no tick is meant by one machine and missed
    by all. A tick that is due in more than a minute is not waited for.
    """
    due, following = dues.latest(now), dues.after(now)
    return following if following - now < min((following - due) // 2, LATE) else due


async def claim_nearest(
    engine: Engine, name: str, dues: Dues, options: Options, policy: Policy = ONCE
) -> Run | NotClaimed:
    """Waits until the tick is due by the server's clock, claims it, and is refused if another machine has it.

    Of the policy, `overlap` and `redo` count; a tick that was missed is not made up for.

    Raises:
        BackendError: Redis refused, is not there, or was silent for the session's `command_timeout`.
        SessionClosedError: The session is closed.

    Cancelled at any point, a claim that the server may have granted is taken back.
    """
    plan = Plan(name, dues, dataclasses.replace(ONCE, overlap=policy.overlap, redo=policy.redo))
    with server_clock(engine, name) as clock:
        claims = Claims(engine, name, options, clock)
        await ask_time(engine, name, clock)
        due = nearest(dues, clock.now())
        ask = plan.ask(due)
        # The first tick of a schedule is run too: no process is there before a tick to begin the register.
        ask = ask._replace(flags=ask.flags + "f", in_time=min(ask.gap // 2, LATE))
        while True:
            await engine.sleep(max(0, due - clock.now()) / 1000)
            found = await claims.claim(ask)
            if isinstance(found, Run) or (isinstance(found, NotClaimed) and found.why not in _AGAIN):
                return found
            if isinstance(found, NotClaimed) and found.why == "busy":
                if policy.overlap != "queue":
                    return found
                await engine.sleep(found.look_again / 1000)


async def trigger(engine: Engine, settings: Settings) -> Run | None:
    """A run out of turn, or None while another one goes on that is not to be waited for."""
    plan = Plan(settings.name, settings.dues, settings.policy)
    with server_clock(engine, settings.name) as clock:
        claims = Claims(engine, settings.name, settings.options, clock, settings.zone)
        while True:
            found = await claims.claim(plan.out_of_turn(clock.now()))
            if isinstance(found, Run):
                return found
            if isinstance(found, NotClaimed) and found.why == "skipped":
                return None
            await engine.sleep(found.look_again / 1000 if isinstance(found, NotClaimed) else 0.002)


# -- One process that keeps a schedule: it waits for each tick, claims it, and calls the job.


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

    def __init__(self, engine: Engine, settings: Settings, job: Job) -> None:
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
