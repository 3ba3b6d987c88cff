"""The processes of a history: they acquire in every manner, hold for a moment, note it down.

Each task has a session of its own, as if it were a process: nothing is handed over locally, and what its
listener is told concerns the one acquire that is under way.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import random
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import asdict, replace
from itertools import count
from pathlib import Path
from typing import Any, TextIO

from redis.asyncio import Redis

from aiolocks import (
    FairLock,
    Lease,
    Lock,
    LockError,
    MultiLock,
    RangeLock,
    ReentrantLock,
    RWLock,
    Semaphore,
    Session,
)
from tests.support.history import Hold, Mode, Resize
from tests.support.processes import tell

TASKS = 4
TTL = 0.4
NAMES = ("a", "b", "c")
PERMITS = 3
MODES: tuple[Mode, ...] = ("reader", "reader", "upgradable", "writer")

now = time.monotonic


class Place:
    """A session's listener: when the acquire under way had its place in the queue, for it was refused.

    Args:
        certain: Seconds from the refusal until the place is certain: a strict queue gives it at once, others
            in the next step.
    """

    def __init__(self, certain: float) -> None:
        self.had_since: float | None = None
        self._certain = certain

    def on_waiting(self, _: object) -> None:
        if self.had_since is None:
            self.had_since = now() + self._certain


class Player:
    """One task that plays with one kind of lock.

    Args:
        place: A listener of its session.
        history: Where it notes what it had. Leases that it still has when it is killed stand there already.
    """

    def __init__(
        self, kind: str, who: str, session: Session, place: Place, chance: random.Random, history: TextIO
    ) -> None:
        self.kind = kind
        self.who = who
        self.session = session
        self.chance = chance
        self._history = history
        self._numbers = count(1)
        self._place = place
        self._end = 0.0
        self._common: dict[str, Any] = {"ttl": TTL, "on_lost": "ignore"}

    async def play(self, end: float) -> None:
        """Until the end."""
        self._end = end
        while now() < end:
            await getattr(self, self.kind)()
            await asyncio.sleep(self.chance.choice([0, 0, 0.002, 0.01]))

    # -- kinds

    async def lock(self) -> None:
        await self.have(Lock(self.session, "n", **self._common))

    async def fair(self) -> None:
        await self.have(FairLock(self.session, "n", **self._common))

    async def reentrant(self) -> None:
        lock = ReentrantLock(self.session, "n", owner=self.who, **self._common)
        again = self.chance.randrange(3)

        async def nest(_: Lease, __: Hold) -> None:
            nonlocal again
            if again:
                again -= 1
                await self.have(lock, during=nest, owner=self.who)

        await self.have(lock, during=nest, owner=self.who)

    async def multi(self) -> None:
        names = self.chance.sample(NAMES, self.chance.choice([1, 2, 2, 3]))
        await self.have(MultiLock(self.session, names, **self._common), names=names)

    async def semaphore(self, *, fair: bool = False) -> None:
        semaphore = Semaphore(self.session, "n", PERMITS, fair=fair, **self._common)
        if self.chance.random() < 0.02:
            await self.resize(semaphore)
        permits = self.chance.choice([1, 1, 2, 3])
        await self.have(semaphore, permits, permits=permits)

    async def fair_semaphore(self) -> None:
        await self.semaphore(fair=True)

    async def rwlock(self) -> None:
        mode = self.chance.choice(MODES)
        lock = getattr(RWLock(self.session, "n", **self._common), mode)
        # A writer that is cancelled may have been in without a note.
        await self.have(lock, during=self.change, mode=mode, patient=mode == "writer")

    async def rangelock(self) -> None:
        mode = self.chance.choice(MODES)
        low, high = sorted(self.chance.sample(range(12), 2))
        lock = getattr(RangeLock(self.session, "n", **self._common), mode)(low, high)
        await self.have(lock, during=self.change, mode=mode, low=low, high=high)

    # -- what is done with a lease

    async def change(self, lease: Any, hold: Hold) -> Hold:
        """Upgrade an upgradable, make a writer a reader, give back a part: now and then."""
        part: dict[str, Any] = {}
        if self.kind == "rangelock" and hold.high - hold.low > 2 and self.chance.random() < 0.5:
            part = {"low": hold.low + 1, "high": hold.high - 1}
        match hold.mode:
            case "upgradable" if self.chance.random() < 0.7:
                timeout = self._patience() if self.kind == "rwlock" else self.chance.uniform(0, 0.5)
                upgrade = lease.upgrade(*part.values(), blocking_timeout=timeout)
                await self._have(upgrade, owner=hold.owner, **({"low": hold.low, "high": hold.high} | part))
            case "writer" if self.chance.random() < 0.3:
                return await self._become(hold, lease.downgrade(), mode="reader")
            case _ if part:
                return await self._become(hold, lease.shrink(*part.values()), **part)
        return hold

    async def _become(self, hold: Hold, changing: Awaitable[None], **to: Any) -> Hold:
        called = now()
        before, _ = hold.changed(called, math.inf)
        self.note(before)
        try:
            await changing
        except LockError:  # done or not
            return before
        before, after = hold.changed(called, now(), **to)
        after = replace(after, who=f"{hold.who}*")
        self.note(before)
        self.note(after)
        return after

    async def resize(self, semaphore: Semaphore) -> None:
        called, value = now(), self.chance.randint(PERMITS, PERMITS + 2)
        # Until it is confirmed it counts from now on and for ever, should this process be killed.
        self._write(Resize(called=called, confirmed=math.inf, value=value))
        await semaphore.resize(value)
        self._write(Resize(called=called, confirmed=now(), value=value))

    # -- holding

    def _patience(self) -> float:
        return max(0.05, self._end - now())

    async def have(self, lock: Any, *arguments: Any, patient: bool = False, **more: Any) -> None:
        """Acquire in some manner."""
        match 7 if patient else self.chance.randrange(8):
            case 0:
                acquiring = lock.try_acquire(*arguments)
            case 1:
                # Cancels it.
                acquiring = asyncio.wait_for(lock.acquire(*arguments), self.chance.uniform(0, 0.02))
            case 2:
                acquiring = lock.acquire(*arguments, blocking_timeout=self.chance.uniform(0, 0.05))
            case _:
                acquiring = lock.acquire(*arguments, blocking_timeout=self._patience())
        await self._have(acquiring, **more)

    async def _have(
        self,
        acquiring: Awaitable[Lease | None],
        *,
        during: Callable[[Any, Hold], Awaitable[Hold | None]] | None = None,
        names: list[str] | None = None,
        **as_told: Any,
    ) -> None:
        self._place.had_since = None
        invoked = now()
        try:
            lease = await acquiring
        except (TimeoutError, LockError):
            return
        if lease is None:
            return
        granted = now()
        hold = Hold(
            who=f"{self.who}.{next(self._numbers)}",
            name="n",
            invoked=invoked,
            granted=granted,
            deadline=granted + lease.remaining(),
            fencing_token=lease.fencing_token,
            queued=self._place.had_since,
            **as_told,
        )
        if hold.mode == "upgradable":
            hold = replace(hold, owner=hold.who)  # and that of its upgrade
        self.note(hold, names)
        try:
            if during is not None:
                hold = await during(lease, hold) or hold
            await asyncio.sleep(self.chance.choice([0, 0.001, 0.005]))
        except LockError:
            pass  # lost meanwhile
        finally:
            await self._release(lease, hold, names)

    async def _release(self, lease: Lease, hold: Hold, names: list[str] | None) -> None:
        """Facts that cannot be known exactly are judged in its favour: its clock is read before the time that
        it has left."""
        asked = now()
        if (left := lease.remaining()) > 0:
            hold = replace(hold, deadline=asked + left)
        hold = replace(hold, released=min(asked, hold.released))
        self.note(hold, names)
        with suppress(LockError):
            await lease.release()
            self.note(replace(hold, confirmed=now()), names)

    def note(self, hold: Hold, names: list[str] | None = None) -> None:
        """Before it is done, and again when it was done: the last note counts."""
        for name in names or [hold.name]:
            self._write(replace(hold, name=name))

    def _write(self, what: Hold | Resize) -> None:
        self._history.write(json.dumps({type(what).__name__: asdict(what)}) + "\n")


def opened(history: str) -> TextIO:
    """Written line by line: what was noted stands there when the process is killed."""
    return Path(history).open("w", buffering=1)


async def play(url: str, kind: str, history: str, seconds: float, seed: int) -> None:
    """In a process of its own."""
    end = now() + seconds
    with opened(history) as file:
        async with AsyncExitStack() as stack:
            players = []
            for number in range(TASKS):
                redis = await stack.enter_async_context(Redis.from_url(url))
                place, chance = Place(0 if "fair" in kind else 0.02), random.Random(f"{seed} {number}")
                session = await stack.enter_async_context(Session(redis, listeners=[place]))
                players.append(Player(kind, f"{os.getpid()}.{number}", session, place, chance, file))
            tell("ready")
            async with asyncio.TaskGroup() as group:
                for player in players:
                    group.create_task(player.play(end))


def read(directory: Path) -> tuple[list[Hold], list[Resize]]:
    """The notes of all; the last line of a process that was killed may be cut."""
    holds: dict[tuple[str, str], Hold] = {}
    resizes: dict[float, Resize] = {}
    for file in directory.iterdir():
        for line in file.read_text().splitlines(keepends=True):
            if not line.endswith("\n"):
                continue
            ((what, fields),) = json.loads(line).items()
            if what == "Hold":
                holds[fields["who"], fields["name"]] = Hold(**fields)
            else:
                resizes[fields["called"]] = Resize(**fields)
    return list(holds.values()), list(resizes.values())
