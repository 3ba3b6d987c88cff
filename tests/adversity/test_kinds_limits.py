"""Limits between sessions: a noisy tenant beside a quiet one, and processes that are killed."""

from __future__ import annotations

import asyncio
import os
import random
from dataclasses import replace
from pathlib import Path

import pytest
from redis.asyncio import Redis

from aiolocks import Limits, Session
from tests.conftest import Connect
from tests.support.history import held_for, note, noted, semaphore, unreached
from tests.support.processes import Workers, tell
from tests.support.servers import Server
from tests.support.waiting import eventually, sleeps

TTL = 0.7
CAPS = {"all": 3, "tenant:a": 1, "tenant:b": 2}


async def test_a_tenant_with_many_waiters_delays_another_by_one_turn(connect: Connect, prefix) -> None:
    order: list[str] = []

    async def work(session: Session, tenant: str) -> None:
        async with Limits(session, "exports", {"all": 2, f"tenant:{tenant}": 2}):
            order.append(tenant)
            await asyncio.sleep(0.002)

    async with (
        Session(connect(), prefix=prefix) as noisy,
        Session(connect(), prefix=prefix) as quiet,
        asyncio.TaskGroup() as group,
    ):
        gate = Limits(noisy, "exports", {"all": 2})
        held = [await gate.acquire(), await gate.acquire()]
        for _ in range(200):
            group.create_task(work(noisy, "noisy"))
        await eventually(lambda: noisy.statistics().waiters == 200 and sleeps(noisy))
        for _ in range(5):
            group.create_task(work(quiet, "quiet"))
        await eventually(lambda: quiet.statistics().waiters == 5 and sleeps(quiet))
        for lease in held:
            await lease.release()

    assert len(order) == 205
    turns = [at for at, tenant in enumerate(order) if tenant == "quiet"]
    assert all(after - before <= 3 for before, after in zip([-1, *turns], turns, strict=False)), turns


async def take_and_give_back(url: str, history: str, seed: int, times: int) -> None:
    """In a process of its own: take a permit for either tenant, so many times, and note it for each key."""
    chance = random.Random(seed)
    async with Redis.from_url(url) as redis, Session(redis) as session:
        with Path(history).open("w") as file:  # noqa: ASYNC230 - no more than a moment

            async def one(number: int) -> None:
                tenant = "tenant:a" if number % 3 == 0 else "tenant:b"
                keys = {"all": CAPS["all"], tenant: CAPS[tenant]}
                limits = Limits(session, "exports", keys, ttl=TTL)
                for _ in range(times):
                    pause, who = chance.choice([0, 0.001, 0.003]), f"{os.getpid()}.{number}"
                    hold = await held_for(pause, limits.acquire(), name="", who=who)
                    assert hold is not None
                    for key in keys:
                        note(file, replace(hold, name=key))

            tell("begun")
            await asyncio.gather(*(one(number) for number in range(6)))
        tell("done")


@pytest.mark.more  # as the permits of a semaphore
@pytest.mark.leaves_keys
async def test_no_key_is_above_its_cap_while_processes_are_killed(
    server: Server, redis: Redis, workers: Workers, tmp_path: Path
) -> None:
    """Four processes, of which two are killed; all permits are back after the ttl of the killed ones."""
    crew = [
        await workers.start(
            take_and_give_back, url=server.url, history=str(tmp_path / f"{seed}"), seed=seed, times=times
        )
        for seed, times in enumerate((10_000, 10_000, 20, 20))
    ]
    for worker in crew:
        await worker.told("begun")
    for worker in crew[:2]:
        await asyncio.sleep(0.3)
        worker.kill()
    for worker in crew[2:]:
        await worker.told("done", within=50)
    holds = noted(tmp_path)

    async def all_free() -> bool:
        return await Limits(redis, "exports", CAPS).in_use() == dict.fromkeys(CAPS, 0)

    # For so long, a waiter that was killed as its turn came holds its permits.
    await eventually(all_free)
    for key, cap in CAPS.items():
        of_key = [hold for hold in holds if hold.name == key]
        assert len(of_key) > 30
        assert semaphore(of_key, value=cap) == []
        assert unreached(of_key, value=cap) == []
