"""The rate limit: so many requests in so many seconds, counted by the server, in the order of asking."""

from __future__ import annotations

import asyncio
import functools
import inspect
import math
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, ClassVar, Final, NamedTuple, Never, ParamSpec, Self, TypeVar, final

from ..errors import ConfigurationError, LockError, LockTimeoutError, SessionClosedError
from ..lock.context import Context
from ..lock.misuse import AsyncOnly
from ..lock.naming import names_of_calls
from ..lock.options import (
    LONGEST,
    Seconds,
    lock_name,
    optional_seconds,
    reject_unknown,
    seconds,
    whole_number,
)
from ..lock.sources import engine_of, source_of
from ..transport.commands.checks import TOKEN, of_others, without_ttl, wrong_types
from ..transport.commands.family import Family, Kind
from ..transport.commands.snapshots import Content, Snapshot
from ..transport.keys import key as key_of
from ..transport.keys import slot_of
from ..transport.request import Argument, Command, Script
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
_SLEW: Final = 0.0005
"""The part of a wait by which a waiter comes later: a clock that is being set right runs as much too fast."""

_MEANT: Final[dict[str, str]] = {
    **dict.fromkeys(("rate", "max_rate", "times", "amount", "max_calls", "calls"), "limit= (how many)"),
    **dict.fromkeys(
        ("period", "time_period", "seconds", "interval", "rate_interval", "window", "ttl"),
        "per= (in how many seconds)",
    ),
    "capacity": "burst= (how many at once)",
}


# -- On the server.

_ACQUIRE: Final = Script("ratelimit_acquire", "forms", "fence")
_GIVE_BACK: Final = Script("ratelimit_give_back")

MICROSECOND: Final = 1e6
"""Microseconds of a second."""
ONLY_ASKED: Final = -1


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
        """Microseconds between two requests, in the long run."""
        return self.per * MICROSECOND / self.limit

    def left(self, full_us: int) -> int:
        """How many requests it admits at once if it is full again after so many microseconds."""
        return left_in(self.burst, self.interval_us, full_us)


def left_in(burst: int, interval_us: float, full_us: float) -> int:
    """How many requests a bucket admits at once if it is full again after so many microseconds."""
    # The scripts round each request up to a microsecond: what that makes must not count as a request.
    room = math.ceil(burst * interval_us) - full_us + min(2.0, interval_us / 2)
    return min(burst, max(0, math.floor(room / interval_us)))


@final
class Reserved(NamedTuple):
    """The answer of the server.

    Attributes:
        granted: There is a reservation.
        waits_us: Of each limit, the microseconds until the moment comes.
        full_us: Of each limit, the microseconds until its bucket is full again.
    """

    granted: bool
    waits_us: Sequence[int]
    full_us: Sequence[int]

    @property
    def wait(self) -> float:
        """Seconds until all limits admit it."""
        return max(self.waits_us) / MICROSECOND


@final
class RateLimitSteps:
    """The steps of one limit, or of several at once: all of them or none."""

    __slots__ = ("_figures", "keys")

    def __init__(self, prefix: str, buckets: Sequence[Bucket]) -> None:
        self.keys = tuple(key_of(prefix, _KIND, bucket.name) for bucket in buckets)
        figures: list[Argument] = []
        for bucket in buckets:
            per_us = math.ceil(bucket.per * MICROSECOND)
            figures += (repr(bucket.interval_us), bucket.burst, per_us)
        self._figures = tuple(figures)

    def acquire(self, token: str, n: int, longest_us: int) -> Command[Reserved]:
        """Reserves the next moment for n requests, if it comes within that time."""
        return Command(_ACQUIRE, self.keys, (token, n, longest_us, *self._figures), _reserved, lane=token)

    def give_back(self, token: str) -> Command[int]:
        """Undoes a reservation; see the script."""
        return Command(_GIVE_BACK, self.keys, (token,), int, lane=token)


def _reserved(raw: Any) -> Reserved:
    granted, *times = (int(number) for number in raw)
    return Reserved(granted == 1, times[::2], times[1::2])


