"""A session from its first use on, on one event loop: what the parts of a lock work with.

A leaf: it imports nothing of this package but values and counters that stand beside it. `session` builds the
parts to which it refers; it knows these parts only by the methods that it calls.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import weakref
from asyncio import _get_running_loop  # pyright: ignore[reportPrivateUsage] - as `get_running_loop`, without an error
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypedDict, TypeVar, final

from .._tasks import empty_context, spawn
from ..errors import BackendError, ConfigurationError, LockError, SessionClosedError
from ..transport import KeyspaceWakeup, Request, Transport, clocks, closed_loops, known_ms, whereabouts
from ..transport import Protocol as RespVersion
from . import process, together
from .backoff import Backoff
from .blocks import TURNS_TO_CLOSE, Entered
from .clock import READING
from .ending import UNWINDING, Ending
from .events import Events
from .leaving import Leaving, release_unused
from .misuse import running_loop
from .naming import NamesInUse
from .process import current_pid
from .resumption import Resumption
from .single_requests import SingleRequests
from .statistics import SessionStatistics

if TYPE_CHECKING:
    from .guard import Ward
    from .options import Metadata, Seconds
    from .renewal import Watchdog
    from .wakeups import Bells

# -- The secrets by which leases are held.

_BYTES: Final = 16
_AT_ONCE: Final = 64


@final
class Tokens:
    """Gives out random tokens, fetched from the kernel for many at once.

    A fork of this process does not hand out the same tokens: it cannot use this session.
    """

    __slots__ = ("_unused",)

    def __init__(self) -> None:
        self._unused: list[str] = []

    def take(self) -> str:
        """128 random bits."""
        if not self._unused:
            self._unused = os.urandom(_BYTES * _AT_ONCE).hex(" ", _BYTES).split()
        return self._unused.pop()


# -- The holder of a lease in words, as they stand on the server beside it.

_quote: Final = json.encoder.encode_basestring_ascii
_TEXTS: Final = 128
"""The most texts that a session remembers, of the tasks that asked last."""


@final
class Description:
    """The metadata beside the leases of one session.

    Args:
        pid: The process of the session.
    """

    __slots__ = ("_loop", "_made")

    def __init__(self, loop: asyncio.AbstractEventLoop, pid: int) -> None:
        self._loop = loop
        process = whereabouts(pid)

        @lru_cache(_TEXTS)  # the many leases of a task have one text
        def made(task: str, user: str, more: str) -> str:
            return f'{{{process},"task":{_quote(task)},"user":{user}{more}}}'

        self._made = made

    def text(self, user: str, more: str = "") -> str:
        """As JSON: the running task, and what the user adds.

        `more` is further fields, each with a comma before it.
        """
        task = asyncio.current_task(self._loop)
        return self._made("" if task is None else task.get_name(), user, more)


# -- The settings of a session.

OnDeadlock = Literal["report", "raise"]
GuardMode = Literal["log", "exit"] | None
Wakeup = Literal["auto", "tracking", "keyspace", "poll"] | KeyspaceWakeup


class SessionOptions(TypedDict, total=False):
    """The options of the session; see `aiolocks.Session`."""

    prefix: str
    wakeup: Wakeup
    protocol: RespVersion
    backoff: Backoff
    command_timeout: Seconds
    fence_retention: Seconds
    metadata: Metadata | None
    largest_metadata: int
    largest_value: int
    guard: GuardMode
    on_deadlock: OnDeadlock
    listeners: Iterable[object]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of a session; checked. Times in seconds, sizes in bytes."""

    prefix: str
    backoff: Backoff
    command_timeout: float
    fence_retention: float
    metadata: dict[str, Any]
    largest_metadata: int
    largest_value: int
    guard: GuardMode = "log"
    on_deadlock: OnDeadlock = "report"

    @property
    def known_ms(self) -> int:
        """For how long the server remembers a step of this session that counts; see `transport.known_ms`."""
        return known_ms(self.command_timeout)

    def user_json(self, metadata: Mapping[str, Any]) -> str:
        """The user's metadata as they stand on the server.

        Raises:
            ConfigurationError: They are too large; nothing was sent.
        """
        text = json.dumps(metadata, separators=(",", ":"))
        if len(text) > self.largest_metadata:
            raise ConfigurationError(
                f"metadata have {len(text)} bytes as JSON, with those of the session, and at most "
                f"{self.largest_metadata} are allowed: Session(client, largest_metadata=...)"
            )
        return text

    def check_value(self, data: bytes) -> None:
        """Refuses a value that is too large; nothing was sent.

        Raises:
            ConfigurationError: It is.
        """
        if len(data) > self.largest_value:
            raise ConfigurationError(
                f"the value has {len(data)} bytes, and at most {self.largest_value} are allowed: "
                "Session(client, largest_value=...)"
            )


