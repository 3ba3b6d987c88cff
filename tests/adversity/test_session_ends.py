"""The end of a session gives back what no code works under, and nothing else."""

from __future__ import annotations

import asyncio
import logging
import re
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from redis.asyncio import Redis

import aiolocks.sync
from aiolocks import (
    FairLock,
    Leadership,
    Lease,
    LeaseState,
    Limits,
    Lock,
    LockEvent,
    LockLostError,
    MultiLock,
    RangeLock,
    Redlock,
    ReentrantLock,
    RWLock,
    Semaphore,
    Session,
    UniqueJob,
)
from aiolocks.testing import EmbeddedServer
from tests.conftest import Connect, OwnServer
from tests.support.proxy import Proxy
from tests.support.servers import Server

pytestmark = pytest.mark.leaves_keys

DAY = 24 * 3600.0
KINDS: dict[str, Callable[[Session], Awaitable[Any]]] = {
    "Lock": lambda session: Lock(session, "a").acquire(),
    "Lock, try_acquire": lambda session: Lock(session, "a").try_acquire(),
    "Lock with a cache": lambda session: Lock(session, "a", cache=5).acquire(),
    "FairLock": lambda session: FairLock(session, "a").acquire(),
    "ReentrantLock": lambda session: ReentrantLock(session, "a").acquire(),
    "MultiLock": lambda session: MultiLock(session, ["a", "b"]).acquire(),
    "Semaphore": lambda session: Semaphore(session, "a", 3).acquire(2),
    "RWLock.reader": lambda session: RWLock(session, "a").reader.acquire(),
    "RWLock.writer": lambda session: RWLock(session, "a").writer.acquire(),
    "RangeLock": lambda session: RangeLock(session, "a").writer(1, 2).acquire(),
    "Limits": lambda session: Limits(session, "a", {"all": 1}).acquire(),
    "Leadership": lambda session: Leadership(session, "a").acquire(),
    "UniqueJob": lambda session: UniqueJob(session, "a").run(),
}


async def held(redis: Redis) -> list[str]:
    return [info.name for info in await Session.of(redis).inspect() if info.holders]


async def taken(acquire: Awaitable[Any]) -> Any:
    """By a task of its own, which is done."""

    async def take() -> Any:
        return await acquire

    return await asyncio.create_task(take())


async def taken_all_by_itself(session: Session, name: str) -> Lease:
    """As `taken`; that task has also called `acquire()`."""

    async def take() -> Lease:
        return await Lock(session, name).acquire()

    return await asyncio.create_task(take())


@pytest.fixture
async def others() -> AsyncIterator[Callable[[Awaitable[Any]], Awaitable[Any]]]:
    """Acquires in a task that works on after that, until the test ends."""
    tasks: list[asyncio.Task[None]] = []

    async def other(acquire: Awaitable[Any]) -> Any:
        got: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        async def work() -> None:
            got.set_result(await acquire)
            await asyncio.sleep(DAY)

        tasks.append(asyncio.create_task(work()))
        return await got

    yield other
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


# -- what is released


@pytest.mark.parametrize("by", ["the task that closes", "a task that is done"])
@pytest.mark.parametrize("kind", KINDS)
async def test_t_c_16_what_no_code_works_under_is_released(
    connect: Connect, redis: Redis, kind: str, by: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "aiolocks.session")
    session = Session(connect())
    acquire = KINDS[kind](session)
    lease = await acquire if by == "the task that closes" else await taken(acquire)
    assert await held(redis)
    await session.aclose()
    assert lease.state is LeaseState.RELEASED
    assert await held(redis) == []
    (line,) = [record for record in caplog.records if "the session was closed" in record.getMessage()]
    assert line.levelno == logging.INFO
    assert line.getMessage() == (
        "the session was closed: leases that no code worked under were released, 1 in all: "
        f"{lease.kind} {lease.name!r}"
    )


async def test_a_lease_of_many_is_released_with_what_is_under_it(connect: Connect, redis: Redis) -> None:
    async with Session(connect()) as session:
        outer = await ReentrantLock(session, "r").acquire()
        inner = await ReentrantLock(session, "r").acquire()
        upgradable = await RWLock(session, "w").upgradable.acquire()
        writer = await upgradable.upgrade()
        permits = [await Semaphore(session, "s", 3).acquire() for _ in range(3)]
    leases: list[Lease] = [outer, inner, upgradable, writer, *permits]
    assert {lease.state for lease in leases} == {LeaseState.RELEASED}
    assert await held(redis) == []


