"""A database that payments are written to, and a service that writes them, in a process of its own."""

from __future__ import annotations

import asyncio
import random
import secrets
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import sqlalchemy as sa
from redis.asyncio import Redis
from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker, create_async_engine

from aiolocks import Session
from aiolocks.contrib.idempotency import IdempotencyMiddleware
from aiolocks.contrib.idempotency.sqlalchemy import SQLAlchemyStore
from tests.contrib.serving import uvicorn_serves
from tests.support.processes import tell

METADATA = sa.MetaData()
PAYMENTS = sa.Table(
    "payments",
    METADATA,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("key", sa.String(80), nullable=False),
)


@asynccontextmanager
async def database(url: str, *, isolation: str | None = None) -> AsyncIterator[AsyncEngine]:
    options: dict[str, Any] = {} if isolation is None else {"isolation_level": isolation}
    engine = create_async_engine(url, **options)
    if "sqlite" in url:
        sa.event.listen(engine.sync_engine, "connect", _quick)
    try:
        yield engine
    finally:
        await engine.dispose()


def _quick(connection: Any, _: object) -> None:
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=OFF")
    cursor.close()


def store_of(engine: AsyncEngine) -> SQLAlchemyStore:
    return SQLAlchemyStore(async_sessionmaker(engine), metadata=sa.MetaData())


async def payments(engine: AsyncEngine) -> dict[str, int]:
    """How often each key was paid."""
    async with engine.connect() as connection:
        counts = sa.select(PAYMENTS.c.key, sa.func.count()).group_by(PAYMENTS.c.key)
        return {row[0]: row[1] for row in await connection.execute(counts)}


async def serve_payments(redis_url: str, database_url: str | None, ttl: float) -> None:
    """Pays: into the database, by the store's transaction; or, without one, into a list of Redis."""
    async with AsyncExitStack() as stack:
        redis: Redis = await stack.enter_async_context(Redis.from_url(redis_url))
        session = await stack.enter_async_context(Session(redis))
        store = None
        if database_url is not None:
            store = store_of(await stack.enter_async_context(database(database_url)))

        async def app(scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] == "lifespan":
                while (await receive())["type"] == "lifespan.startup":
                    await send({"type": "lifespan.startup.complete"})
                await send({"type": "lifespan.shutdown.complete"})
                return
            key = (await receive())["body"].decode()
            await asyncio.sleep(random.uniform(0, 0.2))
            if store is None:
                await redis.rpush("payments", key)
            else:
                await (await store.session()).execute(sa.insert(PAYMENTS).values(key=key))
            await asyncio.sleep(random.uniform(0, 0.2))
            headers = [(b"x-receipt", secrets.token_urlsafe(6).encode())]
            await send({"type": "http.response.start", "status": 201, "headers": headers})
            await send({"type": "http.response.body", "body": secrets.token_bytes(50)})

        protected = IdempotencyMiddleware(
            app, session, scope=lambda _: "me", store=store, ttl=ttl, required=True, wait=0.5
        )
        url = await stack.enter_async_context(uvicorn_serves(protected))
        tell("serves", url=url)
        await asyncio.Event().wait()
