"""Another program has written under a key of a lock: an error at once that names the key.

A key is taken over whole, by any type of value and also by one of our own type, while nobody holds the name,
while somebody holds it, and while somebody waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from redis.asyncio import Redis

from aiolocks import (
    BackendError,
    FairLock,
    FencedRegister,
    LeaseState,
    Lock,
    LockLostError,
    LockNotOwnedError,
    LockTimeoutError,
    MultiLock,
    RangeLock,
    ReentrantLock,
    RWLock,
    Semaphore,
    Session,
    SingleFlight,
    Turnstile,
    UniqueJob,
)
from tests.adversity.tools import renewed
from tests.support.thinning import only
from tests.support.waiting import eventually

pytestmark = pytest.mark.leaves_keys("aiolocks*")  # those of others have no ttl

Put = Callable[[Redis, str], Awaitable[Any]]

STRINGS: dict[str, Put] = {
    text or "empty": lambda redis, key, text=text: redis.set(key, text)
    for text in (
        "hello",
        "",
        "1.5",
        "-1",
        "nan",
        str(2**53),
        "12:34:56",
        "00:1b:63:84:45:e6",
        "6f1ed002ab5595859014ebf0951522d9",  # as redis-py's own lock writes it
        "zz" * 16 + ":17:{}",
        "ab" * 16 + ":x:{}",
        '{"holder": "me"}',
    )
}
OTHERS: dict[str, Put] = {
    "list": lambda redis, key: redis.rpush(key, "hello"),
    "set": lambda redis, key: redis.sadd(key, "hello"),
    "stream": lambda redis, key: redis.xadd(key, {"hello": "1"}),
    "hash": lambda redis, key: redis.hset(key, mapping={"hello": "world"}),
    "hash of two": lambda redis, key: redis.hset(key, mapping={"hello": "world", "a": "b"}),
    "zset": lambda redis, key: redis.zadd(key, {"hello": 1}),
    "zset of the future": lambda redis, key: redis.zadd(key, {"hello": 2e15, "world": 2.1e15}),
}
VALUES = {**STRINGS, **OTHERS}
FENCES = ("17", "1")
"""A number that could be a fencing token is one."""

PAIRS = [f"{side}.{end}" for side in ("readers", "upgradables", "writers", "reservations") for end in "ab"]
KINDS: dict[str, tuple[Callable[..., Any], str, list[str]]] = {
    "Lock": (lambda client, **options: Lock(client, "a", **options), "lock", [""]),
    "ReentrantLock": (
        lambda client, **options: ReentrantLock(client, "a", owner="me", **options),
        "lock",
        ["", "nest"],
    ),
    "MultiLock": (lambda client, **options: MultiLock(client, ["0", "a", "b"], **options), "lock", [""]),
    "FairLock": (lambda client, **options: FairLock(client, "a", **options), "fairlock", ["", "leases"]),
    "Semaphore": (
        lambda client, **options: Semaphore(client, "a", 2, **options),
        "semaphore",
        ["", "leases", "value"],
    ),
    "fair Semaphore": (
        lambda client, **options: Semaphore(client, "a", 2, fair=True, **options),
        "semaphore",
        ["", "leases", "value"],
    ),
    **{
        f"RWLock.{mode}": (
            lambda client, mode=mode, **options: getattr(RWLock(client, "a", **options), mode),
            "rwlock",
            ["", "ends", "waits", *PAIRS],
        )
        for mode in ("reader", "upgradable", "writer")
    },
    "RangeLock": (
        lambda client, **options: RangeLock(client, "a", **options).writer(0, 10),
        "rangelock",
        ["", "ends", "waits", *PAIRS],
    ),
}
each_kind = pytest.mark.parametrize("name", KINDS)


def key_of(kind: str, role: str) -> str:
    return f"aiolocks:{kind}.{role}:{{a}}" if role else f"aiolocks:{kind}:{{a}}"


def is_ours(role: str, value: str) -> bool:
    """Whether nobody could tell that from what aiolocks writes there."""
    return role == "fence" and value in FENCES


async def overwrite(redis: Redis, key: str, value: str) -> None:
    """In one step, so that nobody comes in between."""
    async with redis.pipeline(transaction=True) as steps:
        steps.delete(key)
        VALUES[value](steps, key)
        await steps.execute()


async def refused(acquiring: Awaitable[Any], key: str) -> None:
    with pytest.raises(BackendError) as caught:
        await asyncio.wait_for(acquiring, 20)
    message = str(caught.value)
    assert repr(key) in message, message
    assert "aiolocks did not write" in message, message
    assert "delete this key with DEL" in message, message


@pytest.mark.parametrize("name", only(KINDS, "Semaphore"))
async def test_a_foreign_value_under_any_key_is_an_error_at_once(redis: Redis, name: str) -> None:
    """It stays as it is, nothing of ours is left beside it, and the name is free once it is removed."""
    make, kind, roles = KINDS[name]
    lock = make(redis)
    session = Session.of(redis)
    for role in [*roles, "fence", "queue"]:
        key = key_of(kind, role)
        # The sides of spans are read alike: each with some of the values, all of them together with each.
        part = slice(PAIRS.index(role) % 4, None, 4) if role in PAIRS else slice(None)
        for value, put in list(VALUES.items())[part]:
            if is_ours(role, value):
                continue
            await redis.flushdb()
            await put(redis, key)
            there = await redis.dump(key)

            await refused(lock.acquire(), key)
            await refused(lock.try_acquire(), key)
            await refused(lock.acquire(blocking_timeout=0), key)

            assert await redis.dump(key) == there, (role, value)
            left = {one.decode() for one in await redis.keys("*")} - {key, key_of(kind, "value")}
            assert left == set(), (role, value)
            (info,) = await session.inspect("a")
            assert info.problem, (role, value)
            assert [one.name for one in await session.force_release("a", kind=kind)] == ["a"], (role, value)
            async with lock.acquire(blocking_timeout=1) as lease:
                assert lease.state is LeaseState.HELD


@pytest.mark.parametrize("name", only(KINDS, "Lock", "FairLock", "Semaphore", "RWLock.reader"))
async def test_a_waiter_is_told_of_a_foreign_value_that_comes_while_it_waits(redis: Redis, name: str) -> None:
    make, kind, _ = KINDS[name]
    other = {"Semaphore": 2, "fair Semaphore": 2}.get(name)
    if name == "RWLock.reader":
        other_lock: Any = RWLock(redis, "a").writer
    elif name == "ReentrantLock":
        other_lock = ReentrantLock(redis, "a", owner="another")
    else:
        other_lock = make(redis)
    for value in ("hello", "list"):
        held = await (other_lock.acquire(other) if other else other_lock.acquire())
        async with Session(redis, wakeup="poll") as session:  # else it looks again after ten seconds
            waiting = asyncio.create_task(make(session).acquire())
            await eventually(lambda: session.statistics().waiters == 1)
            await asyncio.sleep(0.05)
            key = key_of(kind, "")
            await overwrite(redis, key, value)
            await refused(waiting, key)
        with pytest.raises((LockNotOwnedError, BackendError)):
            await held.release()
        await redis.flushdb()


@pytest.mark.thin
@each_kind
@pytest.mark.parametrize("value", ["hello", "list", "12:34:56"])
async def test_a_held_lease_whose_key_is_overwritten_is_lost(redis: Redis, name: str, value: str) -> None:
    make, kind, _ = KINDS[name]
    for by in ("renewal", "extend", "annotate"):
        lease = await make(redis, ttl=1.5 if by == "renewal" else 30).acquire()
        await overwrite(redis, key_of(kind, ""), value)
        if by == "renewal":
            await asyncio.wait_for(lease.wait_lost(), 10)
        else:
            with pytest.raises(LockLostError):
                await (lease.extend() if by == "extend" else lease.annotate({"step": 2}))
        assert lease.state is LeaseState.LOST
        await redis.flushdb()


@each_kind
async def test_members_of_others_beside_our_own_harm_no_holder(redis: Redis, name: str) -> None:
    """The holder neither frees nor counts them: it renews and releases. The next acquire is refused."""
    make, kind, _ = KINDS[name]
    if kind == "lock":
        pytest.skip("its key is a string")
    key = key_of(kind, "ends" if kind in ("rwlock", "rangelock") else "")
    lease = await make(redis, ttl=1.5).acquire()
    another = Session(redis)
    await redis.zadd(key, {"hello": 1})
    await renewed(lease)
    assert lease.state is LeaseState.HELD
    async with another:
        await refused(make(another).acquire(), key)
    await lease.release()
    assert await redis.zscore(key, "hello") == 1


async def test_a_foreign_queue_costs_nobody_a_key(redis: Redis) -> None:
    """Its members may be names of keys: nobody takes them for bells."""
    await redis.set("precious", "1")
    for name in ("Lock", "ReentrantLock", "FairLock", "Semaphore", "RWLock.writer"):
        make, kind, _ = KINDS[name]
        await redis.delete(key_of(kind, "queue"))
        lease = await make(redis).acquire()
        await redis.zadd(key_of(kind, "queue"), {"precious": 1, "precious0000000000000000": 2})
        await lease.release()
        assert await redis.exists("precious")
        assert await redis.zcard(key_of(kind, "queue")) == 2
        await refused(make(redis).acquire(), key_of(kind, "queue"))
        await Session.of(redis).force_release("a", kind=kind)
        assert await redis.exists("precious")
        assert not await redis.exists(key_of(kind, "queue"))
    await redis.delete("precious")


# -- what is built with locks --------------------------------------------------------------------------------


async def test_a_single_flight_over_a_foreign_value(redis: Redis) -> None:
    async def run() -> str:
        return "ran"

    flight = SingleFlight(redis)
    for role, values in (("", VALUES), ("value", OTHERS), ("fence", STRINGS), ("queue", VALUES)):
        for value, put in values.items():
            if is_ours(role, value):
                continue
            await redis.flushdb()
            key = key_of("singleflight", role)
            await put(redis, key)
            there = await redis.dump(key)
            await refused(flight.do("a", run), key)
            assert await redis.dump(key) == there
            await Session.of(redis).force_release("a", kind="singleflight")
            if role == "value" and value.startswith("hash"):  # nobody looks into it: it is large
                await redis.delete(key)
            assert await flight.do("a", run) == "ran"


async def test_a_unique_job_over_a_foreign_value(redis: Redis) -> None:
    job = UniqueJob(redis, "a")
    for role, values in (("", VALUES), ("leases", VALUES), ("fence", STRINGS), ("queue", VALUES)):
        for value, put in values.items():
            if is_ours(role, value):
                continue
            await redis.flushdb()
            key = key_of("uniquejob", role)
            await put(redis, key)
            await refused(job.run(), key)
            await Session.of(redis).force_release("a", kind="uniquejob")
            async with job.run():
                pass
    ticket = await job.enqueue("until_executed")
    assert ticket is not None
    for value, put in VALUES.items():
        await redis.flushdb()
        key = key_of("uniquejob", "owner")
        await put(redis, key)
        await refused(job.enqueue("until_executed"), key)
        await refused(job.perform(ticket), key)
        assert value


async def test_a_turnstile_over_a_foreign_value(redis: Redis) -> None:
    for put in VALUES.values():
        await redis.flushdb()
        await put(redis, key_of("turnstile", ""))
        with pytest.raises(BackendError, match="aiolocks did not write"):
            await Turnstile(redis, "a", window=2).enter()


async def test_a_register_over_a_foreign_value(redis: Redis) -> None:
    register = FencedRegister(redis, "a")
    for put in VALUES.values():
        await redis.flushdb()
        await put(redis, key_of("fencedregister", ""))
        there = await redis.dump(key_of("fencedregister", ""))
        for step in (lambda: register.write(b"x", 17), register.read):
            with pytest.raises(BackendError, match="aiolocks did not write"):
                await step()
        assert await redis.dump(key_of("fencedregister", "")) == there


# -- names that are kept -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["Lock", "ReentrantLock", "MultiLock", "FairLock"])
async def test_a_name_that_is_kept_is_not_foreign(redis: Redis, name: str) -> None:
    """Its last holder has released it before its `at_least` had passed: it is refused as if it were held."""
    make = KINDS[name][0]
    keeper = FairLock if name == "FairLock" else Lock
    async with keeper(redis, "a", at_least=20):
        pass
    lock = make(redis)
    assert await lock.try_acquire() is None
    with pytest.raises(LockTimeoutError):
        await lock.acquire(blocking_timeout=0.2)
    assert await lock.locked()
    (info,) = await Session.of(redis).inspect("a")
    assert not info.problem
    assert info.kept_until is not None
    assert info.holders == ()
