"""Idempotency keys, in each framework, by HTTP."""

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

from aiolocks import Session
from aiolocks.contrib.idempotency import Stored, _once
from tests.conftest import Connect, OwnServer
from tests.contrib import tills
from tests.contrib.serving import HalfClient
from tests.contrib.tills import CHUNK, Serves, Till
from tests.support.waiting import eventually

each = pytest.mark.parametrize(
    "serves", [tills.asgi, tills.fastapi, tills.aiohttp], ids=lambda it: it.__name__
)


async def sent(
    http: httpx.AsyncClient,
    url: str,
    do: Any,
    key: str | None = '"k"',
    *,
    method: str = "POST",
    **headers: str,
) -> httpx.Response:
    own = {} if key is None else {"Idempotency-Key": key}
    own |= {name.replace("_", "-"): value for name, value in headers.items()}
    path = url if url.count("/") > 2 else f"{url}/pay"
    return await http.request(method, path, content=json.dumps({"do": do}), headers=own)


def whole(answer: httpx.Response) -> Any:
    """What is the same in each replay."""
    headers = [pair for pair in answer.headers.raw if pair[0].lower() != b"date"]
    return answer.status_code, headers, answer.content


def reason(answer: httpx.Response) -> tuple[int, str]:
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["status"] == answer.status_code
    return answer.status_code, answer.json()["reason"]


@each
async def test_it_is_done_once_and_answered_byte_for_byte(
    serves: Serves, session: Session, http: httpx.AsyncClient
) -> None:
    till = Till()
    async with serves(till, session) as url:
        first = await sent(http, url, "ok")
        assert (first.status_code, first.content) == (201, b"receipt 1 \0\xff")
        assert first.headers.get_list("set-cookie") == ["a=1", "b=2"]
        for key in ('"k"', "k", '"k";v=1'):
            assert whole(await sent(http, url, "ok", key)) == whole(first)
        assert till.rung_up == 1

        # Another key, another user, no key, another method: done.
        for other in ({"key": '"l"'}, {"x_user": "you"}, {"key": None}, {"method": "PUT"}):
            assert (await sent(http, url, "ok", **other)).status_code == 201
        assert till.rung_up == 5


@each
async def test_the_table_of_the_draft(serves: Serves, session: Session, http: httpx.AsyncClient) -> None:
    till = Till()
    async with serves(till, session, required=True, documentation="https://shop/keys") as url:
        missing = await sent(http, url, "ok", None)
        assert reason(missing) == (400, "missing")
        assert missing.headers["link"] == '<https://shop/keys>; rel="describedby"'
        assert reason(await sent(http, url, "ok", '"')) == (400, "malformed")
        assert till.rung_up == 0

        # Running: another one is refused, and one with another payload is told so.
        first = asyncio.create_task(sent(http, url, "wait"))
        await eventually(lambda: till.rung_up == 1, within=5)
        running = await sent(http, url, "wait")
        assert reason(running) == (409, "running")
        assert int(running.headers["retry-after"]) >= 1
        assert reason(await sent(http, url, "ok")) == (422, "reused")
        till.closed.set()
        assert (await first).status_code == 201

        # Finished: replayed, and never for another method, path or body.
        assert whole(await sent(http, url, "wait")) == whole(await first)
        assert reason(await sent(http, url, "ok")) == (422, "reused")
        assert reason(await sent(http, url, "wait", method="PATCH")) == (422, "reused")
        assert reason(await sent(http, f"{url}/refund", "wait")) == (422, "reused")
        assert reason(await sent(http, f"{url}/pay?now=1", "wait")) == (422, "reused")
        assert till.rung_up == 1


@each
@pytest.mark.parametrize("elsewhere", [False, True])
async def test_it_waits_for_the_first(
    serves: Serves, session: Session, connect: Connect, http: httpx.AsyncClient, prefix: str, elsewhere: bool
) -> None:
    till = Till()
    async with Session(connect(), prefix=prefix) as other:
        async with (
            serves(till, session, wait=20, header="Request-Id") as url,
            serves(till, other if elsewhere else session, wait=20, header="Request-Id") as there,
        ):
            first = asyncio.create_task(sent(http, url, "wait", None, request_id="k"))
            await eventually(lambda: till.rung_up == 1, within=5)
            second = asyncio.create_task(sent(http, there, "wait", None, request_id="k"))
            await asyncio.sleep(0.1)
            assert not second.done()
            till.closed.set()
            assert whole(await second) == whole(await first)
            assert till.rung_up == 1


@each
async def test_another_process_says_at_once_that_the_first_is_running(
    serves: Serves, session: Session, connect: Connect, http: httpx.AsyncClient, prefix: str
) -> None:
    till = Till()
    async with Session(connect(), prefix=prefix) as other:
        async with serves(till, session) as url, serves(till, other, retry_after=7) as there:
            first = asyncio.create_task(sent(http, url, "wait"))
            await eventually(lambda: till.rung_up == 1, within=5)
            running = await sent(http, there, "wait")
            assert reason(running) == (409, "running")
            assert running.headers["retry-after"] == "7"
            till.closed.set()
            assert whole(await first) == whole(await sent(http, there, "wait"))


