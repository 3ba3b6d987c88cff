"""`Limited`, under uvicorn."""

# Annotations are objects here: FastAPI looks at them.

import asyncio
from typing import Annotated, Any

import httpx
import pytest
from fastapi import Depends, FastAPI, Header

from aiolocks import Lease, Limits, LockTimeoutError, Session
from aiolocks._holders import HolderInfo
from aiolocks.contrib._limited import FULL, TOO_MANY, Reached
from aiolocks.contrib.fastapi import Limited, Locked, current_session, session_lifespan
from tests.contrib.serving import uvicorn_serves


def of_the_tenant(tenant: Annotated[str, Header()]) -> dict[str, int]:
    return {"all": 2, f"tenant:{tenant}": 1}


async def test_a_caller_is_told_of_its_own_limit_and_of_that_of_all(session: Session) -> None:
    app = FastAPI(lifespan=session_lifespan(session))
    go_on = asyncio.Event()

    @app.get("/export")
    async def export(lease: Annotated[Lease, Limited("exports", of_the_tenant)]) -> int:
        await go_on.wait()
        return lease.fencing_token

    async with uvicorn_serves(app) as url:
        async with httpx.AsyncClient(base_url=url, timeout=10) as client:

            async def ask(tenant: str) -> httpx.Response:
                return await client.get("/export", headers={"tenant": tenant})

            first = asyncio.create_task(ask("a"))
            limits = Limits(session, "exports", {"all": 2})
            while (await limits.in_use())["all"] < 1:
                await asyncio.sleep(0.01)
            again = await ask("a")
            second = asyncio.create_task(ask("b"))
            while (await limits.in_use())["all"] < 2:
                await asyncio.sleep(0.01)
            third, both = await ask("c"), await ask("a")
            go_on.set()

            assert (again.status_code, again.json()["detail"]) == (429, TOO_MANY)
            assert (third.status_code, third.json()["detail"]) == (503, FULL)
            assert both.status_code == 429
            assert int(again.headers["Retry-After"]) >= 1
            assert [(await one).status_code for one in (first, second)] == [200, 200]
            assert (await client.get("/export")).status_code == 422
    assert await limits.in_use() == {"all": 0}


@pytest.mark.parametrize("tenant", ["x" * 2000, "", "\u20ac" * 700])
@pytest.mark.parametrize("what", ["limited", "locked"])
async def test_a_value_of_which_no_name_can_be_made_is_the_callers_fault(
    session: Session, what: str, tenant: str
) -> None:
    async def keys(tenant: str) -> dict[str, int]:
        return {tenant: 1}

    async def name(tenant: str) -> str:
        return tenant

    app = FastAPI()
    app.dependency_overrides[current_session] = lambda: session
    dependency: Any = Limited("exports", keys) if what == "limited" else Locked(name)

    @app.get("/export", dependencies=[dependency])
    async def export() -> str:
        return "exported"

    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://shop") as client:
        assert (await client.get("/export", params={"tenant": tenant})).status_code == 400
        assert (await client.get("/export", params={"tenant": "a"})).status_code == 200


@pytest.mark.parametrize(
    "keys", [{}, {"a": 0}, {"a": "1"}, {7: 1}, {f"{number}": 1 for number in range(500)}]
)
async def test_keys_that_no_caller_has_chosen_are_a_mistake(session: Session, keys: Any) -> None:
    app = FastAPI()
    app.dependency_overrides[current_session] = lambda: session

    @app.get("/export", dependencies=[Limited("exports", lambda: keys)])
    async def export() -> str:
        return "exported"

    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://shop") as client:
        with pytest.raises((TypeError, ValueError)):
            await client.get("/export")


@pytest.mark.parametrize(
    ("measured", "held_for", "remaining", "said"),
    [
        (None, 3.0, 30.0, 1),
        (10.0, 3.5, 30.0, 7),
        (10.0, None, 30.0, 10),
        (10.0, 20.0, 30.0, 1),
        (10.0, 1.0, 2.0, 2),
    ],
)
def test_the_time_to_try_again_is_measured(measured, held_for, remaining, said) -> None:
    holder = HolderInfo(lease_id="x", held_for=held_for)
    error = LockTimeoutError(
        "Limits", "exports", blocking_timeout=0, remaining=remaining, holders=[holder], full="all"
    )
    refusal = Reached("all").refusal(error, measured)

    assert (refusal.status, refusal.headers) == (503, {"Retry-After": str(said)})


def test_what_is_given_is_looked_at() -> None:
    with pytest.raises(TypeError, match=r"keys must be a function .* not dict"):
        Limited("exports", {"all": 2})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="name must not be empty"):
        Limited("", of_the_tenant)
    with pytest.raises(TypeError, match="did you mean"):
        Limited("exports", of_the_tenant, timeout=5)  # type: ignore[call-arg]
    assert isinstance(Limited("exports", of_the_tenant), type(Depends()))


@pytest.mark.parametrize(
    ("options", "of_all", "of_one"),
    [
        ({}, (503, "1", FULL), (429, "1", TOO_MANY)),
        ({"status": 409}, (409, "1", FULL), (409, "1", TOO_MANY)),
        ({"retry_after": 30}, (503, "30", FULL), (429, "30", TOO_MANY)),
        ({"retry_after": lambda error: len(error.full) + 0.5}, (503, "4", FULL), (429, "9", TOO_MANY)),
        ({"retry_after": lambda error: None}, (503, "1", FULL), (429, "1", TOO_MANY)),
        ({"detail": "Later."}, (503, "1", "Later."), (429, "1", "Later.")),
    ],
)
async def test_the_answer_is_the_users_choice(
    session: Session, options: Any, of_all: tuple[int, str, str], of_one: tuple[int, str, str]
) -> None:
    app = FastAPI(lifespan=session_lifespan(session))

    @app.get("/export", dependencies=[Limited("exports", of_the_tenant, **options)])
    async def export() -> None: ...

    async with uvicorn_serves(app) as url, httpx.AsyncClient(base_url=url) as client:

        async def answer(tenant: str) -> tuple[int, str, str]:
            refused = await client.get("/export", headers={"tenant": tenant})
            return refused.status_code, refused.headers["Retry-After"], refused.json()["detail"]

        async with Limits(session, "exports", {"all": 2, "tenant:a": 1}):
            assert await answer("a") == of_one
            async with Limits(session, "exports", {"all": 2}):
                assert await answer("b") == of_all


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"status": 404}, ValueError),
        ({"retry_after": -1}, ValueError),
        ({"detail": 7}, TypeError),
        ({"grace": 20}, ValueError),
    ],
)
def test_what_the_user_chooses_is_checked(options: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=next(iter(options))):
        Limited("exports", of_the_tenant, **options)
