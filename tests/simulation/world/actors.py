"""The tasks of a schedule: what runs in a simulated process, as a user would have written it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from aiolocks import LeaseState, LockTimeoutError, Session
from aiolocks.errors import BackendError, LockError, LockLostError

from .checkers import Attempt, Referee
from .excuses import Excused
from .kinds import Kind, Want
from .schedule import LONGEST_POLL, Round, Worker
from .works import WORKS, Ledger

AT_ONCE = 1.1
"""Seconds after which a cancelled task must have ended: a release is held up for at most 1 s."""
RENEWAL = 0.2
"""The part of a session's patience in which it has renewed a lease, where it is connected."""


class Actors:
    """Those of one process.

    Args:
        options: Of each lock.
        hasty: Whether masters have less time to answer than messages may take, which explains errors.
        busy: Seconds that a turn of its loop takes, at most.
        idle: Seconds for which something may be free while a task here waits for it.
        ledger: The work of all processes with the tools that are built with locks.
        left_block: Told of a block that has ended without the answer to the release; whether the process is
            killed there.
        patience: Seconds in which a server has answered, also if it is not connected yet.
    """

    def __init__(
        self,
        session: Session | list[Session],
        kind: Kind,
        referee: Referee,
        *,
        ttl: float,
        options: dict[str, Any],
        hasty: bool,
        busy: float,
        patience: float,
        idle: float,
        ledger: Ledger,
        left_block: Callable[[Attempt], bool],
    ) -> None:
        self._session = session
        self._kind = kind
        self._referee = referee
        self._ttl = ttl
        self._options = options
        self._hasty = hasty
        self._busy = busy
        self._patience = patience
        self._idle = idle
        self._ledger = ledger
        self._left_block = left_block
        self._told: set[asyncio.Task[None]] = set()
        self.attempts: list[Attempt] = []

    async def work(self, worker: Worker) -> None:
        """All rounds of one worker."""
        for one in worker.rounds:
            await asyncio.sleep(one.after)
            await self.perform(one)

    async def perform(self, one: Round) -> bool:
        """One round, in a task of its own that may be cancelled; whether it got in, and nothing went wrong.

        One that is robbed has been in.
        """
        loop = asyncio.get_running_loop()
        began, excuses = self._referee.now, self._referee.excuses
        task = loop.create_task(self._work(one) if self._kind.work else self._hold(one), name=one.part)
        cancelled_at = None

        def cancel() -> None:
            nonlocal cancelled_at
            if task.cancel():
                cancelled_at = self._referee.now

        timer = None if one.cancel is None else loop.call_later(one.cancel, cancel)
        await asyncio.wait((task,))
        if timer is not None:
            timer.cancel()
        if cancelled_at is not None:
            late = self._referee.now - max(cancelled_at, excuses.until(Excused.LATE, one.part))
            if not task.cancelled():
                self._referee.wrong(f"{one.part}: a cancellation was swallowed")
            elif late > AT_ONCE:
                self._referee.wrong(f"{one.part}: cancelled, it went on for {late:.3f} s")
        if task.cancelled() or task.exception() is not None:
            self._ledger.unsure += 1
        if task.cancelled():
            return False
        if (error := task.exception()) is not None:
            self._explained(one, error, began)
        return error is None or (isinstance(error, LockLostError) and error.stolen_by is not None)

    def _explained(self, one: Round, error: BaseException, began: float) -> None:
        if isinstance(error, TimeoutError) and one.timeout is not None:
            return
        # With replicas, the time may end between the grant and their word.
        if (
            isinstance(error, BackendError)
            and one.timeout
            and (one.timeout < self._patience or self._kind.replicas)
        ):
            return
        excuses, now = self._referee.excuses, self._referee.now
        sorts = [Excused.ERROR] if isinstance(error, LockError) else []
        sorts += [Excused.UNANSWERED] if isinstance(error, BackendError) else []
        advised = "give a redis.asyncio." in str(error)  # another client: never right here
        explained = any(excuses.explain(sort, one.part, began, now) for sort in sorts)
        if not advised and (explained or (self._hasty and isinstance(error, LockError))):
            return
        if isinstance(error, LockLostError) and self._was_stolen(one, error):
            return
        self._referee.wrong(f"{one.part}: {type(error).__name__}: {error}")

    def _was_stolen(self, one: Round, error: LockLostError) -> bool:
        """Whether it was lost to another task by force; then the error must name that one."""
        own = [attempt for attempt in self.attempts if attempt.who.rstrip("+") == one.part]
        thefts = [theft for attempt in own if (theft := self._referee.thefts.of(attempt)) is not None]
        told = error.stolen_by
        if thefts and not (told and any(told.fencing_token == theft.fencing_token for theft in thefts)):
            self._referee.wrong(f"{one.part} was not told of the task that took it: {error}")
        return bool(thefts)

    def _attempt(self, one: Round, want: Want, **how: Any) -> Attempt:
        referee = self._referee
        attempt = Attempt(
            who=one.part,
            want=want,
            invoked=referee.now,
            single=one.timeout == 0 or one.steal,
            idle=self._idle,
            **how,
        )
        if one.timeout:
            # It is noticed when a turn is over, and its task told in the next one.
            attempt.limit = referee.now + one.timeout + 2 * self._busy
        self.attempts.append(attempt)
        return attempt

    async def _work(self, one: Round) -> None:
        assert isinstance(self._session, Session)
        self._referee.tell(one.part, f"begins to {self._kind.work}")
        play = self._kind.play or WORKS[self._kind.work]
        await play(self._ledger, self._session, one, self._ttl, self._patience)

    async def _hold(self, one: Round) -> None:
        options = self._options if one.want.confirm else {**self._options, "confirm": False}
        lock = self._kind.lock(self._session, one.want, ttl=self._ttl, **options)
        owned = self._kind.nests or one.doing == "upgrade"
        attempt = self._attempt(one, one.want, owner=one.part if owned else None)
        attempt.steals = one.steal
        how = {"steal": True} if one.steal else {"blocking_timeout": one.timeout}
        lease = await self._acquire(attempt, lambda: lock.acquire(**how))
        async with self._holding(one, attempt, lease):
            await self._do(one, lock, attempt, lease)

    async def _acquire(self, attempt: Attempt, pending: Any) -> Any:
        referee = self._referee
        referee.asks(attempt)
        try:
            lease = await pending()
        except BaseException as error:
            text = str(error)
            referee.gave_up(attempt, f"{type(error).__name__}" + (f": {text}" if text else ""))
            raise
        referee.granted(attempt, lease)
        if (left := lease.remaining()) < RENEWAL * self._patience:
            # The grant took nearly all of the ttl, as over several slots that move: no renewal is in time.
            referee.excuses.give(Excused.ERROR, attempt.session, referee.now, referee.now + left + self._busy)
        return lease

    @contextlib.asynccontextmanager
    async def _holding(self, one: Round, attempt: Attempt, lease: Any) -> Any:
        """Inside, the lease is entered; behind it, its holder has let go."""
        referee = self._referee
        try:
            async with lease:
                try:
                    yield
                finally:
                    referee.lets_go(attempt)
        finally:
            if lease.state is LeaseState.DETACHED:
                referee.expires(attempt, referee.now + self._ttl + self._patience, found=LONGEST_POLL)
            elif one.want.confirm:
                referee.left(attempt)
            else:
                attempt.written = True
                if self._left_block(attempt):
                    await asyncio.get_running_loop().create_future()  # it has done its last step
                told = asyncio.get_running_loop().create_task(
                    self._answered(one, attempt, lease), name=f"{attempt.who} told"
                )
                self._told.add(told)
                told.add_done_callback(self._told.discard)

    async def _answered(self, one: Round, attempt: Attempt, lease: Any) -> None:
        """The answer to a release for which the end of its block has not waited."""
        released = await lease.wait_released()
        self._referee.left(attempt)
        if not released:
            fault = lease._possession.fault
            error = LockLostError("Lock", "x", "found by its release") if fault is None else fault.error
            self._explained(one, error, attempt.invoked)

    async def _do(self, one: Round, lock: Any, attempt: Attempt, lease: Any) -> None:
        match one.doing:
            case "extend":
                await asyncio.sleep(one.hold / 2)
                await lease.extend()
                await asyncio.sleep(one.hold / 2)
            case "detach":
                await asyncio.sleep(one.hold)
                lease.detach()
            case "adopt":
                await self._hand_over(one, lock, attempt, lease)
            case "nest":
                await self._nest(
                    one, lambda: lock.acquire(blocking_timeout=one.timeout), attempt.want, attempt
                )
            case "upgrade" if attempt.want.mode == "upgradable":
                want = replace(attempt.want, mode="writer")
                await self._nest(one, lambda: lease.upgrade(blocking_timeout=one.timeout), want, attempt)
            case "downgrade" if attempt.want.mode == "writer":
                await asyncio.sleep(one.hold / 2)
                self._referee.weakened(attempt, replace(attempt.want, mode="reader"))
                await lease.downgrade()
                self._referee.was_weakened(attempt)
                await asyncio.sleep(one.hold / 2)
            case "shrink":
                await asyncio.sleep(one.hold / 2)
                middle = (attempt.want.low + attempt.want.high) / 2
                self._referee.weakened(attempt, replace(attempt.want, high=middle))
                await lease.shrink(attempt.want.low, middle)
                self._referee.was_weakened(attempt)
                await asyncio.sleep(one.hold / 2)
            case _:
                await asyncio.sleep(one.hold)

    async def _nest(self, one: Round, pending: Any, want: Want, outer: Attempt) -> None:
        await asyncio.sleep(one.hold / 3)
        inner = self._attempt(one, want, owner=outer.owner)
        inner.who = f"{one.part}+"
        try:
            lease = await self._acquire(inner, pending)
        except LockTimeoutError:
            return
        async with self._holding(one, inner, lease):
            await asyncio.sleep(one.hold / 3)
        await asyncio.sleep(one.hold / 3)

    async def _hand_over(self, one: Round, lock: Any, attempt: Attempt, lease: Any) -> None:
        """From one lease to another of the same holding."""
        await asyncio.sleep(one.hold / 2)
        handle = lease.detach()
        adopted = await lock.adopt(handle)
        async with adopted:
            attempt.lease = adopted
            try:
                await asyncio.sleep(one.hold / 2)
            finally:
                self._referee.lets_go(attempt)
