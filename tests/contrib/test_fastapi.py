"""`Locked` and `session_lifespan`, under uvicorn."""

# Annotations are objects here: FastAPI looks at them, and they name what is local to a test.

import asyncio
import enum
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Annotated, Any, cast
from uuid import UUID

import anyio
import anyio.to_thread
import fastapi.routing
import httpx
import pytest
from fastapi import (
    APIRouter,
    BackgroundTasks,
    Body,
    Depends,
    FastAPI,
    Header,
    HTTPException,
    Path,
    Query,
    Request,
    Response,
)
from fastapi.responses import StreamingResponse
from redis.asyncio import Redis
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import BaseRoute, Host, Mount
from starlette.websockets import WebSocket

from aiolocks import (
    ConfigurationError,
    FairLock,
    Lease,
    Lock,
    LockLostError,
    LockTimeoutError,
    ReentrantLock,
    RWLock,
    Semaphore,
    Session,
    current_lease,
    ensure_held,
    name_of,
)
from aiolocks.contrib._holds import holds_of
from aiolocks.contrib._refusing import UNHEALTHY
from aiolocks.contrib.fastapi import (
    Limited,
    Locked,
    RateLimited,
    current_session,
    health,
    session_lifespan,
    session_of,
)
from tests.conftest import Connect, OwnServer
from tests.contrib.asgi import ReadsFirst
from tests.contrib.serving import HalfClient, uvicorn_serves
from tests.support.spoiling import spoil
from tests.support.waiting import eventually


class Color(enum.Enum):
    RED = "red"


@pytest.fixture
def app(session: Session) -> FastAPI:
    return FastAPI(lifespan=session_lifespan(session))


async def test_the_items_of_a_generator_are_made_while_it_is_held(
    app: FastAPI, session: Session, http: httpx.AsyncClient
) -> None:
    """Whether FastAPI makes a list of them, as it did up to 0.133, or streams them."""
    held: list[int] = []

    @app.get("/items", dependencies=[Locked("items", blocking_timeout=10)])
    def items():
        for number in range(3):
            time.sleep(0.005)
            held.append(session.statistics().leases_held)
            yield number

    async with uvicorn_serves(app) as url:
        answers = await asyncio.gather(*(http.get(f"{url}/items") for _ in range(3)))
    assert [answer.status_code for answer in answers] == [200] * 3
    assert all(answer.text.translate({ord(other): None for other in "[],\n"}) == "012" for answer in answers)
    assert held == [1] * 9


# -- the lease of a handler


async def test_handlers_and_dependencies_are_inside(
    app: FastAPI, session: Session, http: httpx.AsyncClient
) -> None:
    room = Locked("room:{it}")

    def seen() -> str:
        return f"{ensure_held('room:7').name} {current_lease().kind}"

    async def before(it: int) -> AsyncIterator[None]:
        with pytest.raises(LookupError):
            current_lease()
        yield

    async def a_generator(lease: Annotated[Lease, room]) -> AsyncIterator[str]:
        assert current_lease() is lease
        yield seen()
        assert current_lease() is lease

    def in_a_thread(lease: Annotated[Lease, room]) -> str:
        return seen()

    @app.get("/async", dependencies=[Depends(before), room])
    async def handler(it: int) -> list[str]:
        async with Lock(session, "inner") as inner:
            assert current_lease() is inner
        return [seen(), await asyncio.to_thread(seen)]

    @app.get("/thread", dependencies=[room])
    def plain(it: int) -> str:
        return seen()

    @app.get("/dependencies")
    async def by_dependencies(
        it: int,
        first: Annotated[str, Depends(a_generator, scope="function")],
        second: Annotated[str, Depends(in_a_thread)],
    ) -> list[str]:
        return [first, second, seen()]

    @app.get("/limited", dependencies=[Limited("room:7", lambda: {"all": 2})])
    def limited() -> str:
        return seen()

    async with uvicorn_serves(app) as url:
        for path, answer in {
            "async": ["room:7 lock"] * 2,
            "thread": "room:7 lock",
            "dependencies": ["room:7 lock"] * 3,
            "limited": "room:7 limits",
        }.items():
            assert (await http.get(f"{url}/{path}", params={"it": 7})).json() == answer


# -- names


async def test_name_of_is_the_name_of_a_route(
    app: FastAPI, session: Session, http: httpx.AsyncClient
) -> None:
    @app.post("/pay", dependencies=[Locked("account:{payer}")])
    async def pay(payer: str) -> list[str]:
        return [info.name for info in await session.inspect()]

    async with uvicorn_serves(app) as url:
        for payer in ("ann@shop.example", "a b", "Zoë", "4/7"):
            names = (await http.post(f"{url}/pay", params={"payer": payer})).json()
            assert names == [name_of("account:{payer}", payer=payer)]


