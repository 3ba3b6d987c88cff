"""What `acquire()` returns: awaited, entered, given to a task, or never used at all."""

from __future__ import annotations

import asyncio
import gc
import inspect
from collections.abc import Coroutine

import pytest

from aiolocks import LeaseState, Lock
from tests.unit.fakes import generous, refuse


@pytest.fixture
def lock(offline, transport) -> Lock:
    """Of a session whose server grants everything."""
    transport.answer = generous
    return Lock(offline, "name")


async def test_can_be_awaited(lock) -> None:
    lease = await lock.acquire()

    assert lease.state is LeaseState.HELD


async def test_can_be_entered(lock) -> None:
    async with lock.acquire() as lease:
        assert lease.state is LeaseState.HELD
    assert lease.state is LeaseState.RELEASED


async def test_can_be_entered_without_having_got_it(offline, transport) -> None:
    task = asyncio.create_task(enter(Lock(offline, "name").try_acquire()))
    refuse(await transport.asked("acquire"))

    assert await task is None
    assert transport.unasked == []


async def enter(pending) -> object:
    async with pending as lease:
        return lease


async def test_can_be_given_to_a_task(lock) -> None:
    assert (await asyncio.create_task(lock.acquire())).state is LeaseState.HELD


async def test_a_task_says_what_it_runs(lock) -> None:
    task = asyncio.create_task(lock.acquire())

    assert "coro=<acquisition()>" in repr(task)  # not begun
    await task
    assert "coro=<acquisition()>" in repr(task)


async def test_can_be_given_to_a_task_group(lock) -> None:
    async with asyncio.TaskGroup() as group:
        task = group.create_task(lock.acquire())

    assert task.result().state is LeaseState.HELD


async def test_can_be_gathered(offline, lock) -> None:
    leases = await asyncio.gather(lock.acquire(), Lock(offline, "other").acquire())

    assert {lease.name for lease in leases} == {"name", "other"}


async def test_can_be_waited_for(lock) -> None:
    assert (await asyncio.wait_for(lock.acquire(), 1)).state is LeaseState.HELD


async def test_is_a_coroutine(lock) -> None:
    pending = lock.acquire()

    assert isinstance(pending, Coroutine)
    assert asyncio.iscoroutine(pending)
    assert inspect.isawaitable(pending)


async def test_one_never_used_does_nothing_and_warns_of_nothing(lock, transport) -> None:
    lock.acquire()
    lock.try_acquire()
    gc.collect()  # warnings are errors

    assert transport.sent == []


async def test_one_that_was_closed_does_nothing(lock, transport) -> None:
    pending = lock.acquire()
    pending.close()
    pending.close()

    with pytest.raises(RuntimeError, match="used before"):
        await pending
    assert transport.sent == []


async def test_a_task_cancelled_before_it_began_does_nothing(lock, transport) -> None:
    task = asyncio.create_task(lock.acquire())
    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task
    assert transport.sent == []


@pytest.mark.parametrize("method", ["acquire", "try_acquire"])
async def test_is_used_once(lock, method) -> None:
    pending = getattr(lock, method)()
    await (await pending).release()

    with pytest.raises(RuntimeError, match=r"used before: call acquire\(\) again"):
        await pending
    with pytest.raises(RuntimeError, match="used before"):
        async with pending:
            raise AssertionError("entered")


async def test_one_without_its_await_is_not_taken_for_a_lease(lock) -> None:
    with pytest.raises(AttributeError, match="no attribute 'fencing_token': await it"):
        lock.acquire().fencing_token  # noqa: B018


async def test_repr(lock) -> None:
    pending = lock.acquire()
    assert repr(pending) == "<acquisition not started>"

    await (await pending).release()
    assert repr(pending) == "<acquisition started>"
