"""A session from its first use on, on one event loop: what everything in the core works with.

The connection ends with the session: closed by it, collected with it, or when the loop shuts down. All
three are one mechanism, an async generator that was begun. `aclose` closes it; a collected one is closed
by its loop; and `asyncio.run` and its like end, after cancelling every task, with
`loop.shutdown_asyncgens`: the one moment at which something that belongs to a loop can still send its
last words.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import threading
import weakref
from collections.abc import AsyncGenerator, Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar, final

from .._transport import Call, Command, Fault, OnRung, Transport, clocks, ignore, take_back, whereabouts
from ..errors import ConfigurationError, SessionClosedError
from .backoff import Backoff
from .convoys import Convoys
from .entered import Entered
from .events import Events
from .guard import GuardMode, ward
from .process import current_pid
from .resumption import Resumption
from .statistics import SessionStatistics
from .tracked import Tracked
from .waiting.bells import Bells
from .waiting.gate import Gate
from .watchdog import Watchdog

if TYPE_CHECKING:
    from .._inspection.deadlocks import Detector
    from .claim import Claim, Resource
    from .waiting.acquiring import Acquiring
    from .waiting.waiter import Waiter

T = TypeVar("T")

OnDeadlock = Literal["report", "raise"]

_UNWINDING: Final = 1.0
"""Seconds that closing waits for the bodies that it cancelled, and for requests that are still out."""

_READING: Final = 0.001
"""Seconds that may pass between the readings of two clocks: they are no suspension of the machine."""

_TOKEN_BYTES: Final = 16
_TOKENS_AT_ONCE: Final = 64

_quote: Final = json.encoder.encode_basestring_ascii


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


_MOST_BOUND: Final = 256
"""Locks whose binding is kept for the next object of the same name and options, about 1 KiB each."""


@final
class Engine:
    """The connection, the watchdog, the gates and the counts of one session.

    Invariant: once `closing` is set nobody is admitted; what was admitted before can still release.
    """

    __slots__ = (
        "__weakref__",
        "_asking",
        "_bindings",
        "_closing_task",
        "_gates",
        "_holder",
        "_keeper",
        "_thread",
        "_tokens",
        "_transport",
        "bells",
        "closed",
        "closing",
        "convoys",
        "detector",
        "entered",
        "events",
        "forget",
        "loop",
        "now",
        "pid",
        "prove",
        "send",
        "session_id",
        "settings",
        "shared",
        "tracked",
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
        connect: Callable[[str, OnRung], Transport],
    ) -> None:
        self.session_id = secrets.token_hex(8)
        self.loop = loop
        self.now = loop.time  # the clock of all deadlines
        self.settings = settings
        self.events = events
        resumption = Resumption(loop)
        self.watchdog = Watchdog(loop, events, resumption)
        self.convoys = self.watchdog.convoys = Convoys(self)
        self.ward = ward(loop, self.watchdog.watches, settings.guard)
        self.waiting: dict[Acquiring, None] = {}
        self.entered = Entered()
        # Work that tasks of this session do together, by its subject; the task that adds an entry removes it.
        self.shared: dict[Hashable, Any] = {}
        self.detector: Detector | None = None  # from the first time on that a task waits and holds something
        self.closing = False
        self.closed = False
        self._closing_task: asyncio.Task[None] | None = None
        self._bindings: dict[Hashable, Any] = {}
        self._gates: weakref.WeakValueDictionary[Hashable, Gate] = weakref.WeakValueDictionary()
        self._asking: set[asyncio.Future[Any]] = set()  # single requests that somebody waits for
        self.pid = current_pid()
        self._thread = threading.get_ident()
        self._tokens: list[str] = []  # not used yet
        self._holder = whereabouts(self.pid)
        self.bells = Bells(loop)
        self.tracked = Tracked(loop, self.bells.rung)
        self._transport = transport = connect(self.session_id, self.tracked.rung)
        self.tracked.forget = transport.ignore_bell
        self.bells.ring_over(transport)
        self.send = transport.send
        self.forget = transport.forget
        self.prove = transport.prove
        # Of the bells, not of this object: an undo that is kept for long must not keep a session that nobody
        # uses any more.
        self.wake_own = self.bells.wake_own
        self._keeper = _keep(transport, resumption)
        with contextlib.suppress(StopIteration):  # it stops at its `yield`
            self._keeper.__anext__().send(None)

    # -- its life

    @property
    def serves(self) -> bool:
        """Whether it can be used here and now; asked at each acquire.

        In one thread only one loop runs, and that is found out without a system call, unlike which.
        """
        return (
            not self.closing
            and threading.get_ident() == self._thread
            and self.loop.is_running()
            and current_pid() == self.pid
        )

    @property
    def usable(self) -> bool:
        """Whether it is open, and of this process."""
        return not self.closing and self.pid == current_pid()

    def admit(self) -> None:
        """Lets a caller in that wants to use it here and now.

        Raises:
            SessionClosedError: It was closed.
            RuntimeError: It belongs to another event loop or process.
        """
        if self.closing:
            raise SessionClosedError("the session is closed")
        if self.loop is not asyncio.get_running_loop():
            raise RuntimeError("this session belongs to another event loop: make one Session a loop")
        if self.pid != current_pid():
            raise RuntimeError("this session belongs to the process that forked this one: make a new Session")

    async def aclose(self) -> None:
        """Ends it; see `Session.aclose`."""
        if self.loop.is_closed():
            self.closing = self.closed = True
            return
        if self._closing_task is None:
            # A task of its own: the caller may be one of the bodies that closing cancels.
            self._closing_task = self.loop.create_task(self._close(), name="aiolocks-close")
        await asyncio.shield(self._closing_task)

    async def _close(self) -> None:
        self.closing = True
        self._bindings.clear()
        for acquire in tuple(self.waiting):
            acquire.end_with(SessionClosedError("the session was closed while waiting"))
        for future in tuple(self._asking):
            if not future.done():
                future.set_exception(SessionClosedError("the session was closed while waiting"))
        held = self.watchdog.possessions()
        bodies = [possession.scope for possession in held if possession.scope is not None]
        for possession in held:
            possession.lose("the session was closed")
        # A task whose grant was answered in this turn of the loop finds in the next one that the session
        # closes, and gives the grant back.
        await asyncio.sleep(0)
        deadline = self.now() + _UNWINDING
        # Polled: the end of a body is nobody else's business.
        while self.now() < deadline and any(body.running for body in bodies):  # noqa: ASYNC110
            await asyncio.sleep(0.002)
        self.closed = True
        with contextlib.suppress(StopAsyncIteration):
            await self._keeper.asend(max(0.05, deadline - self.now()))

    # -- talking to the server

    @property
    def hears(self) -> bool:
        """Whether the server tells of bells that are rung."""
        return self._transport.hears

    @property
    def longest_sleep(self) -> float | None:
        """Seconds after which a waiter polls at the latest; None where it hears that it is woken."""
        return None if self._transport.hears else self.settings.backoff.maximum

    @property
    def by_slot(self) -> bool:
        """Whether no step may have keys of several slots."""
        return self._transport.by_slot

    @property
    def ordered(self) -> bool:
        """Whether all requests reach the server in the order in which they were sent."""
        return self._transport.ordered

    def moment(self, sent: float, steady: float) -> float:
        """Loop time of that moment, had the loop's clock not stood still while the machine was suspended.

        Args:
            sent: The loop time that it was then.
            steady: The time of `clocks.steady`.
        """
        since = self.now() - sent
        suspended = clocks.steady() - steady - since
        return sent - suspended if suspended > _READING else sent

    def undo(
        self,
        claim: Claim,
        ttl: float,
        *,
        leave: bool = False,
        leaves_late: Callable[[], bool] | None = None,
    ) -> None:
        """Takes back whatever an acquire of this claim did or may yet do; `leave` to leave the queue too.

        `leaves_late` decides that when the undo is written: the acquire has ended by then.
        """
        make = None if leaves_late is None else lambda: claim.release(leave=leaves_late())
        self.take_back(claim.release(leave=leave), ttl, told=self.wake_own, make=make)

    def take_back(
        self,
        command: Command[T],
        ttl: float,
        *,
        told: Callable[[T], None] = ignore,
        make: Callable[[], Command[T]] | None = None,
    ) -> None:
        """Sends an undo, which is of use for `ttl` seconds at least; see `_transport.take_back`."""
        take_back(command, send=self.send, loop=self.loop, seconds=ttl, told=told, make=make)

    def settle(self, claim: Claim) -> None:
        """Synchronous: what was sent for this claim creates nothing any more once others may adopt it."""
        if (command := claim.settle()) is not None:
            self.send(Call(command, ignore, ignore, until=self.now()), at_once=True)

    def waiter(self) -> asyncio.Future[Any]:
        """A future for a waiter: it ends with the session at the latest."""
        future: asyncio.Future[Any] = self.loop.create_future()
        self._asking.add(future)
        future.add_done_callback(self._asking.discard)
        return future

    def start(
        self,
        command: Command[T],
        *,
        until: float,
        make: Callable[[], Command[T]] | None = None,
        told: Callable[[T], object] | None = None,
        patient: bool = False,
    ) -> tuple[Call[T], asyncio.Future[T]]:
        """Sends a command; its end is the future's, or the session's.

        `told` is called with the answer when it comes, whether anybody waits for it still or not. `patient`
        for what is held: it waits for a server that cannot be reached.
        """
        future: asyncio.Future[T] = self.waiter()

        def replied(result: T) -> None:
            if told is not None:
                told(result)
            if not future.done():
                future.set_result(result)

        def failed(fault: Fault) -> None:
            if not future.done():
                future.set_exception(fault.error)

        call = Call(command, replied, failed, until=until, patient=patient, make=make, on_late=told)
        self.send(call)
        return call, future

    async def ask(
        self,
        command: Command[T],
        *,
        told: Callable[[T], object] | None = None,
        patient: bool = False,
    ) -> T:
        """Asks one request that has no deadline of its own; `told` and `patient` as for `start`.

        Raises:
            BackendError: Refused, not reached, or no answer within `command_timeout`.
        """
        self.admit()
        until = self.now() + self.settings.command_timeout
        call, future = self.start(command, until=until, told=told, patient=patient)
        try:
            return await future
        finally:
            self.forget(call)

    # -- what acquisitions share

    def bound(self, like: Hashable, bind: Callable[[], T]) -> T:
        """The object bound before for locks like this one, or a new one; the last ones are remembered."""
        binding: T | None = self._bindings.get(like)
        if binding is None:
            if len(self._bindings) >= _MOST_BOUND:
                del self._bindings[next(iter(self._bindings))]
            binding = self._bindings[like] = bind()
        return binding

    def gate(self, resource: Resource) -> Gate:
        """The gate where the tasks queue that want the same thing."""
        key = resource.gate_key
        gate = self._gates.get(key)
        if gate is None:
            gate = self._gates[key] = Gate(self, resource)
        return gate

    def entangled(self, waiter: Waiter) -> None:
        """Its task waits, and holds something for which others may wait."""
        if self.detector is None:
            from .._inspection.deadlocks import Detector  # noqa: PLC0415 - most sessions need none

            self.detector = Detector(self)
        self.detector.add(waiter)

    def token(self) -> str:
        """128 random bits, fetched from the kernel for many tokens at once.

        No fork of this process hands out the same ones: it cannot use this session.
        """
        if not self._tokens:
            fetched = os.urandom(_TOKEN_BYTES * _TOKENS_AT_ONCE).hex()
            length = 2 * _TOKEN_BYTES
            self._tokens = [fetched[at : at + length] for at in range(0, len(fetched), length)]
        return self._tokens.pop()

    def describe(self, user: str, more: str = "") -> str:
        """The metadata that stand on the server beside a lease, as JSON: its holder, and what the user adds.

        `more` is further fields of it, each with a comma before it.
        """
        task = asyncio.current_task(self.loop)
        name = "" if task is None else task.get_name()
        return f'{{{self._holder},"task":{_quote(name)},"user":{user}{more}}}'

    def statistics(self) -> SessionStatistics:
        return self.events.tally.snapshot(
            leases_held=len(self.watchdog),
            waiters=len(self.waiting),
            commands_sent=self._transport.commands_sent,
        )


async def _keep(transport: Transport, resumption: Resumption) -> AsyncGenerator[None, float]:
    grace = _UNWINDING
    try:
        grace = yield
    finally:
        resumption.close()
        await transport.aclose(grace)
