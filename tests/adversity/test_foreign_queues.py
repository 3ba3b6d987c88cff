"""A tenant that may write its own keys alone lists keys of others in the queues of its names.

A caller with wider rights that meets such a queue, an operator above all, must not delete, overwrite or read
for the tenant any key that the tenant cannot reach.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any

import pytest
from redis.asyncio import Redis

from aiolocks import (
    BackendError,
    FairLock,
    Lock,
    MultiLock,
    RangeLock,
    ReentrantLock,
    RWLock,
    Semaphore,
    Session,
    SingleFlight,
    UniqueJob,
)
from aiolocks.transport.steps.family import holdable

pytestmark = pytest.mark.leaves_keys("tenant*", "victim*", "secret*")

SEAT = "0" * 16

Make = Callable[[Session], Any]

KINDS: dict[str, tuple[str, Make]] = {
    "Lock": ("lock", lambda session: Lock(session, "a")),
    "ReentrantLock": ("lock", lambda session: ReentrantLock(session, "a")),
    "MultiLock": ("lock", lambda session: MultiLock(session, ["0", "a"])),
    "FairLock": ("fairlock", lambda session: FairLock(session, "a")),
    "Semaphore": ("semaphore", lambda session: Semaphore(session, "a", 2)),
    "fair Semaphore": ("semaphore", lambda session: Semaphore(session, "a", 2, fair=True)),
    "RWLock.reader": ("rwlock", lambda session: RWLock(session, "a").reader),
    "RWLock.upgradable": ("rwlock", lambda session: RWLock(session, "a").upgradable),
    "RWLock.writer": ("rwlock", lambda session: RWLock(session, "a").writer),
    "RangeLock": ("rangelock", lambda session: RangeLock(session, "a").writer(0, 10)),
}


def keys_of_others(kind: str) -> list[str]:
    """Keys that a tenant with `tenant:*` cannot reach, or has for another name."""
    return [
        f"victim:{kind}:{{a}}",
        f"victim:{kind}.bell.x:{{a}}",
        f"victim:{kind}:{{x.bell.y}}",
        f"tenant:{kind}.bell.x:{{other}}",
        f"tenant:{kind}.bell.x:{kind}:{{a}}",  # of the prefix `tenant:lock.bell.x`
        f"tenant:{kind}:{{a.bell.}}",
        "secret.bell.x",
        "secret",
    ]


def as_entries(keys: Sequence[str]) -> dict[str, int]:
    """As a queue lists bells, with and without a seat, and with one that looks like a part of a bell."""
    entries = [f"{key}{seat}" for key in keys for seat in ("", SEAT, ".bell.0000000000")]
    return {entry: 0 if ".bell." in entry else 1 for entry in entries}


async def try_it(lock: Any) -> None:
    """Some kinds go on over such a queue, others complain of it."""
    with suppress(BackendError):
        async with lock.try_acquire():
            pass


@pytest.mark.parametrize("name", KINDS)
async def test_keys_that_a_tenant_lists_in_its_queue_stay_as_they_are(redis: Redis, name: str) -> None:
    kind, make = KINDS[name]
    others = keys_of_others(kind)
    queue = f"tenant:{kind}.queue:{{a}}"
    async with Session(redis, prefix="tenant") as session:
        lease = await make(session).acquire()
        for key in others:
            await redis.set(key, "")
        there = [await redis.dump(key) for key in others]
        await redis.zadd(queue, as_entries(others))

        steps: list[Callable[[], Awaitable[Any]]] = [
            lambda: try_it(make(session)),
            lease.extend,
            lambda: session.inspect("a"),
            lease.release,
            lambda: try_it(make(session)),
            lambda: session.force_release("a", kind=kind),
        ]
        for step in steps:
            await step()
            assert [await redis.dump(key) for key in others] == there
        assert not await redis.exists(queue)
        assert [await redis.pttl(key) for key in others] == [-1] * len(others)


@pytest.mark.parametrize("kind", holdable())
async def test_a_forced_release_touches_nothing_that_the_queue_lists_of_others(
    redis: Redis, kind: str
) -> None:
    """The tenant's queue alone is enough: nobody holds the name."""
    others = keys_of_others(kind)
    for key in others:
        await redis.set(key, "held", px=60_000)
    await redis.zadd(f"tenant:{kind}.queue:{{a}}", as_entries(others))
    async with Session(redis, prefix="tenant") as session:
        await session.force_release("a", kind=kind)

        assert [await redis.get(key) for key in others] == [b"held"] * len(others)
        assert not await redis.exists(f"tenant:{kind}.queue:{{a}}")


async def test_a_run_that_ends_touches_nothing_that_its_queue_lists_of_others(redis: Redis) -> None:
    others = keys_of_others("singleflight")

    async def run() -> str:
        for key in others:
            await redis.set(key, "held")
        await redis.zadd("tenant:singleflight.queue:{a}", as_entries(others))
        return "ran"

    async with Session(redis, prefix="tenant") as session:
        assert await SingleFlight(session).do("a", run) == "ran"
        assert [await redis.get(key) for key in others] == [b"held"] * len(others)

        async with UniqueJob(session, "a").run():
            await redis.zadd("tenant:uniquejob.queue:{a}", as_entries(others))
        assert [await redis.get(key) for key in others] == [b"held"] * len(others)


async def test_a_card_that_a_tenant_points_at_is_not_read_out(redis: Redis) -> None:
    """The card beside a bell is shown to an operator; so a bell must not lead elsewhere."""
    await redis.set("victim:lock.bell.x:{a}", "")
    await redis.set("victim:lock.bell.x.card:{a}", '{"host":"stolen","pid":1}')
    await redis.zadd("tenant:lock.queue:{a}", {"victim:lock.bell.x:{a}": 1})
    async with Session(redis, prefix="tenant") as session:
        (info,) = await session.inspect("a")
        assert "stolen" not in repr(info)
        assert info.problem
