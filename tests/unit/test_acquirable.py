"""`async with lock` and `@lock`: each entering has a lease of its own, and each exit finds it."""

from __future__ import annotations

import asyncio
import inspect

import pytest
from redis.asyncio import Redis

from aiolocks import LeaseState, Lock, LockNotOwnedError, RangeLock, RWLock
from tests.unit.fakes import generous


@pytest.fixture
def lock(offline, transport) -> Lock:
    """Of a session whose server grants everything."""
    transport.answer = generous
    return Lock(offline, "name")


async def enter(lock: Lock) -> object:
    """In a task of its own, which then ends."""
    return await asyncio.create_task(lock.__aenter__())


async def test_one_lock_may_be_entered_by_many_tasks_one_after_the_other(lock) -> None:
    inside = 0
    leases = []

    async def body() -> None:
        nonlocal inside
        async with lock as lease:
            inside += 1
            assert inside == 1
            leases.append(lease)
            await asyncio.sleep(0.1)
            inside -= 1

    await asyncio.gather(*(body() for _ in range(20)))

    assert len({lease.token for lease in leases}) == 20
    assert all(lease.state is LeaseState.RELEASED for lease in leases)


async def test_a_description_may_be_entered_again_and_again(lock, transport) -> None:
    for _ in range(3):
        async with lock:
            pass

    assert transport.verbs == ["acquire", "release"] * 3
    assert not lock._entered


async def test_an_exit_in_another_task_takes_the_lease_whose_task_has_ended(lock) -> None:
    lease = await enter(lock)

    await lock.__aexit__(None, None, None)

    assert lease.state is LeaseState.RELEASED
    assert not lock._entered


async def test_an_exit_in_another_task_takes_the_one_lease_although_its_task_is_inside(
    lock, transport
) -> None:
    inside, leave = asyncio.Event(), asyncio.Event()

    async def body() -> None:
        async with lock:
            inside.set()
            await leave.wait()

    task = asyncio.create_task(body())
    await inside.wait()
    await lock.__aexit__(None, None, None)
    leave.set()

    with pytest.raises(LockNotOwnedError, match="its block was left in another task"):
        await task
    assert transport.verbs == ["acquire", "release"]


async def test_an_exit_that_was_not_entered_is_refused(lock) -> None:
    with pytest.raises(RuntimeError, match="was not entered in this task"):
        await lock.__aexit__(None, None, None)


async def test_a_decorated_function_holds_it_for_each_call(lock, transport) -> None:
    @lock
    async def twice(number: int, *, plus: int = 0) -> int:
        """Doubles."""
        assert transport.verbs[-1] == "acquire"
        return 2 * number + plus

    assert [await twice(1), await twice(2, plus=1)] == [2, 5]
    assert transport.verbs == ["acquire", "release"] * 2
    assert inspect.iscoroutinefunction(twice)
    assert twice.__name__ == "twice"
    assert twice.__doc__ == "Doubles."


async def test_a_decorated_method_knows_its_object(lock) -> None:
    class Account:
        balance = 5

        @lock
        async def read(self) -> int:
            return self.balance

    assert await Account().read() == 5


async def test_what_a_decorated_function_raises_gets_through(lock, transport) -> None:
    @lock
    async def fail() -> None:
        raise KeyError("body")

    with pytest.raises(KeyError):
        await fail()
    assert transport.verbs == ["acquire", "release"]


@pytest.mark.parametrize("name", ["release", "extend", "owned", "fencing_token", "ensure_held"])
def test_what_a_lease_has_is_not_sought_in_the_lock(name) -> None:
    with pytest.raises(AttributeError, match=f"^'Lock' object has no attribute '{name}': the lease"):
        getattr(Lock(Redis(), "name"), name)


@pytest.mark.parametrize("name", ["colour", "_release", "__len__"])
def test_what_nothing_has_is_just_missing(name) -> None:
    with pytest.raises(AttributeError, match=f"^'Lock' object has no attribute '{name}'$"):
        getattr(Lock(Redis(), "name"), name)


@pytest.mark.parametrize("kind", [RWLock, RangeLock])
@pytest.mark.parametrize("name", ["acquire", "read_lock", "locked"])
def test_a_lock_of_several_modes_says_what_is_acquired(kind, name) -> None:
    with pytest.raises(
        AttributeError, match=rf"^'{kind.__name__}' object has no attribute '{name}': .* \.reader"
    ):
        getattr(kind(Redis(), "name"), name)


async def test_repr(lock) -> None:
    assert repr(lock) == "<Lock 'name' ttl=30>"
