"""The rate limit: so many requests in so many seconds, counted by the server, in the order of asking."""

from __future__ import annotations

import asyncio
import copy
import functools
import inspect
import math
import zlib
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import islice
from types import TracebackType
from typing import Any, Final, NamedTuple, Never, ParamSpec, Self, TypeAlias, TypeVar, final

from .._logs import get_logger
from .._tasks import empty_context
from ..errors import ConfigurationError, LockError, LockTimeoutError, SessionClosedError
from ..lock.clock import milliseconds
from ..lock.engine import Engine
from ..lock.misuse import AsyncOnly
from ..lock.naming import filled_in, names_of_calls, whole
from ..lock.options import (
    LONGEST,
    Seconds,
    explains,
    lock_name,
    optional_seconds,
    reject_unknown,
    seconds,
    whole_number,
)
from ..lock.sources import Client, engine_of, source_of
from ..transport import BELL_TTL, Fault, ignore
from ..transport.keys import key as key_of
from ..transport.keys import keys_of, slot_of
from ..transport.request import Argument, Request, Script
from ..transport.steps.checks import TOKEN, of_others, without_ttl, wrong_types
from ..transport.steps.family import Family, Kind
from ..transport.steps.snapshots import Content, Snapshot
from .waits import Wait

P = ParamSpec("P")
R = TypeVar("R")

_LABEL: Final = "RateLimit"
_KIND: Final = "ratelimit"
_SHORTEST_PER: Final = 0.001
_MOST: Final = 1_000_000_000
_MOST_LIMITS: Final = 16
_FOREVER: Final = 1e9
"""Seconds, longer than any wait."""
_MOST_TOLD: Final = 256
_SLEW: Final = 0.0005
"""The part of a sleep by which a task comes later: a clock that is being set right runs as much too fast."""

log: Final = get_logger("aiolocks.ratelimit")


# -- On the server.

_SHARED: Final = ("forms", "bells", "rates")
_ACQUIRE: Final = Script("ratelimit_acquire", "rate_log", "ratelimit_straight", *_SHARED, moves=True)
_SETTLE: Final = Script("ratelimit_settle", "rate_log", *_SHARED, moves=True)
_RESET: Final = Script("ratelimit_reset", "rate_log", *_SHARED)

_ROLES: Final = ("bucket", "log", "queue", "waits")
_SEAT: Final = 32

MICROSECOND: Final = 1e6
"""Microseconds of a second."""
ONLY_ASKED, FIRST, KNOWN, WAITING, AGAIN, PLACED, HEARING = "p", "", "a", "w", "aw", "ac", "ach"
"""How a request is asked: it takes nothing; it may not wait; neither may it, and it was written before; it
may take a place; so it may, and was written before; it has a place; so it has, and its session hears its
bell."""
ALL: Final = "l"
"""Added to that where these are all that wait in the session."""
REFUSED, ADMITTED, WAITS, GONE = range(4)
"""The answers of the server."""
_KEPT_MS: Final = 10_000
"""Milliseconds for which a request is known at least: twice the default `command_timeout`."""
_KNOWN_FOR: Final = 600.0
"""Seconds for which a request can be settled at most, after the bucket was full."""
_FINEST: Final = 20
"""An interval is a multiple of 2^-20 µs, or of more where ten years of backlog would not be exact."""
_EXACT_BITS: Final = 51


@final
class Bucket(NamedTuple):
    """The figures of one limit.

    Attributes:
        name: Of the limit.
        limit: Requests that it admits in the long run in each `per`.
        per: Seconds.
        burst: Requests that it admits at once.
    """

    name: str
    limit: int
    per: float
    burst: int

    @property
    def interval_us(self) -> float:
        """Microseconds between two requests, in the long run: rounded up to what sums of it keep exactly."""
        exact = Fraction(repr(self.per)) * 1_000_000 / self.limit
        bits = max(0, min(_FINEST, _EXACT_BITS - math.ceil(exact * self.burst).bit_length()))
        return math.ldexp(math.ceil(exact * 2**bits), -bits)


@final
class Answer(NamedTuple):
    """The answer of the server.

    Attributes:
        requests: Of each request, how it stands, and microseconds until its moment.
        limits: Of each limit, how many more requests it admits, and microseconds until its bucket is full.
        hung: The bell of the session hangs anew.
        notes: What else the script tells: see it.
    """

    requests: Sequence[tuple[int, int]]
    limits: Sequence[tuple[int, int]]
    hung: bool
    notes: Sequence[bytes]


@final
class Settled(NamedTuple):
    """The answer to a settlement.

    Attributes:
        known: How many limits know the request.
        limits: As of `Answer`.
        rung: Bells of waiters that may come earlier now.
    """

    known: int
    limits: Sequence[tuple[int, int]]
    rung: Sequence[bytes]


