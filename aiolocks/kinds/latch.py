"""The latch: tasks of all processes wait until so many steps are done."""

from __future__ import annotations

import functools
import logging
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Final, NamedTuple, Never, TypeVar, final

from .._logs import get_logger
from ..errors import BackendError, ConfigurationError, LockError
from ..lock import together
from ..lock.clock import milliseconds
from ..lock.engine import Engine
from ..lock.misuse import AsyncOnly
from ..lock.options import Seconds, lock_name, optional_seconds, reject_unknown, seconds, whole_number
from ..lock.sources import Client, engine_of, source_of
from ..lock.wakeups import KeyListener
from ..transport.answers import BELL_TTL
from ..transport.faults import goes_on
from ..transport.keys import key
from ..transport.request import MOST_KNOWN, Request, Script
from ..transport.steps.checks import of_others, without_ttl, wrong_types
from ..transport.steps.family import Family, Kind
from ..transport.steps.snapshots import Content, Snapshot
from ..transport.steps.snapshots import whole_number as number_in
from .waits import Wait

log = get_logger("aiolocks.session")
T = TypeVar("T")

_LABEL: Final = "Latch"
_SHORTEST_TTL: Final = 1.0
_MOST: Final = 1_000_000_000
_PAUSE: Final = 0.2
"""Seconds after which a waiter asks a server again that was away."""

# -- On the server.

_SHARED: Final = ("forms", "fence", "latches")
_WAIT: Final = Script("latch_wait", *_SHARED, moves=True)
_COUNT_DOWN: Final = Script("latch_count_down", *_SHARED, "once")
_RESET: Final = Script("latch_reset", *_SHARED, "once")


@final
class Look(NamedTuple):
    """What a waiter is told.

    Attributes:
        open: It may go on.
        left: What is left to count.
        opened: When it was opened last, as the server tells it.
        age: Seconds since then.
    """

    open: bool
    left: int
    opened: str
    age: float


@final
class Counted(NamedTuple):
    """What a step has left.

    Attributes:
        left: What is left to count.
        rung: The key of which waiters hear, where this step has opened the latch.
    """

    left: int
    rung: Sequence[bytes] = ()


@final
class LatchSteps:
    """The steps of one latch.

    Attributes:
        news: The key that is deleted when the latch opens.
    """

    __slots__ = ("_count", "_keys", "_known_ms", "_ttl_ms", "name", "news")

    def __init__(self, prefix: str, name: str, count: int, ttl_ms: int, *, known_ms: int) -> None:
        self.name = name
        self._count = count
        self._ttl_ms = ttl_ms
        self._known_ms = known_ms
        self._keys = (key(prefix, "latch", name), key(prefix, "latch", name, "steps"))
        self.news = key(prefix, "latch", name, "news")

    def wait(self, opened: str) -> Request[Look]:
        """Asks if it is open; `opened` of the first answer, empty before that."""
        args = ("", self._count, self._ttl_ms, opened)
        return Request(_WAIT, self._keys[:1], args, self._look, lane=self._lane)

    def count_down(self, token: str, n: int) -> Request[Counted]:
        """Counts n down."""
        return self._counting(_COUNT_DOWN, (*self._keys, self.news), token, n)

    def reset(self, token: str, count: int) -> Request[Counted]:
        """Counts again, from that."""
        return self._counting(_RESET, self._keys, token, count)

    def _counting(self, script: Script, keys: tuple[bytes, ...], token: str, n: int) -> Request[Counted]:
        args = (token, self._count, self._ttl_ms, n, self._known_ms, MOST_KNOWN)
        return Request(script, keys, args, self._counted, lane=self._lane)

    @property
    def _lane(self) -> str:
        return self.news.decode()

    def _checked(self, raw: Any) -> Any:
        if int(raw[0]) == -1:
            raise ConfigurationError(
                f"the latch {self.name!r} counts from {int(raw[1])}, and not from {self._count}: all who "
                "use a latch give it the same count"
            )
        return raw

    def _look(self, raw: Any) -> Look:
        through, left, opened, now_us = self._checked(raw)
        return Look(through == 1, int(left), opened.decode(), (int(now_us) - int(opened)) / 1e6)

    def _counted(self, raw: Any) -> Counted:
        _, left, *rung = self._checked(raw)
        return Counted(int(left), rung)


