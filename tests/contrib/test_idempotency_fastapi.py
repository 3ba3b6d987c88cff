"""The features that only the route class of FastAPI has: OpenAPI, dependencies, background tasks."""

# Annotations are objects here: FastAPI looks at them.

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any, Literal

import httpx
import pytest
import sqlalchemy as sa
from fastapi import APIRouter, BackgroundTasks, Depends, FastAPI, Header, HTTPException, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from sqlalchemy.ext.asyncio import AsyncSession

from aiolocks import Lease, Limits, Lock, Session, ensure_held
from aiolocks.contrib.fastapi import (
    Limited,
    Locked,
    RateLimited,
    current_session,
    session_lifespan,
)
from aiolocks.contrib.idempotency import IdempotencyMiddleware
from aiolocks.contrib.idempotency.fastapi import idempotent_route
from tests.contrib.ledgers import METADATA, PAYMENTS, database, payments, store_of
from tests.contrib.serving import uvicorn_serves
from tests.contrib.test_idempotency_limits import Memory
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


@pytest.mark.parametrize("said", [7, b"me", ["me"]])
async def test_a_scope_that_says_no_str_is_a_mistake(session: Session, said: Any) -> None:
    router = APIRouter(route_class=idempotent_route(scope=lambda: said))

    @router.post("/payments")
    async def pay() -> str:
        return "paid"

    async with client_of(app_of(router, session)) as client:
        with pytest.raises(TypeError, match="scope must return who asks"):
            await client.post("/shop/payments", headers=KEY)


# -- a user who may not any more


class Allowing:
    """A dependency that allows until it is told not to."""

    def __init__(self) -> None:
        self.allows = True
        self.asked = 0

    async def __call__(self, request: Request) -> None:
        self.asked += 1
        request.state.allowed = True
        if not self.allows:
            raise HTTPException(403, "not any more")


class Yielding(Allowing):
    """The same, with `yield`."""

    def __init__(self) -> None:
        super().__init__()
        self.left = 0

    async def __call__(self, request: Request) -> AsyncIterator[None]:  # type: ignore[override]
        await super().__call__(request)
        try:
            yield
        finally:
            self.left += 1


def in_a_thread() -> Iterator[None]:
    yield


Where = Literal["route", "router", "include", "app"]


@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize("allowing", [Allowing, Yielding])
@pytest.mark.parametrize("where", ["route", "router", "include", "app"])
async def test_a_replay_asks_the_dependencies_first(
    session: Session, where: Where, allowing: type[Allowing], stored: bool
) -> None:
    called = solved = 0
    may = allowing()

    async def parameter() -> int:
        nonlocal solved
        solved += 1
        return solved

    def there(place: Where) -> list[Any]:
        return [Depends(may)] if place == where else []

    store = Memory() if stored else None
    route_class = idempotent_route(scope=of_request, store=store)
    router = APIRouter(route_class=route_class, dependencies=[*there("router"), Depends(in_a_thread)])

    @router.post(
        "/payments/{order}", dependencies=[Locked("order:{order}", blocking_timeout=0), *there("route")]
    )
    async def pay(
        request: Request, order: int, payment: Payment, one: Annotated[int, Depends(parameter)]
    ) -> int:
        nonlocal called
        called += 1
        assert request.state.allowed
        return called

    app = FastAPI(dependencies=there("app"))
    app.dependency_overrides[current_session] = lambda: session
    app.include_router(router, prefix="/shop", dependencies=there("include"))
    async with client_of(app) as client:

        async def post(key: str = "k") -> httpx.Response:
            headers = {"Idempotency-Key": key, "X-User": "me"}
            return await client.post("/shop/payments/7", json={"amount": 1}, headers=headers)

        assert (await post()).json() == 1
        assert may.asked == 1  # the first request asks once
        async with Lock(session, "order:7"):  # a replay needs no lock
            assert (await post()).json() == 1
        may.allows = False
        refused = await post()
        assert (refused.status_code, refused.json()) == (403, {"detail": "not any more"})
        assert (await post("other")).status_code == 403
        may.allows = True
        assert (await post()).json() == 1
        assert (await post("other")).json() == 2
    # A parameter of the handler is a part of its work, which is not done again.
    assert (called, solved) == (2, 2)
    if isinstance(may, Yielding):
        assert may.left == may.asked - 2
    assert await session.inspect() == []


async def everybody() -> dict[str, int]:
    return {"all": 1}


ORDER = Locked("order", blocking_timeout=0)


