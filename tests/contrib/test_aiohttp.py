"""`locked` and `session_ctx`, under aiohttp's own server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import aiohttp
import httpx
import pytest
from aiohttp import web
from redis.asyncio import Redis

from aiolocks import (
    ConfigurationError,
    FairLock,
    Lock,
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
from aiolocks.contrib.aiohttp import LEASE, SESSION, health, locked, session_ctx
from tests.conftest import Connect, OwnServer
from tests.contrib.serving import HalfClient, aiohttp_serves
from tests.support.spoiling import spoil
from tests.support.waiting import eventually


@pytest.fixture
def app(session: Session) -> web.Application:
    app = web.Application()
    app.cleanup_ctx.append(session_ctx(session))
    return app


@pytest.fixture
async def client() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(30)) as client:
        yield client


async def tells_its_name(request: web.Request) -> web.Response:
    return web.Response(text=request[LEASE].name)


# -- names

NAMES = {
    "/path/7": "it:7",
    "/path/07": "it:07",
    "/path/a%3Ab?it=c": "it:a%3Ab",
    "/query?it=x%20y&it=z": "it:x%20y",
    "/both/a?more=b%3Ac": "it:a:b%3Ac",
    "/both/a%3Ab?more=c": "it:a%3Ab:c",
    "/function/x": "it:GET/function/x",
    "/coroutine": "it:3",
    "/view/9": "it:9",
    "/method/9": "it:9",
    "/sub/path/9": "it:9",
}


async def test_the_name_is_made_of_the_request(app: web.Application, client: aiohttp.ClientSession) -> None:
    def of_the_request(request: web.Request) -> str:
        return f"it:{request.method}{request.path}"

    async def of_the_body(request: web.Request) -> str:
        return f"it:{len(await request.read()) + 3}"

    class View(web.View):
        @locked("it:{it}")
        async def get(self) -> web.Response:
            return await tells_its_name(self.request)

    class Service:
        @locked("it:{it}")
        async def show(self, request: web.Request) -> web.Response:
            return await tells_its_name(request)

    templated = locked("it:{it}")(tells_its_name)
    sub = web.Application()
    sub.router.add_get("/path/{it}", templated)
    app.add_subapp("/sub", sub)
    app.add_routes(
        [
            web.get("/path/{it}", templated),
            web.get("/query", templated),
            web.get("/both/{it}", locked("it:{it}:{more}")(tells_its_name)),
            web.get("/function/{it}", locked(of_the_request)(tells_its_name)),
            web.get("/coroutine", locked(of_the_body)(tells_its_name)),
            web.view("/view/{it}", View),
            web.get("/method/{it}", Service().show),
        ]
    )
    async with aiohttp_serves(app) as url:
        answers = {
            path: await (await client.get(aiohttp.client.URL(url + path, encoded=True))).text()
            for path in NAMES
        }
    assert answers == NAMES


async def test_a_handler_is_inside_of_its_lease(
    app: web.Application, client: aiohttp.ClientSession, session: Session
) -> None:
    @locked("it:{it}")
    async def handler(request: web.Request) -> web.Response:
        assert current_lease() is request[LEASE]
        name = name_of("it:{it}", it=request.match_info["it"])
        return web.Response(text=(await asyncio.to_thread(ensure_held, name)).name)

    async def outside(_: web.Request) -> web.Response:
        with pytest.raises(LookupError):
            current_lease()
        return web.Response(text="outside")

    app.add_routes([web.get("/held/{it}", handler), web.get("/outside", outside)])
    async with aiohttp_serves(app) as url:  # one connection, and so one task of the server
        for path, answer in (("held/a%40b", "it:a%40b"), ("outside", "outside"), ("held/7", "it:7")):
            got = await client.get(aiohttp.client.URL(f"{url}/{path}", encoded=True))
            assert await got.text() == answer


async def test_what_is_not_there_is_refused(
    app: web.Application, client: aiohttp.ClientSession, session: Session, caplog: pytest.LogCaptureFixture
) -> None:
    app.router.add_get("/{it}", locked("{it}:{that}")(tells_its_name))
    async with aiohttp_serves(app) as url:
        refused = await client.get(f"{url}/7")
        assert (refused.status, await refused.json()) == (
            400,
            {"detail": "The query parameter 'that' is missing."},
        )
        assert "name '{it}:{that}': neither path nor query of /7 has 'that'" in caplog.text
        evil = aiohttp.client.URL(f"{url}/a%0D%0Afake%1B%5D0;%E2%80%AE", encoded=True)
        assert (await client.get(evil)).status == 400
        assert r"query of /a\r\nfake\x1b]0;\u202e has" in caplog.messages[-1]
        assert (await client.get(f"{url}/7", params={"that": "x" * 1100})).status == 400
    assert session.statistics().acquisitions == 0


@pytest.mark.parametrize("wrong", [7, None])
async def test_a_function_must_return_a_name(
    app: web.Application, client: aiohttp.ClientSession, wrong: Any, caplog: pytest.LogCaptureFixture
) -> None:
    app.router.add_get("/", locked(lambda _: wrong)(tells_its_name))
    async with aiohttp_serves(app) as url:
        assert (await client.get(url)).status == 500
    assert "name must " in caplog.text


# -- when it cannot be had


async def test_the_refusal_says_when_to_try_again_and_nothing_else(
    app: web.Application, client: aiohttp.ClientSession, holder: Any
) -> None:
    app.router.add_post("/{it}", locked("secret:{it}", blocking_timeout=0)(tells_its_name))
    app.router.add_put("/{it}", locked("secret:{it}", blocking_timeout=0.2, status=409)(tells_its_name))
    await holder("secret:name")
    async with aiohttp_serves(app) as url:
        refused = await client.post(f"{url}/name")
        assert (refused.status, refused.headers["Retry-After"]) == (423, "1")
        assert await refused.json() == {"detail": "Another request is working on this. Try again later."}
        refused = await client.put(f"{url}/name")
        assert (refused.status, refused.headers["Retry-After"]) == (409, "1")
        assert (await client.post(f"{url}/other")).status == 200


@pytest.mark.parametrize("below", [False, True])
async def test_health_without_the_call_is_an_error_at_start(redis: Redis, below: bool) -> None:
    app = web.Application()
    app.cleanup_ctx.append(session_ctx(redis))
    sub = web.Application()
    with pytest.warns(DeprecationWarning, match="Bare functions"):
        (sub if below else app).router.add_get("/ready", health)  # type: ignore[arg-type]
    if below:
        app.add_subapp("/below", sub)
    runner = web.AppRunner(app)
    with pytest.raises(ConfigurationError, match=r"/ready.* is the function health, .* health\(\)"):
        await runner.setup()
    await runner.cleanup()


async def test_the_refusal_is_what_one_has_chosen(
    app: web.Application, client: aiohttp.ClientSession, session: Session, holder: Any
) -> None:
    chosen = locked("{it}", blocking_timeout=0, status=429, retry_after=lambda error: 7, detail="Wait.")
    other = locked("{it}", blocking_timeout=0, status=503, retry_after=3)
    measured = locked("{it}", blocking_timeout=0)
    app.router.add_post("/chosen/{it}", chosen(tells_its_name))
    app.router.add_post("/other/{it}", other(tells_its_name))
    app.router.add_post("/measured/{it}", measured(tells_its_name))
    await holder("it")
    async with aiohttp_serves(app) as url:
        refused = await client.post(f"{url}/chosen/it")
        assert (refused.status, refused.headers["Retry-After"]) == (429, "7")
        assert await refused.json() == {"detail": "Wait."}
        refused = await client.post(f"{url}/other/it")
        assert (refused.status, refused.headers["Retry-After"]) == (503, "3")
        assert (await client.post(f"{url}/measured/that")).status == 200
        assert holds_of(session).median("that") is not None
        holds_of(session).add(6.5, "it")
        assert (await client.post(f"{url}/measured/it")).headers["Retry-After"] == "7"
        holds_of(session).add(1000, "it")
        refused = await client.post(f"{url}/measured/it")
        assert 10 <= int(refused.headers["Retry-After"]) <= 20  # its holder's ttl


async def test_503_without_redis(
    own_server: OwnServer, connect: Connect, client: aiohttp.ClientSession, caplog: pytest.LogCaptureFixture
) -> None:
    server = await own_server()
    app = web.Application()
    app.cleanup_ctx.append(session_ctx(connect(server)))
    app.router.add_get("/", locked("it", blocking_timeout=1)(tells_its_name))
    app.router.add_get("/ready", health(within=0.5))
    async with aiohttp_serves(app) as url:
        assert (await client.get(url)).status == 200
        assert (await client.get(f"{url}/ready")).status == 200
        server.pause()
        unready = await client.get(f"{url}/ready")
        assert (unready.status, await unready.text()) == (503, UNHEALTHY)
        begun = time.monotonic()
        refused = await client.get(url)
        assert time.monotonic() - begun < 10
        assert (refused.status, refused.headers["Retry-After"]) == (503, "1")
        await eventually(lambda: "a request was refused" in caplog.text)
        server.resume()
        assert (await client.get(url)).status == 200


# -- while the handler runs


@pytest.mark.parametrize("path", ["runs", "runs?spoiled"])
async def test_a_lost_lease_cancels_the_handler_and_answers(
    app: web.Application,
    client: aiohttp.ClientSession,
    redis: Redis,
    keys: Callable[[], list[str]],
    path: str,
) -> None:
    ended: list[BaseException] = []

    @locked("it", ttl=2)
    async def runs(request: web.Request) -> web.Response:
        if "spoiled" in request.query:
            await spoil()
        await redis.delete(*keys())  # somebody has freed it by force
        try:
            await asyncio.sleep(60)
        except BaseException as error:
            ended.append(error)
            raise
        return web.Response()

    @locked("it")
    async def ends(request: web.Request) -> web.Response:
        await redis.delete(*keys())
        return web.Response()

    app.add_routes([web.get("/runs", runs), web.get("/ends", ends)])
    async with aiohttp_serves(app) as url:
        answer = await client.get(f"{url}/{path}")
        assert (answer.status, await answer.json()) == (
            500,
            {"detail": "This request lost its lock; some or all of its work may have been done."},
        )
        assert isinstance(ended[0], asyncio.CancelledError)
        assert (await client.get(f"{url}/ends")).status == 500


async def test_a_request_finds_the_lease_that_the_last_one_has_left(
    app: web.Application, client: aiohttp.ClientSession
) -> None:
    seen: list[Session] = []

    @locked("kept", cache=5)
    async def kept(request: web.Request) -> web.Response:
        seen.append(request.app[SESSION])
        return web.Response()

    app.add_routes([web.get("/kept", kept)])
    async with aiohttp_serves(app) as url:
        for _ in range(5):
            assert (await client.get(f"{url}/kept")).status == 200
        counts = seen[0].statistics()
        assert (counts.cache_hits, counts.cached) == (3, 1)
    with pytest.raises(TypeError, match="cache= is an option of a Lock"):
        locked("kept", cache=5, kind=FairLock)


async def test_an_answer_that_has_begun_ends_with_the_connection_when_the_lease_is_lost(
    app: web.Application, client: aiohttp.ClientSession, redis: Redis, keys: Callable[[], list[str]]
) -> None:
    @locked("it", ttl=2)
    async def handler(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse()
        await answer.prepare(request)
        await answer.write(b"some of it")
        await redis.delete(*keys())
        await asyncio.sleep(60)
        return answer

    app.router.add_get("/", handler)
    async with aiohttp_serves(app) as url, client.get(url) as answer:
        # Not at rest for ever, and not with a second answer in it.
        with pytest.raises(aiohttp.ClientPayloadError):
            await asyncio.wait_for(answer.read(), 10)
        assert answer.status == 200


async def test_what_the_handler_raises_is_its_own(
    app: web.Application, client: aiohttp.ClientSession, session: Session
) -> None:
    @locked("it")
    async def teapot(request: web.Request) -> web.Response:
        raise web.HTTPPaymentRequired(text="first")

    @locked("it")
    async def busy(request: web.Request) -> web.Response:
        raise LockTimeoutError("Lock", "another", blocking_timeout=1, remaining=None)

    app.add_routes([web.get("/teapot", teapot), web.get("/busy", busy)])
    async with aiohttp_serves(app) as url:
        answer = await client.get(f"{url}/teapot")
        assert (answer.status, await answer.text()) == (402, "first")
        # A TimeoutError, of which aiohttp itself makes this. It is about another lock, and so none of ours.
        assert (await client.get(f"{url}/busy")).status == 504
    assert session.statistics().leases_held == 0


async def test_one_of_several_kinds(app: web.Application, client: aiohttp.ClientSession) -> None:
    async def tells_its_kind(request: web.Request) -> web.Response:
        return web.Response(text=f"{request[LEASE].kind} {request[LEASE].ttl:g}")

    @locked("it", kind=ReentrantLock)
    async def reentrant(request: web.Request) -> web.Response:
        # It is acquired in the handler's own task.
        async with ReentrantLock(request.config_dict[SESSION], "it", blocking_timeout=0):
            return await tells_its_kind(request)

    app.add_routes(
        [
            web.get("/fair", locked("it", kind=FairLock, ttl=7)(tells_its_kind)),
            web.get("/several", locked("it", kind=lambda *given: Semaphore(*given, 3))(tells_its_kind)),
            web.get("/writer", locked("it", kind=lambda *given: RWLock(*given).writer)(tells_its_kind)),
            web.get("/reentrant", reentrant),
        ]
    )
    async with aiohttp_serves(app) as url:
        told = [
            await (await client.get(f"{url}/{path}")).text()
            for path in ("fair", "several", "writer", "reentrant")
        ]
    assert told == ["fairlock 7", "semaphore 30", "rwlock.writer 30", "reentrantlock 30"]


async def test_what_is_streamed_is_written_under_the_lock(
    app: web.Application, client: aiohttp.ClientSession, session: Session
) -> None:
    held: list[int] = []

    @locked("report")
    async def report(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        try:
            for _ in range(3 if "short" in request.query else 10_000):
                await response.write(b"x" * 10_000)
        finally:
            held.append(session.statistics().leases_held)
        return response

    app.router.add_get("/", report)
    async with aiohttp_serves(app) as url:
        async with HalfClient(url, "GET /") as leaves:  # the connection takes no more, and then is gone
            await leaves.reader.readexactly(1)
            waiting = [asyncio.create_task(client.get(f"{url}/?short=1")) for _ in range(2)]
            await eventually(lambda: session.statistics().waiters == 2)
            assert held == []
        assert [len(await (await one).read()) for one in waiting] == [30_000] * 2
        await eventually(lambda: session.statistics().leases_held == 0)
    assert held == [1, 1, 1]


# -- a client that hangs up


@pytest.mark.parametrize("handler_cancellation", [False, True])
async def test_who_hangs_up_leaves_the_queue(
    app: web.Application,
    holder: Any,
    waiting: Any,
    caplog: pytest.LogCaptureFixture,
    handler_cancellation: bool,
) -> None:
    caplog.set_level("INFO", "aiolocks.requests")
    ran: list[bytes] = []

    @locked("it", blocking_timeout=None)
    async def handler(request: web.Request) -> web.Response:
        ran.append(await request.read())
        return web.Response()

    app.router.add_route("*", "/", handler)
    async with aiohttp_serves(app, handler_cancellation=handler_cancellation) as url:
        done = await holder("it")
        async with (
            HalfClient(url, "POST /", body=b'{"a":1}') as staying,
            HalfClient(url, "POST /", body=b'{"a":2}') as gone,
            HalfClient(url, "GET /") as gone_too,
        ):
            await waiting(3)
            gone.hang_up()
            gone_too.hang_up()
            await waiting(1)
            assert not ran
            done.set()
            assert await staying.status() == 200
        if not handler_cancellation:  # else aiohttp itself ends them
            for route in ("POST /", "GET /"):
                await eventually(lambda route=route: route in caplog.text)
            assert "ended with 499" in caplog.text
    assert ran == [b'{"a":1}']


@pytest.mark.parametrize("handler_cancellation", [False, True])
async def test_a_handler_that_runs_is_cancelled_only_if_aiohttp_is_told_to(
    app: web.Application, session: Session, handler_cancellation: bool
) -> None:
    inside, done, ended = asyncio.Event(), asyncio.Event(), asyncio.Event()

    @locked("it")
    async def handler(request: web.Request) -> web.Response:
        inside.set()
        await done.wait()
        ended.set()
        return web.Response()

    app.router.add_get("/", handler)
    async with aiohttp_serves(app, handler_cancellation=handler_cancellation) as url:
        async with HalfClient(url, "GET /") as client:
            await inside.wait()
            client.hang_up()
            if handler_cancellation:
                await eventually(lambda: session.statistics().leases_held == 0, within=5)
                assert not ended.is_set()
            else:
                await asyncio.sleep(0.3)
                assert session.statistics().leases_held == 1
                done.set()
                await ended.wait()
    await eventually(lambda: session.statistics().leases_held == 0, within=5)


# -- the session


async def test_the_session_is_the_applications(server: Any, client: aiohttp.ClientSession) -> None:
    app = web.Application()
    app.cleanup_ctx.append(session_ctx(server.url, prefix="shop"))
    app.router.add_get("/", locked("it")(tells_its_name))
    async with aiohttp_serves(app) as url:
        assert await (await client.get(url)).text() == "it"
        assert repr(app[SESSION]) == "<Session prefix='shop' held=0 waiting=0>"
    assert repr(app[SESSION]) == "<Session prefix='shop' closed>"


async def test_without_a_session_it_says_what_to_do(
    client: aiohttp.ClientSession, caplog: pytest.LogCaptureFixture
) -> None:
    app = web.Application()
    app.router.add_get("/", locked("it")(tells_its_name))
    async with aiohttp_serves(app) as url:
        assert (await client.get(url)).status == 500
    assert "this application has no aiolocks session: app.cleanup_ctx.append(session_ctx" in caplog.text


# -- arguments


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        ({"name": 7}, TypeError, "name must be a str or a function of the request, not int"),
        ({"name": "{a}{b}"}, ValueError, "between two fields"),
        ({"status": 422}, ValueError, r"status must be 409 \(Conflict\), .* or 503 .* not 422"),
        ({"retry_after": True}, TypeError, "retry_after must be a number of seconds"),
        ({"detail": None}, TypeError, "detail must be a str, not NoneType"),
        ({"blocking_timeout": "1"}, TypeError, "blocking_timeout"),
        ({"max_hold": 0}, ValueError, "max_hold"),
        ({"expire": 3}, TypeError, r"locked\(\) has no argument 'expire'; did you mean ttl="),
        ({"kind": 3}, TypeError, "kind must be a class of locks"),
        ({"kind": Semaphore}, TypeError, "a required argument: 'value'; write a function, as in kind="),
    ],
)
def test_arguments_are_checked_when_the_handler_is_made(
    arguments: dict[str, Any], error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        locked(**{"name": "it", **arguments})


async def test_it_decorates_handlers(session: Session) -> None:
    with pytest.raises(TypeError, match="decorates a coroutine function"):
        locked("it")(web.View)
    with pytest.raises(TypeError, match="decorates a coroutine function"):
        locked("it")(lambda request: web.Response())
    with pytest.raises(TypeError, match=r"functions of a web\.Request"):
        await locked("it")(tells_its_name)(None)
    with pytest.raises(TypeError, match="kind must be a class of locks"):
        locked("it", kind=Lock(session, "it"))


@pytest.mark.parametrize("tenant", ["x" * 2000, "", "\u20ac" * 700])
async def test_a_value_of_which_no_name_can_be_made_is_the_callers_fault(
    session: Session, http: httpx.AsyncClient, tenant: str
) -> None:
    @locked(lambda request: request.query["tenant"])
    async def export(request: web.Request) -> web.Response:
        return web.Response()

    app = web.Application()
    app.cleanup_ctx.append(session_ctx(session))
    app.router.add_get("/export", export)
    async with aiohttp_serves(app) as url:
        assert (await http.get(f"{url}/export", params={"tenant": tenant})).status_code == 400
        assert (await http.get(f"{url}/export", params={"tenant": "a"})).status_code == 200
