"""The state that all locks of one client share: one connection, one watchdog, the gates, the counts."""

from __future__ import annotations

import asyncio
import functools
import weakref
from collections.abc import Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal, Self, final

from .._transport import (
    WAKEUPS,
    KeyspaceWakeup,
    OnRung,
    Transport,
    a_question,
    check_client,
    open_quorum,
    open_transport,
)
from ..errors import LockError, SessionClosedError
from . import apart
from .arguments import (
    LARGEST_METADATA,
    LARGEST_VALUE,
    Metadata,
    Seconds,
    key_prefix,
    seconds,
    size,
    user_metadata,
)
from .backoff import Backoff
from .engine import Engine, OnDeadlock, Settings
from .events import Events
from .guard import GUARD_MODES, GuardMode
from .misuse import AsyncOnly
from .statistics import SessionStatistics

if TYPE_CHECKING:
    from .._deadlocks import Deadlock
    from .._inspection.infos import LockInfo

Wakeup = Literal["auto", "tracking", "keyspace", "poll"] | KeyspaceWakeup

_SESSIONS: Final = "_aiolocks_sessions"
"""Attribute of a client under which its default sessions live exactly as long as it does."""

_BACKOFF: Final = Backoff()
_PREFIX: Final = "aiolocks"


@final
class Session(AsyncOnly):
    """The state that all locks of one client share.

    A session talks to the server, or to each node of a cluster, over one connection of its own beside the
    client's pool, made with the same class and settings; it never takes one from the user's commands. It
    belongs to one event loop and one process.

    `async with Session(redis) as session:` is the orderly form: on exit it admits nothing more, ends every
    waiter with `SessionClosedError`, marks its leases LOST and cancels the bodies that entered them, waits
    at most 1 s for these to unwind and release, and closes its connection. Where a bare client is given
    to a lock, `Session.of(client)` serves, which needs no close.

    Args:
        client: `redis.asyncio.Redis` (RESP2 or RESP3, `decode_responses` either way) or `RedisCluster`; of
            valkey-py, `valkey.asyncio.Valkey` or `ValkeyCluster`.
        prefix: The prefix with which every key begins; no braces. Locks of different prefixes do not know of
            each other.
        wakeup: How waiters learn that a lock is free. `"auto"` takes the best that the server allows, decided
            once on the first connection, and says in the log when that is not the first. `"tracking"`:
            the server pushes it (client-side caching, RESP3). `"keyspace"`, or `KeyspaceWakeup`: by keyspace
            notifications (RESP3), which must be on. `"poll"`: they sleep and try again, as `backoff` says.
            Where they hear, a request each 0.6 s finds what was not heard.
        backoff: How long waiters sleep between two tries, where they do not hear that a lock is free.
        command_timeout: Seconds that a single request without a deadline of its own may take while the server
            is silent. Where the server cannot be reached, such a request fails at once.
        fence_retention: Seconds for which the last fencing token of a name is kept after its last use, at
            least ten times the ttl. It only matters if the server's clock is set back.
        metadata: Goes with every lease of the session: JSON values, readable by everybody who can read the
            keys.
        largest_metadata: Bytes of JSON that the metadata of a lease may have, with those of the session; more
            is a `ConfigurationError` before anything is sent. Each acquire sends them, and each contender
            that is refused reads those of the holders.
        largest_value: Bytes that a value of a `SingleFlight` or a `FencedRegister` may have. The default is
            taken by every server, however it is configured. A server that is sent more than its
            `client-query-buffer-limit` closes the connection. A `SingleFlight` does not lose its work: the
            caller that made a larger value gets it, and others get `ResultNotKeptError`.
        guard: The reaction when code in a body keeps the event loop from running until an entered lease of
            this session (with `on_lost="cancel"`) is about to end: the lease is not renewed then, and the
            body cannot be cancelled. Some time before that end (5 % of the ttl, 50 ms at least, a quarter of
            the ttl at most) `"log"` logs the stack of the loop's thread, under `aiolocks.guard`. `"exit"`
            ends the process as well, by `os._exit(70)`, so that it has ended when another process enters.
            None does nothing. One daemon thread serves all sessions of a process. It cannot help while the
            whole process is stopped, or while C code keeps the GIL.
        on_deadlock: The reaction to a waiter of this session that is part of a deadlock over several
            processes: tasks that wait for each other. `"report"`: nothing, and it waits on; the deadlock is
            in the log, and `on_deadlock` of the listeners is called. `"raise"`: besides, the youngest waiter
            of the deadlock gets a `DeadlockError`, unless its own session has `"report"`; then the youngest
            of the others. To find them, a session in which a task has waited for 0.4 s while it holds
            something sends one request each 0.6 s. See `deadlocks` for what is found.
        listeners: Objects with any of `on_acquired`, `on_waiting`, `on_released`, `on_lost`, `on_renewed`, or
            of the other methods in the table of events.

    Raises:
        TypeError, ValueError: An argument is not as it should be.
        ConfigurationError: From the first use on, if a `wakeup` was asked for by name that is not available.
    """

    _elsewhere = "tasks can share it; in another process, make one with a client of that process"

    def __init__(
        self,
        client: Any,
        *,
        prefix: str = _PREFIX,
        wakeup: Wakeup = "auto",
        backoff: Backoff = _BACKOFF,
        command_timeout: Seconds = 5.0,
        fence_retention: Seconds = 600.0,
        metadata: Metadata | None = None,
        largest_metadata: int = LARGEST_METADATA,
        largest_value: int = LARGEST_VALUE,
        guard: GuardMode = "log",
        on_deadlock: OnDeadlock = "report",
        listeners: Iterable[object] = (),
    ) -> None:
        check_client(client)
        if wakeup not in WAKEUPS and not isinstance(wakeup, KeyspaceWakeup):
            allowed = ", ".join(map(repr, WAKEUPS))
            raise ValueError(f"wakeup must be one of {allowed} or a KeyspaceWakeup, not {wakeup!r}")
        if not isinstance(backoff, Backoff):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"backoff must be an aiolocks.Backoff, not {type(backoff).__name__}")
        if guard not in GUARD_MODES:
            raise ValueError(f"guard must be 'log', 'exit' or None, not {guard!r}")
        if on_deadlock not in ("report", "raise"):
            raise ValueError(f"on_deadlock must be 'report' or 'raise', not {on_deadlock!r}")
        self._client = client
        self._wakeup: Wakeup = wakeup
        self._settings = Settings(
            prefix=key_prefix(prefix),
            backoff=backoff,
            command_timeout=seconds("command_timeout", command_timeout, least=0.001),
            fence_retention=seconds("fence_retention", fence_retention),
            metadata=user_metadata(metadata),
            largest_metadata=size("largest_metadata", largest_metadata),
            largest_value=size("largest_value", largest_value),
            guard=guard,
            on_deadlock=on_deadlock,
        )
        self._settings.user_json(self._settings.metadata)
        self._events = Events(listeners)
        self._engine: Engine | None = None  # from the first use on
        # Those that it serves together with other sessions; kept by the first of these, and by their users.
        self._joint: weakref.WeakSet[Engine] = weakref.WeakSet()
        # Of these, those that have its settings, and with which sessions.
        self._led: list[tuple[tuple[weakref.ref[Session], ...], Engine]] = []
        self._closed_unused = False
        if self._settings.prefix != _PREFIX:
            apart.opened(client, self, self._settings.prefix)

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
        if session is None or not session._open():  # noqa: SLF001 - its own class
            for ended in [other for other in sessions if other.is_closed()]:
                del sessions[ended]
            session = sessions[loop] = cls(client)
        return session

    async def __aenter__(self) -> Self:
        self._admit()
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
        apart.closed(self._client, self)
        if self._engine is None:
            self._closed_unused = True
        engines = [*self._joint, *([] if self._engine is None else [self._engine])]
        if len(engines) == 1:
            await engines[0].aclose()
        elif engines:
            await asyncio.gather(*(engine.aclose() for engine in engines))

    def statistics(self) -> SessionStatistics:
        """The leases that the session holds now, and the counts of its work so far."""
        engines = [engine for _, engine in self._led] + ([] if self._engine is None else [self._engine])
        counts = [engine.statistics() for engine in engines]
        return self._events.tally.snapshot(
            leases_held=sum(count.leases_held for count in counts),
            waiters=sum(count.waiters for count in counts),
            commands_sent=sum(count.commands_sent for count in counts),
        )

    async def healthy(self, *, within: Seconds = 5.0) -> bool:
        """Whether this event loop and the server get an answer through in time: for a health probe.

        It asks the server for next to nothing, over the session's own connection, as each renewal does. True
        says that the loop runs, that it is not busy for longer than `within`, and that the server serves this
        session. It never raises because of the server, and never takes longer than `within`, unless the loop
        does not run: then no probe is answered at all, which is what a time-out of the prober is for.

        A process whose server is away is not mended by a restart: see the page on Kubernetes for which probe
        this is.

        Args:
            within: Seconds that the answer may take.

        Returns:
            False if there was no answer in time, or the server refused, or the session is closed.

        Raises:
            TypeError, ValueError: `within` is not as it should be.
            RuntimeError: The session belongs to another event loop or process.

        Cancelled, it changes nothing.
        """
        within = seconds("within", within, least=0.001)
        try:
            async with asyncio.timeout(within):
                engine = self._admit()
                await engine.ask(a_question(engine.settings.prefix, engine.session_id))
        except (LockError, TimeoutError):
            return False
        return True

    async def inspect(self, pattern: str = "*") -> list[LockInfo]:
        """The holders and the number of waiters of each name, as the server has them now.

        Goes through all keys of the server with SCAN, and looks at each name by itself: what changes
        meanwhile is shown as it was or as it is. A pattern without wildcards looks at that name alone.

        Args:
            pattern: Of names: `*`, `?` and `[…]` as in a shell; `glob.escape(name)` for one that has these.

        Returns:
            What is held, waited for, or not as it should be (`problem`), by name. A name of which nothing but
            a fence is left is not among it; nor are runs of a `UniqueJob` whose tickets may run beside each
            other (unique until executing, or until expired).

        Raises:
            TypeError, ValueError: The pattern is not as it should be.
            BackendError: Refused (it needs more permissions than a lock does), or no answer within
                `command_timeout`, which counts for each of its requests.
        """
        from .._inspection.looking import inspect  # noqa: PLC0415 - for operators, and an import takes its time

        return await inspect(self._admit(), pattern)

    async def deadlocks(self) -> list[Deadlock]:
        """Tasks of any processes that wait for each other, and will for ever if nobody does anything.

        Found among the waits of at least 0.4 s, of tasks that have entered a lease which does not end by
        itself (renewed, without `max_hold`), for all kinds of locks of this prefix and server but `Redlock`;
        also if the waits have a time-out. Each was found twice, with each session confirming in between that
        its task still waits: where there is a suspicion, this takes 0.6 to 1.6 s. Waits of versions of
        aiolocks that do not publish them are not known. Where more than 1000 sessions have such waits, 1000
        of them are read.

        Returns:
            Each deadlock once; empty if there is none.

        Raises:
            BackendError: Refused (it needs the permissions that `inspect` needs, but for SCAN), or no answer
                within `command_timeout`, which counts for each of its requests.

        Cancelled, it changes nothing.
        """
        from .._inspection.deadlocks import deadlocks  # noqa: PLC0415 - for operators, and an import takes its time

        return await deadlocks(self._admit())

    async def force_release(self, name: str, *, kind: str | None = None) -> list[LockInfo]:
        """Frees a name from its holders, and wakes its waiters.

        The holder's lease becomes `LOST`: at once if it is of this session, otherwise after a push and a
        question where its session hears of changes (`wakeup` `"tracking"` or `"keyspace"`), or at its next
        renewal, after a third of its ttl at the latest. Until then its body runs on, beside the next
        holder's: the fence stays, and what compares fencing tokens is safe.

        A key that is not as aiolocks writes it (`problem`) is removed. Of a `MultiLock` only this name is
        freed at once, the others when its holder has noticed. Cancelled, it may have been done or not; to do
        it again does no harm.

        Args:
            name: Name of the lock.
            kind: Such as `"lock"`, `"fairlock"`, `"semaphore"`, `"rwlock"`; None for every kind of that name.

        Returns:
            What was freed, one for each kind, as it stood before; empty if nobody held it.

        Raises:
            TypeError, ValueError: An argument is not as it should be.
            BackendError: Refused, or no answer within `command_timeout`.
        """
        from .._inspection.freeing import force_release  # noqa: PLC0415 - as above

        return await force_release(self._admit(), name, kind)

    def __repr__(self) -> str:
        engine = self._engine
        if not self._open():
            state = "closed"
        elif engine is None:
            state = "not used yet"
        else:
            state = f"held={len(engine.watchdog)} waiting={len(engine.waiting)}"
        return f"<Session prefix={self._settings.prefix!r} {state}>"

    def _open(self) -> bool:
        return not self._closed_unused if self._engine is None else self._engine.usable

    def _connect(self, loop: asyncio.AbstractEventLoop, session_id: str, on_rung: OnRung) -> Transport:
        return open_transport(
            self._client,
            loop,
            prefix=self._settings.prefix,
            session=session_id,
            wakeup=self._wakeup,
            on_rung=on_rung,
        )

    def _admit(self) -> Engine:
        """The engine that does the work, for use here and now.

        Raises:
            SessionClosedError: It was closed.
            RuntimeError: It belongs to another event loop or process.
        """
        if self._closed_unused:
            raise SessionClosedError("the session is closed")
        if self._engine is None:
            loop = asyncio.get_running_loop()
            self._engine = Engine(loop, self._settings, self._events, functools.partial(self._connect, loop))
        self._engine.admit()
        return self._engine

    def _lead(self, sessions: tuple[Session, ...]) -> Engine:
        """The engine that does the work for several sessions at once, of which this is the first."""
        for session in sessions:
            session._admit()  # noqa: SLF001 - its own class, here and below
        members = tuple(map(weakref.ref, sessions))
        for those, engine in self._led:
            if those == members and engine.serves:
                return engine
        loop, clients = asyncio.get_running_loop(), [client_of(session) for session in sessions]

        def connect(session_id: str, on_rung: OnRung) -> Transport:
            return open_quorum(
                clients,
                loop,
                prefix=self._settings.prefix,
                session=session_id,
                wakeup=self._wakeup,
                on_rung=on_rung,
            )

        engine = Engine(loop, self._settings, self._events, connect)
        # A session that has gone will not come again.
        self._led = [
            (those, other)
            for those, other in self._led
            if other.usable and all(session() is not None for session in those)
        ]
        self._led.append((members, engine))
        for session in sessions:
            session._joint.add(engine)  # noqa: SLF001
        return engine


