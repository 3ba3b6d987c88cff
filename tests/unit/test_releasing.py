"""`Lease.release`: once, confirmed, and never behind the back of whoever waits for it."""

from __future__ import annotations

import asyncio

import pytest

from aiolocks import (
    BackendError,
    Backoff,
    LeaseState,
    Lock,
    LockLostError,
    LockNotOwnedError,
)
from aiolocks.transport import Request
from tests.unit.fakes import (
    demoted,
    deny,
    dependable,
    grant,
    hold,
    let_go,
    lose,
    refuse,
    releasing,
)

LOST, RELEASED = LeaseState.LOST, LeaseState.RELEASED


async def test_released_once_confirmed(make_session, transport) -> None:
    session = make_session()
    lease = await hold(session, transport)
    task = releasing(lease)
    release = await transport.asked("release")
    assert lease.remaining() == 0, "nothing may be relied on any more"
    with pytest.raises(LockLostError, match="it is being released"):
        lease.ensure_held()

    release.reply([1])
    await task

    assert lease.state is RELEASED
    assert session.statistics().leases_held == 0
    assert session.statistics().hold_seconds.count == 1


@pytest.mark.parametrize(("at_least", "said"), [(0, ()), (10, (10_000,))])
async def test_a_release_says_for_how_long_the_name_is_to_stay_taken(
    offline, transport, at_least, said
) -> None:
    lease = await hold(offline, transport, at_least=at_least)
    task = releasing(lease)
    release = await transport.asked("release")
    assert release.args[3:] == said
    release.reply([1])
    await task


async def test_a_name_that_is_given_back_after_a_loss_stays_taken_too(offline, transport, clock) -> None:
    lease = await hold(offline, transport, ttl=10, at_least=10, auto_renew=False)
    clock.jump(11)
    with pytest.raises(LockNotOwnedError):
        await lease.release()
    given_back = await transport.asked("release")
    assert given_back.args[3:] == (10_000,)


async def test_releasing_again_does_nothing(offline, transport) -> None:
    lease = await hold(offline, transport)
    tasks = [releasing(lease), releasing(lease)]
    (await transport.asked("release")).reply([1])
    await asyncio.gather(*tasks)

    await lease.release()

    assert transport.unasked == []


async def test_what_was_released_cannot_be_relied_on(offline, transport) -> None:
    lease = await hold(offline, transport)
    task = releasing(lease)
    (await transport.asked("release")).reply([1])
    await task

    with pytest.raises(LockLostError, match=r"^Lock 'name' is not held: it was released$"):
        lease.ensure_held()


async def test_a_renewal_under_way_is_dropped_before_the_release_is_sent(offline, transport) -> None:
    lease = await hold(offline, transport)
    renewal = await transport.asked("renew")
    task = releasing(lease)
    release = await transport.asked("release")
    assert renewal.done

    renewal.reply(1)
    release.reply([1])
    await task
    await asyncio.sleep(300)

    assert lease.state is RELEASED
    assert transport.verbs == ["acquire", "renew", "release"]


async def test_no_renewal_is_sent_behind_a_release_however_long_it_takes(offline, transport) -> None:
    lease = await hold(offline, transport, ttl=30)
    task = releasing(lease)
    await transport.asked("release")

    with pytest.raises(BackendError):
        await task
    assert "renew" not in transport.unasked


async def test_a_release_that_is_not_confirmed_in_time_is_followed_by_an_undo(offline, transport) -> None:
    """A server that hangs may execute the renewal before it when it goes on, at whatever time that is."""
    lease = await hold(offline, transport, ttl=30)
    task = releasing(lease)
    await transport.asked("release")

    with pytest.raises(BackendError):
        await task
    assert transport.unasked == ["release"]
    assert transport.at_once[-1].undoes


async def test_a_release_that_finds_another_holder_is_a_loss(offline, transport) -> None:
    lease = await hold(offline, transport)
    task = releasing(lease)
    (await transport.asked("release")).reply([0])

    with pytest.raises(LockNotOwnedError, match="no longer had it as the holder when it was released"):
        await task
    assert lease.state is LOST


async def test_a_release_whose_first_reply_was_lost_is_a_success(offline, transport) -> None:
    lease = await hold(offline, transport)
    task = releasing(lease)
    release = await transport.asked("release")
    release.unconfirmed = True  # the transport has sent it again over a new connection
    release.reply([0])

    await task

    assert lease.state is RELEASED


