"""The lock itself: redis-py's, term by term."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable
from types import TracebackType
from typing import Any, Final, Literal, Self, cast

import redis.exceptions as driver
from redis.asyncio.lock import Lock as RedisPyLock

from ...lock.notes import note
from ...lock.open_blocks import OpenBlocks
from ...lock.options import flag
from ...lock.sources import engine_of
from ...lock.wakeups import KeyListener
from ...transport import check_client
from .holdings import Holdings
from .scripts import Registered
from .waiting import Patience
from .wire import Taking, Wire

log = logging.getLogger(RedisPyLock.__module__)  # where redis-py's users look for it

_AFTERWARDS: Final = 0.1


class Lock(RedisPyLock):
    """redis-py's asyncio `Lock`, safe to cancel: give it to `redis.lock(name, lock_class=Lock)`.

    Arguments, attributes, methods, results and errors are those of redis-py 8, and so are key and value on
    the server: it excludes redis-py's own lock, and is excluded by it. It is better in these points:

    - A cancelled or timed-out `acquire()` leaves no key; a cancelled `release()` still releases.
    - A reply that was lost does not make a lock that nobody knows to hold.
    - `blocking_timeout` holds against a server that hangs.
    - A task that shares the object with others releases what it has acquired itself, and nothing else.
    - On leaving `async with`, what the body raised is not replaced by an error of the release.

    It works over the client's default `aiolocks.Session`, not over connections of its pool.

    Args:
        redis: A `redis.asyncio.Redis` or `RedisCluster`.
        name: The key itself: no prefix is put before it.
        timeout: Seconds after which the server frees it; None for never: then a holder that dies holds it
            until somebody deletes the key.
        sleep: Seconds between two tries.
        blocking: Whether `acquire()` waits, unless it is told.
        blocking_timeout: Seconds to wait; None for ever. As with redis-py, it gives up when the next try
            would be too late.
        thread_local: Whether other threads see the token.
        raise_on_release_error: Whether leaving `async with` raises when the lock is not owned any more.
        auto_renew: Renew a lock that has a timeout each third of it, until it is released or nobody has the
            object any more. Off, as redis-py's users expect it to end.
        wakeups: Let waiters hear of the key's end (by client-side caching, where the server allows it), and
            wait to the end of `blocking_timeout`; they still try again after each `sleep`. Off, for then all
            who wait try at once.

    Raises:
        TypeError: It is not such a client, or an option is not a bool.
    """

    lua_release: Any = Registered("LUA_RELEASE_SCRIPT")
    lua_extend: Any = Registered("LUA_EXTEND_SCRIPT")
    lua_reacquire: Any = Registered("LUA_REACQUIRE_SCRIPT")

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
    ) -> None:
        check_client(redis)
        self.auto_renew = flag("auto_renew", auto_renew)
        self.wakeups = flag("wakeups", wakeups)
        self._holdings = Holdings()
        self._open: OpenBlocks[Any] = OpenBlocks()
        # Of tries under way, by token: whether nobody else can have it, and loop time at which they are over.
        self._tries: dict[bytes, tuple[bool, float | None, bool]] = {}
        super().__init__(redis, name, timeout, sleep, blocking, blocking_timeout, thread_local)
        self.raise_on_release_error = bool(raise_on_release_error)  # redis-py knows it since version 6

    def register_scripts(self) -> None:
        """Does nothing: redis-py's would keep the first client of all for ever."""

    # -- acquiring

    async def acquire(
        self,
        blocking: bool | None = None,  # noqa: FBT001 - as in redis-py
        blocking_timeout: float | None = None,
        token: str | bytes | None = None,
    ) -> bool:
        """Whether it was acquired.

        Args:
            blocking: Whether to wait; None for what the lock was made with.
            blocking_timeout: Seconds to wait; None for what the lock was made with.
            token: The value of the key, in place of a random one. One that nobody else uses, or a reply that
                was lost cannot be made up for.

        Raises:
            redis.exceptions.RedisError: As redis-py does.

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
        ear = KeyListener(wire.engine.bells, wire.key)
        try:
            with ear if self.wakeups else contextlib.nullcontext():
                while True:
                    ear.forget()
                    if self.wakeups:
                        await ear.armed()
                    if await self._try(mine, patience, unique=token is None):
                        self._took(wire, mine)
                        return True
                    patience.refused = True
                    pause = patience.pause()
                    if pause is None:
                        return False
                    await ear.sleep(pause)
        finally:
            self._tries.pop(mine, None)

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
        """One try."""
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
            self._holdings.renew(wire, token, self.timeout)

    # -- holding

    async def locked(self) -> bool:
        """Whether anybody has it."""
        wire = self._wire()
        return await wire.ask(wire.commands.holder()) is not None

    async def owned(self) -> bool:
        """Whether this lock holds it."""
        wire = self._wire()
        stored = await wire.ask(wire.commands.holder())
        token = self._token()
        return token is not None and stored == token

    def extend(self, additional_time: float, replace_ttl: bool = False) -> Awaitable[Literal[True]]:  # noqa: FBT001, FBT002
        """Adds seconds to the ttl, or replaces it.

        Raises:
            redis.exceptions.LockError: It is not locked, or has no timeout: raised at once.
            redis.exceptions.LockNotOwnedError: It is not owned any more.
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
        if not await wire.ask(wire.commands.extend(token, time_ms, replace=bool(replace_ttl))):
            raise driver.LockNotOwnedError("Cannot extend a lock that's no longer owned")
        return True

    def reacquire(self) -> Awaitable[Literal[True]]:
        """Sets the ttl to the timeout again.

        Raises:
            redis.exceptions.LockError: It is not locked, or has no timeout: raised at once.
            redis.exceptions.LockNotOwnedError: It is not owned any more.
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
        if not await wire.ask(wire.commands.reacquire(token, int(self.timeout * 1000))):
            raise driver.LockNotOwnedError("Cannot reacquire a lock that's no longer owned")
        return True

    # -- releasing

    async def release(self) -> None:
        """Releases it.

        Raises:
            redis.exceptions.LockError: It was not acquired, or was released before.
            redis.exceptions.LockNotOwnedError: It is not owned any more.
            redis.exceptions.RedisError: It could not be confirmed; then the token is kept, to try again.

        Cancelled, it goes on, and holds up the cancellation for at most 1 s.
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
        except driver.LockNotOwnedError:
            self._forget(token)
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
        with contextlib.suppress(LookupError):  # redis-py lets anybody leave it
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
        """The token that this task speaks of: `local.token`, but never that of another task for one's own."""
        return self._holdings.meant(getattr(self.local, "token", None))  # another thread has none

    def _forget(self, token: Any) -> None:
        if getattr(self.local, "token", None) == token:
            self.local.token = None
        self._holdings.forget(token)

    def _encode(self, value: Any) -> bytes:
        encoder: Any = self.redis.get_encoder()
        return bytes(encoder.encode(value))

    def _wire(self) -> Wire:
        return Wire(engine_of(self.redis), self._encode(self.name))
