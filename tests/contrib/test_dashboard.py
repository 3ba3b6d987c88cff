"""The dashboard, as its server and its viewers see it; how it looks in a browser is another file's."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import socket
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from redis.asyncio import Redis

from aiolocks import (
    FairLock,
    Leadership,
    Lock,
    LockLostError,
    MultiLock,
    RangeLock,
    RateLimit,
    Schedule,
    Semaphore,
    Session,
    Tick,
)
from aiolocks.contrib import dashboard
from aiolocks.contrib.dashboard import Dashboard, ReleaseRequest, _sampler, _views
from tests.conftest import Connect, Surroundings, clustered
from tests.contrib.asgi import Answer, ReadsFirst, Stream, ask, scope_of, stream
from tests.contrib.serving import uvicorn_serves
from tests.support import foreign
from tests.support.clusters import Cluster
from tests.support.waiting import eventually

OWN = {"Content-Type": "application/json", "X-Aiolocks-Release": "1", "Host": "locks.test"}
EVIL = [
    "<img src=x onerror=alert(1)>",
    "</script><script>alert(1)</script>",
    "\x1b[31mred\x1b]0;title\x07",
    "\u202egnp.exe\u2066",
    "line\nend\r\n\r\ndata: {}\n\nevent: x\0\u2028",
    "x" * 1024,
    "{tag}:a/b?c#d&e=%41",
]


@pytest.fixture
async def app(session: Session) -> AsyncIterator[Dashboard]:
    app = dashboard.app(session, lambda request: "Grace")
    yield app
    await app.aclose()


async def release(app: Dashboard, name: str, leases: list[str], **more: Any) -> Answer:
    body = json.dumps({"kind": "lock", "name": name, "leases": leases}).encode()
    return await ask(app, "/release", method="POST", body=body, **{"headers": OWN, **more})


# -- what is served


async def test_the_pages_and_their_files_have_a_strict_policy(app: Dashboard) -> None:
    for page in ("/", "/name?kind=lock&name=x"):
        answer = await ask(app, page)
        assert (answer.status, answer.headers["content-type"]) == (200, "text/html; charset=utf-8")
        html = answer.body.decode()
        assert not re.search(
            r"<script(?! type=\"module\" src=\")|<style|\son\w+=|style=|javascript:|//", html[15:]
        )
        for file in re.findall(r'(?:src|href)="(assets/[^"]+)"', html):
            served = await ask(app, f"/{file}")
            assert served.status == 200
            assert served.headers["x-content-type-options"] == "nosniff"
        policy = dict(
            part.strip().partition(" ")[::2] for part in answer.headers["content-security-policy"].split(";")
        )
        assert policy["default-src"] == "'none'"
        assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
        assert policy["require-trusted-types-for"] == "'script'"
        assert policy["frame-ancestors"] == policy["base-uri"] == policy["form-action"] == "'none'"


def test_no_file_makes_markup_of_a_text() -> None:
    (module,) = dashboard.__path__
    for file in (Path(module) / "assets").glob("*.js"):
        text = file.read_text()
        assert not re.search(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function|https?:", text
        )


async def test_what_there_is_not(app: Dashboard) -> None:
    for path in (
        "/nothing",
        "/assets/",
        "/assets/..%2f__init__.py",
        "/assets/../__init__.py",
        "/assets/x.js",
    ):
        assert (await ask(app, path)).status == 404
    assert (await ask(app, "/", method="DELETE")).status == 405
    assert (await ask(app, "/release")).status == 405
    assert (await ask(app, "/", method="HEAD")).body == b""
    for query in (
        "sort=x",
        "rows=0",
        "rows=201",
        "rows=x",
        "kind=nothing",
        "kind=lock&name=",
        "name=x",
        "text=%ff",
    ):
        assert (await ask(app, f"/events?{query}")).status == 400


async def test_it_can_be_mounted_anywhere(app: Dashboard) -> None:
    for path in ("/admin/locks/", "/"):  # servers differ in whether the path is whole
        assert (await ask(app, path, root_path="/admin/locks")).status == 200
    answer = await ask(app, "/admin/locks", root_path="/admin/locks")
    assert (answer.status, answer.headers["location"]) == (307, "locks/")


@pytest.mark.parametrize(
    ("stripped", "deep"),
    [(False, False), (False, True), (True, False)],  # where both, Starlette itself finds no route
    ids=["whole path", "whole path, in a mounted application", "proxy strips"],
)
async def test_it_can_be_mounted_where_an_application_has_a_root_path(
    app: Dashboard, stripped: bool, deep: bool
) -> None:
    outer = inner = FastAPI()
    if deep:
        inner = FastAPI()
        outer.mount("/admin", inner)
    inner.mount("/locks", app)
    path = f"{'' if stripped else '/api'}{'/admin' if deep else ''}/locks"
    transport = httpx.ASGITransport(outer, root_path="/api")
    async with httpx.AsyncClient(transport=transport, base_url="http://shop") as client:
        assert (await client.get(f"{path}/")).status_code == 200
        assert (await client.get(f"{path}/assets/style.css")).status_code == 200
        assert (await client.get(f"{path}/nothing")).status_code == 404
        redirect = await client.get(path)
        assert (redirect.status_code, redirect.headers["location"]) in (
            (307, "locks/"),
            (307, f"http://shop{path}/"),
        )


async def test_names_of_other_hosts_are_refused_where_its_own_are_said(session: Session) -> None:
    app = dashboard.app(session, hosts=["Locks.Example.com", "ops"])
    for host in ("locks.example.com", "LOCKS.example.COM:8443", "ops", "192.0.2.7:80", "[::1]:80", "[::1]"):
        assert (await ask(app, "/", headers={"Host": host})).status == 200, host
    for host in (
        "",
        "evil.test",
        "locks.example.com.evil.test",
        "example.com",
        "[evil",
        "ops@evil.test",
        "[",
    ):
        answer = await ask(app, "/", headers={"Host": host})
        assert answer.status == 421, host
    assert (await ask(app, "/release", method="POST", headers=OWN | {"Host": "evil.test"})).status == 421
    assert (await ask(app, "/events")).status == 421
    with pytest.raises(TypeError, match="hosts must be a collection"):
        dashboard.app(session, hosts="ops")


async def test_wrong_arguments(session: Session) -> None:
    with pytest.raises(TypeError, match="allow_release"):
        dashboard.app(session, allow_release="yes")  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        dashboard.app(object())


# -- what is shown


async def test_holders_and_waiters_are_shown_as_they_change(
    app: Dashboard, session: Session, redis: Redis
) -> None:
    other = Session(redis)
    async with stream(app, "/events") as page, other:
        await page.until(lambda: page.facts.get("totals"))
        assert (page.facts["prefix"], page.facts["release"], page.rows("locks")) == ("aiolocks", True, [])
        async with (
            Lock(session, "busy", metadata={"order": 17}),
            Lock(session, "quiet"),
            Semaphore(session, "some", 3),
        ):
            waiting = asyncio.create_task(Lock(other, "busy").acquire())
            await page.until(lambda: page.rows("waits") and len(page.rows("locks")) == 3)
            assert page.names() == ["busy", "quiet", "some"]
            busy = page.rows("locks")[0]
            assert (busy["kind"], busy["waiters"], len(busy["holders"])) == ("lock", 1, 1)
            (holder,) = busy["holders"]
            assert holder["host"]
            assert holder["task"]
            assert 0 <= page.messages[-1]["now"] - holder["since"] < 10
            (wait,) = page.rows("waits")
            assert (wait["name"], wait["place"], wait["holders"][0]["pid"]) == ("busy", 1, holder["pid"])
            await page.until(lambda: page.rows("charges") and page.rows("charges")[0]["charged"] > 0)
            assert page.rows("charges")[0]["holds"]
            (heat,) = page.rows("heat")
            assert (heat["name"], len(heat["levels"])) == ("busy", 60)
            assert heat["levels"][-1] in "12"
            assert heat["levels"][0] == "-"
            assert len(page.rows("oldest")) == 3
        lease = await waiting
        await page.until(
            lambda: page.names() == ["busy"] and page.rows("locks")[0]["holders"] != busy["holders"]
        )
        await page.until(lambda: not page.rows("waits") and not page.rows("charges")[0]["holds"])
        await lease.release()
        await page.until(lambda: page.rows("locks") == [])


async def test_what_a_session_keeps_between_uses_is_shown_as_kept(app: Dashboard, redis: Redis) -> None:
    async with Session(redis) as keeping, stream(app, "/events?kind=lock&name=one") as one:
        for _ in range(2):
            async with Lock(keeping, "one", ttl=180, cache=60):
                pass
        await one.until(
            lambda: [(holder["cached"], holder["task"]) for holder in one.rows("holders")] == [(True, None)]
        )


async def test_a_rate_limit_says_for_how_long_it_is_taken_and_how_many_wait(
    app: Dashboard, session: Session
) -> None:
    limit = RateLimit(session, "mails", 1, per=600)
    assert await limit.try_acquire()
    waiting = asyncio.create_task(limit.acquire())
    try:
        async with stream(app, "/events") as page:
            await page.until(lambda: page.rows("locks") and page.rows("locks")[0]["waiters"])
            (row,) = page.rows("locks")
        (info,) = await session.inspect("mails")
        assert (row["value"], row["waiters"]) == (0, 1)
        assert info.kept_until is not None
        assert row["kept"] == pytest.approx(info.kept_until, abs=10)  # of 600: each look has its own time
    finally:
        waiting.cancel()
        await session.force_release("mails", kind="ratelimit")


async def test_a_hand_over_shows_soon(app: Dashboard, session: Session, redis: Redis) -> None:
    async with stream(app, "/events") as page, stream(app, "/events?kind=lock&name=one") as one:
        lease = await Lock(session, "one").acquire()
        await page.until(lambda: page.rows("locks"))
        await one.until(lambda: one.rows("holders"))
        first = page.rows("locks")[0]["holders"][0]["lease"]
        took: list[float] = []
        async with Session(redis) as other:
            waiting = asyncio.create_task(Lock(other, "one").acquire())
            await page.until(lambda: page.rows("waits"))
            begun = asyncio.get_running_loop().time()
            await lease.release()
            await page.until(lambda: page.rows("locks")[0]["holders"][0]["lease"] != first)
            took.append(asyncio.get_running_loop().time() - begun)
            await one.until(lambda: one.rows("history") and one.rows("holders"))
            (before,) = one.rows("history")
            assert before["lease"] == first
            assert before["charged"] > 0
            assert before["until"] > before["since"]
            await (await waiting).release()
        assert max(took) < 5, "half a second, and what the machine takes"


async def test_the_page_of_a_name_says_everything(app: Dashboard, session: Session, redis: Redis) -> None:
    async with Session(redis) as other, Lock(session, "one", metadata={"b": "<i>"}) as lease:
        waiting = [asyncio.create_task(Lock(other, "one").acquire()) for _ in range(2)]
        async with stream(app, "/events?kind=lock&name=one") as page:
            await page.until(lambda: page.rows("waiting"))
            (holder,) = page.rows("holders")
            assert holder["fence"] == lease.fencing_token
            assert json.loads(holder["metadata"]) == {"b": "<i>"}
            assert lease.token not in json.dumps(page.messages)
            assert page.facts["lock"]["waiters"] == 1  # both are of one session
        for one in waiting:
            one.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)


async def test_an_interval_is_shown_as_it_was_written(app: Dashboard, session: Session) -> None:
    async with stream(app, "/events") as page, RangeLock(session, "room").writer(9, 11):
        await page.until(lambda: page.rows("locks"))
        ((row,),) = [lock["holders"] for lock in page.rows("locks")]
        assert row["span"] == "[9, 11)"


@pytest.mark.leaves_keys
async def test_leaders_and_schedules(app: Dashboard, session: Session) -> None:
    nightly = Schedule(session, "nightly", every=3600)

    @nightly
    async def job(tick: Tick) -> None:
        raise ValueError("<b>no</b>")

    for _ in range(2):
        with pytest.raises(ValueError, match="no"):
            await nightly.trigger()
    async with (
        Leadership(session, "lead", value={"url": "http://a"}) as term,
        stream(app, "/events") as page,
        stream(app, "/events?kind=leadership&name=lead") as lead,
        stream(app, "/events?kind=schedule&name=nightly") as ticks,
    ):
        await page.until(lambda: page.rows("leaders") and page.rows("schedules"))
        (leader,) = page.rows("leaders")
        assert json.loads(leader["value"]) == {"url": "http://a"}
        assert leader["leader"]["host"]
        (schedule,) = page.rows("schedules")
        assert (schedule["name"], schedule["ticks"]) == ("nightly", ["failed", "failed"])
        await lead.until(lambda: lead.rows("terms"))
        assert [row["fence"] for row in lead.rows("terms")] == [term.fencing_token]
        await ticks.until(lambda: ticks.rows("ticks"))
        assert [row["error"] for row in ticks.rows("ticks")] == ["ValueError: <b>no</b>"] * 2


async def test_on_a_cluster(surroundings: Surroundings, shared_cluster: Cluster) -> None:
    shared_cluster.begin(surroundings)
    async with Session(clustered(surroundings, shared_cluster)) as session:
        app = dashboard.app(session, lambda request: True)
        leases = [await Lock(session, f"name:{at}").acquire() for at in range(5)]
        async with Leadership(session, "lead"), stream(app, "/events?sort=name") as page:
            await page.until(lambda: len(page.rows("locks")) == 6 and page.rows("leaders"))
            assert page.names() == ["lead", *(f"name:{at}" for at in range(5))]
            assert (await release(app, "name:3", await lease_shown(page, "name:3"))).status == 200
            await page.until(lambda: "name:3" not in page.names())
        leases.pop(3)
        for lease in leases:
            await lease.release()
        await app.aclose()


async def test_deadlocks(app: Dashboard, session: Session, redis: Redis) -> None:
    async def both(session: Session, first: str, second: str) -> None:
        async with Lock(session, first):
            await asyncio.sleep(0.1)
            async with Lock(session, second):
                pass

    async with Session(redis) as other:
        tasks = [asyncio.create_task(both(session, "a", "b")), asyncio.create_task(both(other, "b", "a"))]
        async with stream(app, "/events") as page:
            await page.until(lambda: page.rows("deadlocks"), within=20)
            (deadlock,) = page.rows("deadlocks")
            assert {task["name"] for task in deadlock["tasks"]} == {"a", "b"}
            tasks[0].cancel()
            await page.until(lambda: not page.rows("deadlocks"), within=20)
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_names_that_would_be_markup_or_more_are_found_as_they_are(
    app: Dashboard, session: Session
) -> None:
    leases = [await FairLock(session, name, metadata={"m": name}).acquire() for name in EVIL]
    async with stream(app, "/events?sort=name") as page:
        await page.until(lambda: len(page.rows("locks")) == len(EVIL))
        assert page.names() == sorted(EVIL)
        assert all(message["sections"].keys() for message in page.messages[:1])
    async with stream(app, "/events?text=%3CIMG") as page:
        await page.until(lambda: page.rows("locks"))
        assert page.names() == [EVIL[0]]
    for lease in leases:
        await lease.release()


# -- one sampler


async def test_one_sampler_looks_for_all_and_stops_when_nobody_does(session: Session, redis: Redis) -> None:
    app = dashboard.app(session)
    sampler = app._sampler
    async with Lock(session, "one"):
        async with stream(app, "/events") as first:
            await first.until(lambda: first.rows("locks"))
            others = [stream(app, "/events") for _ in range(9)]
            pages = [await other.__aenter__() for other in others]
            for page in pages:
                await page.until(lambda page=page: page.rows("locks"))
                assert page.messages[0]["whole"]
                assert page.sections == first.sections
            sent, began = session.statistics().commands_sent, time.monotonic()
            await eventually(lambda: session.statistics().commands_sent >= sent + 4, within=20)
            looked = session.statistics().commands_sent - sent
            assert looked <= 15 * (time.monotonic() - began + 1), "as for one viewer"
            for other in others:
                await other.__aexit__(None, None, None)
            assert sampler.runs
        await eventually(lambda: not sampler.runs, within=10)
        sent = session.statistics().commands_sent
        await asyncio.sleep(0.6)
        assert session.statistics().commands_sent - sent <= 1
        async with stream(app, "/events") as again:
            await again.until(lambda: again.rows("locks"))
    await app.aclose()
    assert not sampler.runs


async def test_only_what_changes_is_sent(app: Dashboard, session: Session) -> None:
    leases = [await Lock(session, f"name:{at}").acquire() for at in range(30)]
    async with stream(app, "/events") as page:
        await page.until(lambda: len(page.rows("locks")) == 30)
        await asyncio.sleep(1.2)
        count = len(page.messages)
        await leases[7].release()
        await page.until(lambda: len(page.rows("locks")) == 29)
        assert not any(message["whole"] for message in page.messages[1:])
        for message in page.messages[count:]:
            assert len(json.dumps(message)) < 3_000
    for lease in leases:
        await lease.release()


async def test_a_server_that_is_away_is_said(
    session: Session, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    from aiolocks import BackendError
    from aiolocks.contrib.dashboard import _sampler

    app = dashboard.app(session)
    monkeypatch.setattr(_sampler, "_AGAIN", 0.1)
    look = _sampler.Census.look

    async def refused(self: Any, *args: Any, **kwargs: Any) -> Any:
        raise BackendError("this user may not do it")

    async with stream(app, "/events") as page:
        await page.until(lambda: page.facts.get("totals"))
        monkeypatch.setattr(_sampler.Census, "look", refused)
        await page.until(lambda: page.facts["trouble"])
        assert "may not" in page.facts["trouble"]
        monkeypatch.setattr(_sampler.Census, "look", look)
        await page.until(lambda: not page.facts["trouble"])
    await app.aclose()


async def test_streams_end_with_the_session_and_with_the_application(redis: Redis) -> None:
    session = Session(redis)
    app = dashboard.app(session)
    async with stream(app, "/events") as page:
        await page.until(lambda: page.messages)
        await app.aclose()
        await page.until(lambda: page.ended)
    async with stream(app, "/events") as page:
        await page.until(lambda: page.messages)
        await session.aclose()
        await page.until(lambda: page.ended)
    assert (await ask(app, "/events")).status == 503
    assert (await ask(app, "/")).status == 200


async def test_a_middleware_that_gives_the_body_again_and_again_stops_no_stream(session: Session) -> None:
    app = dashboard.app(session)
    serving = uvicorn_serves(ReadsFirst(app))
    async with asyncio.timeout(20), serving as url, httpx.AsyncClient(base_url=url) as client:
        async with client.stream("GET", "/events") as page:
            lines = page.aiter_lines()
            assert [await anext(lines) for _ in range(3)][-1].startswith("data: ")
        await app.aclose()


async def test_as_an_application_of_its_own(session: Session) -> None:
    app = dashboard.app(session)
    messages = [{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}]
    sent: list[Any] = []

    async def receive() -> Any:
        return messages.pop(0)

    async def send(message: Any) -> None:
        sent.append(message["type"])

    await app({"type": "lifespan"}, receive, send)
    await app({"type": "websocket"}, receive, send)
    assert sent == ["lifespan.startup.complete", "lifespan.shutdown.complete", "websocket.close"]


# -- viewers that take nothing


class Stuck:
    """A viewer that takes the head of its stream, and no more than `parts` of what comes after."""

    def __init__(self, app: Dashboard, url: str, parts: int = 0) -> None:
        self._left = parts + 1
        self.sizes: list[int] = []
        self.serving = asyncio.create_task(app(scope_of(url, "GET", {}), self._receive, self._send))

    async def _receive(self) -> Any:
        await asyncio.Event().wait()

    async def _send(self, message: Any) -> None:
        self.sizes.append(len(message.get("body", b"")))
        self._left -= 1
        if self._left < 0:
            await asyncio.Event().wait()

    async def aclose(self) -> None:
        self.serving.cancel()
        await asyncio.wait([self.serving])


@pytest.mark.parametrize("parts", [0, 1, 2])
async def test_a_viewer_that_takes_nothing_is_dropped(
    app: Dashboard, monkeypatch: pytest.MonkeyPatch, parts: int
) -> None:
    monkeypatch.setattr(_views, "TAKES_WITHIN", 0.3)
    stuck = Stuck(app, "/events", parts)
    async with asyncio.timeout(20):
        await stuck.serving
    assert app._sampler.viewers == 0


async def test_the_viewer_that_has_taken_nothing_for_longest_makes_place(
    app: Dashboard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_sampler, "_MOST_VIEWERS", 3)
    async with stream(app, "/events?text=reads") as page:
        stuck: list[Stuck] = []
        for number in range(4):
            stuck.append(Stuck(app, f"/events?text={number}"))
            seen = len(page.messages)
            await asyncio.sleep(0.1)
        await eventually(lambda: stuck[0].serving.done() and stuck[1].serving.done(), within=5)
        await page.until(lambda: len(page.messages) >= seen)
        assert (page.ended, app._sampler.viewers) == (False, 3)
        assert not stuck[2].serving.done()
        assert not stuck[3].serving.done()
    for one in stuck:
        await one.aclose()


async def test_a_message_is_sent_in_parts_for_a_server_keeps_what_is_not_taken(
    app: Dashboard, session: Session
) -> None:
    leases = [await Lock(session, f"{at}:{'x' * 1000}").acquire() for at in range(100)]
    stuck = Stuck(app, "/events?rows=200", parts=10_000)
    await eventually(lambda: sum(stuck.sizes) > 100_000, within=10)
    assert max(stuck.sizes) <= 65_536
    await stuck.aclose()
    for lease in leases:
        await lease.release()


async def test_sockets_that_are_not_read_shut_nobody_out(app: Dashboard) -> None:
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(uvicorn_serves(app))
        host, _, port = url.removeprefix("http://").partition(":")
        for number in range(_sampler._MOST_VIEWERS + 20):
            silent = stack.enter_context(socket.create_connection((host, int(port))))
            silent.sendall(f"GET /events?text={number} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        await asyncio.sleep(0.5)
        async with httpx.AsyncClient() as client, client.stream("GET", f"{url}/events") as answer:
            assert answer.status_code == 200
            async with asyncio.timeout(10):
                async for line in answer.aiter_lines():
                    if line.startswith("data: "):
                        break
        assert app._sampler.viewers <= _sampler._MOST_VIEWERS
        await app.aclose()


# -- releasing


async def lease_shown(page: Stream, name: str) -> list[str]:
    await page.until(lambda: name in page.names())
    return [one["lease"] for row in page.rows("locks") if row["name"] == name for one in row["holders"]]


async def test_a_release_that_is_allowed_is_done_and_written_down(
    app: Dashboard, session: Session, caplog: pytest.LogCaptureFixture
) -> None:
    async with stream(app, "/events") as page:
        lease = await Lock(session, "one").acquire()
        leases = await lease_shown(page, "one")
        answer = await release(app, "one", leases)
        assert (answer.status, answer.document) == (200, {"freed": leases})
        await lease.wait_lost()
        await page.until(lambda: page.rows("audit") and not page.rows("locks"))
        (audit,) = page.rows("audit")
        assert (audit["name"], audit["by"], audit["outcome"]) == ("one", "Grace", "released")
    (record,) = [one for one in caplog.records if one.name == "aiolocks.dashboard"]
    assert record.levelno == logging.WARNING
    assert record.getMessage().startswith("lock 'one' was released by force, by Grace: it was held for ")
    assert record.aiolocks_audit["fencing_tokens"] == [lease.fencing_token]  # type: ignore[attr-defined]


async def test_the_names_of_operators_and_machines_are_escaped_in_the_log(
    session: Session, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    app = dashboard.app(session, lambda request: foreign.EVIL)
    with foreign.evil_machine():
        others = Session(connect())
        await others.__aenter__()
    async with others, stream(app, "/events") as page:
        lease = await Lock(others, "one").acquire()
        assert (await release(app, "one", await lease_shown(page, "one"))).status == 200
        await lease.wait_lost()
        with pytest.raises(LockLostError) as told:
            lease.ensure_held()
        assert told.value.reason == f"it was released by force, by {foreign.SHOWN}"
        await page.until(lambda: page.rows("audit"))
        assert page.rows("audit")[0]["by"] == foreign.EVIL
    await app.aclose()
    (record,) = [one for one in caplog.records if one.name == "aiolocks.dashboard"]
    assert f"by force, by {foreign.SHOWN}: it was held for " in record.getMessage()
    assert f" by {foreign.SHOWN} pid " in record.getMessage()
    assert record.getMessage().isprintable()
    assert record.aiolocks_audit["by"] == foreign.EVIL  # type: ignore[attr-defined]


@pytest.mark.parametrize("answer", [False, None, "", 0, 1, ["x"], ValueError("x")])
async def test_nothing_is_released_that_is_not_allowed(
    session: Session, caplog: pytest.LogCaptureFixture, answer: Any
) -> None:
    asked: list[ReleaseRequest] = []

    async def allow(request: ReleaseRequest) -> Any:
        asked.append(request)
        if isinstance(answer, Exception):
            raise answer
        return answer

    app = dashboard.app(session, allow)
    async with Lock(session, "one") as lease:
        (info,) = await session.inspect("one")
        refused = await release(app, "one", [info.holders[0].lease_id], user="somebody")
        assert refused.status == (500 if isinstance(answer, Exception) else 403)
        assert await lease.owned()
    (request,) = asked
    assert (request.kind, request.name, request.holders[0].lease_id) == (
        "lock",
        "one",
        info.holders[0].lease_id,
    )
    assert (request.scope["user"], request.headers["host"]) == ("somebody", "locks.test")
    assert "was NOT released by force, by an operator at 192.0.2.7" in caplog.text


async def test_of_a_multilock_the_callback_sees_all_names_and_all_or_none_are_released(
    session: Session, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    """The operator of orders may not free a payment by way of an order."""
    asked: list[ReleaseRequest] = []

    def allow(request: ReleaseRequest) -> bool:
        asked.append(request)
        return all(name.startswith(("order:", "stock:")) for name in request.names)

    app = dashboard.app(session, allow)
    async with Session(connect()) as elsewhere:
        lease = await MultiLock(elsewhere, ["payment:1", "order:1"]).acquire()
        (info,) = await session.inspect("order:1")
        refused = await release(app, "order:1", [info.holders[0].lease_id])
        assert refused.status == 403
        assert asked[0].names == ("order:1", "payment:1")
        assert await lease.owned()
        await lease.release()

        lease = await MultiLock(elsewhere, ["stock:1", "order:1", "order:2"]).acquire()
        (info,) = await session.inspect("order:1")
        assert (await release(app, "order:1", [info.holders[0].lease_id])).status == 200
        assert asked[1].names == ("order:1", "order:2", "stock:1")
        assert not await MultiLock(session, asked[1].names).locked()
        await asyncio.wait_for(lease.wait_lost(), 5)
    assert "together with 'order:2', 'stock:1'" in caplog.text


async def test_without_a_callback_nothing_is_released(session: Session) -> None:
    app = dashboard.app(session)
    async with Lock(session, "one") as lease:
        (info,) = await session.inspect("one")
        assert (await release(app, "one", [info.holders[0].lease_id])).status == 403
        assert await lease.owned()


async def test_only_the_holder_that_was_shown_loses_it(app: Dashboard, session: Session) -> None:
    async with Lock(session, "one") as lease:
        for leases in ([], ["0123456789ab"]):
            assert (await release(app, "one", leases)).status == 409
        assert await lease.owned()
    assert (await release(app, "one", [])).status == 409


async def test_one_that_changes_hands_while_the_callback_thinks_is_left_alone(session: Session) -> None:
    first = await Lock(session, "one").acquire()
    then: list[Any] = []

    async def slowly(request: ReleaseRequest) -> bool:
        await first.release()
        then.append(await Lock(session, "one").acquire())
        return True

    (info,) = await session.inspect("one")
    answer = await release(dashboard.app(session, slowly), "one", [info.holders[0].lease_id])
    assert answer.status == 409
    assert await then[0].owned()
    await then[0].release()


@pytest.mark.parametrize(
    "headers",
    [
        {"X-Aiolocks-Release": ""},
        {"Content-Type": "text/plain"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site", "Origin": "https://locks.test"},
        {"Origin": "https://elsewhere.test"},
        {"Origin": "null"},
        {"Origin": "http://["},
        {"Origin": "http://[::1", "Host": "[::1"},
        {"Origin": "http://\u2100.test"},
    ],
    ids=str,
)
async def test_pages_of_others_release_nothing(
    app: Dashboard, session: Session, headers: dict[str, str]
) -> None:
    lease = await Lock(session, "one").acquire()
    (info,) = await session.inspect("one")
    leases = [info.holders[0].lease_id]
    assert (await release(app, "one", leases, headers=OWN | headers)).status == 403
    assert await lease.owned()
    same = OWN | {"Origin": "https://locks.test", "Sec-Fetch-Site": "same-origin"}
    assert (await release(app, "one", leases, headers=same)).status == 200


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b"{", b'{"kind":"lock","name":"x"}', b'{"kind":"turnstile","name":"x","leases":[]}',
     b'{"kind":"lock","name":"","leases":[]}', b"[" * 5_000, b" " * 70_000],
    ids=range(8),
)  # fmt: skip
async def test_what_is_no_request(app: Dashboard, body: bytes) -> None:
    assert (await ask(app, "/release", method="POST", headers=OWN, body=body)).status == 400


@pytest.mark.leaves_keys
async def test_the_next_tick_of_a_schedule_and_the_permits_of_a_semaphore(
    app: Dashboard, session: Session
) -> None:
    nightly = Schedule(session, "nightly", every=3600)

    @nightly
    async def job(tick: Tick) -> None: ...

    seats = Semaphore(session, "seats", 5)
    async with (
        nightly,
        seats.acquire(1),
        seats.acquire(3),
        stream(app, "/events") as page,
        stream(app, "/events?kind=schedule&name=nightly") as one,
        stream(app, "/events?kind=schedule&name=never") as never,
    ):
        await page.until(lambda: page.rows("schedules") and page.rows("locks"))
        (schedule,) = page.rows("schedules")
        assert (schedule["last"], schedule["ticks"], schedule["asked"]) == (None, [], True)
        assert schedule["next"] % 3600 == 0
        assert 0 < schedule["next"] - time.time() <= 3600
        (row,) = (row for row in page.rows("locks") if row["name"] == "seats")
        assert (row["taken"], row["value"]) == (4, 5)
        await one.until(lambda: one.facts.get("lock", {}).get("asked"))
        assert one.facts["lock"]["next"] == schedule["next"]
        await never.until(lambda: "asked" in never.facts.get("lock", {}))
        assert (never.facts["lock"]["asked"], never.facts["lock"]["next"]) == (False, None)