@pytest.mark.parametrize(
    "holds",
    [ORDER, Depends(ORDER), Limited("order", everybody)],
    ids=["Locked", "Depends(Locked)", "Limited"],
)
@pytest.mark.parametrize("where", ["route", "include"])
async def test_a_replay_holds_what_a_dependency_takes(session: Session, where: Where, holds: Any) -> None:
    taken: list[str] = []
    limited = isinstance(holds, Limited)

    async def check(lease: Annotated[Lease, holds]) -> None:
        lease.ensure_held()
        taken.append(lease.name)

    async def below(checked: Annotated[None, Depends(check)]) -> None: ...

    def there(place: Where) -> list[Any]:
        return [holds, Depends(below)] if place == where else []

    router = APIRouter(route_class=idempotent_route(scope=of_request))

    @router.post("/payments", dependencies=there("route"))
    async def pay() -> str:
        return "paid"

    app = FastAPI()
    app.dependency_overrides[current_session] = lambda: session
    app.include_router(router, prefix="/shop", dependencies=there("include"))
    async with client_of(app) as client:
        answers = [await client.post("/shop/payments", headers=KEY) for _ in range(3)]
        assert [(answer.status_code, answer.json()) for answer in answers] == [(200, "paid")] * 3
        assert taken == ["order"] * 3
        assert session.statistics().leases_held == 0
        async with Limits(session, "order", {"all": 1}) if limited else Lock(session, "order"):
            assert (await client.post("/shop/payments", headers=KEY)).status_code == (503 if limited else 423)


@pytest.mark.leaves_keys  # those of a limit
@pytest.mark.parametrize("where", ["scope", "route"])
async def test_a_replay_waits_for_its_turn(session: Session, where: str) -> None:
    """And meanwhile for a hang-up, without which its body would be all that it ever hears."""
    turn = RateLimited("payments", 1, per=0.2, blocking_timeout=10)

    async def who(_: Annotated[None, turn]) -> str:
        return "me"

    router = APIRouter(route_class=idempotent_route(scope=who if where == "scope" else of_request))

    @router.post("/payments", dependencies=[turn] if where == "route" else [])
    async def pay() -> str:
        return "paid"

    serving = uvicorn_serves(app_of(router, session))
    async with asyncio.timeout(20), serving as url, httpx.AsyncClient(base_url=url) as client:
        answers = [await client.post("/shop/payments", headers=KEY) for _ in range(3)]
    assert [(answer.status_code, answer.json()) for answer in answers] == [(200, "paid")] * 3


async def test_a_replay_whose_client_hangs_up_leaves_the_queue(session: Session) -> None:
    async def check(lease: Annotated[Lease, Locked("order", blocking_timeout=None)]) -> None: ...

    router = APIRouter(route_class=idempotent_route(scope=of_request))

    @router.post("/payments", dependencies=[Depends(check)])
    async def pay() -> str:
        return "paid"

    serving = uvicorn_serves(app_of(router, session))
    async with asyncio.timeout(20), serving as url, httpx.AsyncClient(base_url=url) as client:
        assert (await client.post("/shop/payments", headers=KEY)).json() == "paid"
        async with Lock(session, "order"):
            replay = asyncio.create_task(client.post("/shop/payments", headers=KEY))
            await eventually(lambda: session.statistics().waiters == 1)
            replay.cancel()
            await eventually(lambda: session.statistics().waiters == 0)


async def test_a_dependency_may_make_requests_in_this_process(session: Session) -> None:
    """Whatever routes they are for: these say nothing of the request for which they are made."""
    may, held = True, []
    asked = APIRouter(route_class=idempotent_route(scope=of_request))

    @asked.get("/may", dependencies=[Locked("may")])
    async def says() -> bool:
        held.append(ensure_held("may").name)
        return may

    authority = client_of(app_of(asked, session))

    async def check() -> None:
        if not (await authority.get("/shop/may")).json():
            raise HTTPException(409, "not any more")

    router = APIRouter(route_class=idempotent_route(scope=of_request))

    @router.post("/payments", dependencies=[Depends(check)])
    async def pay() -> str:
        return "paid"

    async with client_of(app_of(router, session)) as client, authority:

        async def post(key: str) -> int:
            return (await client.post("/shop/payments", headers={"Idempotency-Key": key})).status_code

        assert [await post("a"), await post("a")] == [200, 200]
        may = False
        assert [await post("a"), await post("b")] == [409, 409]
        may = True
        assert [await post("a"), await post("b")] == [200, 200]
    assert held == ["may"] * 6