def source_of(client: Any) -> Any:
    """A session or a client, as given; checked.

    Raises:
        TypeError: It is neither.
    """
    if not isinstance(client, Session):
        check_client(client, or_session=True)
    return client


def engine_of(source: Any, used_by: object = None) -> Engine:
    """The engine that does the work for a session, or for the default session of a client.

    Args:
        source: The session or the client.
        used_by: The lock or the like; None if its keys do not have the session's prefix.

    Raises:
        SessionClosedError: The session was closed.
        RuntimeError: It belongs to another event loop or process.
    """
    return _session_for(source, used_by)._admit()  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - the one door to it


def joint_engine_of(sources: Iterable[Any], used_by: object = None) -> Engine:
    """The engine that does the work for several sessions, or default sessions of clients, together.

    It has the settings of the first, is the same for the same ones on the same event loop, and ends with any
    of them.

    Raises:
        SessionClosedError: One of the sessions was closed.
        RuntimeError: One of them belongs to another event loop or process.
    """
    sessions = tuple(_session_for(source, used_by) for source in sources)
    return sessions[0]._lead(sessions)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - the other door


def _session_for(source: Any, used_by: object) -> Session:
    if isinstance(source, Session):
        return source
    if used_by is not None:
        apart.used(source, used_by, _PREFIX)
    return Session.of(source)


def client_of(source: Any) -> Any:
    """The client of a session, or the client itself."""
    if isinstance(source, Session):
        return source._client  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    return source
