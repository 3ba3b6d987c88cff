"""A lock that stays with its session between uses, beside one that does not."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

from redis.asyncio import Redis

from aiolocks import Lock, Session

from ..crew import Crew
from ..desk import Desk
from ..model import Figure, Sample
from ..settings import Address
from ..targets import at_least, at_most
from .base import Measure, Workload

_CACHE: Final = 0.5
_TTL: Final = 30.0
_PLAIN: Final = "aiolocks, plain"
_REDIS_PY: Final = "redis-py"


class Cached(Workload):
    """Hits, misses, recalls, and contention."""

    name = "cached"
    work = (
        f"a `Lock` with `cache={_CACHE}` and without: one task, acquire and release on one name (hit); "
        "names that are used once (once); another session in the same process that asks for a free name, "
        "for one of an owner that does not use it (idle), and, from the release on, for one that an owner "
        "uses (busy); two processes that both want one name without a pause"
    )
    figures = (
        Figure("hit", "hit: µs a cycle", 1),
        Figure("hit_cpu", "hit: µs of CPU", 1),
        Figure("hit_requests", "hit: requests", 2),
        Figure("once_cpu", "used once: µs of CPU", 1),
        Figure("free_p50", "free name: µs, median", 0),
        Figure("free_p99", "free name: µs, 99 %", 0),
        Figure("idle_p50", "owner idle: µs, median", 0),
        Figure("idle_p99", "owner idle: µs, 99 %", 0),
        Figure("try_p50", "owner idle, single try: µs, median", 0),
        Figure("busy_p50", "owner inside: µs, median", 0),
        Figure("busy_p99", "owner inside: µs, 99 %", 0),
        Figure("both", "two processes: cycles a second", 0),
    )
    targets = (
        at_most(0.01, "hit_requests", "a hit sends nothing"),
        at_most(1.15, "busy_p50", "owner inside: ≤ 1.15 × plain", of=_PLAIN),
        at_least(0.95, "both", "two processes: ≥ 0.95 × plain", of=_PLAIN),
    )

    @property
    def contenders(self) -> Sequence[str]:
        """Ours with and without, and redis-py's."""
        return ("aiolocks", _PLAIN, _REDIS_PY)

    @asynccontextmanager
    async def stage(self, address: Address) -> AsyncGenerator[Measure]:
        """Two processes."""
        async with Crew(address, 2, loop=self.settings.loop) as crew:

            async def measure(contender: str) -> Sample:
                sizes = {"cycles": self.settings.size(2000, 48), "asks": self.settings.size(120, 6)}
                found = await crew[0].do(alone, contender=contender, **sizes)
                seconds = self.settings.size(10, 2) / 10
                each = await asyncio.gather(
                    *(
                        member.do(contend, contender=contender, seconds=seconds)
                        for member in (crew[0], crew[1])
                    )
                )
                return Sample({**found, "both": sum(each) / seconds})

            yield measure


def _maker(contender: str, client: Redis, session: Session) -> Callable[[str], Any]:
    if contender == _REDIS_PY:
        return lambda name: client.lock(name, timeout=_TTL, sleep=0.001)
    cache = 0.0 if contender == _PLAIN else _CACHE
    return lambda name: Lock(session, name, ttl=_TTL, cache=cache)


async def alone(desk: Desk, contender: str, cycles: int, asks: int) -> dict[str, float]:
    """All that one process measures; two sessions stand for two processes."""
    arguments = desk.address.client_arguments
    async with (
        Redis(**arguments) as client,
        Redis(**arguments) as other,
        Session(client) as session,
        Session(other) as asking,
    ):
        make, ask = _maker(contender, client, session), _maker(contender, other, asking)
        found: dict[str, float] = {}
        lock = make("cached:hit")
        await _use(lock, 3)
        sent, began, cpu = session.statistics().commands_sent, time.perf_counter(), time.process_time()
        await _use(lock, cycles)
        found["hit"] = (time.perf_counter() - began) / cycles * 1e6
        found["hit_cpu"] = (time.process_time() - cpu) / cycles * 1e6
        sent = session.statistics().commands_sent - sent
        found["hit_requests"] = 2.0 if contender == _REDIS_PY else sent / cycles
        cpu = time.process_time()
        for number in range(cycles // 4):
            await _use(make(f"cached:once:{number}"), 1)
        found["once_cpu"] = (time.process_time() - cpu) / (cycles // 4) * 1e6
        await _use(ask("cached:warm"), 3)

        free, idle, tried, busy = [], [], [], []
        for number in range(asks):
            free.append(await _had(ask(f"cached:free:{number}")))
            name = f"cached:idle:{number}"
            await _use(make(name), 6)
            idle.append(await _had(ask(name)))
            name = f"cached:try:{number}"
            await _use(make(name), 6)
            tried.append(await _had(ask(name), once=True))
            busy.append(await _handed(make(f"cached:busy:{number}"), ask(f"cached:busy:{number}")))
        for what, waits in (("free", free), ("idle", idle), ("busy", busy)):
            found[f"{what}_p50"] = statistics.median(waits) * 1e6
            found[f"{what}_p99"] = statistics.quantiles(waits, n=100, method="inclusive")[-1] * 1e6
        found["try_p50"] = statistics.median(tried) * 1e6
        return found


async def _use(lock: Any, times: int) -> None:
    for _ in range(times):
        async with lock:
            pass


async def _had(lock: Any, *, once: bool = False) -> float:
    """Seconds until it is had."""
    began = time.perf_counter()
    if once and isinstance(lock, Lock):
        lease = await lock.try_acquire()
        assert lease is not None, "nobody uses it"
    else:
        lease = await lock.acquire()
    seconds = time.perf_counter() - began
    await (lock if isinstance(lease, bool) else lease).release()
    return seconds


async def _handed(lock: Any, other: Any) -> float:
    """Seconds from a release in one session to the entry in the other, where somebody waits."""
    await _use(lock, 4)
    await lock.__aenter__()
    waiter = asyncio.create_task(_entered(other))
    await asyncio.sleep(0.01)
    began = time.perf_counter()
    await lock.__aexit__(None, None, None)
    return await waiter - began


async def _entered(lock: Any) -> float:
    async with lock:
        return time.perf_counter()


async def contend(desk: Desk, contender: str, seconds: float) -> float:
    """Cycles of one process within that time."""
    async with Redis(**desk.address.client_arguments) as client, Session(client) as session:
        lock, cycles = _maker(contender, client, session)("cached:both"), 0
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            async with lock:
                cycles += 1
        return float(cycles)
