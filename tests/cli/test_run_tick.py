"""`aiolocks run --every` and `--cron`: a line in the crontab of many machines, of which one runs the tick."""

from __future__ import annotations

import asyncio
import re
import time
from typing import Any

import pytest
from redis.asyncio import Redis

from aiolocks import Schedule
from aiolocks.kinds.schedule.plan import Cron, Every
from aiolocks.kinds.schedule.run import nearest
from tests.cli.conftest import Aiolocks, Ended
from tests.cli.several import several as in_one_process

pytestmark = pytest.mark.leaves_keys("*:schedule.register:*", "*:schedule.history:*")

MINUTE = 60_000
NOON = 1_767_268_800_000


def every(seconds: float) -> tuple[str, ...]:
    return ("run", "job", "--every", f"{seconds:g}", "--")


async def several(aiolocks: Aiolocks, number: int, *arguments: str) -> list[Ended]:
    started = [await aiolocks(*arguments) for _ in range(number)]
    return list(await asyncio.gather(*(one.end() for one in started)))


@pytest.mark.parametrize(
    ("at", "due"),
    [(0, 0), (20_000, 0), (29_999, 0), (30_001, 1), (59_999, 1)],
)
def test_the_nearest_tick_is_meant(at: int, due: int) -> None:
    """By clocks that differ by less than half of the gap, all mean the same."""
    assert nearest(Every(60), NOON + at) == NOON + due * MINUTE


def test_a_tick_that_is_far_is_not_waited_for() -> None:
    hourly, nightly = Every(3600), Cron("0 12 * * *", "UTC")
    for dues in (hourly, nightly):
        assert nearest(dues, NOON - MINUTE + 1) == NOON
        assert nearest(dues, NOON - MINUTE) < NOON
        assert nearest(dues, NOON + 20 * MINUTE) == NOON


async def test_of_many_machines_one_runs_the_tick(aiolocks: Aiolocks, redis: Redis) -> None:
    # One in an hour: while this test runs, a tick comes in between only if it is very unlucky.
    ended = await several(aiolocks, 4, *every(10), "sh", "-c", "echo $AIOLOCKS_DUE $AIOLOCKS_FENCING_TOKEN")
    assert {one.status for one in ended} == {0}
    assert "".join(one.err for one in ended) == ""
    told = [one.out for one in ended if one.out]
    assert len(told) == len(set(told)) in (1, 2)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d0\+00:00 \d{16}\n", told[0])
    schedule = Schedule(redis, "job", every=10)
    record = (await schedule.history())[0]
    assert (record.outcome, record.metadata) == ("done", {"command": "sh"})
    assert record.due is not None
    assert abs(record.due.timestamp() - time.time()) < 30


async def test_what_has_failed_is_told_and_recorded(aiolocks: Aiolocks, redis: Redis) -> None:
    (ended,) = await several(aiolocks, 1, *every(3), "sh", "-c", "exit 3")
    assert ended.status == 3
    record = (await Schedule(redis, "job", every=3).history())[0]
    assert (record.outcome, record.error) == ("failed", "exit status 3")


async def test_while_another_run_goes_on_it_is_skipped(aiolocks: Aiolocks, redis: Redis) -> None:
    schedule, done = Schedule(redis, "job", every=1), asyncio.Event()

    @schedule
    async def job(_: Any) -> None:
        await done.wait()

    running = asyncio.create_task(schedule.trigger())
    while not await schedule.history():
        await asyncio.sleep(0.01)
    await asyncio.sleep(1)
    (ended,) = await several(aiolocks, 1, *every(1), "echo", "ran")
    done.set()
    assert await running
    assert (ended.status, ended.out) == (0, "")
    assert "'job' is skipped: another run of it goes on" in ended.err


async def test_a_command_that_is_not_there_claims_no_tick(aiolocks: Aiolocks, redis: Redis) -> None:
    (ended,) = await several(aiolocks, 1, *every(10), "no-such-command")
    assert (ended.status, await redis.keys("*:schedule*")) == (127, [])


async def test_wrong_command_lines_are_refused(aiolocks: Aiolocks) -> None:
    wrong = {
        ("--every", "60", "--cron", "* * * * *"): "--every and --cron exclude each other",
        ("--every", "60", "--tz", "UTC"): "--tz is the time zone of --cron",
        ("--every", "60", "--wait", "0"): "--wait, --at-least, --fair and --steal are for a lock",
        ("--cron", "at noon"): "cron 'at noon' is not an expression",
        ("--cron", "0 3 * * *", "--tz", "Nowhere"): "tz 'Nowhere' is not a known time zone",
        ("--every", "0"): "Invalid value for '--every'",
    }
    lines = [("run", "job", *arguments, "--", "true") for arguments in wrong]
    for message, ended in zip(wrong.values(), await in_one_process(aiolocks, *lines), strict=True):
        assert ended.status == 2
        assert message in " ".join(ended.err.split())


async def test_without_a_server_it_says_so(aiolocks: Aiolocks) -> None:
    ended = await (await aiolocks(*every(60), "true", url="redis://127.0.0.1:1")).end()
    assert ended.status == 69
    assert "'job': cannot use the server at 127.0.0.1:1" in ended.err
