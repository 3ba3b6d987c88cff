"""The service, an application for FastAPI.

Three things could go wrong with a payment, and each is kept from it in its own way:

- its client sends it again, because the answer was lost: the route has idempotency keys, and the record of
  an answer is committed with the payment;
- two payments of one payer read the same balance: each holds the lock of the payer's account;
- a process stands still for so long that it loses this lock, and then goes on: its transaction begins with a
  fence, and so the database refuses what it commits late.
"""

import asyncio
import os
import random
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Annotated, Any

from fastapi import APIRouter, Depends, FastAPI, Header, HTTPException, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine

from aiolocks import Lock, LockError, Session, SingleFlight, name_of
from aiolocks.contrib.fastapi import current_session, session_lifespan
from aiolocks.contrib.idempotency.fastapi import idempotent_route
from aiolocks.contrib.idempotency.sqlalchemy import SQLAlchemyStore
from aiolocks.contrib.sqlalchemy import fence

from .ledger import Base, balance, book

TTL = float(os.environ.get("PAYMENTS_TTL", "5"))
"""Seconds after which the lock of a process that has died is free again."""

engine = create_async_engine(os.environ["PAYMENTS_DATABASE"])
sessions = async_sessionmaker(engine)
store = SQLAlchemyStore(sessions, metadata=Base.metadata)  # its table is one of ours


async def customer(authorization: Annotated[str, Header()] = "") -> str:
    """Says who asks. A service of yours looks the token up."""
    if not authorization.startswith("Bearer "):
        raise HTTPException(401)
    return authorization.removeprefix("Bearer ")


Customer = Annotated[str, Depends(customer)]
Locks = Annotated[Session, Depends(current_session)]
Transaction = Annotated[AsyncSession, Depends(store.session)]

router = APIRouter(
    route_class=idempotent_route(scope=customer, required=True, store=store, ttl=TTL, wait=1.0)
)


class Order(BaseModel):
    """A client's order to pay."""

    reference: str
    payee: str
    cents: Annotated[int, Field(gt=0)]


@router.post("/payments", status_code=201)
async def pay(order: Order, payer: Customer, transaction: Transaction, locks: Locks) -> dict[str, Any]:
    """Makes a payment, if the payer has the money."""
    account = name_of("account:{payer}", payer=payer)
    async with Lock(locks, account, ttl=TTL, blocking_timeout=2 * TTL) as lease:
        await fence(transaction, lease)  # first: it takes the place of `BEGIN`
        left = await balance(transaction, payer) - order.cents
        if left < 0:
            raise HTTPException(402, "there is not enough money in the account")
        await check_for_fraud()
        token = lease.fencing_token
        payment = await book(transaction, order.reference, payer, order.payee, order.cents, token=token)
    # The transaction is committed with the record of this answer. Until then the next payment of this payer,
    # which may have the lock already, waits in its fence.
    return {"payment": payment.id, "left": left}


async def check_for_fraud() -> None:
    """Stands for a request to another service, which takes a while."""
    await asyncio.sleep(random.uniform(0.005, 0.05))


reads = APIRouter()


@reads.get("/statement")
async def statement(account: Customer, locks: Locks) -> dict[str, int]:
    """The balance: of an account that is asked for often, it is about a second old."""

    async def look() -> int:
        async with sessions() as session:
            return await balance(session, account)

    flight = SingleFlight(locks, ttl=TTL, keep=1, stale=30)
    return {"cents": await flight.do(name_of("statement:{account}", account=account), look)}


@reads.get("/health")
async def health() -> dict[str, int]:
    """Which process answers."""
    return {"worker": os.getpid()}


async def try_again(_: Request, __: Exception) -> JSONResponse:
    """A lock that was not had or was lost, or a transaction that was not committed: nothing was paid."""
    return JSONResponse({"detail": "try again with the same key"}, 503, {"Retry-After": "1"})


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncGenerator[None, None]:
    """Closes the connections to the database at the end."""
    yield
    await engine.dispose()


app = FastAPI(
    title="Payments",
    lifespan=session_lifespan(os.environ["PAYMENTS_REDIS"], prefix="payments", lifespan=lifespan),
    exception_handlers={LockError: try_again, DBAPIError: try_again},
)
app.include_router(router)
app.include_router(reads)
