"""The service of `examples/payments`: its workers are killed and frozen, its clients try again."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import re
import signal
import socket
import sys
import time
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import sqlalchemy as sa
from redis.asyncio import Redis
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine

from examples.payments.ledger import Entry, Payment
from tests.support.postgres import postgres_url, running_postgres
from tests.support.servers import Server
from tests.support.waiting import eventually

pytestmark = [
    pytest.mark.leaves_keys("payments:*"),
    pytest.mark.skipif(sys.platform != "linux", reason="finds the workers in /proc"),
]

ROOT = Path(__file__).parents[2]
ACCOUNTS = ("ann", "bob", "cid")
CENTS = 3_000
"""In each account to begin with: too little for all payments."""
TTL = 1.0

log = logging.getLogger("tests.payments")

Answer = tuple[int, bytes]


class Service:
    """The service as its users start it: one process that minds two workers."""

    def __init__(self, pid: int, url: str) -> None:
        self._pid = pid
        self.url = url
        self.kills = self.freezes = 0

    async def answers(self) -> bool:
        with contextlib.suppress(httpx.TransportError):
            async with httpx.AsyncClient(timeout=1) as http:
                return (await http.get(f"{self.url}/health")).is_success
        return False

    def workers(self) -> list[int]:
        """Those of its child processes that are no helper of multiprocessing's."""
        children = Path(f"/proc/{self._pid}/task/{self._pid}/children").read_text().split()
        found = []
        for child in children:
            with contextlib.suppress(OSError):
                if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes():
                    found.append(int(child))
        return found

    async def trouble(self, redis: Redis, until: float) -> None:
        """Freezes and kills workers in the midst of payments."""
        while time.monotonic() < until:
            worker = await self._paying(redis)
            if random.random() < 0.7:
                await self._freeze(worker)
            else:
                self._signal(worker, signal.SIGKILL)
                self.kills += 1
            await asyncio.sleep(random.uniform(0, 0.5))
            await eventually(self.answers, within=60)

    async def _paying(self, redis: Redis) -> int:
        """The worker that holds the lock of an account; any worker, if none does for a while."""
        for _ in range(200):
            for account in ACCOUNTS:
                held = await redis.get(f"payments:lock:{{account:{account}}}")
                if held is not None and (pid := re.search(rb'"pid":(\d+)', held)):
                    return int(pid[1])
            await asyncio.sleep(0.002)
        return random.choice(self.workers())

    async def _freeze(self, worker: int) -> None:
        self.freezes += 1
        self._signal(worker, signal.SIGSTOP)
        await asyncio.sleep(random.uniform(0.5, 2) * TTL)
        self._signal(worker, signal.SIGCONT)

    @staticmethod
    def _signal(worker: int, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(worker, number)


class Clients:
    """Clients that send each payment several times, and each of these again until there is an answer.

    Attributes:
        answers: The final ones, by the reference of the payment.
    """

    def __init__(self, url: str, http: httpx.AsyncClient, patience: float) -> None:
        self._url = url
        self._patience = patience
        self._http = http
        self.answers: dict[str, set[Answer]] = defaultdict(set)
        self.sent = 0

    async def pay(self, reference: str, payer: str, payee: str, cents: int) -> None:
        order = {"reference": reference, "payee": payee, "cents": cents}
        headers = {"Authorization": f"Bearer {payer}", "Idempotency-Key": f'"{reference}"'}
        async with asyncio.timeout(self._patience):
            while True:
                self.sent += 1
                with contextlib.suppress(httpx.TransportError):
                    answer = await self._http.post(f"{self._url}/payments", json=order, headers=headers)
                    if answer.status_code in (201, 402):
                        self.answers[reference].add((answer.status_code, answer.content))
                        return
                    assert answer.status_code in (409, 500, 503), answer.text
                await asyncio.sleep(random.uniform(0.05, 0.5))


@asynccontextmanager
async def served(server: Server, database: str) -> AsyncIterator[Service]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    arguments = ("--port", port, "--redis", server.url, "--database", database, "--cents", CENTS)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "examples.payments", *map(str, arguments)),
        cwd=ROOT,
        env={**os.environ, "PAYMENTS_TTL": str(TTL)},
        stderr=asyncio.subprocess.DEVNULL,  # of what is killed
        start_new_session=True,
    )
    service = Service(process.pid, f"http://127.0.0.1:{port}")
    try:

        async def starts() -> bool:
            assert process.returncode is None, "the service has ended"
            return await service.answers()

        await eventually(starts, within=60)
        assert len(service.workers()) == 2
        yield service
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


