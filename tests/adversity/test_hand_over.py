"""A release and the try of the next waiter of its session go in one request; where that fails, each alone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from aiolocks import (
    BackendError,
    LeaseState,
    Lock,
    LockNotOwnedError,
    MultiLock,
    ReentrantLock,
    Session,
)
from tests.adversity.conftest import Start
from tests.adversity.tools import ACQUIRE, AT_ONCE, HAND_OVER, LISTEN, RELEASE, asleep, in_within
from tests.support.proxy import Proxy
from tests.support.waiting import eventually

Make = Callable[[Session], Any]
KINDS: dict[str, Make] = {
    "Lock": lambda session: Lock(session, "a"),
    "ReentrantLock": lambda session: ReentrantLock(session, "a"),
    "MultiLock": lambda session: MultiLock(session, ["a", "b"]),
}


async def held_and_awaited(session: Session, make: Make) -> tuple[Any, asyncio.Task[Any]]:
    lease = await make(session).acquire()
    waiting = asyncio.create_task(make(session).acquire())
    await asyncio.sleep(0.05)
    return lease, waiting


@pytest.mark.parametrize("kind", KINDS)
async def test_hand_overs_within_a_session_are_one_request_each(start: Start, kind: str) -> None:
    session = start()
    lock = KINDS[kind](session)

    async def twenty_times() -> None:
        for _ in range(20):
            async with lock:
                await asyncio.sleep(0)

    async with lock:
        pass
    before = session.statistics().commands_sent
    await asyncio.gather(*[twenty_times() for _ in range(10)])

    # Of 200, the first is an acquire alone; heartbeats may come between.
    assert session.statistics().commands_sent - before <= 210


async def test_a_wait_that_begins_costs_two_requests(start: Start, through: Proxy) -> None:
    near, far = start(), start(to=through)
    async with Lock(far, "warm"):
        pass
    lease = await Lock(near, "a").acquire()
    before = [through.count(step) for step in (ACQUIRE, LISTEN)]
    sent = far.statistics().commands_sent
    waiting = asyncio.create_task(Lock(far, "a").acquire())
    await through.saw(LISTEN, count=before[1] + 1)
    await eventually(lambda: asleep(far), within=AT_ONCE)

    assert [through.count(step) for step in (ACQUIRE, LISTEN)] == [before[0] + 1, before[1] + 1]
    assert far.statistics().commands_sent - sent <= 3  # `listen` in full, where its script is not known
    await lease.release()
    await (await in_within(AT_ONCE, waiting)).release()


async def test_scripts_that_the_server_has_forgotten_are_sent_in_full(start: Start, redis: Any) -> None:
    session = start()
    lease, waiting = await held_and_awaited(session, KINDS["Lock"])
    await redis.script_flush()

    await lease.release()

    assert lease.state is LeaseState.RELEASED
    await (await in_within(AT_ONCE, waiting)).release()


async def test_what_another_program_wrote_is_told_to_the_waiter_alone(start: Start, redis: Any) -> None:
    session = start()
    lease, waiting = await held_and_awaited(session, KINDS["Lock"])
    await redis.set("aiolocks:lock.fence:{a}", "garbage", px=60_000)

    await lease.release()

    assert lease.state is LeaseState.RELEASED
    with pytest.raises(BackendError, match="fence"):
        await in_within(AT_ONCE, waiting)


async def test_one_that_does_not_hold_any_more_is_told_and_the_waiter_goes_on_waiting(
    start: Start, redis: Any
) -> None:
    session = start()
    lease, waiting = await held_and_awaited(session, KINDS["Lock"])
    await redis.set("aiolocks:lock:{a}", f"{'b2' * 16}:17:{{}}", px=60_000)

    with pytest.raises(LockNotOwnedError):
        await lease.release()
    await asyncio.sleep(0.05)
    assert not waiting.done()
    await redis.delete("aiolocks:lock:{a}")
    await (await in_within(2, waiting)).release()


@pytest.mark.parametrize("turns", range(4))
async def test_a_waiter_that_is_cancelled_leaves_the_release_alone(
    start: Start, through: Proxy, turns: int
) -> None:
    session, other = start(to=through), start()
    lease, waiting = await held_and_awaited(session, KINDS["Lock"])
    elsewhere = asyncio.create_task(Lock(other, "a").acquire())
    await eventually(lambda: asleep(other), within=AT_ONCE)
    released = asyncio.create_task(lease.release())
    for _ in range(turns):
        await asyncio.sleep(0)

    waiting.cancel()
    await released
    with pytest.raises(asyncio.CancelledError):
        await waiting

    assert lease.state is LeaseState.RELEASED
    await (await in_within(AT_ONCE, elsewhere)).release()
    assert through.count(RELEASE) + through.count(HAND_OVER) > 0
