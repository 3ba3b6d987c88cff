"""Work that is left for one name, and done together: a combiner; and by hand, a list and a lock."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import time
import uuid
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from redis.asyncio import Redis

from ..crew import Crew
from ..desk import Desk
from ..model import Figure, Sample
from ..settings import Address
from ..targets import at_most
from .base import Measure, Workload

_PROCESSES = 4
_ITEMS = 250
_ALONE = 30
"""Items of a caller that is the only one of its process: the worst case, for each of them waits for a run."""
_RUN = 0.01
_POLL = 0.005
"""Seconds between two looks of a caller by hand."""
_numbers = itertools.count()


class Combined(Workload):
    """Items from four processes for one name, up to 1 000; a run of 10 ms takes all that is there."""

    name = "combiner"
    one_server = "requests are counted, and a run takes longer than any of them"
    usual_rounds = 3  # few: what is measured are counts
    figures = (
        Figure("requests", "requests an item", 3),
        Figure("seconds", "s until the last answer", 3),
        Figure("runs", "runs", 1),
    )

    def __init__(self, settings: Any, *, callers: int) -> None:
        super().__init__(settings)
        self._callers = callers
        each = self._each
        self.case = {1: "one caller", _ITEMS: "all at once"}.get(callers, f"{callers} callers")
        self.work = (
            f"4 processes × callers ({callers}) × items in turn ({each}), for one name; a run of 10 ms takes "
            "all that is there, and each caller gets its result; by hand, with a list, a hash and a lock, "
            "each caller looks for its result every 5 ms"
            if callers == _ITEMS
            else f"the same with callers ({callers}) × items in turn ({each})"
        )
        self.targets = (at_most(1.2, "requests", "1.2 requests an item"),) if each == 1 else ()

    @property
    def _each(self) -> int:
        return _ALONE if self._callers == 1 else _ITEMS // self._callers

    @property
    def contenders(self) -> Sequence[str]:
        """The one by hand goes first."""
        return ("by hand", "aiolocks")

    @asynccontextmanager
    async def stage(self, address: Address) -> AsyncGenerator[Measure]:
        """Four processes."""
        each = self._each
        callers = self.settings.size(self._callers, 5)
        async with Crew(address, _PROCESSES, loop=self.settings.loop) as crew:

            async def measure(contender: str) -> Sample:
                job = combine if contender == "aiolocks" else by_hand
                name = f"combiner:{next(_numbers)}:{uuid.uuid4().hex[:8]}"
                arguments: dict[str, object] = {"name": name, "callers": callers, "each": each}
                ended = await crew.together(job, [arguments] * _PROCESSES)
                seconds, requests, runs = zip(*ended, strict=True)
                items = _PROCESSES * callers * each
                return Sample({"requests": sum(requests) / items, "seconds": max(seconds), "runs": sum(runs)})

            yield measure


async def combine(desk: Desk, name: str, callers: int, each: int) -> tuple[float, int, int]:
    """One process's callers; seconds until the last answer, its requests, its own runs."""
    from aiolocks import Batch, Combiner, Session  # noqa: PLC0415 - as with every contender

    runs = 0

    async def run(batch: Batch) -> object:
        nonlocal runs
        runs += 1
        await asyncio.sleep(_RUN)
        batch.results = [2 * item for item in batch.items]
        return None

    async with Redis(**desk.address.client_arguments) as client, Session(client) as session:
        await Combiner(session, f"{name}:warm:{os.getpid()}").submit(1, run)
        combiner = Combiner(session, name)

        async def caller(number: int) -> None:
            for item in range(number * each, (number + 1) * each):
                result = await combiner.submit(item, run)
                assert result == 2 * item

        runs, before = 0, session.statistics().commands_sent
        began = await desk.start_together()
        await asyncio.gather(*(caller(number) for number in range(callers)))
        seconds = time.monotonic() - began
        return seconds, session.statistics().commands_sent - before, runs


async def by_hand(desk: Desk, name: str, callers: int, each: int) -> tuple[float, int, int]:
    """The same with a list of items, a hash of results, and a lock that is polled for.

    A runner that dies after it has taken the items loses them, and one that is late is not noticed.
    """
    requests = runs = 0
    items, results, lock = f"{name}:items", f"{name}:results", f"{name}:lock"

    async with Redis(**desk.address.client_arguments, max_connections=500) as client:

        async def ask(answer: Any) -> Any:
            nonlocal requests
            requests += 1
            return await answer

        async def run() -> None:
            nonlocal runs
            pipe: Any = client.pipeline()
            pipe.lrange(items, 0, -1)
            pipe.delete(items)
            taken, _ = await ask(pipe.execute())
            if taken:
                runs += 1
                await asyncio.sleep(_RUN)
                done = {key: 2 * item for key, item in map(json.loads, taken)}
                await ask(client.hset(results, mapping=done))
            await ask(client.delete(lock))

        async def caller(number: int) -> None:
            for item in range(number * each, (number + 1) * each):
                key = f"{os.getpid()}:{item}"
                await ask(client.rpush(items, json.dumps([key, item])))
                while (found := await ask(client.hget(results, key))) is None:
                    if await ask(client.set(lock, key, nx=True, px=30_000)):
                        await run()
                    else:
                        await asyncio.sleep(_POLL)
                assert int(found) == 2 * item

        await client.ping()
        began = await desk.start_together()
        await asyncio.gather(*(caller(number) for number in range(callers)))
        return time.monotonic() - began, requests, runs
