"""Cancelled anywhere, nothing stays held, nobody behind stalls, and the cancellation comes out.

All over a link of 5 ms, so that every request is a suspension.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any, Literal

import anyio
import pytest
from redis.asyncio import Redis

from aiolocks import LockError, LockTimeoutError, Session
from tests.conformance.conftest import ALL_WAYS, Kind, stall
from tests.support.cancel import Shot, sweep, sweep_scopes
from tests.support.waiting import eventually

pytestmark = pytest.mark.timed("lock", "fair semaphore")

LINK = 0.005
Keys = Callable[..., list[str]]


@pytest.fixture
async def far(far_away: Callable[[float], Awaitable[Any]]) -> Redis:
    """A client at the other end of a slow link."""
    client: Redis = await far_away(LINK)
    await client.ping()
    return client


def nothing_left(keys: Keys, lock: Any) -> Callable[[Shot], Awaitable[None]]:
    async def check(shot: Shot) -> None:
        await eventually(lambda: not keys(), within=2 + stall())
        lease = await lock.acquire(blocking_timeout=1 + stall())  # the next one is unharmed
        await lease.release()

    return check


async def in_the_body(lock: Any) -> None:
    async with lock:
        await asyncio.sleep(0.002)
        await asyncio.sleep(0.002)


async def by_hand(lock: Any) -> None:
    lease = await lock.acquire()
    await lease.release()


async def at_once(lock: Any) -> None:
    async with lock.try_acquire() as lease:
        assert lease is not None
        await asyncio.sleep(0.002)


async def extending(lock: Any) -> None:
    async with lock as lease:
        await lease.extend(20)
        await lease.annotate({"step": 2})


async def asking(lock: Any) -> None:
    async with lock as lease:
        assert await lease.owned()
        assert await lock.locked()


USES = [in_the_body, by_hand, at_once, extending, asking]


@pytest.mark.thin
@pytest.mark.parametrize("use", USES)
async def test_t_c_1_cancelled_at_every_await(
    kind: Kind, far: Redis, keys: Keys, use: Callable[[Any], Any], transport: str
) -> None:
    lock = kind.make(far, "a")
    shots = await sweep(
        lambda: use(lock), within=1.5 + stall(), after=nothing_left(keys, kind.make(far, "a"))
    )
    assert {shot.mode for shot in shots} == {"early", "late"}


@pytest.mark.thin
@pytest.mark.parametrize("by", ["scope", "sibling"])
@pytest.mark.parametrize("use", USES if ALL_WAYS else [in_the_body, extending])
async def test_t_c_1_cancelled_at_every_await_by_anyio(
    kind: Kind, far: Redis, keys: Keys, use: Callable[[Any], Any], by: Literal["scope", "sibling"]
) -> None:
    lock = kind.make(far, "a")
    await sweep_scopes(
        lambda: use(lock), by=by, within=1.5 + stall(), after=nothing_left(keys, kind.make(far, "a"))
    )


async def test_t_c_4_cancelled_again_during_the_cleanup(kind: Kind, far: Redis, keys: Keys) -> None:
    lock = kind.make(far, "a")
    await sweep(
        lambda: in_the_body(lock),
        again=0.002,
        within=1.5 + stall(),
        after=nothing_left(keys, kind.make(far, "a")),
    )


async def test_t_c_1_cancelled_while_waiting(kind: Kind, far: Redis, client: Redis, keys: Keys) -> None:
    holder = await kind.make(client, "a").acquire()
    lock = kind.make(far, "a")

    async def wait() -> None:
        with pytest.raises(LockTimeoutError):
            await lock.acquire(blocking_timeout=0.4)

    await sweep(wait, within=1.5 + stall())
    assert await holder.owned()
    await holder.release()
    await eventually(lambda: not keys(), within=2 + stall())


@pytest.mark.thin
@pytest.mark.parametrize("by", ["timeout", "wait_for", "move_on_after"])
async def test_t_c_2_random_deadlines_around_acquire(
    kind: Kind, far: Redis, keys: Keys, by: str, transport: str
) -> None:
    """Deadlines from nothing to somewhat more than a grant takes, many at once; none leaves a key."""
    had = 0
    # Without pipelining, most wait for a connection; and the scripts of some kinds take their time.
    longest = (16 if transport == "plain" else 1.6 if kind.name == "lock" else 10) * LINK

    async def attempt(number: int) -> None:
        nonlocal had
        lock = kind.make(far, f"a{number}")
        deadline = random.uniform(0, longest)
        try:
            match by:
                case "timeout":
                    async with asyncio.timeout(deadline):
                        lease = await lock.acquire()
                case "wait_for":
                    lease = await asyncio.wait_for(lock.acquire(), deadline)
                case _:
                    lease = None
                    with anyio.move_on_after(deadline):
                        lease = await lock.acquire()
                    if lease is None:
                        return
        except TimeoutError:
            return
        had += 1
        await lease.release()

    rounds = 40 if ALL_WAYS and kind.name == "lock" else 4
    tried = 0
    while tried < 50 * rounds or (had in (0, tried) and tried < 50 * 20):
        before = had
        await asyncio.gather(*(attempt(number) for number in range(50)))
        tried += 50
        if had - before in (0, 50):  # a machine that is busy, or idle
            longest *= 2 if had == before else 0.5
    await eventually(lambda: not keys(), within=2 + stall())
    assert 0 < had < tried  # both happened


async def test_t_c_3_storm_of_cancels(kind: Kind, far: Redis, client: Redis, keys: Keys) -> None:
    """A hundred waiters, all cancelled: all say so, and soon."""
    async with kind.make(client, "a"):
        for _ in range(2):
            waiters = [asyncio.create_task(in_the_body(kind.make(far, "a"))) for _ in range(100)]
            await asyncio.sleep(random.uniform(0, 0.05))
            for waiter in waiters:
                waiter.cancel()
            done, _ = await asyncio.wait(waiters, timeout=3 + stall())
            assert sum(waiter.cancelled() for waiter in done) == 100
        assert Session.of(far).statistics().waiters == 0


async def test_t_c_14_a_cancelled_head_passes_its_place_on(kind: Kind, client: Redis) -> None:
    """The one whose turn it has just become is cancelled in the same turn of the loop."""
    lock = kind.make(client, "a")
    holder = await lock.acquire()
    first, second = (asyncio.create_task(lock.acquire()) for _ in range(2))
    await eventually(lambda: Session.of(client).statistics().waiters == 2)
    release = asyncio.create_task(holder.release())
    await asyncio.sleep(0)
    first.cancel()
    lease = await asyncio.wait_for(second, 0.5 + stall())
    await release
    assert first.cancelled()
    await lease.release()


async def test_a_failing_sibling_leaves_nothing(kind: Kind, far: Redis, keys: Keys) -> None:
    async def fail() -> None:
        await asyncio.sleep(random.uniform(0, 4 * LINK))
        raise LockError("sibling")

    for _ in range(10):
        with pytest.raises(ExceptionGroup):
            async with asyncio.TaskGroup() as group:
                group.create_task(in_the_body(kind.make(far, "a")))
                group.create_task(in_the_body(kind.make(far, "a")))
                group.create_task(fail())
                await asyncio.sleep(1)
        await eventually(lambda: not keys(), within=2 + stall())


async def test_cancelled_adoption_gives_the_handle_back(kind: Kind, far: Redis, client: Redis) -> None:
    lock = kind.make(far, "a")

    async def adopt() -> None:
        handle = (await kind.make(client, "a").acquire()).detach()
        try:
            adopted = await lock.adopt(handle)
        except asyncio.CancelledError:
            await asyncio.sleep(40 * LINK)  # until it was given back, over a connection of its own perhaps
            lease = await kind.make(client, "a").adopt(handle)
            await lease.release()
            raise
        await adopted.release()

    await sweep(adopt, modes=["early", "late"], within=3 + stall())
    await client.flushdb()


async def test_cancel_wins_over_a_release_that_fails(kind: Kind, client: Redis, keys: Keys) -> None:
    entered = asyncio.Event()

    async def hold() -> None:
        async with kind.make(client, "a"):
            entered.set()
            await asyncio.sleep(10)

    task = asyncio.create_task(hold())
    await entered.wait()
    await client.delete(*keys())
    task.cancel()
    with pytest.raises(asyncio.CancelledError) as caught:
        await task
    assert any("was lost" in note for note in caught.value.__notes__)
