"""The combiner: a caller that cannot have the lock leaves its work with it."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from operator import itemgetter
from types import FunctionType
from typing import Any, Final, NamedTuple, Never, Protocol, TypeVar, final

from .._logs import get_logger
from .._tasks import empty_context, spawn
from ..errors import (
    BackendError,
    CombinerFullError,
    ConfigurationError,
    LockError,
    LockLostError,
    ResultNotKeptError,
    SessionClosedError,
)
from ..lock import inside
from ..lock.clock import milliseconds
from ..lock.ending import UNWINDING
from ..lock.engine import Engine
from ..lock.lease import Binding, Lease, LeaseState, Resource
from ..lock.misuse import AsyncOnly, NotEntered
from ..lock.naming import NameTemplate, filled_in, whole
from ..lock.notes import note
from ..lock.options import (
    Options,
    Seconds,
    lock_name,
    optional_seconds,
    reject_unknown,
    seconds,
    whole_number,
)
from ..lock.shield import wait_shielded
from ..lock.sources import Client, engine_of, source_of
from ..transport.answers import Answer, Granted, Refused, Released, released, truth
from ..transport.faults import goes_on
from ..transport.keys import keys_of
from ..transport.request import IMPATIENT, MOST_KNOWN, Argument, Request, Script
from ..transport.steps.checks import of_others, wrong_types
from ..transport.steps.family import Family, Kind
from ..transport.steps.listening import Listener
from ..transport.steps.lock import FORCE_LOCK, LOCKS, LockSteps, read_locks
from ..transport.steps.snapshots import Content, Snapshot
from ..transport.steps.snapshots import whole_number as number_in
from ..transport.steps.standing import IN_TURN, SEATED, WAITING, letters
from .outcome import Outcome, ended
from .serializers import JSON, Serializer, checked_serializer, dumped

log = get_logger("aiolocks.session")

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


# -- On the server.

_SHARED: Final = ("forms", "bells", "fence", "locks", "combiners")
_PUT: Final = Script("combiner_put", *_SHARED, "combiner_puts")
_ACQUIRE: Final = Script("combiner_acquire", *_SHARED, "combiner_puts", "combiner_hand_out", "seats")
_TAKE: Final = Script("combiner_take", *_SHARED, "combiner_hand_out")
_ANSWER: Final = Script("combiner_answer", *_SHARED)
_ACK: Final = Script("combiner_ack", *_SHARED, frees=True)

PIECE: Final = 50
"""Items or answers in one request, at most: it takes the server less than 1 ms."""
PIECE_BYTES: Final = 65_536
"""Bytes after which a request has no more of them."""
_MOST_ROWS: Final = 50
"""Rows of items whose answers one request asks for."""
_IDLE_MS: Final = 10_000
"""For how long a worker without work does not ask, unless it is woken."""


def read_combiner(now_us: int, found: Mapping[str, Content]) -> Snapshot:
    """A run, as a lock, and how many items wait or are being run."""
    snapshot = read_locks(now_us, found)
    if wrong := wrong_types({"value": "hash"}, found):
        return snapshot.with_problems(wrong)._replace(stands=True)
    if not (value := found["value"]):
        return snapshot
    waiting = number_in(value.value.get(b"waiting"))
    if waiting is None or b"last" not in value.value:
        return snapshot.with_problems((of_others("value"),))._replace(stands=True)
    return snapshot._replace(value=waiting, stands=snapshot.stands or waiting > 0)


COMBINERS: Final = Family(
    keys="fence queue",
    renew=LOCKS.renew,
    release=LOCKS.release,
    adopt=LOCKS.adopt,
    annotate=LOCKS.annotate,
    owned=LOCKS.owned,
    locked=LOCKS.locked,
    bell_last=True,
    roles="value",
    read=read_combiner,
    passive="fence items answers puts idle",
    force=FORCE_LOCK,
    forced="nest queue fence",
)
KINDS: Final = (
    Kind(
        COMBINERS,
        "combiner",
        "Combiner",
        value="{} items wait",
        needs=(
            *("hlen", "hmget", "hset", "unlink"),
            *("zcount", "zrangebyscore", "zremrangebyrank", "zremrangebyscore", "zscore"),
        ),
    ),
)


class Row(NamedTuple):
    """Items with numbers that follow each other; the last one is one of them."""

    first: int
    last: int


class Entry(NamedTuple):
    """The answer for some items that follow each other."""

    first: int
    last: int
    tag: str
    payload: bytes


class Put(NamedTuple):
    """What became of items that were left.

    Attributes:
        first: The number of the first of them.
        taken: How many there was room for.
        waiting: How many wait now.
        rung: The bells of the waiters that were woken.
    """

    first: int
    taken: int
    waiting: int
    rung: Sequence[bytes] = ()


class Piece(NamedTuple):
    """Some items of a batch.

    Attributes:
        upto: The number of the last item of the batch.
        at: The number of the last item that was looked at.
        left_out: How many of the items that were looked at are not kept any more.
        items: Of each item its number, a flag, and its payload. The flag: `b"w"`, a caller waits for its
            answer; `b"l"`, none does; `b"d"`, a caller waits, and the item is not kept any more.
    """

    number: int
    attempt: int
    upto: int
    at: int
    left_out: int
    items: Sequence[tuple[int, bytes, bytes]]

    @classmethod
    def of(cls, raw: Sequence[Any]) -> Piece | None:
        if not raw:
            return None
        items = list(zip(map(int, raw[5::3]), raw[6::3], raw[7::3], strict=True))
        return cls(raw[0], raw[1], int(raw[2]), int(raw[3]), raw[4], items)


class HandedOut(NamedTuple):
    """What a runner is handed out.

    Attributes:
        wait_ms: Milliseconds until the batch begins.
        piece: Some of its items, once it has begun; None if there is none.
    """

    wait_ms: int
    piece: Piece | None


@final
class AnswersKnown(LockError):  # noqa: N818 - it is no error: how an acquire ends that has become needless
    """Ends the acquire of a session whose items have answers.

    Attributes:
        settled: All items up to this number are done.
        answers: The answers for items up to this number.
        missing: Items that the server does not know.
    """

    def __init__(self, settled: int, answers: Sequence[Entry], missing: Sequence[Row]) -> None:
        super().__init__("there are answers")
        self.settled = settled
        self.answers = answers
        self.missing = missing


class Ack(NamedTuple):
    """How a run ends.

    Attributes:
        token: Of the run.
        run: Its fencing token.
        upto: The last item of its batch.
        failed: The items stay for another attempt.
        late: Its lease has ended by its own fault: it counts as an attempt in any case.
        answers: The last answers of the run, which the server has not got yet.
    """

    token: str
    run: int
    upto: int
    failed: bool
    late: bool = False
    answers: Sequence[Entry] = ()


class Brought(NamedTuple):
    """Items that the next asker brings.

    Attributes:
        put: The token of their put, and the items: however often it is asked, they are left once.
        told: Told what became of them.
    """

    put: Sequence[Argument]
    told: Callable[[Put], object]


class Bounds(NamedTuple):
    """The settings of a combiner as the server needs them, in this order; times in ms."""

    most: int
    window_ms: int
    within_ms: int
    most_waiting: int
    keep_ms: int


@final
class CombinerSteps(LockSteps):
    """The steps of one combiner in one session.

    Attributes:
        bounds: Its settings, for the requests from now on.
        brought: The items that the asker brings, until the server has answered; else None.
        hasty: As of `NameSteps`; while items are brought, seconds.
        waiting: The items for which this session waits, by number.
        handed_out: The beginning of the batch, of the last grant.
    """

    family = COMBINERS
    __slots__ = (
        "_ack",
        "_asking",
        "_bringing",
        "_ending",
        "_idle",
        "_run",
        "_under",
        "bounds",
        "brought",
        "handed_out",
        "hasty",
        "waiting",
    )

    def __init__(
        self,
        prefix: str,
        name: str,
        *,
        bounds: Bounds,
        waiting: Mapping[int, object],
        retention_ms: int,
        session: str,
    ) -> None:
        super().__init__(prefix, name, retention_ms=retention_ms, session=session, kind="combiner")
        self.bounds = bounds
        self.waiting = waiting
        roles = ("value", "items", "answers", "fence", "queue", "puts", "idle")
        *run, fence, queue, puts, idle = keys_of(prefix, "combiner", name, roles)
        self._run = tuple(run)
        self._idle = idle
        self._under = {"puts": puts, "queue": queue, "fence": fence}
        self._ending = (*run, fence, queue)
        self._asking = (*run, fence, queue, idle, self.bell)
        self._bringing = (*self._asking, puts)
        self._ack: Ack | None = None
        self.brought: Brought | None = None
        self.handed_out = HandedOut(0, None)
        self.hasty: float | None = None

    def wanted(self) -> None:
        """It takes no part in the search for deadlocks."""

    def listener(self, token: str) -> Listener:
        return Listener(self.bell, (self._under["queue"],), locks=(self._run[0], self._idle))

    def put(self, token: str, items: Sequence[Argument], *, known_ms: int) -> Request[Put]:
        """Leaves items: of each `"w"`, if a caller waits for its answer, else `"l"`; and its payload.

        Args:
            token: Of the put: however often it is asked, the items are left once.
            items: These two of each, one after the other.
            known_ms: For how long the server must know of the put at least.
        """
        args = (token, self._retention_ms, *self.bounds[3:], known_ms, MOST_KNOWN, *items)
        keys = (*self._run, self._under["puts"], self._under["queue"], self._idle)
        return Request(_PUT, keys, args, _put, lane=f"{self._name}.put")

    def bring(
        self, token: str, items: Sequence[Argument], *, known_ms: int, told: Callable[[Put], object]
    ) -> None:
        """As `put`, with the next question; `told` what became of the items."""
        self.brought = Brought((token, *self.bounds[3:], known_ms, MOST_KNOWN, *items), told)

    def _rows(self) -> str:
        """The first items that this session waits for, as the server is asked for them."""
        rows: list[Row] = []
        for number in self.waiting:
            if rows and rows[-1].last + 1 == number:
                rows[-1] = Row(rows[-1].first, number)
            elif len(rows) == _MOST_ROWS:
                break
            else:
                rows.append(Row(number, number))
        return " ".join([f"{row.first}-{row.last}" for row in rows])

    def acquire(self, token: str, ttl_ms: int, metadata: str, standing: int = 0) -> Request[Answer]:
        """Takes the run, unless there are answers, or says for how long the present one may go on.

        If items are brought, they are left first. No session lets another one go first, not even the one that
        it has woken: a run is for the waiters of all sessions, and the sooner it begins, the better for each.
        """
        keys = self._asking if standing & (WAITING | SEATED) else self._asking[:-1]
        args: list[Argument] = [
            *(token, ttl_ms, self._retention(ttl_ms), metadata, letters(standing & ~IN_TURN)),
            *self.bounds[:3],
            self._rows() if self.waiting else "",
            _IDLE_MS,
        ]
        if (brought := self.brought) is None:
            return Request(_ACQUIRE, keys, tuple(args), self._answer, lane=token)
        assert standing & WAITING, "an asker that brings items waits for their answers"
        args += brought.put
        answer = functools.partial(self._answer_to_brought, brought)
        request = Request(_ACQUIRE, self._bringing, tuple(args), answer, lane=token)
        request.rare |= IMPATIENT
        return request

    def take(self, token: str, after: int) -> Request[HandedOut | None]:
        """More of the batch, after that item; None if the token does not have the run."""
        args = (token, self._retention_ms, *self.bounds[:3], str(after))
        return Request(_TAKE, self._run, args, _handed_out, lane=token)

    def answer(self, token: str, run: int, entries: Sequence[Entry]) -> Request[bool]:
        """Leaves answers of the run with that fencing token."""
        args = (token, str(run), *_words(entries))
        return Request(_ANSWER, (*self._run, self._under["fence"]), args, truth, lane=token)

    def leave(self, ack: Ack) -> None:
        """Sets how that run ends: from now on its release says so."""
        self._ack = ack

    def release(
        self, token: str, ttl_ms: int, *, ring: bool = True, leave: bool = False
    ) -> Request[Released]:
        """Ends the run as it was said, or with a batch that another one has to run."""
        ack = self._ack
        if ack is None or ack.token != token or leave:
            return super().release(token, ttl_ms, ring=ring, leave=leave)
        args = (
            token,
            str(ack.run),
            self._retention(ttl_ms),
            str(ack.upto),
            "f" if ack.failed else "d",
            int(ack.late),
            *(_words(ack.answers) if ack.answers else ()),
        )
        return Request(_ACK, self._ending, args, released, lane=token)

    def _answer(self, raw: Any) -> Answer:
        if raw[0] == 1:
            self.handed_out = HandedOut(int(raw[3]), Piece.of(raw[4]))
            return Granted(int(raw[1]), raw[2], rung=raw[5:])
        if raw[0] == 0:
            return Refused(None if raw[1] < 0 else raw[1], raw[2:])
        _, settled, told, missing, *rung = raw
        answers = zip(told[::4], told[1::4], told[2::4], told[3::4], strict=True)
        entries = [
            Entry(int(first), int(last), tag.decode(), payload) for first, last, tag, payload in answers
        ]
        rows = [Row(int(first), int(last)) for first, last in zip(missing[::2], missing[1::2], strict=True)]
        return Refused(None, rung, error=AnswersKnown(int(settled), entries, rows))

    def _answer_to_brought(self, brought: Brought, raw: Any) -> Answer:
        first, taken, waiting, answer = raw
        if self.brought is brought:
            self.brought = self.hasty = None
            brought.told(Put(int(first), int(taken), int(waiting)))
        return self._answer(answer)


def _words(entries: Sequence[Entry]) -> list[Argument]:
    """The answers as the server is told of them."""
    words: list[Argument] = []
    for entry in entries:
        words += (str(entry.first), str(entry.last), entry.tag, entry.payload)
    return words


def _put(raw: Any) -> Put:
    first, taken, waiting, *rung = raw
    return Put(int(first), int(taken), int(waiting), rung)


def _handed_out(raw: Any) -> HandedOut | None:
    if raw[0] == -1:
        return None
    return HandedOut(int(raw[0]), Piece.of(raw[1]))


# -- In one session.

LABEL: Final = "Combiner"
PAUSE: Final = 1.0
"""Seconds before a worker asks again after an error, or a session after its run was lost."""
_UNKNOWN: Final = (
    "the server does not know the item any more: it has lost its data, or kept the item no longer"
)
_NO_ANSWER: Final = (
    "it is not known whether the item was done: the server has lost it with its data, or this caller did not "
    "reach the server for 30 s after its batch"
)
_DROPPED: Final = "the item was dropped: nobody has run it for as long as it is kept"
_DROPPED_TAG: Final = "d"


class Left(NamedTuple):
    """An item that was left.

    Attributes:
        number: Of the item. Each item that is left under a name later has a larger one.
        pressure: How many items wait under the name, this one included, or are being run.
    """

    number: int
    pressure: int


class Submitting(Protocol[T_co]):
    """A function that a combiner decorates: it takes an item, and the values of the fields of the name."""

    def __call__(self, item: Any, /, **fields: object) -> Coroutine[Any, Any, T_co]: ...


@final
class Batch:
    """What one run of a `Combiner` is for; made by the combiner, and given to the function that runs it."""

    __slots__ = ("_attempt", "_items", "_lease", "_number", "_results")

    def __init__(self, lease: Lease, number: int, *, attempt: int, items: Sequence[Any]) -> None:
        self._lease = lease
        self._number = number
        self._attempt = attempt
        self._items: list[Any] = list(items)
        self._results: Sequence[Any] | None = None

    @property
    def name(self) -> str:
        """Name of the combiner, with the values of its fields."""
        return self._lease.name

    @property
    def number(self) -> int:
        """Number of the batch: each batch of a name has the next one.

        It begins at 1 again where the server has lost its data, or nothing was left for as long as the server
        keeps a fence.
        """
        return self._number

    @property
    def attempt(self) -> int:
        """1, and one more after each run of it that raised, or was cut off because it kept its event loop.

        Other runs that were cut off, by the death of their process or the loss of the lease, are not counted:
        a batch that kills its process has 1 each time. To give it up, count its runs in a store, by `number`.
        """
        return self._attempt

    @property
    def fencing_token(self) -> int:
        """Larger than the token of every earlier run under the name, for a store that refuses late writes."""
        return self._lease.fencing_token

    @property
    def lease(self) -> Lease:
        """The lease of the run, for `fence(connection, batch.lease)`. The run does not release it.

        `batch.lease.ensure_held()` belongs right before what must not be done twice.
        """
        return self._lease

    @property
    def items(self) -> list[Any]:
        """What was left, in order."""
        return self._items

    @property
    def results(self) -> Sequence[Any] | None:
        """Set by the run: the result of each item, in their order.

        An exception in it is raised to the caller of its item; `CancelledError`, `SystemExit` and
        `KeyboardInterrupt` as the cause of a `RuntimeError`. None: what the run returns is the result of all.
        """
        return self._results

    @results.setter
    def results(self, results: Sequence[Any] | None) -> None:
        self._results = results

    def __len__(self) -> int:
        return len(self._items)

    def __repr__(self) -> str:
        return f"<Batch {self.name!r} number={self.number} attempt={self.attempt} items={len(self.items)}>"


Run = Callable[[Batch], Awaitable[Any]]


class _Collected(NamedTuple):
    """The batch of a run.

    Attributes:
        last: The last piece in which it came.
        items: The items that are run.
        ids: Of each of these: the number, and whether a caller waits for its answer.
        not_run: The same of each other item, with its outcome.
        unread: The first error of the serializer, and how many items it cannot read.
        left_out: How many items are not kept any more.
    """

    last: Piece
    items: Sequence[Any]
    ids: Sequence[tuple[int, bool]]
    not_run: Sequence[tuple[tuple[int, bool], Outcome]]
    unread: tuple[Exception | None, int]
    left_out: int


class Settings(NamedTuple):
    """The settings of a combiner; checked."""

    options: Options
    bounds: Bounds
    retry: int
    serializer: Serializer


@final
class _Running:
    """A run that goes on, as the code in it sees it."""

    __slots__ = ("combining", "over")

    def __init__(self, combining: Combining) -> None:
        self.combining = combining
        self.over = False


_within: ContextVar[tuple[_Running, ...]] = ContextVar("aiolocks_within_run", default=())
"""The runs that the running code is a part of, in whichever task."""


@final
class _Item:
    """One item that a caller of this session has left.

    Attributes:
        future: For which its caller waits: for its outcome or, of one that was only left, until the server
            has it. Done, it may be cancelled: its caller has gone, and the item stays.
        run: Runs its batch; None of one that was only left.
        ours: How a run of this session has ended, of which it is not known whether the server knows.
    """

    __slots__ = ("context", "future", "ours", "payload", "run")

    def __init__(self, loop: asyncio.AbstractEventLoop, payload: bytes, run: Run | None) -> None:
        self.payload = payload
        self.run = run
        self.future: asyncio.Future[Any] = loop.create_future()
        self.context = contextvars.copy_context()
        self.ours: Outcome | None = None

    def fail(self, error: BaseException) -> None:
        """Ends the wait of its caller with this error."""
        if self.run is not None:
            self.settle(Outcome.of_error(error))
        elif not self.future.done():
            self.future.set_exception(error)
            self.future.exception()  # its caller may have gone

    def settle(self, outcome: Outcome | Left) -> None:
        if not self.future.done():
            self.future.set_result(outcome)


@final
class RunTooSlowError(RuntimeError):
    """A run kept the event loop for longer than its lease lasts, and was cut off."""


@final
class _Worker:
    """A call of `drain`."""

    __slots__ = ("context", "failed", "run")

    def __init__(self, loop: asyncio.AbstractEventLoop, run: Run) -> None:
        self.run = run
        self.context = contextvars.copy_context()
        self.failed: asyncio.Future[None] = loop.create_future()


@final
class Combining:
    """What one session does under one name.

    Invariants:
    - it stands in `engine.in_progress` while it has anything to do, and is bound to its session as locks are;
    - at most one put is under way: items have the order in which this session was given them, and a
      session that has much to leave needs few requests. If no task asks yet, the first question brings the
      items (`_brought`), which is a put, too;
    - `_waiting` has each item with a run that the server has taken, by its number, until its outcome is
      known, also when its caller has gone: a session must run it. While there is such an item, or a worker, a
      task asks the server for the run or for answers;
    - no outcome reaches a caller before the server has acknowledged its batch. What is not known to be
      acknowledged is kept in the item, for an answer that the server does not have.
    """

    __slots__ = (
        "__weakref__",
        "_acknowledged_run",
        "_acquiring",
        "_binding",
        "_bringing",
        "_brought",
        "_engine",
        "_name",
        "_outbox",
        "_putting",
        "_settings",
        "_slot",
        "_steps",
        "_waiting",
        "_workers",
        "_working",
    )

    def __init__(self, engine: Engine, name: str, settings: Settings) -> None:
        self._engine = engine
        self._name = name
        self._slot = ("combiner", name)
        self._settings = settings
        self._outbox: deque[_Item] = deque()
        self._waiting: dict[int, _Item] = {}
        self._workers: list[_Worker] = []
        self._putting: asyncio.Task[None] | None = None
        self._working: asyncio.Task[None] | None = None
        self._acquiring = False
        self._bringing = False  # what is left now is brought by the first question, or was
        self._brought: Sequence[_Item] = ()
        self._acknowledged_run = 0  # the last one that was acknowledged although its lease had ended
        self._steps = CombinerSteps(
            engine.settings.prefix,
            name,
            bounds=settings.bounds,
            waiting=self._waiting,
            retention_ms=milliseconds(engine.settings.fence_retention),
            session=engine.session_id,
        )
        self._binding = self._bound()

    @classmethod
    def of(cls, engine: Engine, name: str, settings: Settings) -> Combining:
        """The one of that name; these settings count from now on."""
        slot = ("combiner", name)
        combining: Combining | None = engine.in_progress.get(slot)
        if combining is None:
            combining = engine.bound(slot, functools.partial(cls, engine, name, settings))
            engine.in_progress[slot] = combining
        if combining._settings is not settings:  # noqa: SLF001 - its own class
            combining._settings = settings  # noqa: SLF001 - as above
            combining._steps.bounds = settings.bounds  # noqa: SLF001 - as above
        return combining

    def _bound(self) -> Binding[Lease]:
        return Binding(
            self._engine,
            Resource(self._steps, self._slot),
            Lease,
            label=LABEL,
            name=self._name,
            options=self._settings.options,
        )

    # -- for callers

    def submit(self, payload: bytes, run: Run) -> asyncio.Future[Outcome]:
        """A future for the outcome of an item; its caller may cancel it, and leaves the item then.

        Raises:
            RuntimeError: The caller is a part of the run for which it would wait.
        """
        if (within := _within.get()) and any(one.combining is self and not one.over for one in within):
            raise RuntimeError(
                f"an item that the run of Combiner {self._name!r} submits waits for itself: leave() it"
            )
        item = _Item(self._engine.loop, payload, run)
        self._outbox.append(item)
        if self._working is None and self._putting is None and len(self._outbox) == 1:
            self._bringing = True
            self._working = self._begin(self._work(), "run")
        else:
            self._put_on()
        return item.future

    def leave(self, payload: bytes) -> asyncio.Future[Left]:
        """A future that ends when the server has the item."""
        item = _Item(self._engine.loop, payload, None)
        self._outbox.append(item)
        self._put_on()
        return item.future

    async def drain(self, run: Run) -> None:
        """Runs what is left, until it is cancelled."""
        worker = _Worker(self._engine.loop, run)
        self._workers.append(worker)
        self._work_on()
        try:
            await worker.failed
        finally:
            self._workers.remove(worker)
            worker.failed.cancel()
            asks_for = self._waiting or self._workers or self._brought
            if self._acquiring and not asks_for and self._working is not None:
                self._working.cancel()  # no caller and no worker is left for whom to ask

    # -- tasks of the session

    def _begin(self, work: Any, what: str) -> asyncio.Task[None]:
        # Not in the context of a caller, which may be a run under this name.
        name = f"aiolocks-combiner-{what}-{self._name!r}"
        task: asyncio.Task[None] = spawn(self._engine.loop, work, name=name, context=empty_context())
        task.add_done_callback(self._ended, context=empty_context())
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        put = task is self._putting
        if put:
            self._putting = None
        elif task is self._working:
            self._working = None
        else:
            return  # `_work` has come to its end
        error = None if task.cancelled() else task.exception()
        if not put:
            self._fail_brought(error or SessionClosedError("the session was closed while waiting"))
        if error is None and task.cancelled() and self._engine.closing:
            error = SessionClosedError("the session was closed while waiting")
        if error is not None:
            self._fail_waiting(error)
            for worker in self._workers:
                if not worker.failed.done():
                    worker.failed.set_exception(error)
            if put or self._engine.closing:  # else they may still be left
                self._fail_outbox(error)
        if self._outbox:
            self._put_on()
        self._work_on()

    def _put_on(self) -> None:
        """Begins to put what is left to be put, unless that goes on; what is brought comes first."""
        if self._putting is None and not self._bringing:
            self._putting = self._begin(self._put_all(), "put")

    def _work_on(self) -> None:
        """Begins to ask for the run if a caller or a worker waits. Without any work, leaves `in_progress`."""
        if self._working is not None:
            return
        if self._waiting or self._workers:
            self._working = self._begin(self._work(), "run")
        elif not self._outbox and self._putting is None and self._engine.in_progress.get(self._slot) is self:
            del self._engine.in_progress[self._slot]

    def _fail_waiting(self, error: BaseException) -> None:
        """All items that wait in this session get this error. Another session may run them."""
        waiting = [*self._waiting.values()]
        self._waiting.clear()
        for item in waiting:
            item.fail(error)

    def _fail_outbox(self, error: BaseException) -> None:
        """All that was not sent yet has this error."""
        outbox, self._outbox = self._outbox, deque()
        for item in outbox:
            item.fail(error)

    # -- leaving items

    def _bring(self) -> None:
        """The first question brings what was left in this turn of the loop."""
        engine, steps = self._engine, self._steps
        self._brought, items = self._next_to_put()
        steps.bring(engine.token(), items, known_ms=engine.settings.known_ms, told=self._have_brought)
        steps.hasty = engine.settings.command_timeout

    def _have_brought(self, put: Put) -> None:
        piece, self._brought = self._brought, ()
        self._bringing = False
        self._have_put(piece, put)
        if self._outbox:
            self._put_on()

    def _fail_brought(self, error: BaseException) -> None:
        """The question that brought items has failed."""
        piece, self._brought = self._brought, ()
        self._bringing = False
        self._steps.brought = self._steps.hasty = None
        for item in piece:
            item.fail(error)

    async def _put_all(self) -> None:
        await asyncio.sleep(0)  # all that is left in this turn of the loop goes in one request
        while self._outbox:
            piece, items = self._next_to_put()
            try:
                put = await self._put(items)
            except BaseException as error:
                closed = SessionClosedError("the session was closed while waiting")
                told = error if isinstance(error, Exception) else closed
                for item in piece:
                    item.fail(told)
                if isinstance(error, SessionClosedError) or not isinstance(error, LockError):
                    raise
                continue
            self._have_put(piece, put)

    def _next_to_put(self) -> tuple[Sequence[_Item], Sequence[Argument]]:
        """The first items that are left to be put, as many as a request may have; and its words for them."""
        outbox, size = self._outbox, 0
        piece: list[_Item] = []
        words: list[Argument] = []
        while outbox:
            item = outbox[0]
            size += len(item.payload)
            if piece and (len(piece) == PIECE or size > PIECE_BYTES):
                break
            piece.append(outbox.popleft())
            words += ("l" if item.run is None else "w", item.payload)
        return piece, words

    async def _put(self, items: Sequence[Argument]) -> Put:
        engine = self._engine
        command = self._steps.put(engine.token(), items, known_ms=engine.settings.known_ms)
        return await engine.ask(command, told=engine.wake_own)

    def _have_put(self, piece: Sequence[_Item], put: Put) -> None:
        for place, item in enumerate(piece):
            if place >= put.taken:
                most_waiting = self._settings.bounds.most_waiting
                item.fail(CombinerFullError(self._name, pressure=put.waiting, most_waiting=most_waiting))
                continue
            if item.run is not None:
                self._waiting[put.first + place] = item
            else:
                pressure = put.waiting - put.taken + place + 1
                item.settle(Left(put.first + place, max(1, pressure)))
        if put.taken:
            self._engine.events.left("combiner", self._name, items=put.taken, pressure=put.waiting)
        if self._working is None:
            self._work_on()

    # -- asking

    async def _work(self) -> None:
        if self._binding.options is not self._settings.options:
            self._binding = self._bound()  # the ttl counts from the next time on that there is work
        if self._bringing:
            await asyncio.sleep(0)
            self._bring()
        while self._waiting or self._workers or self._brought:
            try:
                self._engine.check_usable()
                self._acquiring = True
                try:
                    lease = await self._binding.acquire(None)
                finally:
                    self._acquiring = False
            except AnswersKnown as known:
                self._hear(known)
            except BackendError as error:
                self._fail_brought(error)
                if not goes_on(error) or not self._workers:
                    raise
                self._fail_waiting(error)
                if self._outbox:
                    self._put_on()  # what came behind the items of a question that has failed
                log.log(
                    self._engine.log_level(error),
                    "combiner %r: its worker asks again in %g s: %s",
                    self._name,
                    PAUSE,
                    error,
                )
                await self._engine.sleep(PAUSE)
            else:
                await self._run_once(lease)
        # In the step that answers the last caller: an item that this caller leaves next is brought, too.
        self._working = None
        self._work_on()

    def _hear(self, known: AnswersKnown) -> None:
        """What the server has told of items of this session."""
        waiting = sorted(self._waiting)  # as they are, in nearly all cases
        for entry in known.answers:
            numbers = waiting[bisect_left(waiting, entry.first) : bisect_right(waiting, entry.last)]
            if not numbers:
                continue
            outcome = self._outcome(entry)
            for number in numbers:
                if number in self._waiting:
                    self._waiting.pop(number).settle(outcome)
        for number in [one for one in self._waiting if one <= known.settled]:
            item = self._waiting.pop(number)
            if item.ours is not None:
                item.settle(item.ours)  # of a run in this session: its end is confirmed only now
            else:
                item.fail(LockLostError(LABEL, self._name, _NO_ANSWER))
        for row in known.missing:
            for number in [one for one in self._waiting if row.first <= one <= row.last]:
                self._waiting.pop(number).fail(LockLostError(LABEL, self._name, _UNKNOWN))

    def _outcome(self, entry: Entry) -> Outcome:
        def not_kept(reason: str) -> Exception:
            return ResultNotKeptError(self._name, reason, what=LABEL)

        if entry.tag == _DROPPED_TAG:
            return self._of_dropped()
        try:
            return Outcome.told(entry.tag, entry.payload, self._settings.serializer, not_kept)
        except Exception as error:  # noqa: BLE001 - a serializer may raise anything
            note(error, "aiolocks: the serializer of the Combiner says this of a result from elsewhere")
            return Outcome.of_error(error)

    def _of_dropped(self) -> Outcome:
        return Outcome(_DROPPED_TAG, b"", error=LockLostError(LABEL, self._name, _DROPPED))

    # -- a run

    async def _run_once(self, lease: Lease) -> None:
        """Runs one batch, or finds that there is none; an end that was lost or not confirmed is told."""
        batch: _Collected | None = None
        own: Sequence[int] = ()
        try:
            async with lease:
                batch = await self._collect(lease)
                if batch is None:
                    return
                own = await self._do(lease, batch)
        except SessionClosedError:
            raise
        except LockError as error:
            if batch is None and isinstance(error, BackendError) and not goes_on(error):
                raise
            if self._acknowledged_run == lease.fencing_token:
                log.warning(
                    "combiner %r: a run has outlasted its lease, and counts, for no other one has begun: %s",
                    self._name,
                    error,
                )
                return
            log.log(
                self._engine.log_level(error),
                "combiner %r: a run has ended without being acknowledged, and another one follows: %s",
                self._name,
                error,
            )
            await self._engine.sleep(min(PAUSE, self._settings.options.ttl / 3))
        else:
            self._acknowledged(own)

    def _acknowledged(self, own: Sequence[int]) -> None:
        """The server knows the end of a batch with these items: so may their callers."""
        for number in own:
            if (item := self._waiting.pop(number, None)) is not None and item.ours is not None:
                item.settle(item.ours)

    async def _collect(self, lease: Lease) -> _Collected | None:
        """All items of the batch that this run is for, once its window is over; None if there are none."""
        wait_ms, piece = self._steps.handed_out
        pieces: list[Piece] = []
        while True:
            if wait_ms > 0:
                await self._engine.sleep(wait_ms / 1000)
            elif piece is None:
                return None
            else:
                pieces.append(piece)
                if piece.at >= piece.upto:
                    return self._read(pieces)
            after = pieces[-1].at if pieces else 0
            taken = await self._engine.ask(self._steps.take(lease.token, after), patient=True)
            if taken is None:
                raise LockLostError(LABEL, self._name, "the run was taken from this session")
            wait_ms, piece = taken

    def _read(self, pieces: Sequence[Piece]) -> _Collected:
        """The batch that came in these pieces, with the outcomes of the items that are not to be run."""
        loads = self._settings.serializer.loads
        items: list[Any] = []
        ids: list[tuple[int, bool]] = []
        not_run: list[tuple[tuple[int, bool], Outcome]] = []
        dropped: Outcome | None = None
        first: Exception | None = None
        unread = left_out = 0
        for piece in pieces:
            left_out += piece.left_out
            for number, flag, payload in piece.items:
                if flag == b"d":
                    dropped = dropped or self._of_dropped()
                    not_run.append(((number, True), dropped))
                    continue
                try:
                    items.append(loads(payload))
                    ids.append((number, flag == b"w"))
                except Exception as error:  # noqa: BLE001 - a serializer may raise anything
                    note(
                        error,
                        "aiolocks: the serializer of the Combiner says this of an item, which is not run",
                    )
                    not_run.append(((number, flag == b"w"), Outcome.of_error(error)))
                    first, unread = error if first is None else first, unread + 1
        return _Collected(pieces[-1], items, ids, not_run, (first, unread), left_out)

    def _runner(self) -> _Item | _Worker | None:
        """Whose function runs: the first caller's of this session, or a worker's."""
        for item in self._waiting.values():
            return item
        return self._workers[0] if self._workers else None

    async def _do(self, lease: Lease, batch: _Collected) -> Sequence[int]:
        """Runs the batch. The items of this session that are done, once its lease is released."""
        runner = self._runner()
        if runner is None:
            return ()
        engine, piece, items = self._engine, batch.last, batch.items
        began = engine.now()
        outcomes: Sequence[Outcome] = ()
        raised: BaseException | None = None
        retry = self._settings.retry
        if items and piece.attempt > 2 and piece.attempt > retry + 1:
            raised = self._given_up(piece)
        elif items:
            outcomes, raised = await self._outcomes(lease, runner, batch)
            if isinstance(raised, RunTooSlowError):
                retry = max(1, retry)  # a process that was stopped looks alike, and is not stopped again
        failed = raised is not None and piece.attempt <= retry
        if failed:
            log.warning(
                "combiner %r: attempt %d of batch %d has failed, and its %d items stay for another: %s",
                *(self._name, piece.attempt, piece.number, len(items), raised),
                exc_info=raised,
            )
        elif raised is not None:
            log.error(
                "combiner %r: batch %d has failed for good at attempt %d, and its %d items are lost: %s",
                *(self._name, piece.number, piece.attempt, len(items), raised),
                exc_info=raised,
            )
            outcomes = [Outcome.of_error(raised)] * len(items)
        own, elsewhere = ((), ()) if failed else self._have_ended(batch, outcomes)
        *first, last = _pieces(_entries(elsewhere)) if elsewhere else ((),)
        run = lease.fencing_token
        ack = Ack(lease.token, run, piece.upto, failed, answers=last)
        if first or engine.closing or lease.remaining() <= 0.0:
            await self._acknowledge(lease, ack, own, first)
        else:
            self._steps.leave(ack)
        if not failed and (batch.left_out or batch.unread[1]):
            self._tell_dropped(batch)
        if items:
            engine.events.combined(
                run,
                "combiner",
                self._name,
                items=len(items),
                seconds=engine.now() - began,
                reason="again" if failed else "failed" if raised is not None else "",
            )
        return own

    def _tell_dropped(self, batch: _Collected) -> None:
        """Says which items end with this batch, and were not run."""
        if batch.left_out:
            log.warning(
                "combiner %r: %d items were dropped: nobody has run them for as long as they are kept",
                self._name,
                batch.left_out,
            )
            self._engine.events.dropped("combiner", self._name, batch.left_out, reason="kept no longer")
        first, unread = batch.unread
        if unread:
            log.error(
                "combiner %r: %d items of batch %d cannot be read, and are dropped: all who use it need "
                "one serializer: %s: %s",
                *(self._name, unread, batch.last.number, type(first).__name__, first),
            )
            self._engine.events.dropped("combiner", self._name, unread, reason="unreadable")

    async def _outcomes(
        self, lease: Lease, runner: _Item | _Worker, collected: _Collected
    ) -> tuple[Sequence[Outcome], BaseException | None]:
        """How the run has ended: the outcome of each item, or the error that it has raised.

        Raises:
            RuntimeError: It has ended what ends a program, and not itself: nothing is acknowledged.
        """
        piece, count = collected.last, len(collected.items)
        batch = Batch(lease, piece.number, attempt=piece.attempt, items=collected.items)
        run, running = runner.run, _Running(self)
        assert run is not None
        name = f"aiolocks-combiner-batch-{self._name!r}"
        task = spawn(self._engine.loop, _call(run, batch, running), name=name, context=runner.context.copy())
        try:
            given, raised = await ended(
                _given(task, batch, count),
                f"the run of Combiner {self._name!r}",
                needless=lambda: lease.remaining() <= 0.0,
            )
        except asyncio.CancelledError:
            if stalled := self._stalled(lease):
                return (), self._too_slow(stalled, lease.ttl)
            raise
        except (KeyboardInterrupt, SystemExit) as error:
            # The loop has raised it as well, where the program is to end; once is enough.
            raise RuntimeError(
                f"the run of Combiner {self._name!r} was ended by {type(error).__name__}: its items stay on "
                "the server for the next run"
            ) from error
        finally:
            running.over = True
        if raised is not None:
            return (), raised
        assert given is not None
        result, results = given
        if results is None:
            return [self._of_value(result)] * count, None
        return [
            self._of_raised(one) if isinstance(one, BaseException) else self._of_value(one) for one in results
        ], None

    def _of_raised(self, error: BaseException) -> Outcome:
        """The outcome of an error in `results`; what ends a task or a program must not end the caller's."""
        if not isinstance(error, (asyncio.CancelledError, KeyboardInterrupt, SystemExit)):
            return Outcome.of_error(error)
        ended = RuntimeError(
            f"the run of Combiner {self._name!r} has {type(error).__name__} as the result of this item"
        )
        ended.__cause__ = error
        return Outcome.of_error(ended)

    @staticmethod
    def _stalled(lease: Lease) -> float:
        """Seconds for which the event loop stood still when the lease ended: its run can have done that."""
        return lease._possession.stalled() if lease.state is LeaseState.LOST else 0.0  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - no other kind asks

    def _too_slow(self, stalled: float, ttl: float) -> RunTooSlowError:
        return RunTooSlowError(
            f"the run of Combiner {self._name!r} kept the event loop for {stalled:.1f} s or more, and "
            f"its lease has ended (ttl={ttl:g}): run what blocks by asyncio.to_thread(), or give a longer ttl"
        )

    def _given_up(self, piece: Piece) -> RuntimeError:
        return RuntimeError(
            f"batch {piece.number} of Combiner {self._name!r} is given up after {piece.attempt - 1} "
            "attempts: the last one kept its event loop for longer than its lease lasts"
        )

    def _of_value(self, value: Any) -> Outcome:
        try:
            outcome = Outcome.of_value(value, self._settings.serializer)
            self._engine.settings.check_value(outcome.payload)
        except Exception as error:  # noqa: BLE001 - a serializer may raise anything
            if not isinstance(error, ConfigurationError):
                note(error, "aiolocks: the serializer of the Combiner says this of a result")
            log.warning("combiner %r: others cannot have a result of the run: %s", self._name, error)
            return Outcome.not_kept(self._name, value, error, raises=False)
        return outcome

    def _have_ended(
        self, batch: _Collected, outcomes: Sequence[Outcome]
    ) -> tuple[Sequence[int], Sequence[tuple[int, Outcome]]]:
        """The items of this session; and the outcomes for callers in other sessions, in order.

        Callers in this session get the objects themselves, once the server has acknowledged the batch.
        """
        own: list[int] = []
        elsewhere: list[tuple[int, Outcome]] = []
        ends: Iterable[tuple[tuple[int, bool], Outcome]] = zip(batch.ids, outcomes, strict=True)
        if batch.not_run:
            ends = sorted([*ends, *batch.not_run], key=itemgetter(0))
        for (number, waits), outcome in ends:
            if (item := self._waiting.get(number)) is not None:
                item.ours = outcome
                own.append(number)
            elif waits:
                elsewhere.append((number, outcome))
        return own, elsewhere

    async def _acknowledge(
        self, lease: Lease, ack: Ack, own: Sequence[int], first: Sequence[Sequence[Entry]]
    ) -> None:
        """Leaves the first answers with the server, and says how the release of the lease ends the run.

        The release takes the last of them along: in most cases, all. If that is so, and the lease is held,
        there is nothing to wait for.

        A run that has ended is not repeated for the end of its lease or of its session: the server takes the
        acknowledgement of the run that had the lease last.

        Raises:
            LockLostError, SessionClosedError, CancelledError: The lease or the session has ended; whether the
                run is acknowledged says `_acknowledged_run`.
        """
        ack = ack._replace(late=self._stalled(lease) > 0)
        arrived: BaseException | None = None
        if not self._is_over(lease):
            try:
                for entries in first:
                    command = self._steps.answer(lease.token, ack.run, entries)
                    if not await self._engine.ask(command, patient=True):
                        raise LockLostError(LABEL, self._name, "the run was taken from this session")
                # A run that has released it itself is not acknowledged, and no caller is answered.
                lease.ensure_held()
            except (asyncio.CancelledError, LockLostError, SessionClosedError) as error:
                if not self._is_over(lease):
                    raise
                arrived = error
        self._steps.leave(ack)
        if arrived is None and not self._is_over(lease):
            return
        # In a task of its own: this one is cancelled with the lease. For no longer than bodies have to end.
        late = spawn(
            self._engine.loop,
            self._acknowledge_late(lease, ack.run, own, first),
            name=f"aiolocks-combiner-end-{self._name!r}",
            context=empty_context(),
        )
        cancelled_by = arrived if isinstance(arrived, asyncio.CancelledError) else None
        await wait_shielded(lambda: asyncio.shield(late), cancelled_by=cancelled_by)
        if arrived is not None:
            raise arrived

    async def _acknowledge_late(
        self, lease: Lease, run: int, own: Sequence[int], answers: Sequence[Sequence[Entry]]
    ) -> None:
        engine = self._engine
        until = engine.now() + UNWINDING
        try:
            for entries in answers:
                if not await self._last_word(self._steps.answer(lease.token, run, entries), until):
                    return
            ended = await self._last_word(
                self._steps.release(lease.token, milliseconds(lease.ttl)), until, told=engine.wake_own
            )
        except LockError as error:
            log.debug("combiner %r: the end of a run could not be told: %s", self._name, error)
            return
        if ended.freed:
            self._acknowledged_run = run
            self._acknowledged(own)

    async def _last_word(
        self, command: Request[T], until: float, told: Callable[[T], object] | None = None
    ) -> T:
        """As `Engine.ask`, also while the session closes."""
        call, future = self._engine.start(command, until=until, told=told, patient=True)
        try:
            return await future
        finally:
            self._engine.forget(call)

    def _is_over(self, lease: Lease) -> bool:
        return self._engine.closing or lease.state is LeaseState.LOST

    def __repr__(self) -> str:
        return f"<Combining {self._name!r} waiting={len(self._waiting)} workers={len(self._workers)}>"


