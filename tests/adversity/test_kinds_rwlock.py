"""The reader-writer lock: neither side starves, and the leases of the dead end at their own times.

T-P-4 and T-P-5 of `tests/FAULTS.md`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from itertools import count
from typing import Any

import pytest
from redis.asyncio import Redis

from aiolocks import Backoff, DeadlockError, LeaseState, LockTimeoutError, RangeLock, RWLock, Session
from tests.adversity.tools import (
    AT_ONCE,
    SLACK,
    UNTOLD,
    Start,
    begin,
    in_within,
    turns_of_the_loop,
    waiter,
    wakeup,
)
from tests.conftest import Connect
from tests.support.cancel import MODES, CancelAt, Mode
from tests.support.history import Hold, exclusion, fencing, phases, reservations
from tests.support.processes import Workers, tell
from tests.support.servers import Server
from tests.support.waiting import eventually

log = logging.getLogger(__name__)
TTL = 1.0
RESERVATION = 2.0
"""Seconds that the reservation of a waiting writer outlives the writer."""


# -- nobody starves ------------------------------------------------------------------------------------------


async def read_or_write(url: str, way: str, mode: str, tasks: int, seconds: float, pause: float) -> None:
    """In a process of its own: several tasks that never pause, or hardly."""
    async with Redis.from_url(url) as redis, Session(redis, wakeup=wakeup(way)) as session:
        await loop(session, mode, tasks, seconds, pause, lambda: tell("inside"))


async def loop(
    session: Session, mode: str, tasks: int, seconds: float, pause: float, first: Callable[[], object]
) -> None:
    """`tasks` tasks take it again and again, each hold of `seconds`; until they are cancelled."""
    lock = getattr(RWLock(session, "a"), mode)

    async def one(number: int) -> None:
        await asyncio.sleep(number * seconds / tasks)  # so that they overlap
        told = False
        while True:
            async with lock:
                if not told and number == 0:
                    first()
                    told = True
                await asyncio.sleep(seconds)
            if pause:
                await asyncio.sleep(pause)

    await asyncio.gather(*(one(number) for number in range(tasks)))


@asynccontextmanager
async def crowd(
    server: Server, workers: Workers, session: Session, way: str, mode: str, *, seconds: float
) -> AsyncIterator[None]:
    """Several tasks here, and as many in each of two other processes."""
    settings = {"mode": mode, "tasks": 3, "seconds": seconds, "pause": 0.0}
    crew = await workers.start_many(2, read_or_write, url=server.url, way=way, **settings)
    for worker in crew:
        await worker.told("inside")
    here = begin(loop(session, **settings, first=lambda: None))
    try:
        yield
    finally:
        for worker in crew:
            worker.kill()
        here.cancel()
        await asyncio.wait({here})


async def enter(mode: str, session: Session, times: int) -> None:
    """A task that pauses gets in, `times` times; how soon is a matter for the benchmarks."""
    lock = getattr(RWLock(session, "a"), mode)
    for _ in range(times):
        async with lock.acquire(blocking_timeout=10):
            pass
        await asyncio.sleep(0.01)


@pytest.mark.leaves_keys
@pytest.mark.parametrize("way", ["tracking"])
async def test_t_p_5_writer_among_readers_that_never_pause(
    server: Server, workers: Workers, start: Start, way: str
) -> None:
    """It waits for those inside, and for nobody that comes later."""
    here, elsewhere = start(backoff=Backoff()), start(backoff=Backoff())
    async with crowd(server, workers, here, way, "reader", seconds=0.05):
        await enter("writer", elsewhere, 15)
        await enter("writer", here, 5)


@pytest.mark.more  # as the phases at random
@pytest.mark.leaves_keys
@pytest.mark.parametrize("way", ["tracking"])
async def test_t_p_5_reader_and_upgradable_among_writers_that_never_pause(
    server: Server, workers: Workers, start: Start, way: str
) -> None:
    """A reader waits for the writer inside, an upgradable for not much more, though nine want to write."""
    here, elsewhere = start(backoff=Backoff()), start(backoff=Backoff())
    async with crowd(server, workers, here, way, "writer", seconds=0.02):
        for mode in ("reader", "upgradable"):
            await enter(mode, elsewhere, 8)
            await enter(mode, here, 4)


@pytest.mark.parametrize("together", [True, False], ids=["one session", "a session each"])
async def test_t_p_5_order_of_the_phases(start: Start, together: bool) -> None:
    """Behind a writer wait R1, W1, R2, W2, R3: all readers enter, then W1, then who came to read, then W2."""
    own = start()
    lock = RWLock(own, "a")
    entered: list[str] = []
    leave = {name: asyncio.Event() for name in ("R1", "R2", "R3", "R4", "W1", "W2")}

    async def one(name: str, session: Session) -> None:
        lock = RWLock(session, "a")
        async with lock.reader if name[0] == "R" else lock.writer:
            entered.append(name)
            await leave[name].wait()

    async def come(name: str) -> asyncio.Task[Any]:
        session = own if together else start()
        return await waiter(session, one(name, session))

    async def inside(number: int) -> list[str]:
        await eventually(lambda: len(entered) >= number, within=AT_ONCE)
        await asyncio.sleep(0.02)
        assert len(entered) == number, entered
        return entered

    lease = await lock.writer.acquire()
    tasks = [await come(name) for name in ("R1", "W1", "R2", "W2", "R3")]
    await lease.release()
    assert sorted(await inside(3)) == ["R1", "R2", "R3"]
    tasks.append(await come("R4"))  # W1 has reserved
    leave["R1"].set()
    leave["R3"].set()
    await inside(3)
    leave["R2"].set()
    assert (await inside(4))[3:] == ["W1"]
    leave["W1"].set()
    assert (await inside(5))[4:] == ["R4"]
    leave["R4"].set()
    assert (await inside(6))[5:] == ["W2"]
    leave["W2"].set()
    await asyncio.gather(*tasks)


class Queued:
    """A listener that notes when its session, of one task, last began to wait."""

    at: float | None = None

    def on_waiting(self, _: Any) -> None:
        self.at = time.monotonic()


async def test_t_p_5_phases_at_random(connect: Connect, way: str) -> None:
    """Many of both, each a session: the history obeys reservations and phases."""
    holds: list[Hold] = []
    end = time.monotonic() + 1.0
    now = time.monotonic

    def enough() -> bool:
        """However slow this machine is."""
        waited = [hold.mode for hold in holds if hold.queued is not None]
        return len(holds) > 100 and min(waited.count("reader"), waited.count("writer")) > 10

    async def one(who: str, mode: Any) -> None:
        queued = Queued()
        async with Session(connect(), wakeup=wakeup(way), listeners=[queued]) as session:
            lock = getattr(RWLock(session, "a"), mode)
            while now() < end or not enough():
                invoked, queued.at = now(), None
                lease = await lock.acquire(blocking_timeout=10)
                granted = now()
                await asyncio.sleep(0.003)
                released = now()
                await lease.release()
                holds.append(
                    Hold(
                        who=who,
                        mode=mode,
                        invoked=invoked,
                        queued=queued.at,
                        granted=granted,
                        released=released,
                        confirmed=now(),
                        fencing_token=lease.fencing_token,
                    )
                )

    async with asyncio.TaskGroup() as group:
        for number in range(3):
            for mode in ("reader", "reader", "writer", "upgradable"):
                group.create_task(one(f"{number}.{mode}", mode))
    assert exclusion(holds) == fencing(holds) == reservations(holds) == phases(holds) == []


# -- who dies ------------------------------------------------------------------------------------------------


async def hold_for_ever(url: str, name: str) -> None:
    """In a process of its own: read."""
    async with Redis.from_url(url) as redis:
        await RWLock(redis, name, ttl=TTL).reader.acquire()
        tell("inside")
        await asyncio.sleep(60)


@pytest.mark.leaves_keys
@pytest.mark.parametrize("way", ["tracking"])
async def test_t_p_4_dead_reader_beside_one_that_renews(
    server: Server, workers: Workers, start: Start
) -> None:
    """The writer gets in at the dead one's own deadline, but not while the living one is inside."""
    here = start(backoff=Backoff())

    async def one(name: str, stays: float) -> None:
        lock = RWLock(here, name, ttl=0.8)
        worker = await workers.start(hold_for_ever, url=server.url, name=name)
        await worker.told("inside")
        living = await lock.reader.acquire()
        waiting = begin(lock.writer.acquire())
        await asyncio.sleep(0.2)
        worker.kill()
        killed = time.monotonic()
        await asyncio.sleep(stays)
        assert not waiting.done()
        assert living.state is LeaseState.HELD
        left = time.monotonic()
        await living.release()
        lease = await in_within(TTL, waiting)
        if stays < TTL:
            assert 0.1 < time.monotonic() - killed <= TTL + 0.1
        else:
            assert time.monotonic() - left <= UNTOLD + SLACK
        await lease.release()

    await asyncio.gather(one("leaves first", TTL / 2), one("leaves last", TTL + 0.2))


