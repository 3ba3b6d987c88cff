"""An `async with` that ends in another task than it began, of all that can be entered."""

from __future__ import annotations

import asyncio
import functools
import gc
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, suppress
from typing import Any

import pytest
from redis.asyncio import Redis

from aiolocks import (
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
    Redlock,
    ReentrantLock,
    RWLock,
    Semaphore,
    Session,
    SingleFlight,
    Turnstile,
    UniqueJob,
)
from aiolocks.contrib.redis_py import Lock as RedisPyLock
from tests.adversity.tools import Keys
from tests.conftest import Connect, OwnServer
from tests.support.processes import Workers, tell
from tests.support.servers import Server
from tests.support.spoiling import cancelling
from tests.support.waiting import eventually

KINDS: dict[str, Callable[[Session], Any]] = {
    "Lock": lambda session: Lock(session, "a"),
    "FairLock": lambda session: FairLock(session, "a"),
    "ReentrantLock": lambda session: ReentrantLock(session, "a"),
    "ReentrantLock of an owner": lambda session: ReentrantLock(session, "a", owner="x"),
    "MultiLock": lambda session: MultiLock(session, ["{a}1", "{a}2"]),
    "Semaphore": lambda session: Semaphore(session, "a", 1),
    "Limits": lambda session: Limits(session, "a", {"all": 1}),
    "RWLock.reader": lambda session: RWLock(session, "a").reader,
    "RWLock.upgradable": lambda session: RWLock(session, "a").upgradable,
    "RWLock.writer": lambda session: RWLock(session, "a").writer,
    "RangeLock.writer": lambda session: RangeLock(session, "a").writer(1, 2),
    "Leadership": lambda session: Leadership(session, "a"),
}
each_kind = pytest.mark.parametrize("make", [pytest.param(KINDS[name], id=name) for name in KINDS])

OTHERS: dict[str, Callable[[Session, Redis], Callable[[], Any]]] = {
    "acquire": lambda session, _: lambda: Lock(session, "a").acquire(),
    "try_acquire": lambda session, _: lambda: Lock(session, "a").try_acquire(),
    "job": lambda session, _: lambda: UniqueJob(session, "a").run(),
    "turn": lambda session, _: lambda: SingleFlight(session).turn("a"),
    "turnstile": lambda session, _: functools.partial(same, Turnstile(session, "a", window=60)),
    "redis-py": lambda _, redis: functools.partial(same, RedisPyLock(redis, "a", timeout=60)),
}


def same(made: Any) -> Any:
    return made


async def inside(entered: Any) -> AsyncGenerator[Any, None]:
    """Rows that are read under a lock."""
    async with entered as lease:
        yield lease
        yield lease


async def first_of(generator: AsyncGenerator[Any, None]) -> Any:
    """Its first value. Nobody has it any more then, and the event loop closes it."""
    async for value in generator:
        return value
    raise AssertionError


class Held:
    """A task that is inside of a lock until it is told to leave."""

    def __init__(self, lock: Any, *, holds: float = 0.0) -> None:
        self.leave = asyncio.Event()
        self.lease: Any = None
        self._entered = asyncio.Event()
        self.task = asyncio.create_task(self._hold(lock))

    async def _hold(self, lock: Any) -> None:
        async with lock as self.lease:
            self._entered.set()
            await self.leave.wait()

    @classmethod
    async def inside(cls, lock: Any) -> Held:
        held = cls(lock)
        await held._entered.wait()
        return held

    async def leaves(self) -> None:
        self.leave.set()
        await self.task


async def free(keys: Keys) -> None:
    await eventually(lambda: not keys(), within=3)


async def elsewhere(leave: Callable[[], Awaitable[Any]]) -> Any:
    """In a task of its own."""

    async def call() -> Any:
        return await leave()

    return await asyncio.create_task(call())


# -- generators ----------------------------------------------------------------------------------------------


@each_kind
async def test_a_generator_that_its_consumer_leaves(
    make: Callable[[Session], Any], session: Session, keys: Keys
) -> None:
    lock = make(session)
    lease = await first_of(inside(lock))
    await eventually(lambda: lease.state is LeaseState.RELEASED)
    assert not lock._entered
    assert keys() == []
    async with lock:  # it can be had again
        pass
    await session.aclose()
    assert cancelling() == 0


@each_kind
async def test_a_consumer_may_acquire_at_once_what_it_has_left(
    make: Callable[[Session], Any], session: Session
) -> None:
    """The event loop closes the generator a moment later: that is no deadlock of the consumer."""
    lock = make(session)
    for _ in range(3):
        async for _ in inside(lock):
            break
    async with lock:
        pass


