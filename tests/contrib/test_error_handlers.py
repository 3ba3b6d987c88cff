"""`install_error_handlers` and `error_middleware`: errors in the body of a handler, under real servers."""

# Annotations are objects here: FastAPI looks at them.

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Annotated, Any

import httpx
import pytest
from aiohttp import web
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, StreamingResponse
from redis.asyncio import Redis
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route
from starlette.websockets import WebSocket

from aiolocks import (
    BackendError,
    Combiner,
    ConfigurationError,
    DeadlockError,
    DuplicateJobError,
    FencedRegister,
    FingerprintError,
    Lease,
    Lock,
    LockLostError,
    LockNotOwnedError,
    LockTimeoutError,
    RemoteCallError,
    ResultNotKeptError,
    Session,
    SessionClosedError,
    SingleFlight,
    StaleFenceError,
    UniqueJob,
)
from aiolocks.contrib.aiohttp import SESSION, error_middleware, locked, session_ctx
from aiolocks.contrib.fastapi import Limited, Locked, install_error_handlers, session_lifespan, session_of
from aiolocks.lock import together
from tests.conftest import Connect, OwnServer
from tests.contrib.serving import aiohttp_serves, uvicorn_serves

Body = Callable[[Session], Awaitable[Any]]
Serve = Callable[..., Any]


def of_fastapi(session: Session, body: Body, **options: Any) -> Any:
    app = FastAPI(lifespan=session_lifespan(session))
    install_error_handlers(app, **options)

    @app.get("/things/{thing}")
    async def handler(thing: int) -> str:
        await body(session_of(app))
        return "done"

    return uvicorn_serves(app)


def of_starlette(session: Session, body: Body, **options: Any) -> Any:
    async def handler(request: Any) -> Any:
        await body(session_of(request.app))
        return PlainTextResponse("done")

    app = Starlette(routes=[Route("/things/{thing}", handler)], lifespan=session_lifespan(session))
    install_error_handlers(app, **options)
    return uvicorn_serves(app)


def of_aiohttp(session: Session, body: Body, **options: Any) -> Any:
    async def handler(request: web.Request) -> web.Response:
        await body(request.config_dict[SESSION])
        return web.Response(text="done")

    app = web.Application(middlewares=[error_middleware(**options) if options else error_middleware])
    app.cleanup_ctx.append(session_ctx(session))
    app.router.add_get("/things/{thing}", handler)
    return aiohttp_serves(app)


@pytest.fixture(params=[of_fastapi, of_starlette, of_aiohttp], ids=["fastapi", "starlette", "aiohttp"])
def serve(request: pytest.FixtureRequest) -> Serve:
    return request.param


async def raising(serve: Serve, session: Session, http: httpx.AsyncClient, error: BaseException) -> Any:
    async def body(_: Session) -> None:
        raise error

    async with serve(session, body) as url:
        return await http.get(f"{url}/things/7")


# -- real errors


async def waits_for_a_lock(session: Session) -> None:
    async with Lock(session, "secret-name", metadata={"who": "me"}):
        # In a task of its own, as that of another request.
        await asyncio.create_task(Lock(session, "secret-name").acquire(blocking_timeout=0.05))


async def waits_in_a_group(session: Session) -> None:
    async with Lock(session, "secret-name"), asyncio.TaskGroup() as group:
        for _ in range(2):
            group.create_task(Lock(session, "secret-name").acquire(blocking_timeout=0.05))


async def does_it_twice(session: Session) -> None:
    job = UniqueJob(session, "secret-name")
    async with job.run(), job.run(waiting=0):
        pass


async def writes_late(session: Session) -> None:
    register = FencedRegister(session, "secret-name")
    await register.write(b"new", fencing_token=2)
    await register.write(b"old", fencing_token=1)


async def asks_for_something_else(session: Session) -> None:
    flight = SingleFlight(session, keep=60)

    async def work() -> int:
        return 1

    await flight.do("secret-name", work, fingerprint="a")
    await flight.do("secret-name", work, fingerprint="b")


async def uses_a_closed_session(session: Session) -> None:
    await session.aclose()
    await Lock(session, "secret-name").acquire()


async def loses_its_lock(session: Session) -> None:
    async with Lock(session, "secret-name"):
        await session.force_release("secret-name")
        await asyncio.sleep(20)