async def wait_to_write(url: str, way: str, name: str) -> None:
    """In a process of its own: wait to write."""
    async with Redis.from_url(url) as redis, Session(redis, wakeup=wakeup(way)) as session:
        await waiter(session, RWLock(session, name).writer.acquire())
        tell("asleep")
        await asyncio.sleep(60)


@pytest.mark.leaves_keys
@pytest.mark.parametrize("way", ["tracking"])
async def test_t_p_5_dead_writer_that_waited_frees_the_readers(
    server: Server, workers: Workers, start: Start, way: str
) -> None:
    """Killed, and stopped: within the lease of its reservation."""
    here = start(backoff=Backoff())

    async def one(name: str) -> None:
        lock = RWLock(here, name)
        async with lock.reader:
            worker = await workers.start(wait_to_write, url=server.url, way=way, name=name)
            await worker.told("asleep")
            waiting = [begin(lock.reader.acquire()), begin(lock.upgradable.acquire())]
            getattr(worker, name)()
            dead = time.monotonic()
            for task in waiting:
                await in_within(dead + RESERVATION + SLACK - time.monotonic(), task)
            assert time.monotonic() - dead <= RESERVATION + 0.1
            for task in waiting:
                await task.result().release()

    await asyncio.gather(one("kill"), one("stop"))


