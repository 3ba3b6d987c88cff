"""The application, for FastAPI. Each worker process has one session, which all its locks share.

A lock keeps others out while its holder lives. A process that stands still for longer than `TTL` loses its
locks and does not know. So each transaction begins with `fence`, and the database refuses what comes late.
"""

import asyncio
import base64
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable, MutableMapping
from contextlib import asynccontextmanager
from typing import Annotated, Any

from fastapi import APIRouter, Depends, FastAPI, Header, HTTPException, Request
from fastapi.responses import JSONResponse, PlainTextResponse
from prometheus_client import generate_latest
from pydantic import BaseModel, Field
from sqlalchemy import func, select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine

from aiolocks import Batch, Combiner, Lease, Lock, RangeLock, RWLock, Session, SingleFlight, name_of
from aiolocks.contrib import dashboard
from aiolocks.contrib.fastapi import (
    Limited,
    Locked,
    RateLimited,
    health,
    install_error_handlers,
    session_lifespan,
)
from aiolocks.contrib.idempotency.fastapi import idempotent_route
from aiolocks.contrib.idempotency.sqlalchemy import SQLAlchemyStore
from aiolocks.contrib.prometheus import PrometheusListener
from aiolocks.contrib.sqlalchemy import fence

from .settings import DATABASE, OPERATOR, REDIS, TTL
from .tables import Account, Base, BookedHour, Booking, Change, Order, Parcel, Payment, Setting

engine = create_async_engine(DATABASE)
sessions = async_sessionmaker(engine)
store = SQLAlchemyStore(sessions, metadata=Base.metadata)  # its table is one of ours

metrics = PrometheusListener(
    names=["order:*", "account:*", "room:*", "exports", "settings", "prices", "sync:*"]
)
locks = Session.from_url(REDIS, prefix="shop", listeners=[metrics], metadata={"service": "shop"})


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncGenerator[None, None]:
    """Closes the connections to the database when the last request is done."""
    yield
    await engine.dispose()


app = FastAPI(
    title="Shop",
    # The server cancels or kills what runs after 5 s.
    lifespan=session_lifespan(locks, lifespan=lifespan, close=True, close_after_sigterm=4),
)
install_error_handlers(app)


@app.exception_handler(DBAPIError)
async def try_again(_: Request, __: Exception) -> JSONResponse:
    """A transaction that was not committed: nothing was done."""
    return JSONResponse({"detail": "try again"}, 503, {"Retry-After": "1"})


async def customer(authorization: Annotated[str, Header()] = "") -> str:
    """Says who asks. A service of yours looks the token up."""
    if not authorization.startswith("Bearer "):
        raise HTTPException(401)
    return authorization.removeprefix("Bearer ")


Customer = Annotated[str, Depends(customer)]


@app.post("/orders/{order_id}/parcels", status_code=201)
async def pack(
    order_id: int, lease: Annotated[Lease, Locked("order:{order_id}", ttl=TTL, blocking_timeout=2 * TTL)]
) -> dict[str, int]:
    """Packs one more parcel of an order."""
    async with sessions() as transaction, transaction.begin():
        await fence(transaction, lease)  # first: it takes the place of `BEGIN`
        order = await transaction.get(Order, order_id) or Order(id=order_id, parcels=0)
        await asyncio.sleep(0.02)  # two at a time would count one parcel
        order.parcels += 1
        transaction.add(order)
        await transaction.flush()
        transaction.add(parcel := Parcel(order_id=order_id))
        await transaction.flush()
        return {"parcel": parcel.id, "parcels": order.parcels}


payments = APIRouter(
    route_class=idempotent_route(scope=customer, required=True, store=store, ttl=TTL, wait=1.0)
)


class Cents(BaseModel):
    """A client's order to pay."""

    reference: str
    cents: Annotated[int, Field(gt=0)]


@payments.post("/payments", status_code=201)
async def pay(
    order: Cents, payer: Customer, transaction: Annotated[AsyncSession, Depends(store.session)]
) -> dict[str, int]:
    """Takes a payment once, however often its client sends it."""
    name = name_of("account:{payer}", payer=payer)
    async with Lock(locks, name, ttl=TTL, blocking_timeout=2 * TTL) as lease:
        await fence(transaction, lease)
        account = await transaction.get(Account, payer) or Account(customer=payer, cents=0)
        account.cents += order.cents
        payment = Payment(customer=payer, reference=order.reference, cents=order.cents)
        transaction.add_all([account, payment])
        await transaction.flush()
    # The transaction is committed with the record of this answer. Until then the next payment of this payer,
    # which may have the lock already, waits in its fence.
    return {"payment": payment.id, "paid": account.cents}


app.include_router(payments)

flight = SingleFlight(locks, ttl=TTL, keep=1, stale=30)


@app.get("/prices", dependencies=[RateLimited("prices:{client}", 100, per=1)])
async def prices() -> dict[str, int]:
    """The price list: one process reads it, at most once a second."""

    async def read() -> dict[str, int]:
        async with sessions() as database:
            return {row.name: row.value for row in await database.scalars(select(Setting))}

    return await flight.do("prices", read)


