"""Long requests over the second connection, in the simulated world, where far shorter ones count as long."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest
from redis.asyncio import Redis

from aiolocks import FencedRegister, Session
from aiolocks.transport import connection
from tests.simulation import place
from tests.simulation.world.run import Runner
from tests.simulation.world.schedule import drawn
from tests.simulation.world.shrink import command

HALF = 300
"""Bytes: about every second request of most kinds has more."""
ALL = 4000
"""Bytes that no request has, nor any script, without a large value."""
SLOW = 0.02
FarAway = Callable[[float], Coroutine[Any, Any, Redis]]


async def write(session: Session, *values: str) -> None:
    register = FencedRegister(session, "a")
    await asyncio.gather(*(register.write(value, 1) for value in values))
    assert await register.read() == values[-1]


@pytest.mark.leaves_keys("aiolocks:fencedregister:*")
async def main_is_slower(far_away: FarAway) -> None:
    async with Session(await far_away(SLOW)) as session:
        await write(session, "first")
        await far_away(0.0)
        await write(session, "small", ALL * "x", "small and last")


@pytest.mark.leaves_keys("aiolocks:fencedregister:*")
async def second_is_slower(far_away: FarAway) -> None:
    async with Session(await far_away(0.0)) as session:
        await write(session, "first")
        await far_away(SLOW)
        await write(session, "small", ALL * "x", "small and last")


@pytest.mark.parametrize("test", [main_is_slower, second_is_slower])
def test_requests_of_one_name_keep_their_order_over_both_connections(
    monkeypatch: pytest.MonkeyPatch, test: Callable[..., Any]
) -> None:
    monkeypatch.setattr(connection, "LONG", ALL)
    place.run(test)


@pytest.fixture(scope="module")
def runner() -> Iterator[Runner]:
    with Runner() as runner:
        yield runner


@pytest.mark.parametrize("faulty", [False, True], ids=["calm", "faulty"])
@pytest.mark.parametrize(
    "kind",
    [
        "lock",
        "cluster-multilock",
        *(
            pytest.param(kind, marks=pytest.mark.more)  # keeper
            for kind in ("semaphore", "rwlock", "fencedregister", "singleflight", "combiner", "sentinel-lock")
        ),
    ],
)
def test_schedules_go_well(monkeypatch: pytest.MonkeyPatch, runner: Runner, kind: str, faulty: bool) -> None:
    monkeypatch.setattr(connection, "LONG", HALF)
    for seed in range(8_000_000, 8_000_003):
        outcome = runner.run(drawn(kind, seed, faulty=faulty))
        # The second connection has to be made first: a lock may be free for longer than these worlds allow.
        told = [told for told in outcome.violations if not told.startswith("free for")]
        assert not told, f"{told} {command(outcome.schedule)}"
