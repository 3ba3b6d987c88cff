"""Handlers that are generators, and answers that are made while they are sent: it is held to the end."""

from __future__ import annotations

import asyncio
import functools
import inspect
import io
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Generator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Annotated, Any

import anyio
import fastapi.routing
import httpx
import pytest
from fastapi import APIRouter, BackgroundTasks, Depends, FastAPI
from fastapi.responses import StreamingResponse
from redis import Redis as BlockingRedis
from redis.asyncio import Redis
from starlette.requests import ClientDisconnect

from aiolocks import Lease, Lock, LockLostError, Session, current_lease
from aiolocks.contrib._holds import holds_of
from aiolocks.contrib.fastapi import (
    Limited,
    Locked,
    RateLimited,
    current_session,
    session_lifespan,
    session_of,
)
from aiolocks.contrib.idempotency.fastapi import idempotent_route
from tests.contrib.asgi import scope_of
from tests.contrib.serving import HalfClient, uvicorn_serves
from tests.support.servers import Server
from tests.support.waiting import eventually

sse = pytest.importorskip("fastapi.sse", reason="this FastAPI streams no generators")

STREAMS = {
    "lines": {},
    "events": {"response_class": sse.EventSourceResponse},
    "raw": {"response_class": StreamingResponse},
}
"""How FastAPI sends the items of a handler, by the options of its route."""

each_stream = pytest.mark.parametrize("stream", STREAMS)
each_kind = pytest.mark.parametrize("sync", [False, True], ids=["async", "def"])


async def all_keys() -> dict[str, int]:
    return {"all": 1}


HOLDS = {"Locked": Locked("a", blocking_timeout=10), "Limited": Limited("a", all_keys, blocking_timeout=10)}


@pytest.fixture
def app(redis: Redis, server: Server) -> FastAPI:
    app = FastAPI(lifespan=session_lifespan(redis))
    app.state.url = server.url
    return app