async def upgrade_and_stay(url: str, way: str, name: str) -> None:
    """In a process of its own: upgrade, at once or behind who reads."""
    async with Redis.from_url(url) as redis, Session(redis, wakeup=wakeup(way)) as session:
        lease = await RWLock(session, name, ttl=TTL).upgradable.acquire()
        upgrading = begin(lease.upgrade())
        await eventually(lambda: upgrading.done() or session.statistics().waiters == 1)
        await asyncio.sleep(0.05)
        tell("inside" if upgrading.done() else "waiting")
        await asyncio.sleep(60)


@pytest.mark.more  # as a writer that dies while it waits
@pytest.mark.leaves_keys
@pytest.mark.parametrize("way", ["tracking"])
async def test_t_p_5_dies_in_the_midst_of_an_upgrade(
    server: Server, workers: Workers, start: Start, way: str
) -> None:
    """While it waits for it, and while it has it."""
    here = start(backoff=Backoff())

    async def waits() -> None:
        lock = RWLock(here, "waits")
        async with lock.reader:
            worker = await workers.start(upgrade_and_stay, url=server.url, way=way, name="waits")
            await worker.told("waiting")
            reader, upgradable = begin(lock.reader.acquire()), begin(lock.upgradable.acquire())
            worker.kill()
            dead = time.monotonic()
            await (await in_within(RESERVATION + SLACK, reader)).release()
            await (await in_within(dead + RESERVATION + SLACK - time.monotonic(), upgradable)).release()
            assert time.monotonic() - dead <= RESERVATION + 0.1

    async def has_it() -> None:
        lock = RWLock(here, "has it")
        worker = await workers.start(upgrade_and_stay, url=server.url, way=way, name="has it")
        await worker.told("inside")
        reader, writer = begin(lock.reader.acquire()), begin(lock.writer.acquire())
        await asyncio.sleep(0.1)
        worker.kill()
        dead = time.monotonic()
        await (await in_within(TTL + SLACK, reader)).release()
        await (await in_within(dead + TTL + SLACK - time.monotonic(), writer)).release()
        assert time.monotonic() - dead <= TTL + 0.1

    await asyncio.gather(waits(), has_it())


# -- upgrades ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "wrong", "capable"),
    [
        ("reader", "upgrade", "an upgradable"),
        ("reader", "downgrade", "a writer"),
        ("upgradable", "downgrade", "a writer"),
        ("writer", "upgrade", "an upgradable"),
    ],
)
async def test_only_those_who_can_have_the_method(start: Start, mode: str, wrong: str, capable: str) -> None:
    async with getattr(RWLock(start(), "a"), mode) as lease:
        assert not hasattr(lease, wrong)
        with pytest.raises(AttributeError, match=f"no attribute '{wrong}': only a lease of {capable} has it"):
            getattr(lease, wrong)
        with pytest.raises(AttributeError, match=r"no attribute 'shrink'$"):
            lease.shrink  # noqa: B018


