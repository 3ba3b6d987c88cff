"""`aiolocks schedule NAME`: next tick, last runs, and a status that says whether a process keeps it."""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
from datetime import datetime

import pytest
from redis.asyncio import Redis

from aiolocks import Lock, Schedule, Tick
from tests.cli.conftest import Aiolocks
from tests.cli.several import several
from tests.conftest import Connect, OwnServer
from tests.support.processes import ROOT
from tests.support.waiting import eventually

pytestmark = pytest.mark.leaves_keys("*:schedule.register:*", "*:schedule.history:*")

HOUR = 3600


async def test_the_next_tick_and_the_last_runs(aiolocks: Aiolocks, redis: Redis) -> None:
    hourly = Schedule(redis, "job", every=HOUR, metadata={"team": "ops"})
    outcomes = iter((None, ValueError("no \x1b[31m space")))

    @hourly
    async def job(tick: Tick) -> None:
        if (error := next(outcomes)) is not None:
            raise error

    async with hourly:
        await hourly.trigger()
        with pytest.raises(ValueError, match="no"):
            await hourly.trigger()
        shown, one, document = await several(
            aiolocks, ("schedule", "job"), ("schedule", "job", "--limit", "1"), ("schedule", "job", "--json")
        )
    assert (shown.status, shown.err, document.status, document.err) == (0, "", 0, "")
    head, header, *runs = shown.out.splitlines()
    told = re.fullmatch(r"schedule 'job': next tick (\S+ \S+), in \d+(\.\d s| min \d+ s)", head)
    assert told is not None
    assert header.split() == ["DUE", "LATE", "OUTCOME", "TOOK", "RUN", "HOST", "PID"]
    where = ["-", socket.gethostname(), f"{os.getpid()}"]
    assert [line.split()[2:4] + line.split()[6:9] for line in runs] == [
        ["-", "failed", *where],
        ["-", "done", *where],
    ]
    assert runs[0].endswith("  out of turn")
    assert len(one.out.splitlines()) == 3

    found = json.loads(document.out)
    assert (found["prefix"], found["name"], found["kept"]) == ("aiolocks", "job", True)
    (tick,) = found["ticks"]
    assert tick["next"] == datetime.fromisoformat(told[1]).timestamp()
    assert tick["next"] % HOUR == 0
    assert 0 < tick["next"] - tick["asked"] <= HOUR
    assert set(tick) == {"claimed", "asked", "next", "kept"}
    failed, done = found["history"]
    assert (failed["error"], done["error"]) == ("ValueError: no \x1b[31m space", "")
    assert (done["due"], done["attempt"], done["metadata"]) == (None, 0, {"team": "ops"})
    assert set(done) == {
        "outcome", "due", "began", "ended", "duration", "attempt", "fencing_token", "error", "host", "pid",
        "metadata",
    }  # fmt: skip


async def test_a_run_that_goes_on_and_ticks_that_were_skipped(aiolocks: Aiolocks, redis: Redis) -> None:
    often = Schedule(redis, "job", every=0.3)
    begun = asyncio.Event()

    @often
    async def job(tick: Tick) -> None:
        begun.set()
        await asyncio.sleep(60)

    async with often:
        await begun.wait()

        async def skipped() -> bool:
            return any(record.outcome == "skipped" for record in await often.history())

        await eventually(skipped, within=5)
        (shown,) = await several(aiolocks, ("schedule", "job"))
    assert shown.status == 0
    rows = [line.split()[2:] for line in shown.out.splitlines()[2:]]
    assert ["-", "skipped", "-", "-", "-", "-"] in rows
    running = next(row for row in rows if "running" in row)
    assert running[2:4] == ["running", running[3]]
    assert running[:2][1] == running[4] == "s"  # `0.0 s` late, and for some seconds by now
    assert running[5:] == ["1", socket.gethostname(), f"{os.getpid()}"]


async def test_nobody_keeps_it(aiolocks: Aiolocks, redis: Redis) -> None:
    often = Schedule(redis, "job", every=0.2)

    @often
    async def job(tick: Tick) -> None: ...

    async with often:
        await eventually(often.history, within=5)
    await asyncio.sleep(1.3)  # a second longer than until the next tick
    left, never, document = await several(
        aiolocks, ("schedule", "job"), ("schedule", "other"), ("schedule", "job", "--json")
    )
    assert re.match(
        r"schedule 'job': no process keeps it; the last one asked for a tick \d\.\d s ago\n", left.out
    )
    assert "  done  " in left.out
    assert (left.status, left.err) == (1, "aiolocks: no process keeps the schedule 'job' now\n")
    said = "aiolocks: no process has kept a schedule 'other' under the prefix 'aiolocks'; there are job\n"
    assert (never.status, never.out, never.err) == (1, "", said)
    assert document.status == 1
    assert json.loads(document.out)["kept"] is False


async def test_while_its_times_change_there_are_two_next_ticks(aiolocks: Aiolocks, redis: Redis) -> None:
    async def job(tick: Tick) -> None: ...

    former, present = Schedule(redis, "job", every=7200), Schedule(redis, "job", cron="30 * * * *")
    former(job)
    present(job)
    async with former, present:
        await eventually(lambda: two(redis), within=5)
        shown, document = await several(aiolocks, ("schedule", "job"), ("schedule", "job", "--json"))
    assert shown.out.count("schedule 'job': next tick ") == 2
    assert sorted(tick["next"] % HOUR for tick in json.loads(document.out)["ticks"]) == [0, 1800]


async def two(redis: Redis) -> bool:
    fields = await redis.hkeys("aiolocks:schedule.register:{job}")
    return sum(field.startswith(b"next:") for field in fields) == 2


LOOKS = "+scan +type +hgetall"
LOOKS_AT_SCHEDULES = "+hget +hgetall +hkeys +zrangebyscore"


@pytest.mark.parametrize("more", ["", LOOKS_AT_SCHEDULES])
async def test_it_needs_the_words_of_the_page_and_show_does_without(
    aiolocks: Aiolocks, own_server: OwnServer, connect: Connect, more: str
) -> None:
    server = await own_server(port=0)
    admin = connect(server)
    hourly = Schedule(admin, "job", every=HOUR)

    @hourly
    async def job(tick: Tick) -> None: ...

    page = (ROOT / "docs" / "how-to" / "use-in-production.md").read_text("utf-8")
    assert f"| `{LOOKS_AT_SCHEDULES}` |" in page
    words = f"-@all +evalsha +eval +get +exists +pttl +time +zrange {LOOKS} {more}".split()
    await admin.execute_command("ACL", "SETUSER", "looks", "on", ">secret", "~*", *words)
    url = server.url.replace("redis://", "redis://looks:secret@")
    async with hourly, Lock(admin, "job"):
        await hourly.trigger()
        told, shown = await several(aiolocks, ("schedule", "job"), ("show", "job"), url=url)
    assert (told.status, shown.status) == (0 if more else 69, 0)
    assert ("next tick" in told.out, "next tick" in shown.out) == (bool(more), bool(more))
    assert ("this user may not do it" in told.err) is not bool(more)


async def test_a_register_that_is_not_ours(aiolocks: Aiolocks, redis: Redis) -> None:
    await redis.set("aiolocks:schedule.register:{job}", "x")
    wrong, missing, many = await several(
        aiolocks, ("schedule", "job"), ("schedule",), ("schedule", "job", "--limit", "101")
    )
    assert wrong.status == 69
    assert "WRONGTYPE" in wrong.err
    assert (missing.status, many.status) == (2, 2)
    assert "1<=x<=100" in many.err
    await redis.delete("aiolocks:schedule.register:{job}")
