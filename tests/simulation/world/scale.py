"""Measures one lock that very many want: 1 000 processes with 10 tasks each, in a loop.

python -m tests.simulation.world.scale                      takes some minutes
python -m tests.simulation.world.scale --processes 50 --seconds 5
python -m tests.simulation.world.scale --json               for `python -m benchmarks scale`

Time is that of this world: a turn of a loop and a request take none, and bytes take 0.05 to 0.4 ms one way.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import heapq
import json
import logging
from collections import Counter
from dataclasses import asdict, dataclass
from functools import partial
from math import inf
from typing import Any

from redis.asyncio import Redis

from aiolocks import FairLock, Lock, Session

from .network import NEAR
from .process import Process
from .randomness import Source, seeded
from .trace import Trace
from .world import World

KINDS = {"lock": Lock, "fairlock": FairLock}
HOLD = 0.001
CONNECTED = 1.0
"""Seconds in which all connect, before the first one asks."""
ENDED = 1.0
"""Seconds in which all let go, after the count."""
SETTLED = 2.0
"""Seconds for which all have asked before anything is counted."""


@dataclass(frozen=True)
class Measured:
    """The counts.

    Attributes:
        requests: Requests that the server executed, for each acquisition.
        scripts: Those of them that were scripts.
        slowest: Acquisitions of the process with the fewest, as a share of those of the one with the most.
        throughput: Acquisitions a second.
        commands: The requests, by their names.
    """

    acquisitions: int
    requests: float
    scripts: float
    slowest: float
    throughput: float
    commands: dict[str, int]


class _Forgetful(Trace):
    """Counts requests and keeps none of them: there are too many."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.commands: Counter[str] = Counter()

    def requested(self, where: str, words: tuple[bytes, ...], reply: Any) -> None:
        self.requests += 1
        several = words[0] in (b"CLIENT", b"CONFIG", b"SCRIPT")
        self.commands[b" ".join(words[: 2 if several else 1]).decode()] += 1


class _Wide(World):
    """A world that finds the next of very many processes without a look at each."""

    def __init__(self, seed: str, source: Source) -> None:
        super().__init__(seed, source)
        self.trace = self.counted = _Forgetful(self.clockwork)
        self._changed: set[int] = set()
        self._next: list[tuple[float, int]] = []  # also times that processes had before

    def process(self, name: str, **how: Any) -> Process:
        touched = partial(self._changed.add, len(self.processes))
        process = Process(name, self.clockwork, self.network, touched=touched, **how)
        self.network.delays[name] = NEAR
        self.processes.append(process)
        return process

    def advance(self, until: float) -> None:
        """Steps until that time."""
        clockwork, processes = self.clockwork, self.processes
        while True:
            while self._changed:
                number = self._changed.pop()
                if (at := processes[number].next_at) < inf:
                    heapq.heappush(self._next, (at, number))
            while self._next and processes[self._next[0][1]].next_at != self._next[0][0]:
                heapq.heappop(self._next)
            at, number = self._next[0] if self._next else (inf, 0)
            if min(at, clockwork.next_at) >= until:
                clockwork.now = until
                return
            if clockwork.next_at <= at:
                clockwork.happen()
            else:
                clockwork.now = at
                heapq.heappop(self._next)
                self.step(processes[number])


class Crowd:
    """The world, and the counts of its processes."""

    def __init__(
        self, source: Source, *, kind: str, processes: int, tasks: int, seconds: float, seed: int
    ) -> None:
        self._kind, self._tasks = KINDS[kind], tasks
        self._ends = CONNECTED + SETTLED + seconds
        self.world = _Wide(f"scale/{kind}/{seed}", source)
        self.world.node("server")
        self.acquired: dict[str, int] = {}
        for number in range(processes):
            process = self.world.process(f"p{number}")
            self.acquired[process.name] = 0
            process.start(self._live(process), process.name)

    async def _live(self, process: Process) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        async with Redis(host="server", port=6379) as client, Session(client) as session:
            lock = self._kind(session, "crowded")
            await lock.locked()  # connected
            await asyncio.sleep(began + CONNECTED - loop.time())
            tasks = [loop.create_task(self._loop(lock, process.name)) for _ in range(self._tasks)]
            await asyncio.sleep(began + self._ends - loop.time())
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    async def _loop(self, lock: Any, process: str) -> None:
        while True:
            async with lock:
                self.acquired[process] += 1
                await asyncio.sleep(HOLD)

    def measure(self) -> Measured:
        began = CONNECTED + SETTLED
        self.world.advance(began)
        self.world.counted.commands.clear()
        before = dict(self.acquired)
        self.world.advance(self._ends)
        each = [self.acquired[name] - before[name] for name in self.acquired]
        commands = dict(self.world.counted.commands)
        self.world.advance(self._ends + ENDED)
        self.world.dispose()
        acquisitions = sum(each)
        return Measured(
            acquisitions=acquisitions,
            requests=sum(commands.values()) / acquisitions,
            scripts=commands.get("EVALSHA", 0) / acquisitions,
            slowest=min(each) / max(each),
            throughput=acquisitions / (self._ends - began),
            commands=commands,
        )


def measured(**sizes: Any) -> Measured:
    """Runs a crowd."""
    with seeded() as source:
        return Crowd(source, **sizes).measure()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.world.scale")
    parser.add_argument("--kind", choices=KINDS, default="lock")
    parser.add_argument("--processes", type=int, default=1000)
    parser.add_argument("--tasks", type=int, default=10, help="of each process")
    parser.add_argument("--seconds", type=float, default=100.0, help="of the world, that are counted")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    options = vars(parser.parse_args())
    gc.disable()
    logging.disable()
    as_json = options.pop("json")
    found = measured(**options)
    print(json.dumps(asdict(found)) if as_json else found)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
