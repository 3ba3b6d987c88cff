"""Leases that count when replicas have them hold up no other, however slow the replicas are."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from redis.asyncio import Redis

from aiolocks import BackendError, FairLock, LeaseState, Lock, RWLock, Semaphore, Session
from tests.adversity.tools import rejected
from tests.support.proxy import Proxy
from tests.support.sentinels import Replicated
from tests.support.servers import ServerKind
from tests.support.waiting import eventually


@pytest.fixture
async def replicated(server_kind: ServerKind) -> AsyncIterator[Replicated]:
    if server_kind.executable is None or server_kind.is_simulated:
        pytest.skip(f"not with {server_kind}: it starts servers of its own")
    async with Replicated(executable=server_kind.executable) as servers:
        yield servers


@pytest.fixture
async def through(replicated: Replicated) -> AsyncIterator[Proxy]:
    async with Proxy(replicated.master.url) as proxy:
        yield proxy


@pytest.fixture
async def client(through: Proxy) -> AsyncIterator[Redis]:
    async with through.client() as client:
        yield client


async def acquire_many(session: Session, count: int, **options: Any) -> list[Any]:
    locks = [Lock(session, f"many {number}", replicas=1, ttl=10, **options) for number in range(count)]
    return await asyncio.gather(*(lock.acquire() for lock in locks), return_exceptions=True)


async def test_while_a_replica_is_stopped_other_leases_stay_held_and_others_are_had(
    replicated: Replicated, client: Redis
) -> None:
    async with Session(client) as session:
        leases = [await Lock(session, f"held {number}", ttl=0.6).acquire() for number in range(5)]
        replicated.replica.pause()
        acquiring = asyncio.create_task(acquire_many(session, 100, blocking_timeout=1.5))
        others = 0
        while not acquiring.done():
            async with Lock(session, "other", ttl=0.6):
                others += 1
            await asyncio.sleep(0.01)
        assert {type(outcome) for outcome in await acquiring} == {BackendError}
        assert all("0 of 1 replicas had it" in str(outcome) for outcome in await acquiring)
        assert others > 8
        assert [lease.state for lease in leases] == [LeaseState.HELD] * 5
        replicated.replica.resume()
        for lease in [*leases, *await acquire_many(session, 3, blocking_timeout=10)]:
            await lease.release()


async def test_one_question_serves_many_grants(replicated: Replicated, client: Redis, through: Proxy) -> None:
    async with Session(client) as session:
        for lease in await acquire_many(session, 100):
            await lease.release()
        assert through.connections == 2
        assert through.count(lambda request: request[0] == b"WAIT") <= 10
        assert await replicated.master.client().keys("*replicas*") == []


async def test_grants_that_come_while_others_wait_have_their_turn(
    replicated: Replicated, client: Redis, through: Proxy
) -> None:
    """Also behind others that have left; the replica is as slow as a stopped one that goes on."""
    async with Session(client) as session:
        replicated.replica.pause()
        first = asyncio.create_task(acquire_many(session, 5, blocking_timeout=10))
        await through.saw(lambda request: request[0] == b"WAIT", count=2)
        second = asyncio.create_task(Lock(session, "second", replicas=1).acquire(blocking_timeout=10))
        await asyncio.sleep(0.05)
        first.cancel()
        await asyncio.wait([first])
        replicated.replica.resume()
        await (await second).release()


async def test_numbers_of_replicas_do_not_wait_for_each_other(replicated: Replicated, client: Redis) -> None:
    async with Session(client, command_timeout=20) as session:
        never = asyncio.create_task(Lock(session, "never", replicas=2).acquire(blocking_timeout=20))
        await eventually(Lock(session, "never").locked)
        for _ in range(3):
            async with Lock(session, "a", replicas=1, blocking_timeout=10):
                pass
        assert not never.done()
        never.cancel()
        await asyncio.wait([never])


async def test_a_lease_that_another_master_does_not_know_is_not_proved_there(
    replicated: Replicated, client: Redis, through: Proxy
) -> None:
    """The questions lead to a server by now that has a replica, and not the lease."""
    async with Session(client) as session, Replicated() as others:
        async with Lock(session, "warm"):
            first = set(through._links)
        replicated.replica.pause()
        acquiring = asyncio.create_task(Lock(session, "a", replicas=1).acquire(blocking_timeout=1.0))
        await through.saw(lambda request: request[0] == b"WAIT")
        (questions,) = through._links - first
        through._upstream = others.master.url
        questions.cut()
        assert "0 of 1 replicas had it" in str(await rejected(acquiring))
        assert through.connections == 3


KINDS: dict[str, Callable[..., Any]] = {
    "lock": Lock,
    "fairlock": FairLock,
    "semaphore": lambda session, name, **options: Semaphore(session, name, 2, **options),
    "rwlock": lambda session, name, **options: RWLock(session, name, **options).writer,
}


async def test_no_more_is_needed_than_a_kind_needs_and_the_command(replicated: Replicated) -> None:
    """Of keys, only those of the kind, also where the name brings a hash tag; of commands, `wait`."""
    admin = replicated.master.client()
    for kind, make in KINDS.items():
        patterns = [f"aiolocks:{kind}:*", f"aiolocks:{kind}.*"]
        await admin.acl_setuser(
            kind, enabled=True, nopass=True, keys=patterns, commands=["+@all", "-ping"], reset=True
        )
        async with replicated.client(username=kind, password="any") as client, Session(client) as session:
            for name in ("a", "b{c}:d", "100% {x"):
                async with make(session, name, replicas=1, blocking_timeout=10):
                    pass
        assert await admin.keys("*replicas*") == []