async def test_a_template_of_a_route_that_is_acquired_as_it_stands_is_told(
    app: FastAPI, session: Session, http: httpx.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    @app.post("/pay", dependencies=[Locked("wallet:{payer}")])
    async def pay(payer: str) -> None: ...

    async with uvicorn_serves(app) as url:
        await http.post(f"{url}/pay", params={"payer": "x"})
    async with Lock(session, "wallet:{payer}"):
        pass
    assert "'wallet:{payer}' is acquired as it stands" in caplog.text


NAMES = {
    "/path/7": "it:7",
    "/path/07": "it:7",
    "/prefixed/a%3Ab/x/c": "it:a%3Ab:c",
    "/enum/red": "it:red",
    "/alias/9": "it:9",
    "/query?it=x%20y&it=z": "it:z",
    "/query": "it:none",
    "/optional": "it:",
    "/query-alias?other=3": "it:3",
    "/default": "it:5",
    "/untyped/a+b": "it:a%2Bb",
    "/function/8?more=09": "it:8.9",
    "/of-the-request/x": "it:GET/of-the-request/x",
    "/both/3": "it:3",
    "/both?it=4": "it:4",
}


@dataclass
class Ships:
    """A handler that has no hash."""

    by: str

    def __call__(self, it: int) -> str:  # older versions of FastAPI await none
        return f"{current_lease().name} by {self.by}"


@pytest.mark.leaves_keys  # those of a limit
async def test_a_handler_may_be_an_object_without_a_hash(app: FastAPI, http: httpx.AsyncClient) -> None:
    for by in ("air", "sea"):
        dependencies = [RateLimited("it:{it}", 9, per=60), Locked("it:{it}")]
        app.add_api_route(f"/{by}/{{it}}", Ships(by), dependencies=dependencies)
    async with uvicorn_serves(app) as url:
        told = [(await http.get(f"{url}/{by}/07")).text for by in ("air", "sea")]
    assert told == ['"it:7 by air"', '"it:7 by sea"']


async def test_the_name_is_made_of_what_the_handler_gets(app: FastAPI, http: httpx.AsyncClient) -> None:
    named = Annotated[Lease, Locked("it:{it}")]

    @app.get("/path/{it}")
    async def by_path(it: int, lease: named) -> str:
        return lease.name

    router = APIRouter(prefix="/prefixed/{shop}")

    @router.get("/x/{it}")
    async def prefixed(it: str, lease: Annotated[Lease, Locked("it:{shop}:{it}")]) -> str:
        return lease.name

    app.include_router(router)

    @app.get("/both/{it}")
    @app.get("/both")
    async def both(it: int, lease: named) -> str:
        return lease.name

    @app.get("/enum/{it}")
    async def by_enum(it: Color, lease: named) -> str:
        return lease.name

    @app.get("/alias/{that}")
    async def by_alias(it: Annotated[int, Path(alias="that", ge=1)], lease: named) -> str:
        return lease.name

    @app.get("/query")
    async def by_query(lease: named, it: str = "none") -> str:
        return lease.name

    @app.get("/optional")
    async def by_optional(lease: named, it: str | None = None) -> str:
        return lease.name

    @app.get("/query-alias")
    async def by_query_alias(it: Annotated[int, Query(alias="other")], lease: named) -> str:
        return lease.name

    @app.get("/default")
    async def by_default(lease: named, it: int = Query(default=5, ge=1)) -> str:
        return lease.name

    @app.get("/untyped/{it}")
    async def untyped(it, lease: named) -> str:
        return lease.name

    async def by_parameters(it: int, more: int) -> str:
        return f"it:{it}.{more}"

    @app.get("/function/{it}")
    async def function(lease: Annotated[Lease, Locked(by_parameters)]) -> str:
        return lease.name

    def of_the_request(request: Request) -> str:
        return f"it:{request.method}{request.url.path}"

    @app.get("/of-the-request/{it}")
    async def request_function(lease: Annotated[Lease, Locked(of_the_request)]) -> str:
        return lease.name

    async with uvicorn_serves(app) as url:
        answers = {path: (await http.get(url + path)).json() for path in NAMES}
    assert answers == NAMES


EQUAL = {
    "slot": ["2024-02-29T10:00:00Z", "2024-02-29T11:00:00%2B01:00", "2024-02-29T05:00-05:00"],
    "price": ["1.0", "1.00", "1", "01", "1e0"],
    "weight": ["0.0", "-0.0", "0", "-0e7"],
    "job": ["2E0AC4A4-0000-4000-8000-00000000000A", "2e0ac4a4-0000-4000-8000-00000000000a"],
    "flag": ["true", "1", "on"],
    "day": ["2024-02-29", "1709164800"],
}


async def test_equal_values_are_one_lock(app: FastAPI, http: httpx.AsyncClient) -> None:
    for name, kind in {
        "slot": datetime,
        "price": Decimal,
        "weight": float,
        "job": UUID,
        "flag": bool,
        "day": date,
    }.items():

        def route(name: str = name, kind: Any = kind) -> None:
            @app.get(f"/{name}")
            async def by_query(it: kind, lease: Annotated[Lease, Locked(f"{name}:{{it}}")]) -> str:
                return lease.name

        route()

    @app.get("/untyped/{it:float}")
    async def untyped(it, lease: Annotated[Lease, Locked("it:{it}")]) -> str:
        return lease.name

    async with uvicorn_serves(app) as url:
        for name, texts in EQUAL.items():
            names = {(await http.get(f"{url}/{name}?it={text}")).json() for text in texts}
            assert len(names) == 1, names
        assert (await http.get(f"{url}/untyped/7.50")).json() == "it:7.5"


async def test_a_value_that_equals_nothing_is_refused(
    app: FastAPI, http: httpx.AsyncClient, session: Session
) -> None:
    @app.get("/weight")
    async def weigh(it: float, lease: Annotated[Lease, Locked("weight:{it}")]) -> None: ...

    async with uvicorn_serves(app) as url:
        answer = await http.get(f"{url}/weight?it=nan")
    assert answer.status_code == 422
    (error,) = answer.json()["detail"]
    assert error["loc"] == ["query", "it"]
    assert "nan equals nothing" in error["msg"]
    assert session.statistics().acquisitions == 0


async def test_what_does_not_fit_is_refused_at_once(
    app: FastAPI, http: httpx.AsyncClient, session: Session
) -> None:
    @app.get("/path/{it}")
    async def by_path(it: Annotated[int, Path(ge=1)], lease: Annotated[Lease, Locked("it:{it}")]) -> None: ...

    @app.get("/query")
    async def by_query(
        it: Annotated[str, Query(alias="of")], lease: Annotated[Lease, Locked("it:{it}")]
    ) -> None: ...

    @app.get("/text/{it}")
    async def text(it: str, lease: Annotated[Lease, Locked("it:{it}")]) -> None: ...

    def place(answer: httpx.Response) -> tuple[int, str, list[str]]:
        (error,) = answer.json()["detail"]
        return answer.status_code, error["type"], error["loc"]

    async with uvicorn_serves(app) as url:
        assert place(await http.get(f"{url}/path/x")) == (422, "int_parsing", ["path", "it"])
        assert place(await http.get(f"{url}/path/0")) == (422, "greater_than_equal", ["path", "it"])
        assert place(await http.get(f"{url}/query")) == (422, "missing", ["query", "of"])
        long = await http.get(f"{url}/text/{'x' * 1100}")
        assert (long.status_code, long.json()) == (
            400,
            {"detail": "a value in this request is empty, or too long"},
        )
    assert session.statistics().acquisitions == 0


async def test_openapi_has_the_parameters_of_the_handlers_and_no_others(app: FastAPI) -> None:
    async def of_the_shop(shop: Annotated[int, Header()]) -> str:
        return f"shop:{shop}"

    @app.post("/orders/{order_id}")
    async def ship(order_id: int, lease: Annotated[Lease, Locked("order:{order_id}")]) -> None: ...

    @app.post("/carts/{cart_id}", dependencies=[Locked("cart:{cart_id}"), Depends(Locked("cart"))])
    async def pay() -> None: ...

    @app.post("/shops", dependencies=[Locked(of_the_shop)])
    async def close() -> None: ...

    paths = app.openapi()["paths"]
    parameters = {
        path: [(each["in"], each["name"]) for each in methods["post"].get("parameters", ())]
        for path, methods in paths.items()
    }
    assert parameters == {
        "/orders/{order_id}": [("path", "order_id")],
        "/carts/{cart_id}": [],
        "/shops": [("header", "shop")],
    }
    assert not any("requestBody" in methods["post"] for methods in paths.values())


@pytest.mark.parametrize("included", [False, True])
async def test_a_field_that_the_route_does_not_have_is_found_when_it_starts(
    app: FastAPI, included: bool
) -> None:
    router = APIRouter(prefix="/shops/{shop}")

    @router.post("/orders/{order_id}", dependencies=[Locked("{shop}:{oder_id}")])
    async def ship(order_id: int) -> None: ...

    if included:
        app.include_router(router)
    else:
        app.post("/orders/{order_id}")(ship)

        @app.get("/{order_id}")
        async def show(order_id: int, lease: Annotated[Lease, Locked("{oder_id}")]) -> None: ...

    with pytest.raises(ConfigurationError, match="'oder_id'"):
        async with app.router.lifespan_context(app):
            pytest.fail("it started")


async def test_a_name_that_is_none_is_an_error_in_the_log(
    app: FastAPI, http: httpx.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    @app.get("/none", dependencies=[Locked(lambda: 7)])
    async def none() -> None: ...

    async with uvicorn_serves(app) as url:
        logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
        assert (await http.get(f"{url}/none")).status_code == 500
        assert "name must be a str, not int" in caplog.text


@pytest.mark.parametrize("where", ["mounted", "twice", "router", "host", "behind a middleware", "hidden"])
async def test_a_field_that_a_route_elsewhere_does_not_have_is_found_too(app: FastAPI, where: str) -> None:
    """In mounted applications, and in dependencies of dependencies."""

    async def hidden(lease: Annotated[Lease, Locked("order:{tenant}:{order}")]) -> Lease:
        return lease

    inner = FastAPI()

    @inner.get("/{order}")
    async def handler(order: int, lease: Annotated[Lease, Depends(hidden)]) -> str:
        return lease.name

    def mount(path: str) -> BaseRoute:
        match where:
            case "twice":
                return Mount(path, routes=[Mount("/again", inner)])
            case "host":
                return Host("127.0.0.1", Mount(path, inner))
            case "behind a middleware":
                return Mount(path, CORSMiddleware(inner))
            case _:
                return Mount(path, inner)

    def add(path: str) -> None:
        if where == "hidden":
            app.get(f"{path}/{{order}}")(handler)
        elif where == "router":
            if not hasattr(fastapi.routing, "iter_route_contexts"):
                pytest.skip("this FastAPI includes no mounts of a router")
            router = APIRouter()
            router.mount("/below", inner)
            app.include_router(router, prefix=path)
        else:
            app.router.routes.append(mount(path))

    add("/good/{tenant}")
    async with app.router.lifespan_context(app):
        pass
    add("/bad")
    with pytest.raises(ConfigurationError, match="has a field 'tenant', but the route has no such parameter"):
        async with app.router.lifespan_context(app):
            pytest.fail("it started")


async def test_a_field_may_come_from_the_path_of_a_mount(app: FastAPI, http: httpx.AsyncClient) -> None:
    mounted = FastAPI()

    @mounted.get("/{order}", dependencies=[Locked("{tenant}:{order}")])
    async def handler(order: int, session: Annotated[Session, Depends(current_session)]) -> list[str]:
        return [info.name for info in await session.inspect()]

    app.mount("/{tenant}", mounted)
    async with uvicorn_serves(app) as url:
        assert (await http.get(f"{url}/a/7")).json() == ["a:7"]


@pytest.mark.parametrize("add", ["add_api_route", "add_route", "mounted"])
async def test_health_without_the_call_is_an_error_at_start(app: FastAPI, add: str) -> None:
    """As an endpoint itself, it would answer 200 whatever happens."""
    if add == "mounted":
        mounted = FastAPI()
        mounted.add_api_route("/health", health)
        app.mount("/mounted", mounted)
    else:
        getattr(app, add)("/health", health)
    with pytest.raises(ConfigurationError, match=r"of '/health' is the function health, .* health\(\)"):
        async with app.router.lifespan_context(app):
            pytest.fail("it started")


async def test_the_openapi_document_lists_what_may_be_refused(app: FastAPI, http: httpx.AsyncClient) -> None:
    async def keys() -> dict[str, int]:
        return {"all": 1}

    async def hidden(lease: Annotated[Lease, Locked("hidden", status=409)]) -> Lease:
        return lease

    async def nothing() -> None: ...

    mounted = FastAPI()
    router = APIRouter(prefix="/included", dependencies=[Locked("router")])
    routes: dict[str, Any] = {
        "locked": Locked("a"),
        "chosen": Locked("a", status=429),
        "limited": Limited("a", keys),
        "rate": RateLimited("a", 1, per=1),
        "hidden": Depends(hidden),
        "until-sent": Depends(Locked("a")),
        "nothing": Depends(nothing),
    }
    for path, dependency in routes.items():
        app.get(f"/{path}", dependencies=[dependency])(nothing)
    app.get("/own", dependencies=[Locked("a")], responses={423: {"description": "Wait"}})(nothing)
    router.get("/it")(nothing)
    app.include_router(router)
    mounted.get("/it", dependencies=[Locked("a")])(nothing)
    app.mount("/mounted", mounted)
    async with uvicorn_serves(app) as url:
        paths = (await http.get(f"{url}/openapi.json")).json()["paths"]
        below = (await http.get(f"{url}/mounted/openapi.json")).json()["paths"]
    found = {path: sorted({*each["get"]["responses"]} - {"200"}) for path, each in paths.items()}
    assert found == {
        "/locked": ["423", "503"],
        "/chosen": ["429", "503"],
        "/limited": ["429", "503"],
        "/rate": ["429", "503"],
        "/hidden": ["409", "503"],
        "/until-sent": ["423", "503"],
        "/nothing": [],
        "/own": ["423", "503"],
        "/included/it": ["423", "503"],
    }
    assert {*below["/it"]["get"]["responses"]} == {"200", "423", "503"}
    answer = paths["/locked"]["get"]["responses"]["423"]
    assert answer["description"] == "Locked"
    assert answer["headers"]["Retry-After"]["schema"] == {"type": "integer"}
    assert paths["/own"]["get"]["responses"]["423"]["description"] == "Wait"


@pytest.mark.parametrize("about", [Header(), Body(), Depends(lambda: 1)])
async def test_fields_are_not_taken_from_elsewhere(app: FastAPI, about: Any) -> None:
    @app.post("/")
    async def handler(it: Annotated[int, about], lease: Annotated[Lease, Locked("it:{it}")]) -> None: ...

    with pytest.raises(ConfigurationError, match="neither from the path nor from the query"):
        async with app.router.lifespan_context(app):
            pytest.fail("it started")


@pytest.mark.parametrize("several", [list[int], set[str] | None, Annotated[tuple[int, int], Query()]])
async def test_a_field_is_one_value(app: FastAPI, several: Any) -> None:
    @app.get("/")
    async def handler(
        it: Annotated[several, Query()], lease: Annotated[Lease, Locked("it:{it}")]
    ) -> None: ...

    with pytest.raises(ConfigurationError, match="'it', but that is several values"):
        async with app.router.lifespan_context(app):
            pytest.fail("it started")


# -- when it cannot be had


async def test_the_refusal_says_when_to_try_again_and_nothing_else(
    app: FastAPI, http: httpx.AsyncClient, holder: Any
) -> None:
    @app.post("/{it}", dependencies=[Locked("secret:{it}", blocking_timeout=0)])
    async def once(it: str) -> None: ...

    @app.put("/{it}", dependencies=[Locked("secret:{it}", blocking_timeout=0.2, status=409)])
    async def conflict(it: str) -> None: ...

    await holder("secret:name")
    async with uvicorn_serves(app) as url:
        refused = await http.post(f"{url}/name")
        assert (refused.status_code, refused.headers["Retry-After"]) == (423, "1")
        assert "name" not in refused.text
        assert refused.json() == {"detail": "Another request is working on this. Try again later."}
        refused = await http.put(f"{url}/name")
        assert (refused.status_code, refused.headers["Retry-After"]) == (409, "1")
        assert (await http.post(f"{url}/other")).status_code == 200


async def test_the_refusal_is_what_one_has_chosen(
    app: FastAPI, http: httpx.AsyncClient, session: Session, holder: Any
) -> None:
    told: list[LockTimeoutError] = []

    def later(error: LockTimeoutError) -> int:
        told.append(error)
        return 7

    once: dict[str, Any] = {"blocking_timeout": 0}

    @app.post("/chosen", dependencies=[Locked("it", **once, status=429, retry_after=later, detail="Wait.")])
    @app.post("/other", dependencies=[Locked("it", **once, status=503, retry_after=3)])
    @app.post("/measured/{it}", dependencies=[Locked("{it}", **once)])
    async def handler() -> None: ...

    await holder("it")
    async with uvicorn_serves(app) as url:
        refused = await http.post(f"{url}/chosen")
        assert (refused.status_code, refused.headers["Retry-After"]) == (429, "7")
        assert refused.json() == {"detail": "Wait."}
        assert [(error.name, error.blocking_timeout) for error in told] == [("it", 0)]
        refused = await http.post(f"{url}/other")
        assert (refused.status_code, refused.headers["Retry-After"]) == (503, "3")
        # Others of its template were held before: by requests, as this one, and for longer than here.
        assert (await http.post(f"{url}/measured/that")).status_code == 200
        assert holds_of(session).median("that") is not None
        holds_of(session).add(6.5, "{it}")
        holds_of(session).add(6.5, "{it}")
        assert (await http.post(f"{url}/measured/it")).headers["Retry-After"] == "7"
        holds_of(session).add(1000, "it")
        refused = await http.post(f"{url}/measured/it")
        assert 10 <= int(refused.headers["Retry-After"]) <= 20  # its holder's ttl


async def test_503_without_redis(
    own_server: OwnServer, connect: Connect, http: httpx.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    server = await own_server()
    app = FastAPI(lifespan=session_lifespan(connect(server)))

    @app.post("/", dependencies=[Locked("it", blocking_timeout=0.3)])
    async def handler() -> None: ...

    app.get("/ready")(health(within=0.1))
    async with uvicorn_serves(app) as url:
        assert (await http.post(url)).status_code == 200
        assert (await http.get(f"{url}/ready")).status_code == 200
        server.pause()
        unready = await http.get(f"{url}/ready")
        assert (unready.status_code, unready.text) == (503, UNHEALTHY)
        begun = time.monotonic()
        refused = await http.post(url)
        assert time.monotonic() - begun < 8
        assert (refused.status_code, refused.headers["Retry-After"]) == (503, "1")
        await eventually(lambda: "a request was refused" in caplog.text)
        server.resume()
        assert (await http.post(url)).status_code == 200


async def test_503_at_once_where_redis_is_not_there(
    own_server: OwnServer, connect: Connect, http: httpx.AsyncClient
) -> None:
    server = await own_server()
    app = FastAPI(lifespan=session_lifespan(connect(server)))

    @app.post("/", dependencies=[Locked("it", blocking_timeout=0)])
    async def handler() -> None: ...

    async with uvicorn_serves(app) as url:
        assert (await http.post(url)).status_code == 200
        server.kill()
        for _ in range(3):
            begun = time.monotonic()
            assert (await http.post(url)).status_code == 503
            assert time.monotonic() - begun < 8


async def test_503_when_the_session_closes_while_it_waits(
    app: FastAPI, http: httpx.AsyncClient, session: Session, holder: Any, waiting: Any
) -> None:
    @app.post("/", dependencies=[Locked("it", blocking_timeout=None)])
    async def handler() -> None: ...

    async with uvicorn_serves(app) as url:
        await holder("it")
        request = asyncio.create_task(http.post(url))
        await waiting(1)
        await session.aclose()
        refused = await request
    assert (refused.status_code, refused.headers["Retry-After"]) == (503, "1")


# -- while the handler runs


async def test_a_lost_lease_cancels_the_handler_and_answers(
    app: FastAPI, http: httpx.AsyncClient, redis: Redis, keys: Callable[[], list[str]]
) -> None:
    ended: list[BaseException] = []

    async def run() -> None:
        await redis.delete(*keys())  # somebody has freed it by force
        try:
            await asyncio.sleep(60)
        except BaseException as error:
            ended.append(error)
            raise

    @app.post("/function", dependencies=[Locked("it", ttl=3)])
    async def function() -> None:
        await run()

    @app.post("/request", dependencies=[Depends(Locked("it", ttl=3))])
    async def request() -> None:
        await run()

    @app.post("/spoiled", dependencies=[Locked("it", ttl=3)])
    async def spoiled() -> None:
        await spoil()
        await run()

    @app.post("/ends", dependencies=[Locked("it")])
    async def ends() -> None:
        await redis.delete(*keys())

    @app.post("/ignores", dependencies=[Locked("it", on_lost="ignore")])
    async def ignores() -> str:
        await redis.delete(*keys())
        return "done"

    async with uvicorn_serves(app) as url:
        for path in ("function", "request", "spoiled"):
            answer = await http.post(f"{url}/{path}")
            assert answer.status_code == 500
            assert answer.json() == {
                "detail": "This request lost its lock; some or all of its work may have been done."
            }
            assert isinstance(ended.pop(), asyncio.CancelledError)
        assert (await http.post(f"{url}/ends")).status_code == 500
        assert (await http.post(f"{url}/ignores")).json() == "done"


async def test_a_thread_goes_on_when_the_lease_is_lost_but_the_answer_does_not_wait(
    app: FastAPI, http: httpx.AsyncClient, redis: Redis, keys: Callable[[], list[str]]
) -> None:
    begun, done = threading.Event(), threading.Event()
    told: list[object] = []

    @app.post("/")
    def handler(lease: Annotated[Lease, Locked("it", ttl=3)]) -> None:
        begun.set()
        done.wait(30)
        try:
            lease.ensure_held()
        except LockLostError as error:
            told.append(error)

    async with uvicorn_serves(app) as url:
        answering = asyncio.create_task(http.post(url))
        await eventually(begun.is_set, within=10)
        await redis.delete(*keys())
        try:
            assert (await answering).status_code == 500
            assert not told
        finally:
            done.set()
        await eventually(lambda: told, within=10)


async def test_who_waits_takes_no_thread(app: FastAPI) -> None:
    """With a lock in a `def` dependency, waiters would have all threads, and the holder none."""

    @app.get("/", dependencies=[Locked("it", blocking_timeout=30)])
    def handler() -> int:
        return threading.get_ident()

    limiter = anyio.to_thread.current_default_thread_limiter()
    threads, limiter.total_tokens = limiter.total_tokens, 2
    try:
        async with uvicorn_serves(app) as url, httpx.AsyncClient(base_url=url, timeout=60) as client:
            answers = await asyncio.gather(*(client.get("/") for _ in range(12)))
    finally:
        limiter.total_tokens = threads
    assert [answer.status_code for answer in answers] == [200] * 12


async def test_a_time_limit_around_call_next_ends_neither_the_handler_nor_its_lock(app: FastAPI) -> None:
    """Starlette runs it in a task beside the middleware, whose own wait is what is cancelled."""
    done, begun = asyncio.Event(), asyncio.Event()
    ended: list[bool] = []

    @app.get("/")
    async def handler(lease: Annotated[Lease, Locked("it")]) -> None:
        begun.set()
        await done.wait()
        lease.ensure_held()
        ended.append(True)

    async def limits(request: Request, call_next: Any) -> Any:
        try:
            async with asyncio.timeout(None) as limit:
                waiting = asyncio.ensure_future(begun.wait())
                waiting.add_done_callback(lambda _: limit.reschedule(0))
                return await call_next(request)
        except TimeoutError:
            return Response(status_code=504)

    app.add_middleware(BaseHTTPMiddleware, dispatch=limits)
    async with uvicorn_serves(app) as url, httpx.AsyncClient(timeout=30) as client:
        assert (await client.get(url)).status_code == 504
        async with Lock(session_of(app), "it").try_acquire() as refused:
            assert refused is None
        assert not ended
        done.set()
        async with Lock(session_of(app), "it", blocking_timeout=10):
            assert ended == [True]


async def test_what_the_handler_raises_is_its_own(
    app: FastAPI, http: httpx.AsyncClient, session: Session
) -> None:
    @app.post("/teapot", dependencies=[Locked("it")])
    async def teapot() -> None:
        raise HTTPException(418, "short and stout")

    @app.post("/busy", dependencies=[Locked("it")])
    async def busy() -> None:
        raise LockTimeoutError("Lock", "another", blocking_timeout=1, remaining=None)

    @app.exception_handler(LockTimeoutError)
    async def theirs(_: Request, error: LockTimeoutError) -> Any:
        return StreamingResponse(iter([f"about {error.name}"]), status_code=420)

    async with uvicorn_serves(app) as url:
        answer = await http.post(f"{url}/teapot")
        assert (answer.status_code, answer.json()) == (418, {"detail": "short and stout"})
        answer = await http.post(f"{url}/busy")
        assert (answer.status_code, answer.text) == (420, "about another")
    assert session.statistics().leases_held == 0


async def test_an_unconfirmed_release_does_not_undo_the_answer(
    own_server: OwnServer, connect: Connect, http: httpx.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    server = await own_server()
    app = FastAPI(lifespan=session_lifespan(connect(server)))

    @app.post("/", dependencies=[Locked("it", ttl=1)])
    async def handler() -> str:
        server.pause()
        return "done"

    async with uvicorn_serves(app) as url:
        answer = await http.post(url)
        server.resume()
    assert (answer.status_code, answer.json()) == (200, "done")
    assert "is not known to be released" in caplog.text


async def test_it_is_let_go_of_before_the_answer_or_behind_it(
    app: FastAPI, http: httpx.AsyncClient, session: Session
) -> None:
    async def held() -> AsyncIterator[str]:
        yield "held" if session.statistics().leases_held else "free"

    later: list[int] = []

    @app.get("/function", dependencies=[Locked("it")])
    async def function(tasks: BackgroundTasks) -> StreamingResponse:
        tasks.add_task(lambda: later.append(session.statistics().leases_held))
        return StreamingResponse(held())

    @app.get("/request", dependencies=[Depends(Locked("it"))])
    async def request() -> StreamingResponse:
        return StreamingResponse(held())

    async with uvicorn_serves(app) as url:
        assert (await http.get(f"{url}/function")).text == "free"
        await eventually(lambda: later, within=10)  # it runs in a thread, when the answer has been sent
        assert (await http.get(f"{url}/request")).text == "held"
    assert later == [0]
    assert session.statistics().leases_held == 0


async def test_one_of_several_kinds(app: FastAPI, http: httpx.AsyncClient) -> None:
    @app.get("/fair")
    async def fair(lease: Annotated[Lease, Locked("it", kind=FairLock, ttl=7)]) -> str:
        return f"{lease.kind} {lease.ttl}"

    @app.get("/semaphore")
    async def semaphore(
        one: Annotated[Lease, Locked("it", kind=lambda session, name: Semaphore(session, name, 2))],
        two: Annotated[Lease, Locked("it", kind=lambda session, name: Semaphore(session, name, 2))],
    ) -> str:
        return f"{one.kind} {one is not two}"

    @app.get("/reader")
    async def reader(lease: Annotated[Lease, Locked("it", kind=lambda *a: RWLock(*a).reader)]) -> str:
        return lease.kind

    @app.get("/reentrant")
    async def reentrant(
        lease: Annotated[Lease, Locked("it", kind=ReentrantLock)],
        session: Annotated[Session, Depends(current_session)],
    ) -> str:
        async with ReentrantLock(session, "it", blocking_timeout=0) as again:  # acquired in the same task
            return f"{again.kind} {again.fencing_token == lease.fencing_token}"

    shared = Locked("it")

    async def inner(lease: Annotated[Lease, shared]) -> Lease:
        return lease

    @app.get("/shared")
    async def twice(lease: Annotated[Lease, shared], same: Annotated[Lease, Depends(inner)]) -> str:
        return f"{lease is same}"

    @app.get("/synchronous")
    def synchronous(lease: Annotated[Lease, Locked("it")]) -> str:
        lease.ensure_held()
        return lease.kind

    async with uvicorn_serves(app) as url:
        told = [
            (await http.get(f"{url}/{path}")).json()
            for path in ("fair", "semaphore", "reader", "reentrant", "shared", "synchronous")
        ]
    assert told == ["fairlock 7.0", "semaphore True", "rwlock.reader", "reentrantlock True", "True", "lock"]


# -- a client that hangs up


@pytest.mark.parametrize(
    ("request_line", "body", "middleware"),
    [
        ("GET /bare", None, False),
        ("POST /bare", b"", False),
        ("POST /json", b'{"a":1}', False),
        ("POST /json", b'{"a":1}', True),
    ],
)
async def test_who_hangs_up_leaves_the_queue(
    app: FastAPI,
    holder: Any,
    waiting: Any,
    caplog: pytest.LogCaptureFixture,
    request_line: str,
    body: bytes | None,
    middleware: bool,
) -> None:
    caplog.set_level("INFO", "aiolocks.requests")
    ran: list[object] = []
    answers: list[int] = []

    @app.api_route("/bare", methods=["GET", "POST"], dependencies=[Locked("it", blocking_timeout=None)])
    async def bare() -> None:
        ran.append(1)

    @app.post("/json", dependencies=[Locked("it", blocking_timeout=None)])
    async def json(about: dict[str, int]) -> None:
        ran.append(about)

    if middleware:

        async def looks(request: Request, call_next: Any) -> Any:
            answer = await call_next(request)
            answers.append(answer.status_code)
            return answer

        app.add_middleware(BaseHTTPMiddleware, dispatch=looks)

    async with uvicorn_serves(app) as url:
        done = await holder("it")
        async with (
            HalfClient(url, request_line, body=body) as staying,
            HalfClient(url, request_line, body=body) as gone,
        ):
            await waiting(2)
            gone.hang_up()
            await waiting(1)
            assert not ran
            done.set()
            assert await staying.status() == 200
        if middleware:
            await eventually(lambda: len(answers) == 2)
            assert sorted(answers) == [200, 499]
        # uvicorn writes no line for such a request
        told = f"{request_line} ended with 499: its client hung up while it waited for 'it'"
        await eventually(lambda: caplog.text.count(told) == 1)
    assert len(ran) == 1


async def test_nothing_of_the_body_is_lost_while_it_waits(
    app: FastAPI, holder: Any, waiting: Any, http: httpx.AsyncClient
) -> None:
    async def body_first(request: Request) -> None:
        await request.body()

    @app.post("/own", dependencies=[Locked("it", blocking_timeout=None)])
    async def own(request: Request) -> int:
        return len(b"".join([chunk async for chunk in request.stream()]))

    @app.post("/first", dependencies=[Depends(body_first), Locked("it", blocking_timeout=None)])
    async def first(request: Request) -> int:
        return len(await request.body())

    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(10):
            yield b"x" * 50_000

    async with uvicorn_serves(app) as url:
        done = await holder("it")
        requests = [
            http.post(f"{url}/own", content=b"x" * 500_000),
            http.post(f"{url}/own", content=chunks()),
            http.post(f"{url}/own"),
            http.post(f"{url}/first", content=chunks()),
        ]
        answering = [asyncio.create_task(request) for request in requests]
        await waiting(4)
        done.set()
        assert [(await answer).json() for answer in answering] == [500_000, 500_000, 0, 500_000]


@pytest.mark.parametrize(
    ("version", "method", "headers", "watched"),
    [
        ("1.1", "POST", {}, True),
        ("1.1", "POST", {"content-length": "0"}, True),
        ("1.1", "POST", {"content-length": "1"}, False),
        ("1.1", "POST", {"transfer-encoding": "chunked"}, False),
        ("2", "POST", {}, False),  # need not announce its body
        ("2", "POST", {"content-length": "0"}, True),
        ("2", "GET", {}, True),
    ],
)
async def test_only_a_body_that_there_is_not_is_read(
    session: Session,
    caplog: pytest.LogCaptureFixture,
    version: str,
    method: str,
    headers: dict[str, str],
    watched: bool,
) -> None:
    caplog.set_level("INFO", "aiolocks.requests")

    async def receive() -> dict[str, str]:
        return {"type": "http.disconnect"}

    request = _request(receive, http_version=version, method=method, headers=headers)
    if watched:
        with pytest.raises(HTTPException) as refused:
            await anext(Locked("it").hold(connection=request, session=session))
        assert refused.value.status_code == 499
        await eventually(lambda: "its client hung up while it waited for 'it'" in caplog.text)
        assert session.statistics().acquisitions == 0
    else:
        async for lease in Locked("it").hold(connection=request, session=session):
            lease.ensure_held()


async def test_a_body_read_first_lets_it_be_watched(app: FastAPI, holder: Any, waiting: Any) -> None:
    async def body_first(request: Request) -> None:
        await request.body()

    @app.post("/", dependencies=[Depends(body_first), Locked("it", blocking_timeout=None)])
    async def handler() -> None: ...

    async with uvicorn_serves(app) as url:
        await holder("it")
        async with HalfClient(url, "POST /", body=b"12345", sent=3) as client:
            await asyncio.sleep(0.05)
            client.send(b"45")
            await waiting(1)
            client.hang_up()
            await waiting(0)


@pytest.mark.leaves_keys  # those of a limit
async def test_a_middleware_that_gives_the_body_again_and_again_stops_nothing(
    app: FastAPI, http: httpx.AsyncClient, holder: Any, waiting: Any
) -> None:
    """The client cannot be watched then."""
    app.add_middleware(ReadsFirst)

    @app.get("/bare", dependencies=[Locked("it", blocking_timeout=10)])
    async def bare() -> int:
        return 1

    @app.post("/json", dependencies=[RateLimited("it", 1, per=0.1, blocking_timeout=10), Locked("it")])
    async def json(about: dict[str, int]) -> dict[str, int]:
        return about

    async with asyncio.timeout(20), uvicorn_serves(app) as url:
        done = await holder("it")
        asked = asyncio.create_task(http.get(f"{url}/bare"))
        await waiting(1)
        done.set()
        assert (await asked).json() == 1
        for number in range(2):
            assert (await http.post(f"{url}/json", json={"a": number})).json() == {"a": number}


# -- the session


async def test_the_lifespan_is_around_ones_own(server: Any) -> None:
    seen: list[object] = []

    @asynccontextmanager
    async def own(app: FastAPI) -> AsyncIterator[dict[str, str]]:
        seen.append(repr(session_of(app)))
        yield {"mine": "yes"}
        async with Lock(session_of(app), "last"):
            seen.append("still open")

    app = FastAPI(lifespan=session_lifespan(server.url, lifespan=own, prefix="shop"))
    async with app.router.lifespan_context(app) as state:
        assert state == {"mine": "yes"}
    assert seen == ["<Session prefix='shop' held=0 waiting=0>", "still open"]
    assert repr(session_of(app)) == "<Session prefix='shop' closed>"


async def test_a_client_is_closed_by_who_made_it(server: Any) -> None:
    made: list[Redis] = []

    def make() -> Redis:
        made.append(server.client())
        return made[-1]

    given = server.client()
    async with FastAPI(lifespan=session_lifespan(given)).router.lifespan_context(FastAPI()):
        pass
    assert await given.ping()
    await given.aclose()
    app = FastAPI(lifespan=session_lifespan(make))
    async with app.router.lifespan_context(app):
        assert await made[0].ping()
    assert made[0].connection_pool._available_connections == [] or not any(
        connection.is_connected for connection in made[0].connection_pool._available_connections
    )


async def test_a_session_has_its_own_options(session: Session) -> None:
    app = FastAPI(lifespan=session_lifespan(session, prefix="shop"))
    with pytest.raises(TypeError, match="prefix can not be given"):
        async with app.router.lifespan_context(app):
            pytest.fail("it started")


async def test_a_wrong_url_is_not_shown() -> None:
    app = FastAPI(lifespan=session_lifespan("http://user:hunter2@host"))
    with pytest.raises(ValueError, match="not a URL of a Redis server") as wrong:
        async with app.router.lifespan_context(app):
            pytest.fail("it started")
    assert "hunter2" not in str(wrong.value)


@pytest.mark.parametrize(
    "how", ["below", "below, twice", "behind a middleware", "in a middleware", "by its host"]
)
async def test_mounted_applications_have_it_too(app: FastAPI, http: httpx.AsyncClient, how: str) -> None:
    mounted = FastAPI()

    @mounted.get("/{it}")
    async def handler(it: int, lease: Annotated[Lease, Locked("it:{it}")]) -> str:
        return lease.name

    route: BaseRoute
    match how:
        case "below":
            route = Mount("/mounted", mounted)
        case "below, twice":
            route = Mount("/mounted", routes=[Mount("/again", mounted)])
        case "behind a middleware":
            route = Mount("/mounted", mounted, middleware=[Middleware(CORSMiddleware)])
        case "in a middleware":
            route = Mount("/mounted", CORSMiddleware(mounted))
        case _:
            route = Host("127.0.0.1", Mount("/mounted", mounted))
    app.router.routes.append(route)
    path = "/mounted/again/7" if how == "below, twice" else "/mounted/7"
    async with uvicorn_serves(app) as url:
        assert (await http.get(url + path)).json() == "it:7"


async def test_without_a_session_it_says_what_to_do() -> None:
    app = FastAPI()

    @app.get("/", dependencies=[Locked("it")])
    async def handler() -> None: ...

    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
        with pytest.raises(RuntimeError, match="has no aiolocks session: make it with"):
            await client.get("/")
    with pytest.raises(RuntimeError, match="has no aiolocks session: make it with"):
        session_of(app)


async def test_a_mounted_application_has_the_session_too(app: FastAPI, session: Session) -> None:
    mounted = FastAPI()
    app.mount("/mounted", mounted)
    async with app.router.lifespan_context(app):
        assert session_of(app) is session_of(mounted) is session


async def test_a_websocket_is_not_a_request(session: Session) -> None:
    async def nothing(*_: object) -> Any: ...

    websocket = WebSocket({"type": "websocket"}, nothing, nothing)
    with pytest.raises(TypeError, match="serves HTTP routes"):
        await anext(Locked("it")(connection=websocket, session=session))


# -- arguments


@pytest.mark.parametrize("locked", [Locked("it"), Locked("order:{order_id}", ttl=10), Locked(lambda: "it")])
def test_it_is_no_decorator(locked: Locked) -> None:
    async def handler() -> None: ...

    with pytest.raises(TypeError, match=r"^Locked is a dependency of FastAPI .* A Lock decorates coroutine"):
        locked(handler)


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        ({"name": 7}, TypeError, "name must be a str or a function, not int"),
        ({"status": 500}, ValueError, r"status must be 409 \(Conflict\), .* or 503 .* not 500"),
        ({"status": 423.0}, ValueError, r"status must be"),
        ({"retry_after": "5"}, TypeError, "retry_after must be a number of seconds"),
        ({"retry_after": -1}, ValueError, "retry_after must be a number of seconds"),
        ({"detail": {"code": 7}}, TypeError, "detail must be a str, not dict"),
        ({"blocking_timeout": -1}, ValueError, "blocking_timeout"),
        ({"ttl": 0}, ValueError, "ttl"),
        ({"timeout": 3}, TypeError, "Locked has no argument 'timeout'; did you mean ttl="),
        ({"nonsense": 3}, TypeError, "Locked has no argument 'nonsense'"),
        ({"kind": "fair"}, TypeError, "kind must be a class of locks"),
        ({"kind": RWLock}, TypeError, r"RWLock\(session, name\)\.writer, not RWLock$"),
        ({"kind": Semaphore}, TypeError, "a required argument: 'value'; write a function, as in kind="),
        ({"kind": lambda name: name}, TypeError, "called with a session and a name: too many positional"),
        ({"kind": lambda *_: None, "ttl": 3}, TypeError, "a session and a name, ttl=: .* argument 'ttl'"),
    ],
)
def test_arguments_are_checked_when_the_route_is_made(
    arguments: dict[str, Any], error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        Locked(**{"name": "it", **arguments})


async def test_a_kind_must_make_a_lock(app: FastAPI, session: Session) -> None:
    with pytest.raises(TypeError, match="kind must be a class of locks"):
        Locked("it", kind=Lock(session, "it"))
    with pytest.raises(TypeError, match="kind must make something that can be acquired"):
        of_no_mode = Locked("it", kind=lambda session, name: cast("Any", RWLock(session, name)))
        await anext(of_no_mode.hold(connection=_request(headers={"content-length": "1"}), session=session))


def _request(receive: Any = None, *, headers: dict[str, str] | None = None, **scope: Any) -> Request:
    async def handler() -> None: ...

    raw = [(name.encode(), value.encode()) for name, value in (headers or {}).items()]
    return Request({"type": "http", "headers": raw, "path_params": {}, "endpoint": handler, **scope}, receive)


# -- kept between requests


async def test_a_request_finds_the_lease_that_the_last_one_has_left(
    app: FastAPI, http: httpx.AsyncClient, session: Session
) -> None:
    @app.get("/kept", dependencies=[Locked("kept", cache=5)])
    async def handler() -> str:
        return "x"

    async with uvicorn_serves(app) as url:
        for _ in range(5):
            assert (await http.get(f"{url}/kept")).status_code == 200
        assert session.statistics().cache_hits == 3
        assert session.statistics().cached == 1


def test_only_a_lock_is_kept_between_requests() -> None:
    with pytest.raises(TypeError, match="cache"):
        Locked("kept", cache=5, kind=FairLock)


async def test_a_request_need_not_wait_for_the_release(
    own_server: OwnServer, connect: Connect, http: httpx.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    """`confirm=False`: while the server is silent, a client has the whole answer, also a streamed one."""
    server = await own_server()
    client = connect(server)
    app = FastAPI(lifespan=session_lifespan(client))
    paused = 0

    @app.post("/", dependencies=[Locked("it", ttl=20, confirm=False)])
    async def handler() -> str:
        nonlocal paused
        server.pause()
        paused += 1
        return "done"

    @app.post("/stream", dependencies=[Locked("it", ttl=20, confirm=False)])
    async def stream() -> StreamingResponse:
        async def items() -> AsyncIterator[str]:
            nonlocal paused
            yield "some"
            server.pause()
            paused += 1

        return StreamingResponse(items())

    async with uvicorn_serves(app) as url:
        for number, (path, told) in enumerate((("/", '"done"'), ("/stream", "some"))):
            answer = await http.post(f"{url}{path}")
            assert (answer.status_code, answer.text, paused) == (200, told, number + 1)
            server.resume()
    async with Session(client) as session:
        async with Lock(session, "it").acquire(blocking_timeout=10):
            pass
    assert "is not known to be released" not in caplog.text
