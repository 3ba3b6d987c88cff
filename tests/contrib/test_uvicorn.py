"""A real uvicorn: its workers have the same objects of a module; it is told to stop while requests run."""

from __future__ import annotations

import asyncio
import importlib
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

pytestmark = [pytest.mark.leaves_keys, pytest.mark.timeout(180)]  # whole servers are started

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
    directory: Path, server: Server, *options: str, works: float = 0, app: str = APP
) -> AsyncIterator[tuple[asyncio.subprocess.Process, httpx.AsyncClient]]:
    (directory / "shop.py").write_text(app)
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

            await eventually(serves, within=50)
            yield process, client
    finally:
        if process.returncode is None:
            process.terminate()  # a kill would leave its workers alone
        await process.communicate()


async def said(process: asyncio.subprocess.Process, *words: str) -> None:
    assert process.stdout is not None
    waiting = {word.encode() for word in words}
    async with asyncio.timeout(40):
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
    async with asyncio.timeout(40):
        await process.wait()


async def test_requests_that_are_there_are_served_and_nobody_gets_503(
    tmp_path: Path, server: Server, redis: Redis
) -> None:
    async with uvicorn(tmp_path, server, works=1) as (process, client):
        requests = asks(client)
        await said(process, "ships", "pays")
        process.send_signal(signal.SIGTERM)
        await asyncio.sleep(0.3)
        with pytest.raises(httpx.ConnectError):  # a proxy asks another worker then
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
    assert 0 < await redis.pttl(key) <= 30_000  # as the page says


ONE_SESSION = """
import asyncio, os, pathlib

from fastapi import FastAPI

from aiolocks import Limits, Lock, Schedule, Semaphore, Session, SingleFlight, Turnstile, UniqueJob
from aiolocks.contrib.fastapi import Locked, session_lifespan

session = Session.from_url(os.environ["SHOP_REDIS"], prefix="shop")
printer = Semaphore(session, "printer", 1)
tenants = Limits(session, "tenants", {"all": 1})
flight = SingleFlight(session)
job = UniqueJob(session, "report")
page = Turnstile(session, "page", window=60)
often = Schedule(session, "often", every=0.2)
log = pathlib.Path(__file__).parent / "log"
ticks = []


@often
async def tick(tick) -> None:
    ticks.append(tick.due)


@Lock(session, "order:{order}")
async def ship(order: int) -> int:
    async with printer, tenants:
        with log.open("a") as file:
            file.write("in\\n")
            file.flush()
            await asyncio.sleep(0.002)
            file.write("out\\n")
    return os.getpid()


async def forecast() -> str:
    return "rain"


app = FastAPI(lifespan=session_lifespan(session, close=True))


@app.post("/ship")
async def shipped() -> int:
    async with job.run(waiting=None):
        pass
    assert await flight.do("forecast", forecast) == "rain"
    async with page:
        return await ship(17)


@app.post("/label/{order}", dependencies=[Locked("order:{order}")])
async def label(order: int) -> int:
    with log.open("a") as file:
        file.write("in\\n")
        file.flush()
        await asyncio.sleep(0.002)
        file.write("out\\n")
    return os.getpid()
"""


def in_turn(directory: Path) -> list[str]:
    lines = (directory / "log").read_text().split()
    assert lines == ["in", "out"] * (len(lines) // 2)
    return lines


async def test_objects_of_a_module_in_two_workers_are_the_same_locks(
    tmp_path: Path, server: Server, redis: Redis
) -> None:
    """The session is made at import, in each of them; a decorator and `Locked` exclude each other."""
    async with uvicorn(tmp_path, server, "--workers", "2", app=ONE_SESSION) as (_, client):
        pids: set[int] = set()
        async with asyncio.timeout(30):
            while len(pids) < 2:
                # Each on a connection of its own: the workers take what they accept.
                async with httpx.AsyncClient(base_url=client.base_url, timeout=20) as other:
                    paths = ["/ship", "/label/17"] * 10
                    answers = await asyncio.gather(*(other.post(path) for path in paths))
                assert {answer.status_code for answer in answers} == {200}
                pids |= {answer.json() for answer in answers}
    assert len(in_turn(tmp_path)) >= 40
    assert all([key.startswith(b"shop:") async for key in redis.scan_iter()])


def test_objects_of_a_module_on_one_event_loop_after_the_other(
    tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in the tests of an application: its lifespan runs on a loop of its own, again and again."""
    monkeypatch.setenv("SHOP_REDIS", server.url)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "shop", raising=False)
    (tmp_path / "shop.py").write_text(ONE_SESSION)
    shop = importlib.import_module("shop")
    monkeypatch.delitem(sys.modules, "shop")

    async def lives() -> None:
        async with shop.app.router.lifespan_context(shop.app):
            transport = httpx.ASGITransport(shop.app)
            async with httpx.AsyncClient(transport=transport, base_url="http://shop") as client, shop.often:
                before = len(shop.ticks)
                paths = ["/ship", "/label/17"] * 5
                answers = await asyncio.gather(*(client.post(path) for path in paths))
                assert {answer.status_code for answer in answers} == {200}
                await eventually(lambda: len(shop.ticks) > before, within=5)

    for _ in range(3):
        asyncio.run(lives())
    assert len(in_turn(tmp_path)) == 60
