"""Leadership and schedules in a cluster, and behind Sentinel while a master is replaced."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, aclosing
from pathlib import Path
from typing import Self

import pytest

from aiolocks import BackendError, LeaderInfo, Leadership, LeaseState, Schedule, Session, Tick
from tests.adversity.tools import begin, in_within
from tests.support.sentinels import Watched
from tests.support.waiting import eventually

pytestmark = [pytest.mark.leaves_keys]
FAILOVER = 10.0


async def terms_are_seen(one: Session, other: Session) -> None:
    first, second = Leadership(one, "a", value=1), Leadership(other, "a", value=2)
    seen: list[LeaderInfo | None] = []

    async def watch() -> None:
        async with aclosing(second.observe()) as leaders:
            async for leader in leaders:
                seen.append(leader)  # noqa: PERF401 - while it goes on

    async with first as term:
        watching = begin(watch())
        await eventually(lambda: seen)
        await term.proclaim("here")
        waiting = begin(second._acquire(None))
        await eventually(second.candidates)
        leader = await second.leader()
        assert leader is not None
        assert leader.value == "here"
    async with await in_within(FAILOVER, waiting) as next_term:
        assert next_term.fencing_token > term.fencing_token
        await eventually(lambda: seen[-1] is not None and seen[-1].value == 2)
    await eventually(lambda: seen[-1] is None)
    watching.cancel()
    await asyncio.wait((watching,))


class Ticking:
    """A schedule in several sessions, and the ticks that were run."""

    def __init__(self, *sessions: Session) -> None:
        self.ran: list[float] = []
        self._sessions = sessions
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        for session in self._sessions:
            schedule = Schedule(session, "ticks", every=0.25)
            schedule(self._job)
            await self._stack.enter_async_context(schedule)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def _job(self, tick: Tick) -> None:
        self.ran.append(tick.due)

    @property
    def once_each(self) -> bool:
        return len(set(self.ran)) == len(self.ran)


async def test_a_cluster_has_one_leader_and_runs_each_tick_once(sessions: list[Session]) -> None:
    one, other = sessions[:2]
    async with Ticking(one, other) as ticking:
        await terms_are_seen(one, other)
        await eventually(lambda: len(ticking.ran) >= 3)
    assert ticking.once_each


@pytest.fixture
async def watched(tmp_path: Path) -> AsyncIterator[Watched]:
    async with Watched(tmp_path) as watched:
        yield watched


async def test_behind_sentinel_a_term_and_ticks_go_on_when_the_master_is_replaced(
    watched: Watched,
) -> None:
    async with Session(watched.client()) as one, Session(watched.client()) as other:
        async with Ticking(one, other) as ticking:
            async with Leadership(one, "b", ttl=2 * FAILOVER, value=1) as term:
                await eventually(lambda: len(ticking.ran) >= 2)
                after = watched.master.client()
                await after.set("after the term", 1)
                assert await after.wait(1, 10_000) == 1  # the replica has it, however busy the machine
                before = len(ticking.ran)
                watched.master.kill()
                await eventually(watched.failed_over, within=FAILOVER)

                async def known() -> bool:
                    try:
                        leader = await Leadership(other, "b").leader()
                    except BackendError:  # the old master is asked until Sentinel names the new one
                        return False
                    return leader is not None and leader.value == 1

                await eventually(known, within=FAILOVER)
                # Unknown where a renewal was on its way to the old master.
                assert term.state in (LeaseState.HELD, LeaseState.UNKNOWN)
                await eventually(lambda: len(ticking.ran) >= before + 2, within=FAILOVER)
            await terms_are_seen(one, other)
        # The last tick before the failover may be one that the replica had not heard of.
        assert len(ticking.ran) - len(set(ticking.ran)) <= 1