@asynccontextmanager
async def served(app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    async with uvicorn_serves(app) as url, httpx.AsyncClient(base_url=url, timeout=30) as client:
        yield client


class Handler:
    """A handler of some items, and what was seen of it.

    Attributes:
        held: What the lock was at the end of each run, and while the handler cleaned up.
        most: How many ran at the same time.
    """

    def __init__(self, app: FastAPI, *, big: bool = False, raises: bool = False) -> None:
        self._app = app
        self._raises = raises
        self._item = "x" * (200_000 if big else 1)
        self._items = 1000 if big else 3
        self.running = self.most = self.sent = self.begun = 0
        self.held: list[bool] = []

    def _begins(self) -> None:
        self.begun += 1
        self.running += 1
        self.most = max(self.most, self.running)

    def _ends(self) -> None:
        with BlockingRedis.from_url(self._app.state.url) as redis:
            self.held.append(bool(redis.exists("aiolocks:lock:{a}", "aiolocks:limits.leases:{a}")))
        self.running -= 1

    async def streams(self) -> AsyncIterable[str]:
        self._begins()
        try:
            for _ in range(self._items):
                yield self._item
                self.sent += 1
                await asyncio.sleep(0.002)
            if self._raises:
                raise ZeroDivisionError
        finally:
            with anyio.CancelScope(shield=True):
                await asyncio.sleep(0.005)
            self._ends()

    def yields(self) -> Iterable[str]:
        self._begins()
        try:
            for _ in range(self._items):
                yield self._item
                self.sent += 1
                time.sleep(0.002)
            if self._raises:
                raise ZeroDivisionError
        finally:
            time.sleep(0.005)
            self._ends()

    def endpoint(self, *, sync: bool) -> Callable[..., Any]:
        return self.yields if sync else self.streams


@pytest.mark.parametrize("body", ["sleeps", "waits in Redis"])
async def test_a_lock_inside_a_stream_whose_client_hangs_up(app: FastAPI, redis: Redis, body: str) -> None:
    """Starlette cancels each wait in it anew, also that of a release."""
    ended: list[str] = []

    async def streams() -> AsyncIterator[bytes]:
        try:
            async with Lock(session_of(app), "report", ttl=60):
                yield b"x"
                await (asyncio.sleep(60) if body == "sleeps" else redis.blpop(["events"], timeout=60))
        except asyncio.CancelledError as error:
            ended.append(type(error).__name__)
            raise

    @app.get("/")
    async def report() -> StreamingResponse:
        return StreamingResponse(streams())

    async with served(app) as client:
        async with HalfClient(str(client.base_url).rstrip("/"), "GET /") as leaves:
            await leaves.reader.readuntil(b"x\r\n")
        await eventually(lambda: ended == ["CancelledError"], within=10)
        async with Lock(session_of(app), "report", blocking_timeout=10):
            pass


@each_stream
@each_kind
@pytest.mark.parametrize("hold", HOLDS)
@pytest.mark.thin(2)
async def test_one_at_a_time_runs_until_its_last_line(
    app: FastAPI, stream: str, sync: bool, hold: str
) -> None:
    handler = Handler(app)
    app.get("/", dependencies=[HOLDS[hold]], **STREAMS[stream])(handler.endpoint(sync=sync))
    async with served(app) as client:
        answers = await asyncio.gather(*(client.get("/") for _ in range(5)))
        assert [answer.status_code for answer in answers] == [200] * 5
        assert {answer.text.count("x") for answer in answers} == {3}
        assert handler.most == 1
        if hold == "Locked":
            assert handler.held == [True] * 5
        # Whoever has the whole answer finds it free: released before the last bytes are sent.
        app.get("/once", dependencies=[Locked("a", blocking_timeout=0)], **STREAMS[stream])(
            handler.endpoint(sync=sync)
        )
        assert [(await client.get("/once")).status_code for _ in range(3)] == [200] * 3


@each_stream
@each_kind
async def test_a_client_that_hangs_up_while_it_is_sent_to(app: FastAPI, stream: str, sync: bool) -> None:
    """The generator is suspended where nobody would close it, and cleans up while the lock is held."""
    handler = Handler(app, big=True)
    app.get("/", dependencies=[HOLDS["Locked"]], **STREAMS[stream])(handler.endpoint(sync=sync))
    async with served(app) as client:
        async with HalfClient(str(client.base_url).rstrip("/"), "GET /") as leaves:
            await leaves.reader.readexactly(1)
            await asyncio.sleep(0.1)  # the connection takes no more
            assert handler.sent < 900
            assert handler.held == []
            leaves.hang_up()
        await eventually(lambda: handler.held == [True])
        await eventually(lambda: handler.running == 0)
        await eventually(lambda: session_of(app).statistics().leases_held == 0)


@each_kind
@pytest.mark.parametrize("refused", [False, True])
async def test_a_dependency_may_make_requests_in_this_process(
    app: FastAPI, sync: bool, refused: bool
) -> None:
    """Which have streams of their own, or none as they are refused."""
    handler, other = Handler(app, big=True), FastAPI()
    other.dependency_overrides[current_session] = lambda: session_of(app)
    other.get("/", dependencies=[Locked("b", blocking_timeout=0)])(Handler(app).endpoint(sync=sync))

    async def asks() -> None:
        async with AsyncExitStack() as stack:
            if refused:
                await stack.enter_async_context(Lock(session_of(app), "b"))
            client = httpx.AsyncClient(transport=httpx.ASGITransport(other), base_url="http://other")
            await stack.enter_async_context(client)
            answers = [await client.get("/") for _ in range(2)]
        assert [answer.status_code for answer in answers] == [423 if refused else 200] * 2

    app.get("/", dependencies=[HOLDS["Locked"], Depends(asks)])(handler.endpoint(sync=sync))
    async with served(app) as client:
        async with HalfClient(str(client.base_url).rstrip("/"), "GET /") as leaves:
            await leaves.reader.readexactly(1)
            await asyncio.sleep(0.1)
        await eventually(lambda: handler.held == [True])
        await eventually(lambda: session_of(app).statistics().leases_held == 0)


@each_stream
@each_kind
@pytest.mark.parametrize("cancels", [False, True], ids=["send fails", "the server cancels"])
@pytest.mark.thin(2)
async def test_a_server_that_tells_it_by_send_or_ends_the_request(
    app: FastAPI, stream: str, sync: bool, cancels: bool
) -> None:
    """From version 2.4 of ASGI on, `send` fails. A server that stops cancels what is left."""
    handler = Handler(app, big=True)
    app.get("/", dependencies=[HOLDS["Locked"]], **STREAMS[stream])(handler.endpoint(sync=sync))

    messages = [{"type": "http.request", "body": b"", "more_body": False}]

    async def receive() -> Any:
        return messages.pop() if messages else await asyncio.Event().wait()

    async def send(message: Any) -> None:
        if handler.sent:
            if cancels:
                await asyncio.Event().wait()
            raise OSError("it has gone")

    scope = scope_of("/", "GET", {}, asgi={"version": "3.0", "spec_version": "2.4"})
    async with app.router.lifespan_context(app):
        request = asyncio.create_task(app(scope, receive, send))
        if cancels:
            await eventually(lambda: handler.sent)
            await asyncio.sleep(0.05)
            request.cancel()
        await asyncio.wait([request])
        ended_by = None if request.cancelled() else request.exception()
        if stream != "events":  # which end with an error of FastAPI's own
            assert ended_by is None if cancels else isinstance(ended_by, ClientDisconnect)
        assert session_of(app).statistics().leases_held == 0
        assert handler.held == [True]


@each_kind
async def test_a_client_that_hangs_up_while_the_handler_works(app: FastAPI, sync: bool) -> None:
    ended: list[bool] = []
    done = asyncio.Event()
    loop = asyncio.get_running_loop()

    async def streams() -> AsyncIterable[str]:
        try:
            yield "x"
            await done.wait()
        finally:
            ended.append(session_of(app).statistics().leases_held == 1)

    def yields() -> Iterable[str]:
        try:
            yield "x"
            asyncio.run_coroutine_threadsafe(done.wait(), loop).result()
        finally:
            ended.append(session_of(app).statistics().leases_held == 1)

    app.get("/", dependencies=[HOLDS["Locked"]])(yields if sync else streams)
    async with served(app) as client:
        async with HalfClient(str(client.base_url).rstrip("/"), "GET /") as leaves:
            await leaves.reader.readexactly(1)
            await asyncio.sleep(0.05)
        if sync:  # nothing interrupts a thread
            await asyncio.sleep(0.1)
            assert session_of(app).statistics().leases_held == 1
            done.set()
        await eventually(lambda: ended == [True])
        await eventually(lambda: session_of(app).statistics().leases_held == 0)


@each_stream
@each_kind
async def test_a_handler_that_fails(app: FastAPI, stream: str, sync: bool) -> None:
    handler = Handler(app, raises=True)
    app.get("/", dependencies=[HOLDS["Locked"]], **STREAMS[stream])(handler.endpoint(sync=sync))
    async with served(app) as client:
        for _ in range(2):
            # Its error comes in the middle of the answer; of events, FastAPI may have sent the end before.
            with (suppress if stream == "events" else pytest.raises)(httpx.TransportError):
                await client.get("/", headers={"Connection": "close"})
        assert handler.held == [True, True]
        await eventually(lambda: session_of(app).statistics().leases_held == 0)


@each_kind
async def test_a_lease_that_is_lost_ends_the_answer(app: FastAPI, redis: Redis, sync: bool) -> None:
    handler = Handler(app, big=True)
    errors: list[Exception] = []

    class Catches:
        def __init__(self, app: Any) -> None:
            self._app = app

        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            try:
                await self._app(scope, receive, send)
            except Exception as error:
                errors.append(error)
                raise

    app.add_middleware(Catches)
    app.get("/", dependencies=[Locked("a", ttl=2)])(handler.endpoint(sync=sync))
    async with served(app) as client:
        with pytest.raises(httpx.RemoteProtocolError):
            async with client.stream("GET", "/") as answer:
                async for _ in answer.aiter_bytes():
                    if handler.sent >= 3:
                        await redis.delete("aiolocks:lock:{a}")
        await eventually(lambda: handler.running == 0)
        assert handler.held == [False]
        assert session_of(app).statistics().losses == 1
    assert [type(error) for error in errors] == [LockLostError]


@each_kind
async def test_background_tasks_come_after_it(app: FastAPI, sync: bool) -> None:
    took: list[float] = []

    async def follows_up() -> None:
        began = time.monotonic()
        async with Lock(session_of(app), "a", blocking_timeout=10):
            took.append(time.monotonic() - began)

    async def streams(tasks: BackgroundTasks) -> AsyncIterable[str]:
        tasks.add_task(follows_up)
        yield "x"

    def yields(tasks: BackgroundTasks) -> Iterable[str]:
        tasks.add_task(follows_up)
        yield "x"

    async def add(tasks: BackgroundTasks) -> None:
        tasks.add_task(follows_up)

    app.get("/", dependencies=[Locked("a"), Depends(add)])(yields if sync else streams)
    async with served(app) as client:
        assert (await client.get("/")).status_code == 200
        await eventually(lambda: took and took[0] < 5)


@each_kind
async def test_the_lease_counts_in_the_handler_and_its_clean_up(app: FastAPI, sync: bool) -> None:
    states: list[str] = []

    def seen(lease: Lease) -> str:
        lease.ensure_held()
        assert current_lease() is lease
        states.append(lease.state.name)
        return lease.name

    @asynccontextmanager
    async def resource() -> AsyncGenerator[None]:
        yield

    async def own() -> AsyncIterator[str]:  # FastAPI ends it after the answer
        yield "own"

    async def streams(order: int, lease: Annotated[Lease, Locked("order:{order}")]) -> AsyncIterable[str]:
        async with resource():
            yield seen(lease)
            await asyncio.sleep(0.01)
        yield seen(lease)

    def yields(order: int, lease: Annotated[Lease, Locked("order:{order}")]) -> Iterable[str]:
        yield seen(lease)
        yield seen(lease)

    app.get("/{order}", dependencies=[Depends(own)])(yields if sync else streams)
    async with served(app) as client:
        assert (await client.get("/7")).text == '"order:7"\n"order:7"\n'
    assert states == ["HELD", "HELD"]


async def test_several_are_held_and_released_in_turn(app: FastAPI) -> None:
    seen: list[int] = []

    async def streams() -> AsyncIterable[str]:
        seen.append(session_of(app).statistics().leases_held)
        yield "x"
        seen.append(session_of(app).statistics().leases_held)

    app.get("/", dependencies=[Locked("a"), Locked("b"), Limited("c", all_keys)])(streams)
    app.get("/refused", dependencies=[Locked("a"), Locked("held", blocking_timeout=0)])(streams)
    async with served(app) as client, Lock(session_of(app), "held"):
        assert (await client.get("/")).status_code == 200
        assert seen == [3 + 1, 3 + 1]
        assert (await client.get("/refused")).status_code == 423
        assert session_of(app).statistics().leases_held == 1
        assert len(seen) == 2


async def test_refused_before_it_begins(app: FastAPI) -> None:
    async def streams() -> AsyncIterable[str]:
        yield "x"

    app.get("/", dependencies=[Locked("a", blocking_timeout=0)])(streams)
    async with served(app) as client:
        async with Lock(session_of(app), "a"):
            answer = await client.get("/")
            assert (answer.status_code, answer.headers["Retry-After"]) == (423, "1")
        assert (await client.get("/")).text == '"x"\n'


async def test_included_routers_and_mounted_applications(app: FastAPI) -> None:
    handler = Handler(app)
    inner, outer, mounted = APIRouter(prefix="/inner"), APIRouter(prefix="/outer"), FastAPI()
    inner.get("/", dependencies=[HOLDS["Locked"]])(handler.streams)
    outer.include_router(inner)
    app.include_router(outer)
    app.include_router(inner, prefix="/twice", dependencies=[Locked("b")])
    mounted.get("/", dependencies=[HOLDS["Locked"]])(handler.yields)
    app.mount("/mounted", mounted)
    paths = ["/outer/inner/", "/twice/inner/", "/mounted/"]
    async with served(app) as client:
        answers = await asyncio.gather(*(client.get(path) for path in paths * 3))
        assert [answer.status_code for answer in answers] == [200] * 9
    assert (handler.most, handler.held) == (1, [True] * 9)


async def test_handlers_of_each_make(app: FastAPI) -> None:
    handler = Handler(app)

    class Object:
        async def __call__(self) -> AsyncIterable[str]:
            async for item in handler.streams():
                yield item

    def logged(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def called(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs)

        return called

    async def named(text: str = "x") -> AsyncIterable[str]:
        async for item in handler.streams():
            yield item

    for number, endpoint in enumerate(
        [Object(), logged(handler.streams), logged(handler.yields), functools.partial(named, "y")]
    ):
        app.add_api_route(f"/{number}", endpoint, dependencies=[HOLDS["Locked"]])
    async with served(app) as client:
        answers = await asyncio.gather(*(client.get(f"/{number}") for number in [*range(4)] * 2))
        assert [answer.status_code for answer in answers] == [200] * 8
    assert (handler.most, handler.held) == (1, [True] * 8)


async def test_what_is_held_is_measured_to_the_end_of_the_stream(app: FastAPI) -> None:
    async def streams() -> AsyncIterable[str]:
        yield "x"

    async def add(tasks: BackgroundTasks) -> None:
        tasks.add_task(asyncio.sleep, 2)

    app.get("/", dependencies=[Locked("a"), Depends(add)])(streams)
    async with served(app) as client:
        assert (await client.get("/")).status_code == 200
        await eventually(lambda: holds_of(session_of(app)).median("a") is not None)
        lasted = holds_of(session_of(app)).median("a")
        assert lasted is not None
        assert lasted < 1.9


async def test_what_was_overridden_holds_nothing(app: FastAPI) -> None:
    handler = Handler(app)
    locked = HOLDS["Locked"]
    app.get("/", dependencies=[locked])(handler.streams)

    async def nothing() -> None: ...

    async with served(app) as client:
        assert (await client.get("/")).status_code == 200
        app.dependency_overrides[locked.dependency] = nothing
        assert (await client.get("/")).status_code == 200
    assert handler.held == [True, False]


@each_kind
async def test_depends_holds_it_until_the_background_tasks_are_done(app: FastAPI, sync: bool) -> None:
    handler = Handler(app)
    seen: list[bool] = []

    async def looks() -> None:
        seen.append(await Lock(session_of(app), "a").locked())

    async def add(tasks: BackgroundTasks) -> None:
        tasks.add_task(looks)

    app.get("/", dependencies=[Depends(HOLDS["Locked"]), Depends(add)])(handler.endpoint(sync=sync))
    async with served(app) as client:
        assert (await client.get("/")).status_code == 200
        await eventually(lambda: seen)
        await eventually(lambda: session_of(app).statistics().leases_held == 0)
    assert (handler.held, seen) == ([True], [True])


@pytest.mark.parametrize("answers", ["async", "def"])
@each_kind
async def test_depends_holds_it_until_the_body_of_an_answer_has_ended(
    app: FastAPI, answers: str, sync: bool
) -> None:
    """Also where the client hangs up, and nothing else would close the body."""
    handler = Handler(app, big=True)

    async def later() -> StreamingResponse:
        return StreamingResponse(handler.endpoint(sync=sync)())

    def at_once() -> StreamingResponse:
        return StreamingResponse(handler.endpoint(sync=sync)())

    app.get("/", dependencies=[Depends(HOLDS["Locked"])])(later if answers == "async" else at_once)
    async with served(app) as client:
        async with HalfClient(str(client.base_url).rstrip("/"), "GET /") as leaves:
            await leaves.reader.readexactly(1)
            await asyncio.sleep(0.1)
            assert session_of(app).statistics().leases_held == 1
        await eventually(lambda: handler.held == [True])
        await eventually(lambda: session_of(app).statistics().leases_held == 0)


async def test_depends_changes_no_other_answer(app: FastAPI) -> None:
    letters = io.BytesIO(b"a\nb\n")

    async def returns() -> dict[str, int]:
        return {"number": 1}

    async def sends() -> StreamingResponse:
        letters.seek(0)
        return StreamingResponse(letters)

    def returns_items() -> Any:
        return (number for number in range(3))  # which FastAPI makes a list of

    for path, endpoint in (("/dict", returns), ("/items", returns_items), ("/file", sends)):
        app.get(path, dependencies=[Depends(HOLDS["Locked"])])(endpoint)
    async with served(app) as client:
        assert (await client.get("/dict")).json() == {"number": 1}
        assert (await client.get("/items")).json() == [0, 1, 2]
        assert [(await client.get("/file")).text for _ in range(2)] == ["a\nb\n"] * 2


@pytest.mark.leaves_keys  # those of a limit
@each_stream
@each_kind
async def test_a_limit_counts_a_stream_once_and_its_fields_are_on_it(
    app: FastAPI, stream: str, sync: bool
) -> None:
    handler = Handler(app)
    app.get("/", dependencies=[RateLimited("r", 2, per=60), HOLDS["Locked"]], **STREAMS[stream])(
        handler.endpoint(sync=sync)
    )
    async with served(app) as client:
        answers = [await client.get("/") for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert all("RateLimit" in answer.headers for answer in answers)
    assert handler.begun == 2


@each_kind
async def test_an_idempotent_route_holds_it_too_and_replays_the_stream(app: FastAPI, sync: bool) -> None:
    handler = Handler(app)

    async def user() -> str:
        return "ann"

    router = APIRouter(route_class=idempotent_route(scope=user))
    router.post("/", dependencies=[HOLDS["Locked"]])(handler.endpoint(sync=sync))
    app.include_router(router)
    async with served(app) as client:
        keys = [{"Idempotency-Key": f"8e03978e-{number}"} for number in range(3)]
        answers = await asyncio.gather(*(client.post("/", headers=key) for key in keys))
        assert [answer.status_code for answer in answers] == [200] * 3
        assert (handler.most, handler.held) == (1, [True] * 3)
        again = await client.post("/", headers=keys[0])
        assert (again.text, handler.begun) == (answers[0].text, 3)


@each_kind
async def test_a_release_that_is_not_confirmed_is_told_and_the_answer_stands(
    app: FastAPI, sync: bool, caplog: pytest.LogCaptureFixture, redis: Redis
) -> None:
    async def streams(session: Annotated[Session, Depends(current_session)]) -> AsyncIterable[str]:
        yield "x"
        await redis.client_pause(3000, all=False)

    def yields(session: Annotated[Session, Depends(current_session)]) -> Generator[str]:
        yield "x"
        asyncio.run_coroutine_threadsafe(redis.client_pause(3000, all=False), loop).result()

    loop = asyncio.get_running_loop()
    app.get("/", dependencies=[Locked("a", ttl=1, auto_renew=False)])(yields if sync else streams)
    caplog.set_level(logging.INFO, logger="aiolocks.requests")
    async with served(app) as client:
        answer = await client.get("/")
        assert (answer.status_code, answer.text) == (200, '"x"\n')
        await redis.client_unpause()
    assert "'a', the lock of a request that was served (GET /), is not known to be released" in caplog.text


def test_the_routes_of_this_fastapi_have_what_is_replaced() -> None:
    """If this fails, look at `_fastapi_streams`: a version of FastAPI calls its handlers in another way."""

    async def streams() -> AsyncIterable[str]:
        yield "x"

    route = fastapi.routing.APIRoute("/", streams)
    assert route.is_json_stream
    assert route.dependant.call is streams
    source = inspect.getsource(fastapi.routing)
    assert "fastapi_inner_astack" in source
    assert "dependant.call(**" in source
