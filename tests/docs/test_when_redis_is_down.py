"""Each row of the table on what happens when Redis is down, against a server that is killed or frozen."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Final

import httpx
import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from fastapi import FastAPI

from aiolocks import (
    BackendError,
    Batch,
    Combiner,
    FairLock,
    FencedRegister,
    Latch,
    Leadership,
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
    Term,
    Tick,
    Turnstile,
    UniqueJob,
)
from aiolocks.contrib.aiohttp import locked, session_ctx
from aiolocks.contrib.fastapi import Locked, session_lifespan
from aiolocks.lock import together
from aiolocks.testing import EmbeddedServer
from tests.conftest import Connect, OwnServer
from tests.docs.test_docs import ROOT
from tests.support.waiting import eventually

pytestmark = pytest.mark.leaves_keys

TTL: Final = 1.0
COMMAND_TIMEOUT: Final = 0.5
BLOCKING_TIMEOUT: Final = 0.65
GRACE: Final = 0.25
SLACK: Final = 0.35
"""Seconds that a busy machine may add, beside those in which this process stood still."""
BEAT: Final = 0.02

OUTAGE: Final = re.compile(" is away since | is back after ")
EARLY: Final = re.compile(
    r"a request was refused \(|: campaigning again: | cannot be observed now: "
    r"|, and Redis did not confirm that|could not be published: Redis did not answer in time"
)
"""Before a silence is known as an outage."""
PAGE = ROOT / "docs" / "how-to" / "use-in-production.md"
_AFTER: Final = {
    "at once": (0.0, 0.0),
    "after one `ttl`": (TTL, TTL),
    "after the `blocking_timeout`": (BLOCKING_TIMEOUT, BLOCKING_TIMEOUT),
    "after the `command_timeout`": (COMMAND_TIMEOUT, COMMAND_TIMEOUT),
    # A question comes each 0.6 s, and has to be without a reply for a moment.
    "one `ttl` after its next question": (TTL, TTL + 1.0),
    "at the end of its lease": (TTL * 2 / 3, TTL),
}
"""What the page says, and between which seconds that is."""


def rows() -> dict[str, list[str]]:
    """By their first cells."""
    found = {}
    section = PAGE.read_text("utf-8").partition("\n## When Redis is away\n")[2].partition("\n## ")[0]
    for line in section.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| ") and len(cells) == 4:
            found[cells[0]] = cells[1:]
    del found["part"]
    return found


ROWS = rows()


class Outage:
    """The server that goes away, and since when."""

    def __init__(self, server: EmbeddedServer, how: str, session: Session, connect: Connect) -> None:
        self.server = server
        self.session = session
        self.connect = connect
        self._how = how
        self.since = 0.0
        self._until = 0.0
        self._stood_still = 0.0

    async def beat(self) -> None:
        """Notes for how long this process does not come to run, until it is cancelled."""
        while True:
            before = asyncio.get_running_loop().time()
            await asyncio.sleep(BEAT)
            if self.since and not self._until:
                self._stood_still += asyncio.get_running_loop().time() - before - BEAT

    def slack(self) -> float:
        return SLACK + self._stood_still

    def begin(self) -> None:
        if not self.since:
            self.since = asyncio.get_running_loop().time()
            self.of(self.server)

    def of(self, server: EmbeddedServer) -> None:
        server.kill() if self._how == "away" else server.pause()

    async def end(self) -> None:
        await self.server.start() if self._how == "away" else self.server.resume()

    def ended(self) -> None:
        """What the probe does from here on takes no time."""
        self._until = asyncio.get_running_loop().time()

    def passed(self) -> float:
        return (self._until or asyncio.get_running_loop().time()) - self.since


Probe = Callable[[Outage], Awaitable[Any]]
PROBES: dict[str, list[Probe]] = {}


def row(begins: str) -> Callable[[Probe], Probe]:
    """A probe of the row whose first cell begins so."""
    (name,) = [begins] if begins in ROWS else [one for one in ROWS if one.startswith(begins)]

    def add(probe: Probe) -> Probe:
        PROBES.setdefault(name, []).append(probe)
        return probe

    return add


class Fits(Exception):  # noqa: N818 - no error
    """Raised by a probe with what came of it."""


# -- the probes: each begins the outage, and ends as the row says


@row("`acquire()` and `async with` of every kind")
async def every_kind(outage: Outage) -> None:
    session = outage.session
    kinds = [
        Lock(session, "a", ttl=TTL),
        FairLock(session, "a", ttl=TTL),
        ReentrantLock(session, "b", ttl=TTL),
        MultiLock(session, ["c", "d"], ttl=TTL),
        Semaphore(session, "a", 2, ttl=TTL),
        RWLock(session, "a", ttl=TTL).reader,
        RangeLock(session, "a", ttl=TTL).writer(0, 1),
    ]
    outage.begin()
    ends = await asyncio.gather(*(kind.acquire() for kind in kinds), return_exceptions=True)
    assert {type(end) for end in ends} == {BackendError}
    raise ends[0]  # type: ignore[misc]


@row("the same with `blocking_timeout`")
async def with_a_limit(outage: Outage) -> None:
    outage.begin()
    await Lock(outage.session, "a").acquire(blocking_timeout=BLOCKING_TIMEOUT)


@row("`try_acquire()`")
async def try_acquire(outage: Outage) -> None:
    outage.begin()
    await Lock(outage.session, "a").try_acquire()


@row("`try_acquire()`")
async def without_a_wait(outage: Outage) -> None:
    outage.begin()
    await Lock(outage.session, "a").acquire(blocking_timeout=0)


@row("a task that waits for a holder of another process")
async def waits(outage: Outage) -> None:
    (await Lock(outage.connect(outage.server), "a", ttl=60).acquire()).detach()
    waiting = asyncio.create_task(Lock(outage.session, "a", ttl=TTL).acquire())
    await asyncio.sleep(0.3)
    outage.begin()
    await waiting


@row("a task that waits for a holder, with")
async def waits_for_a_time(outage: Outage) -> None:
    (await Lock(outage.connect(outage.server), "a", ttl=60).acquire()).detach()
    lock = Lock(outage.session, "a", ttl=TTL)
    waiting = asyncio.create_task(lock.acquire(blocking_timeout=0.3 + BLOCKING_TIMEOUT))
    await asyncio.sleep(0.3)
    outage.begin()
    await waiting


@row("a body that holds a lock")
async def holds(outage: Outage) -> None:
    async with Lock(outage.session, "a", ttl=TTL):
        outage.begin()
        await asyncio.sleep(60)


@row("a body that ends")
async def ends(outage: Outage) -> None:
    async with Lock(outage.session, "a", ttl=TTL):
        outage.begin()


@row("a body that ends with an error of its own")
async def raises(outage: Outage) -> None:
    async with Lock(outage.session, "a", ttl=TTL):
        outage.begin()
        raise Fits("its own error")


@row("a body that holds a lock")
async def ensure_held(outage: Outage) -> None:
    lease = await Lock(outage.session, "a", ttl=TTL).acquire()
    outage.begin()
    while True:
        lease.ensure_held()
        await asyncio.sleep(0.01)


@row("`extend()`")
async def extend(outage: Outage) -> None:
    lease = await Lock(outage.session, "a", ttl=60).acquire()
    outage.begin()
    await lease.extend()


@row("`extend()`")
async def annotate(outage: Outage) -> None:
    lease = await Lock(outage.session, "a", ttl=60).acquire()
    outage.begin()
    await lease.annotate({"step": 1})


@row("single questions")
async def single_questions(outage: Outage) -> None:
    session = outage.session
    hourly = Schedule(session, "a", every=3600)

    @hourly
    async def job(tick: Tick) -> None: ...

    lease = await Lock(session, "a", ttl=60).acquire()
    outage.begin()
    asked = [
        Lock(session, "a").locked(),
        lease.owned(),
        Semaphore(session, "a", 2).available(),
        session.inspect(),
        Turnstile(session, "a").enter(),
        RateLimit(session, "a", 10, per=1).try_acquire(),
        Latch(session, "a", 2).count_down(),
        FencedRegister(session, "a").read(),
        UniqueJob(session, "a").enqueue("until_executed"),
        Leadership(session, "a").leader(),
        hourly.trigger(),
    ]
    answers = await asyncio.gather(*asked, return_exceptions=True)
    assert {type(answer) for answer in answers} == {BackendError}
    raise answers[0]  # type: ignore[misc]


@row("single questions")
async def admitted(outage: Outage) -> None:
    outage.begin()
    async with RateLimit(outage.session, "a", 10, per=1):
        raise AssertionError("it was admitted")


@row("single questions")
async def submits(outage: Outage) -> None:
    async def run(batch: Batch) -> None: ...

    outage.begin()
    await Combiner(outage.session, "a").submit(1, run)


@row("single questions")
async def leaves(outage: Outage) -> None:
    outage.begin()
    await Combiner(outage.session, "a").leave(1)


@row("`acquire()` and `async with` of every kind")
async def meets(outage: Outage) -> None:
    latch = Latch(outage.session, "a", 2, ttl=TTL)
    await latch.count_down()
    outage.begin()
    await latch.wait()


@row("`acquire()` and `async with` of every kind")
async def flight(outage: Outage) -> None:
    async def value() -> int:
        raise AssertionError("it was called")

    outage.begin()
    await SingleFlight(outage.session, ttl=TTL).do("a", value)


@row("`acquire()` and `async with` of every kind")
async def job(outage: Outage) -> None:
    outage.begin()
    async with UniqueJob(outage.session, "a", ttl=TTL).run():
        raise AssertionError("it was entered")


@row("a function of `SingleFlight.do()`")
async def flies(outage: Outage) -> None:
    async def value() -> str:
        outage.begin()
        return "its value"

    raise Fits(await SingleFlight(outage.session, ttl=TTL).do("a", value))


@row("`Leadership.run()` of a candidate")
async def candidate(outage: Outage) -> str:
    async def main(term: Term) -> str:
        return "led"

    outage.begin()
    return await Leadership(outage.session, "a", ttl=TTL).run(main)


@row("`Leadership.run()` of the leader")
async def leader(outage: Outage) -> str:
    async def main(term: Term) -> str:
        if outage.since:
            return "led again"
        outage.begin()
        try:
            await asyncio.sleep(60)
        finally:
            assert TTL * 2 / 3 - GRACE - 0.05 < outage.passed() < TTL - GRACE + outage.slack()
        raise AssertionError

    return await Leadership(outage.session, "a", ttl=TTL, grace=GRACE).run(main)


@row("`Leadership.run()` of a candidate")
async def observe(outage: Outage) -> str:
    outage.begin()
    async for found in Leadership(outage.session, "a").observe():
        return f"{found}"
    raise AssertionError


@row("`Schedule.run()`")
async def schedule(outage: Outage) -> str:
    often = Schedule(outage.session, "a", every=0.2)
    ran: asyncio.Queue[float] = asyncio.Queue()

    @often
    async def job(tick: Tick) -> None:
        ran.put_nowait(asyncio.get_running_loop().time())

    async with often:
        await ran.get()
        outage.begin()
        await asyncio.sleep(0.1)  # a run of this moment ends
        while not ran.empty():
            ran.get_nowait()
        return f"ran {await ran.get()}"


@row("a run of a `Schedule`")
async def run(outage: Outage) -> None:
    often = Schedule(outage.session, "a", every=0.2, ttl=TTL)
    ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @often
    async def job(tick: Tick) -> None:
        outage.begin()
        try:
            await asyncio.sleep(60)
        finally:
            ended.set_result(None)

    async with often:
        await ended
        await asyncio.sleep(0.05)  # the log tells of it behind the job
    raise Fits("is cancelled")


@contextlib.asynccontextmanager
async def masters(outage: Outage) -> Any:
    async with EmbeddedServer() as one, EmbeddedServer() as two:
        others = [Session(server.client(), command_timeout=COMMAND_TIMEOUT) for server in (one, two)]
        lock = Redlock([outage.session, *others], "a", ttl=TTL)
        await (await lock.acquire()).release()
        yield lock, one
        for server in (one, two):
            server.kill()
        for session in others:
            await session.aclose()


@row("`Redlock`, one of three")
async def minority(outage: Outage) -> None:
    async with masters(outage) as (lock, _):
        outage.begin()
        async with lock as lease:
            lease.ensure_held()
            took = outage.passed()
    assert took < outage.slack()
    raise Fits("works")


@row("`Redlock`, two of three")
async def majority(outage: Outage) -> None:
    async with masters(outage) as (lock, another):
        outage.begin()
        outage.of(another)
        try:
            await lock.acquire()
        finally:
            assert TTL - 0.05 < outage.passed() < TTL + outage.slack()
            outage.ended()


@row("FastAPI's `Locked`")
async def fastapi(outage: Outage) -> None:
    app = FastAPI(lifespan=session_lifespan(outage.session))

    @app.post("/orders", dependencies=[Locked("orders", blocking_timeout=BLOCKING_TIMEOUT)])
    async def order() -> None: ...

    async with app.router.lifespan_context(app):
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://shop") as client:
            assert (await client.post("/orders")).status_code == 200
            outage.begin()
            answer = await client.post("/orders")
    assert "Retry-After" in answer.headers
    raise Fits(f"{answer.status_code}")


@row("FastAPI's `Locked`")
async def aiohttp(outage: Outage) -> None:
    @locked("orders", blocking_timeout=BLOCKING_TIMEOUT)
    async def order(request: web.Request) -> web.Response:
        return web.Response()

    app = web.Application()
    app.cleanup_ctx.append(session_ctx(outage.session))
    app.router.add_post("/orders", order)
    async with TestClient(TestServer(app)) as client:
        assert (await client.post("/orders")).status == 200
        outage.begin()
        answer = await client.post("/orders")
        assert "Retry-After" in answer.headers
        raise Fits(f"{answer.status}")


@row("the same, of a request that waits for a holder")
async def fastapi_behind_a_holder(outage: Outage) -> None:
    app = FastAPI(lifespan=session_lifespan(outage.session))

    @app.post("/orders", dependencies=[Locked("orders", blocking_timeout=0.3 + BLOCKING_TIMEOUT)])
    async def order() -> None: ...

    (await Lock(outage.connect(outage.server), "orders", ttl=60).acquire()).detach()
    async with app.router.lifespan_context(app):
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://shop") as client:
            waiting = asyncio.create_task(client.post("/orders"))
            await asyncio.sleep(0.3)
            outage.begin()
            answer = await waiting
    assert "Retry-After" in answer.headers
    raise Fits(f"{answer.status_code}")


@row("`Session.healthy()`")
async def healthy(outage: Outage) -> None:
    outage.begin()
    raise Fits(f"`{await outage.session.healthy()}`")


@row("`async with Session(…)`")
async def opened(outage: Outage) -> None:
    outage.begin()
    client = outage.connect(outage.server)
    app = FastAPI(lifespan=session_lifespan(client))
    async with Session(client), app.router.lifespan_context(app):
        assert outage.passed() < outage.slack()
    application = web.Application()
    application.cleanup_ctx.append(session_ctx(client))
    runner = web.AppRunner(application)
    await runner.setup()
    await runner.cleanup()
    raise Fits("works")


# -- the table


def test_each_row_has_a_probe() -> None:
    assert list(PROBES) == list(ROWS)


def cases() -> Iterator[Any]:
    for name, probes in PROBES.items():
        for probe in probes:
            for how in ("away", "silent"):
                yield pytest.param(name, probe, how, id=f"{probe.__name__}-{how}")


@pytest.mark.thin
@pytest.mark.parametrize(("name", "probe", "how"), list(cases()))
async def test_each_row(
    name: str,
    probe: Probe,
    how: str,
    own_server: OwnServer,
    connect: Connect,
    caplog: pytest.LogCaptureFixture,
) -> None:
    away, silent, besides = ROWS[name]
    said = away if how == "away" or silent == "the same" else silent
    server = await own_server()
    async with Session(connect(server), command_timeout=COMMAND_TIMEOUT) as session:
        await Lock(session, "warm").locked()
        outage = Outage(server, how, session, connect)
        beats = asyncio.create_task(outage.beat())
        task = asyncio.create_task(probe(outage))  # type: ignore[arg-type]
        try:
            if said.startswith("waits"):
                await eventually(lambda: outage.since, within=20)
                await asyncio.wait([task], timeout=2 * TTL)
                assert not task.done()
                await eventually(lambda: OUTAGE.search(" ".join(logged(caplog))), within=20)
                await outage.end()
                assert await asyncio.wait_for(task, 20)
                assert len([line for line in logged(caplog) if OUTAGE.search(line)]) == 2
            else:
                await compare(task, outage, said)
        finally:
            task.cancel()
            beats.cancel()
            await asyncio.wait([task, beats])
            together.flush()  # a line waits for others with its reason
            told = logged(caplog)
    others = [
        line for line in told if not OUTAGE.search(line) and not (how == "silent" and EARLY.search(line))
    ]
    assert any(besides.strip("`") in line for line in others) if besides else others == []


async def compare(task: asyncio.Task[Any], outage: Outage, said: str) -> None:
    """The end of a probe, and when it came."""
    await asyncio.wait([task], timeout=2 * TTL + 20)
    assert task.done()
    passed, error = outage.passed(), task.exception()
    assert error is not None
    (after,) = [words for words in sorted(_AFTER, key=len, reverse=True) if said.endswith(words)][:1] or [""]
    if after:
        least, most = _AFTER[after]
        assert least - 0.05 <= passed <= most + outage.slack(), passed
    what = f"{error}" if isinstance(error, Fits) else f"`{type(error).__name__}`"
    assert said == f"{what} {after}".strip()


def logged(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        record.getMessage()
        for record in caplog.records
        if record.name.startswith("aiolocks") and record.levelno >= logging.WARNING
    ]
