"""`detach` and `adopt`: a lease goes to another task or process, and there is never more than one of it."""

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
    LockTimeoutError,
)
from tests.unit.fakes import (
    dependable,
    generous,
    hold,
    lose,
    refuse,
    turns,
)

HELD, DETACHED = LeaseState.HELD, LeaseState.DETACHED


async def test_a_detached_lease_is_nobodys_here(make_session, transport) -> None:
    session = make_session(backoff=Backoff(initial=10, maximum=10))
    lease = await hold(session, transport)
    behind = asyncio.create_task(Lock(session, "name").acquire())
    await turns()

    lease.detach()
    refuse(await transport.asked("acquire"), remaining_ms=-1)  # the next one here asks
    behind.cancel()
    await asyncio.sleep(300)

    assert lease.state is DETACHED
    assert session.statistics().leases_held == 0
    assert session.statistics().losses == 0
    assert transport.unasked == ["release"]  # of who waited: leaves the queue


@pytest.mark.parametrize("act", ["ensure_held", "extend", "release", "detach"])
async def test_a_detached_lease_can_do_no_more(offline, transport, act) -> None:
    lease = await hold(offline, transport)
    lease.detach()

    with pytest.raises((LockLostError, LockNotOwnedError), match="it was detached"):
        if (result := getattr(lease, act)()) is not None:
            await result
    assert transport.unasked == []


async def test_a_lost_lease_cannot_be_detached(offline, transport) -> None:
    lease = await hold(offline, transport)
    await lose(lease, transport)

    with pytest.raises(LockLostError):
        lease.detach()


async def test_adopting_swaps_the_token_and_keeps_the_fencing_token(offline, transport) -> None:
    lease = await hold(offline, transport, ttl=30)
    adopting = asyncio.create_task(Lock(offline, "name", ttl=20).adopt(lease.detach()))
    adoption = await transport.asked("adopt")
    old, new, ttl_ms, *_ = adoption.args
    assert old == lease.token
    assert ttl_ms == 20_000
    await asyncio.sleep(1)
    adoption.reply(b"17")
    adopted = await adopting

    assert adopted.token == new != lease.token
    assert adopted.fencing_token == 17
    assert adopted.remaining() + 1 == dependable(20)
    assert lease.state is DETACHED


async def test_adopting_asks_for_no_more_than_max_hold(offline, transport) -> None:
    lease = await hold(offline, transport)
    adopting = asyncio.create_task(Lock(offline, "name", ttl=20, max_hold=5).adopt(lease.detach()))
    adoption = await transport.asked("adopt")
    assert adoption.args[2] == 5000
    adoption.reply(b"17")

    assert (await adopting).remaining() == dependable(5)


async def test_an_adopted_lease_is_renewed_and_keeps_others_here_waiting(offline, transport) -> None:
    transport.answer = generous
    lease = await Lock(offline, "name").adopt((await Lock(offline, "name").acquire()).detach())
    transport.answer = None

    with pytest.raises(LockTimeoutError):
        await Lock(offline, "name").acquire(blocking_timeout=1)
    (await transport.asked("renew")).reply(1)
    assert lease.state is HELD


async def test_a_handle_that_was_adopted_before_is_not_owned(offline, transport) -> None:
    lease = await hold(offline, transport)
    adopting = asyncio.create_task(Lock(offline, "name").adopt(lease.detach()))
    (await transport.asked("adopt")).reply(b"")

    with pytest.raises(LockNotOwnedError, match="it was adopted before, released, or its ttl has passed"):
        await adopting


async def test_a_cancelled_adoption_gives_the_handle_back_in_order_behind_its_request(
    offline, transport
) -> None:
    lease = await hold(offline, transport)
    adopting = asyncio.create_task(Lock(offline, "name").adopt(lease.detach()))
    adoption = await transport.asked("adopt")
    adopting.cancel()

    back = await transport.asked("adopt")

    assert back.args[:2] == (adoption.args[1], adoption.args[0])
    assert back.lane == adoption.lane
    assert back in transport.at_once
    assert back.as_eval
    with pytest.raises(asyncio.CancelledError):
        await adopting


async def test_an_adoption_that_was_never_written_is_not_given_back(offline, transport) -> None:
    lease = await hold(offline, transport)
    transport.connected = False
    adopting = asyncio.create_task(Lock(offline, "name").adopt(lease.detach()))
    await transport.asked("adopt")
    adopting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await adopting

    assert transport.unasked == []


async def test_an_adoption_without_an_answer_is_a_backend_error_and_given_back(
    make_session, transport
) -> None:
    session = make_session(command_timeout=2)
    lease = await hold(session, transport)
    adopting = asyncio.create_task(Lock(session, "name").adopt(lease.detach()))
    await transport.asked("adopt")

    with pytest.raises(BackendError):
        await adopting
    await transport.asked("adopt")
