"""`EmbeddedServer.serving`: all that uses a session made at import talks to the server of a test."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from redis import Redis as BlockingRedis
from redis.asyncio import Redis

from aiolocks import BackendError, Lock, Redlock, Schedule, Semaphore, Session, SessionClosedError, sync
from aiolocks.testing import EmbeddedServer

NOWHERE = "unix:///nowhere/server.sock"


@pytest.fixture
def embedded() -> Iterator[EmbeddedServer]:
    with EmbeddedServer() as server:
        yield server


def of_a_url() -> Session:
    return Session.from_url(NOWHERE, prefix="shop")


def of_a_client() -> Session:
    return Session(Redis.from_url(NOWHERE), prefix="shop")


def connections(server: EmbeddedServer) -> int:
    with BlockingRedis.from_url(server.url) as client:
        return len(client.client_list()) - 1


@pytest.mark.parametrize("make", [of_a_url, of_a_client])
def test_all_that_uses_the_session_reaches_the_server(
    embedded: EmbeddedServer, make: Callable[[], Session]
) -> None:
    locks = make()
    lock = Lock(locks, "a")
    hourly = Schedule(locks, "hourly", every=3600)

    @Lock(locks, "number:{number}")
    async def names(number: int) -> list[str]:
        async with lock, Semaphore(locks, "permits", 2):
            return sorted(info.name for info in await locks.inspect())

    @hourly
    async def job(tick: object) -> None: ...

    async def test() -> list[str]:
        async with locks:
            await hourly.trigger()
            return await names(7)

    for _ in range(2):  # on an event loop each
        with embedded.serving(locks):
            assert asyncio.run(test()) == ["a", "number:7", "permits"]
        assert connections(embedded) == 0
    with pytest.raises(BackendError):
        asyncio.run(one_try(lock))


async def one_try(lock: Lock) -> None:
    await lock.acquire(blocking_timeout=0)


def test_a_session_that_was_closed_before_is_closed_again(embedded: EmbeddedServer) -> None:
    locks = of_a_url()
    asyncio.run(locks.aclose())
    with embedded.serving(locks):
        asyncio.run(Redis.aclose(embedded.client()))
        asyncio.run(held(locks))
    with pytest.raises(SessionClosedError):
        asyncio.run(held(locks))


async def held(locks: Session) -> None:
    async with Lock(locks, "a"):
        pass


def test_one_that_is_left_open_is_closed_where_its_loop_stands_still(embedded: EmbeddedServer) -> None:
    locks = of_a_url()
    with asyncio.Runner() as runner:
        for _ in range(2):
            with embedded.serving(locks):
                runner.run(held(locks))
                assert connections(embedded) == 1
            assert connections(embedded) == 0


async def test_one_that_is_in_use_is_neither_redirected_nor_given_back(embedded: EmbeddedServer) -> None:
    locks = of_a_url()
    with pytest.raises(
        RuntimeError, match="still in use: close it, or its application, before the block ends"
    ):
        with embedded.serving(locks):
            await held(locks)
            with pytest.raises(RuntimeError, match="in use already: redirect it before it is used"):
                with embedded.serving(locks):
                    pass
            leftover = locks._engine
    assert leftover is not None
    await leftover.aclose()
    assert repr(locks) == "<Session prefix='shop' not used yet>"


async def test_an_error_of_the_test_itself_is_the_one_that_is_seen(embedded: EmbeddedServer) -> None:
    locks = of_a_url()
    with pytest.raises(ZeroDivisionError):
        with embedded.serving(locks):
            await held(locks)
            leftover = locks._engine
            raise ZeroDivisionError
    assert leftover is not None
    await leftover.aclose()


async def test_a_redlock_has_a_server_for_each_session() -> None:
    sessions = [of_a_url() for _ in range(3)]
    with EmbeddedServer() as a, EmbeddedServer() as b, EmbeddedServer() as c:
        with a.serving(sessions[0]), b.serving(sessions[1]), c.serving(sessions[2]):
            async with sessions[0], sessions[1], sessions[2], Redlock(sessions, "a") as lease:
                lease.ensure_held()


def test_wrong_use(embedded: EmbeddedServer) -> None:
    wrong: Any = Redis.from_url(NOWHERE)
    with pytest.raises(TypeError, match=r"serving\(\) takes sessions, not Redis: .* Session\.from_url"):
        with embedded.serving(wrong):
            pass
    with pytest.raises(RuntimeError, match="must be running"):
        with EmbeddedServer().serving(of_a_url()):
            pass


def test_a_session_for_threads(embedded: EmbeddedServer) -> None:
    """Its locks, also those that decorate since the import, in each of several blocks, and beside a loop."""
    locks = sync.Session.from_url(NOWHERE, prefix="shop")
    lock = locks.lock("a", blocking_timeout=0)

    @locks.lock("number:{number}")
    def names(number: int) -> list[str]:
        with lock:
            return sorted(info.name for info in locks.inspect())

    async def in_threads() -> list[str]:
        with embedded.serving(locks):
            return await asyncio.to_thread(names, 7)

    for _ in range(2):
        with embedded.serving(locks):
            assert names(7) == ["a", "number:7"]
        assert connections(embedded) == 0
        assert asyncio.run(in_threads()) == ["a", "number:7"]
    with pytest.raises(BackendError), lock:
        pass
    with pytest.raises(RuntimeError, match="in use already"), embedded.serving(locks):
        pass
    locks.close()
