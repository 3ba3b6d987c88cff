"""Limits between sessions: a noisy tenant beside a quiet one."""

from __future__ import annotations

import asyncio

from aiolocks import Limits, Session
from tests.conftest import Connect


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
        await asyncio.sleep(0.3)
        for _ in range(5):
            group.create_task(work(quiet, "quiet"))
        await asyncio.sleep(0.2)
        for lease in held:
            await lease.release()

    assert len(order) == 205
    turns = [at for at, tenant in enumerate(order) if tenant == "quiet"]
    assert all(after - before <= 3 for before, after in zip([-1, *turns], turns, strict=False)), turns