_FIGURES: Final = {b"seen", b"before", b"interval", b"burst"}


def read_ratelimit(now_us: int, found: Mapping[str, Content]) -> Snapshot:
    """A bucket that is not full: how many requests it would admit now, and how many wait for their moment."""
    if wrong := wrong_types({"": "zset"}, found):
        return Snapshot(now_us, stands=True, problems=wrong)
    if not (entries := found[""]):
        return Snapshot(now_us)
    scores = {member: float(score) for member, score in entries.value.items()}
    ours = all(member in _FIGURES or TOKEN.fullmatch(member) for member in scores)
    if not ours or not {b"seen", b"interval", b"burst"} <= set(scores) or not scores[b"interval"] > 0:
        return Snapshot(now_us, stands=True, problems=(of_others(""), *without_ttl(entries, ours=False)))
    interval, burst = scores.pop(b"interval"), scores.pop(b"burst")
    room = math.ceil(burst * interval)
    left = left_in(int(burst), interval, max(0.0, max(scores.values()) - now_us))
    waiters = sum(score - room > now_us for member, score in scores.items() if member not in _FIGURES)
    problems = without_ttl(entries, ours=True)
    return Snapshot(now_us, value=left, waiters=waiters, stands=True, problems=problems)


RATE_LIMITS: Final = Family(read=read_ratelimit, passive="")
KINDS: Final = (Kind(RATE_LIMITS, "ratelimit", "RateLimit", shows_value=True, needs=("zscore",)),)


# -- In a program.


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

    def __bool__(self) -> bool:
        """Whether the request may go on now."""
        return self.allowed


@final
class _Moment:
    """A reserved moment that a task waits for.

    Invariant: it never comes early, however coarse the timers of the loop are.
    """

    __slots__ = ("_at", "_engine", "_future")

    def __init__(self, engine: Context, at: float) -> None:
        self._engine = engine
        self._at = at
        self._future: asyncio.Future[None] = engine.loop.create_future()

    def end_with(self, error: LockError) -> None:
        """This wait is over: the session closes."""
        if not self._future.done():
            self._future.set_exception(error)

    async def come(self) -> None:
        """Sleeps until then: one timer, and no request."""
        engine = self._engine
        engine.waiting[self] = None
        timer = engine.loop.call_at(self._at, self._look)
        try:
            await self._future
        finally:
            timer.cancel()
            engine.waiting.pop(self, None)

    def _look(self) -> None:
        if self._future.done():
            return
        if self._engine.now() < self._at:  # uvloop counts in milliseconds
            self._engine.loop.call_at(self._at, self._look)
        else:
            self._future.set_result(None)


async def _sleep(wait: Wait, seconds: float) -> None:
    """Until the moment that comes so many seconds after the answer of the server, never earlier.

    Raises:
        LockTimeoutError: At once: that is too late, the way of the answer included.
    """
    if seconds > wait.left():
        raise _too_late(wait, seconds)
    wait.begins()
    await _Moment(wait.engine, wait.engine.now() + seconds * (1 + _SLEW)).come()


def _too_late(wait: Wait, seconds: float) -> LockTimeoutError:
    return wait.timed_out(f"its turn comes in {seconds:.3f} s", remaining=seconds)


