"""Uses the package `shop` of the working directory, in one process, and prints what does not add up.

Each of its lines here is what one line of `examples/shop` is for: `tests/contrib/test_example_shop_lines.py`.
"""

import asyncio
import os
import random
import sys
import time
from collections import Counter
from typing import Any

import httpx
import sqlalchemy as sa
from shop import service, tables, worker  # type: ignore[import-not-found]

from aiolocks import Leadership, Session, StaleFenceError

WHO = {"Authorization": "Bearer ann"}
LATE = {
    "order:9": "order",
    "account:late": "account",
    "settings": "settings",
    "stock-take": "tick",
    "invoices": "term",
}
"""What is fenced, by the names of its locks."""
_FENCES = sa.table("aiolocks_fence", sa.column("name"), sa.column("token"))


class Counted:
    """The database's sessions, which are counted."""

    def __init__(self, sessions: Any) -> None:
        self._sessions = sessions
        self.opened = 0

    def __call__(self) -> Any:
        self.opened += 1
        return self._sessions()


async def rows(*columns: Any) -> list[Any]:
    async with service.engine.connect() as connection:
        return [tuple(row) for row in await connection.execute(sa.select(*columns))]


async def main() -> None:
    """All sorts of requests at once; then the counts."""
    await tables.make(service.DATABASE)
    service.sessions = counted = Counted(service.sessions)
    wrong: list[str] = []
    transport = httpx.ASGITransport(service.app)
    limits = httpx.Limits(max_connections=None)
    async with (
        service.app.router.lifespan_context(service.app),
        httpx.AsyncClient(transport=transport, base_url="http://shop", limits=limits, timeout=30) as http,
    ):
        await asyncio.gather(
            ordered(http, wrong), paid(http, wrong), booked(http, wrong), quoted(http, wrong)
        )
        await exported(http, wrong)
        counted.opened = 0
        await priced(http, wrong)
        if counted.opened > 4:
            wrong.append(f"prices were read {counted.opened} times")
        await worked(http, wrong)
        await late(http, wrong)
    sys.stdout.write("\n".join(wrong))


async def ordered(http: httpx.AsyncClient, wrong: list[str]) -> None:
    answers = await asyncio.gather(*(http.post(f"/orders/{number % 2}/parcels") for number in range(30)))
    if {answer.status_code for answer in answers} != {201}:
        wrong.append(f"orders: {Counter(answer.status_code for answer in answers)}")
    parcels = Counter(order for (order,) in await rows(tables.Parcel.order_id))
    if dict(await rows(tables.Order.id, tables.Order.parcels)) != parcels:
        wrong.append("an update of an order is lost")


async def paid(http: httpx.AsyncClient, wrong: list[str]) -> None:
    async def pay(number: int) -> None:
        headers = WHO | {"Idempotency-Key": f'"{number}"'}
        order = {"reference": f"{number}", "cents": 7}
        asked = [http.post("/payments", json=order, headers=headers) for _ in range(2)]
        statuses = {answer.status_code for answer in await asyncio.gather(*asked)}
        wrong.extend(f"payment: {status}" for status in statuses - {201, 409})

    await pay(0)  # then there is an account
    await asyncio.gather(*map(pay, range(1, 9)))
    payments = await rows(tables.Payment.reference, tables.Payment.cents)
    if max(Counter(reference for reference, _ in payments).values()) > 1:
        wrong.append("a payment was taken twice")
    if await rows(tables.Account.cents) != [(sum(cents for _, cents in payments),)]:
        wrong.append("the sum of an account is wrong")


async def booked(http: httpx.AsyncClient, wrong: list[str]) -> None:
    wishes = [{"begin": begin, "end": begin + 6} for begin in range(20)]
    answers = await asyncio.gather(*(http.post("/rooms/1/bookings", json=wish) for wish in wishes))
    statuses = Counter(answer.status_code for answer in answers)
    if set(statuses) != {201, 409}:
        wrong.append(
            f"bookings: {statuses}"
        )  # the key of the hours has refused what the lock had let through


