"""Each event that may let a waiter in wakes it: of every kind, in the same session and from another.

The invariant I4 of `tests/FAULTS.md`. All who wait here are patient: they would sleep for seconds, were it
not for their bells.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pytest

from aiolocks import (
    FairLock,
    Lock,
    LockError,
    LockTimeoutError,
    MultiLock,
    RangeLock,
    ReentrantLock,
    RWLock,
    Semaphore,
    Session,
)
from tests.adversity.tools import AT_ONCE, SLACK, ByHand, Several, Start, begin, in_within, waiter
from tests.conftest import Connect
from tests.support.cancel import MODES, CancelAt, Mode
from tests.support.proxy import Proxy
from tests.support.waiting import eventually

GIVES_UP = 0.5
"""Seconds after which a waiter gives up who is to."""


@dataclass
class Scene:
    """The waiters, and the event that lets them in.

    Attributes:
        enter: The waiters that get in at once.
        act: The event that lets them in.
        stay: The waiters that go on waiting.
        clear: Leases and waiters to be done away with then.
    """

    enter: list[asyncio.Task[Any]]
    act: Callable[[], Awaitable[Any]]
    stay: list[asyncio.Task[Any]]
    clear: list[Any]


async def wait_for(session: Session, *pending: Any) -> list[asyncio.Task[Any]]:
    """They all wait, in this order."""
    return [await waiter(session, one) for one in pending]


def releasing(make: Callable[[Session], Any], *others: Callable[[Session], Any]) -> Any:
    """One lets go, and each of the others gets in if it is alone."""

    async def scene(here: Session, there: Session) -> Scene:
        lease = await make(here).acquire()
        waiting = await wait_for(there, *(other(there).acquire() for other in others))
        return Scene(waiting, lease.release, [], [])

    return scene


def mode(name: str) -> Callable[[Session], Any]:
    return lambda session: getattr(RWLock(session, "a"), name)


def part(name: str, lo: float, hi: float) -> Callable[[Session], Any]:
    return lambda session: getattr(RangeLock(session, "a"), name)(lo, hi)


def permits(n: int, *, fair: bool = False) -> Callable[[Session], Any]:
    return lambda session: Several(Semaphore(session, "a", 4, fair=fair), n)


async def last_of_several_readers(here: Session, there: Session) -> Scene:
    readers = [await RWLock(here, "a").reader.acquire() for _ in range(3)]
    (waiting,) = await wait_for(there, RWLock(there, "a").writer.acquire())
    for lease in readers[:2]:
        await lease.release()
    await asyncio.sleep(0.01)
    assert not waiting.done()
    return Scene([waiting], readers[2].release, [], [])


async def last_reader_beside_one_of_another_interval(here: Session, there: Session) -> Scene:
    rest = await RangeLock(here, "a").reader(-10, 0).acquire()
    lease = await RangeLock(here, "a").reader(0, 10).acquire()
    (waiting,) = await wait_for(there, RangeLock(there, "a").writer(0, 1).acquire())
    return Scene([waiting], lease.release, [], [rest])


def writer_gives_up(how: str, *, where: str) -> Any:
    """A reader that waits after it goes on."""

    async def scene(here: Session, there: Session) -> Scene:
        reader = await RWLock(here, "a").reader.acquire()
        session = here if where == "here" else there
        timeout = GIVES_UP if how == "timed out" else None
        (writer,) = await wait_for(session, RWLock(session, "a").writer.acquire(blocking_timeout=timeout))
        lock = RWLock(there, "a")
        waiting = await wait_for(there, lock.reader.acquire(), lock.upgradable.acquire())

        async def give_up() -> None:
            if how == "cancelled":
                writer.cancel()
            with suppress(asyncio.CancelledError, LockTimeoutError):
                await writer

        return Scene(waiting, give_up, [], [reader])

    return scene


async def first_of_two_writers_gives_up(here: Session, there: Session) -> Scene:
    """The other takes over the reservation, for as long as it waits; a reader waits still."""
    reader = await RWLock(here, "a").reader.acquire()
    (first,) = await wait_for(here, RWLock(here, "a").writer.acquire())
    (second,) = await wait_for(there, RWLock(there, "a").writer.acquire())
    first.cancel()
    await asyncio.wait({first})
    assert await RWLock(here, "a").reader.try_acquire() is None
    return Scene([second], reader.release, [], [])


async def shrunk(here: Session, there: Session) -> Scene:
    lease = await RangeLock(here, "a").writer(0, 10).acquire()
    lock = RangeLock(there, "a")
    waiting = await wait_for(
        there, lock.writer(0, 2).acquire(), lock.reader(8, 10).acquire(), lock.reader(3, 5).acquire()
    )
    return Scene(waiting[:2], lambda: lease.shrink(2, 8), waiting[2:], [lease])


async def shrunk_reader(here: Session, there: Session) -> Scene:
    lease = await RangeLock(here, "a").reader(0, 10).acquire()
    waiting = await wait_for(there, RangeLock(there, "a").writer(5, 10).acquire())
    return Scene(waiting, lambda: lease.shrink(0, 5), [], [lease])


def downgraded(make: Callable[[Session, str], Any]) -> Any:
    async def scene(here: Session, there: Session) -> Scene:
        lease = await make(here, "writer").acquire()
        waiting = await wait_for(there, *(make(there, mode).acquire() for mode in ("reader", "upgradable")))
        return Scene(waiting, lease.downgrade, [], [lease])

    return scene


async def upgrade_ends(here: Session, there: Session) -> Scene:
    lease = await RWLock(here, "a").upgradable.acquire()
    upgraded = await lease.upgrade()
    lock = RWLock(there, "a")
    waiting = await wait_for(there, lock.reader.acquire(), lock.upgradable.acquire())
    return Scene(waiting[:1], upgraded.release, waiting[1:], [lease])


def upgrade_gives_up(how: str) -> Any:
    async def scene(here: Session, there: Session) -> Scene:
        reader = await RWLock(there, "a").reader.acquire()
        lease = await RWLock(here, "a").upgradable.acquire()
        timeout = GIVES_UP if how == "timed out" else None
        (upgrading,) = await wait_for(here, lease.upgrade(blocking_timeout=timeout))
        waiting = await wait_for(there, RWLock(there, "a").reader.acquire())

        async def give_up() -> None:
            if how == "cancelled":
                upgrading.cancel()
            with suppress(asyncio.CancelledError, LockTimeoutError):
                await upgrading

        return Scene(waiting, give_up, [], [reader, lease])

    return scene


async def upgraded_behind_a_reader(here: Session, there: Session) -> Scene:
    reader = await RWLock(there, "a").reader.acquire()
    lease = await RWLock(here, "a").upgradable.acquire()
    waiting = await wait_for(here, lease.upgrade())
    return Scene(waiting, reader.release, [], [lease])


def resized(*, fair: bool) -> Any:
    async def scene(here: Session, there: Session) -> Scene:
        lease = await permits(4, fair=fair)(here).acquire()
        wanted = (2, 1) if fair else (4, 2, 1)
        waiting = await wait_for(there, *(permits(n, fair=fair)(there).acquire() for n in wanted))
        return Scene(
            waiting[-2:], lambda: Semaphore(here, "a", 4, fair=fair).resize(7), waiting[:-2], [lease]
        )

    return scene


def too_little_for_the_first(*, gives_up: bool) -> Any:
    """Unfair: the waiter that can have it has it. Fair: as soon as the first has given up."""

    async def scene(here: Session, there: Session) -> Scene:
        held = [
            await permits(3, fair=gives_up)(here).acquire(),
            await permits(1, fair=gives_up)(here).acquire(),
        ]
        lock = Semaphore(there, "a", 4, fair=gives_up)
        many, one = await wait_for(there, lock.acquire(2), lock.acquire())
        if not gives_up:
            return Scene([one], held[1].release, [many], held[:1])

        async def act() -> None:
            await held[1].release()
            await asyncio.sleep(0.01)
            assert not one.done()
            many.cancel()

        return Scene([one], act, [], held[:1])

    return scene


SCENES: dict[str, Any] = {
    "fair lock released": releasing(lambda s: FairLock(s, "a"), *[lambda s: FairLock(s, "a")] * 2),
    "several locks released": releasing(
        lambda s: MultiLock(s, ["{t}a", "{t}b"]),
        lambda s: Lock(s, "{t}a"),
        lambda s: MultiLock(s, ["{t}b", "{t}c"]),
        lambda s: MultiLock(s, ["{t}a", "{t}b"]),
        lambda s: ReentrantLock(s, "{t}b"),
    ),
    "one of several locks released": releasing(
        lambda s: Lock(s, "{t}b"),
        lambda s: MultiLock(s, ["{t}a", "{t}b"]),
        lambda s: ReentrantLock(s, "{t}b"),
    ),
    "reentrant lock released": releasing(
        lambda s: ReentrantLock(s, "a", owner="1"),
        lambda s: ReentrantLock(s, "a", owner="2"),
        lambda s: ReentrantLock(s, "a", owner="3"),
        lambda s: Lock(s, "a"),
    ),
    "permits released": releasing(permits(4), permits(3), permits(1), permits(4), permits(2)),
    "permits released, fair": releasing(*(permits(n, fair=True) for n in (4, 3, 1, 4, 2))),
    "writer released": releasing(
        mode("writer"), mode("reader"), mode("upgradable"), mode("writer"), mode("reader")
    ),
    "upgradable released": releasing(mode("upgradable"), mode("upgradable"), mode("writer")),
    "reader released": releasing(mode("reader"), mode("writer"), mode("reader")),
    "range released": releasing(
        part("writer", 0, 10),
        part("writer", 0, 1),
        part("reader", 2, 9),
        part("upgradable", 1, 3),
        part("writer", 9, 20),
    ),
    "last of several readers": last_of_several_readers,
    "last reader of an interval": last_reader_beside_one_of_another_interval,
    **{
        f"writer {how}, of {where}": writer_gives_up(how, where=where)
        for how in ("cancelled", "timed out")
        for where in ("here", "there")
    },
    "first of two writers cancelled": first_of_two_writers_gives_up,
    "shrunk": shrunk,
    "reader shrunk": shrunk_reader,
    "downgraded": downgraded(lambda session, mode: getattr(RWLock(session, "a"), mode)),
    "range downgraded": downgraded(lambda session, mode: getattr(RangeLock(session, "a"), mode)(0, 1)),
    "upgrade ends": upgrade_ends,
    "upgrade cancelled": upgrade_gives_up("cancelled"),
    "upgrade timed out": upgrade_gives_up("timed out"),
    "upgraded behind a reader": upgraded_behind_a_reader,
    "resized": resized(fair=False),
    "resized, fair": resized(fair=True),
    "fits the second, not the first": too_little_for_the_first(gives_up=False),
    "first gives up, fair": too_little_for_the_first(gives_up=True),
}


@pytest.mark.thin
@pytest.mark.parametrize("same", [True, False], ids=["same session", "another session"])
@pytest.mark.parametrize("scene", SCENES)
async def test_i4_whatever_lets_in_wakes(
    start: Start, scene: str, same: bool, keys: Callable[..., list[str]]
) -> None:
    """Some at the same time, some one after the other, each as soon as the one before has let go."""
    here = start()
    there = here if same else start()
    played: Scene = await SCENES[scene](here, there)
    sessions = {here, there}
    polls = sum(session.statistics().wakeups["poll"] for session in sessions)
    await played.act()
    rest = set(played.enter)
    while rest:
        done, rest = await asyncio.wait(rest, timeout=AT_ONCE, return_when=asyncio.FIRST_COMPLETED)
        assert done, f"{len(rest)} of {len(played.enter)} sleep on"
        await asyncio.sleep(0.002)
        for task in done:
            await task.result().release()
    assert not any(task.done() for task in played.stay)
    if scene not in ("writer timed out, of here", "writer timed out, of there", "upgrade timed out"):
        assert sum(session.statistics().wakeups["poll"] for session in sessions) == polls  # or its last try
    for task in played.stay:
        task.cancel()
        await asyncio.wait({task})
    for lease in played.clear:
        await lease.release()
    await eventually(lambda: keys() == [])


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "scene", ["permits released", "writer released", "shrunk", "downgraded", "resized", "resized, fair"]
)
async def test_i4_cancelled_and_has_woken_somebody_here(start: Start, scene: str, mode: Mode) -> None:
    """The server tells a session nothing of bells that this session rings: its answer does, whoever left."""
    here = start()
    await Semaphore(here, "other", 1).resize(
        2
    )  # a script that the server does not know would not be sent again
    async with RangeLock(here, "other").writer(0, 2) as lease:
        await lease.shrink(0, 1)
    played: Scene = await SCENES[scene](here, here)
    await cancelled_at_once(played.act(), mode)
    await enter_without_a_poll(here, played.enter)
    for task in played.stay:
        task.cancel()
    for lease in played.clear:
        await lease.release()


@pytest.mark.parametrize("mode", MODES)
async def test_i4_cancelled_try_that_has_woken_somebody_here(
    start: Start, by_hand: ByHand, mode: Mode
) -> None:
    """It was granted, and there was more than it wanted."""
    here = start()
    lock = Semaphore(here, "a", 3)
    (await Semaphore(start(), "a", 3).acquire(3)).detach()
    waiting = await waiter(here, lock.acquire(2))
    by_hand.redis.delete("aiolocks:semaphore:{a}", "aiolocks:semaphore.leases:{a}")  # nobody is told
    await cancelled_at_once(lock.try_acquire(), mode)
    await enter_without_a_poll(here, [waiting])


async def cancelled_at_once(doing: Any, mode: Mode) -> None:
    driver = CancelAt(doing, 1, mode)

    async def drive() -> None:
        await driver

    task = asyncio.create_task(drive())
    await asyncio.wait({task})
    assert driver.fired
    assert task.cancelled()


async def enter_without_a_poll(session: Session, waiting: list[asyncio.Task[Any]]) -> None:
    """And without the heartbeat, which finds out by itself what it was not told."""
    polls, rest = session.statistics().wakeups["poll"], set(waiting)
    while rest:
        done, rest = await asyncio.wait(rest, timeout=5, return_when=asyncio.FIRST_COMPLETED)
        assert done
        for task in done:
            await task.result().release()
    assert session.statistics().wakeups["poll"] == polls


KINDS: dict[str, Callable[[Session, float], Any]] = {
    "fair lock": lambda session, ttl: FairLock(session, "a", ttl=ttl),
    "several locks": lambda session, ttl: MultiLock(session, ["{t}a", "{t}b"], ttl=ttl),
    "reentrant lock": lambda session, ttl: ReentrantLock(session, "a", owner=f"{id(session)}", ttl=ttl),
    "semaphore": lambda session, ttl: Several(Semaphore(session, "a", 2, ttl=ttl), 2),
    "fair semaphore": lambda session, ttl: Several(Semaphore(session, "a", 2, fair=True, ttl=ttl), 2),
    "writer": lambda session, ttl: RWLock(session, "a", ttl=ttl).writer,
    "upgradable": lambda session, ttl: RWLock(session, "a", ttl=ttl).upgradable,
    "range": lambda session, ttl: RangeLock(session, "a", ttl=ttl).writer(0, 1),
}


@pytest.mark.parametrize("kind", KINDS)
async def test_i4_expiry_is_found_by_who_waits(start: Start, kind: str) -> None:
    """By the first at the end of the lease, though nobody tells it, and then by the next at once."""
    make, ttl = KINDS[kind], 1.2
    sessions = [start() for _ in range(3)]
    lease = await make(sessions[0], 30).acquire()
    for session in sessions[1:]:
        assert await make(session, 30).try_acquire() is None  # it is connected
    began = time.monotonic()
    await lease.extend(ttl)
    lease.detach()
    waiting = [await waiter(session, make(session, 30).acquire()) for session in sessions[1:]]
    while waiting:
        left = began + ttl + SLACK - time.monotonic() if len(waiting) == 2 else AT_ONCE
        done, _ = await asyncio.wait(waiting, timeout=left, return_when=asyncio.FIRST_COMPLETED)
        assert len(done) == 1
        for task in done:
            waiting.remove(task)
            await task.result().release()


@pytest.mark.parametrize("kind", KINDS)
async def test_i4_lost_by_our_clock_and_given_back(start: Start, kind: str) -> None:
    """The server has it still; who waits here and elsewhere sleeps, until it is given back."""
    here, elsewhere = start(), start()
    lease = await KINDS[kind](here, 30).acquire()
    waiting = (
        [await waiter(session, KINDS[kind](session, 30).acquire()) for session in (elsewhere, here)]
        if kind != "reentrant lock"
        else [await waiter(elsewhere, KINDS[kind](elsewhere, 30).acquire())]
    )
    lease._possession.lose("by our clock")
    await asyncio.sleep(0.02)
    with pytest.raises(LockError):
        await lease.release()
    while waiting:
        done, _ = await asyncio.wait(waiting, timeout=AT_ONCE, return_when=asyncio.FIRST_COMPLETED)
        assert done
        for task in done:
            waiting.remove(task)
            await task.result().release()


@pytest.mark.long
@pytest.mark.parametrize("way", ["tracking"])
async def test_i4_reservation_taken_over_lasts_as_long_as_its_owner_sleeps(start: Start) -> None:
    """Longer than a reservation lasts behind a dead one."""
    here, elsewhere, third = start(), start(), start()
    reader = await RWLock(here, "a").reader.acquire()
    first = await waiter(elsewhere, RWLock(elsewhere, "a").writer.acquire())
    second = await waiter(third, RWLock(third, "a").writer.acquire())
    first.cancel()
    await asyncio.sleep(2.3)
    assert await RWLock(here, "a").reader.try_acquire() is None
    await reader.release()
    await (await in_within(AT_ONCE, second)).release()


async def test_i4_permit_let_go_of_while_the_head_here_gets_another(start: Start, through: Proxy) -> None:
    """The one who waits here gets that of another process, and does not know yet: what is let go of here
    meanwhile is for who waits elsewhere."""
    here, elsewhere, third = start(to=through), start(), start()
    async with Semaphore(elsewhere, "a", 2):
        pass  # the server knows the scripts
    mine = await Semaphore(here, "a", 2).acquire()
    other = await Semaphore(elsewhere, "a", 2).acquire()
    waiting = await waiter(third, Semaphore(third, "a", 2).acquire())
    through.delay_replies = 0.05
    head = begin(Semaphore(here, "a", 2).acquire())
    await asyncio.sleep(0)
    await eventually(lambda: through.count() > 0)
    await other.release()  # which wakes the third; the head here may be quicker or not
    await asyncio.sleep(0.02)
    await mine.release()
    leases = [await in_within(AT_ONCE, task) for task in (head, waiting)]
    through.delay_replies = 0
    for lease in leases:
        await lease.release()


@pytest.mark.parametrize("n", [1, 2])
async def test_i4_head_granted_on_the_way_and_release_behind_it(start: Start, through: Proxy, n: int) -> None:
    """As above, for certain: it is granted before the third has asked, and the release comes after both."""
    here, elsewhere, third = start(to=through), start(), start()
    async with Semaphore(elsewhere, "a", 2):
        pass  # the server knows the scripts
    lock = Semaphore(here, "a", 2)
    mine = await lock.acquire()
    other = await Semaphore(elsewhere, "a", 2).acquire()
    waiting = await waiter(third, Semaphore(third, "a", 2).acquire(n))
    through.delay_replies = 0.06
    releasing = begin(other.release())
    head = begin(lock.acquire())
    await releasing
    await asyncio.sleep(0.02)
    await mine.release()
    lease = await in_within(AT_ONCE, head)
    if n == 2:
        await lease.release()
    lease2 = await in_within(AT_ONCE, waiting)
    through.delay_replies = 0
    await lease.release()
    await lease2.release()


@pytest.mark.parametrize("knows", [False, True], ids=["none", "how to acquire"])
@pytest.mark.parametrize("kind", KINDS)
async def test_i4_a_server_that_has_forgotten_the_scripts(
    start: Start, connect: Connect, kind: str, knows: bool
) -> None:
    """A script that was sent by its digest comes again in full, after later requests: nobody is forgotten."""
    here, elsewhere = start(), start()
    make, admin = KINDS[kind], connect()
    for there in (here, elsewhere):
        lease = await make(here, 30).acquire()
        if kind == "reentrant lock":
            pending: list[Any] = [Lock(there, "a").acquire()]
        else:
            pending = [make(there, 30).acquire() for _ in range(2)]
        waiting = [await waiter(there, one) for one in pending]
        for task in waiting:
            await admin.script_flush()
            if knows:
                assert await make(start(), 30).try_acquire() is None
            await lease.release()
            lease = await in_within(AT_ONCE, task)
        await lease.release()
