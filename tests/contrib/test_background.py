"""Tasks beside an application: they go on by themselves, or the log says that they do not."""

from __future__ import annotations

import asyncio
import logging
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any

import pytest
from aiohttp import web
from fastapi import FastAPI
from redis.asyncio import Redis
from starlette.applications import Starlette

from aiolocks import Leadership, Lock, Schedule, Session, SessionClosedError, Term, Tick
from aiolocks.contrib.aiohttp import SESSION, session_ctx
from aiolocks.contrib.fastapi import session_lifespan, session_of
from tests.conftest import Connect, OwnServer
from tests.support.servers import Server
from tests.support.waiting import eventually

Running = Callable[..., AbstractAsyncContextManager[Session]]


@asynccontextmanager
async def fastapi(client: Any, **options: Any) -> AsyncIterator[Session]:
    app = FastAPI(lifespan=session_lifespan(client, **options))
    async with app.router.lifespan_context(app):
        yield session_of(app)


@asynccontextmanager
async def starlette(client: Any, **options: Any) -> AsyncIterator[Session]:
    app = Starlette(lifespan=session_lifespan(client, **options))
    async with app.router.lifespan_context(app):
        yield session_of(app)


@asynccontextmanager
async def aiohttp(client: Any, **options: Any) -> AsyncIterator[Session]:
    app = web.Application()
    app.cleanup_ctx.append(session_ctx(client, **options))
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        yield app[SESSION]
    finally:
        await runner.cleanup()