async def test_a_consumer_may_take_a_turn_at_once_that_it_has_left(session: Session) -> None:
    flight = SingleFlight(session)

    async def first() -> AsyncIterator[bool]:
        async with flight.turn("k") as turn:
            yield turn.first

    async for _ in first():
        break
    async with flight.turn("k") as turn:
        assert turn.first


@pytest.mark.parametrize("use", list(OTHERS))
async def test_a_generator_that_its_consumer_leaves_of_all_else(
    use: str, session: Session, redis: Redis, keys: Keys
) -> None:
    make = OTHERS[use](session, redis)

    async def hold() -> AsyncIterator[int]:
        async with make():
            yield 1
            yield 2

    async for _ in hold():
        break
    await free(keys)
    async with make():
        pass
    await session.aclose()
    assert cancelling() == 0


async def test_a_redlock_in_a_generator_that_its_consumer_leaves(
    own_server: OwnServer, connect: Connect
) -> None:
    servers = [await own_server() for _ in range(3)]
    lock = Redlock([connect(server) for server in servers], "a")
    lease = await first_of(inside(lock))
    await eventually(lambda: lease.state is LeaseState.RELEASED)
    assert not await lock.locked()


async def test_an_upgrade_in_a_generator_that_its_consumer_leaves(session: Session, keys: Keys) -> None:
    async def rows() -> AsyncIterator[int]:
        async with RWLock(session, "a").upgradable as lease, lease.upgrade():
            yield 1

    async for _ in rows():
        break
    await free(keys)


async def test_a_generator_that_is_left_when_its_session_closes(redis: Redis, keys: Keys) -> None:
    """The event loop has not closed the generator yet, and its consumer has nothing to do with it."""

    async def outer(lock: Lock) -> AsyncIterator[Lease]:
        async for lease in inside(lock):
            yield lease

    for generator in (inside, outer):
        async with Session(redis) as session:
            async for _ in generator(Lock(session, "a")):
                break
        assert cancelling() == 0
        assert keys() == []


async def test_a_generator_is_left_among_others_that_are_inside(
    session: Session, redis: Redis, keys: Keys
) -> None:
    """Its exit takes its own permit: the others are told of the loss of theirs, and its consumer of none."""
    semaphore = Semaphore(session, "a", 9)
    first = await Held.inside(semaphore)
    lease = await first_of(inside(semaphore))
    last = await Held.inside(semaphore)
    await eventually(lambda: lease.state is LeaseState.RELEASED)
    assert await semaphore.available() == 7
    assert [held.lease.state for held in (first, last)] == [LeaseState.HELD] * 2

    await redis.delete(*keys())
    done, _ = await asyncio.wait((first.task, last.task), timeout=5)
    assert [type(task.exception()) for task in done] == [LockLostError] * 2
    assert cancelling() == 0


async def test_generators_of_one_consumer_may_end_in_any_order(session: Session) -> None:
    semaphore = Semaphore(session, "a", 3)
    generators = [inside(semaphore) for _ in range(3)]
    leases = [await anext(generator) for generator in generators]
    await elsewhere(generators[1].aclose)
    assert [lease.state.name for lease in leases] == ["HELD", "RELEASED", "HELD"]
    await elsewhere(generators[0].aclose)
    assert [lease.state.name for lease in leases] == ["RELEASED", "RELEASED", "HELD"]
    await elsewhere(generators[2].aclose)
    assert not semaphore._entered


async def test_a_generator_that_is_left_inside_of_another_block(session: Session) -> None:
    semaphore = Semaphore(session, "a", 2)
    generator = inside(semaphore)
    lease = await elsewhere(functools.partial(anext, generator))
    async with semaphore as own:
        await generator.aclose()
        assert (lease.state, own.state) == (LeaseState.RELEASED, LeaseState.HELD)


async def test_a_loss_while_a_generator_is_suspended_cancels_its_consumer(session: Session) -> None:
    """As the time limit of `asyncio.timeout` does there."""
    told: list[BaseException] = []

    async def consume() -> None:
        async with aclosing(inside(Lock(session, "a", max_hold=0.1))) as rows:
            try:
                async for _ in rows:
                    await asyncio.sleep(5)
            except asyncio.CancelledError as error:
                told.append(error)
                raise

    task = asyncio.create_task(consume())
    with suppress(asyncio.CancelledError):
        await task
    assert task.cancelled()
    assert str(told[0]) == "aiolocks cancels the body: Lock 'a' was lost: max_hold has passed"


async def test_a_lost_lease_of_a_generator_does_not_touch_the_next_holder(
    session: Session, redis: Redis, keys: Keys
) -> None:
    lock = Lock(session, "a", on_lost="ignore")
    generator = inside(lock)
    lost = await anext(generator)
    await redis.delete(*keys())
    await lost.wait_lost()
    held = await Held.inside(lock)
    await elsewhere(generator.aclose)
    assert held.lease.state is LeaseState.HELD
    assert await held.lease.owned()
    await held.leaves()