async def _call(run: Run, batch: Batch, running: _Running) -> Any:
    # Runs that are over leave the tuple: it would grow without end where each run begins the next one.
    around = _within.get()
    _within.set((*[one for one in around if not one.over], running) if around else (running,))
    inside.enter(batch.lease)
    awaitable: object = run(batch)
    if not inspect.isawaitable(awaitable):
        raise TypeError(
            f"run must be a coroutine function (async def): {run!r} gave {type(awaitable).__name__}"
        )
    return await awaitable


async def _given(task: asyncio.Task[Any], batch: Batch, items: int) -> tuple[Any, list[Any] | None]:
    """What the task of a run returns, and the results that the run has set."""
    try:
        result = await task
    except asyncio.CancelledError:
        # It may have ended well in the turn of the loop in which its lease or the session did.
        if not task.done() or task.cancelled() or task.exception() is not None:
            raise
        result = task.result()
    return result, _results_of(batch, items)


def _results_of(batch: Batch, items: int) -> list[Any] | None:
    """The results that a run has set for so many items, checked; whatever it did to `batch.items`."""
    results: object = batch.results
    if results is None:
        return None
    if not isinstance(results, Sequence) or isinstance(results, (str, bytes)):
        raise TypeError(f"batch.results must be a list, one for each item, not {type(results).__name__}")
    if len(results) != items:
        raise ValueError(f"batch.results has {len(results)} results for {items} items")
    return [*results]


