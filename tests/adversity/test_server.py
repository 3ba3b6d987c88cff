"""The acts of a server and its administrators on locks: T-S-1 to T-S-8 and T-S-12 of `tests/FAULTS.md`.

Its clock is in `test_clock.py`, its refusals are in `test_refusals.py`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from redis.asyncio import Redis
from redis.exceptions import OutOfMemoryError

from aiolocks import (
    BackendError,
    Lease,
    LeaseState,
    Lock,
    LockLostError,
    LockNotOwnedError,
    LockTimeoutError,
    Session,
)
from tests.adversity.tools import (
    ACQUIRE,
    SLACK,
    Formed,
    Keys,
    Witness,
    allowing_debug,
    elapsed,
    rejected,
    renewed,
    repeating,
    warm,
    with_own_connections,
)
from tests.conftest import Connect, OwnServer
from tests.support.proxy import Proxy
from tests.support.servers import ServerKind
from tests.support.thinning import only
from tests.support.waiting import eventually, sleeps

POLL = 0.064
"""Seconds that a waiter sleeps at the most that does not hear."""
UNTOLD = 0.6
"""Seconds after which one that hears has noticed what it was not told."""


async def until_lost(lease: Lease, *, cancelled: list[float] | None = None) -> None:
    """A body that goes on until it is cancelled."""
    async with lease:
        try:
            await asyncio.sleep(10)
        finally:
            if cancelled is not None:
                cancelled.append(asyncio.get_running_loop().time())


# -- scripts -------------------------------------------------------------------------------------------------


async def test_t_s_1_scripts_flushed_all_the_time(client: Redis, redis: Redis, keys: Keys) -> None:
    """A hundred cycles of everything that a lock can do, beside a loop of SCRIPT FLUSH."""
    flushes = 0

    async def flush() -> None:
        nonlocal flushes
        await redis.script_flush()
        flushes += 1

    async def cycles(number: int) -> None:
        lock = Lock(client, f"a{number}", ttl=5)
        for _ in range(10):
            lease = await lock.acquire()
            assert await lock.try_acquire() is None
            assert await lock.locked()
            assert await lease.owned()
            await lease.extend()
            adopted = await lock.adopt(lease.detach())
            await adopted.release()

    async with repeating(flush, every=0):
        await asyncio.gather(*map(cycles, range(10)))
    assert flushes > 10
    assert keys() == []


async def test_t_s_1_scripts_flushed_between_an_acquire_and_its_undo(
    client: Redis, through: Proxy, redis: Redis, keys: Keys
) -> None:
    for _ in range(10):
        sent = through.count(ACQUIRE)
        through.delay_replies = 0.05
        acquiring = asyncio.create_task(Lock(client, "a").acquire())
        await through.saw(ACQUIRE, count=sent + 1)
        await eventually(keys)
        await redis.script_flush()
        acquiring.cancel()
        through.delay_replies = 0.0
        await asyncio.wait([acquiring])
        if not acquiring.cancelled():  # this machine was busy for longer than the reply took
            await acquiring.result().release()
        await eventually(lambda: keys() == [])


async def test_t_s_1_server_that_has_never_seen_the_scripts(own_server: OwnServer, connect: Connect) -> None:
    """As after a failover, in the middle of a hold."""
    server = await own_server(arguments=("--appendonly", "yes", "--appendfsync", "always"))
    client = connect(server)
    async with Lock(client, "a", ttl=5) as lease:
        await server.restart()
        await renewed(lease)
        assert lease.state is LeaseState.HELD
        assert await lease.owned()


# -- pauses --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", only(["ALL", "WRITE"], "WRITE"))
async def test_t_s_2_paused_by_an_administrator_for_longer_than_a_ttl(
    own_server: OwnServer, connect: Connect, what: str
) -> None:
    """Expired or not, nobody else can have it before the pause ends; by then its holder knows."""
    loop = asyncio.get_running_loop()
    server = await own_server()
    client, elsewhere, admin = connect(server), connect(server), connect(server)
    lease = await Lock(client, "a", ttl=1).acquire()
    await admin.execute_command("CLIENT", "PAUSE", "1500", what)
    cancelled: list[float] = []
    holding = asyncio.create_task(until_lost(lease, cancelled=cancelled))
    with elapsed() as took:
        async with Lock(elsewhere, "a", ttl=5) as next_lease:
            entered = loop.time()
    with pytest.raises(LockLostError):
        await holding
    assert cancelled[0] < entered
    assert took.seconds < 1.5 + POLL + SLACK
    assert next_lease.fencing_token > lease.fencing_token


async def test_t_s_3_stopped_for_longer_than_a_ttl_with_a_renewal_in_its_socket(
    own_server: OwnServer, connect: Connect, keys: Keys
) -> None:
    """The renewal that it executes at last finds nothing, and brings nothing back."""
    server = await own_server()
    witness = Witness()
    async with Session(connect(server), listeners=[witness]) as session:
        lease = await Lock(session, "a", ttl=0.3).acquire()
        waiting = asyncio.create_task(Lock(connect(server), "a", ttl=5).acquire())
        await eventually(lambda: len(witness.renewed) >= 1)
        server.pause()
        with pytest.raises(LockLostError):
            await until_lost(lease)
        await asyncio.sleep(0.2)
        server.resume()
        other = await asyncio.wait_for(waiting, 5)
        assert await other.owned()
        await other.release()
        assert len(witness.lost) == 1
        assert session.statistics().losses == 1
        await asyncio.sleep(0.1)
        assert keys(server) == []


# -- expiry --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("others", [0, 100_000])
async def test_t_s_4_without_active_expiry_a_dead_holders_lock_is_found_free(
    own_server: OwnServer, connect: Connect, server_kind: ServerKind, others: int
) -> None:
    server = await own_server(arguments=allowing_debug(server_kind))
    client, admin = connect(server), connect(server)
    await admin.execute_command("DEBUG", "SET-ACTIVE-EXPIRE", "0")
    await admin.eval(
        "for i = 1, tonumber(ARGV[1]) do redis.call('SET', 'junk' .. i, '', 'PX', 500 + i) end", 0, others
    )
    ttl = 0.4
    held = await Lock(connect(server), "a", ttl=ttl, auto_renew=False).acquire()  # and never released
    with elapsed() as took:
        lease = await Lock(client, "a", ttl=5).acquire()
    assert took.seconds < ttl + POLL + SLACK
    assert lease.fencing_token > held.fencing_token
    await lease.release()
    await admin.flushall()


# -- data that goes away -------------------------------------------------------------------------------------


async def flushall(redis: Redis) -> None:
    await redis.flushall()


async def flushdb(redis: Redis) -> None:
    await redis.flushdb()


async def swapdb(redis: Redis) -> None:
    await redis.swapdb(0, 1)


@pytest.mark.leaves_keys
@pytest.mark.parametrize("empty", [flushall, flushdb, swapdb])
async def test_t_s_5_emptied(
    own_server: OwnServer, connect: Connect, empty: Callable[[Redis], Awaitable[None]]
) -> None:
    """No event tells of it: the holder learns it from its next renewal, a waiter by looking."""
    server = await own_server()
    client, elsewhere = connect(server), connect(server)
    lease = await Lock(client, "a", ttl=3).acquire()
    holding = asyncio.create_task(until_lost(lease))
    waiting = asyncio.create_task(Lock(elsewhere, "a", ttl=5).acquire())
    await eventually(lambda: sleeps(Session.of(elsewhere)))
    with elapsed() as took:
        await empty(connect(server))
        other = await waiting
    assert took.seconds < UNTOLD + SLACK
    with pytest.raises(LockLostError, match="no longer has it"):
        await asyncio.wait_for(holding, 0.3 + SLACK)
    assert await other.owned()
    assert other.fencing_token > lease.fencing_token
    await other.release()


async def test_t_s_5_reloaded(own_server: OwnServer, connect: Connect, server_kind: ServerKind) -> None:
    server = await own_server(arguments=allowing_debug(server_kind))
    client = connect(server)
    async with Lock(client, "a", ttl=2) as lease:
        await connect(server).execute_command("DEBUG", "RELOAD")
        await renewed(lease)
        assert lease.state is LeaseState.HELD


# -- administrators ------------------------------------------------------------------------------------------

ADMIN: dict[str, Callable[[Redis, str], Awaitable[Any]]] = {
    "deleted": lambda redis, key: redis.delete(key),
    "unlinked": lambda redis, key: redis.unlink(key),
    "renamed": lambda redis, key: redis.rename(key, "moved"),
    "overwritten": lambda redis, key: redis.set(key, "theirs", px=1500),
    "expired": lambda redis, key: redis.pexpire(key, -5),
    "moved": lambda redis, key: redis.move(key, 1),
}


@pytest.mark.leaves_keys
@pytest.mark.thin
@pytest.mark.parametrize("action", ADMIN)
@pytest.mark.parametrize("noticed", ["on renewal", "on release"])
async def test_t_s_6_taken_away_by_an_administrator(
    client: Redis, redis: Redis, keys: Keys, action: str, noticed: str
) -> None:
    lease = await Lock(client, "a", ttl=1.5 if noticed == "on renewal" else 30).acquire()
    (key,) = keys()
    await ADMIN[action](redis, key)
    if noticed == "on renewal":
        with elapsed() as took, pytest.raises(LockLostError, match="no longer has it"):
            await until_lost(lease)
        assert took.seconds < 0.5 + SLACK
    with pytest.raises(LockNotOwnedError):
        await lease.release()
    # Keys that are not ours stay.
    assert await redis.get(key) == (b"theirs" if action == "overwritten" else None)
    if action == "renamed":
        assert (await redis.get("moved")).decode().startswith(lease.token)


async def test_t_s_6_persisted_by_an_administrator(client: Redis, redis: Redis, keys: Keys) -> None:
    """The next renewal gives it an end again."""
    async with Lock(client, "a", ttl=1.5):
        (key,) = keys()
        await Lock(redis, "a").locked()  # connects
        await redis.persist(key)
        with pytest.raises(LockTimeoutError, match="held for"):
            await Lock(redis, "a").acquire(blocking_timeout=0.05)
        await eventually(lambda: _expires(redis, key), within=0.5 + SLACK)


async def _expires(redis: Redis, key: str) -> bool:
    return 0 < await redis.pttl(key) <= 1500


@pytest.mark.leaves_keys
async def test_t_s_6_key_of_another_type(client: Redis, redis: Redis, keys: Keys) -> None:
    """An error that names the key, for everybody; not a wait without an end, and nothing of it is touched."""
    lock = Lock(client, "a", ttl=0.4)
    lease = await lock.acquire()
    (key,) = keys()
    await redis.delete(key)
    await redis.rpush(key, "theirs")
    await redis.expire(key, 3)
    with elapsed() as took, pytest.raises(LockLostError):
        await until_lost(lease)
    assert took.seconds < 0.4 + SLACK
    for ask in (Lock(redis, "a").acquire, Lock(redis, "a").try_acquire, lock.acquire):
        with elapsed() as took:
            error = await rejected(ask())
        assert took.seconds < SLACK
        assert repr(key) in str(error)
        assert "WRONGTYPE" in str(error) or "that aiolocks did not write" in str(error)
    assert await lock.locked()
    with pytest.raises((BackendError, LockNotOwnedError)):
        await lease.release()
    assert await redis.lrange(key, 0, -1) == [b"theirs"]


# -- memory --------------------------------------------------------------------------------------------------


@pytest.mark.leaves_keys("junk:*")
@pytest.mark.parametrize("policy", ["volatile-lru", "volatile-ttl", "volatile-random", "allkeys-random"])
async def test_t_s_7_evicted(
    own_server: OwnServer, connect: Connect, keys: Keys, policy: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A server that may evict locks is warned of once; a holder whose lock was evicted is told."""
    server = await own_server(arguments=("--maxmemory-policy", policy))
    admin = connect(server)
    used = (await admin.info("memory"))["used_memory"]
    await admin.config_set("maxmemory", used + 1_000_000)
    client = connect(server)
    lease = await Lock(client, "a", ttl=3).acquire()
    holding = asyncio.create_task(until_lost(lease))

    def warnings() -> list[logging.LogRecord]:
        return [record for record in caplog.records if "evicted" in record.message]

    await eventually(warnings)
    await admin.execute_command("CLIENT", "KILL", "TYPE", "normal")  # it connects again
    await eventually(lease.owned)
    (warning,) = warnings()
    assert warning.levelno == logging.WARNING
    assert policy in warning.message

    async def fill() -> bool:
        # With what cannot be evicted by itself under volatile-*, and can under allkeys-*.
        await admin.eval(
            "for i = 1, 50 do redis.pcall('SET', 'junk:' .. ARGV[1] .. ':' .. i, string.rep('x', 10000)) end",
            0,
            asyncio.get_running_loop().time(),
        )
        return holding.done()

    await eventually(fill, within=10)
    with pytest.raises(LockLostError):
        await holding
    await admin.config_set("maxmemory", 0)
    await admin.flushall()
    assert lease.state is LeaseState.LOST


