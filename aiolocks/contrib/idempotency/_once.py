"""One request under its key, for all frameworks: done once, and answered again from the record.

Invariants:
- a handler runs only in the task of an attempt, which no client and no lost lease cancels;
- without a store, a handler begins only after the server has counted it as the first for `keep` seconds; the
  count ends when the answer was recorded, or when it is known that nothing will be recorded. A process that
  dies leaves the count, and the next attempt is refused;
- with a store (`_transaction`), the answer is published only after the transaction with its record was
  committed.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any, Final, final

from ..._logs import get_logger
from ..._tasks import empty_context, spawn
from ...errors import (
    BackendError,
    FingerprintError,
    LockError,
    LockLostError,
    LockTimeoutError,
    RemoteCallError,
    ResultNotKeptError,
    SessionClosedError,
)
from ...kinds.outcome import comes_of_cancellation
from ...kinds.singleflight import SingleFlight
from ...kinds.turnstile import Turnstile
from ...lock import together
from ...lock.sources import log_level, prefix_of
from .._holding import tell_refused
from .._holds import Holds
from . import _problems as problems
from ._kept import ALWAYS, Kept
from ._keys import name_of
from ._policy import Policy
from ._problems import Failed
from ._record import RECORDS, Record, Unkept
from ._transaction import InStore, Work

log: Final = get_logger("aiolocks.requests")


@final
class Once:
    """The state that the requests of one application share."""

    __slots__ = ("_durations", "_kept", "_running", "policy")

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self._durations = Holds()
        most = policy.max_kept if policy.store is None else None
        self._kept = None if most is None else Kept(most=most, keep=policy.keep)
        self._running: set[asyncio.Task[Any]] = set()  # an event loop alone would not keep them

    async def serve(
        self, client: Any, *, asker: str, key: str, fingerprint: str, route: str, work: Work
    ) -> Record | Unkept:
        """The answer to one request, whose work is called once at the most. Cancelled, it leaves that alone.

        Requests with the same `route` take about the same time.

        Raises:
            Problem: There is another answer than the handler's.
            Exception: The handler raised it.
        """

        async def bounded() -> Record | Unkept:
            return self._bounded(asker, await work())

        attempt = _Attempt(
            self, client, name_of(asker, key), fingerprint=fingerprint, route=route, work=bounded
        )
        answer = await asyncio.shield(self.task(attempt.run()))
        return answer.replayed() if isinstance(answer, Record) and not attempt.ran else answer

    def task(self, work: Any) -> asyncio.Task[Any]:
        """A task that lives until it has ended."""
        task: asyncio.Task[Any] = spawn(
            asyncio.get_running_loop(), work, name="aiolocks-idempotency", context=None
        )
        self._running.add(task)
        task.add_done_callback(self._ended, context=empty_context())
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled():
            task.exception()  # where its client has hung up, no other task asks

    def _bounded(self, asker: str, answer: Record | Unkept) -> Record | Unkept:
        """The answer; if its asker has enough already, one that is not kept."""
        if self._kept is None or isinstance(answer, Unkept):
            return answer
        size, now = len(answer.dumps()), asyncio.get_running_loop().time()
        if size <= ALWAYS or self._kept.add(asker, size, now):
            return answer
        why = f"its user has max_kept={self.policy.max_kept} bytes of answers (with None there is no bound)"
        return replace(answer, unkept=why)

    def lasted(self, route: str, duration: float) -> None:
        self._durations.add(duration, route, None)

    def retry_after(self, route: str) -> float:
        """Seconds after which a request that is running may have ended."""
        if self.policy.retry_after is not None:
            return self.policy.retry_after
        return self._durations.median(route, None) or 1.0


@final
class _Attempt:
    """One request with a key, until it has its answer."""

    __slots__ = (
        "_client",
        "_counted",
        "_fingerprint",
        "_name",
        "_once",
        "_policy",
        "_route",
        "_stored",
        "_task",
        "_work",
    )

    def __init__(
        self, once: Once, client: Any, name: str, *, fingerprint: str, route: str, work: Work
    ) -> None:
        self._once = once
        self._policy = once.policy
        self._client = client
        self._name = name
        self._fingerprint = fingerprint
        self._route = route
        self._work = work
        self._task: asyncio.Task[Record | Unkept] | None = None  # the handler's, once it has begun
        self._counted: Turnstile | None = None
        store = self._policy.store
        self._stored = (
            None if store is None else InStore(store, self._policy, prefix_of(client), name, fingerprint)
        )

    @property
    def ran(self) -> bool:
        """Whether the handler has run for this request: otherwise the answer comes from another request."""
        return self._task is not None

    async def run(self) -> Record | Unkept:
        policy = self._policy
        flight = SingleFlight(
            self._client, ttl=policy.ttl, keep=0.0 if policy.store else policy.keep, serializer=RECORDS
        )
        try:
            answer: Record | Unkept = await flight.do(
                self._name, self._fly, fingerprint=self._fingerprint, blocking_timeout=policy.wait
            )
        except Failed as failed:
            if self._task is None:
                raise problems.of_another(failed.reason) from None
            return failed.get()
        except FingerprintError:
            raise problems.reused() from None
        except LockTimeoutError:
            raise problems.running(self._once.retry_after(self._route)) from None
        except RemoteCallError as error:
            raise problems.of_another(error.message) from None
        except ResultNotKeptError as error:
            return await self._of_unkept(error)
        except (BackendError, SessionClosedError, LockLostError) as error:
            return await self._without_redis(error)
        await self._uncount()
        return answer

    async def _fly(self) -> Record | Unkept:
        """The call that SingleFlight runs, and runs again after it has lost its lease."""
        if self._task is None:
            self._task = self._once.task(self._begin())
        return await asyncio.shield(self._task)

    async def _begin(self) -> Record | Unkept:
        loop = asyncio.get_running_loop()
        since = loop.time()
        if self._policy.store is None and self._policy.on_crash == "refuse":
            await self._count()
        try:
            answer = await (self._work() if self._stored is None else self._stored.run(self._work))
        except Failed:
            await self._uncount()
            raise
        except (Exception, asyncio.CancelledError) as error:
            task = asyncio.current_task()
            # The count alone says nothing: up to Python 3.12 a TaskGroup that has failed leaves it raised.
            if task is not None and task.cancelling() and comes_of_cancellation(error):
                raise  # the event loop ends, and how far the handler has come is not known
            await self._uncount()
            raise Failed(error=error) from error
        self._once.lasted(self._route, loop.time() - since)
        return answer

    # -- without a store

    async def _count(self) -> None:
        turnstile = Turnstile(self._client, self._name, window=self._policy.keep)
        try:
            place = await turnstile.__aenter__()
        except (BackendError, SessionClosedError) as error:
            self._refused(error)
            raise Failed(error=problems.unavailable()) from error
        if place != 1:
            log.error("%s: a request was begun, and its process ended without a record", self._name)
            raise Failed(error=problems.crashed())
        self._counted = turnstile

    async def _uncount(self) -> None:
        """The outcome is known to all: later attempts do not need the count."""
        turnstile, self._counted = self._counted, None
        if turnstile is None:
            return
        try:
            await turnstile.__aexit__(None, None, None)
        except LockError as error:
            together.tell(
                log,
                log_level(self._client, error),
                "%s: the end of a request is not known to be noted: %s",
                *(self._name, error),
                name=self._name,
                many="the ends of %d requests are not known to be noted: %s: %s",
                why=str(error),
            )

    def _refused(self, error: LockError) -> None:
        tell_refused(log_level(self._client, error), self._route, self._name, error)

    # -- where Redis has no record

    async def _of_unkept(self, error: ResultNotKeptError) -> Record | Unkept:
        """The work is done, and Redis does not have the answer. The count stays: Redis may not know."""
        if error.here and (self._task is not None or isinstance(error.value, Record)):
            answer: Record | Unkept = error.value
            return answer
        if self._stored is not None:
            try:
                found = await self._stored.found()
            except Failed as failed:
                return failed.get()
            if found is not None:
                return found
        raise problems.not_kept()

    async def _without_redis(self, error: LockError) -> Record | Unkept:
        if self._task is None:
            self._refused(error)
            raise problems.unavailable() from error
        together.tell(
            log,
            log_level(self._client, error),
            "%s: Redis has no record of a request that is worked on: %s",
            *(self._name, error),
            name=self._name,
            many="Redis has no record of %d requests that are worked on: %s: %s",
            why=str(error),
        )
        try:
            return await asyncio.shield(self._task)
        except Failed as failed:
            return failed.get()