each = pytest.mark.parametrize("running", [fastapi, starlette, aiohttp], ids=lambda it: it.__name__)


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses are short."""
    monkeypatch.setattr("random.random", lambda: 0.98)


def lines(caplog: pytest.LogCaptureFixture, level: int) -> list[str]:
    return [
        record.getMessage()
        for record in caplog.records
        if record.name == "aiolocks.background" and record.levelno == level
    ]


@each
async def test_it_runs_beside_the_application_and_is_awaited_before_the_session_closes(
    running: Running, redis: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[str] = []

    async def sweep(session: Session) -> None:
        async with Lock(session, "sweep"):
            seen.append("begun")
            try:
                await asyncio.sleep(60)
            finally:
                await asyncio.sleep(0.05)
                assert not await Lock(session, "another").locked()
                seen.append("ended")

    async with running(redis, background=[sweep], prefix="shop") as session:
        await eventually(lambda: seen == ["begun"])
        assert session.statistics().leases_held == 1
    assert seen == ["begun", "ended"]
    assert session.statistics().losses == 0
    assert lines(caplog, logging.ERROR) == []


@each
async def test_one_that_returns_has_ended(
    running: Running, redis: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="aiolocks")

    async def once(session: Session) -> str:
        return "ignored"

    async with running(redis, background=(once,)):
        await eventually(lambda: lines(caplog, logging.INFO))
        await asyncio.sleep(0.05)
    (line,) = lines(caplog, logging.INFO)
    assert line.startswith("background task ")
    assert line.endswith("once has ended")


@each
@pytest.mark.usefixtures("at_once")
async def test_one_that_raises_is_told_and_begins_again(
    running: Running, redis: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    calls, others = 0, 0

    async def fails(session: Session) -> None:
        nonlocal calls
        calls += 1
        if calls == 2:  # nobody has cancelled it
            await asyncio.wait_for(asyncio.shield(cancelled()), 1)
        if calls < 4:
            raise KeyError("broken")
        await asyncio.sleep(60)

    def cancelled() -> asyncio.Future[None]:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        future.cancel()
        return future

    async def another(session: Session) -> None:
        nonlocal others
        others += 1
        await asyncio.sleep(60)

    async with running(redis, background=[fails, another]):
        await eventually(lambda: calls == 4)
    errors = lines(caplog, logging.ERROR)
    assert len(errors) == 3
    assert all(re.search(r"fails failed after 0.0 s, and begins again in 0\.\d s", error) for error in errors)
    records = [record for record in caplog.records if record.name == "aiolocks.background"]
    assert [record.exc_info and record.exc_info[0] for record in records] == [
        KeyError,
        asyncio.CancelledError,
        KeyError,
    ]
    assert others == 1


@each
@pytest.mark.usefixtures("at_once")
async def test_it_goes_on_after_an_outage(
    running: Running, own_server: OwnServer, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    """A lock that was lost, a candidate, and an error of the work itself."""
    server = await own_server()
    swept = led = 0
    trouble = False

    async def sweep(session: Session) -> None:
        nonlocal swept
        async with Lock(session, "sweep", ttl=1):
            while True:
                swept += 1
                if trouble:
                    raise ZeroDivisionError
                await asyncio.sleep(0.05)

    async def main(term: Term) -> None:
        nonlocal led
        while True:
            led += 1
            if trouble:
                raise ZeroDivisionError
            await asyncio.sleep(0.05)

    async def lead(session: Session) -> None:
        await Leadership(session, "leads", ttl=1).run(main, on_error="again")

    async with running(connect(server), background=[sweep, lead]):
        await eventually(lambda: swept and led)
        server.kill()
        await eventually(lambda: any("Lock 'sweep' was lost" in one for one in lines(caplog, logging.ERROR)))
        await asyncio.sleep(0.3)
        await server.start()
        swept = led = 0
        await eventually(lambda: swept > 3 and led > 3)
        trouble = True
        await eventually(lambda: "leadership 'leads': main failed after" in caplog.text)
        trouble = False
        swept = led = 0
        await eventually(lambda: swept > 3 and led > 3)
    errors = lines(caplog, logging.ERROR)
    assert any("Lock 'sweep' was lost" in error for error in errors)
    assert "leadership 'leads': main failed after" in caplog.text


@each
async def test_an_error_of_the_end_is_told_and_nothing_begins_again(
    running: Running, redis: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    calls = 0

    async def fails(session: Session) -> None:
        nonlocal calls
        calls += 1
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            raise KeyError("broken") from None

    async with running(redis, background=[fails]):
        await eventually(lambda: calls)
    assert calls == 1
    (error,) = lines(caplog, logging.ERROR)
    assert error.endswith("fails has ended")


@each
async def test_one_that_something_else_cancels_is_told(
    running: Running, redis: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    tasks: list[asyncio.Task[Any]] = []

    async def waits(session: Session) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.append(task)
        await asyncio.sleep(60)

    async with running(redis, background=[waits]):
        await eventually(lambda: tasks)
        tasks[0].cancel()
        await eventually(lambda: lines(caplog, logging.ERROR))
    (error,) = lines(caplog, logging.ERROR)
    assert error.endswith("waits was cancelled, not by its application, and has ended")


@each
async def test_one_that_does_not_end_is_told(
    running: Running, redis: Redis, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aiolocks.contrib._background._UNWINDS", 0.05)

    async def slow(session: Session) -> None:
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.2)

    async with running(redis, background=[slow]):
        await asyncio.sleep(0.01)
    (line,) = lines(caplog, logging.WARNING)
    assert line.endswith("slow has not ended 0.05 s after it was cancelled")


@each
@pytest.mark.usefixtures("at_once")
async def test_with_a_session_that_was_closed_it_ends(
    running: Running, redis: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    session = Session(redis)

    async def waits(session: Session) -> None:
        async with Lock(session, "a"), Lock(session, "b"):
            await asyncio.sleep(60)

    async with running(session, background=[waits]):
        await eventually(lambda: session.statistics().leases_held == 2)
        await session.aclose()
        await eventually(lambda: any("has ended" in line for line in lines(caplog, logging.WARNING)))


class Panic(BaseException):
    """As an extension in Rust raises it: `pyo3_runtime.PanicException` is no `Exception`."""


@each
@pytest.mark.usefixtures("at_once")
async def test_an_exception_that_is_no_exception_is_told_and_it_begins_again(
    running: Running, redis: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    calls = 0

    async def fails(session: Session) -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise Panic("index out of bounds")
        try:
            await asyncio.sleep(60)
        finally:
            raise Panic("at the end, too")

    async with running(redis, background=[fails]):
        await eventually(lambda: calls == 2)
    again, ended = lines(caplog, logging.ERROR)
    assert re.search(r"fails failed after 0.0 s, and begins again in 0\.\d s: index out of bounds", again)
    assert ended.endswith("fails has ended")


@pytest.mark.parametrize("ends", ["SystemExit(3)", pytest.param("KeyboardInterrupt", marks=pytest.mark.more)])
def test_what_ends_a_process_ends_it(server: Server, ends: str) -> None:
    program = f"""