async def test_an_upgrade_has_the_time_to_wait_by_its_name(start: Start) -> None:
    client = start()
    async with RWLock(client, "a").upgradable as upgradable, RangeLock(client, "a").upgradable(0, 9) as part:
        meant = r"^upgrade\(\) takes no positional argument .* did you mean upgrade\(blocking_timeout=5\)\?$"
        with pytest.raises(TypeError, match=meant):
            upgradable.upgrade(5)
        with pytest.raises(TypeError, match=meant):
            part.upgrade(0, 1, 5)


async def test_t_p_5_upgrade_passes_a_writer_that_waits(start: Start) -> None:
    here, elsewhere = start(), start()
    lock = RWLock(here, "a")
    async with lock.upgradable as lease:
        reading = await RWLock(elsewhere, "a").reader.acquire()
        writer = await waiter(elsewhere, RWLock(elsewhere, "a").writer.acquire())
        before = lease.fencing_token
        upgrading = await waiter(here, lease.upgrade())
        reader = await waiter(elsewhere, RWLock(elsewhere, "a").reader.acquire())
        await reading.release()
        async with await in_within(AT_ONCE, upgrading) as upgraded:
            assert upgraded.fencing_token == lease.fencing_token > before
            await asyncio.sleep(0.02)
            assert not reader.done()
        # The readers that waited for it go before the writer that waits.
        await (await in_within(AT_ONCE, reader)).release()
        await asyncio.sleep(0.02)
        assert not writer.done()
    lease = await in_within(AT_ONCE, writer)
    assert lease.fencing_token > upgraded.fencing_token
    await lease.release()


async def test_t_p_5_two_upgrades(start: Start) -> None:
    """Of two who want to, one waits before; of one lease by two tasks, one after the other."""
    here, elsewhere = start(), start()
    order: list[str] = []

    async def upgrade_twice(session: Session, name: str) -> None:
        async with RWLock(session, "a").upgradable as lease:
            for _ in range(2):
                async with lease.upgrade():
                    order.append(name)
                    await asyncio.sleep(0.005)

    async with asyncio.timeout(5):
        await asyncio.gather(
            *(upgrade_twice(session, name) for session, name in [(here, "A"), (elsewhere, "B")] * 3)
        )
    assert sorted(order) == ["A"] * 6 + ["B"] * 6
    assert all(order[n] == order[n + 1] for n in range(0, 12, 2))

    inside = 0

    async def once(lease: Any) -> None:
        nonlocal inside
        async with lease.upgrade():
            inside += 1
            assert inside == 1
            await asyncio.sleep(0.005)
            inside -= 1

    async with RWLock(here, "a").upgradable as lease, asyncio.timeout(5):
        await asyncio.gather(*(once(lease) for _ in range(4)))


@pytest.mark.parametrize("same", [True, False], ids=["here", "elsewhere"])
@pytest.mark.parametrize("how", ["timed out", "tried", "cancelled"])
async def test_t_p_5_upgrade_given_up(start: Start, how: str, same: bool) -> None:
    """The upgradable is held as before, and who waits to read gets in at once."""
    here = start()
    elsewhere = here if same else start()
    lock, other = RWLock(here, "a"), RWLock(elsewhere, "a")
    async with other.reader, lock.upgradable as lease:
        before = lease.fencing_token
        if how == "tried":
            with pytest.raises(LockTimeoutError):
                await lease.upgrade(blocking_timeout=0)
            async with other.reader.acquire(blocking_timeout=AT_ONCE):
                pass
        else:
            upgrading = await waiter(
                here, lease.upgrade(blocking_timeout=0.15 if how == "timed out" else None)
            )
            waiting = await waiter(elsewhere, other.reader.acquire())
            if how == "cancelled":
                upgrading.cancel()
            with suppress(asyncio.CancelledError, LockTimeoutError):
                await upgrading
            await (await in_within(AT_ONCE, waiting)).release()
        assert lease.state is LeaseState.HELD
        assert await lease.owned()
        assert lease.fencing_token == before
        assert await other.upgradable.try_acquire() is None
        assert await other.writer.try_acquire() is None
        lease.ensure_held()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("way", ["tracking"])
