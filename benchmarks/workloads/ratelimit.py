"""Many tasks that are admitted by rate limits: what a grant costs."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

from redis.asyncio import Redis

from aiolocks import RateLimit, Session

from ..model import Figure, Sample
from ..settings import Address
from ..spent import of_scripts
from ..targets import at_most
from .base import Measure, Workload

_NAMES: Final = 1000
_WAITERS: Final = 120
_SMALLEST: Final = """
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local full = math.max(now, redis.call('GET', KEYS[1]) or 0) + ARGV[1]
if full - now > tonumber(ARGV[2]) then return {0, full - now - ARGV[2]} end
redis.call('SET', KEYS[1], string.format('%.0f', full), 'PX', math.ceil((full - now) / 1000) + 1000)
return {1, 0}
"""
"""A GCRA, and nothing else: it knows no request again, and nobody waits."""
_numbers = itertools.count()


class Admitted(Workload):
    """A thousand names, and nobody has to wait: the buckets hold them all."""

    name = "ratelimit"
    work = f"{_NAMES} rate limits, of each one request at a time, all of which are admitted at once"
    figures = (
        Figure("requests", "requests a grant", 3),
        Figure("script", "server, µs a grant, by its count of the scripts", 1),
        Figure("client", "client, µs of CPU a grant", 1),
    )
    targets = (
        at_most(1.0, "requests", "one request a grant"),
        at_most(12, "script", "≤ 12 µs of the server"),
    )

    @property
    def contenders(self) -> Sequence[str]:
        """Ours, and the smallest script: the page on rate limits has other libraries."""
        return ("aiolocks", "smallest script")

    @asynccontextmanager
    async def stage(self, address: Address) -> AsyncGenerator[Measure]:
        """One session."""
        names, each = self.settings.size(_NAMES, 20), self.settings.size(5, 2)
        async with (
            Redis(**address.client_arguments) as client,
            Session(client) as session,
            address.client() as admin,
        ):
            smallest = await client.script_load(_SMALLEST)

            async def ours(run: int) -> None:
                limits = [RateLimit(session, f"{run}:{n}", 1000, per=1) for n in range(names)]
                for _ in range(each):
                    await asyncio.gather(*(limit.acquire() for limit in limits))

            async def theirs(run: int) -> None:
                for _ in range(each):
                    pipe: Any = client.pipeline(transaction=False)
                    for n in range(names):
                        pipe.evalsha(smallest, 1, f"smallest:{run}:{n}", 1000, 1_000_000)
                    await pipe.execute()

            async def measure(contender: str) -> Sample:
                run, grants = next(_numbers), names * each
                await RateLimit(session, f"{run}", 1, per=1).acquire()
                sent, spent = session.statistics().commands_sent, await of_scripts(admin)
                client_time = time.process_time()
                await (ours if contender == "aiolocks" else theirs)(run)
                client_time = time.process_time() - client_time
                sent = session.statistics().commands_sent - sent
                return Sample(
                    {
                        "requests": sent / grants if contender == "aiolocks" else 1.0,
                        "script": (await of_scripts(admin) - spent) / grants,
                        "client": client_time / grants * 1e6,
                    }
                )

            yield measure


class Waited(Workload):
    """One name, and each has to wait for its turn."""

    name = "ratelimit-waiting"
    work = f"{_WAITERS} tasks wait for their turns, one each 5 ms"
    figures = (
        Figure("requests", "requests a decision", 2),
        Figure("script", "server, µs a decision, by its count of the scripts", 1),
        Figure("late", "ms after the last turn", 1),
    )
    targets = (at_most(3.0, "requests", "three requests a decision"),)

    @property
    def contenders(self) -> Sequence[str]:
        """Ours alone."""
        return ("aiolocks",)

    @asynccontextmanager
    async def stage(self, address: Address) -> AsyncGenerator[Measure]:
        """One session."""
        waiters = self.settings.size(_WAITERS, 10)
        async with (
            Redis(**address.client_arguments) as client,
            Session(client) as session,
            address.client() as admin,
        ):

            async def measure(_: str) -> Sample:
                limit = RateLimit(session, f"waiting:{next(_numbers)}", 200, per=1, burst=1)
                await limit.acquire()
                sent, spent = session.statistics().commands_sent, await of_scripts(admin)
                began = time.monotonic()
                await asyncio.gather(*(limit.acquire() for _ in range(waiters)))
                took = time.monotonic() - began
                return Sample(
                    {
                        "requests": (session.statistics().commands_sent - sent) / waiters,
                        "script": (await of_scripts(admin) - spent) / waiters,
                        "late": (took - waiters * 0.005) * 1000,
                    }
                )

            yield measure
