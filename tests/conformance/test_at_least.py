"""A name that stays taken for some time at least: the state after its release, and the next grant.

A fencing token is the server's time of the grant, in microseconds: so the times between grants are its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from redis.asyncio import Redis

from aiolocks import BackendError, Lease, LeaseState, LockLostError, LockTimeoutError, Session
from tests.conformance.conftest import Kind, stall
from tests.support.waiting import eventually, sleeps

Keys = Callable[..., list[str]]
Join = Callable[..., Redis]

pytestmark = pytest.mark.leaves_keys

LONG = 20.0
SHORT = 0.4
"""Seconds; far longer than a busy machine takes between two requests."""
LATE = 2.0
"""Seconds after which somebody is in at the latest, where the machine does not stand still."""


def gaps(leases: Sequence[Lease]) -> list[float]:
    """Seconds from each grant to the next, by the server's clock."""
    minted = [lease.fencing_token for lease in leases]
    return [(later - earlier) / 1e6 for earlier, later in itertools.pairwise(minted)]


async def released(lock: Any) -> Lease:
    lease: Lease = await lock.acquire()
    await lease.release()
    return lease


async def test_a_released_name_is_held_by_nobody_and_stays_taken(
    kind: Kind, client: Redis, join: Join
) -> None:
    lock, elsewhere = kind.make(client, "a", at_least=LONG), kind.make(join(), "a")
    async with lock as lease:
        pass
    assert lease.state is LeaseState.RELEASED
    assert lease.remaining() == 0
    assert not await lease.owned()
    for other in (lock, elsewhere):
        assert await other.locked()
        assert await other.try_acquire() is None
        with pytest.raises(LockTimeoutError) as caught:
            await other.acquire(blocking_timeout=0.1)
        assert caught.value.remaining == pytest.approx(LONG, abs=5)
        assert caught.value.holders == ()
        assert f": kept by at_least for {caught.value.remaining:.3f} s more; nobody holds it" in str(
            caught.value
        )


async def test_after_its_release_a_lease_can_do_nothing_more(kind: Kind, client: Redis) -> None:
    lease = await released(kind.make(client, "a", at_least=LONG))
    await lease.release()  # idempotent
    with pytest.raises(LockLostError, match="it was released"):
        await lease.extend()
    with pytest.raises(LockLostError, match="it was released"):
        lease.detach()
    assert Session.of(client).statistics().leases_held == 0


async def test_a_body_that_raises_changes_nothing(kind: Kind, client: Redis) -> None:
    with pytest.raises(ZeroDivisionError):
        async with kind.make(client, "a", at_least=LONG):
            1 / 0  # noqa: B018
    assert await kind.make(client, "a").locked()


async def test_a_cancelled_body_changes_nothing(kind: Kind, client: Redis) -> None:
    async def run() -> None:
        async with kind.make(client, "a", at_least=LONG):
            inside.set()
            await asyncio.sleep(60)

    inside = asyncio.Event()
    running = asyncio.create_task(run())
    await inside.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert await kind.make(client, "a").try_acquire() is None


@pytest.mark.timed
async def test_a_cancelled_release_goes_on(kind: Kind, client: Redis) -> None:
    lease = await kind.make(client, "a", at_least=SHORT).acquire()
    releasing = asyncio.create_task(lease.release())
    await asyncio.sleep(0)
    releasing.cancel()
    await asyncio.wait([releasing])
    await eventually(lambda: lease.state is LeaseState.RELEASED)
    async with kind.make(client, "a", blocking_timeout=SHORT + LATE + stall()) as later:
        assert gaps([lease, later])[0] >= SHORT


async def test_a_decorated_function_keeps_it_too(kind: Kind, client: Redis) -> None:
    @kind.make(client, "a", at_least=LONG)
    async def function() -> int:
        return 17

    assert await function() == 17
    assert await kind.make(client, "a").locked()


@pytest.mark.timed
async def test_a_waiter_here_gets_in_right_after_that_time(kind: Kind, client: Redis) -> None:
    lock = kind.make(client, "a", at_least=SHORT)
    async with lock as first:
        waiting = asyncio.create_task(kind.make(client, "a").acquire())
        await eventually(lambda: Session.of(client).statistics().waiters == 1)
    async with await waiting as second:
        (gap,) = gaps([first, second])
        assert SHORT <= gap < SHORT + LATE + stall()


@pytest.mark.timed
async def test_a_waiter_elsewhere_gets_in_right_after_that_time(
    kind: Kind, client: Redis, join: Join
) -> None:
    elsewhere = join()
    async with kind.make(client, "a", at_least=SHORT) as first:
        waiting = asyncio.create_task(kind.make(elsewhere, "a").acquire())
        await eventually(lambda: sleeps(Session.of(elsewhere)))
    async with await waiting as second:
        (gap,) = gaps([first, second])
        assert SHORT <= gap < SHORT + LATE + stall()


@pytest.mark.timed
async def test_no_hand_over_jumps_over_that_time(kind: Kind, client: Redis, join: Join) -> None:
    """Tasks of two sessions, one after the other: a hand-over within a session, and from one to the other."""
    at_least, leases, elsewhere = 0.05, list[Lease](), join()

    async def run(where: Redis, seconds: float) -> None:
        async with kind.make(where, "a", at_least=at_least) as lease:
            leases.append(lease)
            await asyncio.sleep(seconds)

    await asyncio.gather(
        *(run(where, seconds) for seconds in (0, 0.01, 0.06) for where in (client, client, elsewhere))
    )
    assert len(leases) == 9
    assert min(gaps(leases)) >= at_least