import asyncio
from fastapi import FastAPI
from aiolocks.contrib.fastapi import session_lifespan

async def sweep(session):
    raise {ends}

async def main():
    app = FastAPI(lifespan=session_lifespan({server.url!r}, background=[sweep]))
    async with app.router.lifespan_context(app):
        await asyncio.sleep(60)

asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, timeout=30)
    assert done.returncode == (3 if ends == "SystemExit(3)" else -signal.SIGINT), done.stderr.decode()


@each
@pytest.mark.leaves_keys  # the schedule's
async def test_functions_of_nothing_run_too_and_those_of_the_library(
    running: Running, redis: Redis, session: Session, caplog: pytest.LogCaptureFixture
) -> None:
    seen: set[str] = set()
    nightly = Schedule(session, "nightly", every=0.05)
    leadership = Leadership(session, "leads")

    @nightly
    async def job(tick: Tick) -> None:
        seen.add("job")

    async def main(term: Term) -> None:
        seen.add("main")
        await asyncio.sleep(60)

    async def alone() -> None:
        seen.add("alone")
        await asyncio.sleep(60)

    async def more(text: str, session: Session, *, number: int) -> None:
        assert not await Lock(session, text).locked()
        seen.add(f"{text} {number}")

    class Sweeper:
        async def __call__(self, session: Session) -> None:
            assert not await Lock(session, "a").locked()
            seen.add("object")

        async def sweep(self) -> None:
            seen.add("method")

    background = [
        nightly.run,
        partial(leadership.run, main),
        alone,
        partial(more, "part", number=2),
        lambda session: more("lambda", session, number=3),
        Sweeper(),
        Sweeper().sweep,
    ]
    async with running(redis, background=background):
        names = {task.get_name() for task in asyncio.all_tasks()}
        await eventually(
            lambda: seen == {"job", "main", "alone", "part 2", "lambda 3", "object", "method"}, within=10
        )
    assert any("Schedule.run of <Schedule 'nightly'" in name for name in names)
    assert lines(caplog, logging.ERROR) == []


