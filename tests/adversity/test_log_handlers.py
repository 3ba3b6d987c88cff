"""Handlers and filters of the program's log that raise: no lease, no wait and no renewal depends on them."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from redis.asyncio import Redis

from aiolocks import Lock, LockLostError, Session, SingleFlight
from tests.support.waiting import eventually, sleeps

TTL = 0.6


class Collector(logging.Handler):
    """As a handler that a program has written, of which the other end is gone."""

    def emit(self, record: logging.LogRecord) -> None:
        raise ConnectionError("the collector of the log is gone")


class OwnLines(logging.Filter):
    """As one that takes all lines for those of its program."""

    def filter(self, record: Any) -> bool:
        return bool(record.user)


@pytest.fixture(params=["handler", "filter"])
def what_it_says(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """All lines fail, also those at `DEBUG`."""
    monkeypatch.setattr("aiolocks._logs._REPORT", logging.Handler())  # as outside of this suite
    logger, handler = logging.getLogger("aiolocks"), Collector()
    if request.param == "filter":
        handler.addFilter(OwnLines())
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    yield "no attribute 'user'" if request.param == "filter" else "the collector of the log is gone"
    logger.setLevel(level)
    logger.removeHandler(handler)


@pytest.mark.leaves_keys("*{lost}*")
async def test_leases_are_renewed_handed_over_and_lost(
    redis: Redis, what_it_says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    async with Session(redis) as session, Session(redis) as other, asyncio.timeout(20):
        async with Lock(session, "kept", ttl=TTL) as kept:
            waiting = asyncio.create_task(Lock(other, "kept", ttl=TTL).acquire())
            await eventually(lambda: sleeps(other))
            others = [await Lock(session, f"{number}", ttl=TTL).acquire() for number in range(5)]

            with pytest.raises(LockLostError, match="was lost"):
                async with Lock(session, "lost", ttl=TTL):
                    await redis.delete(*await redis.keys("aiolocks:lock:*{lost}*"))
                    await asyncio.sleep(10)  # cancelled

            await asyncio.sleep(2 * TTL)
            assert all(lease.remaining() > 0 for lease in [kept, *others])
            for lease in others:
                await lease.release()
        lease = await waiting
        await lease.release()
        assert await SingleFlight(session).do("value", lambda: asyncio.sleep(0, 7)) == 7
        assert session.statistics().leases_held == 0

    report = capsys.readouterr().err
    assert report.startswith("--- Logging error ---")
    assert what_it_says in report


def test_a_logger_that_was_configured_before_has_its_class_and_is_changed_once() -> None:
    from aiolocks._logs import get_logger
    from aiolocks.lock.events import log

    assert get_logger("aiolocks.session") is log is logging.getLogger("aiolocks.session")
    assert type(log) is logging.getLoggerClass()
    handle = vars(log)["handle"]
    get_logger("aiolocks.session")
    assert vars(log)["handle"] is handle
    assert handle.args[0].__func__ is logging.Logger.handle


class Interceptor(logging.Handler):
    """As loguru's documentation has it: it looks for who has logged behind the frames of `logging`."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        frame, depth = inspect.currentframe(), 0
        while frame and (depth == 0 or frame.f_code.co_filename == logging.__file__):
            frame = frame.f_back
            depth += 1
        assert frame is not None
        self.found.append((frame.f_code.co_filename, record.pathname))


async def test_a_handler_finds_who_has_logged(redis: Redis) -> None:
    logger, interceptor = logging.getLogger("aiolocks"), Interceptor()
    level = logger.level
    logger.addHandler(interceptor)
    logger.setLevel(logging.DEBUG)
    try:
        async with Lock(redis, "name"):
            pass
    finally:
        logger.setLevel(level)
        logger.removeHandler(interceptor)
    assert interceptor.found
    assert all(found == said for found, said in interceptor.found)
