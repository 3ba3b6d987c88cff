from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import httpx
import pytest

from aiolocks import Lock, Session
from tests.support.waiting import eventually


@pytest.fixture
async def http() -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(timeout=30) as client:
        yield client


@pytest.fixture
def waiting(session: Session) -> Callable[[int], Awaitable[object]]:
    """Returns when that many wait: `await waiting(1)`."""

    async def waiting(number: int) -> None:
        await eventually(lambda: session.statistics().waiters == number, within=20)

    return waiting


@pytest.fixture
async def holder(session: Session) -> AsyncIterator[Callable[[str], Awaitable[asyncio.Event]]]:
    """Holds a lock elsewhere until the event that it gives is set: `done = await holder("order:7")`."""
    holding: list[asyncio.Task[None]] = []

    async def hold(name: str) -> asyncio.Event:
        begun, done = asyncio.Event(), asyncio.Event()

        async def keep() -> None:
            async with Lock(session, name, ttl=20):
                begun.set()
                await done.wait()

        holding.append(asyncio.create_task(keep()))
        await begun.wait()
        return done

    yield hold
    for task in holding:
        task.cancel()
    await asyncio.gather(*holding, return_exceptions=True)
