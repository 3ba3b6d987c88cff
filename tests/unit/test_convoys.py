"""Renewals that are due together are one request; what it comes to is told to each lease for itself."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from redis.exceptions import ResponseError

from aiolocks import Lease, LeaseState, Lock, LockLostError
from aiolocks.transport.driver import pack
from aiolocks.transport.request import LONG
from tests.unit.fakes import cut, demoted, deny, dependable, generous, hold

HELD, UNKNOWN, LOST = LeaseState.HELD, LeaseState.UNKNOWN, LeaseState.LOST
THIEF = b'%s:99:{"host":"h","pid":1,"task":"t","user":{}}' % (b"c3" * 16)
NAMES = [f"{number:02}" for number in range(25)]


@pytest.fixture
async def leases(offline: Any, transport: Any) -> list[Lease]:
    """Three, due together."""
    return [await hold(offline, transport, name, ttl=30) for name in "abc"]


def names_in(call: Any) -> list[str]:
    """The locks that a request for several renews."""
    return [name_in(key) for key in call.keys[::2]]


def name_in(key: bytes) -> str:
    return key.decode().rpartition(":")[2].strip("{}")


async def renewed_alone(transport: Any) -> Any:
    """The next request, which is for one lock, and the name of that."""
    call = await transport.asked("renew")
    return call, name_in(call.keys[0])


def states(leases: list[Lease]) -> list[LeaseState]:
    return [lease.state for lease in leases]


async def test_leases_that_are_due_together_are_renewed_by_one_request(leases, transport, clock) -> None:
    for _ in range(5):
        held_since = clock.now()
        renewal = await transport.asked("locks_renew")
        assert names_in(renewal) == ["a", "b", "c"]
        assert renewal.args[1::3] == (30_000,) * 3
        assert clock.now() - held_since <= 10
        renewal.reply([1, 1, 1])
        assert [lease.remaining() for lease in leases] == [dependable(30)] * 3


async def answered(transport: Any, *names: str) -> Any:
    """The next request for several, which renews all of these."""
    call = await transport.asked("locks_renew")
    assert names_in(call) == list(names)
    call.reply([1] * len(names))
    return call


async def test_the_request_of_leases_that_stay_the_same_is_made_once(leases, transport) -> None:
    first = await answered(transport, "a", "b", "c")
    assert (await answered(transport, "a", "b", "c")).keys is first.keys

    leases[1].detach()
    second = await answered(transport, "a", "c")
    assert (await answered(transport, "a", "c")).keys is second.keys

    transport.hears = True  # the server is asked to tell of changes from now on
    third = await answered(transport, "a", "c")
    assert [len(command.watched) for command in (first, second, third)] == [0, 0, 2]
    assert (await answered(transport, "a", "c")).keys is third.keys


async def test_a_lease_that_joins_others_is_in_their_next_request(leases, offline, transport) -> None:
    await answered(transport, "a", "b", "c")
    await hold(offline, transport, "d", ttl=30)  # due at the same time as the others

    await answered(transport, "a", "b", "c", "d")
    command = await answered(transport, "a", "b", "c", "d")
    assert (await answered(transport, "a", "b", "c", "d")).keys is command.keys


async def test_a_lease_without_company_is_renewed_by_itself(leases, offline, transport) -> None:
    await hold(offline, transport, "other", ttl=36)
    for lease in leases[1:]:
        lease.detach()

    for expected in ("a", "other"):
        renewal, name = await renewed_alone(transport)
        assert name == expected
        renewal.reply(1)
    assert leases[0].remaining() < 30


async def test_each_is_told_its_own_answer(leases, transport) -> None:
    (await transport.asked("locks_renew")).reply([1, 0, THIEF])

    assert states(leases) == [HELD, LOST, LOST]
    with pytest.raises(LockLostError, match="it was stolen"):
        leases[2].ensure_held()
    assert (await renewed_alone(transport))[1] == "a"


async def test_an_error_at_one_lock_is_asked_about_alone(leases, transport) -> None:
    wrong = ResponseError("WRONGTYPE Operation against a key holding the wrong kind of value")
    (await transport.asked("locks_renew")).reply([1, wrong, 1])
    assert states(leases) == [HELD] * 3

    alone, name = await renewed_alone(transport)
    assert name == "b"
    assert [lease.remaining() for lease in leases][::2] == [dependable(30)] * 2
    deny(alone)

    assert states(leases) == [HELD, UNKNOWN, HELD]


@pytest.mark.parametrize("number", [2, 4], ids=str)
async def test_a_list_of_another_length_is_no_answer(leases, transport, number) -> None:
    (await transport.asked("locks_renew")).reply([1] * number)

    assert [(await renewed_alone(transport))[1] for _ in leases] == ["a", "b", "c"]


async def test_what_is_refused_for_all_is_asked_for_each(leases, transport) -> None:
    deny(await transport.asked("locks_renew"))
    first, second, third = [await transport.asked("renew") for _ in leases]
    first.reply(1)
    deny(second)
    third.reply(1)
    assert states(leases) == [HELD, UNKNOWN, HELD]

    # Alone as long as it is refused; then it is in company again.
    for _ in range(5):
        deny(await transport.asked("renew"))
    (await transport.asked("renew")).reply(1)
    assert states(leases) == [HELD] * 3


@pytest.mark.parametrize("fail", [cut, demoted])
async def test_what_may_go_well_a_moment_later_is_tried_again_together(leases, transport, fail) -> None:
    for _ in range(5):
        fail(await transport.asked("locks_renew"))
        assert states(leases) == [UNKNOWN] * 3
    (await transport.asked("locks_renew")).reply([1, 1, 1])

    assert states(leases) == [HELD] * 3


async def test_without_an_answer_they_are_in_doubt_and_then_lost(leases, transport, clock) -> None:
    renewal = await transport.asked("locks_renew")
    await asyncio.sleep(0.999)
    assert states(leases) == [HELD] * 3
    await asyncio.sleep(0.001)
    assert states(leases) == [UNKNOWN] * 3

    await asyncio.sleep(25)
    assert states(leases) == [LOST] * 3
    renewal.reply([1, 1, 1])
    assert states(leases) == [LOST] * 3


async def test_a_lease_that_has_left_is_not_told_and_not_renewed_when_it_is_written_again(
    leases, transport
) -> None:
    renewal = await transport.asked("locks_renew")
    handle = leases[1].detach()
    assert handle
    transport.write(renewal)
    assert names_in(renewal) == ["a", "c"]

    renewal.reply([1, 1])

    assert states(leases) == [HELD, LeaseState.DETACHED, HELD]
    assert [lease.remaining() for lease in leases][::2] == [dependable(30)] * 2


async def test_the_answer_does_not_count_for_one_that_was_extended_meanwhile(leases, transport) -> None:
    renewal = await transport.asked("locks_renew")
    extending = asyncio.create_task(leases[1].extend(60))
    extension = await transport.asked("renew")
    renewal.reply([1, 1, 1])
    assert leases[1].remaining() < 21

    extension.reply(1)
    await extending

    assert leases[1].remaining() == dependable(60)


async def test_nobody_waits_for_it_when_all_have_left(leases, transport) -> None:
    renewal = await transport.asked("locks_renew")
    for lease in leases:
        lease.detach()

    assert renewal.done


async def test_leases_of_other_ttls_are_other_requests(offline, transport) -> None:
    for number in range(6):
        await hold(offline, transport, f"{number}", ttl=30 if number % 2 else 15)

    assert names_in(await transport.asked("locks_renew")) == ["0", "2", "4"]
    assert names_in(await transport.asked("locks_renew")) == ["1", "3", "5"]


@pytest.mark.parametrize("name", ["n", "%" * 1000], ids=["short", "long"])
async def test_a_request_is_for_ten_leases_at_most_and_never_a_long_one(offline, transport, name) -> None:
    for number in range(60):
        await hold(offline, transport, f"{number}{name}", ttl=30)
    await asyncio.sleep(10)

    requests = [call for call in transport.sent if call.script.name == "locks_renew"]
    assert [len(call.keys) // 2 for call in requests] == [10] * 6
    for call in requests:
        assert len(pack(call.words())) < LONG


async def test_requests_that_are_full_are_sent_again_and_others_are_filled_up(offline, transport) -> None:
    leases = [await hold(offline, transport, name, ttl=30) for name in NAMES]
    first = [await answered(transport, *names) for names in (NAMES[:10], NAMES[10:20], NAMES[20:])]
    again = [await answered(transport, *names) for names in (NAMES[:10], NAMES[10:20], NAMES[20:])]
    assert [one.keys is other.keys for one, other in zip(first, again, strict=True)] == [True, True, False]

    leases[3].detach()

    assert (await answered(transport, *NAMES[10:20])).keys is first[1].keys
    await answered(transport, *NAMES[:3], *NAMES[4:10], NAMES[20])
    await answered(transport, *NAMES[21:])


@pytest.mark.parametrize("how", ["by_slot", "max_hold"])
async def test_where_it_cannot_be_each_is_renewed_by_itself(offline, transport, how) -> None:
    transport.by_slot = how == "by_slot"
    options = {"max_hold": 3600} if how == "max_hold" else {}
    for name in "abc":
        await hold(offline, transport, name, ttl=30, **options)

    assert sorted([(await renewed_alone(transport))[1] for _ in range(3)]) == ["a", "b", "c"]


async def test_a_listener_is_told_of_each(offline, transport) -> None:
    transport.answer = lambda asked: [1] * 3 if asked == "locks_renew" else generous(asked)
    leases = [await Lock(offline, name, ttl=30).acquire() for name in "abc"]
    told = []
    offline._engine.events._hooks["on_renewed"].append(lambda event: told.append(event.name))

    await asyncio.sleep(10)

    assert told == ["a", "b", "c"]
    assert states(leases) == [HELD] * 3