T = TypeVar("T")

_REST: Final = 0.5
"""Seconds between two looks whether a connection that is to be closed may be closed now."""

_MOST_BOUND: Final = 256
"""Locks whose binding is kept for the next object of the same name and options, about 1 KiB each."""


class Search(Protocol):
    """The search for deadlocks over several processes."""

    def add(self, waiter: Any, /) -> None: ...

    def discard(self, waiter: Any, /) -> None: ...


class Waiting(Protocol):
    """An acquire under way."""

    def end_with(self, error: LockError, /) -> None:
        """This wait is over."""
        ...


@final
class Engine:
    """The connection, the watchdog, the gates and the counts of one session.

    Invariant: once `closing` is set no caller is admitted; what was admitted before can still release.
    """

    __slots__ = (
        "__weakref__",
        "_bindings",
        "_closing_task",
        "_ending",
        "_make_search",
        "_rest_timer",
        "_single",
        "_transport",
        "began",
        "bells",
        "closed",
        "closing",
        "describe",
        "detector",
        "entered",
        "events",
        "forget",
        "gates",
        "in_progress",
        "kept",
        "loop",
        "names",
        "now",
        "pid",
        "prove",
        "send",
        "session_id",
        "settings",
        "settle",
        "start",
        "take_back",
        "token",
        "unconfirmed",
        "undo",
        "waiter",
        "waiting",
        "wake_own",
        "ward",
        "watchdog",
    )

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        settings: Settings,
        events: Events,
        transport: Transport,
        *,
        session_id: str,
        resumption: Resumption,
        watchdog: Watchdog,
        bells: Bells,
        ward: Ward | None,
        make_search: Callable[[Engine], Search],
        kept: Any,
    ) -> None:
        self.session_id = session_id
        self.loop = loop
        self.now = loop.time  # the clock of all deadlines
        self.began = self.mark()
        self.names = NamesInUse()
        self.settings = settings
        self.events = events
        self.watchdog = watchdog
        self.ward = ward
        self.waiting: dict[Waiting, None] = {}
        # The leases whose exits do not wait until the server confirms the release, while it has not.
        self.unconfirmed: dict[Any, None] = {}
        self.entered: Entered[Any] = Entered()
        self.kept = kept
        # Work that tasks of this session look for, by its subject; the task that adds an entry removes it.
        self.in_progress: dict[Hashable, Any] = {}
        self.detector: Search | None = None  # from the first time on that a task waits and holds something
        self._make_search = make_search
        self.closing = False
        self.closed = False
        self._closing_task: asyncio.Task[None] | None = None
        self._rest_timer: asyncio.TimerHandle | None = None
        self._bindings: dict[Hashable, Any] = {}
        # The queues of tasks that want the same thing, each for as long as an object has it; see `queue`.
        self.gates: weakref.WeakValueDictionary[Hashable, Any] = weakref.WeakValueDictionary()
        self.pid = current_pid()
        self.describe = Description(loop, self.pid).text
        self.token = Tokens().take
        self.bells = bells
        self._transport = transport
        self.send = transport.send
        self.forget = transport.forget
        self.prove = transport.prove
        # Of the bells, not of this object: an undo that is kept for long must not keep a session that no task
        # uses any more.
        self.wake_own = bells.wake_own
        self._single = single = SingleRequests(loop, transport, self.wake_own)
        self.waiter, self.start = single.waiter, single.start
        self.undo, self.take_back, self.settle = single.undo, single.take_back, single.settle
        self._ending = Ending(transport, resumption, kept, partial(release_unused, watchdog.possessions))

    # -- its life

    @property
    def serves(self) -> bool:
        """Whether it can be used in the running loop and this process; asked at each acquire."""
        # That its loop runs is not enough: of loops that are nested, as by nest_asyncio, all do.
        return not self.closing and _get_running_loop() is self.loop and process.pid == self.pid

    @property
    def left_behind(self) -> bool:
        """Whether its loop has ended, or it belongs to the process that forked this one."""
        return self.loop.is_closed() or self.pid != current_pid()

    @property
    def usable(self) -> bool:
        """Whether it is open, and of this process."""
        return not self.closing and self.pid == current_pid()

    def check_usable(self) -> None:
        """Lets a caller in that wants to use it in the running loop and this process.

        Raises:
            SessionClosedError: It was closed.
            RuntimeError: It belongs to another event loop or process.
        """
        if self.closing:
            raise SessionClosedError("the session is closed: use a session that is open")
        if self.loop is not _get_running_loop():
            running_loop()
            raise RuntimeError(
                "this session belongs to another event loop: make one Session for each loop. Under WSGI, "
                "each call of an async view of Django has its own: write a `def` there, with aiolocks.sync"
            )
        if self.pid != process.pid:
            raise RuntimeError("this session belongs to the process that forked this one: make a new Session")

    def rest(self) -> None:
        """Closes the connection once nothing is held, awaited or asked; the next request opens one again."""
        if self._rest_timer is not None:
            self._rest_timer.cancel()
            self._rest_timer = None
        if not self.serves:
            return
        self.kept.end_all()
        busy = (
            self.watchdog.watches or self.waiting or self.unconfirmed or self.in_progress or self._single.busy
        )
        if busy or not self._transport.rest():
            # Polled, so that the code that ends the last of these need not tell of it.
            self._rest_timer = closed_loops.call_later(self.loop, _REST, self.rest)

    async def aclose(self, closer: asyncio.Task[Any] | None = None, *, release: bool = True) -> None:
        """Ends it, for a task that waits for that; see `Session.aclose`."""
        if self.loop.is_closed():
            self.closing = self.closed = True
            closed_loops.sweep()
            return
        if self._closing_task is None or self._closing_task.cancelled():
            # A task of its own: the caller may be one of the bodies that closing cancels.
            closing = self._close(closer, release=release)
            self._closing_task = spawn(self.loop, closing, name="aiolocks-close", context=empty_context())
        await asyncio.shield(self._closing_task)

    async def _close(self, closer: asyncio.Task[Any] | None = None, *, release: bool = True) -> None:
        self.closing = True
        self._bindings.clear()
        for acquire in tuple(self.waiting):
            acquire.end_with(SessionClosedError("the session was closed while waiting"))
        self._single.end_with(lambda: SessionClosedError("the session was closed while waiting"))
        self.bells.end()
        self.kept.close()
        within = self.settings.command_timeout
        leaving = Leaving(
            self.watchdog.possessions, closer, unconfirmed=self.unconfirmed, release=release, now=self.now
        )
        try:
            # A task that has just left a generator is not inside any more, and must not be cancelled.
            for _ in range(TURNS_TO_CLOSE):
                await asyncio.sleep(0)
            leaving.begin()
            # A task whose grant was answered in this turn of the loop finds in the next one that the session
            # closes, and gives the grant back.
            await asyncio.sleep(0)
            deadline = self.now() + UNWINDING
            await leaving.wait(bodies=UNWINDING, releases=within)
        finally:
            leaving.end(within)  # also where the loop ends, and cancels this task
            self.closed = True
            together.flush()
        await self._ending.come(max(0.05, deadline - self.now()))
        together.flush()

    # -- talking to the server

    @property
    def hears(self) -> bool:
        """Whether the server tells of bells that are rung."""
        return self._transport.hears

    @property
    def way(self) -> str:
        """How the server tells: "tracking", "keyspace" or "poll"; empty while that is not known."""
        return self._transport.way

    def log_level(self, error: BaseException) -> int:
        """The level at which an object of this session tells that a request of it has ended so.

        The session has said that its server is away or refuses, once for all of them, and will say that it is
        back. Anything else is news.
        """
        told = isinstance(error, BackendError) and error.transient and self._transport.outage_told
        return logging.DEBUG if told else logging.WARNING

    @property
    def longest_sleep(self) -> float | None:
        """Seconds after which a waiter polls at the latest; None where it hears that it is woken."""
        return None if self._transport.hears else self.settings.backoff.maximum

    @property
    def by_slot(self) -> bool:
        """Whether no step may have keys of several slots."""
        return self._transport.by_slot

    def timed(self, sent: float, steady: float) -> tuple[float, float]:
        """The loop time of that moment, had the loop's clock not stood still while the machine was suspended.

        Args:
            sent: The loop time that it was then.
            steady: The time of `clocks.steady`; infinity: unknown.

        Returns:
            That, and the seconds by which the loop's clock is behind the other one now.
        """
        now, steady_now = self.now(), clocks.steady()
        suspended = steady_now - steady - (now - sent)
        return sent - suspended if suspended > READING else sent, steady_now - now

    def mark(self) -> tuple[float, float]:
        """This moment, by both clocks, for `elapsed`."""
        return self.now(), clocks.steady()

    def elapsed(self, mark: tuple[float, float]) -> float:
        """Seconds since then, also the seconds for which the machine was suspended."""
        sent, steady = mark
        return max(self.now() - sent, clocks.steady() - steady)

    async def ask(
        self,
        command: Request[T],
        *,
        told: Callable[[T], object] | None = None,
        patient: bool = False,
        until: float | None = None,
    ) -> T:
        """Asks one request; `told` and `patient` as for `start`.

        `until`: Loop time at which its caller gives up; None: after `command_timeout`.

        Raises:
            BackendError: Refused, not reached, or no answer in time.
        """
        self.check_usable()
        if until is None:
            until = self.now() + self.settings.command_timeout
        call, future = self.start(command, until=until, told=told, patient=patient)
        try:
            return await future
        finally:
            self.forget(call)

    async def sleep(self, seconds: float) -> None:
        """Sleeps for so long: the pause of what goes on by itself, which ends with the session.

        Raises:
            SessionClosedError: The session is closed, or was closed meanwhile.
        """
        self.check_usable()
        waiter = self.waiter()
        # Not asyncio.timeout: its timer has the context of the caller, and may stand in the loop for long.
        timer = self.loop.call_later(seconds, _end, waiter, context=empty_context())
        try:
            await waiter
        finally:
            timer.cancel()

    # -- what acquisitions share

    def bound(self, like: Hashable, bind: Callable[[], T]) -> T:
        """The object bound before for locks like this one, or a new one; the last ones are remembered."""
        binding: T | None = self._bindings.get(like)
        if binding is None:
            if len(self._bindings) >= _MOST_BOUND:
                del self._bindings[next(iter(self._bindings))]
            binding = self._bindings[like] = bind()
        return binding

    def entangled(self, waiter: Any) -> None:
        """Its task waits, and holds something for which other tasks may wait."""
        if self.detector is None:
            self.detector = self._make_search(self)
        self.detector.add(waiter)

    def statistics(self) -> SessionStatistics:
        return self.events.counters.snapshot(
            leases_held=len(self.watchdog),
            waiters=len(self.waiting),
            commands_sent=self._transport.commands_sent,
            cached=len(self.kept.idle),
        )


def _end(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
