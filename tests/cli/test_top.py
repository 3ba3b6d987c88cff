"""`aiolocks top`: keeps its table up to date, and leaves the terminal as it was."""

from __future__ import annotations

import os
import re
import signal

import pytest
from redis.asyncio import Redis

from aiolocks import FairLock, Lock, Semaphore
from tests.cli.conftest import Aiolocks, Invocation, gone
from tests.cli.several import several
from tests.conftest import OwnServer
from tests.support.waiting import eventually

ENTERS, LEAVES = "\x1b[?1049h", "\x1b[?1049l"
"""The other screen of a terminal."""
CURSOR_SHOWN = "\x1b[?25h"


async def ends(invocation: Invocation) -> str:
    """With Ctrl-C; what it has shown."""
    await invocation.type("\x03")
    ended = await invocation.end()
    assert ended.status == 0
    assert "Traceback" not in ended.out
    assert ended.out.rindex(LEAVES) > ended.out.rindex(ENTERS)
    assert CURSOR_SHOWN in ended.out[ended.out.index(ENTERS) :]
    await gone(invocation)
    return ended.out


async def test_shows_what_changes(aiolocks: Aiolocks, redis: Redis) -> None:
    async with Lock(redis, "first"), Lock(redis, "another"):
        invocation = await aiolocks("top", "[!a]*", "--interval", "0.1", terminal=True)
        await invocation.says("1 locks, 1 holders, 0 waiting")
        await invocation.says("first")
        async with FairLock(redis, "second"), Semaphore(redis, "third", 2):
            await invocation.says("3 locks, 3 holders, 0 waiting")
            await invocation.says("1 of 2")
    await invocation.says("0 locks, 0 holders, 0 waiting")
    shown = await ends(invocation)
    for column in ("NAME", "KIND", "HOLDER", "HOST", "PID", "HELD", "LEFT", "WAITERS"):
        assert column in shown
    assert "another" not in shown


async def test_more_than_the_screen_can_show(aiolocks: Aiolocks, redis: Redis) -> None:
    semaphore = Semaphore(redis, "name", 100)
    leases = [await semaphore.acquire() for _ in range(60)]
    invocation = await aiolocks("top", "--interval", "0.1", terminal=True, environment={"LINES": "20"})
    await invocation.says("1 locks, 60 holders, 0 waiting")
    await invocation.says("more lines")
    more = re.search(r"and (\d+) more lines", await ends(invocation))
    assert more is not None
    assert int(more[1]) >= 40
    for lease in leases:
        await lease.release()


async def test_a_server_that_goes_away(aiolocks: Aiolocks, own_server: OwnServer) -> None:
    server = await own_server()
    invocation = await aiolocks("top", "--interval", "0.1", url=server.url, terminal=True)
    await invocation.says("0 locks")
    server.kill()
    await invocation.says("Redis", within=30)
    await ends(invocation)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
async def test_signals_leave_the_terminal_as_it_was(
    aiolocks: Aiolocks, redis: Redis, number: signal.Signals
) -> None:
    invocation = await aiolocks("top", "--interval", "0.1", terminal=True)
    await invocation.says("0 locks")

    async def inner() -> int | None:
        return max(invocation.processes(), default=None)

    process = await eventually(inner, within=10)
    assert process is not None
    os.kill(process, number)
    ended = await invocation.end()
    assert ended.status == 128 + number
    assert ended.out.rindex(LEAVES) > ended.out.rindex(ENTERS)
    assert "Traceback" not in ended.out


async def test_in_a_pipe_it_prints_the_table_once(aiolocks: Aiolocks, redis: Redis) -> None:
    async with Lock(redis, "older"), Lock(redis, "younger"):
        ended = await (await aiolocks("top")).end()
    assert (ended.status, ended.err) == (0, "")
    assert [line.split()[0] for line in ended.out.splitlines()] == ["NAME", "older", "younger"]
    assert "\x1b" not in ended.out


async def test_wrong_intervals(aiolocks: Aiolocks) -> None:
    for ended in await several(
        aiolocks, *(("top", "--interval", wrong) for wrong in ("0", "-1", "x", "nan"))
    ):
        assert ended.status == 2
        assert "--interval" in ended.err
