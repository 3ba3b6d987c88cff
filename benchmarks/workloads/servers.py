"""What the requests of the library take each supported server."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import statistics
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final

from redis.asyncio import Redis

from aiolocks import Lease, Lock, LockNotOwnedError, Session

from ..model import Figure, Sample
from ..settings import Address
from ..spent import of_scripts
from ..targets import at_most
from .base import Measure, Workload
from .costs import Renewed, sessions

_TTL: Final = 10.0
_RUNS: Final = 2
"""A server may be stopped at any time where the machine does something else too: of so many runs, the one
counts whose longest request was the shortest."""
_RUN: Final = 3.5
"""Seconds, in which each lease is renewed once."""
_AT_ONCE: Final = 100
_TABLE: Final = 1000
"""Keys of a tracking table that is full. The default is a million."""
_names = itertools.count()


class Servers(Workload):
    """The work of the server."""

    name = "servers"
    work = (
        "µs of the server for each script of an acquire and release of one task; then the longest request "
        f"of {_RUN} s, as the slow log has it, the shorter of {_RUNS} runs: while 10 000 leases with ttl "
        "10 s are renewed, while 1 000 tasks wait for names that another session holds, and both with a "
        f"tracking table of {_TABLE} keys, which is full"
    )
    figures = (
        Figure("acquire", "acquire: µs", 1),
        Figure("release", "release: µs", 1),
        Figure("renewal", "renewal of one of 10 000 leases: µs", 1),
        Figure("leases", "longest request, 10 000 leases: ms", 2),
        Figure("waiters", "longest request, 1 000 waiters: ms", 2),
        Figure("table", "longest request, both, full tracking table: ms", 2),
    )
    patience = 240.0
    once = True  # it has runs of its own
    targets = (
        at_most(1.0, "leases", "10 000 leases: ≤ 1 ms"),
        at_most(1.0, "waiters", "1 000 waiters: ≤ 1 ms"),
        at_most(1.0, "table", "full tracking table: ≤ 1 ms"),
    )

    @property
    def contenders(self) -> Sequence[str]:
        """Ours alone."""
        return ("aiolocks",)

    @asynccontextmanager
    async def stage(self, address: Address) -> AsyncGenerator[Measure]:
        """A client that asks the server."""

        async def measure(_: str) -> Sample:
            async with address.client() as admin:
                return Sample(await self._figures(address, admin))

        yield measure

    async def _figures(self, address: Address, admin: Redis) -> dict[str, float]:
        size, seconds = self.settings.size, 0.5 if self.settings.quick else _RUN
        leases, waiters = size(10_000, 100), size(1_000, 20)
        async with AsyncExitStack() as stack:
            renewed = Renewed()
            here = await sessions([address], stack, wakeup="tracking", listeners=(renewed,))
            there = await sessions([address], stack, wakeup="tracking")
            figures = await _steps(admin, here, size(2_000, 20))
            async with _held(here, leases):
                before, spent = renewed.number, await of_scripts(admin)
                figures["leases"] = await _longest(admin, seconds)
                figures["renewal"] = (await of_scripts(admin) - spent) / max(1, renewed.number - before)
            async with _held(there, waiters) as names, _waiting(here, names):
                figures["waiters"] = await _longest(admin, seconds)
            await admin.config_set("tracking-table-max-keys", _TABLE)
            async with _held(here, leases), _held(there, waiters) as names, _waiting(here, names):
                figures["table"] = await _longest(admin, seconds)
        return figures


async def _steps(admin: Redis, session: Session, cycles: int) -> dict[str, float]:
    """µs of each script, without the longest twentieth."""
    lock = Lock(session, "steps")
    async with lock:
        pass
    await admin.config_set("slowlog-max-len", 10 * cycles)
    await admin.config_set("slowlog-log-slower-than", 0)
    await admin.slowlog_reset()
    for _ in range(cycles):
        async with lock:
            pass
    entries = await admin.slowlog_get(10 * cycles)
    scripts: dict[bytes, list[int]] = {}
    for entry in sorted(entries, key=lambda entry: entry["id"]):
        if entry["command"].startswith(b"EVALSHA "):
            scripts.setdefault(entry["command"].split()[1], []).append(entry["duration"])
    (acquire, release) = (sorted(durations)[: cycles * 19 // 20] for durations in scripts.values())
    return {"acquire": statistics.fmean(acquire), "release": statistics.fmean(release)}


async def _longest(admin: Redis, seconds: float) -> float:
    """Ms of the longest request in that time, in the best of some runs."""
    await admin.config_set("slowlog-log-slower-than", 20)
    longest = []
    for _ in range(_RUNS):
        await admin.slowlog_reset()
        await asyncio.sleep(seconds)
        entries = await admin.slowlog_get(10_000)
        durations = [
            each["duration"] for each in entries if each["command"].startswith((b"EVALSHA", b"CLIENT"))
        ]
        longest.append(max(durations, default=0))
    return min(longest) / 1000


@asynccontextmanager
async def _held(session: Session, number: int) -> AsyncGenerator[list[str]]:
    """So many leases; their names. On a machine that is slow with so many, some may have been lost."""
    names = [f"servers:{next(_names)}" for _ in range(number)]
    held: list[Lease] = []
    for first in range(0, number, _AT_ONCE):
        some = names[first : first + _AT_ONCE]
        held += await asyncio.gather(*(Lock(session, name, ttl=_TTL).acquire() for name in some))
    try:
        yield names
    finally:
        for first in range(0, number, _AT_ONCE):
            await asyncio.gather(*map(_released, held[first : first + _AT_ONCE]))


async def _released(lease: Lease) -> None:
    with contextlib.suppress(LockNotOwnedError):
        await lease.release()


@asynccontextmanager
async def _waiting(session: Session, names: list[str]) -> AsyncGenerator[None]:
    """A task waits for each."""
    tasks = [asyncio.create_task(Lock(session, name, ttl=_TTL).acquire()) for name in names]
    await asyncio.sleep(1)
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
