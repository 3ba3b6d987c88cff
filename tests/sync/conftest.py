"""A server for tests that have no event loop, and what they must leave behind: nothing."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from redis import Redis

from aiolocks.sync import Session
from aiolocks.testing import EmbeddedServer
from aiolocks.transport.steps.family import families
from tests.conftest import blocking


@pytest.fixture(scope="session")
def running() -> Iterator[EmbeddedServer]:
    with EmbeddedServer() as server:
        yield server


@pytest.fixture
def redis(running: EmbeddedServer) -> Iterator[Redis]:
    """A client for looking at the server from outside; it is empty, and no lock is on it after the test."""
    with blocking(running.url) as client:
        client.flushall()
        yield client
        try:
            wait_until(lambda: not held(client))
        except AssertionError:
            raise AssertionError(f"left behind: {held(client)}") from None
        client.flushall()


@pytest.fixture
def url(running: EmbeddedServer, redis: Redis) -> str:
    return running.url


@pytest.fixture
def locks(url: str) -> Iterator[Session]:
    with Session.from_url(url, prefix="shop") as session:
        yield session
    assert not [thread for thread in threading.enumerate() if thread.name == "aiolocks-sync"]


def held(redis: Redis) -> list[str]:
    """The keys of what is held or waited for: all but what is remembered for a while."""
    remembered = "|".join(name for name, family in families().items() if not family.can_be_held)
    kept = re.compile(
        r"(\.(fence|value|stolen|answers|puts|idle|over|history|register|terms)"
        rf"|:({remembered})(\.(?!queue|bell|waits)\w+)?):".encode()
    )
    return sorted(key.decode() for key in redis.scan_iter("*") if not kept.search(key))


def wait_until(true: Callable[[], object], within: float = 20.0) -> None:
    end = time.monotonic() + within
    while not true():
        assert time.monotonic() < end, f"not true within {within} s"
        time.sleep(0.005)
