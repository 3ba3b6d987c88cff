"""The tests of the shop: on a private Valkey, which the pytest plugin of aiolocks brings, and SQLite."""

import asyncio
import base64
import os
import tempfile
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

os.environ |= {
    "SHOP_DATABASE": f"sqlite+aiosqlite:///{Path(tempfile.mkdtemp(prefix='shop-')) / 'shop.db'}",
    "SHOP_OPERATOR": "grace:secret",
}

import httpx
import pytest
from sqlalchemy import func, select

from aiolocks import Lock, RangeLock, RWLock

from . import service, tables
from .settings import DATABASE

ANN = {"Authorization": "Bearer ann"}


@pytest.fixture
def serves(aiolocks_serving: Callable[..., None]) -> Callable[[], Any]:
    """Serves the shop, and gives a client of it."""
    aiolocks_serving(service.locks)

    @asynccontextmanager
    async def client() -> AsyncGenerator[httpx.AsyncClient, None]:
        await tables.make(DATABASE)
        transport = httpx.ASGITransport(service.app)
        async with service.app.router.lifespan_context(service.app):
            async with httpx.AsyncClient(transport=transport, base_url="http://shop") as http:
                yield http

    return client


async def test_parcels_are_packed_one_by_one(serves: Callable[[], Any]) -> None:
    async with serves() as http:
        answers = await asyncio.gather(*(http.post("/orders/7/parcels") for _ in range(10)))
    assert sorted(answer.json()["parcels"] for answer in answers) == [*range(1, 11)]


async def test_a_payment_is_taken_once(serves: Callable[[], Any]) -> None:
    async with serves() as http:
        order = {"reference": "4711", "cents": 500}
        headers = ANN | {"Idempotency-Key": '"a"'}
        first = await http.post("/payments", json=order, headers=headers)
        again = await http.post("/payments", json=order, headers=headers)
        async with service.sessions() as database:
            taken = await database.scalar(select(func.sum(tables.Payment.cents)))
    assert (first.status_code, again.json(), taken) == (201, first.json(), 500)


async def test_webhooks_of_an_account_are_synchronised_together(serves: Callable[[], Any]) -> None:
    async with serves() as http:
        posts = [
            http.post(f"/accounts/{n % 20}/webhooks", params={"change": f"{n % 20}.{n // 20}"})
            for n in range(200)
        ]
        answers = await asyncio.gather(*posts)
        async with service.sessions() as database:
            changes = await database.scalar(select(func.count()).select_from(tables.Change))
            runs = await database.scalar(select(func.count(tables.Change.run.distinct())))
    assert {answer.status_code for answer in answers} == {201}
    assert changes == 200
    assert runs is not None
    assert 20 <= runs <= 60


async def test_a_room_is_booked_once(serves: Callable[[], Any]) -> None:
    async with serves() as http:
        wishes = [{"begin": 9, "end": 12}, {"begin": 11, "end": 13}, {"begin": 12, "end": 14}]
        answers = [await http.post("/rooms/1/bookings", json=wish) for wish in wishes]
        async with RangeLock(service.locks, "room:1").writer(0, 1):
            elsewhere = await http.post("/rooms/1/bookings", json={"begin": 20, "end": 21})
    assert [answer.status_code for answer in (*answers, elsewhere)] == [201, 409, 201, 201]


async def test_a_tenant_has_one_export_at_a_time(serves: Callable[[], Any]) -> None:
    async with serves() as http:
        answers = await asyncio.gather(*(http.post("/exports", headers=ANN) for _ in range(3)))
    assert {answer.status_code for answer in answers} == {200}


async def test_no_quote_is_made_while_the_configuration_changes(serves: Callable[[], Any]) -> None:
    async with serves() as http:
        await http.put("/settings", params={"value": 3})
        async with RWLock(service.locks, "settings").writer:
            asked = asyncio.create_task(http.get("/quote"))
            assert not (await asyncio.wait([asked], timeout=0.2))[0]
        assert (await asked).json() == {"price": 3, "shipping": 3}
        assert (await http.get("/prices")).json() == {"price": 3, "shipping": 3}


async def test_the_dashboard_is_for_the_operator(serves: Callable[[], Any]) -> None:
    right = {"Authorization": "Basic " + base64.b64encode(b"grace:secret").decode()}
    wrong = {"Authorization": "Basic " + base64.b64encode(b"grace:guess").decode()}
    async with serves() as http, Lock(service.locks, "order:7"):
        assert (await http.get("/ready")).is_success
        assert "aiolocks_held" in (await http.get("/metrics")).text
        answers = [await http.get("/locks/", headers=headers) for headers in ({}, wrong, right)]
    assert [answer.status_code for answer in answers] == [401, 401, 200]
