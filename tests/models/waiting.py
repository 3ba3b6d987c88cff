"""Those who wait, beside the model: who gets in, who does not, and that nobody due is kept waiting.

Everything here happens in real time, step by step: the next step begins when all who wait have been refused
and sleep. The order of several waiters is the lock's choice where the contract leaves it open; the fencing
tokens tell in which order it was.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import count
from typing import Any, ClassVar

import pytest

from aiolocks import Lease, Lock, LockTimeoutError
from aiolocks.lock.waiter import Stage as Stand
from tests.models.worlds import ModesWorld, SemaphoreWorld, World, spoken
from tests.support.models import Model, Want
from tests.support.waiting import eventually

MOST_WAITING = 6
SOON = 1.0
"""Seconds within which somebody who is due is in, on a busy machine."""
IMPATIENT = 0.15
"""Seconds of a waiter that gives up; those in front of it ask more often."""
DYING = 0.06
"""Seconds that the lease of a dead holder has left; the least is 50 ms."""


@dataclass
class Waiter:
    want: Want
    ttl: float
    task: asyncio.Task[Lease]


class WaitingWorld:
    """Some hold, some wait.

    Args:
        kind: A world of the kind, for its name, its model and its ways to acquire.
    """

    VERBS: ClassVar[Mapping[str, int]] = {
        "wait": 30,
        "try_acquire": 10,
        "release": 24,
        "cancel": 8,
        "time_out": 3,
        "die": 3,
        "flush": 2,
    }

    def __init__(self, kind: World) -> None:
        self.kind = kind
        self.stage = kind.stage
        self.model: Model = kind.model
        self.log: list[str] = []
        self.waiters: dict[int, Waiter] = {}
        self.leases: dict[int, Lease] = {}
        self._numbers = count(1)

    async def step(self, verb: str, chance: random.Random) -> None:
        self.log.append(verb)
        await getattr(self, verb)(chance)
        await self.settle()

    def tell(self, text: object) -> None:
        self.log[-1] += f" {text}"

    # -- waiting

    async def wait(self, chance: random.Random) -> None:
        if len(self.waiters) < MOST_WAITING:
            attempt = self.kind.attempt(chance)
            lock, arguments = attempt.lock, attempt.arguments
            acquiring = asyncio.ensure_future(lock.acquire(*arguments))
            await self._wait(attempt.want, attempt.ttl, acquiring, attempt, attempt.session)

    async def _wait(
        self, want: Want, ttl: float, task: asyncio.Task[Lease], text: object, session: int | None = None
    ) -> int:
        number = next(self._numbers)
        self.tell(f"#{number} {text}")
        self.model.wait(number, want, session)
        self.waiters[number] = Waiter(want, ttl, task)
        return number

    async def settle(self) -> None:
        """Until all who are due are in, and the others sleep."""
        while True:
            await self._quiet()
            self._take_in([number for number, waiter in self.waiters.items() if waiter.task.done()])
            if not self.model.due():
                break
            done, _ = await asyncio.wait(
                [waiter.task for waiter in self.waiters.values()],
                timeout=SOON,
                return_when=asyncio.FIRST_COMPLETED,
            )
            assert done, f"{self.model.due()} are due, and nobody gets in; held: {self.model.held}"

    async def _quiet(self) -> None:
        """Everybody who waits has been refused, and stands in the queue."""
        for _ in range(3):
            await asyncio.sleep(0)  # tasks that were just made begin

        def quiet() -> bool:
            engines = [session._engine for session in self.stage.sessions]
            asking = [one for engine in engines if engine is not None for one in engine.waiting]
            waiting = [waiter for waiter in self.waiters.values() if not waiter.task.done()]
            return len(asking) == len(waiting) and all(one.stage is not Stand.ASKING for one in asking)

        await eventually(quiet)
        await self._heard()

    async def _heard(self) -> None:
        """The server has done what the sessions have sent: one connection may be quicker than another."""
        for session in self.stage.sessions:
            for _ in range(2):  # a script that has to be sent in full is sent after the refusal of its digest
                await Lock(session, self.kind.name).locked()

    def _take_in(self, numbers: list[int]) -> None:
        """They have got in: in the order of their fencing tokens."""
        granted = {number: self.waiters[number].task.result() for number in numbers}
        for number in sorted(granted, key=lambda number: granted[number].fencing_token):
            self.tell(f"→ #{number} is in")
            allowed = self.model.allowed()
            assert number in allowed, f"#{number} got in, but only {allowed} may; held: {self.model.held}"
            self.model.enter(number, self.waiters.pop(number).ttl)
            self.leases[number] = granted[number]

    async def cancel(self, chance: random.Random) -> None:
        if self.waiters:
            number = chance.choice(list(self.waiters))
            self.tell(f"#{number}")
            task = self.waiters.pop(number).task
            task.cancel()
            await asyncio.wait([task])
            assert task.cancelled()
            await self._left(number)

    async def time_out(self, chance: random.Random) -> None:
        attempt = self.kind.attempt(chance)
        acquiring = asyncio.ensure_future(
            attempt.lock.acquire(*attempt.arguments, blocking_timeout=IMPATIENT)
        )
        number = await self._wait(attempt.want, attempt.ttl, acquiring, attempt, attempt.session)
        await self.settle()
        if (waiter := self.waiters.get(number)) is not None:
            with pytest.raises(LockTimeoutError):
                await waiter.task
            del self.waiters[number]
            await self._left(number)

    async def _left(self, number: int) -> None:
        self.model.leave(number)
        await self._heard()

    # -- holding

    async def try_acquire(self, chance: random.Random) -> None:
        attempt = self.kind.attempt(chance)
        admitted = self.model.admits(attempt.want)
        lease = await attempt.lock.try_acquire(*attempt.arguments)
        number = next(self._numbers)
        self.tell(f"{attempt}: {'refused' if lease is None else f'#{number}'}")
        if admitted is not None:
            assert (lease is not None) is admitted, f"the model says {admitted}; held: {self.model.held}"
        if lease is not None:
            self.model.grant(number, attempt.want, attempt.ttl)
            self.leases[number] = lease

    def some(self, chance: random.Random, *, mode: str | None = None) -> int | None:
        """A lease that is held, without an upgrade, nor one that waits."""
        wants = [*self.model.waiting.values(), *(held.want for held in self.model.held.values())]
        upgraded = {want.within for want in wants}
        numbers = [
            number
            for number in self.leases
            if number not in upgraded and mode in {None, self.model.held[number].want.mode}
        ]
        return chance.choice(numbers) if numbers else None

    async def release(self, chance: random.Random) -> None:
        if (number := self.some(chance)) is not None:
            self.tell(f"#{number}")
            self.model.release(number)
            await self.leases.pop(number).release()

    async def die(self, chance: random.Random) -> None:
        """A holder, of whom nobody tells the others."""
        if (number := self.some(chance)) is not None:
            self.tell(f"#{number}")
            lease = self.leases.pop(number)
            await lease.extend(DYING)
            lease.detach()
            await asyncio.sleep(DYING)
            self.model.expire(number)

    async def flush(self, chance: random.Random) -> None:
        await self.stage.redis.script_flush()

    async def close(self) -> None:
        self.log.append("close")
        for number, waiter in self.waiters.items():
            if not waiter.task.done():
                waiter.task.cancel()
                await asyncio.wait([waiter.task])
            if not waiter.task.cancelled() and waiter.task.exception() is None:
                self.leases[number] = waiter.task.result()
        for number in sorted(self.leases, reverse=True):
            await self.leases[number].release()


class WaitingPermitsWorld(WaitingWorld):
    """With resizes."""

    VERBS: ClassVar[Mapping[str, int]] = {**WaitingWorld.VERBS, "resize": 4}
    kind: SemaphoreWorld

    async def resize(self, chance: random.Random) -> None:
        value = chance.randint(0, self.kind.MOST)
        self.tell(f"to {value}")
        await self.kind.semaphore().resize(value)
        self.kind.model.resize(value)


class WaitingModesWorld(WaitingWorld):
    """With upgrades and downgrades."""

    VERBS: ClassVar[Mapping[str, int]] = {**WaitingWorld.VERBS, "upgrade": 8, "downgrade": 4}
    kind: ModesWorld

    async def upgrade(self, chance: random.Random) -> None:
        if (number := self.some(chance, mode="upgradable")) is None:
            return
        lease, want = self.leases[number], self.kind.upgrade_of(number, self.model.held[number].want, chance)
        upgrading = lease.upgrade(*self.kind.ends(want), blocking_timeout=30)  # type: ignore[attr-defined]
        await self._wait(want, lease.ttl, asyncio.ensure_future(upgrading), f"{spoken(want)} of #{number}")

    async def downgrade(self, chance: random.Random) -> None:
        number = self.some(chance, mode="writer")
        if number is None or self.model.held[number].want.within is not None:
            return
        self.tell(f"#{number}")
        self.kind.model.downgrade(number)
        lease: Any = self.leases[number]
        await lease.downgrade()


class WaitingRangesWorld(WaitingModesWorld):
    """With shrinks."""

    VERBS: ClassVar[Mapping[str, int]] = {**WaitingModesWorld.VERBS, "shrink": 6}

    async def shrink(self, chance: random.Random) -> None:
        if (number := self.some(chance)) is None:
            return
        part = self.kind.part(self.model.held[number].want, chance)
        self.tell(f"#{number} to {spoken(part)}")
        self.kind.model.shrink(number, part.low, part.high)
        lease: Any = self.leases[number]
        await lease.shrink(part.low, part.high)
