"""The requests of one lock: each of them ends well, also if its caller leaves before the reply."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import sys
from collections.abc import Callable
from typing import Any, Final, TypeVar, final

import redis.exceptions as driver

from ...errors import LockError, SessionClosedError
from ...lock.engine import Engine
from ...lock.lease import Releasing
from ...lock.shield import wait_shielded
from ...transport import Fault, Request, ignore
from .steps import RedisPySteps

T = TypeVar("T")

_MINUTES: Final = 600.0
"""Seconds for which what was left behind without a ttl is tried to be taken away."""
_DAY_MS: Final = 86_400_000
"""Milliseconds for which what has a ttl is tried to be taken away at most."""


@final
class Wire:
    """One lock in the client's default session."""

    __slots__ = ("engine", "key", "steps")

    def __init__(self, engine: Engine, key: bytes) -> None:
        self.engine = engine
        self.key = key
        self.steps = RedisPySteps(key)

    async def ask(self, command: Request[T]) -> T:
        """Raises what redis-py would."""
        try:
            return await self.engine.ask(command)
        except LockError as error:
            raise _driver_error(error) from None

    def give_back(self, token: bytes, timeout_ms: int | None) -> None:
        """Takes back what a request may have done or may yet do. Synchronous: the last word."""
        now = self.engine.now()
        until = now + (min(timeout_ms, _DAY_MS) / 1000 if timeout_ms else _MINUTES)
        command = self.steps.release(token)

        def failed(fault: Fault) -> None:
            if fault.transient and self.engine.now() < until and not self.engine.closed:
                Releasing(self.engine, command, until=until, on_end=self._freed)

        call = command.again().ask(ignore, failed, until=until, undoes=True, as_eval=True)
        self.engine.send(call, at_once=True)

    async def let_go(self, token: bytes, on_freed: Callable[[], object]) -> bool:
        """Whether it was still the token's. Calls `on_freed` in the end, also if its caller leaves."""

        def ended(releasing: Releasing) -> None:
            if releasing.freed:
                on_freed()
                self._freed(releasing)

        engine = self.engine
        until = engine.now() + engine.settings.command_timeout
        releasing = Releasing(engine, self.steps.release(token), until=until, on_end=ended)
        # The exception that the caller handles tells whether a cancellation waits for this. The count of its
        # task does not: up to Python 3.12 a TaskGroup that has failed leaves it raised.
        handled = sys.exception()
        cancelled_by = handled if isinstance(handled, asyncio.CancelledError) else None
        await wait_shielded(releasing.until_ended, cancelled_by=cancelled_by)
        if releasing.fault is not None:
            raise _driver_error(releasing.fault.error)
        if not releasing.until_ended().done():
            raise driver.TimeoutError("Redis did not confirm in time that the lock was released")
        return releasing.freed

    def _freed(self, _: object) -> None:
        # The server tells a client nothing of that client's own writes.
        self.engine.bells.rung("local", (self.key,))


@final
class Taking:
    """One try to take the lock: a request, and what becomes of its reply.

    Args:
        wire: Of the lock.
        token: The value of the key.
        timeout_ms: The ttl of the key; None for none.
        unique: No other acquire uses this token. Then a key that may have been taken is given back right
            after the request; and if the reply was lost, the second one says yes to a token that holds it
            already. Of a token that was chosen, only the reply can tell whose it is.
        listen: Whether the server must tell of the end of a key that was not taken.
        limit: Loop time at which the try is over; None for none.
        patient: It waits for a server that cannot be reached just now.
    """

    __slots__ = ("_abandoned", "_call", "_future", "_timeout_ms", "_token", "_unique", "_wire")

    def __init__(
        self,
        wire: Wire,
        token: bytes,
        timeout_ms: int | None,
        *,
        unique: bool,
        listen: bool,
        limit: float | None,
        patient: bool,
    ) -> None:
        engine = wire.engine
        self._wire = wire
        self._token = token
        self._timeout_ms = timeout_ms
        self._unique = unique
        self._abandoned = False
        self._future: asyncio.Future[bool] = engine.loop.create_future()

        def make() -> Request[bool]:
            again = unique and self._call.unconfirmed
            return wire.steps.acquire(token, timeout_ms, again=again, listen=listen)

        first = wire.steps.acquire(token, timeout_ms, again=False, listen=listen)
        until = engine.now() + engine.settings.command_timeout
        until = until if limit is None else min(until, limit)
        self._call: Request[Any] = first.again().ask(
            self._replied, self._failed, until=until, patient=patient, make=make
        )
        engine.send(self._call)

    async def taken(self) -> bool:
        """The reply. A caller that leaves before it holds nothing."""
        try:
            return await self._future
        except BaseException:
            self._abandon()
            raise

    def _replied(self, taken: bool) -> None:  # noqa: FBT001 - a callback
        if self._abandoned:
            if taken:
                self._give_back()
        elif not self._future.done():
            self._future.set_result(taken)

    def _failed(self, fault: Fault) -> None:
        if not self._abandoned and not self._future.done():
            self._future.set_exception(_driver_error(fault.error))

    def _abandon(self) -> None:
        """No caller waits for it any more."""
        self._abandoned = True
        ended = self._future.done() and not self._future.cancelled()
        failed = ended and self._future.exception() is not None  # asked in any case: or asyncio complains
        if self._unique:
            if self._wire.engine.forget(self._call):
                self._give_back()
        elif ended and not failed and self._future.result():
            self._give_back()

    def _give_back(self) -> None:
        self._wire.give_back(self._token, self._timeout_ms)


def _driver_error(error: LockError) -> Exception:
    """The driver's error for one of ours: what it was, or what it would have been."""
    cause = error.__cause__
    if isinstance(cause, TimeoutError):
        return driver.TimeoutError(str(error))
    if isinstance(cause, OSError) or isinstance(error, SessionClosedError):
        return driver.ConnectionError(str(error))
    if isinstance(cause, Exception):
        with contextlib.suppress(Exception):  # the connection keeps the first one, and would keep our frames
            return copy.copy(cause).with_traceback(None)
        return cause
    return driver.TimeoutError(str(error))
