"""ASGI servers at SIGTERM, with a handler that holds a lock: a table of docs/how-to/use-in-production.md."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import httpx
import pytest
from redis.asyncio import Redis

from aiolocks import Lock, Session
from tests.contrib.test_uvicorn import free_port
from tests.support.servers import Server
from tests.support.waiting import eventually

ROOT = Path(__file__).parents[2]
LIMIT, LATE = 1, 30
"""Seconds after which a server cancels or kills, where it can be told so: soon, or later than the test."""
AFTER = 0.2
KEY = "shop:lock:{order:17}"

# Whole servers are started. `test_uvicorn.py` shows the same of one of them; `.ci/run` runs all.
pytestmark = [pytest.mark.leaves_keys, pytest.mark.timeout(180), pytest.mark.more]

APP = """
import asyncio, os
from fastapi import FastAPI
from aiolocks.contrib.fastapi import Locked, session_lifespan

after = float(os.environ["SHOP_AFTER"]) if "SHOP_AFTER" in os.environ else None
app = FastAPI(lifespan=session_lifespan(os.environ["SHOP_REDIS"], prefix="shop", close_after_sigterm=after))

@app.post("/ship", dependencies=[Locked("order:17", ttl=30)])
async def ship() -> str:
    await asyncio.sleep(60)
    return "shipped"
"""


@dataclass(frozen=True)
class Row:
    """One server, and what becomes of a lock in a handler.

    Attributes:
        module: Of the server.
        options: By port and limit.
        by_itself: `cancels` at its limit, `kills` then, so that the key stays; or `waits` for ever.
        closes: Whether `close_after_sigterm` works there.
    """

    module: str
    options: Callable[[int, int], list[str]]
    by_itself: str
    closes: bool = True


CANCELS_UP_TO_3_12_0 = "cancels" if sys.version_info < (3, 12, 1) else "waits"
ROWS = {
    "uvicorn": Row("uvicorn", lambda port, _: ["--port", f"{port}"], "waits"),
    "uvicorn, limit": Row(
        "uvicorn",
        lambda port, limit: ["--port", f"{port}", "--timeout-graceful-shutdown", f"{limit}"],
        "cancels",
    ),
    "uvicorn, workers": Row(
        "uvicorn",
        lambda port, limit: [
            "--port",
            f"{port}",
            "--workers",
            "2",
            "--timeout-graceful-shutdown",
            f"{limit}",
        ],
        "cancels",
    ),
    "hypercorn": Row(
        "hypercorn",
        lambda port, limit: ["-b", f"127.0.0.1:{port}", "--graceful-timeout", f"{limit}"],
        CANCELS_UP_TO_3_12_0,
        closes=False,
    ),
    "hypercorn, in one process": Row(
        "hypercorn",
        lambda port, limit: ["-b", f"127.0.0.1:{port}", "-w", "0", "--graceful-timeout", f"{limit}"],
        CANCELS_UP_TO_3_12_0,
    ),
    "granian": Row("granian", lambda port, _: ["--interface", "asgi", "--port", f"{port}"], "waits"),
    "granian, limit": Row(
        "granian",
        lambda port, limit: [
            "--interface",
            "asgi",
            "--port",
            f"{port}",
            "--workers-kill-timeout",
            f"{limit}",
        ],
        "kills",
    ),
    "gunicorn": Row(
        "gunicorn",
        lambda port, limit: ["-k", "asgi", "-b", f"127.0.0.1:{port}", "--graceful-timeout", f"{limit}"],
        "kills",
    ),
}
EACH = pytest.mark.parametrize("name", ROWS)


@asynccontextmanager
async def serving(
    name: str, app: str, directory: Path, environment: dict[str, str], *, limit: int
) -> AsyncIterator[tuple[asyncio.subprocess.Process, httpx.AsyncClient]]:
    row = ROWS[name]
    if find_spec(row.module) is None:
        pytest.skip(f"{row.module} is not installed (pip install --group servers)")
    port = free_port()
    with (directory / "log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", row.module, *row.options(port, limit), app),
            cwd=directory,
            env=os.environ | {"PYTHONPATH": str(ROOT)} | environment,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=40) as client:

            async def serves() -> bool:
                try:
                    return (await client.get("/docs")).status_code == 200
                except httpx.TransportError:
                    return False

            await eventually(serves, within=30)
            yield process, client
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, 9)  # with its workers
        await process.wait()


@EACH
@pytest.mark.parametrize("closing", [False, True])
async def test_a_lock_in_a_handler_at_sigterm(
    tmp_path: Path, redis: Redis, server: Server, name: str, closing: bool
) -> None:
    row = ROWS[name]
    (tmp_path / "shop.py").write_text(APP)
    environment = {"SHOP_REDIS": server.url} | ({"SHOP_AFTER": f"{AFTER}"} if closing else {})
    closes = closing and row.closes
    limit = LATE if closes else LIMIT
    async with serving(name, "shop:app", tmp_path, environment, limit=limit) as (process, client):
        request = asyncio.create_task(client.post("/ship"))
        await eventually(lambda: redis.exists(KEY), within=20)
        process.terminate()
        began, freed_at, ended_at = time.monotonic(), 0.0, 0.0
        gives_back = closes or row.by_itself == "cancels"
        # One that waits for ever, or that has killed, is looked at for longer than its limit.
        while (now := time.monotonic() - began) < (20 if gives_back else 2 * LIMIT):
            freed_at = freed_at or (0.0 if await redis.exists(KEY) else now)
            ended_at = ended_at or (0.0 if process.returncode is None else now)
            if gives_back and freed_at and ended_at:
                break
            await asyncio.sleep(0.02)
        request.cancel()
        await asyncio.wait([request])
    assert bool(freed_at) == gives_back
    assert freed_at >= (AFTER if closes else LIMIT) or not gives_back
    assert bool(ended_at) == (gives_back or row.by_itself == "kills")


# The workers of uvicorn end as the one process does: `test_a_lock_in_a_handler_at_sigterm` has both.
@pytest.mark.parametrize(
    "name", [name for name in ROWS if name not in ("uvicorn", "uvicorn, workers", "granian")]
)
async def test_the_example(tmp_path: Path, redis: Redis, server: Server, name: str) -> None:
    """`examples/shop`: a request of a customer who waits while the process is told to end."""
    database = f"sqlite+aiosqlite:///{tmp_path / 'shop.db'}"
    environment = {"SHOP_REDIS": server.url, "SHOP_DATABASE": database}
    make = f"import asyncio; from examples.shop.tables import make; asyncio.run(make({database!r}))"
    made = await asyncio.create_subprocess_exec(sys.executable, "-c", make, cwd=ROOT)
    assert await made.wait() == 0
    async with serving(name, "examples.shop.service:app", tmp_path, environment, limit=LATE) as (
        process,
        client,
    ):
        assert (await client.post("/orders/17/parcels")).json() == {"parcel": 1, "parcels": 1}
        async with Session(redis, prefix="shop") as session, Lock(session, "order:17"):
            waits = asyncio.create_task(client.post("/orders/17/parcels"))
            await eventually(lambda: redis.exists("shop:lock.queue:{order:17}"), within=10)
            process.terminate()
            await asyncio.sleep(0.2)
        answered = (await asyncio.wait_for(waits, 20)).status_code
        await asyncio.wait_for(process.wait(), 30)
    assert answered == 201
    assert process.returncode in (0, -15)  # uvicorn ends by the signal
