"""What a server executes twice counts once: it stood still for so long that its connection was given up.

The callers of a session ask a server that is stopped, all at once. The session gives its connection up, and
asks again on the next one. When the server goes on, it executes what it finds on both. There are more callers
than any memory by number would know. The server knows the scripts: else it would execute nothing the first
time. `STALL` is shortened, or the stop would have to last for 3 s.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from redis.asyncio import Redis

from aiolocks import (
    Batch,
    Combiner,
    FencedRegister,
    Latch,
    Lock,
    RateLimit,
    Schedule,
    Semaphore,
    Session,
    SingleFlight,
    StaleFenceError,
    Turnstile,
    UniqueJob,
)
from aiolocks.transport import connection
from tests.conformance.conftest import CONFORMS
from tests.conftest import Connect, OwnServer
from tests.kinds import declared

CALLERS = 100
STILL = 0.7
"""Seconds for which the server stands still."""
STALL = 0.3

Stop = Callable[[Awaitable[Any]], Awaitable[Any]]
"""The server stands still when this is asked of it."""
Row = Callable[[Session, Stop], Awaitable[None]]


def of_all(ask: Callable[[int], Awaitable[Any]]) -> Awaitable[list[Any]]:
    return asyncio.gather(*(ask(number) for number in range(CALLERS)))


async def latch(session: Session, stop: Stop) -> None:
    steps = Latch(session, "a", CALLERS + 2)
    assert await steps.count_down() == CALLERS + 1
    left = await stop(of_all(lambda _: steps.count_down()))
    assert await steps.count_down() == 0
    assert min(left) == 1


async def reset_of_a_latch(session: Session, stop: Stop) -> None:
    steps = Latch(session, "a", CALLERS + 1)
    await steps.count_down()
    await steps.reset()

    async def ask(number: int) -> int:
        return await (steps.reset() if number == 0 else steps.count_down())

    await stop(of_all(ask))
    assert await steps.count_down() == 1


async def turnstile(session: Session, stop: Stop) -> None:
    crowd = Turnstile(session, "a", window=60)
    assert await crowd.enter() == 1
    assert sorted(await stop(of_all(lambda _: crowd.enter()))) == [*range(2, CALLERS + 2)]


async def admissions(session: Session, stop: Stop) -> None:
    limit = RateLimit(session, "a", 3 * CALLERS, per=86_400)
    assert await limit.try_acquire()
    assert all(await stop(of_all(lambda _: limit.try_acquire())))
    assert (await limit.peek()).remaining == 2 * CALLERS - 1


async def submit(session: Session, stop: Stop) -> None:
    run: list[int] = []

    async def work(batch: Batch) -> None:
        run.extend(batch.items)
        batch.results = batch.items

    combiner = Combiner(session, "a")
    assert await combiner.submit(CALLERS, work) == CALLERS
    assert await stop(of_all(lambda number: combiner.submit(number, work))) == [*range(CALLERS)]
    assert sorted(run) == [*range(CALLERS + 1)]


async def leave(session: Session, stop: Stop) -> None:
    run: list[int] = []

    async def work(batch: Batch) -> None:
        run.extend(batch.items)

    combiner = Combiner(session, "a")
    await combiner.submit(-1, work)
    left = await stop(of_all(combiner.leave))
    assert len({one.number for one in left}) == CALLERS
    await combiner.submit(CALLERS, work)
    assert sorted(run) == [*range(-1, CALLERS + 1)]


async def permits(session: Session, stop: Stop) -> None:
    few = Semaphore(session, "a", 3)
    inside, most, tokens = 0, 0, list[int]()

    async def ask(_: int) -> None:
        nonlocal inside, most
        async with few.acquire(blocking_timeout=20) as lease:
            inside += 1
            most = max(most, inside)
            tokens.append(lease.fencing_token)
            await asyncio.sleep(0)
            inside -= 1

    await ask(0)
    await stop(of_all(ask))
    assert most <= 3
    assert len(set(tokens)) == CALLERS + 1
    assert await few.available() == 3


async def tickets(session: Session, stop: Stop) -> None:
    run: list[int] = []

    async def ask(number: int) -> None:
        job = UniqueJob(session, f"job {number}")
        ticket = await job.enqueue("until_executed")
        async with job.perform(ticket):
            run.append(number)
        async with job.try_perform(ticket) as lease:
            assert lease is None

    await ask(CALLERS)
    await stop(of_all(ask))
    assert sorted(run) == [*range(CALLERS + 1)]


async def one_key(session: Session, stop: Stop) -> None:
    job = UniqueJob(session, "a")
    await UniqueJob(session, "warm").enqueue("until_executed")
    found = await stop(of_all(lambda _: job.enqueue("until_executed", on_conflict="skip")))
    assert Counter(ticket is None for ticket in found) == {True: CALLERS - 1, False: 1}


async def ticks(session: Session, stop: Stop) -> None:
    run: list[int] = []
    schedule = Schedule(session, "a", every=3600, overlap="allow")

    @schedule
    async def job(_: Any) -> None:
        run.append(1)

    assert await schedule.trigger()
    assert await stop(of_all(lambda _: schedule.trigger())) == [True] * CALLERS
    assert len(run) == CALLERS + 1
    assert Counter(record.outcome for record in await schedule.history(CALLERS)) == {"done": CALLERS}


async def register(session: Session, stop: Stop) -> None:
    kept = FencedRegister(session, "a")

    async def ask(number: int) -> None:
        try:
            await kept.write(number, number)
        except StaleFenceError as error:  # it was written, and is written over
            stale.add(error.seen)

    await kept.write(0, 0)
    stale = set[int]()
    await stop(of_all(ask))
    assert stale <= {CALLERS - 1}
    assert await kept.read() == CALLERS - 1


async def adopted(session: Session, stop: Stop) -> None:
    locks = [Lock(session, f"lock {number}", ttl=30) for number in range(CALLERS)]
    handles = [(await lock.acquire()).detach() for lock in locks]
    first = Lock(session, "warm", ttl=30)
    await (await first.adopt((await first.acquire()).detach())).release()
    leases = await stop(of_all(lambda number: locks[number].adopt(handles[number])))
    assert all([await lease.owned() for lease in leases])
    await asyncio.gather(*(lease.release() for lease in leases))


async def stolen(session: Session, stop: Stop) -> None:
    locks = [Lock(session, f"lock {number}", ttl=30) for number in range(CALLERS)]
    former = [await lock.acquire() for lock in locks]
    await (await Lock(session, "warm").acquire(steal=True)).release()
    leases = await stop(of_all(lambda number: locks[number].acquire(steal=True)))
    assert all([await lease.owned() for lease in leases])
    assert not any([await lease.owned() for lease in former])
    await asyncio.gather(*(lease.release() for lease in leases))


async def flights(session: Session, stop: Stop) -> None:
    made: list[int] = []
    flight = SingleFlight(session, keep=30)

    async def ask(number: int) -> int:
        async def make() -> int:
            made.append(number)
            return number

        return await flight.do(f"key {number // 2}", make)

    await ask(2 * CALLERS)
    made.clear()
    await stop(of_all(ask))
    assert Counter(number // 2 for number in made) == dict.fromkeys(range(CALLERS // 2), 1)


REMEMBERED: list[Row] = [latch, turnstile, admissions, submit, tickets, ticks]
OF_ITSELF: list[Row] = [
    *(reset_of_a_latch, leave, permits, one_key, register, adopted, stolen, flights),
    *declared("COUNTED_ONCE"),
]
"""Of their kinds, a row above has the same memory, or what stands on the server is memory enough."""


def lock(make: Callable[..., Any]) -> Row:
    async def row(session: Session, stop: Stop) -> None:
        tokens: list[int] = []

        async def ask(_: int) -> None:
            async with make(session, "a", ttl=30).acquire(blocking_timeout=30) as lease:
                tokens.append(lease.fencing_token)

        await asyncio.gather(ask(0), ask(0))
        await stop(of_all(ask))
        assert len(tokens) == CALLERS + 2
        assert tokens == sorted(set(tokens))
        async with make(session, "a", ttl=30).acquire(blocking_timeout=0):
            pass

    return row


LOCKS = [kind for kind in CONFORMS if kind.masters == 1]


@pytest.mark.leaves_keys
@pytest.mark.parametrize(
    "row",
    [
        *(pytest.param(row, id=row.__name__) for row in REMEMBERED),
        *(pytest.param(row, id=row.__name__, marks=pytest.mark.more) for row in OF_ITSELF),
        *(pytest.param(lock(one.make), id=str(one), marks=pytest.mark.more) for one in LOCKS),
    ],
)
async def test_what_is_executed_twice_counts_once(
    own_server: OwnServer, connect: Connect, monkeypatch: pytest.MonkeyPatch, row: Row
) -> None:
    monkeypatch.setattr(connection, "STALL", STALL)
    server = await own_server()
    client: Redis = connect(server)
    async with Session(client, command_timeout=20) as session:

        async def stop(asking: Awaitable[Any]) -> Any:
            server.pause()
            task = asyncio.ensure_future(asking)
            await asyncio.sleep(STILL)
            server.resume()
            return await task

        await row(session, stop)
    await client.delete("aiolocks:fencedregister:{a}")  # has no ttl
