"""Turns: one caller does the work, and the callers that waited meanwhile need not do it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from types import TracebackType
from typing import Final, Self, final

from ..errors import DeadlockError
from ..lock.blocks import TURNS_TO_CLOSE, held
from ..lock.clock import NEVER
from ..lock.engine import Engine
from ..lock.lease import Lease
from ..lock.options import Options
from .flights import GrantTime, Leaving, RunEnded, ended_at, runs

_TAG: Final = "t"


@final
class Turn:
    """The result of `SingleFlight.turn(key)`: enter it with `async with`, once."""

    __slots__ = ("_entered", "_group", "_group_of", "_lease")

    def __init__(self, group_of: Callable[[], TurnGroup]) -> None:
        self._group_of = group_of
        self._group: TurnGroup | None = None
        self._entered = False
        self._lease: Lease | None = None

    @property
    def first(self) -> bool:
        """Whether this caller does the work. If False, another caller has done it while this one waited.

        Raises:
            RuntimeError: The turn was not entered.
        """
        self._ensure_entered()
        return self._lease is not None

    @property
    def fencing_token(self) -> int | None:
        """The fencing token of the first caller, for a store that refuses late writes.

        It is larger than every earlier one.

        Raises:
            RuntimeError: The turn was not entered.
        """
        self._ensure_entered()
        return None if self._lease is None else self._lease.fencing_token

    def _ensure_entered(self) -> None:
        if not self._entered:
            raise RuntimeError("enter a turn first: async with flight.turn(key) as turn")

    async def __aenter__(self) -> Self:
        if self._group is not None:
            raise RuntimeError("a turn is entered once: call turn() again")
        self._group = self._group_of()
        for _ in range(TURNS_TO_CLOSE):
            if not self._group.is_inside():
                break
            await asyncio.sleep(0)
            self._group = self._group_of()
        self._lease = await self._group.enter()
        self._entered = True
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._lease is None:
            return
        assert self._group is not None
        await self._group.leave(self._lease, exc_type, exc, traceback)

    def __repr__(self) -> str:
        if not self._entered:
            return "<Turn not entered>"
        return f"<Turn first={self.first}>"


@final
class TurnGroup:
    """The callers of one session that want the turn of one key; one of them leads, and asks the server.

    Invariants:
    - it stands in `engine.in_progress` while a caller leads, and not longer;
    - the leader ends that in one of two ways. Either the callers that came in time are told that the work was
      done, and the next of the remaining callers leads. Or the next caller leads.
    """

    __slots__ = ("_asked", "_binding", "_engine", "_grant_time", "_led", "_slot", "_steps", "_waiting")

    def __init__(self, engine: Engine, slot: Hashable, name: str, options: Options) -> None:
        self._engine = engine
        self._slot = slot
        # Shared by all leaders, one after the other: a caller that waited for the first to lead knows the run
        # that it was told of.
        self._steps, self._binding = runs(engine, "turn", "Turn", name, options=options, fingerprint="")
        self._waiting: dict[asyncio.Future[bool], float] = {}  # by when they came
        self._led = False
        self._asked: float | None = None  # when the first leader came who asked what the next ones ask
        self._grant_time: GrantTime | None = None  # of the last leader that was first

    async def enter(self) -> Lease | None:
        """The lease of the first; None for a caller that has waited for another to be through with it."""
        came_at = self._engine.now()
        if self.is_inside():
            raise DeadlockError("Turn", self._binding.name, held="that turn itself")
        if self._led and not await self._leads(came_at):
            return None
        self._led = True
        self._engine.in_progress[self._slot] = self
        return await self._lead(came_at)

    def is_inside(self) -> bool:
        """Whether the task is first itself, and would wait for itself to be through with it."""
        inside = self._engine.entered.by(id(asyncio.current_task(self._engine.loop)))
        return any(
            possession.kind == "turn" and possession.name == self._binding.name
            for possession in held(inside, lasting=True)
        )

    async def _leads(self, came_at: float) -> bool:
        """Waits until it is one's own to lead, or (False) need not be."""
        waiter: asyncio.Future[bool] = self._engine.waiter()
        self._waiting[waiter] = came_at
        try:
            return await waiter
        except BaseException:
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None and waiter.result():
                self._pass_on()
            raise
        finally:
            del self._waiting[waiter]

    async def _lead(self, came_at: float) -> Lease | None:
        """Acquires for all of them; None if a caller in another session is through with it."""
        while True:
            if self._asked is None:
                self._asked = came_at
            try:
                lease = await self._binding.acquire(None)
                self._grant_time = GrantTime(self._engine, self._steps.granted_at_us, lease)
                lease.enter()
            except RunEnded as end:
                at = ended_at(end, asked=self._asked)
                self._tell(at)
                if came_at <= at:
                    self._pass_on()
                    return None
            except BaseException:
                self._pass_on()
                raise
            else:
                return lease

    async def leave(
        self,
        lease: Lease,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """The body of the leader has ended."""
        if exc_type is not None:
            self._pass_on()
            await lease.__aexit__(exc_type, exc, traceback)
            return
        assert self._grant_time is not None
        made_at_us = self._grant_time.latest_us(0.0)
        self._steps.leave(
            Leaving(
                token=lease.token,
                run=lease.fencing_token,
                tag=_TAG,
                payload=b"",
                made_at_us=made_at_us,
                begun=lease.fencing_token,
            )
        )
        try:
            await lease.__aexit__(None, None, None)
        except asyncio.CancelledError:
            self._tell(NEVER)  # the work was done, and other sessions are still told of it
            raise
        else:
            self._tell(NEVER)
        finally:
            self._pass_on()

    def _tell(self, at: float) -> None:
        """Callers that came until then have waited for this work; later callers wait for new work."""
        for waiter, came_at in self._waiting.items():
            if not waiter.done() and came_at <= at:
                waiter.set_result(False)
        self._steps.begin_anew()
        self._asked = None

    def _pass_on(self) -> None:
        """The next one leads, if there is any."""
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_result(True)
                return
        self._leave()

    def _leave(self) -> None:
        if self._engine.in_progress.get(self._slot) is self:
            del self._engine.in_progress[self._slot]

    def __repr__(self) -> str:
        return f"<TurnGroup waiting={len(self._waiting)}>"