@pytest.mark.leaves_keys("*:{secret-name}")
@pytest.mark.parametrize(
    ("body", "status", "again"),
    [
        (waits_for_a_lock, 423, "1"),
        (waits_in_a_group, 423, "1"),
        (does_it_twice, 409, None),
        (writes_late, 409, None),
        (asks_for_something_else, 422, None),
        (uses_a_closed_session, 503, "1"),
        (loses_its_lock, 503, None),
    ],
)
async def test_the_answer_to_an_error(
    serve: Serve,
    session: Session,
    http: httpx.AsyncClient,
    body: Body,
    status: int,
    again: str | None,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "aiolocks.requests")
    async with serve(session, body) as url:
        answer = await http.get(f"{url}/things/7")
    assert (answer.status_code, answer.headers.get("Retry-After")) == (status, again)
    assert list(answer.json()) == ["detail"]
    assert "secret-name" not in answer.text
    together.flush()
    (told,) = [one for one in caplog.records if one.name == "aiolocks.requests"]
    assert "GET /things/" in told.getMessage()
    assert body is uses_a_closed_session or "secret-name" in told.getMessage()
    assert told.levelno == (logging.WARNING if status == 503 else logging.INFO)


async def test_a_server_that_is_away(
    serve: Serve,
    own_server: OwnServer,
    connect: Connect,
    http: httpx.AsyncClient,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG, "aiolocks.requests")
    own = await own_server()

    async def body(session: Session) -> None:
        async with Lock(session, "it").try_acquire():
            pass

    async with Session(connect(own)) as session, serve(session, body) as url:
        assert (await http.get(f"{url}/things/7")).status_code == 200
        own.kill()
        for _ in range(4):
            answer = await http.get(f"{url}/things/8")
            assert (answer.status_code, answer.headers["Retry-After"]) == (503, "1")
    told = [one.levelno for one in caplog.records if one.name == "aiolocks.requests"]
    assert len(told) == 4
    assert told[-1] == logging.DEBUG  # the outage itself is told once


# -- which errors


@pytest.mark.thin
@pytest.mark.parametrize(
    "error",
    [
        ConfigurationError("x"),
        LockNotOwnedError("Lock", "n", "x"),
        DeadlockError("Lock", "n", held="Lock 'n'"),
        RemoteCallError("x", "y"),
        ResultNotKeptError("k", "x"),
        TimeoutError("of something else"),
        ExceptionGroup("", [LockLostError("Lock", "n", "x"), ValueError("a bug")]),
        ExceptionGroup("", [ExceptionGroup("", [ConfigurationError("x")])]),
    ],
    ids=repr,
)
async def test_bugs_stay_500(
    serve: Serve, session: Session, http: httpx.AsyncClient, error: Exception
) -> None:
    answer = await raising(serve, session, http, error)
    # As without the handlers: aiohttp answers 504 to every TimeoutError.
    assert answer.status_code == (504 if serve is of_aiohttp and isinstance(error, TimeoutError) else 500)
    assert "detail" not in answer.text


async def test_a_bug_reaches_the_server_as_it_is() -> None:
    """Which writes its traceback into the log."""
    app, error = FastAPI(), ConfigurationError("x")
    install_error_handlers(app)

    @app.get("/")
    async def handler() -> None:
        raise ExceptionGroup("", [TIMEOUT, error])

    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
        with pytest.raises(ExceptionGroup) as caught:
            await client.get("/")
    assert caught.value.exceptions == (TIMEOUT, error)


