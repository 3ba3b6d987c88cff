"""A request whose answer cannot be kept, or is not known, is never done again in silence."""

from __future__ import annotations

import asyncio
import json
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from redis.asyncio import Redis
from starlette.responses import PlainTextResponse

from aiolocks import Session
from aiolocks.contrib.idempotency import IdempotencyMiddleware, Stored, _once
from aiolocks.contrib.idempotency._kept import Kept
from tests.adversity.tools import asleep
from tests.conftest import Connect, OwnServer
from tests.contrib import tills
from tests.contrib.asgi import ask
from tests.contrib.tills import CHUNK, Serves, Till, each, reason, sent
from tests.support.waiting import eventually


@pytest.mark.leaves_keys("*:turnstile*")
@each
async def test_an_answer_that_cannot_be_kept_is_given_once_and_never_done_again(
    serves: Serves, session: Session, http: httpx.AsyncClient
) -> None:
    till = Till()
    async with serves(till, session, max_answer=25_000) as url:
        first = await sent(http, url, "stream")
        assert (first.status_code, first.content) == (200, CHUNK * 10)

        async def has_ended() -> bool:  # the client has the last byte a moment earlier
            return reason(await sent(http, url, "stream")) != (409, "running")

        await eventually(has_ended, within=5)
        for _ in range(2):
            assert reason(await sent(http, url, "stream")) == (409, "not-kept")
        assert till.rung_up == 1


@pytest.mark.parametrize("serves", [tills.asgi, tills.fastapi], ids=lambda it: it.__name__)
async def test_a_stream_that_is_short_enough_is_kept(
    serves: Serves, session: Session, http: httpx.AsyncClient
) -> None:
    till = Till()
    async with serves(till, session, max_answer=100_000) as url:
        first = await sent(http, url, "stream")
        assert first.content == CHUNK * 10
        again = await sent(http, url, "stream")
        assert (again.status_code, again.content) == (200, CHUNK * 10)
        assert till.rung_up == 1


@pytest.mark.leaves_keys("*:turnstile*")
@each
async def test_an_answer_that_redis_does_not_take_is_not_made_again(
    serves: Serves, connect: Connect, http: httpx.AsyncClient, prefix: str
) -> None:
    till = Till()
    async with Session(connect(), prefix=prefix, largest_value=50) as small, serves(till, small) as url:
        first = await sent(http, url, "ok")
        assert first.status_code == 201
        assert reason(await sent(http, url, "ok")) == (409, "not-kept")
        assert till.rung_up == 1


