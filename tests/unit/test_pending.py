"""The result of `acquire()`: awaited, entered, given to a task, or never used at all."""

from __future__ import annotations

import asyncio
import gc
import inspect
import re
import sys
import warnings
from collections.abc import Coroutine
from contextlib import suppress
from importlib.metadata import version

import anyio
import pytest
from asgiref.sync import async_to_sync, iscoroutinefunction

from aiolocks import (
    LeaseState,
    Lock,
    RangeUpgradableLease,
    ReentrantLock,
    RWLock,
    Semaphore,
    UniqueJob,
    UpgradableLease,
)
from tests.unit.fakes import generous, refuse

ANYIO = tuple(map(int, version("anyio").split(".")[:2]))


@pytest.fixture
def lock(offline, transport) -> Lock:
    """Of a session whose server grants everything."""
    transport.answer = generous
    return Lock(offline, "name")


async def test_can_be_awaited(lock) -> None:
    lease = await lock.acquire()

    assert lease.state is LeaseState.HELD


def test_those_who_look_find_coroutine_functions(offline) -> None:
    """As asgiref does, which would warn otherwise."""
    calls = [
        lock.acquire
        for lock in (
            Lock(offline, "a"),
            ReentrantLock(offline, "a"),
            Semaphore(offline, "a", 1),
            RWLock(offline, "a").reader,
            RWLock(offline, "a").upgradable,
        )
    ]
    calls += [Lock(offline, "a").try_acquire, Semaphore(offline, "a", 1).try_acquire]
    calls += [ReentrantLock(offline, "a").try_acquire]
    job = UniqueJob(offline, "a")
    calls += [job.run, job.try_run, job.perform, job.try_perform]
    calls += [UpgradableLease.upgrade, RangeUpgradableLease.upgrade]
    for call in calls:
        assert iscoroutinefunction(call), call
        async_to_sync(call)  # a warning is an error here


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
    pending.close()


@pytest.mark.parametrize("method", ["acquire", "try_acquire"])
async def test_one_never_used_does_nothing_and_warns(lock, transport, method) -> None:
    with pytest.warns(RuntimeWarning) as caught:
        getattr(lock, method)()
        gc.collect()

    assert transport.sent == []
    (warning,) = caught
    assert str(warning.message).splitlines()[0] == f"{method}() of {lock!r} was never awaited"
    assert warning.filename == __file__  # the statement that has dropped it


async def test_one_taken_for_an_answer_warns(lock, transport) -> None:
    entered = False
    with pytest.warns(RuntimeWarning, match=r"try_acquire\(\) of <Lock 'name' ttl=30> was never awaited"):
        if lock.try_acquire():
            entered = True

    assert entered
    assert transport.sent == []


@pytest.mark.parametrize(
    ("drop", "said"),
    [
        (lambda lock: Semaphore(lock._source, "s", 3).acquire(2), "acquire() of <Semaphore 's' value=3"),
        (lambda lock: ReentrantLock(lock._source, "r").try_acquire(), "try_acquire() of <ReentrantLock 'r'"),
        (lambda lock: RWLock(lock._source, "w").reader.acquire(), "acquire() of <RWLock.reader 'w'"),
        (lambda lock: UniqueJob(lock._source, "j").run(), "run() of <UniqueJob 'j'"),
        (lambda lock: UniqueJob(lock._source, "j").try_run(), "try_run() of <UniqueJob 'j'"),
    ],
)
async def test_each_kind_says_what_was_not_awaited(lock, drop, said) -> None:
    with pytest.warns(RuntimeWarning, match=re.escape(said) + ".* was never awaited"):
        drop(lock)


async def test_the_warning_names_the_line_that_made_it_where_origins_are_tracked(lock) -> None:
    depth = sys.get_coroutine_origin_tracking_depth()
    sys.set_coroutine_origin_tracking_depth(2)
    try:
        pending = Semaphore(lock._source, "s", 3).acquire(2)  # made here
        with pytest.warns(RuntimeWarning) as caught:
            del pending
    finally:
        sys.set_coroutine_origin_tracking_depth(depth)

    (warning,) = caught
    _, made, *frames = str(warning.message).splitlines()
    assert made == "It was made at (most recent call last):"
    assert len([line for line in frames if line.startswith("  File ")]) == 2
    assert frames[-2].endswith("in test_the_warning_names_the_line_that_made_it_where_origins_are_tracked")
    assert frames[-1].strip() == 'pending = Semaphore(lock._source, "s", 3).acquire(2)  # made here'


async def test_where_warnings_are_errors_it_goes_to_the_hook_for_what_nobody_can_catch(lock) -> None:
    caught = []
    before, sys.unraisablehook = sys.unraisablehook, caught.append
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            lock.acquire()
    finally:
        sys.unraisablehook = before

    (unraisable,) = caught
    assert unraisable.exc_type is RuntimeWarning


async def test_what_is_begun_warns_of_nothing(lock) -> None:
    """Warnings are errors here."""
    await (await lock.acquire(blocking_timeout=1)).release()
    async with lock.acquire():
        pass
    with suppress(TimeoutError):
        await asyncio.wait_for(lock.acquire(), 0)
    with suppress(TimeoutError):
        async with asyncio.timeout(0):
            await lock.acquire()
    gc.collect()


@pytest.mark.skipif(ANYIO < (4, 14), reason="anyio's start_soon takes only what `async def` makes")
async def test_can_be_started_in_a_task_group_of_anyio(lock) -> None:
    async with anyio.create_task_group() as group:
        group.start_soon(lock.try_acquire)
    gc.collect()


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


@pytest.mark.parametrize("method", ["run", "try_run"])
async def test_a_task_cancelled_before_it_began_warns_of_nothing(lock, transport, method) -> None:
    """Warnings are errors here, also those of the coroutines inside."""
    task = asyncio.create_task(getattr(UniqueJob(lock._source, "job"), method)())
    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task
    gc.collect()
    assert transport.sent == []


async def test_what_is_thrown_into_one_that_was_not_begun_ends_it(lock, transport) -> None:
    pending = lock.acquire()
    with pytest.raises(ZeroDivisionError):
        pending.throw(ZeroDivisionError())

    with pytest.raises(RuntimeError, match="used before"):
        await pending
    assert transport.sent == []


@pytest.mark.parametrize("method", ["acquire", "try_acquire"])
async def test_is_used_once(lock, method) -> None:
    pending = getattr(lock, method)()
    await (await pending).release()

    with pytest.raises(RuntimeError, match=rf"used before: call {method}\(\) again"):
        await pending
    with pytest.raises(RuntimeError, match="used before"):
        async with pending:
            raise AssertionError("entered")


async def test_one_without_its_await_is_not_taken_for_a_lease(lock) -> None:
    pending = lock.acquire()
    with pytest.raises(AttributeError, match="no attribute 'fencing_token': await it"):
        pending.fencing_token  # noqa: B018
    pending.close()


async def test_repr(lock) -> None:
    pending = lock.acquire()
    assert repr(pending) == "<acquisition not started>"

    await (await pending).release()
    assert repr(pending) == "<acquisition started>"
