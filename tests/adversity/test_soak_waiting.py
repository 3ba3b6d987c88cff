"""Minutes of waiting, while processes die, stop and are cut off: `pytest -m soak`.

How long, says ``AIOLOCKS_SOAK_SECONDS`` (300 by default).
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import time
from collections import Counter
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, TextIO

import pytest
from redis.asyncio import Redis

from aiolocks import Lease, Lock, LockError, Session
from tests.adversity.tools import ByHand, wakeup
from tests.conftest import OwnServer
from tests.support.history import Hold, exclusion, fencing
from tests.support.memory import megabytes
from tests.support.processes import Worker, Workers, tell
from tests.support.proxy import Proxy
from tests.support.waiting import eventually

SECONDS = float(os.environ.get("AIOLOCKS_SOAK_SECONDS", "300"))
NAMES = 50
TASKS = 12
TTL = 1.0
QUEUE_TTL = 10.0
"""Seconds after which the server has forgotten a queue that nobody waits in."""
WAYS = ("tracking", "keyspace", "poll")
log = logging.getLogger(__name__)


# -- in a process of its own ---------------------------------------------------------------------------------


async def wait_and_hold(url: str, history: str, seconds: float, seed: int) -> None:
    """Some sessions, some tasks: acquire in every manner, hold for a moment, note it down."""
    chance = random.Random(seed)
    end = time.monotonic() + seconds
    with opened(history) as file:
        async with AsyncExitStack() as stack:
            sessions = []
            for way in WAYS:
                redis = await stack.enter_async_context(Redis.from_url(url))
                sessions.append(Session(redis, wakeup=wakeup(way)))
            reporting = asyncio.create_task(report_memory(end))
            async with asyncio.TaskGroup() as group:
                for number in range(TASKS):
                    who = f"{os.getpid()}.{number}"
                    group.create_task(loop(who, sessions[number % len(sessions)], chance, file, end))
            await reporting
            file.flush()
            # All is let go of, and the sessions are open still: they have nothing more to do.
            alone = {asyncio.current_task()}
            await eventually(lambda: not timers(), within=15)
            tell(
                "idle",
                tasks=[repr(task) for task in asyncio.all_tasks() - alone],
                wakeups=dict(sum((Counter(one.statistics().wakeups) for one in sessions), Counter())),
                acquisitions=sum(one.statistics().acquisitions for one in sessions),
                losses=sum(one.statistics().losses for one in sessions),
                held=sum(one.statistics().leases_held for one in sessions),
                waiters=sum(one.statistics().waiters for one in sessions),
            )
            for session in sessions:
                await session.aclose()


async def loop(who: str, session: Session, chance: random.Random, history: TextIO, end: float) -> None:
    while time.monotonic() < end:
        name = f"n{chance.randrange(NAMES)}" if chance.random() < 0.5 else "n0"  # one of them is in demand
        invoked = time.monotonic()
        try:
            lease = await acquire(Lock(session, name, ttl=TTL, on_lost="ignore"), chance)
        except (TimeoutError, LockError):
            lease = None
        if lease is not None:
            await hold(who, lease, invoked, chance, history)
        await asyncio.sleep(chance.choice([0, 0, 0.01]))


async def acquire(lock: Lock, chance: random.Random) -> Lease | None:
    match chance.randrange(6):
        case 0:
            return await lock.try_acquire()
        case 1:
            async with asyncio.timeout(chance.uniform(0, 0.05)):  # cancels it
                return await lock.acquire()
        case 2:
            return await lock.acquire(blocking_timeout=chance.uniform(0, 0.1))
    return await lock.acquire(blocking_timeout=10)


async def hold(who: str, lease: Lease, invoked: float, chance: random.Random, history: TextIO) -> None:
    """Facts that cannot be known exactly are judged in its favour: its clock is read before the time that it
    has left."""
    granted = time.monotonic()
    deadline = granted + lease.remaining()
    await asyncio.sleep(1.5 * TTL if chance.random() < 0.002 else chance.choice([0, 0.001, 0.005]))
    released = time.monotonic()
    if (left := lease.remaining()) > 0:
        deadline = released + left
    try:
        await lease.release()
    except LockError:
        confirmed = released
    else:
        confirmed = time.monotonic()
    note = Hold(
        who=who,
        name=lease.name,
        invoked=invoked,
        granted=granted,
        released=released,
        confirmed=confirmed,
        deadline=deadline,
        fencing_token=lease.fencing_token,
    )
    history.write(json.dumps(asdict(note)) + "\n")


def opened(history: str) -> TextIO:
    return Path(history).open("w")


def timers() -> list[asyncio.TimerHandle]:
    scheduled: list[asyncio.TimerHandle] = asyncio.get_running_loop()._scheduled  # type: ignore[attr-defined]
    return [timer for timer in scheduled if not timer.cancelled()]


async def report_memory(end: float) -> None:
    while time.monotonic() < end:
        tell("memory", megabytes=megabytes())
        await asyncio.sleep(1.0)


# -- what happens to them ------------------------------------------------------------------------------------


class Nemesis:
    """Does harm at random to the processes, their connections and the server's scripts."""

    def __init__(self, chance: random.Random, by_hand: ByHand, through: Proxy) -> None:
        self.done: Counter[str] = Counter()
        self._chance = chance
        self._by_hand = by_hand
        self._through = through

    async def harm(self, mortals: list[Worker], replace: Callable[[], Any]) -> None:
        deeds: dict[str, Callable[[], Any]] = {
            "kill": partial(self._kill, mortals, replace),
            "stop": partial(self._stop, mortals),
            "cut": self._through.cut,
            "deafen": self._through.deafen,
            "kill normal connections": partial(self._disconnect, "normal"),
            "kill pubsub connections": partial(self._disconnect, "pubsub"),
            "script flush": self._by_hand.redis.script_flush,
        }
        deed = self._chance.choice(list(deeds))
        self.done[deed] += 1
        if (result := deeds[deed]()) is not None and asyncio.iscoroutine(result):
            await result

    async def _kill(self, mortals: list[Worker], replace: Callable[[], Any]) -> None:
        worker = mortals.pop(self._chance.randrange(len(mortals)))
        worker.kill()
        mortals.append(await replace())

    async def _stop(self, mortals: list[Worker]) -> None:
        worker = self._chance.choice(mortals)
        worker.stop()
        await asyncio.sleep(self._chance.uniform(0.1, 2.5 * TTL))
        worker.cont()

    def _disconnect(self, kind: str) -> None:
        self._by_hand.redis.client_kill_filter(_type=kind, skipme=True)


