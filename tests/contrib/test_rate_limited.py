"""`RateLimited` of FastAPI, under uvicorn, and `rate_limited` of aiohttp."""

# Annotations are objects here: FastAPI looks at them.

import asyncio
import importlib.util
import re
import runpy
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Annotated, Any

import httpx
import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from fastapi import APIRouter, Depends, FastAPI, Header, HTTPException, Request, Response
from fastapi.responses import JSONResponse, RedirectResponse, StreamingResponse

from aiolocks import ConfigurationError, RateLimit, Session
from aiolocks.contrib.aiohttp import rate_limited, session_ctx
from aiolocks.contrib.fastapi import RateLimited, current_session, session_lifespan
from tests.contrib.serving import HalfClient, aiohttp_serves, example, uvicorn_serves
from tests.docs.markdown import read
from tests.docs.test_docs import ROOT
from tests.support.waiting import eventually

pytestmark = pytest.mark.leaves_keys("*:ratelimit.*")

STREAMS_GENERATORS = importlib.util.find_spec("fastapi.sse") is not None
PAGE = ROOT / "docs/how-to/ratelimit.md"
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


async def test_a_request_whose_client_hangs_up_gives_up_its_place(
    session: Session, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "aiolocks.requests")
    app, ran = FastAPI(lifespan=session_lifespan(session)), []

    @app.get("/", dependencies=[RateLimited("all", 1, per=60, blocking_timeout=None)])
    async def page() -> None:
        ran.append(1)

    async def waiters() -> int:
        return sum(info.waiters for info in await session.inspect("all"))

    assert await RateLimit(session, "all", 1, per=60).try_acquire()
    async with uvicorn_serves(app) as url, HalfClient(url, "GET /") as client:
        await eventually(lambda: has(waiters, 1))
        client.hang_up()
        await eventually(lambda: has(waiters, 0))
        await eventually(lambda: "GET / ended with 499: its client hung up" in caplog.text)
    assert not ran


async def test_aiohttp_a_request_whose_client_hangs_up_gives_up_its_place(
    session: Session, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "aiolocks.requests")
    app, ran = web.Application(), []

    @rate_limited("all", 1, per=60, blocking_timeout=None)
    async def page(request: web.Request) -> web.Response:
        ran.append(1)
        return web.Response()

    async def waiters() -> int:
        return sum(info.waiters for info in await session.inspect("all"))

    app.cleanup_ctx.append(session_ctx(session))
    app.router.add_get("/", page)
    assert await RateLimit(session, "all", 1, per=60).try_acquire()
    async with aiohttp_serves(app) as url, HalfClient(url, "GET /") as client:
        await eventually(lambda: has(waiters, 1))
        client.hang_up()
        await eventually(lambda: has(waiters, 0))
        await eventually(lambda: "GET / ended with 499: its client hung up" in caplog.text)
    assert not ran


async def has(number: Callable[[], Awaitable[int]], expected: int) -> bool:
    return await number() == expected


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


async def test_a_function_makes_the_name(shop: FastAPI, session: Session) -> None:
    async def customer(user: Annotated[str, Header()], region: str = "eu") -> str:
        return "" if user == "none" else f"{region}:{user}"

    @shop.get("/", dependencies=[RateLimited(customer, 1, per=60)])
    async def page() -> None: ...

    async with httpx.AsyncClient(transport=httpx.ASGITransport(shop), base_url="http://shop") as client:
        asked = [("ada", ""), ("ada", ""), ("bob", ""), ("ada", "?region=us"), ("none", "")]
        found = [(await client.get(f"/{query}", headers={"user": who})).status_code for who, query in asked]
        assert (await client.get("/")).status_code == 422  # as of a handler without its header
    assert found == [200, 429, 200, 200, 400]
    assert not await RateLimit(session, "us:ada", 1, per=60).peek()


@pytest.mark.parametrize("is_async", [False, True])
async def test_aiohttp_a_function_makes_the_name(session: Session, is_async: bool) -> None:
    def customer(request: web.Request) -> str:
        return f"customer:{request.headers['user']}"

    async def later(request: web.Request) -> str:
        return customer(request)

    @rate_limited(later if is_async else customer, 1, per=60)
    async def page(request: web.Request) -> web.Response:
        return web.Response()

    app = web.Application()
    app.cleanup_ctx.append(session_ctx(session))
    app.router.add_get("/", page)
    async with TestClient(TestServer(app)) as client:
        found = [(await client.get("/", headers={"user": who})).status for who in ("ada", "ada", "bob")]
    assert found == [200, 429, 200]
    assert not await RateLimit(session, "customer:ada", 1, per=60).peek()


# -- the fields of the answers

TWO = {
    "RateLimit-Policy": '"second";q=50;w=5, "default";q=1000;w=86400',
    "RateLimit": '"second";r=49;t=1, "default";r=999;t=87',
}
LIMITS: list[Any] = [
    RateLimited("second:{client}", 5, per=0.5, burst=50, policy="second"),
    RateLimited("day:{client}", 1000, per=86_400),
]