async def test_t_p_5_cancelled_at_every_await_of_an_upgrade(
    start: Start, mode: Mode, keys: Callable[..., list[str]]
) -> None:
    here, elsewhere = start(), start()
    lock, other = RWLock(here, "a"), RWLock(elsewhere, "a")
    where = []
    for k in count(1):
        async with lock.upgradable as lease:
            reading = await other.reader.acquire()

            async def use(lease: Any = lease) -> None:
                async with lease.upgrade():
                    await asyncio.sleep(0)

            driver = CancelAt(use(), k, mode)
            upgrading = begin(drive(driver))
            await turns_of_the_loop(5)
            waiting = begin(read(other))
            await asyncio.sleep(0.01)
            await reading.release()
            done, _ = await asyncio.wait({upgrading, waiting}, timeout=AT_ONCE)
            assert done == {upgrading, waiting}, driver.where
            assert await lease.owned()
            where.append(driver.where)
        await eventually(lambda: not keys())
        if not driver.fired:
            break
    assert k > 3, where


async def read(lock: RWLock) -> None:
    async with lock.reader:
        pass


async def drive(driver: CancelAt[Any]) -> None:
    await driver


@pytest.mark.parametrize("mode", ["reader", "upgradable"])
async def test_inside_a_reader_that_keeps_a_writer_out_its_own_task_is_told_at_once(
    start: Start, mode: str
) -> None:
    """But not where the writer waits for an upgradable as well: then a reader enters."""
    lock, other = RWLock(start(), "a"), RWLock(start(), "a")
    async with lock.reader:
        writing = begin(other.writer.acquire())
        await eventually(other.reader.locked)
        with pytest.raises(DeadlockError, match=r"this task itself holds RWLock\.reader 'a'"):
            async with asyncio.timeout(AT_ONCE):
                await getattr(lock, mode).acquire()
        writing.cancel()
        await asyncio.wait({writing})
    async with other.upgradable:
        writing = begin(other.writer.acquire())
        await asyncio.sleep(0.05)
        async with lock.reader:
            if mode == "reader":
                async with asyncio.timeout(AT_ONCE), lock.reader:
                    pass
            else:
                with pytest.raises(LockTimeoutError):
                    await lock.upgradable.acquire(blocking_timeout=0.1)
    await (await asyncio.wait_for(writing, AT_ONCE)).release()


# -- downgrades ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("same", [True, False], ids=["here", "elsewhere"])
async def test_downgrade_wakes_readers_and_no_writer(start: Start, same: bool) -> None:
    here = start()
    elsewhere = here if same else start()
    lock, other = RWLock(here, "a"), RWLock(elsewhere, "a")
    lease = await lock.writer.acquire()
    writer = await waiter(elsewhere, other.writer.acquire())
    readers = [await waiter(elsewhere, other.reader.acquire()) for _ in range(3)]
    upgradable = await waiter(elsewhere, other.upgradable.acquire())
    await lease.downgrade()
    for task in readers:
        await (await in_within(AT_ONCE, task)).release()
    await asyncio.sleep(0.02)
    assert not writer.done()
    assert not upgradable.done()  # it has asked after the writer
    assert await other.reader.try_acquire() is None  # it has reserved
    lease.ensure_held()
    await lease.release()
    await (await in_within(AT_ONCE, writer)).release()
    await (await in_within(AT_ONCE, upgradable)).release()


async def test_downgrade_leaves_no_gap_for_a_writer(start: Start) -> None:
    """A writer that tries without end never gets in between."""
    here, elsewhere = start(), start()
    lock, other = RWLock(here, "a"), RWLock(elsewhere, "a")
    lease = await lock.writer.acquire()
    over = False
    between = []

    async def try_and_try() -> None:
        while not over:
            if got := await other.writer.try_acquire():
                between.append(over)
                await got.release()

    trying = begin(try_and_try())
    for _ in range(20):
        await asyncio.sleep(0.001)
        await lease.downgrade()
        await asyncio.sleep(0.001)
        assert not between
        over = True
        await trying
        await lease.release()
        between.clear()
        lease = await lock.writer.acquire()
        over = False
        trying = begin(try_and_try())
    over = True
    await trying
    await lease.release()
