"""The logs of several processes, some of which were killed: the rule of no kind was ever broken."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from aiolocks import Semaphore
from tests.models import players
from tests.support.history import (
    Hold,
    Resize,
    Violation,
    exclusion,
    fencing,
    fifo,
    nesting,
    phases,
    reservations,
    semaphore,
    unreached,
)
from tests.support.processes import Worker, Workers
from tests.support.servers import Server
from tests.support.waiting import eventually

PROCESSES = 3
ENOUGH = 40
"""Holds that a history is to have."""
SECONDS = 0.9
WAITER_TTL = 2.0
"""Seconds for which one who waited and was killed is taken to be alive."""
DEATHS = {"fair": [0.3], "fair_semaphore": [0.3], "rwlock": [2.0]}
"""When processes are killed: seldom where those who wait behind a dead one are held up."""
OFTEN = [0.2, 0.5]
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class History:
    holds: list[Hold]
    resizes: list[Resize]
    deaths: list[float]


Check = Callable[[History], list[Violation]]


def of_holds(check: Callable[[list[Hold]], list[Violation]]) -> Check:
    return lambda history: check(history.holds)


def of_permits(history: History) -> list[Violation]:
    return semaphore(history.holds, value=players.PERMITS, resizes=history.resizes)


def of_reservations(history: History) -> list[Violation]:
    return reservations(history.holds, deaths=history.deaths, unsettled=WAITER_TTL + players.TTL)


CHECKS: dict[str, list[Check]] = {
    "lock": [of_holds(exclusion)],
    "reentrant": [of_holds(exclusion), of_holds(nesting)],
    "fair": [of_holds(exclusion), of_holds(fifo)],
    "multi": [of_holds(exclusion)],
    "semaphore": [of_permits, of_holds(partial(unreached, value=players.PERMITS))],
    "fair_semaphore": [of_permits, of_holds(fifo), of_holds(partial(unreached, value=players.PERMITS))],
    "rwlock": [of_holds(exclusion), of_reservations, of_holds(phases)],
    "rangelock": [of_holds(exclusion)],
}


async def played(kind: str, url: str, directory: Path, workers: Workers, *, seconds: float) -> History:
    """Let processes play for some seconds; now and then one is killed, and another one begins."""
    chance = random.Random(kind)
    seeds = iter(range(1000))
    end = time.monotonic() + seconds

    async def start() -> Worker:
        seed = next(seeds)
        left = max(0.3, end - time.monotonic())
        history = str(directory / f"{seed}.jsonl")
        return await workers.start(players.play, url=url, kind=kind, history=history, seconds=left, seed=seed)

    playing = [await start() for _ in range(PROCESSES)]
    for worker in playing:
        await worker.told("ready")
    end = time.monotonic() + seconds
    began = time.monotonic()
    deaths = []
    for at in DEATHS.get(kind, OFTEN):
        await asyncio.sleep(began + at - time.monotonic())
        playing.pop(chance.randrange(len(playing))).kill()
        deaths.append(time.monotonic())
        playing.append(await start())
    for worker in playing:
        await worker.finish()
    while len(players.read(directory)[0]) < ENOUGH:  # a busy machine has few in that time
        end = time.monotonic() + seconds
        for worker in [await start() for _ in range(PROCESSES)]:
            await worker.finish()
    return History(*players.read(directory), deaths)


@pytest.mark.long
@pytest.mark.leaves_keys
@pytest.mark.parametrize("kind", CHECKS)
async def test_no_rule_was_broken(
    kind: str, server: Server, redis: Redis, workers: Workers, tmp_path: Path
) -> None:
    seconds = SECONDS + (1.5 if kind in DEATHS else 0)
    history = await played(kind, server.url, tmp_path, workers, seconds=seconds)

    log.info("%s; %d resizes", Counter(hold.mode for hold in history.holds), len(history.resizes))
    for check in [of_holds(fencing), *CHECKS[kind]]:
        found = check(history)
        assert not found, _spoken(found[0])
    if "semaphore" in kind:
        await _all_permits_come_back(redis, kind)


def _spoken(violation: Violation) -> str:
    """The interesting part: the times from the first one on, in milliseconds."""
    first = min(record.invoked for record in violation.evidence)
    lines = [violation.what]
    for record in violation.evidence:
        assert isinstance(record, Hold)
        times = {
            name: f"{(getattr(record, name) - first) * 1000:.1f}"
            for name in ("invoked", "queued", "granted", "released", "confirmed", "deadline")
            if getattr(record, name) is not None
        }
        span = f"{record.mode}({record.low:g}, {record.high:g})"
        lines.append(f"{record.who}: {span}, permits={record.permits}, owner={record.owner}, {times}")
    return "\n".join(lines)


async def _all_permits_come_back(redis: Redis, kind: str) -> None:
    """Also those of processes that were killed: none is lost."""
    everything: Any = Semaphore(redis, "n", players.PERMITS, fair=kind.startswith("fair"))
    await everything.resize(players.PERMITS)

    async def had() -> bool:
        async with everything.try_acquire(players.PERMITS) as lease:
            return lease is not None

    await eventually(had, within=players.TTL + 2.5)