async def test_t_s_7_no_warning_where_nothing_can_be_evicted(
    own_server: OwnServer, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    for arguments in (
        ("--maxmemory-policy", "volatile-lru"),
        ("--maxmemory-policy", "noeviction", "--maxmemory", "100mb"),
    ):
        server = await own_server(arguments=arguments)
        await warm(connect(server))
    assert "evicted" not in caplog.text


async def test_t_s_8_out_of_memory_a_holder_goes_on_and_lets_go(
    own_server: OwnServer, connect: Connect, form: str, keys: Keys
) -> None:
    server = await own_server()
    admin, client = connect(server), connect(server)
    if form == "own connections":
        with_own_connections(client)
    witness = Witness()
    async with Session(client, listeners=[witness]) as session:
        lease = await Lock(session, "a", ttl=1.5).acquire()
        other = await Lock(session, "b", ttl=20).acquire()
        await admin.config_set("maxmemory", 1)
        with pytest.raises(OutOfMemoryError):
            await admin.set("junk", "")
        await rejected(Lock(session, "c").acquire())
        await eventually(lambda: len(witness.renewed) >= 3)
        await lease.extend(2)
        adopted = await Lock(session, "b").adopt(other.detach())
        assert adopted.fencing_token == other.fencing_token
        await adopted.release()
        await lease.release()
        assert keys(server) == []
        assert witness.lost == []
    await admin.config_set("maxmemory", 0)


# -- what a reply may hide -----------------------------------------------------------------------------------


async def test_t_s_12_fencing_token_comes_through_to_the_last_digit(
    connect: Connect, through: Proxy, form: str, redis: Redis
) -> None:
    """Lua prints 1.7e+15, truncates what is not an integer, ends arrays at nil: none of it shows."""
    for protocol in (2, 3):
        for decode_responses in (False, True):
            client = connect(Formed(through, form), protocol=protocol, decode_responses=decode_responses)
            async with Lock(client, "a") as lease:
                fence = int(await redis.get("aiolocks:lock.fence:{a}"))
                seconds, microseconds = await redis.time()
                now = seconds * 1_000_000 + microseconds
                assert lease.fencing_token == fence
                assert now - 5_000_000 < fence <= now
                assert type(lease.fencing_token) is int
    # Near the end of what a double counts exactly.
    for last in (2**53 - 3, 1_800_000_000_000_000, 9_000_000_000_000_000):
        await redis.set("aiolocks:lock.fence:{a}", last, px=60_000)
        async with Lock(redis, "a") as lease:
            assert lease.fencing_token == last + 1
    await redis.delete("aiolocks:lock.fence:{a}")
