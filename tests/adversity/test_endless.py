"""Keys of ours that have lost their ttl, by `PERSIST` or a restore: the name says so, and how it is freed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest
from redis.asyncio import Redis

from aiolocks import (
    DuplicateJobError,
    FairLock,
    Leadership,
    Limits,
    Lock,
    LockTimeoutError,
    MultiLock,
    RangeLock,
    Redlock,
    ReentrantLock,
    RWLock,
    Semaphore,
    Session,
    SingleFlight,
    Turnstile,
    UniqueJob,
)
from aiolocks.lock import waiter
from tests.conftest import Connect, OwnServer, Surroundings, clustered
from tests.support.clusters import Cluster
from tests.support.thinning import only
from tests.support.waiting import eventually

pytestmark = pytest.mark.leaves_keys("aiolocks:*", "shop:*")

TTL = 0.5
FOR_EVER: dict[str, Callable[..., Any]] = {
    "Lock": Lock,
    "ReentrantLock": lambda client, name, **common: ReentrantLock(
        client, name, owner=str(id(client)), **common
    ),
    "MultiLock": lambda client, name, **common: MultiLock(client, ["first", name], **common),
}
"""The kinds that one string holds: nothing ends it but its ttl."""
UNTIL_DEADLINES: dict[str, Callable[..., Any]] = {
    "FairLock": FairLock,
    "Semaphore": lambda client, name, **common: Semaphore(client, name, 1, **common),
    "fair Semaphore": lambda client, name, **common: Semaphore(client, name, 1, fair=True, **common),
    "Limits": lambda client, name, **common: Limits(client, name, {"all": 1}, **common),
    "RWLock": lambda client, name, **common: RWLock(client, name, **common).writer,
    "RangeLock": lambda client, name, **common: RangeLock(client, name, **common).writer(0, 1),
    "Leadership": Leadership,
}
"""Those whose holders have deadlines of their own, inside of a key."""


async def persist_all(redis: Redis, pattern: str = "*") -> None:
    for key in await redis.keys(pattern):
        await redis.persist(key)


async def dead_holder(make: Callable[..., Any], client: Redis, name: str = "a") -> None:
    """Held by a process that has died."""
    lease = await make(client, name, ttl=TTL).acquire()
    lease.detach()


@pytest.mark.parametrize("blocking_timeout", only([0, 0.5], 0))
@pytest.mark.parametrize("kind", only(FOR_EVER, "MultiLock"))
async def test_the_error_says_so_with_the_command_that_frees_it(
    redis: Redis, connect: Connect, kind: str, blocking_timeout: float
) -> None:
    make = FOR_EVER[kind]
    await dead_holder(make, redis)
    await redis.persist("aiolocks:lock:{a}")
    await asyncio.sleep(TTL + 0.05)
    lock = make(connect(), "a", ttl=5)
    with pytest.raises(LockTimeoutError) as caught:
        await lock.acquire(blocking_timeout=blocking_timeout)
    said = str(caught.value)
    assert "the key of 'a' has lost its ttl: unless its holder renews it, nothing frees it but" in said
    assert "`aiolocks release a --force` or session.force_release('a')" in said
    assert caught.value.remaining is None
    assert await Session.of(redis).force_release("a")
    async with lock.acquire(blocking_timeout=10):
        pass


@pytest.mark.parametrize("kind", only(UNTIL_DEADLINES, "fair Semaphore", "RWLock", "Leadership"))
async def test_holders_with_deadlines_end_all_the_same(redis: Redis, connect: Connect, kind: str) -> None:
    make = UNTIL_DEADLINES[kind]
    await dead_holder(make, redis)
    await persist_all(redis)
    (found,) = await Session.of(redis).inspect("a")
    assert found.problem == "it has lost its ttl, and gets one when it is used again"
    await asyncio.sleep(TTL + 0.05)
    async with make(connect(), "a", ttl=5).acquire(blocking_timeout=10):
        pass


async def test_a_living_holder_gives_it_a_ttl_again(redis: Redis, connect: Connect) -> None:
    other = connect()
    async with Lock(redis, "a", ttl=2):
        for _ in range(20):
            await redis.persist("aiolocks:lock:{a}")
            with pytest.raises(LockTimeoutError) as caught:
                await Lock(other, "a").acquire(blocking_timeout=0)
            if "unless its holder renews it" in str(caught.value):
                break  # else it was renewed in between
        assert "unless its holder renews it" in str(caught.value)

        async def ends() -> bool:
            return await redis.pttl("aiolocks:lock:{a}") > 0

        await eventually(ends)


async def test_a_name_that_is_only_kept(redis: Redis, connect: Connect) -> None:
    """Nobody holds it: its last holder has released it before its `at_least` had passed."""
    async with Lock(redis, "a", ttl=1, at_least=0.5):
        pass
    await redis.persist("aiolocks:lock:{a}")
    with pytest.raises(LockTimeoutError, match=r"the key of 'a' has lost its ttl: .* nothing frees it"):
        await Lock(connect(), "a").acquire(blocking_timeout=0.7)


async def test_the_command_fits_the_prefix_and_the_shell(redis: Redis, connect: Connect) -> None:
    async with Session(redis, prefix="shop") as session:
        await dead_holder(Lock, session, "order 7's")  # type: ignore[arg-type]
        await persist_all(redis, "shop:lock:*")
        with pytest.raises(LockTimeoutError) as caught:
            await Lock(session, "order 7's").acquire(blocking_timeout=0.3)
        assert """`aiolocks release 'order 7'"'"'s' --force --prefix shop`""" in str(caught.value)
        await dead_holder(Lock, session, "line\nfeed")  # type: ignore[arg-type]
        await persist_all(redis, "shop:lock:*")
        with pytest.raises(LockTimeoutError) as caught:
            await Lock(session, "line\nfeed").acquire(blocking_timeout=0.3)
        assert "nothing frees it but session.force_release('line\\nfeed')" in str(caught.value)


@pytest.mark.more  # as on one server
async def test_redlock(own_server: OwnServer) -> None:
    servers = [await own_server() for _ in range(3)]
    masters = [server.client() for server in servers]
    lease = await Redlock(masters, "a", ttl=1).acquire()
    lease.detach()
    for master in masters:
        await persist_all(master)
    await asyncio.sleep(1.05)
    with pytest.raises(LockTimeoutError, match=r"has lost its ttl: .* on a majority of the masters"):
        await Redlock(masters, "a", ttl=5).acquire(blocking_timeout=0.2)
    for master in masters:
        await Session.of(master).force_release("a")
    async with Redlock(masters, "a", ttl=5).acquire(blocking_timeout=10):
        pass
    for master in masters:
        await Session.of(master).aclose()
        await master.aclose()


@pytest.mark.more  # as on one server
async def test_names_in_several_slots_of_a_cluster(surroundings: Surroundings, cluster: Cluster) -> None:
    client = clustered(surroundings, cluster)
    lease = await MultiLock(client, ["first", "a", "b"], ttl=1).acquire()
    lease.detach()
    await client.persist("aiolocks:lock:{b}")
    await asyncio.sleep(1.05)
    for blocking_timeout in (0, 0.3):
        with pytest.raises(LockTimeoutError, match="the key of 'b' has lost its ttl"):
            await MultiLock(client, ["first", "a", "b"]).acquire(blocking_timeout=blocking_timeout)
    assert await Session.of(client).force_release("b")


async def test_a_long_wait_is_a_warning_in_the_log(
    redis: Redis, connect: Connect, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiter, "_LONG", 0.2)
    await dead_holder(Lock, redis)
    await redis.persist("aiolocks:lock:{a}")
    with caplog.at_level(logging.INFO, "aiolocks.session"):
        waiting = asyncio.create_task(Lock(connect(), "a").acquire())
        await eventually(lambda: "waiting for" in caplog.text, within=3)
    (line,) = [record for record in caplog.records if "waiting for" in record.getMessage()]
    assert line.levelno == logging.WARNING
    assert "the key of 'a' has lost its ttl: unless its holder renews it" in line.getMessage()
    assert await Session.of(redis).force_release("a")
    async with asyncio.timeout(3):
        await (await waiting).release()


async def test_a_run_of_a_single_flight(redis: Redis, connect: Connect) -> None:
    lease = SingleFlight(redis, ttl=0.3)
    running = asyncio.create_task(lease.do("a", lambda: asyncio.sleep(60)))
    await eventually(lambda: _there(redis, "aiolocks:singleflight:{a}"), within=2)
    value = await redis.get("aiolocks:singleflight:{a}")
    running.cancel()
    await asyncio.wait((running,))
    await redis.set("aiolocks:singleflight:{a}", value)  # as a restore would put it there
    with pytest.raises(LockTimeoutError, match=r"has lost its ttl: .* session\.force_release\('a'\)"):
        await SingleFlight(connect()).do("a", lambda: asyncio.sleep(0, 7), blocking_timeout=0.3)
    assert await Session.of(redis).force_release("a")
    assert await SingleFlight(connect()).do("a", lambda: asyncio.sleep(0, 7), blocking_timeout=1) == 7


async def _there(redis: Redis, key: str) -> bool:
    return bool(await redis.exists(key))


async def test_a_ticket_of_a_job(redis: Redis) -> None:
    job = UniqueJob(redis, "a")
    mine = await job.enqueue("until_executed", ttl=0.3)
    assert mine is not None
    await job.enqueue("until_executed", ttl=0.3, on_conflict="replace")
    await persist_all(redis, "aiolocks:uniquejob.owner:*")
    await asyncio.sleep(0.35)
    said = r"another ticket owns the key\. But .*has lost its ttl: .*`aiolocks release a --force`"
    with pytest.raises(DuplicateJobError, match=said):
        await job.enqueue("until_executed")
    other = UniqueJob(redis, "b")
    ticket = await other.enqueue("until_executed", ttl=0.3)
    assert ticket is not None
    await asyncio.sleep(0.35)
    await other.enqueue("until_executed", ttl=0.3)
    await persist_all(redis, "aiolocks:uniquejob.owner:*")
    with pytest.raises(DuplicateJobError, match=said.replace("release a", "release b")):
        await other.perform(ticket)
    assert await Session.of(redis).force_release("a")
    assert await job.enqueue("until_executed") is not None


async def test_a_window_of_a_turnstile_ends_all_the_same(redis: Redis) -> None:
    turnstile = Turnstile(redis, "a", window=TTL)
    assert await turnstile.enter() == 1
    await persist_all(redis)
    assert await turnstile.enter() == 2
    await asyncio.sleep(TTL + 0.05)
    assert await turnstile.enter() == 1


@pytest.mark.parametrize("kind", only(FOR_EVER, "Lock"))
async def test_inspection_says_so(redis: Redis, kind: str) -> None:
    await dead_holder(FOR_EVER[kind], redis)
    await redis.persist("aiolocks:lock:{a}")
    await asyncio.sleep(TTL + 0.05)
    (found,) = await Session.of(redis).inspect("a")
    assert found.problem == (
        "the key of 'a' has lost its ttl: unless its holder renews it, nothing frees it but "
        "`aiolocks release a --force` or session.force_release('a')"
    )


async def test_nothing_is_asked_for_it_on_the_way_that_succeeds(redis: Redis) -> None:
    async with Session(redis) as session:
        await (await Lock(session, "a").acquire()).release()
        before = session.statistics().commands_sent
        await (await Lock(session, "a").acquire(blocking_timeout=1)).release()
        assert session.statistics().commands_sent == before + 2
