"""Leases that count when replicas have them hold up no other, however slow the replicas are."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from redis.asyncio import Redis

from aiolocks import BackendError, FairLock, LeaseState, Lock, LockTimeoutError, RWLock, Semaphore, Session
from tests.adversity.tools import rejected
from tests.conftest import Connect, OwnServer
from tests.support.proxy import Proxy
from tests.support.sentinels import Replicated
from tests.support.servers import ServerKind
from tests.support.thinning import only
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


@pytest.mark.more  # as grants without replicas
async def test_while_a_replica_is_stopped_other_leases_stay_held_and_others_are_had(
    replicated: Replicated, client: Redis
) -> None:
    async with Session(client) as session:
        leases = [await Lock(session, f"held {number}", ttl=3).acquire() for number in range(5)]
        replicated.replica.pause()
        acquiring = asyncio.create_task(acquire_many(session, 100, blocking_timeout=1.5))
        others = 0
        while not acquiring.done():
            async with Lock(session, "other", ttl=3):
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


@pytest.mark.more  # as one question for many grants
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


@pytest.mark.more  # as one question for many grants
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


@pytest.mark.more  # as a broken connection
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


@pytest.mark.more  # as one question for many grants
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


# -- what a single try waits for


@pytest.fixture
async def alone(own_server: OwnServer, proxy: Callable[[Any], Any]) -> Proxy:
    """The way to a server without replicas."""
    through: Proxy = await proxy(await own_server())
    return through


def waits(through: Proxy) -> int:
    return through.count(lambda request: request[0] == b"WAIT")


@pytest.mark.parametrize("kind", KINDS)
async def test_a_refused_try_does_not_wait_for_replicas(alone: Proxy, connect: Connect, kind: str) -> None:
    async with Session(connect(alone), command_timeout=50) as session:
        make = KINDS[kind]
        held = [await make(session, "a").acquire() for _ in range(2 if kind == "semaphore" else 1)]
        async with asyncio.timeout(25):
            assert await make(session, "a", replicas=1).try_acquire() is None
            with pytest.raises(LockTimeoutError):
                await make(session, "a", replicas=1).acquire(blocking_timeout=0)
        assert waits(alone) == 0
        for lease in held:
            await lease.release()


@pytest.mark.parametrize("kind", only(KINDS, "semaphore"))
async def test_a_granted_try_does_not_wait_for_replicas_that_are_not_connected(
    alone: Proxy, connect: Connect, kind: str
) -> None:
    """It held the name for the whole `command_timeout`."""
    async with Session(connect(alone), command_timeout=50) as session, Session(connect(alone)) as other:
        lock = KINDS[kind](session, "a", replicas=1)
        async with asyncio.timeout(25):
            for _ in range(3):
                error = await rejected(lock.try_acquire())
                assert "was acquired, but 0 of 1 replicas are connected to the server" in str(error)
                async with KINDS[kind](other, "a", blocking_timeout=10):
                    pass
            assert "0 of 1 replicas" in str(await rejected(lock.acquire(blocking_timeout=0)))
        assert alone.count(b"replication") <= 4
        assert alone.connections == 3


@pytest.mark.more  # as T-F-4
async def test_a_try_waits_for_replicas_that_are_connected(replicated: Replicated, client: Redis) -> None:
    async with Session(client) as session:
        replicated.replica.pause()
        trying = asyncio.create_task(Lock(session, "a", replicas=1).try_acquire())
        await eventually(Lock(session, "a").locked, within=10)
        await asyncio.sleep(0.3)
        assert not trying.done()
        replicated.replica.resume()
        lease = await asyncio.wait_for(trying, 10)
        assert lease is not None
        await lease.release()


@pytest.mark.more  # as what the command needs
async def test_a_user_without_info_waits_as_documented(alone: Proxy, connect: Connect) -> None:
    admin = connect(alone)
    await admin.acl_setuser(
        "locks", enabled=True, nopass=True, keys=["*"], channels=["*"], commands=["+@all", "-info"]
    )
    client = connect(alone, username="locks", password="any")
    async with Session(client, command_timeout=0.5) as session:
        for _ in range(2):
            assert "0 of 1 replicas had it within" in str(
                await rejected(Lock(session, "a", replicas=1).try_acquire())
            )
        assert alone.count(b"replication") == 1
        assert not await Lock(session, "a").locked()


@pytest.mark.more  # as replicas that are connected
async def test_a_wait_takes_a_replica_that_comes(
    replicated: Replicated, client: Redis, through: Proxy
) -> None:
    async with Session(client) as session:
        follower = replicated.replica.client()
        await follower.execute_command("REPLICAOF", "NO", "ONE")
        acquiring = asyncio.create_task(Lock(session, "a", replicas=1).acquire(blocking_timeout=20))
        await through.saw(lambda request: request[0] == b"WAIT", count=2)
        await follower.execute_command("REPLICAOF", "127.0.0.1", replicated.master.port)
        await (await acquiring).release()


async def test_cancelled_while_the_server_says_what_is_connected(alone: Proxy, connect: Connect) -> None:
    async with Session(connect(alone)) as session, Session(connect(alone)) as other:
        for _ in range(5):
            trying = asyncio.create_task(Lock(session, "a", replicas=1).try_acquire())
            asked = alone.count(b"replication")
            await eventually(lambda asked=asked: alone.count(b"replication") > asked, within=10)
            trying.cancel()
            await asyncio.wait([trying])
            async with Lock(other, "a", blocking_timeout=10):
                pass