class OfTheShopError(Exception):
    pass


def lines() -> Any:
    yield "a"
    yield "b"


async def refuses() -> None:
    raise HTTPException(401, "Who are you?", {"WWW-Authenticate": "Basic"})


def answering() -> FastAPI:
    """All sorts of answers, each of a request that two limits have counted."""
    app = FastAPI()
    shop = APIRouter(dependencies=LIMITS)

    @shop.get("/plain")
    async def plain() -> str:
        return "plain"

    @shop.get("/none", status_code=204)
    async def none() -> None: ...

    @shop.get("/thread")
    def thread(response: Response) -> str:
        response.headers["RateLimit"] = "of the handler"
        return "thread"

    @shop.get("/json")
    async def json() -> JSONResponse:
        return JSONResponse({"a": 1})

    @shop.get("/stream")
    async def stream() -> StreamingResponse:
        return StreamingResponse(lines())

    @shop.get("/redirect")
    async def redirect() -> RedirectResponse:
        return RedirectResponse("/plain")

    if STREAMS_GENERATORS:

        @shop.get("/lines")
        async def generator() -> AsyncIterator[str]:
            yield "a"
            yield "b"

    @shop.get("/missing")
    async def missing() -> None:
        raise HTTPException(404)

    @shop.get("/invalid")
    async def invalid(number: int) -> None: ...

    @shop.get("/unknown", dependencies=[Depends(refuses)])
    async def unknown() -> None: ...

    @shop.get("/own")
    async def own() -> None:
        raise OfTheShopError

    @shop.get("/middleware")
    async def by_a_middleware() -> None:
        raise KeyError

    app.include_router(shop)

    @app.exception_handler(OfTheShopError)
    async def teapot(request: Request, error: OfTheShopError) -> Response:
        return Response(status_code=418)

    @app.middleware("http")
    async def answers(request: Request, call_next: Any) -> Response:
        try:
            response: Response = await call_next(request)
        except KeyError:
            return Response(status_code=409)
        return response

    return app


PATHS = {
    "/plain": 200,
    "/none": 204,
    "/thread": 200,
    "/json": 200,
    "/stream": 200,
    "/redirect": 307,
    **({"/lines": 200} if STREAMS_GENERATORS else {}),
    "/missing": 404,
    "/invalid": 422,
    "/unknown": 401,
    "/own": 418,
    "/middleware": 409,
}


def told(answer: httpx.Response) -> dict[str, list[str]]:
    return {name: answer.headers.get_list(name) for name in TWO}


@pytest.mark.parametrize("mounted", [False, True])
async def test_each_answer_to_a_counted_request_tells_of_each_limit(session: Session, mounted: bool) -> None:
    app = answering()
    if mounted:
        outer = FastAPI()
        outer.mount("/shop", app)
        app = outer
    app.router.lifespan_context = session_lifespan(session)
    async with uvicorn_serves(app) as url, httpx.AsyncClient(timeout=10) as client:
        for path, status in PATHS.items():
            for name in ("second:127.0.0.1", "day:127.0.0.1"):
                await session.force_release(name, kind="ratelimit")
            answer = await client.get(url + ("/shop" if mounted else "") + path)
            assert answer.status_code == status, path
            assert told(answer) == {name: [value] for name, value in TWO.items()}, path
        assert "RateLimit" not in (await client.get(url + "/nowhere")).headers


async def test_a_request_that_the_second_limit_refuses_is_told_of_both(session: Session) -> None:
    app = FastAPI(lifespan=session_lifespan(session))
    limits: list[Any] = [
        RateLimited("a", 5, per=60),
        RateLimited("b", 1, per=60),
        RateLimited("c", 1, per=60),
    ]

    @app.get("/", dependencies=limits)
    async def page() -> None: ...

    async with uvicorn_serves(app) as url, httpx.AsyncClient(base_url=url, timeout=10) as client:
        assert (await client.get("/")).status_code == 200
        refused = await client.get("/")
    assert refused.status_code == 429
    assert refused.headers["RateLimit-Policy"] == '"default";q=5;w=60, "default-2";q=1;w=60'
    assert re.fullmatch(r'"default";r=3;t=24, "default-2";r=0;t=60', refused.headers["RateLimit"])


async def test_a_lifespan_that_is_entered_by_hand(session: Session) -> None:
    app = answering()
    app.router.lifespan_context = session_lifespan(session)
    for _ in range(2):
        async with app.router.lifespan_context(app):
            transport = httpx.ASGITransport(app, client=("127.0.0.1", 1))
            async with httpx.AsyncClient(transport=transport, base_url="http://shop") as client:
                answer = await client.get("/json")
        assert [*map(len, told(answer).values())] == [1, 1]


