"""`current_lease`, `ensure_held`: which lease the running code is inside of, whatever becomes of it."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import time
import weakref
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any

import pytest
from redis.asyncio import Redis

from aiolocks import (
    Batch,
    Combiner,
    FairLock,
    Leadership,
    Lease,
    LeaseState,
    Limits,
    Lock,
    LockLostError,
    LockNotOwnedError,
    MultiLock,
    RangeLock,
    ReentrantLock,
    RWLock,
    Schedule,
    Semaphore,
    Session,
    SingleFlight,
    Term,
    Tick,
    UniqueJob,
    current_lease,
    ensure_held,
    name_of,
)
from aiolocks.lock.inside import INSIDE
from tests.conftest import Connect


def outside(*of: Any) -> bool:
    try:
        current_lease(*of)
    except LookupError:
        return True
    return False


# -- where it is seen


async def test_a_function_under_a_decorator_reaches_its_lease(session: Session) -> None:
    orders = Lock(session, "order:{number}")

    async def ship(number: str) -> Lease:
        lease = ensure_held(name_of("order:{number}", number=number))
        assert lease is current_lease() is current_lease(orders) is current_lease(orders.of(number=number))
        assert outside(orders.of(number="other"))
        assert outside(Lock(session, "orders"))
        return lease

    lease = await orders(ship)("4/7")
    assert lease.name == "order:4%2F7"
    assert outside()
    with pytest.raises(LookupError, match="not inside of a lease of <Lock 'order:"):
        current_lease(orders)
    with pytest.raises(LockNotOwnedError, match="lock 'order:4%2F7' is not owned: the running code is not"):
        ensure_held("order:4%2F7")


async def test_child_tasks_and_threads_are_inside(session: Session) -> None:
    async def look() -> Lease:
        await asyncio.sleep(0)
        return current_lease()

    async with Lock(session, "a") as lease:
        assert await asyncio.create_task(look()) is lease
        assert await asyncio.gather(look(), look()) == [lease, lease]
        assert await asyncio.to_thread(ensure_held, "a") is lease
        async with asyncio.TaskGroup() as group:
            late = group.create_task(asyncio.sleep(0.01))
        assert await late is None

    begun = asyncio.Event()

    async def outlives() -> bool:
        assert current_lease().name == "b"
        begun.set()
        await ended.wait()
        return outside()

    ended = asyncio.Event()
    async with Lock(session, "b"):
        child = asyncio.create_task(outlives())
        await begun.wait()
    ended.set()
    assert await child  # its parent's lease has ended


async def test_the_innermost_one_counts(session: Session, redis: Redis) -> None:
    async with Lock(session, "a") as a:
        async with Semaphore(session, "a", 3).acquire(2) as b:
            assert current_lease() is b
            assert current_lease(Lock(session, "a")) is a
            assert current_lease(Semaphore(session, "a", 3)) is b
            assert ensure_held("a") is b
            assert ensure_held("a", kind="lock") is a
        assert current_lease() is a
        async with Lock(redis, "c") as c:  # of the default session of the client
            assert current_lease() is current_lease(Lock(redis, "c")) is c
            assert outside(Lock(session, "c"))
            assert ensure_held("c") is ensure_held("c", session=Session.of(redis)) is c
            with pytest.raises(LockNotOwnedError):
                ensure_held("c", session=session)
    async with ReentrantLock(session, "r") as outer:
        async with ReentrantLock(session, "r") as inner:
            assert current_lease(ReentrantLock(session, "r")) is inner
        assert current_lease() is outer


async def test_a_lease_of_several_names_is_of_each(session: Session) -> None:
    both = MultiLock(session, ["from:{a}", "to:{b}"])
    async with both.of(a=1, b="/") as lease:
        assert lease is current_lease(both) is current_lease(both.of(b="/", a=1))
        assert lease is ensure_held("from:1") is ensure_held("to:%2F", kind="multilock")
        assert lease is current_lease(Lock(session, "from:1")) is current_lease(Lock(session, "to:{b}"))
        assert outside(MultiLock(session, ["from:1"]))
        assert outside(FairLock(session, "from:1"))
        with pytest.raises(LockNotOwnedError):
            ensure_held("from:1", kind="lock")


async def test_modes(session: Session) -> None:
    rw, ranges = RWLock(session, "a:{x}"), RangeLock(session, "pages")
    of = rw.of(x=1)
    async with of.upgradable as upgradable:
        assert current_lease(rw) is current_lease(rw.upgradable) is current_lease(of) is upgradable
        assert outside(rw.writer)
        assert ensure_held("a:1", mode="reader") is ensure_held("a:1", mode="upgradable") is upgradable
        with pytest.raises(LockNotOwnedError, match=r"lock \(writer\) 'a:1' is not owned"):
            ensure_held("a:1", mode="writer")
        async with upgradable.upgrade() as writer:
            assert ensure_held("a:1", kind="rwlock", mode="writer") is current_lease(rw) is writer
        assert current_lease(rw) is upgradable
    async with of.writer as writer:
        await writer.downgrade()
        assert current_lease(rw.reader) is writer
        assert outside(rw.writer)
    async with ranges.writer(1, 5) as part, Lock(session, "pages"):
        assert current_lease(ranges) is ensure_held("pages", mode="reader") is part


# -- what runs a function of the user


@pytest.mark.leaves_keys("aiolocks:combiner*", "aiolocks:schedule*", "aiolocks:leadership*")
async def test_what_calls_a_function_under_a_lease(session: Session) -> None:
    seen: dict[str, Lease] = {}

    async def batch(batch: Batch) -> int:
        seen["combiner"] = ensure_held("a", kind="combiner")
        assert seen["combiner"].fencing_token == batch.fencing_token
        return len(batch.items)

    combiner = Combiner(session, "a")
    async with Lock(session, "around") as around:
        assert await combiner.submit(1, batch) == 1
        assert current_lease() is around

    leadership = Leadership(session, "a")

    async def main(term: Term) -> None:
        seen["leadership"] = current_lease(leadership)
        assert seen["leadership"] is term

    await leadership.run(main)
    async with UniqueJob(session, "a").run() as lease:
        seen["uniquejob"] = ensure_held("a")
        assert seen["uniquejob"] is lease
    async with Limits(session, "a", {"all": 1}) as lease:
        seen["limits"] = current_lease(Limits(session, "a", {"all": 7}))
        assert seen["limits"] is lease

    nightly = Schedule(session, "a", every=3600)

    @nightly
    async def job(tick: Tick) -> None:
        seen["schedule"] = ensure_held("a", kind="schedule")

    await nightly.trigger()

    async def value() -> int:
        seen["singleflight"] = current_lease()
        return 7

    assert await SingleFlight(session).do("a", value) == 7
    assert {kind: lease.name for kind, lease in seen.items()} == dict.fromkeys(seen, "a")
    assert outside()


# -- leases that have ended


async def test_a_lease_that_has_ended_is_passed_over(session: Session) -> None:
    async with Lock(session, "around") as around:
        async with Lock(session, "a") as lease:
            await lease.release()
            assert current_lease() is around
        async with Lock(session, "b") as lease:
            handle = lease.detach()
            assert current_lease() is around
        await (await Lock(session, "b").adopt(handle)).release()
        lease = await Lock(session, "c").acquire()
        assert current_lease() is around  # it was not entered
        await lease.release()
        async with Lock(session, "d").acquire() as lease:
            release = asyncio.create_task(lease.release())
            await asyncio.sleep(0)
            assert current_lease() is around  # it is being released
            await release


@pytest.mark.parametrize("on_lost", ["cancel", "ignore"])
async def test_a_lease_that_was_lost_counts_while_its_body_runs(session: Session, on_lost: Any) -> None:
    lock = Lock(session, "a", on_lost=on_lost)
    try:
        async with lock as lease:
            await session.force_release("a")
            with suppress(asyncio.CancelledError):
                await asyncio.wait_for(lease.wait_lost(), 3)
            assert lease.state is LeaseState.LOST
            assert current_lease(lock) is lease
            with pytest.raises(LockLostError, match="was lost"):
                ensure_held("a")
            async with Lock(session, "a") as anew:  # the same name, held
                assert ensure_held("a") is anew
    except LockLostError:
        assert on_lost == "cancel"
    assert outside()


async def test_an_exit_in_another_task_leaves_nothing(session: Session) -> None:
    async def held() -> AsyncIterator[Lease]:
        async with Lock(session, "a") as lease:
            yield lease

    async with Lock(session, "around") as around:
        for _ in range(50):
            async for _lease in (generator := held()):
                break
            inside = current_lease()
            await asyncio.create_task(generator.aclose())  # as the event loop does
            assert inside is not around
            assert current_lease() is around
        assert _length() <= 17


async def test_exits_in_any_order(session: Session) -> None:
    """Hand over hand: the next one is entered before the last one is left."""
    async with AsyncExitStack() as first:
        await first.enter_async_context(Lock(session, "-1"))
        last = first.pop_all()
    for number in range(200):
        async with AsyncExitStack() as stack:
            lease = await stack.enter_async_context(Lock(session, str(number)))
            following = stack.pop_all()
        await last.aclose()
        assert current_lease() is lease
        last = following
        assert _length() <= 32
    await last.aclose()
    assert outside()


async def test_many_at_once(session: Session) -> None:
    async with AsyncExitStack() as stack:
        leases = [await stack.enter_async_context(Lock(session, str(number))) for number in range(100)]
        assert all(ensure_held(lease.name) is lease for lease in leases)
    assert outside()
    assert INSIDE.get() is None


async def test_a_context_keeps_no_lease(session: Session) -> None:
    async with Lock(session, "a") as lease:
        context = contextvars.copy_context()
        gone = weakref.ref(lease)
    del lease
    gc.collect()
    assert gone() is None
    assert context.run(outside)


async def test_contexts_of_their_own_do_not_mix(session: Session) -> None:
    """The body of a fixture: entered in one context, left in another."""

    @asynccontextmanager
    async def fixture() -> AsyncIterator[Lease]:
        async with Lock(session, "a") as lease:
            yield lease

    made = fixture()
    await asyncio.create_task(made.__aenter__(), context=contextvars.Context())
    assert outside()
    async with Lock(session, "b") as lease:
        await made.__aexit__(None, None, None)
        assert current_lease() is lease


def _length() -> int:
    entry, length = INSIDE.get(), 0
    while entry is not None:
        entry, length = entry[1], length + 1
    return length


# -- arguments


async def test_wrong_arguments(session: Session) -> None:
    wrong: Any
    for wrong in (7, "a", Combiner(session, "a"), Lock):
        with pytest.raises(TypeError, match="takes a lock"):
            current_lease(wrong)
    for name, options, error in (
        (7, {}, TypeError),
        ("", {}, ValueError),
        ("a", {"kind": 7}, TypeError),
        ("a", {"mode": "write"}, ValueError),
        ("a", {"session": 7}, TypeError),
    ):
        with pytest.raises(error):
            ensure_held(name, **options)  # type: ignore[arg-type]


async def test_it_costs_no_request_and_no_time(session: Session) -> None:
    async with Lock(session, "a"):
        sent, began = session.statistics().commands_sent, time.perf_counter()
        for _ in range(1000):
            ensure_held("a")
            current_lease()
        assert session.statistics().commands_sent == sent
        assert time.perf_counter() - began < 2


async def test_other_sessions_of_a_process(connect: Connect) -> None:
    async with Session(connect()) as one, Session(connect(), prefix="other") as other:
        async with Lock(one, "a") as lease:
            assert outside(Lock(other, "a"))
            assert current_lease(Lock(one, "a")) is lease
            with pytest.raises(LockNotOwnedError):
                ensure_held("a", session=other)