# `test_idempotency_kills.py` shows the same of a service in fewer processes.
@pytest.mark.whole
@pytest.mark.timeout(180)
async def test_the_ledger_adds_up(server: Server, redis: Redis) -> None:
    await run(server, redis, payments=30, duplicates=3, seconds=2)


@pytest.mark.soak
@pytest.mark.timeout(600)
async def test_the_ledger_adds_up_however_long_it_goes_on(server: Server, redis: Redis) -> None:
    await run(server, redis, payments=400, duplicates=3, seconds=60)


async def run(server: Server, redis: Redis, *, payments: int, duplicates: int, seconds: float) -> None:
    with running_postgres() as directory:
        database = postgres_url(directory, "asyncpg")
        # Each request has a connection of its own, to whichever worker takes it.
        alone = httpx.Limits(max_keepalive_connections=0)
        async with served(server, database) as service, httpx.AsyncClient(timeout=TTL, limits=alone) as http:
            clients = Clients(service.url, http, seconds + 60)
            ends = time.monotonic() + seconds
            at_once = asyncio.Semaphore(10)  # the work that this process can do beside the service

            async def pay(number: int) -> None:
                await asyncio.sleep(random.uniform(0, seconds))
                payer, payee = random.sample(ACCOUNTS, 2)
                order = (f"order {number}", payer, payee, random.randint(1, 1500))
                async with at_once:
                    await asyncio.gather(*(clients.pay(*order) for _ in range(duplicates)))

            async with asyncio.TaskGroup() as group:
                group.create_task(service.trouble(redis, ends))
                for number in range(payments):
                    group.create_task(pay(number))
        engine = create_async_engine(database)
        async with engine.connect() as connection:
            await check(connection, clients, payments)
        await engine.dispose()
    paid = sum(status == 201 for [(status, _)] in clients.answers.values())
    log.info(
        "%d payments, %d of them paid, %d requests, %d kills, %d freezes",
        *(payments, paid, clients.sent, service.kills, service.freezes),
    )
    assert service.kills + service.freezes > 0


async def check(connection: AsyncConnection, clients: Clients, payments: int) -> None:
    """Each answer is in the ledger, once, and nothing else."""
    assert len(clients.answers) == payments
    assert {len(answers) for answers in clients.answers.values()} == {1}  # duplicates were answered alike
    paid = {reference for reference, [(status, _)] in clients.answers.items() if status == 201}

    async def rows(*columns: Any) -> list[Any]:
        return list(await connection.execute(sa.select(*columns)))

    booked = [reference for (reference,) in await rows(Payment.reference)]
    booked = [reference for reference in booked if not reference.startswith("opening")]
    assert sorted(booked) == sorted(paid)

    entries = await rows(Entry.payment_id, Entry.account, Entry.cents)
    by_payment, by_account = defaultdict(list), defaultdict(int)
    for payment, account, cents in entries:
        by_payment[payment].append(cents)
        by_account[account] += cents
    assert {(len(cents), sum(cents)) for cents in by_payment.values()} == {(2, 0)}
    assert by_account.pop("bank") == -CENTS * len(ACCOUNTS)
    assert set(by_account) == set(ACCOUNTS)
    assert min(by_account.values()) >= 0

    # The payments of one payer were made one after the other, each under a later lease.
    tokens = defaultdict(list)
    for payment in sorted(await rows(Payment.id, Payment.payer, Payment.token)):
        tokens[payment.payer].append(payment.token)
    for payer in ACCOUNTS:
        assert tokens[payer] == sorted(set(tokens[payer])), payer