class _Limiting(AsyncOnly):
    """The calls that one limit and several at once have in common."""

    __slots__ = ("_buckets", "_source")

    _elsewhere = "make one there, with the same arguments"
    _reserves: ClassVar[bool]

    def __init__(self, source: Any, buckets: tuple[Bucket, ...]) -> None:
        if len({bucket.name for bucket in buckets}) < len(buckets):
            raise ValueError("the limits of all_of() must have different names: a name is one bucket")
        self._source = source
        self._buckets = buckets

    @property
    def name(self) -> str:
        """Name of the limit; of several, all of them, separated by commas."""
        return ", ".join(bucket.name for bucket in self._buckets)

    # -- asking

    async def acquire(
        self, n: int = 1, *, blocking_timeout: Seconds | None = None, **unknown: Never
    ) -> RateDecision:
        """Waits for the turn of `n` requests, and takes them.

        One limit reserves its moment in one request, in the order of asking, and the task sleeps until then.
        Several limits (`all_of`) reserve nothing: the server says how long it takes, the task sleeps for this
        time, and asks again.

        Args:
            n: How many requests, 1 to `burst`. Default 1.
            blocking_timeout: Seconds that it may wait; None, the default, for as long as its turn takes. If
                its turn comes later, it raises at once, and nothing is taken.
            unknown: Nothing; for a better message.

        Raises:
            LockTimeoutError: Its turn comes later than `blocking_timeout`. `remaining` is the time until its
                turn.
            ValueError: `n` is more than `burst`, which is all that a bucket holds.
            ConfigurationError: The limits of an `all_of` are in several slots of a cluster.
            BackendError: Redis refused, could not be reached, or did not answer within the session's
                `command_timeout`, or within `blocking_timeout` if that is less.
            SessionClosedError: The session is closed, or was closed meanwhile.

        After a cancellation or an error, the reserved moment is given back, unless a later one is reserved.
        """
        reject_unknown("acquire()", unknown, _MEANT)
        self._check(n)
        timeout = optional_seconds("blocking_timeout", blocking_timeout)
        engine = engine_of(self._source, self)
        commands = self._commands(engine)
        with Wait(engine, _LABEL, self.name, timeout) as wait:
            answer = await self._take(wait, commands, n)
            while not answer.granted:
                if self._reserves:
                    raise _too_late(wait, answer.wait)
                await _sleep(wait, answer.wait)
                answer = await self._take(wait, commands, n)
        engine.events.admitted(_KIND, self.name, wait.waited)
        slept_us = int(answer.wait * MICROSECOND)
        return self._decision(answer._replace(full_us=[max(0, full - slept_us) for full in answer.full_us]))

    async def _take(self, wait: Wait, commands: RateLimitSteps, n: int) -> Reserved:
        """One request, and the sleep until the moment that it has reserved, if any."""
        engine, token = wait.engine, wait.engine.token()

        def ask() -> Command[Reserved]:
            longest = min(wait.left(), _FOREVER) if self._reserves else 0.0
            return commands.acquire(token, n, int(longest * MICROSECOND))

        call, asked = engine.start(ask(), until=wait.patience(), make=ask)
        answer: Reserved | None = None
        try:
            answer = await asked
            if engine.closing:
                raise SessionClosedError("the session was closed while waiting")
            if answer.granted and answer.wait:
                await _sleep(wait, answer.wait)
        except BaseException:
            if engine.forget(call):
                missed = 0.0 if answer is None else answer.wait
                engine.take_back(commands.give_back(token), missed + self._slowest(n))
            raise
        return answer

    async def try_acquire(self, n: int = 1, **unknown: Never) -> RateDecision:
        """Takes `n` requests of each limit at once, or none of any. It never waits.

        Args:
            n: How many requests, 1 to `burst`. Default 1.
            unknown: Nothing; for a better message.

        Returns:
            A `RateDecision`, which is true if the request may go on.

        Raises:
            ValueError: `n` is more than `burst`, which is all that a bucket holds.
            ConfigurationError: The limits of an `all_of` are in several slots of a cluster.
            BackendError: Redis refused, could not be reached, or did not answer within the session's
                `command_timeout`.
            SessionClosedError: The session is closed.

        After a cancellation or an error, what it may have taken is given back, unless a later moment is
        reserved.
        """
        reject_unknown("try_acquire()", unknown, _MEANT)
        self._check(n)
        engine = engine_of(self._source, self)
        commands = self._commands(engine)
        token = engine.token()
        call, asked = engine.start(
            commands.acquire(token, n, 0), until=engine.now() + engine.settings.command_timeout
        )
        try:
            answer = await asked
        except BaseException:
            if engine.forget(call):
                engine.take_back(commands.give_back(token), self._slowest(n))
            raise
        decision = self._decision(answer)
        if decision:
            engine.events.admitted(_KIND, self.name, 0.0)
        else:
            engine.events.refused(_KIND, self.name, decision.retry_after)
        return decision

    async def peek(self) -> RateDecision:
        """Asks the server whether one request would be admitted now. It takes nothing.

        Raises:
            ConfigurationError: The limits of an `all_of` are in several slots of a cluster.
            BackendError: Redis refused, could not be reached, or did not answer within the session's
                `command_timeout`.
            SessionClosedError: The session is closed.
        """
        engine = engine_of(self._source, self)
        answer = await engine.ask(self._commands(engine).acquire(engine.token(), 1, ONLY_ASKED))
        return self._decision(answer._replace(granted=answer.wait == 0))

    def _decision(self, answer: Reserved) -> RateDecision:
        left = (bucket.left(full) for bucket, full in zip(self._buckets, answer.full_us, strict=True))
        retry_after = 0.0 if answer.granted else answer.wait
        return RateDecision(answer.granted, min(left), retry_after, max(answer.full_us) / MICROSECOND)

    def _check(self, n: int) -> None:
        whole_number("n", n, most=_MOST)
        for bucket in self._buckets:
            if n > bucket.burst:
                raise ValueError(
                    f"n must be at most burst, for {bucket.name!r} {bucket.burst}, not {n}: the bucket never "
                    "holds more"
                )

    def _commands(self, engine: Context) -> RateLimitSteps:
        commands = RateLimitSteps(engine.settings.prefix, self._buckets)
        if engine.by_slot and len({slot_of(key) for key in commands.keys}) > 1:
            raise ConfigurationError(
                f"the limits {self.name!r} are in several slots of the cluster, and one request has keys of "
                "one slot: give their names the same hash tag, as in '{user:17}:minute' and '{user:17}:day'"
            )
        return commands

    def _slowest(self, n: int) -> float:
        """Seconds for which n requests are missed in a bucket, at most."""
        return max(n * bucket.per / bucket.limit for bucket in self._buckets)

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
        return renamed

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
        if not inspect.iscoroutinefunction(function):
            raise TypeError(f"{_LABEL} decorates a coroutine function (async def), not {function!r}")
        names = names_of_calls(tuple(bucket.name for bucket in self._buckets), function)

        @functools.wraps(function)
        async def limited(*args: P.args, **kwargs: P.kwargs) -> R:
            limit = self if names is None else self._renamed(names.of(args, kwargs))
            await limit.acquire()
            return await function(*args, **kwargs)

        return limited


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

    `acquire` reserves its moment on the server and sleeps until then: one request, no polling, however many
    wait. Only the server's clock counts. If a task is cancelled, its moment is given back, unless a later
    moment is reserved. The moment of a process that is killed passes unused.

    If `limit` or `per` is changed, the new value counts from the first call with it; reserved moments stay.
    After a failover that lost writes, each bucket may be full: at most one more burst. If the server's clock
    is set back, requests are delayed by at most `per`, and later reservations are forgotten.

    Args:
        client: `redis.asyncio.Redis`, `RedisCluster`, or an `aiolocks.Session`.
        name: Any non-empty str of at most 1 KiB in UTF-8. As a decorator, a template.
        limit: Requests in each `per`, in the long run. At most a million a second: count in larger units
            then.
        per: Seconds, 1 ms to ten years.
        burst: Requests that are admitted at once after a rest; by default, `limit`. All of them together
            may be those of ten years.

    Raises:
        TypeError, ValueError: An argument is wrong; before any I/O.
    """

    __slots__ = ()

    _reserves = True

    def __init__(
        self, client: Any, name: str, limit: int, per: Seconds, *, burst: int | None = None, **unknown: Never
    ) -> None:
        reject_unknown(_LABEL, unknown, _MEANT)
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

        `try_acquire`, `peek`, `async with` and the decorator are as those of one limit. `acquire` reserves
        nothing: it sleeps for `retry_after` and asks again, one request each time, in no order among those
        who wait.

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

    _reserves = False

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

    def __repr__(self) -> str:
        return f"<RateLimit.all_of {'; '.join(map(_in_words, self._buckets))}>"


def _in_words(bucket: Bucket) -> str:
    return f"{bucket.name!r} {bucket.limit} in {bucket.per:g} s, burst {bucket.burst}"
