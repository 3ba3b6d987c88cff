"""A call of a single flight that does not wait for as long as another's run takes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from aiolocks import LockTimeoutError, Session, SingleFlight
from tests.adversity.flights import Work, joined, running
from tests.adversity.tools import begin
from tests.conftest import Connect


@pytest.fixture
async def other(connect: Connect, prefix: str) -> AsyncIterator[Session]:
    async with Session(connect(), prefix=prefix) as other:
        yield other


@pytest.mark.parametrize("where", ["here", "elsewhere"])
@pytest.mark.parametrize("limit", [0, 0.1])
async def test_a_run_of_another_caller_is_waited_for_no_longer(
    session: Session, other: Session, where: str, limit: float
) -> None:
    work, mine = Work(), Work()
    first = begin(SingleFlight(session).do("k", work))
    await running(work, session)
    flight = SingleFlight(session if where == "here" else other)
    since = asyncio.get_running_loop().time()
    with pytest.raises(LockTimeoutError, match="'k' was not acquired"):
        await flight.do("k", mine, blocking_timeout=limit)
    assert limit <= asyncio.get_running_loop().time() - since < limit + 1
    assert mine.begun == 0
    work.end.set()
    assert await first == "made"
    assert work.begun == 1


async def test_it_gets_the_value_that_comes_in_time(session: Session, other: Session) -> None:
    work = Work()
    first = begin(SingleFlight(session).do("k", work))
    await running(work, session)
    second = await joined(other, SingleFlight(other), "k", work, blocking_timeout=20)
    work.end.set()
    assert await second == await first == "made"
    assert work.begun == 1


async def test_its_own_run_is_not_limited(session: Session) -> None:
    work = Work()
    call = begin(SingleFlight(session).do("k", work, blocking_timeout=0.05))
    await running(work, session)
    await asyncio.sleep(0.2)
    work.end.set()
    assert await call == "made"


async def test_a_kept_value_is_there_at_once(session: Session, other: Session) -> None:
    work = Work()
    work.end.set()
    await SingleFlight(session, keep=60).do("k", work)
    assert await SingleFlight(other, keep=60).do("k", work, blocking_timeout=0) == "made"
    assert work.begun == 1


async def test_who_gives_up_leaves_the_others_waiting(session: Session, other: Session) -> None:
    work, mine = Work(), Work()
    first = begin(SingleFlight(session).do("k", work))
    await running(work, session)
    flight = SingleFlight(other)
    impatient = begin(flight.do("k", mine, blocking_timeout=0.05))
    patient = begin(flight.do("k", mine))
    with pytest.raises(LockTimeoutError):
        await impatient
    work.end.set()
    assert await patient == await first == "made"
    assert mine.begun == 0


async def test_its_function_runs_when_the_runner_has_gone(session: Session, other: Session) -> None:
    work, mine = Work(), Work("mine")
    mine.end.set()
    first = begin(SingleFlight(session).do("k", work))
    await running(work, session)
    second = await joined(other, SingleFlight(other), "k", mine, blocking_timeout=20)
    first.cancel()
    assert await second == "mine"