async def test_two_limits_of_one_name_on_a_route_are_an_error_at_the_start(session: Session) -> None:
    app = FastAPI(lifespan=session_lifespan(session), dependencies=[RateLimited("{client}", 9, per=1)])

    @app.get("/", dependencies=[RateLimited("{client}", 100, per=60)])
    async def page() -> None: ...

    with pytest.raises(
        ConfigurationError, match=re.escape("two RateLimited of one route have the name '{client}'")
    ):
        async with app.router.lifespan_context(app):
            pytest.fail("it started")

    async def handler(request: web.Request) -> web.Response:
        return web.Response()

    with pytest.raises(
        ConfigurationError, match=r"two rate_limited\(\) of one route have the name '{client}'"
    ):
        rate_limited("{client}", 9, per=1)(rate_limited("{client}", 100, per=60)(handler))


async def test_the_program_of_the_page_shows_its_fields(session: Session, tmp_path: Path) -> None:
    example("ratelimit.md", "customers.py", "redis://unused", tmp_path)
    program = runpy.run_path(str(tmp_path / "customers.py"))
    app: FastAPI = program["app"]
    app.router.lifespan_context = session_lifespan(session)
    async with uvicorn_serves(app) as url, httpx.AsyncClient(base_url=url, timeout=10) as client:
        answers = [await client.get("/search", headers={"api-key": key}) for key in ("a secret", "other")]
    (shown,) = [block.text for block in read(PAGE).blocks if block.title == "The header fields"]
    for answer in answers:
        assert answer.status_code == 200
        assert shown.splitlines() == [f"{name}: {answer.headers[name]}" for name in TWO]
    names = [info.name for info in await session.inspect()]
    assert len(names) == 4
    assert "secret" not in "".join(names)


def aiohttp_shop() -> web.Application:
    routes = web.RouteTableDef()

    def limited(handler: Any) -> Any:
        first = rate_limited("second:{client}", 5, per=0.5, burst=50, policy="second")
        return first(rate_limited("day:{client}", 1000, per=86_400)(handler))

    @routes.get("/plain")
    @limited
    async def plain(request: web.Request) -> web.Response:
        return web.Response(text="plain")

    @routes.get("/missing")
    @limited
    async def missing(request: web.Request) -> web.Response:
        raise web.HTTPNotFound

    @routes.get("/stream")
    @limited
    async def stream(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"a")
        return response

    @routes.get("/middleware")
    @limited
    async def by_a_middleware(request: web.Request) -> web.Response:
        raise KeyError

    @web.middleware
    async def answers(request: web.Request, handler: Any) -> web.StreamResponse:
        try:
            response: web.StreamResponse = await handler(request.clone())
        except KeyError:
            return web.Response(status=409)
        return response

    app = web.Application(middlewares=[answers])
    app.router.add_routes(routes)
    return app


@pytest.mark.parametrize("where", ["app", "outer", "inner"])
async def test_aiohttp_tells_of_each_limit_in_each_answer(session: Session, where: str) -> None:
    app, outer = aiohttp_shop(), web.Application()
    (outer if where == "outer" else app).cleanup_ctx.append(session_ctx(session))
    if where != "app":
        outer.add_subapp("/shop", app)
    async with TestClient(TestServer(app if where == "app" else outer)) as client:
        for path, status in {"/plain": 200, "/missing": 404, "/stream": 200, "/middleware": 409}.items():
            for name in ("second:127.0.0.1", "day:127.0.0.1"):
                await session.force_release(name, kind="ratelimit")
            answer = await client.get(path if where == "app" else "/shop" + path)
            assert answer.status == status
            if where == "inner" and path in ("/stream", "/middleware"):
                continue  # for a signal, the session comes too late
            assert {name: answer.headers.getall(name) for name in TWO} == {
                name: [value] for name, value in TWO.items()
            }


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
        ({"policy": ""}, ValueError, "policy must be of printable ASCII"),
        ({"policy": 'a"b'}, ValueError, "policy must be of printable ASCII"),
        ({"policy": 7}, TypeError, "policy must be a str"),
        ({"name": 7}, TypeError, "name must be a str or a function"),
        ({"name": len, "key": len}, TypeError, "needs no key="),
    ],
)
def test_arguments_are_checked(make: Any, kwargs: Any, error: Any, said: str) -> None:
    with pytest.raises(error, match=re.escape(said)):
        make(**{"name": "a:{client}", "limit": 2, "per": 60, **kwargs})


@pytest.mark.parametrize("make", [RateLimited, rate_limited])
@pytest.mark.parametrize(
    ("kwargs", "said"),
    [
        ({"rate": 5, "per": 1}, "has no argument 'rate'; did you mean limit="),
        ({"limit": 5, "period": 1}, "has no argument 'period'; did you mean per="),
        ({"times": 5, "seconds": 1}, "has no argument 'times'; did you mean limit="),
        ({"limit": 5, "per": 1, "capacity": 9}, "has no argument 'capacity'; did you mean burst="),
    ],
)
def test_the_arguments_of_other_libraries_are_explained(make: Any, kwargs: Any, said: str) -> None:
    with pytest.raises(TypeError, match=re.escape(said)):
        make("a:{client}", **kwargs)
    client: Any = object()
    with pytest.raises(TypeError, match=re.escape(f"RateLimit {said}")):
        RateLimit(client, "a", **kwargs)
