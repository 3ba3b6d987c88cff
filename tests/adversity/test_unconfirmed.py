"""`confirm=False` on real servers: what the end of a block promises, and what it does not."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest
from redis.asyncio import Redis

from aiolocks import (
    Backoff,
    ConfigurationError,
    FairLock,
    LeaseState,
    Lock,
    MultiLock,
    RWLock,
    Session,
)
from tests.adversity.test_cluster_moving import TAG, moving
from tests.adversity.tools import RELEASE, Keys
from tests.conftest import Connect, OwnServer, blocking
from tests.support.clusters import Cluster
from tests.support.processes import Workers, tell
from tests.support.proxy import Proxy
from tests.support.servers import Server
from tests.support.waiting import eventually

TTL = 60.0
"""Seconds: who gets in before these are over was let in by the release."""
TIMES = 3
KINDS: dict[str, Callable[..., Any]] = {
    "lock": Lock,
    "fairlock": FairLock,
    "rwlock": lambda client, name, **common: RWLock(client, name, **common).writer,
}


# -- a process that is killed right behind a block


async def dies(url: str, kind: str, beside: str) -> None:
    """In a process of its own: SIGKILL in the step in which the block ends."""
    redis = Redis.from_url(url)
    session = Session(redis)
    lock = KINDS[kind](session, "a", ttl=TTL, confirm=False)
    await redis.ping()
    waiting = None
    async with lock as lease:
        tell("inside")
        match beside:
            case "a waiter of the process":
                waiting = asyncio.create_task(lock.acquire())
                await asyncio.sleep(0.05)
            case "requests under way":
                asking = [asyncio.create_task(lease.owned()) for _ in range(20)]
                await asyncio.sleep(0)
                assert not any(task.done() for task in asking)
    os.kill(os.getpid(), signal.SIGKILL)
    await asyncio.sleep(60)
    del waiting


@pytest.mark.parametrize("beside", ["nothing", "a waiter of the process", "requests under way"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.thin
async def test_a_process_that_is_killed_right_behind_a_block_leaves_nothing(
    own_server: OwnServer, workers: Workers, kind: str, beside: str
) -> None:
    """On a server that does not know a script yet, too: the first release goes with its text."""
    server = await own_server()
    async with Redis.from_url(server.url) as redis, Session(redis) as session:
        for _ in range(TIMES):
            await redis.script_flush()
            worker = await workers.start(dies, url=server.url, kind=kind, beside=beside)
            await worker.finish(status=-signal.SIGKILL)
            # The place of a waiter that has died lasts for 2 s.
            async with KINDS[kind](session, "a").acquire(blocking_timeout=TTL / 3):
                pass


# -- what the server alone knows


class Told:
    def __init__(self) -> None:
        self.events: list[tuple[str, str]] = []
        self.deadlocks: list[str] = []

    def on_released(self, event: Any) -> None:
        self.events.append(("on_released", event.reason))

    def on_lost(self, event: Any) -> None:
        self.events.append(("on_lost", event.reason))

    def on_deadlock(self, event: Any) -> None:
        self.deadlocks.append(event.reason)


async def test_a_loss_that_only_the_server_knows_is_told_behind_the_block(
    redis: Redis, server: Server, keys: Keys, caplog: pytest.LogCaptureFixture
) -> None:
    told = Told()
    async with Session(redis, listeners=[told]) as session:
        lock = Lock(session, "a", confirm=False)
        async with lock:
            pass
        with blocking(server.url) as other:
            async with lock as lease:
                other.delete(*keys())  # no turn of the loop, in which its session could hear of it
        assert told.events == [("on_released", "")], "the block has ended, and raises nothing"
        assert not await lease.wait_released()
        assert told.events[1:] == [
            ("on_lost", "the server no longer had it as the holder when it was released")
        ]
        assert lease.state is LeaseState.LOST
        assert session.statistics().losses == 1
    assert "was lost after" in caplog.text


async def test_the_next_request_of_the_session_finds_it_free_and_another_session_soon(
    connect: Connect, proxy: Callable[[Server], Awaitable[Proxy]], server: Server
) -> None:
    """What is on its way yet, another session finds taken: a client that has its answer, and asks a process
    beside, may be refused once."""
    link = await proxy(server)
    async with Session(connect(link)) as here, Session(connect()) as there:
        lock = Lock(here, "a", ttl=TTL, confirm=False)
        async with lock:
            link.delay_requests = 0.3
        assert await Lock(there, "a").try_acquire() is None
        own = await lock.try_acquire()
        assert own is not None
        link.delay_requests = 0.0
        await own.release()
        async with Lock(there, "a").acquire(blocking_timeout=TTL / 3):
            pass


async def test_the_acquire_right_behind_leaves_in_its_own_step(session: Session) -> None:
    """It does not wait for a turn of the loop to be sent together with others: there are none."""
    lock = Lock(session, "a", ttl=TTL, confirm=False)
    async with lock:
        pass
    connection: Any = lock._engine()._transport
    async with lock:
        pass
    acquiring = asyncio.create_task(lock.acquire())
    await asyncio.sleep(0)
    assert len(connection._queue) == 0
    await (await acquiring).release()


# -- a release that goes wrong


async def test_a_single_try_has_it_though_the_server_has_lost_the_script_of_the_release(
    redis: Redis, connect: Connect
) -> None:
    """The server executes the try first, for it has learned that script again, and refuses it."""
    async with Session(redis) as session, Session(connect()) as other:
        lock = Lock(session, "a", ttl=TTL, confirm=False)
        for _ in range(3):
            async with lock as lease:
                await redis.script_flush()
                held = await Lock(other, "b").acquire()
            again = await lock.try_acquire()
            assert again is not None
            assert await lease.wait_released()
            await again.release()
            await held.release()


@pytest.mark.parametrize("how", ["no answer", "not sent"])
async def test_a_release_whose_connection_breaks_is_sent_again(
    connect: Connect, proxy: Callable[[Server], Awaitable[Proxy]], server: Server, how: str
) -> None:
    """And the acquire behind it comes behind it."""
    link = await proxy(server)
    async with Session(connect(link), backoff=Backoff(maximum=0.5)) as session:
        lock = Lock(session, "a", ttl=TTL, confirm=False)
        async with lock:
            pass
        async with lock as lease:
            if how == "no answer":
                link.reset_after(RELEASE)
            else:
                link.cut()
        async with lock.acquire(blocking_timeout=TTL / 3):
            assert await lease.wait_released()
        counts = session.statistics()
        assert (counts.losses, counts.releases_unconfirmed) == (0, 0)


async def test_closing_waits_for_a_release_that_is_on_its_way(
    connect: Connect, proxy: Callable[[Server], Awaitable[Proxy]], server: Server, keys: Keys
) -> None:
    link = await proxy(server)
    session = Session(connect(link))
    async with Lock(session, "a", ttl=TTL, confirm=False) as lease:
        link.hold_requests = True
    closing = asyncio.create_task(session.aclose())
    await asyncio.sleep(0.05)
    assert not closing.done()
    link.hold_requests = False
    await closing
    assert await lease.wait_released()
    assert keys() == []


@pytest.mark.leaves_keys
async def test_closing_says_what_was_not_confirmed(
    connect: Connect,
    proxy: Callable[[Server], Awaitable[Proxy]],
    server: Server,
    caplog: pytest.LogCaptureFixture,
) -> None:
    link = await proxy(server)
    told = Told()
    session = Session(connect(link), command_timeout=0.3, listeners=[told])
    async with Lock(session, "a", ttl=2.0, confirm=False) as lease:
        link.blackhole = True
    assert told.events == []
    await session.aclose()
    assert told.events == [("on_released", "unconfirmed")]
    assert not await lease.wait_released()
    assert session.statistics().releases_unconfirmed == 1
    assert "Redis did not confirm that" in caplog.text


def test_a_program_that_is_interrupted_in_a_block_leaves_nothing(server: Server, keys: Keys) -> None:
    async def main(*, close: bool) -> None:
        redis = Redis.from_url(server.url)
        session = Session(redis)
        try:
            async with Lock(session, "a", ttl=TTL, confirm=False):
                raise KeyboardInterrupt
        finally:
            if close:
                await session.aclose()
            await redis.aclose()

    for close in (True, False):
        with pytest.raises(KeyboardInterrupt):
            asyncio.run(main(close=close))
        assert keys() == []


# -- where requests could overtake each other


async def test_long_requests_keep_their_order_with_releases(connect: Connect) -> None:
    """An acquire with long metadata goes over a second connection, and is not to overtake the release."""
    async with Session(connect(), largest_metadata=1_000_000) as session:
        long = Lock(session, "a", ttl=TTL, confirm=False, metadata={"a": "x" * 400_000})
        short = Lock(session, "a", ttl=TTL, confirm=False)
        for lock in (long, short, long, long, short):
            lease = await lock.try_acquire()
            assert lease is not None
            async with lease:
                pass


@pytest.mark.parametrize("begun", ["while it is held", "behind the block"])
async def test_the_next_try_has_it_while_the_slot_moves(
    cluster: Cluster, sessions: list[Session], begun: str
) -> None:
    lock = Lock(sessions[0], TAG, ttl=TTL, confirm=False)
    for _ in range(2):
        async with lock:
            pass
    if begun == "while it is held":
        lease = await lock.__aenter__()
        with moving(cluster):
            await lock.__aexit__(None, None, None)
            trying = asyncio.create_task(lock.acquire(blocking_timeout=TTL / 3))
            await asyncio.sleep(0.05)
    else:
        async with lock as lease:
            pass
        with moving(cluster):
            trying = asyncio.create_task(lock.acquire(blocking_timeout=TTL / 3))
            await asyncio.sleep(0.05)
    await (await trying).release()
    assert await lease.wait_released()
    for _ in range(2):  # the client learns of the new node with these
        async with lock:
            pass
        async with lock.try_acquire() as again:
            assert again is not None
    await eventually(lambda: cluster.keys() == [], within=5)


async def test_names_of_several_slots_are_refused_at_the_first_acquire(sessions: list[Session]) -> None:
    for _ in range(2):
        with pytest.raises(ConfigurationError, match="several slots"):
            await MultiLock(sessions[0], ["a", "b"], confirm=False).acquire()
    async with MultiLock(sessions[0], ["{a}b", "{a}c"], confirm=False) as lease:
        pass
    assert await lease.wait_released()


# -- beside the search for deadlocks


async def test_a_release_that_is_on_its_way_yet_is_no_deadlock(
    connect: Connect, proxy: Callable[[Server], Awaitable[Proxy]], server: Server, redis: Redis
) -> None:
    """For a while, the server still has a lease that was let go of, and a wait that is over: with a wait that
    has begun since, they look like a ring. The search looks twice, and counts a wait only if its session has
    said in between that it goes on."""
    link, told = await proxy(server), Told()
    options: dict[str, Any] = {"listeners": [told], "on_deadlock": "raise"}
    async with Session(connect(link), **options) as here, Session(connect(), **options) as there:
        has, has_left, limit = asyncio.Event(), asyncio.Event(), asyncio.timeout(None)

        async def leaves() -> None:
            async with Lock(here, "x", ttl=TTL, confirm=False):
                with suppress(TimeoutError):
                    async with limit:
                        await Lock(here, "y").acquire()
            has_left.set()

        async def comes() -> None:
            async with Lock(there, "y", ttl=TTL):
                has.set()
                await has_left.wait()
                async with Lock(there, "x").acquire():
                    pass

        async with asyncio.timeout(TTL / 2), asyncio.TaskGroup() as group:
            group.create_task(comes())
            await has.wait()
            group.create_task(leaves())
            while not (first := await published(redis, "y")):
                await asyncio.sleep(0.01)
            link.hold_requests = True
            limit.reschedule(0)
            await has_left.wait()
            while not (second := await published(redis, "x")) or beat(second[-1]) < 4:
                await redis.zadd(
                    WAITS, {first[-1]: time.time() * 1000 + 60_000}
                )  # as if it were said just now
                await asyncio.sleep(0.05)
            assert await Lock(there, "x").locked(), "the release has not arrived"
            link.hold_requests = False
    await redis.delete(WAITS)
    assert told.deadlocks == []


WAITS = "aiolocks:waits:{all}"


async def published(redis: Redis, name: str) -> list[bytes]:
    """The records of the sessions that wait for that lock."""
    records: list[bytes] = await redis.zrange(WAITS, 0, -1)
    return [one for one in records if any(wait[6] == name for wait in json.loads(one)[1:])]


def beat(record: bytes) -> int:
    """How often its session had said that it waits."""
    number: int = json.loads(record)[0]
    return number