def read_latch(now_us: int, found: Mapping[str, Content]) -> Snapshot:
    """A latch, and what is left to count; 0: it is open."""
    if wrong := wrong_types({"": "hash"}, found):
        return Snapshot(now_us, stands=True, problems=wrong)
    if not (latch := found[""]):
        return Snapshot(now_us)
    left = number_in(latch.value.get(b"left"))
    if left is None or not {b"made", b"opened", b"tokens"} <= set(latch.value):
        return Snapshot(now_us, stands=True, problems=(of_others(""), *without_ttl(latch, ours=False)))
    return Snapshot(now_us, value=left, stands=True, problems=without_ttl(latch, ours=True))


LATCHES: Final = Family(read=read_latch, passive="news steps")
KINDS: Final = (
    Kind(
        LATCHES,
        "latch",
        "Latch",
        value="{} left",
        needs=("hlen", "hmget", "hset", "zrangebyscore", "zscore"),
        measured=("waiters", "timeouts"),
    ),
)


# -- In a program.


@final
class Latch(AsyncOnly):
    """Lets all waiting tasks go on when a number of steps are done, in any processes.

    ```python
    latch = Latch(redis, "import:17", count=8)

    await latch.count_down()                # each of eight workers, at its end

    async with latch:                       # a task that needs all of it: waits
        ...
    ```

    The first `count_down` or `wait` makes the latch. At 0 it opens: it wakes all waiting tasks, and stays
    open for later tasks until its `ttl` has passed since its last use. Each call keeps it for its ttl, and so
    does a task that waits. After that, the same name is a new latch.

    It counts steps, not workers: a worker that counts down twice counts twice. A worker that has died does
    not count down, so give `wait` a `blocking_timeout`.

    If the server loses its data, the counted steps are lost, and waiting tasks go on waiting.

    Args:
        client: `redis.asyncio.Redis`, `RedisCluster`, or an `aiolocks.Session`.
        name: Any non-empty str of at most 1 KiB in UTF-8.
        count: How many steps open it, 1 to a billion. All users of a name give the same number.
        ttl: Seconds that it lasts after its last use, 1 s to ten years. The default, an hour, is longer than
            most work. If no task waits and the steps are further apart, give more.

    Raises:
        TypeError, ValueError: An argument is wrong; before any I/O.
    """

    __slots__ = ("_count", "_name", "_source", "_ttl")

    _elsewhere = "make one there, with the same arguments"

    def __init__(
        self, client: Client, name: str, count: int, *, ttl: Seconds = 3600.0, **unknown: Never
    ) -> None:
        reject_unknown(_LABEL, unknown)
        self._source = source_of(client)
        self._name = lock_name(name)
        self._count = whole_number("count", count, most=_MOST)
        self._ttl = seconds("ttl", ttl, least=_SHORTEST_TTL)

    @property
    def name(self) -> str:
        """Name of the latch."""
        return self._name

    @property
    def count(self) -> int:
        """How many steps open it."""
        return self._count

    @property
    def ttl(self) -> float:
        """Seconds that it lasts after its last use."""
        return self._ttl

    async def count_down(self, n: int = 1, **unknown: Never) -> int:
        """Counts `n` steps, and returns how many are left. At 0 the latch is open, and stays at 0.

        Args:
            n: How many steps, at least 1. Default 1.
            unknown: Nothing; for a better message.

        Raises:
            TypeError, ValueError: `n` is wrong; before any I/O.
            ConfigurationError: The latch was made with another `count`.
            BackendError: Redis refused, could not be reached, or did not answer within the session's
                `command_timeout`; or the latch has had 100 000 steps within 30 s, or twice that timeout.
            SessionClosedError: The session is closed.

        If a reply is lost and the request is repeated, the steps count only once. After a cancellation or an
        error they may have been counted or not.
        """
        reject_unknown("count_down()", unknown, _LABEL)
        whole_number("n", n, most=_MOST)
        engine = engine_of(self._source, self)
        return await self._changed(engine, self._steps(engine).count_down(engine.token(), n))

    async def reset(self, count: int | None = None, **unknown: Never) -> int:
        """Closes the latch again, with the same count or another one, and returns how many steps are left.

        Waiting tasks wait for the new steps. But if the latch was opened while a task waited, that task goes
        on.

        Args:
            count: How many steps open it this time. Default None: the count that the latch was made with.
            unknown: Nothing; for a better message.

        Raises:
            TypeError, ValueError: `count` is wrong; before any I/O.
            ConfigurationError: The latch was made with another `count`.
            BackendError: Redis refused, could not be reached, or did not answer within the session's
                `command_timeout`.
            SessionClosedError: The session is closed.

        After a cancellation or an error, the latch may have been reset or not.
        """
        reject_unknown("reset()", unknown, _LABEL)
        left = self._count if count is None else whole_number("count", count, most=_MOST)
        engine = engine_of(self._source, self)
        return await self._changed(engine, self._steps(engine).reset(engine.token(), left))

    async def wait(self, *, blocking_timeout: Seconds | None = None, **unknown: Never) -> None:
        """Returns when the latch is open, or if it was opened since this call began.

        The server tells a waiter when the latch opens. In addition the waiter asks every 2 s, or after a
        third of a ttl that is shorter than 6 s. If the server sends the session no pushes, it asks after each
        `backoff.maximum` seconds of the session. If the latch was opened before this session was made, within
        its ttl, the log says so at INFO: an earlier run of the program may have opened it.

        Args:
            blocking_timeout: Seconds to wait; None, the default, for ever; 0 to ask once.
            unknown: Nothing; for a better message.

        Raises:
            LockTimeoutError: It did not open within `blocking_timeout`.
            ConfigurationError: The latch was made with another `count`.
            BackendError: Redis refused; or it did not answer within `blocking_timeout`, or for the ttl of the
                latch, after which the latch no longer exists.
            SessionClosedError: The session is closed, or was closed meanwhile.

        Cancelled at any point, nothing stays behind.
        """
        reject_unknown("wait()", unknown, _LABEL)
        timeout = optional_seconds("blocking_timeout", blocking_timeout)
        engine = engine_of(self._source, self)
        with Wait(engine, _LABEL, self._name, timeout) as wait:
            waiting = _Waiting(engine, self._steps(engine), min(BELL_TTL, self._ttl / 3), self._ttl)
            await waiting.until_open(wait)

    def _steps(self, engine: Engine) -> LatchSteps:
        settings = engine.settings
        return LatchSteps(
            settings.prefix, self._name, self._count, milliseconds(self._ttl), known_ms=settings.known_ms
        )

    @staticmethod
    async def _changed(engine: Engine, command: Request[Counted]) -> int:
        # The server tells no session of its own step.
        counted = await engine.ask(command, told=engine.wake_own)
        return counted.left

    async def __aenter__(self) -> None:
        await self.wait()

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Does nothing."""

    def __repr__(self) -> str:
        return f"<Latch {self._name!r} count={self._count} ttl={self._ttl:g}>"


@final
class _Waiting:
    """A task that waits for a latch.

    Args:
        longest: Seconds after which it looks by itself.
        ttl: Seconds without any answer after which the latch is gone.
    """

    __slots__ = ("_ear", "_engine", "_longest", "_steps", "_ttl")

    def __init__(self, engine: Engine, steps: LatchSteps, longest: float, ttl: float) -> None:
        self._engine = engine
        self._steps = steps
        self._longest = longest
        self._ttl = ttl
        self._ear = KeyListener(engine, steps.news)

    def end_with(self, error: LockError) -> None:
        """The session closes: the next request says so."""
        self._ear.wake()

    async def until_open(self, wait: Wait) -> None:
        """Returns when it is open."""
        self._engine.waiting[self] = None
        try:
            with self._ear:
                await self._look_again_and_again(wait)
        finally:
            self._engine.waiting.pop(self, None)

    async def _look_again_and_again(self, wait: Wait) -> None:
        engine = self._engine
        opened, left, answered_at = "", 0, engine.now()
        while True:
            longest = self._longest
            try:
                until = wait.patience()
                question = functools.partial(engine.ask, self._steps.wait(opened), until=until)
                look = await self._ear.listened(question, until=until)
            except BackendError as error:
                away_for = engine.now() - answered_at
                if not goes_on(error) or wait.timeout == 0 or away_for >= self._ttl:
                    raise
                if wait.left() == 0 and not opened:
                    raise  # no answer came at all
                longest = _PAUSE
            else:
                if look.open:
                    if not opened:
                        self._tell_earlier(look.age)
                    return
                opened, left, answered_at = opened or look.opened, look.left, engine.now()
            if wait.left() == 0 or wait.timeout == 0:
                raise wait.timed_out(f"{left} of its steps were left", was_not="open")
            wait.begins()
            if not engine.hears:
                longest = min(longest, engine.settings.backoff.maximum)
            await self._ear.sleep(min(longest, wait.left()))

    def _tell_earlier(self, age: float) -> None:
        """It was open when this wait began: says so, if it was when this session did."""
        engine, name = self._engine, self._steps.name
        if age <= engine.elapsed(engine.began):
            return
        together.tell(
            log,
            logging.INFO,
            "latch %r was open before this session began: its count was reached %.1f s ago. For a new round, "
            "take another name, or reset() it first",
            *(name, age),
            name=repr(name),
            many="for %d waits a latch was open before this session began%s. For a new round, take another "
            "name, or reset() it first: %s",
        )
