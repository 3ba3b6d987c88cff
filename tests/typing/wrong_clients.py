"""What is no client, as type checkers see it. Checked by mypy and pyright, and never run.

Each ignored line is an error to both: mypy and pyright tell of an ignore that nothing needs. No line depends
on whether valkey-py is installed.
"""
# pyright: reportUnnecessaryTypeIgnoreComment=true

from __future__ import annotations

from typing import assert_type

import redis
import valkey
from fastapi import FastAPI
from redis.asyncio import Redis, RedisCluster
from valkey.asyncio import Valkey, ValkeyCluster

from aiolocks import (
    Batch,
    Combiner,
    FairLock,
    FencedRegister,
    Latch,
    Leadership,
    Limits,
    Lock,
    MultiLock,
    RangeLock,
    RateLimit,
    Redlock,
    ReentrantLock,
    RWLock,
    Schedule,
    Semaphore,
    Session,
    SingleFlight,
    Turnstile,
    UniqueJob,
    sync,
)
from aiolocks.contrib.fastapi import session_lifespan
from aiolocks.contrib.idempotency.fastapi import idempotent_route
from aiolocks.contrib.redis_py import Lock as RedisPyLock


def clients(
    one: Redis, cluster: RedisCluster, other: Valkey, others: ValkeyCluster, session: Session
) -> None:
    Lock(one, "a")
    Lock(cluster, "a")
    Lock(other, "a")
    Lock(others, "a")
    Lock(session, "a")
    Session(cluster)
    Session.from_url("redis://")
    Session.from_url(lambda: Redis(port=1))
    Session.from_url(Redis)
    sync.Session(lambda: Valkey(port=1))
    Redlock([one, session, other], "a")
    RedisPyLock(cluster, "a")
    FastAPI(lifespan=session_lifespan(one))
    FastAPI(lifespan=session_lifespan(others))
    FastAPI(lifespan=session_lifespan(session))
    FastAPI(lifespan=session_lifespan("redis://"))
    FastAPI(lifespan=session_lifespan(lambda: Redis(port=1)))


def a_str() -> None:
    Lock("redis://x", "a")  # type: ignore[arg-type]
    FairLock("redis://x", "a")  # type: ignore[arg-type]
    ReentrantLock("redis://x", "a")  # type: ignore[arg-type]
    MultiLock("redis://x", ["a"])  # type: ignore[arg-type]
    Semaphore("redis://x", "a", 3)  # type: ignore[arg-type]
    Limits("redis://x", "a", {"b": 1})  # type: ignore[arg-type]
    RWLock("redis://x", "a")  # type: ignore[arg-type]
    RangeLock("redis://x", "a")  # type: ignore[arg-type]
    Redlock(["redis://x", "redis://y", "redis://z"], "a")  # type: ignore[list-item]
    RateLimit("redis://x", "a", 1, 1)  # type: ignore[arg-type]
    Latch("redis://x", "a", 3)  # type: ignore[arg-type]
    Turnstile("redis://x", "a")  # type: ignore[arg-type]
    SingleFlight("redis://x")  # type: ignore[arg-type]
    UniqueJob("redis://x", "a")  # type: ignore[arg-type]
    Combiner("redis://x", "a")  # type: ignore[arg-type]
    Leadership("redis://x", "a")  # type: ignore[arg-type]
    Schedule("redis://x", "a", every=1)  # type: ignore[arg-type]
    FencedRegister("redis://x", "a")  # type: ignore[arg-type]
    Session("redis://x")  # type: ignore[arg-type]
    RedisPyLock("redis://x", "a")  # type: ignore[arg-type]


def a_synchronous_client(
    one: redis.Redis, cluster: redis.RedisCluster, other: valkey.Valkey, others: valkey.ValkeyCluster
) -> None:
    Lock(one, "a")  # type: ignore[arg-type]
    Lock(cluster, "a")  # type: ignore[arg-type]
    Lock(other, "a")  # type: ignore[arg-type]
    Lock(others, "a")  # type: ignore[arg-type]
    Session(one)  # type: ignore[arg-type]
    Session.from_url(lambda: redis.Redis(port=1))  # type: ignore[arg-type, return-value]
    sync.Session(redis.Redis)  # type: ignore[arg-type]
    session_lifespan(one)  # type: ignore[arg-type]
    idempotent_route(scope=lambda: "a", client=one)  # type: ignore[arg-type]


def something_else(one: Redis, session: sync.Session, maybe: Redis | None) -> None:
    Lock(None, "a")  # type: ignore[arg-type]
    Lock(maybe, "a")  # type: ignore[arg-type]
    Lock(session, "a")  # type: ignore[arg-type]
    Lock(Redis, "a")  # type: ignore[arg-type]
    Lock("a", one)  # type: ignore[arg-type]
    Session(Session(one))  # type: ignore[arg-type]
    session_lifespan(None)  # type: ignore[arg-type]


async def a_decorated_combiner(one: Redis) -> None:
    @Combiner(one, "pages:{site}")
    async def sync_pages(batch: Batch) -> int:
        return len(batch.items)

    assert_type(await sync_pages(3, site="a"), int)
    await sync_pages(3, 3)  # type: ignore[call-arg]
    await sync_pages()  # type: ignore[call-arg]
    await Combiner(one, "pages:{site}").drain(sync_pages, site="a")
