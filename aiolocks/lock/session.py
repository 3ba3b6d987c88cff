"""The state that all locks of one client share: one connection, one watchdog, the gates, the counts."""

from __future__ import annotations

import asyncio
import functools
import secrets
import weakref
from collections.abc import Callable, Coroutine, Generator, Iterable, Sequence
from contextlib import contextmanager
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Never, Protocol, Self, Unpack, cast, final

from .._tasks import spawn
from ..errors import LockError, SessionClosedError
from ..transport import (
    PROTOCOLS,
    WAKEUPS,
    Dialect,
    KeyspaceWakeup,
    Transport,
    a_question,
    check_client,
    open_clients,
    open_quorum,
    open_transport,
    place,
)
from ..transport import Protocol as RespVersion
from ..transport.steps.family import kinds
from . import mixed_prefixes
from .backoff import Backoff
from .engine import Engine, GuardMode, OnDeadlock, Search, SessionOptions, Settings, Wakeup
from .events import Events
from .guard import GUARD_MODES, ward
from .leaving import Release
from .misuse import AsyncOnly, running_loop
from .options import (
    LARGEST_METADATA,
    LARGEST_VALUE,
    Metadata,
    Seconds,
    key_prefix,
    reject_unknown,
    seconds,
    size,
    user_metadata,
)
from .renewal import Tracked, Watchdog
from .resumption import Resumption
from .sources import DEFAULT_SESSIONS, PREFIX, AsyncClient, Source, sessions_are
from .statistics import SessionStatistics
from .tenure import Keep
from .wakeups import Bells

if TYPE_CHECKING:
    from .._deadlocks import Deadlock
    from .._infos import LockInfo


# -- The client that a session makes for itself, and closes.


@final
class OwnClient:
    """A client that is made when it is first needed, and again for another event loop, or once it was closed.

    Args:
        source: A URL, or a function that makes a client.

    Raises:
        TypeError, ValueError: It is neither.
    """

    __slots__ = ("_beside", "_client", "_open")

    def __init__(self, source: Source) -> None:
        self._client: Any = None
        self._beside: Sequence[Any] = ()
        if isinstance(source, str):
            self._open = functools.partial(open_clients, source)
            self.get()  # a URL that is wrong is told at once
        elif callable(source):
            self._open = functools.partial(_made, source)
        else:
            raise TypeError(f"give a URL, or a function that makes a client, not {type(source).__name__}")

    def get(self) -> Any:
        """The present client."""
        if self._client is None:
            self._client, self._beside = self._open()
        return self._client

    def forget(self) -> tuple[Any, ...]:
        """The next client is a new one. Returns what has to be closed of the present one."""
        clients = () if self._client is None else (self._client, *self._beside)
        self._client, self._beside = None, ()
        return clients


def _made(make: Callable[[], Any]) -> tuple[Any, Sequence[Any]]:
    client = make()
    check_client(client)
    return client, ()


# -- Engines that serve several sessions together: the engines of a `Redlock`.


@final
class JointEngines:
    """The engines that serve one session together with other sessions.

    Attributes:
        all: The first of the sessions keeps such an engine, and so do its users.
    """

    __slots__ = ("_led", "all")

    def __init__(self) -> None:
        self.all: weakref.WeakSet[Engine] = weakref.WeakSet()
        # The engines that this session leads, which have its settings, and for which sessions.
        self._led: list[tuple[tuple[weakref.ref[object], ...], Engine]] = []

    @property
    def led(self) -> list[Engine]:
        """The engines that this session leads."""
        return [engine for _, engine in self._led]

    def led_for(self, sessions: tuple[object, ...]) -> Engine | None:
        """The engine that this session leads for exactly these sessions, if it can be used in this loop."""
        members = tuple(map(weakref.ref, sessions))
        for those, engine in self._led:
            if those == members and engine.serves:
                return engine
        return None

    def lead(self, sessions: tuple[object, ...], engine: Engine) -> None:
        """This session is the first of these; a session that has gone will not come again."""
        self._led = [
            (those, other)
            for those, other in self._led
            if other.usable and all(session() is not None for session in those)
        ]
        self._led.append((tuple(map(weakref.ref, sessions)), engine))


