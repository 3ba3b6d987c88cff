"""Idempotency keys, in each framework, by HTTP."""

from __future__ import annotations

import asyncio
import gzip
from typing import Any

import httpx
import pytest
from redis.asyncio import Redis
from starlette.middleware.gzip import GZipMiddleware
from starlette.responses import PlainTextResponse

from aiolocks import Session
from aiolocks.contrib.idempotency import IdempotencyMiddleware
from tests.conftest import Connect
from tests.contrib.asgi import ask
from tests.contrib.serving import HalfClient
from tests.contrib.tills import Answer, Serves, Till, each, reason, sent, whole
from tests.support.waiting import eventually


@each
async def test_it_is_done_once_and_answered_byte_for_byte(
    serves: Serves, session: Session, http: httpx.AsyncClient
) -> None:
    till = Till()
    async with serves(till, session) as url:
        first = await sent(http, url, "ok")
        assert (first.status_code, first.content) == (201, b"receipt 1 \0\xff")
        assert first.headers.get_list("set-cookie") == ["a=1", "b=2"]
        assert "idempotent-replayed" not in first.headers
        for key in ('"k"', "k", '"k";v=1'):
            again = await sent(http, url, "ok", key)
            assert whole(again) == whole(first)
            assert again.headers["Idempotent-Replayed"] == "true"
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
        first = await sent(http, url, 402, "l")
        assert whole(await sent(http, url, 402, "l")) == whole(first)
        assert till.rung_up == 7


@each
async def test_a_handler_that_fails_behind_a_task_group_that_has_failed_may_come_again(
    serves: Serves, session: Session, http: httpx.AsyncClient
) -> None:
    till = Till()
    async with serves(till, session) as url:
        assert [(await sent(http, url, "spoil")).status_code for _ in range(2)] == [500, 500]
        assert till.rung_up == 2


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
    async with serves(till, session, ttl=2) as url:
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


# -- who asks, and who may have an answer


@each
async def test_nobody_is_anonymous(serves: Serves, session: Session, http: httpx.AsyncClient) -> None:
    till = Till()
    async with serves(till, session) as url:
        for _ in range(2):
            assert reason(await sent(http, url, "ok", x_user="")) == (400, "anonymous")
        assert till.rung_up == 0


@each
async def test_a_cookie_is_for_the_client_that_was_answered_first(
    serves: Serves, session: Session, connect: Connect, http: httpx.AsyncClient, prefix: str, redis: Redis
) -> None:
    till = Till()
    async with Session(connect(), prefix=prefix) as other:
        async with serves(till, session, wait=20) as url, serves(till, other, wait=20) as there:
            first = asyncio.create_task(sent(http, url, "wait"))
            await eventually(lambda: till.rung_up == 1, within=5)
            waiting = [asyncio.create_task(sent(http, where, "wait")) for where in (url, there)]
            await asyncio.sleep(0.1)
            till.closed.set()
            assert (await first).headers.get_list("set-cookie") == ["a=1", "b=2"]
            for again in (*[await one for one in waiting], await sent(http, url, "wait")):
                assert "set-cookie" not in again.headers
                assert again.headers["idempotent-replayed"] == "true"
                assert whole(again) == whole(await first)
    async for key in redis.scan_iter(f"{prefix}:singleflight:*"):
        assert b"a=1" not in b"".join(str(pair).encode() for pair in (await redis.hgetall(key)).items())


@each
async def test_an_answer_that_is_not_kept_is_for_its_own_client(
    serves: Serves, session: Session, http: httpx.AsyncClient
) -> None:
    till = Till()
    async with serves(till, session, wait=20) as url:
        first = asyncio.create_task(sent(http, url, "refuse"))
        await eventually(lambda: till.rung_up == 1, within=5)
        second = asyncio.create_task(sent(http, url, "refuse"))
        await asyncio.sleep(0.1)
        till.closed.set()
        assert (await first).status_code == 500
        assert reason(await second) == (503, "failed")


@each
async def test_a_body_is_not_read_before_it_is_known_who_asks(
    serves: Serves, session: Session, http: httpx.AsyncClient
) -> None:
    till = Till()
    async with serves(till, session) as url:
        head = "POST /pay HTTP/1.1\r\nIdempotency-Key: k\r\nX-User: \r\nX:"
        async with HalfClient(url, head, body=b"x" * 100, sent=1) as client, asyncio.timeout(5):
            assert await client.status() == 400
        head = "POST /pay HTTP/1.1\r\nIdempotency-Key: k\r\nX:"
        async with HalfClient(url, head, body=b"x" * 2_000_000, sent=1) as client, asyncio.timeout(5):
            assert await client.status() == 413


