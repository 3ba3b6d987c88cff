"""Waiters far from the front of a queue give fewer signs of life: the dead and the stopped among them.

As in the library, but that one waiter only is near the front.
"""

from __future__ import annotations

import asyncio
import gc
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
from redis.asyncio import Redis

from aiolocks import FairLock, Lock, Session
from aiolocks.lock import wakeups

from .world.network import NEAR
from .world.process import Process
from .world.randomness import seeded
from .world.world import World

KINDS = {"lock": Lock, "fairlock": FairLock}
TTL = 2.0
HELD = 4.0
"""Seconds that the first process holds the lock, while the others come to wait for it."""
SHORT, SOON = 2.0, 0.1
"""The ttl of a bell at the front; seconds for a few messages."""


@pytest.fixture(autouse=True)
def one_is_near(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(wakeups, "NEAR", 1)
    gc.disable()
    yield
    gc.enable()


class Queue:
    """Processes that want one lock: `p0` holds it, and the others wait in their order."""

    def __init__(self, world: World, kind: str, processes: int) -> None:
        self.world = world
        self.node = world.node("server")
        self.got_in: dict[str, float] = {}
        self.processes = [world.process(f"p{number}", delays=NEAR) for number in range(processes)]
        for number, process in enumerate(self.processes):
            process.start(self._live(process, kind, number), process.name)

    async def _live(self, process: Process, kind: str, number: int) -> None:
        client: Redis = Redis(host="server", port=6379)
        async with Session(client) as session:
            await asyncio.sleep(0.1 * number)
            async with KINDS[kind](session, "name", ttl=TTL):
                self.got_in[process.name] = self.world.now
                await asyncio.sleep(0.01 if number else HELD)
        await client.aclose()

    def until(self, *names: str) -> None:
        self.world.run(lambda: all(name in self.got_in for name in names), limit=60.0)

    def bell_lasts(self, number: int) -> float:
        """Seconds that the bell of that process has left."""
        server = self.node.server
        server.now_us = self.node.clock()
        server.sweep()
        own = self.world.trace.bells_of(f"p{number}")
        (store,) = server.stores.values()
        ends = [store.ends[key] for key in own if key in store.ends]
        return max((end - server.now_us // 1000 for end in ends), default=0) / 1000


@pytest.fixture
def queue(request: Any) -> Iterator[Queue]:
    kind, processes = request.param
    with seeded() as source:
        queue = Queue(World(f"far/{kind}/{processes}", source), kind, processes)
        yield queue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)  # the killed leave much open
            queue.world.dispose()
            gc.collect()


@pytest.mark.parametrize("queue", [("lock", 4), ("fairlock", 4)], indirect=True, ids=str)
def test_the_bell_is_long_far_from_the_front_and_short_at_it(queue: Queue) -> None:
    queue.world.run(lambda: queue.world.now >= HELD, limit=60.0)

    lasts = [queue.bell_lasts(number) for number in (1, 2, 3)]

    assert 0 < lasts[0] <= SHORT
    assert all(lasts[0] < SHORT < each for each in lasts[1:]), lasts
    queue.until("p3")
    assert sorted(queue.got_in, key=lambda name: queue.got_in[name]) == ["p0", "p1", "p2", "p3"]


@pytest.mark.parametrize("queue", [("lock", 4), ("fairlock", 4)], indirect=True, ids=str)
def test_a_dead_one_that_is_rung_with_a_long_bell_delays_two_seconds_at_most(queue: Queue) -> None:
    queue.world.run(lambda: queue.world.now >= HELD - 0.1, limit=60.0)
    assert queue.bell_lasts(2) > SHORT + 1
    queue.processes[2].kill(silently=True)

    queue.until("p1", "p3")

    assert queue.got_in["p3"] - queue.got_in["p1"] <= SHORT + SOON
    assert "p2" not in queue.got_in


@pytest.mark.parametrize("queue", [("lock", 4), ("fairlock", 4)], indirect=True, ids=str)
def test_a_dead_one_that_no_release_rings_delays_two_seconds_at_most(queue: Queue) -> None:
    """The holder before it dies at the same moment: its lease ends, and no step frees the lock."""
    queue.until("p1")
    assert queue.bell_lasts(2) > SHORT + 0.5
    for number in (1, 2):
        queue.processes[number].kill(silently=True)

    queue.until("p3")

    assert queue.got_in["p3"] - queue.got_in["p1"] <= TTL + SHORT + SOON


@pytest.mark.parametrize("queue", [("fairlock", 4)], indirect=True, ids=str)
def test_one_that_is_stopped_for_longer_than_a_short_bell_keeps_its_place(queue: Queue) -> None:
    queue.world.run(lambda: queue.world.now >= 1.0, limit=60.0)
    queue.processes[2].freeze()
    queue.world.run(lambda: queue.world.now >= 1.0 + SHORT + 0.5, limit=60.0)
    queue.processes[2].thaw()

    queue.until("p3")

    assert queue.got_in["p2"] < queue.got_in["p3"]