async def quoted(http: httpx.AsyncClient, wrong: list[str]) -> None:
    async def change() -> None:
        for value in range(12):
            await http.put("/settings", params={"value": value})
            await asyncio.sleep(0.01)

    async def quote() -> None:
        for _ in range(30):
            answer = await http.get("/quote")
            if answer.is_success and len(set(answer.json().values())) > 1:
                wrong.append("a quote of two configurations")
            await asyncio.sleep(random.uniform(0, 0.01))

    await asyncio.gather(change(), quote(), quote(), quote())


async def exported(http: httpx.AsyncClient, wrong: list[str]) -> None:
    began = time.monotonic()
    await asyncio.gather(*(http.post("/exports", headers=WHO) for _ in range(5)))
    if time.monotonic() - began < 5 * 0.02:
        wrong.append("a tenant had several exports at a time")


async def priced(http: httpx.AsyncClient, wrong: list[str]) -> None:
    answers = await asyncio.gather(*(http.get("/prices") for _ in range(150)))
    if {200, 429} != {answer.status_code for answer in answers}:
        wrong.append("nobody was told that there are too many requests")


async def worked(http: httpx.AsyncClient, wrong: list[str]) -> None:
    """Two workers, for some ticks, while payments come."""
    workers = [await asyncio.create_subprocess_exec(sys.executable, "-m", "shop.worker") for _ in range(2)]
    try:
        while not await rows(tables.StockTake.id):
            await asyncio.sleep(0.05)
        for number in range(40):
            headers = WHO | {"Idempotency-Key": f'"w{number}"'}
            await http.post("/payments", json={"reference": f"w{number}", "cents": 7}, headers=headers)
            await asyncio.sleep(0.02)
        while None in (invoices := [number for (number,) in await rows(tables.Payment.invoice)]):
            await asyncio.sleep(0.05)
    finally:
        for process in workers:
            process.terminate()
            await process.wait()
    ticks = Counter(due for (due,) in await rows(tables.StockTake.due_ms))
    if max(ticks.values()) > 1:
        wrong.append(f"ticks: {max(ticks.values())} runs of one")
    if sorted(invoices) != [*range(1, len(invoices) + 1)]:
        wrong.append("an invoice number is there twice")


async def late(http: httpx.AsyncClient, wrong: list[str]) -> None:
    """Each transaction is refused once a later holder of its lock has written."""
    async with service.engine.begin() as connection:
        await connection.execute(sa.delete(_FENCES))
        await connection.execute(sa.insert(_FENCES), [{"name": name, "token": 2**62} for name in LATE])
    headers = {"Authorization": "Bearer late", "Idempotency-Key": '"late"'}
    order = {"reference": "late", "cents": 7}
    refused = {
        "order": (await http.post("/orders/9/parcels")).status_code,
        "account": (await http.post("/payments", json=order, headers=headers)).status_code,
        "settings": (await http.put("/settings", params={"value": 1})).status_code,
    }
    wrong += [
        f"{what}: a late write was not refused: {status}" for what, status in refused.items() if status != 409
    ]
    before = await rows(tables.StockTake.id)
    async with Session.from_url(os.environ["SHOP_REDIS"], prefix="shop") as locks:
        async with worker.stock_take(locks, service.sessions):
            await asyncio.sleep(0.6)
        if await rows(tables.StockTake.id) != before:
            wrong.append("tick: a late write was not refused")
        async with Leadership(locks, "invoices", ttl=service.TTL) as term:
            try:
                async with asyncio.timeout(0.5):
                    await worker.invoices(term, service.sessions)
            except StaleFenceError:
                pass
            except TimeoutError:
                wrong.append("term: a late write was not refused")


if __name__ == "__main__":
    asyncio.run(main())
