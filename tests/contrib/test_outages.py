"""An outage is told once, however many requests meet it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest
from aiohttp import web
from fastapi import FastAPI

from aiolocks import Session
from aiolocks.contrib import aiohttp as of_aiohttp
from aiolocks.contrib.fastapi import Locked, session_lifespan
from tests.conftest import Connect, OwnServer
from tests.contrib.serving import aiohttp_serves, uvicorn_serves
from tests.contrib.tills import Serves, Till, each, reason, sent

REQUESTS = 10


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        record.getMessage()
        for record in caplog.records
        if record.name.startswith("aiolocks") and record.levelno >= logging.WARNING
    ]


def fastapi(session: Session) -> Any:
    app = FastAPI(lifespan=session_lifespan(session))

    @app.get("/orders/{order}", dependencies=[Locked("order:{order}", blocking_timeout=0)])
    async def handler() -> None: ...

    return uvicorn_serves(app)


def aiohttp(session: Session) -> Any:
    async def handler(request: web.Request) -> web.Response:
        return web.Response()

    app = web.Application()
    app.cleanup_ctx.append(of_aiohttp.session_ctx(session))
    app.router.add_get("/orders/{order}", of_aiohttp.locked("order:{order}", blocking_timeout=0)(handler))
    return aiohttp_serves(app)


async def meet(
    ask: Callable[[], Awaitable[int]], server: Any, caplog: pytest.LogCaptureFixture, named: str
) -> None:
    caplog.set_level(logging.DEBUG, logger="aiolocks")
    assert await ask() < 300
    server.kill()
    assert set(await asyncio.gather(*(ask() for _ in range(REQUESTS)))) == {503}
    (away,) = told(caplog)
    assert " is away since " in away
    assert caplog.text.count("a request was refused (") == REQUESTS  # at DEBUG
    # A request is told by its route, without the values in its path, and by the name that it needed.
    assert caplog.text.count(named) == REQUESTS


@pytest.mark.parametrize("serves", [fastapi, aiohttp], ids=lambda it: it.__name__)
async def test_of_requests_with_a_lock(
    serves: Callable[[Session], Any],
    own_server: OwnServer,
    connect: Connect,
    http: httpx.AsyncClient,
    caplog: pytest.LogCaptureFixture,
) -> None:
    server = await own_server()
    async with Session(connect(server)) as session, serves(session) as url:

        async def ask() -> int:
            return (await http.get(f"{url}/orders/17")).status_code

        await meet(ask, server, caplog, "(GET /orders/{order}, which needs 'order:17'): ")


@each
async def test_of_requests_with_a_key(
    serves: Serves,
    own_server: OwnServer,
    connect: Connect,
    http: httpx.AsyncClient,
    caplog: pytest.LogCaptureFixture,
) -> None:
    server, keys = await own_server(), iter(range(100))
    async with Session(connect(server)) as session, serves(Till(), session, ttl=1) as url:

        async def ask() -> int:
            answer = await sent(http, url, "ok", str(next(keys)))
            if answer.status_code >= 300:
                assert reason(answer) == (503, "unavailable")
            return answer.status_code

        await meet(ask, server, caplog, "(POST /pay, which needs 'idempotency:")