class Operators(Protocol):
    """What `aiolocks.inspect` adds to a session: it looks at locks from outside, and knows all kinds."""

    def inspect(self, engine: Engine, pattern: str, /) -> Coroutine[Any, Any, list[LockInfo]]: ...

    def deadlocks(self, engine: Engine, /) -> Coroutine[Any, Any, list[Deadlock]]: ...

    def force_release(
        self, engine: Engine, name: str, kind: str | None, /, *, by: str | None
    ) -> Coroutine[Any, Any, list[LockInfo]]: ...

    def Detector(self, engine: Engine, /) -> Search: ...  # noqa: N802 - a class


_operators: Callable[[], Operators]


def use_operators(load: Callable[[], Operators]) -> None:
    """Sets what gives the methods for operators and the search for deadlocks, when one is first needed."""
    global _operators  # noqa: PLW0603 - once, by the package itself
    _operators = load


def _search(engine: Engine) -> Search:
    return _operators().Detector(engine)


_BACKOFF: Final = Backoff()


@final
class Session(AsyncOnly):
    """The state that all locks of one client share.

    A session has its own connection to the server, or to each node of a cluster, with the class and settings
    of the client. It uses no connection of the client's pool. It belongs to one event loop and one process.

    Use `async with Session(redis) as session:`. On exit, the session accepts no new acquire, ends every
    waiter with `SessionClosedError`, releases the leases that no code works under, marks the other
    leases LOST, cancels the bodies that entered them, waits at most 1 s for these bodies to end and release,
    and closes its connection; see `aclose`. A lock that gets a client and no session uses
    `Session.of(client)`, which needs no close.

    Args:
        client: `redis.asyncio.Redis` (its own `protocol` and `decode_responses` do not matter) or
            `RedisCluster`; of valkey-py, `valkey.asyncio.Valkey` or `ValkeyCluster`.
        prefix: The prefix with which every key begins; no braces. Locks with different prefixes do not
            exclude each other.
        wakeup: How waiters learn that a lock is free. `"auto"` uses the first of the next three that the
            server allows. It decides on the first connection, and logs a line if this is not `"tracking"`.
            `"tracking"`: the server sends a push (client-side caching, RESP3). `"keyspace"`, or
            `KeyspaceWakeup`: the server sends keyspace notifications, which must be on; over RESP2 they need
            a second connection. `"poll"`: waiters sleep and try again, as `backoff` says. With pushes, a
            request every 0.6 s finds pushes that were lost.
        protocol: The version of RESP that the session uses, whatever the client uses. None: RESP3 if the
            server has it. If the server refuses `HELLO 3`, closes the connection, or does not answer within 1
            s, and RESP2 works, the session logs this once and uses RESP2: then waiters get keyspace
            notifications, or poll. 2: `HELLO 3` is never sent. 3: a server without RESP3 raises
            `ConfigurationError`. If the client has a custom connection class, the session uses the protocol
            of the client, unless this is 2.
        backoff: How long waiters sleep between two tries, if the server sends them no pushes.
        command_timeout: Seconds that a single request without a deadline may take while the server is silent.
            If the server cannot be reached, such a request fails at once.
        fence_retention: Seconds for which the last fencing token of a name is kept after its last use, at
            least ten times the ttl. It only matters if the server's clock is set back.
        metadata: JSON values, kept with every lease of the session, and readable by every user that can read
            the keys.
        largest_metadata: Bytes of JSON that the metadata of a lease may have, together with the metadata
            of the session. More raises `ConfigurationError` before anything is sent. Each acquire sends its
            metadata, and each refusal has the metadata of the holders.
        largest_value: Bytes that a value of a `SingleFlight` or a `FencedRegister` may have. Every server
            accepts the default, however it is configured. A server closes the connection if it gets more than
            its `client-query-buffer-limit`. A larger value of a `SingleFlight` is not lost: the caller that
            made it gets it, and other callers get `ResultNotKeptError`.
        guard: What happens when code in a body keeps the event loop from running until an entered lease of
            this session (with `on_lost="cancel"`) is about to end: the lease is not renewed then, and the
            body cannot be cancelled. Some time before that end (5 % of the ttl, 50 ms at least, a quarter of
            the ttl at most) `"log"` logs the stack of the loop's thread, under `aiolocks.guard`. `"exit"`
            also ends the process, by `os._exit(70)`, before another process can get the lock. None does
            nothing. One daemon thread serves all sessions of a process. It cannot help while the whole
            process is stopped, or while C code keeps the GIL.
        on_deadlock: What happens to a waiter of this session that is part of a deadlock over several
            processes: tasks that wait for each other. `"report"`: it goes on waiting; the deadlock is logged,
            and `on_deadlock` of the listeners is called. `"raise"`: in addition, the youngest waiter of the
            deadlock whose session has `"raise"` gets a `DeadlockError`. To find deadlocks, a session in which
            a task that holds a lease has waited for 0.4 s sends one request every 0.6 s. `deadlocks` says
            which deadlocks are found.
        listeners: Objects with any of `on_acquired`, `on_waiting`, `on_released`, `on_lost`, `on_renewed`, or
            of the other methods in the table of events.

    Raises:
        TypeError, ValueError: An argument is wrong.
        ConfigurationError: From the first use on, if a `wakeup` was asked for by name that is not available,
            or `protocol=3`.
    """

    _elsewhere = "tasks can share it; in another process, make one with a client of that process"

    @staticmethod
    def _meant(name: str) -> str:
        # An `aiolocks.sync.Session` makes kinds in this way, and has a method for each.
        kind = next((kind for kind in kinds().values() if kind.title.lower() == name), None)
        if kind is None or kind.made_by:
            return ""
        if name == "redlock":
            return "write Redlock([client, …], name), of independent masters"
        return f"write {kind.title}(session, …), or make an aiolocks.sync.Session for threads"

    def __init__(
        self,
        client: AsyncClient,
        *,
        prefix: str = PREFIX,
        wakeup: Wakeup = "auto",
        protocol: RespVersion = None,
        backoff: Backoff = _BACKOFF,
        command_timeout: Seconds = 5.0,
        fence_retention: Seconds = 600.0,
        metadata: Metadata | None = None,
        largest_metadata: int = LARGEST_METADATA,
        largest_value: int = LARGEST_VALUE,
        guard: GuardMode = "log",
        on_deadlock: OnDeadlock = "report",
        listeners: Iterable[object] = (),
        **unknown: Never,
    ) -> None:
        reject_unknown("Session", unknown)
        given: Any = client
        own = given if isinstance(given, OwnClient) else None
        if own is None:
            check_client(client)
        if wakeup not in WAKEUPS and not isinstance(wakeup, KeyspaceWakeup):
            allowed = ", ".join(map(repr, WAKEUPS))
            raise ValueError(f"wakeup must be one of {allowed} or a KeyspaceWakeup, not {wakeup!r}")
        if protocol not in PROTOCOLS or isinstance(protocol, float):
            raise ValueError(f"protocol must be 2, 3 or None, not {protocol!r}")
        if not isinstance(backoff, Backoff):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"backoff must be an aiolocks.Backoff, not {type(backoff).__name__}")
        if guard not in GUARD_MODES:
            raise ValueError(f"guard must be 'log', 'exit' or None, not {guard!r}")
        if on_deadlock not in ("report", "raise"):
            raise ValueError(f"on_deadlock must be 'report' or 'raise', not {on_deadlock!r}")
        self._own = own
        self._given = client
        self._wakeup: Wakeup = wakeup
        self._dialect = Dialect(protocol)
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
        self._joint = JointEngines()
        self._closed_unused: bool = False

    @property
    def _client(self) -> Any:
        return self._given if self._own is None else self._own.get()

    @classmethod
    def from_url(cls, url: Source, **options: Unpack[SessionOptions]) -> Session:
        """A session that makes its client when it is first used, and closes the client when it is closed.

        ```python
        locks = Session.from_url("redis://localhost:6379", prefix="shop")  # at import: there is no I/O


        @Lock(locks, "report")
        async def report(): ...


        async def main():
            async with locks:
                await report()
        ```

        The session can be made before there is an event loop, and used on several event loops one after the
        other, as in tests. On each loop, and in each forked process, it makes a new client. After it was
        closed, only `async with` opens it again.

        Args:
            url: `redis://`, `rediss://` (TLS) or `unix://`, as redis-py reads it.
                `redis+cluster://host:port,host:port` names some nodes of a cluster, and
                `redis+sentinel://host:port,host:port/service` the master that Sentinel knows by that name.
                Options of the client are in the query, as in `rediss://host?ssl_ca_certs=ca.pem`; options of
                the connections to Sentinel begin with `sentinel_`. Or a function that makes a client, for
                options that a URL cannot have.
            **options: Options of the session.

        Raises:
            TypeError, ValueError: An argument is wrong, or the URL names no server.
        """
        make: Any = cls
        made: Session = make(OwnClient(url), **options)
        return made

    @classmethod
    def of(cls, client: AsyncClient) -> Session:
        """The default session of a client: the same object for the same client on the same event loop.

        It is made on first use, with default arguments. It needs no close: its connection ends with the loop
        or with the client, whichever comes first. `await client.aclose()` on this loop closes its connection,
        too: at once or, because held leases stay held, within 0.5 s after the last lease and the last waiter
        have gone. The next use makes a new connection, as for the client.

        `asyncio.run` ends a loop correctly, and so do `loop.shutdown_asyncgens()` and `loop.close()`
        together: leases that no code works under are released, as `aclose` does. `loop.close()` alone closes
        only the connection: leases that are still held end with their ttl. Threads that each have a loop may
        share one client.

        Raises:
            TypeError: It is not a client.
            RuntimeError: There is no running event loop.
        """
        loop = running_loop()
        # Threads with a loop each share them: each step is one of a dictionary, and an entry is of one thread
        # until its loop is closed.
        if not hasattr(client, DEFAULT_SESSIONS):
            check_client(client)
            attributes = vars(client)
            attributes.setdefault(DEFAULT_SESSIONS, {})
            attributes.setdefault("aclose", partial(_aclose, client))
        sessions: dict[asyncio.AbstractEventLoop, Session] = getattr(client, DEFAULT_SESSIONS)
        session = sessions.get(loop)
        if session is None or not session._open():  # noqa: SLF001 - its own class
            for other in sessions.copy():
                if other.is_closed():
                    sessions.pop(other, None)
            session = sessions[loop] = cls(client)
        return session

    async def __aenter__(self) -> Self:
        if self._own is not None and not self._open():
            self._begin_anew()
        self._usable_engine()
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self, *, release: Release = "unused") -> None:
        """Closes the session, as the end of its `async with` does. A second call does nothing.

        A lease that no body is inside of is released, if the task that acquired it is done, or is the task
        that closes the session: all of them together, within `command_timeout`. Any other lease is lost. A
        body is cancelled, and gives its lock back as it ends. If it does not end within 1 s, the name stays
        taken until the ttl has passed. So does the name of a lease that was acquired and not entered by a
        task that still runs, because it may still work. The log says how many were released, cancelled and
        left, and until when names stay taken.

        A lease that was handed to another task or thread cannot be seen: it is released if the task that
        acquired it is done. If this would do harm, enter it in the task that works, or close with
        `release="none"`.

        Args:
            release: `"unused"`, the default, as above. `"none"`: no lease is released. Leases that the
                session keeps between uses (`cache=`) are no longer held, and are released in any case.

        Raises:
            ValueError: `release` is neither.

        If it is cancelled, the session is closed in the background.
        """
        if release not in ("unused", "none"):
            raise ValueError(f"release must be 'unused' or 'none', not {release!r}")
        closer = asyncio.current_task()
        mixed_prefixes.closed(self)
        engine = self._engine
        if engine is None:
            self._closed_unused = True
        here = engine is None or not engine.left_behind
        engines = [*self._joint.all, *([] if engine is None else [engine])]
        try:
            if len(engines) == 1:
                await engines[0].aclose(closer, release=release == "unused")
            elif engines:
                loop = asyncio.get_running_loop()
                closings = [engine.aclose(closer, release=release == "unused") for engine in engines]
                await asyncio.gather(
                    *(spawn(loop, closing, name="aiolocks-close", context=None) for closing in closings)
                )
        finally:
            if self._own is not None and self._engine is engine:  # else it was opened again meanwhile
                for client in self._own.forget():
                    if here:
                        await client.aclose()

    def statistics(self) -> SessionStatistics:
        """Counts: the leases and waiters of this session now, and its work since it was made. No I/O."""
        engines = self._joint.led + ([] if self._engine is None else [self._engine])
        counts = [engine.statistics() for engine in engines]
        return self._events.counters.snapshot(
            leases_held=sum(count.leases_held for count in counts),
            waiters=sum(count.waiters for count in counts),
            commands_sent=sum(count.commands_sent for count in counts),
            cached=sum(count.cached for count in counts),
        )

    # -- for operators

    async def healthy(self, *, within: Seconds = 5.0) -> bool:
        """Whether this event loop and the server answer in time: for a health probe.

        It sends the server a very small request over the session's own connection, as each renewal does. True
        means that the loop runs, that it is not busy for longer than `within`, and that the server serves
        this session. It never raises because of the server, and never takes longer than `within`, unless the
        loop does not run. Then the probe gets no answer at all, and fails by its own time-out.

        A restart of the process does not help if the server is away: "Run in Kubernetes" on the page "Run it
        in production" says for which probe this is.

        Args:
            within: Seconds that the answer may take. Default 5 s.

        Returns:
            False if there was no answer in time, or the server refused, or the session is closed.

        Raises:
            TypeError, ValueError: `within` is wrong.
            RuntimeError: The session belongs to another event loop or process.

        Cancelled, it changes nothing.
        """
        within = seconds("within", within, least=0.001)
        running_loop()
        try:
            async with asyncio.timeout(within):
                engine = self._usable_engine()
                await engine.ask(a_question(engine.settings.prefix, engine.session_id))
        except (LockError, TimeoutError):
            return False
        return True

    async def inspect(self, pattern: str = "*") -> list[LockInfo]:
        """The holders and the number of waiters of each name, as the server has them now.

        It goes through all keys of the server with SCAN, and reads each name separately: a change during this
        time may be shown or not. A pattern without wildcards reads only this name.

        Args:
            pattern: A pattern of names, with `*`, `?` and `[…]` as in a shell. For a name that has these
                characters: `glob.escape(name)`.

        Returns:
            All names that are held, waited for, or wrong (`problem`), in the order of names. Names of which
            only a fence is left are not included, and neither are runs of a `UniqueJob` whose tickets may run
            at the same time (unique until executing, or until expired).

        Raises:
            TypeError, ValueError: The pattern is wrong.
            BackendError: Refused (it needs more permissions than a lock does), or no answer within
                `command_timeout`, which counts for each of its requests.
        """
        return await _operators().inspect(self._usable_engine(), pattern)

    async def deadlocks(self) -> list[Deadlock]:
        """Finds tasks of all processes that wait for each other, and would wait for ever.

        It looks at waits of at least 0.4 s, also waits with a time-out, of tasks that have entered a lease
        which does not end by itself (renewed, without `max_hold`). It knows all kinds of locks of this prefix
        and server except `Redlock`. A suspected deadlock is checked a second time, and in between each
        session confirms that its task still waits; this takes 0.6 to 1.6 s. Waits of aiolocks versions that
        do not publish them are unknown. If more than 1000 sessions have such waits, 1000 of them are read.

        Returns:
            Each deadlock once; empty if there is none.

        Raises:
            BackendError: Refused (it needs the permissions that `inspect` needs, except SCAN), or no answer
                within `command_timeout`, which counts for each of its requests.

        Cancelled, it changes nothing.
        """
        return await _operators().deadlocks(self._usable_engine())

    async def force_release(
        self, name: str, *, kind: str | None = None, by: str | None = None
    ) -> list[LockInfo]:
        """Frees a name from its holders, and wakes its waiters.

        The holder's lease becomes `LOST`: at once if it is of this session; after a push and a question if
        its session gets pushes (`wakeup` `"tracking"` or `"keyspace"`); otherwise at its next renewal, after
        at most a third of its ttl. Until then its body runs at the same time as the next holder's. The fence
        stays, so a store that compares fencing tokens is safe. The error and the log of the holder say that
        it was released by force, and by whom. If a name has more than 16 holders, and for a `Redlock`, a
        `Schedule`, a `SingleFlight` or a `UniqueJob`, they only say that the server no longer has it as the
        holder.

        A key that is not as aiolocks writes it (`problem`) is removed. Of a `MultiLock`, only this name is
        freed at once, and the other names when its holder has noticed the loss. If it is cancelled, the name
        may be freed or not; a second call does no harm.

        Args:
            name: Name of the lock.
            kind: Such as `"lock"`, `"fairlock"`, `"semaphore"`, `"rwlock"`; None for every kind of that name
                that has holders. `"ratelimit"` fills the bucket of a `RateLimit`: its waiters move up.
            by: The operator, as the holder is told; of a long name, the first 200 characters. None: host,
                process and task of the caller.

        Returns:
            The freed names, one for each kind, as they were before; empty if there was no holder.

        Raises:
            TypeError, ValueError: An argument is wrong.
            BackendError: Refused, or no answer within `command_timeout`.
        """
        return await _operators().force_release(self._usable_engine(), name, kind, by=by)

    # -- inside

    def __repr__(self) -> str:
        engine = self._engine
        if not self._open():
            state = "closed"
        elif engine is None:
            state = "not used yet"
        else:
            state = f"held={len(engine.watchdog)} waiting={len(engine.waiting)}"
        return f"<Session prefix={self._settings.prefix!r} {state}>"

    def _has(self, engine: Engine) -> bool:
        return engine is self._engine or engine in self._joint.all

    def _rest(self) -> None:
        """Its client was closed: so are its connections, as soon as no lease and no task uses them."""
        for engine in (*self._joint.all, *([] if self._engine is None else [self._engine])):
            engine.rest()

    def _open(self) -> bool:
        return not self._closed_unused if self._engine is None else self._engine.usable

    def _begin(self, connect_to: Callable[..., Transport]) -> Engine:
        """A new engine with the settings of this session: builds the parts, and joins them."""
        loop, settings, events = running_loop(), self._settings, self._events
        session_id = secrets.token_hex(8)
        resumption = Resumption(loop)
        watchdog = Watchdog(loop, events, resumption)
        bells = Bells(loop)
        tracked = watchdog.tracked = Tracked(loop, bells.rung)
        tracked.ask_all = watchdog.ask_all
        transport = connect_to(
            loop=loop,
            prefix=settings.prefix,
            wakeup=self._wakeup,
            session=session_id,
            on_rung=tracked.rung,
        )
        tracked.forget = transport.ignore_bell
        kept = Keep(loop, events)
        kept.tracked = tracked
        watchdog.idle = kept.idle
        bells.ring_over(transport)
        return Engine(
            loop,
            settings,
            events,
            transport,
            session_id=session_id,
            resumption=resumption,
            watchdog=watchdog,
            bells=bells,
            ward=ward(loop, watchdog.watches, settings.guard),
            make_search=_search,
            kept=kept,
        )

    def _usable_engine(self) -> Engine:
        if self._closed_unused:
            raise SessionClosedError("the session is closed: use a session that is open")
        if self._own is not None and (engine := self._engine) and engine.left_behind and not engine.closing:
            self._own.forget()  # nothing of it can be closed any more
            self._begin_anew()
        if self._engine is None:
            client = self._client
            self._engine = self._begin(partial(open_transport, client, dialect=self._dialect))
            if self._settings.prefix != PREFIX:
                mixed_prefixes.opened(self, place(client), self._settings.prefix)
        self._engine.check_usable()
        return self._engine

    def _begin_anew(self) -> None:
        """The next use is a first one. Only with a client of its own, which then is another one, too."""
        self._engine = None
        self._joint = JointEngines()
        self._closed_unused = False

    @contextmanager
    def _redirected(self, make: Callable[[], Any]) -> Generator[None]:
        """For the block, this session makes its clients by that function, as `from_url` does. For tests.

        Raises:
            RuntimeError: It is in use already; or it is still in use at the end, in a loop that runs.
        """
        if self._engine is not None and not (self._engine.left_behind or self._engine.closing):
            raise RuntimeError("this session is in use already: redirect it before it is used")
        before = self._own, self._engine, self._joint, self._closed_unused
        self._own = OwnClient(make)
        self._begin_anew()
        try:
            yield
            if (engine := self._engine) is not None and not (engine.left_behind or engine.closing):
                if engine.loop.is_running():
                    raise RuntimeError(
                        "this session is still in use: close it, or its application, before the block ends"
                    )
                # Between two tests, the loop of a framework for tests stands still.
                engine.loop.run_until_complete(self.aclose())
        finally:
            self._own, self._engine, self._joint, self._closed_unused = before

    def _lead(self, sessions: tuple[Session, ...]) -> Engine:
        """The engine that does the work for several sessions at once, of which this is the first."""
        for session in sessions:
            session._usable_engine()  # noqa: SLF001 - its own class, in this method
        engine = self._joint.led_for(sessions)
        if engine is None:
            clients = [(session._client, session._dialect) for session in sessions]  # noqa: SLF001
            engine = self._begin(partial(open_quorum, clients))
            self._joint.lead(sessions, engine)
            for session in sessions:
                session._joint.all.add(engine)  # noqa: SLF001
        return engine


async def _aclose(client: Any, *args: Any, **options: Any) -> None:
    """`aclose` of a client that has default sessions: the client has no other way to tell of it."""
    aclose = cast("Callable[..., Any]", cast("Any", type(client)).aclose)  # also of a subclass
    try:
        await aclose(client, *args, **options)
    finally:
        session = getattr(client, DEFAULT_SESSIONS).get(asyncio.get_running_loop())
        if session is not None:
            session._rest()  # noqa: SLF001 - of this very module


sessions_are(Session)