async def test_a_bug_reaches_the_server_of_aiohttp_as_it_is(
    session: Session, http: httpx.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    error = ConfigurationError("x")
    await raising(of_aiohttp, session, http, error)
    (told,) = [one for one in caplog.records if one.name == "aiohttp.server"]
    assert told.exc_info
    assert told.exc_info[1] is error


TIMEOUT = LockTimeoutError("Lock", "n", blocking_timeout=1, remaining=None)
LOST = LockLostError("Lock", "n", "x")


@pytest.mark.parametrize(
    ("errors", "status", "again"),
    [
        ([TIMEOUT, DuplicateJobError("k", "x")], 409, None),
        ([StaleFenceError("k", fencing_token=1, seen=2), FingerprintError("k")], 422, None),
        ([FingerprintError("k"), ExceptionGroup("", [BackendError("x"), TIMEOUT])], 503, "1"),
        ([SessionClosedError("x"), TIMEOUT], 503, "1"),
        ([BackendError("x"), LOST, TIMEOUT], 503, None),
    ],
)
async def test_of_a_group_the_worst_counts(
    serve: Serve,
    session: Session,
    http: httpx.AsyncClient,
    errors: list[Exception],
    status: int,
    again: str | None,
) -> None:
    answer = await raising(serve, session, http, ExceptionGroup("", errors))
    assert (answer.status_code, answer.headers.get("Retry-After")) == (status, again)


async def test_the_status_is_the_users_choice(
    serve: Serve, session: Session, http: httpx.AsyncClient
) -> None:
    async with serve(session, waits_for_a_lock, status=409) as url:
        assert (await http.get(f"{url}/things/7")).status_code == 409
    with pytest.raises(ValueError, match="status must be 409"):
        serve(session, waits_for_a_lock, status=404)


async def test_a_lock_that_is_lost_under_a_handler(
    session: Session, http: httpx.AsyncClient, redis: Redis, keys: Callable[[], list[str]]
) -> None:
    """What is 500 without the handlers."""

    async def loses() -> None:
        await redis.delete(*keys())
        await asyncio.sleep(20)

    async def of_one() -> dict[str, int]:
        return {"all": 1}

    async def answered(app: FastAPI, *, handled: bool) -> list[tuple[int, str | None]]:
        if handled:
            install_error_handlers(app)

        @app.get("/locked", dependencies=[Locked("it", ttl=2)])
        async def one() -> None:
            await loses()

        @app.get("/limited", dependencies=[Limited("them", of_one, ttl=2)])
        async def two() -> None:
            await loses()

        @app.get("/ends", dependencies=[Locked("it", ttl=2)])
        async def three() -> None:
            await redis.delete(*keys())

        async with uvicorn_serves(app) as url:
            answers = [await http.get(f"{url}/{path}") for path in ("locked", "limited", "ends")]
        assert all("some or all of its work" in answer.json()["detail"] for answer in answers)
        return [(answer.status_code, answer.headers.get("Retry-After")) for answer in answers]

    assert await answered(FastAPI(lifespan=session_lifespan(session)), handled=True) == [(503, None)] * 3
    assert await answered(FastAPI(lifespan=session_lifespan(session)), handled=False) == [(500, None)] * 3


async def test_a_lock_that_is_lost_under_a_handler_of_aiohttp(
    session: Session, http: httpx.AsyncClient, redis: Redis, keys: Callable[[], list[str]]
) -> None:
    @locked("it", ttl=2)
    async def loses(request: web.Request) -> web.Response:
        await redis.delete(*keys())
        await asyncio.sleep(20)
        return web.Response()

    for middlewares, status in (([error_middleware], 503), ([], 500)):
        app = web.Application(middlewares=middlewares)
        app.cleanup_ctx.append(session_ctx(session))
        app.router.add_get("/", loses)
        async with aiohttp_serves(app) as url:
            answer = await http.get(url)
            assert (answer.status_code, answer.headers.get("Retry-After")) == (status, None)


async def test_the_grace_of_a_lock_ends_the_handler_before_its_lease(
    own_server: OwnServer, connect: Connect, http: httpx.AsyncClient
) -> None:
    own, left = await own_server(), list[float]()

    async def waits(lease: Lease) -> None:
        own.pause()
        try:
            await asyncio.sleep(20)
        finally:
            left.append(lease.remaining())

    async with Session(connect(own)) as session:
        app = FastAPI(lifespan=session_lifespan(session))

        @app.get("/")
        async def of_app(lease: Annotated[Lease, Locked("it", ttl=2, grace=1)]) -> None:
            await waits(lease)

        async with uvicorn_serves(app) as url:
            answering = asyncio.create_task(http.get(url))
            while not left:
                await asyncio.sleep(0.02)
            own.resume()
            assert (await answering).status_code == 500
    assert left[0] > 0.5


@pytest.mark.parametrize("of", [Locked, locked])
def test_a_grace_is_checked(of: Any) -> None:
    assert of("it", ttl=20, grace=10)
    with pytest.raises(ValueError, match="grace must be at most half of ttl"):
        of("it", ttl=20, grace=11)


# -- once the answer has begun


async def test_nothing_is_added_to_an_answer_that_has_begun(session: Session) -> None:
    app = FastAPI(lifespan=session_lifespan(session))
    install_error_handlers(app)

    @app.get("/")
    async def handler() -> StreamingResponse:
        async def stream() -> AsyncIterator[bytes]:
            yield b"some of it"
            raise TIMEOUT

        return StreamingResponse(stream())

    async with uvicorn_serves(app) as url:
        await ends_early(url)


async def test_nothing_is_added_to_an_answer_of_aiohttp_that_has_begun() -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse()
        await answer.prepare(request)
        await answer.write(b"some of it")
        raise TIMEOUT

    app = web.Application(middlewares=[error_middleware])
    app.router.add_get("/", handler)
    async with aiohttp_serves(app) as url:
        await ends_early(url)


async def ends_early(url: str) -> None:
    host, _, port = url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"GET / HTTP/1.1\r\nHost: test\r\n\r\n")
    got = await asyncio.wait_for(reader.read(), 10)  # up to the end of the connection
    writer.close()
    await writer.wait_closed()
    assert got.startswith(b"HTTP/1.1 200")
    assert b"some of it" in got
    assert got.count(b"HTTP/1.1") == 1
    assert b"detail" not in got
    assert not got.endswith(b"0\r\n\r\n")  # which would be its end