async def test_the_next_waiter_enters_at_once(connect: Connect, redis: Redis) -> None:
    session = Session(connect())
    lease = await Lock(session, "a", ttl=60).acquire()
    waiting = asyncio.create_task(Lock(redis, "a").acquire())
    await asyncio.sleep(0.1)
    await session.aclose()
    await (await asyncio.wait_for(waiting, 3)).release()
    assert lease.state is LeaseState.RELEASED


def wrapping(
    loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Any], **options: Any
) -> asyncio.Task[Any]:
    """A factory of tasks as Sentry's integration sets one; OpenTelemetry's wraps coroutines alike."""

    async def wrapper() -> Any:
        return await work

    return asyncio.Task(wrapper(), loop=loop, **options)


@pytest.fixture(params=["plain", "wrapped"])
async def tasks_are(request: pytest.FixtureRequest) -> AsyncIterator[None]:
    loop: Any = asyncio.get_running_loop()
    before = loop.get_task_factory()
    if request.param == "wrapped":
        loop.set_task_factory(wrapping)
    yield
    loop.set_task_factory(before)


@pytest.mark.usefixtures("tasks_are")
@pytest.mark.parametrize("how", ["create_task", "wait_for", "gather", "timeout"])
async def test_an_acquire_that_is_a_task_of_its_own_is_of_the_one_that_made_it(
    connect: Connect, redis: Redis, others: Any, how: str
) -> None:
    async def get(session: Session, name: str) -> Lease:
        acquire = Lock(session, name).acquire()
        if how == "create_task":
            return await asyncio.create_task(acquire)
        if how == "wait_for":
            return await asyncio.wait_for(acquire, 5)
        if how == "gather":
            return (await asyncio.gather(acquire))[0]
        async with asyncio.timeout(5):
            return await acquire

    async with Session(connect()) as session:
        mine, works = await get(session, "mine"), await others(get(session, "works"))
    assert (mine.state, works.state) == (LeaseState.RELEASED, LeaseState.LOST)
    assert await held(redis) == ["works"]


