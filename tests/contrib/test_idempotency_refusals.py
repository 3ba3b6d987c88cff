"""Only what the handler itself has answered is a result: a refusal before it is not kept under the key."""

# Annotations are objects here: FastAPI looks at them.

from collections.abc import AsyncIterator, Callable, Iterator
from typing import Annotated, Any

import httpx
import pytest
from aiohttp import web
from fastapi import APIRouter, Body, Depends, FastAPI, HTTPException, Response
from fastapi.responses import JSONResponse, RedirectResponse
from starlette.routing import get_name

from aiolocks import Limits, Lock, Session
from aiolocks.contrib.aiohttp import locked, session_ctx
from aiolocks.contrib.fastapi import Limited, Locked, current_session
from aiolocks.contrib.idempotency import IdempotencyMiddleware, handler_begins
from aiolocks.contrib.idempotency.aiohttp import idempotency_middleware
from aiolocks.contrib.idempotency.fastapi import idempotent_route
from tests.contrib.serving import aiohttp_serves
from tests.contrib.test_idempotency_limits import Memory

KEY = {"Idempotency-Key": '"k"'}


@pytest.fixture(params=["redis", "store"])
def records(request: pytest.FixtureRequest) -> Any:
    """Where the records are kept: the options for it."""
    return {} if request.param == "redis" else {"store": Memory()}


class Refusing:
    """A dependency that refuses until it is told not to."""

    def __init__(self) -> None:
        self.answer: Exception | None = None
        self.asked = 0

    async def __call__(self) -> None:
        self.asked += 1
        if self.answer is not None:
            raise self.answer


class Shop:
    """A FastAPI application whose handler counts."""

    def __init__(self, session: Session, *dependencies: Any, **options: Any) -> None:
        self.called = 0
        self.answer: Any = None
        router = APIRouter(route_class=idempotent_route(scope=lambda: "me", **options))

        @router.post("/orders/{order_id}", dependencies=[*dependencies])
        async def order(order_id: int, amount: Annotated[int, Body(embed=True)] = 1) -> Any:
            self.called += 1
            if isinstance(self.answer, Exception):
                raise self.answer
            return self.answer or {"order": order_id, "amount": amount, "call": self.called}

        self.app = FastAPI()
        self.app.dependency_overrides[current_session] = lambda: session
        self.app.include_router(router, prefix="/shop")

    async def post(self, document: Any = None, order: str = "7") -> httpx.Response:
        transport = httpx.ASGITransport(self.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://shop") as client:
            return await client.post(f"/shop/orders/{order}", json=document, headers=KEY)


@pytest.mark.parametrize("status", [423, 409, 429, 503])
async def test_a_lock_that_another_has_is_not_a_result(session: Session, records: Any, status: Any) -> None:
    shop = Shop(session, Locked("order:{order_id}", blocking_timeout=0, status=status), **records)
    async with Lock(session, "order:7"):
        refused = await shop.post()
        assert (refused.status_code, refused.headers["retry-after"]) == (status, "1")
        assert (await shop.post()).status_code == status
    assert [(await shop.post()).json()["call"] for _ in range(2)] == [1, 1]


async def test_limits_that_are_reached_are_no_result(session: Session, records: Any) -> None:
    shop = Shop(session, Limited("exports", lambda: {"all": 5, "me": 1}), **records)
    async with Limits(session, "exports", {"all": 5, "me": 1}):
        assert (await shop.post()).status_code == 429
    assert (await shop.post()).json()["call"] == 1


@pytest.mark.parametrize("status", [303, 400, 401, 403, 404, 408, 409, 422, 425])
async def test_what_a_dependency_refuses_is_not_a_result(session: Session, records: Any, status: int) -> None:
    refusing = Refusing()
    shop = Shop(session, Depends(refusing), **records)
    refusing.answer = HTTPException(status, "token expired")
    for _ in range(2):
        assert (await shop.post()).status_code == status
    assert refusing.asked == 2
    refusing.answer = None
    assert [(await shop.post()).json()["call"] for _ in range(2)] == [1, 1]


async def test_a_redirect_to_the_login_is_not_a_result(session: Session, records: Any) -> None:
    class LoginNeededError(Exception):
        pass

    refusing = Refusing()
    shop = Shop(session, Depends(refusing), **records)
    shop.app.add_exception_handler(LoginNeededError, lambda *_: RedirectResponse("/login", 303))
    refusing.answer = LoginNeededError()
    assert (await shop.post()).status_code == 303
    refusing.answer = None
    assert (await shop.post()).json()["call"] == 1


async def test_a_body_that_is_not_valid_does_not_use_the_key_up(session: Session, records: Any) -> None:
    shop = Shop(session, max_answer=200, **records)
    for amount in ("?", "?" * 1000):  # it is echoed, and the echo is longer than an answer that is kept
        invalid = await shop.post({"amount": amount})
        assert invalid.status_code == 422
        assert invalid.json()["detail"][0]["input"] == amount
    assert (await shop.post({"amount": 1}, order="x")).status_code == 422
    answers = [(await shop.post({"amount": 5})).json() for _ in range(2)]
    assert answers == [{"order": 7, "amount": 5, "call": 1}] * 2


@pytest.mark.parametrize("answer", [HTTPException, JSONResponse], ids=["raised", "returned"])
@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 422])
async def test_what_the_handler_refuses_is_its_answer(
    session: Session, records: Any, status: int, answer: Any
) -> None:
    shop = Shop(session, Locked("order:{order_id}"), **records)
    shop.answer = answer(status_code=status, **{"content" if answer is JSONResponse else "detail": "no"})
    assert [(await shop.post()).status_code for _ in range(3)] == [status] * 3
    assert shop.called == 1