@pytest.mark.parametrize("unconfirmed", [False, True])
async def test_a_release_that_names_the_thief_is_a_loss_however_often_it_was_sent(
    offline, transport, unconfirmed
) -> None:
    lease = await hold(offline, transport)
    task = releasing(lease)
    release = await transport.asked("release")
    release.unconfirmed = unconfirmed
    release.reply([b'%b:%d:{"host":"h","pid":7}' % (b"b2" * 16, lease.fencing_token + 1)])

    with pytest.raises(LockNotOwnedError, match="it was stolen by h pid 7") as caught:
        await task
    assert caught.value.stolen_by is not None
    assert caught.value.stolen_by.pid == 7
    assert lease.state is LOST


async def test_the_thief_of_an_earlier_lease_is_none_of_this_one(offline, transport) -> None:
    lease = await hold(offline, transport)
    task = releasing(lease)
    release = await transport.asked("release")
    release.unconfirmed = True
    release.reply([b"%b:%d:{}" % (b"b2" * 16, lease.fencing_token - 1)])

    await task
    assert lease.state is RELEASED


async def test_a_release_is_repeated_after_a_passing_fault(offline, transport, clock) -> None:
    lease = await hold(offline, transport)
    task = releasing(lease)
    demoted(await transport.asked("release"))
    failed_at = clock.now()

    (await transport.asked("release")).reply([1])

    await task
    assert clock.now() - failed_at == pytest.approx(Backoff().maximum)
    assert lease.state is RELEASED


async def test_a_repeated_release_that_is_no_longer_the_holder_is_a_success_only_if_the_first_may_have_run(
    offline, transport
) -> None:
    lease = await hold(offline, transport)
    task = releasing(lease)
    demoted(await transport.asked("release"))  # certainly not executed
    (await transport.asked("release")).reply([0])

    with pytest.raises(LockNotOwnedError):
        await task


async def test_a_release_without_an_answer_ends_with_the_lease(offline, transport, clock) -> None:
    lease = await hold(offline, transport, ttl=5)
    granted_at = clock.now()
    task = releasing(lease)
    await transport.asked("release")

    with pytest.raises(BackendError):
        await task
    assert clock.now() - granted_at == dependable(5)
    assert lease.state is LOST


async def test_a_release_that_is_not_allowed_is_told_at_once(offline, transport, clock) -> None:
    lease = await hold(offline, transport)
    task = releasing(lease)
    began = clock.now()
    deny(await transport.asked("release"))

    with pytest.raises(BackendError):
        await task
    assert clock.now() == began
    assert lease.state is LOST


async def test_a_cancelled_release_is_held_up_for_a_second_and_goes_on_by_itself(
    offline, transport, clock
) -> None:
    lease = await hold(offline, transport)
    task = releasing(lease)
    release = await transport.asked("release")
    task.cancel()
    began = clock.now()

    with pytest.raises(asyncio.CancelledError):
        await task
    assert clock.now() - began == pytest.approx(1)

    release.reply([1])
    assert lease.state is RELEASED


async def test_what_was_lost_is_given_back_once_and_is_not_owned(offline, transport) -> None:
    lease = await hold(offline, transport)
    await lose(lease, transport)

    for _ in range(2):
        with pytest.raises(LockNotOwnedError, match="the server no longer has it as the holder"):
            await lease.release()

    assert transport.unasked == ["release"]


async def test_a_lease_whose_time_has_passed_is_not_owned_even_before_the_watchdog_saw_it(
    offline, transport, clock
) -> None:
    lease = await hold(offline, transport, ttl=1)
    clock.jump(1)

    with pytest.raises(LockNotOwnedError, match="the event loop did not run"):
        await lease.release()
    assert transport.unasked == ["release"]


async def test_owned_asks_the_server(offline, transport) -> None:
    lease = await hold(offline, transport)
    for answer in (True, False):
        asking = asyncio.create_task(lease.owned())
        (await transport.asked("owned")).reply(int(answer))
        assert await asking is answer


async def test_what_is_asked_without_a_call_is_asked_as_by_request_ask(offline, transport) -> None:
    """Acquires and releases save that call; all that it sets must stand in each place."""

    def asked(call: Request) -> None:
        late = offline._engine.wake_own
        again = call.again().ask(call.on_reply, call.on_fault, until=call.until, on_late=late)
        sent = {"sent", "sent_steady", "written", "head"}
        assert {name: value for name, value in vars(call).items() if name not in sent} == {
            name: value for name, value in vars(again).items() if value != getattr(Request, name, ...)
        }

    acquiring = asyncio.create_task(Lock(offline, "name").acquire())
    acquire = await transport.asked("acquire")
    asked(acquire)
    refuse(acquire)
    acquire = await transport.asked("acquire")  # of a waiter
    asked(acquire)
    grant(acquire)
    letting_go = releasing(await acquiring)
    release = await transport.asked("release")
    asked(release)
    let_go(release)
    await letting_go
