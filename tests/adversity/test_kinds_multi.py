"""Several locks at once: all or none, whatever else is locked meanwhile.

T-P-7 and T-P-8 of `tests/FAULTS.md`.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import secrets
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from aiolocks import (
    BackendError,
    Backoff,
    LeaseState,
    Lock,
    LockLostError,
    LockNotOwnedError,
    LockTimeoutError,
    MultiLock,
    ReentrantLock,
    Session,
)
from aiolocks.kinds import multilock as multi
from aiolocks.transport.keys import key
from tests.adversity.tools import AT_ONCE, ByHand, Start, begin, in_within, turns_of_the_loop, waiter, wakeup
from tests.support.cancel import MODES, CancelAt, Mode
from tests.support.history import Hold, exclusion, fencing
from tests.support.processes import Workers, tell
from tests.support.proxy import Proxy
from tests.support.servers import Server
from tests.support.waiting import eventually

NAMES = [f"{{t}}{number}" for number in range(8)]
SETS = 500


async def take_sets(url: str, way: str, history: str, tasks: int, sets: int, seed: int) -> None:
    """In a process of its own: random sets and single names, each hold noted once for each name."""
    chance = random.Random(seed)
    left = sets
    async with Redis.from_url(url) as redis, Session(redis, wakeup=wakeup(way)) as session:
        with Path(history).open("w") as file:  # noqa: ASYNC230 - no more than a moment

            async def one(number: int) -> None:
                nonlocal left
                while left > 0:
                    many = chance.random() < 0.75
                    left -= many
                    names = chance.sample(NAMES, chance.randrange(2, 5)) if many else [chance.choice(NAMES)]
                    lock: Any = MultiLock(session, names) if many else Lock(session, names[0])
                    invoked = time.monotonic()
                    match chance.randrange(10):
                        case 0:
                            lease = await lock.try_acquire()
                        case 1:
                            try:
                                async with asyncio.timeout(chance.uniform(0, 0.02)):
                                    lease = await lock.acquire()
                            except TimeoutError:
                                lease = None
                        case _:
                            lease = await lock.acquire()
                    if lease is None:
                        continue
                    hold = Hold(
                        who=f"{os.getpid()}.{number}",
                        invoked=invoked,
                        granted=time.monotonic(),
                        fencing_token=lease.fencing_token,
                    )
                    await asyncio.sleep(chance.choice([0, 0.001]))
                    released = time.monotonic()
                    deadline = released + lease.remaining()
                    await lease.release()
                    hold = replace(hold, released=released, confirmed=time.monotonic(), deadline=deadline)
                    file.writelines(json.dumps(asdict(replace(hold, name=name))) + "\n" for name in names)

            await asyncio.gather(*(one(number) for number in range(tasks)))
        tell("done", ways=dict(session.statistics().wakeups))


def histories(path: Path) -> list[str]:
    return [file.read_text() for file in path.iterdir()]


@pytest.mark.parametrize("way", ["tracking"])
async def test_t_p_8_hundreds_of_overlapping_sets(
    server: Server, workers: Workers, tmp_path: Path, way: str, keys: Callable[..., list[str]]
) -> None:
    """Sixteen tasks in two processes, with single locks between: all of them end, and none overlap."""
    crew = [
        await workers.start(
            take_sets, url=server.url, way=way, history=str(tmp_path / f"{seed}"), tasks=8, sets=SETS // 2,
            seed=seed,
        )
        for seed in range(2)
    ]  # fmt: skip
    for worker in crew:
        await worker.told("done", within=30)
    lines = [line for file in histories(tmp_path) for line in file.splitlines()]
    holds = [Hold(**json.loads(line)) for line in lines]
    assert len(holds) > 1.5 * SETS
    assert exclusion(holds) == []
    assert fencing(holds) == []
    await eventually(lambda: keys() == [])


@pytest.mark.parametrize("same", [True, False], ids=["one session", "two sessions"])
async def test_t_p_8_a_b_against_b_a(start: Start, same: bool) -> None:
    """And against each alone; all are patient, so that a deadlock or a lost wakeup would show."""
    here = start()
    elsewhere = here if same else start()
    inside: dict[str, str] = {}

    async def one(lock: Any, names: str) -> None:
        for _ in range(60):
            async with lock:
                for name in names:
                    assert name not in inside
                    inside[name] = names
                await asyncio.sleep(0)
                for name in names:
                    del inside[name]

    async with asyncio.timeout(30):
        await asyncio.gather(
            one(MultiLock(here, ["{t}A", "{t}B"]), "AB"),
            one(MultiLock(elsewhere, ["{t}B", "{t}A"]), "BA"),
            one(MultiLock(elsewhere, ["{t}B", "{t}C"]), "BC"),
            one(Lock(here, "{t}A"), "A"),
            one(Lock(elsewhere, "{t}B"), "B"),
        )


@pytest.mark.parametrize("before", [True, False], ids=["before", "behind"])
async def test_i4_quiet_hand_over_that_somebody_else_spoils(
    start: Start, by_hand: ByHand, before: bool
) -> None:
    """Between the release and the try behind it one name is taken: the other is for who waits for that."""
    here, elsewhere = start(), start()
    lease = await MultiLock(here, NAMES[:2]).acquire()
    waiting: list[asyncio.Task[Any]] = []

    async def come(session: Session, lock: Any) -> None:
        waiting.append(await waiter(session, lock.acquire()))

    if before:
        await come(elsewhere, Lock(elsewhere, NAMES[1]))
    await come(here, MultiLock(here, NAMES[:2]))
    if not before:
        await come(elsewhere, Lock(elsewhere, NAMES[1]))
    send, loop = here._engine.send, asyncio.get_running_loop()
    taken: list[str] = []

    def spoil(call: Any) -> None:
        by_hand.acquire(NAMES[0])
        taken.append(NAMES[0])
        send(call)

    def slowly(call: Any, **options: Any) -> None:
        if call.script is multi._ACQUIRE and not taken:
            loop.call_later(0.01, spoil, call)  # the release goes before
        else:
            send(call, **options)

    here._engine.send = slowly
    await lease.release()
    single = waiting[0 if before else 1]
    await (await in_within(AT_ONCE, single)).release()
    assert taken
    by_hand.release(NAMES[0])
    waiting.remove(single)
    await (await in_within(AT_ONCE, waiting[0])).release()


@pytest.mark.parametrize("many", [False, True], ids=["Lock", "MultiLock"])
async def test_i4_turn_of_one_who_cannot_have_it(start: Start, by_hand: ByHand, many: bool) -> None:
    """A task that has just woken others lets them go first; but what they need besides is held."""
    here, elsewhere = start(), start()
    lock: Any = MultiLock(here, NAMES[1:3]) if many else Lock(here, NAMES[1])
    by_hand.acquire(NAMES[0])
    lease = await lock.acquire()
    waiting = await waiter(elsewhere, MultiLock(elsewhere, NAMES[:2]).acquire())
    for _ in range(5):
        await lease.release()
        await turns_of_the_loop(30)  # it is woken meanwhile, and refused
        lease = await in_within(AT_ONCE, begin(lock.acquire()))
    by_hand.release(NAMES[0])
    await lease.release()
    await (await in_within(AT_ONCE, waiting)).release()


async def test_i4_whoever_can_have_it_does_not_wait(start: Start) -> None:
    """Any sets and single names, over sessions of waiters, released and cancelled at random.

    Now and then (1 step in some thousands) a task that waits for several names is not told and has to poll: a
    place that was passed over in another queue, while its owner was on its way, comes after those that came
    meanwhile.
    """
    chance = random.Random()
    sessions = [start(backoff=Backoff()) for _ in range(4)]
    held: dict[Any, frozenset[str]] = {}
    waiting: dict[asyncio.Task[Any], frozenset[str]] = {}

    async def settle() -> None:
        def rest() -> bool:
            held.update({task.result(): waiting.pop(task) for task in list(waiting) if task.done()})
            taken = [name for names in held.values() for name in names]
            assert len(taken) == len(set(taken))
            return not any(names.isdisjoint(taken) for names in waiting.values())

        try:
            await eventually(rest, within=AT_ONCE)
        except AssertionError:
            raise AssertionError(f"{list(waiting.values())} wait beside {list(held.values())}") from None

    def lock_of(names: list[str], session: Session) -> Any:
        if len(names) > 1:
            return MultiLock(session, names)
        if chance.random() < 0.7:
            return Lock(session, *names)
        return ReentrantLock(session, *names, owner=secrets.token_hex(4))

    end = time.monotonic() + 0.5
    settled = 0
    while time.monotonic() < end or settled <= 30:
        for _ in range(chance.randrange(max(1, min(6, 14 - len(waiting))))):
            names = chance.sample(NAMES[:5], chance.choice([1, 1, 2, 2, 3, 5]))
            task = begin(lock_of(names, chance.choice(sessions)).acquire())
            waiting[task] = frozenset(names)
        if waiting and chance.random() < 0.4:
            task = chance.choice(list(waiting))
            if task.cancel():
                await asyncio.wait({task})
                if task.cancelled():
                    del waiting[task]
        releasing = [lease for lease in held if chance.random() < 0.6]
        for lease in releasing:
            del held[lease]
        await asyncio.gather(*(lease.release() for lease in releasing))
        await settle()
        settled += 1
    while held or waiting:
        for lease in list(held):
            del held[lease]
            await lease.release()
        await settle()


@pytest.mark.parametrize("held", [[0], [2], [0, 2]], ids=str)
async def test_t_p_7_nothing_is_left_after_a_refusal(
    start: Start, keys: Callable[..., list[str]], held: list[int]
) -> None:
    here, elsewhere = start(), start()
    lock = MultiLock(here, NAMES[:3])
    leases = [await Lock(elsewhere, NAMES[number]).acquire() for number in held]
    before = keys()
    assert await lock.try_acquire() is None
    with pytest.raises(LockTimeoutError):
        await lock.acquire(blocking_timeout=0)
    assert keys() == before
    with pytest.raises(LockTimeoutError):
        await lock.acquire(blocking_timeout=0.1)
    cancelled = await waiter(here, lock.acquire())
    for number in {0, 1, 2} - set(held):  # it holds none while it waits
        async with Lock(elsewhere, NAMES[number]).acquire(blocking_timeout=0):
            pass
    cancelled.cancel()
    await asyncio.wait({cancelled})
    await eventually(lambda: keys() == before)
    for lease in leases:
        await lease.release()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("waits", [False, True], ids=["free", "held"])
async def test_t_p_7_cancelled_at_every_await(
    start: Start, keys: Callable[..., list[str]], mode: Mode, waits: bool
) -> None:
    """Nothing stays, and who waits for one of the names gets it at once."""
    here, elsewhere, third = start(), start(), start()
    for k in count(1):
        blocker = await Lock(elsewhere, NAMES[1]).acquire() if waits else None

        async def use() -> None:
            async with MultiLock(here, NAMES[:3]):
                await asyncio.sleep(0)

        driver = CancelAt(use(), k, mode)
        cancelled = begin(drive(driver))
        await asyncio.sleep(0.003)
        waiting = [begin(use_one(third, name)) for name in NAMES[:3]]
        if blocker is not None:
            await asyncio.sleep(0.003)
            await blocker.release()
        done, _ = await asyncio.wait({cancelled, *waiting}, timeout=AT_ONCE)
        assert len(done) == 4, driver.where
        await eventually(lambda: not keys())
        if not driver.fired:
            break
    assert k > 2


async def drive(driver: CancelAt[Any]) -> None:
    await driver


async def use_one(session: Session, name: str) -> None:
    async with Lock(session, name):
        pass


@pytest.mark.parametrize("script", ["multi_acquire", "multi_release"])
async def test_t_p_7_reply_lost(
    start: Start, through: Proxy, keys: Callable[..., list[str]], script: str
) -> None:
    """As with one name: sent again it is the same."""
    far = start(to=through)
    async with MultiLock(far, NAMES[:3]):
        pass  # connected, and the scripts are known
    lost = through.reset_after(script_of(script))
    async with MultiLock(far, NAMES[:3]).acquire(blocking_timeout=5) as lease:
        assert await lease.owned()
    assert lost.is_set()
    assert keys() == []


def script_of(name: str) -> Callable[[Any], bool]:
    """Matches the requests for a script that is made of several files, by its digest."""
    script: Any = getattr(multi, "_" + name.partition("_")[2].upper())
    return lambda request: len(request) > 1 and request[1] in (script.sha, script.text)


@pytest.mark.parametrize("lost", range(3))
async def test_t_p_7_loss_of_one_name_is_the_loss_of_all(
    start: Start, by_hand: ByHand, keys: Callable[..., list[str]], lost: int
) -> None:
    """Told at the next renewal; what is left of it is given back, and what another took is not touched."""
    session = start()
    locks = [key("aiolocks", "lock", name) for name in NAMES[:3]]
    inside = asyncio.Event()

    async def body() -> None:
        async with MultiLock(session, NAMES[:3], ttl=0.3):
            inside.set()
            await asyncio.sleep(60)

    holder = begin(body())
    await inside.wait()
    by_hand.redis.delete(locks[lost])
    by_hand.acquire(NAMES[lost])
    with pytest.raises(LockLostError):
        await asyncio.wait_for(holder, 2)
    await eventually(lambda: keys() == [locks[lost].decode()])
    by_hand.release(NAMES[lost])

    lease = await MultiLock(session, NAMES[:3]).acquire()
    by_hand.redis.delete(locks[lost])
    assert not await lease.owned()
    with pytest.raises(LockLostError):
        await lease.extend()
    assert lease.state is LeaseState.LOST
    with pytest.raises(LockNotOwnedError):
        await lease.release()
    await eventually(lambda: keys() == [])

    handle = (await MultiLock(session, NAMES[:3]).acquire()).detach()
    by_hand.redis.delete(locks[lost])
    with pytest.raises(LockNotOwnedError):
        await MultiLock(session, NAMES[:3]).adopt(handle)
    for lock in locks:
        by_hand.redis.delete(lock)


async def test_kinds_of_one_name_space_exclude_each_other(start: Start) -> None:
    """Lock, ReentrantLock and MultiLock, of one session and of several, each waking the next."""
    here, elsewhere = start(), start()
    makes: list[Callable[[Session], Any]] = [
        lambda session: Lock(session, "{t}a"),
        lambda session: ReentrantLock(session, "{t}a", owner="one"),
        lambda session: MultiLock(session, ["{t}a", "{t}b"]),
        lambda session: MultiLock(session, ["{t}0", "{t}a"]),
    ]
    for make in makes:
        for session in (here, elsewhere):
            lease = await make(here).acquire()
            others = [other for other in makes if other is not make]
            for other in others:
                assert await other(session).try_acquire() is None
            waiting = [await waiter(session, other(session).acquire()) for other in others]
            await lease.release()
            for _ in others:
                done, _ = await asyncio.wait(waiting, timeout=AT_ONCE, return_when=asyncio.FIRST_COMPLETED)
                assert len(done) == 1, make
                for task in done:
                    waiting.remove(task)
                    await asyncio.sleep(0.002)
                    assert not any(other.done() for other in waiting)
                    await task.result().release()


async def test_names_in_different_slots_of_a_server_that_is_no_cluster(start: Start) -> None:
    lock = MultiLock(start(backoff=Backoff()), [f"name {number}" for number in range(50)])
    try:
        async with lock as lease:
            assert await lease.owned()
    except BackendError as error:  # pragma: no cover
        raise AssertionError(f"{error}") from error