async def test_an_error_that_says_when_to_come_again_is_not_kept(session: Session, records: Any) -> None:
    shop = Shop(session, **records)
    shop.answer = HTTPException(409, "later", {"Retry-After": "1"})
    assert [(await shop.post()).status_code for _ in range(2)] == [409] * 2
    assert shop.called == 2


async def test_an_answer_that_says_when_to_look_is_kept(session: Session, records: Any) -> None:
    """202 with `Retry-After` says that the work has begun."""
    shop = Shop(session, **records)
    shop.answer = Response("begun", 202, {"Retry-After": "5"})
    for _ in range(2):
        answer = await shop.post()
        assert (answer.status_code, answer.headers["retry-after"]) == (202, "5")
    assert shop.called == 1


async def test_a_failure_with_a_long_answer_does_not_use_the_key_up(session: Session, records: Any) -> None:
    shop = Shop(session, max_answer=100, **records)
    shop.answer = Response("x" * 1000, 500)
    for _ in range(2):
        answer = await shop.post()
        assert (answer.status_code, len(answer.content)) == (500, 1000)
    assert shop.called == 2


# -- endpoints of each kind


async def asynchronous(order_id: int) -> dict[str, int]:
    return {"order": order_id}


def synchronous(order_id: int) -> dict[str, int]:
    return {"order": order_id}


async def stream(order_id: int) -> AsyncIterator[dict[str, int]]:
    yield {"order": order_id}


def parts(order_id: int) -> Iterator[dict[str, int]]:
    yield {"order": order_id}


class Callables:
    async def __call__(self, order_id: int) -> dict[str, int]:
        return {"order": order_id}

    def method(self, order_id: int) -> dict[str, int]:
        return {"order": order_id}


@pytest.mark.parametrize(
    "endpoint", [asynchronous, synchronous, stream, parts, Callables(), Callables().method], ids=get_name
)
async def test_an_endpoint_of_each_kind_has_begun_when_it_runs(
    session: Session, endpoint: Callable[..., Any]
) -> None:
    app = FastAPI()
    app.dependency_overrides[current_session] = lambda: session
    router = APIRouter(route_class=idempotent_route(scope=lambda: "me"))
    router.add_api_route("/{order_id}", endpoint, methods=["POST"])
    app.include_router(router, prefix="/a")
    app.include_router(router, prefix="/b")
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://shop") as client:
        for place in ("a", "b"):
            for _ in range(2):
                answer = await client.post(f"/{place}/7", headers={"Idempotency-Key": place})
                assert (answer.status_code, answer.json()) == (200, {"order": 7})
    assert {route["post"]["summary"] for route in app.openapi()["paths"].values()} == {
        get_name(endpoint).capitalize()
    }


