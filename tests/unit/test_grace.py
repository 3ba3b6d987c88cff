"""The body of a lease with a `grace` ends while the lease is still held; the test is server and clock."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from aiolocks import BackendError, LeaseState, LockLostError, LockNotOwnedError
from tests.unit.fakes import deny, dependable, hold, let_go, turns, verb

TTL = 30
DEADLINE = TTL - 0.01 * TTL - 0.002


class Body:
    """A body that runs until it is cancelled, and then unwinds for some seconds."""

    def __init__(self, lease: Any, *, unwinds: float = 0.0) -> None:
        self.lease = lease
        self.stopped_at: float | None = None
        self.left: float | None = None
        self.stopped = asyncio.Event()
        self.task = asyncio.create_task(self._run(unwinds))

    async def _run(self, unwinds: float) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        async with self.lease:
            try:
                await asyncio.sleep(1000)
            finally:
                self.stopped_at = loop.time() - began
                self.left = self.lease.remaining()
                self.stopped.set()
                await asyncio.sleep(unwinds)


def told(caplog: Any, level: int) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == level]


async def release(transport: Any, *, renews: bool = False) -> None:
    """Answers the release; renewals before it too, or they stay unanswered."""
    while verb(call := await transport._untaken.get()) != "release":
        if renews:
            call.reply(1)
    let_go(call)


async def test_the_body_is_cancelled_before_the_end_and_unwinds_while_it_is_held(offline, transport) -> None:
    lease = await hold(offline, transport, ttl=TTL, grace=5)
    body = Body(lease, unwinds=4)
    await transport.asked("renew")
    await body.stopped.wait()

    assert body.left == pytest.approx(5)
    assert body.stopped_at == pytest.approx(DEADLINE - 5)
    assert lease.state is LeaseState.UNKNOWN
    lease.ensure_held()
    await release(transport)
    with pytest.raises(
        LockLostError, match=r"`grace` began: its last renewal was not confirmed, and its ttl"
    ):
        await body.task
    assert lease.state is LeaseState.RELEASED


async def test_a_renewal_in_time_leaves_the_body_alone(offline, transport) -> None:
    lease = await hold(offline, transport, ttl=TTL, grace=TTL / 2)
    body = Body(lease)
    for _ in range(5):
        (await transport.asked("renew")).reply(1)
        await turns()
    assert body.stopped_at is None
    body.task.cancel()
    await release(transport)
    with pytest.raises(asyncio.CancelledError):
        await body.task


async def test_it_goes_on_being_renewed_which_does_not_call_the_body_back(offline, transport) -> None:
    lease = await hold(offline, transport, ttl=TTL, grace=5)
    body = Body(lease, unwinds=25)
    renewal = await transport.asked("renew")
    await body.stopped.wait()
    assert body.left == pytest.approx(5)
    renewal.reply(1)
    await turns()
    assert lease.state is LeaseState.HELD
    await release(transport, renews=True)
    with pytest.raises(LockLostError, match="`grace` began"):
        await body.task


async def test_a_body_that_outlasts_its_lease_is_logged_once(offline, transport, caplog) -> None:
    lease = await hold(offline, transport, ttl=TTL, grace=5)
    body = Body(lease, unwinds=20)
    await asyncio.sleep(DEADLINE)
    assert [text.partition(":")[0] for text in told(caplog, logging.ERROR)] == ["lock 'name'"]
    assert "its body has not ended, and its lease has" in told(caplog, logging.ERROR)[0]
    with pytest.raises(LockLostError, match=r"`grace` began: .*; its ttl passed without a confirmed renewal"):
        await body.task
    assert len(told(caplog, logging.ERROR)) == 1


async def test_a_release_that_is_not_confirmed_holds_the_exit_up_for_a_second(
    offline, transport, clock
) -> None:
    body = Body(await hold(offline, transport, ttl=TTL, grace=5))
    await body.stopped.wait()
    stopped_at = clock.now()
    with pytest.raises(LockLostError, match="`grace` began"):
        await body.task
    assert clock.now() - stopped_at == pytest.approx(1)


async def test_a_release_that_is_refused_is_the_cause(offline, transport) -> None:
    body = Body(await hold(offline, transport, ttl=TTL, auto_renew=False, grace=5))
    deny(await transport.asked("release"))
    with pytest.raises(LockLostError, match="`grace` began") as caught:
        await body.task
    assert isinstance(caught.value.__cause__, BackendError)


async def test_a_body_that_ends_within_its_grace_is_no_error(offline, transport, caplog) -> None:
    body = Body(await hold(offline, transport, ttl=TTL, grace=5), unwinds=4.9)
    await asyncio.sleep(DEADLINE - 0.05)
    await release(transport)
    with pytest.raises(LockLostError):
        await body.task
    await asyncio.sleep(5)
    assert told(caplog, logging.ERROR) == []


async def test_max_hold_is_an_end(offline, transport) -> None:
    lease = await hold(offline, transport, ttl=TTL, max_hold=40, grace=6)
    body = Body(lease)
    await release(transport, renews=True)
    with pytest.raises(LockLostError, match="`grace` began: max_hold passes in"):
        await body.task
    assert body.stopped_at == pytest.approx(34, abs=0.4)


async def test_without_renewal_the_ttl_is_the_end(offline, transport) -> None:
    body = Body(await hold(offline, transport, ttl=TTL, auto_renew=False, grace=6))
    await release(transport)
    with pytest.raises(LockLostError, match="auto_renew is off, and its ttl passes in"):
        await body.task
    assert body.stopped_at == pytest.approx(DEADLINE - 6)


async def test_a_body_that_ends_well_all_the_same_was_alone(offline, transport) -> None:
    lease = await hold(offline, transport, ttl=TTL, auto_renew=False, grace=6)

    async def persistent() -> str:
        async with lease:
            try:
                await asyncio.sleep(1000)
            except asyncio.CancelledError:
                return "done"
        raise AssertionError

    body = asyncio.create_task(persistent())
    await release(transport)
    assert await body == "done"
    assert body.cancelling() == 0


async def test_an_error_of_the_body_wins_with_a_note(offline, transport) -> None:
    lease = await hold(offline, transport, ttl=TTL, auto_renew=False, grace=6)

    async def failing() -> None:
        async with lease:
            try:
                await asyncio.sleep(1000)
            except asyncio.CancelledError:
                raise KeyError("unwinding") from None

    body = asyncio.create_task(failing())
    await release(transport)
    with pytest.raises(KeyError) as caught:
        await body
    assert "`grace` began" in caught.value.__notes__[0]


async def test_ignored_it_is_only_logged(offline, transport, caplog) -> None:
    lease = await hold(offline, transport, ttl=TTL, on_lost="ignore", grace=6)
    body = Body(lease)
    await asyncio.sleep(DEADLINE + 1)
    assert body.stopped_at is None
    assert sum("`grace` began" in text for text in told(caplog, logging.WARNING)) == 1
    assert told(caplog, logging.ERROR) == []
    body.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await body.task


async def test_a_lease_that_is_entered_within_its_grace_ends_its_body_at_once(offline, transport) -> None:
    lease = await hold(offline, transport, ttl=TTL, auto_renew=False, grace=6)
    await asyncio.sleep(DEADLINE - 3)
    body = Body(lease)
    await release(transport)
    with pytest.raises(LockLostError, match="`grace` began"):
        await body.task
    assert body.stopped_at == pytest.approx(0)


async def test_never_entered_it_ends_with_its_lease_alone(offline, transport) -> None:
    lease = await hold(offline, transport, ttl=TTL, auto_renew=False, grace=6)
    await asyncio.sleep(DEADLINE - 1)
    assert lease.state is LeaseState.HELD
    await asyncio.sleep(1)
    with pytest.raises(LockNotOwnedError, match="auto_renew is off"):
        await lease.release()


async def test_another_ttl_needs_room_for_it(offline, transport) -> None:
    lease = await hold(offline, transport, ttl=TTL, grace=6)
    with pytest.raises(
        ValueError, match="grace must be at most half of ttl and max_hold, here 5 s, but it is 6"
    ):
        await lease.extend(10)
    assert lease.remaining() == dependable(TTL)


async def test_a_handler_of_the_log_may_let_go_of_it_as_its_grace_begins(offline, transport, clock) -> None:
    lease = await hold(offline, transport, ttl=TTL, grace=5)

    class Detaching(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lease.detach()

    log, handler = logging.getLogger("aiolocks.session"), Detaching(logging.WARNING)
    log.addHandler(handler)
    try:
        clock.jump(DEADLINE - 4)  # so that a renewal is due as well
        await turns()
    finally:
        log.removeHandler(handler)

    assert lease.state is LeaseState.DETACHED
    assert "renew" not in transport.verbs
