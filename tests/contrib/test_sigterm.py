"""`close_after_sigterm`: the session is closed some time after SIGTERM, whatever still runs."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from fastapi import FastAPI
from redis.asyncio import Redis
from starlette.testclient import TestClient

from aiolocks import Lock, LockLostError, Session, SessionClosedError
from aiolocks.contrib.aiohttp import session_ctx
from aiolocks.contrib.fastapi import session_lifespan
from tests.support.servers import Server

Open = Callable[..., AbstractAsyncContextManager[Any]]


@pytest.fixture
def signals() -> Iterator[list[int]]:
    """The signals that the handler which was there before has got."""
    seen: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: seen.append(number))
    yield seen
    signal.signal(signal.SIGTERM, before)


def of_fastapi(session: Session, **options: Any) -> AbstractAsyncContextManager[Any]:
    app = FastAPI()
    return session_lifespan(session, **options)(app)


@asynccontextmanager
async def of_aiohttp(session: Session, **options: Any) -> Any:
    context = session_ctx(session, **options)(web.Application())
    await anext(context)
    yield
    with pytest.raises(StopAsyncIteration):
        await anext(context)


OPEN = pytest.mark.parametrize("lifespan", [of_fastapi, of_aiohttp])


@OPEN
async def test_a_body_is_cancelled_and_its_lock_released(
    redis: Redis, session: Session, signals: list[int], lifespan: Open
) -> None:
    own = signal.getsignal(signal.SIGTERM)
    closing = Session(redis)
    async with lifespan(closing, close_after_sigterm=0.15):
        assert signal.getsignal(signal.SIGTERM) != own
        loop, inside = asyncio.get_running_loop(), asyncio.Event()

        async def handler() -> None:
            async with Lock(closing, "order:17"):
                inside.set()
                await asyncio.sleep(60)

        running = asyncio.create_task(handler())
        await inside.wait()
        began = loop.time()
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.sleep(0.1)
        os.kill(os.getpid(), signal.SIGTERM)  # changes nothing
        async with Lock(session, "order:17", blocking_timeout=5):
            assert 0.15 <= loop.time() - began < 5
        with pytest.raises(LockLostError):
            await running
        with pytest.raises(SessionClosedError):  # the process goes on
            await Lock(closing, "order:17").acquire()
    assert signals == [signal.SIGTERM] * 2
    assert signal.getsignal(signal.SIGTERM) == own


@OPEN
async def test_it_is_not_closed_before_its_time_nor_after_the_lifespan(
    session: Session, signals: list[int], lifespan: Open
) -> None:
    async with lifespan(session, close_after_sigterm=0.05):
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.sleep(0)
    await asyncio.sleep(0.1)
    os.kill(os.getpid(), signal.SIGTERM)
    async with Lock(session, "order:17"):
        pass
    assert signals == [signal.SIGTERM] * 2


async def test_by_default_the_handler_is_left_alone(session: Session, signals: list[int]) -> None:
    own = signal.getsignal(signal.SIGTERM)
    async with of_fastapi(session):
        assert signal.getsignal(signal.SIGTERM) is own


async def test_two_lifespans_have_one_handler_whichever_ends_first(
    redis: Redis, session: Session, signals: list[int]
) -> None:
    own = signal.getsignal(signal.SIGTERM)
    other = Session(redis)
    first = of_fastapi(session, close_after_sigterm=5)
    async with of_fastapi(other, close_after_sigterm=0):
        await first.__aenter__()
        await first.__aexit__(None, None, None)
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.sleep(0.05)
        with pytest.raises(SessionClosedError):
            await Lock(other, "n").acquire()
    async with Lock(session, "n"):
        pass
    assert signals == [signal.SIGTERM]
    assert signal.getsignal(signal.SIGTERM) == own


async def test_a_handler_that_takes_its_place_and_calls_it_is_left_there(
    session: Session, signals: list[int]
) -> None:
    async with of_fastapi(session, close_after_sigterm=5):
        ours: Any = signal.getsignal(signal.SIGTERM)
        later = []

        def handler(number: int, frame: Any) -> None:
            later.append(number)
            ours(number, frame)

        signal.signal(signal.SIGTERM, handler)
        async with of_fastapi(session, close_after_sigterm=5):
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.sleep(0)
    assert later == [signal.SIGTERM]
    assert signal.getsignal(signal.SIGTERM) == handler


async def test_cancelled_while_it_closes_it_still_closes(
    redis: Redis, session: Session, signals: list[int]
) -> None:
    closing, inside = Session(redis), asyncio.Event()

    async def application() -> None:
        async with of_fastapi(closing, close_after_sigterm=0), Lock(closing, "n", on_lost="ignore"):
            inside.set()
            await asyncio.sleep(0.2)

    running = asyncio.create_task(application())
    await inside.wait()
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.sleep(0.1)
    running.cancel()
    await asyncio.wait([running])
    async with Lock(session, "n", blocking_timeout=3):
        pass


def test_outside_of_the_main_thread_it_says_that_it_does_nothing(
    server: Server, signals: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "aiolocks.session")
    own = signal.getsignal(signal.SIGTERM)
    app = FastAPI(lifespan=session_lifespan(server.url, close_after_sigterm=5))
    with TestClient(app):
        assert signal.getsignal(signal.SIGTERM) is own
    (line,) = [text for text in caplog.messages if "close_after_sigterm" in text]
    assert line == (
        "close_after_sigterm has no effect: the event loop does not run in the main thread, where Python "
        "handles signals"
    )


@pytest.mark.parametrize("wrong", [-1, "5", True])
def test_what_is_no_time_is_refused(wrong: Any) -> None:
    for make in (session_lifespan, session_ctx):
        with pytest.raises((TypeError, ValueError), match="close_after_sigterm must be a number of seconds"):
            make("redis://localhost", close_after_sigterm=wrong)


def test_without_a_handler_the_process_ends_as_before(server: Server) -> None:
    program = f"""
import asyncio, os, signal
from fastapi import FastAPI
from aiolocks.contrib.fastapi import session_lifespan
async def main():
    async with session_lifespan({server.url!r}, close_after_sigterm=30)(FastAPI()):
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.sleep(30)
asyncio.run(main())
"""
    began = time.monotonic()
    ended = subprocess.run([sys.executable, "-c", program], check=False)
    assert ended.returncode == -signal.SIGTERM
    assert time.monotonic() - began < 28
