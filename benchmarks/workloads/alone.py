"""One task that nobody is in the way of: what a lock costs."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

from redis.asyncio import Redis

from ..contenders import Arena, Locks
from ..contenders.ours import UNCONFIRMED
from ..model import FLOOR, Figure, Sample
from ..requests import Words, requests_for
from ..settings import Address
from ..spent import FIGURES, spending
from ..targets import at_most, faster
from ..wire import Wire, open_wire
from .base import Measure, Workload

_CYCLES = 1500
_FEW = 300
_MANY_CYCLES = (FLOOR, "redis-py")
"""Those of which the ratios count, and ours."""


class Alone(Workload):
    """One task, one lock after the other."""

    name = "alone"
    usual_rounds = 9  # many: the ratios are near one, and a round is short
    core_apart = True
    work = (
        "one task, 1 500 times acquire and release (pottery, coredis, python-redis-lock and cashews: 300 "
        "times), on 50 names; lock objects made once where that works"
    )
    floor = "the same two scripts as EVALSHA over nothing but an asyncio protocol"
    figures = (Figure("cycle", "µs per cycle"), *FIGURES)
    targets = (
        faster(1.0, "cycle", "as fast as redis-py", than="redis-py"),
        at_most(0.45, "client", "≤ 0.45 of redis-py's CPU", of="redis-py"),
        faster(
            1.8,
            "cycle",
            "unconfirmed: ≥ 1.8 × as fast as redis-py",
            than="redis-py",
            contenders=(UNCONFIRMED.name,),
        ),
        faster(
            1.45,
            "cycle",
            "unconfirmed: ≥ 1.45 × as fast as confirmed",
            than="aiolocks",
            contenders=(UNCONFIRMED.name,),
        ),
    )

    @property
    def contenders(self) -> Sequence[str]:
        """All who lock, as they come: nobody waits here."""
        return (
            *(FLOOR, "aiolocks", UNCONFIRMED.name),
            *("redis-py", "pottery", "coredis, 10 ms", "python-redis-lock", "cashews"),
        )

    @asynccontextmanager
    async def stage(self, address: Address) -> AsyncGenerator[Measure]:
        """One connection each."""
        names = [f"alone:{number}" for number in range(50)]
        async with (
            Arena(address) as arena,
            open_wire(address) as wire,
            Redis(**address.client_arguments) as admin,
        ):
            requests = await requests_for(admin, names)

            async def measure(contender: str) -> Sample:
                many = contender in _MANY_CYCLES or contender.startswith("aiolocks")
                cycles = self.settings.size(_CYCLES if many else _FEW, 100)
                locks = None if contender == FLOOR else await arena.locks(contender)
                async with spending(admin) as spent:
                    began = time.perf_counter()
                    if locks is None:
                        await _by_hand(wire, requests, cycles)
                    else:
                        await one_by_one(locks, names, cycles)
                    seconds = time.perf_counter() - began
                return Sample({"cycle": seconds / cycles * 1e6, **spent.each(cycles)})

            yield measure


async def one_by_one(locks: Locks, names: Sequence[str], cycles: int) -> None:
    """Takes and lets go of them in turn."""
    made = [locks.lock(name) for name in names] if locks.again else []
    for number in range(cycles):
        at = number % len(names)
        async with made[at] if made else locks.lock(names[at]):
            pass


async def _by_hand(wire: Wire, requests: Sequence[tuple[Words, Words]], cycles: int) -> None:
    for number in range(cycles):
        acquire, release = requests[number % len(requests)]
        await wire.request(acquire)
        await wire.request(release)
