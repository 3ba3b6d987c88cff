"""`async with`: a loss cancels the body and becomes `LockLostError`; whatever else happens to the body wins."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import anyio
import pytest

from aiolocks import BackendError, Lease, LeaseState, Lock, LockLostError
from aiolocks._core.scope import LossScope
from tests.unit.fakes import deny, generous, lose

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


async def test_a_loss_cancels_the_body_and_leaves_as_lock_lost_error(lease, transport) -> None:
    with pytest.raises(LockLostError) as caught:
        async with lease:
            await lose(lease, transport)
            await asyncio.sleep(60)
            raise AssertionError("went on")

    assert str(caught.value) == LOST
    assert caught.value.__cause__ is None
    assert asyncio.current_task().cancelling() == 0


async def test_the_body_may_clean_up_first(lease, transport) -> None:
    cleaned_up = False
    with pytest.raises(LockLostError):
        async with lease:
            try:
                await lose(lease, transport)
                await asyncio.sleep(60)
            finally:
                await asyncio.sleep(1)
                cleaned_up = True

    assert cleaned_up


async def test_a_body_that_ends_without_looking_is_told_nevertheless(lease, transport) -> None:
    with pytest.raises(LockLostError):
        async with lease:
            await lose(lease, transport)

    assert asyncio.current_task().cancelling() == 0
    await asyncio.sleep(0)  # no cancellation is left to be delivered


async def test_a_body_that_swallows_the_cancellation_is_told_nevertheless(lease, transport) -> None:
    with pytest.raises(LockLostError):
        async with lease:
            await lose(lease, transport)
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                pass

    assert asyncio.current_task().cancelling() == 0


async def test_the_bodys_own_exception_wins_and_has_a_note(lease, transport) -> None:
    with pytest.raises(KeyError) as caught:
        async with lease:
            await lose(lease, transport)
            raise KeyError("body")

    assert caught.value.__notes__ == [NOTE]


async def test_an_exception_that_the_cancellation_was_turned_into_wins(lease, transport) -> None:
    with pytest.raises(KeyError) as caught:
        async with lease:
            await lose(lease, transport)
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                raise KeyError("body") from None

    assert caught.value.__notes__ == [NOTE]


async def test_a_cancellation_from_outside_wins_and_is_passed_on(lease, transport) -> None:
    async def body() -> None:
        async with lease:
            await lose(lease, transport)
            asyncio.current_task().cancel()
            await asyncio.sleep(60)

    task = asyncio.create_task(body())
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
    (await transport.asked("release")).reply(1)

    with pytest.raises(asyncio.CancelledError):
        await task
    assert lease.state is LeaseState.RELEASED


async def test_a_loss_inside_of_a_timeout_is_no_timeout(lease, transport) -> None:
    with pytest.raises(LockLostError):
        async with asyncio.timeout(600), lease:
            await lose(lease, transport)
            await asyncio.sleep(60)


async def test_a_timeout_around_it_stays_one_although_the_lease_was_lost_too(lease, transport) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(60) as timeout, lease:
            await lose(lease, transport)
            timeout.reschedule(0)
            await asyncio.sleep(60)


async def test_a_timeout_inside_of_it_is_no_loss(lease, transport) -> None:
    transport.answer = generous
    async with lease:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await asyncio.sleep(60)
        lease.ensure_held()


async def test_a_loss_inside_of_an_anyio_scope(lease, transport) -> None:
    with pytest.raises(LockLostError):
        with anyio.CancelScope():
            async with lease:
                await lose(lease, transport)
                await anyio.sleep(60)


async def test_a_loss_ends_the_children_of_a_task_group(lease, transport) -> None:
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
            await lose(lease, transport)
            await asyncio.sleep(60)
    assert ended


async def test_of_two_nested_leases_only_the_lost_ones_body_ends(offline, transport, lease) -> None:
    inner = await acquired(Lock(offline, "inner", auto_renew=False), transport)
    with pytest.raises(LockLostError, match="'name'"):
        async with lease:
            async with inner:
                await lose(lease, transport)
                transport.answer = generous
                await asyncio.sleep(60)
    assert inner.state is LeaseState.RELEASED


async def test_both_nested_leases_lost_is_the_outer_ones_loss(offline, transport, lease) -> None:
    inner = await acquired(Lock(offline, "inner"), transport)
    with pytest.raises(LockLostError) as caught:
        async with lease:
            async with inner:
                await lose(inner, transport)
                await lose(lease, transport)
                await asyncio.sleep(60)

    assert caught.value.name in ("name", "inner")
    assert asyncio.current_task().cancelling() == 0


async def test_on_lost_ignore_lets_the_body_go_on_and_logs(offline, transport, caplog) -> None:
    lease = await acquired(Lock(offline, "name", on_lost="ignore"), transport)
    with caplog.at_level(logging.WARNING, "aiolocks"):
        async with lease:
            await lose(lease, transport)
            await asyncio.sleep(60)
            went_on = True

    assert went_on
    assert "'name' was lost" in caplog.text


async def test_on_lost_ignore_does_not_hide_the_bodys_exception(offline, transport) -> None:
    lease = await acquired(Lock(offline, "name", on_lost="ignore"), transport)
    with pytest.raises(KeyError) as caught:
        async with lease:
            await lose(lease, transport)
            raise KeyError("body")

    assert caught.value.__notes__ == [NOTE]


async def test_a_loss_that_shows_only_on_release_is_a_lock_lost_error(lease, transport) -> None:
    async def body() -> None:
        async with lease:
            pass

    task = asyncio.create_task(body())
    (await transport.asked("release")).reply(0)

    with pytest.raises(LockLostError, match="no longer had it as the holder when it was released"):
        await task


async def test_an_unconfirmed_release_is_raised_only_behind_a_body_that_ended_cleanly(lease, transport) -> None:
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


async def test_what_was_not_entered_cannot_be_left(lease) -> None:
    with pytest.raises(RuntimeError, match="was not entered"):
        await lease.__aexit__(None, None, None)


async def test_a_scope_cancels_once_and_never_behind_its_body() -> None:
    task = asyncio.current_task()
    assert task is not None
    scope = LossScope(cancels=True)
    scope.cancel()
    scope.cancel()
    assert task.cancelling() == 1
    with pytest.raises(asyncio.CancelledError) as caught:
        await asyncio.sleep(0)

    assert scope.leave(caught.type)
    scope.cancel()
    assert task.cancelling() == 0


async def test_a_scope_knows_whether_its_body_or_exit_is_still_at_work() -> None:
    scope = LossScope(cancels=True)
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
                LossScope(cancels=True)
            except RuntimeError as error:
                raised.set_result(error)

        loop.call_soon(enter)
        return await raised

    assert "inside a task" in str(asyncio.run(in_a_callback()))
