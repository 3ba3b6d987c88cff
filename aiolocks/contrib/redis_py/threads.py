"""The lock of redis-py for threads, with the same interface and the same key on the server."""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Awaitable, Callable, Iterable
from types import TracebackType
from typing import Any, Final, Literal, Never, Self, TypeVar, cast

import redis.exceptions as driver
from redis.asyncio import Redis as AsyncRedis
from redis.asyncio import connection as asynchronous
from redis.asyncio.lock import Lock as AsyncRedisPyLock
from redis.connection import Connection, SSLConnection, UnixDomainSocketConnection
from redis.lock import Lock as RedisPyLock

from ...errors import ConfigurationError
from ...lock.notes import note
from ...lock.sources import Source, engine_of
from ...sync.link import Link
from ...sync.loopthread import Errand
from .lock import Lock
from .waiting import Patience
from .wire import Wire

log = logging.getLogger(RedisPyLock.__module__)  # where redis-py's users look for it

T = TypeVar("T")

_ALIKE: Final[dict[Any, Any]] = {
    Connection: asynchronous.Connection,
    SSLConnection: asynchronous.SSLConnection,
    UnixDomainSocketConnection: asynchronous.UnixDomainSocketConnection,
}
_TAKEN: Final = {
    *("client_name", "credential_provider", "db", "encoding", "encoding_errors", "health_check_interval"),
    *("host", "password", "path", "port", "protocol", "socket_connect_timeout", "socket_keepalive"),
    *("socket_timeout", "username"),
}
"""The options of a connection that mean the same in both sorts of clients; and all of `ssl_`."""


def source_of(client: Any) -> Callable[[], AsyncRedis]:
    """Makes asynchronous clients that reach the same server as a client of `redis`.

    Raises:
        ConfigurationError: It is not known how the client connects.
    """
    pool: Any = getattr(client, "connection_pool", None)
    alike = None if pool is None else _ALIKE.get(pool.connection_class)
    given: dict[str, Any] = {} if pool is None else pool.connection_kwargs
    if alike is None or given.get("redis_connect_func") is not None:
        raise ConfigurationError(
            "SyncLock makes a connection of its own, and knows redis-py's plain, TLS and Unix connections; "
            f"{type(client).__name__} connects in another way: give lock_class=functools.partial(SyncLock, "
            "source=...), a URL or a function that makes a client of redis.asyncio"
        )
    options = {name: value for name, value in given.items() if name in _TAKEN or name.startswith("ssl_")}
    if isinstance(keepalive := given.get("socket_keepalive_options"), dict):
        options["socket_keepalive_options"] = keepalive
    return lambda: AsyncRedis(connection_pool=asynchronous.ConnectionPool(connection_class=alike, **options))


_links: weakref.WeakKeyDictionary[Any, Link] = weakref.WeakKeyDictionary()
_linking = threading.Lock()


def _link_of(client: Any, source: Source | None) -> Link:
    """The session for threads of that client: one for all its locks, which ends with the client."""
    with _linking:
        link = _links.get(client)
        if link is None:
            link = _links[client] = Link(source_of(client) if source is None else source, {})
            weakref.finalize(client, link.abandon).atexit = False  # the end of the program closes them all
        return link


class _Inner(Lock):
    """The asynchronous lock that does the work, in the session of threads."""

    def __init__(self, link: Link, encode: Callable[[Any], Any], name: Any, **options: Any) -> None:
        self._link = link
        self._encoded = encode
        AsyncRedisPyLock.__init__(self, cast("Any", None), name)  # it has no client of its own
        self._begin(**options)

    def _encode(self, value: Any) -> bytes:
        return bytes(self._encoded(value))

    def _wire(self) -> Wire:
        return Wire(engine_of(self._link.session()), self._encode(self.name))

    async def acquire_with(self, token: bytes, patience: Patience, *, unique: bool) -> bool:
        """As `acquire`; the caller has chosen the token."""
        wire = self._wire()
        if self._telling is None:
            return await self._acquire(wire, token, patience, unique=unique)
        with self._telling.acquiring(once=not patience.blocking) as told:
            if await self._acquire(wire, token, patience, unique=unique, told=told):
                told.token = token
        return told.token is not None

    async def end(self, token: bytes) -> None:
        """Releases it, and renews it no more."""
        self._holdings.stop_renewing(token)
        try:
            await self.do_release(token)
        except driver.LockNotOwnedError as error:
            self._forget(token, str(error))
            raise
        self._forget(token)

    async def stored(self) -> bytes | None:
        """The token of the holder, as the server says."""
        wire = self._wire()
        return await wire.ask(wire.steps.holder())

    def asked(self, ask: Callable[[Wire], Awaitable[bool]]) -> Awaitable[bool]:
        """The answer to a request of its holder."""
        return ask(self._wire())