# -- the middlewares, which do not see the handler: they go by the status, or by what the handler says


class Answers:
    """An ASGI application that gives these answers in turn."""

    def __init__(self, *answers: tuple[int, dict[str, str]], begins: bool = False) -> None:
        self._answers = answers
        self._begins = begins
        self.called = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if self._begins:
            handler_begins()
        status, headers = self._answers[min(self.called, len(self._answers) - 1)]
        self.called += 1
        await Response(f"{self.called}", status, headers)(scope, receive, send)


NEVER_THE_HANDLERS = [400, 401, 403, 404, 405, 407, 408, 411, 413, 415, 421, 422, 423, 425, 428, 429, 431]
MAY_BE_THE_HANDLERS = [200, 201, 202, 204, 302, 303, 402, 409, 410, 412]


async def asked(app: Any, session: Session, number: int = 2, **options: Any) -> list[int]:
    protected = IdempotencyMiddleware(app, session, scope=lambda _: "me", **options)
    transport = httpx.ASGITransport(protected)
    async with httpx.AsyncClient(transport=transport, base_url="http://shop") as client:
        return [(await client.post("/", headers=KEY)).status_code for _ in range(number)]


@pytest.mark.parametrize("status", NEVER_THE_HANDLERS)
async def test_the_middleware_keeps_no_refusal_that_may_come_before_the_handler(
    session: Session, records: Any, status: int
) -> None:
    app = Answers((status, {}), (201, {}))
    assert await asked(app, session, 3, **records) == [status, 201, 201]
    assert app.called == 2


@pytest.mark.parametrize("status", MAY_BE_THE_HANDLERS)
async def test_the_middleware_keeps_what_may_have_taken_effect(
    session: Session, records: Any, status: int
) -> None:
    app = Answers((status, {}))
    assert await asked(app, session, 2, **records) == [status] * 2
    assert app.called == 1


@pytest.mark.parametrize("status", [402, 409, 423, 503])
async def test_the_middleware_keeps_no_error_with_retry_after(session: Session, status: int) -> None:
    app = Answers((status, {"Retry-After": "1"}), (201, {}))
    assert await asked(app, session, 3) == [status, 201, 201]


@pytest.mark.parametrize("status", [400, 403, 404, 422])
async def test_a_handler_that_says_that_it_begins_has_its_refusals_kept(
    session: Session, records: Any, status: int
) -> None:
    app = Answers((status, {}), begins=True)
    assert await asked(app, session, 2, **records) == [status] * 2
    assert app.called == 1


async def test_the_users_word_on_a_status_counts_more_than_a_guess(session: Session) -> None:
    app = Answers((404, {}), (402, {}))
    assert await asked(app, session, 3, keeps=lambda status: status == 404) == [404] * 3
    assert app.called == 1


async def test_outside_of_a_request_nothing_begins() -> None:
    handler_begins()


async def test_aiohttp_keeps_no_refusal_of_locked_or_of_a_middleware(
    session: Session, records: Any, http: httpx.AsyncClient
) -> None:
    called = 0
    refuse = True

    @web.middleware
    async def auth(request: web.Request, handler: Any) -> Any:
        if refuse:
            raise web.HTTPUnauthorized
        return await handler(request)

    @locked("order:{order}", blocking_timeout=0, status=409)
    async def order(request: web.Request) -> web.Response:
        nonlocal called
        called += 1
        return web.Response(status=404)

    app = web.Application(middlewares=[idempotency_middleware(scope=lambda _: _me(), **records), auth])
    app.cleanup_ctx.append(session_ctx(session))
    app.router.add_post("/orders/{order}", order)
    async with aiohttp_serves(app) as url:

        async def post() -> int:
            return (await http.post(f"{url}/orders/7", headers=KEY)).status_code

        assert await post() == 401
        refuse = False
        async with Lock(session, "order:7"):
            assert await post() == 409
        # The handler of `locked` is known to have begun: all that it answers is kept.
        assert [await post() for _ in range(2)] == [404] * 2
        assert called == 1


async def _me() -> str:
    return "me"