async def test_a_method_counts_however_it_is_written(session: Session) -> None:
    app = IdempotencyMiddleware(_says("done"), session, scope=lambda _: "me", required=True)
    refused = await ask(app, "/pay", method="post")
    assert (refused.status, refused.document["reason"]) == (400, "missing")


async def test_a_compressed_answer_is_not_given_to_one_who_cannot_read_it(session: Session) -> None:
    inside = GZipMiddleware(_says("done" * 1000), minimum_size=10)
    app = IdempotencyMiddleware(inside, session, scope=lambda _: "me")
    for accepted in ("gzip", "identity"):
        headers = {"Idempotency-Key": "k", "Accept-Encoding": accepted}
        answer = await ask(app, "/pay", method="POST", headers=headers)
        assert answer.body == b"done" * 1000
    compressed = GZipMiddleware(app, minimum_size=10)  # outside of it, each gets what it can read
    headers = {"Idempotency-Key": "k", "Accept-Encoding": "gzip"}
    answer = await ask(compressed, "/pay", method="POST", headers=headers)
    assert gzip.decompress(answer.body) == b"done" * 1000


def _says(text: str) -> Any:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await PlainTextResponse(text)(scope, receive, send)

    return app


# -- requests that are made anew for a retry -----------------------------------------------------------------


class AnyTill(Till):
    """Takes whatever is paid with."""

    async def ring_up(self, body: bytes) -> Answer:
        self.rung_up += 1
        return 201, [("Content-Type", "text/plain")], b"receipt %d" % self.rung_up


def form(boundary: str, *, amount: str = "5") -> tuple[str, bytes]:
    """As a client sends a form with a file: it draws another boundary each time."""
    parts = (f'name="amount"\r\n\r\n{amount}', 'name="scan"; filename="a.png"\r\n\r\n\x89PNG\r\n--\r\n')
    body = "".join(f"--{boundary}\r\nContent-Disposition: form-data; {part}\r\n" for part in parts)
    return f'multipart/form-data; boundary="{boundary}"', f"{body}--{boundary}--\r\n".encode("latin-1")


JSON = "application/json; charset=utf-8"
AGAIN = {
    "json": (
        (JSON, b'{"amount": 5, "to": {"a": 1, "b": [1, 2]}}'),
        (JSON, b'{"to":{"b":[1,2],"a":1},"amount":5}'),
    ),
    "multipart": (form("one"), form("another one")),
}


async def paid(http: httpx.AsyncClient, url: str, key: str, request: tuple[str, bytes]) -> httpx.Response:
    content_type, body = request
    headers = {"Idempotency-Key": key, "Content-Type": content_type}
    return await http.post(f"{url}/pay", content=body, headers=headers)


@each
@pytest.mark.parametrize("sort", AGAIN)
async def test_what_is_the_same_is_chosen(
    serves: Serves, session: Session, http: httpx.AsyncClient, sort: str
) -> None:
    first, again = AGAIN[sort]
    till = AnyTill()
    async with serves(till, session) as url:  # by default, each byte counts
        answer = await paid(http, url, "bytes", first)
        assert whole(await paid(http, url, "bytes", first)) == whole(answer)
        assert reason(await paid(http, url, "bytes", again)) == (422, "reused")

    async with serves(till, session, fingerprint="content") as url:
        answer = await paid(http, url, "content", first)
        assert whole(await paid(http, url, "content", again)) == whole(answer)
        for other in ((JSON, b'{"amount": 6}'), form("one", amount="6")):
            assert reason(await paid(http, url, "content", other)) == (422, "reused")

    def of_type(content_type: str, body: bytes) -> str:
        return f"{content_type.partition(';')[0]} {len(body) > 0}"

    async with serves(till, session, fingerprint=of_type) as url:
        answer = await paid(http, url, "own", first)
        assert whole(await paid(http, url, "own", again)) == whole(answer)
        assert reason(await paid(http, url, "own", ("text/plain", b"x"))) == (422, "reused")
    assert till.rung_up == 3
