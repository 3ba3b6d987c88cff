"""Tasks of several sessions and processes that wait for each other: what is found, who is told, and when."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from redis.asyncio import Redis

from aiolocks import (
    Deadlock,
    DeadlockError,
    FairLock,
    Limits,
    Lock,
    LockEvent,
    MultiLock,
    RangeLock,
    ReentrantLock,
    RWLock,
    Semaphore,
    Session,
)
from tests.support.processes import Workers, tell
from tests.support.servers import Server
from tests.support.thinning import only

WITHIN = 2.0
"""Seconds from when the ring is closed until it is named."""


class Told:
    """A listener that keeps what it was told of deadlocks, and when."""

    def __init__(self) -> None:
        self.events: list[LockEvent] = []
        self.at = 0.0

    def on_deadlock(self, event: LockEvent) -> None:
        self.at = self.at or time.monotonic()
        self.events.append(event)


class Sessions:
    """Several sessions, each of which is to the server what a process is."""

    def __init__(self, stack: contextlib.AsyncExitStack, server: Server) -> None:
        self._stack = stack
        self._server = server
        self.told: list[Told] = []
        self.tasks: list[asyncio.Task[Any]] = []

    async def open(self, number: int, **options: Any) -> list[Session]:
        sessions = []
        for _ in range(number):
            redis = await self._stack.enter_async_context(Redis.from_url(self._server.url))
            self.told.append(Told())
            session = Session(redis, listeners=[self.told[-1]], **options)
            sessions.append(await self._stack.enter_async_context(session))
        return sessions

    def run(self, *tasks: Callable[[], Awaitable[object]]) -> None:
        for number, task in enumerate(tasks):

            async def running(task: Callable[[], Awaitable[object]] = task) -> None:
                await task()

            self.tasks.append(asyncio.create_task(running(), name=f"task {number}"))

    async def end(self) -> list[BaseException | None]:
        for task in self.tasks:
            task.cancel()
        return await asyncio.gather(*self.tasks, return_exceptions=True)


@pytest.fixture
async def sessions(server: Server) -> AsyncIterator[Sessions]:
    async with contextlib.AsyncExitStack() as stack:
        several = Sessions(stack, server)
        yield several
        await several.end()


def nested(*acquirables: Any, barrier: asyncio.Barrier, after: float = 0.0) -> Callable[[], Awaitable[None]]:
    """Holds the first ones, waits until all tasks do, and then wants the last."""

    async def task() -> None:
        async with contextlib.AsyncExitStack() as held:
            for one in acquirables[:-1]:
                await held.enter_async_context(one)
            await barrier.wait()
            await asyncio.sleep(after)
            async with acquirables[-1]:
                pass

    return task


async def named(sessions: Sessions, number: int, *, within: float = WITHIN) -> LockEvent:
    """The report of a deadlock of that many tasks, in time."""
    begun = time.monotonic()
    async with asyncio.timeout(within + 1):
        while not any(told.events for told in sessions.told):
            await asyncio.sleep(0.02)
    first = next(event for told in sessions.told for event in told.events)
    assert time.monotonic() - begun < within
    assert first.reason.startswith(f"deadlock of {number}: "), first.reason
    return first


RW = "rw"


def ring_of(kind: type[Any], a: Session, b: Session, barrier: asyncio.Barrier) -> list[Any]:
    return [
        nested(kind(a, "x"), kind(a, "y"), barrier=barrier),
        nested(kind(b, "y"), kind(b, "x"), barrier=barrier),
    ]


def behind_a_writer(a: Session, b: Session, barrier: asyncio.Barrier) -> list[Any]:
    """A reader keeps out a writer, which keeps out another reader. The writer holds nothing."""
    return [
        nested(RWLock(a, RW).reader, Lock(a, "x"), barrier=barrier),
        nested(Lock(b, "x"), RWLock(b, RW).reader, barrier=barrier, after=0.2),
        nested(RWLock(b, RW).writer, barrier=barrier),
    ]


def behind_an_earlier_one(a: Session, b: Session, barrier: asyncio.Barrier) -> list[Any]:
    """A reader keeps out a writer, which keeps out an upgradable of the part beside that reader."""
    return [
        nested(RangeLock(a, RW).reader(0, 1), Lock(a, "x"), barrier=barrier),
        nested(Lock(b, "x"), RangeLock(b, RW).upgradable(2, 4), barrier=barrier, after=0.2),
        nested(RangeLock(b, RW).writer(0, 3), barrier=barrier),
    ]


def two_upgrades(a: Session, b: Session, barrier: asyncio.Barrier) -> list[Any]:
    def upgrading(session: Session, own: str, other: str) -> Callable[[], Awaitable[None]]:
        async def task() -> None:
            async with RWLock(session, own).upgradable as lease, RWLock(session, other).reader:
                await barrier.wait()
                async with lease.upgrade():
                    pass

        return task

    return [upgrading(a, "x", "y"), upgrading(b, "y", "x")]


def all_permits(a: Session, b: Session, barrier: asyncio.Barrier) -> list[Any]:
    """Both permits are held by tasks that wait for the third."""
    return [
        nested(Semaphore(a, "s", 2), Lock(a, "x"), barrier=barrier),
        nested(Semaphore(b, "s", 2), Lock(b, "x"), barrier=barrier),
        nested(Lock(a, "x"), Semaphore(a, "s", 2), barrier=barrier),
    ]


def one_key(a: Session, b: Session, barrier: asyncio.Barrier) -> list[Any]:
    """The key that both want is full; the other one has room."""
    return [
        nested(Limits(a, "l", {"all": 9, "mine": 1}), Lock(a, "x"), barrier=barrier),
        nested(Lock(b, "x"), Limits(b, "l", {"all": 9, "mine": 1}), barrier=barrier),
    ]


def several_names(a: Session, b: Session, barrier: asyncio.Barrier) -> list[Any]:
    return [
        nested(Lock(a, "x"), MultiLock(a, ["y", "z"]), barrier=barrier),
        nested(MultiLock(b, ["z", "w"]), Lock(b, "x"), barrier=barrier),
    ]


def several_kinds(a: Session, b: Session, barrier: asyncio.Barrier) -> list[Any]:
    """Two tasks of one session, one of which waits for the other without asking the server."""
    return [
        nested(FairLock(a, "f"), Lock(a, "x"), barrier=barrier),
        nested(Lock(a, "x"), RangeLock(a, "r").writer(0, 10), barrier=barrier),
        nested(RangeLock(b, "r").reader(5, 6), FairLock(b, "f"), barrier=barrier),
    ]


RINGS = {
    "Lock": (lambda *rest: ring_of(Lock, *rest), 2),
    "FairLock": (lambda *rest: ring_of(FairLock, *rest), 2),
    "ReentrantLock": (lambda *rest: ring_of(ReentrantLock, *rest), 2),
    "a reader behind a writer": (behind_a_writer, 2),
    "an upgradable behind an earlier writer": (behind_an_earlier_one, 2),
    "two upgrades": (two_upgrades, 2),
    "all permits": (all_permits, 3),
    "MultiLock": (several_names, 2),
    "Limits": (one_key, 2),
    "several kinds": (several_kinds, 3),
}


@pytest.mark.parametrize("ring", only(RINGS, "several kinds"))
async def test_a_ring_is_named_in_time(sessions: Sessions, ring: str, caplog: Any) -> None:
    make, number = RINGS[ring]
    a, b = await sessions.open(2)
    barrier = asyncio.Barrier(number + ("behind" in ring) + 1)
    sessions.run(*make(a, b, barrier))
    await barrier.wait()
    event = await named(sessions, number)
    found = await a.deadlocks()
    assert [len(one.tasks) for one in found] == [number]
    for task in found[0].tasks:
        assert f"task {task.task!r} holds " in event.reason
    assert any(record.getMessage() == event.reason for record in caplog.records)


@pytest.mark.more  # as the ring of several kinds
async def test_its_tasks_stand_in_the_order_in_which_they_wait(sessions: Sessions) -> None:
    several = await sessions.open(4)
    barrier = asyncio.Barrier(5)
    names = "abcd"
    sessions.run(
        *(
            nested(Lock(each, names[at]), Lock(each, names[(at + 1) % 4]), barrier=barrier)
            for at, each in enumerate(several)
        )
    )
    await barrier.wait()
    await named(sessions, 4)
    (deadlock,) = await several[0].deadlocks()
    for one, following in zip(deadlock.tasks, (*deadlock.tasks[1:], deadlock.tasks[0]), strict=True):
        assert one.kind == "lock"
        assert (one.kind, one.name) in following.holds
        assert one.waited_for > 0.4
        assert one.pid is not None


async def test_the_youngest_waiter_is_told_and_the_others_go_on(sessions: Sessions) -> None:
    a, b = await sessions.open(2, on_deadlock="raise")
    barrier = asyncio.Barrier(3)
    sessions.run(
        nested(Lock(a, "x"), Lock(a, "y"), barrier=barrier),
        nested(Lock(b, "y"), Lock(b, "x"), barrier=barrier, after=0.3),
    )
    await barrier.wait()
    async with asyncio.timeout(4):
        older, younger = await asyncio.gather(*sessions.tasks, return_exceptions=True)
    assert older is None
    assert isinstance(younger, DeadlockError)
    assert isinstance(younger.deadlock, Deadlock)
    assert [task.name for task in younger.deadlock.tasks] == ["x", "y"]
    assert str(younger).startswith("the wait for Lock 'x' would never end: deadlock of 2: ")
    assert "take the locks in the same order" in str(younger)


@pytest.mark.more  # as the youngest, which is told
async def test_one_that_only_reports_is_not_told(sessions: Sessions) -> None:
    (a,) = await sessions.open(1, on_deadlock="raise")
    (b,) = await sessions.open(1)
    barrier = asyncio.Barrier(3)
    sessions.run(
        nested(Lock(a, "x"), Lock(a, "y"), barrier=barrier),
        nested(Lock(b, "y"), Lock(b, "x"), barrier=barrier, after=0.3),
    )
    await barrier.wait()
    async with asyncio.timeout(4):
        older, younger = await asyncio.gather(*sessions.tasks, return_exceptions=True)
    assert isinstance(older, DeadlockError)
    assert younger is None


async def chain(a: Session, b: Session, barrier: asyncio.Barrier) -> list[Any]:
    """All wait for one that holds and does not wait."""
    return [
        nested(Lock(a, "x"), Lock(a, "y"), barrier=barrier),
        nested(Lock(b, "y"), Lock(b, "z"), barrier=barrier),
    ]


async def test_what_ends_by_itself_is_no_deadlock(sessions: Sessions) -> None:
    a, b, c = await sessions.open(3)
    barrier = asyncio.Barrier(9)
    async with Lock(c, "z"), Semaphore(c, "s", 2), Limits(c, "l", {"all": 2}):
        sessions.run(
            *(await chain(a, b, barrier)),  # waits for z
            nested(Semaphore(a, "s", 2), Lock(a, "p"), barrier=barrier),
            nested(Lock(b, "p"), Semaphore(b, "s", 2), barrier=barrier),  # a permit of c will do
            nested(Limits(a, "l", {"all": 2}), Lock(a, "q"), barrier=barrier),
            nested(Lock(b, "q"), Limits(b, "l", {"all": 2}), barrier=barrier),  # there is room soon
            nested(Lock(a, "m", max_hold=30), Lock(a, "n"), barrier=barrier),
            nested(Lock(b, "n"), Lock(b, "m"), barrier=barrier),  # m ends by itself
        )
        await barrier.wait()
        await asyncio.sleep(1.5)
        assert await a.deadlocks() == []
    assert not any(told.events for told in sessions.told)
    await sessions.end()
    assert not await a._client.exists("aiolocks:waits:{all}")


@pytest.mark.more  # as what ends by itself
@pytest.mark.leaves_keys
async def test_a_ring_that_was_is_not_told_of(sessions: Sessions, redis: Redis) -> None:
    """A task that gives up a moment before the second look is not part of anything."""
    a, b = await sessions.open(2)
    barrier = asyncio.Barrier(3)
    sessions.run(
        nested(Lock(a, "x"), Lock(a, "y", blocking_timeout=0.7), barrier=barrier),
        nested(Lock(b, "y"), Lock(b, "x", blocking_timeout=0.7), barrier=barrier),
    )
    await barrier.wait()
    await asyncio.sleep(1.5)
    assert not any(told.events for told in sessions.told)
    assert not await redis.exists("aiolocks:waits:{all}")


async def hold_and_want(url: str, own: str, other: str) -> None:
    class Telling:
        def on_deadlock(self, event: LockEvent) -> None:
            tell("deadlock", reason=event.reason, seconds=event.seconds)

    async with (
        Redis.from_url(url) as redis,
        Session(redis, listeners=[Telling()], on_deadlock="raise") as session,
        Lock(session, own),
    ):
        tell("inside")
        while not await redis.exists("go"):
            await asyncio.sleep(0.005)
        try:
            async with Lock(session, other):
                tell("had")
        except DeadlockError as error:
            tell("told", tasks=len(error.deadlock.tasks) if error.deadlock else 0)


@pytest.mark.leaves_keys
@pytest.mark.parametrize(
    "number", [2, pytest.param(3, marks=pytest.mark.soak), pytest.param(5, marks=pytest.mark.soak)]
)
async def test_a_ring_of_processes_is_named_in_time(
    server: Server, workers: Workers, redis: Redis, number: int
) -> None:
    ring = [
        await workers.start(hold_and_want, url=server.url, own=f"{at}", other=f"{(at + 1) % number}")
        for at in range(number)
    ]
    for worker in ring:
        await worker.told("inside")
    await redis.set("go", 1, px=60_000)
    ends = [await worker.finish() for worker in ring]
    first = next(report for reports in ends for report in reports if report["event"] == "deadlock")
    assert first["seconds"] < WITHIN
    print(f"a ring of {number} named after {first['seconds']:.2f} s")  # noqa: T201
    assert first["reason"].startswith(f"deadlock of {number}: ")
    assert first["reason"].count(" pid ") == number
    told = [report for reports in ends for report in reports if report["event"] == "told"]
    assert [report["tasks"] for report in told] == [number], "one of them gives way"
    assert sum(report["event"] == "had" for reports in ends for report in reports) == number - 1


@pytest.mark.more  # as the rings of other kinds
async def test_who_holds_what_its_session_keeps_is_part_of_one(sessions: Sessions) -> None:
    """Both hold by a hit, whose number is not the moment of the grant; what nobody uses keeps nobody out."""
    a, b = await sessions.open(2, on_deadlock="raise")
    idle = Lock(a, "z", cache=5)
    for lock in (Lock(a, "x", cache=5), Lock(b, "y", cache=5), idle):
        for _ in range(2):
            async with lock:
                pass
    await asyncio.sleep(0.2)  # so that the numbers of hits fall behind
    barrier = asyncio.Barrier(2)
    sessions.run(
        nested(Lock(a, "x", cache=5), Lock(a, "y"), barrier=barrier),
        nested(Lock(b, "z"), Lock(b, "y", cache=5), Lock(b, "x"), barrier=barrier, after=0.1),
    )
    event = await named(sessions, 2)
    ended = await asyncio.wait_for(asyncio.gather(*sessions.tasks, return_exceptions=True), 3)
    assert [type(one) for one in ended].count(DeadlockError) == 1
    assert event.name in ("x", "y")
    assert "'z'" in event.reason  # task 1 holds it now
    assert a.statistics().cache_hits == b.statistics().cache_hits == 1


async def test_who_waits_for_what_its_session_may_keep_is_part_of_one(sessions: Sessions) -> None:
    """A name that was used a moment ago: the lease that is asked for has the claim of a tenure."""
    a, b = await sessions.open(2)
    async with Lock(a, "y", cache=5):
        pass
    barrier = asyncio.Barrier(2)
    sessions.run(
        nested(Lock(a, "x"), Lock(a, "y", cache=5), barrier=barrier),
        nested(Lock(b, "y"), Lock(b, "x"), barrier=barrier),
    )
    event = await named(sessions, 2)
    assert event.name in ("x", "y")


async def test_a_wait_that_a_task_of_its_session_ends_is_taken_back(sessions: Sessions) -> None:
    """It has the lease that its session keeps, without a request, and the token of that lease with it."""
    (a,) = await sessions.open(1)
    redis: Any = a._client
    kept, has, ends = Lock(a, "y", cache=5), asyncio.Event(), asyncio.Event()

    async def waiting() -> None:
        async with Lock(a, "x"), kept:
            has.set()
            await ends.wait()

    async with kept:
        pass
    async with kept:
        sessions.run(waiting)
        async with asyncio.timeout(10):
            while not await redis.exists("aiolocks:waits:{all}"):
                await asyncio.sleep(0.02)
    async with asyncio.timeout(10):
        await has.wait()
    assert a.statistics().cache_hits == 1
    await Lock(a, "z").locked()  # what was sent before has been executed
    assert not await redis.exists("aiolocks:waits:{all}")
    ends.set()
    await asyncio.gather(*sessions.tasks)