@final
class RateLimitSteps:
    """The steps of one limit, or of several at once: all of them or none."""

    __slots__ = ("_keys", "_lasts", "bell", "figures", "keys", "slowest")

    def __init__(self, prefix: str, session: str, buckets: Sequence[Bucket], *, keep_ms: int) -> None:
        first, *further = (bucket.name for bucket in buckets)
        place = len(key_of(prefix, _KIND, "")) - len("{}")
        # As of a MultiLock: one bell in all the queues, called after the first name; it lists the other
        # names. Requests for other figures have a bell of their own.
        figures = "".join(f"-{bucket.limit}-{bucket.per!r}-{bucket.burst}" for bucket in buckets)
        bell = f"{session}-{zlib.crc32(figures.encode()):08x}"
        listed = ".".join([bell, *(key_of(prefix, _KIND, other)[place:].hex() for other in further)])
        self.bell = key_of(prefix, _KIND, first, f"bell.{listed}")
        self.keys = tuple(
            key for bucket in buckets for key in keys_of(prefix, _KIND, bucket.name, _ROLES)[1:]
        )
        self._keys = (*self.keys, self.bell)
        self.figures = tuple((repr(bucket.interval_us), bucket.burst) for bucket in buckets)
        known_ms = max(milliseconds(min(bucket.per, _KNOWN_FOR)) for bucket in buckets)
        self._lasts = (keep_ms, max(keep_ms, known_ms))
        self.slowest = max(bucket.burst * bucket.per / bucket.limit for bucket in buckets)
        """Seconds after which a bucket is full again, at most."""

    def takes(self, amounts: Sequence[int]) -> float:
        """Seconds by which later requests are delayed if a request wants so many."""
        return max(
            amount * float(interval) / MICROSECOND
            for (interval, _), amount in zip(self.figures, amounts, strict=True)
        )

    def acquire(
        self, how: str, longest_us: int, requests: Sequence[tuple[str, Sequence[int]]]
    ) -> Request[Answer]:
        """Asks for these requests, each with its token and how many it wants of each limit."""
        args: list[Argument] = [how, longest_us, *self._lasts, len(self.figures)]
        for figures in self.figures:
            args += figures
        for token, amounts in requests:
            args.append(token)
            args += amounts
        number, limits = 2 * len(requests), 2 * len(self.figures)

        def read(raw: Any) -> Answer:
            asked, told = raw[:number], raw[number : number + limits]
            return Answer(
                list(zip(asked[::2], asked[1::2], strict=True)),
                list(zip(told[::2], told[1::2], strict=True)),
                hung=raw[number + limits] == 1,
                notes=raw[number + limits + 1 :],
            )

        keys = self.keys if how in (ONLY_ASKED, FIRST, KNOWN) else self._keys
        lane = self.bell.decode() if PLACED in how else requests[0][0]
        bells = (self.bell,) if HEARING in how else ()
        return Request(_ACQUIRE, keys, tuple(args), read, lane=lane, bells=bells)

    def settle(self, token: str, amounts: Sequence[int], *, last: bool = False) -> Request[Settled]:
        """Says how many a request has used; none for one that has left, `last` if no other one waits."""
        return self._settle(token, amounts, int(last))

    def give_up_place(self, token: str) -> Request[Settled]:
        """Takes it out of the queues, and nothing else: what it may have been admitted with stays."""
        return self._settle(token, (0,) * len(self.figures), 2)

    def _settle(self, token: str, amounts: Sequence[int], how: int) -> Request[Settled]:
        args: list[Argument] = [token, *self._lasts, len(self.figures)]
        for figures, amount in zip(self.figures, amounts, strict=True):
            args += (*figures, amount)
        args.append(how)
        end = 1 + 2 * len(self.figures)

        def read(raw: Any) -> Settled:
            told = raw[1:end]
            return Settled(raw[0], list(zip(told[::2], told[1::2], strict=True)), raw[end:])

        return Request(_SETTLE, self._keys, tuple(args), read, lane=token)


_FORMER: Final = {b"seen", b"before", b"interval", b"burst"}


def read_ratelimit(now_us: int, found: Mapping[str, Content]) -> Snapshot:
    """A bucket that is not full: how many requests it would admit now."""
    if wrong := wrong_types({"": "zset", "bucket": "string"}, found):
        return Snapshot(now_us, stands=True, problems=wrong)
    if former := found[""]:  # of an earlier version, beside which this one counts for itself
        ours = all(member in _FORMER or TOKEN.fullmatch(member) for member in former.value)
        if not ours:
            return Snapshot(now_us, stands=True, problems=(of_others(""), *without_ttl(former, ours=False)))
    if not (bucket := found["bucket"]):
        return Snapshot(now_us, stands=bool(former))
    try:
        at, queued, _, *figures = map(float, bucket.value.replace(b"=", b"0").split(b" "))
        sets = list(zip(*(iter(figures),) * 4, strict=True))
    except ValueError:
        return Snapshot(now_us, stands=True, problems=(of_others("bucket"), *without_ttl(bucket, ours=False)))
    gone = max(0.0, now_us - at)
    left = [
        max(0, math.floor((burst * interval - max(0.0, backlog - gone)) / interval) - int(queued))
        for interval, burst, backlog, _ in sets
    ]
    taken = max(
        (max(0.0, backlog - gone) + (queued + 1 - burst) * interval for interval, burst, backlog, _ in sets),
        default=0.0,
    )
    problems = without_ttl(bucket, ours=True)
    return Snapshot(
        now_us,
        value=min(left, default=None),
        stands=True,
        problems=problems,
        taken_us=taken if taken > 0 else None,
    )


RATE_LIMITS: Final = Family(
    roles="bucket",
    read=read_ratelimit,
    passive="log waits",
    seat=_SEAT,
    force=_RESET,
    forced="bucket log queue waits",
    forced_by_name=True,
)
KINDS: Final = (
    Kind(
        RATE_LIMITS,
        "ratelimit",
        "RateLimit",
        value="{} left",
        needs=(
            *("hdel", "hget", "hlen", "hmget", "hset", "lrange", "lset", "ltrim", "persist", "rpush"),
            "zscore",
        ),
        measured=("wait", "waiters", "timeouts", "admissions", "refusals"),
    ),
)


# -- In a program.

Amounts: TypeAlias = "int | Mapping[RateLimit | str, int]"
"""How many: of all limits as many, or of each limit, by the limit or its name."""


