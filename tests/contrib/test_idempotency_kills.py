"""Clients that send again, and processes that are killed in the midst of it: how often is each key paid?"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import httpx
import pytest
import sqlalchemy as sa
from redis.asyncio import Redis

from tests.contrib.ledgers import METADATA, database, payments, serve_payments, store_of
from tests.support.postgres import postgres_url, running_postgres
from tests.support.processes import Worker, Workers
from tests.support.servers import Server

TTL = 1.0

log = logging.getLogger("tests.kills")

Whole = tuple[int, tuple[tuple[bytes, bytes], ...], bytes]


class Fleet:
    """The processes of a service, one of which is killed now and then, and another started in its place.

    Invariant: `urls` are those of the processes that live, as far as anybody knows.
    """

    def __init__(self, workers: Workers, size: int, **arguments: Any) -> None:
        self._workers = workers
        self._size = size
        self._arguments = arguments
        self._serving: dict[str, Worker] = {}
        self.kills = 0

    @property
    def urls(self) -> list[str]:
        return list(self._serving)

    async def start(self) -> None:
        started = await self._workers.start_many(self._size, serve_payments, **self._arguments)
        for worker in started:
            await self._serves(worker)

    async def _serves(self, worker: Worker) -> None:
        self._serving[(await worker.told("serves", within=120))["url"]] = worker

    async def lose_one(self) -> None:
        """Kills one of the processes, and starts another in its place."""
        self._serving.pop(random.choice(self.urls)).kill()
        self.kills += 1
        await self._serves(await self._workers.start(serve_payments, **self._arguments))


class Clients:
    """Those who pay, and send again until they have an answer.

    Attributes:
        paid: The answers with status 201, by key.
        refused: The answers with another status that is final, by key.
    """

    def __init__(self, fleet: Fleet, http: httpx.AsyncClient) -> None:
        self._fleet = fleet
        self._http = http
        self.paid: dict[str, list[Whole]] = defaultdict(list)
        self.refused: dict[str, list[int]] = defaultdict(list)
        self.sent = 0

    async def pay(self, key: str) -> None:
        until = time.monotonic() + 200
        while time.monotonic() < until:
            await asyncio.sleep(random.uniform(0, 0.1))
            if not self._fleet.urls:
                continue
            self.sent += 1
            url = random.choice(self._fleet.urls)
            try:
                answer = await self._http.post(url, content=key, headers={"Idempotency-Key": key})
            except httpx.TransportError:
                continue
            if answer.status_code == 201:
                others = (b"date", b"idempotent-replayed")
                headers = tuple(pair for pair in answer.headers.raw if pair[0].lower() not in others)
                self.paid[key].append((201, headers, answer.content))
                return
            reason = answer.json()["reason"]
            if reason == "crashed":
                self.refused[key].append(answer.status_code)
                return
            assert reason in ("running", "failed", "unavailable"), answer.text
        raise AssertionError(f"{key} has no answer")

    async def pay_all(self, keys: int, duplicates: int, *, kills: int) -> None:
        """In as many rounds as processes are killed, one in the midst of each."""

        async def pay(key: str) -> None:
            await asyncio.sleep(random.uniform(0, 0.5))
            await self.pay(key)

        async def kill() -> None:
            await asyncio.sleep(random.uniform(0.1, 0.8))
            await self._fleet.lose_one()

        names = [f"key-{number}" for number in range(keys)]
        for round_ in range(kills):
            async with asyncio.TaskGroup() as group:
                group.create_task(kill())
                for key in names[round_::kills] * duplicates:
                    group.create_task(pay(key))

    def assert_alike(self) -> None:
        for key, answers in self.paid.items():
            assert len(set(answers)) == 1, key


@pytest.mark.long
@pytest.mark.leaves_keys
async def test_without_a_store_no_key_is_paid_twice(
    server: Server, redis: Redis, workers: Workers, http: httpx.AsyncClient
) -> None:
    await pay_without_a_store(server, redis, workers, http, size=2, keys=12, duplicates=5, kills=1)


@pytest.mark.soak
@pytest.mark.timeout(1200)
@pytest.mark.leaves_keys
async def test_without_a_store_no_key_is_paid_twice_however_often(
    server: Server, redis: Redis, workers: Workers, http: httpx.AsyncClient
) -> None:
    await pay_without_a_store(server, redis, workers, http, size=4, keys=100, duplicates=10, kills=25)


async def pay_without_a_store(
    server: Server,
    redis: Redis,
    workers: Workers,
    http: httpx.AsyncClient,
    *,
    size: int,
    keys: int,
    duplicates: int,
    kills: int,
) -> None:
    fleet = Fleet(workers, size, redis_url=server.url, database_url=None, ttl=TTL)
    await fleet.start()
    clients = Clients(fleet, http)
    try:
        await clients.pay_all(keys, duplicates, kills=kills)
        paid: dict[str, int] = defaultdict(int)
        for key in await redis.lrange("payments", 0, -1):
            paid[key.decode()] += 1
    finally:
        await redis.delete("payments")
    log.info("%s requests, %s kills, %s keys refused", clients.sent, fleet.kills, len(clients.refused))
    clients.assert_alike()
    assert {key: count for key, count in paid.items() if count > 1} == {}
    assert set(clients.paid) <= set(paid)
    assert len(clients.paid) + len(set(clients.refused) - set(clients.paid)) == keys


@pytest.mark.long
@pytest.mark.leaves_keys
async def test_with_a_store_each_key_is_paid_exactly_once(
    server: Server, workers: Workers, http: httpx.AsyncClient, tmp_path: Path
) -> None:
    url = f"sqlite+aiosqlite:///{tmp_path / 'test.db'}"
    await pay_with_a_store(server, url, workers, http, size=2, keys=12, duplicates=5, kills=1)


@pytest.mark.soak
@pytest.mark.timeout(1200)
@pytest.mark.leaves_keys
@pytest.mark.parametrize("kind", ["postgresql", "sqlite"])
async def test_with_a_store_each_key_is_paid_exactly_once_however_often(
    kind: str, server: Server, workers: Workers, http: httpx.AsyncClient, tmp_path: Path
) -> None:
    size: dict[str, Any] = {"size": 4, "keys": 100, "duplicates": 10, "kills": 25}
    if kind == "sqlite":
        await pay_with_a_store(server, f"sqlite+aiosqlite:///{tmp_path / 'test.db'}", workers, http, **size)
        return
    with running_postgres() as socket:
        await pay_with_a_store(server, postgres_url(socket, "asyncpg"), workers, http, **size)


async def pay_with_a_store(
    server: Server,
    url: str,
    workers: Workers,
    http: httpx.AsyncClient,
    *,
    size: int,
    keys: int,
    duplicates: int,
    kills: int,
) -> None:
    async with database(url) as engine:
        async with engine.begin() as connection:
            await connection.run_sync(METADATA.create_all)
            await store_of(engine).create(connection)
        fleet = Fleet(workers, size, redis_url=server.url, database_url=url, ttl=TTL)
        await fleet.start()
        clients = Clients(fleet, http)
        await clients.pay_all(keys, duplicates, kills=kills)
        paid = await payments(engine)
        async with engine.connect() as connection:
            records = await connection.scalar(sa.select(sa.func.count()).select_from(store_of(engine).table))
    log.info("%s requests, %s kills", clients.sent, fleet.kills)
    clients.assert_alike()
    assert not clients.refused
    assert paid == {f"key-{number}": 1 for number in range(keys)}
    assert {len(answers) for answers in clients.paid.values()} == {duplicates}
    assert records == keys
