"""A combiner in one session: the items that are left here, those who wait for them, and the runs."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any, Final, NamedTuple, TypeVar, final

from ..errors import (
    BackendError,
    CombinerFullError,
    ConfigurationError,
    LockError,
    LockLostError,
    ResultNotKeptError,
    SessionClosedError,
)
from ..lock.binding import Binding
from ..lock.claim import Resource
from ..lock.clock import milliseconds
from ..lock.context import Context
from ..lock.lease import Lease
from ..lock.notes import note
from ..lock.options import Options
from .combinersteps import PIECE, PIECE_BYTES, Ack, Bounds, CombinerSteps, Entry, Piece, Put, Row, Told
from .outcomes import Outcome, comes_of_cancellation
from .serializers import Serializer

log = logging.getLogger("aiolocks.session")

LABEL: Final = "Combiner"
PAUSE: Final = 1.0
"""Seconds before a worker asks again after an error, or a session after its run was lost."""
_MOST_ROWS: Final = 50
"""Rows of items whose answers one request asks for."""
_UNKNOWN: Final = (
    "the server does not know the item any more: it has lost its data, or kept the item no longer"
)
_NO_ANSWER: Final = "a run has acknowledged the item, and its answer is there no longer"


class Left(NamedTuple):
    """An item that was left.

    Attributes:
        number: Of the item. Each item that is left under a name later has a larger one.
        pressure: How many items wait under the name, this one included, or are being run.
    """

    number: int
    pressure: int


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
        """1, and one more after each run of it that raised. Runs that were cut off are not counted."""
        return self._attempt

    @property
    def fencing_token(self) -> int:
        """Larger than that of every earlier run under the name, for a store that refuses late writes."""
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

        An exception in it is raised to the caller of its item. None: what the run returns is the result of
        all.
        """
        return self._results

    @results.setter
    def results(self, results: Sequence[Any] | None) -> None:
        self._results = results

    def __len__(self) -> int:
        return len(self._items)

    def __repr__(self) -> str:
        return f"<Batch {self.name!r} number={self.number} attempt={self.attempt} items={len(self.items)}>"