@each
async def test_one_that_is_not_async_is_told_and_ends(
    running: Running, redis: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    calls: list[Session] = []

    async with running(redis, background=[calls.append]):
        await eventually(lambda: lines(caplog, logging.ERROR))
    (error,) = lines(caplog, logging.ERROR)
    assert error.endswith("list.append is not async: it returned None, and has ended")
    assert len(calls) == 1


async def _streams(session: Session) -> AsyncIterator[None]:
    yield


async def _needs_more(session: Session, table: str) -> None: ...


async def _needs_a_name(session: Session, *, table: str) -> None: ...


@each
@pytest.mark.parametrize(
    ("background", "why"),
    [
        (asyncio.sleep, "background is a list of functions"),
        ([1], "background has functions"),
        ("sweep", "background is a list of functions"),
        (None, "background is a list of functions"),
        ([_streams], "async functions, and .*_streams.* is a generator"),
        ([partial(_streams)], "is a generator"),
        (
            [_needs_more],
            r"the session, or with nothing, and .*_needs_more.* needs \(session.*table",
        ),
        ([_needs_a_name], "needs"),
        ([Lock(Redis(), "a")], "background has functions, not <Lock"),
        ([Schedule(Redis(), "a", every=60)], r"give \[nightly.run\] for a Schedule"),
        ([Leadership(Redis(), "a")], r"\[partial\(leadership.run, main\)\] for a Leadership"),
        ([Leadership(Redis(), "a").run], r"needs \(main.*partial\(leadership.run, main\)"),
        ([partial(Leadership(Redis(), "a").run, on_error="again")], r"needs \(main"),
    ],
)
async def test_what_cannot_run_is_told_at_once(
    running: Running, redis: Redis, background: Any, why: str
) -> None:
    with pytest.raises(TypeError, match=why):
        async with running(redis, background=background):
            pass


async def test_what_a_function_returns_is_none(redis: Redis) -> None:
    async def sweep(session: Session) -> None: ...

    with pytest.raises(TypeError, match=r"\[sweep\], not \[sweep\(…\)\]"):
        session_lifespan(redis, background=[sweep(None)])  # type: ignore[arg-type, list-item]


async def test_it_runs_in_the_context_of_the_lifespan(redis: Redis) -> None:
    variable: ContextVar[str] = ContextVar("variable")
    seen: list[str] = []

    @asynccontextmanager
    async def own(app: Any) -> AsyncIterator[None]:
        variable.set("of the lifespan")
        yield

    async def beside(session: Session) -> None:
        seen.append(variable.get())
        async with Lock(session, "a"):
            seen.append(variable.get())

    app = FastAPI(lifespan=session_lifespan(redis, lifespan=own, background=[beside]))
    async with app.router.lifespan_context(app):
        await eventually(lambda: seen == ["of the lifespan"] * 2)


async def test_it_runs_within_your_own_lifespan(redis: Redis) -> None:
    seen: list[str] = []

    @asynccontextmanager
    async def own(app: Any) -> AsyncIterator[dict[str, int]]:
        seen.append("lifespan")
        yield {"number": 1}
        seen.append("its end")

    async def beside(session: Session) -> None:
        seen.append("task")
        try:
            await asyncio.sleep(60)
        finally:
            seen.append("end of the task")

    app = FastAPI(lifespan=session_lifespan(redis, lifespan=own, background=[beside]))
    async with app.router.lifespan_context(app) as state:
        assert state == {"number": 1}
        await asyncio.sleep(0.01)
    assert seen == ["lifespan", "task", "end of the task", "its end"]


# -- who closes what -----------------------------------------------------------------------------------------


@each
async def test_a_session_that_was_given_is_closed_if_you_say_so(running: Running, redis: Redis) -> None:
    session = Session(redis)
    for close in (None, False, True):
        async with running(session, close=close) as served:
            assert served is session
            assert not await Lock(session, "a").locked()
    with pytest.raises(SessionClosedError):
        await Lock(session, "a").locked()
    assert await redis.ping()


@each
async def test_a_client_that_was_given_is_closed_if_you_say_so(running: Running, server: Server) -> None:
    closed: list[int] = []

    class Client(Redis):
        async def aclose(self, close_connection_pool: bool | None = None) -> None:
            closed.append(1)
            await super().aclose(close_connection_pool)

    client = Client.from_url(server.url)
    async with running(client):
        pass
    assert closed == []
    async with running(client, close=True) as session:
        assert not await Lock(session, "a").locked()
    assert closed == [1]


@each
async def test_a_session_made_at_import_serves_one_run_of_the_application_after_the_other(
    running: Running, server: Server
) -> None:
    locks = Session.from_url(server.url)
    lock = Lock(locks, "a")
    for _ in range(2):
        async with running(locks, close=True) as session:
            assert session is locks
            async with lock:
                pass
        with pytest.raises(SessionClosedError):
            await lock.locked()