async def test_a_dependency_with_the_stores_session_can_be_asked_again(
    session: Session, tmp_path: Path
) -> None:
    async with database(f"sqlite+aiosqlite:///{tmp_path / 'test.db'}") as engine:
        store = store_of(engine)
        async with engine.begin() as connection:
            await connection.run_sync(METADATA.create_all)
            await store.create(connection)

        async def known(database: Annotated[AsyncSession, Depends(store.session)]) -> None:
            found = await database.execute(sa.select(sa.func.count()).select_from(PAYMENTS))
            if found.scalar() == 2:
                raise HTTPException(403, "enough")

        route_class = idempotent_route(scope=of_request, store=store)
        router = APIRouter(route_class=route_class, dependencies=[Depends(known)])

        @router.post("/payments")
        async def pay(database: Annotated[AsyncSession, Depends(store.session)]) -> str:
            await database.execute(sa.insert(PAYMENTS).values(key="k"))
            return "paid"

        async with client_of(app_of(router, session)) as client:

            async def post(key: str) -> int:
                headers = {"Idempotency-Key": key, "X-User": "me"}
                return (await client.post("/shop/payments", headers=headers)).status_code

            assert [await post(key) for key in ("a", "a", "b", "b", "a")] == [200, 200, 200, 403, 403]
        assert await payments(engine) == {"k": 2}


async def test_one_who_has_waited_for_the_answer_of_another_is_asked_too(session: Session) -> None:
    may, go_on, called = Allowing(), asyncio.Event(), 0
    router = APIRouter(route_class=idempotent_route(scope=of_request, wait=10), dependencies=[Depends(may)])

    @router.post("/payments")
    async def pay() -> int:
        nonlocal called
        called += 1
        await go_on.wait()
        return called

    async with client_of(app_of(router, session)) as client:
        first = asyncio.create_task(client.post("/shop/payments", headers=KEY))
        await eventually(lambda: called == 1, within=5)
        second = asyncio.create_task(client.post("/shop/payments", headers=KEY))
        await asyncio.sleep(0.1)
        may.allows = False
        go_on.set()
        assert [(await one).status_code for one in (first, second)] == [200, 403]


# -- the limits of a repetition


@pytest.mark.parametrize("lifespan", [False, True])
async def test_a_replay_tells_how_its_own_limits_stand(session: Session, lifespan: bool) -> None:
    limit: Any = RateLimited("pay:{client}", 2, per=60, policy="pay")
    router = APIRouter(route_class=idempotent_route(scope=of_request), dependencies=[limit])

    @router.post("/payments", status_code=201)
    async def pay() -> JSONResponse:
        return JSONResponse("paid", 201, {"Location": "/payments/1"})

    app = app_of(router, session)
    app.router.lifespan_context = session_lifespan(session)
    async with app.router.lifespan_context(app) if lifespan else nullcontext(), client_of(app) as client:
        answers = [await client.post("/shop/payments", headers=KEY) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [201, 201, 429]
    assert [answer.headers.get("Idempotent-Replayed") for answer in answers] == [None, "true", None]
    assert [answer.headers.get("Location") for answer in answers] == ["/payments/1", "/payments/1", None]
    assert [answer.headers.get_list("RateLimit") for answer in answers] == [
        ['"pay";r=1;t=30'], ['"pay";r=0;t=60'], ['"pay";r=0;t=30']
    ]  # fmt: skip
    assert {answer.headers["RateLimit-Policy"] for answer in answers} == {'"pay";q=2;w=60'}
    await session.force_release("pay:127.0.0.1", kind="ratelimit")


async def test_a_replay_that_no_limit_has_counted_tells_of_none(session: Session) -> None:
    app = FastAPI(lifespan=session_lifespan(session))

    @app.post("/payments", dependencies=[RateLimited("pay:{client}", 2, per=60)])
    async def pay() -> str:
        return "paid"

    around = IdempotencyMiddleware(app, session, scope=lambda scope: "me")
    async with app.router.lifespan_context(app):
        transport = httpx.ASGITransport(around)
        async with httpx.AsyncClient(transport=transport, base_url="http://shop") as client:
            first, again = [await client.post("/payments", headers=KEY) for _ in range(2)]
    assert first.headers["RateLimit"] == '"default";r=1;t=30'
    assert again.headers["Idempotent-Replayed"] == "true"
    assert not {"ratelimit", "ratelimit-policy"} & {*again.headers}
    await session.force_release("pay:127.0.0.1", kind="ratelimit")
