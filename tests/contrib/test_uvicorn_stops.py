"""A real uvicorn that is told to stop, with requests that hold a lock, wait for it, and pay."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from redis.asyncio import Redis

from tests.support.servers import Server
from tests.support.waiting import eventually

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.leaves_keys

APP = """
import asyncio, os

from fastapi import APIRouter, FastAPI

from aiolocks.contrib.fastapi import Locked, session_lifespan
from aiolocks.contrib.idempotency.fastapi import idempotent_route

app = FastAPI(lifespan=session_lifespan(os.environ["SHOP_REDIS"], prefix="shop"))


async def user() -> str:
    return "ann"


payments = APIRouter(route_class=idempotent_route(scope=user, required=True))


@payments.post("/pay")
async def pay() -> str:
    print("pays", flush=True)
    await asyncio.sleep(float(os.environ["SHOP_WORKS"]))
    return "paid"


@app.post("/ship", dependencies=[Locked("order:17", blocking_timeout=30)])
async def ship() -> str:
    print("ships", flush=True)
    await asyncio.sleep(float(os.environ["SHOP_WORKS"]))
    return "shipped"


app.include_router(payments)
"""


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port: int = listening.getsockname()[1]
        return port


@asynccontextmanager
async def uvicorn(
    directory: Path, server: Server, *options: str, works: float
) -> AsyncIterator[tuple[asyncio.subprocess.Process, httpx.AsyncClient]]:
    (directory / "shop.py").write_text(APP)
    port = free_port()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "uvicorn", "shop:app", "--port", str(port), *options),
        cwd=directory,
        env=os.environ | {"SHOP_REDIS": server.url, "SHOP_WORKS": str(works), "PYTHONPATH": str(ROOT)},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=40) as client:

            async def serves() -> bool:
                try:
                    return (await client.get("/docs")).status_code == 200
                except httpx.TransportError:
                    return False

            await eventually(serves, within=20)
            yield process, client
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def said(process: asyncio.subprocess.Process, *words: str) -> None:
    assert process.stdout is not None
    waiting = {word.encode() for word in words}
    async with asyncio.timeout(20):
        while waiting:
            line = await process.stdout.readline()
            assert line, "it has ended"
            waiting.discard(line.split()[0])


def asks(client: httpx.AsyncClient) -> list[asyncio.Task[int]]:
    """A request that holds the lock, one that waits for it, and one with a key."""

    async def status(path: str) -> int:
        return (await client.post(path, headers={"Idempotency-Key": "8e03978e"})).status_code

    return [asyncio.create_task(status(path)) for path in ("/ship", "/ship", "/pay")]


async def ended(process: asyncio.subprocess.Process) -> None:
    async with asyncio.timeout(20):
        await process.wait()


async def test_requests_that_are_there_are_served_and_nobody_gets_503(
    tmp_path: Path, server: Server, redis: Redis
) -> None:
    async with uvicorn(tmp_path, server, works=1) as (process, client):
        requests = asks(client)
        await said(process, "ships", "pays")
        process.send_signal(signal.SIGTERM)
        await asyncio.sleep(0.3)
        with pytest.raises(httpx.ConnectError):  # what a proxy takes to another worker
            await httpx.AsyncClient(base_url=client.base_url).post("/ship")
        assert await asyncio.gather(*requests) == [200, 200, 200]
        await ended(process)


async def test_what_is_left_after_the_time_for_it_gets_500_and_gives_back_locks_and_keys(
    tmp_path: Path, server: Server, redis: Redis
) -> None:
    async with uvicorn(tmp_path, server, "--timeout-graceful-shutdown", "1", works=60) as (process, client):
        requests = asks(client)
        await said(process, "ships", "pays")
        process.send_signal(signal.SIGTERM)
        assert await asyncio.gather(*requests) == [500, 500, 500]
        await ended(process)
    names = [key.decode() async for key in redis.scan_iter()]
    assert not [name for name in names if ":lock:" in name or ":singleflight:" in name], names

    # The next process knows at once that the payment was begun: nobody is told that it is still running.
    async with uvicorn(tmp_path, server, works=0) as (process, client):
        since = time.monotonic()
        answer = await client.post("/pay", headers={"Idempotency-Key": "8e03978e"})
        assert (answer.status_code, answer.json()["reason"]) == (409, "crashed")
        assert (await client.post("/ship")).status_code == 200
        assert time.monotonic() - since < 5


async def test_the_key_of_a_payment_that_was_killed_is_running_until_its_ttl_has_passed(
    tmp_path: Path, server: Server, redis: Redis
) -> None:
    async with uvicorn(tmp_path, server, works=60) as (process, client):
        requests = asks(client)
        await said(process, "ships", "pays")
        process.kill()
        await ended(process)
        await asyncio.gather(*requests, return_exceptions=True)
    async with uvicorn(tmp_path, server, works=0) as (_, client):
        answer = await client.post("/pay", headers={"Idempotency-Key": "8e03978e"})
        assert (answer.status_code, answer.json()["reason"]) == (409, "running")
    (key,) = [key async for key in redis.scan_iter(match="shop:singleflight:*")]
    assert 15_000 < await redis.pttl(key) <= 30_000  # as the page says