# -- beside the user's own handlers


@pytest.mark.parametrize("before", [True, False])
async def test_a_handler_of_the_user_counts(session: Session, http: httpx.AsyncClient, before: bool) -> None:
    app = FastAPI(lifespan=session_lifespan(session))

    async def own(request: Request, error: Exception) -> JSONResponse:
        return JSONResponse({"mine": str(type(error).__name__)}, 418)

    if not before:
        install_error_handlers(app)
    app.add_exception_handler(LockTimeoutError, own)
    if before:
        install_error_handlers(app)

    @app.get("/")
    async def handler() -> None:
        raise TIMEOUT

    async with uvicorn_serves(app) as url:
        answer = await http.get(url)
    assert (answer.status_code, answer.json()) == (418, {"mine": "LockTimeoutError"})


async def test_a_mounted_application_has_handlers_of_its_own(
    session: Session, http: httpx.AsyncClient
) -> None:
    async def fails(_: Any) -> Any:
        raise TIMEOUT

    with_it, without = (Starlette(routes=[Route("/", fails)]) for _ in range(2))
    app = Starlette(
        routes=[Mount("/with", with_it), Mount("/without", without)], lifespan=session_lifespan(session)
    )
    install_error_handlers(with_it)
    async with uvicorn_serves(app) as url:
        assert (await http.get(f"{url}/with/")).status_code == 423
        assert (await http.get(f"{url}/without/")).status_code == 500


async def test_a_websocket_ends_as_before() -> None:
    app = FastAPI()
    install_error_handlers(app)

    @app.websocket("/")
    async def handler(socket: WebSocket) -> None:
        raise TIMEOUT

    async def receive() -> dict[str, Any]:
        return {"type": "websocket.connect"}

    async def send(message: Any) -> None: ...

    scope = {"type": "websocket", "path": "/", "query_string": b"", "headers": [], "subprotocols": []}
    with pytest.raises(LockTimeoutError):
        await app(scope, receive, send)


async def test_it_comes_too_late(session: Session, http: httpx.AsyncClient) -> None:
    app = FastAPI(lifespan=session_lifespan(session))
    async with uvicorn_serves(app):
        with pytest.raises(RuntimeError, match="before the application serves"):
            install_error_handlers(app)


def test_it_wants_an_application() -> None:
    given: Any = web.Application()
    with pytest.raises(TypeError, match="application of FastAPI or Starlette"):
        install_error_handlers(given)


@pytest.mark.leaves_keys("aiolocks:combiner*")
async def test_a_full_combiner_is_one_line_for_all_requests(
    redis: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, logger="aiolocks")
    async with Session(redis) as session:
        await Combiner(session, "full", most_waiting=1).leave(0)

        async def body(session: Session) -> None:
            await Combiner(session, "full", most_waiting=1).leave(1)

        async with of_fastapi(session, body) as url, httpx.AsyncClient() as client:
            answers = await asyncio.gather(*(client.get(f"{url}/things/{n}") for n in range(50)))
            assert {answer.status_code for answer in answers} == {503}
            await asyncio.sleep(0.6)
    lines = [one for one in caplog.records if one.name == "aiolocks.requests"]
    (line,) = [one.getMessage() for one in lines if one.levelno >= logging.WARNING][:1]
    assert sum(one.levelno >= logging.WARNING for one in lines) <= 2
    assert sum(one.levelno == logging.DEBUG for one in lines) == 50
    assert line.startswith("50 requests were answered 503: Combiner 'full' is full: 1 items wait"), line
    assert line.endswith(": GET /things/{thing}")


async def test_the_last_call_counts_and_a_handler_of_the_application_goes_first() -> None:
    async def own(request: Any, error: Exception) -> PlainTextResponse:
        return PlainTextResponse("own", 418)

    async def times_out(request: Any) -> Any:
        raise TIMEOUT

    async def is_away(request: Any) -> Any:
        raise BackendError("Redis is away")

    app = Starlette(routes=[Route("/times-out", times_out), Route("/is-away", is_away)])
    app.add_exception_handler(BackendError, own)
    install_error_handlers(app, status=409)
    install_error_handlers(app, status=429)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://shop") as http:
        assert (await http.get("/times-out")).status_code == 429
        assert (await http.get("/is-away")).text == "own"