class SyncLock(RedisPyLock):
    """redis-py's `Lock` for threads, safe to interrupt: give it to `redis.lock(name, lock_class=SyncLock)`.

    Arguments, attributes, methods, results and errors are as in redis-py 8. Key and value on the server
    are the same, too: this lock, redis-py's own locks and `aiolocks.contrib.redis_py.Lock` exclude each
    other. It differs in these points:

    - An `acquire()` that an exception interrupts, such as Ctrl-C or the time limit of a worker, leaves no
      key. An interrupted `release()` still releases.
    - If the reply to an acquire is lost, no key without a holder stays behind, and the lock does not refuse
      itself.
    - `blocking_timeout` also limits the wait for a server that does not answer.
    - If the body of `with` raises, an error of the release does not replace its exception.

    The lock does not use connections of the client's pool: the event loop of `aiolocks.sync`, in a thread of
    its own, has a connection of its own for each client. gevent and eventlet are refused.

    Args:
        redis: A `redis.Redis`.
        name: The key itself, without any prefix.
        timeout: Seconds after which the server frees the lock. None, the default, means never: if the holder
            dies, the key stays until it is deleted.
        sleep: Seconds between two tries. Default 0.1.
        blocking: Whether `acquire()` waits by default. Default True.
        blocking_timeout: Seconds to wait; None, the default, for ever. As in redis-py, `acquire()` gives up
            early if the next try would be too late.
        thread_local: Whether the token is hidden from other threads. Default True.
        raise_on_release_error: Whether the end of `with` raises if the lock is no longer owned. Default True.
        auto_renew: True renews a lock with a `timeout` after each third of it, until the lock is released.
            Default False, because users of redis-py expect the lock to end.
        wakeups: True lets waiters hear of the end of the key, if the server allows it. They also try after
            each `sleep`. Default False, because all waiters try at the same moment.
        listeners: As of `aiolocks.contrib.redis_py.Lock`, called in the thread of the event loop. Default:
            none.
        source: How to reach the server, where the client does not say it, as one of a cluster, of Sentinel or
            with a connection class of its own: a URL, or a function that makes a client of `redis.asyncio`.
            That of the first lock of a client counts.

    Raises:
        TypeError: An option is not a bool, or a listener is none.
        ConfigurationError: It is not known how the client connects; or gevent or eventlet has replaced
            threads.
    """

    def __init__(  # noqa: PLR0917 - as in redis-py
        self,
        redis: Any,
        name: str | bytes | memoryview,
        timeout: float | None = None,
        sleep: float = 0.1,
        blocking: bool = True,  # noqa: FBT001, FBT002 - as in redis-py
        blocking_timeout: float | None = None,
        thread_local: bool = True,  # noqa: FBT001, FBT002
        raise_on_release_error: bool = True,  # noqa: FBT001, FBT002
        *,
        auto_renew: bool = False,
        wakeups: bool = False,
        listeners: Iterable[object] = (),
        source: Source | None = None,
    ) -> None:
        super().__init__(redis, cast("str", name), timeout, sleep, blocking, blocking_timeout, thread_local)  # pyright: ignore[reportUnknownMemberType] - redis-py does not type its client
        self.raise_on_release_error = bool(raise_on_release_error)  # redis-py knows it since version 6
        self._link = _link_of(redis, source)
        self._inner = _Inner(
            self._link,
            redis.get_encoder().encode,
            name,
            auto_renew=auto_renew,
            wakeups=wakeups,
            listeners=[*listeners],
        )

    def register_scripts(self) -> None:
        """Does nothing: the scripts of redis-py's lock would keep the first client alive for ever."""

    # -- acquiring

    def acquire(
        self,
        sleep: float | None = None,
        blocking: bool | None = None,  # noqa: FBT001 - as in redis-py
        blocking_timeout: float | None = None,
        token: str | bytes | None = None,
    ) -> bool:
        """Acquires the lock, and returns whether it did.

        Args:
            sleep: Seconds between two tries. None, the default, takes the lock's own.
            blocking: Whether to wait. None, the default, takes the lock's own.
            blocking_timeout: Seconds to wait. None, the default, takes the lock's own.
            token: The value of the key. None, the default, takes a random one. Give a value that no other
                acquire uses: otherwise the lock cannot find out what became of a request whose reply was
                lost.

        Raises:
            redis.exceptions.RedisError: The error of redis-py for the failed request.
            RuntimeError: An event loop runs in this thread.

        If an exception interrupts it, it leaves no key.
        """
        inner = self._same()
        chosen = None if token is None else self._encode(token)
        waits = self.blocking if blocking is None else blocking
        limit = self.blocking_timeout if blocking_timeout is None else blocking_timeout
        pause = self.sleep if sleep is None else sleep

        async def work() -> bytes | None:
            engine = engine_of(self._link.session())
            mine = engine.token().encode() if chosen is None else chosen
            patience = Patience(
                engine.loop, blocking=waits, blocking_timeout=limit, sleep=pause, hears=inner.wakeups
            )
            return mine if await inner.acquire_with(mine, patience, unique=chosen is None) else None

        async def undo(taken: bytes | None) -> None:
            if taken is not None:
                await inner.end(taken)

        thread, errand = self._link.join_loop(), Errand(work, undo=undo)
        try:
            taken = thread.do(errand)
            if taken is not None:
                self.local.token = taken
        except BaseException:
            errand.give_up(thread)
            raise
        return taken is not None

    def do_acquire(self, token: str | bytes) -> bool:
        """Makes one try to acquire the lock."""
        inner, raw = self._same(), self._encode(token)
        return self._link.ask(lambda: inner.do_acquire(raw))

    # -- holding

    def locked(self) -> bool:
        """Whether any holder has the lock, as the server says."""
        return self._link.ask(self._same().locked)

    def owned(self) -> bool:
        """Whether the caller holds the lock through this object, as the server says."""
        inner, token = self._same(), self._token()
        found = self._link.ask(inner.stored)
        return token is not None and found == token

    def extend(self, additional_time: float, replace_ttl: bool = False) -> Literal[True]:  # noqa: FBT001, FBT002
        """Adds seconds to the ttl, or replaces it.

        Args:
            additional_time: Seconds.
            replace_ttl: True: the ttl becomes these seconds. False, the default: they are added to it.

        Raises:
            redis.exceptions.LockError: It is not locked, or has no timeout.
            redis.exceptions.LockNotOwnedError: It is no longer owned.
        """
        self._ensure_locked("extend")
        return self.do_extend(additional_time, replace_ttl)

    def do_extend(self, additional_time: float, replace_ttl: bool) -> Literal[True]:  # noqa: FBT001
        """The request of `extend()`."""
        time_ms = int(additional_time * 1000)
        return self._owner_asks(
            lambda wire, token: wire.ask(wire.steps.extend(token, time_ms, replace=bool(replace_ttl))),
            "extend",
        )

    def reacquire(self) -> Literal[True]:
        """Sets the ttl to the `timeout` again.

        Raises:
            redis.exceptions.LockError: It is not locked, or has no timeout.
            redis.exceptions.LockNotOwnedError: It is no longer owned.
        """
        self._ensure_locked("reacquire")
        return self.do_reacquire()

    def do_reacquire(self) -> Literal[True]:
        """The request of `reacquire()`."""
        assert self.timeout is not None
        time_ms = int(self.timeout * 1000)
        return self._owner_asks(
            lambda wire, token: wire.ask(wire.steps.reacquire(token, time_ms)), "reacquire"
        )

    def _ensure_locked(self, what: str) -> None:
        if self._token() is None:
            raise self._error(f"Cannot {what} an unlocked lock")
        if self.timeout is None:
            raise self._error(f"Cannot {what} a lock with no timeout")

    def _owner_asks(self, ask: Callable[[Wire, bytes], Awaitable[bool]], what: str) -> Literal[True]:
        inner, token = self._same(), self._encode(self._token())
        if not self._link.ask(lambda: inner.asked(lambda wire: ask(wire, token))):
            raise self._error(f"Cannot {what} a lock that's no longer owned", driver.LockNotOwnedError)
        return True

    # -- releasing

    def release(self) -> None:
        """Releases the lock.

        Raises:
            redis.exceptions.LockError: It was not acquired, or was already released.
            redis.exceptions.LockNotOwnedError: It is no longer owned.
            redis.exceptions.RedisError: The release was not confirmed. The token is kept, so you can call it
                again.
            RuntimeError: An event loop runs in this thread.

        If an exception interrupts it, the release goes on in the background.
        """
        token = self._token()
        if token is None:
            raise self._error("Cannot release a lock that's not owned or is already unlocked.")
        try:
            self.do_release(token)
        except driver.LockNotOwnedError:
            self.local.token = None
            raise
        self.local.token = None

    def do_release(self, expected_token: str | bytes) -> None:
        """The request of `release()`."""
        inner, token = self._same(), self._encode(expected_token)

        try:  # given up, it goes on to its end
            self._link.join_loop().have_done(Errand(lambda: inner.end(token)))
        except driver.LockNotOwnedError as error:
            raise self._error(str(error), driver.LockNotOwnedError) from None

    def __enter__(self) -> Self:
        if self.acquire():
            return self
        raise self._error("Unable to acquire lock within the time specified")

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self.release()
        except driver.RedisError as error:
            lost = isinstance(error, driver.LockError)
            if exc is None and (self.raise_on_release_error or not lost):
                raise
            if exc is not None:
                note(exc, f"and the lock was not released: {error}")
            if lost and not self.raise_on_release_error:
                log.warning("Lock was unlocked or no longer owned when exiting context manager.")

    # -- tokens

    def _token(self) -> Any:
        return getattr(self.local, "token", None)  # another thread has none

    def _encode(self, value: Any) -> bytes:
        client = cast("Any", self.redis)  # pyright: ignore[reportUnknownMemberType] - as above
        return bytes(client.get_encoder().encode(value))

    def _same(self) -> _Inner:
        """The one that does the work, with the attributes as they are now."""
        inner = self._inner
        inner.name, inner.timeout = cast("Any", self.name), self.timeout
        return inner

    def _error(self, text: str, error: type[driver.LockError] = driver.LockError) -> driver.LockError:
        return error(text, lock_name=cast("Any", self.name))

    def __reduce__(self) -> Never:
        raise TypeError(f"{self!r} cannot be pickled or copied: make a lock of the same name there")
