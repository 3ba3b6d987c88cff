"""The applications of the how-tos, in several processes, with clients all at once."""

from __future__ import annotations

import asyncio
import contextlib
import runpy
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import httpx
import pytest
from redis.asyncio import Redis

from aiolocks import Lock, Session
from tests.contrib.serving import (
    aiohttp_serves,
    aiohttp_worker,
    example,
    python_of,
    uvicorn_serves,
    uvicorn_worker,
)
from tests.support.processes import Workers
from tests.support.servers import Server
from tests.support.waiting import eventually

TTL = 2.0
ROOM = 3.0

Post = Callable[[str], Awaitable[tuple[int, dict[str, str], Any]]]
"""Sends a POST: status, headers and JSON of the answer."""


@asynccontextmanager
async def by_httpx() -> AsyncIterator[Post]:
    async with httpx.AsyncClient(
        timeout=60, limits=httpx.Limits(max_connections=100, max_keepalive_connections=0)
    ) as client:

        async def post(url: str) -> tuple[int, dict[str, str], Any]:
            answer = await client.post(url)
            return answer.status_code, dict(answer.headers), answer.json() if answer.is_success else None

        yield post


@asynccontextmanager
async def by_aiohttp() -> AsyncIterator[Post]:
    async with aiohttp.ClientSession() as client:

        async def post(url: str) -> tuple[int, dict[str, str], Any]:
            async with client.post(url) as answer:
                headers = {name.lower(): value for name, value in answer.headers.items()}
                is_json = answer.ok and answer.content_type == "application/json"
                return answer.status, headers, await answer.json() if is_json else None

        yield post


@pytest.mark.long
@pytest.mark.leaves_keys("packed:*")
@pytest.mark.parametrize(
    ("page", "worker", "client"),
    [("fastapi.md", uvicorn_worker, by_httpx), ("aiohttp.md", aiohttp_worker, by_aiohttp)],
    ids=["fastapi", "aiohttp"],
)
async def test_orders_are_packed_one_by_one_and_a_killed_worker_blocks_nobody_for_long(
    page: str, worker: Any, client: Any, server: Server, workers: Workers, redis: Redis, tmp_path: Path
) -> None:
    example(page, "shop.py", server.url, tmp_path)
    processes = await workers.start_many(2, worker, directory=str(tmp_path))
    first, second = [(await process.told("serves"))["url"] for process in processes]

    async with client() as post:
        # Fifty at once, on both of them: whatever two do at a time is counted once.
        urls = [f"{url}/orders/7/parcels" for url in (first, second) for _ in range(25)]
        answers = await asyncio.gather(*map(post, urls))
        assert {status for status, _, _ in answers} == {200}
        assert sorted(answer["parcel"] for _, _, answer in answers) == [*range(1, 51)]
        assert len({answer["worker"] for _, _, answer in answers}) == 2
        assert int(await redis.get("packed:7")) == 50

        # One of them is killed while it packs.
        lasting = asyncio.create_task(post(f"{first}/orders/7/parcels?seconds=60"))

        async def locked() -> tuple[int, dict[str, str], Any] | None:
            answer = await post(f"{second}/orders/7/label")
            return answer if answer[0] != 200 else None

        status, headers, _ = await eventually(locked, within=10)
        assert status == 423
        assert 1 <= int(headers["retry-after"]) <= TTL
        processes[0].kill()
        killed = time.monotonic()
        with pytest.raises((httpx.TransportError, aiohttp.ClientError)):
            await lasting
        status, _, answer = await post(f"{second}/orders/7/parcels")
        assert (status, answer["parcel"]) == (200, 51)
        assert time.monotonic() - killed < TTL + ROOM


@pytest.mark.parametrize(
    ("page", "serves"),
    [("fastapi.md", uvicorn_serves), ("aiohttp.md", aiohttp_serves)],
    ids=["fastapi", "aiohttp"],
)
async def test_a_task_beside_the_requests_has_the_session(
    page: str, serves: Any, server: Server, redis: Redis, tmp_path: Path
) -> None:
    example(page, "sweeper.py", server.url, tmp_path)
    namespace = runpy.run_path(str(tmp_path / "sweeper.py"))
    async with Session(redis, prefix="shop") as session:
        sweep = Lock(session, "sweep")
        async with serves(namespace["app"]):
            await eventually(sweep.locked, within=10)
        assert not await sweep.locked()


@pytest.mark.leaves_keys("pieces:*")
@pytest.mark.parametrize("way", ["", "/first"])
async def test_synchronous_handlers_run_one_by_one(way: str, server: Server, tmp_path: Path) -> None:
    namespace: dict[str, Any] = {}
    exec(python_of("fastapi.md", "warehouse.py", server.url), namespace)
    with contextlib.closing(namespace["stock"]):
        async with uvicorn_serves(namespace["app"]) as url, by_httpx() as post:
            answers = await asyncio.gather(*(post(f"{url}/items/bolt{way}") for _ in range(20)))
    assert {status for status, _, _ in answers} == {200}
    assert sorted(answer for _, _, answer in answers) == [*range(1, 21)]
