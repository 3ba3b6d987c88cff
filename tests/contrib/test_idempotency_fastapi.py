"""The features that only the route class of FastAPI has: OpenAPI, dependencies, background tasks."""

# Annotations are objects here: FastAPI looks at them.

import asyncio
from typing import Annotated, Any

import httpx
import pytest
from fastapi import APIRouter, BackgroundTasks, Depends, FastAPI, Header, HTTPException, Request
from pydantic import BaseModel

from aiolocks import Session
from aiolocks.contrib.fastapi import current_session, session_lifespan
from aiolocks.contrib.idempotency import IdempotencyMiddleware
from aiolocks.contrib.idempotency.fastapi import idempotent_route
from tests.contrib.serving import uvicorn_serves
from tests.support.waiting import eventually


class Payment(BaseModel):
    amount: int


async def user(x_user: Annotated[str, Header()] = "") -> str:
    if not x_user:
        raise HTTPException(401, "who are you?")
    return x_user


def of_request(request: Request) -> str:
    return request.headers.get("x-user", "me")


def client_of(app: FastAPI) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://shop")


def app_of(router: APIRouter, session: Session) -> FastAPI:
    app = FastAPI()
    app.dependency_overrides[current_session] = lambda: session
    app.include_router(router, prefix="/shop")
    return app


KEY = {"Idempotency-Key": '"k"', "X-User": "me"}


async def test_openapi_shows_the_header_and_its_answers(session: Session) -> None:
    router = APIRouter(route_class=idempotent_route(scope=of_request, required=True))

    @router.post("/payments", responses={409: {"description": "mine"}})
    async def pay(payment: Payment) -> int:
        return payment.amount

    @router.get("/payments")
    async def look() -> int:
        return 1

    document = app_of(router, session).openapi()["paths"]["/shop/payments"]
    (header,) = document["post"]["parameters"]
    assert (header["name"], header["in"], header["required"]) == ("Idempotency-Key", "header", True)
    answers = document["post"]["responses"]
    assert set(answers) == {"200", "400", "409", "413", "422"}
    for status in ("400", "409", "413", "422"):
        assert "application/problem+json" in answers[status]["content"]
    assert "application/json" in answers["422"]["content"]  # FastAPI's own
    assert "Retry-After" in answers["409"]["headers"]
    assert "parameters" not in document["get"]
    assert set(document["get"]["responses"]) == {"200"}


async def test_the_scope_is_a_dependency_and_what_it_refuses_is_not_recorded(session: Session) -> None:
    called = 0

    async def who(name: Annotated[str, Depends(user)], payment: Payment, shop: str) -> str:
        return f"{shop}:{name}:{payment.amount > 5}"

    router = APIRouter(route_class=idempotent_route(scope=who))

    @router.post("/{shop}/payments", status_code=201)
    async def pay(payment: Payment, shop: str) -> dict[str, Any]:
        nonlocal called
        called += 1
        return {"amount": payment.amount, "shop": shop, "call": called}

    async with client_of(app_of(router, session)) as client:
        refused = await client.post("/shop/a/payments", json={"amount": 1}, headers={"Idempotency-Key": "k"})
        assert (refused.status_code, refused.json()) == (401, {"detail": "who are you?"})
        invalid = await client.post("/shop/a/payments", json={"amount": "?"}, headers=KEY)
        assert (invalid.status_code, invalid.json()["detail"][0]["loc"]) == (422, ["body", "amount"])
        for _ in range(2):
            answer = await client.post("/shop/a/payments", json={"amount": 1}, headers=KEY)
            assert (answer.status_code, answer.json()) == (201, {"amount": 1, "shop": "a", "call": 1})
        other = await client.post("/shop/b/payments", json={"amount": 1}, headers=KEY)
        assert other.json()["call"] == 2


async def test_background_tasks_run_once_and_hold_up_no_answer(session: Session) -> None:
    done: list[int] = []
    may_end = asyncio.Event()
    router = APIRouter(route_class=idempotent_route(scope=of_request))

    async def later() -> None:
        await may_end.wait()
        done.append(1)

    @router.post("/payments")
    async def pay(tasks: BackgroundTasks) -> str:
        tasks.add_task(later)
        return "paid"

    app = FastAPI(lifespan=session_lifespan(session))
    app.include_router(router)
    async with uvicorn_serves(app) as url, httpx.AsyncClient() as client:
        for _ in range(2):
            assert (await client.post(f"{url}/payments", headers=KEY)).json() == "paid"
        assert done == []
        may_end.set()
        await eventually(lambda: done == [1])


async def test_an_exception_of_the_handler_is_the_servers(session: Session) -> None:
    called = 0
    router = APIRouter(route_class=idempotent_route(scope=of_request))

    @router.post("/payments")
    async def pay() -> str:
        nonlocal called
        called += 1
        raise LookupError("no money")

    async with client_of(app_of(router, session)) as client:
        for _ in range(2):
            with pytest.raises(LookupError, match="no money"):
                await client.post("/shop/payments", headers=KEY)
    assert called == 2


async def test_the_outermost_middleware_counts(session: Session) -> None:
    called = 0
    router = APIRouter(route_class=idempotent_route(scope=of_request))

    @router.post("/payments")
    async def pay() -> int:
        nonlocal called
        called += 1
        return called

    app = app_of(router, session)
    app.add_middleware(IdempotencyMiddleware, client=session, scope=lambda _: "me")
    async with client_of(app) as client:
        assert [(await client.post("/shop/payments", headers=KEY)).json() for _ in range(2)] == [1, 1]


async def test_a_scope_that_says_nothing_is_a_mistake(session: Session) -> None:
    router = APIRouter(route_class=idempotent_route(scope=lambda: ""))

    @router.post("/payments")
    async def pay() -> str:
        return "paid"

    async with client_of(app_of(router, session)) as client:
        with pytest.raises(TypeError, match="scope must return who asks"):
            await client.post("/shop/payments", headers=KEY)