def read(directory: Path) -> list[Hold]:
    """The lines that are there: the last line of a process that was killed may be cut."""
    lines = [line for file in directory.iterdir() for line in file.read_text().splitlines(keepends=True)]
    return [Hold(**json.loads(line)) for line in lines if line.endswith("\n")]


@pytest.mark.soak
@pytest.mark.timeout(SECONDS + 120)
async def test_soak_of_waiting(
    own_server: OwnServer,
    proxy: Callable[[Any], Any],
    workers: Workers,
    tmp_path: Path,
    keys: Callable[..., list[str]],
) -> None:
    chance = random.Random(1)
    server = await own_server(port=0)
    through: Proxy = await proxy(server)
    by_hand = ByHand(server)
    began = time.monotonic()
    number = 0

    async def start(url: str) -> Worker:
        nonlocal number
        number += 1
        left = max(1.0, SECONDS - (time.monotonic() - began))
        history = str(tmp_path / f"{number}.jsonl")
        return await workers.start(wait_and_hold, url=url, history=history, seconds=left, seed=number)

    immortal = await start(server.url)  # but its connections are not
    mortals = [await start(url) for url in (server.url, through.url, through.url)]
    listening = asyncio.create_task(immortal.told("idle", within=SECONDS + 60))  # its pipe must not fill

    nemesis = Nemesis(chance, by_hand, through)
    while time.monotonic() - began < SECONDS - 3:
        await asyncio.sleep(chance.uniform(0.2, 1.5))
        await nemesis.harm(mortals, partial(start, chance.choice([server.url, through.url])))

    idle = await listening
    for worker in (immortal, *mortals):
        await worker.finish(within=60)
    holds = read(tmp_path)

    log.info("%d holds, %d processes, %s, %s", len(holds), number, dict(nemesis.done), idle)
    assert exclusion(holds) == []
    assert fencing(holds) == []
    assert len(holds) > 20 * SECONDS
    assert {hold.name for hold in holds} == {f"n{name}" for name in range(NAMES)}
    assert (idle["tasks"], idle["held"], idle["waiters"]) == ([], 0, 0)
    assert idle["acquisitions"] > 5 * SECONDS
    assert all(idle["wakeups"].values()), idle["wakeups"]
    memory = [report["megabytes"] for report in immortal.told_so_far if report["event"] == "memory"]
    warm_up = max(5, len(memory) // 4)
    assert memory[-1] < 1.2 * memory[warm_up], memory
    await eventually(lambda: keys(server) == [], within=TTL + QUEUE_TTL + 2)
    by_hand.close()
