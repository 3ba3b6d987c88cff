"""Leases that are due together: each has a request of its own, and is told its own answer."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from redis.exceptions import ResponseError

from aiolocks import Lease, LeaseState, Lock, LockLostError
from aiolocks.transport import faults
from tests.unit.fakes import cut, demoted, deny, dependable, generous, hold

HELD, UNKNOWN, LOST = LeaseState.HELD, LeaseState.UNKNOWN, LeaseState.LOST
THIEF = b'%s:99:{"host":"h","pid":1,"task":"t","user":{}}' % (b"c3" * 16)


@pytest.fixture
async def leases(offline: Any, transport: Any) -> list[Lease]:
    """Three, due together."""
    return [await hold(offline, transport, name, ttl=30) for name in "abc"]


def name_in(call: Any) -> str:
    return call.keys[0].decode().rpartition(":")[2].strip("{}")


async def renewals(transport: Any) -> list[Any]:
    """The next requests, which renew all three, in the order of their grants."""
    calls = [await transport.asked("renew") for _ in "abc"]
    assert [name_in(call) for call in calls] == ["a", "b", "c"]
    return calls


def states(leases: list[Lease]) -> list[LeaseState]:
    return [lease.state for lease in leases]


async def test_they_are_renewed_in_one_turn_again_and_again(leases, transport, clock) -> None:
    for _ in range(5):
        held_since = clock.now()
        calls = await renewals(transport)
        assert clock.now() - held_since <= 10
        for call in calls:
            assert call.args[1] == 30_000
            call.reply(1)
        assert [lease.remaining() for lease in leases] == [dependable(30)] * 3


async def test_each_is_told_its_own_answer(leases, transport) -> None:
    for call, answer in zip(await renewals(transport), [1, 0, THIEF], strict=True):
        call.reply(answer)

    assert states(leases) == [HELD, LOST, LOST]
    with pytest.raises(LockLostError, match="it was stolen"):
        leases[2].ensure_held()
    assert name_in(await transport.asked("renew")) == "a"


async def test_an_error_of_one_is_nothing_to_the_others(leases, transport) -> None:
    first, second, third = await renewals(transport)
    first.reply(1)
    deny(second)
    third.reply(1)
    assert states(leases) == [HELD, UNKNOWN, HELD]
    assert [lease.remaining() for lease in leases][::2] == [dependable(30)] * 2

    again = await transport.asked("renew")
    assert name_in(again) == "b"
    again.reply(1)
    assert states(leases) == [HELD] * 3


async def test_a_key_of_another_program_is_a_loss_of_one(leases, transport) -> None:
    wrong = ResponseError("WRONGTYPE Operation against a key holding the wrong kind of value")
    first, second, third = await renewals(transport)
    second.fault(faults.refused(wrong))
    first.reply(1)
    third.reply(1)

    assert states(leases) == [HELD, LOST, HELD]


@pytest.mark.parametrize("fail", [cut, demoted])
async def test_what_may_go_well_a_moment_later_is_tried_again(leases, transport, fail) -> None:
    for _ in range(5):
        for call in await renewals(transport):
            fail(call)
        assert states(leases) == [UNKNOWN] * 3
    for call in await renewals(transport):
        call.reply(1)

    assert states(leases) == [HELD] * 3


async def test_without_an_answer_they_are_in_doubt_and_then_lost(leases, transport) -> None:
    calls = await renewals(transport)
    await asyncio.sleep(0.999)
    assert states(leases) == [HELD] * 3
    await asyncio.sleep(0.001)
    assert states(leases) == [UNKNOWN] * 3

    await asyncio.sleep(25)
    assert states(leases) == [LOST] * 3
    assert all(call.done for call in calls)
    for call in calls:
        call.reply(1)
    assert states(leases) == [LOST] * 3


async def test_the_request_of_a_lease_that_has_left_is_forgotten(leases, transport) -> None:
    calls = await renewals(transport)
    leases[1].detach()
    assert [call.done for call in calls] == [False, True, False]

    for call in calls:
        call.reply(1)

    assert states(leases) == [HELD, LeaseState.DETACHED, HELD]
    assert [lease.remaining() for lease in leases][::2] == [dependable(30)] * 2


async def test_the_answer_does_not_count_for_one_that_was_extended_meanwhile(leases, transport) -> None:
    calls = await renewals(transport)
    extending = asyncio.create_task(leases[1].extend(60))
    extension = await transport.asked("renew")
    for call in calls:
        call.reply(1)
    assert leases[1].remaining() < 21

    extension.reply(1)
    await extending

    assert leases[1].remaining() == dependable(60)


async def test_a_listener_is_told_of_each(offline, transport) -> None:
    transport.answer = generous
    leases = [await Lock(offline, name, ttl=30).acquire() for name in "abc"]
    told = []
    offline._engine.events._hooks["on_renewed"].append(lambda event: told.append(event.name))

    await asyncio.sleep(10)

    assert told == ["a", "b", "c"]
    assert states(leases) == [HELD] * 3