@each
async def test_failures_and_refusals_to_come_again_are_not_kept(
    serves: Serves, session: Session, http: httpx.AsyncClient
) -> None:
    till = Till()
    async with serves(till, session) as url:
        for number, do in enumerate((503, 429, "raise")):
            key = f"k{number}"
            statuses = [(await sent(http, url, do, key)).status_code for _ in range(2)]
            assert statuses == [500 if do == "raise" else do] * 2
            assert till.rung_up == 2 * number + 2
        first = await sent(http, url, 404, "l")
        assert whole(await sent(http, url, 404, "l")) == whole(first)
        assert till.rung_up == 7


@each
async def test_keeps_chooses_what_is_kept(serves: Serves, session: Session, http: httpx.AsyncClient) -> None:
    till = Till()
    async with serves(till, session, keeps=lambda status: status != 404) as url:
        assert [(await sent(http, url, 404, "k")).status_code for _ in range(2)] == [404, 404]
        assert till.rung_up == 2
        assert whole(await sent(http, url, 503, "l")) == whole(await sent(http, url, 503, "l"))


@each
async def test_a_client_that_hangs_up_does_not_cancel_the_work(
    serves: Serves, session: Session, http: httpx.AsyncClient
) -> None:
    till = Till()
    async with serves(till, session) as url:
        client = HalfClient(url, "POST /pay HTTP/1.1\r\nIdempotency-Key: k\r\nX:", body=b'{"do": "wait"}')
        async with client:
            await eventually(lambda: till.rung_up == 1, within=5)
            client.hang_up()
        await asyncio.sleep(0.2)
        till.closed.set()
        await eventually(lambda: till.ended == 1, within=5)
        again = await eventually(lambda: not_running(http, url), within=5)
        assert again.content == b"receipt 1 \0\xff"
        assert till.rung_up == 1


async def not_running(http: httpx.AsyncClient, url: str) -> httpx.Response | None:
    answer = await http.post(f"{url}/pay", content=b'{"do": "wait"}', headers={"Idempotency-Key": "k"})
    return None if answer.status_code == 409 else answer


@pytest.mark.leaves_keys("*:turnstile*")
@each
async def test_an_answer_that_cannot_be_kept_is_given_once_and_never_done_again(
    serves: Serves, session: Session, http: httpx.AsyncClient
) -> None:
    till = Till()
    async with serves(till, session, max_answer=25_000) as url:
        first = await sent(http, url, "stream")
        assert (first.status_code, first.content) == (200, CHUNK * 10)
        for _ in range(2):
            assert reason(await sent(http, url, "stream")) == (409, "not-kept")
        assert till.rung_up == 1


@pytest.mark.parametrize("serves", [tills.asgi, tills.fastapi], ids=lambda it: it.__name__)
async def test_a_stream_that_is_short_enough_is_kept(
    serves: Serves, session: Session, http: httpx.AsyncClient
) -> None:
    till = Till()
    async with serves(till, session) as url:
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
    async with Session(connect(), prefix=prefix, largest_value=100) as small, serves(till, small) as url:
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
            patch.setattr(_once._Attempt, "_plain", dies)
            patch.setattr(_once._Attempt, "_uncount", forgets)
            assert (await sent(http, url, "ok")).status_code == 500
        for _ in range(2):
            crashed = await sent(http, url, "ok")
            assert reason(crashed) == (409, "crashed")
            assert "retry-after" not in crashed.headers
        assert till.rung_up == 1
        assert (await sent(http, careless, "ok")).status_code == 201
        assert till.rung_up == 2


async def dies(attempt: Any) -> Any:
    await attempt._work()
    raise RuntimeError("killed")


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
async def test_many_at_once_are_one(serves: Serves, session: Session, http: httpx.AsyncClient) -> None:
    till = Till()
    async with serves(till, session, wait=20) as url:
        answers = await asyncio.gather(*(sent(http, url, "ok", f"k{n % 5}") for n in range(50)))
        assert till.rung_up == 5
        assert len({answer.content for answer in answers}) == 5


@each
async def test_a_lost_lease_neither_cancels_the_work_nor_repeats_it(
    serves: Serves, session: Session, redis: Redis, http: httpx.AsyncClient, prefix: str
) -> None:
    till = Till()
    async with serves(till, session, ttl=0.3) as url:
        first = asyncio.create_task(sent(http, url, "wait"))
        await eventually(lambda: till.rung_up == 1, within=5)
        lost = session.statistics().losses
        async for key in redis.scan_iter(f"{prefix}:singleflight:*"):
            await redis.delete(key)
        await eventually(lambda: session.statistics().losses > lost, within=5)
        await asyncio.sleep(0.1)
        till.closed.set()
        assert (await first).content == b"receipt 1 \0\xff"
        assert whole(await sent(http, url, "wait")) == whole(await first)
        assert till.rung_up == 1


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