@final
@dataclass(frozen=True, slots=True)
class RateDecision:
    """The answer of a rate limit. It is true if the request may go on.

    Attributes:
        allowed: Whether the request may go on now.
        remaining: How many more requests would be admitted at once, as the server said.
        retry_after: Seconds after which the same request would be admitted, if no other request comes; 0.0 if
            it was admitted.
        reset_after: Seconds until the bucket is full again, if no other request comes.
    """

    allowed: bool
    remaining: int
    retry_after: float
    reset_after: float
    _settle: Callable[[Amounts], Awaitable[RateDecision]] | None = field(
        default=None, compare=False, repr=False
    )

    def __bool__(self) -> bool:
        """Whether the request may go on now."""
        return self.allowed

    async def settle(self, actual: Amounts) -> RateDecision:
        """Says how many permits the request has used: what it asked for was an estimate.

        ```python
        decision = await tokens.acquire(1500)       # an estimate
        answer = await ask_the_model()
        await decision.settle(answer.tokens_used)   # 900: 600 are free again
        ```

        The number is absolute. The last call counts, and a call may be repeated. If the request has used
        less, the rest is free at once, but a permit that the full bucket could not hold is not there twice.
        If it has used more, also more than `burst`, the rest is owed: later requests wait for it.

        A limit knows its newest 256 requests until its bucket has been full for `per`, at most ten minutes,
        and all requests of the last 10 s (twice the session's `command_timeout`). To settle an older one
        changes nothing.

        Args:
            actual: How many, 0 to a billion. With several limits: one number for all of them, or a mapping
                from each limit or its name to its number.

        Returns:
            How the limit stands then: `allowed` is True.

        Raises:
            RuntimeError: The request was refused, or no session has asked for the decision.
            TypeError, ValueError: The number is wrong; before any I/O.
            BackendError: Redis refused, could not be reached, or did not answer within the session's
                `command_timeout`. It may have been settled or not.
            SessionClosedError: The session is closed.

        After a cancellation it may have been settled or not.
        """
        if self._settle is None:
            raise RuntimeError(
                "this decision cannot be settled: the request was refused, or no session has asked for it"
            )
        return await self._settle(actual)

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy in another process belongs to no session."""
        return (RateDecision, (self.allowed, self.remaining, self.retry_after, self.reset_after))


_LEAD: Final = 0.01
"""Seconds by which a waiter asks before its moment: half of the time by which the server admits early."""
_POLLS_EVERY: Final = BELL_TTL * 0.3
"""Seconds: a bell outlives two requests that come late or get lost."""
_MOST_ASKED: Final = 16
"""Waiters in one request."""
_TOGETHER: Final = 0.03
"""Seconds: waiters whose moments are so near ask together."""
_PAUSE_FIRST, _PAUSE_MOST = 0.005, 0.5
"""Seconds before a waiter asks again whose moment has come, while one of another session is before it."""
_PAUSE_AFTER_FAULT: Final = 0.1


@final
class _Turn:
    """A request that waits for its turn, and then for its moment.

    Invariant: `come` returns when the server has admitted the request, never before its moment; or it raises,
    and the request has no place and no permit any more.

    Attributes:
        token: Of the request.
        amounts: How many it wants of each limit.
        call: The request that may have given it a place last.
        at: Loop time at which it is admitted, by what the server has told last.
    """

    __slots__ = ("_answer", "_future", "_steps", "_wait", "amounts", "at", "call", "token")

    def __init__(self, wait: Wait, steps: RateLimitSteps, amounts: Sequence[int]) -> None:
        self._wait = wait
        self._steps = steps
        self._future: asyncio.Future[None] = wait.engine.loop.create_future()
        self._answer: Answer | None = None
        self.amounts = amounts
        self.at = 0.0
        self.call: Request[Answer] | None = None
        self.token = wait.engine.token()

    async def come(self) -> Answer:
        """Asks, waits, and returns what the server has said of the limits when it admitted the request.

        Raises:
            LockTimeoutError: Its turn does not come in time.
        """
        engine, line = self._wait.engine, None
        self.call, asked = engine.start(
            self._asking(WAITING), until=self._wait.patience(), make=self._maker(WAITING)
        )
        engine.in_progress[self.token] = self
        try:
            answer = await asked
            if engine.closing:
                raise SessionClosedError("the session was closed while waiting")
            status, wait_us = answer.requests[0]
            if status == WAITS:
                self._wait.begins()
                line = _Line.of(engine, self._steps)
                await line.wait(self, self.call.sent + wait_us / MICROSECOND, hung=answer.hung)
                assert self._answer is not None
                answer = self._answer
            elif status == ADMITTED and wait_us:
                await self._sleep_until_admitted(answer, wait_us)
        except BaseException:
            seen = engine.forget(self.call)
            if line is not None:
                line.leave(self)
            if seen:
                last = _Line.ends(engine, self._steps)
                undo = self._steps.settle(self.token, (0,) * len(self.amounts), last=last)
                engine.take_back(undo, 10.0 + self._steps.slowest, told=engine.wake_own)
            raise
        finally:
            del engine.in_progress[self.token]
        if answer.requests[0][0] == REFUSED:
            raise self._too_late(answer.requests[0][1] / MICROSECOND)
        return answer

    def _asking(self, how: str) -> Request[Answer]:
        longest = int(min(self._wait.left(), _FOREVER) * MICROSECOND)
        return self._steps.acquire(how, longest, [(self.token, self.amounts)])

    def _maker(self, how: str) -> Callable[[], Request[Answer]]:
        """Makes the request each time that it is written: from the second time on, it may be known."""
        written = 0

        def make() -> Request[Answer]:
            nonlocal written
            written += 1
            return self._asking(how if written == 1 else AGAIN)

        return make

    def ask_again(self, told: Callable[[Answer], None], failed: Callable[[Fault], None]) -> None:
        """Its place is gone: it takes one at the end."""
        engine = self._wait.engine
        until = engine.now() + engine.settings.command_timeout
        self.call = self._asking(AGAIN).ask(told, failed, until=until, make=self._maker(AGAIN))
        engine.send(self.call)

    def admitted(self, answer: Answer, wait_us: int) -> None:
        """The server has admitted it, for a moment that comes so soon."""
        self._answer = answer._replace(requests=[(ADMITTED, wait_us)])
        self._look_at(self._wait.engine.now() + wait_us / MICROSECOND * (1 + _SLEW))

    def too_late(self, wait_us: int) -> None:
        """The server has refused it: its moment comes later than it may wait."""
        self.end_with(self._too_late(wait_us / MICROSECOND))

    def end_with(self, error: LockError) -> None:
        """This wait is over."""
        if not self._future.done():
            self._future.set_exception(error)

    async def waited(self) -> None:
        """Waits for its end; if it must not wait so long, for that."""
        engine, timer = self._wait.engine, None
        engine.waiting[self] = None
        if self._wait.timeout is not None:
            timer = engine.loop.call_later(self._wait.left(), self._times_out, context=empty_context())
        try:
            await self._future
        finally:
            if timer is not None:
                timer.cancel()
            engine.waiting.pop(self, None)

    async def _sleep_until_admitted(self, answer: Answer, wait_us: int) -> None:
        if wait_us / MICROSECOND > self._wait.left():
            raise self._too_late(wait_us / MICROSECOND)
        self._wait.begins()
        self.admitted(answer, wait_us)
        await self.waited()

    def _times_out(self) -> None:
        self.end_with(self._too_late(max(0.0, self.at - self._wait.engine.now())))

    def _too_late(self, remaining: float) -> LockTimeoutError:
        return self._wait.timed_out(f"its turn comes in {remaining:.3f} s", remaining=remaining)

    def _look_at(self, moment: float) -> None:
        engine = self._wait.engine
        if self._future.done():
            return
        if engine.now() < moment:  # also after a timer: uvloop counts in milliseconds
            engine.loop.call_at(moment, self._look_at, moment, context=empty_context())
        else:
            self._future.set_result(None)


@final
class _Line:
    """The requests of a session that wait for the same limits, in the order of asking.

    It asks for them together: right before the moment of the first, when the bell is rung, and at the latest
    each 0.6 s, which shows that they live.

    Invariants:
    - it knows exactly the turns that may have a place on the server and are awaited; while there are any, it
      hears its bell, and a request is under way or a timer runs;
    - a turn that has left is in no request that is written later. So only a request of its own can give it a
      place, and the undo of that request takes the place away.
    """

    __slots__ = (
        *("__weakref__", "_again", "_answered_at", "_asking", "_due", "_engine", "_not_before", "_owes"),
        *("_pause", "_polls_at", "_steps", "_timer", "_turns"),
    )

    def __init__(self, engine: Engine, steps: RateLimitSteps) -> None:
        self._engine = engine
        self._steps = steps
        self._turns: dict[str, _Turn] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._asking = False  # a request is under way
        self._again = False
        self._owes = False  # the bell may hang yet when the last turn is over
        self._due = False  # the request under way was sent because the moment of the first had come
        self._answered_at = 0.0
        self._not_before = 0.0
        self._pause = _PAUSE_FIRST
        self._polls_at = 0.0

    @classmethod
    def of(cls, engine: Engine, steps: RateLimitSteps) -> _Line:
        """The line of a session, which exists as long as a turn is in it."""
        like = (_KIND, steps.bell)
        line: _Line | None = engine.gates.get(like)
        if line is None:
            line = engine.gates[like] = cls(engine, steps)
        return line

    async def wait(self, turn: _Turn, at: float, *, hung: bool) -> None:
        """Until the server has admitted the request, and its moment has come.

        Args:
            turn: Has a place since a moment ago.
            at: Its moment, by what the server has said.
            hung: The server has hung up the bell.
        """
        now = self._engine.now()
        turn.at = at
        if not self._turns:
            self._engine.bells.listen(self._steps.bell, self.prompt)
            self._answered_at, self._polls_at = now, now + _POLLS_EVERY
            self._not_before, self._pause = 0.0, _PAUSE_FIRST
        elif hung:
            self._polls_at = now  # it was rung, or is not heard any more
        self._turns[turn.token] = turn
        self._wind_up()
        await turn.waited()
        self._drop(turn)

    @staticmethod
    def ends(engine: Engine, steps: RateLimitSteps) -> bool:
        """A request that has left gives up its place. Returns whether the bell is to end with it."""
        line: _Line | None = engine.gates.get((_KIND, steps.bell))
        if line is None or not line._turns:  # noqa: SLF001 - its own class
            return True
        line._owes = True  # noqa: SLF001 - a request that was written before may admit the other turns
        return False

    def leave(self, turn: _Turn) -> None:
        """It is not awaited any more: the turns behind it come earlier."""
        if turn.token not in self._turns:
            return
        behind = False
        for other in self._turns.values():
            if behind:
                other.at -= self._steps.takes(turn.amounts)
            behind = behind or other is turn
        self._drop(turn)
        self._not_before = 0.0
        self._wind_up()

    def _drop(self, turn: _Turn) -> None:
        if self._turns.pop(turn.token, None) is not None and not self._turns:
            self._engine.bells.unlisten(self._steps.bell, self.prompt)
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

    def prompt(self) -> None:
        """The bell was rung, or may have been."""
        self._polls_at = self._not_before = 0.0
        self._again = True
        self._wind_up()

    def _wind_up(self) -> None:
        """Sets the timer to the moment of the next request; while one is under way, its answer does that."""
        if self._asking or not self._turns:
            return
        first = next(iter(self._turns.values()))
        at = min(self._polls_at, max(first.at - _LEAD, self._not_before))
        if self._timer is not None:
            if self._timer.when() == at:
                return
            self._timer.cancel()
        self._timer = self._engine.loop.call_at(at, self._ask, context=empty_context())

    def _ask(self) -> None:
        """Asks for the first that wait, in one request."""
        self._timer = None
        engine, now = self._engine, self._engine.now()
        if engine.closing:
            return
        polls = now >= self._polls_at
        asked = [
            turn
            for number, turn in enumerate(islice(self._turns.values(), _MOST_ASKED))
            if number == 0 or polls or turn.at <= now + _TOGETHER
        ]
        self._asking = True
        self._again = False
        self._due = asked[0].at - _LEAD <= now
        if polls:
            self._polls_at = now + _POLLS_EVERY

        all_asked = False

        def make() -> Request[Answer]:
            nonlocal all_asked, asked
            asked = [turn for turn in asked if turn.token in self._turns]
            requests = [(turn.token, turn.amounts) for turn in asked]
            all_asked = len(requests) == len(self._turns)
            how = (HEARING if polls else PLACED) + (ALL if all_asked else "")
            return self._steps.acquire(how, int(_FOREVER * MICROSECOND), requests)

        def told(answer: Answer) -> None:
            self._asking = False
            self._told(asked, answer, call.sent)
            if not self._turns and (self._owes or not all_asked):
                self._owes = False
                self._say_goodbye()

        def failed(fault: Fault) -> None:
            self._asking = False
            self._failed(fault)

        until = now + engine.settings.command_timeout
        call: Request[Answer] = make().ask(told, failed, until=until, make=make)
        engine.send(call)

    def _say_goodbye(self) -> None:
        """The last turn is over, and the request that ended it did not know: the bell is to end."""
        until = self._engine.now() + _POLLS_EVERY
        goodbye = self._steps.acquire(PLACED + ALL, 0, ())
        self._engine.send(goodbye.again().ask(ignore, ignore, until=until, patient=False))

    def _told(self, turns: Sequence[_Turn], answer: Answer, sent: float) -> None:
        now = self._answered_at = self._engine.now()
        for turn, (status, wait_us) in zip(turns, answer.requests, strict=True):
            if turn.token not in self._turns:
                continue  # it has left since: its undo is under way
            if status == ADMITTED:
                self._drop(turn)
                turn.admitted(answer, wait_us)
            elif status == WAITS:
                turn.at = sent + wait_us / MICROSECOND
            else:
                turn.at = math.inf
                turn.ask_again(functools.partial(self._told_of, turn), self._failed)
        if self._turns:
            first = next(iter(self._turns.values()))
            if not turns or first is not turns[0]:
                self._not_before, self._pause = 0.0, _PAUSE_FIRST
            elif self._due or first.at - _LEAD <= now:
                # Its moment has come, and a waiter of another session is before it that has not asked.
                self._not_before = now + self._pause
                self._pause = min(2 * self._pause, _PAUSE_MOST)
        if answer.hung or self._again or self._steps.bell in answer.notes:
            self._polls_at = now
        self._give_up_places(answer)
        self._wind_up()

    def _give_up_places(self, answer: Answer) -> None:
        """Takes requests out of the queues that wait there, and not in this session.

        A failover has lost that they were admitted, or have left.
        """
        engine = self._engine

        def left(settled: Settled) -> None:
            engine.wake_own(settled)
            if settled.known:
                self.prompt()  # there may be more of them

        for sort, _, rest in (note.partition(b" ") for note in answer.notes):
            if sort == b"t" and (token := rest.decode()) not in engine.in_progress:
                until = engine.now() + _POLLS_EVERY
                leave = self._steps.give_up_place(token)
                engine.send(leave.again().ask(left, ignore, until=until, patient=False))

    def _told_of(self, turn: _Turn, answer: Answer) -> None:
        """The answer to a turn that has taken a new place."""
        self._answered_at = self._engine.now()
        if turn.token not in self._turns:
            return
        status, wait_us = answer.requests[0]
        if status == WAITS:
            assert turn.call is not None
            turn.at = turn.call.sent + wait_us / MICROSECOND
            self._wind_up()
        elif status == ADMITTED:
            self._drop(turn)
            turn.admitted(answer, wait_us)
        else:
            self._drop(turn)
            turn.too_late(wait_us)

    def _failed(self, fault: Fault) -> None:
        """No answer: it asks again, unless the server has been silent for long."""
        now = self._engine.now()
        if fault.transient and now - self._answered_at < self._engine.settings.command_timeout:
            self._polls_at = now + _PAUSE_AFTER_FAULT
            self._wind_up()
            return
        for turn in tuple(self._turns.values()):
            self._drop(turn)
            turn.end_with(copy.copy(fault.error))


class _Limiting(AsyncOnly):
    """The calls that one limit and several at once have in common."""

    __slots__ = ("_buckets", "_made", "_source", "_templates", "_texts")

    _elsewhere = "make one there, with the same arguments"

    def __init__(self, source: Any, buckets: tuple[Bucket, ...]) -> None:
        if len({bucket.name for bucket in buckets}) < len(buckets):
            raise ValueError("the limits of all_of() must have different names: a name is one bucket")
        self._source = source
        self._buckets = buckets
        self._templates: tuple[str, ...] | None = None  # of which its names were made
        self._texts = tuple(bucket.name for bucket in buckets)  # its names, as templates
        self._made: tuple[Any, RateLimitSteps] | None = None

    @property
    def name(self) -> str:
        """Name of the limit; of several, all of them, separated by commas."""
        return ", ".join(bucket.name for bucket in self._buckets)

    # -- asking

    async def acquire(
        self, n: Amounts = 1, *, blocking_timeout: Seconds | None = None, **unknown: Never
    ) -> RateDecision:
        """Waits for the turn of `n` requests, and takes them.

        A request that cannot be admitted at once gets a place on the server, of each limit, and so its turn
        in the order of asking. If a waiter before it leaves or dies, its turn comes earlier.

        Args:
            n: How many requests, 1 to `burst`. Default 1. Of several limits of all as many, or a mapping from
                each limit or its name to its number, which may be 0.
            blocking_timeout: Seconds that it may wait; None, the default, for as long as its turn takes. If
                its turn comes later, it raises at once, and nothing is taken.
            unknown: Nothing; for a better message.

        Returns:
            A `RateDecision`, which can be settled.

        Raises:
            LockTimeoutError: Its turn comes later than `blocking_timeout`. `remaining` is the time until its
                turn.
            TypeError: The mapping misses a limit, or has another one.
            ValueError: `n` is more than `burst`, which is all that a bucket holds.
            ConfigurationError: The limits of an `all_of` are in several slots of a cluster.
            BackendError: Redis refused, could not be reached, or did not answer for the session's
                `command_timeout`, or within `blocking_timeout` if that is less.
            SessionClosedError: The session is closed, or was closed meanwhile.

        After a cancellation or an error, nothing is taken, and the place is free.
        """
        reject_unknown("acquire()", unknown, _LABEL)
        amounts = self._amounts(n)
        timeout = optional_seconds("blocking_timeout", blocking_timeout)
        engine = engine_of(self._source, self)
        steps = self._steps(engine)
        with Wait(engine, _LABEL, self.name, timeout) as wait:
            turn = _Turn(wait, steps, amounts)
            answer = await turn.come()
        engine.events.admitted(_KIND, self.name, wait.waited)
        self._tell_of_others(engine, answer)
        return self._decision(engine, answer, turn.token)

    async def try_acquire(self, n: Amounts = 1, **unknown: Never) -> RateDecision:
        """Takes `n` requests of each limit at once, or none of any. It never waits, and passes no waiter.

        Args:
            n: How many requests, 1 to `burst`. Default 1. Of several limits of all as many, or a mapping from
                each limit or its name to its number, which may be 0.
            unknown: Nothing; for a better message.

        Returns:
            A `RateDecision`, which is true if the request may go on.

        Raises:
            TypeError: The mapping misses a limit, or has another one.
            ValueError: `n` is more than `burst`, which is all that a bucket holds.
            ConfigurationError: The limits of an `all_of` are in several slots of a cluster.
            BackendError: Redis refused, could not be reached, or did not answer within the session's
                `command_timeout`.
            SessionClosedError: The session is closed.

        After a cancellation or an error, what it may have taken is given back.
        """
        reject_unknown("try_acquire()", unknown, _LABEL)
        amounts = self._amounts(n)
        engine = engine_of(self._source, self)
        steps, token = self._steps(engine), engine.token()
        written = 0

        def make() -> Request[Answer]:
            nonlocal written
            written += 1
            return steps.acquire(FIRST if written == 1 else KNOWN, 0, [(token, amounts)])

        call, asked = engine.start(
            steps.acquire(FIRST, 0, [(token, amounts)]),
            until=engine.now() + engine.settings.command_timeout,
            make=make,
        )
        try:
            answer = await asked
        except BaseException:
            if engine.forget(call):
                undo = steps.settle(token, (0,) * len(amounts))
                engine.take_back(undo, 10.0 + steps.slowest, told=engine.wake_own)
            raise
        self._tell_of_others(engine, answer)
        decision = self._decision(engine, answer, token)
        if decision:
            engine.events.admitted(_KIND, self.name, 0.0)
        else:
            engine.events.refused(_KIND, self.name, decision.retry_after)
        return decision

    async def peek(self, n: Amounts = 1, **unknown: Never) -> RateDecision:
        """Asks the server whether `n` requests would be admitted now. It takes nothing.

        Args:
            n: As for `try_acquire`. Default 1.
            unknown: Nothing; for a better message.

        Raises:
            TypeError: The mapping misses a limit, or has another one.
            ValueError: `n` is more than `burst`, which is all that a bucket holds.
            ConfigurationError: The limits of an `all_of` are in several slots of a cluster.
            BackendError: Redis refused, could not be reached, or did not answer within the session's
                `command_timeout`.
            SessionClosedError: The session is closed.
        """
        reject_unknown("peek()", unknown, _LABEL)
        amounts = self._amounts(n)
        engine = engine_of(self._source, self)
        answer = await engine.ask(self._steps(engine).acquire(ONLY_ASKED, 0, [(engine.token(), amounts)]))
        ((_, wait_us),) = answer.requests
        status = REFUSED if wait_us else ADMITTED
        return self._decision(engine, answer._replace(requests=[(status, wait_us)]), None)

    def weighing(self, n: Amounts | Callable[..., Amounts], /) -> Weighed:
        """The same limit for requests of another weight, as a context manager and as a decorator.

        ```python
        @tokens.weighing(lambda prompt: len(prompt) // 4)
        async def ask(prompt: str) -> str: ...
        ```

        Args:
            n: How many requests one is: a number or a mapping, as for `acquire`; or a function of the
                arguments of the call that returns that, for a decorator.

        Raises:
            TypeError, ValueError: The number is wrong. Of a function: when the decorated one is called.
        """
        if not callable(n):
            self._amounts(n)
        return Weighed(self, n)

    def _decision(self, engine: Engine, answer: Answer, token: str | None) -> RateDecision:
        ((status, wait_us),) = answer.requests
        allowed = status == ADMITTED
        slept_us = wait_us if allowed else 0
        left = min((left for left, _ in answer.limits), default=0)
        full = max(0, max(full for _, full in answer.limits) - slept_us)
        settle = functools.partial(self._settle, engine, token) if allowed and token else None
        retry_after = 0.0 if allowed else wait_us / MICROSECOND
        return RateDecision(allowed, left, retry_after, full / MICROSECOND, settle)

    async def _settle(self, engine: Engine, token: str, actual: Amounts) -> RateDecision:
        amounts = self._amounts(actual, what="actual")
        settled = await engine.ask(self._steps(engine).settle(token, amounts), told=engine.wake_own)
        return self._decision(engine, Answer([(ADMITTED, 0)], settled.limits, hung=False, notes=()), token)

    def _amounts(self, n: Amounts, *, what: str = "n") -> tuple[int, ...]:
        """How many of each limit.

        Raises:
            TypeError, ValueError: It is wrong.
        """
        settles = what == "actual"
        if isinstance(n, Mapping):
            numbers = self._each(n, what)
        else:
            numbers = (n,) * len(self._buckets)
            whole_number(what, n, least=0 if settles else 1, most=_MOST)
        for number, bucket in zip(numbers, self._buckets, strict=True):
            if number > bucket.burst and not settles:
                raise ValueError(
                    f"{what} must be at most burst, for {bucket.name!r} {bucket.burst}, not {number}: the "
                    "bucket never holds more"
                )
        return numbers

    def _each(self, n: Mapping[RateLimit | str, int], what: str) -> tuple[int, ...]:
        places: dict[object, int] = {}
        for at, bucket in enumerate(self._buckets):
            for names in (self._templates or (), self._texts):
                places.update(dict.fromkeys(names[at : at + 1], at))
            places[bucket.name] = at
        numbers: dict[int, int] = {}
        for limit, number in n.items():
            name = limit.name if isinstance(limit, RateLimit) else limit
            if (place := places.get(name)) is None:
                raise TypeError(
                    f"{what} has a number for {name!r}, which is none of the limits {self.name!r}"
                )
            if place in numbers:
                raise TypeError(f"{what} has two numbers for {name!r}")
            numbers[place] = whole_number(f"{what}[{name!r}]", number, least=0, most=_MOST)
        for at, bucket in enumerate(self._buckets):
            if at not in numbers:
                raise TypeError(
                    f"{what} has no number for {bucket.name!r}: each limit has one, and 0 is allowed"
                )
        return tuple(numbers[place] for place in range(len(self._buckets)))

    def _steps(self, engine: Engine) -> RateLimitSteps:
        engine.names.used((bucket.name for bucket in self._buckets), made_of=self._templates)
        settings = engine.settings
        like = (settings.prefix, engine.session_id, settings.command_timeout)
        if self._made is not None and self._made[0] == like:
            return self._made[1]
        steps = RateLimitSteps(
            settings.prefix,
            engine.session_id,
            self._buckets,
            keep_ms=max(_KEPT_MS, milliseconds(2 * settings.command_timeout)),
        )
        if engine.by_slot and len({slot_of(key) for key in steps.keys}) > 1:
            raise ConfigurationError(
                f"the limits {self.name!r} are in several slots of the cluster, and one request has keys of "
                "one slot: give their names the same hash tag, as in '{user:17}:minute' and '{user:17}:day'"
            )
        self._made = like, steps
        return steps

    def _tell_of_others(self, engine: Engine, answer: Answer) -> None:
        """Tells of other figures of the same name, once each."""
        for note in answer.notes:
            sort, _, rest = note.partition(b" ")
            if sort not in (b"b", b"d"):
                continue
            place, interval, burst = rest.decode().split(" ")
            bucket = self._buckets[int(place) - 1]
            other = f"one in {float(interval) / MICROSECOND:g} s, burst {burst}"
            told = engine.bound((_KIND, "other figures"), _Told)
            if len(told) > _MOST_TOLD:
                told.clear()
            beside = sort == b"b"
            if told.get((bucket.name, other)) == beside:
                continue
            told[bucket.name, other] = beside
            if beside:
                log.warning(
                    "rate limit %s is in use with other figures, too: %s. Both hold, until requests with "
                    "these figures have not come for as long as their bucket needs to fill",
                    _in_words(bucket),
                    other,
                )
            else:
                log.info(
                    "rate limit %s: its other figures do not hold any more: %s", _in_words(bucket), other
                )

    # -- as a context manager and a decorator

    @final
    async def __aenter__(self) -> RateDecision:
        return await self.acquire()

    @final
    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Does nothing: an admitted request is used up."""

    def _renamed(self, names: tuple[str, ...]) -> Self:
        named = zip(self._buckets, names, strict=True)
        renamed = type(self).__new__(type(self))
        _Limiting.__init__(renamed, self._source, tuple(one._replace(name=name) for one, name in named))
        renamed._templates = self._templates or self._texts  # noqa: SLF001 - its own class, as below
        renamed._texts = whole(names)  # noqa: SLF001
        return renamed

    @final
    def of(self, /, **fields: object) -> Self:
        """The same limit under the name that a decorator gives it for these values; see `Lock.of`."""
        return self._renamed(filled_in(self._texts, fields))

    @final
    def __call__(
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> Callable[P, Coroutine[Any, Any, R]]:
        """Decorates a coroutine function: each call of it waits for its turn.

        The name is a template of the function's parameters, such as `"mail:{customer}"`, as for a `Lock`.

        Raises:
            TypeError: It is not a coroutine function, or a field is not one of its parameters.
            ValueError: The template is wrong.
        """
        return self._decorate(function, 1)

    def _decorate(
        self, function: Callable[P, Coroutine[Any, Any, R]], weight: Amounts | Callable[..., Amounts]
    ) -> Callable[P, Coroutine[Any, Any, R]]:
        if not inspect.iscoroutinefunction(function):
            raise TypeError(f"{_LABEL} decorates a coroutine function (async def), not {function!r}")
        names = names_of_calls(self._texts, function)

        @functools.wraps(function)
        async def limited(*args: P.args, **kwargs: P.kwargs) -> R:
            limit = self if names is None else self._renamed(names.of(args, kwargs))
            await limit.acquire(weight(*args, **kwargs) if callable(weight) else weight)
            return await function(*args, **kwargs)

        return limited


class _Told(dict[tuple[str, str], bool]):
    """The other figures that a session has been told of, and whether they hold."""


@final
class Weighed(AsyncOnly):
    """A limit for requests of another weight; see `RateLimit.weighing`."""

    __slots__ = ("_limit", "_weight")

    _elsewhere = _Limiting._elsewhere  # noqa: SLF001 - of this very module

    def __init__(self, limit: _Limiting, weight: Amounts | Callable[..., Amounts]) -> None:
        self._limit = limit
        self._weight = weight

    async def __aenter__(self) -> RateDecision:
        """Waits for the turn, as `RateLimit.acquire` does."""
        if callable(self._weight):
            raise TypeError(
                f"{self!r} has a function of the arguments of a call, and `async with` has none: give it "
                "a number"
            )
        return await self._limit.acquire(self._weight)

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Does nothing: an admitted request is used up."""

    def __call__(
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> Callable[P, Coroutine[Any, Any, R]]:
        """Decorates a coroutine function, as a `RateLimit` does."""
        return self._limit._decorate(function, self._weight)  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] - of this very module

    def __repr__(self) -> str:
        return f"{repr(self._limit)[:-1]} weighing {self._weight!r}>"


@final
class RateLimit(_Limiting):
    """Admits `limit` requests in `per` seconds, of all processes together, in the order in which they ask.

    ```python
    limit = RateLimit(redis, "mail-api", 60, per=60)

    async with limit:                       # waits for its turn; the exit does nothing
        await send()

    if not await limit.try_acquire():       # or is refused at once
        return "too many requests"
    ```

    **A window of `per` seconds admits at most `burst + limit`**: a bucket holds `burst` requests, and is
    refilled with `limit` in each `per`, evenly. So 60 a minute can be 120 in one minute, once, after a rest.
    `burst=1` spaces requests evenly. For a quota of N in any window, take `limit = burst = N / 2`.

    `acquire` takes a place on the server, in the order of asking, and asks again right before its moment.
    Tasks of one session that wait ask together, at the latest each 0.6 s. If a task leaves or is cancelled,
    its place is free at once; if its process is killed, after 2 s. Only the server's clock counts.

    If a name is used with two sets of figures, both hold, and the log has one warning. A set that no request
    has used for as long as its bucket needed to fill is dropped.

    After a failover that lost writes, each bucket may be full: at most one more burst. If the server's clock
    is set back, nothing is lost, and no request waits for longer than until the bucket was full before; if it
    is set ahead, the bucket may be full: at most one more burst.

    Args:
        client: `redis.asyncio.Redis`, `RedisCluster`, or an `aiolocks.Session`.
        name: Any non-empty str of at most 1 KiB in UTF-8. As a decorator, a template.
        limit: Requests in each `per`, in the long run. At most a million a second: for more, count in
            larger units.
        per: Seconds, 1 ms to ten years.
        burst: Requests that are admitted at once after a rest; by default, `limit`. At most as
            many as the limit admits in ten years.

    Raises:
        TypeError, ValueError: An argument is wrong; before any I/O.
    """

    __slots__ = ()

    @explains(_LABEL)
    def __init__(
        self,
        client: Client,
        name: str,
        limit: int,
        per: Seconds,
        *,
        burst: int | None = None,
        **unknown: Never,
    ) -> None:
        reject_unknown(_LABEL, unknown)
        super().__init__(source_of(client), (bucket_of(name, limit, per, burst),))

    @property
    def limit(self) -> int:
        """Requests in each `per`, in the long run."""
        return self._buckets[0].limit

    @property
    def per(self) -> float:
        """The time in which `limit` requests are admitted, in seconds."""
        return self._buckets[0].per

    @property
    def burst(self) -> int:
        """Requests that are admitted at once after a rest."""
        return self._buckets[0].burst

    @staticmethod
    def all_of(*limits: RateLimit) -> AllLimits:
        """Several limits at once, such as 10 a second and 1000 a day: a request takes one of each, or none.

        Each call is as with one limit. A request that waits has a place in the queue of each limit. While one
        limit holds it up, requests for the other limits pass it, unless they would delay it.

        A number counts for each limit. With a mapping, each limit has a number of its own: one request and
        1500 tokens, say.

        Raises:
            TypeError: Not limits, or of several clients.
            ValueError: None, more than 16, or two of one name.

        In a cluster the names share a hash tag, as in `"{user:17}:minute"`; else a call raises
        `ConfigurationError`.
        """
        return AllLimits(limits)

    def __repr__(self) -> str:
        return f"<RateLimit {_in_words(self._buckets[0])}>"


def bucket_of(name: str, limit: int, per: Seconds, burst: int | None) -> Bucket:
    """The figures of a limit, from arguments of a user.

    Raises:
        TypeError, ValueError: An argument is wrong.
    """
    name = lock_name(name)
    limit = whole_number("limit", limit, most=_MOST)
    period = seconds("per", per, least=_SHORTEST_PER)
    burst = limit if burst is None else whole_number("burst", burst, most=_MOST)
    if limit > period * MICROSECOND:
        raise ValueError(
            f"limit must be at most a million a second, not {limit} in {period:g} s: count in larger units, "
            "such as kilobytes"
        )
    if burst * period / limit > LONGEST:
        raise ValueError(f"burst must be what {limit} in {period:g} s refill in ten years, not {burst}")
    return Bucket(name, limit, period, burst)


@final
class AllLimits(_Limiting):
    """Several rate limits at once; see `RateLimit.all_of`."""

    __slots__ = ()

    def __init__(self, limits: tuple[RateLimit, ...]) -> None:
        for limit in limits:
            if not isinstance(limit, RateLimit):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise TypeError(f"all_of() takes rate limits, not {type(limit).__name__}")
        if not 1 <= len(limits) <= _MOST_LIMITS:
            raise ValueError(f"all_of() takes 1 to {_MOST_LIMITS} limits, not {len(limits)}")
        sources, buckets = zip(*((limit._source, limit._buckets[0]) for limit in limits), strict=True)  # noqa: SLF001 - of this very module
        if any(source is not sources[0] for source in sources):
            raise TypeError("the limits of all_of() must have one client: one request asks them all")
        super().__init__(sources[0], buckets)
        self._texts = tuple(text for limit in limits for text in limit._texts)  # noqa: SLF001

    def __repr__(self) -> str:
        return f"<RateLimit.all_of {'; '.join(map(_in_words, self._buckets))}>"


def _in_words(bucket: Bucket) -> str:
    return f"{bucket.name!r} {bucket.limit} in {bucket.per:g} s, burst {bucket.burst}"