def _entries(answers: Sequence[tuple[int, Outcome]]) -> Iterator[Entry]:
    """The answers as the server has them: one for items in a row that have the same outcome."""
    entry: Entry | None = None
    before: Outcome | None = None
    for number, outcome in answers:
        if entry is not None and outcome is before:
            entry = entry._replace(last=number)
            continue
        if entry is not None:
            yield entry
        entry, before = Entry(number, number, outcome.tag, outcome.payload), outcome
    if entry is not None:
        yield entry


def _pieces(entries: Iterator[Entry]) -> Iterator[list[Entry]]:
    piece: list[Entry] = []
    size = 0
    for entry in entries:
        size += len(entry.payload)
        if piece and (len(piece) == PIECE or size > PIECE_BYTES):
            yield piece
            piece, size = [], len(entry.payload)
        piece.append(entry)
    if piece:
        yield piece


# -- In a program.

_LARGEST_BATCH: Final = 10_000
_MOST_WAITING: Final = 1_000_000
_MOST_ATTEMPTS: Final = 1_000_000
_SHORTEST_KEEP: Final = 1.0
_LONGEST_WINDOW: Final = 3600.0
_RUN_OF: Final = "_aiolocks_run"


@final
class Combiner(NotEntered, AsyncOnly):
    """Waiting that works: a caller that would have to wait leaves its work, and one does it for all.

    ```python
    @Combiner(redis, "sync:{account}")
    async def sync(batch: Batch) -> int:     # one process at a time, with all that was left until it starts
        return await push(batch.items)

    answer = await sync(change, account=17)  # when the batch that holds this item is done
    ```

    At most one batch of a name runs at a time. Items that come while it runs are the next batch: one of
    their callers runs it when the first has ended, and the other callers wait for its result. So many callers
    make few runs, and no item is missed: a run that begins after an item was left has it.

    Items stay on the server until the run of their batch is acknowledged under its fencing token. If a
    runner dies or loses its lease, a waiting caller, the next caller or a worker (`drain`) runs the batch:
    each item is run at least once. The effects are exactly once where the store refuses the late: check
    `batch.fencing_token` there, as `aiolocks.contrib.sqlalchemy.fence` does, and write what was done in
    the same transaction.

    A run that ends well after the end of its lease, or while its session closes, counts if no other one has
    begun since. A run that cannot be acknowledged, as after an outage, is followed by another one of the same
    batch, after at most 1 s, and so on until one is. So a batch that kills its process is run again by the
    next one: the how-to page shows how to give it up. A run that keeps its event loop for longer than `ttl`,
    and is cut off, is an attempt, and is repeated at least once: a process that was stopped looks alike.

    It is no queue: items that no session runs for `keep` are dropped, there are no priorities, and a batch
    that fails for good goes to its callers, not to a place for dead letters.

    The idea is flat combining: Hendler, Incze, Shavit and Tzafrir, "Flat Combining and the
    Synchronization-Parallelism Tradeoff", SPAA 2010.

    Args:
        client: `redis.asyncio.Redis`, `RedisCluster`, or an `aiolocks.Session`.
        name: Any non-empty str of at most 1 KiB in UTF-8. Each field in braces is given to each call, and
            percent-encoded; `{{` and `}}` are braces of the name itself.
        ttl: Seconds that a run lasts without a renewal, 50 ms to ten years. It is renewed while its runner
            lives, however long it takes; when the runner dies, the next run follows after that time. 30 s, as
            of all locks: longer than pauses of a process or its network mostly are.
        window: Seconds for which items are collected before a run, from the first one on, 0 to 3600. 0, the
            default: a run begins at once, and no caller waits longer than without a combiner. Items that came
            while another batch ran have waited already.
        within: With it, each item begins the window anew, and in all it lasts at most so many seconds. None,
            the default: the window is not begun anew.
        most: How many items a batch has at most, 1 to 10 000. A window does not end sooner because of it.
            1000: what one call of a service or one transaction mostly can do.
        most_waiting: How many items may wait or be run under the name, 1 to a million; more are refused, so
            that a run that does not keep up is noticed. 10 000 small items are some megabytes of the server.
        retry: How often a batch whose run raised is run again, with the same items, before its callers get
            the error and it is dropped. 0, the default: its callers know better what to do. The next attempt
            follows at once: sleep in the run for a pause. Runs that were cut off, by a death or the loss of
            the lease, are not counted: a deploy would use them up. For runs that block, see above.
        keep: Seconds after which an item that was not run is dropped, 1 s to ten years; a day by default,
            for a night without callers. The next run says so in the log, and to `on_dropped`; a caller that
            waits gets `LockLostError`.
        serializer: How items and results travel: an object with `dumps` and `loads`. JSON needs no trust in
            other programs that can write to the server; pickle would. An item that it cannot read is not run:
            its caller gets the error, and the log and `on_dropped` tell it.

    All users of a name give the same options. In one session, the options of the last call count.

    Raises:
        TypeError, ValueError: An argument is wrong; before any I/O.
    """

    __slots__ = ("_name", "_settings", "_source", "_templates")

    _elsewhere = "make one there, with the same arguments"
    _instead = "decorate the function that runs a batch with it, and call that function"

    def __init__(
        self,
        client: Client,
        name: str,
        *,
        ttl: Seconds = 30.0,
        window: Seconds = 0.0,
        within: Seconds | None = None,
        most: int = 1000,
        most_waiting: int = 10_000,
        retry: int = 0,
        keep: Seconds = 86400.0,
        serializer: Serializer = JSON,
        **unknown: Never,
    ) -> None:
        reject_unknown(LABEL, unknown)
        self._source = source_of(client)
        self._name = lock_name(name)
        NameTemplate(name, otherwise="give the whole name")  # what is wrong with it is told at once
        self._templates: tuple[str, ...] | None = None  # of which its name was made
        window_s = seconds("window", window, most=_LONGEST_WINDOW)
        within_s = optional_seconds("within", within)
        if within_s is not None and not 0 < window_s <= within_s:
            raise ValueError(
                f"within must be at least window, which it needs: here {window_s:g} s, not {within_s:g} s"
            )
        keep_s = seconds("keep", keep, least=_SHORTEST_KEEP)
        if keep_s <= (longest := within_s or window_s):
            raise ValueError(
                f"keep must be longer than window and within, here {longest:g} s, but it is {keep_s:g} s: "
                "items would be dropped before they are run"
            )
        bounds = Bounds(
            most=whole_number("most", most, most=_LARGEST_BATCH),
            window_ms=milliseconds(window_s),
            within_ms=0 if within_s is None else milliseconds(within_s),
            most_waiting=whole_number("most_waiting", most_waiting, most=_MOST_WAITING),
            keep_ms=milliseconds(keep_s),
        )
        self._settings = Settings(
            Options.checked(ttl=ttl),
            bounds,
            whole_number("retry", retry, least=0, most=_MOST_ATTEMPTS),
            checked_serializer(serializer),
        )

    @property
    def name(self) -> str:
        """Name of the combiner, with its fields."""
        return self._name

    @property
    def ttl(self) -> float:
        """Seconds that a run lasts without a renewal."""
        return self._settings.options.ttl

    def of(self, /, **fields: object) -> Combiner:
        """The same combiner under the name with these values, so that calls need not give them.

        Raises:
            TypeError, ValueError: As `name_of` does.
        """
        same = object.__new__(Combiner)
        same._source, same._settings = self._source, self._settings
        same._name, same._templates = self._named(fields), self._templates or (self._name,)
        return same

    async def submit(self, item: Any, run: Callable[[Batch], Awaitable[T]], /, **fields: object) -> T:
        """Leaves an item, and gives its result when the batch that holds it is done.

        The first caller of a batch runs it, in a task of its session and in its own context. Callers of
        its session get the very object, callers of other sessions what the serializer makes of it.

        Args:
            item: What is left: for JSON, None, bool, int, float, str, and lists and dicts of them.
            run: A coroutine function that takes the `Batch`. What it returns is the result for all its
                items, unless it sets `batch.results`, one for each. All users of a name give the same `run`.
            fields: The values of the fields of the name.

        Raises:
            CombinerFullError: `most_waiting` items wait; this one was not left.
            RemoteCallError: The run raised in another session. If it raised in this session, the caller gets
                the error itself.
            ResultNotKeptError: The item was done, and its result cannot be had: the serializer did not take
                it.
            LockLostError: The item was dropped after `keep`. Or it is not known whether it was done: the
                server has lost it, or this caller did not reach the server for 30 s after its batch.
            Exception: What the serializer raises for the item or its result, in this session or in another
                one (`RemoteCallError`).
            BackendError: Redis refused, is not there, or was silent for the session's `command_timeout`; or
                for `ttl` seconds while the item waits. The item may have been left: then it will be run. Or
                100 000 requests have left items within 30 s, or twice that timeout.
            SessionClosedError: The session is closed, or was closed meanwhile; the item stays.
            RuntimeError: The run submits to its own name, and would wait for itself: there, use `leave`. Or
                the run in this session raised `SystemExit` or `KeyboardInterrupt`: the item stays, for the
                next run. Or each run kept its event loop for longer than `ttl`.
            TypeError, ValueError: An argument is wrong; before any I/O.

        Cancelled, it ends at once, and leaves its item, which will be done: by this session while it is open.
        """
        check_run(run)
        combining, payload = self._combining(item, fields)
        result: T = (await combining.submit(payload, _run_of(run))).get()
        return result

    async def leave(self, item: Any, /, **fields: object) -> Left:
        """Leaves an item for the next run, and does not wait for the run.

        The next caller of `submit` runs the item, or a worker (`drain`).

        Args:
            item: As of `submit`.
            fields: The values of the fields of the name.

        Raises:
            CombinerFullError: `most_waiting` items wait; this one was not left.
            BackendError: Redis refused, is not there, or was silent for the session's `command_timeout`. The
                item may have been left: to leave it again may run it twice.
            SessionClosedError: The session is closed, or was closed meanwhile.
            TypeError, ValueError: An argument is wrong; before any I/O.

        Cancelled, it may have been left.
        """
        combining, payload = self._combining(item, fields)
        return await combining.leave(payload)

    async def drain(self, run: Callable[[Batch], Awaitable[Any]], /, **fields: object) -> None:
        """Runs what is left under a name, batch by batch, until it is cancelled: a worker.

        It is woken when an item is left, and does not poll. An error of `run` is logged, and goes to the
        callers that wait for that batch. An outage is logged, and the worker asks again.

        Args:
            run: As of `submit`; or the function that this combiner decorates.
            fields: The values of the fields of the name.

        Raises:
            BackendError: Redis refused for good, as without a permission.
            SessionClosedError: The session is closed, or was closed meanwhile.
            TypeError, ValueError: An argument is wrong; before any I/O.

        Cancelled, it begins no more runs. One under way goes on in its session, and ends with that: then the
        next runner has its batch.
        """
        check_run(run)
        engine = engine_of(self._source, self)
        combining = Combining.of(engine, self._named(fields), self._settings)
        await combining.drain(_run_of(run))

    def __call__(self, function: Callable[[Batch], Coroutine[Any, Any, T]]) -> Submitting[T]:
        """Decorates the function that runs a batch: calling it with an item is `submit`.

        Raises:
            TypeError: It is not a coroutine function.
        """
        check_run(function)

        @functools.wraps(function)
        async def submitting(item: Any, /, **fields: object) -> T:
            return await self.submit(item, function, **fields)

        setattr(submitting, _RUN_OF, function)
        setattr(submitting, "__signature__", _SUBMITTING)  # noqa: B010 - no type checker knows the attribute
        return submitting

    def _combining(self, item: Any, fields: dict[str, object]) -> tuple[Combining, bytes]:
        name = self._named(fields)
        payload = dumped(self._settings.serializer, item)
        engine = engine_of(self._source, self)
        engine.names.used((), made_of=self._templates or (self._name,))
        engine.settings.check_value(payload)
        return Combining.of(engine, name, self._settings), payload

    def _named(self, fields: dict[str, object]) -> str:
        (name,) = filled_in((self._name,) if self._templates is None else whole((self._name,)), fields)
        return name

    def __repr__(self) -> str:
        return f"<Combiner {self._name!r} ttl={self.ttl:g}>"


_SUBMITTING: Final = inspect.Signature(
    [
        inspect.Parameter("item", inspect.Parameter.POSITIONAL_ONLY),
        inspect.Parameter("fields", inspect.Parameter.VAR_KEYWORD),
    ]
)


def check_run(run: object) -> None:
    """Refuses what cannot run a batch. An object with a call of its own is seen when it is called."""
    if type(run) is FunctionType and run.__code__.co_flags & inspect.CO_COROUTINE:
        return  # as nearly all are; what follows takes longer
    plain: bool = inspect.isroutine(run)
    asynchronous: bool = inspect.iscoroutinefunction(run)
    if not callable(run) or (plain and not asynchronous):
        raise TypeError(f"run must be a coroutine function (async def) that takes a batch, not {run!r}")


def _run_of(run: Run) -> Run:
    """The function itself, of one that a combiner decorates."""
    found: Run = getattr(run, _RUN_OF, run)
    return found
