"""A master that is replaced: by Sentinel, when it dies or is told to; and what replicas had before."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from aiolocks import (
    BackendError,
    ConfigurationError,
    FairLock,
    LeaseState,
    Lock,
    LockLostError,
    RWLock,
    Semaphore,
    Session,
)
from tests.adversity.tools import SLACK, begin, in_within, waiter
from tests.support.proxy import Proxy
from tests.support.sentinels import Replicated, Watched
from tests.support.waiting import eventually

pytestmark = [pytest.mark.leaves_keys]
FAILOVER = 10.0
"""Seconds that it may take, on a busy machine; about two on an idle one."""


@pytest.fixture
async def watched(tmp_path: Path) -> AsyncIterator[Watched]:
    async with Watched(tmp_path) as watched:
        yield watched


async def test_t_f_6_what_the_replica_has_goes_on(watched: Watched) -> None:
    """Held leases are renewed on the new master, and waiters go on waiting there."""
    async with Session(watched.client()) as here, Session(watched.client()) as elsewhere:
        lease = await Lock(here, "a", ttl=FAILOVER, replicas=1).acquire()
        waiting = await waiter(elsewhere, Lock(elsewhere, "a", ttl=5).acquire(blocking_timeout=30))
        watched.master.kill()
        await eventually(watched.failed_over, within=FAILOVER)

        async def owned() -> bool:
            try:
                return await lease.owned()
            except BackendError:  # the old master is asked until Sentinel names the new one
                return False

        await eventually(owned, within=FAILOVER)
        assert lease.state is LeaseState.HELD
        assert not waiting.done()
        await lease.release()
        other = await in_within(FAILOVER, waiting)
        assert other.fencing_token > lease.fencing_token
        await other.release()


async def test_t_f_3_what_the_replica_does_not_have_is_lost(watched: Watched) -> None:
    """Its holder is told by the new master, and the next one has a larger fencing token."""
    async with Session(watched.client()) as here, Session(watched.client()) as elsewhere:
        await (await Lock(here, "warm up").acquire()).release()
        await watched.cut_off_replica()
        lease: Any = None

        async def body() -> None:
            nonlocal lease
            async with Lock(here, "a", ttl=FAILOVER) as lease:
                await asyncio.sleep(60)

        holding = begin(body())
        await eventually(lambda: lease is not None)
        waiting = await waiter(elsewhere, Lock(elsewhere, "a", ttl=5).acquire(blocking_timeout=30))
        watched.master.kill()
        watched.replica.resume()
        with pytest.raises(LockLostError):
            await in_within(2 * FAILOVER, holding)
        other = await in_within(FAILOVER, waiting)
        assert other.fencing_token > lease.fencing_token
        await other.release()


async def test_t_f_6_a_master_that_is_demoted_is_left(watched: Watched) -> None:
    """It lives on as a replica, and says so."""
    async with Session(watched.client()) as session:
        lease = await Lock(session, "a", ttl=FAILOVER, replicas=1).acquire()
        old = watched.master.client()
        await watched.promote()
        await old.execute_command("REPLICAOF", "127.0.0.1", watched.replica.port)
        await eventually(lease.owned, within=FAILOVER)
        assert lease.state is LeaseState.HELD
        await lease.release()
        async with Lock(session, "b", blocking_timeout=FAILOVER) as other:
            assert await other.owned()


@pytest.mark.more  # as a Sentinel that leads there
async def test_a_proxy_leads_only_new_connections_to_the_new_master() -> None:
    """As HAProxy does: the session leaves the old one, which is a replica now and refuses."""
    async with (
        Replicated() as servers,
        Proxy(servers.master.url) as proxy,
        proxy.client() as client,
        Session(client) as session,
    ):
        old, new = servers.client(), servers.replica.client()
        lease = await Lock(session, "a", ttl=FAILOVER, replicas=1).acquire()
        await new.execute_command("REPLICAOF", "NO", "ONE")
        await old.execute_command("REPLICAOF", "127.0.0.1", servers.replica.port)
        proxy.lead_to(servers.replica.url)
        await lease.release()
        async with Session(new) as elsewhere, Lock(elsewhere, "a", blocking_timeout=FAILOVER):
            pass
        async with Lock(session, "b", blocking_timeout=FAILOVER) as other:
            assert await other.owned()


async def test_nothing_hangs_where_nobody_takes_over(tmp_path: Path) -> None:
    async with Watched(tmp_path, replicas=0) as watched, Session(watched.client()) as session:
        await (await Lock(session, "warm up").acquire()).release()
        watched.master.kill()
        began = time.monotonic()
        with pytest.raises(BackendError):
            await Lock(session, "a").acquire(blocking_timeout=0.5)
        assert time.monotonic() - began < 0.5 + SLACK


# -- WAIT ----------------------------------------------------------------------------------------------------


@pytest.fixture
async def replicated() -> AsyncIterator[Replicated]:
    async with Replicated() as replicated:
        yield replicated


KINDS: dict[str, Callable[..., Any]] = {
    "lock": Lock,
    "fairlock": FairLock,
    "semaphore": lambda session, name, **options: Semaphore(session, name, 2, **options).acquire(2),
    "reader": lambda session, name, **options: RWLock(session, name, **options).reader,
    "upgradable": lambda session, name, **options: RWLock(session, name, **options).upgradable,
    "writer": lambda session, name, **options: RWLock(session, name, **options).writer,
}


async def had(acquiring: Any) -> None:
    async with acquiring as lease:
        assert lease.state is LeaseState.HELD


async def test_t_f_4_a_grant_that_no_replica_has_is_given_back(replicated: Replicated) -> None:
    async with Session(replicated.client()) as session:
        for kind, make in KINDS.items():
            await had(make(session, kind, replicas=1, blocking_timeout=5.0))
        replicated.replica.pause()
        for kind, make in KINDS.items():
            with pytest.raises(BackendError, match="0 of 1 replicas"):
                await had(make(session, kind, replicas=1, blocking_timeout=0.1))
            # Given back: somebody who does not ask for replicas has it at once.
            await had(make(session, kind, blocking_timeout=2.0))
        replicated.replica.resume()
        for kind, make in KINDS.items():
            await had(make(session, kind, replicas=1, blocking_timeout=5.0))


@pytest.mark.more  # as replicas that are not connected
async def test_more_replicas_than_there_are(replicated: Replicated) -> None:
    async with Session(replicated.client(), command_timeout=0.8) as session:
        began = time.monotonic()
        with pytest.raises(BackendError, match="1 of 2 replicas"):
            await Lock(session, "a", replicas=2).acquire()
        with pytest.raises(BackendError, match="1 of 2 replicas"):
            await Lock(session, "a", replicas=2).try_acquire()
        assert time.monotonic() - began < 4
        assert not await Lock(session, "a").locked()


@pytest.mark.more  # as T-F-4, given back
async def test_cancelled_while_replicas_are_awaited_nothing_stays(replicated: Replicated) -> None:
    async with Session(replicated.client()) as session, Session(replicated.client()) as other:
        replicated.replica.pause()
        for _ in range(5):
            waiting = begin(Lock(session, "a", replicas=1).acquire())
            await eventually(Lock(other, "a").locked)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            async with Lock(other, "a", blocking_timeout=2):
                pass


@pytest.mark.more  # as an acquire
async def test_an_upgrade_waits_for_replicas_too(replicated: Replicated) -> None:
    async with (
        Session(replicated.client()) as session,
        RWLock(session, "a", replicas=1).upgradable as lease,
    ):
        async with lease.upgrade(blocking_timeout=2):
            pass
        replicated.replica.pause()
        with pytest.raises(BackendError, match="0 of 1 replicas"):
            await lease.upgrade(blocking_timeout=0.1)
        lease.ensure_held()


async def test_a_broken_connection_confirms_nothing(replicated: Replicated) -> None:
    """On a new one, WAIT would count replicas that have none of it."""
    async with Session(replicated.client()) as session, Session(replicated.client()) as other:
        replicated.replica.pause()
        waiting = begin(Lock(session, "a", replicas=1).acquire(blocking_timeout=1.0))
        await eventually(Lock(other, "a").locked)
        for _ in range(5):
            await replicated.master.client().execute_command("CLIENT", "KILL", "TYPE", "normal")
            await asyncio.sleep(0.05)
        with pytest.raises(BackendError, match="0 of 1 replicas"):
            await waiting


async def test_without_a_connection_of_its_own_it_is_refused() -> None:
    from fakeredis import FakeAsyncRedis

    async with FakeAsyncRedis() as fake, Session(fake) as session:
        with pytest.raises(ConfigurationError, match="replicas="):
            await Lock(session, "a", replicas=1).acquire()
        async with Lock(session, "a", blocking_timeout=1):
            pass
