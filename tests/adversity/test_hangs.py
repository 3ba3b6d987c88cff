"""Servers that hang for longer than their clients wait: what is left when they go on.

A request that was written is executed when the server goes on, however long ago its connection was given up.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import time
import weakref
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from functools import partial
from types import NoneType
from typing import Any

import pytest
from redis.asyncio import Redis

from aiolocks import BackendError, FairLock, Lock, LockError, MultiLock, Redlock, RWLock, Session
from aiolocks.testing import EmbeddedServer
from aiolocks.transport.keys import key
from tests.adversity.tools import SLACK, elapsed, with_own_connections
from tests.conftest import PREFIX, OwnServer, Surroundings
from tests.support.clusters import Cluster
from tests.support.hygiene import is_fence
from tests.support.processes import Workers, tell
from tests.support.servers import ServerKind
from tests.support.thinning import only
from tests.support.waiting import eventually

WAITS = (None, 0, 1, 2.5)
"""Seconds for which an acquire waits."""

Step = Callable[[], Awaitable[None]]
"""The step that is done while the server hangs."""


async def _acquire(session: Session, name: str, ttl: float, wait: float | None) -> Step:
    lock = Lock(session, name, ttl=ttl, blocking_timeout=wait)
    await (await lock.acquire()).release()  # connected, and the scripts are known

    async def step() -> None:
        async with lock:
            pass

    return step


async def _cancelled(session: Session, name: str, ttl: float) -> Step:
    acquire = await _acquire(session, name, ttl, None)

    async def step() -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(0.3):
                await acquire()

    return step


async def _fail_to_extend(session: Session, name: str, ttl: float, longer: float) -> Step:
    lease = await Lock(session, name, ttl=ttl).acquire()

    async def step() -> None:
        async with lease:
            await lease.extend(longer)

    return step


async def _hold(session: Session, name: str, ttl: float, over: asyncio.Event) -> Step:
    """It is renewed each third of its ttl, until it is lost or the hang is over."""
    lease = await Lock(session, name, ttl=ttl).acquire()

    async def step() -> None:
        async with lease:
            await over.wait()

    return step


async def _leave(session: Session, name: str, ttl: float, over: asyncio.Event) -> Step:
    """It is let go of right after a renewal was sent."""
    lease = await Lock(session, name, ttl=ttl).acquire()

    async def step() -> None:
        async with lease:
            with suppress(TimeoutError):
                await asyncio.wait_for(over.wait(), ttl / 3 + 0.05)

    return step


async def _adopt(session: Session, name: str, ttl: float, over: asyncio.Event) -> Step:
    """If it fails, the handle is good for as long as the ttl runs."""
    lock = Lock(session, name, ttl=ttl)
    lease = await lock.acquire()
    handle = lease.detach()

    async def step() -> None:
        try:
            lease = await lock.adopt(handle)
        except BackendError:
            await over.wait()
            lease = await lock.adopt(handle)
        await lease.release()

    return step


async def _upgrade(session: Session, name: str, ttl: float, wait: float | None) -> Step:
    lease = await RWLock(session, name, ttl=ttl).upgradable.acquire()

    async def step() -> None:
        async with lease, lease.upgrade(blocking_timeout=wait):
            pass

    return step


def steps_of(ttl: float, over: asyncio.Event) -> dict[str, Callable[[Session, str], Awaitable[Step]]]:
    steps: dict[str, Callable[[Session, str], Awaitable[Step]]] = {}
    for wait in WAITS:
        steps[f"acquire within {wait}"] = partial(_acquire, ttl=ttl, wait=wait)
        steps[f"upgrade within {wait}"] = partial(_upgrade, ttl=ttl, wait=wait)
    steps["cancelled acquire"] = partial(_cancelled, ttl=ttl)
    steps["extend"] = partial(_fail_to_extend, ttl=ttl, longer=10 * ttl)
    steps["hold"] = partial(_hold, ttl=ttl, over=over)
    steps["leave"] = partial(_leave, ttl=ttl, over=over)
    steps["adopt"] = partial(_adopt, ttl=ttl, over=over)
    return steps


async def left(server: EmbeddedServer) -> list[str]:
    """The keys on it, but those of fencing tokens."""
    async with server.client() as looking:
        return sorted(key.decode() for key in await looking.keys() if not is_fence(key.decode()))


async def hang(
    server: EmbeddedServer, make_client: Callable[[], Redis], *, seconds: float, ttl: float, within: float
) -> tuple[list[str], list[object]]:
    """All steps on a server that hangs, each in a session of its own: what others wait for helps none.

    The keys that are left `seconds` after the server goes on, and the results of the steps.
    """
    async with AsyncExitStack() as stack:
        steps, over = [], asyncio.Event()
        for name, make in steps_of(ttl, over).items():
            client = make_client()
            stack.push_async_callback(client.aclose)
            steps.append(await make(await stack.enter_async_context(Session(client)), name))
        server.pause()
        doing = [asyncio.create_task(step()) for step in steps]
        await asyncio.sleep(seconds)
        server.resume()
        over.set()
        await asyncio.sleep(within)
        found = await left(server)
        outcomes = await asyncio.gather(*doing, return_exceptions=True)
    return found, outcomes


CLIENTS: dict[str, Callable[[EmbeddedServer], Redis]] = {
    "by TCP": lambda server: Redis(host="127.0.0.1", port=server.port or 0),
    "by a unix socket": lambda server: Redis(unix_socket_path=str(server.path)),
    "who may not drop connections": lambda server: Redis(
        unix_socket_path=str(server.path), username="modest", password="any"
    ),
    "by the serial transport": lambda server: with_own_connections(Redis(unix_socket_path=str(server.path))),
}


async def test_nothing_is_held_after_a_hang_that_outlasts_every_ttl(own_server: OwnServer) -> None:
    async def one(make_client: Callable[[EmbeddedServer], Redis]) -> tuple[list[str], list[object]]:
        server = await own_server(port=0)
        async with server.client() as admin:
            words = ["+@all", "-client"]
            await admin.acl_setuser("modest", enabled=True, nopass=True, keys=["*"], commands=words)
        return await hang(server, lambda: make_client(server), seconds=5.0, ttl=2.0, within=1.0)

    for found, outcomes in await asyncio.gather(*map(one, CLIENTS.values())):
        assert found == []
        assert [type(outcome) for outcome in outcomes if not isinstance(outcome, (LockError, NoneType))] == []
        assert sum(isinstance(outcome, BackendError) for outcome in outcomes) >= 3


@pytest.mark.soak
@pytest.mark.timeout(120)
@pytest.mark.parametrize("ttl", [1.0, 5.0, 10.0, 30.0])
async def test_nothing_is_held_after_any_hang(own_server: OwnServer, ttl: float) -> None:
    """All at the same time, each on a server of its own."""
    hangs = (1.0, 2.0, 3.0, 5.0, 8.0, 13.0, 20.0, 30.0, 40.0)

    async def one(seconds: float, way: str) -> tuple[float, str, list[str]]:
        server = await own_server(port=0)
        found, _ = await hang(server, lambda: CLIENTS[way](server), seconds=seconds, ttl=ttl, within=0.3)
        return seconds, way, found

    ways = ("by TCP", "by a unix socket")
    results = await asyncio.gather(*(one(seconds, way) for seconds in hangs for way in ways))
    assert [result for result in results if result[2]] == []


@pytest.mark.more  # as on a single server
async def test_nothing_is_held_on_a_node_of_a_cluster_after_its_hang(
    surroundings: Surroundings, server_kind: ServerKind
) -> None:
    if server_kind.executable is None:
        pytest.skip(f"not with {server_kind}: it pauses its servers")
    with Cluster(server_kind.executable) as cluster:
        node = cluster.masters[1]
        names = [f"a{number}" for number in range(100)]
        there = [name for name in names if cluster.owner_of(key(PREFIX, "lock", name)) is node]
        client = cluster.client()
        async with Session(client) as session:
            for name in names:  # connected to each node
                await (await Lock(session, name, ttl=2).acquire()).release()
            leases = [await Lock(session, name, ttl=2).acquire() for name in there[:3]]
            node.server.pause()
            waits = [Lock(session, name, ttl=2).acquire(blocking_timeout=2.5) for name in there[3:6]]
            across = MultiLock(session, [there[6], *names[:20]], ttl=2)
            outcomes = await asyncio.gather(
                *waits, across.acquire(blocking_timeout=2.5), return_exceptions=True
            )
            assert {type(outcome) for outcome in outcomes} == {BackendError}
            for lease in leases:
                with pytest.raises(LockError):
                    await lease.release()
            await asyncio.sleep(2.5)
            node.server.resume()
            await asyncio.sleep(1.0)
            assert cluster.keys() == []
        await client.aclose()


@pytest.mark.more  # as on a single server
async def test_nothing_is_held_on_masters_after_their_hang(own_server: OwnServer) -> None:
    """One of three, beside a lease of the others that ends when its connection was given up; or all."""
    await asyncio.gather(*(held_on_masters_that_hang(own_server, hanging) for hanging in (1, 3)))


async def held_on_masters_that_hang(own_server: OwnServer, hanging: int) -> None:
    servers = [await own_server() for _ in range(3)]
    async with AsyncExitStack() as stack:
        sessions = [await stack.enter_async_context(Session(server.client())) for server in servers]
        await (await Redlock(sessions, "warm", ttl=2).acquire()).release()
        for server in servers[:hanging]:
            server.pause()
        lock = Redlock(sessions, "a", ttl=3, node_timeout=2.5)
        if hanging == 1:
            async with lock.acquire(blocking_timeout=2.5):
                await asyncio.sleep(2.5)
        else:
            with pytest.raises(BackendError):
                await lock.acquire(blocking_timeout=2.8)
        await asyncio.sleep(4.0)
        for server in servers[:hanging]:
            server.resume()
        await asyncio.sleep(1.0)
        assert [await left(server) for server in servers] == [[], [], []]


# -- what is remembered, and for how long --------------------------------------------------------------------


async def unanswered(client: Redis, server: EmbeddedServer) -> None:
    """An acquire that the server may still execute, of which nobody waits any more."""
    lock = Lock(client, "a", ttl=30)
    await (await lock.acquire()).release()
    server.pause()
    with pytest.raises(BackendError):
        await lock.acquire(blocking_timeout=2.2)


def connecting() -> list[asyncio.Task[Any]]:
    return [task for task in asyncio.all_tasks() if task.get_name() == "aiolocks-connect"]


@pytest.mark.more  # as a session that is closed
async def test_a_session_that_nobody_uses_any_more_does_not_stay_for_an_undo(
    own_server: OwnServer, quick_collections: None
) -> None:
    server = await own_server()
    client = Redis(unix_socket_path=str(server.path))
    await unanswered(client, server)
    server.kill()
    engine = weakref.ref(Session.of(client)._engine)
    assert connecting()
    await client.aclose()
    del client
    await eventually(lambda: gc.collect() >= 0 and engine() is None)
    await eventually(lambda: connecting() == [])


async def test_a_time_limit_does_not_wait_for_a_server_that_hangs(own_server: OwnServer) -> None:
    """The release goes on in the background, and frees the name once the server goes on."""
    server = await own_server()
    async with server.client() as client, Session(client) as session:
        with elapsed() as took, pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2), Lock(session, "a", ttl=60):
                server.pause()
                await asyncio.sleep(60)
        server.resume()
        assert took.seconds < 10
        async with Lock(session, "a", blocking_timeout=30):
            pass


@pytest.mark.leaves_keys
async def test_closing_a_session_does_not_wait_for_a_server_that_hangs(own_server: OwnServer) -> None:
    server = await own_server()
    async with server.client() as client:
        await unanswered(client, server)
        with elapsed() as took:
            await Session.of(client).aclose()
        assert took.seconds < 1.0 + SLACK
        assert connecting() == []
    server.resume()


async def end_with_an_undo_left(url: str, pid: int) -> None:
    async with Redis.from_url(url) as client:
        lock = Lock(client, "a", ttl=30)
        await (await lock.acquire()).release()
        os.kill(pid, signal.SIGSTOP)
        with suppress(BackendError):
            await lock.acquire(blocking_timeout=2.2)
    tell("left", at=time.monotonic())


@pytest.mark.more  # as the end of a session that leaves one
@pytest.mark.leaves_keys
async def test_a_process_ends_although_an_undo_is_left(own_server: OwnServer, workers: Workers) -> None:
    server = await own_server()
    worker = await workers.start(end_with_an_undo_left, url=server.url, pid=server.pid)
    (report,) = await worker.finish()
    assert time.monotonic() - report["at"] < 1.0 + 5 * SLACK
    server.resume()


@pytest.mark.parametrize("kind", only([Lock, FairLock, RWLock], RWLock))
async def test_what_is_remembered_does_not_grow_while_a_server_is_away(
    own_server: OwnServer, kind: Callable[..., Any]
) -> None:
    """Only what was written to a server can be executed there."""
    server = await own_server()
    async with server.client() as client, Session(client) as session:
        lock = kind(session, "a", ttl=0.2)
        lock = lock.writer if kind is RWLock else lock
        await (await lock.acquire()).release()
        server.pause()
        acquiring = asyncio.create_task(lock.acquire(blocking_timeout=0.1))
        with pytest.raises(BackendError):
            await acquiring
        server.kill()
        transport = session._engine._transport

        def waiting() -> int:
            return sum(not call.done for call in transport.waiting())

        for _ in range(30):
            with pytest.raises(BackendError):
                await lock.acquire(blocking_timeout=0.02)
        await asyncio.sleep(0.3)
        assert waiting() <= 2
        assert len(transport._residue._lanes) <= 2
        await server.start()
        await eventually(lambda: not transport._residue and waiting() == 0)
