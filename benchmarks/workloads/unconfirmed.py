"""Blocks that do not wait for the answer to their release: over a network, and with two sessions."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

from redis.asyncio import Redis

from aiolocks import Lock, Session

from ..contenders import TTL, Arena
from ..contenders.ours import UNCONFIRMED
from ..distance import far_away
from ..model import Figure, Sample
from ..settings import Address
from ..spent import FIGURES, spending
from ..targets import at_most, faster
from .alone import one_by_one
from .base import Measure, Workload

_CYCLES = 300
_DELAY = 0.001
_OURS = (UNCONFIRMED.name,)


class AloneAtADistance(Workload):
    """One task, one lock after the other, and a server that is 1 ms away."""

    name = "alone"
    case = "1 ms away"
    core_apart = True
    work = (
        f"one task, {_CYCLES} times acquire and release on 50 names, through a proxy in the same process: "
        "each answer comes 1 ms later"
    )
    figures = (Figure("cycle", "µs per cycle"),)
    targets = (
        faster(1.9, "cycle", "unconfirmed: ≥ 1.9 × as fast as confirmed", than="aiolocks", contenders=_OURS),
    )

    @property
    def contenders(self) -> Sequence[str]:
        """Both ways, and redis-py."""
        return ("aiolocks", UNCONFIRMED.name, "redis-py")

    @asynccontextmanager
    async def stage(self, address: Address) -> AsyncGenerator[Measure]:
        """One connection each."""
        names = [f"alone:{number}" for number in range(50)]
        async with far_away(address, _DELAY) as far, Arena(far) as arena:

            async def measure(contender: str) -> Sample:
                cycles = self.settings.size(_CYCLES, 20)
                locks = await arena.locks(contender)
                began = time.perf_counter()
                await one_by_one(locks, names, cycles)
                return Sample({"cycle": (time.perf_counter() - began) / cycles * 1e6})

            yield measure


class TwoSessions(Workload):
    """Two sessions of one process want one name, each in a loop."""

    name = "alone"
    case = "two sessions"
    usual_rounds = 9
    core_apart = True
    work = f"two sessions of one process, {_CYCLES} times acquire and release each, on one name"
    figures = (
        Figure("cycle", "µs per cycle"),
        Figure("refused", "refused tries a cycle", 2),
        Figure("requests", "requests a cycle", 2),
        *FIGURES,
    )
    targets = (
        at_most(1.0, "cycle", "unconfirmed: no slower than confirmed", of="aiolocks", contenders=_OURS),
        at_most(1.05, "refused", "unconfirmed: ≤ 1.05 × refused tries", of="aiolocks", contenders=_OURS),
    )

    @property
    def contenders(self) -> Sequence[str]:
        """Both ways."""
        return ("aiolocks", UNCONFIRMED.name)

    @asynccontextmanager
    async def stage(self, address: Address) -> AsyncGenerator[Measure]:
        """Two connections each."""
        async with AsyncExitStack() as stack, Redis(**address.client_arguments) as admin:
            sessions: dict[str, list[Session]] = {
                contender: [
                    await stack.enter_async_context(
                        Session(await stack.enter_async_context(address.client()))
                    )
                    for _ in range(2)
                ]
                for contender in self.contenders
            }

            async def measure(contender: str) -> Sample:
                each, own = self.settings.size(_CYCLES, 20), sessions[contender]
                confirm = contender != UNCONFIRMED.name

                async def loop(session: Session) -> None:
                    lock = Lock(session, "two", ttl=TTL, confirm=confirm)
                    for _ in range(each):
                        async with lock:
                            pass

                before = [session.statistics() for session in own]
                async with spending(admin) as spent:
                    began = time.perf_counter()
                    await asyncio.gather(*map(loop, own))
                    seconds = time.perf_counter() - began
                after = [session.statistics() for session in own]
                cycles = 2 * each
                # Each acquire tries once, and again each time that it is woken: all but the last are refused.
                tries = sum(sum(one.wakeups.values()) for one in after) - sum(
                    sum(one.wakeups.values()) for one in before
                )
                sent = sum(one.commands_sent for one in after) - sum(one.commands_sent for one in before)
                return Sample(
                    {
                        "cycle": seconds / cycles * 1e6,
                        "refused": tries / cycles,
                        "requests": sent / cycles,
                        **spent.each(cycles),
                    }
                )

            yield measure
