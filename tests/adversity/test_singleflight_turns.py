"""Turns: one does the work, and those who waited need not; whoever fails or leaves passes it on.

T-P-10 of `tests/FAULTS.md`, as far as callers have no value to share.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from redis.asyncio import Redis

from aiolocks import Backoff, LockLostError, Session, SingleFlight
from tests.adversity.flights import TRACKING, Work, any_asleep, running, turned, turned_first, within
from tests.adversity.tools import AT_ONCE, UNTOLD, Keys, Start, asleep, begin, elapsed, quiet
from tests.conftest import Connect
from tests.support.waiting import eventually


async def in_turn(start: Start, *, error: Exception | None = None) -> tuple[list[Any], asyncio.Event]:
    """One who is first, two who wait here, two in another session; of these one asks the server."""
    here, there = start(), start()
    end = asyncio.Event()
    calls = [begin(turned(SingleFlight(here), end, error))]
    await eventually(lambda: here.statistics().leases_held == 1)
    await quiet(here)
    before = here.statistics().commands_sent
    with elapsed() as took:
        calls += [begin(turned(SingleFlight(here), end)) for _ in range(2)]
        calls += [begin(turned(SingleFlight(there), end)) for _ in range(2)]
        await eventually(lambda: asleep(there))
    # None, or what it asks each 0.6 s that a task waits.
    assert here.statistics().commands_sent - before <= 2 * took.seconds / UNTOLD
    return calls, end


async def test_who_waited_for_a_turn_need_not_do_the_work(start: Start, keys: Keys) -> None:
    calls, end = await in_turn(start)
    end.set()
    assert await within(AT_ONCE, *calls) == [True, False, False, False, False]
    assert keys() == []


async def test_a_turn_that_fails_is_the_next_ones(start: Start, keys: Keys) -> None:
    error = ValueError("no")
    calls, end = await in_turn(start, error=error)
    end.set()
    ended = await within(2 * AT_ONCE, *calls)
    assert ended[0] is error
    assert sorted(ended[1:]) == [False, False, False, True]
    await eventually(lambda: keys() == [])


async def test_a_turn_that_is_cancelled_is_the_next_ones(start: Start, keys: Keys) -> None:
    calls, end = await in_turn(start)
    calls[0].cancel()
    await asyncio.wait(calls[:1], timeout=AT_ONCE)
    assert calls[0].cancelled()
    end.set()
    assert sorted(await within(2 * AT_ONCE, *calls[1:])) == [False, False, False, True]
    await eventually(lambda: keys() == [])


@TRACKING
async def test_a_turn_that_is_lost_is_the_next_ones(start: Start, redis: Redis) -> None:
    calls, end = await in_turn(start)
    await redis.delete("aiolocks:turn:{t}")
    end.set()
    ended = await within(2 * AT_ONCE, *calls)
    assert isinstance(ended[0], LockLostError)
    assert sorted(ended[1:]) == [False, False, False, True]


@TRACKING
async def test_who_waits_elsewhere_for_a_turn_may_leave(start: Start) -> None:
    """Also the one that asks for the others of its session, and the one that has just been told to."""
    calls, end = await in_turn(start)
    calls[3].cancel()
    calls[1].cancel()
    await asyncio.wait([calls[1], calls[3]], timeout=AT_ONCE)
    end.set()
    assert await within(AT_ONCE, calls[0], calls[2], calls[4]) == [True, False, False]


async def test_who_is_told_to_lead_and_leaves_passes_it_on(session: Session) -> None:
    flight, end = SingleFlight(session), asyncio.Event()
    calls = [begin(turned(flight, end)) for _ in range(3)]
    await eventually(lambda: session.statistics().leases_held == 1)
    calls[0].cancel()
    while not any(waiter.done() for waiter in session._engine.in_progress["turn", "t"]._waiting):
        await asyncio.sleep(0)
    calls[1].cancel()
    end.set()
    assert await within(AT_ONCE, calls[2]) == [True]
    assert calls[1].cancelled()


async def test_a_turn_is_entered_once(session: Session) -> None:
    turn = SingleFlight(session).turn("t")
    async with turn as entered:
        assert entered is turn
        assert repr(turn) == "<Turn first=True>"
        (group,) = session._engine.in_progress.values()
        assert repr(group) == "<TurnGroup waiting=0>"
    with pytest.raises(RuntimeError, match="entered once"):
        async with turn:
            pass


async def test_a_turn_tells_its_fencing_token(session: Session) -> None:
    flight = SingleFlight(session)
    tokens = []
    for _ in range(3):
        async with flight.turn("t") as turn:
            tokens.append(turn.fencing_token)
    assert None not in tokens
    assert tokens == sorted(set(tokens))


async def test_who_comes_later_has_a_turn_of_his_own_and_do_is_another_matter(session: Session) -> None:
    flight = SingleFlight(session, keep=60)
    work = Work()
    work.end.set()
    async with flight.turn("t") as turn:
        assert turn.first
        assert await flight.do("t", work) == "made"
    async with flight.turn("t") as turn:
        assert turn.first


async def test_who_leads_for_the_first_time_when_it_has_ended_elsewhere_is_the_first(
    redis: Redis, session: Session, connect: Connect
) -> None:
    """It came later than that, and knows of it only from the one that has asked before it, and has left."""
    async with Session(connect(), wakeup="poll", backoff=Backoff(initial=3, maximum=3, jitter=0)) as slow:
        work, mine = Work("old"), Work("new")
        call = begin(turned_first(session, work))
        await running(work, session)
        leaving = begin(turned_first(slow, mine))
        await eventually(lambda: any_asleep(slow), within=5)
        work.end.set()
        await call
        await asyncio.sleep(0.05)
        late = begin(turned_first(slow, mine))
        await asyncio.sleep(0.05)
        leaving.cancel()
        mine.end.set()
        assert await within(5, late) == ["new"]
        assert leaving.cancelled()
