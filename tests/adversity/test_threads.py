"""Threads with an event loop each, which share the client, locks of a module, listeners, and the guard."""

from __future__ import annotations

import asyncio
import sys
import textwrap
import threading
from collections.abc import Awaitable, Callable, Iterator

import pytest
from prometheus_client import CollectorRegistry
from redis.asyncio import Redis

from aiolocks import LeaseState, Semaphore, Session
from aiolocks.contrib.prometheus import PrometheusListener
from aiolocks.contrib.redis_py.holdings import Holdings
from aiolocks.lock import mixed_prefixes
from aiolocks.lock.session import DEFAULT_SESSIONS
from tests.adversity.test_teardown import run
from tests.conftest import OwnServer

THREADS = 8
URL = "redis://127.0.0.1:1"  # nobody connects


@pytest.fixture(autouse=True)
def _switches_often() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def in_threads(do: Callable[[int], object], *, number: int = THREADS) -> None:
    """Calls the function in `number` threads at the same moment."""
    together, errors = threading.Barrier(number), list[BaseException]()

    def one(which: int) -> None:
        try:
            together.wait()
            do(which)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=one, args=(which,)) for which in range(number)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def in_loops(do: Callable[[int], Awaitable[object]], *, number: int = THREADS) -> None:
    """Awaits it in `number` threads with a loop each, at the same moment."""

    def one(which: int) -> None:
        asyncio.run(do(which))  # type: ignore[arg-type]

    in_threads(one, number=number)


def test_a_client_has_one_session_on_each_loop() -> None:
    for _ in range(50):
        client = Redis.from_url(URL)

        async def use(_: int, client: Redis = client) -> None:
            first = Session.of(client)
            for _ in range(20):
                assert Session.of(client) is first
                await asyncio.sleep(0)

        in_loops(use)


def test_sessions_of_closed_loops_are_forgotten_while_others_are_made() -> None:
    client = Redis.from_url(URL)

    def many(_: int) -> None:
        for _ in range(100):
            loop = asyncio.new_event_loop()

            async def use() -> None:
                assert Session.of(client) is Session.of(client)

            loop.run_until_complete(use())
            loop.close()

    in_threads(many)
    assert len(getattr(client, DEFAULT_SESSIONS)) <= 2 * THREADS


class Owner:
    """A client, or a session, for what only attaches something to it."""


def test_sessions_with_another_prefix_are_all_known(caplog: pytest.LogCaptureFixture) -> None:
    """Threads that go through the same clients meet at many of them."""
    clients = [Owner() for _ in range(60)]
    sessions = [[Owner() for _ in clients] for _ in range(THREADS)]

    def open_all(which: int) -> None:
        for client, session in zip(clients, sessions[which], strict=True):
            mixed_prefixes.opened(session, id(client), "other")
            mixed_prefixes.used(client, "a lock", "aiolocks", id)

    def close_all(which: int) -> None:
        for client, session in zip(clients, sessions[which], strict=True):
            mixed_prefixes.closed(session)
            mixed_prefixes.used(client, "a lock", "aiolocks", id)

    in_threads(open_all)
    assert len(caplog.records) == len(clients)  # told once for each
    for client in clients:
        mixed_prefixes._told.discard(client)
    in_threads(close_all)
    caplog.clear()
    for client in clients:
        mixed_prefixes._told.discard(client)
        mixed_prefixes.used(client, "a lock", "aiolocks", id)
    assert not caplog.records


async def test_an_exit_in_one_thread_leaves_the_lease_of_another_alone(own_server: OwnServer) -> None:
    """Also where the other thread has used the lock last, and does not let its loop run just now."""
    server = await own_server()
    client = server.client()
    lock = Semaphore(client, "a", 2)
    first_is_in, second_is_in, first_has_left = (threading.Event() for _ in range(3))

    async def enter(which: int) -> None:
        if which == 0:
            async with lock as lease:
                first_is_in.set()
                assert second_is_in.wait(10)
        else:
            assert first_is_in.wait(10)
            async with lock as lease:
                second_is_in.set()
                assert first_has_left.wait(10)
                lease.ensure_held()
        assert lease.state is LeaseState.RELEASED
        first_has_left.set()
        await Session.of(client).aclose()

    await asyncio.to_thread(in_loops, enter, number=2)
    await client.aclose()


def test_listeners_of_one_registry_share_their_metrics() -> None:
    for _ in range(50):
        registry = CollectorRegistry()

        def make(_: int, registry: CollectorRegistry = registry) -> None:
            PrometheusListener(registry=registry)

        in_threads(make)


def test_the_tokens_of_one_lock_of_redis_py_are_looked_at_by_many() -> None:
    holdings = Holdings()

    async def use(which: int) -> None:
        async def took(number: int) -> None:
            token = f"{which} {number}".encode()
            holdings.took(token)
            assert holdings.meant(b"of somebody else") == b"of somebody else"
            await asyncio.sleep(0)
            holdings.forget(token)

        for _ in range(20):
            await asyncio.gather(*map(took, range(20)))

    in_loops(use)


async def test_the_guard_is_one_thread() -> None:
    script = """
        import threading
        from aiolocks.lock.guard import _Guard
        from tests.adversity.test_threads import in_threads

        sys.setswitchinterval(1e-6)
        guards = [_Guard() for _ in range(60)]
        together = threading.Barrier(8)

        def look(_):
            for guard in guards:
                together.wait()
                guard.look_now()

        in_threads(look)
        number = [thread.name for thread in threading.enumerate()].count("aiolocks-guard")
        assert number == 60, number
        """
    status, _, err = await run(textwrap.dedent(script), URL)
    assert (status, err) == (0, "")
