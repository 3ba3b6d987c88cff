"""Locks on a real server and their models, side by side: what can be done with them, step by step.

Time is the server's: its clock is moved, and no timer of this process is. Leases last for an odd number of
half minutes and the clock moves by whole ones, so that nothing ever ends within seconds of a step.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from typing import Any, ClassVar

import pytest
from redis.asyncio import Redis

from aiolocks import (
    BackendError,
    ConfigurationError,
    FairLock,
    Lease,
    Lock,
    LockError,
    LockLostError,
    LockNotOwnedError,
    LockTimeoutError,
    MultiLock,
    RangeLock,
    ReentrantLock,
    RWLock,
    Semaphore,
    Session,
)
from tests.support.history import Mode
from tests.support.models import FairModel, Model, NamesModel, RangesModel, SemaphoreModel, Want
from tests.support.skew import SkewedServer

POINTS = [-math.inf, -7.0, -1.5, 0.0, 1.0, 2.0, 2.5, 3.0, 4.0, 5.0, 2.0**53, math.inf]
MINUTE = 60.0
TTLS = (0.5 * MINUTE, 1.5 * MINUTE, 2.5 * MINUTE, 4.5 * MINUTE)
LONG = 2.0
"""Seconds to wait for what must be answered at once."""
SHORT = 0.003
"""Seconds to wait in vain."""
IN_VAIN: dict[float, list[type[LockError]]] = {0: [], SHORT: [BackendError], LONG: []}
"""The errors with which a wait of that many seconds may end beside a timeout: a busy machine may need longer
to answer."""


@dataclass
class Stage:
    """Where the worlds of one test play: a server, and some sessions, as if of several processes."""

    server: SkewedServer
    redis: Redis
    sessions: list[Session]

    def __post_init__(self) -> None:
        self._numbers = count(1)

    def new_name(self) -> str:
        return f"w{next(self._numbers)}"


@dataclass(frozen=True)
class Attempt:
    """One way to acquire, and how the model knows it.

    Attributes:
        make: Makes the lock on a session: a hand-over goes from one to another.
        session: Number of the session that it uses.
        arguments: The arguments of its `acquire`.
    """

    make: Callable[[int], Any]
    session: int
    want: Want
    ttl: float
    text: str
    arguments: tuple[int, ...] = ()

    @property
    def lock(self) -> Any:
        return self.make(self.session)

    def __str__(self) -> str:
        return f"{self.text} in session {self.session} for {self.ttl:g} s"


@dataclass
class Taken:
    """A lease that was given out, whatever has become of it since."""

    attempt: Attempt
    lease: Any


class World:
    """The part that all kinds share.

    Invariant: every lease that the model says is held is in `taken`, or was abandoned.
    """

    VERBS: ClassVar[Mapping[str, int]] = {
        "try_acquire": 36,
        "acquire": 6,
        "cancel": 3,
        "release": 18,
        "extend": 8,
        "hand_over": 5,
        "abandon": 2,
        "advance": 5,
        "flush": 2,
    }
    LOOKS = 2

    def __init__(self, stage: Stage, model: Model) -> None:
        self.stage = stage
        self.model = model
        self.name = stage.new_name()
        self.log: list[str] = []
        self.taken: dict[int, Taken] = {}
        self.largest: dict[str, int] = {}  # fencing token, by name
        self._numbers = count(1)

    def attempt(self, chance: random.Random) -> Attempt:
        """Some way to acquire."""
        raise NotImplementedError

    def described(
        self, make: Callable[[Session], Any], want: Want, ttl: float, text: str, chance: random.Random
    ) -> Attempt:
        """An attempt in one of the sessions."""
        return Attempt(
            lambda number: make(self.stage.sessions[number]),
            chance.randrange(len(self.stage.sessions)),
            want,
            ttl,
            text,
        )

    async def step(self, verb: str, chance: random.Random) -> None:
        self.log.append(verb)
        await getattr(self, verb)(chance)
        await self.look(chance)

    def tell(self, text: object) -> None:
        """Say in the log what the step under way does."""
        self.log[-1] += f" {text}"

    async def look(self, chance: random.Random) -> None:
        """Compare what can be asked, all at once."""
        attempts = [self.attempt(chance) for _ in range(self.LOOKS)]
        number = self.some(chance)
        asked = [self.locked(attempt) for attempt in attempts]
        if number is not None:
            asked.append(self.taken[number].lease.owned())
        answers = await asyncio.gather(*asked)
        for attempt, answer in zip(attempts, answers, strict=False):
            assert answer is not self.model.admits(attempt.want), (
                f"{attempt} says locked: {answer}; held: {self.model.held}"
            )
        if number is not None:
            owned = answers[-1]
            assert owned == self.model.holds(number), f"#{number} says owned: {owned}"

    async def locked(self, attempt: Attempt) -> bool:
        answer: bool = await attempt.lock.locked()
        return answer

    def some(self, chance: random.Random, *, mode: Mode | None = None) -> int | None:
        """A lease of ours, held still or lost; None if there is none, or none in that mode."""
        numbers = [
            number for number, taken in self.taken.items() if mode is None or taken.attempt.want.mode == mode
        ]
        return chance.choice(numbers) if numbers else None

    # -- acquiring

    async def try_acquire(self, chance: random.Random) -> None:
        attempt = self.attempt(chance)
        admitted = self.model.admits(attempt.want)
        lease = await attempt.lock.try_acquire(*attempt.arguments)
        self._settle(attempt, lease, admitted)

    async def notice(self) -> None:
        """The losses that a renewal would tell: a session waits for a lease that it believes to hold."""
        for number in [number for number in self.taken if not self.model.holds(number)]:
            with pytest.raises(LockLostError):
                await self.taken.pop(number).lease.extend()

    async def acquire(self, chance: random.Random) -> None:
        await self.notice()
        attempt = self.attempt(chance)
        admitted = self.model.admits(attempt.want)
        lease = None
        timeout = LONG if admitted else chance.choice([0, SHORT])
        with suppress(LockTimeoutError, *IN_VAIN[timeout]):
            lease = await attempt.lock.acquire(*attempt.arguments, blocking_timeout=timeout)
        self._settle(attempt, lease, admitted)
        await self.locked(attempt)  # behind what its session may have had to undo

    def _settle(self, attempt: Attempt, lease: Lease | None, admitted: bool | None) -> int | None:
        number = next(self._numbers)
        self.tell(f"{attempt}: {'refused' if lease is None else f'#{number}'}")
        assert (lease is not None) is admitted, f"the model says {admitted}; held: {self.model.held}"
        if lease is None:
            return None
        self._check_fence(lease, attempt.want)
        self.model.grant(number, attempt.want, attempt.ttl)
        self.taken[number] = Taken(attempt, lease)
        return number

    def _check_fence(self, lease: Lease, want: Want) -> None:
        for name in want.names:
            assert lease.fencing_token > self.largest.get(name, 0), "the fencing token does not rise"
            self.largest[name] = lease.fencing_token

    async def cancel(self, chance: random.Random) -> None:
        """An acquire, at whatever point; nothing stays held."""
        attempt = self.attempt(chance)
        self.tell(attempt)
        task = asyncio.ensure_future(attempt.lock.acquire(*attempt.arguments))
        for _ in range(chance.randrange(4)):
            await asyncio.sleep(0)
        await asyncio.sleep(chance.choice([0, 0.0001, 0.0003, SHORT]))
        task.cancel()
        await asyncio.wait([task])
        if not task.cancelled():
            assert self.model.admits(attempt.want), "it was granted"
            self._check_fence(task.result(), attempt.want)
            await task.result().release()
        await self.locked(attempt)

    # -- holding

    async def release(self, chance: random.Random) -> None:
        if (number := self.some(chance)) is not None:
            self.tell(f"#{number}")
            await self.let_go(number, again=chance.random() < 0.2)

    async def let_go(self, number: int, *, again: bool = False) -> None:
        lease = self.taken.pop(number).lease
        held = self.model.release(number)
        for _ in range(1 + again):
            if held:
                await lease.release()
            else:
                with pytest.raises(LockNotOwnedError):
                    await lease.release()

    async def extend(self, chance: random.Random) -> None:
        if (number := self.some(chance)) is None:
            return
        ttl = chance.choice(TTLS)
        self.tell(f"#{number} to {ttl:g} s")
        if self.model.extend(number, ttl):
            await self.taken[number].lease.extend(ttl)
        else:
            with pytest.raises(LockLostError):
                await self.taken.pop(number).lease.extend(ttl)

    async def hand_over(self, chance: random.Random) -> None:
        """To another session; a second adopter and the old lease come too late."""
        if (number := self.some(chance)) is None or self.taken[number].attempt.want.within is not None:
            return
        taken = self.taken.pop(number)
        attempt = replace(taken.attempt, session=chance.randrange(len(self.stage.sessions)))
        self.tell(f"#{number} to session {attempt.session}")
        by = next(self._numbers)
        held = self.model.adopt(number, by, attempt.ttl)
        try:
            handle = taken.lease.detach()
        except LockLostError:  # its session may have been told
            assert not held
            return
        if held:
            self.taken[by] = Taken(attempt, await attempt.lock.adopt(handle))
            self.tell(f"as #{by}")
            assert self.taken[by].lease.fencing_token == taken.lease.fencing_token
        with pytest.raises(LockNotOwnedError):
            await attempt.lock.adopt(handle)
        with pytest.raises(LockNotOwnedError):
            await taken.lease.release()

    async def abandon(self, chance: random.Random) -> None:
        """Its holder dies."""
        if (number := self.some(chance)) is not None and self.taken[number].attempt.want.within is None:
            self.tell(f"#{number}")
            with contextlib.suppress(LockLostError):  # its session may have been told that it has ended
                self.taken.pop(number).lease.detach()

    # -- what happens to the server

    async def advance(self, chance: random.Random) -> None:
        seconds = chance.choice([1, 1, 2, 3]) * MINUTE
        self.tell(f"{seconds:g} s")
        await self.stage.server.advance(seconds)
        self.model.advance(seconds)

    async def flush(self, chance: random.Random) -> None:
        await self.stage.redis.script_flush()

    async def close(self) -> None:
        self.log.append("close")
        for number in list(reversed(self.taken)):
            await self.let_go(number)


# -- kinds


class NamesWorld(World):
    """`Lock`, `ReentrantLock` and `MultiLock` on a few names that they share."""

    def __init__(self, stage: Stage, model: NamesModel | None = None) -> None:
        super().__init__(stage, model or NamesModel())
        self.model: NamesModel

    def attempt(self, chance: random.Random) -> Attempt:
        ttl = chance.choice(TTLS)
        names = chance.sample("abc", chance.choice([1, 2, 2, 3]))
        keys = [f"{self.name}{name}" for name in names]
        first = Want(names=frozenset(names[:1]))
        make: partial[Any]
        match chance.randrange(3):
            case 0:
                make, want = partial(MultiLock, names=keys), Want(names=frozenset(names))
            case 1:
                make, want = partial(Lock, name=keys[0]), first
            case _:
                owner = chance.choice(["me", "me", "you"])
                make = partial(ReentrantLock, name=keys[0], owner=owner)
                want = replace(first, owner=owner)
        text = f"{make.func.__name__} {','.join(sorted(want.names))} of {want.owner or 'nobody'}"
        return self.described(
            lambda session: make(session, ttl=ttl, auto_renew=False), want, ttl, text, chance
        )

    def _settle(self, attempt: Attempt, lease: Any, admitted: bool | None) -> int | None:
        number = super()._settle(attempt, lease, admitted)
        if lease is not None and attempt.want.owner is not None:
            depth = self.model.depth(attempt.want.owner, attempt.want.names)
            assert lease.depth == depth, f"its depth is {lease.depth}"
        return number

    def _check_fence(self, lease: Lease, want: Want) -> None:
        """The same while its owner nests."""
        if want.owner is not None and self.model.depth(want.owner, want.names):
            assert lease.fencing_token == self.largest[next(iter(want.names))], "nested, it has another token"
        else:
            super()._check_fence(lease, want)


class SemaphoreWorld(World):
    """`Semaphore`, fair or not, with leases of several permits and resizes."""

    VERBS: ClassVar[Mapping[str, int]] = {**World.VERBS, "resize": 4, "misconfigure": 2}
    MOST = 6

    def __init__(self, stage: Stage, model: SemaphoreModel | None = None, *, fair: bool = False) -> None:
        super().__init__(stage, model or (FairModel if fair else SemaphoreModel)(4))
        self.model: SemaphoreModel
        self.fair = fair
        self.made = False  # the server knows the value

    def semaphore(self, session: Session | None = None, *, ttl: float = MINUTE, value: int = 0) -> Semaphore:
        session, value = session or self.stage.sessions[0], value or self.model.first
        return Semaphore(session, self.name, value, fair=self.fair, ttl=ttl, auto_renew=False)

    def attempt(self, chance: random.Random) -> Attempt:
        ttl, permits = chance.choice(TTLS), chance.choice([1, 1, 1, 2, 3, 4])
        attempt = self.described(
            partial(self.semaphore, ttl=ttl), Want(permits=permits), ttl, f"{permits} permits", chance
        )
        return replace(attempt, arguments=(permits,))

    async def look(self, chance: random.Random) -> None:
        await super().look(chance)
        available = await self.semaphore().available()
        assert available == self.model.available, f"available: {available}; held: {self.model.held}"

    async def locked(self, attempt: Attempt) -> bool:
        """It speaks of one permit."""
        locked: bool = await attempt.lock.locked()
        assert locked is not self.model.admits(Want()), f"locked: {locked}; held: {self.model.held}"
        return not self.model.admits(attempt.want)

    async def resize(self, chance: random.Random) -> None:
        value = chance.randint(0, self.MOST)
        self.tell(f"to {value}")
        await self.semaphore().resize(value)
        self.made = True
        self.model.resize(value)

    async def misconfigure(self, chance: random.Random) -> None:
        """Made with another value: while anybody holds, the error names both; else that value counts."""
        if not self.made:
            return
        first, other = (
            self.model.first,
            chance.choice([one for one in range(4, 8) if one != self.model.first]),
        )
        self.tell(f"with {other}")
        if self.model.held:
            with pytest.raises(ConfigurationError) as caught:
                await self.semaphore(value=other).try_acquire()
            assert {str(first), str(other)} <= set(re.findall(r"\d+", str(caught.value))), caught.value
            return
        self.model.remake(other)
        lease = await self.semaphore(value=other).try_acquire()
        assert (lease is not None) is self.model.admits(Want())
        if lease is not None:
            self._check_fence(lease, Want())
            await lease.release()

    def _settle(self, attempt: Attempt, lease: Lease | None, admitted: bool | None) -> int | None:
        self.made = True
        return super()._settle(attempt, lease, admitted)


class FairLockWorld(World):
    """`FairLock` where nobody stays in the queue."""

    def __init__(self, stage: Stage, model: FairModel | None = None) -> None:
        super().__init__(stage, model or FairModel())

    def attempt(self, chance: random.Random) -> Attempt:
        ttl = chance.choice(TTLS)
        make = partial(FairLock, name=self.name, ttl=ttl, auto_renew=False)
        return self.described(make, Want(), ttl, "FairLock", chance)


class ModesWorld(World):
    """The part that `RWLock` and `RangeLock` share."""

    VERBS: ClassVar[Mapping[str, int]] = {**World.VERBS, "upgrade": 8, "downgrade": 5}
    model: RangesModel

    def lock(self, session: Session, want: Want, ttl: float) -> Any:
        """The lock that acquires that, and adopts it."""
        raise NotImplementedError

    def wanted(self, want: Want, chance: random.Random) -> Attempt:
        ttl = chance.choice(TTLS)
        return self.described(partial(self.lock, want=want, ttl=ttl), want, ttl, spoken(want), chance)

    def becomes(self, taken: Taken, want: Want) -> None:
        """A lease has become less."""
        sessions, ttl = self.stage.sessions, taken.attempt.ttl
        taken.attempt = replace(
            taken.attempt, want=want, make=lambda number: self.lock(sessions[number], want, ttl)
        )

    def some(self, chance: random.Random, *, mode: Mode | None = None) -> int | None:
        """None that has an upgrade: that is left first."""
        upgraded = {taken.attempt.want.within for taken in self.taken.values()}
        hidden = {number: self.taken.pop(number) for number in list(self.taken) if number in upgraded}
        found = super().some(chance, mode=mode)
        self.taken = dict(sorted((self.taken | hidden).items()))
        return found

    def part(self, want: Want, chance: random.Random) -> Want:
        """Some part of what is held."""
        return want

    def upgrade_of(self, number: int, upgradable: Want, chance: random.Random) -> Want:
        """A writer on some part of an upgradable lease."""
        return replace(self.part(upgradable, chance), mode="writer", within=number)

    def ends(self, want: Want) -> tuple[float, ...]:
        """The arguments of its `upgrade`."""
        return ()

    async def upgrade(self, chance: random.Random) -> None:
        if (number := self.some(chance, mode="upgradable")) is None:
            return
        taken = self.taken[number]
        lease = taken.lease
        want = self.upgrade_of(number, taken.attempt.want, chance)
        attempt = replace(taken.attempt, want=want, text=f"{spoken(want)} of #{number}")
        if not self.model.holds(number):
            self.tell(f"{attempt}, which is lost")
            with pytest.raises(LockLostError):
                await lease.upgrade(*self.ends(want), blocking_timeout=LONG)
            del self.taken[number]
            return
        await self.notice()
        admitted = self.model.admits(want)
        writer = None
        timeout = LONG if admitted else chance.choice([0, SHORT])
        with suppress(LockTimeoutError, *IN_VAIN[timeout]):
            writer = await lease.upgrade(*self.ends(want), blocking_timeout=timeout)
        self._settle(attempt, writer, admitted)
        if writer is not None:
            assert lease.fencing_token == writer.fencing_token, "the upgradable inherits the token"
        await self.locked(taken.attempt)

    async def downgrade(self, chance: random.Random) -> None:
        number = self.some(chance, mode="writer")
        if number is None:
            return
        taken = self.taken[number]
        self.tell(f"#{number}")
        if taken.attempt.want.within is not None:
            with pytest.raises(RuntimeError):
                await taken.lease.downgrade()
        elif self.model.downgrade(number):
            await taken.lease.downgrade()
            self.becomes(taken, replace(taken.attempt.want, mode="reader"))
        else:
            with pytest.raises(LockLostError):
                await self.taken.pop(number).lease.downgrade()


def spoken(want: Want) -> str:
    """For the log."""
    return f"{want.mode}({want.low:g}, {want.high:g})"


def some_mode(chance: random.Random) -> Mode:
    modes: list[Mode] = ["reader", "reader", "upgradable", "writer"]
    return chance.choice(modes)


class RWLockWorld(ModesWorld):
    """`RWLock`."""

    def __init__(self, stage: Stage, model: RangesModel | None = None) -> None:
        super().__init__(stage, model or RangesModel())

    def lock(self, session: Session, want: Want, ttl: float) -> Any:
        return getattr(RWLock(session, self.name, ttl=ttl, auto_renew=False), want.mode)

    def attempt(self, chance: random.Random) -> Attempt:
        return self.wanted(Want(mode=some_mode(chance)), chance)


class RangeLockWorld(ModesWorld):
    """`RangeLock`, on few points, so that intervals meet."""

    VERBS: ClassVar[Mapping[str, int]] = {**ModesWorld.VERBS, "shrink": 8}
    LOOKS = 4

    def __init__(self, stage: Stage, model: RangesModel | None = None, *, bounds: str = "[)") -> None:
        super().__init__(stage, model or RangesModel(closed=bounds == "[]"))
        self.bounds = bounds

    def lock(self, session: Session, want: Want, ttl: float) -> Any:
        lock = RangeLock(session, self.name, bounds=self.bounds, ttl=ttl, auto_renew=False)  # type: ignore[arg-type]
        return getattr(lock, want.mode)(want.low, want.high)

    def attempt(self, chance: random.Random) -> Attempt:
        low, high = self.interval(chance, POINTS)
        return self.wanted(Want(mode=some_mode(chance), low=low, high=high), chance)

    def interval(self, chance: random.Random, points: list[float]) -> tuple[float, float]:
        if self.bounds == "[]" and chance.random() < 0.1:
            point = chance.choice([point for point in points if math.isfinite(point)] or points)
            return point, point
        low, high = sorted(chance.sample(points, 2))
        return low, high

    def part(self, want: Want, chance: random.Random) -> Want:
        points = [point for point in POINTS if want.low <= point <= want.high]
        if len(points) < 2:
            return want
        low, high = self.interval(chance, points)
        return replace(want, low=low, high=high)

    def ends(self, want: Want) -> tuple[float, ...]:
        return want.low, want.high

    async def shrink(self, chance: random.Random) -> None:
        number = self.some(chance)
        if number is None:
            return
        taken = self.taken[number]
        part = self.part(taken.attempt.want, chance)
        self.tell(f"#{number} to [{part.low}, {part.high}")
        if self.model.shrink(number, part.low, part.high):
            await taken.lease.shrink(part.low, part.high)
            self.becomes(taken, part)
        else:
            with pytest.raises(LockLostError):
                await self.taken.pop(number).lease.shrink(part.low, part.high)
