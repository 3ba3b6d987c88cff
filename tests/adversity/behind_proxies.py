"""What each kind of lock does behind a proxy, where waiters poll."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from aiolocks import (
    FairLock,
    Lease,
    Limits,
    Lock,
    MultiLock,
    RangeLock,
    ReentrantLock,
    RWLock,
    Semaphore,
    Session,
)
from tests.adversity.tools import in_within
from tests.support.waiting import eventually, sleeps

MUTUAL: dict[str, Callable[[Session], Any]] = {
    "Lock": lambda session: Lock(session, "l"),
    "Lock, kept": lambda session: Lock(session, "k", cache=0.5),
    "FairLock": lambda session: FairLock(session, "f"),
    "ReentrantLock": lambda session: ReentrantLock(session, "e"),
    "Semaphore": lambda session: Semaphore(session, "s", 1),
    "RWLock": lambda session: RWLock(session, "r").writer,
    "RangeLock": lambda session: RangeLock(session, "g").writer(1, 2),
    "MultiLock": lambda session: MultiLock(session, ["{m}:1", "{m}:2"]),
    "Limits": lambda session: Limits(session, "i", {"all": 1}),
}


async def hand_over(one: Session, other: Session, kind: str) -> None:
    """It is held, waited for, renewed and handed over."""
    lease = await MUTUAL[kind](one).acquire(blocking_timeout=0)  # the first request of its session

    async def wait() -> Lease:
        return await MUTUAL[kind](other).acquire()

    waiting = asyncio.create_task(wait())
    await eventually(lambda: sleeps(other), within=5)
    await lease.extend(20)
    await lease.release()
    await (await in_within(4, waiting)).release()
