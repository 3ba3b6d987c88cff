"""`Lease.extend`: until the server has confirmed it, the shorter of both times counts."""

from __future__ import annotations

import asyncio

import pytest
from redis.exceptions import ResponseError

from aiolocks import (
    BackendError,
    LeaseState,
    LockLostError,
)
from aiolocks.transport import faults
from tests.unit.fakes import (
    cut,
    dependable,
    hold,
    lose,
    releasing,
    turns,
)

HELD, LOST = LeaseState.HELD, LeaseState.LOST


async def test_until_it_is_confirmed_a_longer_ttl_does_not_count(offline, transport) -> None:
    lease = await hold(offline, transport, ttl=10)
    extending = asyncio.create_task(lease.extend(60))
    extension = await transport.asked("renew")
    assert extension.args[1] == 60_000
    assert lease.remaining() == dependable(10)

    extension.reply(1)
    await extending

    assert lease.remaining() == dependable(60)
    assert lease.ttl == 60


async def test_a_shorter_ttl_counts_at_once(offline, transport) -> None:
    lease = await hold(offline, transport, ttl=60)

    extending = asyncio.create_task(lease.extend(10))
    extension = await transport.asked("renew")
    assert lease.remaining() == dependable(10)

    extension.reply(1)
    await extending
    assert lease.remaining() == dependable(10)


@pytest.mark.parametrize("ttl", [9.999, 1])
async def test_a_ttl_under_at_least_is_refused_before_anything_is_asked(offline, transport, ttl) -> None:
    lease = await hold(offline, transport, ttl=60, at_least=10)

    with pytest.raises(ValueError, match=r"at_least must not be longer .*, here .* s, but it is 10 s"):
        await lease.extend(ttl)

    assert transport.unasked == []
    assert lease.remaining() == dependable(60)


@pytest.mark.parametrize("at_least", [0.1 + 0.2, 10])
async def test_a_ttl_of_at_least_is_long_enough(offline, transport, at_least) -> None:
    lease = await hold(offline, transport, ttl=at_least, at_least=at_least)
    for ttl in (None, at_least):
        extending = asyncio.create_task(lease.extend(ttl))
        (await transport.asked("renew")).reply(1)
        await extending


async def test_the_renewals_that_follow_keep_the_new_ttl(offline, transport, clock) -> None:
    lease = await hold(offline, transport, ttl=10)
    extending = asyncio.create_task(lease.extend(60))
    (await transport.asked("renew")).reply(1)
    await extending
    extended_at = clock.now()

    renewal = await transport.asked("renew")

    assert renewal.args[1] == 60_000
    assert clock.now() - extended_at == pytest.approx(20, abs=60 / 32)


async def test_without_a_ttl_it_extends_by_the_one_it_has(offline, transport) -> None:
    lease = await hold(offline, transport, ttl=10, auto_renew=False)
    await asyncio.sleep(5)
    extending = asyncio.create_task(lease.extend())
    (await transport.asked("renew")).reply(1)
    await extending

    assert lease.remaining() == dependable(10)


async def test_extends_no_further_than_max_hold(offline, transport) -> None:
    lease = await hold(offline, transport, ttl=10, max_hold=30)
    extending = asyncio.create_task(lease.extend(60))
    extension = await transport.asked("renew")
    assert extension.args[1] == 30_000
    extension.reply(1)
    await extending

    assert lease.remaining() == dependable(30)


@pytest.mark.parametrize("ttl", [0, 0.049, -1, float("nan"), True, "5"])
async def test_a_bad_ttl_is_refused_before_anything_is_sent(offline, transport, ttl) -> None:
    lease = await hold(offline, transport)

    with pytest.raises((TypeError, ValueError), match="ttl must be a number of seconds"):
        await lease.extend(ttl)

    assert transport.unasked == []
    assert lease.ttl == 30


async def test_extending_what_the_server_does_not_have_is_a_loss(offline, transport) -> None:
    lease = await hold(offline, transport)
    extending = asyncio.create_task(lease.extend(60))
    (await transport.asked("renew")).reply(0)

    with pytest.raises(LockLostError, match="the server no longer has it"):
        await extending
    assert lease.state is LOST


async def test_extending_a_lost_lease_asks_nothing(offline, transport) -> None:
    lease = await hold(offline, transport)
    await lose(lease, transport)

    with pytest.raises(LockLostError):
        await lease.extend(60)
    assert transport.unasked == []


@pytest.mark.parametrize("ttl", [5, 60])
async def test_after_an_error_in_extending_the_shorter_time_counts(offline, transport, ttl) -> None:
    lease = await hold(offline, transport, ttl=30)
    extending = asyncio.create_task(lease.extend(ttl))
    cut(await transport.asked("renew"))

    with pytest.raises(BackendError):
        await extending
    assert lease.remaining() == dependable(min(30, ttl))


