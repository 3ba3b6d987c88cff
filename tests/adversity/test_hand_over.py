"""A release and the try of the next waiter of its session go in one request; where that fails, each alone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from aiolocks import (
    BackendError,
    FairLock,
    Leadership,
    LeaseState,
    Limits,
    Lock,
    LockNotOwnedError,
    MultiLock,
    RangeLock,
    ReentrantLock,
    RWLock,
    Semaphore,
    Session,
)
from tests.adversity.conftest import Start
from tests.adversity.tools import (
    ACQUIRE,
    AT_ONCE,
    HAND_OVER,
    HAND_OVER_PERMITS,
    LISTEN,
    RELEASE,
    RELEASE_PERMITS,
    UNTOLD,
    asleep,
    elapsed,
    in_within,
)
from tests.support.proxy import Proxy, Request
from tests.support.thinning import only
from tests.support.waiting import eventually

Make = Callable[[Session], Any]
KINDS: dict[str, Make] = {
    "Lock": lambda session: Lock(session, "a"),
    "ReentrantLock": lambda session: ReentrantLock(session, "a"),
    "MultiLock": lambda session: MultiLock(session, ["a", "b"]),
}
SEATED_KINDS: dict[str, Make] = {
    "FairLock": lambda session: FairLock(session, "a"),
    "Leadership": lambda session: Leadership(session, "a"),
}
WAKING_KINDS: dict[str, Make] = {
    "RWLock": lambda session: RWLock(session, "a").writer,
    "RWLock upgradable": lambda session: RWLock(session, "a").upgradable,
    "RangeLock": lambda session: RangeLock(session, "a").writer(0, 1),
    "Limits": lambda session: Limits(session, "a", {"all": 1, "tenant": 1}),
}
SEVERAL: dict[str, Make] = {
    "Semaphore": lambda session: Semaphore(session, "a", 1),
    "fair Semaphore": lambda session: Semaphore(session, "a", 1, fair=True),
}
COSTS = (
    dict.fromkeys(KINDS, 1)
    | dict.fromkeys(SEATED_KINDS, 2)
    | dict.fromkeys(WAKING_KINDS, 3)
    | {"Semaphore": 3, "fair Semaphore": 4, "Limits": 4}
)
"""Scripts for each acquisition by a task that waits for another one here: the hand-over, and its wait.

A fair kind gives each waiter a seat; one of a semaphore asks, for there may be room, and listens.
"""


async def held_and_awaited(session: Session, make: Make) -> tuple[Any, asyncio.Task[Any]]:
    lease = await make(session).acquire()
    waiting = asyncio.create_task(make(session).acquire())
    await asyncio.sleep(0.05)
    return lease, waiting


@pytest.mark.parametrize("kind", only(COSTS, *list(COSTS)[::2]))
async def test_hand_overs_within_a_session_are_one_request_each(
    start: Start, through: Proxy, kind: str
) -> None:
    session = start(to=through)
    lock = (KINDS | SEATED_KINDS | WAKING_KINDS | SEVERAL)[kind](session)

    async def ten_times() -> None:
        for _ in range(10):
            async with lock:
                await asyncio.sleep(0)

    async with lock:
        pass
    before = through.count(_script)
    with elapsed() as took:
        await asyncio.gather(*[ten_times() for _ in range(10)])

    # Of 100, the first is an acquire alone; heartbeats may come between, one in 0.6 s.
    assert through.count(_script) - before <= 100 * COSTS[kind] + 10 + 2 * took.seconds / UNTOLD


def _script(request: Request) -> bool:
    return request[0] in (b"EVALSHA", b"EVAL")


@pytest.mark.more  # as the requests of hand-overs, counted in short runs
@pytest.mark.parametrize("kind", only([*SEATED_KINDS, "fair Semaphore"], "fair Semaphore"))
async def test_a_heartbeat_between_hand_overs_takes_no_seat_again(
    start: Start, through: Proxy, kind: str
) -> None:
    """The seat of the waiter that is handed to is gone when its session is asked about it."""
    lock = (SEATED_KINDS | SEVERAL)[kind](start(to=through))
    entered = 0

    async def take_turns(tasks: int, heartbeats: int) -> None:
        nonlocal entered
        over = False

        async def one() -> None:
            nonlocal entered
            while not over:
                async with lock:
                    entered += 1

        before = through.count(LISTEN)
        all_of_them = asyncio.gather(*[one() for _ in range(tasks)])
        await eventually(lambda: through.count(LISTEN) >= before + heartbeats, within=15)
        over = True
        await all_of_them

    await take_turns(3, 1)  # from now on the server knows the scripts
    before, entered = through.count(_script), 0
    await take_turns(200, 2)

    # Each heartbeat would add up to 200.
    assert through.count(_script) - before <= COSTS[kind] * entered + 100


@pytest.mark.parametrize("kind", [*SEATED_KINDS, "fair Semaphore"])
async def test_a_hand_over_that_is_refused_wakes_the_first_elsewhere(
    start: Start, through: Proxy, kind: str
) -> None:
    """It came before the waiter here, which its session cannot know."""
    make = (SEATED_KINDS | SEVERAL)[kind]
    session, other = start(to=through), start()
    lease = await make(session).acquire()
    elsewhere = asyncio.create_task(make(other).acquire())
    await eventually(lambda: asleep(other), within=AT_ONCE)
    waiting = asyncio.create_task(make(session).acquire())
    await asyncio.sleep(0.05)

    await lease.release()
    entered = await in_within(AT_ONCE, elsewhere)
    assert not waiting.done()
    await entered.release()
    await (await in_within(AT_ONCE, waiting)).release()


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


@pytest.mark.parametrize("make", [KINDS["Lock"], SEATED_KINDS["FairLock"]], ids=["Lock", "FairLock"])
@pytest.mark.parametrize("turns", range(4))
async def test_a_waiter_that_is_cancelled_leaves_the_release_alone(
    start: Start, through: Proxy, turns: int, make: Make
) -> None:
    session, other = start(to=through), start()
    lease, waiting = await held_and_awaited(session, make)
    elsewhere = asyncio.create_task(make(other).acquire())
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
    ways = (RELEASE, HAND_OVER, RELEASE_PERMITS, HAND_OVER_PERMITS)
    assert sum(through.count(way) for way in ways) > 0


@pytest.mark.parametrize("mode", ["upgradable", "writer"])
async def test_hand_overs_within_a_session_overtake_no_waiter_elsewhere(start: Start, mode: str) -> None:
    """A waiter elsewhere that was called has its turn before the next one here."""
    here, elsewhere = (getattr(RWLock(session, "a"), mode) for session in (start(), start()))
    entered, over = 0, False

    async def again_and_again() -> None:
        nonlocal entered
        while not over:
            async with here:
                entered += 1
                await asyncio.sleep(0.005)

    tasks = asyncio.gather(*[again_and_again() for _ in range(5)])
    overtaken = []
    for _ in range(10):
        before = entered
        async with elsewhere.acquire(blocking_timeout=10):
            overtaken.append(entered - before)
    over = True
    await tasks

    # It may come in the midst of one, and another one may be let in before it is seated.
    assert max(overtaken) <= 4
