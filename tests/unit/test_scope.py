"""`async with`: a loss cancels the body and becomes `LockLostError`; whatever else befalls the body wins."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
from contextlib import suppress
from typing import Any

import anyio
import pytest

from aiolocks import BackendError, Lease, LeaseState, Lock, LockLostError, LockNotOwnedError
from aiolocks.lock import process
from aiolocks.lock.lease import BodyScope
from tests.unit.fakes import deny, generous, lose, turns

LOST = "Lock 'name' was lost: the server no longer has it as the holder"
NOTE = f"aiolocks: {LOST}"


@pytest.fixture
async def lease(offline, transport) -> Lease:
    """Granted by a server that leaves everything else to the test."""
    return await acquired(Lock(offline, "name"), transport)


async def acquired(lock: Lock, transport: Any) -> Lease:
    transport.answer = generous
    lease = await lock.acquire()
    transport.answer = None
    return lease


@pytest.fixture
async def losing(lease, transport) -> asyncio.Task[None]:
    """Its next renewal finds it lost."""
    return asyncio.create_task(lose(lease, transport))


def cancelling() -> int:
    """Requests to cancel this task that nobody has taken back."""
    task = asyncio.current_task()
    assert task is not None
    return task.cancelling()


async def test_a_loss_cancels_the_body_and_leaves_as_lock_lost_error(lease, losing) -> None:
    with pytest.raises(LockLostError) as caught:
        async with lease:
            await asyncio.sleep(60)
            raise AssertionError("went on")

    assert str(caught.value) == LOST
    assert caught.value.__cause__ is None
    assert cancelling() == 0


async def test_the_body_may_clean_up_first(lease, losing) -> None:
    cleaned_up = False
    with pytest.raises(LockLostError):
        async with lease:
            try:
                await asyncio.sleep(60)
            finally:
                await asyncio.sleep(1)
                cleaned_up = True

    assert cleaned_up


async def test_a_body_that_swallows_the_cancellation_is_told_nevertheless(lease, losing) -> None:
    with pytest.raises(LockLostError):
        async with lease:
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(60)

    assert cancelling() == 0


async def test_a_body_that_blocked_the_loop_past_its_time_is_told_on_exit(offline, transport, clock) -> None:
    with pytest.raises(LockLostError, match="the event loop did not run"):
        async with await acquired(Lock(offline, "name", ttl=1), transport):
            clock.jump(1)


async def test_the_bodys_own_exception_wins_and_has_a_note(lease, transport, clock) -> None:
    with pytest.raises(KeyError) as caught:
        async with lease:
            clock.jump(30)
            raise KeyError("body")

    (note,) = caught.value.__notes__
    assert note.startswith("aiolocks: Lock 'name' was lost: the event loop did not run for 20.")


async def test_an_exception_that_the_cancellation_was_turned_into_wins(lease, losing) -> None:
    with pytest.raises(KeyError) as caught:
        async with lease:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                raise KeyError("body") from None

    assert caught.value.__notes__ == [NOTE]


async def test_a_cancellation_from_outside_wins_and_is_passed_on(lease, transport) -> None:
    async def body() -> None:
        async with lease:
            await asyncio.sleep(60)

    task = asyncio.create_task(body())
    (await transport.asked("renew")).reply(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError) as caught:
        await task

    assert task.cancelled()
    assert caught.value.__notes__ == [NOTE]


async def test_a_cancellation_from_outside_alone_stays_one(lease, transport) -> None:
    async def body() -> None:
        async with lease:
            await asyncio.sleep(60)

    task = asyncio.create_task(body())
    await asyncio.sleep(1)
    task.cancel()
    (await transport.asked("release")).reply([1])

    with pytest.raises(asyncio.CancelledError):
        await task
    assert lease.state is LeaseState.RELEASED


async def test_a_cancellation_from_outside_is_held_up_for_a_second_at_most(lease, transport, clock) -> None:
    async def body() -> None:
        async with lease:
            await asyncio.sleep(60)

    task = asyncio.create_task(body())
    await asyncio.sleep(1)
    task.cancel()
    began = clock.now()

    with pytest.raises(asyncio.CancelledError):
        await task
    assert clock.now() - began == pytest.approx(1)
    assert transport.unasked == ["release"]


async def test_a_loss_inside_of_a_timeout_is_no_timeout(lease, losing) -> None:
    with pytest.raises(LockLostError):
        async with asyncio.timeout(600), lease:
            await asyncio.sleep(60)


async def test_a_timeout_around_it_wins_over_a_loss_at_the_same_time(offline, transport) -> None:
    lease = await acquired(Lock(offline, "name", auto_renew=False), transport)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(lease.remaining()), lease:
            await asyncio.sleep(60)

    assert lease.state is LeaseState.LOST
    assert cancelling() == 0


async def test_a_timeout_inside_of_it_is_no_loss(lease, transport) -> None:
    transport.answer = generous
    async with lease:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await asyncio.sleep(60)
        lease.ensure_held()


async def test_a_loss_inside_of_an_anyio_scope(lease, losing) -> None:
    with pytest.raises(LockLostError):
        with anyio.CancelScope():
            async with lease:
                await anyio.sleep(60)


async def test_a_loss_ends_the_children_of_a_task_group(lease, losing) -> None:
    ended = False

    async def child() -> None:
        nonlocal ended
        try:
            await asyncio.sleep(60)
        finally:
            ended = True

    with pytest.raises(LockLostError):
        async with lease, asyncio.TaskGroup() as group:
            group.create_task(child())
            await asyncio.sleep(60)
    assert ended


async def test_of_two_nested_leases_the_outer_ones_loss_ends_both_bodies(offline, transport, lease) -> None:
    inner = await acquired(Lock(offline, "inner", auto_renew=False), transport)

    async def lose_outer() -> None:
        await lose(lease, transport)
        (await transport.asked("release")).reply([1])

    losing = asyncio.create_task(lose_outer())
    with pytest.raises(LockLostError, match="'name'"):
        async with lease, inner:
            await asyncio.sleep(20)
    assert inner.state is LeaseState.RELEASED
    await losing


async def test_of_two_nested_leases_both_lost_the_outer_one_is_told(offline, transport, lease) -> None:
    inner = await acquired(Lock(offline, "inner"), transport)

    async def lose_both() -> None:
        for call in [await transport.asked("renew") for _ in range(2)]:
            call.reply(0)

    losing = asyncio.create_task(lose_both())
    with pytest.raises(LockLostError, match="'name'"):
        async with lease, inner:
            await asyncio.sleep(60)
    assert cancelling() == 0
    await losing


async def test_on_lost_ignore_lets_the_body_go_on_and_logs(offline, transport, caplog) -> None:
    lease = await acquired(Lock(offline, "name", on_lost="ignore"), transport)
    losing = asyncio.create_task(lose(lease, transport))
    went_on = False
    with caplog.at_level(logging.WARNING, "aiolocks"):
        async with lease:
            await asyncio.sleep(60)
            went_on = True

    assert went_on
    assert "'name' was lost" in caplog.text
    await losing


async def test_on_lost_ignore_does_not_hide_the_bodys_exception(offline, transport, clock) -> None:
    lease = await acquired(Lock(offline, "name", on_lost="ignore"), transport)
    with pytest.raises(KeyError) as caught:
        async with lease:
            clock.jump(30)
            raise KeyError("body")

    assert len(caught.value.__notes__) == 1


async def test_a_loss_that_the_body_itself_finds_leaves_no_cancellation_behind(lease, transport) -> None:
    async def deny_extension() -> None:
        (await transport.asked("renew")).reply(0)

    denying = asyncio.create_task(deny_extension())
    with pytest.raises(LockLostError):
        async with lease:
            await lease.extend(60)

    await denying  # would raise it
    assert cancelling() == 0


async def test_a_body_that_goes_on_behind_a_loss_that_it_found_itself_is_cancelled(lease, transport) -> None:
    async def deny_extension() -> None:
        (await transport.asked("renew")).reply(0)

    denying = asyncio.create_task(deny_extension())
    with pytest.raises(LockLostError):
        async with lease:
            with suppress(LockLostError):
                await lease.extend(60)
            await asyncio.sleep(60)
            raise AssertionError("went on")

    await denying
    assert cancelling() == 0


async def test_a_release_in_the_body_that_comes_too_late_leaves_no_cancellation_behind(
    lease, transport, clock
) -> None:
    with pytest.raises(LockNotOwnedError):
        async with lease:
            clock.jump(30)
            await lease.release()

    await asyncio.sleep(0)  # would raise it
    assert cancelling() == 0


async def test_a_loss_that_shows_only_on_release_is_a_lock_lost_error(lease, transport) -> None:
    async def body() -> None:
        async with lease:
            pass

    task = asyncio.create_task(body())
    (await transport.asked("release")).reply([0])

    with pytest.raises(LockLostError, match="no longer had it as the holder when it was released"):
        await task


async def test_an_unconfirmed_release_is_raised_only_behind_a_body_that_ended_cleanly(
    lease, transport
) -> None:
    async def body() -> None:
        async with lease:
            pass

    task = asyncio.create_task(body())
    deny(await transport.asked("release"))

    with pytest.raises(BackendError):
        await task


async def test_an_unconfirmed_release_does_not_mask_what_the_body_raised(lease, transport) -> None:
    async def body() -> None:
        async with lease:
            raise KeyError("body")

    task = asyncio.create_task(body())
    deny(await transport.asked("release"))

    with pytest.raises(KeyError) as caught:
        await task
    assert caught.value.__notes__[0].startswith("aiolocks: Redis refused")


async def test_a_lease_that_was_released_inside_is_left_alone(lease, transport) -> None:
    transport.answer = generous
    async with lease:
        await lease.release()

    assert transport.verbs == ["acquire", "release"]


async def test_a_lease_that_was_detached_inside_is_left_alone(lease, transport) -> None:
    async with lease:
        lease.detach()

    assert transport.unasked == []


async def test_is_entered_once(lease, transport) -> None:
    transport.answer = generous
    async with lease:
        with pytest.raises(RuntimeError, match="was entered before"):
            await lease.__aenter__()

    with pytest.raises(RuntimeError, match="was entered before"):
        await lease.__aenter__()


async def test_what_was_lost_cannot_be_entered(lease, transport) -> None:
    await lose(lease, transport)

    with pytest.raises(LockLostError):
        async with lease:
            raise AssertionError("entered")


async def test_what_is_entered_too_late_is_lost_there_and_then(offline, transport, clock, recwarn) -> None:
    """The next waiter here need not wait for the watchdog, or for the garbage collector."""
    lease = await acquired(Lock(offline, "name"), transport)
    behind = asyncio.create_task(Lock(offline, "name").acquire())
    await turns()
    taken = len(transport.sent)
    clock.jump(31)

    with pytest.raises(LockLostError, match="the event loop did not run"):
        await lease.__aenter__()

    assert transport.verbs[taken:] == ["acquire"]
    assert offline.statistics().leases_held == 0
    transport.kept.clear()
    del lease
    gc.collect()
    assert [str(warning.message) for warning in recwarn] == []
    behind.cancel()
    await turns()


async def test_a_fork_of_the_holder_keeps_what_the_body_raised(lease, transport, monkeypatch) -> None:
    with monkeypatch.context() as patched:
        with pytest.raises(ValueError, match="the body") as caught:
            async with lease:
                patched.setattr(process, "pid", os.getpid() + 1)
                raise ValueError("the body")
        assert transport.unasked == []

    assert len(caught.value.__notes__) == 1
    assert "the process that forked this one" in caught.value.__notes__[0]


async def test_what_was_not_entered_cannot_be_left(lease) -> None:
    with pytest.raises(RuntimeError, match="was not entered"):
        await lease.__aexit__(None, None, None)


async def test_a_scope_cancels_once_and_never_behind_its_body() -> None:
    task = asyncio.current_task()
    assert task is not None
    scope = BodyScope(asyncio.get_running_loop())
    for _ in range(2):
        asyncio.get_running_loop().call_soon(scope.cancel, "why")
    with pytest.raises(asyncio.CancelledError) as caught:
        await asyncio.sleep(60)
    assert task.cancelling() == 1

    assert scope.leave(caught.value)
    asyncio.get_running_loop().call_soon(scope.cancel, "why")
    await asyncio.sleep(0.01)
    assert task.cancelling() == 0


async def test_a_scope_knows_whether_its_body_or_exit_is_still_at_work() -> None:
    scope = BodyScope(asyncio.get_running_loop())
    assert scope.running

    scope.leave(None)
    assert scope.running, "the release is still to come"

    scope.ended = True
    assert not scope.running


def test_a_scope_belongs_to_a_task() -> None:
    async def in_a_callback() -> BaseException:
        loop = asyncio.get_running_loop()
        raised = loop.create_future()

        def enter() -> None:
            try:
                BodyScope(asyncio.get_running_loop())
            except RuntimeError as error:
                raised.set_result(error)

        loop.call_soon(enter)
        return await raised

    assert "inside a task" in str(asyncio.run(in_a_callback()))