async def test_many_are_released_together(
    connect: Connect, redis: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    session = Session(connect())
    leases = await asyncio.gather(*(Lock(session, f"a{number:04}").acquire() for number in range(1000)))
    caplog.set_level(logging.DEBUG, "aiolocks.session")
    await session.aclose()
    assert {lease.state for lease in leases} == {LeaseState.RELEASED}
    assert await held(redis) == []
    (line,) = [record.getMessage() for record in caplog.records if record.levelno > logging.DEBUG]
    assert re.search(r"were released, 1000 in all: (lock 'a\d{4}', ){9}lock 'a\d{4}' and 990 more$", line)
    assert sum("released after" in record.getMessage() for record in caplog.records) == 1000


# -- what is not


async def test_t_c_16_a_task_that_still_works_keeps_its_lock(
    connect: Connect, redis: Redis, others: Any, caplog: pytest.LogCaptureFixture
) -> None:
    session = Session(connect())
    lease = await others(Lock(session, "works", ttl=20).acquire())
    done = await taken(Lock(session, "done", ttl=20).acquire())
    await session.aclose()
    assert (lease.state, done.state) == (LeaseState.LOST, LeaseState.RELEASED)
    assert await held(redis) == ["works"]
    (line,) = [record.getMessage() for record in caplog.records]
    told = re.fullmatch(
        r"the session was closed: leases are left to their ttl, .*, 1 in all: lock 'works'; the last of "
        r"these names is free at (.*)",
        line,
    )
    assert told is not None
    left = datetime.fromisoformat(told[1]) - datetime.now(UTC)
    assert timedelta(seconds=15) < left < timedelta(seconds=22)


async def test_a_body_is_cancelled_and_gives_its_lock_back(
    connect: Connect, redis: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    session, inside = Session(connect()), asyncio.Event()

    async def body(name: str, *, stubborn: bool) -> None:
        async with Lock(session, name, ttl=20):
            inside.set()
            try:
                await asyncio.sleep(DAY)
            except asyncio.CancelledError:
                if stubborn:
                    await asyncio.sleep(1.5)
                raise

    bodies = []
    for name, stubborn in (("ends", False), ("stays", True)):
        inside.clear()
        bodies.append(asyncio.create_task(body(name, stubborn=stubborn)))
        await inside.wait()
    await session.aclose()
    assert await held(redis) == ["stays"]
    lines = [record.getMessage() for record in caplog.records]
    assert [re.sub("(?<=ttl), for .*, (?=1)|;.*", "", line) for line in lines] == [
        "the session was closed: bodies were cancelled, and have ended, 1 in all: lock 'ends'",
        "the session was closed: leases are left to their ttl1 in all: lock 'stays'",
    ]
    ended = await asyncio.gather(*bodies, return_exceptions=True)
    assert [type(error) for error in ended] == [LockLostError, LockLostError]


async def test_a_task_inside_that_closes_the_session_keeps_nothing_unseen(
    connect: Connect, redis: Redis
) -> None:
    session = Session(connect())
    with pytest.raises((LockLostError, asyncio.CancelledError)):
        async with Lock(session, "inside"):
            lease = await Lock(session, "beside").acquire()
            await session.aclose()
    await session.aclose()  # the first call was cancelled with the body
    assert lease.state is LeaseState.RELEASED
    assert await held(redis) == []


async def test_a_listener_may_let_go_of_the_next_lease(connect: Connect, redis: Redis) -> None:
    class Listener:
        def on_lost(self, event: LockEvent) -> None:
            lease.detach()

    async with Session(connect(), listeners=[Listener()]) as session:
        lease = await taken(Lock(session, "a").acquire())
        inside = asyncio.create_task(_work_in(Lock(session, "b")))
        await asyncio.sleep(0.1)
    with pytest.raises(LockLostError):
        await inside
    assert lease.state is LeaseState.DETACHED
    assert await held(redis) == ["a"]


async def _work_in(lock: Lock) -> None:
    async with lock:
        await asyncio.sleep(DAY)


async def test_none_are_released(connect: Connect, redis: Redis, caplog: pytest.LogCaptureFixture) -> None:
    session = Session(connect())
    lock = Lock(session, "kept", cache=5)
    for _ in range(3):
        async with lock:
            pass
    assert session.statistics().cached == 1
    lease = await Lock(session, "a", ttl=20).acquire()
    await session.aclose(release="none")
    assert lease.state is LeaseState.LOST
    assert await held(redis) == ["a"]  # what nobody uses is released in any case
    assert "leases are left to their ttl" in caplog.text
    with pytest.raises(ValueError, match="'unused' or 'none'"):
        await session.aclose(release="all")  # type: ignore[arg-type]


async def test_a_lease_that_was_handed_on_is_of_the_task_that_adopted_it(
    connect: Connect, redis: Redis, others: Any
) -> None:
    async with Session(connect()) as session:
        lock = Lock(session, "a")
        handle = (await lock.acquire()).detach()
        lease = await others(lock.adopt(handle))
        mine = await Lock(session, "b").adopt((await Lock(session, "b").acquire()).detach())
    assert (lease.state, mine.state) == (LeaseState.LOST, LeaseState.RELEASED)
    assert await held(redis) == ["a"]


async def test_a_ticket_that_was_not_ended_runs_again(connect: Connect, redis: Redis) -> None:
    async with Session(connect()) as session:
        job = UniqueJob(session, "job")
        ticket = await job.enqueue("until_executed")
        lease = await job.perform(ticket)
    assert lease.state is LeaseState.RELEASED
    async with UniqueJob(redis, "job").perform(ticket) as lease:
        assert lease.remaining() > 0


# -- a server that is silent, and cancellations


@pytest.mark.more  # as in `test_closed_sessions.py`
async def test_a_server_that_is_silent_is_waited_for_within_command_timeout(
    server: Server,
    proxy: Callable[[Server], Awaitable[Proxy]],
    connect: Connect,
    redis: Redis,
    caplog: pytest.LogCaptureFixture,
) -> None:
    through = await proxy(server)
    session = Session(connect(through), command_timeout=0.4)
    lease = await Lock(session, "a", ttl=20).acquire()
    through.blackhole = True
    loop = asyncio.get_running_loop()
    began = loop.time()
    await session.aclose()
    assert 0.3 < loop.time() - began < 3
    assert lease.state is LeaseState.LOST
    assert session.statistics().releases_unconfirmed == 1
    assert "the last of these names is free at" in caplog.text
    assert await held(redis) == ["a"]


@pytest.mark.parametrize("turns", [1, 2, 3, 5, 8, 9, 10, 11, 12, 13, 15, 20, 30])
async def test_cancelled_at_any_point_it_ends_in_the_background(
    connect: Connect, redis: Redis, turns: int
) -> None:
    session = Session(connect())
    lease = await Lock(session, "a").acquire()
    closing = asyncio.create_task(session.aclose())
    for _ in range(turns):
        await asyncio.sleep(0)
    closing.cancel()
    await asyncio.wait({closing})
    await session.aclose()  # waits for the first
    assert lease.state is not LeaseState.HELD
    assert session.statistics().leases_held == 0
    # The first task that closed did not have the lease, and this one, which has it, still ran.
    assert await held(redis) == ["a"]


@pytest.mark.parametrize("turns", [0, 3, 8, 9, 10, 12, 20])
async def test_the_end_of_its_own_task_leaves_nothing_held(
    connect: Connect, redis: Redis, turns: int
) -> None:
    """As the end of `asyncio.run` does it: every task of the loop is cancelled, the one that closes too."""
    session = Session(connect())
    leases = [await taken_all_by_itself(session, str(number)) for number in range(3)]
    closing = asyncio.create_task(session.aclose())
    for _ in range(turns):
        await asyncio.sleep(0)
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()
    await asyncio.wait({closing})
    await session.aclose()  # ends what is left, and is no cancellation of ours
    assert all(lease.state in (LeaseState.RELEASED, LeaseState.LOST) for lease in leases)
    assert await held(redis) == []


async def test_the_order_of_two_that_close(connect: Connect, redis: Redis) -> None:
    session = Session(connect())
    leases = [await Lock(session, "a").acquire(), await taken_all_by_itself(session, "b")]
    await asyncio.gather(session.aclose(), session.aclose())
    assert [lease.state for lease in leases] == [
        LeaseState.LOST,
        LeaseState.RELEASED,
    ]  # tasks of gather close


# -- other sessions


async def test_a_redlock(own_server: OwnServer, connect: Connect) -> None:
    servers = [await own_server() for _ in range(3)]
    sessions = [Session(connect(server)) for server in servers]
    lease = await Redlock(sessions, "a").acquire()
    await sessions[1].aclose()
    assert lease.state is LeaseState.RELEASED
    assert await Redlock([connect(server) for server in servers], "a").locked() is False


async def test_the_sessions_of_an_application(own_server: OwnServer) -> None:
    server = await own_server()
    async with server.client() as redis:
        async with Session.from_url(server.url) as session:
            lease = await taken(Lock(session, "a").acquire())
        assert lease.state is LeaseState.RELEASED
        assert await held(redis) == []


def test_the_end_of_asyncio_run(own: EmbeddedServer) -> None:
    """Of a default session, which nobody closes."""

    async def main() -> list[Any]:
        redis, got = own.client(), asyncio.Event()

        async def works() -> None:
            async with Lock(redis, "body", ttl=60):
                got.set()
                await asyncio.sleep(DAY)

        task = asyncio.create_task(works())
        await got.wait()
        leases = [await Lock(redis, "a", ttl=60).acquire(), await MultiLock(redis, ["b", "c"]).acquire()]
        await redis.aclose()
        return [redis, task, *leases]

    *_, one, other = asyncio.run(main())
    assert {one.state, other.state} == {LeaseState.RELEASED}

    async def look() -> list[str]:
        async with own.client() as redis:
            return await held(redis)

    assert asyncio.run(look()) == []


@pytest.fixture
def own() -> Any:
    with EmbeddedServer() as server:
        yield server


# -- threads


def test_threads(own: EmbeddedServer) -> None:
    leases: dict[str, Any] = {}
    go_on, begun = threading.Event(), threading.Barrier(2)
    locks = aiolocks.sync.Session.from_url(own.url)

    def works() -> None:
        leases["works"] = locks.lock("works", ttl=60).acquire()
        begun.wait(5)
        go_on.wait(5)

    def ends() -> None:
        leases["ends"] = locks.lock("ends", ttl=60).acquire()

    def inside() -> None:
        leases["inside"] = locks.lock("inside", ttl=60).acquire().__enter__()

    for function in (ends, inside):
        thread = threading.Thread(target=function)
        thread.start()
        thread.join()
    worker = threading.Thread(target=works)
    worker.start()
    begun.wait(5)
    leases["mine"] = locks.lock("mine", ttl=60).acquire()
    with pytest.raises(LockLostError), locks.lock("block", ttl=60).acquire() as block:
        locks.close()
    go_on.set()
    worker.join()
    states = {name: lease.state for name, lease in leases.items()}
    assert states == {
        "works": LeaseState.LOST,
        "ends": LeaseState.RELEASED,
        "inside": LeaseState.LOST,
        "mine": LeaseState.RELEASED,
    }
    assert block.state is LeaseState.LOST
