"""The fair lock: nobody overtakes, no waiter loses its place, and a waiter that drops out delays nobody.

T-P-1 to T-P-3 and the invariant I3 of `tests/FAULTS.md`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import AsyncExitStack, suppress
from typing import Any

import pytest
from redis.asyncio import Redis

from aiolocks import Backoff, FairLock, Lease, LockTimeoutError, Session
from tests.adversity.tools import AT_ONCE, SLACK, UNTOLD, ByHand, Start, begin, in_within, waiter, wakeup
from tests.support.history import Hold, exclusion, fencing, fifo
from tests.support.processes import Worker, Workers, tell
from tests.support.servers import Server
from tests.support.waiting import eventually

log = logging.getLogger(__name__)
QUEUE = "aiolocks:fairlock.queue:{%s}"
HOLDERS = "aiolocks:fairlock:{%s}"
SEAT = 16
WAITER_LEASE = 2.0
"""Seconds for which a waiter gives no sign of life before it counts as dead."""
DELAY = 2.6
"""Seconds by which the dead may delay the living."""


def seats(by_hand: ByHand, name: str = "a") -> list[str]:
    """The beginnings of the tokens of those who stand in the queue, in its order."""
    return [entry.decode()[-SEAT:] for entry in by_hand.redis.zrange(QUEUE % name, 0, -1)]


# -- the order over processes --------------------------------------------------------------------------------


async def wait_in_turn(url: str, way: str, number: int, of: int, waiters: int, every: float) -> None:
    """In a process of its own: `waiters` waiters, which come at their times, and tell who was when inside."""
    async with Redis.from_url(url) as redis, Session(redis, wakeup=wakeup(way)) as session:
        lock = FairLock(session, "a")
        holds: list[dict[str, Any]] = []

        async def one(place: int) -> None:
            await asyncio.sleep(begin + (place * of + number) * every - time.monotonic())
            invoked = time.monotonic()
            lease = await lock.acquire()
            granted = time.monotonic()
            seat = lease.token[:SEAT]
            await asyncio.sleep(0)
            released = time.monotonic()
            await lease.release()
            holds.append(
                {
                    "who": seat,
                    "invoked": invoked,
                    "granted": granted,
                    "released": released,
                    "confirmed": time.monotonic(),
                    "fencing_token": lease.fencing_token,
                }
            )

        await lock.locked()
        tell("ready")
        while (word := await redis.lpop("begin")) is None:
            await asyncio.sleep(0.01)
        begin = float(word)
        await asyncio.gather(*(one(place) for place in range(waiters)))
        tell("done", holds=holds)


@pytest.mark.parametrize("way", ["tracking"])
async def test_i3_order_of_arrival_over_processes(
    server: Server, workers: Workers, start: Start, by_hand: ByHand, way: str
) -> None:
    """Three processes, twenty waiters in each; they come one by one while it is held."""
    processes, waiters, every = 3, 20, 0.01
    lease = await FairLock(start(), "a").acquire()
    crew = [
        await workers.start(
            wait_in_turn, url=server.url, way=way, number=number, of=processes,
            waiters=waiters, every=every,
        )
        for number in range(processes)
    ]  # fmt: skip
    for worker in crew:
        await worker.told("ready")
    by_hand.redis.rpush("begin", *[time.monotonic() + 0.2] * processes)
    await eventually(lambda: len(seats(by_hand)) == processes * waiters, within=10)
    order = seats(by_hand)
    await asyncio.sleep(0.7)  # a heartbeat changes nothing in it
    assert seats(by_hand) == order
    await lease.release()
    holds = [Hold(**hold) for worker in crew for hold in (await worker.told("done"))["holds"]]
    holds.sort(key=lambda hold: hold.fencing_token or 0)
    assert [hold.who for hold in holds] == order
    assert exclusion(holds) == fencing(holds) == []
    # To the grain of the machine's scheduling, the order of the queue is that of the calls.
    late = [Hold(**{**as_dict(hold), "queued": hold.invoked + 0.1}) for hold in holds]
    assert fifo(late) == []


def as_dict(hold: Hold) -> dict[str, Any]:
    return {name: getattr(hold, name) for name in Hold.__slots__}


# -- those who die -------------------------------------------------------------------------------------------


async def wait_in_vain(url: str, way: str, names: list[str]) -> None:
    """In a process of its own: wait with a session for each, and let go at once of what is had."""
    async with AsyncExitStack() as stack:
        waiting = []
        for name in names:
            redis = await stack.enter_async_context(Redis.from_url(url))
            session = await stack.enter_async_context(Session(redis, wakeup=wakeup(way)))
            waiting.append(await waiter(session, FairLock(session, name).acquire()))
        tell("asleep")
        for task in waiting:
            await (await task).release()
        tell("had")


@pytest.mark.leaves_keys
@pytest.mark.parametrize("way", ["tracking"])
async def test_t_p_1_dead_heads_delay_the_next_by_one_lease_of_a_waiter(
    server: Server, workers: Workers, start: Start, way: str
) -> None:
    """One killed, ten at once, ten by turns with the living, and one stopped, which gets it once it goes
    on."""
    names = {"killed": 1, "ten killed": 10, "by turns": 5, "stopped": 1}
    holder, here = start(backoff=Backoff()), start(backoff=Backoff())
    held: dict[str, Lease] = {}
    crew: dict[str, list[Worker]] = {}
    waiting: dict[str, list[asyncio.Task[Any]]] = {}
    for name, number in names.items():
        held[name] = await FairLock(holder, name).acquire()
        crew[name] = [await workers.start(wait_in_vain, url=server.url, way=way, names=[name] * number)]
    for name in names:
        await crew[name][0].told("asleep")
        waiting[name] = [await waiter(here, FairLock(here, name).acquire())]
    crew["by turns"] += [await workers.start(wait_in_vain, url=server.url, way=way, names=["by turns"] * 5)]
    await crew["by turns"][1].told("asleep")
    waiting["by turns"].append(await waiter(here, FairLock(here, "by turns").acquire()))
    for name in names:
        for worker in crew[name]:
            worker.stop() if name == "stopped" else worker.kill()

    async def delay(name: str) -> float:
        if name == "by turns":
            await asyncio.sleep(WAITER_LEASE / 2)
        began = time.monotonic()
        await held[name].release()
        for task in waiting[name]:
            await (await in_within(began + DELAY + SLACK - time.monotonic(), task)).release()
        return time.monotonic() - began

    delays = dict(zip(names, await asyncio.gather(*map(delay, names)), strict=True))
    log.info("delays: %s", delays)
    assert max(delays.values()) <= DELAY + SLACK, delays
    crew["stopped"][0].cont()
    await crew["stopped"][0].told("had", within=5)


# -- those who wait for long ---------------------------------------------------------------------------------


async def keep_places(start: Start, by_hand: ByHand, seconds: float) -> None:
    """Held elsewhere, and held in the session of who waits; three sessions, two waiters in each."""

    async def one(name: str) -> None:
        sessions = [start(backoff=Backoff()) for _ in range(3)]
        holder = sessions[0] if name == "held here" else start()
        lease = await FairLock(holder, name).acquire()
        waiting = [begin(hold_and_note(session, name)) for _ in range(2) for session in sessions]
        await eventually(lambda: len(seats(by_hand, name)) == 6)
        order = seats(by_hand, name)
        await asyncio.sleep(seconds)
        assert seats(by_hand, name) == order
        await lease.release()
        had = await asyncio.wait_for(asyncio.gather(*waiting), 5)
        assert [seat for _, seat in sorted(had)] == order

    await asyncio.gather(one("held here"), one("held elsewhere"))


async def hold_and_note(session: Session, name: str) -> tuple[int, str]:
    async with FairLock(session, name) as lease:
        return lease.fencing_token, lease.token[:SEAT]


@pytest.mark.more  # as the place of one that was stopped for a moment, T-P-3
@pytest.mark.parametrize("way", ["tracking"])
async def test_t_p_3_places_are_kept_for_seconds(start: Start, by_hand: ByHand) -> None:
    await keep_places(start, by_hand, 1.5 * WAITER_LEASE)


@pytest.mark.soak
@pytest.mark.timeout(120)
async def test_t_p_3_places_are_kept_for_a_minute(start: Start, by_hand: ByHand) -> None:
    """Six times as long as a queue lasts that nobody stands in."""
    await keep_places(start, by_hand, 60)


@pytest.mark.parametrize("way", ["tracking"])
async def test_t_p_3_place_kept_by_who_was_stopped_for_a_moment(
    server: Server, workers: Workers, start: Start, by_hand: ByHand, way: str
) -> None:
    """Shorter than the lease of a waiter; nobody passes it."""
    lease = await FairLock(start(), "a").acquire()
    process = await workers.start(wait_in_vain, url=server.url, way=way, names=["a"])
    await process.told("asleep")
    here = start()
    waiting = await waiter(here, FairLock(here, "a").acquire())
    first = seats(by_hand)[0]
    process.stop()
    await asyncio.sleep(1.0)
    process.cont()
    await asyncio.sleep(0.05)
    assert seats(by_hand)[0] == first
    await lease.release()
    await process.told("had", within=5)
    await (await in_within(AT_ONCE, waiting)).release()


# -- those who drop out --------------------------------------------------------------------------------------


@pytest.mark.thin
@pytest.mark.parametrize("together", [True, False], ids=["of one session", "of several"])
@pytest.mark.parametrize("held", ["here", "elsewhere"])
@pytest.mark.parametrize("how", ["cancelled", "timed out"])
async def test_t_p_2_who_drops_out_delays_nobody(
    start: Start, by_hand: ByHand, together: bool, held: str, how: str
) -> None:
    """Anywhere in a queue of five; the rest get it in their order, at once, though they are patient."""
    own = start()
    sessions = [own] * 5 if together else [own, *(start() for _ in range(4))]
    holder = own if held == "here" else start()
    for dropped in range(5):
        lease = await FairLock(holder, "a").acquire()
        waiting: list[asyncio.Task[Any]] = []
        for place, session in enumerate(sessions):
            timeout = 0.15 if how == "timed out" and place == dropped else None
            waiting.append(await waiter(session, FairLock(session, "a").acquire(blocking_timeout=timeout)))
        await eventually(lambda: len(seats(by_hand)) >= 4)
        if how == "cancelled":
            waiting[dropped].cancel()
        with suppress(asyncio.CancelledError, LockTimeoutError):
            await waiting[dropped]
        await eventually(lambda: len(seats(by_hand)) == 4, within=UNTOLD)
        await lease.release()
        for task in waiting[:dropped] + waiting[dropped + 1 :]:
            assert not any(other.done() for other in waiting if other is not task and not over(other))
            await (await in_within(AT_ONCE, task)).release()


def over(task: asyncio.Task[Any]) -> bool:
    """Whether it has ended, and what it got is no more."""
    return task.done() and (
        task.cancelled() or task.exception() is not None or task.result().remaining() == 0
    )


@pytest.mark.parametrize("turns", range(6))
@pytest.mark.parametrize("together", [True, False], ids=["of one session", "of several"])
async def test_t_p_2_first_one_cancelled_as_it_becomes_free(start: Start, turns: int, together: bool) -> None:
    first, holder = start(), start()
    second = first if together else start()
    for _ in range(3):
        lease = await FairLock(holder, "a").acquire()
        cancelled = await waiter(first, FairLock(first, "a").acquire())
        waiting = await waiter(second, FairLock(second, "a").acquire())
        releasing = asyncio.create_task(lease.release())
        for _ in range(turns):
            await asyncio.sleep(0)
        cancelled.cancel()
        await asyncio.wait({cancelled, releasing})
        if not cancelled.cancelled():
            await cancelled.result().release()
        await (await in_within(AT_ONCE, waiting)).release()


# -- those who try -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("same", [True, False], ids=["session of who waits", "another session"])
async def test_t_p_3_a_try_never_overtakes(start: Start, by_hand: ByHand, same: bool) -> None:
    """It is free, who waits has not heard of it yet, and one who has just come is quicker."""
    here, elsewhere = start(), start()
    trying = here if same else start()
    (await FairLock(elsewhere, "a").acquire()).detach()
    waiting = await waiter(here, FairLock(here, "a").acquire())
    assert await FairLock(trying, "a").try_acquire() is None
    by_hand.redis.delete(HOLDERS % "a")  # nobody is told
    assert await FairLock(trying, "a").locked()
    assert await FairLock(trying, "a").try_acquire() is None
    waiting.cancel()


@pytest.mark.parametrize("same", [True, False], ids=["session of who waits", "another session"])
async def test_t_p_3_tries_without_end_do_not_keep_out_who_waits(start: Start, same: bool) -> None:
    here, elsewhere = start(), start()
    trying = here if same else start()
    over = asyncio.Event()
    had = 0

    async def try_and_try() -> None:
        nonlocal had
        while not over.is_set():
            if lease := await FairLock(trying, "a").try_acquire():
                had += not over.is_set()
                await lease.release()

    lease = await FairLock(elsewhere, "a").acquire()
    waiting = [await waiter(here, FairLock(here, "a").acquire()) for _ in range(3)]
    tasks = [asyncio.create_task(try_and_try()) for _ in range(4)]
    await asyncio.sleep(0.05)
    await lease.release()
    for task in waiting:
        lease = await in_within(AT_ONCE, task)
        await asyncio.sleep(0.005)
        over.set() if task is waiting[-1] else None
        await lease.release()
    await asyncio.gather(*tasks)
    assert had == 0
