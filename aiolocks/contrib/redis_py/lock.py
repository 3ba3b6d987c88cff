"""The lock of redis-py, with the same interface and the same key on the server."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Iterable
from types import TracebackType
from typing import Any, Final, Literal, Self, cast

import redis.exceptions as driver
from redis.asyncio.lock import Lock as RedisPyLock

from ...lock.blocks import OpenBlocks
from ...lock.notes import note
from ...lock.options import flag
from ...lock.sources import AsyncClient, engine_of
from ...lock.wakeups import KeyListener
from ...transport import check_client
from .holdings import Holdings
from .scripts import Registered
from .telling import Acquiring, Telling
from .waiting import Patience
from .wire import Taking, Wire

log = logging.getLogger(RedisPyLock.__module__)  # where redis-py's users look for it

_AFTERWARDS: Final = 0.1


class Lock(RedisPyLock):
    """redis-py's asyncio `Lock`, safe to cancel: give it to `redis.lock(name, lock_class=Lock)`.

    Arguments, attributes, methods, results and errors are as in redis-py 8. Key and value on the server
    are the same, too: this lock and redis-py's own lock exclude each other. It differs in these points:

    - A cancelled or timed-out `acquire()` leaves no key. A cancelled `release()` still releases.
    - If the reply to an acquire is lost, no key without a holder stays behind.
    - `blocking_timeout` also limits the wait for a server that does not answer.
    - If tasks share the object, each task releases only the key that it has acquired.
    - If the body of `async with` raises, an error of the release does not replace its exception.

    The lock uses the client's default `aiolocks.Session`, not connections of the client's pool.

    Args:
        redis: A `redis.asyncio.Redis` or `RedisCluster`.
        name: The key itself, without any prefix.
        timeout: Seconds after which the server frees the lock. None, the default, means never: if the holder
            dies, the key stays until it is deleted.
        sleep: Seconds between two tries. Default 0.1.
        blocking: Whether `acquire()` waits by default. Default True.
        blocking_timeout: Seconds to wait; None, the default, for ever. As in redis-py, `acquire()` gives up
            early if the next try would be too late.
        thread_local: Whether the token is hidden from other threads. Default True.
        raise_on_release_error: Whether the end of `async with` raises if the lock is no longer owned. Default
            True.
        auto_renew: True renews a lock with a `timeout` after each third of it, until the lock is released or
            its object is collected. Default False, because users of redis-py expect the lock to end.
        wakeups: True lets waiters hear of the end of the key, by client-side caching if the server allows it,
            and lets them wait until `blocking_timeout` is over. They also try after each `sleep`. Default
            False, because all waiters try at the same moment.
        listeners: Objects that are told what the lock does, as the listeners of a `Session`: `on_waiting`,
            `on_waited`, `on_timeout`, `on_acquired`, `on_not_acquired`, `on_released` and `on_lost`. The kind
            is `"redispylock"`, and events have no fencing token. Default: none.

    Raises:
        TypeError: `redis` is not such a client, an option is not a bool, or a listener is none.
    """

    lua_release: Any = Registered("LUA_RELEASE_SCRIPT")
    lua_extend: Any = Registered("LUA_EXTEND_SCRIPT")
    lua_reacquire: Any = Registered("LUA_REACQUIRE_SCRIPT")

    def __init__(  # noqa: PLR0917 - as in redis-py
        self,
        redis: AsyncClient,
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
    ) -> None:
        check_client(redis)
        super().__init__(cast("Any", redis), name, timeout, sleep, blocking, blocking_timeout, thread_local)
        self._begin(auto_renew=auto_renew, wakeups=wakeups, listeners=[*listeners])
        self.raise_on_release_error = bool(raise_on_release_error)  # redis-py knows it since version 6

    def _begin(self, *, auto_renew: bool, wakeups: bool, listeners: list[object]) -> None:
        self.auto_renew = flag("auto_renew", auto_renew)
        self.wakeups = flag("wakeups", wakeups)
        self._holdings = Holdings()
        self._open: OpenBlocks[Any] = OpenBlocks()
        # Of tries under way, by token: whether it is unique, the loop time at which they are over, whether
        # they block.
        self._tries: dict[bytes, tuple[bool, float | None, bool]] = {}
        self._telling = None
        if listeners:
            self._telling = Telling(listeners, self._encode(self.name).decode(errors="replace"))

    def register_scripts(self) -> None:
        """Does nothing: the scripts of redis-py's lock would keep the first client alive for ever."""

    # -- acquiring

    async def acquire(
        self,
        blocking: bool | None = None,  # noqa: FBT001 - as in redis-py
        blocking_timeout: float | None = None,
        token: str | bytes | None = None,
    ) -> bool:
        """Acquires the lock, and returns whether it did.

        Args:
            blocking: Whether to wait. None, the default, takes the lock's own.
            blocking_timeout: Seconds to wait. None, the default, takes the lock's own.
            token: The value of the key. None, the default, takes a random one. Give a value that no other
                acquire uses: otherwise the lock cannot find out what became of a request whose reply was
                lost.

        Raises:
            redis.exceptions.RedisError: The error of redis-py for the failed request.

        Cancelled at any point, it leaves no key.
        """
        wire = self._wire()
        mine = wire.engine.token().encode() if token is None else self._encode(token)
        patience = Patience(
            wire.engine.loop,
            blocking=self.blocking if blocking is None else blocking,
            blocking_timeout=self.blocking_timeout if blocking_timeout is None else blocking_timeout,
            sleep=self.sleep,
            hears=self.wakeups,
        )
        if self._telling is None:
            return await self._acquire(wire, mine, patience, unique=token is None)
        with self._telling.acquiring(once=not patience.blocking) as told:
            if await self._acquire(wire, mine, patience, unique=token is None, told=told):
                told.token = mine
        return told.token is not None

    async def _acquire(
        self, wire: Wire, token: bytes, patience: Patience, *, unique: bool, told: Acquiring | None = None
    ) -> bool:
        ear = KeyListener(wire.engine, wire.key, by_itself=True)

        async def took() -> bool:
            return await self._try(token, patience, unique=unique)

        try:
            with ear if self.wakeups else contextlib.nullcontext():
                while True:
                    if await (ear.listened(took) if self.wakeups else took()):
                        self._took(wire, token)
                        return True
                    patience.refused = True
                    pause = patience.pause()
                    if pause is None:
                        return False
                    if told is not None:
                        told.refused()
                    await ear.sleep(pause)
        finally:
            self._tries.pop(token, None)

    async def _try(self, token: bytes, patience: Patience, *, unique: bool) -> bool:
        limit = patience.limit()
        self._tries[token] = unique, limit, patience.blocking
        # For a subclass whose request knows no limit; ours tells what is wrong.
        clock = asyncio.timeout_at(None if limit is None else limit + _AFTERWARDS)
        try:
            async with clock:
                return await self.do_acquire(token)
        except (TimeoutError, driver.TimeoutError, driver.ConnectionError) as error:
            if patience.refused and patience.over(limit):
                return False
            if isinstance(error, TimeoutError) and clock.expired():
                raise driver.TimeoutError("Redis did not answer in time to acquire the lock") from None
            raise

    async def do_acquire(self, token: str | bytes) -> bool:
        """Makes one try to acquire the lock."""
        wire = self._wire()
        # As redis-py: no timeout is none, and fractions of a millisecond are cut off.
        timeout_ms = int(self.timeout * 1000) if self.timeout else None
        raw = self._encode(token)
        unique, limit, patient = self._tries.get(raw, (False, None, False))
        taking = Taking(
            wire, raw, timeout_ms, unique=unique, listen=self.wakeups, limit=limit, patient=patient
        )
        return await taking.taken()

    def _took(self, wire: Wire, token: bytes) -> None:
        self.local.token = token
        self._holdings.took(token)
        if self.auto_renew and self.timeout:
            self._holdings.renew(wire, token, self.timeout, self._telling)

    # -- holding

    async def locked(self) -> bool:
        """Whether any holder has the lock, as the server says."""
        wire = self._wire()
        return await wire.ask(wire.steps.holder()) is not None

    async def owned(self) -> bool:
        """Whether the caller holds the lock through this object, as the server says."""
        wire = self._wire()
        stored = await wire.ask(wire.steps.holder())
        token = self._token()
        return token is not None and stored == token

    def extend(self, additional_time: float, replace_ttl: bool = False) -> Awaitable[Literal[True]]:  # noqa: FBT001, FBT002
        """Adds seconds to the ttl, or replaces it.

        Args:
            additional_time: Seconds.
            replace_ttl: True: the ttl becomes these seconds. False, the default: they are added to it.

        Raises:
            redis.exceptions.LockError: It is not locked, or has no timeout; raised at once, before it is
                awaited.
            redis.exceptions.LockNotOwnedError: It is no longer owned.
        """
        if self._token() is None:
            raise driver.LockError("Cannot extend an unlocked lock")
        if self.timeout is None:
            raise driver.LockError("Cannot extend a lock with no timeout")
        return self.do_extend(additional_time, replace_ttl)

    async def do_extend(self, additional_time: float, replace_ttl: bool) -> Literal[True]:  # noqa: FBT001
        """The request of `extend()`."""
        wire, token = self._wire(), self._encode(self._token())
        time_ms = int(additional_time * 1000)
        if not await wire.ask(wire.steps.extend(token, time_ms, replace=bool(replace_ttl))):
            raise driver.LockNotOwnedError("Cannot extend a lock that's no longer owned")
        return True

    def reacquire(self) -> Awaitable[Literal[True]]:
        """Sets the ttl to the `timeout` again.

        Raises:
            redis.exceptions.LockError: It is not locked, or has no timeout; raised at once, before it is
                awaited.
            redis.exceptions.LockNotOwnedError: It is no longer owned.
        """
        if self._token() is None:
            raise driver.LockError("Cannot reacquire an unlocked lock")
        if self.timeout is None:
            raise driver.LockError("Cannot reacquire a lock with no timeout")
        return self.do_reacquire()

    async def do_reacquire(self) -> Literal[True]:
        """The request of `reacquire()`."""
        assert self.timeout is not None
        wire, token = self._wire(), self._encode(self._token())
        if not await wire.ask(wire.steps.reacquire(token, int(self.timeout * 1000))):
            raise driver.LockNotOwnedError("Cannot reacquire a lock that's no longer owned")
        return True

    # -- releasing

    async def release(self) -> None:
        """Releases the lock.

        Raises:
            redis.exceptions.LockError: It was not acquired, or was already released.
            redis.exceptions.LockNotOwnedError: It is no longer owned.
            redis.exceptions.RedisError: The release was not confirmed. The token is kept, so you can call it
                again.

        A cancellation is delayed by at most 1 s. After that the release goes on in the background.
        """
        token = self._token()
        if token is None:
            raise driver.LockError(
                "Cannot release a lock that's not owned or is already unlocked.",
                lock_name=cast("Any", self.name),
            )
        self._holdings.stop_renewing(token)
        try:
            await self.do_release(token)
        except driver.LockNotOwnedError as error:
            self._forget(token, str(error))
            raise
        self._forget(token)

    async def do_release(self, expected_token: bytes) -> None:
        """The request of `release()`."""
        raw = self._encode(expected_token)
        if not await self._wire().let_go(raw, lambda: self._forget(expected_token)):
            raise driver.LockNotOwnedError("Cannot release a lock that's no longer owned")

    async def __aenter__(self) -> Self:
        if await self.acquire():
            task = asyncio.current_task()
            assert task is not None
            self._open.add(task, getattr(self.local, "token", None))
            return self
        raise driver.LockError("Unable to acquire lock within the time specified")

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with contextlib.suppress(LookupError):  # redis-py lets any task leave it
            self._holdings.took_over(self._open.take(None))
        try:
            await self.release()
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
        """The token that this task speaks of: `local.token`, but never the token of another task."""
        return self._holdings.meant(getattr(self.local, "token", None))  # another thread has none

    def _forget(self, token: Any, lost: str = "") -> None:
        """It was released, or lost for that reason."""
        if getattr(self.local, "token", None) == token:
            self.local.token = None
        self._holdings.forget(token)
        if self._telling is not None:
            self._telling.ended(token, lost)

    def _encode(self, value: Any) -> bytes:
        encoder: Any = self.redis.get_encoder()
        return bytes(encoder.encode(value))

    def _wire(self) -> Wire:
        return Wire(engine_of(self.redis), self._encode(self.name))