@pytest.mark.parametrize("how", ["shared", "own"])
async def test_a_redis_py_lock_of_a_generator_does_not_touch_the_next_holder(redis: Redis, how: str) -> None:
    lock = RedisPyLock(redis, "a", timeout=60)
    generator = inside(lock)
    await anext(generator)
    await redis.delete("a")  # its time has passed

    async def hold() -> None:
        async with lock if how == "shared" else RedisPyLock(redis, "a", timeout=60):
            entered.set()
            await leave.wait()

    entered, leave = asyncio.Event(), asyncio.Event()
    holding = asyncio.create_task(hold())
    await entered.wait()
    await elsewhere(generator.aclose)
    assert await redis.exists("a")
    leave.set()
    await holding
    assert not await redis.exists("a")


# -- stacks and fixtures -------------------------------------------------------------------------------------


@each_kind
async def test_a_stack_that_is_closed_in_another_task(
    make: Callable[[Session], Any], session: Session, keys: Keys
) -> None:
    async with AsyncExitStack() as stack:
        lease = await stack.enter_async_context(make(session))
        await elsewhere(stack.pop_all().aclose)
    assert lease.state is LeaseState.RELEASED
    assert keys() == []
    await session.aclose()
    assert cancelling() == 0


@pytest.mark.parametrize("ended", [False, True], ids=["alive", "ended"])
@pytest.mark.parametrize("form", ["generator", "stack"])
async def test_two_fixtures_that_hold_one_semaphore(session: Session, form: str, ended: bool) -> None:
    semaphore = Semaphore(session, "a", 2)
    leases: list[Lease] = []
    leaving: list[Callable[[], Awaitable[Any]]] = []

    @asynccontextmanager
    async def fixture() -> AsyncIterator[Lease]:
        async with semaphore as lease:
            yield lease

    async def set_up() -> None:
        if form == "generator":
            context = fixture()
            leases.append(await context.__aenter__())
            leaving.append(functools.partial(context.__aexit__, None, None, None))
        else:
            stack = AsyncExitStack()
            leases.append(await stack.enter_async_context(semaphore))
            leaving.append(stack.aclose)

    for _ in range(2):
        await (elsewhere(set_up) if ended else set_up())
    for left in (1, 2):
        await elsewhere(leaving.pop(0))
        assert await semaphore.available() == left
    assert [lease.state for lease in leases] == [LeaseState.RELEASED] * 2
    assert not semaphore._entered


async def test_of_an_exclusive_kind_the_one_that_is_held(session: Session, redis: Redis, keys: Keys) -> None:
    lock = Lock(session, "a", on_lost="ignore")
    lost = await lock.__aenter__()
    await redis.delete(*keys())
    await lost.wait_lost()
    held = await lock.__aenter__()
    await elsewhere(functools.partial(lock.__aexit__, None, None, None))
    assert held.state is LeaseState.RELEASED
    await elsewhere(functools.partial(lock.__aexit__, None, None, None))
    assert not lock._entered


async def test_nested_entries_of_one_owner(session: Session) -> None:
    lock = ReentrantLock(session, "a", owner="x")
    leases = [await elsewhere(lock.__aenter__) for _ in range(3)]
    for _ in leases:
        assert await Lock(session, "a").locked()
        await elsewhere(functools.partial(lock.__aexit__, None, None, None))
    assert {lease.state for lease in leases} == {LeaseState.RELEASED}


# -- a task that is still inside -----------------------------------------------------------------------------


async def test_a_task_whose_lease_was_released_elsewhere_is_told_at_its_exit(
    session: Session, keys: Keys
) -> None:
    lock = Lock(session, "a")
    held = await Held.inside(lock)
    await lock.__aexit__(None, None, None)
    assert held.lease.state is LeaseState.RELEASED
    assert keys() == []
    with pytest.raises(LockNotOwnedError, match="Lock 'a' is not owned: its block was left in another task"):
        await held.leaves()
    assert not lock._entered


async def test_its_exit_leaves_the_next_holder_alone(session: Session) -> None:
    lock = Lock(session, "a")
    first = await Held.inside(lock)
    await lock.__aexit__(None, None, None)
    second = await Held.inside(lock)
    with pytest.raises(LockNotOwnedError):
        await first.leaves()
    assert second.lease.state is LeaseState.HELD
    await second.leaves()


async def test_it_is_not_cancelled_any_more(session: Session) -> None:
    lock = Lock(session, "a", max_hold=0.1)
    held = await Held.inside(lock)
    await lock.__aexit__(None, None, None)
    await asyncio.sleep(0.2)
    await session.aclose()
    await asyncio.sleep(0.02)
    assert held.task.cancelling() == 0
    with pytest.raises(LockNotOwnedError):
        await held.leaves()


