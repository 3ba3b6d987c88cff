"""T-F-9: `SENTINEL FAILOVER` of a healthy master, which takes writes beside the new one for ten seconds."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis
from redis.asyncio.connection import Connection
from redis.asyncio.sentinel import Sentinel
from valkey.asyncio.sentinel import Sentinel as ValkeySentinel

from aiolocks import Lease, LeaseState, Lock, LockLostError, Session
from aiolocks.transport.keys import key
from tests.conftest import PREFIX
from tests.support.clients import with_own_connections
from tests.support.sentinels import SERVICE, Watched
from tests.support.thinning import only
from tests.support.waiting import eventually

pytestmark = [pytest.mark.leaves_keys]
TTL = 60.0
"""Seconds: what is known before a third of these have passed was not found by a renewal."""
NUMBERS = count()
SOON = 5.0
"""Seconds, on a busy machine, and less than the old master takes to be told; 0.1 on an idle one."""


@pytest.fixture
async def watched(tmp_path: Path) -> AsyncIterator[Watched]:
    async with Watched(tmp_path) as watched:
        yield watched


async def allow(watched: Watched, *rules: str) -> None:
    """Changes what Sentinel allows; those that hear it must connect again."""
    async with Redis(port=watched.sentinel.port or 0) as sentinel:
        await sentinel.execute_command("ACL", "SETUSER", "default", *rules)
        await sentinel.client_kill_filter(_type="pubsub")


async def grants_at_the_new_master(watched: Watched, session: Session) -> bool:
    """Whether that is where the session is by now."""
    name = f"where {next(NUMBERS)}"  # the old one may keep what it has granted
    lock = key(PREFIX, "lock", name)
    try:
        async with Lock(session, name, ttl=TTL):
            old, new = [await server.client().exists(lock) for server in (watched.master, watched.replica)]
    except LockLostError:  # granted by the old one, and let go of at the new one
        return False
    return bool(new and not old)


def client_of(watched: Watched, way: str) -> Any:
    """A client of two Sentinels, one of which is away."""
    away = ("127.0.0.1", 1)
    make: Any = ValkeySentinel if way == "valkey-py" else Sentinel
    sentinel = make([("127.0.0.1", watched.sentinel.port), away])
    client = sentinel.master_for(SERVICE, **({"protocol": 2} if way == "asked" else {}))
    if way == "not driven":
        for asked in (client, *sentinel.sentinels):
            with_own_connections(asked)
    return client


@pytest.mark.parametrize("way", only(["told", "asked", "not driven", "valkey-py"], "told"))
async def test_no_name_is_granted_twice_once_sentinel_names_the_new_master(
    watched: Watched, way: str
) -> None:
    if way == "asked":
        await allow(watched, "-subscribe")
    one, two = client_of(watched, way), client_of(watched, way)
    async with AsyncExitStack() as stack:
        for client in (one, two):
            for used in (client, *client.connection_pool.sentinel_manager.sentinels):
                stack.push_async_callback(used.aclose)
        stays = await stack.enter_async_context(Session(one))
        held = [await Lock(stays, f"held {one}", ttl=TTL).acquire() for one in range(5)]
        old = watched.master
        after = old.client()
        await after.set("after them", 1)
        assert await after.wait(1, 10_000) == 1  # the replica has them, however busy the machine
        await eventually(watched.try_promote, within=30)
        await eventually(watched.failed_over, within=30)
        await eventually(lambda: grants_at_the_new_master(watched, stays), within=SOON)
        comes = await stack.enter_async_context(Session(two))
        for number in range(20):
            async with (
                Lock(stays, f"{number}", ttl=TTL),
                Lock(comes, f"{number}", ttl=TTL).try_acquire() as second,
            ):
                assert second is None
        assert (await old.client().info("replication"))["role"] == "master"  # it was not told meanwhile
        for lease in held:
            assert await lease.owned()
            await lease.release()


@pytest.mark.parametrize("wakeup", ["auto", "poll"])
async def test_what_the_new_master_does_not_have_is_lost_at_once(watched: Watched, wakeup: Any) -> None:
    async with Session(watched.client(), wakeup=wakeup) as session:
        leases = [await Lock(session, name, ttl=TTL, replicas=1, on_lost="ignore").acquire() for name in "ab"]
        replica = watched.replica.client()
        await replica.config_set("replica-read-only", "no")
        assert await replica.delete(key(PREFIX, "lock", "a")) == 1
        await eventually(watched.try_promote, within=30)
        await eventually(lambda: leases[0].state is LeaseState.LOST, within=10)
        assert await leases[1].owned()
        await leases[1].release()


@pytest.mark.more  # as in a cluster, `test_releases.py`
async def test_a_release_that_the_new_master_never_got_comes_again(watched: Watched) -> None:
    """The old one has confirmed it, hangs, and goes on when the new one is there."""
    async with Session(watched.client()) as here, Session(watched.client()) as elsewhere:
        leases: list[Lease] = [
            await Lock(here, name, ttl=TTL, replicas=1).acquire() for name in ("a", "b", "c")
        ]
        await watched.cut_off_replica()
        for lease in leases:
            await lease.release()
        watched.master.pause()
        watched.replica.resume()
        await eventually(watched.failed_over, within=30)
        watched.master.resume()
        for name in ("a", "b", "c"):
            async with Lock(elsewhere, name, ttl=TTL, blocking_timeout=10):
                pass


@pytest.mark.more  # as other lines of a session
async def test_the_log_says_once_that_none_tells(watched: Watched, caplog: pytest.LogCaptureFixture) -> None:
    def lines(text: str) -> int:
        return sum(text in message for message in caplog.messages)

    async with Session(watched.client()) as session:
        await (await Lock(session, "a").acquire()).release()
        await subscribed(watched)
        await allow(watched, "-subscribe", "-sentinel")
        await eventually(lambda: lines("no Sentinel of 'locks' tells this session") == 1, within=20)
        async with Lock(session, "a"):
            pass
        await allow(watched, "+sentinel")
        await eventually(lambda: lines("a Sentinel of 'locks' tells this session again") == 1, within=20)
        assert lines("no Sentinel") == 1


async def subscribed(watched: Watched, number: int = 1) -> None:
    """Waits until so many sessions hear Sentinel."""

    async def subscribers() -> bool:
        async with Redis(port=watched.sentinel.port or 0) as sentinel:
            return [client["sub"] for client in await sentinel.client_list()].count("2") == number

    await eventually(subscribers, within=20)


def hearing() -> list[asyncio.Task[Any]]:
    return [task for task in asyncio.all_tasks() if task.get_name() == "aiolocks-sentinel"]


@pytest.mark.more  # as a failover that it hears of
async def test_it_hears_until_it_is_closed_whatever_is_cancelled(watched: Watched) -> None:
    async with Session(watched.client()) as session:
        assert hearing() == []
        await (await Lock(session, "a").acquire()).release()
        await subscribed(watched)
        for _ in range(3):
            for task in hearing():
                task.cancel()
            await asyncio.sleep(0.01)
        await subscribed(watched)
        assert len(hearing()) == 1
    assert hearing() == []
    await subscribed(watched, 0)


@pytest.mark.more  # as the end of a session
async def test_a_client_that_is_closed_is_heard_for_no_more(watched: Watched) -> None:
    client = watched.client()
    async with Lock(client, "a"):
        await eventually(lambda: hearing() != [])
    await client.aclose()
    await eventually(lambda: hearing() == [])


@pytest.mark.more  # as each other end
async def test_a_cancellation_that_the_driver_swallows_does_not_hold_up_the_end(watched: Watched) -> None:
    """As redis-py does before Python 3.12, where it ends as the connection is there."""
    connecting = asyncio.Event()

    class Swallowing(Connection):
        async def connect(self) -> None:
            connecting.set()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0.3)
            await super().connect()

    client = watched.client()
    async with asyncio.timeout(20), Session(client) as session:
        await (await Lock(session, "a").acquire()).release()
        for asked in client.connection_pool.sentinel_manager.sentinels:  # type: ignore[attr-defined]
            asked.connection_pool.connection_class = Swallowing
        async with Redis(port=watched.sentinel.port or 0) as sentinel:
            await sentinel.client_kill_filter(_type="pubsub")
        await connecting.wait()
    assert hearing() == []