T = TypeVar("T")
Run = Callable[[Batch], Awaitable[Any]]


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
    """One item that was left here.

    Attributes:
        run: Runs its batch; None of one that was only left.
        left: Of one that was only left, resolved when the server has it; else None.
        answered: Resolved with the outcome; None of one that was only left.
        ours: How a run of this session has ended, of which it is not known whether the server knows.
    """

    __slots__ = ("answered", "context", "left", "ours", "payload", "run")

    def __init__(self, loop: asyncio.AbstractEventLoop, payload: bytes, run: Run | None) -> None:
        self.payload = payload
        self.run = run
        self.left: asyncio.Future[Left] | None = loop.create_future() if run is None else None
        self.answered: asyncio.Future[Outcome] | None = None if run is None else loop.create_future()
        self.context = contextvars.copy_context()
        self.ours: Outcome | None = None

    def fail(self, error: BaseException) -> None:
        """Nobody knows what becomes of it."""
        for future in (self.left, self.answered):
            if future is not None and not future.done():
                future.set_exception(error)
                future.exception()  # its caller may have gone

    def settle(self, outcome: Outcome) -> None:
        if self.answered is not None and not self.answered.done():
            self.answered.set_result(outcome)


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
    - it stands in `engine.in_progress` while it has anything to do;
    - at most one put is under way: items have the order in which they were left here, and a session that has
      much to leave needs few requests;
    - `_waiting` has each item with a run that the server has taken, by its number, until its outcome is
      known, also when its caller has gone: somebody must run it. While there is one, or a worker, a task asks
      the server for the run or for answers;
    - no outcome reaches a caller before the server has acknowledged its batch. What is not known to be
      acknowledged is kept in the item, for an answer that the server does not have.
    """

    __slots__ = (
        "__weakref__",
        "_acquiring",
        "_binding",
        "_commands",
        "_engine",
        "_name",
        "_outbox",
        "_putting",
        "_settings",
        "_slot",
        "_waiting",
        "_workers",
        "_working",
    )

    def __init__(self, engine: Context, name: str, settings: Settings) -> None:
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
        self._commands = CombinerSteps(
            engine.settings.prefix,
            name,
            bounds=settings.bounds,
            rows=self._rows,
            retention_ms=milliseconds(engine.settings.fence_retention),
            session=engine.session_id,
        )
        self._binding: Binding[Lease] = Binding(
            engine,
            Resource(self._commands, self._slot),
            Lease,
            label=LABEL,
            name=name,
            options=settings.options,
        )
        engine.in_progress[self._slot] = self

    @classmethod
    def of(cls, engine: Context, name: str, settings: Settings) -> Combining:
        """The one of that name; these settings count from now on."""
        combining: Combining | None = engine.in_progress.get(("combiner", name))
        if combining is None:
            return cls(engine, name, settings)
        combining.configure(settings)
        return combining

    def configure(self, settings: Settings) -> None:
        """These settings count from now on; the ttl, from the next time on that it is made."""
        self._settings = settings
        self._commands.bounds = settings.bounds

    # -- for callers

    def check_outside(self) -> None:
        """Refuses a caller that is a part of the run for which it would wait.

        Raises:
            RuntimeError: It is.
        """
        if any(running.combining is self and not running.over for running in _within.get()):
            raise RuntimeError(
                f"an item that the run of Combiner {self._name!r} submits waits for itself: leave() it"
            )

    async def submit(self, payload: bytes, run: Run) -> Any:
        """The result of an item."""
        item = self._add(payload, run)
        assert item.answered is not None
        outcome = await self._wait(item.answered)
        return outcome.get()

    async def leave(self, payload: bytes) -> Left:
        """Returns when the server has the item."""
        item = self._add(payload, None)
        assert item.left is not None
        return await self._wait(item.left)

    async def drain(self, run: Run) -> None:
        """Runs what is left, until it is cancelled."""
        worker = _Worker(self._engine.loop, run)
        self._workers.append(worker)
        self._work_on()
        try:
            await self._wait(worker.failed)
        finally:
            self._workers.remove(worker)
            worker.failed.cancel()
            if self._acquiring and not (self._waiting or self._workers) and self._working is not None:
                self._working.cancel()  # nobody is left for whom to ask

    @staticmethod
    async def _wait(future: asyncio.Future[T]) -> T:
        # A future of its own for each caller: a cancelled one leaves its item.
        return await asyncio.shield(future)

    def _add(self, payload: bytes, run: Run | None) -> _Item:
        item = _Item(self._engine.loop, payload, run)
        self._outbox.append(item)
        if self._putting is None:
            self._putting = self._begin(self._put_all(), "put")
        return item

    # -- tasks of the session

    def _begin(self, work: Any, what: str) -> asyncio.Task[None]:
        # Not in the context of a caller, which may be a run under this name.
        task = self._engine.loop.create_task(
            work, name=f"aiolocks-combiner-{what}-{self._name!r}", context=contextvars.Context()
        )
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if task is self._putting:
            self._putting = None
        if task is self._working:
            self._working = None
        if error is None and task.cancelled() and self._engine.closing:
            error = SessionClosedError("the session was closed while waiting")
        if error is not None:
            self._fail_all(error)
        if self._outbox and self._putting is None:
            self._putting = self._begin(self._put_all(), "put")
        self._work_on()

    def _work_on(self) -> None:
        """Begins to ask for the run, if there is anybody for whom to ask; or is of no use any more."""
        if self._working is None and (self._waiting or self._workers):
            self._working = self._begin(self._work(), "run")
        busy = self._outbox or self._waiting or self._workers or self._putting or self._working
        if not busy and self._engine.in_progress.get(self._slot) is self:
            del self._engine.in_progress[self._slot]

    def _fail_all(self, error: BaseException) -> None:
        """All that is left here has this error: what becomes of it, others will see."""
        waiting, outbox = self._waiting, self._outbox
        self._waiting, self._outbox = {}, deque()
        for item in (*waiting.values(), *outbox):
            item.fail(error)
        for worker in self._workers:
            if not worker.failed.done():
                worker.failed.set_exception(error)

    # -- leaving items

    async def _put_all(self) -> None:
        await asyncio.sleep(0)  # all that is left in this turn of the loop goes in one request
        while self._outbox:
            piece = self._next_to_put()
            try:
                put = await self._put(piece)
            except LockError as error:
                for item in piece:
                    item.fail(error)
                if isinstance(error, SessionClosedError):
                    raise
                continue
            self._have_put(piece, put)

    def _next_to_put(self) -> list[_Item]:
        piece: list[_Item] = []
        size = 0
        while self._outbox and len(piece) < PIECE:
            size += len(self._outbox[0].payload)
            if piece and size > PIECE_BYTES:
                break
            piece.append(self._outbox.popleft())
        return piece

    async def _put(self, piece: Sequence[_Item]) -> Put:
        engine = self._engine
        engine.check_usable()
        timeout = engine.settings.command_timeout
        command = self._commands.put(
            engine.token(),
            [(item.run is not None, item.payload) for item in piece],
            known_ms=2 * milliseconds(timeout),
        )
        call, future = engine.start(command, until=engine.now() + timeout, told=engine.wake_own, patient=True)
        try:
            return await future
        finally:
            engine.forget(call)

    def _have_put(self, piece: Sequence[_Item], put: Put) -> None:
        most_waiting = self._settings.bounds.most_waiting
        for place, item in enumerate(piece):
            if place >= put.taken:
                item.fail(CombinerFullError(self._name, pressure=put.waiting, most_waiting=most_waiting))
                continue
            if item.left is None:
                self._waiting[put.first + place] = item
            elif not item.left.done():
                pressure = put.waiting - put.taken + place + 1
                item.left.set_result(Left(put.first + place, max(1, pressure)))
        if put.taken:
            self._engine.events.left("combiner", self._name, items=put.taken, pressure=put.waiting)
        self._work_on()

    # -- asking

    def _rows(self) -> list[Row]:
        """The first items that wait, as the server is asked for them."""
        rows: list[Row] = []
        for number in self._waiting:
            if rows and rows[-1].last + 1 == number:
                rows[-1] = Row(rows[-1].first, number)
            elif len(rows) == _MOST_ROWS:
                break
            else:
                rows.append(Row(number, number))
        return rows

    async def _work(self) -> None:
        while self._waiting or self._workers:
            try:
                self._engine.check_usable()
                self._acquiring = True
                try:
                    lease = await self._binding.acquire(None)
                finally:
                    self._acquiring = False
            except Told as told:
                self._hear(told)
            except BackendError as error:
                if not error.transient or not self._workers:
                    raise
                self._fail_waiting(error)
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

    def _fail_waiting(self, error: LockError) -> None:
        waiting, self._waiting = self._waiting, {}
        for item in waiting.values():
            item.fail(error)

    def _hear(self, told: Told) -> None:
        """What the server has told of items of this session."""
        waiting = sorted(self._waiting)  # as they are, in nearly all cases
        for entry in told.answers:
            numbers = waiting[bisect_left(waiting, entry.first) : bisect_right(waiting, entry.last)]
            if not numbers:
                continue
            outcome = self._outcome(entry)
            for number in numbers:
                if number in self._waiting:
                    self._waiting.pop(number).settle(outcome)
        for number in [one for one in self._waiting if one <= told.settled]:
            item = self._waiting.pop(number)
            if item.ours is not None:
                item.settle(item.ours)  # of a run here whose end was not confirmed, and is now
            else:
                item.fail(ResultNotKeptError(self._name, _NO_ANSWER, what=LABEL))
        for row in told.missing:
            for number in [one for one in self._waiting if row.first <= one <= row.last]:
                self._waiting.pop(number).fail(LockLostError(LABEL, self._name, _UNKNOWN))

    def _outcome(self, entry: Entry) -> Outcome:
        def not_kept(reason: str) -> Exception:
            return ResultNotKeptError(self._name, reason, what=LABEL)

        try:
            return Outcome.told(entry.tag, entry.payload, self._settings.serializer, not_kept)
        except Exception as error:  # noqa: BLE001 - a serializer may raise anything
            note(error, "aiolocks: the serializer of the Combiner says this of a result from elsewhere")
            return Outcome.of_error(error)

    # -- a run

    async def _run_once(self, lease: Lease) -> None:
        """Runs one batch, or finds that there is none; an end that was lost or not confirmed is told."""
        piece: Piece | None = None
        done = False
        try:
            async with lease:
                batch = await self._collect(lease)
                if batch is None:
                    return
                piece, items = batch
                done = await self._do(lease, piece, items)
        except SessionClosedError:
            raise
        except LockError as error:
            if piece is None and isinstance(error, BackendError) and not error.transient:
                raise
            log.log(
                self._engine.log_level(error),
                "combiner %r: a run has ended without being acknowledged, and another one follows: %s",
                self._name,
                error,
            )
            await self._engine.sleep(min(PAUSE, self._settings.options.ttl / 3))
        else:
            if done:
                self._acknowledged(piece)

    def _acknowledged(self, piece: Piece) -> None:
        """The server knows the end of the batch: so may the callers."""
        for number in [one for one in self._waiting if one <= piece.upto]:
            if (outcome := self._waiting[number].ours) is not None:
                self._waiting.pop(number).settle(outcome)

    async def _collect(self, lease: Lease) -> tuple[Piece, list[tuple[int, bool, bytes]]] | None:
        """All items of the batch that this run is for, once its window is over; None if there are none."""
        handed_out, piece = self._commands.handed_out, None
        items: list[tuple[int, bool, bytes]] = []
        left_out, after = 0, 0
        while piece is None or after < piece.upto:
            if handed_out.wait_ms > 0:
                await self._engine.sleep(handed_out.wait_ms / 1000)
            elif handed_out.piece is None:
                return None
            else:
                piece = handed_out.piece
                items += piece.items
                left_out += piece.left_out
                after = piece.at
                if after >= piece.upto:
                    break
            taken = await self._engine.ask(self._commands.take(lease.token, after), patient=True)
            if taken is None:
                raise LockLostError(LABEL, self._name, "the run was taken from this session")
            handed_out = taken
        if left_out:
            log.warning(
                "combiner %r: %d items were dropped: nobody has run them for as long as they are kept",
                self._name,
                left_out,
            )
            self._engine.events.dropped("combiner", self._name, left_out)
        return piece, items

    def _runner(self) -> _Item | _Worker | None:
        """Whose function runs: that of the first caller here, or of a worker."""
        for item in self._waiting.values():
            return item
        return self._workers[0] if self._workers else None

    async def _do(self, lease: Lease, piece: Piece, items: Sequence[tuple[int, bool, bytes]]) -> bool:
        """Runs the batch; whether it is done, once its lease is released."""
        runner = self._runner()
        if runner is None:
            return False
        began = self._engine.now()
        outcomes: list[Outcome] = []
        failed = False
        if items:
            outcomes = await self._outcomes(lease, runner, piece, items)
            error = outcomes[0].error if len(outcomes) == 1 else None
            failed = error is not None and not outcomes[0].done and piece.attempt <= self._settings.retry
        if failed:
            log.warning(
                "combiner %r: attempt %d of batch %d has failed, and its %d items stay for another: %s",
                *(self._name, piece.attempt, piece.number, len(items), outcomes[0].error),
            )
        else:
            await self._answer(lease, piece, items, outcomes)
        self._commands.leave(Ack(lease.token, lease.fencing_token, piece.upto, failed))
        if items:
            self._engine.events.combined(
                lease.fencing_token,
                "combiner",
                self._name,
                items=len(items),
                seconds=self._engine.now() - began,
                reason="failed" if len(outcomes) == 1 and outcomes[0].error is not None else "",
            )
        return not failed

    async def _outcomes(
        self, lease: Lease, runner: _Item | _Worker, piece: Piece, items: Sequence[tuple[int, bool, bytes]]
    ) -> list[Outcome]:
        """How the run has ended: one outcome for all, or one for each."""
        serializer, run = self._settings.serializer, runner.run
        assert run is not None
        running = _Running(self)
        context = runner.context.copy()
        context.run(_within.set, (*context.run(_within.get), running))
        batch: Batch | None = None
        task = asyncio.current_task()
        assert task is not None
        before = task.cancelling()
        try:
            batch = Batch(
                lease,
                piece.number,
                attempt=piece.attempt,
                items=[serializer.loads(payload) for _, _, payload in items],
            )
            result = await self._engine.loop.create_task(
                _call(run, batch), name=f"aiolocks-combiner-batch-{self._name!r}", context=context
            )
            results = _results_of(batch)
        except asyncio.CancelledError as error:
            if task.cancelling() > before:
                raise
            ended = RuntimeError(f"the run of Combiner {self._name!r} was cancelled from within")
            ended.__cause__ = error
            return [Outcome.of_error(ended)]
        except Exception as error:
            if task.cancelling() > before and (lease.remaining() <= 0.0 or comes_of_cancellation(error)):
                raise asyncio.CancelledError from error
            if not self._waiting:
                log.exception("combiner %r: the run of batch %d has raised", self._name, piece.number)
            return [Outcome.of_error(error)]
        finally:
            running.over = True
        if results is None:
            return [self._of_value(result)]
        return [
            Outcome.of_error(one) if isinstance(one, Exception) else self._of_value(one) for one in results
        ]

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

    async def _answer(
        self,
        lease: Lease,
        piece: Piece,
        items: Sequence[tuple[int, bool, bytes]],
        outcomes: Sequence[Outcome],
    ) -> None:
        """Leaves the answers with the server for those who wait elsewhere; those of here get the objects."""
        each = outcomes if len(outcomes) == len(items) else list(outcomes) * len(items)
        elsewhere: list[tuple[int, Outcome]] = []
        for (number, waits, _), outcome in zip(items, each, strict=True):
            own = self._waiting.get(number)
            if own is not None:
                own.ours = outcome
            elif waits:
                elsewhere.append((number, outcome))
        first = True
        for entries in _pieces(_entries(elsewhere)):
            command = self._commands.answer(lease.token, entries, first=first)
            if not await self._engine.ask(command, patient=True):
                raise LockLostError(LABEL, self._name, "the run was taken from this session")
            first = False

    def __repr__(self) -> str:
        return f"<Combining {self._name!r} waiting={len(self._waiting)} workers={len(self._workers)}>"


async def _call(run: Run, batch: Batch) -> Any:
    awaitable: object = run(batch)
    if not inspect.isawaitable(awaitable):
        raise TypeError(
            f"run must be a coroutine function (async def): {run!r} gave {type(awaitable).__name__}"
        )
    return await awaitable


def _results_of(batch: Batch) -> Sequence[Any] | None:
    """The results that a run has set, checked."""
    results: object = batch.results
    if results is None:
        return None
    if not isinstance(results, Sequence) or isinstance(results, (str, bytes)):
        raise TypeError(f"batch.results must be a list, one for each item, not {type(results).__name__}")
    if len(results) != len(batch.items):
        raise ValueError(f"batch.results has {len(results)} results for {len(batch.items)} items")
    return results


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