async def test_an_extension_is_given_up_after_the_time_of_a_command(make_session, transport, clock) -> None:
    lease = await hold(make_session(command_timeout=2), transport, ttl=30)
    began = clock.now()
    extending = asyncio.create_task(lease.extend(60))
    await transport.asked("renew")

    with pytest.raises(BackendError):
        await extending
    assert clock.now() - began == pytest.approx(2)
    assert lease.state is HELD


async def test_an_extension_without_an_answer_to_the_deadline_is_a_loss(offline, transport) -> None:
    lease = await hold(offline, transport, ttl=1)
    extending = asyncio.create_task(lease.extend(60))
    await transport.asked("renew")

    with pytest.raises(LockLostError):
        await extending


async def test_a_cancelled_extension_counts_as_the_shorter_time(offline, transport) -> None:
    lease = await hold(offline, transport, ttl=30)
    extending = asyncio.create_task(lease.extend(60))
    extension = await transport.asked("renew")

    extending.cancel()
    await turns()
    extension.reply(1)

    assert extending.cancelled()
    assert lease.remaining() == dependable(30)


@pytest.mark.parametrize("max_hold", [None, 20], ids=["without a limit", "to the end of max_hold before"])
async def test_after_a_cancelled_extension_to_a_shorter_ttl_it_is_still_renewed_in_time(
    offline, transport, max_hold
) -> None:
    lease = await hold(offline, transport, ttl=30, max_hold=max_hold)
    extending = asyncio.create_task(lease.extend(1))
    await transport.asked("renew")
    extending.cancel()
    await turns()

    async with asyncio.timeout(0.9):
        (await transport.asked("renew")).reply(1)

    assert lease.state is HELD


async def test_the_answer_to_a_renewal_from_before_an_extension_does_not_count(offline, transport) -> None:
    lease = await hold(offline, transport, ttl=30)
    renewal = await transport.asked("renew")
    extending = asyncio.create_task(lease.extend(5))
    extension = await transport.asked("renew")

    renewal.reply(1)
    assert lease.remaining() == dependable(5)
    extension.reply(1)
    await extending

    assert lease.remaining() == dependable(5)


async def test_an_extension_that_a_release_overtook_starts_nothing_again(offline, transport) -> None:
    lease = await hold(offline, transport, ttl=30)
    extending = asyncio.create_task(lease.extend(60))
    extension = await transport.asked("renew")
    task = releasing(lease)
    release = await transport.asked("release")

    extension.reply(1)
    with pytest.raises(LockLostError, match="it is being released"):
        await extending
    await asyncio.sleep(25)  # a renewal would be due
    assert transport.unasked == []

    release.reply([1])
    await task


async def test_not_the_holder_is_no_loss_to_an_extension_that_a_release_overtook(offline, transport) -> None:
    """Both were executed, both answers lost, and both repeated."""
    lease = await hold(offline, transport, ttl=30)
    extending = asyncio.create_task(lease.extend(60))
    extension = await transport.asked("renew")
    task = releasing(lease)
    release = await transport.asked("release")

    extension.unconfirmed = True
    extension.reply(0)
    with pytest.raises(LockLostError, match="it is being released"):
        await extending
    release.unconfirmed = True
    release.reply([0])

    await task
    assert lease.state is LeaseState.RELEASED


async def test_of_two_extensions_at_once_the_second_follows_the_answer_to_the_first(
    offline, transport
) -> None:
    lease = await hold(offline, transport, ttl=30)
    longer, shorter = asyncio.create_task(lease.extend(60)), asyncio.create_task(lease.extend(5))
    extension = await transport.asked("renew")
    await turns()
    assert extension.args[1] == 60_000
    assert transport.unasked == []

    extension.reply(1)
    await longer
    extension = await transport.asked("renew")
    assert extension.args[1] == 5000
    cut(extension)  # executed or not

    with pytest.raises(BackendError):
        await shorter
    assert lease.remaining() == dependable(5)


async def test_an_extension_that_waited_for_a_connection_reaches_no_further_than_max_hold(
    make_session, transport
) -> None:
    lease = await hold(make_session(command_timeout=20), transport, ttl=30, max_hold=32, auto_renew=False)
    transport.connected = False
    extending = asyncio.create_task(lease.extend())
    extension = await transport.asked("renew")
    await asyncio.sleep(12)

    transport.write(extension)
    extension.reply(1)
    await extending

    assert extension.args[1] == pytest.approx(20_000, abs=1)
    assert lease.remaining() == dependable(20)


async def test_extending_over_a_key_that_others_have_overwritten_is_a_loss(offline, transport) -> None:
    lease = await hold(offline, transport)
    extending = asyncio.create_task(lease.extend(60))
    overwritten = ResponseError("WRONGTYPE Operation against a key holding the wrong kind of value")
    (await transport.asked("renew")).fault(faults.refused(overwritten, (b"key",)))

    with pytest.raises(LockLostError, match="WRONGTYPE"):
        await extending
    assert lease.state is LOST
