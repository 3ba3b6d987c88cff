"""Many tasks that are admitted by one rate limit: what a grant costs."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Final

from redis.asyncio import Redis

from aiolocks import RateLimit, Session

from ..model import Figure, Sample
from ..settings import Address
from ..spent import of_scripts
from ..targets import at_most
from .base import Measure, Workload

_TASKS: Final = 200
_numbers = itertools.count()


class Admitted(Workload):
    """One name, and nobody has to wait: the bucket holds them all."""

    name = "ratelimit"
    work = f"{_TASKS} tasks × 50 requests of one rate limit, all of which are admitted at once"
    figures = (
        Figure("requests", "requests a grant", 3),
        Figure("script", "server, µs a grant, by its count of the scripts", 1),
        Figure("client", "client, µs of CPU a grant", 1),
    )
    targets = (
        at_most(1.0, "requests", "one request a grant"),
        at_most(10, "script", "≤ 10 µs of the server"),
    )

    @property
    def contenders(self) -> Sequence[str]:
        """Ours alone: the page on rate limits has others."""
        return ("aiolocks",)

    @asynccontextmanager
    async def stage(self, address: Address) -> AsyncGenerator[Measure]:
        """One session."""
        each = self.settings.size(50, 2)
        async with (
            Redis(**address.client_arguments) as client,
            Session(client) as session,
            address.client() as admin,
        ):

            async def measure(_: str) -> Sample:
                limit = RateLimit(session, f"rate:{next(_numbers)}", 10_000, per=1, burst=1_000_000)
                await limit.acquire()

                async def requests() -> None:
                    for _ in range(each):
                        await limit.acquire()

                grants = _TASKS * each
                sent, spent = session.statistics().commands_sent, await of_scripts(admin)
                client_time = time.process_time()
                await asyncio.gather(*(requests() for _ in range(_TASKS)))
                client_time = time.process_time() - client_time
                return Sample(
                    {
                        "requests": (session.statistics().commands_sent - sent) / grants,
                        "script": (await of_scripts(admin) - spent) / grants,
                        "client": client_time / grants * 1e6,
                    }
                )

            yield measure
