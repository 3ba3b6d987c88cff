"""The findings of `Session.inspect`: locks, their holders, and the waiters in their queues."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from ._holders import HolderInfo

KindAndName = tuple[str, str]
"""By which a lock is found: two kinds may have a lock of the same name."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class WaiterInfo:
    """A place in the queue of a lock, as the server has it. An unknown field is None.

    The server learns host and process of a session that has waited for about half a second.

    Attributes:
        host: Name of the machine of the waiting process.
        pid: Its process id on that machine.
        waited_for: Seconds since the place was taken.
        waiting_since: The server's time when the place was taken, as seconds since 1970.
    """

    host: str | None = None
    pid: int | None = None
    waited_for: float | None = None
    waiting_since: float | None = None


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class LockInfo:
    """The state of one name, as `session.inspect()` found it.

    Attributes:
        kind: Its name space: `"lock"` (which `Lock`, `ReentrantLock` and `MultiLock` share), `"fairlock"`,
            `"semaphore"`, `"rwlock"` …; `"?"` if aiolocks has not written the key.
        name: Name of the lock; if aiolocks has not written the key, the part after the prefix.
        holders: The holders, the oldest grant first.
        waiters: How many waiters are in the queue and alive. Each session counts once, even if several of its
            tasks wait; for a fair lock, each task counts. For a `Lock`, a waiter whose own session has the
            holder is not in the queue, and does not count.
        value: How many permits a `Semaphore` has in all; how many tasks have gone through a `Turnstile`; how
            many requests a `RateLimit` would admit at once; how many steps of a `Latch` are left; how many
            items wait with a `Combiner`, or are being run.
        problem: The fault in the keys of this name, in words; empty if there is none.
        waiting: The first 100 of the waiters, in the order of the queue.
        kept_for: Seconds for which no task can acquire it although no task holds it, because it was released
            before its `at_least` had passed. Of a `RateLimit` that is taken: seconds until it would admit one
            more request, behind all that wait. Otherwise None.
        kept_until: When this time ends by the server's clock, as seconds since 1970.
    """

    kind: str
    name: str
    holders: tuple[HolderInfo, ...] = ()
    waiters: int = 0
    value: int | None = None
    problem: str = ""
    waiting: tuple[WaiterInfo, ...] = ()
    kept_for: float | None = None
    kept_until: float | None = None
