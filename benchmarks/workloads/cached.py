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

from ..crew import Crew, Worker
from ..desk import Desk
from ..model import Figure, Sample
from ..settings import Address
from ..targets import at_least, at_most
from .base import Measure, Workload

_CACHE: Final = 0.5
_TTL: Final = 30.0
_PLAIN: Final = "aiolocks, plain"
_REDIS_PY: Final = "redis-py"
_PAUSE: Final = 0.01
"""Seconds for which a waiter has waited before the owner lets go."""


class Cached(Workload):
    """Hits, misses, recalls, and contention."""

    name = "cached"
    usual_rounds = 3  # few: each asks many times
    work = (
        f"a `Lock` with `cache={_CACHE}` and without: one task, acquire and release on one name (hit); names "
        "that are used once (once); two processes: one asks for a free name, for one whose owner does not "
        "use it, in the other process (idle), and, from the release on, for one that its owner uses (busy); "
        "two processes that both want one name without a pause"
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
    def warm_up(self) -> bool:
        """Each part of a round has its own."""
        return False

    @property
    def contenders(self) -> Sequence[str]:
        """Ours with and without, and redis-py's."""
        return ("aiolocks", _PLAIN, _REDIS_PY)

    @asynccontextmanager
    async def stage(self, address: Address) -> AsyncGenerator[Measure]:
        """Two processes."""
        async with Crew(address, 2, loop=self.settings.loop) as crew:

            async def measure(contender: str) -> Sample:
                cycles, asks = self.settings.size(2000, 48), self.settings.size(80, 6)
                found = await crew[0].do(alone, contender=contender, cycles=cycles)
                async with crew.renewed_on_failure():
                    found |= await _apart(crew, contender, asks)
                seconds = self.settings.size(10, 2) / 10
                each = await asyncio.gather(
                    *(
                        member.do(contend, contender=contender, seconds=seconds)
                        for member in (crew[0], crew[1])
                    )
                )
                return Sample({**found, "both": sum(each) / seconds})

            yield measure


async def _apart(crew: Crew, contender: str, asks: int) -> dict[str, float]:
    """One process owns, and the other one asks."""
    owner, asker = crew[0], crew[1]
    owner.begin(own, contender=contender)
    asker.begin(ask, contender=contender)
    waits: dict[str, list[float]] = {"free": [], "idle": [], "try": [], "busy": []}
    for number in range(asks):
        waits["free"].append(await _asked(asker, "wait", f"cached:free:{number}"))
        for way, how in (("idle", "wait"), ("try", "try")):
            name = f"cached:{way}:{number}"
            owner.tell(["use", name])
            await owner.hear()
            waits[way].append(await _asked(asker, how, name))
        waits["busy"].append(await _handed(owner, asker, f"cached:busy:{number}"))
    for worker in (owner, asker):
        worker.tell(["end", ""])
        await worker.hear()
    found = {
        f"{way}_p99": statistics.quantiles(of, n=100, method="inclusive")[-1] * 1e6
        for way, of in waits.items()
        if way != "try"
    }
    return found | {f"{way}_p50": statistics.median(of) * 1e6 for way, of in waits.items()}


async def _asked(asker: Worker, how: str, name: str) -> float:
    """Seconds until it is had."""
    asker.tell([how, name])
    began, had = await asker.hear()
    return float(had - began)


async def _handed(owner: Worker, asker: Worker, name: str) -> float:
    """Seconds from a release in one process to the entry in the other, where somebody waits."""
    owner.tell(["enter", name])
    await owner.hear()
    asker.tell(["wait", name])
    await asyncio.sleep(_PAUSE)
    owner.tell(["let go", name])
    released = await owner.hear()
    _, had = await asker.hear()
    return float(had - released)


def _maker(contender: str, client: Redis, session: Session) -> Callable[[str], Any]:
    if contender == _REDIS_PY:
        return lambda name: client.lock(name, timeout=_TTL, sleep=0.001)
    cache = 0.0 if contender == _PLAIN else _CACHE
    return lambda name: Lock(session, name, ttl=_TTL, cache=cache)


async def alone(desk: Desk, contender: str, cycles: int) -> dict[str, float]:
    """All that one process measures by itself."""
    async with Redis(**desk.address.client_arguments) as client, Session(client) as session:
        make = _maker(contender, client, session)
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
        return found


async def own(desk: Desk, contender: str) -> None:
    """Uses names, and is inside, as it is told."""
    async with Redis(**desk.address.client_arguments) as client, Session(client) as session:
        make = _maker(contender, client, session)
        lock: Any = None
        while True:
            what, name = await desk.hear()
            if what == "end":
                return
            if what == "use":
                await _use(make(name), 6)
            elif what == "enter":
                lock = make(name)
                await _use(lock, 4)
                await lock.__aenter__()
            else:
                began = time.monotonic()
                await lock.__aexit__(None, None, None)
                desk.say(began)
                continue
            desk.say(what)


async def ask(desk: Desk, contender: str) -> None:
    """Asks for names, and says when it began to, and when it had them."""
    async with Redis(**desk.address.client_arguments) as client, Session(client) as session:
        make = _maker(contender, client, session)
        await _use(make("cached:warm"), 3)
        while True:
            what, name = await desk.hear()
            if what == "end":
                return
            lock, began = make(name), time.monotonic()
            if what == "try" and isinstance(lock, Lock):
                lease = await lock.try_acquire()
                assert lease is not None, "nobody uses it"
            else:
                lease = await lock.acquire()
            had = time.monotonic()
            await (lock if isinstance(lease, bool) else lease).release()
            desk.say([began, had])


async def _use(lock: Any, times: int) -> None:
    for _ in range(times):
        async with lock:
            pass


async def contend(desk: Desk, contender: str, seconds: float) -> float:
    """Cycles of one process within that time."""
    async with Redis(**desk.address.client_arguments) as client, Session(client) as session:
        lock, cycles = _maker(contender, client, session)("cached:both"), 0
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            async with lock:
                cycles += 1
        return float(cycles)
