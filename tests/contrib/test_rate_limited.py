"""`RateLimited` of FastAPI, under uvicorn, and `rate_limited` of aiohttp."""

# Annotations are objects here: FastAPI looks at them.

import asyncio
import re
from pathlib import Path
from typing import Annotated, Any

import httpx
import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from fastapi import FastAPI, Header

from aiolocks import ConfigurationError, RateLimit, Session
from aiolocks.contrib.aiohttp import rate_limited, session_ctx
from aiolocks.contrib.fastapi import RateLimited, current_session, session_lifespan
from tests.contrib.serving import uvicorn_serves

pytestmark = pytest.mark.leaves_keys("*:ratelimit:*")

POLICY = '"default";q=2;w=60'


async def test_one_too_many_is_told_when_to_come_again(session: Session) -> None:
    app = FastAPI(lifespan=session_lifespan(session))

    @app.get("/search", dependencies=[RateLimited("search:{client}", 2, per=60)])
    async def search() -> str:
        return "found"

    async with uvicorn_serves(app) as url, httpx.AsyncClient(base_url=url, timeout=10) as client:
        answers = [await client.get("/search") for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert {answer.headers["RateLimit-Policy"] for answer in answers} == {POLICY}
    assert [answer.headers["RateLimit"] for answer in answers] == [
        '"default";r=1;t=30', '"default";r=0;t=60', '"default";r=0;t=30'
    ]  # fmt: skip
    assert answers[2].headers["Retry-After"] == "30"
    assert answers[2].json() == {"detail": "Too many requests. Try again later."}
    assert "Retry-After" not in answers[0].headers
    assert not await RateLimit(session, "search:127.0.0.1", 2, per=60).peek()


def user(user: Annotated[str, Header()]) -> str:
    return user


@pytest.fixture
def shop(session: Session) -> FastAPI:
    app = FastAPI()
    app.dependency_overrides[current_session] = lambda: session
    return app


async def test_the_key_and_the_parameters_of_a_handler(shop: FastAPI) -> None:
    @shop.get(
        "/orders/{order_id}",
        dependencies=[RateLimited("{key}:{order_id}", 1, per=60, key=user, status=503, detail="No.")],
    )
    async def order(order_id: int) -> int:
        return order_id

    async with httpx.AsyncClient(transport=httpx.ASGITransport(shop), base_url="http://shop") as client:

        async def ask(path: str, who: str) -> int:
            return (await client.get(path, headers={"user": who})).status_code

        assert await ask("/orders/7", "ada") == 200
        assert await ask("/orders/07", "ada") == 503  # the same order
        assert await ask("/orders/8", "ada") == 200
        assert await ask("/orders/7", "bob") == 200
        refused = await client.get("/orders/7", headers={"user": "ada"})
        assert refused.json() == {"detail": "No."}
        assert (await client.get("/orders/7")).status_code == 422


async def test_a_request_may_wait_for_its_turn(shop: FastAPI, session: Session) -> None:
    @shop.get("/", dependencies=[RateLimited("all", 10, per=1, burst=1, blocking_timeout=0.15)])
    async def page() -> str:
        return "page"

    async with httpx.AsyncClient(transport=httpx.ASGITransport(shop), base_url="http://shop") as client:
        assert [(await client.get("/")).status_code for _ in range(3)] == [200] * 3
        assert await RateLimit(session, "all", 10, per=1, burst=1).acquire()
        slow = RateLimit(session, "all", 10, per=1, burst=1)
        ahead = [asyncio.create_task(slow.acquire()) for _ in range(3)]
        await asyncio.sleep(0.02)
        refused = await client.get("/")
        assert refused.status_code == 429
        assert refused.headers["Retry-After"] == "1"
        await asyncio.gather(*ahead)


async def test_a_client_without_an_address_is_an_error_that_names_key(shop: FastAPI) -> None:
    @shop.get("/", dependencies=[RateLimited("{client}", 1, per=1)])
    async def page() -> str:
        return "page"

    transport = httpx.ASGITransport(shop, client=None)  # type: ignore[arg-type]
    async with httpx.AsyncClient(transport=transport, base_url="http://shop") as client:
        with pytest.raises(TypeError, match="give key="):
            await client.get("/")


async def test_a_server_that_is_away_is_503(shop: FastAPI, own_server: Any, connect: Any) -> None:
    server = await own_server()
    async with Session(connect(server)) as session:
        assert await session.healthy()
        server.kill()
        shop.dependency_overrides[current_session] = lambda: session

        @shop.get("/", dependencies=[RateLimited("a", 1, per=1)])
        async def page() -> str:
            return "page"

        async with httpx.AsyncClient(transport=httpx.ASGITransport(shop), base_url="http://shop") as client:
            answer = await client.get("/")
        assert (answer.status_code, answer.headers["Retry-After"]) == (503, "1")


async def test_aiohttp(session: Session) -> None:
    routes = web.RouteTableDef()

    async def who(request: web.Request) -> str:
        return request.headers["user"]

    @routes.get("/search")
    @rate_limited("search:{client}", 2, per=60)
    async def search(request: web.Request) -> web.Response:
        return web.Response(text="found")

    @routes.get("/orders/{order_id}")
    @rate_limited("{key}:{order_id}", 1, per=60, key=who)
    async def order(request: web.Request) -> web.Response:
        return web.Response(text="order")

    app = web.Application()
    app.cleanup_ctx.append(session_ctx(session))
    app.router.add_routes(routes)
    async with TestClient(TestServer(app)) as client:
        answers = [await client.get("/search") for _ in range(3)]
        assert [answer.status for answer in answers] == [200, 200, 429]
        assert {answer.headers["RateLimit-Policy"] for answer in answers} == {POLICY}
        assert [answer.headers["RateLimit"] for answer in answers][1:] == [
            '"default";r=0;t=60', '"default";r=0;t=30'
        ]  # fmt: skip
        assert answers[2].headers["Retry-After"] == "30"
        found = [(await client.get("/orders/7", headers={"user": who})).status for who in ("a", "a", "b")]
        assert found == [200, 429, 200]


async def test_aiohttp_over_a_unix_socket(
    session: Session, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    @rate_limited("search:{client}", 2, per=60)
    async def search(request: web.Request) -> web.Response:
        return web.Response(text="found")

    app = web.Application()
    app.cleanup_ctx.append(session_ctx(session))
    app.router.add_get("/", search)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.UnixSite(runner, str(tmp_path / "http")).start()
        transport = httpx.AsyncHTTPTransport(uds=str(tmp_path / "http"))
        async with httpx.AsyncClient(transport=transport, base_url="http://shop") as client:
            assert (await client.get("/")).status_code == 500
    finally:
        await runner.cleanup()
    assert "give key=" in caplog.text


async def test_a_field_that_the_route_does_not_have_is_an_error_at_the_start(session: Session) -> None:
    app = FastAPI(lifespan=session_lifespan(session))

    @app.get("/orders/{order_id}", dependencies=[RateLimited("{client}:{order}", 2, per=60)])
    async def order(order_id: int) -> None: ...

    with pytest.raises(ConfigurationError, match=r"a field 'order', but .*: pass key=, and take {key} if"):
        async with app.router.lifespan_context(app):
            pytest.fail("it started")


@pytest.mark.parametrize("make", [RateLimited, rate_limited])
@pytest.mark.parametrize(
    ("kwargs", "error", "said"),
    [
        ({"limit": 0}, ValueError, "limit must be from 1"),
        ({"per": 0}, ValueError, "per must be"),
        ({"name": ""}, ValueError, "name must not be empty"),
        ({"name": "{client"}, ValueError, "is not a template"),
        ({"key": "user"}, TypeError, "key must be a function"),
        ({"key": len}, TypeError, "has a field {key}"),
        ({"name": "{key}"}, TypeError, "has a field {key}"),
        ({"status": 200}, ValueError, "status must be"),
        ({"blocking_timeout": -1}, ValueError, "blocking_timeout must be"),
    ],
)
def test_arguments_are_checked(make: Any, kwargs: Any, error: Any, said: str) -> None:
    with pytest.raises(error, match=re.escape(said)):
        make(**{"name": "a:{client}", "limit": 2, "per": 60, **kwargs})
