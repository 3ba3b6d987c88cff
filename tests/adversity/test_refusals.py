"""The refusals of a server: T-N-11, each error produced for real.

Transient ones are tried again for as long as there is time, for others one is told at once; a lease outlives
both until its own deadline.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from redis.asyncio import Redis
from redis.exceptions import RedisError

from aiolocks import Backoff, Lease, LeaseState, Lock, LockLostError, Session
from aiolocks.testing import EmbeddedServer
from tests.adversity.tools import (
    SLACK,
    Keys,
    elapsed,
    rejected,
    renewed,
    strangers,
    warm,
    with_own_connections,
)
from tests.adversity.troubles import TRANSIENT, TROUBLES, Setting, Trouble, is_loading
from tests.conftest import Connect, OwnServer
from tests.support.waiting import eventually, sleeps

# How a lease goes through them does not depend on the transport: two samples are enough of the plain one.
HURTING = [(trouble, "multiplexed") for trouble in TROUBLES if trouble.hurts_holders] + [
    (trouble, "plain") for trouble in TROUBLES if trouble.name in ("NOREPLICAS", "READONLY")
]


@pytest.mark.parametrize("trouble", TROUBLES, ids=str)
async def test_t_n_11_says_what_is_the_matter(trouble: Trouble, setting: Setting) -> None:
    _, client, lasting = setting
    async with lasting():
        with elapsed() as took:
            error = await rejected(Lock(client, "a").try_acquire())
        assert took.seconds < SLACK
        assert trouble.said in str(error)
        assert isinstance(error.__cause__, RedisError)
        if not trouble.transient:
            assert "'aiolocks:lock:{a}'" in str(error)
            # It would be refused again: one is told at once.
            for blocking_timeout in (5, None):
                with elapsed() as took:
                    await rejected(Lock(client, "a").acquire(blocking_timeout=blocking_timeout))
                assert took.seconds < SLACK
    async with Lock(client, "a").acquire(blocking_timeout=2):
        pass


@pytest.mark.parametrize("trouble", TRANSIENT, ids=str)
async def test_t_n_11_what_passes_is_waited_for(trouble: Trouble, setting: Setting) -> None:
    _, client, lasting = setting
    async with Session(client) as session:
        async with lasting():
            limited = asyncio.create_task(Lock(session, "a", blocking_timeout=3).acquire())
            endless = asyncio.create_task(Lock(session, "b", ttl=3).acquire())
            await asyncio.sleep(0.15)
            assert not limited.done()
            assert not endless.done()
        with elapsed() as took:
            leases = await asyncio.gather(limited, endless)
        assert took.seconds < SLACK
        for lease in leases:
            await lease.release()


@pytest.mark.parametrize("trouble", TRANSIENT, ids=str)
async def test_t_n_11_what_does_not_pass_ends_the_wait_in_time(trouble: Trouble, setting: Setting) -> None:
    """Also the endless one, after a ttl without a yes or no."""
    _, client, lasting = setting

    async def wait(lock: Lock) -> None:
        with elapsed() as took:
            error = await rejected(lock.acquire())
        assert 0.28 <= took.seconds < 0.3 + SLACK
        # The very last try may have had no answer.
        assert trouble.said in str(error) or "did not answer" in str(error)

    async with lasting():
        await asyncio.gather(wait(Lock(client, "a", blocking_timeout=0.3)), wait(Lock(client, "b", ttl=0.3)))


async def test_t_n_11_last_reason_is_told_though_the_very_last_try_had_no_answer(
    own_server: OwnServer, connect: Connect, dress: Callable[[Redis], Redis]
) -> None:
    server = await own_server()
    client = dress(connect(server))
    await client.config_set("min-replicas-to-write", 1)
    async with Session(client) as session:
        waiting = asyncio.create_task(Lock(session, "a").acquire(blocking_timeout=0.4))
        await eventually(lambda: session.statistics().wakeups["poll"] >= 3)
        server.pause()
        error = await rejected(waiting)
        server.resume()
    assert "fewer replicas" in str(error)


async def test_t_n_11_endless_wait_ends_with_the_reason_and_does_not_sleep_past_its_end(
    own_server: OwnServer, connect: Connect, dress: Callable[[Redis], Redis]
) -> None:
    server = await own_server()
    client = dress(connect(server))
    await client.config_set("min-replicas-to-write", 1)
    async with Session(client, backoff=Backoff(initial=0.2, maximum=0.2, jitter=0)) as session:
        with elapsed() as took:
            error = await rejected(Lock(session, "a", ttl=0.3).acquire())
    assert "fewer replicas" in str(error)
    assert took.seconds < 0.3 + SLACK


@pytest.mark.parametrize(("trouble", "dress"), HURTING, ids=str, indirect=["dress"])
async def test_t_n_11_lease_outlives_a_refused_renewal(trouble: Trouble, setting: Setting) -> None:
    _, client, lasting = setting
    async with Lock(client, "a", ttl=2) as lease:
        async with lasting():
            await eventually(lambda: lease.state is LeaseState.UNKNOWN)
            lease.ensure_held()
        await eventually(lambda: lease.state is LeaseState.HELD)
        assert lease.remaining() > 0.5


@pytest.mark.parametrize(("trouble", "dress"), HURTING, ids=str, indirect=["dress"])
async def test_t_n_11_lease_is_lost_at_its_own_deadline(trouble: Trouble, setting: Setting) -> None:
    _, client, lasting = setting
    lease = await Lock(client, "a", ttl=0.4).acquire()
    async with lasting():
        deadline = asyncio.get_running_loop().time() + lease.remaining()
        with pytest.raises(LockLostError, match="without a confirmed renewal"):
            await held_until_cancelled(lease)
        assert 0 <= asyncio.get_running_loop().time() - deadline < SLACK
        assert lease.state is LeaseState.LOST


async def held_until_cancelled(lease: Lease) -> None:
    async with lease:
        await asyncio.sleep(5)


@pytest.mark.parametrize(("trouble", "dress"), HURTING, ids=str, indirect=["dress"])
async def test_t_n_11_release_is_tried_again(trouble: Trouble, setting: Setting, keys: Keys) -> None:
    server, client, lasting = setting
    lease = await Lock(client, "a", ttl=2).acquire()
    async with lasting():
        releasing = asyncio.create_task(lease.release())
        await asyncio.sleep(0.1)
        if trouble.transient:
            assert not releasing.done()
    if trouble.transient:
        await releasing
        assert lease.state is LeaseState.RELEASED
        assert keys(server) == []
    else:
        error = await rejected(releasing)
        async with server.client() as admin:
            await admin.flushall()
        assert lease.state is LeaseState.LOST
        assert trouble.said in str(error)


async def test_t_n_11_oom_refuses_newcomers_only(
    own_server: OwnServer, connect: Connect, dress: Callable[[Redis], Redis], keys: Keys
) -> None:
    """T-S-8 has the rest: what holds goes on renewing and can let go."""
    server = await own_server()
    client = dress(connect(server))
    async with Lock(client, "a", ttl=1.5) as lease:
        await client.config_set("maxmemory", 1)
        assert "out of memory" in str(await rejected(Lock(client, "b").acquire()))
        assert await Lock(client, "a").try_acquire() is None
        await renewed(lease)
        assert lease.state is LeaseState.HELD
    assert lease.state is LeaseState.RELEASED
    await client.config_set("maxmemory", 0)


@pytest.mark.leaves_keys("junk:*")
async def test_t_n_11_server_that_loads_its_data(
    own_server: OwnServer, connect: Connect, dress: Callable[[Redis], Redis]
) -> None:
    server = await own_server(
        arguments=("--key-load-delay", "2000", "--loading-process-events-interval-bytes", "1024")
    )
    client = dress(connect(server))
    await warm(client)
    await client.mset({f"junk:{number}": "x" * 100 for number in range(500)})
    await client.save()
    server.kill()
    restarting = asyncio.create_task(server.restart())
    await eventually(lambda: is_loading(server), within=5)
    lock = Lock(client, "a", ttl=5)
    if dress is not with_own_connections:  # there the client itself tries again and again
        assert "loading" in str(await rejected(lock.try_acquire())).lower()
    await rejected(lock.acquire(blocking_timeout=0.1))
    assert not restarting.done()
    async with lock.acquire(blocking_timeout=5):
        pass
    await restarting


# -- credentials ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("credentials", "said"),
    [
        ({}, "it wants a password"),
        ({"password": "wrong"}, "password is wrong"),
        ({"username": "nobody", "password": "right"}, "password is wrong"),
        ({"username": "off", "password": "right"}, "password is wrong"),
    ],
    ids=["none", "wrong password", "no such user", "disabled user"],
)
@pytest.mark.parametrize("protocol", [2, 3])
async def test_t_n_11_credentials_are_refused_at_once(
    own_server: OwnServer,
    connect: Connect,
    dress: Callable[[Redis], Redis],
    credentials: dict[str, Any],
    said: str,
    protocol: int,
) -> None:
    server = await own_server(arguments=("--requirepass", "right"))
    admin = connect(server, password="right")
    await admin.acl_setuser("off", enabled=False, passwords=["+right"])
    client = dress(connect(server, protocol=protocol, **credentials))
    lock = Lock(client, "a", ttl=5)
    for ask in (lock.acquire, lock.try_acquire, lock.locked):
        with elapsed() as took:
            error = await rejected(ask())
        assert took.seconds < SLACK
        assert said in str(error)
        assert isinstance(error.__cause__, RedisError)
        assert "right" not in str(error).replace("copyright", "")


@asynccontextmanager
async def other_password(server: EmbeddedServer) -> AsyncIterator[None]:
    """Beside the connections that are there, which are cut; a new one is refused."""
    async with strangers(server, 1) as (admin,):
        await admin.ask("AUTH", "right")
        await admin.ask("CONFIG", "SET", "requirepass", "other")
        await admin.ask("CLIENT", "KILL", "TYPE", "normal")
        try:
            yield
        finally:
            await admin.ask("CONFIG", "SET", "requirepass", "right")


async def test_t_n_11_credentials_that_change_while_it_is_held(
    own_server: OwnServer, connect: Connect, dress: Callable[[Redis], Redis], keys: Keys
) -> None:
    server = await own_server(arguments=("--requirepass", "right"))
    client = dress(connect(server, password="right"))
    async with Lock(client, "a", ttl=2.4) as lease:
        async with other_password(server):
            await eventually(lambda: lease.state is LeaseState.UNKNOWN)
            assert lease.remaining() > 0
        await eventually(lambda: lease.state is LeaseState.HELD)
    assert keys(server) == []


async def test_t_n_11_wait_ends_when_the_credentials_are_refused(
    own_server: OwnServer, connect: Connect, dress: Callable[[Redis], Redis]
) -> None:
    server = await own_server(arguments=("--requirepass", "right"))
    client = dress(connect(server, password="right"))
    lease = await Lock(connect(server, password="right"), "a", ttl=10).acquire()
    waiting = asyncio.create_task(Lock(client, "a", ttl=0.6).acquire())
    await eventually(lambda: sleeps(Session.of(client)))
    async with other_password(server):
        with elapsed() as took:
            error = await rejected(waiting)
    await lease.release()
    assert "password is wrong" in str(error)
    assert took.seconds < 0.6 + SLACK  # it listens that often