async def test_what_it_raises_itself_wins(session: Session) -> None:
    lock = Lock(session, "a")

    async def hold() -> None:
        async with lock:
            entered.set()
            await leave.wait()
            raise KeyError("its own")

    entered, leave = asyncio.Event(), asyncio.Event()
    holding = asyncio.create_task(hold())
    await entered.wait()
    await lock.__aexit__(None, None, None)
    leave.set()
    with pytest.raises(KeyError) as caught:
        await holding
    assert caught.value.__notes__ == ["aiolocks: Lock 'a' is not owned: its block was left in another task"]


async def test_a_lease_that_was_left_elsewhere_is_told_at_its_own_exit(session: Session) -> None:
    lease = await Lock(session, "a").acquire()

    async def hold() -> None:
        async with lease:
            entered.set()
            await leave.wait()

    entered, leave = asyncio.Event(), asyncio.Event()
    holding = asyncio.create_task(hold())
    await entered.wait()
    await lease.__aexit__(None, None, None)
    leave.set()
    with pytest.raises(LockNotOwnedError, match="its block was left in another task"):
        await holding


async def test_of_equal_permits_each_exit_takes_one(session: Session) -> None:
    """Whichever it takes, all are given back, and no exit of those inside fails."""
    semaphore = Semaphore(session, "a", 5)
    inside = [await Held.inside(semaphore) for _ in range(3)]
    await semaphore.__aenter__()
    await elsewhere(functools.partial(semaphore.__aexit__, None, None, None))
    assert await semaphore.available() == 2
    for left, held in enumerate(inside):
        await held.leaves()
        assert await semaphore.available() == 3 + left


# -- where it is not clear -----------------------------------------------------------------------------------


async def test_an_exit_that_nobody_has_entered(session: Session) -> None:
    for lock in (Lock(session, "a"), Semaphore(session, "a", 1), RWLock(session, "a").reader):
        with pytest.raises(RuntimeError, match="cannot tell which lease to release"):
            await lock.__aexit__(None, None, None)


async def test_an_exit_that_is_not_clear_does_not_replace_what_the_body_raised(session: Session) -> None:
    """Or a cancellation would be swallowed."""
    lock = Lock(session, "a")
    for error in (KeyError(), asyncio.CancelledError()):
        await lock.__aexit__(type(error), error, None)
        assert "cannot tell which lease to release" in error.__notes__[0]
    # It is all that the event loop throws into a generator, and tells nobody of.
    with pytest.raises(RuntimeError, match="cannot tell which lease to release"):
        await lock.__aexit__(GeneratorExit, GeneratorExit(), None)


@pytest.mark.leaves_keys
async def test_of_a_winner_and_others_the_exit_of_a_turnstile_is_not_clear(
    session: Session, keys: Keys
) -> None:
    turnstile = Turnstile(session, "a", window=60)
    for _ in range(2):
        await elsewhere(turnstile.__aenter__)
    with pytest.raises(RuntimeError, match="cannot tell which entry to end"):
        await turnstile.__aexit__(None, None, None)
    assert keys() != []
    assert not turnstile._entered  # the window ends by itself


# -- the end of a program ------------------------------------------------------------------------------------


async def suspended(url: str) -> None:
    """Ends with a generator that nobody has closed."""
    redis = Redis.from_url(url)
    generator = inside(Lock(redis, "a", ttl=60))
    await anext(generator)
    globals()["kept"] = generator, redis
    tell("inside")


async def test_a_program_that_ends_with_a_suspended_generator_gives_the_lease_back(
    server: Server, workers: Workers, keys: Keys
) -> None:
    worker = await workers.start(suspended, url=server.url)
    await worker.told("inside")
    await worker.finish()
    await free(keys)


async def test_the_connection_of_a_session_that_the_loop_shuts_down_is_closed_behind_the_generators(
    redis: Redis, keys: Keys
) -> None:
    """The loop closes all at once, in any order: the lease would be held, and its exit wait for its end."""
    generator = inside(Lock(redis, "a"))
    await anext(generator)
    engine = Session.of(redis)._engine
    assert engine is not None
    closing = asyncio.create_task(engine._ending._closing.aclose())
    await asyncio.wait_for(generator.aclose(), 5)
    await closing
    assert keys() == []


async def test_nothing_is_kept_of_a_block_that_has_ended(session: Session) -> None:
    lock = Lock(session, "a")
    for _ in range(3):
        async for _ in inside(lock):
            break
        await asyncio.sleep(0.02)
    gc.collect()
    assert not lock._entered
    assert sys.getrefcount(lock) < 10
