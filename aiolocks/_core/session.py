"""What all locks of one client share: one connection, one watchdog, the gates, the counts."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import logging
import os
import socket
from collections.abc import AsyncGenerator, Hashable, Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal, Self, TypeVar, final

from .._transport import Call, Command, Fault, Transport, check_client, ignore, open_transport
from ..errors import ConfigurationError, SessionClosedError
from .arguments import Metadata, Seconds, key_prefix, seconds, user_metadata
from .backoff import Backoff
from .events import Events
from .gate import Gate
from .statistics import SessionStatistics
from .watchdog import Watchdog

if TYPE_CHECKING:
    from .acquisition import Acquisition
    from .claim import Claim

T = TypeVar("T")

Wakeup = Literal["auto", "tracking", "keyspace", "poll"]

_WAKEUPS: Final = ("auto", "tracking", "keyspace", "poll")
_UNWINDING: Final = 1.0
"""Seconds that closing waits for the bodies that it cancelled, and for requests that are still out."""
_SESSIONS: Final = "_aiolocks_sessions"
"""Attribute of a client under which its default sessions live exactly as long as it does."""

_BACKOFF: Final = Backoff()

_quote = json.encoder.encode_basestring_ascii


@final
class Session:
    """What all locks of one client share.

    A session talks to the server over one connection of its own beside the client's pool, made with the
    same class and settings; it never takes one from the user's commands. It belongs to one event loop and
    one process.

    `async with Session(redis) as session:` is the orderly form: on exit it admits nothing more, ends every
    waiter with `SessionClosedError`, marks its leases LOST and cancels the bodies that entered them, waits
    at most 1 s for these to unwind and release, and closes its connection. Where a bare client is given
    to a lock, `Session.of(client)` serves, which needs no close.

    Args:
        client: `redis.asyncio.Redis` (RESP2 or RESP3, `decode_responses` either way) or `RedisCluster`.
        prefix: What every key begins with; no braces. Locks of different prefixes do not know of each other.
        wakeup: How waiters learn that a lock is free. `"auto"` takes the best there is; `"poll"` sleeps and
            tries again.
        backoff: How long waiters sleep between two tries.
        command_timeout: Seconds that a single request without a deadline of its own may take.
        fence_retention: Seconds for which the last fencing token of a name is kept after its last use, at
            least ten times the ttl. It only matters if the server's clock is set back.
        metadata: Goes with every lease of the session: JSON values, shown by `inspect`.
        listeners: Objects with any of `on_acquired`, `on_waiting`, `on_released`, `on_lost`, `on_renewed`.

    Raises:
        TypeError, ValueError: An argument is not as it should be.
        ConfigurationError: A `wakeup` was asked for by name that is not available.
    """

    def __init__(
        self,
        client: Any,
        *,
        prefix: str = "aiolocks",
        wakeup: Wakeup = "auto",
        backoff: Backoff = _BACKOFF,
        command_timeout: Seconds = 5.0,
        fence_retention: Seconds = 600.0,
        metadata: Metadata | None = None,
        listeners: Iterable[object] = (),
    ) -> None:
        check_client(client)
        if wakeup not in _WAKEUPS:
            raise ValueError(f"wakeup must be one of {', '.join(map(repr, _WAKEUPS))}, not {wakeup!r}")
        if wakeup in ("tracking", "keyspace"):
            raise ConfigurationError(
                f"wakeup={wakeup!r} is not available in this version; use 'auto' or 'poll'"
            )
        if not isinstance(backoff, Backoff):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"backoff must be an aiolocks.Backoff, not {type(backoff).__name__}")
        self._client = client
        self.prefix: Final = key_prefix(prefix)
        self.backoff: Final = backoff
        self.command_timeout: Final = seconds("command_timeout", command_timeout, least=0.001)
        self._fence_retention = seconds("fence_retention", fence_retention)
        self.metadata: Final = user_metadata(metadata)
        self.events: Final = Events(listeners)
        self.log: Final = logging.getLogger("aiolocks.session")
        self.waiting: Final[set[Acquisition]] = set()
        self._gates: dict[Hashable, Gate] = {}
        self._identity = f'"host":{_quote(socket.gethostname())},"pid":{os.getpid()}'
        self._pid = os.getpid()
        self._bound: _Bound | None = None
        self.closing = False
        self.closed = False
        self._close_task: asyncio.Task[None] | None = None

    @classmethod
    def of(cls, client: Any) -> Session:
        """The default session of a client: the same object for the same client on the same event loop.

        Made on first use, with default arguments. It needs no close: its connection ends with the loop or
        with the client, whichever comes first.

        Raises:
            TypeError: It is not a client.
            RuntimeError: There is no running event loop.
        """
        loop = asyncio.get_running_loop()
        sessions: dict[asyncio.AbstractEventLoop, Session] | None = getattr(client, _SESSIONS, None)
        if sessions is None:
            check_client(client)
            sessions = {}
            setattr(client, _SESSIONS, sessions)
        session = sessions.get(loop)
        if session is None or not session.usable_here:
            for ended in [other for other in sessions if other.is_closed()]:
                del sessions[ended]
            session = sessions[loop] = cls(client)
            session._bind()
        return session

    # -- its life

    async def __aenter__(self) -> Self:
        self.admit()
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Ends the session, as leaving its `async with` does. Idempotent.

        A body that does not end within 1 s keeps its lock until its ttl has passed; so does a lease
        that was never entered, for nothing here knows whether its holder has stopped.
        """
        if self._bound is None or self._bound.loop.is_closed():
            self.closing = self.closed = True
            return
        if self._close_task is None:
            # A task of its own: the caller may be one of the bodies that closing cancels.
            self._close_task = self.loop.create_task(self._close(), name="aiolocks-close")
        await asyncio.shield(self._close_task)

    async def _close(self) -> None:
        self.closing = True
        for acquisition in tuple(self.waiting):
            acquisition.end_with(SessionClosedError("the session was closed while waiting"))
        held = self.watchdog.possessions()
        bodies = [possession.scope for possession in held if possession.scope is not None]
        for possession in held:
            possession.lose("the session was closed")
        deadline = self.now() + _UNWINDING
        # Polled: the end of a body is nobody else's business.
        while self.now() < deadline and any(body.running for body in bodies):  # noqa: ASYNC110
            await asyncio.sleep(0.002)
        self.closed = True
        assert self._bound is not None
        await self._bound.aclose()

    def _bind(self) -> _Bound:
        loop = asyncio.get_running_loop()
        bound = self._bound = _Bound(loop, open_transport(self._client, loop))
        return bound

    @property
    def usable_here(self) -> bool:
        """Whether it is open, and of this process."""
        return not self.closing and self._pid == os.getpid()

    def admit(self) -> None:
        """Whether this session may be used here and now.

        Raises:
            SessionClosedError: It was closed.
            RuntimeError: It belongs to another event loop or process.
        """
        if self.closing:
            raise SessionClosedError("the session is closed")
        bound = self._bound or self._bind()
        if bound.loop is not asyncio.get_running_loop():
            raise RuntimeError("this session belongs to another event loop: make one Session a loop")
        if self._pid != os.getpid():
            raise RuntimeError("this session belongs to the process that forked this one: make a new Session")

    # -- what the parts of the core use

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        assert self._bound is not None
        return self._bound.loop

    @property
    def watchdog(self) -> Watchdog:
        assert self._bound is not None
        return self._bound.watchdog

    @property
    def _transport(self) -> Transport:
        assert self._bound is not None
        return self._bound.transport

    def now(self) -> float:
        assert self._bound is not None
        return self._bound.loop.time()

    def send(self, call: Call[Any], *, at_once: bool = False) -> None:
        self._transport.send(call, at_once=at_once)

    def forget(self, call: Call[Any]) -> bool:
        return self._transport.forget(call)

    def undo(self, claim: Claim, ttl: float) -> None:
        """Takes back whatever an acquire of this claim did or may yet do. Synchronous: the last word."""
        until = self.now() + ttl  # by then the server has done it by itself
        self.send(Call(claim.release(), ignore, ignore, until=until, in_full=True), at_once=True)

    def start(self, command: Command[T], *, until: float) -> tuple[Call[T], asyncio.Future[T]]:
        """Sends a command; its end is the future's."""
        future: asyncio.Future[T] = self.loop.create_future()

        def replied(result: T) -> None:
            if not future.done():
                future.set_result(result)

        def failed(fault: Fault) -> None:
            if not future.done():
                future.set_exception(fault.error)

        call = Call(command, replied, failed, until=until)
        self.send(call)
        return call, future

    async def ask(self, command: Command[T]) -> T:
        """One request that has no deadline of its own.

        Raises:
            BackendError: Refused, or no answer within `command_timeout`.
        """
        self.admit()
        call, future = self.start(command, until=self.now() + self.command_timeout)
        try:
            return await future
        finally:
            self.forget(call)

    def gate(self, key: Hashable) -> Gate:
        gate = self._gates.get(key)
        if gate is None:
            gate = self._gates[key] = Gate(functools.partial(self._gate_idle, key))
        return gate

    def _gate_idle(self, key: Hashable, gate: Gate) -> None:
        if self._gates.get(key) is gate:
            del self._gates[key]

    def fence_retention_for(self, ttl: float) -> float:
        """Seconds for which the fence of a name is kept after its last use."""
        return max(10 * ttl, self._fence_retention)

    def describe(self, user: str) -> str:
        """What stands on the server beside a lease, as JSON: who holds it, and what the user adds."""
        task = asyncio.current_task()
        name = "" if task is None else task.get_name()
        return f'{{{self._identity},"task":{_quote(name)},"user":{user}}}'

    def statistics(self) -> SessionStatistics:
        """What the session holds now, and what it has done so far."""
        bound = self._bound
        return self.events.tally.snapshot(
            leases_held=0 if bound is None else len(bound.watchdog),
            waiters=len(self.waiting),
            commands_sent=0 if bound is None else bound.transport.commands_sent,
        )

    def __repr__(self) -> str:
        bound = self._bound
        if self.closing:
            state = "closed"
        elif bound is None:
            state = "not used yet"
        else:
            state = f"held={len(bound.watchdog)} waiting={len(self.waiting)}"
        return f"<Session prefix={self.prefix!r} {state}>"


@final
class _Bound:
    """What a session has from its first use on, on one event loop.

    The connection ends with the session: closed by it, collected with it, or when the loop shuts down.
    All three are one mechanism, an async generator that was begun. `aclose` closes it; a collected one is
    closed by its loop; and `asyncio.run` and its like end, after cancelling every task, with
    `loop.shutdown_asyncgens`, the one moment at which something that belongs to a loop can still send its
    last words.
    """

    __slots__ = ("_keeper", "grace", "loop", "transport", "watchdog")

    def __init__(self, loop: asyncio.AbstractEventLoop, transport: Transport) -> None:
        self.loop = loop
        self.transport = transport
        self.watchdog = Watchdog(loop)
        self._keeper = _keep(transport)
        with contextlib.suppress(StopIteration):  # it stops at its `yield`
            self._keeper.__anext__().send(None)

    async def aclose(self) -> None:
        await self._keeper.aclose()


async def _keep(transport: Transport) -> AsyncGenerator[None, None]:
    try:
        yield
    finally:
        await transport.aclose(_UNWINDING)


def source_of(client: Any) -> Any:
    """A session or a client, as given; checked.

    Raises:
        TypeError: It is neither.
    """
    if not isinstance(client, Session):
        check_client(client)
    return client