@pytest.mark.leaves_keys("*:turnstile*")
@each
async def test_a_run_whose_end_nobody_knows_is_refused(
    serves: Serves,
    session: Session,
    http: httpx.AsyncClient,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    till = Till()
    async with serves(till, session) as url, serves(till, session, on_crash="run") as careless:
        with monkeypatch.context() as patch:
            # As a process that dies between effect and record: nobody notes its end, nor its answer.
            patch.setattr(_once._Attempt, "_uncount", forgets)
            assert (await sent(http, url, "raise")).status_code == 500
        for _ in range(2):
            crashed = await sent(http, url, "raise")
            assert reason(crashed) == (409, "crashed")
            assert "retry-after" not in crashed.headers
        assert till.rung_up == 1
        assert (await sent(http, careless, "raise")).status_code == 500
        assert till.rung_up == 2


async def forgets(attempt: Any) -> None:
    pass


@each
@pytest.mark.parametrize("announced", [False, True])
async def test_a_body_of_100_mb_does_not_fill_the_memory(
    serves: Serves, session: Session, http: httpx.AsyncClient, announced: bool
) -> None:
    till, part, number = Till(), b" " * 500_000, 200

    async def parts() -> AsyncIterator[bytes]:
        for _ in range(number):
            yield part

    async with serves(till, session, max_body=100_000) as url:
        headers = {"Idempotency-Key": "k"}
        if announced:
            headers["Content-Length"] = str(number * len(part))
        tracemalloc.start()
        try:
            answer = await http.post(f"{url}/pay", content=parts(), headers=headers)
            assert reason(answer) == (413, "too-long")
        except httpx.TransportError:
            pass  # the server has closed the connection of a client that was still sending
        finally:
            _, most = tracemalloc.get_traced_memory()
            tracemalloc.stop()
        assert most < 10_000_000
        assert till.rung_up == 0
        longest = json.dumps({"do": "ok"}).ljust(100_000)
        answer = await http.post(f"{url}/pay", content=longest, headers={"Idempotency-Key": "k"})
        assert answer.status_code == 201


@each
async def test_without_redis_nothing_is_done(
    serves: Serves, own_server: OwnServer, connect: Connect, http: httpx.AsyncClient
) -> None:
    till = Till()
    server = await own_server()
    async with Session(connect(server)) as session, serves(till, session, ttl=1) as url:
        server.kill()
        refused = await sent(http, url, "ok")
        assert reason(refused) == (503, "unavailable")
        assert refused.headers["retry-after"] == "1"
        assert till.rung_up == 0


@each
async def test_with_a_store_no_work_stands_without_a_record(
    serves: Serves, session: Session, http: httpx.AsyncClient
) -> None:
    till, store = Till(), Memory()
    async with serves(till, session, store=store, max_answer=25_000) as url:
        if serves is tills.aiohttp:  # its handlers send their answers themselves: what was answered is done
            assert (await sent(http, url, "stream")).content == CHUNK * 10
            assert reason(await sent(http, url, "stream")) == (409, "not-kept")
        else:
            assert reason(await sent(http, url, "stream")) == (500, "answer-too-long")
        sizes = len(store.records)
        assert (sizes, store.undone) == ((1, 0) if serves is tills.aiohttp else (0, 1))
        for _ in range(2):
            assert (await sent(http, url, "ok", "l")).content == b"receipt 2 \0\xff"
        assert (len(store.records), till.rung_up) == (sizes + 1, 2)


@each
async def test_a_failure_that_was_waited_for_in_another_process_may_be_tried_again(
    serves: Serves, session: Session, connect: Connect, http: httpx.AsyncClient, prefix: str
) -> None:
    till = Till()
    async with Session(connect(), prefix=prefix) as other:
        async with serves(till, session) as url, serves(till, other, wait=20) as there:
            first = asyncio.create_task(sent(http, url, "burn"))
            await eventually(lambda: till.rung_up == 1, within=5)
            second = asyncio.create_task(sent(http, there, "burn"))
            await eventually(lambda: asleep(other), within=5)
            till.closed.set()
            assert (await first).status_code == 500
            assert reason(await second) == (503, "failed")
            assert (await second).headers["retry-after"] == "1"
            assert (await sent(http, there, "burn")).status_code == 500
            assert till.rung_up == 2


# -- how much is kept


@pytest.mark.leaves_keys("*:turnstile*")
@pytest.mark.parametrize("size", [70_000, 60_000])
async def test_64_kib_are_kept_where_nothing_else_is_said(session: Session, size: int) -> None:
    app = IdempotencyMiddleware(Sized(size), session, scope=of_header)
    assert [await status(app, "k") for _ in range(2)] == [200, 409 if size == 70_000 else 200]


async def test_a_store_keeps_longer_answers(session: Session) -> None:
    app = IdempotencyMiddleware(Sized(500_000), session, scope=of_header, store=Memory())
    assert [await status(app, "k") for _ in range(2)] == [200, 200]


@pytest.mark.leaves_keys("*:turnstile*")
async def test_one_caller_does_not_fill_the_server(
    session: Session, redis: Redis, prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    long = IdempotencyMiddleware(Sized(50_000), session, scope=of_header, max_kept=1_000_000)
    short = IdempotencyMiddleware(Sized(500), session, scope=of_header, max_kept=1_000)
    for number in range(60):  # each is answered
        assert await status(long, f"k{number}") == 200
        assert await status(short, f"s{number}") == 200
    kept = sum([await redis.memory_usage(key, samples=0) async for key in redis.scan_iter(f"{prefix}:*")])
    assert kept < 1_500_000
    assert [await status(long, f"k{number}") for number in (0, 59)] == [200, 409]
    assert (await status(short, "s59")) == 200  # where a record is hardly longer than the mark in its place
    assert await status(long, "k59", user="another") == 200
    assert await status(long, "k59", user="another") == 200
    assert "its user has max_kept=1000000 bytes of answers" in caplog.text


def test_what_is_kept_ends_with_time() -> None:
    kept = Kept(most=1000, keep=100.0)
    assert [kept.add("a", 600, now) for now in (0.0, 1.0, 30.0, 31.0)] == [True, False, True, False]
    assert kept.add("b", 1000, 31.0)
    for number in range(20_000):
        kept.add(f"{number}", 1, 31.0)
    assert len(kept) <= 10_000


@pytest.mark.parametrize("what", ["fastapi", "aiohttp"])
async def test_the_records_may_be_on_another_server(
    session: Session,
    own_server: OwnServer,
    connect: Connect,
    http: httpx.AsyncClient,
    redis: Redis,
    what: str,
) -> None:
    till, there = Till(), connect(await own_server())
    async with Session(there) as records, getattr(tills, what)(till, session, client=records) as url:
        assert [(await sent(http, url, "ok")).content for _ in range(2)] == [b"receipt 1 \0\xff"] * 2
        assert [key async for key in there.scan_iter("*idempotency*")] != []
    assert [key async for key in redis.scan_iter("*idempotency*")] == []


class Sized:
    """An ASGI application with answers of a size."""

    def __init__(self, size: int) -> None:
        self._size = size

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await PlainTextResponse("x" * self._size)(scope, receive, send)


def of_header(scope: Any) -> str:
    return str(dict(scope["headers"]).get(b"x-user", b"me").decode())


async def status(app: Any, key: str, user: str = "me") -> int:
    return (await ask(app, "/", method="POST", headers={"Idempotency-Key": key, "X-User": user})).status


class Memory:
    """A store as a user may write one."""

    def __init__(self) -> None:
        self.records: dict[str, Stored] = {}
        self.undone = 0

    async def find(self, key: str) -> Stored | None:
        return self.records.get(key)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Memory]:
        before = len(self.records)
        try:
            yield self
        finally:
            self.undone += len(self.records) == before

    async def commit(self, key: str, record: Stored, *, keep: float) -> None:
        assert key not in self.records
        self.records[key] = record