@pytest.mark.timed
async def test_among_waits_and_bodies_that_fail_nobody_jumps_over_that_time(
    kind: Kind, client: Redis, join: Join
) -> None:
    """Waits that are cancelled or time out, bodies that are cancelled, raise or take longer than that."""
    at_least, chance, leases = 0.02, random.Random("at least"), list[Lease]()

    async def run(where: Redis) -> None:
        lock = kind.make(where, "a", at_least=at_least)
        async with asyncio.timeout(chance.choice([None, 0.01, 0.05, 0.2])):
            async with lock.acquire(blocking_timeout=chance.choice([0, 0.03, 30])) as lease:
                leases.append(lease)
                await asyncio.sleep(chance.choice([0, 0, 0.005, 0.04]))
                if chance.random() < 0.2:
                    raise ValueError

    async def come_again(where: Redis) -> None:
        for _ in range(8):
            # A wait in vain is a TimeoutError; a BackendError, if the machine is too busy to answer in time.
            with contextlib.suppress(TimeoutError, ValueError, BackendError):
                await run(where)
            await asyncio.sleep(chance.random() * 0.02)

    await asyncio.gather(*(come_again(where) for where in [client, client, client, join(), join()]))
    leases.sort(key=lambda lease: lease.fencing_token)
    assert len(leases) > 5
    assert min(gaps(leases)) >= at_least


@pytest.mark.timed
async def test_a_body_that_takes_longer_releases_as_usual(
    kind: Kind, client: Redis, join: Join, keys: Keys
) -> None:
    elsewhere = join()
    async with kind.make(client, "a", at_least=0.2):
        waiting = asyncio.create_task(kind.make(elsewhere, "a").acquire())
        await eventually(lambda: Session.of(elsewhere).statistics().waiters == 1)
        await asyncio.sleep(0.3)
    async with asyncio.timeout(LATE + stall()):
        await (await waiting).release()
    await released(kind.make(client, "b", at_least=0.001))
    assert not await kind.make(client, "a").locked()


@pytest.mark.timed
async def test_the_last_of_many_short_ones_leaves_nothing(kind: Kind, client: Redis, keys: Keys) -> None:
    for _ in range(3):
        await released(kind.make(client, "a", at_least=0.05))
    await eventually(lambda: keys() == [])


@pytest.mark.timed
async def test_an_acquire_that_is_cancelled_frees_it_at_once(
    kind: Kind, client: Redis, far_away: Callable[[float], Any]
) -> None:
    """Nothing was run: wherever its request or its reply is."""
    remote = await far_away(0.1)
    lock = kind.make(remote, "a", at_least=LONG, ttl=LONG)
    await lock.locked()

    async def cancelled(after: float) -> bool:
        acquiring = asyncio.create_task(lock.acquire())
        await asyncio.sleep(after)
        acquiring.cancel()
        await asyncio.wait([acquiring])
        return acquiring.cancelled()

    for after in (0.02, 0.08):
        while not await cancelled(after):  # the machine was too busy to cancel it in time
            await Session.of(client).force_release("a")
        async with kind.make(client, "a", blocking_timeout=LATE + stall()):
            pass


@pytest.mark.timed
async def test_a_handed_over_lease_keeps_its_time(kind: Kind, client: Redis, join: Join) -> None:
    lease = await kind.make(client, "a", at_least=SHORT).acquire()
    adopted = await kind.make(join(), "a").adopt(lease.detach())
    await adopted.release()
    async with kind.make(client, "a", blocking_timeout=SHORT + LATE + stall()) as later:
        assert gaps([lease, later])[0] >= SHORT


async def test_the_lock_that_adopts_may_ask_for_more(kind: Kind, client: Redis, join: Join) -> None:
    lease = await kind.make(client, "a", at_least=0.001).acquire()
    adopted = await kind.make(join(), "a", at_least=LONG).adopt(lease.detach())
    await adopted.release()
    assert await kind.make(client, "a").locked()


async def test_a_lock_whose_ttl_would_cut_it_short_cannot_adopt(kind: Kind, client: Redis) -> None:
    handle = (await kind.make(client, "a", at_least=LONG).acquire()).detach()
    with pytest.raises(ValueError, match="at_least must not be longer than ttl and max_hold, here 5 s"):
        await kind.make(client, "a", ttl=5).adopt(handle)
    async with await kind.make(client, "a").adopt(handle) as adopted:
        assert adopted.state is LeaseState.HELD


@pytest.mark.timed
async def test_it_can_be_freed_by_force(kind: Kind, client: Redis, join: Join) -> None:
    await released(kind.make(client, "a", at_least=LONG))
    waiting = asyncio.create_task(kind.make(join(), "a").acquire())
    session = Session.of(client)
    await asyncio.sleep(0.1)
    (freed,) = await session.force_release("a")
    assert freed.holders == ()
    assert freed.kept_until is not None
    async with asyncio.timeout(LATE + stall()):
        await (await waiting).release()
    assert await session.force_release("a") == []


async def test_inspect_tells_until_when(kind: Kind, client: Redis) -> None:
    session = Session.of(client)
    lock = kind.make(client, "a", at_least=LONG)
    async with lock as lease:
        (held,) = await session.inspect("a")
        assert (held.kept_for, held.kept_until, len(held.holders)) == (None, None, 1)
    (kept,) = await session.inspect("*")
    assert (kept.holders, kept.problem) == ((), "")
    assert kept.kept_until == pytest.approx(lease.fencing_token / 1e6 + LONG, abs=0.01)
    assert kept.kept_for == pytest.approx(LONG, abs=5)