async def of_the_tenant(tenant: Customer) -> dict[str, int]:
    """The keys of a request: of all tenants together, and of this one."""
    return {"all": 4, name_of("tenant:{tenant}", tenant=tenant): 1}


@app.post(
    "/exports", dependencies=[Limited("exports", of_the_tenant, total="all", ttl=TTL, blocking_timeout=TTL)]
)
async def export() -> dict[str, str]:
    """Exports: four at a time, and one of each tenant."""
    await asyncio.sleep(0.02)
    return {"export": "done"}


@Combiner(locks, "sync:{account}", ttl=TTL, retry=2)
async def synchronise(batch: Batch) -> int:
    """All that was left for an account until it begins, in one call of its slow service."""
    async with sessions() as transaction, transaction.begin():
        await fence(transaction, batch.lease)  # a run that was frozen writes nothing beside the next one
        known = select(Change.id).where(Change.id.in_([change["id"] for change in batch.items]))
        done = {*await transaction.scalars(known)}  # by a run that died before it could say so
        await asyncio.sleep(0.02)
        for change in batch.items:
            if change["id"] not in done:
                row = Change(id=change["id"], account=change["account"], run=batch.fencing_token)
                transaction.add(row)
                done.add(row.id)
    return batch.number


@app.post("/accounts/{account}/webhooks", status_code=201)
async def webhook(account: int, change: str) -> dict[str, int]:
    """A change of an account: answered when it was synchronised, with those that came meanwhile."""
    return {"batch": await synchronise({"id": change, "account": account}, account=account)}


class Hours(BaseModel):
    """A wish, from one hour to another."""

    begin: Annotated[int, Field(ge=0)]
    end: int


rooms = {
    number: RangeLock(locks, name_of("room:{number}", number=number), ttl=TTL, blocking_timeout=2 * TTL)
    for number in range(3)
}


@app.post("/rooms/{number}/bookings", status_code=201)
async def book(number: int, wish: Hours) -> dict[str, int]:
    """Books a room. Bookings of other hours go on at the same time."""
    if number not in rooms or not 0 < wish.end - wish.begin <= 24:
        raise HTTPException(422)
    hours = rooms[number].writer(wish.begin, wish.end)
    async with hours as lease, sessions() as transaction, transaction.begin():
        overlap = (Booking.room == number) & (Booking.begin < wish.end) & (Booking.end > wish.begin)
        if await transaction.scalar(select(func.count()).select_from(Booking).where(overlap)):
            raise HTTPException(409, "the room is taken")
        transaction.add(booking := Booking(room=number, begin=wish.begin, end=wish.end))
        await transaction.flush()
        for hour in range(wish.begin, wish.end):  # a fence is for locks that exclude all others
            transaction.add(BookedHour(room=number, hour=hour, booking_id=booking.id))
        lease.ensure_held()
        return {"booking": booking.id}


settings = RWLock(locks, "settings", ttl=TTL, blocking_timeout=2 * TTL)


@app.get("/quote")
async def quote() -> dict[str, int]:
    """A price that is made in two steps: no change of the configuration comes between them."""
    async with settings.reader:
        found: dict[str, int] = {}
        for name in ("price", "shipping"):
            async with sessions() as database:
                found[name] = (await database.get_one(Setting, name)).value
        return found


@app.put("/settings")
async def change(value: int) -> dict[str, int]:
    """Changes the configuration, when no quote is being made."""
    async with settings.writer as lease, sessions() as transaction, transaction.begin():
        await fence(transaction, lease)
        for name in ("price", "shipping"):
            (await transaction.get_one(Setting, name)).value = value
        return {"value": value}


@app.get("/metrics")
async def measured() -> PlainTextResponse:
    """The metrics of this worker process; see the documentation of prometheus_client for those of all."""
    return PlainTextResponse(generate_latest())


app.get("/ready")(health())  # whether this process can hold locks


Scope = MutableMapping[str, Any]
Application = Callable[[Scope, Any, Callable[[Any], Awaitable[None]]], Awaitable[None]]


class OperatorOnly:
    """Stands before an application: asks for the name and the password of the operator."""

    def __init__(self, inner: Application, operator: str) -> None:
        self._inner = inner
        self._expected = b"Basic " + base64.b64encode(operator.encode()) if operator else None

    async def __call__(self, scope: Scope, receive: Any, send: Callable[[Any], Awaitable[None]]) -> None:
        """Serves the operator alone."""
        given = dict(scope["headers"]).get(b"authorization", b"") if scope["type"] == "http" else b""
        if self._expected is None or not secrets.compare_digest(given, self._expected):
            asks = [(b"www-authenticate", b'Basic realm="locks"')]
            await send({"type": "http.response.start", "status": 401, "headers": asks})
            await send({"type": "http.response.body", "body": b"operators only"})
            return
        await self._inner(scope, receive, send)


app.mount("/locks", OperatorOnly(dashboard.app(locks), OPERATOR))
